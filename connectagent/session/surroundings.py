"""What a conversation needs from the agent around it."""

from __future__ import annotations

from typing import Any, Protocol

from connectagent.data import TraceEntry
from connectagent.session.snapshot import By


class Surroundings(Protocol):
    """What a conversation needs from the agent around it."""

    def settle(self) -> None:
        """Trace what the running handler or tool has changed so far."""

    def pending(self) -> bool:
        """Whether entries wait to be traced before the loop's next one."""

    def announce_pending(self) -> None:
        """Trace the entries that wait."""

    def all_running(self) -> list[By | None]:
        """Whose code is running, innermost last."""

    def place(self) -> str | None:
        """The current place in the turn; None outside of turns."""

    def emit(self, entry: TraceEntry, causes: list[By | None]) -> None:
        """Pass an entry to the log and to all handlers but those that caused it."""

    def keep_session(self, session: dict[str, Any]) -> None:
        """Put `current_session` back if it was replaced."""
