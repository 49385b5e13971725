"""What a conversation needs from the agent around it."""

from __future__ import annotations

from typing import Any, Protocol

from connectagent.data import TraceEntry
from connectagent.session.snapshot import By


class Running(Protocol):
    """The handlers and tools that are running, innermost last; None for one that is not watched."""

    running: list[By | None]
    pending: list[TraceEntry]  # are traced before the loop's next entry

    def settle(self) -> None:
        """Trace what the running handler or tool has changed so far."""

    def announce_pending(self) -> None:
        """Trace the entries that wait."""


class Surroundings(Protocol):
    """What a conversation needs from the agent around it."""

    @property
    def boundary(self) -> Running:
        """What is running in the agent."""

    def place(self) -> str | None:
        """The current place in the turn; None outside of turns."""

    def emit(self, entry: TraceEntry, causes: list[By | None]) -> None:
        """Pass an entry to the log and to all handlers but those that caused it."""

    def keep_session(self, session: dict[str, Any]) -> None:
        """Put `current_session` back if it was replaced."""
