"""`resume(record, abandon=True)`: a turn that was stopped is left as it is, and the session goes on after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from connectagent import Agent, ConfigError, Pause, Paused, ToolCall, before_each_tool
from connectagent.cli import main
from connectagent.records import read_record
from connectagent.testing import ScriptedLLM, call

SCRIPT = '''
from connectagent import Agent
from connectagent.testing import ScriptedLLM

agent = Agent("shop", llm=ScriptedLLM("Something new."), quiet=True)
'''


@before_each_tool
def ask(tool_call: ToolCall) -> None:
    raise Pause("may I?")


def pay(amount: int) -> str:
    """Pay an amount."""
    raise AssertionError("nobody has approved it")


def shop(*script: Any) -> Agent:
    return Agent("shop", [pay], llm=ScriptedLLM(*script), on_events=[ask], quiet=True)


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A record whose last turn waits for a person."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path / ".co"))
    with pytest.raises(Paused) as paused:
        shop(call("pay", amount=5)).input("Pay 5.")
    assert paused.value.record is not None
    return Path(paused.value.record)


def test_the_session_goes_on_after_it(record: Path) -> None:
    assert shop().resume(record, abandon=True) is None
    agent = shop("Something new.")
    assert agent.resume(record) is None
    assert agent.input("And now?") == "Something new."
    assert [item["status"] for item in read_record(record)["turns"]] == ["paused", "abandoned", "answered"]
    with pytest.raises(ConfigError):
        shop().resume(record, approve=True)


def test_nothing_else_is_asked_for_with_it(record: Path) -> None:
    for more in ({"fork": True}, {"place": 1}, {"approve": True}):
        with pytest.raises(ConfigError, match="takes no place, fork or decision"):
            shop().resume(record, abandon=True, **more)
    with pytest.raises(ConfigError, match="needs a record"):
        shop().resume(abandon=True)


def test_a_session_without_a_stopped_turn_stays_as_it_is(record: Path) -> None:
    shop().resume(record, abandon=True)
    before = record.read_text()
    assert shop().resume(record, abandon=True) is None
    assert record.read_text() == before


def test_the_command_leaves_it_and_takes_a_prompt(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("shop.py").write_text(SCRIPT)
    assert main(["resume", str(record), "--script", "shop.py", "--abandon"]) == 0
    assert "goes on after the turn that was stopped" in capsys.readouterr().out
    assert main(["resume", str(record), "And now?", "--script", "shop.py"]) == 0
    assert "Something new." in capsys.readouterr().out
