"""What the SDKs raise, and what providers send in place of an answer, as `ProviderError`.

Error bodies differ: OpenAI `{"error": {message, type, param, code}}`, Anthropic `{"type": "error",
"error": {...}}`, OpenRouter a numeric code and `metadata.raw`, Mistral `{"detail": ...}`, xAI
`{"code", "error": "text"}`. One function reads the text of all of them, one names their kind.
"""

from __future__ import annotations

import contextlib
import email.utils
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from connectagent.errors import ProviderError

# What providers say, in `type`, `code` or the text of an error body; the first line that fits wins. The text
# counts before the status, since an overflow, a filter and a failed tool call all come as a plain 400.
_WORDINGS: tuple[tuple[str, str], ...] = (
    (
        "context_length",
        r"context_length_exceeded|maximum context length|context (window|length)|prompt is too long|prompt too long"
        r"|exceeds? (the )?(max|available) context|too_many_prompt_tokens|input is too long|request_too_large",
    ),
    ("tool_use_failed", r"tool_use_failed|does not match the expected .*format|failed to parse tool call"),
    ("content_filter", r"content_filter|content_policy_violation|responsibleaipolicy|content management policy"),
    ("auth", r"authentication_error|invalid_api_key|invalid x-api-key"),
    ("permission", r"permission_error|billing_error|insufficient_quota"),
    ("overloaded", r"overloaded_error|engine_overloaded|\boverloaded\b"),
    ("rate_limit", r"rate_limit_error|rate_limit_exceeded"),
    ("not_found", r"not_found_error|model_not_found"),
    ("timeout", r"timeout_error"),
)
# What a gateway may say of every failure: the status is more exact.
_GENERIC = re.compile(r"\bapi_error\b|server_error", re.IGNORECASE)
_PATTERNS = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _WORDINGS)
_STATUSES = {
    401: "auth",
    402: "permission",
    403: "permission",
    404: "not_found",
    408: "timeout",
    413: "context_length",
    429: "rate_limit",
    503: "overloaded",
    504: "timeout",
    529: "overloaded",
}
# What the SDKs raise, by the names of its classes.
_CLASSES = {
    "timeout": {"APITimeoutError", "TimeoutException"},
    "connection": {"APIConnectionError", "TransportError", "StreamError"},
    "bad_response": {"APIResponseValidationError", "JSONDecodeError", "UnicodeDecodeError"},
    "auth": {"OpenAIError", "AnthropicError"},  # the SDK has no way to sign in
}
# These say it all, whatever a gateway writes into the body.
_FIRM = {401, 503, 529}
_HINTS = {
    "context_length": "The conversation is longer than the model takes: shorten it in a before_llm handler.",
    "not_found": "Check the model's name, and the base URL if you set one.",
    "tool_use_failed": "The model's own call did not fit the tool: tell it so and ask again.",
}


def kind_of(status: int | None, body: object) -> str:
    """The kind of a failed response, by what its body says, else by its status."""
    if status in _FIRM:
        return _STATUSES[status]
    codes = _codes(body)
    said = " ".join([*codes, error_text(body)])
    by_text = next((kind for kind, pattern in _PATTERNS if pattern.search(said)), None)
    if status is None or status < 400:  # an error inside a response that began well: its code may be a status
        status = next((int(code) for code in codes if re.fullmatch(r"[45]\d\d", code)), None)
    return by_text or _kind_of_status(status) or ("server" if _GENERIC.search(said) else "stream")


def _kind_of_status(status: int | None) -> str | None:
    return None if status is None else _STATUSES.get(status, "server" if status >= 500 else "bad_request")


def _codes(body: object) -> list[str]:
    """The `type` and `code` of an error body, and of the error in it."""
    levels = [body, body.get("error")] if isinstance(body, dict) else []
    return [str(one.get(key) or "") for one in levels if isinstance(one, dict) for key in ("type", "code")]


