"""What is known of a model by its name, before anybody asks it."""

from __future__ import annotations

from dataclasses import dataclass

from connectagent.data import TokenUsage
from connectagent.errors import ConfigError
from connectagent.models.names import parse_model


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is known of a provider's model by its name.

    Args:
        provider: the name of the provider.
        name: the name of the model, as the provider knows it.
        answer_tokens: how many tokens an answer may have if the options do not say, without a budget for thinking;
            None: the provider decides.
    """

    provider: str
    name: str
    answer_tokens: int | None

    def cost(self, usage: TokenUsage) -> float | None:
        """The cost of a call with this usage in USD; None where the price table does not know the model."""
        from connectagent.models.prices import price  # the table takes a moment to load

        return price(self.provider, self.name, usage)


def model_info(model: str) -> ModelInfo | None:
    """What is known of a model by its name, such as `claude-sonnet-4-5` or `groq/llama-3.3-70b`.

    Returns:
        None if the name means no provider's model. Whether the provider has the model is not checked.
    """
    try:
        provider, name = parse_model(model)
    except ConfigError:
        return None
    if provider.wire != "anthropic":
        return ModelInfo(provider.name, name, None)
    from connectagent.models.anthropic import MAX_TOKENS  # an answer must have a limit on that wire

    return ModelInfo(provider.name, name, MAX_TOKENS)
