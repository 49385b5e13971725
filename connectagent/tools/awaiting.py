"""Who waits for the code that runs here: what the loop knows of it without loading asyncio."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import partial
from typing import Any

stops: ContextVar[list[Callable[[], None]] | None] = ContextVar("connectagent_stops", default=None)
"""Takes what cancels a coroutine that runs here, for those who may not wait for its end."""
CALLER: ContextVar[Any] = ContextVar("connectagent_caller", default=None)
"""The `loop.caller.Caller` that awaits the turn in which this code runs; None for turns that nobody awaits."""
HERE: list[Callable[[], AbstractContextManager[None]]] = []
"""`blocking` of `tools.loops`, when that has been loaded: before, no coroutine of a tool has run."""


def waiting(work: Callable[[], Any]) -> Any:
    """Do what may wait for coroutines; an event loop that runs in this thread stands still meanwhile."""
    if not HERE:
        return work()
    with HERE[0]():
        return work()


def operating(work: Callable[[], Any]) -> Any:
    """Run an operation that code of a turn asks for; refused if the turn has left that code behind.

    Raises:
        RuntimeError: it has.
    """
    caller = CALLER.get()
    return waiting(work) if caller is None else caller.operate(partial(waiting, work))
