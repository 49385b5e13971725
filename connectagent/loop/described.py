"""Calls, answers and errors in the form of trace entries."""

from __future__ import annotations

import time
from typing import Any

from connectagent.data import LLMRequest, LLMResponse, TokenUsage, ToolCall, TraceEntry
from connectagent.errors import ProviderError
from connectagent.output.text import describe
from connectagent.records.sent import schema_key
from connectagent.session.messages import tidied
from connectagent.session.state import clone


def shown_call(call: ToolCall) -> dict[str, Any]:
    """A call in the form of the session and the trace."""
    shown = {"id": call.id, "name": call.name, "arguments": clone(call.arguments)}
    if call.error:
        shown["error"] = call.error
    if call.raw is not None:
        shown["raw"] = call.raw
    return {**shown, "approved": True} if call.approved else shown


def describe_answer(response: LLMResponse) -> dict[str, Any]:
    """A model's answer in the form of a trace entry."""
    answer = {"content": response.content, "tool_calls": list(map(shown_call, response.tool_calls or ()))}
    return {**answer, "provider_data": clone(response.provider_data)} if response.provider_data else answer


def model_entry(
    turn: Any, id: str, request: LLMRequest, response: LLMResponse | None, status: str, calls: list[dict[str, Any]]
) -> TraceEntry:
    """The `llm_call` entry of an answer or a stand-in."""
    more: dict[str, Any] = {
        "finish_reason": response.finish_reason if response else None,
        "provider_data": response.provider_data if response else None,
        "retries": response.retries if response else None,
    }
    entry: TraceEntry = {
        "type": "llm_call",
        "id": id,
        "model": (response.model if response else None) or request.model,
        "timestamp": time.time(),
        "duration_ms": 0.0,
        "tool_calls_count": len(calls),
        "iteration": turn.conversation.session["iteration"],
        "usage": response.usage if response else None,
        "content": response.content if response else None,
        "tool_calls": calls,
        "status": status,
    }
    for key, value in more.items():
        if value:
            entry[key] = value
    return entry


def describe_error(error: BaseException) -> dict[str, Any]:
    """An error in the form of a trace entry."""
    described: dict[str, Any] = {"error": describe(str, error), "error_type": type(error).__name__}
    if isinstance(error, ProviderError):
        described |= {"error_kind": error.kind, "error_provider": error.provider, "error_status": error.status}
        described["retry_after_s"] = error.retry_after_s
    return {key: value for key, value in described.items() if value is not None}


def outlined(own: dict[str, Any] | None) -> dict[str, Any] | None:
    """The outcome of a call before an around handler replaced it, without texts, since those may be secret."""
    if own is None:
        return None
    kept = ("error_type", "error_kind", "error_provider", "error_status", "retry_after_s")
    status = own.get("status") or ("error" if "error_type" in own else "success")
    return {"status": status, **{key: own[key] for key in kept if key in own}}


def not_known(sent: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """What of a request the log does not have yet; a schema that it has already is named by its key.

    Args:
        sent: the request.
        before: that of the call before, which becomes this one.
    """
    new: dict[str, Any] = {}
    for key, value in sent.items():
        if key != "names" and (key not in before or value != before[key]):
            new[key] = value
    if new.get("tools"):
        logged, tools, added = before.setdefault("schemas", []), [], []
        for tool in new["tools"]:
            is_logged = tool in logged
            tools.append(schema_key(tool) if is_logged else tool)
            if not is_logged:
                added.append(tool)
        new["tools"] = tools
        logged += clone(added)
    before.update(sent)
    before.pop("edited", None)
    return clone(new)  # type: ignore[no-any-return]


def as_response(value: Any) -> LLMResponse:
    """The answer of a model or handler, as a response whose calls can be answered.

    Raises:
        ProviderError: it is neither an LLMResponse nor a str.
    """
    if isinstance(value, str):
        value = LLMResponse(value)
    if not isinstance(value, LLMResponse):
        problem = f"the model answered with {type(value).__name__} {value!r:.80}; complete() returns an LLMResponse"
        raise ProviderError(problem, kind="bad_response", provider="?")
    try:
        return tidied(value)
    except TypeError as found:
        problem, usage = f"the model's answer cannot be used: {found}", value.usage
        usage = usage if isinstance(usage, TokenUsage) else TokenUsage()
        raise ProviderError(problem, kind="bad_response", provider="?", usage=usage) from None
