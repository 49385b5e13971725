"""A server that ignores `stream`, or streams unasked, is understood on each wire."""

from __future__ import annotations

import json
from typing import Any

import pytest
from wire_server import (
    Answer,
    WireServer,
    block_events,
    chat,
    chat_stream,
    finish,
    message,
    message_stream,
    response,
    response_body,
    response_stream,
    text_events,
    tool_use,
    usage_chunk,
)

from connectagent import ProviderError
from connectagent.models.anthropic import AnthropicLLM
from connectagent.models.openai import OpenAILLM
from connectagent.models.responses import ResponsesLLM

HELLO: list[Any] = [{"role": "user", "content": "hello"}]
ADD: Any = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALL = ("c1", "add", '{"a": 1}')
MADE: dict[str, Any] = {"chat": OpenAILLM, "anthropic": AnthropicLLM, "responses": ResponsesLLM}
PLAIN = {
    "chat": chat("Hello\nyou.", calls=[CALL]),
    "anthropic": message("Hello\nyou.", tool_use("c1", "add", a=1), stop="tool_use"),
    "responses": response("Hello\nyou.", CALL),
}
BLOCK = {"type": "tool_use", "id": "c1", "name": "add", "input": {}}
STREAMED = {
    "chat": chat_stream(
        {"content": "Hello\n"},
        {"content": "you."},
        {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "add", "arguments": '{"a": 1}'}}]},
        finish("tool_calls"),
        usage_chunk(),
    ),
    "anthropic": message_stream(
        *text_events(0, "Hello\n", "you."),
        *block_events(1, BLOCK, {"type": "input_json_delta", "partial_json": '{"a": 1}'}),
        stop="tool_use",
    ),
    "responses": response_stream(response_body("Hello\nyou.", CALL)),
}


def answer_of(wire: str, answer: Answer, told: list[str] | None = None) -> Any:
    with WireServer(answer) as server:
        llm = MADE[wire]("model-1", api_key="test-key-1", base_url=server.url, options={"max_retries": 0})
        return llm.complete(HELLO, [ADD]) if told is None else llm.stream(HELLO, [ADD], on_text=told.append)


def is_read(response: Any) -> bool:
    (call,) = response.tool_calls
    said = (response.content, call.id, call.name, call.arguments) == ("Hello\nyou.", "c1", "add", {"a": 1})
    return said and response.usage.input_tokens == 10


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream", "text/plain"])
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("mark", ["", "\ufeff", "\n\n"])
@pytest.mark.parametrize("wire", MADE)
def test_a_whole_answer_in_place_of_a_stream_is_read(wire: str, mark: str, indent: int | None, kind: str) -> None:
    told: list[str] = []
    text = mark + json.dumps(PLAIN[wire].body, indent=indent)
    assert is_read(answer_of(wire, Answer(text=text, headers={"content-type": kind}), told))
    assert "".join(told) == "Hello\nyou."


@pytest.mark.parametrize("begin", ["", ": comment\n\n", "retry: 3000\n\n", "event: ping\n\n"])
@pytest.mark.parametrize("wire", MADE)
def test_a_stream_that_nobody_asked_for_is_read(wire: str, begin: str) -> None:
    assert is_read(answer_of(wire, Answer(text=begin + (STREAMED[wire].text or ""))))


@pytest.mark.parametrize("wire", MADE)
def test_a_whole_answer_that_is_cut_is_an_error(wire: str) -> None:
    text = json.dumps(PLAIN[wire].body)
    for end in (1, len(text) // 2, len(text) - 1):
        with pytest.raises(ProviderError) as caught:
            answer_of(wire, Answer(text=text[:end], headers={"content-type": "application/json"}), [])
        assert caught.value.kind == "stream"


@pytest.mark.parametrize("wire", MADE)
def test_a_stream_that_nobody_asked_for_and_that_is_cut_is_an_error(wire: str) -> None:
    events = (STREAMED[wire].text or "").split("\n\n")
    for text in ("\n\n".join(events[:3]), "\n\n".join(events[:2]) + "\n\n" + events[2][:30]):
        with pytest.raises(ProviderError) as caught:
            answer_of(wire, Answer(text=text))
        assert caught.value.kind == "stream"


@pytest.mark.parametrize("wire", MADE)
@pytest.mark.parametrize("told", [None, []])
def test_an_error_of_either_form_is_told(wire: str, told: list[str] | None) -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "engine overloaded"}}
    text = json.dumps(error) if told is not None else f"event: error\ndata: {json.dumps(error)}\n\n"
    with pytest.raises(ProviderError, match="engine overloaded") as caught:
        answer_of(wire, Answer(text=text), told)
    assert caught.value.kind == "overloaded"
