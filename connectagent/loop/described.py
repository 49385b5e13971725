"""Calls, answers and errors as trace entries tell them."""

from __future__ import annotations

from typing import Any

from connectagent.data import LLMResponse, ToolCall
from connectagent.errors import ProviderError
from connectagent.output.text import describe
from connectagent.session.state import clone


def shown_call(call: ToolCall) -> dict[str, Any]:
    """A call as the session and the trace show it."""
    told = {"id": call.id, "name": call.name, "arguments": clone(call.arguments)}
    if call.error:
        told["error"] = call.error
    if call.raw is not None:
        told["raw"] = call.raw
    return {**told, "approved": True} if call.approved else told


def describe_answer(response: LLMResponse) -> dict[str, Any]:
    """A model's answer as a trace entry tells it."""
    told = {"content": response.content, "tool_calls": [shown_call(call) for call in response.tool_calls or ()]}
    return {**told, "provider_data": clone(response.provider_data)} if response.provider_data else told


def describe_error(error: BaseException) -> dict[str, Any]:
    """An error as a trace entry tells it."""
    told: dict[str, Any] = {"error": describe(str, error), "error_type": type(error).__name__}
    if isinstance(error, ProviderError):
        told |= {"error_kind": error.kind, "error_provider": error.provider, "error_status": error.status}
        told["retry_after_s"] = error.retry_after_s
    return {key: value for key, value in told.items() if value is not None}


def outlined(own: dict[str, Any] | None) -> dict[str, Any] | None:
    """What became of a call before an around handler made something else of it: no texts, as those may be secret."""
    if own is None:
        return None
    kept = ("error_type", "error_kind", "error_provider", "error_status", "retry_after_s")
    status = own.get("status") or ("error" if "error_type" in own else "success")
    return {"status": status, **{key: own[key] for key in kept if key in own}}
