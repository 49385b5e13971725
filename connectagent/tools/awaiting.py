"""Who waits for the code that runs here: what the loop knows of it without loading asyncio."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from contextvars import ContextVar
from functools import partial
from typing import Any

from connectagent.errors import Cancelled


class Stops:
    """What cancels the coroutines of some code, for those who may not wait for its end.

    Attributes:
        awaits: whether the code waits for a coroutine, or is about to: then it ends soon after `stop()`.
        stopped: whether `stop()` was called.
        interrupt: what `stop()` was told to raise in the code; None for an error that says that it was cancelled.
    """

    interrupt: type[BaseException] | None = None

    def __init__(self) -> None:
        self.awaits = self.stopped = False
        self._stops: list[Callable[[], None]] = []

    def add(self, stop: Callable[[], None], own: bool) -> None:
        """Take what cancels one more coroutine.

        Args:
            stop: cancels it.
            own: whether it is what the code returned, which nobody wants after `stop()`.
        """
        self.awaits = True
        self._stops.append(stop)
        if own and self.stopped:  # checked now, since `stop` sets it before it reads the list
            stop()

    def stop(self, interrupt: type[BaseException] | None = None) -> None:
        """Cancel all coroutines; what the code returns later does not begin."""
        self.interrupt = self.interrupt or interrupt
        self.stopped = True
        for stop in list(self._stops):
            stop()


def was_cancelled(stops: Stops | None) -> BaseException:
    """What a tool ends with whose coroutine was cancelled: an interrupt where its turn is stopped, else an error."""
    interrupt = None if stops is None else stops.interrupt
    return RuntimeError("the tool was cancelled") if interrupt is None else interrupt()


def is_cancelled(error: BaseException) -> bool:
    """Whether an error is asyncio's `CancelledError`; nobody raises it who has not loaded asyncio."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and isinstance(error, asyncio.CancelledError)


STOPS: ContextVar[Stops | None] = ContextVar("connectagent_stops", default=None)
"""Those of the code that runs here; None where its end is waited for."""
CALLER: ContextVar[Any] = ContextVar("connectagent_caller", default=None)
"""The `loop.caller.Caller` that awaits the turn in which this code runs; None for turns that nobody awaits."""
HERE: list[Callable[[], AbstractContextManager[None]]] = []
"""`blocking` of `tools.loops`, when that has been loaded: before, no coroutine of a tool has run."""


def interrupt() -> type[BaseException]:
    """What interrupts code that runs here: Ctrl-C, or whoever awaits the turn has cancelled it."""
    return KeyboardInterrupt if CALLER.get() is None else Cancelled


def waiting(work: Callable[[], Any], streams: Iterable[Any] = ()) -> Any:
    """Do what may wait for coroutines; an event loop that runs in this thread stands still meanwhile.

    Args:
        work: what to do.
        streams: of the turn that it waits for: it does not wait for a consumer in this thread meanwhile.
    """
    with ExitStack() as waits:
        for stream in streams:
            waits.enter_context(stream.unread())
        if HERE:
            waits.enter_context(HERE[0]())
        return work()


def operating(work: Callable[[], Any]) -> Any:
    """Run an operation that code of a turn asks for; refused if the turn has left that code behind.

    Raises:
        RuntimeError: it has.
    """
    caller = CALLER.get()
    return waiting(work) if caller is None else caller.operate(partial(waiting, work))
