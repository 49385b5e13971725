"""A plugin that notes every hook."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from connectagent import hooks
from connectagent.data import LLMRequest, LLMResponse, ToolCall
from connectagent.session.state import clone


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
    """A copy of a value, which later edits do not change."""
    if isinstance(value, ToolCall):
        return replace(value, arguments=clone(value.arguments))
    if isinstance(value, LLMRequest):
        return replace(value, messages=clone(value.messages), options=clone(value.options))
    if isinstance(value, LLMResponse):
        return replace(value, tool_calls=_snapshot(value.tool_calls))
    if isinstance(value, list) and any(isinstance(item, ToolCall) for item in value):
        return [_snapshot(item) for item in value]
    return clone(value)
