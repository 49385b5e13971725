"""Turns that are awaited: each runs in a thread, and its end wakes the event loop that waits for it."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextvars import copy_context
from functools import partial
from typing import Any, Self

from connectagent import frame
from connectagent.agents.core import AgentCore
from connectagent.data import TraceEntry
from connectagent.errors import Cancelled
from connectagent.loop import threads
from connectagent.loop.caller import Caller
from connectagent.loop.stream import End, Lockstep
from connectagent.loop.turn import turn_in
from connectagent.settings.tracebacks import shorten
from connectagent.tools.awaiting import CALLER

AT_EXIT_S = 2.0  # how long the end of the process waits for turns to end


class _Bell:
    """Wakes a coroutine from any thread."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._rung = False
        self._waiting: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """Wake the coroutine that waits, or the next one that does."""
        self._rung = True
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def heard(self) -> None:
        """Wait until it was rung since the last time."""
        while not self._rung:
            self._waiting = self.loop.create_future()
            await self._waiting
        self._rung = False

    async def tail(self) -> None:
        """Wait as `heard` does, for what is to end though this coroutine was cancelled; a second one gets through.

        A scope of anyio cancels each wait anew until the coroutine ends, which is no second one.
        """
        anyio = sys.modules.get("anyio")
        with contextlib.nullcontext() if anyio is None else anyio.CancelScope(shield=True):
            await self.heard()


class _TrioBell(_Bell):
    """The same under trio, whose programs have no loop of asyncio: async tools run on one in the background."""

    def __init__(self, trio: Any) -> None:
        self.loop: Any = None
        self._trio, self._token = trio, trio.lowlevel.current_trio_token()
        self._rung = False
        self._event: Any = trio.Event()

    def ring(self) -> None:
        self._rung = True
        with contextlib.suppress(self._trio.RunFinishedError):
            self._token.run_sync_soon(self._wake)

    def _wake(self) -> None:
        self._event.set()

    async def heard(self) -> None:
        while not self._rung:
            self._event = self._trio.Event()
            await self._event.wait()
        self._rung = False

    async def tail(self) -> None:
        with self._trio.CancelScope(shield=True):
            await self.heard()


def _bell() -> _Bell:
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_task():
        return _TrioBell(trio)
    return _Bell()


class _Turn:
    """A turn in a thread of its own.

    Args:
        agent: the agent.
        work: runs the turn.
        bell: is rung at its end.
    """

    def __init__(self, agent: AgentCore, work: Callable[[], Any], bell: _Bell) -> None:
        self.caller = Caller(bell.loop, CALLER.get(), threading.get_ident())
        self._work, self._bell = work, bell
        self._name = f"turn of {agent.name}"
        self._value: Any = None
        self._error: BaseException | None = None
        self.over = threading.Event()

    def start(self) -> None:
        """Start the thread, in a copy of this context."""
        _running.add(self)
        context = copy_context()
        context.run(CALLER.set, self.caller)
        threads.start(partial(context.run, self._run), self._name)

    def _run(self) -> None:
        threads.slot.take()
        try:
            if self.caller.cancelled:
                raise Cancelled
            self._value = self._work()
        except BaseException as error:
            self._error = error
        finally:
            threads.slot.give_up()
            _running.discard(self)
            self.over.set()
            self._bell.ring()

    def result(self) -> Any:
        """Its result, when it is over; what it raised is raised."""
        error, self._error = self._error, None
        try:
            if isinstance(error, Cancelled):  # with the turn around it
                raise asyncio.CancelledError from error
            if error is not None:
                raise error
            return self._value
        finally:
            del error  # its traceback holds this frame


_running: set[_Turn] = set()


@atexit.register
def _end_all() -> None:
    """End the open turns at exit: otherwise their records would be cut off."""
    turns = list(_running)
    for turn in turns:
        turn.caller.cancel()
    for turn in turns:
        turn.over.wait(AT_EXIT_S / len(turns))


async def awaited(agent: AgentCore, work: Callable[[], Any]) -> Any:
    """Take a turn in a thread, and wait for its end; its result. Errors have none of the package's frames."""
    try:
        return await _awaited(agent, work)
    except BaseException as error:
        shorten(error)
        raise


