"""Whole conversations of `wire_fixtures` on both wires, plain and streamed: what a clone can test by itself."""

from __future__ import annotations

from typing import Any

import pytest
from wire_driver import Driven, ask, assistant_message, note
from wire_server import FIXTURES, WireServer, answers_of, conversation

from connectagent.providers import AnthropicLLM, OpenAILLM


@pytest.mark.parametrize("name", sorted(path.stem for path in FIXTURES.glob("*.json")))
def test_a_conversation_is_driven_to_its_end(name: str) -> None:
    found = conversation(name)
    tools = [{"type": "function", "function": tool} for tool in found["tools"]]
    messages: list[Any] = [{"role": "user", "content": found["prompt"]}]
    driven = Driven()
    with WireServer(*answers_of(found)) as server:
        adapter: Any = AnthropicLLM if found["wire"] == "anthropic" else OpenAILLM
        url = server.url if found["wire"] == "anthropic" else server.openai_url
        llm = adapter(
            found["model"], provider=found["provider"], api_key="k", base_url=url, options=found.get("options")
        )
        for _ in found["answers"]:
            response = ask(llm, messages, tools, "stream" if found["stream"] else "plain", driven)
            note(driven, response)
            messages.append(assistant_message(response))
            messages += [
                {"role": "tool", "tool_call_id": call.id, "content": found["results"][call.id]}
                for call in response.tool_calls or []
            ]
    expect = found["expect"]
    assert [[name, arguments] for name, arguments in driven.calls] == expect["calls"]
    assert driven.last is not None and driven.last.content == expect["text"]
    assert [[usage.input_tokens, usage.output_tokens] for usage in driven.usages if usage] == expect["usage"]
    assert len(server.requests) == len(found["answers"])
    assert not found["stream"] or driven.streamed == expect["text"]
