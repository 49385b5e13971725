"""The end of each hook is in the record, though its handlers only observed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from connectagent import (
    Agent,
    Pause,
    Paused,
    ToolCall,
    after_llm,
    after_tools,
    before_each_tool,
    before_llm,
    on_complete,
)
from connectagent.records import read_record
from connectagent.records.read import load_record
from connectagent.testing import ScriptedLLM, call

RAN: list[str] = []


@before_llm
def look(agent: Any) -> None:
    RAN.append("before_llm")


@after_llm
def look_again(agent: Any) -> None:
    RAN.append("after_llm")


@after_tools
def look_back(agent: Any) -> None:
    RAN.append("after_tools")


@on_complete
def look_at_last(agent: Any) -> None:
    RAN.append("on_complete")


@before_each_tool
def ask(tool_call: ToolCall) -> None:
    raise Pause("may I?")


def fail(x: int) -> int:
    """Fail."""
    raise KeyboardInterrupt


def double(x: int) -> int:
    """Double a number."""
    return 2 * x


def agent(tool: Any, *more: Any) -> Agent:
    RAN.clear()
    handlers = [look, look_again, look_back, look_at_last, *more]
    return Agent("a", [tool], llm=ScriptedLLM(call(tool.__name__, x=2), "Done."), on_events=handlers, quiet=True)


def ends(path: Path | None) -> list[str]:
    """The hooks that a record says have ended, in order."""
    assert path is not None
    return [line["id"] for turn in read_record(path)["turns"] for line in turn["lines"] if line["type"] == "closed"]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path / ".co"))


def test_an_end_stands_in_the_next_line() -> None:
    made = agent(double)
    made.input("Double 2.")
    assert made.record is not None
    lines = [line for turn in load_record(made.record)["turns"] for line in turn["trace"]]
    assert not [line for line in lines if line["type"] == "closed"]
    found = {line["id"]: line["hooks_ended"] for line in lines if "hooks_ended" in line}
    assert found == {
        "T1/1/model1": ["T1/1/before_llm"],
        "T1/1/c1/tool1": ["T1/1/after_llm"],
        "T1/2/model1": ["T1/1/after_tools", "T1/2/before_llm"],
    }
    assert not [entry for entry in made.current_session["trace"] if "hooks_ended" in entry]
    assert not [line for turn in read_record(made.record)["turns"] for line in turn["lines"] if "hooks_ended" in line]


def test_where_a_turn_stops_the_last_ends_are_written() -> None:
    made = agent(fail)
    with pytest.raises(KeyboardInterrupt):
        made.input("Fail.")
    assert ends(made.record) == ["T1/1/before_llm", "T1/1/after_llm"]
    paused = agent(double, ask)
    with pytest.raises(Paused):
        paused.input("Double 2.")
    assert ends(paused.record) == ["T1/1/before_llm", "T1/1/after_llm"]
    RAN.clear()
    assert paused.resume(approve=True) == "Done."
    assert RAN == ["after_tools", "before_llm", "after_llm", "on_complete"]


def test_a_hook_that_was_not_there_before_does_not_fire_where_the_turn_has_passed() -> None:
    paused = agent(double, ask)
    with pytest.raises(Paused):
        paused.input("Double 2.")
    fired: list[str] = []

    @before_llm
    def added(agent: Any) -> None:
        fired.append(agent.current_session["iteration"])

    assert paused.record is not None
    later = agent(double, ask, added)
    later.llm = ScriptedLLM("Done.")
    assert later.resume(paused.record, approve=True) == "Done."
    assert fired == [2]
