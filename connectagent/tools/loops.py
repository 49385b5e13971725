"""Event loops for async tools: the loop of the program that awaits the turn, else one that stays in the background.

A loop whose own thread waits for synchronous code is not used: the code could wait for it for ever.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from connectagent.tools.awaiting import CALLER, HERE, STOPS
from connectagent.tools.waits import next_of

Result = TypeVar("Result")
Loop = asyncio.AbstractEventLoop
GRACE_S = 0.5  # the time in which cancelled work has to end
cancelled = asyncio.CancelledError
BLOCKED = "agent.{what}() blocks the event loop that runs in this thread until it is over; use {other} there"


class _Background:
    """The loops in threads of this process, which stay; more than one only where some are blocked."""

    def __init__(self) -> None:
        self.loops: list[Loop] = []
        self.blocked: Counter[Loop] = Counter()
        self.lock = threading.Lock()
        self.warned = False

    def loop(self, number: int) -> Loop:
        """The loop of a number, which is started if there is none."""
        with self.lock:
            while len(self.loops) <= number:
                loop = asyncio.new_event_loop()
                name = f"connectagent-async-{len(self.loops)}"
                threading.Thread(target=loop.run_forever, name=name, daemon=True).start()
                self.loops.append(loop)
            return self.loops[number]

    def choose(self) -> Loop:
        """The loop for a coroutine of the code that runs here."""
        caller = CALLER.get()
        loop = None if caller is None else caller.loop
        if loop is not None and loop.is_running() and not self.blocked[loop]:
            return loop  # type: ignore[no-any-return]
        number = 0
        while self.blocked[self.loop(number)]:
            number += 1
        return self.loop(number)


_background = _Background()


def _forget() -> None:
    global _background
    _background = _Background()  # a forked child has none of the threads


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_forget)


def running_loop() -> Loop | None:
    """The loop that runs in this thread, or None."""
    return asyncio._get_running_loop()


@contextmanager
def blocking() -> Iterator[None]:
    """Note that the loop of this thread, if there is one, waits for what is done meanwhile."""
    if (loop := running_loop()) is None:
        yield
        return
    with _background.lock:
        _background.blocked[loop] += 1
    try:
        yield
    finally:
        with _background.lock:
            _background.blocked[loop] -= 1
            if not _background.blocked[loop]:
                del _background.blocked[loop]


def warn_blocked(what: str) -> None:
    """Warn once that a method of an agent blocks the loop of this thread."""
    if not _background.warned:
        _background.warned = True
        other = f"`await agent.a{what}(...)`"
        if what == "execute_tool":
            other = "`await asyncio.to_thread(agent.execute_tool, ...)`"
        level, at = 1, sys._getframe()
        while at.f_back is not None and at.f_globals.get("__name__", "").startswith("connectagent."):
            level, at = level + 1, at.f_back
        warnings.warn(BLOCKED.format(what=what, other=other), RuntimeWarning, stacklevel=level)


class Running:
    """A coroutine on a loop, for the thread that waits for it.

    It runs in a copy of this context. What it raises is kept: a `KeyboardInterrupt` would end the loop.
    """

    def __init__(self, awaitable: Awaitable[Any], loop: Loop, jobs: SimpleQueue[Any] | None = None) -> None:
        self._awaitable, self._loop, self._context = awaitable, loop, copy_context()
        self._task: asyncio.Task[None] | None = None
        self._stopped = self.over = False
        self._value: Any = None
        self._error: BaseException | None = None
        # None when it is over; before, jobs for the thread that waits for it.
        self.ended: SimpleQueue[Any] = SimpleQueue() if jobs is None else jobs
        try:
            loop.call_soon_threadsafe(self._start)
        except RuntimeError:  # closed just now
            if asyncio.iscoroutine(awaitable):
                awaitable.close()
            raise

    def _start(self) -> None:
        self._task = self._loop.create_task(self._run(), context=self._context)
        self._task.add_done_callback(self._end)
        if self._stopped:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            self._value = await self._awaitable
        except BaseException as error:
            self._error = error

    def _end(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():  # before its first step
            self._error = asyncio.CancelledError()
            if asyncio.iscoroutine(self._awaitable):
                self._awaitable.close()
        self.over = True
        self.ended.put(None)

    def stop(self) -> None:
        """Cancel it."""
        self._stopped = True
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(lambda: self._task is not None and self._task.cancel())

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for its end, at most so long; whether it is over. In an awaited turn, its cancelling interrupts this."""
        caller, deadline = CALLER.get(), None if timeout_s is None else time.monotonic() + timeout_s
        while not self.over:
            left_s = None if deadline is None else max(deadline - time.monotonic(), 0)
            try:
                item = next_of(self.ended, left_s) if caller is None else caller.get(self.ended, left_s)
            except Empty:
                break
            if item is not None:
                item.run()
        return self.over

    def result(self) -> Any:
        """Its result, when it is over; what it raised is raised."""
        try:
            if self._error is not None:
                raise self._error
            return self._value
        finally:
            self._error = None  # its traceback holds this frame


