"""What the calls of a round change in the state stays, whichever of them is decided first, in any process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from connectagent import (
    Agent,
    Continue,
    Pause,
    Paused,
    Retry,
    after_tools,
    around_llm,
    around_tool,
    before_each_tool,
    on_complete,
    on_error,
    tool,
)
from connectagent.records.history import history_of
from connectagent.testing import ScriptedLLM, call


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Scripted:
    """A model that answers by what there is of the turn, so that another process goes on with it."""

    model = "scripted"

    def __init__(self, *calls: Any) -> None:
        self.calls = list(calls)

    def complete(self, messages: Any, tools: Any = None) -> Any:
        since = max(number for number, message in enumerate(messages) if message["role"] == "user")
        answered = any(message["role"] == "tool" for message in messages[since:])
        return ScriptedLLM("Done." if answered else self.calls).complete(messages, tools)


def pay(agent: Agent, what: str) -> str:
    """Pay."""
    agent.state["log"] = [*agent.state.get("log", ()), what]
    agent.state.setdefault(f"log {agent.name}", []).append(what)
    return f"paid {what}"


@before_each_tool
def ask_a_person(tool_call: Any) -> None:
    if tool_call.arguments.get("what", "").startswith("asked"):
        raise Pause(tool_call.arguments["what"])


@before_each_tool(trylast=True)
def note(agent: Agent, tool_call: Any) -> None:
    if tool_call.name == "pay":
        agent.state.setdefault("noted", []).append(tool_call.arguments["what"])


def decided(made: Callable[[], Agent], same: bool) -> tuple[Agent, int]:
    """Approve one call after the other, in this process or each time as another one would; how many there were."""
    agent, pauses = made(), 0
    with pytest.raises(Paused) as caught:
        agent.input("Go")
    paused: Paused | None = caught.value
    while paused is not None:
        record, wait, pauses = agent.record, paused.waiting[0], pauses + 1
        agent = agent if same else made()
        try:
            assert agent.resume(record, approve=wait.id) == "Done."
            paused = None
        except Paused as again:
            paused = again
    return agent, pauses


@pytest.mark.parametrize("same", [True, False], ids=["same process", "another"])
def test_a_call_that_is_decided_while_an_agent_waits_beside_it_keeps_what_it_changed(same: bool) -> None:
    def made() -> Agent:
        inner = Scripted(call("pay", what="first"), call("pay", what="asked inside"))
        child = Agent("child", [pay], llm=inner, on_events=[ask_a_person], quiet=True)
        calls = [call("pay", what="asked"), call("child", prompt="one"), call("child", prompt="two")]
        return Agent("root", [pay, child], llm=Scripted(*calls), on_events=[ask_a_person], quiet=True)

    agent, pauses = decided(made, same)
    assert pauses == 3
    assert agent.state["log"] == ["asked", *["first", "asked inside"] * 2]
    assert agent.state["log root"] == ["asked"] and agent.state["log child"] == ["first", "asked inside"] * 2


@pytest.mark.parametrize("same", [True, False], ids=["same process", "another"])
@pytest.mark.parametrize("n", [1, 4])
def test_what_handlers_and_tools_add_for_a_call_that_waits_stands_before_that_of_the_calls_behind_it(
    n: int, same: bool
) -> None:
    def made() -> Agent:
        names = ("asked 1", "second", "asked 3", "fourth")
        asked = [Agent(name, llm=Scripted(), quiet=True) for name in "xy"]  # so that all calls are taken in any case
        calls = [*(call("pay", what=name) for name in names), *(call(agent.name, prompt="Go") for agent in asked)]
        options: dict[str, Any] = {"on_events": [ask_a_person, note], "parallel_tools": n, "quiet": True}
        return Agent("root", [pay, *asked], llm=Scripted(*calls), **options)

    agent, pauses = decided(made, same)
    assert pauses == 2
    assert agent.state["log"] == agent.state["noted"] == ["asked 1", "second", "asked 3", "fourth"]


@pytest.mark.parametrize("log", [None, False], ids=["recorded", "in memory"])
@pytest.mark.parametrize("n", [1, 4])
def test_what_handlers_around_a_second_attempt_changed_stays_when_the_turn_is_resumed_twice(
    n: int, log: bool | None
) -> None:
    tries: list[str] = []

    def work(what: str) -> str:
        """Work."""
        tries.append(what)
        if tries == ["first"]:
            raise ValueError("not yet")
        return f"did {what}"

    @around_tool
    def around(agent: Agent, tool_call: Any) -> Any:
        what = tool_call.arguments["what"]
        agent.state.setdefault("in", []).append(what)
        value = yield
        agent.state.setdefault("out", []).append(what)
        agent.state[f"out {what}"] = True
        return value

    @on_error
    def again() -> Retry:
        return Retry()

    def made() -> Agent:
        calls = [call("work", what=what) for what in ("first", "asked 2", "asked 3")]
        events = [ask_a_person, around, again]
        options: dict[str, Any] = {"on_events": events, "parallel_tools": n, "log": log, "quiet": True}
        return Agent("root", [work], llm=Scripted(*calls), **options)

    agent, pauses = decided(made, same=log is False)
    assert pauses == 2 and sorted(tries) == ["asked 2", "asked 3", "first", "first"]
    assert sorted(agent.state["in"]) == ["asked 2", "asked 3", "first", "first"]
    assert sorted(agent.state["out"]) == ["asked 2", "asked 3", "first"]
    assert all(agent.state[f"out {what}"] for what in agent.state["out"])


@pytest.mark.parametrize("same", [True, False], ids=["same process", "another"])
def test_what_handlers_around_a_tool_that_took_too_long_changed_is_there_once(same: bool) -> None:
    released = threading.Event()

    @tool(timeout_s=0.05)
    def slow(agent: Agent, what: str) -> str:
        """Take too long."""
        agent.state["slow"] = True
        released.wait(10)
        return "late"

    @around_tool
    def around(agent: Agent, tool_call: Any) -> Any:
        agent.state.setdefault("in", []).append(tool_call.arguments["what"])
        try:
            return (yield)
        finally:
            agent.state.setdefault("out", []).append(tool_call.arguments["what"])

    def made() -> Agent:
        names = {"asked 1": "pay", "slow": "slow", "quick": "pay", "asked 4": "pay"}
        calls = [call(names[what], what=what) for what in names]
        return Agent("root", [pay, slow], llm=Scripted(*calls), on_events=[ask_a_person, around], **options)

    options: dict[str, Any] = {"parallel_tools": 4, "quiet": True}
    agent, pauses = decided(made, same)
    released.set()
    assert pauses == 2 and "slow" not in agent.state and agent.state["log"] == ["asked 1", "quick", "asked 4"]
    for key in ("in", "out"):
        assert sorted(agent.state[key]) == ["asked 1", "asked 4", "quick", "slow"]


def test_what_handlers_changed_around_an_answer_that_was_sent_back_is_there_once() -> None:
    class Answer(BaseModel):
        text: str

    @around_llm
    def count(agent: Agent) -> Any:
        response = yield
        agent.state.setdefault("answers", []).append(response.content)
        return response

    script = ["no JSON", [call("pay", what="asked")], '{"text": "Done."}']

    def made(*answers: Any) -> Agent:
        return Agent("root", [pay], llm=ScriptedLLM(*answers), on_events=[count, ask_a_person], quiet=True)

    first = made(*script)
    with pytest.raises(Paused):
        first.input("Go", output=Answer)
    other = made(*script[2:])
    assert other.resume(first.record, approve=True, output=Answer) == Answer(text="Done.")
    assert other.state["answers"] == ["no JSON", None, '{"text": "Done."}']


# -- what handlers changed before the process died ---------------------------------------------------------


def killed_behind(record: Any, path: Path, *marks: str) -> Path:
    """A copy of a record up to the last line that has these marks."""
    lines = Path(str(record)).read_text().splitlines(keepends=True)
    last = max(number for number, line in enumerate(lines) if all(mark in line for mark in marks))
    path.write_text("".join(lines[: last + 1]))
    return path


def test_what_a_killed_handler_changed_is_void_though_it_changes_nothing_when_it_runs_again(folder: Path) -> None:
    wanted = True

    @after_tools
    def mark(agent: Agent) -> None:
        if wanted:
            agent.state["marked"] = True

    def made() -> Agent:
        return Agent("root", [pay], llm=Scripted(call("pay", what="it")), on_events=[mark], quiet=True)

    first = made()
    first.input("Go")
    path, wanted = killed_behind(first.record, folder / "root_1.yaml", '"state_delta"', '"marked"'), False
    for number in (2, 3):
        agent = made()
        assert agent.resume(path) == "Done." and agent.state["log"] == ["it"]
        assert "marked" not in agent.state
        path = killed_behind(path, folder / f"root_{number}.yaml", '"llm_call"')


def test_a_handler_that_is_killed_behind_its_question_runs_again_without_what_it_had_changed(folder: Path) -> None:
    @after_tools
    def before(agent: Agent) -> None:
        agent.state.setdefault("before", []).append("once")

    @after_tools
    def judge(agent: Agent) -> None:
        agent.state.setdefault("judged", []).append("once")
        agent.session["messages"].append({"role": "user", "content": "Judged."})
        agent.ask("Is it good?")

    def answer(messages: Any, tools: Any) -> Any:
        if messages[-1]["content"] == "Is it good?":
            return "Yes."
        return "Done." if messages[-1]["content"] == "Judged." else call("pay", what="it")

    def made() -> Agent:
        return Agent("root", [pay], llm=ScriptedLLM(*[answer] * 3), on_events=[before, judge], quiet=True)

    first = made()
    first.input("Go")
    path = killed_behind(first.record, folder / "root_1.yaml", '"llm_call"', "/ask:")
    for number in (2, 3):
        agent = made()
        assert agent.resume(path) == "Done." and agent.state["log"] == ["it"]
        assert (agent.state["before"], agent.state["judged"]) == (["once"], ["once"])
        messages = agent.session["messages"]
        assert [message["role"] for message in messages] == ["user", "assistant", "tool", "user", "assistant"]
        assert history_of(path).messages == messages
        path = killed_behind(path, folder / f"root_{number}.yaml", '"llm_call"')


# -- what the program changed before the turn ----------------------------------------------------------------


@pytest.mark.parametrize("how", ["paused", "paused, not recorded", "paused, another process", "killed"])
def test_what_the_program_changed_before_a_turn_is_there_when_the_turn_goes_on(how: str, folder: Path) -> None:
    @on_complete
    def more(result: str) -> Continue | None:
        return Continue("And now?") if result == "Done." else None

    def made(*script: Any) -> Agent:
        log = False if how == "paused, not recorded" else None
        events = [ask_a_person, more]
        begins: dict[str, Any] = {"state": {"log": ["given"]}, "output_key": "answer", "log": log}
        return Agent("root", [pay], llm=ScriptedLLM(*script), on_events=events, quiet=True, **begins)

    what = "it" if how == "killed" else "asked"
    agent = made("One.", call("pay", what=what), "Done.", "Really.")
    assert agent.input("First") == "One."
    agent.state["log"].append("mine")
    agent.session["messages"].append({"role": "user", "content": "By the way."})
    agent.session["messages"][0]["content"] = "The first"
    if how == "killed":
        assert agent.input("Go") == "Really."
        path = killed_behind(agent.record, folder / "root_1.yaml", '"tool_execution"')
        agent = made("Done.", "Really.")
        assert agent.resume(path) == "Really."
    else:
        with pytest.raises(Paused):
            agent.input("Go")
        path, agent = agent.record, made("Done.", "Really.") if how == "paused, another process" else agent
        assert agent.resume(path, approve=True) == "Really."
    contents = [message["content"] for message in agent.session["messages"]]
    ends = ["By the way.", "Go", None, f"paid {what}", "Done.", "And now?", "Really."]
    assert contents == ["The first", "One.", *ends]
    assert agent.state["log"] == ["given", "mine", what] and agent.state["answer"] == "Really."
    if path is not None:
        history = history_of(path)
        assert history.messages == agent.session["messages"] and history.state == agent.state
