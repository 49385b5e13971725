"""Turns that an event loop awaits: where they run, that they never block the loop, and what cancelling leaves."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import importlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from connectagent import (
    Agent,
    ConfigError,
    LLMResponse,
    Parallel,
    Paused,
    Retry,
    Sequential,
    TokenUsage,
    Tool,
    after_tools,
    around_tool,
    before_each_tool,
    on_error,
    on_text,
    on_trace,
    run_async,
    tool,
)
from connectagent.errors import Pause
from connectagent.loop import threads
from connectagent.records.summary import summarise
from connectagent.replay.replaying import replay
from connectagent.testing import ScriptedLLM, call, conversation_problems
from connectagent.tools import loops

MOMENTS = int(os.environ.get("CONNECTAGENT_CANCELS", "15"))  # set it for a longer run
SOON_S = 0.6  # by how much a turn may outlive its cancelling on a busy machine


def agent(*script: Any, tools: Any = (), name: str = "a", **options: Any) -> Agent:
    options = {"llm": ScriptedLLM(*script), "log": False, "quiet": True, **options}
    return Agent(name, list(tools), **options)


def entries(of: Agent, kind: str) -> list[dict[str, Any]]:
    assert of.current_session is not None
    return [entry for entry in of.current_session["trace"] if entry["type"] == kind]


def results(of: Agent) -> list[Any]:
    return [entry["result"] for entry in entries(of, "tool_execution")]


class Slow:
    """A model that thinks for some time."""

    model = "slow"

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def complete(self, messages: Any, tools: Any = None) -> LLMResponse:
        time.sleep(self.seconds)
        return LLMResponse("late", usage=TokenUsage(1, 1))


@pytest.fixture
def warned_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops._background, "warned", False)


# -- the same turn ---------------------------------------------------------------------------------------


class City(BaseModel):
    name: str
    people: int


def test_an_awaited_turn_is_the_turn_of_input() -> None:
    def double(agent: Agent, x: int) -> int:
        """Double a number."""
        agent.state["seen"] = x
        assert agent.current_session is not None
        agent.current_session["messages"].append({"role": "user", "content": "noted"})
        return 2 * x

    def made() -> Agent:
        return agent(call("double", x=2), call("double", x="no"), "Done.", tools=[double])

    plain, awaited = made(), made()
    assert plain.input("Go") == asyncio.run(awaited.ainput("Go")) == "Done."
    assert plain.current_session is not None and awaited.current_session is not None
    drop = ("timestamp", "started", "duration_ms", "timing", "call_id", "tool_calls")
    told = [
        [{key: entry[key] for key in entry if key not in drop} for entry in one.current_session["trace"]]
        for one in (plain, awaited)
        if one.current_session is not None
    ]
    assert told[0] == told[1]
    contents = [[one["content"] for one in made.session["messages"]] for made in (plain, awaited)]
    assert contents[0] == contents[1] and len(contents[0]) == 7
    assert plain.current_session["state"] == awaited.current_session["state"] == {"seen": 2}


def test_it_takes_the_arguments_of_input_and_raises_what_that_raises() -> None:
    plan = agent('{"name": "Rome", "people": 3}')
    assert asyncio.run(plan.ainput("Where?", output=City)) == City(name="Rome", people=3)
    assert asyncio.run(agent(call("no"), "x").ainput("Go", 1)) == "Task incomplete: Maximum iterations (1) reached."
    with pytest.raises(ConfigError, match="max_iterations"):
        asyncio.run(agent("x").ainput("Go", 0))

    @after_tools
    def breaks() -> None:
        raise LookupError("lost")

    with pytest.raises(LookupError, match="lost") as raised:
        asyncio.run(agent(call("no"), "x", plugins=[breaks]).ainput("Go"))
    assert "breaks" in raised.value.__notes__[0]
    names = [step.name for step in traceback.extract_tb(raised.value.__traceback__)]
    assert names[-2:] == ["ainput", "breaks"]  # the package's own frames are left out, as in `input()`


def test_a_paused_turn_is_resumed_and_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = []

    def pay(amount: int) -> str:
        """Pay."""
        ran.append(amount)
        return "paid"

    @before_each_tool
    def ask(tool_call: Any) -> None:
        if not tool_call.approved:
            raise Pause("may it?")

    async def main() -> Any:
        paying = agent(call("pay", amount=5), "Paid.", tools=[pay], plugins=[ask], log=None)
        with pytest.raises(Paused):
            await paying.ainput("Pay")
        again = agent("Paid.", tools=[pay], plugins=[ask], log=None)
        return await again.aresume(paying.record, approve=True)

    assert asyncio.run(main()) == "Paid." and ran == [5]


def test_nothing_of_it_is_loaded_before_it_is_used() -> None:
    code = (
        "import sys\nfrom connectagent import Agent\nfrom connectagent.testing import ScriptedLLM, call\n"
        "def f() -> int:\n    'F.'\n    return 1\n"
        "agent = Agent('a', [f], llm=ScriptedLLM(call('f'), 'Done.'), log=False, quiet=True)\nagent.input('Go')\n"
        "later = ['asyncio', 'connectagent.tools.loops', 'connectagent.loop.caller', 'connectagent.loop.threads', "
        "'connectagent.agents.awaited']\nprint([name for name in later if name in sys.modules])\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout == "[]\n"


# -- which loop ------------------------------------------------------------------------------------------


async def where(seen: list[Any]) -> None:
    seen.append((asyncio.get_running_loop(), threading.current_thread().name))


def test_async_tools_of_input_share_one_loop_that_stays() -> None:
    """The second call over one `httpx.AsyncClient` failed with "Event loop is closed"."""
    seen: list[Any] = []
    lock: list[asyncio.Lock] = []

    async def fetch() -> str:
        """Fetch."""
        if not lock:
            lock.append(asyncio.Lock())
        async with lock[0]:
            await where(seen)
        return "ok"

    first = agent(call("fetch"), call("fetch"), "Done.", tools=[fetch])
    other = agent([call("fetch"), call("fetch")], "Done.", tools=[fetch], parallel_tools=2)
    first.input("Go"), first.reset_conversation(), other.input("Go")
    assert len(seen) == 4 and len({loop for loop, _ in seen}) == 1 and not seen[0][0].is_closed()
    assert seen[0][1] == "connectagent-async-0"


def test_async_tools_of_an_awaited_turn_run_on_the_loop_of_the_program() -> None:
    async def main() -> Any:
        queue: asyncio.Queue[int] = asyncio.Queue(1)
        await queue.put(1)

        async def put(n: int) -> str:
            """Wait until there is room."""
            await asyncio.wait_for(queue.put(n), 2)
            return threading.current_thread().name

        async def drain() -> list[int]:
            return [await queue.get() for _ in range(4)]

        draining = asyncio.create_task(drain())
        child = agent(call("put", n=3), "Child done.", tools=[put], name="child")
        root = agent(call("put", n=2), [call("child", prompt="x"), call("put", n=4)], "Done.", tools=[put, child])
        assert await root.ainput("Go") == "Done."
        return await draining, results(root), results(child)

    numbers, own, inner = asyncio.run(main())
    assert numbers == [1, 2, 3, 4]
    assert own == ["MainThread", "Child done.", "MainThread"] and inner == ["MainThread"]


def test_context_variables_go_along() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")
    seen: list[str] = []

    def plain() -> None:
        """See."""
        seen.append(variable.get())

    async def later() -> None:
        """See."""
        seen.append(variable.get())

    class Model(ScriptedLLM):
        def complete(self, *given: Any, **named: Any) -> Any:
            seen.append(variable.get())
            return super().complete(*given, **named)

    @after_tools
    def handler() -> None:
        seen.append(variable.get())

    async def main() -> None:
        variable.set("here")
        llm = Model([call("plain"), call("later")], "Done.")
        await agent(tools=[plain, later], plugins=[handler], llm=llm).ainput("Go")

    asyncio.run(main())
    assert seen == ["here"] * 5


async def leaf(prompt: str) -> str:
    """Wait a little."""
    await asyncio.sleep(0.01)
    return "leaf"


PROMPT = {"type": "object", "properties": {"prompt": {"type": "string"}}, "required": ["prompt"]}


def chain(depth: int, how: str) -> Agent:
    """Agents inside each other; each asks the next one from its tool."""
    made = agent(call("leaf", prompt="x"), "leaf", tools=[leaf])
    for number in range(depth):

        def plain(prompt: str, child: Agent = made) -> str:
            """Ask."""
            return child.input(prompt)

        async def later(prompt: str, child: Agent = made) -> str:
            """Ask."""
            return await child.ainput(prompt)

        async def mixed(prompt: str, child: Agent = made) -> str:
            """Ask, and block the loop."""
            return child.input(prompt)

        asking = Tool("asking", "Ask.", PROMPT, {"plain": plain, "async": later, "mixed": mixed}[how])
        made = agent(call("asking", prompt="x"), "leaf", tools=[asking], name=f"a{number}")
    return made


async def many(number: int, depth: int, how: str) -> set[str]:
    return set(await asyncio.gather(*(chain(depth, how).ainput("x") for _ in range(number))))


async def blocks(depth: int, how: str) -> str:
    return chain(depth, how).input("x")


NESTINGS: dict[str, Callable[[], Any]] = {
    "input, async tool": lambda: chain(0, "plain").input("x"),
    "input, sync tools ask": lambda: chain(3, "plain").input("x"),
    "input, async tools await": lambda: chain(4, "async").input("x"),
    "input, async tools block": lambda: chain(3, "mixed").input("x"),
    "ainput, sync tools ask": lambda: asyncio.run(chain(3, "plain").ainput("x")),
    "ainput, async tools await": lambda: asyncio.run(chain(4, "async").ainput("x")),
    "ainput, async tools block": lambda: asyncio.run(chain(3, "mixed").ainput("x")),
    "40 at once, three deep": lambda: asyncio.run(many(40, 3, "async")).pop(),
    "40 at once, sync, three deep": lambda: asyncio.run(many(40, 3, "plain")).pop(),
    "input in a coroutine, await": lambda: asyncio.run(blocks(2, "async")),
    "input in a coroutine, block": lambda: asyncio.run(blocks(2, "mixed")),
}


@pytest.mark.filterwarnings("ignore:.*blocks the event loop:RuntimeWarning")
@pytest.mark.parametrize("name", NESTINGS)
def test_every_nesting_of_turns_and_loops_ends(name: str) -> None:
    told: list[Any] = []
    thread = threading.Thread(target=lambda: told.append(NESTINGS[name]()), daemon=True)
    thread.start()
    thread.join(30)
    assert told == ["leaf"]


def test_input_in_a_thread_with_a_loop_works_and_warns_once(warned_anew: None) -> None:
    async def main() -> tuple[str, str]:
        with pytest.warns(RuntimeWarning, match=r"agent\.input\(\) blocks the event loop.*ainput") as caught:
            first = agent(call("leaf", prompt="x"), "Done.", tools=[leaf]).input("x")
        assert [one.filename for one in caught] == [__file__]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return first, agent("Done.").input("x")

    assert asyncio.run(main()) == ("Done.", "Done.")


# -- run_async -------------------------------------------------------------------------------------------


def test_a_handler_runs_a_coroutine_on_the_loop_of_its_turn() -> None:
    seen: list[Any] = []

    @after_tools
    def look() -> None:
        run_async(where(seen))

    async def main() -> Any:
        await agent(call("no"), "Done.", plugins=[look]).ainput("Go")
        return asyncio.get_running_loop()

    loop = asyncio.run(main())
    agent(call("no"), "Done.", plugins=[look]).input("Go")
    assert seen[0] == (loop, "MainThread") and seen[1][1] == "connectagent-async-0"


def test_run_async_outside_of_turns_gives_the_result_and_the_errors_and_keeps_to_its_time() -> None:
    async def fail() -> None:
        raise LookupError("lost")

    stopped = []

    async def long() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            stopped.append(True)

    assert run_async(asyncio.sleep(0, "done")) == "done"
    with pytest.raises(LookupError, match="lost"):
        run_async(fail())
    since = time.perf_counter()
    with pytest.raises(TimeoutError):
        run_async(long(), timeout_s=0.05)
    assert time.perf_counter() - since < 0.05 + SOON_S and stopped == [True]


def test_run_async_refuses_to_wait_on_the_loop_that_it_would_use() -> None:
    async def asks() -> str:
        """Ask for what can only be awaited."""
        return run_async(asyncio.sleep(0, "never"))

    refused = agent(call("asks"), "Done.", tools=[asks])
    asyncio.run(refused.ainput("Go"))
    refused.reset_conversation()
    assert "await it instead" in entries(agent_after(refused), "tool_execution")[0]["error"]
    with pytest.raises(RuntimeError, match="await it instead"):
        run_async(asks())

    async def main() -> str:  # on a loop that is not the one in the background it only blocks
        return run_async(asyncio.sleep(0, "blocked"))

    assert asyncio.run(main()) == "blocked"


def agent_after(made: Agent) -> Agent:
    """The agent after a turn with its script, awaited."""
    made.llm = ScriptedLLM(call(made.list_tools()[0]), "Done.")
    asyncio.run(made.ainput("Go"))
    return made


# -- cancelling ------------------------------------------------------------------------------------------


def sleeps() -> str:
    """Sleep."""
    time.sleep(1.5)
    return "late"


async def waits() -> str:
    """Wait."""
    await asyncio.sleep(30)
    return "late"


@tool(timeout_s=20)
def limited() -> str:
    """Sleep."""
    time.sleep(1.5)
    return "late"


@after_tools
def asks_slowly(agent: Agent) -> None:
    agent.llm, own = Slow(1.5), agent.llm
    try:
        agent.ask("Well?")
    finally:
        agent.llm = own


@on_error
def retries() -> Retry:
    return Retry(after_s=30)


def executes(agent: Agent) -> str:
    """Run another tool."""
    return str(agent.execute_tool("sleeps")["result"])


async def awaits_child(agent: Agent) -> str:
    """Ask a child."""
    return await child_of("sleeps").ainput("Go")


def runs_coroutine() -> str:
    """Run a coroutine."""
    return run_async(waits())


def child_of(name: str, label: str = "child") -> Agent:
    return agent(call(name), "Child.", tools=[sleeps, waits], name=label)


def fails() -> str:
    """Fail."""
    raise OSError("no disk")


@around_tool
def around() -> Iterator[None]:
    yield


TWO = [call("sleeps"), call("waits")]
CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "model": lambda: {"llm": Slow(1.5)},
    "streamed model": lambda: {"llm": Slow(1.5), "stream": True},
    "typed model": lambda: {"llm": Slow(1.5), "output": City},
    "sync tool": lambda: {"script": [call("sleeps"), "x"], "tools": [sleeps]},
    "async tool": lambda: {"script": [call("waits"), "x"], "tools": [waits]},
    "tool with a timeout": lambda: {"script": [call("limited"), "x"], "tools": [limited]},
    "tool inside of around_tool": lambda: {"script": [call("sleeps"), "x"], "tools": [sleeps], "plugins": [around]},
    "two tools, one by one": lambda: {"script": [TWO, "x"], "tools": [sleeps, waits]},
    "two tools at once": lambda: {"script": [TWO, "x"], "tools": [sleeps, waits], "parallel_tools": 2},
    "at once, with around_tool": lambda: {
        "script": [TWO, "x"], "tools": [sleeps, waits], "parallel_tools": 2, "plugins": [around],
    },
    "tool of a child": lambda: {"script": [call("child", prompt="x"), "x"], "tools": [child_of("sleeps")]},
    "async tool of a child": lambda: {"script": [call("child", prompt="x"), "x"], "tools": [child_of("waits")]},
    "two children at once": lambda: {
        "script": [[call("one", prompt="x"), call("two", prompt="x")], "x"],
        "tools": [child_of("sleeps", "one"), child_of("waits", "two")],
    },
    "awaited child": lambda: {"script": [call("awaits_child"), "x"], "tools": [awaits_child]},
    "tool that executes another": lambda: {"script": [call("executes"), "x"], "tools": [executes, sleeps]},
    "run_async in a tool": lambda: {"script": [call("runs_coroutine"), "x"], "tools": [runs_coroutine]},
    "ask of a handler": lambda: {"script": [call("no"), "x"], "plugins": [asks_slowly]},
    "wait of Retry": lambda: {"script": [call("fails"), "x"], "tools": [fails], "plugins": [retries]},
}  # fmt: skip


async def cancelled_after(seconds: float, work: Awaitable[Any]) -> float:
    """How long awaiting took, which a timeout cancelled."""
    since = time.perf_counter()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(seconds):
            await work
    return time.perf_counter() - since


def busy_threads() -> list[str]:
    names = ("turn of", "agent-", "connectagent-body")
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(names)]


def wait_until(condition: Callable[[], bool], seconds: float = 5) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


@pytest.mark.parametrize("case", CASES)
def test_a_cancelled_turn_ends_at_once_and_leaves_nothing_behind(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = CASES[case]()
    cancelled = agent(*options.pop("script", ["x"]), **{"log": None, **options})

    async def main() -> float:
        took = await cancelled_after(0.3, cancelled.ainput("Go"))
        assert asyncio.all_tasks() == {asyncio.current_task()}
        session = cancelled.current_session
        assert session is not None and session["pending_tool"] is None and session["pending_tools"] is None
        assert conversation_problems(session["messages"]) == []
        assert entries(cancelled, "error")[-1]["error_type"] == "Cancelled"
        assert cancelled.record is not None and summarise(cancelled.record).status == "cancelled"
        cancelled.llm = llm = ScriptedLLM('{"name": "Next", "people": 1}')
        assert str(await cancelled.ainput("Go on")).find("Next") >= 0
        assert conversation_problems(llm.requests[0].messages) == []
        return took

    assert asyncio.run(main()) < 0.3 + SOON_S
    assert wait_until(lambda: not busy_threads()), busy_threads()


def test_what_is_left_behind_is_traced_and_costs_what_nobody_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    left, model = agent(call("sleeps"), "x", tools=[sleeps]), agent(llm=Slow(1.5), log=None)

    async def main() -> None:
        await cancelled_after(0.1, left.ainput("Go"))
        await cancelled_after(0.1, model.ainput("Go"))

    asyncio.run(main())
    (entry,) = entries(left, "tool_execution")
    assert entry["status"] == "interrupted" and "runs on" in entry["result"]
    (asked,) = entries(model, "llm_call")
    assert asked["status"] == "interrupted" and asked["usage"] is None
    assert model.record is not None and "\n  cost: null\n" in model.record.read_text()


def test_a_tool_that_was_left_behind_can_ask_for_nothing_more() -> None:
    told: list[str] = []
    began, go = threading.Event(), threading.Event()

    def lingers(agent: Agent) -> None:
        """Wait, and ask then."""
        began.set()
        go.wait(5)
        for ask in (lambda: agent.execute_tool("sleeps"), lambda: agent.ask("?"), lambda: other.input("?")):
            try:
                ask()
            except RuntimeError as error:
                told.append(str(error))

    other = agent("no", name="other")
    left = agent(call("lingers"), "x", tools=[lingers, sleeps])

    async def main() -> None:
        turn = asyncio.ensure_future(left.ainput("Go"))
        assert await asyncio.to_thread(began.wait, 5)
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        left.llm = ScriptedLLM("Next.")
        assert await left.ainput("Go on") == "Next."

    asyncio.run(main())
    before = len(left.session["trace"])
    go.set()
    assert wait_until(lambda: len(told) == 3), told
    assert len(left.session["trace"]) == before and other.current_session is None


def test_a_turn_that_was_cancelled_is_resumed_and_nothing_is_done_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran: list[str] = []

    def pay() -> str:
        """Pay."""
        ran.append("pay")
        return "paid"

    waiting: list[bool] = []

    async def waits() -> None:
        """Wait."""
        waiting.append(True)
        await asyncio.sleep(30)

    cancelled = agent([call("pay"), call("waits")], "x", tools=[pay, waits], log=None)

    async def main() -> Any:
        task = asyncio.create_task(cancelled.ainput("Go"))
        while not waiting:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        again = agent("Done.", tools=[pay, waits], log=None)
        return await again.aresume(cancelled.record)

    assert asyncio.run(main()) == "Done." and ran == ["pay"]


@pytest.mark.parametrize("case", ["model", "sync tool", "async tool"])
def test_a_turn_that_was_cancelled_is_replayed(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = CASES[case]()
    cancelled = agent(*options.pop("script", ["x"]), **{"log": None, **options})
    asyncio.run(cancelled_after(0.2, cancelled.ainput("Go")))
    assert cancelled.record is not None
    replayed = replay(cancelled.record)
    assert replayed.same and replayed.results == replayed.recorded_results == ["Cancelled: "]


def test_a_turn_that_is_cancelled_before_it_begins_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    made, start = agent("x"), threads.start
    held: list[tuple[threads.Work, str]] = []

    def hold(work: threads.Work, name: str) -> None:
        held.append((work, name)) if asyncio._get_running_loop() is not None else start(work, name)

    monkeypatch.setattr(threads, "start", hold)  # of the turn alone: what other turns left behind may start more

    async def main() -> None:
        task = asyncio.create_task(made.ainput("Go"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        start(*held.pop())
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert made.llm.requests == [] and not made.in_turn  # type: ignore[attr-defined]


def test_an_agent_takes_the_next_turn_whenever_the_one_before_was_cancelled() -> None:
    async def main(moment_s: float) -> None:
        made = agent(call("no"), "x")
        task = asyncio.create_task(made.ainput("Go"))
        await asyncio.sleep(moment_s)
        task.cancel()
        [ended] = await asyncio.gather(task, return_exceptions=True)
        assert ended == "x" or isinstance(ended, asyncio.CancelledError)
        made.llm = llm = ScriptedLLM("next")
        assert await made.ainput("Go on") == "next"
        assert conversation_problems(llm.requests[0].messages) == []

    for number in range(20):
        asyncio.run(main(number * 0.0002))


def test_a_second_cancel_does_not_wait_for_the_handler_that_blocks() -> None:
    go = threading.Event()

    @after_tools
    def blocks_for_long() -> None:
        go.wait(10)

    made = agent(call("no"), "x", plugins=[blocks_for_long])

    async def main() -> list[float]:
        task = asyncio.create_task(made.ainput("Go"))
        await asyncio.sleep(0.1)
        since = time.perf_counter()
        task.cancel()
        await asyncio.sleep(0.1)
        assert not task.done()  # a handler that blocks delays the end
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return [time.perf_counter() - since]

    (took,) = asyncio.run(main())
    assert took < 0.1 + SOON_S
    go.set()
    assert wait_until(lambda: not made.in_turn)
    assert conversation_problems(made.session["messages"]) == []


def brief() -> str:
    """Take a moment."""
    time.sleep(0.01)
    return "brief"


async def async_brief() -> str:
    """Take a moment."""
    await asyncio.sleep(0.01)
    return "brief"


def busy(number: int, *plugins: object) -> Agent:
    """An agent that does a bit of everything, in a turn of about 0.1 s."""
    pair = [call("brief"), call("async_brief")]
    child = agent(pair, "Child.", tools=[brief, async_brief], name="child")
    script = [pair, [call("child", prompt="x"), call("brief")], pair, "Done."]
    parallel, handlers = 1 + number % 3, [around, *plugins] if number % 2 else list(plugins)
    return agent(
        *script, tools=[brief, async_brief, child], plugins=handlers, parallel_tools=parallel, name="busy", log=None
    )


def test_a_turn_may_be_cancelled_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    chance, of_a_turn = random.Random(5), 0  # how many entries such a turn has

    async def one(number: int) -> str:
        loop, here, left = asyncio.get_running_loop(), asyncio.Event(), chance.randint(0, of_a_turn)

        @on_trace
        def tells() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                loop.call_soon_threadsafe(here.set)

        made = busy(number, tells)
        task = asyncio.create_task(made.ainput("Go"))
        if left:
            reached = asyncio.create_task(here.wait())
            await asyncio.wait([task, reached], return_when=asyncio.FIRST_COMPLETED)
            reached.cancel()
        await asyncio.sleep(chance.random() * 0.01)  # as long as a tool takes
        task.cancel()
        await asyncio.wait([task])
        assert not made.in_turn
        status = "not begun" if made.record is None else summarise(made.record).status
        assert status in ("cancelled", "answered", "not begun"), status
        session = made.current_session
        if session is not None:
            assert session["pending_tool"] is None and conversation_problems(session["messages"]) == []
        made.llm = llm = ScriptedLLM(call("brief"), "Next.")
        assert await made.ainput("Go on") == "Next."
        assert [text for request in llm.requests for text in conversation_problems(request.messages)] == []
        return status

    async def main() -> list[str]:
        nonlocal of_a_turn
        told: list[str] = []
        entries: list[object] = []
        await busy(1, on_trace(lambda entry: entries.append(entry))).ainput("Go")
        of_a_turn = len(entries)
        for batch in range(0, MOMENTS, 10):
            numbers = range(batch, min(batch + 10, MOMENTS))
            told += await asyncio.gather(*(one(number) for number in numbers))
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return told

    statuses = asyncio.run(main())
    assert len(statuses) == MOMENTS and statuses.count("cancelled") > MOMENTS / 4, statuses
    assert wait_until(lambda: not busy_threads()), busy_threads()


def test_other_turns_go_on_beside_handlers_that_block() -> None:
    """Turns compute two at a time, but who blocks in a handler does not keep the others from computing."""
    go = threading.Event()

    @after_tools
    def blocks_for_long() -> None:
        go.wait(10)

    async def main() -> None:
        stuck = [asyncio.create_task(agent(call("no"), "x", plugins=[blocks_for_long]).ainput("Go")) for _ in range(4)]
        await asyncio.sleep(0.1)
        async with asyncio.timeout(5):
            assert await agent(call("no"), "Done.").ainput("Go") == "Done."
        go.set()
        assert await asyncio.gather(*stuck) == ["x"] * 4

    asyncio.run(main())


CTRL_C = """
import asyncio, os, signal, threading, time
from connectagent import Agent
from connectagent.records.summary import summarise
from connectagent.testing import ScriptedLLM, call, conversation_problems

