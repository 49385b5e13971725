"""An inner agent with `log=False`: its lines stand in the root's record without texts and arguments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from connectagent import Agent, Pause, Paused, xray
from connectagent.cli.group import cli
from connectagent.data import TraceEntry
from connectagent.testing import ScriptedLLM, call


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)
    return tmp_path


class Clinic:
    """A desk that asks a doctor who is not recorded; the doctor's tool may wait."""

    def __init__(self, desk: tuple[Any, ...] = (), doctor: tuple[Any, ...] = (), waits: bool = False) -> None:
        self.seen: list[str] = []
        self.waits = waits
        self.doctor = Agent("doctor", [self.examine], llm=ScriptedLLM(*doctor), quiet=True, log=False)
        self.desk = Agent("desk", [self.ask], sub_agents=[self.doctor], llm=ScriptedLLM(*desk), quiet=True)

    def ask(self) -> str:
        """Ask the doctor."""
        self.doctor.input("Is the secret-prompt bad?")
        return "asked"

    def examine(self, agent: Agent, part: str) -> str:
        """Examine."""
        if self.waits and not xray.approved:
            raise Pause("may it?")
        self.seen.append(part)
        assert agent.current_session is not None
        agent.current_session["state"]["examined"] = 1
        return "secret-result"


DOCTOR = ([call("examine", part="secret-part")], "secret-answer")


def lines_of(record: Path) -> list[TraceEntry]:
    return [json.loads(line[4:]) for line in record.read_text().splitlines() if line.startswith("  - {")]


def test_its_lines_have_no_texts_and_no_arguments() -> None:
    clinic = Clinic(([call("ask")], "Done."), DOCTOR)
    assert clinic.desk.input("Go.") == "Done."
    record = clinic.desk.record
    assert record is not None and "secret" not in record.read_text()
    inside = [line for line in lines_of(record) if line.get("withheld")]
    assert [line["type"] for line in inside if line["type"] != "began"] == [
        *("user_input", "llm_call", "state_delta", "tool_execution", "llm_call", "agent_turn")
    ]
    assert inside[0]["type"] == "began" and inside[0]["agent"] == "doctor"
    assert "usage" in inside[-1] and inside[-1]["delta"] == {"examined": 1}
    other = Clinic()
    assert other.desk.resume(record) == "Done."
    session: Any = other.desk.current_session
    assert session["state"] == {"examined": 1} and session["messages"] == clinic.desk.current_session["messages"]  # type: ignore[index]
    assert (other.doctor.current_session or {"messages": []})["messages"] == []


def test_a_waiting_one_goes_on_in_its_own_process() -> None:
    clinic = Clinic(([call("ask")], "Done."), DOCTOR, waits=True)
    with pytest.raises(Paused) as caught:
        clinic.desk.input("Go.")
    assert "secret" not in caught.value.record.read_text()
    assert clinic.desk.resume(caught.value.record, approve=True) == "Done."
    assert clinic.seen == ["secret-part"] and len(clinic.doctor.llm.requests) == 2  # type: ignore[attr-defined]


def test_in_another_process_it_begins_again() -> None:
    with pytest.raises(Paused) as caught:
        Clinic(([call("ask")],), DOCTOR, waits=True).desk.input("Go.")
    record = caught.value.record
    other = Clinic(("Done.",), DOCTOR, waits=True)
    with pytest.raises(ValueError, match="not recorded"):
        other.desk.resume(record, approve=True)
    with pytest.raises(Paused, match="may it"):
        other.desk.resume(record)
    assert other.desk.resume(record, approve=True) == "Done."
    assert other.seen == ["secret-part"] and "secret" not in record.read_text()


@pytest.mark.parametrize("command", ["log show", "log list", "log stats", "log export --to html", "blame"])
def test_such_a_record_can_be_read(command: str) -> None:
    clinic = Clinic(([call("ask")], "Done."), DOCTOR)
    clinic.desk.input("Go.")
    shown = CliRunner().invoke(cli, command.split())
    assert shown.exit_code == 0, shown.output
