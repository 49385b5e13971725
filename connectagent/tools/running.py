"""Runs what a function returned to its end: coroutines, generators and both at once."""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from connectagent.tools.awaiting import STOPS, was_cancelled

SETTLED = frozenset({str, int, float, bool, type(None), bytes, dict, list, tuple})
"""Types of values of which `settled` makes nothing else."""


def settled(value: object) -> Any:
    """A value in place of a coroutine or generator, which nobody could read twice."""
    if isinstance(value, types.GeneratorType | map | filter | zip):
        return list(value)
    if isinstance(value, types.AsyncGeneratorType):
        return _waited(_collected(value))
    if isinstance(value, Awaitable):
        return settled(_waited(value))
    return value


async def _collected(items: types.AsyncGeneratorType[Any, Any]) -> list[Any]:
    return [item async for item in items]


Take = Callable[[Any], bool]
"""Receives what a generator yields, in the thread that waits for it; False where the generator is to go no further."""


def passed_on(value: object, take: Take) -> Any:
    """Pass on what a generator yields, as soon as it does; what it returned. Any other value as `settled` has it.

    A generator that goes no further, or in whose stead an error is raised, is closed: its `finally` runs.
    """
    if isinstance(value, types.GeneratorType):
        return _passed_on(value, take)
    if isinstance(value, types.AsyncGeneratorType):
        from connectagent.tools.loops import passing_on  # loads asyncio

        jobs: SimpleQueue[Any] = SimpleQueue()
        return _waited(passing_on(value, take, jobs), jobs)
    if isinstance(value, Awaitable):
        return passed_on(_waited(value), take)
    return settled(value)


def _passed_on(items: types.GeneratorType[Any, Any, Any], take: Take) -> Any:
    try:
        while True:
            try:
                item = next(items)
            except StopIteration as end:
                return end.value
            if not take(item):
                items.close()
                return None
    except BaseException:
        with suppress(Exception):  # the error that is raised already says why
            items.close()
        raise


def _waited(awaitable: Awaitable[Any], jobs: SimpleQueue[Any] | None = None) -> Any:
    """The result of what is awaited; meanwhile this thread runs the jobs that come in a queue."""
    if (stops := STOPS.get()) is not None:
        stops.awaits = True
        if stops.stopped:
            if isinstance(awaitable, types.CoroutineType):
                awaitable.close()
            raise was_cancelled(stops)
    from connectagent.tools.loops import cancelled, run_to_end  # loads asyncio

    try:
        return run_to_end(awaitable, own=True, jobs=jobs)
    except cancelled as error:  # not an Exception: it would pass through the agent and its caller
        raise was_cancelled(stops) from error
