"""The messages of a conversation, each with who made and changed it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from connectagent.data import Message, TraceEntry
from connectagent.session.journal import only_says_stopped
from connectagent.session.snapshot import By, clone


@dataclass(slots=True)
class MessageChange:
    """One change of a message.

    Args:
        did: `added`, `edited` or `removed`.
        by: who: `{"user": ...}`, `{"model": name}`, `{"tool": name}`, or the `by` of a handler.
        entry: the number of its trace entry, from 0, over the whole session.
        turn: the turn in which it happened.
        iteration: the iteration, 0 before the first.
        message: the message afterwards; None if it was removed.
    """

    did: str
    by: By
    entry: int
    turn: int
    iteration: int
    message: Message | None


@dataclass(slots=True)
class Line:
    """One message of the conversation, and its changes, the oldest first."""

    message: Message
    changes: list[MessageChange]


Said = tuple[Message, By, Line, int]
"""A message, who made it or changed it last, its line, and how many changes that had."""


class Messages(Sequence[Message]):
    """The messages of lines, without a list of them."""

    def __init__(self, lines: list[Line]) -> None:
        self._lines = lines

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, index: Any) -> Any:
        return self._lines[index].message


class UntilResumed:
    """What a turn changes in its messages until it is resumed, and what its resumed self does not have.

    Attributes:
        void: the entries (by Python's id) that do so, besides those which say that a call was not run.
    """

    def __init__(self) -> None:
        self.void: set[int] = set()
        self._removed: list[tuple[Line, list[Line]]] = []  # each with the lines before it

    def remove(self, lines: list[Line], index: int) -> int:
        """Take a line away until the turn is resumed; its index."""
        self.keep(lines[index], lines[:index])
        del lines[index]
        return index

    def keep(self, line: Line, before: list[Line]) -> None:
        """Keep a line that is away until the turn is resumed; `before`: the lines before it."""
        self._removed.append((line, before))

    def leave(self, lines: list[Line], entries: list[TraceEntry], turn: int) -> int:
        """Undo it, as the turn is resumed; the index before which nothing has changed.

        Args:
            lines: the messages of the conversation.
            entries: all entries, whose numbers the changes of lines hold.
            turn: the turn.
        """
        first = len(lines)
        while self._removed:
            line, before = self._removed.pop()
            known = {id(one) for one in before}
            index = max((at + 1 for at, there in enumerate(lines) if id(there) in known), default=0)
            lines.insert(index, line)
            first = min(first, index)
        for index in range(len(lines) - 1, -1, -1):
            line = lines[index]
            changes = [one for one in line.changes if not self._is_undone(one, entries, turn)]
            if len(changes) == len(line.changes):
                continue
            first = min(first, index)
            if not changes or changes[0] is not line.changes[0]:
                del lines[index]
            elif line.changes[-1] is not changes[-1] and changes[-1].message is not None:
                line.message = clone(changes[-1].message)
            line.changes = changes
        return first

    def _is_undone(self, change: MessageChange, entries: list[TraceEntry], turn: int) -> bool:
        """Whether a change does not count any more as the turn is resumed."""
        entry = entries[change.entry] if change.entry >= 0 else {}
        return id(entry) in self.void or (change.turn == turn and (only_says_stopped(entry) or _is_cut_off(entry)))


def _is_cut_off(entry: TraceEntry) -> bool:
    """Whether an entry says that a further attempt at a call was interrupted."""
    value = entry.get("value")
    return "id" not in entry and isinstance(value, dict) and value.get("status") == "interrupted"
