"""Where features meet: each cell is an agent that uses several of them, taken in each way, paused, killed and resumed.

A cell ends as it does where nothing stops it: with the same result and state, valid requests, and each effect once.
With CONNECTAGENT_CELLS=all, turns are killed behind each line of their records; otherwise behind every fifth.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel

from connectagent import (
    Agent,
    LLMResponse,
    Pause,
    Paused,
    Retry,
    after_each_tool,
    after_tools,
    around_tool,
    before_each_tool,
    on_error,
    on_trace,
    resource,
    tool,
    xray,
)
from connectagent.testing import call, conversation_problems

STEP = 1 if os.environ.get("CONNECTAGENT_CELLS") == "all" else 5
WAYS = ("input", "stream", "ainput", "astream")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)
    return tmp_path


class World:
    """What one process of a cell does and sees.

    Args:
        asks: whether a person is asked.
        handlers: more handlers of the root.
    """

    def __init__(self, asks: bool = True, handlers: tuple[Any, ...] = ()) -> None:
        self.asks, self.handlers = asks, list(handlers)
        self.ran: Counter[str] = Counter()
        self.problems: list[str] = []
        self.open = self.made = 0  # resources

    def model(self, *steps: Any) -> Model:
        return Model(self, steps)


class Model:
    """Its n-th answer in a turn is the n-th step; handlers and tools are answered by what they ask."""

    def __init__(self, world: World, steps: tuple[Any, ...]) -> None:
        self.world, self.steps, self.model = world, steps, "test/cell"

    def complete(self, messages: list[Any], tools: Any = None) -> LLMResponse:
        self.world.problems += conversation_problems(messages)
        asked = str(messages[-1]["content"])
        if asked.startswith("Well, "):
            self.world.ran[asked] += 1
            return LLMResponse(f"yes to {asked}")
        step = self.steps[sum(one["role"] == "assistant" and not one.get("author") for one in messages)]
        return LLMResponse(step, []) if isinstance(step, str) else LLMResponse(None, step)


# -- cells -------------------------------------------------------------------------------------------------


def effect(world: World, agent: Agent, what: str) -> str:
    world.ran[what] += 1
    agent.state.setdefault("did", []).append(what)
    return f"did {what}"


def guard(world: World, *names: str) -> Any:
    @before_each_tool
    def may_it(tool_call: Any) -> None:
        if world.asks and tool_call.arguments.get("what") in names:
            raise Pause(f"may it {tool_call.arguments['what']}?")

    return may_it


def working(world: World) -> Any:
    @tool(idempotent=True)
    def work(what: str, agent: Agent) -> str:
        """Work."""
        return effect(world, agent, what)

    return work


def calls(*whats: str, name: str = "work") -> list[Any]:
    return [call(name, what=what) for what in whats]


class Answer(BaseModel):
    number: int


def typed(world: World) -> Agent:
    """A typed answer that first does not fit, behind a parallel round in which two calls wait."""
    llm = world.model(calls("a", "b", "c"), '{"number": "many"}', calls("d"), '{"number": 3}')
    handlers = [guard(world, "a", "c", "d"), *world.handlers]
    options: dict[str, Any] = {"output": Answer, "parallel_tools": 3, "on_events": handlers}
    return Agent("root", [working(world)], llm=llm, quiet=True, **options)


def sharing(world: World) -> Agent:
    """Parallel calls, of which one waits, share a resource that is torn down."""

    @resource
    def desk() -> Iterator[str]:
        world.made += 1
        world.open += 1
        yield "desk"
        world.open -= 1

    @tool(idempotent=True)
    def share(what: str, agent: Agent, desk: str) -> str:
        """Work at a desk."""
        assert world.open == 1
        return effect(world, agent, f"{what} at {desk}")

    @after_tools
    def look(agent: Agent, desk: str) -> None:
        agent.state["looked"] = [*agent.state.get("looked", ()), desk]

    llm = world.model(calls("a", "b", "c", name="share"), calls("d", name="share"), "Done.")
    handlers: dict[str, Any] = {"plugins": [desk, guard(world, "b", "d"), look], "on_events": world.handlers}
    return Agent("root", [share], llm=llm, quiet=True, parallel_tools=3, **handlers)


def asking(world: World) -> Agent:
    """Async tools that ask the model fail after it, are made again, and one of them waits."""

    @tool(idempotent=True)
    async def ponder(what: str, agent: Agent) -> str:
        """Ponder."""
        await asyncio.sleep(0)
        said = agent.ask(f"Well, {what}?").content
        await asyncio.sleep(0)
        if what not in agent.state.get("tried", ()):
            agent.state.setdefault("tried", []).append(what)
            raise OSError(f"{what} failed")
        return effect(world, agent, f"{what} ({said})")

    @on_error
    def again(attempt: int) -> Retry | None:
        return Retry() if attempt == 1 else None

    llm = world.model(calls("a", "b", name="ponder"), calls("c", name="ponder"), "Done.")
    handlers = [again, guard(world, "b"), *world.handlers]
    return Agent("root", [ponder], llm=llm, quiet=True, on_events=handlers, parallel_tools=2)


def limited(world: World) -> Agent:
    """Tools with a time limit wait for a person, by themselves and in an agent that they ask."""
    llm = world.model(calls("x"), "x is done")
    inner = Agent("inner", [working(world)], llm=llm, quiet=True, on_events=[guard(world, "x")])

    @tool(idempotent=True, timeout_s=20)
    def pay(what: str, agent: Agent) -> str:
        """Pay."""
        if world.asks and not xray.approved:
            raise Pause("pay?")
        return effect(world, agent, what)

    @tool(idempotent=True, timeout_s=20)
    def pass_on(what: str) -> str:
        """Ask another agent."""
        return str(inner.input(what))

    llm = world.model(calls("a", name="pay"), calls("go", name="pass_on"), "Done.")
    below: dict[str, Any] = {"sub_agents": [inner], "transfer_to": ()}
    return Agent("root", [pay, pass_on], llm=llm, quiet=True, on_events=world.handlers, **below)


def handing(world: World) -> Agent:
    """An agent hands over to another one, whose async tool waits, and which hands back."""

    @tool(idempotent=True)
    async def look(what: str, agent: Agent) -> str:
        """Look."""
        await asyncio.sleep(0)
        return effect(world, agent, what)

    back = [call("transfer_to_agent", agent_name="root")]
    llm = world.model(calls("b", name="look"), back)
    below = Agent("below", [look], llm=llm, quiet=True, on_events=[guard(world, "b")])
    llm = world.model(calls("a"), [call("transfer_to_agent", agent_name="below")], calls("c"), "Done.")
    return Agent("root", [working(world)], llm=llm, quiet=True, on_events=world.handlers, sub_agents=[below])


def teaming(world: World) -> Agent:
    """Parallel tools change the state before and after the agents that they ask, of which one waits."""
    inner = {}
    for what in "ab":
        llm = world.model(calls(f"in {what}"), "Well done.")
        inner[what] = Agent(what, [working(world)], llm=llm, quiet=True, on_events=[guard(world, "in b")])

    @tool(idempotent=True)
    def team(what: str, agent: Agent) -> str:
        """Work in a team."""
        agent.state[f"before {what}"] = True
        inner[what].input("Go")
        agent.state[f"after {what}"] = True
        return effect(world, agent, what)

    llm = world.model(calls("a", "b", name="team"), "Done.")
    below: dict[str, Any] = {"sub_agents": list(inner.values()), "transfer_to": ()}
    return Agent("root", [team], llm=llm, quiet=True, on_events=world.handlers, parallel_tools=2, **below)


class Cell(NamedTuple):
    """What is built, and what a person is asked about."""

    build: Callable[[World], Agent]
    waits: int


CELLS = {
    "typed x parallel x pause": Cell(typed, 3),
    "resource x parallel x resume": Cell(sharing, 2),
    "ask x async tool x retry": Cell(asking, 1),
    "timeout_s x pause": Cell(limited, 2),
    "hand-over x async tool x pause": Cell(handing, 1),
    "agents x parallel tools x pause": Cell(teaming, 1),
}


# -- how they are taken --------------------------------------------------------------------------------------


def take(agent: Agent, how: str, record: Any = None, **decided: Any) -> Any:
    """The result of a turn that is begun, or resumed from a record."""
    name, given = ("resume", [record]) if record is not None else ("", ["Go"])
    if how == "input":
        return agent.resume(record, **decided) if name else agent.input("Go")
    if how == "stream":
        return list(agent.resume_stream(record, **decided) if name else agent.stream("Go"))[-1]["result"]
    return asyncio.run(awaited(agent, how, *given, **decided))


async def awaited(agent: Agent, how: str, given: Any, **decided: Any) -> Any:
    resumes = given != "Go"
    if how == "ainput":
        return await (agent.aresume(given, **decided) if resumes else agent.ainput(given))
    events = agent.aresume_stream(given, **decided) if resumes else agent.astream(given)
    async with events:
        return [event async for event in events][-1]["result"]


def finished(cell: Cell, how: str, record: Any = None, same: bool = False) -> tuple[Any, Agent, list[World]]:
    """Take a turn, or resume it, and approve whatever waits: the result, the last agent, and all processes' worlds."""
    worlds = [World()]
    agent, decided = cell.build(worlds[0]), dict[str, Any]()
    for _ in range(9):
        try:
            return take(agent, how, record, **decided), agent, worlds
        except Paused as paused:
            record, decided = paused.record, {"approve": paused.waiting[-1].id}
            assert worlds[-1].open == 0
            if not same:
                worlds.append(World())
                agent = cell.build(worlds[-1])
    raise AssertionError("it does not end")


