"""Replay of agents inside: handoffs, agents as tools and workflows answer from the record, and their handlers run."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
from tree_cases import CASES, MORE, PROMPT, Case, Diary, Model, World
from tree_random import random_case

from connectagent import Agent, Loop, Parallel, Sequential, ToolCall, ToolRejected, before_each_tool, before_llm
from connectagent.errors import ConfigError, Pause, Paused
from connectagent.replay.player import RecordMiss
from connectagent.replay.recording import Recording
from connectagent.replay.replaying import Replaying
from connectagent.testing import ScriptedLLM, call, replayed

RUNS: list[str] = []


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path / "co"))
    RUNS.clear()
    return tmp_path


def pay(amount: int) -> str:
    """Pay."""
    RUNS.append("pay")
    return f"paid {amount}"


def transfer(name: str, **more: Any) -> Any:
    return call("transfer_to_agent", agent_name=name, **more)


def desk(*, front: Any = (), billing: Any = (), tech: Any = (), plugins: Any = (), **options: Any) -> Agent:
    """Two agents that hand over to each other, below one that leads."""
    one = Agent("billing", [pay], "You bill.", llm=ScriptedLLM(*billing), description="Bills.", quiet=True)
    two = Agent("tech", [], "You repair.", llm=ScriptedLLM(*tech), description="Repairs.", quiet=True)
    given = {"sub_agents": [one, two], "plugins": list(plugins), "quiet": True, **options}
    return Agent("front", [], "You lead.", llm=ScriptedLLM(*front), **given)


def asking(main: Any = (), child: Any = (), plugins: Any = (), **options: Any) -> Agent:
    """An agent with an agent among its tools."""
    inner = Agent("child", [pay], "You pay.", llm=ScriptedLLM(*child), quiet=True)
    return Agent("main", [inner], "You ask.", llm=ScriptedLLM(*main), plugins=list(plugins), quiet=True, **options)


def texts(requests: Any) -> list[str]:
    return sorted(json.dumps([messages, tools or []], sort_keys=True) for messages, tools in requests)


def check_same(agent: Agent, again: Agent) -> None:
    """Play the record with fresh agents: the same requests, and no tool runs."""
    assert agent.record is not None
    RUNS.clear()
    played = replayed(agent.record, again)
    assert played.same and played.ran_out is None, (played.divergence, played.changed, played.not_recorded)
    assert played.results == played.recorded_results
    models: list[Any] = [one.llm for one in (agent, *agent.below)]
    sent = [(one.messages, one.tools) for llm in models for one in getattr(llm, "requests", ())]
    assert sent and texts(played.requests) == texts(sent)
    assert not RUNS


def test_a_handoff_is_played_and_so_are_the_turns_that_stay_there() -> None:
    agent = desk(
        front=[transfer("billing", message="He pays."), "Front again."],
        billing=[call("pay", amount=3), "Paid.", "Still billing.", transfer("tech"), transfer("front")],
        tech=[transfer("billing"), "Repaired."],
    )
    results = [agent.input("Bill me."), agent.input("And now?"), agent.input("Repair it.")]
    assert results[:2] == ["Paid.", "Still billing."]
    check_same(agent, desk())


def test_what_a_guard_changes_in_an_agent_that_took_over_is_told_with_its_name() -> None:
    agent = desk(front=[transfer("billing")], billing=[call("pay", amount=3), "Paid."])
    agent.input("Bill me.")

    @before_each_tool
    def guard(tool_call: ToolCall) -> None:
        if tool_call.name == "pay":
            raise ToolRejected("Ask a human.")

    assert agent.record is not None
    played = replayed(agent.record, desk(plugins=[guard]))
    (rejected,) = played.rejected
    assert (rejected.agent, rejected.then, rejected.now) == ("billing", "success", "rejected")
    assert played.divergence is not None and played.divergence.place == "1.2 of billing", str(played.divergence)
    assert played.divergence.now_by["handler"] == "guard"
    assert played.result == "Paid."


def test_a_handoff_that_does_not_happen_any_more_is_a_difference() -> None:
    agent = desk(front=[transfer("billing")], billing=["Paid."])
    agent.input("Bill me.")

    @before_each_tool
    def keep(tool_call: ToolCall) -> None:
        raise ToolRejected("Stay.")

    assert agent.record is not None
    played = replayed(agent.record, desk(plugins=[keep]))
    assert not played.same and played.ran_out == "1.2" and played.rejected


def test_from_the_record_alone_a_handoff_is_refused() -> None:
    agent = desk(front=[transfer("billing")], billing=["Paid."])
    agent.input("Bill me.")
    assert agent.record is not None
    with pytest.raises(ConfigError, match="front handed over to billing, which cannot be played from the record alone"):
        replayed(agent.record)


@pytest.mark.parametrize("n", [1, 4])
def test_agents_that_are_tools_take_their_turns(n: int) -> None:
    asks = [call("child", prompt="Pay 1."), call("child", prompt="Pay 2.")]
    answers = [call("pay", amount=1), "One.", call("pay", amount=2), "Two.", "Three."]
    agent = asking([asks, call("child", prompt="More."), "Done."], answers, parallel_tools=n)
    assert agent.input("Go.") == "Done."
    check_same(agent, asking(parallel_tools=n))


def test_an_agent_that_is_asked_something_else_has_no_answer() -> None:
    agent = asking([call("child", prompt="Pay 1."), "Done."], ["One."])
    agent.input("Go.")

    @before_each_tool
    def other(tool_call: ToolCall) -> None:
        tool_call.arguments["prompt"] = "Pay 5."

    assert agent.record is not None
    played = replayed(agent.record, asking(plugins=[other]))
    (lacking,) = played.not_recorded
    assert lacking["reason"] == "it ran with other arguments then" and played.result == "Done."


def test_handlers_of_agents_inside_are_compared() -> None:
    def made(text: str, *scripts: Any) -> Agent:
        @before_llm
        def tell(agent: Agent) -> None:
            if agent.name == "child" and text:
                agent.current_session["messages"].append({"role": "user", "content": text})  # type: ignore[index]

        return asking(*scripts, plugins=[tell])

    agent = made("Be short.", [call("child", prompt="Pay 1."), "Done."], ["One."])
    agent.input("Go.")
    check_same(agent, made("Be short."))
    assert agent.record is not None
    played = replayed(agent.record, made("Be long."))
    assert played.divergence is not None and played.divergence.place == "1.1 of child"
    assert played.divergence.now_by["handler"] == "tell"


@pytest.mark.parametrize("kind", [Sequential, Parallel, Loop])
def test_workflows_are_played(kind: Any) -> None:
    def made(one: Any = (), two: Any = ()) -> Agent:
        steps = [Agent("one", [pay], llm=ScriptedLLM(*one)), Agent("two", [], llm=ScriptedLLM(*two))]
        return kind("flow", steps, quiet=True, **({"max_rounds": 2} if kind is Loop else {}))

    agent = made([call("pay", amount=1), "First.", "Third."], ["Second.", "Fourth."])
    agent.input("Go.")
    check_same(agent, made())


@pytest.mark.parametrize("decided", [{"approve": True}, {"reject": "No."}, {"answer": "paid by hand"}])
@pytest.mark.parametrize("how", ["handoff", "tool"])
def test_an_agent_inside_that_waited_goes_on_with_its_decision(how: str, decided: dict[str, Any]) -> None:
    @before_each_tool
    def ask(tool_call: ToolCall) -> None:
        if tool_call.name == "pay" and not tool_call.approved:
            raise Pause("a payment")

    def made(outer: Any = (), inner: Any = ()) -> Agent:
        if how == "handoff":
            return desk(front=outer, billing=inner, plugins=[ask])
        return asking(outer, inner, plugins=[ask])

    first = [transfer("billing")] if how == "handoff" else [call("child", prompt="Pay.")]
    agent = made([*first, "Done."], [call("pay", amount=3), "Paid."])
    with pytest.raises(Paused) as paused:
        agent.input("Go.")
    check = replayed(paused.value.record, made())
    assert check.same, str(check.divergence)
    result = made(["Done."], ["Paid."]).resume(paused.value.record, **decided)
    played = replayed(paused.value.record, made())
    assert played.same, (played.divergence, played.changed, played.not_recorded)
    assert played.results == [result] == ["Paid." if how == "handoff" else "Done."]


def test_a_record_that_was_cut_off_anywhere_is_played_as_far_as_it_goes() -> None:
    agent = desk(front=[transfer("billing")], billing=[call("pay", amount=3), "Paid."])
    agent.input("Bill me.")
    path = agent.record
    assert path is not None
    lines = path.read_text("utf-8").splitlines(keepends=True)
    first = next(n for n, line in enumerate(lines) if '"user_input"' in line)
    for number in range(first + 1, len(lines)):
        path.write_text("".join(lines[:number]), "utf-8")
        played = replayed(path, desk())
        assert played.same, (number, played.divergence, played.changed, played.not_recorded)


@pytest.mark.parametrize("text", ["", "Be long."])
def test_turn_by_turn_a_miss_of_an_agent_inside_stops_the_test(text: str) -> None:
    agent = desk(front=[transfer("billing")], billing=[call("pay", amount=3), "Paid.", "Still."])
    agent.input("Bill me.")
    agent.input("And now?")

    @before_llm
    def tell(agent: Agent) -> None:
        if agent.name == "billing" and text:
            agent.current_session["messages"].append({"role": "user", "content": text})  # type: ignore[index]

    assert agent.record is not None
    again = desk(plugins=[tell])
    Replaying(Recording(agent.record), again).by_turns()
    if text:
        with pytest.raises(RecordMiss, match=r"1\.1 of billing: other messages"):
            again.input("Bill me.")
    else:
        assert [again.input("Bill me."), again.input("And now?")] == ["Paid.", "Still."]


TREES: dict[str, Case] = {
    **CASES,
    **{f"random{seed}": random_case(seed) for seed in range(int(os.environ.get("CONNECTAGENT_REPLAYED_TREES", "8")))},
}


@pytest.mark.parametrize("name", TREES)
def test_trees_are_played_as_they_were(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    case, world = TREES[name], World(Diary(1, 0), "mixed", True)
    sent: list[Any] = []
    monkeypatch.setattr(Model, "complete", noting(Model.complete, sent))
    agent = case.build(world)
    results = [agent.input(PROMPT), agent.input(MORE)]
    ran = Path("ledger").read_text()
    record, before = agent.record, texts(sent)
    assert record is not None and before
    played = replayed(record, case.build(world))
    assert played.same and played.ran_out is None, (played.divergence, played.changed, played.not_recorded)
    assert played.results == results and set(texts(played.requests)) <= set(before)
    assert texts(played.requests) == before or name == "via_in_round"  # in which a tool asks an agent
    added = Path("ledger").read_text().removeprefix(ran)
    assert "\tran\t" not in added and "\tanswered\t" not in added


def noting(complete: Any, sent: list[Any]) -> Any:
    def noted(self: Any, messages: Any, tools: Any = None) -> Any:
        sent.append(copy.deepcopy((messages, tools)))
        return complete(self, messages, tools)

    return noted


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.waits])
def test_a_tree_that_waited_is_replayed_as_it_was_at_each_pause_and_at_its_end(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    world = World(Diary(1, 0), "approve", False)

    def build() -> Agent:
        return CASES[name].build(world)

    def go_on(record: Path | None, **decision: Any) -> str | Paused:
        try:
            return build().input(PROMPT) if record is None else str(build().resume(record, **decision))
        except Paused as paused:
            return paused

    outcome, pauses = go_on(None), 0
    while isinstance(outcome, Paused):
        assert outcome.record is not None
        record, pauses = outcome.record, pauses + 1
        played = replayed(record, build())
        assert played.same, (pauses, str(played.divergence), played.not_recorded)
        outcome = go_on(record, approve=outcome.waiting[0].id)
    assert pauses
    played = replayed(record, build())
    assert played.same and played.ran_out is None, (str(played.divergence), played.not_recorded)
    assert played.results == [outcome]
