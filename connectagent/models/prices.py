"""What a call costs and how much a model takes, by the tables of genai-prices.

The package is imported at the first question: that takes 170 ms.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from connectagent.data import TokenUsage

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
    from genai_prices import Usage, calc_price

    counts = {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_tokens": usage.cached_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        **more,
    }
    try:
        return float(calc_price(Usage(**counts), model, provider_id=provider_id).total_price)
    except (LookupError, ValueError, TypeError):  # unknown provider or model, or kind of token; contradicting counts
        return None


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
