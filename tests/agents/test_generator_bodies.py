"""`Agent(run=generator)`: each text that it yields is told as a model's text is, and it is closed on every path."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from connectagent import (
    Agent,
    Loop,
    Parallel,
    Pause,
    Paused,
    Sequential,
    before_each_tool,
    on_text,
    on_trace,
)
from connectagent.replay.replaying import replay
from connectagent.testing import ScriptedLLM, call

Step = Callable[[Agent], Any]
KINDS = ["generator", "async generator"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)
    return tmp_path


class Writer:
    """Makes agents that write in pieces, and notes what becomes of their functions.

    Args:
        kind: `"generator"` or `"async generator"`.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.closed: list[str] = []  # the names of the agents whose function has ended
        self.open: list[str] = []

    def agent(self, name: str, *steps: str | Step | Any, **options: Any) -> Agent:
        """An agent whose function yields the texts among the steps, and calls the others."""

        def whole(agent: Agent) -> Iterator[Any]:
            self.open.append(name)
            try:
                for step in steps:
                    if callable(step):
                        step(agent)
                    else:
                        yield step
            finally:
                self.closed.append(name)

        async def whole_async(agent: Agent) -> AsyncIterator[Any]:
            self.open.append(name)
            try:
                for step in steps:
                    if callable(step):
                        step(agent)
                    else:
                        await asyncio.sleep(0)
                        yield step
            finally:
                await asyncio.sleep(0)
                self.closed.append(name)

        run: Any = whole if self.kind == "generator" else whole_async
        return Agent(name, run=run, quiet=True, **options)

    @property
    def all_closed(self) -> bool:
        return sorted(self.closed) == sorted(self.open) != []


@pytest.fixture(params=KINDS)
def writer(request: pytest.FixtureRequest) -> Writer:
    return Writer(request.param)


class Heard:
    """A plugin that notes each text, with the agent's name."""

    def __init__(self) -> None:
        self.texts: list[tuple[str, str]] = []

    @on_text
    def hear(self, agent: Agent, text: str) -> None:
        self.texts.append((agent.name, text))


def texts(events: Any) -> list[tuple[Any, str]]:
    return [(event.get("branch"), event["text"]) for event in events if event["type"] == "text"]


# -- what is told, and the result ------------------------------------------------------------------------


def test_the_result_is_the_texts_and_handlers_and_streams_get_each(writer: Writer) -> None:
    heard = Heard()
    agent = writer.agent("w", "one ", "two", "", " three", stream=True, plugins=[heard])
    assert agent.input("Go") == "one two three"
    assert heard.texts == [("w", "one "), ("w", "two"), ("w", " three")]
    events = list(agent.stream("Go"))
    assert texts(events) == [(None, "one "), (None, "two"), (None, " three")]
    assert (events[-1]["result"], events[-1]["outcome"]) == ("one two three", "answered")
    assert agent.session["messages"][-1] == {"role": "assistant", "content": "one two three"}
    assert writer.all_closed


def test_without_a_listener_no_text_is_told(writer: Writer) -> None:
    heard = Heard()
    assert writer.agent("w", "one ", "two", plugins=[heard]).input("Go") == "one two"
    assert heard.texts == []


def test_the_value_that_a_generator_returns_is_the_result() -> None:
    def run(prompt: str) -> Iterator[str]:
        yield "thinking"
        return f"the result of {prompt}"

    def nothing() -> Iterator[str]:
        return
        yield

    def empty() -> Iterator[str]:
        yield "thinking"
        return ""

    def odd() -> Any:
        yield "thinking"
        return 5

    agent = Agent("w", run=run, quiet=True)
    events = list(agent.stream("Go"))
    assert (texts(events), events[-1]["result"]) == ([(None, "thinking")], "the result of Go")
    assert Agent("n", run=nothing, quiet=True).input("Go") == ""
    assert Agent("e", run=empty, quiet=True).input("Go") == ""
    with pytest.raises(TypeError, match=r"returned int 5; it returns the result as a str, or None"):
        Agent("o", run=odd, quiet=True).input("Go")


@pytest.mark.parametrize("odd", [5, None, b"bytes", ["text"], {"text": "x"}], ids=lambda odd: type(odd).__name__)
def test_what_is_no_text_is_an_error_that_says_what_is_accepted(writer: Writer, odd: Any) -> None:
    agent = writer.agent("w", "one", odd, "two")
    with pytest.raises(TypeError) as error:
        agent.input("Go")
    assert "the function that agent 'w' runs (" in str(error.value)
    assert f"yielded {type(odd).__name__} {odd!r}; it yields the pieces of its result, each a str" in str(error.value)
    assert writer.all_closed
    assert "error" in [entry["type"] for entry in agent.session["trace"]]


