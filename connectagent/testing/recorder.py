"""A plugin that notes every hook."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from inspect import Parameter, Signature
from typing import Any, NamedTuple

from connectagent import hooks
from connectagent.data import LLMRequest, LLMResponse, ToolCall
from connectagent.hooks.specs import AROUND, EVENTS, OBSERVING, PARAMETERS
from connectagent.session.snapshot import clone
from connectagent.testing.copies import Kept


class HookCall(NamedTuple):
    """One hook that fired.

    Attributes:
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
    _kept: Kept = field(default_factory=Kept, repr=False, compare=False)

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
        self.calls.append(HookCall(name, {key: self._snapshot(value) for key, value in arguments.items()}))

    def _snapshot(self, value: object) -> Any:
        """A copy of a value, which later edits do not change."""
        if isinstance(value, LLMRequest):
            return replace(value, messages=list(self._kept.of(value.messages)), options=clone(value.options))
        return _snapshot(value)

    def _around(self, hook: str, **arguments: Any) -> Generator[None, Any, None]:
        self._note(f"{hook}:enter", **arguments)
        try:
            result = yield
        except BaseException as error:
            self._note(f"{hook}:exit", **arguments, error=error)
            raise
        self._note(f"{hook}:exit", **arguments, result=result)


def _noting(hook: str) -> Any:
    """A method that notes a hook, with all that the hook gives but the agent."""

    def note(self: HookRecorder, **arguments: Any) -> None:
        self._note(f"{hook}:{arguments['entry']['type']}" if hook == "on_trace" else hook, **arguments)

    def note_around(self: HookRecorder, **arguments: Any) -> Generator[None, Any, None]:
        yield from self._around(hook, **arguments)

    method: Any = note_around if hook in AROUND else note
    given = [Parameter(name, Parameter.KEYWORD_ONLY) for name in PARAMETERS[hook] if name != "agent"]
    method.__signature__ = Signature([Parameter("self", Parameter.POSITIONAL_OR_KEYWORD), *given])
    method.__name__, method.__qualname__ = hook, f"HookRecorder.{hook}"
    return getattr(hooks, hook)(method)


for _hook in (*EVENTS, *AROUND, *OBSERVING):
    setattr(HookRecorder, _hook, _noting(_hook))


def _snapshot(value: object) -> Any:
    if isinstance(value, ToolCall):
        return replace(value, arguments=clone(value.arguments))
    if isinstance(value, LLMResponse):
        return replace(value, tool_calls=_snapshot(value.tool_calls))
    if isinstance(value, list) and any(isinstance(item, ToolCall) for item in value):
        return [_snapshot(item) for item in value]
    return clone(value)
