"""Errors and retries of both wires over real HTTP: lines 31 to 37 of PITFALLS.md."""

from __future__ import annotations

import subprocess
import sys
import traceback
from typing import Any

import pytest
from wire_server import Answer, WireServer, chat, message

from connectagent import Agent
from connectagent.errors import ProviderError
from connectagent.models.anthropic import AnthropicLLM
from connectagent.models.failures import kind_of, retry_after
from connectagent.models.openai import OpenAILLM

HELLO: list[Any] = [{"role": "user", "content": "hello"}]
KEY = "sk-secret-0123456789"
AT_ONCE = {"retry-after-ms": "1"}


def error_of(*answers: Answer, provider: str = "openai", **options: Any) -> ProviderError:
    with WireServer(*answers) as server:
        llm: Any
        if provider == "anthropic":
            llm = AnthropicLLM("claude-sonnet-4-5", api_key=KEY, base_url=server.url, options=options)
        else:
            llm = OpenAILLM("gpt-4o", provider=provider, api_key=KEY, base_url=server.openai_url, options=options)
        with pytest.raises(ProviderError) as caught:
            llm.complete(HELLO)
    error = caught.value
    assert error.provider == provider and error.model == llm.model and llm.model in str(error)
    assert KEY not in str(error) and KEY not in repr(error.body)
    return error


def openai_error(status: int, text: str = "It failed.", code: Any = None, **headers: str) -> Answer:
    body = {"error": {"message": text, "type": "invalid_request_error", "param": None, "code": code}}
    return Answer(body, status, {key.replace("_", "-"): value for key, value in headers.items()})


def anthropic_error(status: int, kind: str, text: str = "It failed.", **headers: str) -> Answer:
    body = {"type": "error", "error": {"type": kind, "message": text}}
    return Answer(body, status, {key.replace("_", "-"): value for key, value in headers.items()})


def test_pitfall_31_retries_are_the_sdks_and_visible() -> None:
    with WireServer(openai_error(500, **AT_ONCE), openai_error(429, **AT_ONCE), chat("ok")) as server:
        response = OpenAILLM("gpt-4o", api_key=KEY, base_url=server.openai_url).complete(HELLO)
    assert response.content == "ok"
    assert response.retries is not None
    assert [attempt["status"] for attempt in response.retries] == [500, 429]
    assert all(attempt["retry_after_s"] == 0.001 and attempt["duration_ms"] > 0 for attempt in response.retries)
    with WireServer(anthropic_error(529, "overloaded_error", **AT_ONCE), message("ok")) as server:
        response = AnthropicLLM("claude-sonnet-4-5", api_key=KEY, base_url=server.url).complete(HELLO)
    assert [attempt["status"] for attempt in response.retries or []] == [529]


def test_pitfall_31_an_answer_at_once_has_no_retries() -> None:
    with WireServer(chat("ok")) as server:
        assert OpenAILLM("gpt-4o", api_key=KEY, base_url=server.openai_url).complete(HELLO).retries is None


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_pitfall_31_there_is_one_retry_loop(provider: str) -> None:
    failing = Answer({"error": {"message": "slow"}}, 429, {"retry-after-ms": "1", "retry-after": "7"})
    with WireServer(failing) as server:
        url = server.url if provider == "anthropic" else server.openai_url
        adapter: Any = AnthropicLLM if provider == "anthropic" else OpenAILLM
        with pytest.raises(ProviderError) as caught:
            adapter("m", provider=provider, api_key=KEY, base_url=url).complete(HELLO)
    assert len(server.requests) == 3
    error = caught.value
    assert (error.kind, error.status, error.retry_after_s) == ("rate_limit", 429, 0.001)
    assert [attempt["status"] for attempt in error.retries] == [429, 429, 429]
    assert "3 attempts" in str(error)


def test_pitfall_31_retries_can_be_set_once() -> None:
    error = error_of(openai_error(500), max_retries=0)
    assert (error.kind, len(error.retries)) == ("server", 1)


