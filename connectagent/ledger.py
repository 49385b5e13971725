"""What each handler costs: how often it ran, how long, and the model calls that it made itself."""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from connectagent.session import TokenUsage


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


# Whose handler runs here; threads that a handler starts with a copy of its context are followed.
paying: ContextVar[Account | None] = ContextVar("connectagent_paying", default=None)


def charge(usage: TokenUsage | None) -> None:
    """Put a model call on the account of the handler that made it, if one did."""
    account = paying.get()
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
