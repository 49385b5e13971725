"""Are there more worse than better ones, or may that be chance? For two versions over the same sessions or cases."""

from __future__ import annotations

import math
from collections.abc import Sequence

LEVEL = 0.05
"""Below this probability, a difference is hardly chance."""


def sign_test(worse: int, better: int) -> float:
    """How probable so uneven a count is by chance: the sign test, two-sided.

    It asks nothing of the values but which one is larger, so it holds for passes, shares and scores alike.
    W. J. Dixon, A. M. Mood, "The Statistical Sign Test", Journal of the American Statistical Association 41 (1946),
    557-566.

    Args:
        worse, better: how many are worse and better; those that are the same tell nothing, and are left out.
    """
    count = worse + better
    most = max(worse, better)
    ways = sum(math.comb(count, one) for one in range(most, count + 1))
    return min(1.0, 2 * ways / 2**count) if count else 1.0


def corrected(probabilities: Sequence[float]) -> list[float]:
    """The probabilities of several looks, so that looking often does not find by chance: Holm's correction.

    If there is no difference anywhere, one of the returned ones is below `LEVEL` in at most that share of all times.
    S. Holm, "A Simple Sequentially Rejective Multiple Test Procedure", Scandinavian Journal of Statistics 6 (1979),
    65-70.
    """
    found = [1.0] * len(probabilities)
    least = 0.0
    for rank, place in enumerate(sorted(range(len(probabilities)), key=probabilities.__getitem__)):
        least = max(least, (len(probabilities) - rank) * probabilities[place])
        found[place] = min(1.0, least)
    return found


def shown_p(p: float) -> str:
    """A probability for people, who are never shown that it is 0."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
