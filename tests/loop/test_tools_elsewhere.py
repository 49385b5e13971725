"""Tools that are carried out elsewhere: a call waits until its result is brought, whatever else its round does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from connectagent import Agent, ConfigError, Pause, Paused, Sequential, Tool, ToolRejected, before_each_tool
from connectagent.commands.failure import commands_to_decide
from connectagent.replay.replaying import replay
from connectagent.testing import ScriptedLLM, call, conversation_problems

SCHEMA = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
PAID: list[int] = []


def show() -> Tool:
    return Tool("show", "Show a place on the map.", SCHEMA)


def pay(amount: int) -> str:
    """Pay an amount."""
    PAID.append(amount)
    return f"paid {amount}"


def agent_with(*responses: Any, tools: Any = None, **options: Any) -> Agent:
    given = [pay, show()] if tools is None else tools
    return Agent("guide", given, llm=ScriptedLLM(*responses), quiet=True, **options)


def paused_by(agent: Agent, prompt: str = "Go") -> Paused:
    PAID.clear()
    with pytest.raises(Paused) as raised:
        agent.input(prompt)
    return raised.value


def contents(agent: Agent) -> list[Any]:
    return [one["content"] for one in agent.session["messages"] if one["role"] == "tool"]


@pytest.mark.parametrize("parallel", [1, 4])
def test_a_round_waits_for_all_its_calls_elsewhere_at_once_and_runs_the_others(parallel: int, co_dir: Path) -> None:
    calls = [call("show", place="here"), call("pay", amount=5), call("show", place="there")]
    paused = paused_by(agent_with(calls, parallel_tools=parallel))
    places = [(wait.call or {})["arguments"]["place"] for wait in paused.waiting]
    assert PAID == [5] and places == ["here", "there"]
    assert all(wait.elsewhere for wait in paused.waiting)
    here, there = (wait.id for wait in paused.waiting)
    with pytest.raises(Paused) as still:
        agent_with().resume(paused.record, answer="shown there", wait=there)
    assert [wait.id for wait in still.value.waiting] == [here] and still.value.waiting[0].elsewhere
    done = agent_with("Done.")
    assert done.resume(paused.record, answer={"shown": True}, wait=here) == "Done."
    assert contents(done) == ['{"shown": true}', "paid 5", "shown there"] and PAID == [5]
    assert not conversation_problems(done.session["messages"])


def test_an_answer_stands_in_where_the_tool_is_gone(co_dir: Path) -> None:
    paused = paused_by(agent_with([call("show", place="here"), call("pay", amount=5)]))
    done = agent_with("Done.", tools=[pay])
    assert done.resume(paused.record, answer="shown") == "Done."
    assert contents(done) == ["shown", "paid 5"] and PAID == [5]


def test_it_is_answered_or_rejected_and_not_approved(co_dir: Path) -> None:
    paused = paused_by(agent_with(call("show", place="here")))
    with pytest.raises(ConfigError, match="takes answer="):
        agent_with().resume(paused.record, approve=True)
    [command] = commands_to_decide(paused)
    assert "--approve" not in command and "--answer" in command
    rejected = agent_with("No.")
    assert rejected.resume(paused.record, reject="no map here") == "No."
    assert contents(rejected) == ["rejected: no map here"]


def test_guards_see_it_and_what_does_not_fit_its_schema_waits_for_nobody(co_dir: Path) -> None:
    seen: list[str] = []

    @before_each_tool
    def guard(tool_call: Any) -> None:
        seen.append(tool_call.arguments.get("place", "nowhere"))
        if "secret" in seen:
            raise ToolRejected("not that place")

    agent = agent_with(call("show"), call("show", place="secret"), "Done.", plugins=[guard])
    assert agent.input("Go") == "Done." and seen == ["nowhere", "secret"]
    wrong, refused = contents(agent)
    assert "place" in wrong and refused == "rejected: not that place"


def test_a_guard_that_waits_comes_first_and_its_approval_leads_to_the_wait_elsewhere(co_dir: Path) -> None:
    @before_each_tool
    def ask_first(tool_call: Any) -> None:
        raise Pause("may I?")

    paused = paused_by(agent_with([call("show", place="here"), call("show", place="there")], plugins=[ask_first]))
    first, second = paused.waiting
    assert not first.elsewhere and not second.elsewhere
    with pytest.raises(Paused) as still:
        agent_with(plugins=[ask_first]).resume(paused.record, approve=first.id)
    other, here = sorted(still.value.waiting, key=lambda wait: wait.elsewhere)
    assert other.id == second.id and here.elsewhere
    with pytest.raises(Paused):
        agent_with(plugins=[ask_first]).resume(paused.record, answer="shown", wait=here.id)
    done = agent_with("Done.", plugins=[ask_first])
    assert done.resume(paused.record, reject="no", wait=second.id) == "Done."
    assert contents(done) == ["shown", "rejected: no"]


def test_another_prompt_gives_up_a_turn_that_waits_for_nobody_who_decides(co_dir: Path) -> None:
    @before_each_tool
    def ask_first(tool_call: Any) -> None:
        if tool_call.name == "pay":
            raise Pause("may I?")

    here = call("show", place="here")
    for calls, given_up in (([here], True), ([here, call("pay", amount=5)], False)):
        session = agent_with(calls, plugins=[ask_first]).for_session(f"given up: {given_up}")
        with pytest.raises(Paused):
            session.turn("Go")
        later = agent_with("Hello.", plugins=[ask_first]).for_session(session.key)
        assert later.number_for("Go") == 1 and later.number_for("Hello") == (2 if given_up else 1)
        if given_up:
            assert later.turn("Hello") == "Hello." and later.turns == 2
            assert contents(later.agent)[0].startswith("not run: the turn was paused")
            assert not conversation_problems(later.agent.session["messages"])
            assert session.number_for("Hello") == 3
        else:
            with pytest.raises(Exception, match="was begun with the prompt"):
                later.turn("Hello")


def test_agents_below_wait_too(co_dir: Path) -> None:
    def both() -> Agent:
        last = Agent("last", llm=ScriptedLLM("Bye."))
        return Sequential("both", [agent_with(call("show", place="here"), "Shown."), last])

    paused = paused_by(both())
    assert [(wait.agent, wait.elsewhere) for wait in paused.waiting] == [("guide", True)]
    again = both()
    again.sub_agents[0].llm.responses = ["Shown."]
    assert again.resume(paused.record, answer="shown") == "Bye."


def test_it_is_made_again_and_has_no_function_to_call() -> None:
    agent = agent_with(tools=[])
    agent.add_tool(show())
    assert agent.again().tools["show"].function is None
    with pytest.raises(AttributeError, match="carried out elsewhere"):
        agent.tools.show()
    with pytest.raises(Pause):  # outside of a turn there is nothing that could wait
        agent.execute_tool("show", {"place": "here"})


def test_a_recorded_one_is_replayed(co_dir: Path) -> None:
    paused = paused_by(agent_with([call("show", place="here"), call("pay", amount=5)]))
    agent = agent_with("Done.")
    agent.resume(paused.record, answer="shown")
    assert agent.record is not None
    for again in (agent_with(), None):
        played = replay(agent.record, again)
        assert played.same and played.result == "Done.", played
    assert PAID == [5]