def test_a_text_is_told_before_the_next_one_is_made(writer: Writer) -> None:
    order: list[str] = []
    agent = writer.agent("w", "one", lambda agent: order.append("made two"), "two")
    for event in agent.stream("Go"):
        if event["type"] == "text":
            order.append(f"told {event['text']}")
    assert order == ["told one", "made two", "told two"]


# -- in a tree -------------------------------------------------------------------------------------------


def trees(writer: Writer) -> dict[str, Callable[[], Agent]]:
    """By shape: an agent in which `a` and `b` write."""

    def both() -> list[Agent]:
        return [writer.agent("a", "a1", "a2"), writer.agent("b", "b1", "b2")]

    def in_rounds() -> Agent:
        llm = ScriptedLLM([call("a", prompt="x"), call("b", prompt="y")], "Done.")
        return Agent("root", both(), llm=llm, quiet=True)

    def handed_over() -> Agent:
        first, second = both()
        llm = ScriptedLLM([call("a", prompt="x")], call("transfer_to_agent", agent_name="b"))
        return Agent("root", [first], llm=llm, sub_agents=[second], quiet=True)

    def by_function() -> Agent:
        def run(agent: Agent) -> Iterator[str]:
            for child in agent.sub_agents:
                yield child.input("Go")

        return Agent("root", run=run, sub_agents=both(), quiet=True)

    return {
        "Sequential": lambda: Sequential("root", both(), quiet=True),
        "Parallel": lambda: Parallel("root", both(), quiet=True),
        "Loop": lambda: Loop("root", both(), max_rounds=1, quiet=True),
        "tools of one round": in_rounds,
        "handoff": handed_over,
        "a generator that asks": by_function,
    }


RESULTS = {
    "Sequential": "b1b2",
    "Parallel": "a: a1a2\n\nb: b1b2",
    "Loop": "b1b2",
    "tools of one round": "Done.",
    "handoff": "b1b2",
    "a generator that asks": "a1a2b1b2",
}


@pytest.mark.parametrize("shape", RESULTS)
def test_in_a_tree_each_text_names_its_agent(writer: Writer, shape: str) -> None:
    events = list(trees(writer)[shape]().stream("Go"))
    assert events[-1]["result"] == RESULTS[shape]
    for name in ("a", "b"):
        told = [text for branch, text in texts(events) if branch == f"root.{name}"]
        assert told == [f"{name}1", f"{name}2"]
    assert writer.all_closed


@pytest.mark.parametrize("shape", RESULTS)
def test_a_turn_that_was_killed_at_any_line_goes_on_to_the_same_result(
    writer: Writer, shape: str, folder: Path
) -> None:
    agent = trees(writer)[shape]()
    agent.input("Go")
    lines = Path(str(agent.record)).read_text().splitlines(keepends=True)
    begins = next(number for number, line in enumerate(lines) if '"user_input"' in line)
    for last in range(begins + 1, len(lines)):
        path = folder / f"root_{last}.yaml"
        path.write_text("".join(lines[:last]))
        resumed = trees(writer)[shape]()
        assert resumed.resume(path) in (RESULTS[shape], None), last
        assert resumed.session["result"] == RESULTS[shape]
    assert writer.all_closed


@pytest.mark.parametrize("shape", RESULTS)
def test_a_replay_has_the_same_result(writer: Writer, shape: str) -> None:
    agent = trees(writer)[shape]()
    agent.input("Go")
    replayed = replay(Path(str(agent.record)), trees(writer)[shape]())
    assert replayed.agent.session["result"] == RESULTS[shape]


# -- awaited ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", RESULTS)
def test_an_awaited_turn_tells_the_same(writer: Writer, shape: str) -> None:
    async def main() -> tuple[str, list[Any]]:
        result = await trees(writer)[shape]().ainput("Go")
        async with trees(writer)[shape]().astream("Go") as events:
            return result, [event async for event in events]

    result, events = asyncio.run(main())
    assert result == events[-1]["result"] == RESULTS[shape]
    for name in ("a", "b"):
        told = [text for branch, text in texts(events) if branch == f"root.{name}"]
        assert told == [f"{name}1", f"{name}2"]
    assert writer.all_closed


def test_a_task_that_leaves_the_stream_ends_the_function(writer: Writer) -> None:
    reached: list[str] = []
    agent = writer.agent("w", "one", lambda agent: reached.append("two"), "two")

    async def main() -> None:
        async with agent.astream("Go") as events:
            async for event in events:
                if event.get("text") == "one":
                    break

    asyncio.run(main())
    deadline = time.monotonic() + 5
    while not writer.all_closed and time.monotonic() < deadline:
        time.sleep(0.01)
    assert reached == [] and writer.all_closed


