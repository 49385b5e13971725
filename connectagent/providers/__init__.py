"""The models behind an `LLM`: a name becomes one here.

The SDKs are imported at the first call, not here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from connectagent.errors import ConfigError
from connectagent.llm import LLM, PROVIDERS, Provider, default_model, parse_model
from connectagent.providers.anthropic import AnthropicLLM
from connectagent.providers.ask import llm_do
from connectagent.providers.offline import OfflineLLM
from connectagent.providers.openai import OpenAILLM
from connectagent.providers.prices import context_window
from connectagent.settings import setting

__all__ = ["AnthropicLLM", "Factory", "OfflineLLM", "OpenAILLM", "context_window", "create_llm", "llm_do"]

Factory = Callable[[str], LLM]
"""Makes an `LLM` from a model's full name; plugins bring them by `register_models`."""


def create_llm(
    model: str | None = None,
    *,
    api_key: str | None = None,
    base_url: str | None = None,
    options: Mapping[str, Any] | None = None,
    factories: Mapping[str, Factory] | None = None,
) -> LLM:
    """The `LLM` that a model's name means. It needs no key before its first call.

    Args:
        model: `claude-sonnet-4-5`, `provider/model`, `offline`; without it `default_model()`.
        api_key: the key, in place of the provider's variable.
        base_url: another address. A name whose provider is not known is then asked on OpenAI's wire,
            which is what local servers speak.
        options: parameters of the provider's API that are sent with every request.
        factories: by the beginning of a model's name (`echo` for `echo` and `echo/...`, `my-` for `my-...`),
            what makes its `LLM`. They are asked first; the longest beginning wins.

    Raises:
        ConfigError: no provider is known for the name, or the gateway has no address.
    """
    name = model if model is not None else default_model()
    for prefix in sorted(factories or {}, key=len, reverse=True):
        if name == prefix or name.startswith(prefix if prefix[-1:] in ("-", "/", ":") else f"{prefix}/"):
            return (factories or {})[prefix](name)
    if name == "offline":
        if base_url:
            raise ConfigError(f"base_url={base_url!r} needs a model: name the one to ask there, model='...'")
        return OfflineLLM()
    provider, bare = _resolved(name, base_url)
    if provider.name == "co":
        base_url = base_url or _gateway_url(name)
        api_key = api_key or setting("gateway_key")
    adapter = AnthropicLLM if provider.wire == "anthropic" else OpenAILLM
    return adapter(
        bare, provider=provider.name, api_key=api_key, base_url=base_url, options=dict(options) if options else None
    )


def _resolved(name: str, base_url: str | None) -> tuple[Provider, str]:
    try:
        return parse_model(name)
    except ConfigError:
        if name and (base_url or (os.environ.get("OPENAI_BASE_URL") and "/" not in name)):
            return PROVIDERS["openai"], name
        raise


def _gateway_url(name: str) -> str:
    url = setting("gateway_url")
    if not url:
        raise ConfigError(
            f"model {name!r} is asked at a gateway whose address is not known:\n"
            "set CONNECTAGENT_GATEWAY_URL, or gateway_url in [tool.connectagent] of pyproject.toml, or base_url=..."
        )
    return str(url)
