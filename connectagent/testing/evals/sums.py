"""What the scores of an evaluation come to: means and intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from connectagent.testing.evals.trial import Case, Trial, known, total

ALL = "all checks"
_Z = 1.959964  # of the normal distribution: 95 % lie between -z and z

Scores = dict[str, dict[str, list[float]]]  # by check, then by case: one for each repeat


class Mean(NamedTuple):
    """A mean score, with the interval of 95 % for it.

    Args:
        score: the mean, from 0 to 1.
        low, high: the interval.
        cases: how many cases it comes from.
    """

    score: float
    low: float
    high: float
    cases: int


@dataclass
class Taken:
    """The trials of a variant.

    Args:
        name: the variant's; "" where there is only one.
        trials: in the order of the cases.
    """

    name: str
    trials: list[Trial] = field(default_factory=list)

    @property
    def scores(self) -> Scores:
        """The scores of the trials whose turns ended."""
        return scores_of(self.trials)

    def by_case(self) -> list[tuple[Case, list[Trial]]]:
        """The trials of each case."""
        found: dict[str, tuple[Case, list[Trial]]] = {}
        for trial in self.trials:
            found.setdefault(trial.case.id, (trial.case, []))[1].append(trial)
        return list(found.values())


def wilson(share: float, count: int) -> tuple[float, float]:
    """The interval of 95 % for a share of so many cases.

    Wilson's score interval: E. B. Wilson, "Probable Inference, the Law of Succession, and Statistical Inference",
    Journal of the American Statistical Association 22 (1927), 209-212. Numbers between 0 and 1 vary at most as much as
    zeros and ones of the same mean (R. Bhatia, C. Davis, American Mathematical Monthly 107 (2000), 353-357), so the
    interval is wide enough for their mean too.
    """
    if not count:
        return 0.0, 1.0
    square = _Z * _Z / count
    middle = share + square / 2
    half = _Z * math.sqrt(share * (1 - share) / count + square / (4 * count))
    low, high = (middle - half) / (1 + square), (middle + half) / (1 + square)
    return 0.0 if share == 0 else max(0.0, low), 1.0 if share == 1 else min(1.0, high)


def scores_of(trials: Iterable[Trial]) -> Scores:
    """The scores of trials whose turns ended."""
    ended = ((trial.case.id, trial.scores) for trial in trials if trial.scores is not None)
    return scores((id, {name: float(score.value) for name, score in found.items()}) for id, found in ended)


def scores(trials: Iterable[tuple[str, dict[str, float]]]) -> Scores:
    """The scores of each case, by check; where there are several checks, `ALL` is 1 where a trial passed all.

    Args:
        trials: for each, the case's id and the scores by check.
    """
    found: Scores = {}
    for id, checks in trials:
        every = {ALL: float(all(score == 1 for score in checks.values()))} if len(checks) > 1 else {}
        for name, value in {**checks, **every}.items():
            found.setdefault(name, {}).setdefault(id, []).append(value)
    return found


def mean(numbers: Sequence[float]) -> float:
    """The mean of scores of one case."""
    return sum(numbers) / len(numbers)


def mean_of(cases: Mapping[str, Sequence[float]]) -> Mean:
    """The mean over cases.

    A case counts once, however often it is repeated: answers to one case resemble each other, and repeating it tells
    nothing of other cases. So more repeats do not make the interval narrower, as in E. Miller, "Adding Error Bars to
    Evals", arXiv:2411.00640 (2024).
    """
    score = mean([mean(numbers) for numbers in cases.values()]) if cases else 0.0
    return Mean(score, *wilson(score, len(cases)), len(cases))


def sums_of(trials: Sequence[Trial]) -> dict[str, Any]:
    """The sums of a variant's trials, as data for JSON."""
    statuses = [trial.status for trial in trials]
    costs, checks_costs = [trial.cost for trial in trials], [cost for trial in trials for cost in trial.checks_costs]
    tokens = total(trial.tokens for trial in trials)
    return {
        "trials": len(trials),
        "passed": sum(trial.passed for trial in trials),
        "failed": statuses.count("failed"),
        "waiting": statuses.count("waiting"),
        "cost": total(costs),
        "known_cost": known(costs),
        "checks_cost": total(checks_costs),
        "known_checks_cost": known(checks_costs),
        "tokens": None if tokens is None else int(tokens),
        "checks": {name: mean_of(cases)._asdict() for name, cases in scores_of(trials).items()},
    }
