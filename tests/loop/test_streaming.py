"""A turn as an iterator: what is told, when, and how a turn ends that nobody listens to any more."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from scripted_agents import CALL, agent_with, contents, entries, is_by, session_of
from wire_server import WireServer, chat_stream, finish

from connectagent import (
    Agent,
    Continue,
    HookResultError,
    Parallel,
    ProviderError,
    Retry,
    after_tools,
    after_user_input,
    before_each_tool,
    before_llm,
    on_complete,
    on_error,
    on_text,
    on_trace,
)
from connectagent.models.openai import OpenAILLM
from connectagent.records.read import read_record
from connectagent.testing import HookRecorder, ScriptedLLM, call
from connectagent.testing import conversation_problems as problems

SCRIPT = (CALL, "All is done.")


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    gc.collect()
    assert set(threading.enumerate()) <= before


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [str(event["type"]) for event in events]


# -- what is told --------------------------------------------------------------------------------


def test_each_entry_each_text_and_the_result_are_told_in_order() -> None:
    agent = agent_with(script=SCRIPT)
    events = list(agent.stream("Hi"))
    assert kinds(events) == ["user_input", "llm_call", "tool_execution", *["text"] * 3, "llm_call", "result"]
    assert "".join(event["text"] for event in events if event["type"] == "text") == "All is done."
    assert events[-1] == {"type": "result", "result": "All is done.", "outcome": "answered"}
    told = [event for event in events if event["type"] not in ("text", "result")]
    assert all(one is other for one, other in zip(told, session_of(agent)["trace"], strict=True))
    assert agent.streaming is False


def test_the_hooks_fire_as_in_input() -> None:
    recorders = HookRecorder(), HookRecorder()
    agent_with(recorders[0], script=SCRIPT, stream=True).input("Hi")
    list(agent_with(recorders[1], script=SCRIPT).stream("Hi"))
    assert recorders[0].names == recorders[1].names


def test_a_turn_that_is_streamed_leaves_no_handlers_behind() -> None:
    agent = agent_with(HookRecorder(), script=(*SCRIPT, OSError("down")))
    before = agent.hooks.loaded
    list(agent.stream("Hi"))
    next(agent.stream("Hi"))
    with pytest.raises(OSError):
        list(agent.stream("Hi"))
    assert agent.hooks.loaded == before and agent.streaming is False


def test_the_stream_has_each_entry_of_agents_that_work_at_the_same_time() -> None:
    beside = [Agent(name, llm=ScriptedLLM(f"I am {name}."), log=False, quiet=True) for name in "xy"]
    root = Parallel("root", beside, log=False, quiet=True)
    told = [event for event in root.stream("Hi") if event["type"] not in ("text", "result")]
    for agent in (root, *beside):
        own = [event for event in told if event["author"] == agent.name]
        assert all(one is other for one, other in zip(own, session_of(agent)["trace"], strict=True))
    assert kinds(told).count("agent_turn") == 2


def test_a_model_that_cannot_stream_tells_no_text() -> None:
    class Plain:
        model = "plain"

        def complete(self, messages: Any, tools: Any = None) -> str:
            return "Whole."

    assert kinds(list(Agent("a", llm=Plain(), log=False, quiet=True).stream("Hi"))) == [
        "user_input",
        "llm_call",
        "result",
    ]  # type: ignore[arg-type]


def test_entries_of_handlers_that_answer_the_trace_come_behind_what_they_answer() -> None:
    @on_trace
    def count(agent: Agent) -> None:
        session_of(agent)["state"]["n"] = session_of(agent)["state"].get("n", 0) + 1

    agent = agent_with(count, script=("Hi",))
    told = [event for event in agent.stream("Hi") if event["type"] not in ("text", "result")]
    assert kinds(told) == ["user_input", "state_delta", "llm_call", "state_delta"] == kinds(session_of(agent)["trace"])


def test_the_turn_waits_for_the_consumer_and_the_consumer_for_the_turn() -> None:
    order: list[str] = []

    @on_text
    def text(text: str) -> None:
        order.append(f"handler {text}")

    agent = agent_with(text, script=("a b c",))
    events = agent.stream("Hi")
    assert order == [] and agent.current_session is None  # it begins with the first `next()`
    for event in events:
        if event["type"] == "text":
            order.append(f"consumer {event['text']}")
    assert order == [f"{who} {text}" for text in ("a ", "b ", "c") for who in ("consumer", "handler")]


def test_the_turn_sees_the_context_of_the_consumer() -> None:
    who: ContextVar[str] = ContextVar("who")
    seen = []

    @before_llm
    def look() -> None:
        seen.append(who.get())

    events = agent_with(look, script=("a",)).stream("Hi")
    who.set("me")
    list(events)
    assert seen == ["me"]


def test_entries_that_a_tool_causes_in_threads_of_its_own_are_told() -> None:
    def work(agent: Agent) -> str:
        """Work."""
        threads = [threading.Thread(target=agent.execute_tool, args=("double", {"x": x})) for x in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return "ok"

    agent = agent_with(script=(("work", {}), "Done."))
    agent.add_tool(work)
    events = list(agent.stream("Hi"))
    assert sorted(event["result"] for event in events if event["type"] == "tool_execution") == [
        "0",
        "2",
        "4",
        "6",
        "ok",
    ]


# -- what goes wrong -----------------------------------------------------------------------------


def test_what_the_turn_raised_is_raised_in_the_consumer_with_its_note_and_its_traceback() -> None:
    @after_tools
    def broken() -> None:
        raise KeyError("mine")

    agent = agent_with(broken)
    events = agent.stream("Hi")
    with pytest.raises(KeyError, match="mine") as caught:
        list(events)
    assert "after_tools handler" in caught.value.__notes__[0] and caught.traceback[-1].name == "broken"
    assert list(events) == []
    agent = agent_with(script=(ProviderError("busy", kind="overloaded", provider="x"), "Done."))
    with pytest.raises(ProviderError, match="busy"):
        list(agent.stream("Hi"))
    assert list(agent.stream("Hi"))[-1]["result"] == "Done."


@pytest.mark.parametrize("prompt", [5, []])
def test_a_bad_prompt_is_told_by_the_first_next(prompt: Any) -> None:
    with pytest.raises(TypeError, match="prompt"):
        next(agent_with().stream(prompt))


def test_an_agent_takes_one_turn_at_a_time_however_it_is_asked() -> None:
    agent = agent_with(script=SCRIPT)
    seen = []
    for event in agent.stream("Hi"):
        if event["type"] == "result":  # the turn is over
            break
        with pytest.raises(RuntimeError, match="is in a turn"):
            agent.input("Inner")
        with pytest.raises(RuntimeError, match="is in a turn"):
            next(agent.stream("Inner"))
        seen.append(event["type"])
    assert seen.count("text") == 3 and contents(agent) == ["Hi", None, "4", "All is done."]


def test_what_the_consumer_changes_is_the_programs_and_not_the_next_handlers() -> None:
    @on_trace
    def nothing() -> None:
        """Watch."""

    agent = agent_with(nothing, script=SCRIPT)
    for event in agent.stream("Hi"):
        if event["type"] == "result":
            break
        session_of(agent)["state"]["seen"] = event["type"]
        agent.current_session = {}
        if event["type"] == "tool_execution":
            agent.execute_tool("double", {"x": 8})
    deltas = [(entry["by"]["plugin"], entry["delta"]["seen"]) for entry in entries(agent, "state_delta")]
    assert deltas == [("(program)", seen) for seen in ("user_input", "llm_call", "tool_execution", "text", "llm_call")]
    assert [entry["result"] for entry in entries(agent, "tool_execution")] == ["4", "16"]


def test_a_consumer_that_spoils_the_session_is_told_and_the_session_is_as_before() -> None:
    agent = agent_with(script=(*SCRIPT, "Again."))
    with pytest.raises(HookResultError, match=r"\(program\)"):
        for event in agent.stream("Hi"):
            if event["type"] == "tool_execution":
                session_of(agent)["messages"].append("junk")
    assert contents(agent) == ["Hi", None, "4"] and agent.input("Hi") == "All is done."


def test_the_consumer_may_end_the_turn_with_a_result() -> None:
    agent = agent_with(script=([CALL, CALL],))
    events = []
    for event in agent.stream("Hi"):
        events.append(event)
        if event["type"] == "llm_call":
            agent.end_turn("Enough.")
    assert events[-1] == {"type": "result", "result": "Enough.", "outcome": "ended"}
    assert entries(agent, "message")[-1]["by"]["plugin"] == "(program)"


# -- leaving early -------------------------------------------------------------------------------


def test_who_leaves_the_loop_ends_the_turn_before_the_next_call_and_the_model_is_told_later() -> None:
    completed = []

    @on_complete
    def complete(outcome: str) -> None:
        completed.append(outcome)

    agent = agent_with(complete, script=([CALL, ("note", {})], "Next."))
    for event in agent.stream("Hi"):
        if event["type"] == "tool_execution":
            break
    assert completed == ["ended"] and session_of(agent)["outcome"] == "ended"
    assert contents(agent) == ["Hi", None, "4", "not run: the turn was ended"]
    assert [entry["status"] for entry in entries(agent, "tool_execution")] == ["success", "skipped"]
    assert agent.input("Go on.") == "Next." and isinstance(agent.llm, ScriptedLLM)
    told = agent.llm.requests[-1].messages
    assert [message["content"] for message in told] == ["Hi", None, "4", "not run: the turn was ended", "Go on."]
    assert problems(told) == []


def test_a_consumer_that_raises_and_one_that_closes_end_the_turn_too() -> None:
    agent = agent_with(script=(CALL, CALL, "Done."))
    with pytest.raises(ZeroDivisionError):
        for event in agent.stream("Hi"):
            if event["type"] == "llm_call":
                _ = 1 / 0
    assert session_of(agent)["outcome"] == "ended" and contents(agent)[-1] == "not run: the turn was ended"
    with contextlib.closing(agent.stream("Again")) as events:
        assert next(events)["type"] == "user_input"
    assert session_of(agent)["outcome"] == "ended" and list(events) == []
    assert agent.input("Hi") == "4" or contents(agent)[-1] == "Done."


def test_an_iterator_in_a_circle_that_is_collected_ends_its_turn() -> None:
    class Holder:
        events: Any
        own: Any

    agent = agent_with(script=SCRIPT)
    holder = Holder()
    holder.own, holder.events = holder, agent.stream("Hi")
    next(holder.events)
    del holder
    gc.collect()
    assert session_of(agent)["outcome"] == "ended" and agent.input("Hi") == "All is done."


def test_an_iterator_that_was_never_asked_runs_nothing() -> None:
    agent = agent_with()
    agent.stream("Hi").close()
    assert agent.current_session is None


def test_errors_on_the_way_out_of_a_turn_that_was_left_stay_in_the_trace() -> None:
    @on_complete
    def broken() -> None:
        raise ValueError("mine")

    agent = agent_with(broken, script=SCRIPT)
    for _ in agent.stream("Hi"):
        break
    assert is_by(entries(agent, "error")[0], broken, "on_complete")
    assert agent.hooks.handlers("on_text") == ()


def test_a_handler_that_always_goes_on_goes_on_to_the_limit_only() -> None:
    @on_complete
    def more() -> Continue:
        return Continue("More.")

    agent = agent_with(more, script=("a", "b", "c", "d"), max_iterations=3)
    for _ in agent.stream("Hi"):
        break
    assert len(agent.llm.requests) <= 3 and problems(session_of(agent)["messages"]) == []  # type: ignore[attr-defined]


def test_two_hundred_turns_that_are_left_anywhere_leave_valid_sessions_and_closed_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path))
    numbers = random.Random(7)

    @after_user_input
    def change(agent: Agent) -> None:
        session_of(agent)["state"]["n"] = session_of(agent)["turn"]

    @before_each_tool
    def speak(agent: Agent) -> None:
        session_of(agent)["messages"].append({"role": "user", "content": "Mind this."})

    def double(x: int) -> int:
        """Double."""
        return 2 * x

    agent = Agent("a", [double], llm=ScriptedLLM(), quiet=True, plugins=[change, speak])
    for number in range(200):
        agent.llm = ScriptedLLM([CALL, CALL], [("double", {}), ("nobody", {}), CALL], "It is done now.")
        left = numbers.randrange(1, 24)
        for count, _ in enumerate(agent.stream("Hi"), 1):
            if count == left:
                break
        assert problems(session_of(agent)["messages"]) == [], (number, left)
        assert not agent.hooks.handlers("on_text")
        if number % 10 == 9:  # long conversations would only slow this down
            agent.reset_conversation()
    turns = [turn for path in tmp_path.glob("evals/*.yaml") for turn in read_record(path)["turns"]]
    statuses = [turn["status"] for turn in turns]
    assert len(statuses) == 200 and set(statuses) == {"answered", "ended"}


# -- Ctrl-C, and the end of the program ----------------------------------------------------------


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_while_waiting_interrupts_the_turn_at_its_next_step() -> None:
    completed = []

    @on_complete
    def complete() -> None:
        completed.append(1)

    def press() -> str:
        """Press Ctrl-C."""
        os.kill(os.getpid(), signal.SIGINT)
        return "pressed"

    agent = agent_with(complete, script=([("press", {}), CALL], "Next."))
    agent.add_tool(press)
    with pytest.raises(KeyboardInterrupt):
        list(agent.stream("Hi"))
    assert completed == [] and entries(agent, "error")[-1]["error_type"] == "KeyboardInterrupt"
    assert contents(agent) == ["Hi", None, "pressed", "not run: KeyboardInterrupt ended the turn"]
    assert agent.input("Go on.") == "Next." and problems(session_of(agent)["messages"]) == []


SCRIPTS = {
    "ends": "next(events)",
    "raises": "next(events); 1 / 0",
    "exits": "next(events); sys.exit(3)",
    "hangs": "next(events); next(events); next(events)",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_program_that_ends_within_a_turn_ends_the_turn(name: str, tmp_path: Path) -> None:
    program = (
        "import sys\nfrom connectagent import Agent\nfrom connectagent.testing import ScriptedLLM, call\n"
        "def wait() -> str:\n    '''Wait.'''\n    return 'ok'\n"
        "llm = ScriptedLLM(call('wait'), 'Done.')\n"
        f"events = Agent('a', [wait], llm=llm, quiet=True).stream('Hi')\n{SCRIPTS[name]}\n"
    )
    environment = {**os.environ, "CONNECTAGENT_DIR": str(tmp_path), "PYTHONWARNINGS": "error"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == {"raises": 1, "exits": 3}.get(name, 0), done.stderr
    (path,) = tmp_path.glob("evals/*.yaml")
    assert [turn["status"] for turn in read_record(path)["turns"]] == ["ended"]


def test_leaving_the_loop_ends_the_agents_inside_too() -> None:
    def look(place: str) -> str:
        """Look."""
        return place

    def made(name: str) -> Agent:
        return Agent(name, [look], llm=ScriptedLLM(*[call("look", place=name)] * 6, "Done."), quiet=True)

    agents = [made(name) for name in ("left", "right", "beside")]
    left, right, beside = agents
    boss = Agent("boss", run=lambda prompt: left.input(prompt) + right.input(prompt), sub_agents=[left, right])
    team = Parallel("team", [boss, beside], quiet=True, log=False)
    with contextlib.closing(team.stream("Go")) as events:
        next(event for event in events if event["type"] == "tool_execution")
    asked = [len(one.llm.requests) for one in agents if isinstance(one.llm, ScriptedLLM)]
    assert max(asked) <= 2 and asked[1] == 0, asked  # not seven: each ends before its next call
    assert team.session["outcome"] == "ended" and team.turn is None
    assert team.input("Go on") and left.session["outcome"] == "answered"


def test_who_shows_the_text_is_told_that_another_attempt_begins_it_anew() -> None:
    told: list[tuple[str, int]] = []

    @on_text
    def show(text: str, attempt: int) -> None:
        told.append((text, attempt))

    @on_error
    def again(error: Exception) -> Retry:
        return Retry()

    cut = chat_stream({"content": "The cap"}, done=False)
    whole = chat_stream({"content": "The "}, {"content": "sea."}, finish())
    with WireServer(cut, whole) as server:
        llm = OpenAILLM("gpt-4o", api_key="k", base_url=server.openai_url)
        agent = Agent("a", llm=llm, on_events=[show, again], log=False, quiet=True)
        shown = [dict(event) for event in agent.stream("go")]
    assert told == [("The cap", 1), ("The ", 2), ("sea.", 2)]
    pieces = [(event["text"], event.get("attempt")) for event in shown if event["type"] == "text"]
    assert pieces == [("The cap", None), ("The ", 2), ("sea.", 2)]
    assert shown[-1]["result"] == "The sea."
