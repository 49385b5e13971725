"""Every spelling that reaches a function with one value reaches each guard with that value."""

from __future__ import annotations

import json
from pathlib import Path

import connectagent_approve
import pytest
from argument_spellings import text
from argument_types import KINDS, tool_function
from connectagent_approve import Approve
from guard_witness import Seen, sendable

from connectagent import Agent, Tool
from connectagent.testing import ScriptedLLM, call


@pytest.mark.parametrize("parallel", [1, 4])
@pytest.mark.parametrize("name", KINDS)
def test_guards_see_the_form_of_each_spelling(
    name: str, parallel: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = tool_function(KINDS[name].type)
    sent = sendable(name)
    seen = Seen(tmp_path, monkeypatch)
    rounds = [[call("take", value=one) for one in sent[start : start + 4]] for start in range(0, len(sent), 4)]
    tool = Tool.from_function(function)
    llm = ScriptedLLM(*rounds, "Done.")
    agent = Agent(
        "a", [tool], llm=llm, plugins=seen.plugins, parallel_tools=parallel, log=False, quiet=True, max_iterations=200
    )
    agent.input("Go")
    entries = [entry for entry in agent.session["trace"] if entry["type"] == "tool_execution"]
    assert len(entries) == len(sent) and all(entry["status"] in ("success", "error") for entry in entries)
    expected = [text(tool.canonical({"value": one})) for one in sent]
    assert [text(entry["arguments"]) for entry in entries] == expected
    for guard, shown in seen.by_guard.items():
        assert sorted(shown) == sorted(expected), guard


@pytest.mark.parametrize("name", KINDS)
def test_a_person_is_shown_the_form_of_each_spelling(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100000")
    monkeypatch.setattr(connectagent_approve, "can_ask", lambda: True)
    monkeypatch.setattr(connectagent_approve, "_read", lambda question: "y")
    tool = Tool.from_function(tool_function(KINDS[name].type))
    sent = sendable(name)
    llm = ScriptedLLM(*(call("take", value=one) for one in sent), "Done.")
    agent = Agent("a", [tool], llm=llm, plugins=[Approve()], log=False, quiet=True, max_iterations=200)
    agent.input("Go")
    shown = capsys.readouterr().err.split("a wants to call take")[1:]
    assert len(shown) == len(sent)
    for one, printed in zip(sent, shown, strict=True):
        form = tool.canonical({"value": one})["value"]
        as_text = form if isinstance(form, str) else json.dumps(form, ensure_ascii=False)
        lines = [connectagent_approve._visible(line) for line in as_text.splitlines() or [""]]
        expected = "\n".join(["  value:", *(f"  | {line}" for line in lines)])
        assert printed.strip("\n") == expected


class Posing:
    def __repr__(self) -> str:
        return "ann"


def test_an_object_is_not_shown_as_a_text() -> None:
    shown = connectagent_approve.arguments_text({"to": [Posing()]})
    assert shown == '{"to": ["<test_guards_see_one_form.Posing: ann>"]}'


def test_the_sample_says_how_many() -> None:
    counts = {name: len(sendable(name)) for name in KINDS}
    assert all(counts.values()), json.dumps(counts)
    print(f"{len(counts)} types, {sum(counts.values())} spellings")
