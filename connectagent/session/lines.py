"""The messages of a conversation, each with who made and changed it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from connectagent.data import Message
from connectagent.session.snapshot import By


@dataclass(slots=True)
class Change:
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
    changes: list[Change]


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
