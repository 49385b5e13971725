"""Where a turn stops and goes on: what the loop itself knows of it; the rest is in `resume`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from connectagent.attribution import shown
from connectagent.errors import Pause, Paused
from connectagent.session import LLMResponse, TraceEntry

if TYPE_CHECKING:
    from connectagent.agent import Agent


class Origin(NamedTuple):
    """Where a session comes from that goes on here.

    Args:
        session: `agent.current_session`, by which it is told from others.
        record: the record that it was read from.
        fork: whether what follows goes into a record of its own.
        place: the turn and iteration before which it goes on; None for the end.
    """

    session: Any
    record: Path
    fork: bool
    place: tuple[int, int] | None


class Point(NamedTuple):
    """Where in a turn to go on; the default is its beginning.

    Args:
        answer: the model's answer that is not in the conversation yet.
        response: the newest answer in the conversation, whose calls are to be run or whose text is the result.
        done: the trace entries of its calls that are not run again, by the call's id.
        unended: the id of that one of them after which `after_each_tool` still has to fire.
    """

    answer: LLMResponse | None = None
    response: LLMResponse | None = None
    done: dict[str, TraceEntry] = {}  # noqa: RUF012  nothing writes to it
    unended: str = ""


BEGINNING = Point()


def paused(agent: Agent, pause: Pause) -> Paused:
    """Trace a pause, with what waits and who asked, and make the error that `input()` raises."""
    from connectagent.builtin.record import record_path

    by = agent.hooks.owner_of(pause) or {}
    hook = by.get("hook", "tool")
    call = pause.call if hook in ("tool", "before_each_tool") else None
    entry = {"type": "paused", "by": by, "hook": hook, "reason": pause.reason, "call": call and shown(call)}
    agent.conversation.trace_quietly({**entry, "inner": pause.inner} if pause.inner else entry)
    return Paused(pause.reason, record_path(agent), call)
