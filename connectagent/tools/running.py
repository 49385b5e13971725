"""Runs what a tool returned to its end: coroutines, generators and both at once."""

from __future__ import annotations

import types
from collections.abc import Awaitable
from typing import Any

from connectagent.tools.awaiting import STOPS, was_cancelled

SETTLED = frozenset({str, int, float, bool, type(None), bytes, dict, list, tuple})
"""Types of values of which `settled` makes nothing else."""


def settled(value: Any) -> Any:
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


def _waited(awaitable: Awaitable[Any]) -> Any:
    if (stops := STOPS.get()) is not None:
        stops.awaits = True
        if stops.stopped:
            if isinstance(awaitable, types.CoroutineType):
                awaitable.close()
            raise was_cancelled(stops)
    from connectagent.tools.loops import cancelled, run_to_end  # loads asyncio

    try:
        return run_to_end(awaitable, own=True)
    except cancelled as error:  # not an Exception: it would pass through the agent and its caller
        raise was_cancelled(stops) from error
