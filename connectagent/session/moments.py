"""Versions of a list over time. Each stores only what differs from the one before."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Moment(Generic[T]):
    """One version of a list: the first items of the version before, and the items behind them.

    Args:
        tail: the items behind those of the version before.
        before: the version before; None for the first.
        kept: how many items of `before` come first.
    """

    __slots__ = ("_before", "_kept", "_tail")

    def __init__(self, tail: list[T], before: Moment[T] | None = None, kept: int = 0) -> None:
        self._tail = tail
        self._before = before if kept else None
        self._kept = kept

    def __len__(self) -> int:
        return self._kept + len(self._tail)

    def kept_of(self, other: Moment[T] | None) -> int:
        """How many items from the start are shared with this version or the one before; 0 for any other."""
        if other is self:
            return len(self)
        return self._kept if other is self._before else 0

    def since(self, start: int = 0) -> list[T]:
        """The items from a place on."""
        pieces = []
        end = len(self)
        at = self
        while True:
            if at._kept < end:
                pieces.append(at._tail[max(start - at._kept, 0) : end - at._kept])
                end = at._kept
            if at._before is None or end <= start:
                break
            at = at._before
        return [item for piece in reversed(pieces) for item in piece]
