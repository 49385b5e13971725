"""Key, address and options that code gives, and the one provider for which it gives them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from connectagent.data import LLM
from connectagent.errors import ConfigError, short
from connectagent.models.names import default_model, parse_model, same_account
from connectagent.settings import setting

OWN_SERVER = ""
"""Stands for the provider where a name has none and there is an address: the user's own server, on OpenAI's wire."""


@dataclass(frozen=True, slots=True)
class Connection:
    """How a provider is reached. Another provider is never reached with it, so that no key gets into its logs.

    Args:
        model: the name of the model for which the rest was given; None where it names no provider.
        api_key: the key, in place of the provider's variable.
        base_url: the address, in place of the provider's.
        options: parameters that are sent with each request.
    """

    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    base_url: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def provider(self, name: str, prefixes: Iterable[str] = ()) -> tuple[str, str]:
        """The provider that a model's name means, and the provider's own name for the model.

        A name without a provider means the model at the given address.

        Args:
            name: as `create_llm` takes it.
            prefixes: the beginnings of names for which plugins make the `LLM`; the longest wins.

        Raises:
            ConfigError: the name has no provider, and there is no address.
        """
        prefixes = sorted(prefixes, key=len, reverse=True)
        own = next((prefix for prefix in prefixes if _begins(name, prefix)), None)
        if own is not None or name == "offline":
            return own or name, name
        try:
            provider, bare = parse_model(name)
        except ConfigError:
            if name and self.base_url:
                same = self.model is None or self.model == name
                return OWN_SERVER if same else self._given_for(prefixes) or OWN_SERVER, name
            if name and "/" not in name and os.environ.get("OPENAI_BASE_URL"):
                return "openai", name
            raise
        return provider.name, bare

    def to(self, provider: str, prefixes: Iterable[str] = ()) -> Connection:
        """How that provider is reached: by this connection if it was given for it, else by what is its own."""
        brought = set(prefixes)  # by plugins, whatever their names resemble
        given_for = self._given_for(brought)
        one = not brought & {provider, given_for} and same_account(provider, given_for)
        return self if one or provider == given_for else Connection()

    def _given_for(self, prefixes: Iterable[str]) -> str | None:
        if self.model is None:
            return OWN_SERVER
        try:
            return self.provider(self.model, prefixes)[0]
        except ConfigError:  # the agent has another model, by the command line
            return None


def _begins(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix if prefix[-1:] in ("-", "/", ":") else f"{prefix}/")


def given(
    model: str | None,
    api_key: str | None,
    base_url: str | None,
    options: Mapping[str, Any] | None,
    llm: LLM | None = None,
) -> Connection:
    """The connection that the arguments of `Agent`, `create_llm` and `llm_do` mean.

    It is for the provider of `model`; without `model`, for that of `llm.model`; without both, for that of the
    model that the agent has by settings and environment. The command line's `--model` does not count: it
    comes from somebody else than the key.

    Raises:
        ConfigError: an argument is not what is accepted, or the key or address has no model to belong to.
    """
    _check(model, api_key, base_url, options, llm)
    name = model
    if getattr(llm, "_own_base_url", None):  # the user's own server, whatever its name says
        name = None
    elif model is None and llm is not None:
        with contextlib.suppress(ConfigError):  # a name without a provider: then the key belongs to none
            name = parse_model(llm.model) and llm.model
    elif model is None:
        if base_url and not setting("model"):
            raise ConfigError(f"base_url={base_url!r} needs a model: name the one to ask there, model='...'")
        if api_key and not base_url:
            raise ConfigError("api_key= needs a model: name one of the provider whose key it is, model='...'")
        named = setting("model", overridden=False)
        name = str(named) if named else None if base_url else default_model(overridden=False)
    return Connection(name, api_key or None, base_url or None, dict(options or {}))


def _check(model: object, api_key: object, base_url: object, options: object, llm: object) -> None:
    if not isinstance(model, str | None):
        hint = "; an LLM is given as llm=" if is_llm(model) else ""
        accepted = "a str such as 'claude-sonnet-4-5' or 'provider/model', or None"
        raise ConfigError(f"model is {accepted}, not {short(model)}{hint}")
    if llm is not None and not is_llm(llm):
        accepted = "an object with model, a str, and complete(messages, tools=None)"
        hint = f"; a name is given as model={llm!r:.80}" if isinstance(llm, str) else ""
        raise ConfigError(f"llm is {accepted}, not {short(llm)}{hint}")
    if not isinstance(api_key, str | None):  # whose value is not shown: it may hold the key all the same
        raise ConfigError(f"api_key is a str or None, not {type(api_key).__name__}")
    if not isinstance(base_url, str | None) or (base_url and not base_url.startswith(("http://", "https://"))):
        accepted = "an address that begins with http:// or https://, or None"
        raise ConfigError(f"base_url is {accepted}, not {short(base_url)}")
    if options is not None and not (isinstance(options, Mapping) and all(isinstance(key, str) for key in options)):
        raise ConfigError(f"options is a dict of the provider's parameters by name, not {type(options).__name__}")


def is_llm(value: object) -> bool:
    """Whether a value is an `LLM`."""
    if isinstance(value, type) or not callable(getattr(value, "complete", None)):
        return False
    return isinstance(value, LLM) and isinstance(value.model, str)
