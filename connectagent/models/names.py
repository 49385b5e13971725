"""The providers, and which one a model's name means."""

from __future__ import annotations

import os
from dataclasses import dataclass

from connectagent.errors import ConfigError, nearest
from connectagent.settings import setting


@dataclass(frozen=True, slots=True)
class Provider:
    """A company's API: where it is, which variable holds its key, and which wire it speaks.

    Args:
        name: the prefix in `provider/model`.
        wire: `openai` (chat completions), `responses` (OpenAI's other API) or `anthropic` (messages).
        base_url: None where the SDK knows it.
        key_variable: the environment variable of the key, or None where no key is needed.
        models: the beginnings of model names that mean this provider without a prefix.
        default_model: what is used when only the key is set.
    """

    name: str
    wire: str
    base_url: str | None
    key_variable: str | None
    models: tuple[str, ...] = ()
    default_model: str | None = None


# Base URLs are the ones that each provider documents for its OpenAI-compatible endpoint.
PROVIDERS: dict[str, Provider] = {
    provider.name: provider
    for provider in (
        Provider("openai", "openai", None, "OPENAI_API_KEY", ("gpt-", "o1", "o3", "o4", "chatgpt-"), "gpt-5-mini"),
        Provider("openai-responses", "responses", None, "OPENAI_API_KEY"),
        Provider("anthropic", "anthropic", None, "ANTHROPIC_API_KEY", ("claude-",), "claude-sonnet-4-5"),
        Provider(
            "gemini",
            "openai",
            "https://generativelanguage.googleapis.com/v1beta/openai/",
            "GEMINI_API_KEY",
            ("gemini-",),
            "gemini-2.5-flash",
        ),
        Provider("groq", "openai", "https://api.groq.com/openai/v1", "GROQ_API_KEY"),
        Provider("openrouter", "openai", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
        Provider("deepseek", "openai", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY", ("deepseek-",)),
        Provider("mistral", "openai", "https://api.mistral.ai/v1", "MISTRAL_API_KEY", ("mistral-", "magistral-")),
        Provider("together", "openai", "https://api.together.xyz/v1", "TOGETHER_API_KEY"),
        Provider("xai", "openai", "https://api.x.ai/v1", "XAI_API_KEY", ("grok-",)),
        Provider("fireworks", "openai", "https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
        Provider("cerebras", "openai", "https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
        Provider("perplexity", "openai", "https://api.perplexity.ai", "PERPLEXITY_API_KEY"),
        Provider("ollama", "openai", "http://localhost:11434/v1", None),
        Provider("lmstudio", "openai", "http://localhost:1234/v1", None),
        Provider("co", "openai", None, "CONNECTAGENT_GATEWAY_KEY"),
    )
}
"""`co` is the gateway: its base URL is `CONNECTAGENT_GATEWAY_URL`."""


def same_account(one: str, other: str | None) -> bool:
    """Whether two providers' names mean the same key and address: OpenAI has a name for each of its two APIs."""
    first, second = PROVIDERS.get(one), PROVIDERS.get(other or "")
    if first is None or second is None:
        return False
    return (first.key_variable, first.base_url) == (second.key_variable, second.base_url)


NO_KEY = "none"
"""Local servers ask for no key, but the SDKs insist on one."""


def parse_model(name: str) -> tuple[Provider, str]:
    """Split a model's name into its provider and the name that the provider knows it by.

    Args:
        name: `claude-sonnet-4-5`, or `provider/model`.

    Raises:
        ConfigError: no provider is known by that prefix or beginning.
    """
    prefix, slash, rest = name.partition("/")
    if slash and prefix in PROVIDERS:
        if not rest:
            raise ConfigError(f"model {name!r} names no model; write '{prefix}/<model>'")
        return PROVIDERS[prefix], rest
    if not slash:
        for provider in PROVIDERS.values():
            if name.startswith(provider.models or ("\0",)):
                return provider, name
    raise ConfigError(_unknown_model(name, prefix if slash else None))


def _unknown_model(name: str, prefix: str | None) -> str:
    if prefix is None:
        beginnings = [start for provider in PROVIDERS.values() for start in provider.models]
        return (
            f"unknown model {name!r}: its name does not say its provider.\n"
            f"Write 'provider/model', for example 'openai/{name or 'gpt-5-mini'}', or a name that begins with "
            f"{', '.join(beginnings)}.\nProviders: {', '.join(PROVIDERS)}"
        )
    near = nearest(prefix, PROVIDERS)
    hint = f" Did you mean '{near}/{name.partition('/')[2]}'?" if near else ""
    return f"unknown provider {prefix!r} in model {name!r}.{hint}\nProviders: {', '.join(PROVIDERS)}"


def default_model(overridden: bool = True) -> str:
    """The model that is used when none was named.

    The setting `model` (`CONNECTAGENT_MODEL`), else the default of the first provider whose key is set,
    else `offline`.

    Args:
        overridden: whether the command line's `--model` wins.
    """
    named = setting("model", overridden)
    if named:
        return str(named)
    for provider in PROVIDERS.values():
        if provider.default_model and provider.key_variable and os.environ.get(provider.key_variable):
            return provider.default_model
    return "offline"
