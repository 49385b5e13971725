"""Lines of a log by their places: those at a place and inside it, without a look at all others."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable


class Places:
    """The places of lines, sorted.

    Args:
        places: of each line in order; "" for none.
    """

    def __init__(self, places: Iterable[str]) -> None:
        self._sorted = sorted((place, number) for number, place in enumerate(places) if place)

    def inside(self, place: str) -> list[int]:
        """The numbers of the lines at a place or inside it, in order."""
        here, behind = self._from(place), self._from(f"{place}\0")
        below, after = self._from(f"{place}/"), self._from(f"{place}0")  # "0" is the character after "/"
        return sorted(number for _, number in (*self._sorted[here:behind], *self._sorted[below:after]))

    def _from(self, text: str) -> int:
        return bisect_left(self._sorted, (text, -1))