def plain(agent: Agent) -> Any:
    """The state without the order in which parallel calls were decided."""
    state = {key: sorted(value) if isinstance(value, list) else value for key, value in agent.state.items()}
    return json.loads(json.dumps(state))


@pytest.mark.parametrize("same", [True, False], ids=["same process", "other process"])
@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("name", CELLS)
def test_a_cell_that_waits_ends_as_one_in_which_nobody_is_asked(name: str, how: str, same: bool) -> None:
    cell, world = CELLS[name], World(asks=False)
    agent = cell.build(world)
    wanted, state = take(agent, how), plain(agent)
    assert world.problems == [] and world.open == 0 and set(world.ran.values()) <= {1, 2}
    result, last, worlds = finished(cell, how, same=same)
    assert type(result) is type(wanted) and result == wanted and plain(last) == state
    assert len(worlds) == (1 if same else cell.waits + 1)
    assert sum((one.ran for one in worlds), Counter[str]()) == world.ran
    assert [problem for one in worlds for problem in one.problems] == []
    assert all(one.open == 0 and (same or one.made <= 1) for one in worlds)


def closed_in(lines: list[str]) -> Counter[str]:
    """What tools did whose end these lines have."""
    entries = [json.loads(line[4:]) for line in lines if line.startswith("  - ")]
    found = Counter[str]()
    for entry in entries:
        ended = entry["type"] == "tool_execution" and entry.get("id") and entry["status"] == "success"
        if ended and str(entry["result"]).startswith("did "):
            found[entry["result"].removeprefix("did ")] += 1
    return found


