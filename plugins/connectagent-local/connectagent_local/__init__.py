"""Models from GGUF files: `Agent(model="local/PATH.gguf")`, run by llama.cpp in the process, without a server to start.

The options are on `Local`. A file is loaded at the first call, once for all agents and threads of the process.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from connectagent import ConfigError, LLMResponse, ProviderError, TokenUsage, ToolCall, register_models
from connectagent_local.engine import Engine, EngineError

if TYPE_CHECKING:
    from connectagent import Message

__all__ = ["Local", "LocalLLM"]

_OURS = ("provider_data", "author")  # keys of messages that are connectagent's own
_NOT_SENT = ("max_retries", "timeout_s")  # options for the SDKs of others
VARIABLE = "CONNECTAGENT_LOCAL_MODEL"


class Local:
    """The plugin. It needs no naming: `model="local/..."` finds it.

    Args:
        path: the file that `model="local"` means; by default that of the variable `CONNECTAGENT_LOCAL_MODEL`.
        context: how many tokens a conversation may have, if the model can take as many.
        parallel: how many calls are answered at the same time; others wait.
        threads: how many threads compute; 0 for one per core.

    Raises:
        ConfigError: an option cannot be used.
    """

    name: ClassVar[str] = "local"

    def __init__(self, path: str | None = None, context: int = 8192, parallel: int = 2, threads: int = 0) -> None:
        for option, value, least in (("context", context, 1), ("parallel", parallel, 1), ("threads", threads, 0)):
            if type(value) is not int or value < least:
                raise ConfigError(f"local: {option} is a whole number from {least} up, not {value!r}")
        self.path = path
        self.settings = {"context": context, "parallel": parallel, "threads": threads}

    @register_models
    def models(self) -> dict[str, Callable[[str], LocalLLM]]:
        """`local`, and `local/PATH`."""
        return {"local": self.make}

    def make(self, model: str) -> LocalLLM:
        """The model of a file.

        Args:
            model: `local/PATH`, or `local` for the file that the options or the environment name.

        Raises:
            ConfigError: no file is named, there is none, or it is no GGUF file.
        """
        named = model.partition("/")[2] or self.path or os.environ.get(VARIABLE)
        if not named:
            raise ConfigError(
                f"model 'local' needs a file: name it, model='local/PATH.gguf', or set {VARIABLE}, or path in "
                "[tool.connectagent.local] of pyproject.toml"
            )
        path = Path(named).expanduser()
        try:
            with path.open("rb") as file:
                magic = file.read(4)
        except OSError as error:
            raise ConfigError(f"model {model!r}: {path} cannot be read: {error.strerror}") from None
        if magic != b"GGUF":
            raise ConfigError(f"model {model!r}: {path} is no GGUF file")
        return LocalLLM(model, Engine(path.resolve(), **self.settings))


class LocalLLM:
    """A model of a GGUF file.

    Args:
        model: the name by which it was asked for.
        engine: runs the file.
        options: parameters of llama.cpp's server, such as `temperature`, `seed`, `max_tokens` and `grammar`.
    """

    provider = "local"

    def __init__(self, model: str, engine: Engine, options: dict[str, Any] | None = None) -> None:
        self.model, self.engine, self.options = model, engine, dict(options or {})

    def __repr__(self) -> str:
        return f"LocalLLM({self.model!r})"

    def with_options(self, options: dict[str, Any]) -> Self:
        """The same model with other parameters."""
        other = copy.copy(self)
        other.options = dict(options)
        return other

    def complete(
        self, messages: list[Message], tools: list[dict[str, Any]] | None = None, *, output: Any = None
    ) -> LLMResponse:
        """One answer of the model; of the form of the pydantic model `output`, by a grammar.

        Raises:
            ProviderError: the call failed.
        """
        return self.stream(messages, tools, on_text=_quiet, output=output)

    def stream(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None = None,
        *,
        on_text: Callable[[str], None],
        output: Any = None,
    ) -> LLMResponse:
        """One answer of the model, its text passed to `on_text` as it arrives.

        Raises:
            ProviderError: the call failed.
        """
        options = {key: value for key, value in self.options.items() if key not in _NOT_SENT}
        sent = [{key: value for key, value in message.items() if key not in _OURS} for message in messages]
        body: dict[str, Any] = {"messages": sent, **options}
        try:
            if tools:
                # The grammar of a form leaves no room for calls: the form is asked for when the model makes none.
                shown = on_text if output is None else _quiet
                response = _response(self.engine.chunks({**body, "tools": tools}), shown)
                if output is None or response.tool_calls:
                    return response
            if output is not None:
                schema = {"name": output.__name__, "schema": output.model_json_schema(), "strict": True}
                body["response_format"] = {"type": "json_schema", "json_schema": schema}
            return _with_usage(_response(self.engine.chunks(body), on_text), response.usage if tools else None)
        except EngineError as error:
            raise ProviderError(
                f"{self.model}: {error}", kind=error.kind, provider=self.provider, model=self.model, body=error.body
            ) from None


def _quiet(text: str) -> None:
    """Show nothing."""


def _with_usage(response: LLMResponse, first: TokenUsage | None) -> LLMResponse:
    """An answer that took two calls, with the tokens of both."""
    if (last := response.usage) is not None and first is not None:
        last.input_tokens += first.input_tokens
        last.output_tokens += first.output_tokens
        last.cached_tokens += first.cached_tokens
    return response


def _response(chunks: Iterable[dict[str, Any]], on_text: Callable[[str], None]) -> LLMResponse:
    """The answer whose pieces these are.

    Raises:
        EngineError: the pieces end before the answer does.
    """
    texts: list[str] = []
    calls: dict[int, dict[str, str]] = {}
    finish, usage = None, None
    for chunk in chunks:
        usage = _usage(chunk) or usage
        for choice in chunk.get("choices") or ():
            finish, delta = choice.get("finish_reason") or finish, choice.get("delta") or {}
            if text := delta.get("content"):
                texts.append(text)
                on_text(text)
            _add_calls(calls, delta)
    if finish is None:
        raise EngineError("the answer ended before it was complete", "stream")
    response = LLMResponse(usage=usage, finish_reason=finish)
    made = [_tool_call(call, response.whole) for call in calls.values()]
    response.content, response.tool_calls = "".join(texts) or (None if made else ""), made or None
    return response


def _usage(chunk: dict[str, Any]) -> TokenUsage | None:
    if not (counted := chunk.get("usage")):
        return None
    cached = (counted.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return TokenUsage(counted["prompt_tokens"], counted["completion_tokens"], cached, cost=0.0)


def _add_calls(calls: dict[int, dict[str, str]], delta: dict[str, Any]) -> None:
    """Add the pieces of calls in a delta to the calls by their index."""
    for piece in delta.get("tool_calls") or ():
        call, function = calls.setdefault(piece["index"], {"id": "", "name": "", "arguments": ""}), piece["function"]
        call["id"] += piece.get("id", "")
        call["name"] += function.get("name", "")
        call["arguments"] += function.get("arguments", "")


def _tool_call(call: dict[str, str], whole: bool) -> ToolCall:
    raw = call["arguments"]
    if not raw and not whole:  # only a whole answer says by that that there are none
        return ToolCall(call["id"], call["name"], {}, "the answer was cut inside this call")
    try:
        arguments = json.loads(raw or "{}")
        error = None if isinstance(arguments, dict) else f"the arguments must be a JSON object, not {raw:.80}"
    except ValueError as problem:  # a token limit has cut them
        arguments, error = {}, f"the arguments are no JSON: {problem}"
    return ToolCall(call["id"], call["name"], arguments if error is None else {}, error, raw=raw)
