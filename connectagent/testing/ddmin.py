"""Delta debugging: the smallest part of a list, or of a text, that still does something.

The algorithm is ddmin of Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input" (2002).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

Item = TypeVar("Item")


def ddmin(items: Sequence[Item], shows: Callable[[list[Item]], bool]) -> list[Item]:
    """The items without which it does not show; no single one of them can be left out.

    What happens in the end comes most often from what stands at the end, so that ends are tried first.

    Args:
        items: the items; all of them show it.
        shows: whether a part of them does, in their order.
    """
    left = list(items)
    if not left or shows([]):
        return []
    count = 1
    while count < len(left) // 2:
        if shows(left[-count:]):
            left = left[-count:]
            break
        count *= 4
    return smallest(left, shows)


def smallest(items: Sequence[Item], shows: Callable[[list[Item]], bool]) -> list[Item]:
    """The same without looking at the ends first, nor at nothing at all: at least one item is left."""
    left, parts = list(items), 2
    while len(left) > 1:
        found = _smaller(left, min(parts, len(left)), shows)
        if found is None and parts >= len(left):
            break
        parts = min(2 * parts, len(left)) if found is None else max(found[1], 2)
        left = left if found is None else found[0]
    return left


def _smaller(items: list[Item], parts: int, shows: Callable[[list[Item]], bool]) -> tuple[list[Item], int] | None:
    """A smaller list that shows it: one part, or all but one; with how many parts to go on."""
    bounds = [len(items) * at // parts for at in range(parts + 1)]
    for start, end in pairwise(bounds):
        if start < end and shows(items[start:end]):
            return items[start:end], 2
    for start, end in pairwise(bounds):
        if parts > 2 and shows([*items[:start], *items[end:]]):
            return [*items[:start], *items[end:]], parts - 1
    return None


def shortest(text: str, shows: Callable[[str], bool]) -> str:
    """A short piece of a text that shows it: its end is cut off as far as it can be, then its beginning.

    Args:
        text: the text, which shows it.
        shows: whether a piece does.
    """
    end = _least(len(text), lambda length: shows(text[:length]))
    text = text[:end]
    length = _least(len(text), lambda length: shows(text[len(text) - length :]))
    text = text[len(text) - length :]
    if len(text) <= 40:
        return text
    lines = text.splitlines(keepends=True)
    pieces = lines if len(lines) > 1 else [text[at : at + 20] for at in range(0, len(text), 20)]
    return "".join(ddmin(pieces, lambda kept: shows("".join(kept))))


def _least(most: int, shows: Callable[[int], bool]) -> int:
    """The least number that shows it, if all greater ones do as well; `most` shows it."""
    least = 0
    while least < most:
        middle = (least + most) // 2
        if shows(middle):
            most = middle
        else:
            least = middle + 1
    return most
