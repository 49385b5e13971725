"""What the scores of an evaluation come to: means, intervals, and what changed since another one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from connectagent.testing.evals.trial import Trial, known, total

ALL = "all checks"
_Z = 1.959964  # of the normal distribution: 95 % lie between -z and z

Means = dict[str, dict[str, float]]  # by check, then by case


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


class Change(NamedTuple):
    """The mean score of a case in two evaluations.

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
        """Whether the score fell."""
        return self.after is None or self.after < self.before

    @property
    def is_better(self) -> bool:
        """Whether the score rose."""
        return self.after is not None and self.after > self.before


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


def means_of(trials: Iterable[Trial]) -> Means:
    """The mean scores of trials."""
    ended = ((trial.case.id, trial.scores) for trial in trials if trial.scores is not None)
    return means((id, {name: float(score.value) for name, score in scores.items()}) for id, scores in ended)


def means(scored: Iterable[tuple[str, dict[str, float]]]) -> Means:
    """The mean score of each case, by check; where there are several checks, `ALL` is the share that passed all.

    Args:
        scored: for each trial, the case's id and the scores by check.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for id, scores in scored:
        every = {ALL: float(all(score == 1 for score in scores.values()))} if len(scores) > 1 else {}
        for name, value in {**scores, **every}.items():
            found.setdefault(name, {}).setdefault(id, []).append(value)
    return {name: {id: sum(all_) / len(all_) for id, all_ in cases.items()} for name, cases in found.items()}


def mean_of(cases: Mapping[str, float]) -> Mean:
    """The mean over cases.

    A case counts once, however often it is repeated: answers to one case resemble each other, and repeating it tells
    nothing of other cases. So more repeats do not make the interval narrower, as in E. Miller, "Adding Error Bars to
    Evals", arXiv:2411.00640 (2024).
    """
    score = sum(cases.values()) / len(cases) if cases else 0.0
    return Mean(score, *wilson(score, len(cases)), len(cases))


def compared(before: Means, after: Means, ids: Sequence[str], checks: Sequence[str]) -> list[Change]:
    """The cases that were scored before, by each check that is there still.

    Args:
        before: the earlier scores.
        after: the later ones.
        ids: the cases of the later ones, also those whose turns did not end.
        checks: the checks of the later ones.
    """
    found = []
    for check in checks:
        cases, later = before.get(check, {}), after.get(check, {})
        found += [Change(check, id, cases[id], later.get(id)) for id in ids if id in cases]
    return found


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
        "checks": {name: mean_of(cases)._asdict() for name, cases in means_of(trials).items()},
    }
