"""Copies: of values, and of the session, which is compared with it when handlers and tools have run.

The snapshot equals the session whenever a handler or tool is about to run. Afterwards one comparison finds
whether anything changed (about 0.1 microseconds a message, since unchanged strings are the same objects).
If a handler raises, its changes are rolled back to the snapshot.

The trace only grows: entries that handlers and tools add are found, and changes of older entries are undone.
The entries of the newest round are compared each time a handler or tool has run. A part of the older ones is compared
whenever a round begins, so the cost does not grow with the session.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from copy import copy as shallow_copy
from functools import partial
from typing import Any, Protocol

from connectagent.data import Content, Message, TraceEntry
from connectagent.session.observers import OUTSIDE

By = dict[str, Any]
OLD_ENTRIES = 8  # how many entries of older rounds are compared when a round begins
ATOMS = frozenset({str, int, float, bool, type(None), bytes, complex})


def same(left: object, right: object) -> bool:
    """Whether two values are equal; False if they cannot be compared, like arrays."""
    try:
        return left is right or bool(left == right)
    except Exception:
        return False


def clone(value: object) -> Any:
    """A copy of a value with plain dicts and lists; everything else in it is shared."""
    if isinstance(value, dict):
        copied = {**value}
        for key, item in copied.items():
            if type(item) not in ATOMS:
                copied[key] = clone(item)
        return copied
    if isinstance(value, list):
        listed = [*value]
        for index, item in enumerate(listed):
            if type(item) not in ATOMS:
                listed[index] = clone(item)
        return listed
    return value


def copy_of(value: Any) -> Any:
    """A copy of a value of the state that later changes of the value do not affect.

    Dicts, lists, tuples, sets, deques, their subclasses, dataclasses and pydantic models are copied, with what
    they hold. Everything else is shared: replacing it is noticed, a change inside it is not.
    """
    kind = type(value)
    if kind in ATOMS:
        return value
    if kind is dict:
        copied = dict(value)
        for key, item in copied.items():
            if type(item) not in ATOMS:
                copied[key] = copy_of(item)
        return copied
    if kind is list:
        return list(map(copy_of, value))
    try:
        copied = _copied(value)
    except RecursionError:
        raise
    except Exception:  # a class that cannot be copied this way
        return value
    return copied if type(copied) is kind and same(copied, value) else value


def _copied(value: Any) -> Any:
    """A copy of a container other than a plain dict or list; the value itself if it is no container."""
    kind = type(value)
    if isinstance(value, tuple):
        return tuple.__new__(kind, map(copy_of, value))
    if isinstance(value, set | bytearray):
        return shallow_copy(value)
    if isinstance(value, dict | list | deque):
        copied = shallow_copy(value)
        for key, item in list(copied.items() if isinstance(copied, dict) else enumerate(copied)):
            copied[key] = copy_of(item)
        return copied
    fields = getattr(kind, "__dataclass_fields__", None) or getattr(kind, "__pydantic_fields__", None)
    if not fields or hasattr(kind, "__del__"):  # its __del__ may close what a copy shares
        return value
    copied = shallow_copy(value)
    for name in fields:
        object.__setattr__(copied, name, copy_of(getattr(value, name)))
    return copied


class Preparing(Protocol):
    """The call of a hook, which gets a function that runs before each of its handlers."""

    ready: Callable[[], None]


class Snapshot:
    """A copy of the session, up to date whenever handlers or tools begin to run.

    The loop changes messages through methods of the snapshot and everything else freely; `sync` copies the
    latter before a handler or tool runs.
    """

    def __init__(self, session: dict[str, Any], start: int | None = None) -> None:
        self.session = session
        self.messages: list[Message] = session["messages"]  # the list objects must stay the same
        self.trace: list[TraceEntry] = session["trace"]
        # Of each message what stands for it in digests, as far as it was needed.
        self.marks: list[bytes | None] = [None] * len(self.messages)
        self.marked = 0  # the messages before it are as they were when a digest was made last
        self.originals: list[Message] = list(self.messages)
        self.valid = 0  # how many messages from the start are known to be valid: see `Conversation.mend`
        messages, state = list(map(clone, self.messages)), copy_of(session["state"])
        self.copy: dict[str, Any] = {"messages": messages, "state": state}
        self.deltas: dict[int, dict[str, Any]] = {}  # by id(by): what its call has changed in the state
        self.on_state: Callable[[By, dict[str, Any]], None] | None = None  # told who changed it, and what it was
        self.traced = FollowedTrace(self.trace, start)
        self.pending: dict[str, Any] | None = session.get("pending_tool")  # the object that the loop has put there
        self.pending_changed = False  # whether a handler has changed pending calls, and asked for something since
        self.sync()

    def replaced(self, start: int, end: int, count: int) -> None:
        """Note that so many messages are in place of those from `start` to `end`."""
        self.marks[start:end] = [None] * count
        self.marked = min(self.marked, start)

    def insert(self, message: Message, index: int | None = None) -> None:
        """Add a message to the conversation and to the snapshot, at the end or before the snapshot's `index`."""
        copied = clone(message)  # before a thread can change it
        if index is None or index >= len(self.originals):
            index = len(self.originals)
            self.messages.append(message)
        else:
            self.messages.insert(self._place(index), message)
        self.originals.insert(index, message)
        self.copy["messages"].insert(index, copied)
        self.marks.insert(index, None)
        self.marked = min(self.marked, index)
        self.valid = min(self.valid, index)

    def _place(self, index: int) -> int:
        """Where a message of the snapshot stands in the conversation, in which a thread may have moved it by now."""
        now = list(self.messages)
        original = self.originals[index]
        if index < len(now) and now[index] is original:
            return index
        return next((at for at, message in enumerate(now) if message is original), min(index, len(now)))

    def adopt(self, messages: list[Message]) -> None:
        """Make the conversation what was made from the snapshot's own copies.

        Args:
            messages: these copies in another order, without some of them, or with new messages among them.
        """
        known = {id(copy): original for copy, original in zip(self.copy["messages"], self.originals, strict=True)}
        originals = [known[id(one)] if id(one) in known else clone(one) for one in messages]
        theirs = {id(one) for one in self.originals}
        strayed = [one for one in list(self.messages) if id(one) not in theirs]  # of a thread, a moment ago
        self.messages[:] = [*originals, *strayed]
        self.originals = originals
        self.copy["messages"] = list(messages)
        self.marks[:] = [None] * len(messages)
        self.marked = 0
        self.valid = 0

    def set_content(self, message: Message, content: Content) -> None:
        """Change the content of a message of the conversation."""
        message["content"] = content
        for index in range(len(self.originals) - 1, -1, -1):
            if self.originals[index] is message:
                self.copy["messages"][index]["content"] = clone(content)
                self.replaced(index, index + 1, 1)
                return

    def replace(self, message: Message, other: Message) -> None:
        """Replace the content of a message by that of another one; the message stays the same object."""
        for index, original in enumerate(self.originals):
            if original is message:
                message.clear()  # type: ignore[attr-defined]  # a TypedDict is a dict at run time
                message.update(clone(other))
                self.copy["messages"][index] = clone(other)
                self.replaced(index, index + 1, 1)
                self.valid = min(self.valid, index)
                return

    def remove(self, index: int) -> None:
        """Take a message out of the conversation."""
        del self.messages[index], self.originals[index], self.copy["messages"][index]
        self.replaced(index, index + 1, 0)
        self.valid = min(self.valid, max(index - 1, 0))  # not all of them: the last may have been a result

    def remove_one(self, message: Message) -> None:
        """Take a message out of the conversation, if it is there."""
        index = next((index for index, one in enumerate(self.messages) if one is message), None)
        if index is not None:
            self.remove(index)

    def sync(self) -> None:
        """Copy what the loop changed, except messages and state, which have methods of their own."""
        copy, session = self.copy, self.session
        if len(copy) != len(session):
            for key in copy.keys() - session:
                del copy[key]
        copy["trace"] = self.trace
        for key, value in session.items():
            if value is copy.get(key, self) or key == "messages" or key == "state" or key == "trace":
                continue
            if type(value) is not dict and type(value) is not list:
                copy[key] = value
            elif not same(value, copy.get(key)):  # a comparison costs a tenth of a copy
                copy[key] = clone(value)

    def unchanged(self) -> bool:
        """Whether the session is what it was at the last `sync`."""
        session = self.session
        if session.get("messages") is not self.messages or session.get("trace") is not self.trace:
            return False  # an equal copy would hide what the loop adds
        trace, traced = self.trace, self.traced
        start = traced.start
        if len(trace) != start + len(traced.copies) or (start and trace[start - 1] is not traced.past[-1]):
            return False
        try:
            return bool(session == self.copy and trace[start:] == traced.copies)
        except Exception:  # something that cannot be compared, like an array
            return False

    def has_strayed(self) -> bool:
        """Whether messages, state or trace changed while only the loop was running."""
        session, copy, traced = self.session, self.copy, self.traced
        kept = same(session.get("messages"), copy["messages"]) and same(session.get("state"), copy["state"])
        return not kept or not same(self.trace[traced.start :], traced.copies)

    def restore(self) -> None:
        """Put the session back to what it was at the last `sync`; lists and messages stay the same objects."""
        for original, copy in zip(self.originals, self.copy["messages"], strict=True):
            if not same(original, copy):
                original.clear()  # type: ignore[attr-defined]  # a TypedDict is a dict at run time
                original.update(clone(copy))
        self.messages[:] = self.originals
        self.traced.restore()
        kept = {key: clone(value) for key, value in self.copy.items() if key != "state"}
        kept["state"] = copy_of(self.copy["state"])
        state = self.session.get("state")
        self.session.clear()
        self.session.update(kept, messages=self.messages, trace=self.trace)
        if isinstance(state, dict):
            state.clear()
            state.update(kept["state"])
            self.session["state"] = state


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
        self.rearranged = False
        self._next = 0  # the next entry of the past to compare

    def begin_round(self) -> TraceEntry | None:
        """Begin a new round. Restores a part of the older entries; the entry that reports it, if they had changed."""
        del self.past[self.start :], self._kept[self.start :], self.copies[len(self.newest) :]
        self.past += self.newest
        self._kept += self.copies
        start = len(self.past)
        self.newest, self.copies, self.start = [], [], start
        first = self._next if self._next < self.start else 0
        self._next = behind = first + OLD_ENTRIES
        with contextlib.suppress(Exception):  # an entry that cannot be compared
            if self.past[first:behind] == self._kept[first:behind]:
                return None
        pairs = zip(self.past[first:behind], self._kept[first:behind], strict=True)
        restored = [str(copy["type"]) for entry, copy in pairs if self._mend(entry, copy)]
        return {"type": "trace_restored", "by": OUTSIDE, "entries": restored} if restored else None

    def append(self, entry: TraceEntry) -> TraceEntry:
        """Add an entry; the copy of it, which no longer changes."""
        copy: TraceEntry = clone(entry)
        del self.copies[len(self.newest) :]  # what Ctrl-C cut off between these lines
        self.copies.append(copy)
        self.newest.append(entry)
        self.entries.append(entry)
        return copy

    def amend(self, entry: TraceEntry, changed: dict[str, Any]) -> TraceEntry:
        """Change an entry; the copy of it, which no longer changes."""
        entry.update(changed)
        copy: TraceEntry = clone(entry)
        for originals, copies in ((self.newest, self.copies), (self.past, self._kept)):
            for index in range(len(originals) - 1, -1, -1):
                if originals[index] is entry:
                    copies[index] = copy
                    return copy
        return copy

    def keeping_last(self, entry: TraceEntry, call: Preparing, run: Callable[[], Any]) -> Any:
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

    def take(self, added: list[TraceEntry], copies: list[TraceEntry]) -> list[str]:
        """Restore the trace with the added entries at its end; the types of the restored entries."""
        restored = [
            str(copy["type"]) for entry, copy in zip(self.newest, self.copies, strict=False) if self._mend(entry, copy)
        ]
        there = {id(entry) for entry in self.entries[min(self.start, len(self.entries)) :]}
        restored += [str(entry["type"]) for entry in self.newest if id(entry) not in there]
        if self.rearranged:
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
