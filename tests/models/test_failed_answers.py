"""An answer that fails took tokens all the same: they are in the error, the trace and the sums, on both wires."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from wire_server import (
    Answer,
    WireServer,
    block_events,
    chat,
    chat_stream,
    completion,
    finish,
    message,
    message_stream,
    usage_chunk,
)

from connectagent import Agent, Retry, on_error
from connectagent.errors import ProviderError
from connectagent.models.anthropic import AnthropicLLM
from connectagent.models.openai import OpenAILLM

TEXT = block_events(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "half"})
UNTOLD = completion({"content": ""}, "length", usage=None)

# What the provider answers, and what its failure took: kind, input, output, whether the price is known.
FAILED: dict[str, tuple[Answer, str, int, int, bool]] = {
    "openai, length": (chat("", finish="length"), "length", 10, 5, True),
    "openai, filter": (chat(None, finish="content_filter"), "content_filter", 10, 5, True),
    "openai, no message": (Answer(completion(None)), "bad_response", 10, 5, True),
    "openai, no choices": (Answer({**completion({}), "choices": []}), "bad_response", 10, 5, True),
    "openai, length, tokens not told": (Answer(UNTOLD), "length", 0, 0, False),
    "openai, stream, length": (chat_stream({"content": ""}, finish("length"), usage_chunk()), "length", 10, 5, True),
    "openai, stream, cut": (chat_stream({"content": "half"}, done=False), "stream", 0, 0, False),
    "openai, stream, cut behind a count": (
        chat_stream({"content": "half"}, usage_chunk(10, 1), done=False), "stream", 10, 1, False,
    ),
    "openai, stream, error": (
        chat_stream({"content": "half"}, {"error": {"message": "busy", "code": 502}}), "server", 0, 0, False,
    ),
    "anthropic, length": (message(stop="max_tokens"), "length", 10, 5, True),
    "anthropic, refusal": (message(stop="refusal"), "refusal", 10, 5, True),
    "anthropic, stream, length": (message_stream(stop="max_tokens"), "length", 10, 7, True),
    "anthropic, stream, cut": (message_stream(*TEXT, whole=False), "stream", 10, 5, False),
    "anthropic, stream, overloaded": (
        message_stream(*TEXT, {"type": "error", "error": {"type": "overloaded_error"}}, whole=False),
        "overloaded", 10, 5, False,
    ),
}  # fmt: skip


def llm_at(server: WireServer, name: str) -> Any:
    if name.startswith("anthropic"):
        return AnthropicLLM("claude-sonnet-4-5", api_key="k-1234567", base_url=server.url)
    return OpenAILLM("gpt-4o", api_key="k-1234567", base_url=server.openai_url)


def price(name: str, input_tokens: int, output_tokens: int) -> float:
    one, other = (3e-6, 15e-6) if name.startswith("anthropic") else (2.5e-6, 10e-6)
    return input_tokens * one + output_tokens * other


@pytest.mark.parametrize("name", FAILED)
def test_an_answer_that_fails_is_counted_with_the_tokens_that_it_took(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer, kind, input_tokens, output_tokens, priced = FAILED[name]
    with WireServer(answer) as server:
        agent = Agent("a", llm=llm_at(server, name), stream="stream" in name, quiet=True)
        with pytest.raises(ProviderError) as caught:
            agent.input("Hi")
    usage = caught.value.usage
    assert (caught.value.kind, usage.input_tokens, usage.output_tokens) == (kind, input_tokens, output_tokens)
    assert agent.current_session is not None
    (entry,) = [entry for entry in agent.current_session["trace"] if entry["type"] == "llm_call"]
    assert entry["status"] == "error" and entry["usage"] == usage
    (turn,) = yaml.safe_load(Path(str(agent.record)).read_text())["turns"]
    assert turn["tokens"] == input_tokens + output_tokens
    if priced:
        assert agent.total_cost == turn["cost"] == usage.cost == pytest.approx(price(name, input_tokens, output_tokens))
    else:
        assert usage.cost is None and turn["cost"] is None


@pytest.mark.parametrize("status", [401, 429, 500])
@pytest.mark.parametrize("name", ["openai", "anthropic"])
def test_a_request_that_was_refused_took_no_tokens(name: str, status: int) -> None:
    with WireServer(Answer({"error": {"message": "no"}}, status, {"x-should-retry": "false"})) as server:
        agent = Agent("a", llm=llm_at(server, name), log=False, quiet=True)
        with pytest.raises(ProviderError) as caught:
            agent.input("Hi")
    assert caught.value.usage is None and agent.spent.calls == 0 and agent.spent.cost == 0.0


@pytest.mark.parametrize("stream", [False, True])
def test_the_attempt_that_failed_and_the_one_after_it_are_both_paid(stream: bool) -> None:
    @on_error
    def again(error: Exception) -> Any:
        return Retry()

    answers = [chat("", finish="length"), chat("Done.")]
    if stream:
        answers = [
            chat_stream({"content": ""}, finish("length"), usage_chunk()),
            chat_stream({"content": "Done."}, finish(), usage_chunk()),
        ]
    with WireServer(*answers) as server:
        agent = Agent("a", llm=llm_at(server, "openai"), on_events=[again], stream=stream, log=False, quiet=True)
        assert agent.input("Hi") == "Done."
    assert agent.total_cost == pytest.approx(2 * price("openai", 10, 5))
    assert agent.spent.calls == 2


def test_an_answer_in_several_parts_that_fails_counts_them_all() -> None:
    answers = message("Wait.", stop="pause_turn"), Answer({"type": "error"}, 400)
    with WireServer(*answers) as server, pytest.raises(ProviderError) as caught:
        llm_at(server, "anthropic").complete([{"role": "user", "content": "Hi"}])
    assert (caught.value.usage.input_tokens, caught.value.usage.output_tokens) == (10, 5)
