"""Mutated and hostile records, through every command that reads records and the view server.

200 of them; `CONNECTAGENT_HOSTILE=2000` for 2,000, `CONNECTAGENT_HOSTILE_KEEP=folder` keeps those that go wrong.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hostile_records import BAD
from hostile_records import __file__ as script

from connectagent import Agent, LLMResponse, after_llm
from connectagent.cli import main
from connectagent.data import TokenUsage
from connectagent.errors import ConfigError
from connectagent.replay.runs import repeated, runs_of
from connectagent.testing import ScriptedLLM, call

ROOT = Path(__file__).parents[2]
COUNT = int(os.environ.get("CONNECTAGENT_HOSTILE", "60"))


@pytest.mark.posix("has no pipes among its files")
def test_no_record_crashes_hangs_or_fills_the_memory_is_misread_or_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, script, str(COUNT), "7"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "CONNECTAGENT_DIR": ".co"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)
    assert told["wrong"] == []
    assert told["mb"] < 500
    # What is odd in one place is read all the same.
    assert told["codes"]["log 0"] > COUNT and told["codes"]["log 1"] > COUNT and told["codes"]["blame 0"] > COUNT / 4


@after_llm
def says(agent: Agent) -> None:
    agent.session["state"]["said"] = agent.session["state"].get("said", 0) + 1


ODD = [  # an edit of a record, and the command that reads it
    ('"type": "user_input", "turn": 1', '"type": "user_input", "turn": "x"', ["replay", "odd.yaml", script]),
    ('"branch": "outer.inner"', '"branch": {}', ["replay", "odd.yaml", script]),
    ("\nplugins: ", "\nplugins: [[]]\nwas: ", ["report", "odd.yaml", "--bad", "says /./"]),
    ("\nplugins: ", "\nplugins: true\nwas: ", ["report", "odd.yaml", "--bad", "says /./"]),
    ('"by": {"plugin"', '"by": {"plugin": [], "was"', ["bisect", "odd.yaml", script, *BAD, "--samples", "1"]),
    ('  messages: "', '  messages: "{\\"v\\": 1}"\n  was: "', ["bisect", "odd.yaml", script, *BAD]),
]


@pytest.mark.parametrize("number", range(len(ODD)))
def test_values_that_no_record_has_are_told_in_a_sentence(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    inner = Agent("inner", llm=ScriptedLLM("Inner."), quiet=True)
    outer = Agent("outer", [inner], llm=ScriptedLLM([call("inner", prompt="Do.")], "Done."), plugins=[says], quiet=True)
    outer.input("Go.")
    assert outer.record is not None
    text, (old, new, command) = outer.record.read_text(), ODD[number]
    assert old in text
    Path("odd.yaml").write_text(text.replace(old, new))
    main(command)
    told = capsys.readouterr().err
    assert not re.search(r"^error: [A-Z]\w+Error: ", told, re.MULTILINE), told


def test_a_stopped_turn_with_a_maker_of_no_such_form_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stopped = Agent("odd", llm=ScriptedLLM(OSError("gone")), quiet=True)
    with pytest.raises(OSError, match="gone"):
        stopped.input("Go.")
    assert stopped.record is not None
    text = stopped.record.read_text()
    assert '"type": "user_input"' in text
    Path("odd.yaml").write_text(text.replace('"type": "user_input"', '"type": "user_input", "by": "x"'))
    assert Agent("odd", llm=ScriptedLLM("Done."), quiet=True).resume("odd.yaml") == "Done."


@pytest.mark.parametrize(
    ("old", "new"), [('"tool_calls": [{', '"tool_calls": [null, {'), ('"usage": {', '"usage": {"spent": 1, ')]
)
def test_a_stopped_turn_says_that_its_answer_has_values_that_no_record_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = LLMResponse(None, [call("worked")], TokenUsage(1, 1))
    stopped = Agent("odd", [worked], llm=ScriptedLLM(answer, OSError("gone")), quiet=True)
    with pytest.raises(OSError, match="gone"):
        stopped.input("Go.")
    text = Path(str(stopped.record)).read_text()
    assert old in text
    Path("odd.yaml").write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match="values that no record has"):
        Agent("odd", [worked], llm=ScriptedLLM("Done."), quiet=True).resume("odd.yaml")


def test_messages_that_are_no_utf_8_are_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    agent = Agent("odd", llm=ScriptedLLM("Done."), quiet=True)
    agent.input("Go.")
    data = Path(str(agent.record)).read_bytes()
    at = data.index(b"Done.", data.index(b"  messages: "))
    Path("odd.yaml").write_bytes(data[:at] + b"\xff" + data[at + 1 :])
    for command in (["log", "show", "--json"], ["log", "export", "--to", "html"], ["blame"], ["bill"]):
        assert main([*command, "odd.yaml"]) in (1, 2)
        assert "values that no record has: ValueError: is no text in UTF-8" in capsys.readouterr().err


def worked() -> str:
    """Work."""
    return "worked"


def test_attempts_with_places_of_any_form_are_told_apart() -> None:
    entry = {"type": "llm_call", "id": {"a": 1}, "status": "error"}
    assert repeated([entry, {**entry, "id": []}, {**entry, "status": "ok"}], "llm_call") == {0}


def test_runs_of_a_tool_in_iterations_of_any_form_are_told_apart() -> None:
    entry = {
        "type": "tool_execution",
        "call_id": "c1",
        "tool_name": "worked",
        "status": "success",
        "iteration": {"a": 1},
    }
    assert [run.id for run in runs_of([entry], [entry, {**entry, "iteration": 2}])] == ["c1", "c1"]
