"""Code that asks for other things when its turn goes on is found before anything runs."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from connectagent import Agent, DivergenceError, Pause, Paused, after_tools, around_llm, tool, xray
from connectagent.data import TraceEntry
from connectagent.records.history import history_of
from connectagent.testing import ScriptedLLM, call, conversation_problems


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)
    return tmp_path


class Office:
    """A boss whose function asks two clerks; `confirm` waits."""

    def __init__(self, run: Any, *, ann: Any = (), bob: Any = (), confirmed: bool = False) -> None:
        self.confirmed = confirmed
        self.looked: list[str] = []
        self.ann, self.bob = (
            Agent(name, [self.confirm], llm=ScriptedLLM(*script), quiet=True)
            for name, script in (("ann", ann), ("bob", bob))
        )
        self.body, below = run, [self.ann, self.bob]
        self.boss = Agent("boss", [self.look], run=lambda agent: self.body(self), sub_agents=below, quiet=True)

    def confirm(self) -> str:
        """Confirm."""
        if not xray.approved:
            raise Pause("sure?")
        return "confirmed"

    def look(self, at: str) -> str:
        """Look."""
        self.looked.append(at)
        return f"saw {at}"

    @property
    def asked(self) -> int:
        return len(self.ann.llm.requests) + len(self.bob.llm.requests)  # type: ignore[attr-defined]


WAIT = [call("confirm")]


def paused(office: Office) -> Path:
    with pytest.raises(Paused) as caught:
        office.boss.input("Go.")
    record: Path = caught.value.record
    return record


def lines_of(record: Path) -> list[TraceEntry]:
    return [json.loads(line[4:]) for line in record.read_text().splitlines() if line.startswith("  - {")]


def first_then_second(first: str, second: str = "Then.") -> Any:
    return lambda office: office.ann.input(first) + office.bob.input(second)


def test_asking_for_something_unknown_while_something_finished_was_not_asked_for_is_an_error() -> None:
    record = paused(Office(first_then_second("One."), ann=["1"], bob=[WAIT]))
    other = Office(first_then_second("Another."), ann=["not asked"], bob=["not asked"])
    with pytest.raises(DivergenceError) as caught:
        other.boss.resume(record, approve=True)
    before = next(line["id"] for line in lines_of(record) if line["type"] == "began" and line.get("agent") == "ann")
    message = str(caught.value)
    assert before in message and message.count("/turn:ann~") == 2
    assert "resume(record, place='1.1')" in message and other.asked == 0


def test_an_order_counts_though_something_else_was_still_open_when_the_process_before_was_killed(folder: Path) -> None:
    def killed_behind(record: Any, name: str, *marks: str) -> Path:
        lines = Path(str(record)).read_text().splitlines(keepends=True)
        last = max(number for number, line in enumerate(lines) if all(mark in line for mark in marks))
        (folder / name).write_text("".join(lines[: last + 1]))
        return folder / name

    first = Office(lambda office: office.ann.input("One."), ann=["1"])
    first.boss.input("Go.")
    path = killed_behind(first.boss.record, "boss_1.yaml", '"user_input"', "/turn:ann")
    second = Office(lambda office: office.bob.input("Two."), bob=["2"])
    assert second.boss.resume(path) == "2"
    path = killed_behind(path, "boss_2.yaml", '"agent_turn"', "/turn:bob")
    third = Office(lambda office: office.boss.execute_tool("look", {"at": "it"})["result"])
    with pytest.raises(DivergenceError, match=r"asks for .*/exec:look"):
        third.boss.resume(path)
    assert third.looked == []


def test_a_question_before_it_does_not_hide_that_something_else_is_asked_for() -> None:
    def run(first: str) -> Any:
        def ask(office: Office) -> str:
            office.boss.ask("Who?", model="offline")
            return office.ann.input(first) + office.bob.input("Then.")

        return ask

    record = paused(Office(run("One."), ann=["1"], bob=[WAIT]))
    other = Office(run("Another."), ann=["not asked"], bob=["not asked"])
    with pytest.raises(DivergenceError, match=r"asks for .*/turn:ann"):
        other.boss.resume(record, approve=True)
    assert other.asked == 0


def test_the_same_code_goes_on_after_such_an_error() -> None:
    record = paused(Office(first_then_second("One."), ann=["1"], bob=[WAIT]))
    with pytest.raises(DivergenceError):
        Office(first_then_second("Another.")).boss.resume(record, approve=True)
    again = Office(first_then_second("One."), bob=["2"])
    assert again.boss.resume(record) == "12"
    assert again.asked == 1


def said(agent: Agent) -> list[tuple[Any, Any]]:
    return [(message["role"], message["content"]) for message in (agent.current_session or {}).get("messages", [])]


def failing(office: Office) -> str:
    raise OSError("no disk")


@pytest.mark.parametrize(("body", "error"), [(first_then_second("Another."), DivergenceError), (failing, OSError)])
def test_what_was_not_asked_for_again_stays_in_the_sessions_of_agents_below(body: Any, error: type[Exception]) -> None:
    record = paused(Office(first_then_second("One."), ann=["1"], bob=[WAIT]))
    office = Office(body, bob=["2"])
    with pytest.raises(error):
        office.boss.resume(record, approve=True)
    assert said(office.ann) == [("user", "One."), ("assistant", "1")]
    assert said(office.bob)[:2] == [("user", "Then."), ("assistant", None)]

    before = office.boss.spent.calls
    with pytest.raises(error):  # and once more in this process
        office.boss.resume(record)
    assert said(office.bob)[:1] == [("user", "Then.")] and office.boss.spent.calls == before

    office.body = lambda office: office.bob.input("Second.")  # the program goes on with another turn
    assert office.boss.input("Two.") == "2"
    fresh = Office(first_then_second("One."))
    assert fresh.boss.resume(office.boss.record) == "2"
    for name in ("boss", "ann", "bob"):
        assert said(getattr(fresh, name)) == said(getattr(office, name))
    assert office.bob.current_session is not None and not conversation_problems(office.bob.current_session["messages"])


def test_the_right_code_goes_on_in_the_same_process_after_such_an_error() -> None:
    office = Office(first_then_second("Another."), bob=["2"])
    with pytest.raises(DivergenceError):
        office.boss.resume(paused(Office(first_then_second("One."), ann=["1"], bob=[WAIT])), approve=True)
    office.body = first_then_second("One.")
    assert office.boss.resume() == "12" and office.asked == 1
    assert said(office.bob)[-1] == ("assistant", "2") and ("tool", "confirmed") in said(office.bob)


def test_going_back_to_before_the_step_is_the_way_out() -> None:
    record = paused(Office(first_then_second("One."), ann=["1"], bob=[WAIT]))
    other = Office(first_then_second("Another."), ann=["3"], bob=["4"])
    with pytest.raises(DivergenceError):
        other.boss.resume(record, approve=True)
    anew = Office(first_then_second("Another."), ann=["3"], bob=["4"])
    assert anew.boss.resume(record, place="1.1") == "34"


def test_something_finished_that_was_not_asked_for_at_the_end_is_an_error() -> None:
    record = paused(Office(first_then_second("One."), ann=["1"], bob=[WAIT]))
    other = Office(lambda office: office.bob.input("Then."), bob=["2"])
    with pytest.raises(DivergenceError, match=r"came to the end of T1/1/run, while T1/1/run/turn:ann~"):
        other.boss.resume(record, approve=True)


def test_a_body_cannot_swallow_it() -> None:
    def swallows(office: Office) -> str:
        try:
            return office.ann.input("Another.")
        except Exception:
            return "never mind"

    record = paused(Office(first_then_second("One."), ann=["1"], bob=[WAIT]))
    with pytest.raises(DivergenceError):
        Office(swallows).boss.resume(record, approve=True)


def test_a_tool_that_another_one_runs_counts_too() -> None:
    def looks(at: str) -> Any:
        return lambda office: office.boss.execute_tool("look", {"at": at})["result"] + office.bob.input("Then.")

    record = paused(Office(looks("here"), bob=[WAIT]))
    other = Office(looks("there"))
    with pytest.raises(DivergenceError, match="exec:look"):
        other.boss.resume(record, approve=True)
    assert other.looked == []
    same = Office(looks("here"), bob=["!"])
    assert same.boss.resume(record) == "saw here!" and same.looked == []


def test_a_tool_that_waited_can_begin_again_after_such_an_error() -> None:
    def office(question: str, *script: Any, **scripts: Any) -> tuple[Agent, list[str]]:
        began: list[str] = []

        def ask() -> str:
            """Ask."""
            began.append(question)
            return ann.input(question) + bob.input("Then.")

        @tool
        def confirm() -> str:
            """Confirm."""
            if not xray.approved:
                raise Pause("sure?")
            return "confirmed"

        ann = Agent("ann", llm=ScriptedLLM(*scripts.get("ann", ())), quiet=True)
        bob = Agent("bob", [confirm], llm=ScriptedLLM(*scripts.get("bob", ())), quiet=True)
        return Agent("boss", [ask], sub_agents=[ann, bob], llm=ScriptedLLM(*script), quiet=True), began

    boss, _ = office("One.", [call("ask")], ann=["1"], bob=[WAIT])
    with pytest.raises(Paused) as caught:
        boss.input("Go.")
    record = caught.value.record
    other, _ = office("Another.")
    with pytest.raises(DivergenceError):
        other.resume(record, approve=True)
    again, began = office("One.", "Done.", bob=["2"])
    assert again.resume(record) == "Done." and began == ["One."]
    session: Any = again.current_session
    assert [one["content"] for one in session["messages"] if one["role"] == "tool"] == ["12"]
    assert conversation_problems(session["messages"]) == []


def test_in_threads_the_order_tells_nothing() -> None:
    def together(order: list[str]) -> Any:
        def run(office: Office) -> str:
            threads = [threading.Thread(target=ask, args=(office, name)) for name in order]
            for thread in threads:
                thread.start()
                thread.join()
            return office.bob.input("Then.")

        def ask(office: Office, name: str) -> None:
            office.ann.input(name)

        return run

    record = paused(Office(together(["a", "b"]), ann=["1", "2"], bob=[WAIT]))
    other = Office(together(["b", "c", "a"]), ann=["3"], bob=["Done."])
    assert other.boss.resume(record, approve=True) == "Done."
    assert other.asked == 2


def test_what_a_handler_asked_that_is_no_longer_there_is_no_divergence() -> None:
    def asking(office: Office) -> Any:
        @after_tools
        def critic(agent: Agent) -> None:
            office.ann.input("Good?")
            office.bob.input("Really?")

        return critic

    def lead(*script: Any, critic: bool, **scripts: Any) -> Agent:
        office = Office(None, **scripts)
        handlers = [asking(office)] if critic else []
        return Agent("lead", [office.look], llm=ScriptedLLM(*script), on_events=handlers, quiet=True)

    first = lead([call("look", at="it")], critic=True, ann=["yes"], bob=[ConnectionError("down")])
    with pytest.raises(ConnectionError):
        first.input("Go.")
    record = first.record
    assert record is not None
    assert lead("Done.", critic=False).resume(record) == "Done."


def test_a_tool_that_a_handler_around_a_model_call_ran_is_asked_for_again() -> None:
    office = Office(None)
    does: list[str] = []

    @around_llm
    def check(agent: Agent) -> Any:
        response = yield
        if "look" in does:
            agent.execute_tool("look", {"at": "it"})
        if "fail" in does:
            raise OSError("no disk")
        return response

    def lead() -> Agent:
        return Agent("lead", [office.look], llm=ScriptedLLM("Done."), on_events=[check], quiet=True)

    first = lead()
    for done, error in ((["look", "fail"], OSError), ([], DivergenceError), (["look"], None)):
        does[:] = done
        agent = first if error is OSError else lead()
        if error is None:
            assert agent.resume(first.record) == "Done."
        else:
            with pytest.raises(error):
                agent.input("Go.") if agent is first else agent.resume(first.record)
    assert office.looked == ["it"]


def test_what_a_handler_asked_that_is_over_is_no_divergence() -> None:
    def lead(*script: Any, **scripts: Any) -> tuple[Agent, Office]:
        office = Office(None, **scripts)

        @after_tools
        def critic(agent: Agent) -> None:
            office.ann.input("Good?")

        @after_tools
        def second(agent: Agent) -> None:
            office.bob.input("Really?")

        llm = ScriptedLLM(*script)
        return Agent("lead", [office.look], llm=llm, on_events=[critic, second], quiet=True), office

    first, _ = lead([call("look", at="it")], ann=["yes"], bob=[ConnectionError("down")])
    with pytest.raises(ConnectionError):
        first.input("Go.")
    again, office = lead("Done.", bob=["yes"])
    assert again.resume(first.record) == "Done." and office.asked == 1


def test_an_open_turn_that_nobody_asks_for_again_is_abandoned_and_its_cost_counts() -> None:
    first = Office(first_then_second("One."), ann=["1"], bob=[WAIT])
    record = paused(first)
    spent = first.boss.spent.calls
    other = Office(first_then_second("One.", "Something else."), bob=["3"])
    assert other.boss.resume(record, approve=True) == "13"
    (left,) = [line for line in lines_of(record) if line.get("outcome") == "abandoned"]
    assert left["type"] == "agent_turn" and left["agent"] == "bob" and "/turn:bob~" in left["id"]
    assert left["usage"] is not None and other.boss.spent.calls == spent + 1
    assert left["turn"] == 1 and left["record"] == str(record) and left["started"] > 0 and left["duration_ms"] > 0
    third = Office(None)
    assert third.boss.resume(record) == "13"
    for agent, same in ((third.boss, other.boss), (third.bob, other.bob)):
        assert agent.current_session["messages"] == same.current_session["messages"]  # type: ignore[index]
    assert history_of(record).messages == other.boss.current_session["messages"]  # type: ignore[index]
