"""A case, one answer to it, and a score: what checks get and return."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from connectagent.agents.batch import Gate, Item
from connectagent.output.masking import current
from connectagent.records.read import read_record
from connectagent.session.journal import LINES

_RAN = ("success", "error", "recovered")  # statuses of tool calls whose tool was called


@dataclass(frozen=True)
class Case:
    """One prompt of an evaluation, and what is expected of the answer.

    Args:
        id: its id.
        prompt: the prompt.
        expected: the field `expected` of its line; None without one.
        data: all fields of its line.
    """

    id: str
    prompt: str
    expected: Any = None
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Score:
    """What a check found; a check may return one to give its reason.

    Args:
        value: from 0 to 1; 1 has passed.
        reason: why, for people.
        cost: USD that the check has spent; None where a price is not known.
        spent: USD of it that this run has spent; less where the check's answer was in a record.
    """

    value: float
    reason: str = ""
    cost: float | None = 0.0
    spent: float = 0.0

    def __post_init__(self) -> None:
        value = self.value
        if not isinstance(value, int | float) or math.isnan(value) or not 0 <= value <= 1:
            raise ValueError(f"a score is True, False or a number from 0 to 1, not {value!r:.80}")

    @property
    def passed(self) -> bool:
        """Whether it is 1."""
        return self.value == 1


@dataclass
class Trial:
    """One answer to a case: what became of its turn, and what checks say of it.

    Args:
        case: the case.
        number: which of the case's repeats, from 1.
        item: the item of `agent.map()`.
        gate: stops models that checks ask, and lets them wait for a provider that asks for it.
        scores: those of the checks, by name; None where the turn did not end.
    """

    case: Case
    number: int
    item: Item
    gate: Gate
    scores: dict[str, Score] | None = None

    @cached_property
    def result(self) -> Any:
        """What `input()` returned; a text is masked as in the record, so that a later run scores the same."""
        result = self.item.result
        return current().text(result) if isinstance(result, str) else result

    @cached_property
    def trace(self) -> list[dict[str, Any]]:
        """The entries of the record, those of agents inside too."""
        if self.item.record is None:
            return []
        lines = [line for turn in read_record(self.item.record, conversation=False)["turns"] for line in turn["lines"]]
        return [line for line in lines if line.get("type") not in LINES]

    @property
    def prompt(self) -> str:
        """The prompt of the case."""
        return self.case.prompt

    @property
    def expected(self) -> Any:
        """What the case expects, masked as the result is."""
        return current().value(self.case.expected)

    @property
    def record(self) -> Path | None:
        """The session's file."""
        return self.item.record

    @property
    def cost(self) -> float | None:
        """USD; None where a price is not known."""
        return self.item.cost

    @property
    def tokens(self) -> int | None:
        """Input and output; None where they are not known."""
        return self.item.tokens

    @property
    def steps(self) -> int:
        """How many model calls were answered, those of agents inside and of plugins too."""
        return sum(entry["type"] == "llm_call" and entry.get("status") == "success" for entry in self.trace)

    @property
    def tools_called(self) -> list[str]:
        """The names of the tools that ran, in the order in which they ended, those of agents inside too."""
        calls = (one for one in self.trace if one["type"] == "tool_execution" and one.get("status") in _RAN)
        return [str(call["tool_name"]) for call in calls]

    @property
    def status(self) -> str:
        """`scored`, `failed` or `waiting` for a person."""
        if self.scores is not None:
            return "scored"
        return "waiting" if self.item.status == "paused" else "failed"

    @property
    def passed(self) -> bool:
        """Whether the turn ended and each check passed."""
        return self.scores is not None and all(score.passed for score in self.scores.values())

    @property
    def checks_costs(self) -> list[float | None]:
        """USD that each check has spent; None where a price is not known."""
        return [score.cost for score in (self.scores or {}).values()]


def total(costs: Iterable[float | None]) -> float | None:
    """The sum; None where one is not known."""
    found = list(costs)
    return None if None in found else known(found)


def known(costs: Iterable[float | None]) -> float:
    """The sum of those that are known."""
    return sum((cost or 0.0 for cost in costs), 0.0)
