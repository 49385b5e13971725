"""What handlers may edit in the arguments of their hook: compared, put back and shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from connectagent.data import LLMRequest, LLMResponse, ToolCall
from connectagent.session.snapshot import clone, same
from connectagent.session.state import alike

EDITABLE = frozenset({"tool_call", "tool_calls", "request", "response"})
"""The names of arguments that handlers may edit."""


def peek(arguments: dict[str, Any]) -> dict[str, Any]:
    """A comparable copy of the arguments that a handler may edit."""
    peeked = {}
    for name in arguments:
        if name in EDITABLE:
            peeked[name] = peek_one(arguments[name])
    return peeked


def is_as_before(then: Any, value: Any) -> bool:
    """Whether one such argument is what it was when `peek_one` copied it; in calls, 1, 1.0 and True differ."""
    if isinstance(value, ToolCall):
        return _is_same_call(then, value)
    if isinstance(value, list):
        return len(then) == len(value) and all(map(_is_same_call, then, value))
    return same(then, _form(value))


def _is_same_call(then: tuple[Any, ...], call: object) -> bool:
    id, name, arguments, approved, value = then
    if call is not value or not isinstance(call, ToolCall):
        return call is value
    return call.id == id and call.name == name and call.approved == approved and alike(call.arguments, arguments)


def peek_one(value: object) -> Any:
    """A comparable copy of one such argument."""
    if isinstance(value, LLMRequest) and not same(value._tools_seen, value.tools):  # comparing costs less than a copy
        value._tools_seen = clone(value.tools)
    return _form(value, clone)


def _form(value: object, copied: Callable[[Any], Any] | None = None) -> Any:
    """What is compared of one such argument; `copied` copies what can be edited in place."""
    if isinstance(value, ToolCall):
        return value.id, value.name, copied(value.arguments) if copied else value.arguments, value.approved, value
    if isinstance(value, list):
        return [_form(call, copied) or (None, None, None, False, call) for call in value]
    if isinstance(value, LLMResponse):
        data = copied(value.provider_data) if copied else value.provider_data
        return value.content, _form(value.tool_calls, copied), data, value
    if isinstance(value, LLMRequest):
        tools, options = (value._tools_seen, copied(value.options)) if copied else (value.tools, value.options)
        return id(value.messages), value.model, tools, options, value.messages, value
    return None


def peek_value(value: object) -> Any:
    """A comparable copy of a value that a handler may edit and return."""
    return peek_one(value) if isinstance(value, LLMResponse) else clone(value)


def unless_same(given: object) -> Callable[[Any], Any]:
    """A function that maps the given value to None if it is unedited, and any other value to itself."""
    before = peek_value(given)
    return lambda value: None if value is given and same(before, peek_value(value)) else value


def put_back(before: dict[str, Any]) -> None:
    """Undo a handler's edits of its arguments; the objects stay the same."""
    for then in before.values():
        value = then[-1] if isinstance(then, tuple) else None
        if isinstance(value, ToolCall):
            _put_call_back(then)
        elif isinstance(value, LLMResponse):
            value.content, value.provider_data = then[0], clone(then[2])
            value.tool_calls = None if then[1] is None else _put_calls_back(then[1])
        elif isinstance(value, LLMRequest):
            value.messages, value.model, value.tools, value.options = then[4], then[1], clone(then[2]), clone(then[3])
        elif isinstance(then, list):
            _put_calls_back(then)


def _put_calls_back(then: list[Any]) -> list[Any]:
    for call in then:
        _put_call_back(call)
    return [call[-1] for call in then]


def _put_call_back(then: tuple[Any, ...]) -> None:
    if isinstance(call := then[-1], ToolCall):
        call.id, call.name, call.approved = *then[:2], then[3]
        if not same(call.arguments, then[2]):
            call.arguments = clone(then[2])


def other_calls(then: Any, now: Any) -> str | None:
    """Why the calls are not the ones that the model made, or None. Each result must find its call."""
    if not isinstance(now, ToolCall | list):
        return None
    old, new = (side if isinstance(side, list) else [side] for side in (then, peek_one(now)))
    kept = [call[0] for call in old] == [call[0] for call in new]
    if kept and [call[3] for call in old] != [call[3] for call in new]:
        return "approval is decided by a person, with resume()"
    return None if kept else "calls keep their ids and their number; raise ToolRejected to refuse one"


def as_data(value: object) -> Any:
    """A value as a trace entry shows it."""
    if isinstance(value, ToolCall):
        return {"id": value.id, "name": value.name, "arguments": clone(value.arguments)}
    if isinstance(value, list) and value and isinstance(value[0], ToolCall):
        return [as_data(call) for call in value]
    if isinstance(value, LLMResponse):
        answer = {"content": value.content, "tool_calls": [as_data(call) for call in value.tool_calls or ()]}
        return {**answer, "provider_data": clone(value.provider_data)} if value.provider_data else answer
    if isinstance(value, LLMRequest):
        options = {"options": shown_options(value.options)} if value.options else {}
        return {"model": value.model, "messages": len(value.messages), "tools": len(value.tools), **options}
    return clone(value)


def shown_options(options: dict[str, Any]) -> dict[str, Any]:
    """Options of a request as a trace entry shows them: without the values of headers, which may be keys."""
    shown: dict[str, Any] = clone(options)
    if isinstance(headers := shown.get("extra_headers"), dict):
        shown["extra_headers"] = dict.fromkeys(headers, "***")
    return shown
