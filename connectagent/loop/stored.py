"""What handlers decided, as lines of the log hold it, and the same read back."""

from __future__ import annotations

import dataclasses
from typing import Any

from connectagent.data import LLMRequest, LLMResponse, Retry, TokenUsage, ToolCall, TraceEntry
from connectagent.output.masking import current
from connectagent.session.journal import MASKED, digest_of, marks_in
from connectagent.session.state import clone


def input_digest(value: Any) -> str:
    """By what an input is told apart: one that holds secrets by nothing, as another process may have other secrets."""
    return MASKED if marks_in(current().value(value)) else digest_of(value)


def as_stored(value: Any) -> Any:
    """A value that a handler returned, as data."""
    if isinstance(value, LLMResponse):
        return {"response": {**dataclasses.asdict(value), "provider_data": clone(value.provider_data)}}
    if isinstance(value, Retry):
        told = {"after_s": value.after_s, "model": getattr(value.model, "model", value.model)}
        return {"retry": told, "given": value.model is not None and not isinstance(value.model, str)}
    return {"value": clone(value)}


def from_stored(told: Any) -> Any:
    """The value that `as_stored` made data of."""
    if "response" in told:
        return stored_response(told["response"])
    return Retry(**told["retry"]) if "retry" in told else clone(told.get("value"))


def stored_response(told: dict[str, Any]) -> LLMResponse:
    """A model's answer from data: of `as_stored`, or an `llm_call` entry."""
    usage = told.get("usage")
    calls = [ToolCall(**{**clone(call), "approved": False}) for call in told.get("tool_calls") or ()]
    return LLMResponse(
        told.get("content"),
        calls,
        TokenUsage(**usage) if isinstance(usage, dict) else usage,
        told.get("finish_reason"),
        told.get("model"),
        clone(told.get("provider_data")),
        told.get("retries"),
    )


def changed_request(
    request: LLMRequest, messages: list[Any], tools: list[Any], model: str, options: Any
) -> dict[str, Any]:
    """What handlers of `before_llm` changed for one call alone; {} for nothing."""
    told: dict[str, Any] = {}
    if request.messages is not messages:
        told["messages"] = clone(list(request.messages))
    if request.tools is not tools and request.tools != tools:
        told["tools"] = clone(list(request.tools))
    if request.model != model:
        told["model"] = request.model
    if request.options != options:
        told["options"] = clone(request.options)
    return told


def with_changes(options: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """`options` with that in which `after` differs from `before`, dicts in them alike.

    What stands unchanged in `after` was given for one provider, headers with keys among it, and another one's
    `options` do not have it.
    """
    changed = {key: value for key, value in options.items() if key in after or key not in before}
    for key, value in after.items():
        old, own = before.get(key), options.get(key)
        if key in before and value == old:
            continue
        if isinstance(value, dict) and isinstance(old, dict):
            value = with_changes(own if isinstance(own, dict) else {}, old, value)
        changed[key] = value
    return changed


def change_request(request: LLMRequest, told: dict[str, Any]) -> None:
    """Change a request again as `changed_request` tells."""
    for name, value in told.items():
        setattr(request, name, clone(value))


def edit_again(given: dict[str, Any], changes: list[TraceEntry]) -> None:
    """Edit what a hook is about again, as its handlers had done."""
    for change in changes:
        value = change.get("value")
        if change.get("type") != "change":
            continue
        if change.get("of") in ("tool_call", "tool_calls"):
            calls = [given["tool_call"]] if "tool_call" in given else given.get("tool_calls") or []
            listed = value if isinstance(value, list) else [value]
            for call in calls:
                for told in listed:
                    if isinstance(told, dict) and told.get("id") == call.id:
                        call.name, call.arguments = told["name"], clone(told["arguments"])
        elif (
            change.get("of") == "response"
            and isinstance(value, dict)
            and isinstance(given.get("response"), LLMResponse)
        ):
            edited, response = stored_response(value), given["response"]
            response.content, response.tool_calls = edited.content, edited.tool_calls
            response.provider_data = edited.provider_data or response.provider_data
