"""What is worse and better than in saved results, or than with another variant, and whether that may be chance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from connectagent.testing.evals.sums import Scores, Taken, mean
from connectagent.testing.signs import LEVEL, corrected, shown_p, sign_test

_SAME = 1e-9  # means of the same numbers in another order differ by less


class Change(NamedTuple):
    """The mean score of a case on two sides, over as many repeats as both have.

    Args:
        check: the check.
        case: the case's id.
        before, after: the mean scores; `after` is None where its turns did not end.
    """

    check: str
    case: str
    before: float
    after: float | None

    @property
    def is_worse(self) -> bool:
        """Whether the score fell, or is gone."""
        return self.after is None or self.after < self.before - _SAME

    @property
    def is_better(self) -> bool:
        """Whether the score rose."""
        return self.after is not None and self.after > self.before + _SAME


@dataclass
class Signs:
    """How many cases are worse and better by a check, of those that have a score on both sides.

    Args:
        worse, better, same: how many.
        p: how probable so uneven a count is by chance: the sign test, two-sided.
        p_corrected: the same, corrected for all checks and comparisons in which something changed.
    """

    worse: int
    better: int
    same: int
    p: float
    p_corrected: float = 1.0

    @classmethod
    def of(cls, changes: Sequence[Change]) -> Signs:
        """The signs of a check's changes."""
        worse, better = sum(one.is_worse for one in changes), sum(one.is_better for one in changes)
        return cls(worse, better, len(changes) - worse - better, sign_test(worse, better))

    @property
    def differ(self) -> bool:
        """Whether any case is worse or better."""
        return bool(self.worse or self.better)

    @property
    def may_be_chance(self) -> bool:
        """Whether such a difference is no wonder where there is none."""
        return self.p_corrected >= LEVEL

    def __str__(self) -> str:
        said = "may be chance" if self.may_be_chance else "hardly chance"
        return f"{self.worse} worse, {self.better} better: {said} ({shown_p(self.p_corrected)})"


@dataclass
class Compared:
    """A variant, and what it is compared with.

    Args:
        taken: the variant.
        is_saved: whether it is compared with saved results.
        other: the name of the variant on the other side; None where none fits.
        changes: the cases that were scored there, by each check that is here too.
        signs: by the name of the check.
        gone: how many cases of the other side are not taken here.
    """

    taken: Taken
    is_saved: bool
    other: str | None
    changes: list[Change]
    gone: int
    signs: dict[str, Signs] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """What it is compared with."""
        return "since the saved results" if self.is_saved else f"against {self.other}"

    @property
    def new(self) -> int:
        """How many cases were not scored on the other side."""
        return len(self.taken.by_case()) - len({one.case for one in self.changes})

    def as_data(self) -> dict[str, Any]:
        """It as data for JSON."""
        checks = {name: vars(one) for name, one in self.signs.items()}
        return {"saved": self.is_saved, "variant": self.other, "checks": checks}


def comparisons(taken: Sequence[Taken], checks: Sequence[str], before: Mapping[str, Scores] | None) -> list[Compared]:
    """Each variant beside the saved results and beside the first variant.

    A case counts once, by the mean of its repeats: answers to one case resemble each other. Only so many repeats of it
    count as both sides have, for the mean of three is less often 1 than a single answer is.

    Args:
        taken: the variants.
        checks: the names of the checks.
        before: the scores of a saved evaluation, by variant; None where there is none.
    """
    found = []
    for one in taken:
        if before is not None:
            other = saved_variant(before, one)
            found.append(_compared(one, True, other, {} if other is None else before[other], checks))
        if one is not taken[0]:
            found.append(_compared(one, False, taken[0].name, taken[0].scores, checks))
    for signs, p in zip(differing(found), corrected([one.p for one in differing(found)]), strict=True):
        signs.p_corrected = p
    return found


def differing(compared: Sequence[Compared]) -> list[Signs]:
    """Those that some case made: where all are the same, nothing could be found by chance."""
    return [signs for one in compared for signs in one.signs.values() if signs.differ]


def saved_variant(before: Mapping[str, Scores], taken: Taken) -> str | None:
    """The name of the saved variant that one is compared with: its own, or that of the only one there is."""
    if taken.name in before:
        return taken.name
    return next(iter(before)) if len(before) == 1 else None


def _compared(taken: Taken, is_saved: bool, other: str | None, before: Scores, checks: Sequence[str]) -> Compared:
    after, ids = taken.scores, [case.id for case, _ in taken.by_case()]
    changes = {check: list(_changes(check, before.get(check, {}), after.get(check, {}), ids)) for check in checks}
    gone = {id for cases in before.values() for id in cases} - {*ids}
    found = Compared(taken, is_saved, other, [one for all_ in changes.values() for one in all_], len(gone))
    for check, all_ in changes.items():
        if both := [one for one in all_ if one.after is not None]:
            found.signs[check] = Signs.of(both)
    return found


def _changes(
    check: str, before: Mapping[str, list[float]], after: Mapping[str, list[float]], ids: Sequence[str]
) -> Iterator[Change]:
    for id in ids:
        if id in before:
            earlier, later = before[id], after.get(id)
            count = min(len(earlier), len(later or earlier))
            yield Change(check, id, mean(earlier[:count]), None if later is None else mean(later[:count]))