async def _awaited(agent: AgentCore, work: Callable[[], Any]) -> Any:
    bell = _bell()
    turn = _Turn(agent, work, bell)
    turn.start()
    try:
        await bell.heard()
    except BaseException as error:
        turn.caller.cancel()
        if not isinstance(error, GeneratorExit) and not turn.over.is_set():
            await bell.tail()
        raise
    return turn.result()


class _Steps(Lockstep):
    """The thread of a turn whose consumer awaits each item."""

    def __init__(
        self, agent: AgentCore, work: Callable[[], Any], bell: _Bell, outcome: Callable[[], str | None] | None
    ) -> None:
        super().__init__(agent, work, outcome)
        self._bell = bell
        self._running = _Turn(agent, self._run, bell)
        self._begun = False
        self._unread = self._blocked = 0  # items that were not asked on from; what waits in the consumer's thread

    async def item(self) -> Any:
        """Run the turn until its next item or its `End`."""
        if not self._begun:
            self._begun, self._consumer = True, threading.get_ident()
            self._running.start()
        else:
            self._asked.put(None)
        while self._items.empty():
            if self._running.over.is_set():  # the turn around it was cancelled before this one began
                return End({}, Cancelled())
            await self._bell.heard()
        return self._items.get()

    def _run(self) -> None:
        self._thread = threading.current_thread()
        super()._run()

    def cancel(self) -> None:
        """End the turn, without handing out more items."""
        self._closing = self._ended = True  # nor does it end as with `end_turn()`
        self._running.caller.cancel()

    async def close(self) -> None:  # type: ignore[override]
        """Cancel the turn unless it is over, and wait for its end."""
        if not self._begun or self._running.over.is_set():
            return
        self.cancel()
        while not self._running.over.is_set():
            await self._bell.tail()

    def _give(self, item: Any) -> None:
        super()._give(item)
        if not isinstance(item, End):  # `_Turn` rings when it is over
            self._bell.ring()

    def _wait(self) -> None:
        self._unread += 1
        if threading.get_ident() == self._consumer:  # an async tool on the consumer's own loop cannot wait for it
            return
        while self._unread and not self._blocked:
            asked = self._running.caller.get(self._asked)
            if asked is not None and asked is not self:  # cancelled, which the next wait of the turn raises
                return
            self._unread -= asked is None

    @contextlib.contextmanager
    def unread(self) -> Iterator[None]:
        if threading.get_ident() != self._consumer:
            yield
            return
        self._blocked += 1
        self._asked.put(self)  # not None: nobody has asked
        try:
            yield
        finally:
            self._blocked -= 1

    def is_consumer(self) -> bool:
        """Whether this is code of the consumer, and not an async tool of the turn, on the same thread."""
        if not super().is_consumer():
            return False
        here, turn = frame.current(), self._agent.turn
        if here is None or turn is None:
            return True
        own = turn_in(here)
        return not any(one is turn for one in (own, *own.callers()))


class AsyncEvents:
    """The items of a turn, for `async for`. A turn that is not read to its end is cancelled.

    Args:
        agent: the agent.
        work: runs the turn.
        outcome: how the turn has ended; None where the agent's session says it.
    """

    def __init__(
        self, agent: AgentCore, work: Callable[[], Any], outcome: Callable[[], str | None] | None = None
    ) -> None:
        self._agent, self._work, self._outcome = agent, work, outcome
        self._steps: _Steps | None = None
        self._closed = self._reading = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TraceEntry:
        if self._closed:
            raise StopAsyncIteration
        if self._reading:
            raise RuntimeError("the events of a turn are read by one task at a time")
        if self._steps is None:
            self._steps = _Steps(self._agent, self._work, _bell(), self._outcome)
            weakref.finalize(self, self._steps.cancel)
        self._reading = True
        try:
            item = await self._steps.item()
        except BaseException as error:  # cancelled, or thrown away
            self._closed = True
            if isinstance(error, GeneratorExit):
                self._steps.cancel()
            else:
                await self._steps.close()
            raise
        finally:
            self._reading = False
        if not isinstance(item, End):
            return item  # type: ignore[no-any-return]
        self._closed = True
        if item.error is None:
            return item.item
        try:
            raise asyncio.CancelledError if isinstance(item.error, Cancelled) else item.error
        finally:
            del item  # the error's traceback holds this frame

    async def aclose(self) -> None:
        """Cancel the turn, unless it is over."""
        self._closed = True
        if self._steps is not None:
            await self._steps.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.aclose()
