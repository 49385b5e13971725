"""In a resumed turn: whether its code asks for the same operations as before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from connectagent.errors import Diverged
from connectagent.frame import handler_in_id
from connectagent.loop.open_turn import OpenTurn
from connectagent.session.journal import ABANDONED, Journal, is_inside
from connectagent.session.usage import count, spent_in, time_in


def expect(turn: OpenTurn, frame: str, id: str) -> None:
    """Check an operation that a handler or tool of a resumed turn asks for, before it begins.

    Raises:
        Diverged: the record does not have it, but has another finished one that was not asked for.
    """
    missed = turn.past.asked.ask(frame, id)
    if missed is not None and turn.is_own_thread():  # in other threads the order means nothing, only the frame's end
        raise _divergence(f"asks for {id}, which the record does not have", missed)


def finish(turn: OpenTurn, id: str, handlers: Iterable[list[Any]] | None = None) -> None:
    """Check a handler or tool of a resumed turn at its end, and abandon the turns that it has left open.

    Args:
        turn: the turn.
        id: the operation.
        handlers: the handlers that ran in it, as `[plugin, handler]`; None for all, as around an operation.

    Raises:
        Diverged: the record has a finished operation that was not asked for.
    """
    if turn.ended is not None:
        return
    if handlers is None:
        handlers = [[handler.plugin, handler.by["handler"]] for handler in turn.host.loaded]
    asked = turn.past.asked
    for frame in asked.frames(id, (handler_in_id(*handler) for handler in handlers)):
        # In the turn's own frame, threads of tools asked; they are over now.
        missed = asked.forgotten(frame) if frame != turn.id else None
        if missed is not None:
            raise _divergence(f"came to the end of {frame}", missed)
        for left in asked.left(frame):
            _abandon(turn, turn.past, left)


def _abandon(turn: OpenTurn, past: Journal, id: str) -> None:
    """Write that an open inner turn will not be asked for again. Its cost counts."""
    begun = past.lines[past.began[id]]
    spent = spent_in(line for line in past.lines if is_inside(str(line.get("id") or ""), id))
    for place in past.began:
        if is_inside(place, id) and past.is_lost(place):  # its usage is not known
            spent.add(None)
            count(turn, None)
    inputs = (line for line in past.lines if line.get("type") == "user_input" and line.get("at") == id)
    entry = {"type": "agent_turn", "id": id, "agent": begun.get("agent"), "branch": begun.get("branch")}
    entry |= {"turn": next(inputs, {}).get("turn", 0), "record": turn.log.path and str(turn.log.path)}
    entry |= {"started": begun.get("timestamp", 0.0), "duration_ms": round(time_in(past.lines, id), 3)}
    turn.conversation.trace({**entry, "outcome": ABANDONED, "result": None, "usage": spent.data()})


def _divergence(did: str, missed: str) -> Diverged:
    turn, iteration = (*missed.split("/"), "")[:2]
    place = f"{turn[1:]}.{iteration}" if iteration.isdecimal() and iteration != "0" else turn[1:]
    return Diverged(
        f"this turn goes on from its record, but its code {did}, while {missed} is finished in it and was not asked "
        "for again: the code, or something that it depends on, has changed. Mend that and resume again, or go back to "
        f"before this step with resume(record, place={place!r}), which does it again"
    )
