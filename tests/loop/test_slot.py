"""Turns beside each other compute one at a time; who blocks holds up nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from connectagent import Agent, before_llm
from connectagent.loop import threads
from connectagent.loop.caller import Worker
from connectagent.loop.threads import Slot
from connectagent.testing import ScriptedLLM, call

AT_ONCE = 4


def test_one_thread_has_the_slot_at_a_time() -> None:
    slot, inside, most = Slot(), 0, 0

    def compute(_: int) -> None:
        nonlocal inside, most
        for _ in range(200):
            with slot:
                inside += 1
                most = max(most, inside)
                sum(range(50))
                inside -= 1

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(compute, range(AT_ONCE)))
    assert (most, inside) == (1, 0)


def test_a_thread_takes_the_slot_once_and_gives_up_only_its_own() -> None:
    slot = Slot()
    assert slot.take() and not slot.take()
    with ThreadPoolExecutor(1) as pool:
        assert not pool.submit(slot.give_up).result()
        assert not pool.submit(slot.take, wait=False).result()
        assert slot.give_up() and not slot.give_up()
        assert pool.submit(slot.take, wait=False).result()


def test_who_keeps_the_slot_for_long_holds_up_nobody() -> None:
    slot, go_on = Slot(), threading.Event()
    done: list[int] = []

    def compute(number: int) -> None:
        with slot:
            done.append(number)

    with slot, ThreadPoolExecutor(AT_ONCE) as pool:  # this thread blocks until the others have computed
        for ended in [pool.submit(compute, number) for number in range(20)]:
            ended.result(timeout=30)
        go_on.set()
    assert sorted(done) == list(range(20))
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(slot.take, wait=False).result()


def meeting(met: list[int]) -> Callable[[], None]:
    """Code that blocks until all turns of a batch are in it."""
    barrier = threading.Barrier(AT_ONCE, timeout=30)
    return lambda: met.append(barrier.wait())


class Meeting(ScriptedLLM):
    """A model of somebody's own that blocks until all turns ask it."""

    def complete(self, messages: Any, tools: Any = None) -> Any:
        self.meet()
        return super().complete(messages, tools)


@pytest.mark.parametrize("where", ["tool", "handler", "model", "async tool"])
def test_what_blocks_in_a_mapped_turn_blocks_beside_the_other_turns(where: str) -> None:
    met: list[int] = []
    meet = meeting(met)

    def look() -> str:
        """Look a thing up."""
        meet()
        return "seen"

    async def look_later() -> str:
        """Look a thing up."""
        import asyncio

        await asyncio.to_thread(meet)
        return "seen"

    @before_llm
    def wait(agent: Any) -> None:
        if agent.current_session["iteration"] == 1:
            meet()

    tool = look_later if where == "async tool" else look
    steps = [call(tool.__name__), "Done."] if "tool" in where else ["Done."]
    llm = (Meeting if where == "model" else ScriptedLLM)(*(step for step in steps for _ in range(AT_ONCE)))
    llm.meet = meet
    events = [wait] if where == "handler" else []
    agent = Agent("a", [tool], llm=llm, on_events=events, log=False, quiet=True)
    items = list(agent.map([f"Prompt {number}" for number in range(AT_ONCE)], concurrency=AT_ONCE))
    assert [item.error for item in items] == [None] * AT_ONCE
    assert sorted(met) == list(range(AT_ONCE))


def test_a_tool_that_was_slow_once_gives_the_slot_up_the_next_time() -> None:
    held: list[bool] = []

    class Tool:
        name, function = "look", None

        def run(self, arguments: Any) -> str:
            held.append(not threads.slot.take(wait=False))
            time.sleep(2 * threads.PATIENCE_S)
            return "seen"

    caller = Worker(None)
    with threads.slot:
        assert [caller.run_tool(Tool(), {}) for _ in range(2)] == ["seen", "seen"]
    threads.slot.give_up()
    assert held == [True, False]


def test_a_count_of_those_who_wait_that_went_wrong_stops_nobody() -> None:
    slot = Slot()
    slot._waiting = -20  # threads change it without a lock
    with slot, ThreadPoolExecutor(1) as pool:
        assert not pool.submit(slot.take).result(timeout=30)
