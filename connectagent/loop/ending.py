"""What a turn begins with, and how it ends."""

from __future__ import annotations

from typing import Any, NamedTuple

from connectagent.data import Message
from connectagent.session.snapshot import By


class Ending(NamedTuple):
    """How a turn ended: its result (None: the model's last text), its outcome, and who ended it."""

    result: str | None
    outcome: str
    by: By


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
