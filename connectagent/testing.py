"""For tests of agents and plugins: a model that follows a script, and a plugin that notes every hook.

Opt in with `pytest_plugins = ["connectagent.testing"]` in conftest.py, which brings the fixture `co_dir`;
or import the names. Nothing here needs a key or a network.

    llm = ScriptedLLM([call("search", query="retry")], "It is in retry.md.")
    agent = Agent("helper", tools=[search], llm=llm, log=False, quiet=True)
    assert agent.input("Where?") == "It is in retry.md."
    assert llm.requests[1].messages[-1]["content"] == "retry.md"
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from connectagent import hooks
from connectagent.attribution import clone
from connectagent.session import LLMRequest, LLMResponse, Message, ToolCall

try:
    import pytest
except ImportError:  # the rest is of use in scripts too
    pytest = None  # type: ignore[assignment]

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


class ScriptedLLM:
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
        self.requests.append(Request(copy.deepcopy(messages), copy.deepcopy(tools or [])))
        number = len(self.requests)
        if number > len(self.responses):
            last = messages[-1] if messages else None
            raise ScriptEnded(
                f"the script of ScriptedLLM {self.model!r} has {len(self.responses)} responses, and the model was "
                f"called {number} times; the last message was {last!r:.300}"
            )
        return _response(self.responses[number - 1], messages, tools)

    def stream(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None = None,
        *,
        on_text: Callable[[str], None],
    ) -> LLMResponse:
        """The next response of the script; its text is told word by word."""
        response = self.complete(messages, tools)
        for piece in re.findall(r"\S+\s*|\s+", response.content or ""):
            on_text(piece)
        return response


def _response(value: Any, messages: list[Message], tools: list[dict[str, Any]] | None) -> LLMResponse:
    if callable(value) and not isinstance(value, type):
        return _response(value(messages, tools), messages, tools)
    if isinstance(value, BaseException) or (isinstance(value, type) and issubclass(value, BaseException)):
        raise value
    if isinstance(value, str):
        return LLMResponse(value)
    if isinstance(value, LLMResponse):
        return replace(value, tool_calls=None if value.tool_calls is None else list(value.tool_calls))
    if isinstance(value, ToolCall) or _is_shorthand(value):
        value = [value]
    if isinstance(value, list) and all(isinstance(item, ToolCall) or _is_shorthand(item) for item in value):
        return LLMResponse(None, [item if isinstance(item, ToolCall) else call(item[0], **item[1]) for item in value])
    raise TypeError(
        f"{value!r} is no response of a ScriptedLLM: give a str, an LLMResponse, a list of ToolCalls, "
        "(name, arguments), an exception, or a function of (messages, tools)"
    )


def _is_shorthand(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], dict)


class HookCall(NamedTuple):
    """One hook that fired.

    Args:
        name: the hook; `around_llm:enter` and `around_llm:exit` for the two halves of an around hook, and
            `on_trace:llm_call` for a trace entry of that type.
        arguments: what the hook gave, without the agent; copies, so that they stay as they were.
    """

    name: str
    arguments: dict[str, Any]


@dataclass
class HookRecorder:
    """A plugin that notes each hook as it fires: `Agent(..., plugins=[recorder])`.

    Listed first it sees each event before other handlers do; what they answer shows in the hooks after it.

    Attributes:
        calls: the hooks that fired, in order, with their arguments.
    """

    calls: list[HookCall] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """The names of the hooks that fired, in order."""
        return [call.name for call in self.calls]

    def of(self, name: str) -> list[dict[str, Any]]:
        """The arguments of each time that a hook fired, by the name that `calls` has for it."""
        return [call.arguments for call in self.calls if call.name == name]

    def clear(self) -> None:
        """Forget everything."""
        self.calls.clear()

    def _note(self, name: str, **arguments: Any) -> None:
        self.calls.append(HookCall(name, {key: _snapshot(value) for key, value in arguments.items()}))

    def _around(self, hook: str, **arguments: Any) -> Generator[None, Any, None]:
        self._note(f"{hook}:enter", **arguments)
        try:
            result = yield
        except BaseException as error:
            self._note(f"{hook}:exit", **arguments, error=error)
            raise
        self._note(f"{hook}:exit", **arguments, result=result)

    @hooks.after_user_input
    def after_user_input(self, prompt: str) -> None:
        self._note("after_user_input", prompt=prompt)

    @hooks.before_llm
    def before_llm(self, request: LLMRequest) -> None:
        self._note("before_llm", request=request)

    @hooks.after_llm
    def after_llm(self, request: LLMRequest, response: LLMResponse) -> None:
        self._note("after_llm", request=request, response=response)

    @hooks.before_tools
    def before_tools(self, tool_calls: list[ToolCall]) -> None:
        self._note("before_tools", tool_calls=tool_calls)

    @hooks.before_each_tool
    def before_each_tool(self, tool_call: ToolCall) -> None:
        self._note("before_each_tool", tool_call=tool_call)

    @hooks.after_each_tool
    def after_each_tool(self, tool_call: ToolCall, result: Any, entry: dict[str, Any]) -> None:
        self._note("after_each_tool", tool_call=tool_call, result=result, entry=entry)

    @hooks.after_tools
    def after_tools(self, entries: list[dict[str, Any]]) -> None:
        self._note("after_tools", entries=entries)

    @hooks.on_error
    def on_error(self, error: Exception, tool_call: ToolCall | None) -> None:
        self._note("on_error", error=error, tool_call=tool_call)

    @hooks.on_complete
    def on_complete(self, result: str, outcome: str) -> None:
        self._note("on_complete", result=result, outcome=outcome)

    @hooks.around_turn
    def around_turn(self, prompt: str) -> Generator[None, Any, None]:
        yield from self._around("around_turn", prompt=prompt)

    @hooks.around_llm
    def around_llm(self, request: LLMRequest) -> Generator[None, Any, None]:
        yield from self._around("around_llm", request=request)

    @hooks.around_tool
    def around_tool(self, tool_call: ToolCall) -> Generator[None, Any, None]:
        yield from self._around("around_tool", tool_call=tool_call)

    @hooks.on_trace
    def on_trace(self, entry: dict[str, Any]) -> None:
        self._note(f"on_trace:{entry['type']}", entry=entry)

    @hooks.on_text
    def on_text(self, text: str) -> None:
        self._note("on_text", text=text)

    @hooks.on_agent_ready
    def on_agent_ready(self) -> None:
        self._note("on_agent_ready")


def _snapshot(value: Any) -> Any:
    """A value as it is now, whatever is edited later."""
    if isinstance(value, ToolCall):
        return replace(value, arguments=clone(value.arguments))
    if isinstance(value, LLMRequest):
        return replace(value, messages=clone(value.messages))
    if isinstance(value, LLMResponse):
        return replace(value, tool_calls=_snapshot(value.tool_calls))
    if isinstance(value, list) and any(isinstance(item, ToolCall) for item in value):
        return [_snapshot(item) for item in value]
    return clone(value)


if pytest is not None:

    @pytest.fixture
    def co_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A `.co` folder of this test's own, in a current folder of its own: records and logs go there."""
        monkeypatch.chdir(tmp_path)
        folder = tmp_path / ".co"
        monkeypatch.setenv("CONNECTAGENT_DIR", str(folder))
        return folder
