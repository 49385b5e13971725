"""What plugins and exporters know and say: `agent.trace`, `connectagent.mask`, `on_session`, outcomes of their own."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from scripted_agents import CALL, agent_with, contents, entries, is_by

from connectagent import Agent, Pause, Paused, after_tools, around_turn, before_each_tool, mask, on_session, on_trace
from connectagent.cli.group import cli
from connectagent.records.history import history_of
from connectagent.records.read import load_record
from connectagent.testing import ScriptedLLM, call

# -- agent.trace ---------------------------------------------------------------------------------


def test_a_handler_adds_an_entry_of_its_own_which_names_it() -> None:
    seen: list[Any] = []

    @before_each_tool
    def measures(agent: Any) -> None:
        agent.trace("span", name="look", ms=3)

    @on_trace
    def collects(entry: Any) -> None:
        seen.append(entry["type"])

    agent = agent_with(measures, collects)
    agent.input("Hi")
    (entry,) = entries(agent, "span")
    assert (entry["name"], entry["ms"]) == ("look", 3) and is_by(entry, measures, "before_each_tool")
    assert entry["at"].endswith("before_each_tool") and entry["timestamp"] > 0
    assert seen.index("span") < seen.index("tool_execution")


@pytest.mark.parametrize("parallel", [1, 2])
def test_tools_and_programs_add_entries_too_and_the_record_has_them(tmp_path: Path, parallel: int) -> None:
    def look(agent: Any, n: int) -> str:
        """Look."""
        agent.trace("looked", n=n)
        return "seen"

    llm = ScriptedLLM([call("look", n=1), call("look", n=2)], "Done.", "Done.")
    agent = Agent("a", [look], llm=llm, quiet=True, parallel_tools=parallel)
    agent.input("Hi")
    agent.trace("exported", to="nowhere")
    agent.input("Hi")
    assert sorted((entry["n"], entry["by"]["tool"]) for entry in entries(agent, "looked")) == [(1, "look"), (2, "look")]
    assert entries(agent, "exported")[0]["by"] == {"plugin": "(program)"}
    assert agent.record is not None
    recorded = agent.record.read_text(encoding="utf-8")
    assert recorded.count('"type": "looked"') == 2 and recorded.count('"type": "exported"') == 1


@pytest.mark.parametrize(("kind", "fields"), [("llm_call", {}), ("", {}), ("mine", {"by": "me"}), ("mine", {"at": 1})])
def test_what_is_connectagents_own_is_refused(kind: str, fields: dict[str, Any]) -> None:
    agent = agent_with()
    with pytest.raises(RuntimeError, match="no session before its first input"):
        agent.trace("mine")
    agent.input("Hi")
    with pytest.raises(ValueError, match=r"agent.trace\(\)"):
        agent.trace(kind, **fields)


def test_an_entry_does_not_follow_what_its_fields_are_made_of() -> None:
    agent, given = agent_with(), [1]
    agent.input("Hi")
    agent.trace("mine", listed=given)
    given.append(2)
    assert entries(agent, "mine")[0]["listed"] == [1]


def test_a_shadowed_handler_adds_no_entry() -> None:
    from connectagent import shadow

    @before_each_tool
    def measures(agent: Any) -> None:
        agent.trace("span")

    agent = agent_with(shadow(measures))
    agent.input("Hi")
    assert entries(agent, "span") == []
    assert entries(agent, "shadow")[0]["would"]["calls"] == [{"call": "trace", "arguments": {"type": "span"}}]


def test_a_resumed_turn_keeps_an_entry_once(tmp_path: Path) -> None:
    @before_each_tool(tryfirst=True)
    def measures(agent: Any) -> None:
        agent.trace("span")

    @before_each_tool
    def waits(tool_call: Any) -> None:
        if not tool_call.approved:
            raise Pause("look at it")

    agent = agent_with_record(tmp_path, measures, waits)
    with pytest.raises(Paused):
        agent.input("Hi")
    other = agent_with_record(tmp_path, measures, waits, script=("Done.",))
    assert other.resume(agent.record, approve=True) == "Done."
    assert len(entries(other, "span")) == 1


def agent_with_record(tmp_path: Path, *plugins: Any, script: Any = (CALL, "Done."), **options: Any) -> Agent:
    def double(x: int) -> int:
        """Double a number."""
        return 2 * x

    llm = ScriptedLLM(*script)
    return Agent("a", [double], llm=llm, quiet=True, plugins=list(plugins), **options)


# -- connectagent.mask ---------------------------------------------------------------------------


def test_mask_is_what_the_record_applies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_API_KEY", "tiger-swallow-91827364")
    given = {"text": "the key is tiger-swallow-91827364", "password": "hunter2hunter2", "n": 3}
    masked = mask(given)
    assert masked["text"] == "the key is [masked: SHOP_API_KEY]" and masked["n"] == 3
    assert "hunter2" not in str(masked) and given["password"] == "hunter2hunter2"
    assert mask("nothing secret") == "nothing secret"


# -- on_session ----------------------------------------------------------------------------------


def test_a_session_begins_once_and_again_after_a_reset() -> None:
    seen: list[Any] = []

    @on_session
    def begins(agent: Any, reason: str) -> None:
        seen.append((agent.name, reason, len(agent.session["messages"])))
        agent.session["messages"].append({"role": "user", "content": "You know the house."})

    agent = agent_with(begins, script=("Done.", "Done.", "Done."))
    agent.input("Hi")
    agent.input("Hi")
    assert seen == [("a", "begun", 0)] and contents(agent)[:2] == ["You know the house.", "Hi"]
    (entry,) = entries(agent, "message")[:1]
    assert is_by(entry, begins, "on_session")
    agent.reset_conversation()
    agent.input("Hi")
    assert [reason for _, reason, _ in seen] == ["begun", "begun"]


def test_a_session_whose_first_turn_failed_early_begins_in_the_next() -> None:
    seen: list[str] = []

    @around_turn
    def fails_once(agent: Any) -> Iterator[None]:
        if agent.session["turn"] == 1:
            raise OSError("no disk")
        yield

    @on_session
    def begins(reason: str) -> None:
        seen.append(reason)

    agent = agent_with(fails_once, begins)
    with pytest.raises(OSError, match="no disk"):
        agent.input("Hi")
    assert seen == []
    agent.input("Hi")
    assert seen == ["begun"]


@pytest.mark.parametrize("how", ["cut off", "rewound", "forked"])
def test_a_session_whose_first_turn_is_taken_anew_begins_once_in_it(how: str, tmp_path: Path) -> None:
    seen: list[str] = []
    fails = ["no disk"] if how == "cut off" else []

    @around_turn
    def fails_once() -> Iterator[None]:
        if fails:
            raise OSError(fails.pop())
        yield

    @on_session
    def begins(agent: Any, reason: str) -> None:
        seen.append(reason)
        agent.session["messages"].append({"role": "user", "content": "You know the house."})

    def made() -> Agent:
        return agent_with_record(tmp_path, begins, fails_once, script=("Done.", "Done."))

    first = made()
    with contextlib.suppress(OSError):
        first.input("Hi")
    assert seen == ([] if how == "cut off" else ["begun"])
    seen.clear()
    place = None if how == "cut off" else 1
    again = made()
    assert again.resume(first.record, place=place, fork=how == "forked") == "Done."
    assert seen == ["begun"] and contents(again)[:2] == ["You know the house.", "Hi"]
    history = history_of(Path(str(again.record)))
    assert history.messages == again.session["messages"]
    assert again.input("Hi") == "Done." and seen == ["begun"]
    again.close()
    made().resume(again.record)
    assert seen == ["begun", "resumed"]


def test_an_inner_agent_begins_a_session_of_its_own() -> None:
    seen: list[Any] = []

    @on_session
    def begins(agent: Any, reason: str) -> None:
        seen.append((agent.name, reason))

    inner = Agent("inner", llm=ScriptedLLM("yes", "yes"), log=False, quiet=True)
    llm = ScriptedLLM(call("inner", prompt="one"), call("inner", prompt="two"), "Done.")
    outer = Agent("outer", [inner], llm=llm, log=False, quiet=True, plugins=[begins])
    assert outer.input("Hi") == "Done."
    assert seen == [("outer", "begun"), ("inner", "begun")]


def test_a_session_that_goes_on_says_so_and_begins_no_second_time(tmp_path: Path) -> None:
    seen: list[Any] = []

    @on_session
    def begins(agent: Any, reason: str) -> None:
        seen.append(reason)
        agent.state[reason] = agent.state.get(reason, 0) + 1

    @before_each_tool
    def waits(tool_call: Any) -> None:
        if not tool_call.approved:
            raise Pause("look at it")

    agent = agent_with_record(tmp_path, begins, waits)
    with pytest.raises(Paused):
        agent.input("Hi")
    with pytest.raises(Paused):
        agent_with_record(tmp_path, begins, waits).resume(agent.record)
    assert seen == ["begun"]  # it still waits: nothing went on
    other = agent_with_record(tmp_path, begins, waits, script=("Done.",))
    assert other.resume(agent.record, approve=True) == "Done."
    assert seen == ["begun", "resumed"] and other.state == {"begun": 1, "resumed": 1}
    last = agent_with_record(tmp_path, begins, waits)
    assert last.resume(agent.record, fork=True) == "Done." and last.record != agent.record
    assert seen == ["begun", "resumed", "forked"] and last.state == {"begun": 1, "resumed": 1, "forked": 1}


def test_what_a_handler_changed_when_a_session_went_on_stays_when_it_goes_on_again(tmp_path: Path) -> None:
    @on_session
    def begins(agent: Any, reason: str) -> None:
        agent.state["seen"] = [*agent.state.get("seen", []), reason]

    def stops() -> str:
        """Stop."""
        raise KeyboardInterrupt

    def made(*script: Any) -> Agent:
        return Agent("a", [stops], llm=ScriptedLLM(*script), quiet=True, plugins=[begins])

    agent = made(call("stops"))
    with pytest.raises(KeyboardInterrupt):
        agent.input("Hi")
    first = made(call("stops"))
    with pytest.raises(KeyboardInterrupt):
        first.resume(agent.record)
    assert first.state["seen"] == ["begun", "resumed"]
    again = made("Done.")
    assert again.resume(agent.record) == "Done."
    assert again.state["seen"] == ["begun", "resumed", "resumed"]


def test_a_turn_that_waits_twice_goes_on_in_other_processes_and_fires_each_hook_once() -> None:
    seen: list[str] = []

    @on_session
    def begins(reason: str) -> None:
        seen.append(reason)

    @before_each_tool
    def waits(tool_call: Any) -> None:
        seen.append(f"ask {tool_call.arguments['n']}")
        raise Pause("look at it")

    @after_tools
    def round_ends(agent: Any) -> None:
        seen.append(f"round {agent.session['iteration']}")

    def work(n: int) -> str:
        """Work."""
        seen.append(f"work {n}")
        return "worked"

    def made(*script: Any) -> Agent:
        return Agent("a", [work], llm=ScriptedLLM(*script), quiet=True, plugins=[begins, waits, round_ends])

    first = made(call("work", n=1))
    with pytest.raises(Paused):
        first.input("Hi")
    with pytest.raises(Paused):
        made(call("work", n=2)).resume(first.record, approve=True)
    assert made("Done.").resume(first.record, approve=True) == "Done."
    rounds = ["begun", "ask 1", "resumed", "work 1", "round 1", "ask 2", "resumed", "work 2", "round 2"]
    assert seen == rounds


# -- outcomes of one's own -----------------------------------------------------------------------


def test_an_outcome_of_ones_own_is_recorded(tmp_path: Path) -> None:
    @before_each_tool
    def stops(agent: Any) -> None:
        agent.end_turn("Too dear.", outcome="over_budget")

    agent = agent_with_record(tmp_path, stops)
    assert agent.input("Hi") == "Too dear." and agent.session["outcome"] == "over_budget"
    assert agent.record is not None
    assert load_record(agent.record)["turns"][0]["status"] == "over_budget"
    said = CliRunner().invoke(cli, ["log", "list"], catch_exceptions=False).output
    assert "over_budget" in said
    said = CliRunner().invoke(cli, ["log", "list", "--status", "over_budget", "--json"], catch_exceptions=False).output
    assert json.loads(said)[0]["status"] == "over_budget"
    assert "over_budget" in CliRunner().invoke(cli, ["log", "show", str(agent.record)], catch_exceptions=False).output


@pytest.mark.parametrize("outcome", ["paused", "error", "interrupted", "cancelled", "abandoned", "crashed", "running",
                                     "between_turns", "two words", "", 3])  # fmt: skip
def test_a_word_for_a_turn_that_stopped_is_no_outcome(outcome: Any) -> None:
    refused: list[str] = []

    @before_each_tool
    def stops(agent: Any) -> None:
        try:
            agent.end_turn("Stop.", outcome=outcome)
        except ValueError as error:
            refused.append(str(error))

    agent = agent_with(stops)
    assert agent.input("Hi") == "Done." and agent.session["outcome"] == "answered"
    assert "is one word, and none of paused, error" in refused[0] and repr(outcome) in refused[0]
