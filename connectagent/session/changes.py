"""What handlers, tools and the program changed in the session, as entries of the trace."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from connectagent.data import CORE_TYPES, Message, TraceEntry
from connectagent.errors import HookResultError
from connectagent.session.messages import message_problem
from connectagent.session.snapshot import By, FollowedTrace, Snapshot, clone, copy_of, same
from connectagent.session.state import joined, state_delta


def session_problem(session: dict[str, Any]) -> str | None:
    """Why a dict cannot be a session, or None if it can."""
    for key, kind in (("messages", list), ("trace", list), ("state", dict), ("turn", int), ("iteration", int)):
        if type(session.get(key)) is not kind:
            return f"its {key!r} must be a {kind.__name__}, not {session.get(key)!r:.80}"
    for message in session["messages"]:
        if problem := message_problem(message):
            return f"{problem}, not {message!r:.80}"
    return None


def take_changes(snapshot: Snapshot, by: By) -> list[TraceEntry]:
    """Bring a snapshot up to date with what somebody changed since the last `sync`; the entries of the trace for it.

    Raises:
        HookResultError: the session has a form that no provider would accept; the changes are undone.
    """
    try:
        return _take_changes(snapshot, by)
    except HookResultError:
        snapshot.restore()
        raise


def _take_changes(snapshot: Snapshot, by: By) -> list[TraceEntry]:
    session, copy, traced = snapshot.session, snapshot.copy, snapshot.traced
    _check_containers(snapshot, by)
    added = _added(traced, by)
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
        entries = take_messages(snapshot, by)
    except RecursionError:
        raise HookResultError(f"{_who(by)} left the session nested too deep, or in a circle") from None
    before, copy["state"] = copy["state"], state
    if state is not before and snapshot.on_state is not None:
        snapshot.on_state(by, before)
    if delta:
        entries.append({"type": "state_delta", "by": by, **delta})
        snapshot.deltas[id(by)] = joined(snapshot.deltas.get(id(by), {}), delta)
    if not changed.keys().isdisjoint(("pending_tool", "pending_tools")):
        snapshot.pending_changed = True
    if changed:
        entries.append({"type": "session_delta", "by": by, "delta": changed})
    if restored := traced.take(added, copies):
        entries.append({"type": "trace_restored", "by": by, "entries": restored})
    snapshot.sync()
    return [*added, *entries]


def _check_containers(snapshot: Snapshot, by: By) -> None:
    session, who = snapshot.session, _who(by)
    messages = session.get("messages")
    if messages is not snapshot.messages:
        if not isinstance(messages, list):
            raise HookResultError(f"{who} left current_session['messages'] as {messages!r}; it must stay a list")
        snapshot.messages[:] = messages
        session["messages"] = snapshot.messages
    if session.get("trace") is not snapshot.trace:
        raise HookResultError(f"{who} replaced current_session['trace']; append to it instead")
    if not isinstance(session.get("state"), dict):
        state = session.get("state")
        raise HookResultError(f"{who} left current_session['state'] as {state!r}; it must stay a dict")
    if "id" in snapshot.copy and session.get("id") != snapshot.copy["id"]:  # the record is found by it
        raise HookResultError(f"{who} left current_session['id'] as {session.get('id')!r}; it must stay what it is")
    for key in ("turn", "iteration"):
        if not isinstance(session.get(key), int | float):  # 1.0 and True are equal to 1, and as good
            value = session.get(key)
            raise HookResultError(f"{who} left current_session[{key!r}] as {value!r}; it must stay an int")


def _added(traced: FollowedTrace, by: By) -> list[TraceEntry]:
    """The entries that handlers or tools have added.

    Raises:
        HookResultError: one of them is no entry, or has a type that only the loop may write.
    """
    known = {id(entry) for entry in traced.newest}
    added = [entry for entry in traced.entries[traced.start :] if id(entry) not in known]
    traced.rearranged = not traced.is_anchored() or any(map(_is_of_core, added))
    if traced.rearranged:  # older entries may stand among the new ones, or the other way round
        known |= {id(entry) for entry in traced.past}
        added = [entry for entry in traced.entries if id(entry) not in known]
    for entry in added:
        if _type_of(entry) is None:
            raise HookResultError(f"{_who(by)} left a trace entry that is not a dict with a 'type': {entry!r:.200}")
        if _is_of_core(entry):
            kind = f"of type {entry['type']!r}, as only connectagent does: give it a type of its own"
            raise HookResultError(f"{_who(by)} added a trace entry {kind}")
    return added


def _is_of_core(entry: object) -> bool:
    return _type_of(entry) in CORE_TYPES


def _type_of(entry: object) -> str | None:
    """The type of an entry; None of what is no entry. A class of its own may say otherwise than what is in it."""
    kind = dict.get(entry, "type") if isinstance(entry, dict) else None
    return str.__str__(kind) if isinstance(kind, str) else None


def take_messages(snapshot: Snapshot, by: By | None = None) -> list[TraceEntry]:
    """Bring a snapshot's copies of the messages up to date; entries that turn the old into the new ones, in order.

    Args:
        snapshot: the snapshot.
        by: who changed them; None: the loop itself, whose messages are not checked.

    Raises:
        HookResultError: a message has a form that no provider would accept.
    """
    copies = snapshot.copy["messages"]
    now = list(snapshot.messages)  # once: a thread may change them at any moment
    changed, come, entries = _message_changes(by, copies, snapshot.originals, now)
    if changed.start < changed.stop or come:
        snapshot.valid = min(snapshot.valid, max(changed.start - 1, 0))  # not all of them, if the last ones are gone
        snapshot.replaced(changed.start, changed.stop, len(come))
    copies[changed] = come
    snapshot.originals = now
    return entries


def _message_changes(
    by: By | None, old: list[Message], originals: list[Message], new: list[Message]
) -> tuple[slice, list[Message], list[TraceEntry]]:
    """What turns the old messages into the new ones.

    Args:
        by: who changed them; None: the loop itself, whose messages are not checked.
        old: copies of the old messages, as they were.
        originals: the old messages themselves.
        new: the new messages.

    Returns:
        Which of the old messages are to be replaced, copies of those in their place, and the entries of the trace,
        which are applied in order.

    Raises:
        HookResultError: a message has a form that no provider would accept.
    """
    first, shorter = 0, min(len(old), len(new))
    while first < shorter and same(old[first], new[first]):
        first += 1
    last = 0
    while last < shorter - first and same(old[-1 - last], new[-1 - last]):
        last += 1
    changed = slice(first, len(old) - last)
    gone = old[changed]
    kept = _kept(originals[changed], new[first : len(new) - last])
    come = clone(new[first : len(new) - last])  # what is checked is what is kept
    for message in come:
        if by is not None and (problem := message_problem(message)):
            raise HookResultError(f"{_who(by)} left a message that no model accepts, {message!r}: {problem}")
    entries: list[TraceEntry] = []
    at, start = 0, 0
    for was, now in [*kept, (len(gone), len(come))]:
        entries += _edits(by, first + start, gone[at:was], come[start:now])
        if now < len(come) and not same(gone[was], come[now]):
            entries.append({"type": "message_edited", "by": by, "index": first + now, "message": come[now]})
        at, start = was + 1, now + 1
    return changed, clone(come), entries


def _kept(old: list[Message], new: list[Message]) -> list[tuple[int, int]]:
    """The old and new places of the messages that remain in the same order in both lists."""
    places = {id(message): index for index, message in enumerate(old)}
    ends: list[int] = []  # by length: the old place at which the best chain so far ends
    chains: list[tuple[Any, ...]] = []  # (old place, new place, the chain before)
    for now, message in enumerate(new):
        was = places.pop(id(message), None)
        if was is not None:
            length = bisect_left(ends, was)
            ends[length : length + 1] = [was]
            chains[length : length + 1] = [(was, now, chains[length - 1] if length else None)]
    kept, chain = [], chains[-1] if chains else None
    while chain:
        kept.append(chain[:2])
        chain = chain[2]
    return kept[::-1]


def _edits(by: By | None, first: int, gone: list[Message], come: list[Message]) -> list[TraceEntry]:
    """Entries that replace some messages by others."""
    edits = min(len(gone), len(come))
    entries: list[TraceEntry] = []
    for index in range(edits):
        if not same(gone[index], come[index]):
            entries.append({"type": "message_edited", "by": by, "index": first + index, "message": come[index]})
    for index in range(len(gone) - 1, edits - 1, -1):
        entries.append({"type": "message_removed", "by": by, "index": first + index})
    for index in range(edits, len(come)):
        entries.append({"type": "message", "by": by, "index": first + index, "message": come[index]})
    return entries


def _who(by: By) -> str:
    """A handler or tool, with the place of its code, as errors name it."""
    return f"{by.get('handler') or by.get('tool') or by.get('plugin')} ({by.get('file')}:{by.get('line')})"
