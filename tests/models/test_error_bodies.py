"""What providers answer in place of an answer, by kind: their own bodies, over the real SDKs.

Each row has the body as the document or public report in `wordings.WORDINGS` quotes it.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
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


class Row(NamedTuple):
    provider: str
    status: int
    body: Any
    kind: str
    retry_after_s: float | None = None


def _openai(text: str, type: str = "invalid_request_error", code: Any = None) -> dict[str, Any]:
    return {"error": {"message": text, "type": type, "param": None, "code": code}}


def _anthropic(text: str, type: str = "invalid_request_error") -> dict[str, Any]:
    return {"type": "error", "error": {"type": type, "message": text}, "request_id": "req_1"}


def _google(code: int, text: str, status: str, *details: dict[str, Any]) -> dict[str, Any]:
    more = {"details": list(details)} if details else {}
    return {"error": {"code": code, "message": text, "status": status, **more}}


def _rpc(name: str, **fields: Any) -> dict[str, Any]:
    return {"@type": f"type.googleapis.com/google.rpc.{name}", **fields}


OPENAI_LENGTH = "This model's maximum context length is 4097 tokens. However, your messages resulted in 7575 tokens."
CREDIT = "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade."
GOOGLE_LENGTH = "The input token count (3475108) exceeds the maximum number of tokens allowed (1048576)."
BAD_KEY = "API key not valid. Please pass a valid API key."
QUOTA = "You exceeded your current quota, please check your plan and billing details."
RETRY = _rpc("RetryInfo", retryDelay="45.837906927s")
TPM = "on tokens per minute (TPM): Limit 12000, Requested 14137, please reduce your message size and try again."

ROWS = {
    # -- the conversation is too long
    "openai length": Row("openai", 400, _openai(OPENAI_LENGTH, code="context_length_exceeded"), "context_length"),
    "openai by its code": Row("openai", 400, _openai("It is.", code="context_length_exceeded"), "context_length"),
    "openai window": Row(
        "openai-responses", 400, _openai("Your input exceeds the context window of this model."), "context_length"
    ),
    "openai one request above a minute": Row(
        "openai",
        429,
        _openai(
            "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 342389.",
            "tokens",
            "rate_limit_exceeded",
        ),
        "context_length",
    ),
    "anthropic prompt": Row(
        "anthropic", 400, _anthropic("prompt is too long: 202128 tokens > 200000 maximum"), "context_length"
    ),
    "anthropic input and answer": Row(
        "anthropic",
        400,
        _anthropic("input length and `max_tokens` exceed context limit: 178959 + 64000 > 200000, decrease input"),
        "context_length",
    ),
    "anthropic bytes": Row(
        "anthropic", 413, _anthropic("Request exceeds the maximum size", "request_too_large"), "context_length"
    ),
    "anthropic bytes at a gateway": Row("anthropic", 400, _anthropic("It is.", "request_too_large"), "context_length"),
    "gemini": Row("gemini", 400, _google(400, GOOGLE_LENGTH, "INVALID_ARGUMENT"), "context_length"),
    "gemini in a list": Row("gemini", 400, [_google(400, GOOGLE_LENGTH, "INVALID_ARGUMENT")], "context_length"),
    "gemini in a text": Row(
        "gemini",
        400,
        {"error": {"message": json.dumps(_google(400, GOOGLE_LENGTH, "INVALID_ARGUMENT")), "code": 400}},
        "context_length",
    ),
    "xai": Row(
        "xai",
        400,
        {
            "code": "Client specified an invalid argument",
            "error": "This model's maximum prompt length is 131072 but the request contains 136973 tokens.",
        },
        "context_length",
    ),
    "together": Row(
        "together",
        400,
        _openai("Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097. Given: 80125 and 4096"),
        "context_length",
    ),
    "together window": Row(
        "together",
        400,
        _openai("The input (80125 tokens) is longer than the model's context length (4097 tokens)."),
        "context_length",
    ),
    "moonshot": Row(
        "openai",
        400,
        _openai("Invalid request: Your request exceeded model token limit: 262144 (requested: 269030)"),
        "context_length",
    ),
    "qwen": Row(
        "openai",
        400,
        _openai("<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 204800]"),
        "context_length",
    ),
    "zai": Row("openai", 400, {"error": {"code": "1261", "message": "Prompt exceeds max length"}}, "context_length"),
    "groq": Row(
        "groq",
        400,
        _openai("Please reduce the length of the messages or completion.", code="context_length_exceeded"),
        "context_length",
    ),
    "groq one request above a minute": Row(
        "groq",
        413,
        _openai(f"Request too large for model `llama-3.3-70b-versatile` {TPM}", "tokens", "rate_limit_exceeded"),
        "context_length",
    ),
    "mistral": Row(
        "mistral",
        400,
        {
            "object": "error",
            "message": "Prompt contains 140000 tokens, too large for model with 131072 maximum context length",
        },
        "context_length",
    ),
    "poolside at openrouter": Row(
        "openrouter",
        400,
        {
            "error": {
                "code": 400,
                "message": "Provider returned error",
                "metadata": {"raw": "Input length 131393 exceeds the maximum allowed input length of 131040 tokens."},
            }
        },
        "context_length",
    ),
    "perplexity": Row("perplexity", 400, _openai("The total length of all messages is too long."), "context_length"),
    "bedrock": Row("anthropic", 400, _anthropic("Input is too long for requested model."), "context_length"),
    "llama.cpp": Row(
        "openai",
        400,
        _openai("the request exceeds the available context size, try increasing it", "exceed_context_size_error", 400),
        "context_length",
    ),
    "ollama": Row(
        "ollama",
        400,
        _openai("prompt too long; exceeded max context length by 3 tokens", "api_error"),
        "context_length",
    ),
    # -- the key
    "anthropic key": Row("anthropic", 401, _anthropic("invalid x-api-key", "authentication_error"), "auth"),
    "anthropic key at a gateway": Row("anthropic", 400, _anthropic("invalid x-api-key"), "auth"),
    "openai key": Row("openai", 401, _openai("Incorrect API key provided.", code="invalid_api_key"), "auth"),
    "openai key at a gateway": Row("openai", 400, _openai("Not this one.", code="invalid_api_key"), "auth"),
    "gemini key": Row(
        "gemini",
        400,
        [_google(400, BAD_KEY, "INVALID_ARGUMENT", _rpc("ErrorInfo", reason="API_KEY_INVALID"))],
        "auth",
    ),
    "gemini key by its reason": Row(
        "gemini",
        400,
        _google(400, "API key expired.", "INVALID_ARGUMENT", _rpc("ErrorInfo", reason="API_KEY_INVALID")),
        "auth",
    ),
    "xai key": Row(
        "xai",
        400,
        {"code": "Client specified an invalid argument", "error": "Incorrect%20API%20key%20provided:%20ba***na."},
        "auth",
    ),
    # -- the account
    "anthropic credit": Row("anthropic", 400, _anthropic(CREDIT), "permission"),
    "anthropic permission": Row("anthropic", 403, _anthropic("Not for you.", "permission_error"), "permission"),
    "anthropic bill at a gateway": Row("anthropic", 400, _anthropic("Pay first.", "billing_error"), "permission"),
    "openai quota": Row("openai", 429, _openai(QUOTA, "insufficient_quota", "insufficient_quota"), "permission"),
    "deepseek balance": Row("deepseek", 402, _openai("Insufficient Balance", "unknown_error"), "permission"),
    "zai balance": Row(
        "openai",
        429,
        {"error": {"code": "1113", "message": "Insufficient balance or no resource package. Please recharge."}},
        "permission",
    ),
    "gemini country": Row(
        "gemini",
        400,
        [_google(400, "User location is not supported for the API use.", "FAILED_PRECONDITION")],
        "permission",
    ),
    # -- wait
    "gemini minute": Row("gemini", 429, [_google(429, QUOTA, "RESOURCE_EXHAUSTED", RETRY)], "rate_limit", 45.837906927),
    "gemini minute in words": Row(
        "gemini", 429, _google(429, f"{QUOTA} Please retry in 47.434s.", "RESOURCE_EXHAUSTED"), "rate_limit", 47.434
    ),
    "gemini minute at openrouter": Row(
        "openrouter",
        429,
        {
            "error": {
                "code": 429,
                "message": "Provider returned error",
                "metadata": {"raw": json.dumps(_google(429, QUOTA, "RESOURCE_EXHAUSTED", RETRY))},
            }
        },
        "rate_limit",
        45.837906927,
    ),
    "gemini overloaded": Row(
        "gemini", 503, [_google(503, "The model is overloaded. Please try again later.", "UNAVAILABLE")], "overloaded"
    ),
    "moonshot overloaded": Row(
        "openai", 429, _openai("The engine is currently overloaded.", "engine_overloaded_error"), "overloaded"
    ),
    "openai minute": Row(
        "openai",
        429,
        _openai(
            "Rate limit reached for gpt-4o on tokens per min (TPM): Limit 30000, Used 29000, Requested 3000.",
            "tokens",
            "rate_limit_exceeded",
        ),
        "rate_limit",
    ),
    "anthropic minute": Row(
        "anthropic", 429, _anthropic("This would exceed your limit", "rate_limit_error"), "rate_limit"
    ),
    "anthropic minute at a gateway": Row("anthropic", 400, _anthropic("Slower.", "rate_limit_error"), "rate_limit"),
    "anthropic overloaded": Row("anthropic", 529, _anthropic("Overloaded", "overloaded_error"), "overloaded"),
    "bedrock throttles": Row(
        "openai", 429, _openai("Too many tokens, please wait before trying again.", "ThrottlingException"), "rate_limit"
    ),
    # -- the filter
    "azure filter": Row(
        "openai",
        400,
        _openai(
            "The response was filtered due to the prompt triggering content management policy.", "", "content_filter"
        ),
        "content_filter",
    ),
    "qwen filter": Row(
        "openai",
        400,
        _openai("Input data may contain inappropriate content.", "data_inspection_failed", "data_inspection_failed"),
        "content_filter",
    ),
    "xai filter": Row(
        "xai",
        403,
        {
            "code": "The caller does not have permission to execute the specified operation",
            "error": "Content violates usage guidelines. Failed check: SAFETY_CHECK_TYPE_BIO",
        },
        "content_filter",
    ),
    # -- others
    "groq tool": Row("groq", 400, _openai("Failed to call a function.", code="tool_use_failed"), "tool_use_failed"),
    "openai model": Row("openai", 404, _openai("The model does not exist.", code="model_not_found"), "not_found"),
    "openai model at a gateway": Row("openai", 400, _openai("No such.", code="model_not_found"), "not_found"),
    "anthropic time at a gateway": Row("anthropic", 400, _anthropic("Too slow.", "timeout_error"), "timeout"),
    "openai parameter": Row("openai", 400, _openai("Unsupported parameter: 'max_tokens'"), "bad_request"),
    "anthropic limit of an answer": Row(
        "anthropic", 400, _anthropic("max_tokens: 9000 > 8192, which is the maximum allowed"), "bad_request"
    ),
    "gemini argument": Row(
        "gemini", 400, [_google(400, "Request contains an invalid argument.", "INVALID_ARGUMENT")], "bad_request"
    ),
    "anthropic server": Row("anthropic", 500, _anthropic("Internal server error", "api_error"), "server"),
}


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
