"""Agents with a scripted model and three tools, and what tests ask of them."""

from __future__ import annotations

import inspect
from typing import Any

from connectagent import Agent
from connectagent.testing import ScriptedLLM

CALL = ("double", {"x": 2})


def double(x: int) -> int:
    """Double a number."""
    return 2 * x


def fails() -> str:
    """Fail."""
    raise OSError("no disk")


def note(agent: Any, text: str = "noted") -> str:
    """Write into the session."""
    agent.current_session["state"]["note"] = text
    agent.current_session["messages"].append({"role": "user", "content": text})
    return "ok"


def agent_with(*plugins: Any, script: tuple[Any, ...] = (CALL, "Done."), **options: Any) -> Agent:
    tools = [double, fails, note]
    return Agent("a", tools, llm=ScriptedLLM(*script), plugins=list(plugins), log=False, quiet=True, **options)


def session_of(agent: Agent) -> dict[str, Any]:
    assert agent.current_session is not None
    return agent.current_session


def entries(agent: Agent, kind: str) -> list[dict[str, Any]]:
    return [entry for entry in session_of(agent)["trace"] if entry["type"] == kind]


def contents(agent: Agent) -> list[Any]:
    return [message["content"] for message in session_of(agent)["messages"]]


def is_by(entry: dict[str, Any], function: Any, hook: str) -> bool:
    """Whether an entry names this handler: its name, its hook, its file and its line."""
    by, (file, line) = entry["by"], (inspect.getsourcefile(function), inspect.getsourcelines(function)[1])
    return (by["handler"], by["hook"], by["file"], by["line"]) == (function.__name__, hook, file, line)
