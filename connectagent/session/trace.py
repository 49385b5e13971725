"""A trace that only grows: entries that handlers and tools add are found, and changes of older entries are undone.

The entries of the newest round are compared each time a handler or tool has run. A part of the older ones is compared
whenever a round begins, so the cost does not grow with the session.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from connectagent.data import CORE_TYPES, TraceEntry
from connectagent.errors import HookResultError
from connectagent.session.observers import OUTSIDE
from connectagent.session.state import clone, same

OWN: dict[str, Any] = {"plugin": "connectagent"}  # by: what the loop itself changes
OLD_ENTRIES = 8  # how many entries of older rounds are compared when a round begins


class FollowedTrace:
    """The trace of a session, compared with copies of its entries.

    Args:
        entries: the session's own list.
        start: the index of the first entry of the newest round; None: all are older.

    Attributes:
        past: the entries before the newest round.
        newest: the entries of the newest round.
        copies: copies of the newest, as the loop knows them.
        start: the index of the first of them.
    """

    def __init__(self, entries: list[TraceEntry], start: int | None = None) -> None:
        self.entries = entries
        self.past: list[TraceEntry] = entries[:start]
        self._kept: list[TraceEntry] = list(map(clone, self.past)) if start is None else self.past  # copies
        self.newest: list[TraceEntry] = entries[start:] if start is not None else []
        self.copies: list[TraceEntry] = list(map(clone, self.newest))
        self.start = len(self.past)
        self._rearranged = False
        self._next = 0  # the next entry of the past to compare

    def begin_round(self) -> list[TraceEntry]:
        """Begin a new round. Restores a part of the older entries, and returns the entry that reports it."""
        del self.past[self.start :], self._kept[self.start :], self.copies[len(self.newest) :]
        self.past += self.newest
        self._kept += self.copies
        start = len(self.past)
        self.newest, self.copies, self.start = [], [], start
        first = self._next if self._next < self.start else 0
        self._next = behind = first + OLD_ENTRIES
        with contextlib.suppress(Exception):  # an entry that cannot be compared
            if self.past[first:behind] == self._kept[first:behind]:
                return []
        pairs = zip(self.past[first:behind], self._kept[first:behind], strict=True)
        restored = [str(copy["type"]) for entry, copy in pairs if self._mend(entry, copy)]
        return [{"type": "trace_restored", "by": OUTSIDE, "entries": restored}] if restored else []

    def append(self, entry: TraceEntry) -> None:
        """Add an entry."""
        copy = clone(entry)
        del self.copies[len(self.newest) :]  # what Ctrl-C cut off between these lines
        self.copies.append(copy)
        self.newest.append(entry)
        self.entries.append(entry)

    def copied(self, entry: TraceEntry) -> TraceEntry:
        """A copy of an entry that no longer changes."""
        return self.copies[-1] if self.newest and self.newest[-1] is entry else clone(entry)

    def amend(self, entry: TraceEntry, changed: dict[str, Any]) -> None:
        """Change an entry."""
        entry.update(changed)
        for originals, copies in ((self.newest, self.copies), (self.past, self._kept)):
            for index in range(len(originals) - 1, -1, -1):
                if originals[index] is entry:
                    copies[index] = clone(entry)
                    return

    def keeping_last(self, entry: TraceEntry, call: Any, run: Callable[[], Any]) -> Any:
        """Run the handlers of a hook's call; an entry is the last of the trace for each, whatever others added."""
        behind: list[TraceEntry] = []
        call.ready = partial(self._set_aside, entry, behind)
        try:
            return run()
        finally:
            if behind:
                self._set_aside(entry, behind)
            for later in behind:
                self.append(later)

    def _set_aside(self, entry: TraceEntry, behind: list[TraceEntry]) -> None:
        """Move the entries after one from the trace to the end of `behind`."""
        if not self.entries or self.entries[-1] is entry:
            return
        at = next((at for at in range(len(self.entries) - 1, -1, -1) if self.entries[at] is entry), None)
        if at is None:
            return
        if at < self.start:  # of an earlier round, in a resumed turn
            self.newest[:0], self.copies[:0] = self.past[at:], self._kept[at:]
            del self.past[at:], self._kept[at:]
            self.start = at
        behind += self.entries[at + 1 :]
        newer = at + 1 - self.start
        del self.entries[at + 1 :], self.newest[newer:], self.copies[newer:]

    def is_anchored(self) -> bool:
        """Whether the newest round still begins where it began."""
        start = self.start
        return not start or (len(self.entries) >= start and self.entries[start - 1] is self.past[-1])

    def restore(self) -> None:
        """Restore the trace."""
        self.entries[:] = [*self.past, *self.newest]
        for entry, copy in zip(self.newest, self.copies, strict=False):
            self._mend(entry, copy)

    def added(self, who: str) -> list[TraceEntry]:
        """The entries that handlers or tools have added.

        Raises:
            HookResultError: one of them is no entry, or has a type that only the loop may write.
        """
        known = {id(entry) for entry in self.newest}
        added = [entry for entry in self.entries[self.start :] if id(entry) not in known]
        self._rearranged = not self.is_anchored() or any(map(_is_of_core, added))
        if self._rearranged:  # older entries may stand among the new ones, or the other way round
            known |= {id(entry) for entry in self.past}
            added = [entry for entry in self.entries if id(entry) not in known]
        for entry in added:
            _check(entry, who)
        return added

    def take(self, added: list[TraceEntry], copies: list[TraceEntry]) -> list[str]:
        """Restore the trace with the added entries at its end; the types of the restored entries."""
        restored = [
            str(copy["type"]) for entry, copy in zip(self.newest, self.copies, strict=False) if self._mend(entry, copy)
        ]
        there = {id(entry) for entry in self.entries[min(self.start, len(self.entries)) :]}
        restored += [str(entry["type"]) for entry in self.newest if id(entry) not in there]
        if self._rearranged:
            self.entries[:] = self.past
            restored = restored or ["(their order)"]
        self.newest += added
        self.copies += copies
        self.entries[self.start :] = self.newest
        return restored

    @staticmethod
    def _mend(entry: TraceEntry, copy: TraceEntry) -> bool:
        """Restore an entry, and return whether it had changed."""
        if same(entry, copy):
            return False
        entry.clear()
        entry.update(clone(copy))
        return True


def _type_of(entry: Any) -> str | None:
    """The type of an entry; None of what is no entry. A class of its own may say otherwise than what is in it."""
    kind = dict.get(entry, "type") if isinstance(entry, dict) else None
    return str.__str__(kind) if isinstance(kind, str) else None


def _is_of_core(entry: Any) -> bool:
    return _type_of(entry) in CORE_TYPES


def _check(entry: Any, who: str) -> None:
    if _type_of(entry) is None:
        raise HookResultError(f"{who} left a trace entry that is not a dict with a 'type': {entry!r:.200}")
    if _is_of_core(entry):
        raise HookResultError(
            f"{who} added a trace entry of type {entry['type']!r}, as only connectagent does: give it a type of its own"
        )


class PendingEntries(threading.local):
    """The entries of the trace that were not announced yet; each thread announces its own.

    Attributes:
        causes: the handlers and tools that caused the entry that is being announced; None: none is being announced.
        entries: what comes after it, each with its causes.
    """

    causes: list[Any] | None = None
    entries: Sequence[tuple[TraceEntry, list[Any]]] = ()
