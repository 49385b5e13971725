"""Going on with turns whose parts look alike: handlers of one name, one agent asked twice, agents of no tree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from connectagent import Agent, Pause, Paused, before_each_tool
from connectagent.testing import ScriptedLLM, call


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)
    return tmp_path


def work() -> str:
    """Work."""
    return "worked"


class Guard:
    """Asks a person before each call; two objects of it are two handlers of one name."""

    def __init__(self, role: str) -> None:
        self.role = role

    @before_each_tool
    def ask(self) -> None:
        raise Pause(f"ask the {self.role}")


def test_each_of_two_guards_of_one_class_asks() -> None:
    llm = ScriptedLLM(call("work"), "Done.")
    agent = Agent("clerk", [work], llm=llm, quiet=True, plugins=[Guard("manager"), Guard("owner")])
    with pytest.raises(Paused, match="ask the manager") as first:
        agent.input("Go")
    with pytest.raises(Paused, match="ask the owner") as second:
        agent.resume(first.value.record, approve=True)
    assert first.value.waiting[0].id != second.value.waiting[0].id
    assert agent.resume(second.value.record, approve=True) == "Done."


def test_handlers_of_one_name_have_numbers_that_stay() -> None:
    agent = Agent("clerk", quiet=True, log=False, llm=ScriptedLLM("Hi"), plugins=[Guard("a"), Guard("b"), Guard("c")])

    def names() -> list[Any]:
        return [handler.by["handler"] for handler in agent.hooks.handlers("before_each_tool")]

    assert names() == ["Guard.ask", "Guard.ask#2", "Guard.ask#3"]
    with agent.hooks.without([agent.hooks.handlers("before_each_tool")[0]]):
        assert names() == ["Guard.ask#2", "Guard.ask#3"]
    agent.hooks.register(Guard("d"))
    assert sorted(names()) == ["Guard.ask", "Guard.ask#2", "Guard.ask#3", "Guard.ask#4"]