def test_pitfall_31_a_long_wait_is_told() -> None:
    error = error_of(openai_error(429, retry_after="3600"), max_retries=0)
    assert (error.retry_after_s, len(error.retries)) == (3600.0, 1)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"detail": "Unauthorized by Mistral"}, "Unauthorized by Mistral"),
        ({"detail": [{"loc": ["body"], "msg": "extra inputs"}]}, "extra inputs"),
        ({"object": "error", "message": "no such thing"}, "no such thing"),
        ({"code": "bad", "error": "words of xAI"}, "words of xAI"),
        ({"error": {"code": 401, "message": "Provider returned error", "metadata": {"raw": "upstream"}}}, "upstream"),
        ({"error": {"code": "401", "message": "words of Azure"}}, "words of Azure"),
        ("<html><title>Bad   gateway</title></html>", "<title>Bad gateway"),
    ],
)
def test_pitfall_32_the_text_of_every_error_body_is_shown(body: Any, text: str) -> None:
    assert text in str(error_of(Answer(body, 401)))


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_pitfall_33_what_cannot_be_mended_is_not_tried_again(status: int) -> None:
    error = error_of(openai_error(status))
    assert len(error.retries) == 1
    assert error.kind == {400: "bad_request", 401: "auth", 403: "permission", 404: "not_found"}[status]


@pytest.mark.parametrize(
    "text",
    [
        "This model's maximum context length is 8192 tokens. However, you requested 9000.",
        "prompt is too long: 3333404 tokens > 200000 maximum",
        "prompt too long; exceeded max context length by 3 tokens",
        "the request exceeds the available context size",
    ],
)
@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_pitfall_33_an_overflow_has_a_kind_of_its_own(text: str, provider: str) -> None:
    failed = anthropic_error(400, "invalid_request_error", text)
    assert error_of(failed, provider=provider).kind == "context_length"


@pytest.mark.parametrize("code", ["context_length_exceeded", "too_many_prompt_tokens"])
def test_pitfall_33_an_overflow_is_told_by_its_code(code: str) -> None:
    assert error_of(openai_error(400, code=code)).kind == "context_length"


def test_pitfall_34_a_call_that_the_server_refused_can_be_told_to_the_model() -> None:
    body = {"error": {"message": "No fit.", "code": "tool_use_failed", "failed_generation": '{"name": "add"}'}}
    error = error_of(Answer(body, 400), provider="groq")
    assert error.kind == "tool_use_failed"
    assert isinstance(error.body, dict) and "failed_generation" in error.body
    text = "The model produced output that does not match the expected peg-native format"
    assert error_of(openai_error(500, text, **AT_ONCE)).kind == "tool_use_failed"


@pytest.mark.filterwarnings("error")
def test_pitfall_35_old_model_names_warn_nobody() -> None:
    with WireServer(message("ok")) as server:
        AnthropicLLM("claude-3-opus-20240229", api_key=KEY, base_url=server.url).complete(HELLO)


