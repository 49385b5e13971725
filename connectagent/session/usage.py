"""What each handler costs: how often it ran, how long, and the model calls that it made itself."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from connectagent.data import TokenUsage, TraceEntry
from connectagent.session.journal import BEGAN, DECIDED, is_inside, place_of, turns_in

_MODEL = re.compile(r"/model\d+$")  # the places of attempts at a model


class Spent:
    """What model calls came to: the one sum, from which every figure of tokens and cost is taken.

    Attributes:
        calls: attempts at a model that answered, or that told their tokens.
        usage: the tokens; `cost` is the part whose price is known (USD).
        priced: whether every price is known.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.usage = TokenUsage(cost=0.0)
        self.priced = True
        self._known = False

    def add(self, usage: TokenUsage | None) -> None:
        """Count one attempt; None where nobody told what it took."""
        self.calls += 1
        self.priced = self.priced and usage is not None and usage.cost is not None
        if usage is not None:
            self._known = True
            for name in ("input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens"):
                setattr(self.usage, name, getattr(self.usage, name) + (getattr(usage, name) or 0))
            self.usage.cost = (self.usage.cost or 0.0) + (usage.cost or 0.0)

    def include(self, other: Spent) -> None:
        """Count what other attempts came to."""
        told = self._known or other._known
        calls, priced = self.calls + other.calls, self.priced and other.priced
        self.add(other.usage)
        self.calls, self.priced, self._known = calls, priced, told

    @property
    def tokens(self) -> int | None:
        """Input and output; None where nobody told any."""
        return None if self.calls and not self._known else self.usage.input_tokens + self.usage.output_tokens

    @property
    def cost(self) -> float | None:
        """USD, or None where a price is not known."""
        return self.usage.cost if self.priced else None

    def data(self) -> TokenUsage:
        """The sum as an entry of the trace has it."""
        return dataclasses.replace(self.usage, cost=self.cost)


@dataclass(slots=True)
class Totals:
    """The sums of a session's turns.

    Args:
        turns: those that have ended, a turn that was paused and resumed once.
        iterations: model calls with their tool rounds.
        tools: tool calls, whatever became of them.
        tokens: input and output, of all model calls, also those of a turn that has not ended; None where no
            provider told.
        cost: USD, of the same; None where a price is not known.
    """

    turns: int = 0
    iterations: int = 0
    tools: int = 0
    tokens: int | None = None
    cost: float | None = 0.0

    def add(self, turns: int, iterations: int, tools: int, tokens: int | None, cost: float | None) -> None:
        """Add what one or several turns came to."""
        self.turns += turns
        self.iterations += iterations
        self.tools += tools
        self.spend(tokens, cost)

    def spend(self, tokens: int | None, cost: float | None) -> None:
        """Add what model calls came to."""
        self.tokens = self.tokens if tokens is None else (self.tokens or 0) + tokens
        self.cost = None if cost is None or self.cost is None else self.cost + cost

    def data(self) -> dict[str, Any]:
        """The sums as the record holds them, under `session` of each turn's summary."""
        return dataclasses.asdict(self)


@dataclass(slots=True)
class Account:
    """The costs of one handler.

    Args:
        calls: how often it was called; each half of an `around_` handler counts.
        seconds: how long it ran, handlers and tools that it called included.
        spent: the model calls that it made, by `agent.ask`, `llm_do` or an agent of its own.
    """

    calls: int = 0
    seconds: float = 0.0
    spent: Spent = field(default_factory=Spent)


def usage_of(entry: TraceEntry) -> TokenUsage | None:
    """The usage of a model call; of one that was read from a record, too, where it is a dict."""
    usage = entry.get("usage")
    if not isinstance(usage, dict):
        return usage
    names = [field.name for field in dataclasses.fields(TokenUsage)]
    return TokenUsage(**{name: _number(usage.get(name)) for name in names if _number(usage.get(name)) is not None})