@pytest.mark.parametrize("how", ["input", "astream"])
@pytest.mark.parametrize("name", CELLS)
def test_a_cell_that_was_killed_anywhere_ends_all_the_same(name: str, how: str, folder: Path) -> None:
    cell = CELLS[name]
    wanted, whole, _ = finished(cell, how)
    lines = Path(str(whole.record)).read_text("utf-8").splitlines(keepends=True)
    first = next(at for at, line in enumerate(lines) if '"user_input"' in line)
    end = max(at for at, line in enumerate(lines) if line.startswith("  - "))
    for cut in range(first + 1, end + 2, STEP):
        path = folder / f"root_{cut}.yaml"
        path.write_text("".join(lines[:cut]), "utf-8")
        result, last, worlds = finished(cell, how, path)
        if lines[cut - 1].startswith("  status: paused") or result is None:
            continue
        assert (result, plain(last)) == (wanted, plain(whole)), cut
        assert [problem for one in worlds for problem in one.problems] == [], cut
        ran, closed = sum((one.ran for one in worlds), Counter[str]()), closed_in(lines[:cut])
        assert not ran.keys() & closed.keys(), cut
        assert all(one.open == 0 for one in worlds), cut


@pytest.mark.parametrize("name", CELLS)
def test_a_stream_of_a_cell_that_is_cancelled_anywhere_goes_on(name: str) -> None:
    cell = CELLS[name]
    wanted, whole, _ = finished(cell, "input")

    async def cancelled(agent: Agent, at: int) -> bool:
        async with agent.astream("Go") as events:
            number = 0
            async for event in events:
                number += 1
                if number == at:
                    return event["type"] != "result"
        return False

    for at in range(1, 60, 3 if STEP > 1 else 1):
        world = World(asks=False)
        agent = cell.build(world)
        if not asyncio.run(cancelled(agent, at)):
            assert at > 10
            break
        assert world.open == 0
        result, last, worlds = finished(cell, "astream", agent.record)
        assert (result, plain(last)) == (wanted, plain(whole)), at
        assert [problem for one in (world, *worlds) for problem in one.problems] == [], at


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_that_ctrl_c_stops_at_any_entry_goes_on(name: str) -> None:
    cell = CELLS[name]
    wanted, whole, _ = finished(cell, "input")
    for at in range(1, 99, 2 if STEP > 1 else 1):
        passed = itertools.count(1)

        @on_trace
        def press(entry: Any) -> None:
            if next(passed) == at:  # noqa: B023  it is called in this round of the loop
                raise KeyboardInterrupt

        world = World(asks=False, handlers=(press,))
        agent = cell.build(world)
        try:
            assert agent.input("Go") == wanted and next(passed) <= at and at > 8
            break
        except KeyboardInterrupt:
            assert world.open == 0
        result, last, worlds = finished(cell, "input", agent.record)
        assert (result, plain(last)) == (wanted, plain(whole)), at
        assert [problem for one in (world, *worlds) for problem in one.problems] == [], at


