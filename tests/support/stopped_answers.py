"""Answers of each wire for each reason to stop, to be served by a `WireServer`.

What is expected of a reason stands here once more, and does not come from the package's own table.
"""

from __future__ import annotations

import json
from typing import Any

from wire_server import (
    Answer,
    WireServer,
    block_events,
    chat,
    chat_stream,
    finish,
    message,
    message_stream,
    response_body,
    response_stream,
    text_events,
    tool_use,
)

from connectagent.models.anthropic import AnthropicLLM
from connectagent.models.openai import OpenAILLM
from connectagent.models.responses import ResponsesLLM

# For each wire: the reason as the provider writes it, what the answer is, and the kind of its error.
CHAT = {
    "stop": ("whole", ""),
    "tool_calls": ("whole", ""),
    "eos": ("whole", ""),
    "": ("whole", ""),
    "length": ("truncated", "length"),
    "model_length": ("truncated", "length"),
    "refusal": ("refused", "refusal"),
    "content_filter": ("filtered", "content_filter"),
    "sensitive": ("filtered", "content_filter"),
    "SAFETY": ("filtered", "content_filter"),
    "content_filter: PROHIBITED_CONTENT": ("filtered", "content_filter"),
    "error": ("failed", "server"),
    "network_error": ("failed", "server"),
    "insufficient_system_resource": ("failed", "overloaded"),
    "function_call_filter: MALFORMED_FUNCTION_CALL": ("failed", "tool_use_failed"),
    "abort": ("failed", "server"),
    "brand_new": ("unknown", "bad_response"),
}
RESPONSES = {
    "completed": ("whole", ""),
    "max_output_tokens": ("truncated", "length"),
    "refusal": ("refused", "refusal"),
    "content_filter": ("filtered", "content_filter"),
    "cancelled": ("failed", "server"),
    "steered": ("unknown", "bad_response"),
    "incomplete": ("unknown", "bad_response"),
}
ANTHROPIC = {
    "end_turn": ("whole", ""),
    "tool_use": ("whole", ""),
    "stop_sequence": ("whole", ""),
    "max_tokens": ("truncated", "length"),
    "model_context_window_exceeded": ("truncated", "context_length"),
    "refusal": ("refused", "refusal"),
    "pause_turn": ("failed", "server"),
    "brand_new": ("unknown", "bad_response"),
    "": ("unknown", "bad_response"),
}
WIRES = {"chat": CHAT, "responses": RESPONSES, "anthropic": ANTHROPIC}


def answer(wire: str, mode: str, reason: str, text: str | None, calls: list[tuple[str, str, str]]) -> Answer:
    """An answer with a text and calls (id, name, arguments), the last of which may be cut."""
    return {"chat": _chat, "responses": _responses, "anthropic": _anthropic}[wire](mode, reason, text, calls)


def _chat(mode: str, reason: str, text: str | None, calls: list[tuple[str, str, str]]) -> Answer:
    more = {"refusal": text} if reason == "refusal" else {"content": text}
    reason = "stop" if reason == "refusal" else reason
    made = [
        {"index": n, "id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for n, (id, name, arguments) in enumerate(calls)
    ]
    said: dict[str, Any] = {"content": None, **more, **({"tool_calls": made} if made else {})}
    if mode == "plain":
        return chat(**said, finish=reason or None)
    end = [finish(reason)] if reason else []
    return chat_stream({key: value for key, value in said.items() if value is not None}, *end)


def _responses(mode: str, reason: str, text: str | None, calls: list[tuple[str, str, str]]) -> Answer:
    told: dict[str, Any] = {"status": "incomplete", "why": reason}
    if reason in ("completed", "cancelled", "incomplete", "refusal"):
        told = {"status": "completed" if reason == "refusal" else reason}
    output: list[Any] = [text] if text is not None and reason != "refusal" else []
    if text is not None and reason == "refusal":
        output = [{"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": text}]}]
    body = response_body(*output, *calls, **told)
    if calls and told["status"] == "incomplete":
        body["output"][-1]["status"] = "in_progress" if "max" in reason else "incomplete"
    if mode == "plain":
        return Answer(body)
    streamed = response_stream(body)
    if told["status"] == "cancelled":  # there is no event of that name: the last one says it
        streamed.text = str(streamed.text).replace("response.cancelled", "response.incomplete")
    return streamed


def _anthropic(mode: str, reason: str, text: str | None, calls: list[tuple[str, str, str]]) -> Answer:
    if mode == "plain":
        blocks: list[Any] = [] if text is None else [text]
        blocks += [tool_use(id, name, **_begun(arguments)) for id, name, arguments in calls]
        return message(*blocks, stop=reason or None)  # type: ignore[arg-type]
    events = [] if text is None else text_events(0, text)
    for n, (id, name, arguments) in enumerate(calls, 1):
        events += block_events(n, tool_use(id, name), {"type": "input_json_delta", "partial_json": arguments})
    return message_stream(*events, stop=reason)


def _begun(arguments: str) -> dict[str, Any]:
    """What a server has read of arguments that may be cut."""
    try:
        found: dict[str, Any] = json.loads(arguments or "{}")
    except ValueError:
        return {"title": "Rep"}
    return found


def typed_answer(wire: str, mode: str, reason: str, written: str) -> Answer:
    if wire == "anthropic":  # by the tool that stands for the form
        return answer(wire, mode, reason, None, [("t1", "Report", written)])
    return answer(wire, mode, reason, written, [])


def llm_at(server: WireServer, wire: str) -> Any:
    if wire == "anthropic":
        return AnthropicLLM("claude-sonnet-4-5", api_key="k-1234567", base_url=server.url)
    if wire == "responses":
        return ResponsesLLM("gpt-4o", api_key="k-1234567", base_url=server.openai_url)
    return OpenAILLM("gpt-4o", api_key="k-1234567", base_url=server.openai_url)


def good(wire: str) -> str:
    return {"chat": "stop", "responses": "completed", "anthropic": "end_turn"}[wire]
