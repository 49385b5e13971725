"""Calls, answers and errors in the form of trace entries."""

from __future__ import annotations

from typing import Any

from connectagent.data import LLMResponse, TokenUsage, ToolCall
from connectagent.errors import ProviderError
from connectagent.output.text import describe
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