def until_stopped(agent: Agent) -> None:
    """Wait until Ctrl-C has stopped the agent's turn; agent `a` presses it."""
    turn: Any = agent.turn
    if turn.resumed:  # it is resumed
        return
    if agent.name == "a":
        os.kill(os.getpid(), signal.SIGINT)
    while not turn.stopped:
        time.sleep(0.002)


@before_each_tool
def wait_before(agent: Agent) -> None:
    until_stopped(agent)


@around_tool
def wait_around(agent: Agent) -> Iterator[None]:
    until_stopped(agent)
    yield


def both(world: World, parallel: int, *waiting: Any) -> Agent:
    """Two agents that work at once; each runs so many tools at once."""

    @after_each_tool
    def note(tool_call: Any, result: Any) -> str:
        world.ran[f"after {tool_call.arguments['what']}"] += 1
        return f"{result}, noted"

    @tool
    def work(what: str, agent: Agent) -> str:
        """Work."""
        return effect(world, agent, what)

    agents = []
    for name in "ab":
        llm = world.model(calls(*[f"in {name}{n}" for n in range(parallel)]), "Well done.")
        given: Any = {"on_events": [note, *waiting], "parallel_tools": parallel, "quiet": True}
        agents.append(Agent(name, [work], llm=llm, **given))
    llm = world.model([call("a", prompt="Go"), call("b", prompt="Go")], "Done.")
    return Agent("root", agents, llm=llm, quiet=True)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("parallel", [1, 2])
@pytest.mark.parametrize("waiting", [wait_before, wait_around])
def test_calls_of_inner_agents_that_ctrl_c_kept_from_running_run_when_the_turn_is_resumed(
    waiting: Any, parallel: int
) -> None:
    world, later = World(), World()
    agent = both(world, parallel, waiting)
    with pytest.raises(KeyboardInterrupt):
        agent.input("Go")
    assert not world.ran
    other = both(later, parallel, waiting)
    assert other.resume(agent.record) == "Done." and later.problems == []
    whats = [f"in {name}{n}" for name in "ab" for n in range(parallel)]
    assert later.ran == Counter([*whats, *[f"after {what}" for what in whats]])
    assert plain(other) == {"did": whats}
    for one in other.below:
        results = [message["content"] for message in one.session["messages"] if message["role"] == "tool"]
        assert results == [f"did in {one.name}{n}, noted" for n in range(parallel)]
