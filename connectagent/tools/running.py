"""Runs what a tool returned to its end: coroutines, generators and both at once."""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

stops: ContextVar[list[Callable[[], None]] | None] = ContextVar("connectagent_stops", default=None)
"""Takes what cancels a coroutine that runs here, for those who may not wait for its end."""


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
    import asyncio

    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None]] = []

    async def main() -> Any:
        running.append((asyncio.get_running_loop(), asyncio.current_task()))
        return await awaitable

    def stop() -> None:
        for loop, task in running:
            if task is not None and not loop.is_closed():
                with suppress(RuntimeError):  # it is closed just now
                    loop.call_soon_threadsafe(task.cancel)

    if (taken := stops.get()) is not None:
        taken.append(stop)
    try:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(main())
        return _in_thread(lambda: asyncio.run(main()), stop)
    except asyncio.CancelledError as error:  # not an Exception: it would pass through the agent and its caller
        raise RuntimeError("the tool was cancelled") from error


def _in_thread(work: Callable[[], Any], stop: Callable[[], None]) -> Any:
    """Run where no event loop runs, as in a notebook one does here; `stop` is called when Ctrl-C is pressed."""
    import contextvars
    import threading

    context = contextvars.copy_context()
    values: list[Any] = []
    errors: list[BaseException] = []

    def target() -> None:
        try:
            values.append(context.run(work))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=target, name="connectagent-async-tool", daemon=True)
    thread.start()
    try:
        thread.join()
    except BaseException:
        stop()
        raise
    if errors:
        raise errors[0]
    return values[0]
