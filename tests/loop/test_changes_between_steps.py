"""What is changed between the steps of a turn, by the consumer of its events or by handlers that are told, stays.

No step repeats such a change when the turn is resumed. So it is applied when the turn has come to the same place.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from connectagent import (
    Agent,
    LLMResponse,
    Pause,
    Paused,
    Retry,
    after_each_tool,
    around_tool,
    before_each_tool,
    before_tools,
    on_error,
    on_session,
    on_trace,
    tool,
    xray,
)
from connectagent.records.history import history_of, read_session
from connectagent.records.read import read_record
from connectagent.session.history import as_session
from connectagent.testing import ScriptedLLM, call, conversation_problems

TOLD = ("user_input", "llm_call", "tool_execution", "text", "paused")
CHANGES: dict[str, Callable[[Any, str], Any]] = {
    "state": lambda session, text: session["state"].setdefault("seen", []).append(text),
    "messages": lambda session, text: session["messages"].append({"role": "user", "content": f"seen {text}"}),
    "session": lambda session, text: session.update(seen=[*session.get("seen", ()), text]),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)
    return tmp_path


@tool(idempotent=True)
def work(n: int, agent: Agent) -> str:
    """Work."""
    agent.state["worked"] = [*agent.state.get("worked", []), n]
    return f"worked {n}"


class Model:
    """Two rounds of calls, then an answer, by what it reads."""

    model = "rounds"

    def __init__(self) -> None:
        self.problems: list[str] = []

    def complete(self, messages: list[Any], tools: Any = None) -> LLMResponse:
        self.problems += conversation_problems(messages)
        rounds = sum(bool(message.get("tool_calls")) for message in messages)
        calls = [[call("work", n=1)], [call("work", n=2), call("work", n=3)], []][rounds]
        return LLMResponse(None if calls else "Done.", calls)

    def stream(self, messages: list[Any], tools: Any = None, *, on_text: Callable[[str], None]) -> LLMResponse:
        response = self.complete(messages, tools)
        if response.content:
            on_text(response.content)
        return response


def seen(session: Any) -> list[str]:
    """What the changes left, in order."""
    texts = [str(message["content"]) for message in session["messages"]]
    return [
        *session["state"].get("seen", ()),
        *session.get("seen", ()),
        *[text.removeprefix("seen ") for text in texts if text.startswith("seen ")],
    ]


class Case:
    """Agents whose session is changed whenever something is told, and the texts of all changes."""

    def __init__(self, who: str, what: str, parallel: int = 1, waits: bool = False) -> None:
        self.who, self.change, self.parallel, self.waits = who, CHANGES[what], parallel, waits
        self.told: list[str] = []

    def agent(self) -> Agent:
        @on_trace
        def watch(agent: Agent, entry: Any) -> None:
            self.take(agent, entry)

        @before_each_tool
        def guard(tool_call: Any) -> None:
            if tool_call.arguments["n"] == 2:
                raise Pause("may it?")

        handlers = [*[watch] * (self.who == "handler"), *[guard] * self.waits]
        options: dict[str, Any] = {"parallel_tools": self.parallel, "on_events": handlers}
        return Agent("worker", [work], llm=Model(), quiet=True, stream=True, output_key="out", **options)

    def take(self, agent: Agent, event: Any) -> None:
        # When `resumed` is told, the session is as it was before the turn.
        if event["type"] in TOLD or (event["type"] == "resumed" and self.change is CHANGES["state"]):
            self.told.append(f"{len(self.told)} {event['type']}")
            self.change(agent.current_session, self.told[-1])

    def run(self, agent: Agent, events: Iterator[Any]) -> None:
        for event in events:
            if self.who == "consumer":
                self.take(agent, event)


def written(lines: list[str]) -> list[str]:
    """The changes that lines of a record have, but for those in a model call whose end they do not have."""
    entries = [json.loads(line[4:]) for line in lines if line.startswith("  - ")]
    ended = [entry.get("id") for entry in entries if entry["type"] == "llm_call"]
    found: list[str] = []
    for entry in entries:
        by = entry.get("by") or {}
        ours = by.get("plugin") == "(program)" or by.get("hook") == "on_trace"
        if ours and ("/model" not in entry["at"] or entry["at"] in ended):
            told = entry.get("delta", {}).get("seen") or [entry.get("message", {}).get("content", "")]
            found.append(told[-1].removeprefix("seen "))
    return found


def states_in(path: Path) -> tuple[Any, Any]:
    own = read_session(path).own
    session = as_session(own.history, own.trace)
    return session["messages"], session["state"]


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize(("who", "parallel"), [("consumer", 1), ("consumer", 3), ("handler", 1), ("handler", 3)])
def test_a_turn_that_was_killed_anywhere_keeps_what_was_changed_between_its_steps(
    who: str, parallel: int, what: str, folder: Path
) -> None:
    case = Case(who, what, parallel)
    agent = case.agent()
    case.run(agent, agent.stream("Go"))
    everything = case.told[:]
    assert seen(agent.session) == everything and len(everything) >= 7
    lines = Path(str(agent.record)).read_text("utf-8").splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines) if '"user_input"' in line)
    end = max(number for number, line in enumerate(lines) if line.startswith("  - "))
    for cut in range(first + 1, end + 2):
        path = folder / f"worker_{cut}.yaml"
        path.write_text("".join(lines[:cut]), "utf-8")
        other = Case("nobody", what, parallel).agent()
        assert other.resume(path) == "Done." and other.llm.problems == []  # type: ignore[attr-defined]
        assert seen(other.session) == written(lines[first:cut]), cut
        assert other.state["worked"] == [1, 2, 3] and other.state["out"] == "Done."
        again = Case("nobody", what).agent()
        again.resume(path)
        assert seen(again.session) == seen(other.session), cut
    assert seen(other.session) == everything
    assert other.session["messages"] == agent.session["messages"] and other.state == agent.state


@pytest.mark.parametrize("same", [True, False], ids=["same process", "other process"])
@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize(("who", "parallel"), [("consumer", 1), ("consumer", 3), ("handler", 1), ("handler", 3)])
def test_a_turn_that_waits_keeps_what_was_changed_between_its_steps(
    who: str, parallel: int, what: str, same: bool, folder: Path
) -> None:
    case = Case(who, what, parallel, waits=True)
    agent = case.agent()
    with pytest.raises(Paused) as paused:
        case.run(agent, agent.stream("Go"))
    before = case.told[:]
    assert before[-1].endswith("paused")
    agent = agent if same else case.agent()
    case.run(agent, agent.resume_stream(paused.value.record, approve=True))
    assert sorted(seen(agent.session)) == sorted(case.told) and len(case.told) > len(before) + 2
    assert agent.state["worked"][0] == 1 and sorted(agent.state["worked"]) == [1, 2, 3]
    record = Path(str(agent.record))
    messages, state = states_in(record)
    assert messages == agent.session["messages"] and state == agent.state
    assert [turn["status"] for turn in read_record(record)["turns"]] == ["paused", "answered"]
    later = Case("nobody", what).agent()
    later.resume(record)
    assert later.session["messages"] == agent.session["messages"] and later.state == agent.state


@pytest.mark.parametrize("who", ["consumer", "handler"])
def test_what_is_changed_when_a_turn_is_resumed_stays_though_handlers_of_its_session_run(who: str) -> None:
    """They run at the beginning of the turn, where it is not yet as it had stopped."""

    def note(text: str, agent: Agent) -> str:
        """Note it."""
        if text == "wait" and not xray.approved:
            raise Pause("may I?")
        before, agent.state["note"] = agent.state.get("note"), text
        return f"was {before}"

    @on_session
    def look(agent: Agent, reason: str) -> None:
        agent.state["sessions"] = [*agent.state.get("sessions", ()), reason]

    @on_trace
    def edit(agent: Agent, entry: Any) -> None:
        if who == "handler" and entry["type"] == "resumed" and agent.current_session["turn"] == 0:
            agent.state["note"] = "edited"

    def agent() -> Agent:
        calls = [call("note", text="first"), call("note", text="wait"), "Done."]
        return Agent("noter", [note], llm=ScriptedLLM(*calls), quiet=True, on_events=[look, edit])

    with pytest.raises(Paused) as paused:
        agent().input("Go")
    other = agent()
    other.llm.responses = ["Done."]  # type: ignore[attr-defined]
    for event in other.resume_stream(paused.value.record, approve=True):
        if who == "consumer" and event["type"] == "resumed":
            other.state["note"] = "edited"
    results = [message["content"] for message in other.session["messages"] if message["role"] == "tool"]
    assert results == ["was None", "was edited"] and other.state["sessions"] == ["begun", "resumed"]
    later = agent()
    later.resume(other.record)
    assert later.state == other.state | {"sessions": ["begun", "resumed", "resumed"]}


def boss() -> Agent:
    child = Agent("child", [work], llm=Model(), quiet=True)

    class Asking(Model):
        def complete(self, messages: list[Any], tools: Any = None) -> LLMResponse:
            self.problems += conversation_problems(messages)
            asked = any(message.get("tool_calls") for message in messages)
            return LLMResponse("Done." if asked else None, [] if asked else [call("child", prompt="Do it.")])

    return Agent("boss", [child], llm=Asking(), quiet=True)


def test_what_the_consumer_changes_while_an_inner_agent_works_is_the_programs_and_stays(folder: Path) -> None:
    agent, told = boss(), list[str]()
    for event in agent.stream("Go"):
        if event.get("author") == "child" and event["type"] in TOLD:
            told.append(f"{len(told)} {event['type']}")
            CHANGES["state"](agent.session, told[-1])
            CHANGES["messages"](agent.session, told[-1])
    assert seen(agent.session) == [*told, *told] and len(told) >= 7
    lines = Path(str(agent.record)).read_text("utf-8").splitlines(keepends=True)
    end = max(number for number, line in enumerate(lines) if line.startswith("  - "))
    changes = [json.loads(line[4:]) for line in lines[: end + 1] if '"index"' in line or '"state_delta"' in line]
    assert {entry["by"].get("plugin") for entry in changes if entry.get("branch") == "boss"} == {"(program)"}
    for cut in [number for number, line in enumerate(lines) if '"(program)"' in line and number <= end]:
        path = folder / f"boss_{cut}.yaml"
        path.write_text("".join(lines[: cut + 1]), "utf-8")
        other = boss()
        assert other.resume(path) == "Done." and other.llm.problems == []  # type: ignore[attr-defined]
        assert sorted(seen(other.session)) == sorted(written(lines[: cut + 1])), cut
        assert other.state["worked"] == [1, 2, 3]


@pytest.mark.parametrize("edited", [False, True], ids=["as it was", "edited"])
@pytest.mark.parametrize("number", [0, 1], ids=["settled", "not settled"])
def test_a_result_that_a_handler_had_put_there_is_replaced_again_by_the_tools_own(number: int, edited: bool) -> None:
    fails = [True]

    @before_tools
    def put(agent: Agent) -> None:
        call_id = agent.session["messages"][-1]["tool_calls"][number]["id"]
        agent.session["messages"].append({"role": "tool", "tool_call_id": call_id, "content": "mine"})

    @after_each_tool
    def fail() -> None:
        if fails:
            raise RuntimeError(fails.pop())

    script = [call("work", n=1), call("work", n=2)]
    options: dict[str, Any] = {"plugins": [put, fail], "parallel_tools": 2, "quiet": True}
    agent = Agent("a", [work], llm=ScriptedLLM(script, "Done."), **options)
    with pytest.raises(RuntimeError):
        for event in agent.stream("Go"):
            if event["type"] == "error" and edited:
                agent.session["messages"][2 + number]["content"] += ", edited"
    agent.resume(agent.record)
    texts = ["Go", "worked 1", "worked 2", "Done."]
    texts[1 + number] += ", edited" if edited else ""
    assert [one["content"] for one in agent.session["messages"] if one["content"]] == texts
    assert history_of(Path(str(agent.record))).messages == agent.session["messages"]


class Once:
    """A model that asks for calls once, then answers: by what it reads, so in any process."""

    model = "once"

    def __init__(self, *calls: Any) -> None:
        self.calls = list(calls)

    def complete(self, messages: list[Any], tools: Any = None) -> LLMResponse:
        asked = any(message.get("tool_calls") for message in messages)
        return LLMResponse("Done." if asked else None, [] if asked else self.calls)


class Payments:
    """Two calls of a tool that asks an agent for each, with handlers around them that change the session.

    Attributes:
        fails: how the first call fails in a handler, once: `before` the tool, or `behind` it; "" for not at all.
        paid: the calls that ran.
    """

    def __init__(self, parallel: int, fails: str = "") -> None:
        self.parallel, self.fails = parallel, fails
        self.paid: list[int] = []
        self.begun = threading.Event()  # the second call has

    def fail(self, where: str, tool_call: Any) -> None:
        if (tool_call.name, tool_call.arguments, self.fails) == ("pay", {"n": 1}, where):
            self.fails = ""
            raise RuntimeError(where)

    def change(self, agent: Agent, tool_call: Any, half: str) -> None:
        if tool_call.name == "pay":  # not that of an agent below
            n = tool_call.arguments["n"]
            agent.session["messages"].append({"role": "user", "content": f"{half} {n}"})
            agent.state[half] = [*agent.state.get(half, []), n]

    def agent(self) -> Agent:
        @around_tool
        def change(agent: Agent, tool_call: Any) -> Any:
            self.change(agent, tool_call, "before")
            result = yield
            self.change(agent, tool_call, "behind")
            return result

        @around_tool
        def fail(tool_call: Any) -> Any:
            self.fail("before", tool_call)
            result = yield
            self.fail("behind", tool_call)
            return result

        def note(agent: Agent, n: int) -> None:
            """Note."""
            agent.state["noted"] = [*agent.state.get("noted", []), n]

        def child(n: int) -> Agent:
            return Agent(f"child{n}", [note], llm=Once(call("note", n=n)), quiet=True)

        children = child(1), child(2)

        def pay(n: int) -> str:
            """Pay."""
            if n == 2:
                self.begun.set()
            elif self.parallel > 1:
                assert self.begun.wait(30)
            self.paid.append(n)
            return str(children[n - 1].input("Note it"))

        model = Once(call("pay", n=1), call("pay", n=2))
        options: dict[str, Any] = {"parallel_tools": self.parallel, "quiet": True}
        return Agent("a", [pay, *children], llm=model, plugins=[change, fail], **options)


def same_as_record(agent: Agent) -> None:
    history = history_of(Path(str(agent.record)))
    assert history.messages == agent.session["messages"]
    assert history.state == agent.state


@pytest.mark.parametrize(
    ("fails", "parallel", "before"), [("before", 1, []), ("before", 2, [2]), ("behind", 1, [1]), ("behind", 2, [1, 2])]
)
def test_what_was_changed_around_a_call_in_doubt_stays_as_the_record_has_it(
    fails: str, parallel: int, before: list[int]
) -> None:
    payments = Payments(parallel, fails)
    agent = payments.agent()
    with pytest.raises(RuntimeError):
        agent.input("Go")
    assert sorted(payments.paid) == before  # each once, whatever the threads do
    agent.resume(agent.record)
    same_as_record(agent)
    assert sorted(payments.paid) == [*([1] if 1 in before else []), 2]  # the first is in doubt
    assert sorted(agent.state["noted"]) == sorted(payments.paid)
    assert sorted(agent.state["before"]) == [1, 2] and agent.state["behind"] == [2]
    texts = [str(message["content"]) for message in agent.session["messages"]]
    assert sorted(text for text in texts if text[:2] == "be") == ["before 1", "before 2", "behind 2"]


@pytest.mark.parametrize("parallel", [1, 2])
def test_wherever_a_call_was_killed_what_was_changed_around_it_stays_as_the_record_has_it(
    parallel: int, folder: Path
) -> None:
    whole = Payments(parallel).agent()
    whole.input("Go")
    whole.close()
    lines = Path(str(whole.record)).read_text(encoding="utf-8").splitlines()
    begins = [number for number, line in enumerate(lines) if '"began", "id": "T1/1/c' in line and "/turn:" not in line]
    ends = [number for number, line in enumerate(lines) if '"tool_execution"' in line and '"id": "T1/1/c' in line]
    assert len(begins) == 2
    doubts = set()
    for number in range(begins[0], ends[-1] + 1):
        record = folder / f"cut{number}.yaml"
        record.write_text("\n".join(lines[: number + 1]) + "\n", encoding="utf-8")
        payments = Payments(parallel)
        payments.begun.set()
        agent = payments.agent()
        agent.resume(record)
        same_as_record(agent)
        results = [str(one["content"]) for one in agent.session["messages"] if one["role"] == "tool"]
        assert len(results) == 2
        doubts.add(tuple("not run again" in result for result in results))
        agent.close()
    assert doubts >= {(True, False), (False, True) if parallel == 1 else (True, True)}


@pytest.mark.parametrize("attempt", [1, 2])
def test_what_stood_in_the_place_of_a_result_is_back_when_the_turn_goes_on(attempt: int) -> None:
    outcomes = [KeyboardInterrupt(), "worked"] if attempt == 1 else [ValueError("no"), KeyboardInterrupt(), "worked"]
    breaks = [False] * attempt + [True, False]

    @before_tools
    def stand_in(agent: Agent, tool_calls: list[Any]) -> None:
        mine = {"role": "tool", "tool_call_id": tool_calls[0].id, "content": "mine"}
        agent.session["messages"].append(mine)

    @around_tool
    def fail() -> Any:
        if breaks.pop(0):
            raise OSError("no disk")
        return (yield)

    @on_error
    def again(tool_call: Any) -> Any:
        return Retry() if tool_call is not None else None

    @tool(idempotent=True)
    def work() -> str:
        """Work."""
        if isinstance(outcome := outcomes.pop(0), BaseException):
            raise outcome
        return outcome

    plugins = [stand_in, fail, again]
    agent = Agent("a", [work], llm=ScriptedLLM(call("work"), "Done."), plugins=plugins, quiet=True)
    texts = []
    for error in (KeyboardInterrupt, OSError):
        with pytest.raises(error):
            agent.input("Go") if error is KeyboardInterrupt else agent.resume(agent.record)
        same_as_record(agent)
        texts.append(agent.session["messages"][2]["content"])
    assert "interrupted" in texts[0] and texts[1] == ("mine" if attempt == 1 else "Error: ValueError: no")
    assert agent.resume(agent.record) == "Done."
    same_as_record(agent)
    assert agent.session["messages"][2]["content"] == "worked"