def test_pitfall_37_a_missing_key_is_an_error_of_the_first_call(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "GROQ_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    llms: list[Any] = [OpenAILLM("gpt-4o"), AnthropicLLM("claude-sonnet-4-5"), OpenAILLM("llama", provider="groq")]
    for llm, variable in zip(llms, ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GROQ_API_KEY"), strict=True):
        with pytest.raises(ProviderError, match=variable) as caught:
            llm.complete(HELLO)
        assert caught.value.kind == "auth"


def test_a_profile_of_the_sdk_that_cannot_be_read_is_an_auth_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.setenv("ANTHROPIC_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("ANTHROPIC_PROFILE", "missing")
    with pytest.raises(ProviderError, match="ANTHROPIC_API_KEY") as caught:
        AnthropicLLM("claude-sonnet-4-5").complete(HELLO)
    assert caught.value.kind == "auth"


def test_an_invalid_key_names_its_variable_and_is_not_shown() -> None:
    error = error_of(openai_error(401, f"Incorrect API key provided: {KEY}.", "invalid_api_key"))
    assert error.kind == "auth" and "OPENAI_API_KEY" in str(error)
    assert "***" in repr(error.body)


@pytest.mark.parametrize(
    ("status", "type", "kind"),
    [
        (401, "authentication_error", "auth"),
        (403, "permission_error", "permission"),
        (404, "not_found_error", "not_found"),
        (413, "request_too_large", "context_length"),
        (429, "rate_limit_error", "rate_limit"),
        (500, "api_error", "server"),
        (529, "overloaded_error", "overloaded"),
    ],
)
def test_anthropic_errors_have_their_kinds(status: int, type: str, kind: str) -> None:
    error = error_of(anthropic_error(status, type, **AT_ONCE), provider="anthropic")
    assert (error.kind, error.status) == (kind, status)


@pytest.mark.parametrize("type", ["api_error", "server_error"])
@pytest.mark.parametrize(
    ("status", "kind"), [(401, "auth"), (403, "permission"), (429, "rate_limit"), (503, "overloaded"), (500, "server")]
)
@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_the_status_tells_the_kind_where_the_type_is_generic(provider: str, status: int, kind: str, type: str) -> None:
    answer = anthropic_error(status, type, **AT_ONCE)  # gateways send this form on OpenAI's wire too
    assert error_of(answer, provider=provider).kind == kind


@pytest.mark.parametrize(
    ("code", "kind"),
    [(None, "server"), ("503", "overloaded"), ("429", "rate_limit"), ("engine_overloaded", "overloaded")],
)
def test_a_generic_type_in_a_stream_is_the_servers_unless_a_code_tells_more(code: str | None, kind: str) -> None:
    assert kind_of(200, {"error": {"type": "api_error", "code": code, "message": "Something went wrong."}}) == kind


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after-ms": "0", "retry-after": "1"}, 1.0),
        ({"retry-after-ms": "0"}, 0.0),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after-ms": "20", "retry-after": "1"}, 0.02),
        ({"retry-after-ms": "soon", "retry-after": "1"}, 1.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({}, None),
    ],
)
def test_a_wait_of_no_milliseconds_does_not_outweigh_seconds(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_a_server_that_does_not_answer_is_a_connection_error(provider: str) -> None:
    adapter: Any = AnthropicLLM if provider == "anthropic" else OpenAILLM
    llm = adapter("m", provider=provider, api_key=KEY, base_url="http://127.0.0.1:9", options={"max_retries": 0})
    with pytest.raises(ProviderError, match=r"http://127\.0\.0\.1:9") as caught:
        llm.complete(HELLO)
    assert (caught.value.kind, caught.value.status) == ("connection", None)
    assert [attempt["status"] for attempt in caught.value.retries] == [None]


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_a_server_that_is_too_slow_is_a_timeout(provider: str) -> None:
    error = error_of(Answer({}, wait_s=0.5), provider=provider, timeout_s=0.1, max_retries=0)
    assert (error.kind, error.status) == ("timeout", None)


def test_making_a_model_imports_no_sdk() -> None:
    code = (
        "import sys; from connectagent.models.create import create_llm; create_llm('gpt-4o'); create_llm('claude-x');"
        "create_llm('offline').complete([{'role': 'user', 'content': 'hi'}]);"
        "bad = {'openai', 'anthropic', 'pydantic', 'genai_prices', 'httpx2', 'rich', 'yaml', 'click'};"
        "bad &= set(sys.modules);"
        "sys.exit(str(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("shown", ["short", "full"])
def test_errors_of_an_sdk_are_told_by_their_lines_in_a_short_traceback(
    shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONNECTAGENT_TRACEBACK", shown)
    with WireServer(chat("ok")) as server:
        url = server.openai_url
    llm = OpenAILLM("gpt-4o", api_key=KEY, base_url=url, options={"max_retries": 0})  # nobody listens any more
    with pytest.raises(ProviderError) as caught:
        Agent("a", llm=llm, log=False, quiet=True).input("Hello")
    text = "".join(traceback.format_exception(caught.value))
    assert "APIConnectionError: Connection error." in text
    assert ("_base_client.py" in text) == (shown == "full")
    assert 'log=False, quiet=True).input("Hello")' in text