def _number(value: Any) -> Any:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def counts(entry: TraceEntry) -> bool:
    """Whether an `llm_call` entry is an attempt that took tokens, or may have; what stood in for one took none."""
    if entry.get("type") != "llm_call":
        return False
    own = entry.get("original") or entry  # what the model did, where an around handler made something else of it
    return entry.get("usage") is not None or own.get("status") in ("success", "interrupted")


def spent_in(entries: Iterable[TraceEntry], running: bool = False, spent: Spent | None = None) -> Spent:
    """What the model calls among entries came to, each attempt once, void ones too.

    Args:
        entries: lines of a log, or entries of a trace.
        running: whether an attempt without an end may still get one; otherwise it was lost, and nobody knows what
            it took.
        spent: a sum to which they are added.
    """
    spent = spent or Spent()
    begun: set[str] = set()
    for entry in entries:
        kind, id = entry.get("type"), str(entry.get("id"))
        if kind == "began" and _MODEL.search(id):
            if id in begun:  # the one before was lost
                spent.add(None)
            begun.add(id)
        elif kind in ("llm_call", "closed"):
            begun.discard(id)
        if counts(entry):
            spent.add(usage_of(entry))
    for _ in () if running else begun:
        spent.add(None)
    return spent


def spent_inside(lines: Iterable[TraceEntry]) -> dict[str, Spent]:
    """What agents inside a session spent in it, by branch: each with those that were asked in its turns."""
    branches: dict[str, str] = {}  # by the id of a turn
    found: dict[str, list[TraceEntry]] = {}
    for line in lines:
        place = place_of(line)
        if line.get("type") == BEGAN and isinstance(line.get("branch"), str):
            branches[place] = line["branch"]
        for branch in {branches[turn] for turn in turns_in(place) if turn in branches}:
            found.setdefault(branch, []).append(line)
    return {branch: spent_in(own) for branch, own in found.items()}


def duration_of(item: dict[str, Any]) -> float:
    """Milliseconds that a turn took, as far as one item of a record tells; it ended with its last line if killed."""
    told = _number(item.get("duration_ms"))
    return _elapsed(item.get("lines") or ()) if told is None else float(told)


def time_in(lines: Iterable[TraceEntry], place: str) -> float:
    """Milliseconds that an operation took so far, without the time in which its turn had stopped."""
    runs: list[list[TraceEntry]] = [[]]
    for line in lines:
        if line.get("type") == "resumed":
            runs.append([])
        elif line.get("type") != DECIDED and is_inside(place_of(line), place):
            runs[-1].append(line)
    return sum(map(_elapsed, runs))


def _elapsed(lines: Iterable[TraceEntry]) -> float:
    """Milliseconds from the first of some lines to the end of what the last of them tells."""
    begins: list[float] = []
    ends: list[float] = []
    for line in lines:
        at, ms = _number(line.get("timestamp")), _number(line.get("duration_ms", line.get("timing")))
        started = _number(line.get("started")) if line.get("type") in ("llm_call", "tool_execution") else None
        begins += [time for time in (at, started) if time is not None]
        ends += [time for time in (at, started + ms / 1000 if started and ms else None) if time is not None]
    return (max(ends) - min(begins)) * 1000 if begins else 0.0


def rows(handlers: Iterable[Any]) -> list[dict[str, Any]]:
    """What each of these handlers that has run cost, the longest first."""
    made = [
        {
            **{key: handler.by[key] for key in ("plugin", "hook", "handler")},
            "calls": handler.account.calls,
            "duration_ms": round(handler.account.seconds * 1000, 3),
            "model_calls": handler.account.spent.calls,
            "input_tokens": handler.account.spent.usage.input_tokens,
            "output_tokens": handler.account.spent.usage.output_tokens,
            "cost": handler.account.spent.cost,
        }
        for handler in {id(handler): handler for handler in handlers}.values()
        if handler.account.calls
    ]
    return sorted(made, key=lambda row: -row["duration_ms"])
