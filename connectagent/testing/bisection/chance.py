"""Which of many things make the difference, where each look may be wrong by chance."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

ALPHA = 0.01  # of what is confirmed, at most so much is chance
_ERROR = 0.001  # how often one look during the search may be wrong


def halved(items: Sequence[T], is_enough: Callable[[list[T]], bool]) -> list[T]:
    """The one item that is enough, if it is one: half of the looks of `smallest`, and no check."""
    left = list(items)
    while len(left) > 1:
        first = left[: len(left) // 2]
        left = first if is_enough(first) else left[len(first) :]
    return left


# -- chance --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Rate:
    """How often something was bad, of how many looks."""

    bad: int = 0
    of: int = 0

    @property
    def share(self) -> float:
        """An estimate that is never quite 0 or 1 (Jeffreys)."""
        return (self.bad + 0.5) / (self.of + 1)

    def __str__(self) -> str:
        return f"{self.bad} of {self.of}"


def by_chance(more: Rate, less: Rate) -> float:
    """How probable so large a difference is by chance: Fisher's exact test, one-sided."""
    bad, of = more.bad + less.bad, more.of + less.of
    most = min(bad, more.of)
    ways = sum(math.comb(more.of, one) * math.comb(less.of, bad - one) for one in range(more.bad, most + 1))
    return ways / math.comb(of, bad)


def samples_needed(more: Rate, less: Rate, alpha: float = ALPHA) -> int | None:
    """About how many samples a side would show such a difference nine times in ten; None where there is no difference.

    It is the normal approximation for two shares, with a power of 0.9.
    """
    difference = more.share - less.share
    if difference <= 0.02:
        return None
    spread = more.share * (1 - more.share) + less.share * (1 - less.share)
    level = math.sqrt(2 * math.log(1 / (2 * alpha)))  # near the quantile of the normal distribution
    return max(4, math.ceil(spread * ((level + 1.282) / difference) ** 2))


class Judge:
    """Decides by as few looks as possible whether something is bad as often as one thing, or as seldom as another.

    It is Wald's sequential test.

    Args:
        often, seldom: what is known of the two.
        most: how many looks at most.
    """

    def __init__(self, often: Rate, seldom: Rate, most: int) -> None:
        high, low = often.share, seldom.share
        self._bad, self._good = math.log(high / low), math.log((1 - high) / (1 - low))
        self._bound = math.log((1 - _ERROR) / _ERROR)
        self._most = most

    def is_bad(self, look: Callable[[int], bool | None], is_sure: Callable[[], bool]) -> bool | None:
        """Whether it is bad; None where that cannot be told.

        Args:
            look: looks for the nth time, from 0; None: cannot be told.
            is_sure: whether a further look would be the same as the last.
        """
        weight = 0.0
        for number in range(self._most):
            seen = look(number)
            if seen is None or is_sure():
                return seen
            weight += self._bad if seen else self._good
            if abs(weight) >= self._bound:
                break
        return weight > 0