def stuck() -> str:
    "Take long."
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    time.sleep(3)
    return "late"

agent = Agent("pressed", [stuck], llm=ScriptedLLM(call("stuck"), "x"), quiet=True)
since = time.perf_counter()
try:
    asyncio.run(agent.ainput("Go"))
except KeyboardInterrupt:
    print("interrupted", time.perf_counter() - since < 2)
print(conversation_problems(agent.current_session["messages"]), summarise(agent.record).status)
agent.llm = ScriptedLLM("It goes on.")
print(asyncio.run(agent.ainput("Go on")))
"""


def test_ctrl_c_in_asyncio_run_cancels_the_turn(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(CTRL_C)
    started = subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    out, error = started.communicate(timeout=60)
    assert (started.returncode, error) == (0, "")
    assert out.splitlines() == ["interrupted True", "[] cancelled", "It goes on."]


# -- astream ---------------------------------------------------------------------------------------------


def streaming() -> Agent:
    return agent(call("leaf", prompt="x"), "One two.", tools=[leaf])


def test_the_events_are_those_of_stream() -> None:
    async def main() -> list[dict[str, Any]]:
        async with streaming().astream("Go") as events:
            return [event async for event in events]

    plain = [(event["type"], event.get("text"), event.get("result")) for event in streaming().stream("Go")]
    assert [(event["type"], event.get("text"), event.get("result")) for event in asyncio.run(main())] == plain


def test_the_events_come_in_lockstep_and_the_consumer_may_change_the_session() -> None:
    made = streaming()

    async def main() -> None:
        async for event in made.astream("Go"):
            before = len(made.session["trace"])
            await asyncio.sleep(0.02)
            assert len(made.session["trace"]) == before
            if event["type"] == "tool_execution":
                made.session["messages"].append({"role": "user", "content": "From outside."})
                made.state["seen"] = True

    asyncio.run(main())
    (added,) = entries(made, "message")
    assert added["by"]["plugin"] == "(program)" and made.state["seen"] is True


def test_an_async_tool_that_runs_tools_on_the_consumers_loop_streams_them_too() -> None:
    async def runs(agent: Agent) -> str:
        """Run another tool, and block."""
        return str(agent.execute_tool("fails")["status"])

    made = agent(call("runs"), "Done.", tools=[runs, fails])

    async def main() -> list[str]:
        async with asyncio.timeout(10):
            return [event.get("tool_name", "") async for event in made.astream("Go")]

    assert [name for name in asyncio.run(main()) if name] == ["fails", "runs"]


def test_what_the_turn_raises_is_raised_by_the_iteration() -> None:
    @after_tools
    def breaks() -> None:
        raise LookupError("lost")

    async def main() -> None:
        async with agent(call("no"), "x", plugins=[breaks]).astream("Go") as events:
            with pytest.raises(LookupError, match="lost"):
                async for _ in events:
                    pass
            assert [event async for event in events] == []

    asyncio.run(main())


async def leaves(made: Agent) -> None:
    async with made.astream("Go") as events:
        async for _ in events:
            break


async def drops(made: Agent) -> None:
    async for _ in made.astream("Go"):
        break
    gc.collect()


async def raises(made: Agent) -> None:
    with pytest.raises(ValueError):
        async with made.astream("Go") as events:
            async for _ in events:
                raise ValueError


async def is_cancelled(made: Agent) -> None:
    async def read() -> None:
        async for event in made.astream("Go"):
            if event["type"] == "llm_call":
                break_here.set()

    break_here = asyncio.Event()
    task = asyncio.create_task(read())
    await break_here.wait()
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("how", [leaves, drops, raises, is_cancelled])
def test_a_turn_whose_events_are_not_read_to_the_end_is_cancelled(
    how: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = agent(call("waits"), "x", tools=[waits], log=None)
    asyncio.run(how(made))
    assert wait_until(lambda: not made.in_turn and not busy_threads()), busy_threads()
    assert made.record is not None and summarise(made.record).status == "cancelled"
    made.llm = ScriptedLLM("Next.")
    assert made.input("Go on") == "Next." and conversation_problems(made.session["messages"]) == []


def test_a_turn_is_cancelled_though_its_loop_was_closed_without_it() -> None:
    """An async generator in its place would leave the thread for ever."""
    made = agent(call("waits"), "x", tools=[waits])
    kept = []

    async def main() -> None:
        kept.append(made.astream("Go"))
        await anext(kept[0])

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()
    kept.clear()
    gc.collect()
    assert wait_until(lambda: not made.in_turn and not busy_threads()), busy_threads()


def test_events_that_nobody_asks_for_begin_no_turn() -> None:
    made = agent("x")

    async def main() -> None:
        async with made.astream("Go"):
            pass

    asyncio.run(main())
    assert made.current_session is None


def test_handlers_of_text_run_on_the_turns_own_thread() -> None:
    seen: list[Any] = []

    @on_text
    def text(text: str) -> None:
        seen.append((text, threading.current_thread().name))

    asyncio.run(agent("One two.", plugins=[text], stream=True, name="texts").ainput("Go"))
    assert seen == [("One ", "turn of texts"), ("two.", "turn of texts")]


# -- at the same time ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["sync", "async"])
def test_sixteen_tools_at_once_take_hardly_longer_than_one(how: str) -> None:
    def nap(n: int) -> int:
        """Nap."""
        time.sleep(0.05)
        return n

    async def async_nap(n: int) -> int:
        """Nap."""
        await asyncio.sleep(0.05)
        return n

    function = nap if how == "sync" else async_nap
    took = []
    for _ in range(3):
        calls = [call(function.__name__, n=n) for n in range(16)]
        made = agent(calls, "Done.", tools=[function], parallel_tools=16)
        since = time.perf_counter()
        asyncio.run(made.ainput("Go"))
        took.append(time.perf_counter() - since)
        assert results(made) == [str(n) for n in range(16)]
    assert min(took) < 0.3  # one after the other: 0.8


def test_many_turns_at_once_are_all_answered_and_the_loop_goes_on() -> None:
    async def main() -> float:
        lags: list[float] = []

        async def watch() -> None:
            while True:
                since = time.perf_counter()
                await asyncio.sleep(0.001)
                lags.append(time.perf_counter() - since - 0.001)

        watching = asyncio.create_task(watch())
        made = [agent(call("leaf", prompt="x"), f"{n}", tools=[leaf]) for n in range(100)]
        lags.clear()
        told = await asyncio.gather(*(one.ainput("Go") for one in made))
        watching.cancel()
        assert told == [str(n) for n in range(100)]
        return sorted(lags)[len(lags) // 2]  # a busy machine alone makes some of them long

    assert asyncio.run(main()) < 0.1
    ours = [one for one in threading.enumerate() if "process_request" not in one.name]  # of servers of other tests
    assert len(ours) < 230


def test_workflows_are_awaited_and_cancelled() -> None:
    def pair(*names: str) -> list[Agent]:
        return [agent(call("leaf", prompt="x"), name, tools=[leaf], name=name) for name in names]

    def slow(*names: str) -> list[Agent]:
        return [agent(call("sleeps"), name, tools=[sleeps], name=name) for name in names]

    async def main() -> list[float]:
        first = Sequential("first", pair("a", "b"), log=False, quiet=True)
        second = Parallel("second", pair("c", "d"), log=False, quiet=True)
        assert await asyncio.gather(first.ainput("Go"), second.ainput("Go")) == ["b", "c: c\n\nd: d"]
        third = Sequential("third", slow("e"), log=False, quiet=True)
        fourth = Parallel("fourth", slow("f", "g"), log=False, quiet=True)
        return [await cancelled_after(0.3, one.ainput("Go")) for one in (third, fourth)]

    assert max(asyncio.run(main())) < 0.3 + SOON_S
    assert wait_until(lambda: not busy_threads()), busy_threads()


# -- other loops -----------------------------------------------------------------------------------------


def test_it_works_under_uvloop() -> None:
    uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed")
    assert uvloop.run(chain(2, "async").ainput("x")) == "leaf"
    assert uvloop.run(cancelled_after(0.2, agent(llm=Slow(1.5)).ainput("Go"))) < 0.2 + SOON_S


def test_it_works_under_trio_with_async_tools_in_the_background() -> None:
    trio = pytest.importorskip("trio", reason="trio is not installed")
    seen: list[Any] = []

    async def look() -> None:
        """Look."""
        await where(seen)

    async def main() -> float:
        assert await agent(call("look"), "Done.", tools=[look]).ainput("Go") == "Done."
        async with streaming().astream("Go") as events:
            assert [event["type"] async for event in events][-1] == "result"
        since = time.perf_counter()
        with trio.move_on_after(0.2):
            await agent(llm=Slow(1.5)).ainput("Go")
        return time.perf_counter() - since

    assert trio.run(main) < 0.2 + SOON_S
    assert [name for _, name in seen] == ["connectagent-async-0"]


@pytest.mark.parametrize("way", ["ainput", "astream"])
def test_a_scope_of_anyio_waits_for_the_end_of_the_turn_that_it_cancels_so_that_the_agent_can_be_closed(
    way: str,
) -> None:
    anyio = pytest.importorskip("anyio")

    async def tidy() -> str:
        """Tidy up at the end."""
        try:
            await asyncio.sleep(5)
        finally:
            await asyncio.sleep(0.2)
        return ""

    async def main() -> Agent:
        with anyio.move_on_after(0.2), agent(call("tidy"), tools=[tidy]) as one:
            if way == "ainput":
                await one.ainput("Go")
            async with one.astream("Go") as events:
                async for _ in events:
                    pass
        return one

    since = time.perf_counter()
    one = asyncio.run(main())
    assert one.closed and time.perf_counter() - since < 0.2 + SOON_S


def test_a_request_of_fastapi_is_a_turn() -> None:
    fastapi = pytest.importorskip("fastapi", reason="fastapi is not installed")
    httpx = importlib.import_module("httpx")
    app = fastapi.FastAPI()

    @app.get("/ask")
    async def ask(q: str) -> dict[str, str]:
        return {"answer": await agent(call("leaf", prompt=q), f"About {q}.", tools=[leaf]).ainput(q)}

    async def main() -> list[Any]:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
            answers = await asyncio.gather(*(client.get("/ask", params={"q": f"q{n}"}) for n in range(20)))
        return [answer.json()["answer"] for answer in answers]

    assert asyncio.run(main()) == [f"About q{n}." for n in range(20)]
