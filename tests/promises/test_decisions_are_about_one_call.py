"""A person's decision is about the call that they were shown, whatever somebody does to the record or the command."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from connectagent import Agent, ConfigError, Pause, Paused, ToolCall, before_each_tool, before_tools, xray
from connectagent.agents.decisions import waiting_in
from connectagent.cli import main
from connectagent.testing import ScriptedLLM, call

RAN: list[Any] = []
SECRET = "sk-live-0123456789abcdef"


def pay(amount: Any) -> str:
    """Pay an amount."""
    RAN.append(amount)
    return "paid"


def pay_if_approved(amount: Any) -> str:
    """Pay an amount, once a person has approved it."""
    if not xray.approved:
        raise Pause("sure?")
    return pay(amount)


@before_each_tool
def ask(tool_call: ToolCall) -> None:
    if tool_call.name == "pay":
        raise Pause("sure?")


@before_tools
def ask_about_round(tool_calls: list[ToolCall]) -> None:
    raise Pause("sure?")


@before_each_tool(trylast=True)
def behind(tool_call: ToolCall, agent: Agent) -> None:
    """Change the state, so that the hook has an end in the record."""
    agent.state["seen"] = True


def agent_of(*script: Any, tool: Any = pay, plugins: Any = (ask,), **options: Any) -> Agent:
    return Agent("payer", [tool], llm=ScriptedLLM(*script), plugins=list(plugins), quiet=True, **options)


def by_handler(*amounts: Any) -> Agent:
    return agent_of(*[call("pay", amount=amount) for amount in amounts], "Done.")


def by_handler_with_others(*amounts: Any) -> Agent:
    return agent_of(*[call("pay", amount=amount) for amount in amounts], "Done.", plugins=[ask, behind])


def by_tool(*amounts: Any) -> Agent:
    script = [call("pay_if_approved", amount=amount) for amount in amounts]
    return agent_of(*script, "Done.", tool=pay_if_approved, plugins=[])


def by_round(*amounts: Any) -> Agent:
    return agent_of(*[call("pay", amount=amount) for amount in amounts], "Done.", plugins=[ask_about_round])


def inside(*amounts: Any) -> Agent:
    script = [call("pay", amount=amount) for amount in amounts]
    inner = Agent("inner", [pay], llm=ScriptedLLM(*script, "Done."), plugins=[ask], quiet=True)
    return Agent("payer", [inner], llm=ScriptedLLM(call("inner", prompt="Pay."), "Done."), quiet=True)


def in_parallel(*amounts: Any) -> Agent:
    script = [[call("pay", amount=amount), call("pay", amount="again")] for amount in amounts]
    return agent_of(*script, "Done.", parallel_tools=4)


SHAPES = [by_handler, by_handler_with_others, by_tool, by_round, inside, in_parallel]
shaped = pytest.mark.parametrize("make", SHAPES, ids=lambda make: make.__name__)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)
    RAN.clear()


def paused(agent: Agent) -> Path:
    """The record of a turn that waits."""
    with pytest.raises(Paused) as raised:
        agent.input("Go.")
    assert isinstance(raised.value.record, Path)
    return raised.value.record


def goes_on(agent: Agent, record: Path, **decision: Any) -> None:
    """Go on, whatever comes of it."""
    with suppress(Paused, ConfigError):
        agent.resume(record, **decision)


# -- two people, one command -------------------------------------------------------------------------


@shaped
def test_the_second_of_two_who_run_the_printed_command_gets_an_error(
    make: Callable[..., Agent], capsys: pytest.CaptureFixture[str]
) -> None:
    agent = make(5, 5000)
    record = paused(agent)
    first = waiting_in(record)[0]
    goes_on(agent, record, approve=first.id)
    if make is in_parallel:  # its second call
        goes_on(agent, record, approve=waiting_in(record)[0].id)
    assert 5 in RAN
    RAN.clear()
    before = record.read_bytes()
    tests = Path(__file__)
    script = f"import sys\nsys.path.insert(0, {str(tests.parent)!r})\nimport {tests.stem} as cases\n"
    Path("script.py").write_text(f"{script}agent = cases.{make.__name__}(5, 5000)\n")
    assert main(["resume", str(record), "--script", "script.py", "--approve", first.id]) == 1
    told = capsys.readouterr().err
    assert "was decided already" in told and "5000" in told
    assert not RAN
    assert record.read_bytes() == before
    with pytest.raises(ConfigError, match="was decided already"):
        make(5, 5000).resume(record, approve=first.id)


@shaped
def test_an_id_is_not_that_of_another_call_at_the_same_place(make: Callable[..., Agent]) -> None:
    record = paused(make(5))
    shown = waiting_in(record)[0]
    with pytest.raises(Paused):
        make(5000).resume(record, place=1)
    assert shown.id not in [wait.id for wait in waiting_in(record)]
    with pytest.raises(ConfigError, match="nothing waits with the id"):
        make(5000).resume(record, approve=shown.id)
    assert not RAN


# -- records that were edited after the decision -------------------------------------------------------


def _all(line: str) -> bool:
    return True


EDITS: dict[str, Callable[[str], bool]] = {
    "all lines": _all,
    "all but the wait": lambda line: '"type": "wait"' not in line,
    "the wait": lambda line: '"type": "wait"' in line,
    "the model's answer": lambda line: '"type": "llm_call"' in line,
    "all but the decision": lambda line: '"type": "decided"' not in line,
}


def edited(lines: list[str], which: Callable[[str], bool]) -> list[str]:
    """Lines in which another amount is to be paid."""
    return [re.sub(r'("amount(?:\\?)": )5\b', r"\g<1>5000", line) if which(line) else line for line in lines]


def approved(make: Callable[..., Agent]) -> tuple[Path, list[str], int]:
    """A record of which the first call was approved and made, its lines, and how many there are with the decision."""
    agent = make(5)
    record = paused(agent)
    goes_on(agent, record, approve=waiting_in(record)[0].id)
    lines = record.read_text().splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if '"type": "decided"' in line)
    return record, lines, at + 1


@shaped
@pytest.mark.parametrize("which", EDITS)
def test_another_amount_does_not_run_where_the_process_died_after_a_decision(
    make: Callable[..., Agent], which: str
) -> None:
    record, lines, decided = approved(make)
    for end in range(decided, len(lines) + 1):
        record.write_text("".join(edited(lines[:end], EDITS[which])))
        RAN.clear()
        goes_on(make(5), record)
        assert 5000 not in RAN, end


@shaped
def test_the_amount_that_was_approved_runs_once_where_the_process_died_after_the_decision(
    make: Callable[..., Agent]
) -> None:
    record, lines, decided = approved(make)
    record.write_text("".join(lines[:decided]))
    RAN.clear()
    goes_on(make(5), record)
    assert RAN[:1] == [5]
    assert RAN.count(5) == 1


def test_a_decision_does_not_count_under_the_head_of_another_session() -> None:
    _, lines, decided = approved(by_handler)
    other = paused(by_handler(5000))
    RAN.clear()
    [wait] = waiting_in(other)
    theirs = other.read_text().splitlines(keepends=True)
    head = lines[: lines.index("turns:\n")]
    body = theirs[theirs.index("turns:\n") :]
    given = json.loads(lines[decided - 1].strip().removeprefix("- "))
    item = ["- turn: 1\n", "  resumed: true\n", "  trace:\n"]
    for id in (given["id"], wait.id):
        for digest in (given["digest"], "0" * 32):
            line = f"  - {json.dumps({**given, 'id': id, 'digest': digest})}\n"
            for start in (head, theirs[: theirs.index("turns:\n")]):
                other.write_text("".join([*start, *body, *item, line]))
                goes_on(by_handler(5000), other)
                assert not RAN


def test_a_decision_does_not_count_for_another_call_of_the_session() -> None:
    agent = agent_of([call("pay", amount=5), call("pay", amount=5000)], "Done.", parallel_tools=4)
    record = paused(agent)
    first, second = waiting_in(record)
    goes_on(agent, record, approve=first.id)
    assert RAN == [5]
    lines = record.read_text().splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if '"type": "decided"' in line)
    RAN.clear()
    for line in (lines[at].replace(first.id, second.id), re.sub(r'"digest": "\w+"', "", lines[at])):
        record.write_text("".join([*lines[: at + 1], line]))
        goes_on(agent_of("Done.", parallel_tools=4), record)
        assert 5000 not in RAN


@pytest.mark.parametrize("value", ['"approve": true', '"reject": "maybe"', '"answer": {"value": "other"}'])
def test_what_was_decided_does_not_change(value: str) -> None:
    agent = by_handler(5)
    record = paused(agent)
    goes_on(agent, record, reject="no")
    lines = record.read_text().splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if '"type": "decided"' in line)
    record.write_text("".join([*lines[:at], lines[at].replace('"reject": "no"', value)]))
    again = by_handler(5)
    with pytest.raises(Paused):
        again.resume(record)
    assert not RAN


def test_the_line_of_a_decision_names_the_session_and_what_was_shown() -> None:
    _, lines, decided = approved(by_handler)
    line = json.loads(lines[decided - 1].strip().removeprefix("- "))
    head = "".join(lines)
    assert f'id: "{line["session"]}"' in head
    assert re.fullmatch("[0-9a-f]{32}", line["digest"]) and re.fullmatch("[0-9a-f]{32}", line["mark"])
    assert line["id"].endswith(f"~{line['id'].rpartition('~')[2]}") and "/wait:ask~" in line["id"]


AMOUNTS: dict[str, Any] = {
    "a long text": "x" * 40_000 + "end",
    "other letters": "früh 日本 \u2028 \x85 \x1b",
    "half a character": "a\ud800b",
    "numbers": [1, 2.5, -0.0, 1e300, 10**30],
    "nested": {"a": [None, True, {"b": "c"}], "": []},
    "a mask": "[masked: OTHER]",
}


@pytest.mark.parametrize("amount", AMOUNTS)
def test_a_decision_counts_in_another_process_whatever_the_arguments_are(amount: str) -> None:
    agent = by_handler(AMOUNTS[amount])
    record = paused(agent)
    goes_on(agent, record, approve=waiting_in(record)[0].id)
    lines = record.read_text().splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if '"type": "decided"' in line)
    record.write_text("".join(lines[: at + 1]))
    RAN.clear()
    assert agent_of("Done.").resume(record) == "Done."
    assert len(RAN) == 1


def test_a_decision_about_a_masked_argument_counts_though_the_call_cannot_run_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SHOP_API_KEY", SECRET)
    agent = by_handler(SECRET)
    record = paused(agent)
    goes_on(agent, record, approve=waiting_in(record)[0].id)
    assert RAN == [SECRET]
    lines = record.read_text().splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if '"type": "decided"' in line)
    record.write_text("".join(lines[: at + 1]))
    RAN.clear()
    other = agent_of("I must ask again.")
    assert other.resume(record) == "I must ask again."
    assert not RAN
