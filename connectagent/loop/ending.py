"""What a turn begins with, and how it ends."""

from __future__ import annotations

import re
import warnings
from typing import Any, NamedTuple

from connectagent.data import Message, TraceEntry
from connectagent.errors import PluginWarning
from connectagent.session.journal import Journal
from connectagent.session.snapshot import By


class Ending(NamedTuple):
    """How a turn ended: its result (None: the model's last text), its outcome, and who ended it."""

    result: str | None
    outcome: str
    by: By


RESUMED: By = {"plugin": "(resume)"}  # by: a person decided
STOPPED = Ending(None, "ended", {"plugin": "(interrupt)"})  # by Ctrl-C: no decision, and gone when it is resumed


class Given(NamedTuple):
    """What a turn begins with.

    Args:
        message: the user's message.
        prompt: its text.
        limit: how many iterations the turn may take.
        output: the form of the result; None for text.
    """

    message: Message
    prompt: str
    limit: int
    output: Any = None


def resumptions(past: Journal, turn: str) -> list[TraceEntry]:
    """The lines with which `on_session` began each time that a turn was resumed, the newest last."""
    place = re.compile(f"{re.escape(turn)}/resumed[0-9]+/on_session")
    return [past.lines[number] for id, number in past.began.items() if place.fullmatch(id)]


def tear_down(pool: Any) -> None:
    """Tear down the resources of a turn; their errors become warnings, since the turn has its result."""
    from connectagent.output.masking import current  # it has many patterns to compile

    for error in pool.close():
        warnings.warn(current().text(str(error)), PluginWarning, stacklevel=2)
