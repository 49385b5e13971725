"""Lists as they were at many moments, each told by what is other than at the moment before."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Moment(Generic[T]):
    """A list as it was at a moment: the beginning of the one before, and what came behind it.

    Args:
        tail: what came behind.
        before: the moment before.
        kept: how many items of it are the beginning.
    """

    __slots__ = ("_before", "_kept", "_tail")

    def __init__(self, tail: list[T], before: Moment[T] | None = None, kept: int = 0) -> None:
        self._tail, self._before, self._kept = tail, before if kept else None, kept

    def __len__(self) -> int:
        return self._kept + len(self._tail)

    def kept_of(self, other: Moment[T] | None) -> int:
        """How many items from the start are known to be those of another moment, the one before this or the same."""
        return len(self) if other is self else self._kept if other is self._before else 0

    def since(self, start: int = 0) -> list[T]:
        """The items from a place on."""
        pieces, end, at = [], len(self), self
        while True:
            if at._kept < end:
                pieces.append(at._tail[max(start - at._kept, 0) : end - at._kept])
                end = at._kept
            if at._before is None or end <= start:
                break
            at = at._before
        return [item for piece in reversed(pieces) for item in piece]
