"""The function that an agent runs in place of a model."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from connectagent import frame
from connectagent.data import LLMResponse, Message
from connectagent.errors import ConfigError
from connectagent.loop.turn import turn_in
from connectagent.tools.awaiting import CALLER, interrupt, operating
from connectagent.tools.running import passed_on
from connectagent.tools.tool import Tool

_PARAMETERS = ("agent", "prompt")


class Body(Tool):
    """The function of `Agent(run=...)`, as a tool that no model sees.

    Where it is a generator, each text that it yields is a piece of the agent's answer, and goes where the text of a
    model goes as it arrives.
    """

    __slots__ = ()

    def _settled(self, value: Any) -> Any:
        """The result of the function: what it returned, else the texts that it yielded.

        Raises:
            TypeError: it yielded something else than a text.
        """
        here = frame.current()
        assert here is not None  # `run` is called inside the turn
        turn = turn_in(here)
        pieces: list[str] = []

        def take(piece: Any) -> bool:
            if turn.ended is not None:
                return False
            if not isinstance(piece, str):
                raise TypeError(
                    f"the function that agent {turn.agent.name!r} runs ({self.origin}) yielded "
                    f"{type(piece).__name__} {piece!r:.80}; it yields the pieces of its result, each a str"
                )
            pieces.append(piece)
            if piece and turn.is_heard:
                turn.emit_text(piece)
            if (caller := CALLER.get()) is not None and caller.cancelled:  # meanwhile: what it has is no whole result
                raise interrupt()
            return turn.ended is None

        # As an operation: a function that its turn has left behind is told so by an error, and closed.
        result = passed_on(value, lambda piece: operating(partial(take, piece)))
        return "".join(pieces) if result is None and pieces else result


def body_of(run: Callable[..., Any], name: str) -> Body:
    """The function that an agent of this name runs in place of a model, as a tool.

    Raises:
        ConfigError: it is no function, or takes something else than `agent` and `prompt`.
    """
    if not callable(run):
        raise ConfigError(f"run= of agent {name!r} takes a function of (agent, prompt), not {run!r:.80}")
    for parameter in inspect.signature(run).parameters.values():
        if parameter.name not in _PARAMETERS and parameter.default is parameter.empty:
            raise ConfigError(
                f"the function that agent {name!r} runs has an unknown parameter {parameter.name!r}; "
                f"it is given {' and '.join(_PARAMETERS)}"
            )
    return Body("run", f"The body of {name}.", {"type": "object", "properties": {}}, run)


def parameters_of(run: Callable[..., Any]) -> list[str]:
    """Which of `agent` and `prompt` a body takes."""
    return [name for name in inspect.signature(run).parameters if name in _PARAMETERS]


def repeats(function: Any) -> bool:
    """Whether the body of an agent is a loop of other agents."""
    return bool(getattr(function, "repeats", False))


class NoModel:
    """The `llm` of an agent that runs a function."""

    model = "function"

    def __init__(self, name: str) -> None:
        self._name = name

    def complete(self, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> LLMResponse:
        """Refuse.

        Raises:
            ConfigError: always; the agent was given no model.
        """
        raise ConfigError(f"agent {self._name!r} runs a function and has no model; give it one with model=...")
