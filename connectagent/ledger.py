"""What each handler costs: how often it ran, how long, and the model calls that it made itself."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

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
