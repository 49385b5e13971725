"""What a model call may cost, as far as that can be said before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from connectagent import TokenUsage, model_info

if TYPE_CHECKING:
    from connectagent import LLMRequest, ModelInfo
    from connectagent.data import LLM

FREE = "offline"  # the model that is built in costs nothing
ASSUMED_OUTPUT = 1024  # tokens of an answer that neither the options nor the adapter limit
BYTES_PER_TOKEN = 4
ATTACHED = 2000  # tokens of an image or a file: their data says nothing of that
_OUTPUT_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_PRICES_ITS_ANSWERS = "openrouter"


class Amount(NamedTuple):
    """What one model call cost, or is expected to; None where that is not known."""

    tokens: int | None
    usd: float | None

    def at_least(self, *others: Amount) -> Amount:
        """The larger of each; what is not known counts as 0."""
        amounts = (self, *others)
        return Amount(max(one.tokens or 0 for one in amounts), max(one.usd or 0.0 for one in amounts))


NOTHING = Amount(0, 0.0)


def full_name(model: str) -> str:
    """`provider/model` for the names of a provider's model, which may have been shortened."""
    known = model_info(model)
    return model if known is None else f"{known.provider}/{known.name}"


def has_no_price(model: str, llm: LLM) -> bool:
    """Whether it is known before a call that nobody will know its price.

    A provider's model is priced by the table. Other models say in each answer what it has cost.

    Args:
        model: the name of the model that is asked.
        llm: the agent's own model.
    """
    known = model_info(model)
    is_own = llm.model == model and not hasattr(llm, "provider")  # a class of the user's, whatever it is named
    if known is None or is_own or known.provider == _PRICES_ITS_ANSWERS:
        return False
    return known.cost(TokenUsage(1, 1)) is None


def estimate(request: LLMRequest, output: bool, priced: bool) -> Amount | None:
    """What a call of a provider's model may cost; None for other models, of which nothing is known.

    Args:
        request: the request.
        output: whether the longest answer is counted too.
        priced: whether the price is asked for: the table takes a moment to load.
    """
    known = model_info(request.model)
    if known is None:
        return None
    given = _tokens_of(request.messages) + _tokens_of(request.tools)
    answer = _longest_answer(known, request.options) if output else 0
    return Amount(given + answer, known.cost(TokenUsage(given, answer)) if priced else None)


def _longest_answer(model: ModelInfo, options: Mapping[str, Any]) -> int:
    """How many tokens an answer may have: by the options, else as the adapter limits it, else an assumption."""
    extra = options.get("extra_body")
    options = {**options, **extra} if isinstance(extra, Mapping) else options
    for name in _OUTPUT_LIMITS:
        limit = options.get(name)
        if isinstance(limit, int) and not isinstance(limit, bool):
            return limit
    if model.answer_tokens is None:
        return ASSUMED_OUTPUT
    thinking = options.get("thinking")
    budget = thinking.get("budget_tokens") if isinstance(thinking, Mapping) else None
    return model.answer_tokens + budget if isinstance(budget, int) else model.answer_tokens


def _tokens_of(value: object) -> int:
    return -(-_bytes_of(value) // BYTES_PER_TOKEN)


def _bytes_of(value: object) -> int:
    """The bytes of the texts in a value; data of images and files counts as a fixed number."""
    if isinstance(value, str):
        if value.startswith("data:"):
            return ATTACHED * BYTES_PER_TOKEN
        return len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, Mapping):
        return sum(_bytes_of(key) + _bytes_of(one) for key, one in value.items())
    if isinstance(value, list | tuple):
        return sum(map(_bytes_of, value))
    return 0 if value is None else len(str(value))
