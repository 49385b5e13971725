"""What a call costs and how much a model takes, by the tables of genai-prices.

The package is imported at the first question: that takes 170 ms.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from connectagent.data import TokenUsage

if TYPE_CHECKING:
    from datetime import datetime
    from decimal import Decimal

# genai-prices' names, where they differ from ours; None where a call has no public price.
_PRICED_AS: dict[str, str | None] = {
    "openai-responses": "openai",
    "gemini": "google",
    "xai": "x-ai",
    "ollama": None,
    "lmstudio": None,
    "co": None,
    "offline": None,
}
_MOST_RATES = 64


class _Rates(NamedTuple):
    """USD for a request, and for one token more of each kind.

    Cached tokens are input tokens too: their rate is what they cost more than these, which may be less than 0.
    """

    request: Decimal
    input: Decimal
    output: Decimal
    read: Decimal
    written: Decimal

    def cost(self, usage: TokenUsage) -> Decimal:
        """The cost of a call."""
        return (
            self.request
            + self.input * usage.input_tokens
            + self.output * usage.output_tokens
            + self.read * usage.cached_tokens
            + self.written * usage.cache_write_tokens
        )


_rates: dict[int, tuple[Any, _Rates | None]] = {}  # by the `id()` of the table's price, which is held so that it stays


def price(provider: str, model: str, usage: TokenUsage, **more: int) -> float | None:
    """The cost of a call in USD, or None where the table does not know the model: never a guess.

    Args:
        provider: the name of the provider that answered.
        model: the model's bare name, as that provider knows it.
        usage: the tokens of the call.
        more: parts of them that have prices of their own, as genai-prices calls them.
    """
    provider_id = _PRICED_AS.get(provider, provider)
    if provider_id is None:
        return None
    try:
        rates = None if more else _rates_now(provider_id, model)
        if rates is not None and _adds_up(usage):
            return float(rates.cost(usage))
        from genai_prices import calc_price

        return float(calc_price(_counts(usage, **more), model, provider_id=provider_id).total_price)
    except (LookupError, ValueError, TypeError):  # unknown provider or model, or kind of token; contradicting counts
        return None


def _counts(usage: TokenUsage, **more: int) -> Any:
    """The tokens of a call as the library has them."""
    from genai_prices import Usage

    return Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cached_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        **more,
    )


def _adds_up(usage: TokenUsage) -> bool:
    """Whether the cached tokens are among those of the input."""
    read = usage.cached_tokens
    written = usage.cache_write_tokens
    return min(read, written, usage.output_tokens) >= 0 and read + written <= usage.input_tokens


def _rates_now(provider: str, model: str) -> _Rates | None:
    """What a model's tokens cost at this time of the day; None where a token's price depends on how many there are.

    The library calculates each cost anew from its tables, which takes 0.1 ms: here it does so once for each price.

    Raises:
        LookupError: the table does not know the model.
    """
    from genai_prices import data_snapshot

    info: Any = data_snapshot.get_snapshot().find_provider_model(model, None, provider, None)[1]
    prices = info.get_prices(utc_now())
    known = _rates.get(id(prices))
    if known is None:
        while len(_rates) >= _MOST_RATES:
            _rates.pop(next(iter(_rates)), None)
        known = _rates[id(prices)] = prices, _rates_of(prices)
    return known[1]


def utc_now() -> datetime:
    """The time, by which some providers have other prices at night."""
    from datetime import UTC, datetime

    return datetime.now(UTC)


def _rates_of(prices: Any) -> _Rates | None:
    from decimal import Decimal

    if not all(isinstance(value, Decimal | None) for value in vars(prices).values()):
        return None
    given = ((0, 0), (1, 0), (0, 1), (1, 0, 1), (1, 0, 0, 1))
    costs = [prices.calc_price(_counts(TokenUsage(*counts)))["total_price"] for counts in given]
    none, one, output, read, written = costs
    return _Rates(none, one - none, output - none, read - one, written - one)


@lru_cache(maxsize=256)
def context_window(model: str) -> int | None:
    """The number of tokens that a model takes, or None where it is not known.

    Args:
        model: a name as `create_llm` takes it, for example `claude-sonnet-4-5` or `groq/llama-3.3-70b`.
    """
    from connectagent.errors import ConfigError
    from connectagent.models.names import parse_model

    try:
        provider, bare = parse_model(model)
    except ConfigError:
        return None
    provider_id = _PRICED_AS.get(provider.name, provider.name)
    if provider_id is None:
        return None
    from genai_prices import data_snapshot

    try:
        found: Any = data_snapshot.get_snapshot().find_provider_model(bare, None, provider_id, None)[1]
    except LookupError:
        return None
    window = getattr(found, "context_window", None)
    return window if isinstance(window, int) else None