def error_text(body: object) -> str:
    """What an error body says to people, whichever provider wrote it."""
    if isinstance(body, str):
        return " ".join(body.split())[:500]
    if not isinstance(body, dict):
        return "" if body is None else json.dumps(body, default=str)[:500]
    for key in ("error", "message", "detail"):
        found = body.get(key)
        if found:
            text = error_text(found)
            metadata = body.get("metadata")
            raw = metadata.get("raw") if isinstance(metadata, dict) else None
            return f"{text}: {error_text(raw)}" if raw else text
    return json.dumps(body, default=str, ensure_ascii=False)[:500] if body else ""


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds that a response asks to wait: `retry-after-ms`, or `retry-after` as seconds or a date.

    Some send 0 milliseconds beside whole seconds: a 0 counts only where nothing else is sent.
    """
    found: list[float] = []
    for name, divisor in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        with contextlib.suppress(ValueError):
            found.append(max(0.0, float(headers.get(name) or "")) / divisor)
    if date := email.utils.parsedate_tz(headers.get("retry-after")):
        found.append(max(0.0, email.utils.mktime_tz(date) - time.time()))
    return next((seconds for seconds in found if seconds), found[0] if found else None)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Whom a failed call was made to; `key` is known here so that no message ever shows it."""

    provider: str
    model: str
    base_url: str
    key: str | None
    key_variable: str | None


def from_sdk(error: Exception, at: Endpoint, *, streaming: bool, retries: list[dict[str, Any]]) -> ProviderError | None:
    """The `ProviderError` for what an SDK raised; None for what is no failure of the call (a bug, say)."""
    found = _kind_and_text(error, at.base_url, streaming)
    if found is None:
        return None
    kind, text = found
    body = getattr(error, "body", None)
    response = getattr(error, "response", None)
    status = getattr(error, "status_code", None)
    if status is None and body is not None:
        status = 200  # a bare APIError is an error event inside a response that began well
    wait = retry_after(response.headers) if response is not None else None
    return failure(text, kind, at, status=status, retry_after_s=wait, body=body, retries=retries)


def _kind_and_text(error: Exception, base_url: str, streaming: bool) -> tuple[str, str] | None:
    """Kind and text of what an SDK raised; None for what is no failure of the call.

    One function serves both SDKs, whose classes have the same names. httpx's own come through bare where the
    anthropic SDK reads a stream.
    """
    names = {cls.__name__ for cls in type(error).__mro__}
    body = getattr(error, "body", None)
    if "APIStatusError" in names or ("APIError" in names and body is not None):
        return kind_of(getattr(error, "status_code", None), body), error_text(body) or str(error)
    kind = next((kind for kind, classes in _CLASSES.items() if names & classes), None)
    if kind is None:
        return ("auth", str(error)) if isinstance(error, TypeError) and "auth" in str(error) else None
    cause = error.__cause__ or error
    texts = {
        "timeout": f"no answer in time from {base_url}",
        "connection": f"the connection to {base_url} {'was lost' if streaming else 'failed'}: {cause}",
        "bad_response": f"what came from {base_url} is not JSON: {error}",
        "auth": str(error),
    }
    return "stream" if streaming and kind == "bad_response" else kind, texts[kind]


def failure(
    text: str,
    kind: str,
    at: Endpoint,
    *,
    status: int | None = None,
    retry_after_s: float | None = None,
    body: object = None,
    retries: list[dict[str, Any]] | None = None,
) -> ProviderError:
    """A `ProviderError` whose message names model, kind and status, says what to do, and never shows the key."""
    number = f", HTTP {status}" if status else ""
    tries = f", after {len(retries)} attempts" if retries and len(retries) > 1 else ""
    message = f"{at.model}: {text} ({kind}{number}{tries})"
    hint = _HINTS.get(kind)
    if kind == "auth" and at.key_variable:
        hint = f"The key is taken from api_key=..., else from the variable {at.key_variable}: set it, or mend it."
    if hint:
        message += f"\n{hint}"
    return ProviderError(
        _without(at.key, message),
        kind=kind,
        provider=at.provider,
        model=at.model,
        status=status,
        retry_after_s=retry_after_s,
        body=_without(at.key, body),
        retries=retries,
    )


def _without(key: str | None, value: Any) -> Any:
    """`value` with the key blotted out: some servers quote it in full."""
    if not key or len(key) < 6:
        return value
    if isinstance(value, str):
        return value.replace(key, "***")
    if isinstance(value, dict):
        return {name: _without(key, inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_without(key, inner) for inner in value]
    return value