def test_an_async_generator_runs_in_one_task_on_the_loop_of_the_program() -> None:
    tasks: list[Any] = []

    async def run() -> AsyncIterator[str]:
        async with asyncio.timeout(5):  # refuses to be left in another task
            tasks.append(asyncio.current_task())
            yield "one"
            tasks.append(asyncio.current_task())
            yield "two"

    async def main() -> str:
        result = await Agent("w", run=run, quiet=True).ainput("Go")
        assert {task.get_loop() for task in tasks} == {asyncio.get_running_loop()}
        return result

    assert asyncio.run(main()) == "onetwo"
    assert len(set(tasks)) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_cancelled_turn_closes_its_function(kind: str) -> None:
    closed = threading.Event()

    def slow() -> Iterator[str]:
        try:
            while True:
                yield "more"
                time.sleep(0.02)
        finally:
            closed.set()

    async def slow_async() -> AsyncIterator[str]:
        try:
            while True:
                yield "more"
                await asyncio.sleep(0.02)
        finally:
            closed.set()

    agent = Agent("w", run=slow if kind == "generator" else slow_async, quiet=True)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await agent.ainput("Go")

    asyncio.run(main())
    assert closed.wait(5)
    assert agent.session["outcome"] in ("cancelled", None)


# -- ends before its end ---------------------------------------------------------------------------------


class Broken(Exception):
    pass


def test_an_error_in_the_function_is_raised_as_it_is(writer: Writer) -> None:
    def fail(agent: Agent) -> None:
        raise Broken("no disk")

    agent = writer.agent("w", "one", fail, "two")
    with pytest.raises(Broken, match="no disk"):
        agent.input("Go")
    assert writer.all_closed
    (error,) = [entry for entry in agent.session["trace"] if entry["type"] == "error"]
    assert (error["error_type"], error["error"]) == ("Broken", "no disk")


@pytest.mark.parametrize("plugin_errors", ["raise", "warn"])
def test_a_handler_that_fails_is_blamed_and_the_function_is_closed(writer: Writer, plugin_errors: str) -> None:
    @on_text
    def show(text: str) -> None:
        if text == "two":
            raise Broken("no terminal")

    agent = writer.agent("w", "one", "two", "three", stream=True, plugins=[show], plugin_errors=plugin_errors)
    if plugin_errors == "warn":
        with pytest.warns(match="no terminal"):
            assert agent.input("Go") == "onetwothree"
    else:
        with pytest.raises(Broken) as error:
            agent.input("Go")
        assert any("show" in note for note in error.value.__notes__)
    assert writer.all_closed


def test_end_turn_in_the_function_ends_it_at_its_next_text(writer: Writer) -> None:
    reached: list[str] = []

    def end(agent: Agent) -> None:
        agent.end_turn("Enough.")

    agent = writer.agent("w", "one", end, "two", lambda agent: reached.append("three"), "three")
    events = list(agent.stream("Go"))
    assert (texts(events), events[-1]["result"], events[-1]["outcome"]) == ([(None, "one")], "Enough.", "ended")
    assert reached == [] and writer.all_closed


def test_end_turn_in_a_handler_ends_the_function_there(writer: Writer) -> None:
    reached: list[str] = []

    @on_text
    def enough(agent: Agent, text: str) -> None:
        agent.end_turn("Enough.")

    agent = writer.agent("w", "one", lambda agent: reached.append("two"), "two", stream=True, plugins=[enough])
    assert agent.input("Go") == "Enough."
    assert reached == [] and writer.all_closed


@pytest.mark.parametrize("shape", ["alone", "Sequential", "Parallel"])
def test_a_consumer_that_leaves_ends_the_function(writer: Writer, shape: str) -> None:
    reached: list[str] = []
    inner = writer.agent("w", "one", lambda agent: reached.append("two"), "two")
    other = writer.agent("o", "other")
    agent = inner if shape == "alone" else (Sequential if shape == "Sequential" else Parallel)("r", [inner, other])
    for event in agent.stream("Go"):
        if event.get("text") == "one":
            break
    gc.collect()
    assert reached == [] and writer.all_closed
    assert agent.session["outcome"] == "ended"


