"""An agent that waits inside another one's turn takes no other turn: a person decides about what was shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from connectagent import Agent, Pause, Paused, ToolCall, after_tools, before_each_tool, xray
from connectagent.testing import ScriptedLLM, call, conversation_problems


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)
    return tmp_path


class Payments:
    """A boss whose payer asks before it pays."""

    def __init__(self, log: bool | None = None) -> None:
        self.paid: list[int] = []
        ask, pay = call("payer", prompt="Pay 5."), call("pay", euro=5)
        self.payer = Agent("payer", [self.pay], llm=ScriptedLLM([pay], "Paid.", "Well."), quiet=True, log=log)
        self.boss = Agent("boss", [self.payer], llm=ScriptedLLM([ask], "Done.", "Then not."), quiet=True, log=log)

    def pay(self, euro: int) -> str:
        """Pay."""
        if not xray.approved:
            raise Pause(f"pay {euro} EUR?")
        self.paid.append(euro)
        return f"paid {euro}"

    def next_answers(self, boss: list[Any], payer: list[Any]) -> None:
        for agent, answers in ((self.boss, boss), (self.payer, payer)):
            agent.llm.responses[:] = [""] * len(agent.llm.requests) + answers

    def pause(self) -> Paused:
        with pytest.raises(Paused, match="pay 5 EUR") as caught:
            self.boss.input("Pay 5.")
        return caught.value


@pytest.mark.parametrize("log", [None, False], ids=["recorded", "not recorded"])
def test_an_agent_that_waits_in_anothers_turn_takes_no_other_turn(log: bool | None) -> None:
    it = Payments(log)
    wait = it.pause().waiting[0]
    with pytest.raises(RuntimeError) as refused:
        it.payer.input("Pay 5,000.")
    said = str(refused.value)
    assert "'payer' waits inside turn T1 of agent 'boss'" in said and wait.id in said and "resume()" in said
    assert ("whose record is .co/evals/boss" in said) == (log is None)
    assert it.boss.resume(approve=True) == "Done." and it.paid == [5]
    assert it.payer.input("Thanks.") == "Well."


def test_another_agent_cannot_ask_it_either() -> None:
    it = Payments()
    it.pause()

    def ask() -> str:
        """Ask."""
        return it.payer.input("Pay 5,000.")

    other = Agent("other", [ask], llm=ScriptedLLM([call("ask")], "I see."), quiet=True)
    assert other.input("Pay.") == "I see."
    session: Any = other.current_session
    assert "waits inside turn T1 of agent 'boss'" in session["messages"][-2]["content"]
    assert it.boss.resume(approve=True) == "Done." and it.paid == [5]


def test_an_agent_that_waits_is_not_asked_again_in_the_same_round() -> None:
    it = Payments()
    calls = [call("payer", prompt="Pay 5."), call("payer", prompt="Pay 6.")]
    it.next_answers([calls, "Done."], [[call("pay", euro=5)], "Paid.", [call("pay", euro=6)], "Paid."])
    assert len(it.pause().waiting) == 1 and len(it.payer.llm.requests) == 1  # type: ignore[attr-defined]
    with pytest.raises(Paused, match="pay 6 EUR"):
        it.boss.resume(approve=True)
    assert it.boss.resume(approve=True) == "Done." and it.paid == [5, 6]


@pytest.mark.parametrize("how", ["input", "reset", "resume elsewhere"])
def test_it_is_free_when_the_turn_is_given_up_or_decided(how: str) -> None:
    it = Payments()
    record = it.pause().record
    if how == "input":
        it.next_answers(["Then not."], [])
        assert it.boss.input("Leave it.") == "Then not."
    elif how == "reset":
        it.boss.reset_conversation()
    else:
        other = Payments()
        other.next_answers(["Done."], ["Paid."])
        assert other.boss.resume(record, approve=True) == "Done."
        assert it.boss.resume(record) == "Done."
    it.next_answers([], ["Well."])
    assert it.payer.input("Hello.") == "Well." and it.paid == []


def test_the_next_input_of_the_root_gives_its_turn_up_and_both_models_read_that_it_was_paused() -> None:
    it = Payments()
    it.pause()
    it.next_answers([[call("payer", prompt="Never mind.")], "Then not."], ["Well."])
    assert it.boss.input("Leave it.") == "Then not." and it.paid == []
    for agent in (it.boss, it.payer):
        sent = agent.llm.requests[1].messages
        assert conversation_problems(sent) == []
        assert [one["content"] for one in sent if one["role"] == "tool"] == ["not run: the turn was paused"]


def test_what_was_left_open_inside_is_abandoned_in_the_record() -> None:
    it = Payments()
    paused = it.pause()
    it.next_answers([[call("payer", prompt="Never mind.")], "Then not."], ["Well."])
    assert it.boss.input("Leave it.") == "Then not."
    lines = [json.loads(line[4:]) for line in paused.record.read_text().splitlines() if line.startswith("  - {")]
    (left,) = [line for line in lines if line.get("outcome") == "abandoned"]
    assert left["type"] == "closed" and paused.waiting[0].id.startswith(f"{left['id']}/")
    other = Payments()
    assert other.boss.resume(paused.record) == "Then not."
    for agent, same in ((other.boss, it.boss), (other.payer, it.payer)):
        session: Any = agent.current_session
        assert session["messages"] == same.current_session["messages"]  # type: ignore[index]
        assert session["turn"] == same.current_session["turn"] == 2  # type: ignore[index]


def test_a_turn_that_is_not_recorded_goes_on_with_each_message_once() -> None:
    it, recorded = Payments(log=False), Payments()
    for payments in (it, recorded):
        boss: Any = payments.boss
        payments.next_answers(["Hello."], [])
        boss.input("Hi.")
        payments.next_answers(
            [[call("payer", prompt="Pay 5.")], [call("payer", prompt="Pay 6.")], "Done."],
            [[call("pay", euro=5)], "Paid.", [call("pay", euro=6)], "Paid."],
        )
        with pytest.raises(Paused):
            boss.input("Pay 5 and 6.")
        with pytest.raises(Paused):
            boss.resume(approve=True)
        assert boss.resume(approve=True) == "Done." and payments.paid == [5, 6]
    for agent, same in ((it.boss, recorded.boss), (it.payer, recorded.payer)):
        session, other = agent.current_session, same.current_session
        assert session is not None and other is not None and session["turn"] == other["turn"] == 2
        assert [said(one) for one in session["messages"]] == [said(one) for one in other["messages"]]


def said(message: Any) -> tuple[Any, ...]:
    calls = [one["function"]["arguments"] for one in message.get("tool_calls") or ()]
    return (message["role"], message["content"], calls)


@pytest.mark.parametrize("log", [None, False], ids=["recorded", "not recorded"])
def test_handlers_whose_agents_wait_go_on(log: bool | None) -> None:
    def ask_first(tool_call: ToolCall) -> None:
        raise Pause(f"{tool_call.name}?")

    def look(place: str) -> str:
        """Look."""
        looked.append(place)
        return f"seen {place}"

    def asking(key: str) -> Any:
        @after_tools
        def ask(agent: Agent) -> None:
            agent.state[key] = critic.input("Judge it.")

        return ask

    looked: list[str] = []
    critic_script = [call("look", place="a"), "Good.", call("look", place="b"), "Fine."]
    critic = Agent("critic", [look], llm=ScriptedLLM(*critic_script), on_events=[before_each_tool(ask_first)], log=log)
    lead = Agent("lead", [look], llm=ScriptedLLM(call("look", place="it"), "Done."), log=log, quiet=True,
                 on_events=[asking("first"), asking("second")])  # fmt: skip
    with pytest.raises(Paused):
        lead.input("Go.")
    assert looked == ["it"]
    with pytest.raises(Paused):
        lead.resume(approve=True)
    assert looked == ["it", "a"]
    assert lead.resume(approve=True) == "Done."
    assert looked == ["it", "a", "b"]
    assert (lead.state["first"], lead.state["second"]) == ("Good.", "Fine.")
    assert [entry["type"] for entry in lead.session["trace"]].count("tool_execution") == 1
