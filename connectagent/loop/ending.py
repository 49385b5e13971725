"""What a turn begins with, and how it ends."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

from connectagent.data import Message
from connectagent.errors import PluginWarning
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


def tear_down(pool: Any) -> None:
    """Tear down the resources of a turn; their errors become warnings, since the turn has its result."""
    from connectagent.output.masking import current  # it has many patterns to compile

    for error in pool.close():
        warnings.warn(current().text(str(error)), PluginWarning, stacklevel=2)
