"""What providers answer in place of an answer, word for word."""

from __future__ import annotations

import json
from typing import Any, NamedTuple


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
