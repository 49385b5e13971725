"""The arguments of `Agent`, in groups: what model it asks, what plugins it has, where it stands, how it takes turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from connectagent.agents.tree import TreeArguments
from connectagent.data import LLM
from connectagent.errors import ConfigError

__all__ = ["Arguments", "ModelArguments", "PluginArguments", "TreeArguments", "TurnArguments", "whole_number"]


@dataclass(frozen=True)
class ModelArguments:
    """Which model an agent asks, and how it is reached."""

    model: str | None
    llm: LLM | None
    api_key: str | None
    base_url: str | None
    options: dict[str, Any] | None


@dataclass(frozen=True)
class PluginArguments:
    """Which plugins an agent has: those of connectagent's own, and those that are given."""

    plugins: Any
    on_events: Any
    trust: Any
    log: bool | str | Path | None
    quiet: bool
    errors: str


@dataclass(frozen=True)
class TurnArguments:
    """How an agent takes its turns."""

    max_iterations: int
    parallel_tools: int
    stream: bool
    run: Callable[..., Any] | None
    output: Any
    output_retries: int
    output_key: str | None


@dataclass(frozen=True)
class Arguments:
    """All arguments of an agent."""

    name: str
    tools: Any
    system_prompt: str | Path | None
    state: dict[str, Any] | None
    model: ModelArguments
    plugins: PluginArguments
    place: TreeArguments
    turns: TurnArguments

    def check(self) -> None:
        """Refuse what is no name, no text or no choice.

        Raises:
            ConfigError: an argument cannot be used.
        """
        name: Any = self.name
        if not isinstance(name, str) or not name.strip():
            raise ConfigError(f"an agent's name is a str that is not empty, not {name!r}")
        if self.plugins.errors not in ("raise", "warn"):
            raise ConfigError(f"plugin_errors is 'raise' or 'warn', not {self.plugins.errors!r}")

    def check_texts(self) -> None:
        """Refuse a description and a key that are no texts.

        Raises:
            ConfigError: one is none.
        """
        for argument, value in (("description", self.place.description), ("output_key", self.turns.output_key)):
            if not isinstance(value, str | None):
                raise ConfigError(f"{argument} of agent {self.name!r} is a str or None, not {value!r:.80}")


def whole_number(value: Any, name: str = "max_iterations") -> int:
    """A limit that is a whole number from 1 on.

    Raises:
        ConfigError: it is not.
    """
    if type(value) is not int or value < 1:
        of = "model calls" if name == "max_iterations" else "tool calls at the same time"
        raise ConfigError(f"{name} is a whole number of {of}, at least 1, not {value!r}")
    return value
