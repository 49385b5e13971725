"""What was adapted in the request of the running model call, or left out of it, so that the provider takes it."""

from __future__ import annotations

from contextvars import ContextVar

Notes = list[tuple[str, str | None]]
"""What was adapted or left out, in words, each with the name of the tool that is not sent, if it is one."""

THINKING_IS_OFF = "thinking is off in this request: its turn was not begun by this model's thinking"
"""What is noted where a model would refuse to think."""

NOTES: ContextVar[Notes | None] = ContextVar("connectagent_notes", default=None)
"""The notes of the running call."""


def note(text: str, unsent: str | None = None) -> None:
    """Tell the running call what was adapted in its request or left out of it; `unsent`: the name of a tool."""
    if (notes := NOTES.get()) is not None and (text, unsent) not in notes:
        notes.append((text, unsent))
