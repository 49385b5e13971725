"""What providers answer in place of an answer, by kind: their own bodies, over the real SDKs.

Each row has the body as the document or public report in `wordings.WORDINGS` quotes it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from error_bodies import (
    QUOTA,
    ROWS,
    _google,
    _openai,
    _rpc,
)
from wire_server import Answer, WireServer, chat

from connectagent import Agent, LLMRequest, Retry, before_llm, on_error
from connectagent.errors import ProviderError
from connectagent.models import wordings
from connectagent.models.anthropic import AnthropicLLM
from connectagent.models.failures import kind_of, retry_delay
from connectagent.models.openai import OpenAILLM
from connectagent.models.overflow import estimated_tokens
from connectagent.models.prices import context_window
from connectagent.models.responses import ResponsesLLM
from connectagent.models.wordings import WORDINGS

HELLO: list[Any] = [{"role": "user", "content": "hello"}]


def llm_of(provider: str, server: WireServer, model: str = "m", **options: Any) -> Any:
    given: dict[str, Any] = {"api_key": "k", "options": {"max_retries": 0, **options}}
    if provider == "anthropic":
        return AnthropicLLM(model, base_url=server.url, **given)
    if provider == "openai-responses":
        return ResponsesLLM(model, base_url=server.openai_url, **given)
    return OpenAILLM(model, provider=provider, base_url=server.openai_url, **given)


def error_of(provider: str, status: int, body: Any, messages: list[Any] = HELLO, **given: Any) -> ProviderError:
    with WireServer(Answer(body, status)) as server, pytest.raises(ProviderError) as caught:
        llm_of(provider, server, **given).complete(messages)
    return caught.value


@pytest.mark.parametrize("name", ROWS)
def test_an_error_body_has_its_kind_and_its_wait(name: str) -> None:
    row = ROWS[name]
    error = error_of(row.provider, row.status, row.body)
    assert (error.kind, error.status, error.retry_after_s) == (row.kind, row.status, row.retry_after_s)


def test_each_wording_decides_the_kind_of_a_body(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that no body needs is not known to be needed."""
    idle = []
    for at, one in enumerate(WORDINGS):
        monkeypatch.setattr(wordings, "WORDINGS", WORDINGS[:at] + WORDINGS[at + 1 :])
        if all(kind_of(row.status, row.body) == row.kind for row in ROWS.values()):
            idle.append(one.pattern)
    assert idle == []


def test_wordings_name_their_source() -> None:
    assert all(one.source.startswith("https://") and one.providers for one in WORDINGS)


@pytest.mark.parametrize(
    ("body", "seconds"),
    [
        ({"error": {"details": [{"@type": "x", "retryDelay": "26s"}]}}, 26.0),
        ([{"error": {"details": [{"retryDelay": "0s"}]}}], 0.0),
        ({"error": {"details": [{"retryDelay": "soon"}]}}, None),
        ({"error": {"details": "retryDelay"}}, None),
        ("retryDelay: 3s", None),
        (None, None),
    ],
)
def test_the_wait_of_a_body(body: Any, seconds: float | None) -> None:
    assert retry_delay(body) == seconds


@pytest.mark.parametrize("body", [_google(429, QUOTA, "RESOURCE_EXHAUSTED", _rpc("RetryInfo", retryDelay="0.2s")), ""])
def test_the_sdk_waits_as_long_as_a_body_asks_for(body: Any) -> None:
    with WireServer(Answer([body] if body else "", 429), chat("Done.")) as server:
        began = time.monotonic()
        answer = llm_of("gemini", server, max_retries=2).complete(HELLO)
    assert answer.content == "Done."
    assert answer.retries[0]["retry_after_s"] == (0.2 if body else None)
    assert not body or time.monotonic() - began >= 0.2


# -- without a wording -----------------------------------------------------------------------------

WINDOW = context_window("openai/gpt-4") or 0
OPAQUE: list[Any] = ["", {}, _openai("Bad request"), {"detail": "Invalid input"}, [_google(400, "Invalid.", "X")]]


def of_size(tokens: int) -> list[Any]:
    return [{"role": "user", "content": "abc def " * round(tokens * 3.5 / 8)}]


@pytest.mark.parametrize("status", [400, 413])
@pytest.mark.parametrize("body", OPAQUE)
def test_a_refusal_near_the_window_is_an_overflow(body: Any, status: int) -> None:
    error = error_of("openai", status, body, of_size(WINDOW), model="gpt-4")
    assert error.kind == "context_length"
    assert f"the model takes {WINDOW:,}" in str(error)


@pytest.mark.parametrize("body", OPAQUE)
def test_the_same_refusal_of_a_short_request_is_none(body: Any) -> None:
    assert error_of("openai", 400, body, of_size(WINDOW // 2), model="gpt-4").kind == "bad_request"


@pytest.mark.parametrize(
    "text",
    [
        "Unsupported value: 'temperature' does not support 0.2",
        "Invalid schema for function 'double': 'x' is not a valid format",
        "You uploaded an unsupported image.",
    ],
)
def test_a_refusal_near_the_window_that_names_its_cause_is_none(text: str) -> None:
    assert error_of("openai", 400, _openai(text), of_size(WINDOW), model="gpt-4").kind == "bad_request"


def test_the_window_of_an_unknown_model_decides_nothing() -> None:
    assert error_of("openai", 400, "", of_size(WINDOW), model="my-model").kind == "bad_request"


def test_the_longest_answer_counts_and_an_image_is_no_text() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 900_000}}
    assert estimated_tokens({"messages": [{"role": "user", "content": [image]}]}) < 2000
    assert estimated_tokens({"messages": HELLO, "max_completion_tokens": 5000}) > 5000


def test_a_handler_can_shorten_what_was_refused_without_a_wording() -> None:
    kinds: list[str] = []

    @on_error
    def shorten(agent: Agent, error: Exception, request: LLMRequest | None) -> Retry | None:
        assert isinstance(error, ProviderError) and request is not None
        kinds.append(error.kind)
        del request.messages[0]
        return Retry()

    @before_llm
    def lengthen(request: LLMRequest) -> None:
        if not kinds:
            request.messages[:0] = of_size(WINDOW)

    with WireServer(Answer("", 400), chat("Done.")) as server:
        llm = llm_of("openai", server, "gpt-4")
        agent = Agent("a", llm=llm, on_events=[shorten, lengthen], log=False, quiet=True)
        assert agent.input("Go.") == "Done."
    assert kinds == ["context_length"]


def test_the_page_on_models_names_the_sources_for_overflows() -> None:
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    assert [one.source for one in WORDINGS if one.kind == "context_length" and one.source not in page] == []
