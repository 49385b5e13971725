"""Which writes to a state are lost, where agents and tools work on copies of it at the same time.

A write is lost if it can no longer be seen once the change of somebody is merged who worked on a copy made before it.
Who writes on what is there, one after the other, loses nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

from connectagent.session.journal import LOST_UPDATE
from connectagent.session.snapshot import By, same
from connectagent.session.state import StateChange, is_temporary, lasting

_ABSENT = object()
Path = tuple[Any, ...]  # of keys: of the state, of a dict in it, and so on
LostWrite = dict[str, Any]  # as an entry has it: see `session.entries`
Kind = Literal["value", "appended", "removed"]


@dataclass(eq=False)
class Write:
    """One write to a state: the value of a key, items at the end of a list, or the removal of a key."""

    path: Path
    kind: Kind
    value: Any
    by: By
    owner: object
    at: int = 0  # of items in a list: where they were seen last

    def is_seen(self, state: object) -> bool:
        """Whether a state shows it."""
        there = state
        for key in self.path:
            there = there.get(key, _ABSENT) if isinstance(there, dict) else _ABSENT
        if self.kind == "removed" or there is _ABSENT:
            return self.kind == "removed" and there is _ABSENT
        if type(self.value) is not list or type(there) is not list:
            return same(there, self.value)
        for at in chain((self.at,), range(len(there) - len(self.value) + 1)):
            if same(there[at : at + len(self.value)], self.value):
                self.at = at
                return True
        return False

    def as_data(self) -> LostWrite:
        """The write in the form of an entry."""
        what = True if self.kind == "removed" else lasting(self.value)
        return {"key": list(self.path), self.kind: what, "by": self.by}


def writes_in(change: StateChange, by: By, owner: object, path: Path = ()) -> Iterator[Write]:
    """The single writes of a change, without keys that live for one turn."""
    for name in ("delta", "appended"):
        for key, value in (change.get(name) or {}).items():
            yield from _writes_of(value, (*path, key), "appended" if name == "appended" else "value", by, owner)
    for key, inner in (change.get("inside") or {}).items():
        if not is_temporary(key):
            yield from writes_in(inner, by, owner, (*path, key))
    for key in change.get("removed") or ():
        if not is_temporary(key):
            yield Write((*path, key), "removed", None, by, owner)


def _writes_of(value: object, path: Path, kind: Kind, by: By, owner: object) -> Iterator[Write]:
    if is_temporary(path[-1]):
        return
    if type(value) is dict and value:
        for key, item in value.items():
            yield from _writes_of(item, (*path, key), kind, by, owner)
    else:
        yield Write(path, "appended" if kind == "appended" and type(value) is list else "value", value, by, owner)


@dataclass(eq=False)
class Copy:
    """A copy of the state, on which somebody works.

    Args:
        begins: how many writes were known when it was made.
        base: the state as it was copied; None where that is not known.
        owner: who works on it: its own writes are never lost to it.
        writes: those to the state of which it is a copy.
    """

    begins: int
    base: dict[str, Any] | None
    owner: object
    writes: StateWrites

    def close(self) -> None:
        """Note that nobody works on it any more."""
        self.writes.close(self)


class StateWrites:
    """The writes to one session's state while somebody works on a copy of it."""

    def __init__(self) -> None:
        self._copies: list[Copy] = []
        self._writes: list[Write | None] = []  # None for one that is not seen any more
        self._lock = threading.RLock()
        self.owner: object = None  # for whom the turn's own thread works

    def copied(self, base: dict[str, Any] | None = None, owner: object = None) -> Copy:
        """Note that somebody begins to work on a copy; `close()` it."""
        with self._lock:
            copy = Copy(len(self._writes), base, object() if owner is None else owner, self)
            self._copies.append(copy)
            return copy

    def close(self, copy: Copy) -> None:
        """Note that nobody works on a copy any more."""
        with self._lock:
            self._copies = [one for one in self._copies if one is not copy]
            if not self._copies:
                self._writes.clear()

    @property
    def are_noted(self) -> bool:
        """Whether somebody works on a copy."""
        return bool(self._copies)

    def note(self, change: StateChange, by: By, state: dict[str, Any], copy: Copy | None = None) -> list[LostWrite]:
        """Note a change after it was merged; the writes of others that it has made invisible without having seen them.

        Args:
            change: the change.
            by: who made it.
            state: the state after it.
            copy: on which it was made; None where it was made in the state itself, with all that was there.
        """
        with self._lock:
            gone = self._take_gone(change, state)
            owner = self.owner if copy is None else copy.owner
            if any(one is not copy for one in self._copies):
                self._add(one for one in writes_in(change, by, owner) if one.is_seen(state))
            if copy is None:
                return []
            others = (one for at, one in gone if at >= copy.begins and one.owner is not copy.owner)
            return [one.as_data() for one in others if copy.base is None or not one.is_seen(copy.base)]

    def _take_gone(self, change: StateChange, state: dict[str, Any]) -> list[tuple[int, Write]]:
        """Take out the writes that a state does not show any more after a change, each with its number."""
        touched = {key for part in change.values() if isinstance(part, dict | list) for key in part}
        gone: list[tuple[int, Write]] = []
        for at, write in enumerate(self._writes):
            if write is not None and write.path[0] in touched and not write.is_seen(state):
                gone.append((at, write))
                self._writes[at] = None
        return gone

    def _add(self, writes: Iterable[Write]) -> None:
        """Add writes; one that is known, as the log has it twice, counts once."""
        known = {(one.path, repr(one.by)): one for one in self._writes if one is not None}
        for one in writes:
            there = known.get((one.path, repr(one.by)))
            if there is None or there.kind != one.kind or not same(there.value, one.value):
                self._writes.append(one)

    def oldest(self) -> Copy | None:
        """The copy that was made first of those that are worked on, for a change of which only the end is known."""
        return Copy(0, None, object(), self) if self._copies else None


def lost_update(by: By, lost: Sequence[LostWrite]) -> dict[str, Any]:
    """The entry that says that a merged change has overwritten what others wrote meanwhile."""
    return {"type": LOST_UPDATE, "by": by, "lost": list(lost)}
