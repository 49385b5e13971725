"""What a conversation needs from the agent around it, and what it has still to tell it."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from connectagent.data import TraceEntry
from connectagent.session.snapshot import By

# The number of threads besides the main one. `threading.active_count` takes a lock, which is too slow here.
threads: Callable[[], int] = getattr(_thread, "_count", lambda: threading.active_count() - 1)


class Running(Protocol):
    """What runs in the agent: code of others, which may change the session."""

    running: list[By | None]  # handlers and tools, innermost last; None for one that is not watched
    alive: int  # how many threads there were at the last look
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

    def emit(self, entry: TraceEntry, copy: TraceEntry, causes: list[By | None]) -> None:
        """Pass a copy of an entry to the log, and the entry to all handlers but those that caused it."""

    def keep_session(self, session: dict[str, Any]) -> None:
        """Put `current_session` back if it was replaced."""


class PendingEntries(threading.local):
    """The entries of the trace that were not emitted yet; each thread emits its own.

    Attributes:
        causes: the handlers and tools that caused the entry that is being emitted; None: none is being emitted.
        entries: what comes after it, each with its copy and its causes.
    """

    causes: list[Any] | None = None
    entries: Sequence[tuple[tuple[TraceEntry, TraceEntry], list[Any]]] = ()