def run_to_end(
    awaitable: Awaitable[Any],
    timeout_s: float | None = None,
    own: bool = False,
    jobs: SimpleQueue[Any] | None = None,
) -> Any:
    """Run a coroutine on the loop for it, and wait for its end.

    Args:
        awaitable: the coroutine.
        timeout_s: how long it may take.
        own: whether it is what a tool returned.
        jobs: what it puts there runs in this thread, as long as that waits.

    Raises:
        TimeoutError: it took longer; it was cancelled.
        BaseException: what it raised, or Ctrl-C, which cancels it.
    """
    with blocking():
        running = Running(awaitable, _background.choose(), jobs)
        if (stops := STOPS.get()) is not None:
            stops.add(running.stop, own)
        try:
            over = running.wait(timeout_s)
        except BaseException:
            _stop(running)
            raise
        if not over:
            _stop(running)
            raise TimeoutError(f"it took longer than {timeout_s:g} s")
        return running.result()


def _stop(running: Running) -> None:
    running.stop()
    deadline = time.monotonic() + GRACE_S
    while not running.over and (left_s := deadline - time.monotonic()) > 0:
        with suppress(Empty):
            running.ended.get(timeout=left_s)


async def passing_on(items: AsyncGenerator[Any, None], take: Callable[[Any], bool], jobs: SimpleQueue[Any]) -> None:
    """Pass on what an async generator yields; it waits for each, as a generator does.

    Args:
        items: the generator. It is closed here, in the task in which it ran.
        take: receives each item, in the thread that runs the jobs; False where the generator is to go no further.
        jobs: where that thread waits.
    """
    try:
        async for item in items:
            taken = _Taken(take, item)
            jobs.put(taken)
            if not await taken.answer:
                return
    finally:
        await items.aclose()


class _Taken:
    """A job that takes an item of a coroutine, which awaits the answer."""

    def __init__(self, take: Callable[[Any], bool], item: object) -> None:
        self._take, self._item, self._loop = take, item, asyncio.get_running_loop()
        self.answer: asyncio.Future[bool] = self._loop.create_future()

    def run(self) -> None:
        """Take the item; where that fails, whoever waits for the coroutine cancels it."""
        goes_on = self._take(self._item)
        self._loop.call_soon_threadsafe(self._say, goes_on)

    def _say(self, goes_on: bool) -> None:
        if not self.answer.done():
            self.answer.set_result(goes_on)


def run_async(coroutine: Awaitable[Result], timeout_s: float | None = None) -> Result:
    """Run a coroutine to its end from synchronous code, as a handler is; its result.

    In a turn that was begun by `ainput()` or `astream()` it runs on the loop of the program, so that its clients,
    locks and queues work; else on a loop in the background that all of the process share. It sees the context
    variables of the code that calls this.

    Args:
        coroutine: a coroutine or another awaitable.
        timeout_s: how long it may take; then it is cancelled.

    Raises:
        RuntimeError: it was called on the very loop that would run it: `await` it there.
        TimeoutError: it took longer than `timeout_s`.
        asyncio.CancelledError: it was cancelled.
        Exception: whatever it raises.
    """
    here = running_loop()
    if here is not None and _background.choose() is here:
        if asyncio.iscoroutine(coroutine):
            coroutine.close()
        raise RuntimeError("run_async() was called on the event loop that would run the coroutine; await it instead")
    return run_to_end(coroutine, timeout_s)  # type: ignore[no-any-return]


def on_loop_thread(what: str, action: Callable[[], Any]) -> Any:
    """Run a method of an agent in a thread with a running loop, which stands still meanwhile."""
    warn_blocked(what)
    with blocking():
        return action()


HERE.append(blocking)
