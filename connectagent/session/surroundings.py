"""What a conversation needs of those around it, and how an entry that is being made ends."""

from __future__ import annotations

import threading
from typing import Any, Protocol

from connectagent.data import TraceEntry
from connectagent.session.snapshot import By, Snapshot


class Surroundings(Protocol):
    """What a conversation needs of those around it."""

    def settle(self) -> None:
        """Take what the code of others that runs now has changed so far."""

    def pending(self) -> bool:
        """Whether there are entries that wait for the loop's next one."""

    def tell(self) -> None:
        """Trace those."""

    def all_running(self) -> list[By | None]:
        """Whose code is running, innermost last."""

    def place(self) -> str | None:
        """The place in the turn at which something is changed now; None outside of turns."""

    def emit(self, entry: TraceEntry, causes: list[By | None]) -> None:
        """Let everybody know of an entry, but for those who caused it."""

    def keep_session(self, session: dict[str, Any]) -> None:
        """Undo that somebody replaced `current_session`."""


class PendingEntries(threading.local):
    """The entries of the trace that nobody was told of yet; each thread tells its own."""

    def __init__(self) -> None:
        self.entries: list[tuple[TraceEntry, list[By | None]]] = []  # each with whose code brought it about
        self.telling: list[By | None] | None = None  # the same of the entry that is being told


class EntryEnd:
    """Keeps an entry the last of the trace: called before each handler of a hook, it sets aside what stands behind.

    That comes back, in its order, when the hook is over. (Not made by `contextlib.contextmanager`, which writes to the
    exceptions that pass through.)
    """

    def __init__(self, snapshot: Snapshot, entry: TraceEntry) -> None:
        self._snapshot, self._entry = snapshot, entry
        self._behind: list[TraceEntry] = []

    def __enter__(self) -> EntryEnd:
        return self

    def __call__(self) -> None:
        self._behind += self._snapshot.cut_behind(self._entry)

    def __exit__(self, *error: object) -> None:
        if self._behind:
            self()
        for entry in self._behind:
            self._snapshot.append(entry)
