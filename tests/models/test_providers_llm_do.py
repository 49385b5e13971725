"""One model call without an agent, as text and as an object, on both wires."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel
from wire_server import Answer, WireServer, chat, message, tool_use

from connectagent.data import Image, LLMResponse
from connectagent.errors import OutputError, ProviderError
from connectagent.loop.ask import llm_do
from connectagent.models.anthropic import AnthropicLLM
from connectagent.models.openai import OpenAILLM

DOT = bytes.fromhex(
    "89504e470d0a1a0a0000000d494844520000000100000001080600000"
    "01f15c4890000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
)


class Book(BaseModel):
    """A book."""

    title: str
    pages: int


GOOD = '{"title": "Emma", "pages": 474}'
EMMA = Book(title="Emma", pages=474)


def openai_at(server: WireServer, provider: str = "openai", **options: Any) -> OpenAILLM:
    return OpenAILLM("gpt-4o", provider=provider, api_key="k", base_url=server.openai_url, options=options)


def anthropic_at(server: WireServer, **options: Any) -> AnthropicLLM:
    return AnthropicLLM("claude-sonnet-4-5", api_key="k", base_url=server.url, options=options)


def test_a_text_is_returned_and_what_was_asked_is_sent() -> None:
    with WireServer(chat("fine")) as server:
        answer = llm_do(
            ["Look:", Image(DOT)], system_prompt="Be brief.", model="gpt-4o", api_key="k",
            base_url=server.openai_url, options={"temperature": 0},
        )  # fmt: skip
    assert answer == "fine"
    body = server.requests[0]
    assert body["temperature"] == 0
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert [part["type"] for part in body["messages"][1]["content"]] == ["text", "image_url"]


def test_openai_is_asked_with_a_strict_schema() -> None:
    with WireServer(chat(GOOD)) as server:
        assert llm_do("Emma?", output=Book, llm=openai_at(server)) == EMMA
    form = server.requests[0]["response_format"]["json_schema"]
    assert (form["name"], form["strict"]) == ("Book", True)


def test_anthropic_is_made_to_call_a_tool() -> None:
    with WireServer(message(tool_use("t", "Book", title="Emma", pages=474), stop="tool_use")) as server:
        assert llm_do("Emma?", output=Book, llm=anthropic_at(server)) == EMMA
    body = server.requests[0]
    assert body["tool_choice"] == {"type": "tool", "name": "Book"}
    assert body["tools"][0]["description"] == "A book."


def test_anthropic_with_thinking_is_made_to_answer_in_the_form() -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    block = {"type": "thinking", "thinking": "hm", "signature": "s"}
    with WireServer(message(block, GOOD)) as server:
        assert llm_do("Emma?", output=Book, llm=anthropic_at(server, thinking=thinking)) == EMMA
    assert "tool_choice" not in server.requests[0]
    asked = server.requests[0]["output_config"]["format"]
    assert asked["type"] == "json_schema" and asked["schema"]["required"] == ["title", "pages"]


def test_a_wrong_answer_is_sent_back_once_with_what_was_wrong() -> None:
    with WireServer(chat('{"title": "Emma"}'), chat(GOOD)) as server:
        assert llm_do("Emma?", output=Book, llm=openai_at(server)) == EMMA
    told = server.requests[1]["messages"][-1]["content"]
    assert "pages: Field required" in told
    assert server.requests[1]["messages"][-2] == {"role": "assistant", "content": '{"title": "Emma"}'}


def test_the_second_wrong_answer_is_an_error() -> None:
    with (
        WireServer(message(tool_use("t", "Book", title="Emma", pages="many"))) as server,
        pytest.raises(OutputError, match="pages") as caught,
    ):
        llm_do("Emma?", output=Book, llm=anthropic_at(server))
    assert len(server.requests) == 2
    assert "many" in str(caught.value)


def test_an_endpoint_that_knows_no_schema_is_asked_in_words() -> None:
    refused = Answer({"error": {"message": "This response_format type is unavailable now"}}, 400)
    with WireServer(refused, chat(f"Sure: {GOOD}")) as server:
        assert llm_do("Emma?", output=Book, llm=openai_at(server, "groq")) == EMMA
    assert "response_format" not in server.requests[1]
    assert "JSON Schema" in server.requests[1]["messages"][0]["content"]
    with WireServer(chat(GOOD)) as server:
        assert llm_do("Emma?", output=Book, llm=openai_at(server, "deepseek")) == EMMA
    assert server.requests[0]["response_format"] == {"type": "json_object"}


def test_a_model_of_ones_own_is_asked_in_words() -> None:
    class Mine:
        model = "mine"
        asked: list[Any]

        def complete(self, messages: list[Any], tools: Any = None) -> LLMResponse:
            self.asked = messages
            return LLMResponse(GOOD)

    mine = Mine()
    assert llm_do("Emma?", output=Book, llm=mine) == EMMA
    assert len(mine.asked) == 1 and "JSON Schema" in mine.asked[0]["content"]


def test_a_refusal_is_an_error_and_not_an_object() -> None:
    with WireServer(chat(None, refusal="I can't.")) as server, pytest.raises(ProviderError, match="I can't") as caught:
        llm_do("Emma?", output=Book, llm=openai_at(server))
    assert caught.value.kind == "refusal"


def test_other_errors_come_through() -> None:
    refused = Answer({"error": {"message": "temperature is not supported"}}, 400)
    with WireServer(refused) as server, pytest.raises(ProviderError, match="temperature"):
        llm_do("Emma?", output=Book, llm=openai_at(server))
