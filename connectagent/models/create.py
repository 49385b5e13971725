"""Makes an `LLM` from a model's name. A model imports its adapter when it is made, and its SDK at the first call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from connectagent.data import LLM, ConfigurableLLM
from connectagent.errors import ConfigError
from connectagent.models.connection import OWN_SERVER, Connection, given
from connectagent.models.names import NO_KEY, PROVIDERS, default_model
from connectagent.settings import setting

if TYPE_CHECKING:
    from connectagent.models.sdk import WireLLM

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
            which is what local servers speak, without the key of OpenAI's variable.
        options: parameters of the provider's API that are sent with every request. An LLM that a factory makes gets
            them by its `with_options`, if it has one.
        factories: by the beginning of a model's name (`echo` for `echo` and `echo/...`, `my-` for `my-...`),
            what makes its `LLM`. They are asked first; the longest beginning wins.

    Raises:
        ConfigError: no provider is known for the name, the gateway has no address, or an argument is not what
            is accepted.
    """
    connection = given(model, api_key, base_url, options)
    return connected(model if model is not None else default_model(), connection, factories)


def connected(name: str, connection: Connection, factories: Mapping[str, Factory] | None = None) -> LLM:
    """The `LLM` that a model's name means, reached by a connection if that is its provider's, else by its own.

    Args:
        name: as `create_llm` takes it.
        connection: what code gave, and for whom.
        factories: as `create_llm` takes them.

    Raises:
        ConfigError: no provider is known for the name, or the gateway has no address.
    """
    factories = factories or {}
    provider, bare = connection.provider(name, factories)
    mine = connection.to(provider, factories)
    if provider in factories:
        return _given_options(factories[provider](name), mine.options)
    if provider == "offline":
        if mine.base_url:
            raise ConfigError(f"base_url={mine.base_url!r} needs a model: name the one to ask there, model='...'")
        from connectagent.models.offline import OfflineLLM

        return OfflineLLM()
    key = mine.api_key
    base_url = mine.base_url
    if provider == OWN_SERVER:
        provider = "openai"
        key = key or NO_KEY  # the variable holds OpenAI's key, which is not theirs
    elif provider == "co":
        base_url = base_url or _gateway_url(name)
        key = key or setting("gateway_key")
    adapter = _adapter(provider)
    return adapter(bare, provider=provider, api_key=key, base_url=base_url, options=dict(mine.options) or None)


def _given_options(llm: LLM, options: Mapping[str, Any]) -> LLM:
    """The LLM of a plugin with the options that code gave for it, if it takes any."""
    if not options or not isinstance(llm, ConfigurableLLM):
        return llm
    return llm.with_options({**llm.options, **options})


def _adapter(provider: str) -> type[WireLLM]:
    """The adapter of a provider's wire, which is imported when a model needs it."""
    wire = PROVIDERS[provider].wire
    if wire == "anthropic":
        from connectagent.models.anthropic import AnthropicLLM

        return AnthropicLLM
    if wire == "responses":
        from connectagent.models.responses import ResponsesLLM

        return ResponsesLLM
    from connectagent.models.openai import OpenAILLM

    return OpenAILLM


def _gateway_url(name: str) -> str:
    url = setting("gateway_url")
    if not url:
        raise ConfigError(
            f"model {name!r} is asked at a gateway whose address is not known:\n"
            "set CONNECTAGENT_GATEWAY_URL, or gateway_url in [tool.connectagent] of pyproject.toml, or base_url=..."
        )
    return str(url)
