"""What handlers and tools changed in the messages, as entries of the trace; what they may add to the trace."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from connectagent.data import CORE_TYPES, Message, TraceEntry
from connectagent.errors import HookResultError
from connectagent.session.messages import message_problem
from connectagent.session.state import clone, same

By = dict[str, Any]


def who(by: By) -> str:
    """A handler or tool, with the place of its code, as errors name it."""
    return f"{by.get('handler') or by.get('tool') or by.get('plugin')} ({by.get('file')}:{by.get('line')})"


def message_changes(
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
    gone, come = old[changed], new[first : len(new) - last]
    for message in come:
        if by is not None and (problem := message_problem(message)):
            raise HookResultError(f"{who(by)} left a message that no model accepts, {message!r}: {problem}")
    kept = _kept(originals[changed], come)
    come = clone(come)
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


def _type_of(entry: Any) -> str | None:
    """The type of an entry; None of what is no entry. A class of its own may say otherwise than what is in it."""
    kind = dict.get(entry, "type") if isinstance(entry, dict) else None
    return str.__str__(kind) if isinstance(kind, str) else None


def is_of_core(entry: Any) -> bool:
    """Whether something is an entry of a type that only the loop may write."""
    return _type_of(entry) in CORE_TYPES


def check_entry(entry: Any, by: By) -> None:
    """Check an entry that a handler or tool has added.

    Raises:
        HookResultError: it is no entry, or has a type that only the loop may write.
    """
    if _type_of(entry) is None:
        raise HookResultError(f"{who(by)} left a trace entry that is not a dict with a 'type': {entry!r:.200}")
    if is_of_core(entry):
        raise HookResultError(
            f"{who(by)} added a trace entry of type {entry['type']!r}, as only connectagent does: "
            "give it a type of its own"
        )
