"""An agent with one tool, and handlers that note that they ran."""

from __future__ import annotations

import inspect
import types
from typing import Any

from connectagent import Agent, hooks
from connectagent.testing import ScriptedLLM

TYPES: Any = types


def answer() -> str:
    """Give the tool's own result."""
    return "own"


def agent_with(*plugins: Any, script: tuple[Any, ...] = ("Done.",), **options: Any) -> Agent:
    return Agent("a", [answer], llm=ScriptedLLM(*script), plugins=list(plugins), log=False, quiet=True, **options)


def noting(hook: str, name: str, seen: list[str], **order: bool) -> Any:
    def handler() -> None:
        seen.append(name)

    return getattr(hooks, hook)(**order)(handler) if order else getattr(hooks, hook)(handler)


def line_of(function: Any) -> int:
    return inspect.getsourcelines(function)[1]
