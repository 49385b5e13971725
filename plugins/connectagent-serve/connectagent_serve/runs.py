"""What happens in a run of AG-UI: a turn that begins or goes on, with what its front end brings."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from anyio import CancelScope

from connectagent import Paused
from connectagent_serve.frontend import FrontEnd
from connectagent_serve.state import Share

OPEN = ("crashed", "paused", "running")  # how a session stands whose last turn goes on before another one begins


async def taken(session: Any, prompts: list[Any], front: FrontEnd, share: Share) -> AsyncIterator[dict[str, Any]]:
    """What happens in the turn of the last prompt; where the one before it was killed or waits, that goes on first.

    One that has failed is given up, as the user has gone on; so is one that waits only for the front end, once that has
    brought all that it brings.
    """
    number, is_behind, gives_up = len(prompts), False, False
    if session.turns == number - 2 and session.begun:
        is_behind = session.sums()[0] in OPEN
        gives_up = session.number_for(prompts[-1]) == number
    if is_behind and (not gives_up or front.answer(session.waiting)):
        before = partial(session.astream, prompts[-2], number - 1)
        gives_up = False
        try:
            async with _to_its_end(_answered(session, before, front, share)) as entries:
                async for entry in entries:
                    yield entry
        except Paused:
            gives_up = session.number_for(prompts[-1]) == number
            if not gives_up:
                raise
    share.begins(number)
    last = partial(session.astream, prompts[-1], None if gives_up else number)
    async with _to_its_end(_answered(session, last, front, share)) as entries:
        async for entry in entries:
            yield entry


async def decided(
    session: Any, decisions: list[dict[str, Any]], front: FrontEnd, share: Share
) -> AsyncIterator[dict[str, Any]]:
    """What happens in a turn that goes on by one decision after the other."""
    for left, decision in zip(range(len(decisions) - 1, -1, -1), decisions, strict=True):
        if decision["wait"] in [wait.id for wait in session.waiting]:
            share.goes_on()
        take = partial(session.aresume_stream, **decision)
        async with _to_its_end(_answered(session, take, front, share)) as entries:
            try:
                async for entry in entries:
                    yield entry
            except Paused:
                if not left:
                    raise


async def _answered(
    session: Any, take: Callable[[], Any], front: FrontEnd, share: Share
) -> AsyncIterator[dict[str, Any]]:
    """What happens in a turn, which goes on as long as the front end has brought what it waits for.

    Raises:
        Paused: it waits for something else.
    """
    while True:
        async with _to_its_end(take()) as entries:
            try:
                async for entry in entries:
                    yield entry
                return
            except Paused as paused:
                answer = front.answer(paused.waiting)
                if answer is None:
                    raise
        share.goes_on()
        take = partial(session.aresume_stream, **answer)


@asynccontextmanager
async def _to_its_end(entries: Any) -> AsyncIterator[Any]:
    """A turn's entries; where the client has gone, the turn is cancelled and waited for before its agent is closed."""
    try:
        yield entries
    finally:
        with CancelScope(shield=True):
            await entries.aclose()
