"""What was decided stays decided, however often the turn stops before the call that it is about is over."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from connectagent import Agent, Pause, Paused, Retry, after_each_tool, before_each_tool, before_tools, on_error, xray
from connectagent.testing import ScriptedLLM, call


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)
    return tmp_path


class Office:
    """A boss who pays beside two clerks that work at the same time, of which one waits too."""

    def __init__(self, boss: Any = (), ann: Any = (), bob: Any = ()) -> None:
        self.paid: list[bool] = []

        @before_each_tool
        def ask(tool_call: Any) -> None:
            if tool_call.name in ("pay", "sign"):
                raise Pause(f"{tool_call.name}?")

        scripts = {"ann": ann, "bob": bob}
        clerks = [Agent(name, [self.sign], llm=ScriptedLLM(*scripts[name]), quiet=True) for name in scripts]
        llm = ScriptedLLM(*boss)
        self.boss = Agent("boss", [self.pay, *clerks], llm=llm, plugins=[ask], quiet=True)

    def pay(self) -> str:
        """Pay."""
        self.paid.append(bool(xray.approved))
        return "paid"

    def sign(self) -> str:
        """Sign."""
        return "signed"


DECISIONS = [({"reject": "no"}, [], "rejected: no"), ({"answer": "by hand"}, [], "by hand"), ({}, [True], "paid")]


@pytest.mark.parametrize(("decision", "paid", "result"), DECISIONS, ids=["reject", "answer", "approve"])
@pytest.mark.parametrize("order", ["first", "last"])
def test_a_decision_about_a_call_beside_agents_holds_while_another_one_is_decided(
    order: str, decision: dict[str, Any], paid: list[bool], result: str
) -> None:
    round = [call("pay"), call("ann", prompt="Sign."), call("bob", prompt="Say.")]
    offices = [Office([round], [call("sign")], ["Bob."]), Office(), Office(["Done."], ["Ann."])]
    with pytest.raises(Paused) as first:
        offices[0].boss.input("Go.")
    about = {wait.call["name"]: wait.id for wait in first.value.waiting}  # type: ignore[index]
    (name, value), *_ = [*decision.items(), ("approve", about["pay"])]
    pay = {name: value, **({"wait": about["pay"]} if decision else {})}
    sign = {"approve": about["sign"]}
    decisions = [pay, sign] if order == "first" else [sign, pay]
    if order == "last":
        offices[1:] = [Office([], ["Ann."]), Office(["Done."])]
    with pytest.raises(Paused):
        offices[1].boss.resume(first.value.record, **decisions[0])
    assert offices[2].boss.resume(first.value.record, **decisions[1]) == "Done."
    session: Any = offices[2].boss.current_session
    results = [message["content"] for message in session["messages"] if message["role"] == "tool"]
    assert results == [result, "Ann.", "Bob."]
    assert [run for office in offices for run in office.paid] == paid


def test_a_round_that_was_rejected_is_not_run_after_a_death_between_its_calls() -> None:
    paid: list[int] = []
    kept = Path("kept.yaml")

    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    @before_tools
    def ask() -> None:
        raise Pause("all of these?")

    def made(*script: Any, keep: bool = False) -> Agent:
        @after_each_tool
        def die(agent: Agent) -> None:
            if keep and not kept.exists():
                shutil.copy(str(agent.record), kept)

        return Agent("a", [pay], llm=ScriptedLLM(*script), plugins=[ask, die], quiet=True)

    with pytest.raises(Paused) as paused:
        made([call("pay", amount=1), call("pay", amount=2)]).input("Go.")
    assert made("Done.", keep=True).resume(paused.value.record, reject="no") == "Done."
    assert made("Done.").resume(kept) == "Done."
    assert paid == []


@pytest.mark.parametrize("log", [None, False])
@pytest.mark.parametrize("answer", [Retry(), "recovered"])
def test_on_error_fires_for_a_tool_behind_a_pause_and_an_error_that_was_recovered(answer: Any, log: Any) -> None:
    fired: list[str] = []
    runs: list[str] = []

    def flaky(what: str) -> str:
        """Fail the first time."""
        runs.append(what)
        if runs.count(what) == 1:
            raise ValueError("once")
        return "fine"

    def wait() -> str:
        """Wait."""
        if not xray.approved:
            raise Pause("go on?")
        return "waited"

    @on_error
    def recover(agent: Agent, tool_call: Any) -> Any:
        fired.append(tool_call.arguments["what"])
        agent.current_session["state"][tool_call.arguments["what"]] = True  # type: ignore[index]
        return answer

    script = [call("flaky", what="a"), call("wait"), call("flaky", what="b"), "Done."]
    agent = Agent("a", [flaky, wait], llm=ScriptedLLM(*script), plugins=[recover], quiet=True, log=log)
    with pytest.raises(Paused):
        agent.input("Go.")
    assert agent.resume(approve=True) == "Done."
    assert fired == ["a", "b"]
    session: Any = agent.current_session
    assert session["state"] == {"a": True, "b": True}
    statuses = [one["status"] for one in session["trace"] if one.get("tool_name") == "flaky"]
    assert statuses == ["success" if isinstance(answer, Retry) else "recovered"] * 2
