"""Two versions of an agent over the same recorded sessions: is one better, or is it chance?"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from connectagent.agents.agent import Agent
from connectagent.data import TraceEntry
from connectagent.loop.ask import verdict
from connectagent.output.rows import many
from connectagent.output.text import visible
from connectagent.session.messages import text_of
from connectagent.testing.bisection.case import BudgetSpent, Case, NoModel
from connectagent.testing.bisection.trial import Arm, Outcome, Verdict, outcome_of
from connectagent.testing.evals.checks import JUDGE
from connectagent.testing.evals.checks import Verdict as Says
from connectagent.testing.signs import LEVEL, shown_p, sign_test

_RESAMPLED = 2_000


@dataclass(slots=True)
class Pair:
    """One session on both sides.

    Attributes:
        record: the record's name.
        before, after: the share of runs that were bad, on each side; None where that cannot be told.
        why: why that cannot be told.
        is_recorded: whether both sides were decided from the record alone.
        costs: USD of the answers on both sides; None where a price is not known.
        even: how much more often the second side was bad, over as many runs as both sides have; None where that is all.
    """

    record: str
    before: float | None = None
    after: float | None = None
    why: str = ""
    is_recorded: bool = True
    costs: tuple[float | None, float | None] = (0.0, 0.0)
    even: float | None = None

    @property
    def sign(self) -> float:
        """Above 0 where the second side is worse, below 0 where it is better.

        A recorded answer is one run. The share of three runs is less often quite good than that of one, so only so many
        runs are compared as both sides have.
        """
        if self.before is None or self.after is None:
            return 0.0
        return self.after - self.before if self.even is None else self.even


@dataclass
class Comparison:
    """What a comparison found.

    Attributes:
        pairs: each session on both sides.
        what: what is counted.
        stopped: `budget`, `interrupted`, or "".
        offline: why no model could be asked, or None.
    """

    what: str
    pairs: list[Pair] = field(default_factory=list)
    stopped: str = ""
    offline: str | None = None

    @property
    def decided(self) -> list[tuple[float, float]]:
        """Both sides of the sessions for which both have a share."""
        return [(one.before, one.after) for one in self.pairs if one.before is not None and one.after is not None]

    @property
    def differences(self) -> list[float]:
        """How much more often the second side is bad, for each session."""
        return [after - before for before, after in self.decided]

    @property
    def worse(self) -> int:
        """In how many sessions the second side is worse."""
        return sum(one.sign > 0 for one in self.pairs)

    @property
    def better(self) -> int:
        """In how many sessions the second side is better."""
        return sum(one.sign < 0 for one in self.pairs)

    @property
    def p(self) -> float:
        """How probable so uneven a count of better and worse sessions is by chance: the sign test, two-sided."""
        return sign_test(self.worse, self.better)

    @property
    def is_worse(self) -> bool:
        """Whether the second side is worse, and that is hardly chance."""
        return self.p < LEVEL and self.worse > self.better

    @property
    def interval(self) -> tuple[float, float]:
        """Between what the mean difference is, in 95 of 100 samples of these sessions (bootstrap)."""
        return bootstrap(self.differences)

    @property
    def needed(self) -> int | None:
        """About how many sessions would show a difference of this size nine times in ten; None without one."""
        changed = self.worse + self.better
        if self.worse == self.better:
            return None
        share = (max(self.worse, self.better) + 0.5) / (changed + 1)
        signs = ((1.96 + 2 * 1.282 * math.sqrt(share * (1 - share))) / (2 * share - 1)) ** 2
        return math.ceil(signs * len(self.differences) / changed)

    def __str__(self) -> str:
        differences, decided = self.differences, self.decided
        lines = [f"{one.record}: cannot tell: {visible(one.why, 200)}" for one in self.pairs if one.before is None]
        if not differences:
            return "\n".join([*lines, "nothing can be told", *self._end()])
        shares = [sum(side) / len(decided) for side in zip(*decided, strict=True)]
        recorded = sum(one.is_recorded for one in self.pairs)
        low, high = self.interval
        lines += [
            f"{self.what}: {shares[0]:.0%} before, {shares[1]:.0%} after, over {many(len(decided), 'session')}",
            f"better in {self.better}, worse in {self.worse}, the same in "
            f"{len(differences) - self.better - self.worse}; "
            f"{shown_p(self.p)} (sign test)",
            f"difference: {100 * sum(differences) / len(decided):+.1f} points, "
            f"between {100 * low:+.1f} and {100 * high:+.1f} in 95 of 100 samples of these sessions",
            f"decided from the record alone: {recorded} of {len(self.pairs)}",
        ]
        return "\n".join([*lines, *self._verdict(), *self._end()])

    def _verdict(self) -> list[str]:
        if self.p < LEVEL:
            return ["the difference is no chance" if sum(self.differences) else "the sides differ"]
        if self.needed is None:
            return ["no difference was seen"]
        return [f"it may be chance; about {many(self.needed, 'session')} would tell a difference of this size"]

    def _end(self) -> list[str]:
        sides = zip(*(one.costs for one in self.pairs), strict=True) if self.pairs else ()
        shown = ["?" if None in side else f"${sum(side):.4f}" for side in sides]
        lines = [f"cost of the answers: {' before, '.join(shown)} after"] if shown else []
        if self.offline is not None:
            lines.append(f"no model was asked: {visible(self.offline, 200)}")
        if self.stopped:
            lines.append("the budget is spent; this is known so far" if self.stopped == "budget" else "interrupted")
        return lines


def bootstrap(differences: Sequence[float]) -> tuple[float, float]:
    """The percentile interval of the mean, always the same for the same values."""
    rng, count = random.Random(0), len(differences)
    means = sorted(sum(rng.choices(differences, k=count)) / count for _ in range(_RESAMPLED))
    return means[int(0.025 * _RESAMPLED)], means[int(0.975 * _RESAMPLED)]


@dataclass
class Judging:
    """A symptom that a model sees: a session's last answer does not fulfil a rubric.

    Args:
        rubric: what a good answer is.
        llm: makes the model that judges.
    """

    rubric: str
    llm: Callable[[], Any]
    kind: str = "judge"
    _known: dict[str, bool] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return f"not as in: {self.rubric}"

    def shown_by(self, entries: list[TraceEntry]) -> bool:
        """Whether the last answer does not fulfil it."""
        said = [one for one in entries if one.get("type") == "llm_call" and one.get("content")]
        prompts = [str(one.get("prompt")) for one in entries if one.get("type") == "user_input"]
        asked = {"rubric": self.rubric, "prompt": prompts, "answer": text_of(said[-1]["content"]) if said else ""}
        question = json.dumps(asked, ensure_ascii=False, indent=1)
        if question not in self._known:
            self._known[question] = not verdict(question, Says, JUDGE, self.llm()).passed
        return self._known[question]


Maker = Callable[[Path], Callable[[], Agent]]


class Comparing:
    """Takes recorded sessions on two sides.

    Args:
        case: reads a record.
        before, after: make the agent of each side for a record.
        model: the model of the second side, in place of its own.
        samples: how often a session is taken, where a model has a part in it.
        is_good: whether what is looked for is good.
    """

    def __init__(
        self,
        case: Callable[[Path], Case],
        before: Maker,
        after: Maker,
        model: str | None = None,
        samples: int = 1,
        is_good: bool = False,
    ) -> None:
        self._case, self._before, self._after, self._model = case, before, after, model
        self.samples, self._bad = samples, Verdict.GOOD if is_good else Verdict.BAD

    def run(self, records: Sequence[Path], found: Comparison, progress: Callable[[Path], None]) -> Comparison:
        """Compare them all."""
        for record in records:
            progress(record)
            try:
                found.pairs.append(self._pair(record, found))
            except BudgetSpent:
                found.stopped = "budget"
                break
            except KeyboardInterrupt:
                found.stopped = "interrupted"
                break
        return found

    def _pair(self, record: Path, found: Comparison) -> Pair:
        case = self._case(record)
        case.offline = found.offline
        arms = [Arm(make=self._before(record)), Arm(make=self._after(record), model=self._model)]
        with case.guard:
            try:
                sides = [self._outcomes(case, arm) for arm in arms]
            except NoModel as error:
                case.offline = found.offline = str(error)
                sides = [self._outcomes(case, arm) for arm in arms]
        unknown = [one.why for side in sides for one in side if one.verdict is Verdict.UNKNOWN]
        if unknown:
            return Pair(record.name, why=unknown[0])
        before, after = map(self._share, sides)
        count = min(map(len, sides))
        even = self._share(sides[1][:count]) - self._share(sides[0][:count])
        costs = tuple(None if any(one.cost is None for one in side) else _mean(side) for side in sides)
        sampled = any(one.sampled for side in sides for one in side)
        return Pair(record.name, before, after, "", not sampled, (costs[0], costs[1]), even)

    def _share(self, side: list[Outcome]) -> float:
        return sum(one.verdict is self._bad for one in side) / len(side)

    def _outcomes(self, case: Case, arm: Arm) -> list[Outcome]:
        first = outcome_of(case, arm, 0)
        more = range(1, self.samples) if first.sampled else ()
        return [first, *(outcome_of(case, arm, number) for number in more)]


def _mean(side: list[Any]) -> float:
    return float(sum(one.cost for one in side) / len(side))
