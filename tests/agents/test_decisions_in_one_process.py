"""After `resume(record)` has raised `Paused`, a decision is given in the same process, by each way to go on."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from connectagent import Agent, ConfigError, Pause, Paused, ToolCall, before_each_tool
from connectagent.agents.decisions import waiting_in
from connectagent.cli import main
from connectagent.testing import ScriptedLLM, call

RAN: list[int] = []


def pay(amount: int) -> str:
    """Pay an amount."""
    RAN.append(amount)
    return f"paid {amount}"


@before_each_tool
def ask(tool_call: ToolCall) -> None:
    raise Pause(f"pay {tool_call.arguments['amount']}?")


def payer(*script: Any) -> Agent:
    return Agent("payer", [pay], llm=ScriptedLLM(*(script or ("Done.",))), plugins=[ask], quiet=True)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)
    RAN.clear()


@pytest.fixture
def record() -> Path:
    """A session that waits, of another process."""
    with pytest.raises(Paused) as paused:
        payer(call("pay", amount=5)).input("Pay 5.")
    assert isinstance(paused.value.record, Path)
    return paused.value.record


def _streamed(events: Any) -> Any:
    return list(events)[-1]["result"]


async def _astreamed(events: Any) -> Any:
    return [event async for event in events][-1]["result"]


WAYS: dict[str, Callable[..., Any]] = {
    "resume": lambda agent, *record, **how: agent.resume(*record, **how),
    "resume_stream": lambda agent, *record, **how: _streamed(agent.resume_stream(*record, **how)),
    "aresume": lambda agent, *record, **how: asyncio.run(agent.aresume(*record, **how)),
    "aresume_stream": lambda agent, *record, **how: asyncio.run(_astreamed(agent.aresume_stream(*record, **how))),
}
DECISIONS: dict[str, dict[str, Any]] = {
    "approve": {"approve": True},
    "reject": {"reject": "no"},
    "answer": {"answer": 1},
}


@pytest.mark.parametrize("first", WAYS)
@pytest.mark.parametrize("second", WAYS)
def test_a_decision_without_a_record_is_about_what_was_shown(first: str, second: str, record: Path) -> None:
    agent = payer()
    for _ in range(2):
        with pytest.raises(Paused) as paused:
            WAYS[first](agent, record)
    assert WAYS[second](agent, approve=paused.value.waiting[0].id) == "Done."
    assert RAN == [5]
    assert agent.record == record


@pytest.mark.parametrize("decision", DECISIONS)
@pytest.mark.parametrize("named", ["a path", "an id", "a name"])
def test_each_decision_is(decision: str, named: str, record: Path) -> None:
    agent = payer()
    id = record.read_text().partition('id: "')[2][:6]
    with pytest.raises(Paused):
        agent.resume({"a path": record, "an id": id, "a name": "payer"}[named])
    assert agent.resume(**DECISIONS[decision]) == "Done."
    assert ([5] if decision == "approve" else []) == RAN


def test_a_wait_that_another_process_decided_is_not_decided_again(record: Path) -> None:
    agent = payer()
    with pytest.raises(Paused):
        agent.resume(record)
    payer().resume(record, approve=True)
    with pytest.raises(ConfigError, match="nothing waits for a decision"):
        agent.resume(reject="no")
    assert RAN == [5]


def test_a_turn_of_its_own_since_then_is_what_a_decision_is_about(record: Path) -> None:
    agent = payer(call("pay", amount=7), "Paid.")
    with pytest.raises(Paused):
        agent.resume(record)
    with pytest.raises(Paused):
        agent.input("Pay 7.")
    assert agent.resume(approve=True) == "Paid."
    assert RAN == [7]


def test_a_reset_forgets_what_was_shown(record: Path) -> None:
    agent = payer()
    with pytest.raises(Paused):
        agent.resume(record)
    agent.reset_conversation()
    with pytest.raises(ConfigError, match="nothing waits for a decision in this session"):
        agent.resume(approve=True)


def test_a_fork_that_waits_decides_nothing(record: Path) -> None:
    agent = payer()
    with pytest.raises(Paused):
        agent.resume(record, fork=True)
    with pytest.raises(ConfigError):
        agent.resume(approve=True)
    assert not RAN


@pytest.mark.parametrize("way", ["resume", "resume_stream", "aresume", "aresume_stream"])
def test_a_session_with_a_key_is_decided(way: str) -> None:
    with pytest.raises(Paused):
        payer(call("pay", amount=5)).for_session("one").turn("Pay 5.")
    session = payer().for_session("one")
    with pytest.raises(Paused):
        session.resume()
    assert WAYS[way](session, approve=True) == "Done."
    assert RAN == [5]


SCRIPT = """
from connectagent import Agent, Pause, before_each_tool
from connectagent.testing import ScriptedLLM, call

def pay(amount: int) -> str:
    with open("paid", "a") as file:
        file.write(f"{amount}\\n")
    return "paid"

@before_each_tool
def ask(tool_call):
    raise Pause("sure?")

agent = Agent("payer", [pay], llm=ScriptedLLM("Done."), plugins=[ask], quiet=True)
"""


@pytest.mark.parametrize("first", [["resume"], ["chat", "script.py", "--resume"]], ids=["resume", "chat"])
def test_the_command_line_decides_what_it_has_shown(
    first: list[str], record: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("script.py").write_text(SCRIPT)
    more = ["--script", "script.py"] if first == ["resume"] else []
    assert main([*first, str(record), *more]) == 75
    [wait] = waiting_in(record)
    assert f"--approve '{wait.id}'" in capsys.readouterr().err
    assert main(["resume", str(record), "--script", "script.py", "--approve", wait.id]) == 0
    assert Path("paid").read_text() == "5\n"


@pytest.mark.parametrize("option", ["--approve", "--reject", "--answer"])
@pytest.mark.parametrize("answer", ["y", "n", ""])
def test_without_an_id_the_person_at_the_terminal_is_shown_the_call_and_asked(
    option: str, answer: str, record: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("script.py").write_text(SCRIPT)
    monkeypatch.setattr("connectagent.cli.decide.can_ask", lambda: True)
    text = [] if option == "--approve" else ["text"]
    arguments = ["resume", str(record), "--script", "script.py", option, *text]
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{answer}\n"))
    code = main(arguments)
    assert 'payer: pay({"amount": 5}): pay 5?' in capsys.readouterr().err
    assert Path("paid").exists() == (option == "--approve" and answer == "y")
    assert (code == 0) == (answer == "y")
    if answer != "y":
        assert waiting_in(record)


@pytest.mark.parametrize("option", [["--approve"], ["--reject", "no"], ["--answer", "1"]], ids=lambda one: one[0])
def test_without_an_id_and_a_terminal_it_is_an_error_that_lists_what_waits(
    option: list[str], record: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("script.py").write_text(SCRIPT)
    assert main(["resume", str(record), "--script", "script.py", *option]) == 2
    told = capsys.readouterr().err
    assert waiting_in(record)[0].id in told and '"amount": 5' in told
    assert not Path("paid").exists()
