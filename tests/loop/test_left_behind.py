"""A tool's function that ran out of time runs on. It does nothing in later turns, and is blamed for nothing in them."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import forked
import pytest

from connectagent import Agent, hookspec, llm_do, run_async, tool
from connectagent.records.read import read_record
from connectagent.testing import ScriptedLLM, call


@hookspec(kind="observe")
def noticed(agent: Any) -> None:
    """Something was noticed."""


def changes_message(agent: Agent) -> None:
    agent.session["messages"].append({"role": "user", "content": "evil"})


def changes_state(agent: Agent) -> None:
    agent.state["evil"] = 1
    agent.session["state"]["evil"] = 2


inner = Agent("inner", llm=ScriptedLLM(*["evil"] * 9), log=False, quiet=True)
WAYS: dict[str, Callable[[Agent], Any]] = {
    "execute_tool()": lambda agent: agent.execute_tool("other"),
    "ask()": lambda agent: agent.ask("evil"),
    "trace()": lambda agent: agent.trace("evil"),
    "end_turn()": lambda agent: agent.end_turn("evil"),
    "a hook": lambda agent: noticed.fire(agent=agent),
    "another agent": lambda agent: inner.input("evil"),
    "input()": lambda agent: agent.input("evil"),
    "reset_conversation()": lambda agent: agent.reset_conversation(),
    "messages": changes_message,
}
HARMLESS: dict[str, Callable[[Agent], Any]] = {
    "state": changes_state,
    "llm_do()": lambda agent: llm_do("evil", llm=ScriptedLLM("its own call")),
}


@pytest.mark.parametrize("parallel", [1, 4])
@pytest.mark.parametrize("way", [*WAYS, *HARMLESS])
def test_what_was_left_behind_does_nothing_in_a_later_turn(
    way: str, parallel: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ready, done, errors = threading.Event(), threading.Event(), list[BaseException]()

    @tool(timeout_s=0.02)
    def slow(agent: Agent) -> str:
        """Take too long."""
        ready.wait(10)
        try:
            {**WAYS, **HARMLESS}[way](agent)
        except Exception as error:
            errors.append(error)
        done.set()
        return "evil"

    def other() -> str:
        """Do something else."""
        return "evil"

    def waits() -> str:
        """Wait until the first tool has done its worst."""
        ready.set()
        assert done.wait(10)
        return "waited"

    llm = ScriptedLLM([call("slow"), *[call("other")] * (parallel > 1)], "One.", [call("waits")], "Two.")
    agent = Agent("a", [slow, other, waits], llm=llm, quiet=True, parallel_tools=parallel)
    assert agent.input("First") == "One."
    before = len(agent.session["trace"])
    assert agent.input("Second") == "Two." and len(llm.requests) == 4
    if way in WAYS:
        assert isinstance(errors.pop(), RuntimeError)
    assert errors == []
    later = agent.session["trace"][before:]
    assert [entry["type"] for entry in later] == ["user_input", "llm_call", "tool_execution", "llm_call"]
    assert [message["content"] for message in agent.session["messages"][-4:]] == ["Second", None, "waited", "Two."]
    assert agent.session["state"] == {}
    assert agent.record is not None
    recorded = read_record(agent.record)["turns"][1]
    assert "evil" not in str(recorded) and "slow" not in str(recorded["lines"])


@pytest.mark.parametrize("way", [way for way in WAYS if way not in ("messages", "input()", "reset_conversation()")])
def test_the_error_names_what_was_called_and_the_tools_place(way: str) -> None:
    ready, done, errors = threading.Event(), threading.Event(), list[str]()

    @tool(timeout_s=0.02)
    def slow(agent: Agent) -> str:
        """Take too long."""
        ready.wait(10)
        try:
            WAYS[way](agent)
        except RuntimeError as error:
            errors.append(str(error))
        done.set()
        return ""

    agent = Agent("a", [slow], llm=ScriptedLLM([call("slow")], "One."), log=False, quiet=True)
    agent.input("First")
    ready.set()
    assert done.wait(10)
    assert "a tool that" in errors[0] and "no longer waits for: T1/1/c1/tool1" in errors[0]


@pytest.mark.parametrize("parallel", [1, 4])
def test_async_work_that_a_tool_begins_after_its_time_limit_is_not_done(parallel: int) -> None:
    ready, threads, ran = threading.Event(), list[threading.Thread](), list[str]()

    async def work() -> str:
        ran.append("worked")
        return "worked"

    @tool(timeout_s=0.02)
    def slow() -> Any:
        """Take too long before the work begins."""
        threads.append(threading.current_thread())
        ready.wait(10)
        return work()

    def other() -> str:
        """Do something else."""
        return "ok"

    llm = ScriptedLLM([call("slow"), *[call("other")] * (parallel > 1)], "One.")
    agent = Agent("a", [slow, other], llm=llm, log=False, quiet=True, parallel_tools=parallel)
    assert agent.input("First") == "One."
    assert "it could not be stopped and runs on" in agent.session["messages"][2]["content"]
    ready.set()
    threads[0].join(10)
    assert not threads[0].is_alive() and ran == []


@pytest.fixture
def late_threads() -> Iterator[None]:
    """Threads that begin late, as on a busy machine."""

    def wait(*event: Any) -> None:
        sys.setprofile(None)
        time.sleep(0.06)

    threading.setprofile(wait)
    yield
    threading.setprofile(None)  # type: ignore[arg-type]


async def soon() -> str:
    """Answer."""
    return "in time"


def now() -> str:
    """Answer."""
    return "in time"


@pytest.mark.parametrize("parallel", [1, 2])
@pytest.mark.parametrize("function", [soon, now])
def test_the_time_until_a_thread_begins_is_not_the_tools(
    function: Any, parallel: int, request: pytest.FixtureRequest
) -> None:
    run_async(soon())  # so that the loop's own thread runs
    request.getfixturevalue("late_threads")
    llm = ScriptedLLM([call(function.__name__)] * parallel, "Done.")
    tools = [tool(timeout_s=0.03)(function)]
    agent = Agent("a", tools, llm=llm, log=False, quiet=True, parallel_tools=parallel)
    agent.input("Go")
    assert [one["content"] for one in agent.session["messages"][2:-1]] == ["in time"] * parallel


CANCELLED = """
import asyncio, sys, threading
from connectagent import Agent, before_llm, tool
from connectagent.testing import ScriptedLLM

asked, cancelled, threads = threading.Event(), threading.Event(), []

def late(*event):
    sys.setprofile(None)
    threads.append(threading.current_thread())
    asked.set()
    assert cancelled.wait(10)

@before_llm
def stand_in(request):  # no thread is left that the tool could use
    threading.setprofile(late)
    return ScriptedLLM(("pay", {})).complete(request.messages)

def pay() -> str:
    "Pay."
    print("paid")
    return "paid"

agent = Agent("a", [pay], llm=ScriptedLLM(), log=False, quiet=True, on_events=[stand_in])

async def main():
    turn = asyncio.create_task(agent.ainput("Go"))
    while not asked.is_set():
        await asyncio.sleep(0.005)
    turn.cancel()
    await asyncio.wait([turn])
    cancelled.set()
    threading.setprofile(None)
    threads[0].join(0.2)
    print([one["content"] for one in agent.session["messages"] if one["role"] == "tool"])

asyncio.run(main())
"""


def test_a_tool_whose_thread_has_not_begun_when_its_turn_is_cancelled_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(CANCELLED, "utf-8")
    done = forked.run("script.py", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["['interrupted before it finished: Cancelled']"]
