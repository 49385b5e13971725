"""A snapshot of the session, compared with it before and after handlers and tools to find who changed what.

The snapshot equals the session whenever a handler or tool is about to run. Afterwards one comparison finds
whether anything changed (about 0.1 microseconds a message, since unchanged strings are the same objects).
If a handler raises, its changes are rolled back to the snapshot.

The trace only grows: entries that handlers and tools add are found, and changes of older entries are undone.
The entries of the newest round are compared each time a handler or tool has run. A part of the older ones is compared
whenever a round begins, so the cost does not grow with the session.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

from connectagent.data import Message, TraceEntry
from connectagent.errors import HookResultError
from connectagent.session.changes import check_entry, is_of_core, message_changes, who
from connectagent.session.messages import message_problem
from connectagent.session.observers import OUTSIDE
from connectagent.session.state import clone, copy_of, joined, same, state_delta

By = dict[str, Any]
OLD_ENTRIES = 8  # how many entries of older rounds are compared when a round begins


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
        self.traced = FollowedTrace(self.trace, start)
        self.sync()

    def _replaced(self, start: int, end: int, count: int) -> None:
        """Note that so many messages are in place of those from `start` to `end`."""
        self.marks[start:end] = [None] * count
        self.marked = min(self.marked, start)

    def insert(self, message: Message, index: int | None = None) -> None:
        """Add a message to the conversation and to the snapshot, at the end or before `index`."""
        index = len(self.messages) if index is None else index
        self.messages.insert(index, message)
        self.originals.insert(index, message)
        self.copy["messages"].insert(index, clone(message))
        self.marks.insert(index, None)
        self.marked = min(self.marked, index)
        self.valid = min(self.valid, index)

    def set_content(self, message: Message, content: Any) -> None:
        """Change the content of a message of the conversation."""
        message["content"] = content
        for index in range(len(self.originals) - 1, -1, -1):
            if self.originals[index] is message:
                self.copy["messages"][index]["content"] = clone(content)
                self._replaced(index, index + 1, 1)
                return

    def replace(self, message: Message, other: Message) -> None:
        """Replace the content of a message by that of another one; the message stays the same object."""
        for index, original in enumerate(self.originals):
            if original is message:
                message.clear()  # type: ignore[attr-defined]  # a TypedDict is a dict at run time
                message.update(clone(other))
                self.copy["messages"][index] = clone(other)
                self._replaced(index, index + 1, 1)
                self.valid = min(self.valid, index)
                return

    def remove(self, index: int) -> None:
        """Take a message out of the conversation."""
        del self.messages[index], self.originals[index], self.copy["messages"][index]
        self._replaced(index, index + 1, 0)
        self.valid = min(self.valid, index)

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

    def changes(self, by: By) -> list[TraceEntry]:
        """The trace entries for what has changed since the last `sync`; brings the snapshot up to date.

        Raises:
            HookResultError: the session has a form that no provider would accept.
        """
        session, copy = self.session, self.copy
        self._check_containers(by)
        added = self.traced.added(by)
        try:  # everything that can fail comes first: `restore` needs the old snapshot
            state, delta = copy["state"], {}
            if not same(session["state"], state):
                state, delta = copy_of(session["state"]), state_delta(state, session["state"])
            keys = {*session, *copy} - {"messages", "state", "trace"}
            changed = {key: clone(session.get(key)) for key in keys if not same(session.get(key), copy.get(key))}
            for entry in added:
                for key in ("at", "author", "branch"):  # as `by`: not taken from the handler
                    entry.pop(key, None)
                entry["by"] = by
            copies = clone(added)
            entries = self.take_messages(by)
        except RecursionError:
            raise HookResultError(f"{who(by)} left the session nested too deep, or in a circle") from None
        copy["state"] = state
        if delta:
            entries.append({"type": "state_delta", "by": by, **delta})
            self.deltas[id(by)] = joined(self.deltas.get(id(by), {}), delta)
        if changed:
            entries.append({"type": "session_delta", "by": by, "delta": changed})
        if restored := self.traced.take(added, copies):
            entries.append({"type": "trace_restored", "by": by, "entries": restored})
        self.sync()
        return [*added, *entries]

    def take_messages(self, by: By | None = None) -> list[TraceEntry]:
        """Bring the copies of the messages up to date; entries that turn the old messages into the new ones, in order.

        Args:
            by: who changed them; None: the loop itself, whose messages are not checked.

        Raises:
            HookResultError: a message has a form that no provider would accept.
        """
        copies = self.copy["messages"]
        changed, come, entries = message_changes(by, copies, self.originals, self.messages)
        if changed.start < changed.stop or come:
            self.valid = min(self.valid, changed.start)
            self._replaced(changed.start, changed.stop, len(come))
        copies[changed] = come
        self.originals = list(self.messages)
        return entries

    def _check_containers(self, by: By) -> None:
        session, name = self.session, who(by)
        messages = session.get("messages")
        if messages is not self.messages:
            if not isinstance(messages, list):
                raise HookResultError(f"{name} left current_session['messages'] as {messages!r}; it must stay a list")
            self.messages[:] = messages
            session["messages"] = self.messages
        if session.get("trace") is not self.trace:
            raise HookResultError(f"{name} replaced current_session['trace']; append to it instead")
        if not isinstance(session.get("state"), dict):
            state = session.get("state")
            raise HookResultError(f"{name} left current_session['state'] as {state!r}; it must stay a dict")
        for key in ("turn", "iteration"):
            if not isinstance(session.get(key), int | float):  # 1.0 and True are equal to 1, and as good
                value = session.get(key)
                raise HookResultError(f"{name} left current_session[{key!r}] as {value!r}; it must stay an int")


def session_problem(session: dict[str, Any]) -> str | None:
    """Why a dict cannot be a session, or None if it can."""
    for key, kind in (("messages", list), ("trace", list), ("state", dict), ("turn", int), ("iteration", int)):
        if type(session.get(key)) is not kind:
            return f"its {key!r} must be a {kind.__name__}, not {session.get(key)!r:.80}"
    for message in session["messages"]:
        if problem := message_problem(message):
            return f"{problem}, not {message!r:.80}"
    return None


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

    def added(self, by: By) -> list[TraceEntry]:
        """The entries that handlers or tools have added.

        Raises:
            HookResultError: one of them is no entry, or has a type that only the loop may write.
        """
        known = {id(entry) for entry in self.newest}
        added = [entry for entry in self.entries[self.start :] if id(entry) not in known]
        self._rearranged = not self.is_anchored() or any(map(is_of_core, added))
        if self._rearranged:  # older entries may stand among the new ones, or the other way round
            known |= {id(entry) for entry in self.past}
            added = [entry for entry in self.entries if id(entry) not in known]
        for entry in added:
            check_entry(entry, by)
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
