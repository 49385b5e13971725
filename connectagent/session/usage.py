"""What each handler costs: how often it ran, how long, and the model calls that it made itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from connectagent.data import TokenUsage, TraceEntry


@dataclass(slots=True)
class Account:
    """The costs of one handler.

    Args:
        calls: how often it was called; each half of an `around_` handler counts.
        seconds: how long it ran, handlers and tools that it called included.
        model_calls: how many model calls it made, by `llm_do` or an agent of its own.
        input_tokens: of these calls.
        output_tokens: of these calls.
        cost: USD of these calls, as far as their prices are known.
    """

    calls: int = 0
    seconds: float = 0.0
    model_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0


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
        self._told = False

    def add(self, usage: TokenUsage | None) -> None:
        """Count one attempt; None where nobody told what it took."""
        self.calls += 1
        self.priced = self.priced and usage is not None and usage.cost is not None
        if usage is not None:
            self._told = True
            for name in ("input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens"):
                setattr(self.usage, name, getattr(self.usage, name) + (getattr(usage, name) or 0))
            self.usage.cost = (self.usage.cost or 0.0) + (usage.cost or 0.0)

    @property
    def tokens(self) -> int | None:
        """Input and output; None where nobody told any."""
        return None if self.calls and not self._told else self.usage.input_tokens + self.usage.output_tokens

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
        tokens: input and output; None where no provider told.
        cost: USD; None where a price is not known.
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
        self.tokens = self.tokens if tokens is None else (self.tokens or 0) + tokens
        self.cost = None if cost is None or self.cost is None else self.cost + cost

    def data(self) -> dict[str, Any]:
        """The sums as the record holds them, under `session` of each turn's summary."""
        return dataclasses.asdict(self)


def counts(entry: TraceEntry) -> bool:
    """Whether an `llm_call` entry is an attempt that took tokens, or may have."""
    return entry.get("type") == "llm_call" and (entry.get("status") == "success" or entry.get("usage") is not None)


def spent_in(entries: Iterable[TraceEntry]) -> Spent:
    """What the model calls among entries came to, each attempt once, void ones too."""
    spent = Spent()
    for entry in entries:
        if counts(entry):
            usage = entry.get("usage")
            spent.add(TokenUsage(**usage) if isinstance(usage, dict) else usage)
    return spent


def charge(account: Account | None, usage: TokenUsage | None) -> None:
    """Put a model call on the account of the handler that made it, if one did."""
    if account is None:
        return
    account.model_calls += 1
    if usage is not None:
        account.input_tokens += usage.input_tokens
        account.output_tokens += usage.output_tokens
        account.cost += usage.cost or 0.0


def rows(handlers: Iterable[Any]) -> list[dict[str, Any]]:
    """What each of these handlers that has run cost, the longest first."""
    made = [
        {
            **{key: handler.by[key] for key in ("plugin", "hook", "handler")},
            "calls": handler.account.calls,
            "duration_ms": round(handler.account.seconds * 1000, 3),
            "model_calls": handler.account.model_calls,
            "input_tokens": handler.account.input_tokens,
            "output_tokens": handler.account.output_tokens,
            "cost": handler.account.cost,
        }
        for handler in {id(handler): handler for handler in handlers}.values()
        if handler.account.calls
    ]
    return sorted(made, key=lambda row: -row["duration_ms"])
