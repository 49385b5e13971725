"""Handlers with the marks of another framework."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from connectagent import Agent, PluginError
from connectagent.hooks import foreign
from connectagent.plugins import ForeignMarks, register_marks
from connectagent.testing import ScriptedLLM


def adapt(function: Callable[..., Any], hook: str) -> Callable[..., Any]:
    def handler(agent: Agent) -> None:
        function(agent, hook)

    return handler


@pytest.fixture(autouse=True)
def marks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(foreign, "_known", {})
    register_marks(ForeignMarks("Onion", "_onion_event", {"before_model": "before_llm"}, adapt))
    yield


def marked(event: str, seen: list[Any]) -> Callable[..., Any]:
    def handler(agent: Agent, hook: str) -> None:
        seen.append((agent.name, hook))

    handler._onion_event = event  # type: ignore[attr-defined]
    return handler


def test_a_function_with_marks_of_another_framework_is_a_handler_of_the_hook_that_they_mean() -> None:
    seen: list[Any] = []
    agent = Agent("a", llm=ScriptedLLM("Hi."), plugins=[marked("before_model", seen)], log=False, quiet=True)
    agent.input("Hello")
    assert seen == [("a", "before_llm")]


def test_an_event_that_has_no_hook_is_named_with_those_that_have_one() -> None:
    with pytest.raises(PluginError, match=r"Onion's event 'at_dawn'; those with a hook are: before_model"):
        Agent("a", llm=ScriptedLLM("Hi."), plugins=[marked("at_dawn", [])], log=False, quiet=True)


def test_marks_whose_distribution_is_missing_are_told_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "_sources", [])

    def plan(agent: Any) -> None: ...

    plan._event_type = "before_llm"  # type: ignore[attr-defined]
    with pytest.raises(PluginError, match=r"connectagent-connectonion makes it one of connectagent\.\nInstall it"):
        Agent("a", llm=ScriptedLLM("Hi."), plugins=[plan], log=False, quiet=True)
