"""What a conversation needs of those around it."""

from __future__ import annotations

from typing import Any, Protocol

from connectagent.data import TraceEntry
from connectagent.session.snapshot import By


class Surroundings(Protocol):
    """What a conversation needs of those around it."""

    def settle(self) -> None:
        """Take what the code of others that runs now has changed so far."""

    def pending(self) -> bool:
        """Whether there are entries that wait for the loop's next one."""

    def announce_pending(self) -> None:
        """Trace those."""

    def all_running(self) -> list[By | None]:
        """Whose code is running, innermost last."""

    def place(self) -> str | None:
        """The place in the turn at which something is changed now; None outside of turns."""

    def emit(self, entry: TraceEntry, causes: list[By | None]) -> None:
        """Let everybody know of an entry, but for those who caused it."""

    def keep_session(self, session: dict[str, Any]) -> None:
        """Undo that somebody replaced `current_session`."""