def test_ctrl_c_closes_the_function_and_the_turn_is_resumed(writer: Writer) -> None:
    presses = [True]

    def press(agent: Agent) -> None:
        if presses:
            presses.pop()
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)

    def made() -> Agent:
        return Sequential("root", [writer.agent("w", "one", press, "two")], quiet=True)

    agent = made()
    with pytest.raises(KeyboardInterrupt):
        agent.input("Go")
    deadline = time.monotonic() + 5
    while not writer.all_closed and time.monotonic() < deadline:
        time.sleep(0.01)
    assert writer.all_closed
    assert made().resume(agent.record) == "onetwo"


def test_ctrl_c_ends_functions_that_run_at_the_same_time() -> None:
    both, writer = threading.Barrier(2), Writer("generator")

    def wait(agent: Agent) -> None:
        both.wait(5)
        if agent.name == "b":
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.3)

    reached: list[str] = []
    agents = [writer.agent(name, "one", wait, "two", lambda agent: reached.append(agent.name)) for name in ("a", "b")]
    agent = Parallel("root", agents, quiet=True)
    with pytest.raises(KeyboardInterrupt):
        agent.input("Go")
    assert reached == [] and writer.all_closed


def test_ctrl_c_cancels_async_functions_that_run_at_the_same_time() -> None:
    closed: list[str] = []

    async def wait(agent: Agent) -> AsyncIterator[str]:
        try:
            yield "one"
            await asyncio.sleep(0.2)
            if agent.name == "b":
                os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(30)
        finally:
            closed.append(agent.name)

    agent = Parallel("root", [Agent(name, run=wait, quiet=True) for name in ("a", "b")], quiet=True)
    with pytest.raises(KeyboardInterrupt):
        agent.input("Go")
    assert sorted(closed) == ["a", "b"]


def test_a_function_whose_child_waits_goes_on_when_that_is_decided(writer: Writer) -> None:
    def pay() -> str:
        """Pay."""
        return "paid"

    @before_each_tool
    def ask() -> None:
        raise Pause("may I?")

    answers: list[str] = []

    def made(*script: Any) -> Agent:
        clerk = Agent("clerk", [pay], llm=ScriptedLLM(*script), on_events=[ask], quiet=True)
        asks: Step = lambda agent: answers.append(agent.find("clerk").input("Pay"))  # noqa: E731
        return writer.agent("w", "before ", asks, "after", sub_agents=[clerk])

    first = made(call("pay"))
    with pytest.raises(Paused) as paused:
        first.input("Go")
    assert writer.all_closed and answers == []
    second = made("Paid.")
    events = list(second.resume_stream(paused.value.record, approve=True))
    assert (events[-1]["result"], answers) == ("before after", ["Paid."])
    assert [text for branch, text in texts(events) if branch == "w"] == ["before ", "after"]
    assert writer.all_closed


def test_what_handlers_and_the_function_write_is_attributed(writer: Writer) -> None:
    @on_text
    def note(agent: Agent, text: str) -> None:
        agent.trace("heard", text=text)

    def write(agent: Agent) -> None:
        agent.state["x"] = 1

    agent = writer.agent("w", write, "one", write, "two", stream=True, plugins=[note])
    agent.input("Go")
    entries = agent.session["trace"]
    assert [(entry["text"], entry["by"]["handler"]) for entry in entries if entry["type"] == "heard"] == [
        ("one", "note"),
        ("two", "note"),
    ]
    (delta,) = [entry for entry in entries if entry["type"] == "state_delta"]
    assert (delta["by"]["tool"], delta["delta"]) == ("run", {"x": 1})


def test_a_function_that_refuses_to_be_closed_is_an_error() -> None:
    def stubborn(agent: Agent) -> Iterator[str]:
        try:
            yield "one"
            agent.end_turn("Enough.")
            yield "two"
        finally:
            yield "three"

    with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
        Agent("w", run=stubborn, quiet=True).input("Go")


def test_the_console_shows_the_texts(writer: Writer, capsys: pytest.CaptureFixture[str]) -> None:
    agent = writer.agent("w", "one ", "two", stream=True)
    agent = Agent("shown", run=agent.body.function, stream=True)  # type: ignore[union-attr]
    agent.input("Go")
    assert "one two" in capsys.readouterr().err


def test_many_prompts_at_once_run_the_function_for_each(writer: Writer) -> None:
    agent = writer.agent("w", "one ", "two")
    assert [item.result for item in agent.map(["a", "b", "c"])] == ["one two"] * 3
    assert writer.all_closed and len(writer.closed) == 3


def test_handlers_of_the_trace_see_no_entry_for_a_text(writer: Writer) -> None:
    seen: list[str] = []

    @on_trace
    def watch(entry: Any) -> None:
        seen.append(entry["type"])

    writer.agent("w", "one ", "two", stream=True, plugins=[watch]).input("Go")
    assert seen == ["user_input", "message"]
