"""A model that follows a script."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, NamedTuple

from connectagent.data import LLMResponse, Message, ToolCall, WordByWord
from connectagent.session.snapshot import clone

_numbers = itertools.count(1)


def call(name: str, /, **arguments: Any) -> ToolCall:
    """A tool call with an id of its own, as a model would make it."""
    return ToolCall(f"call_{name}_{next(_numbers)}", name, arguments)


class ScriptEnded(AssertionError):
    """The model was called once more than its script has responses."""


class Request(NamedTuple):
    """One call of the model: copies of what it was given, as it was then."""

    messages: list[Message]
    tools: list[dict[str, Any]]


class ScriptedLLM(WordByWord):
    """A model that answers with what it was given, in order.

    Args:
        responses: each is a str, an `LLMResponse`, a `ToolCall` or a list of them, `(name, arguments)` or a
            list of those for calls, an exception to raise, or a function of `(messages, tools)` that
            returns any of these.
        model: the model's name.

    Attributes:
        requests: what the model was asked, one `Request` a call.
    """

    def __init__(self, *responses: Any, model: str = "scripted") -> None:
        self.model = model
        self.responses = list(responses)
        self.requests: list[Request] = []

    def complete(self, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> LLMResponse:
        """The next response of the script.

        Raises:
            ScriptEnded: there is none left.
            BaseException: the next response, if it is an exception.
        """
        self.requests.append(Request(clone(messages), clone(tools or [])))
        number = len(self.requests)
        if number > len(self.responses):
            last = messages[-1] if messages else None
            raise ScriptEnded(
                f"the script of ScriptedLLM {self.model!r} has {len(self.responses)} responses, and the model was "
                f"called {number} times; the last message was {last!r:.300}"
            )
        return _response(self.responses[number - 1], messages, tools)


def _response(value: object, messages: list[Message], tools: list[dict[str, Any]] | None) -> LLMResponse:
    if callable(value) and not isinstance(value, type):
        return _response(value(messages, tools), messages, tools)
    if isinstance(value, BaseException) or (isinstance(value, type) and issubclass(value, BaseException)):
        raise value
    if isinstance(value, str):
        return LLMResponse(value)
    if isinstance(value, LLMResponse):
        return replace(value, tool_calls=None if value.tool_calls is None else list(value.tool_calls))
    if _is_call(value):
        value = [value]
    if isinstance(value, list) and all(map(_is_call, value)):
        return LLMResponse(None, [item if isinstance(item, ToolCall) else call(item[0], **item[1]) for item in value])
    raise TypeError(
        f"{value!r} is no response of a ScriptedLLM: give a str, an LLMResponse, a list of ToolCalls, "
        "(name, arguments), an exception, or a function of (messages, tools)"
    )


def _is_call(value: object) -> bool:
    """Whether it is a call, or the name and the arguments of one."""
    if isinstance(value, tuple):
        return len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], dict)
    return isinstance(value, ToolCall)
