"""What the SDKs raise, and what providers send in place of an answer, as `ProviderError`.

Error bodies differ: OpenAI `{"error": {message, type, param, code}}`, Anthropic `{"type": "error",
"error": {...}}`, OpenRouter a numeric code and `metadata.raw`, Mistral `{"detail": ...}`, xAI
`{"code", "error": "text"}`, Gemini `[{"error": {code, message, status, details}}]`. One function reads the text of
all of them, one names their kind.
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
from connectagent.models.overflow import near_window
from connectagent.models.wordings import wording_of

# What a gateway may say of every failure: the status is more exact.
_GENERIC = re.compile(r"\bapi_error\b|server_error", re.IGNORECASE)
# google.rpc.RetryInfo: a duration in seconds with up to nine decimals, such as "45.837906927s".
_RETRY_DELAY = re.compile(r"retryDelay\W+(\d+(?:\.\d+)?)s\b")
_RETRY_SENTENCE = re.compile(r"Please retry in (\d+(?:\.\d+)?)s\b")
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
    wording = wording_of(said)
    if status is None or status < 400:  # an error inside a response that began well: its code may be a status
        status = next((int(code) for code in codes if re.fullmatch(r"[45]\d\d", code)), None)
    if wording is not None:
        return wording.kind
    return _kind_of_status(status) or ("server" if _GENERIC.search(said) else "stream")


def _kind_of_status(status: int | None) -> str | None:
    return None if status is None else _STATUSES.get(status, "server" if status >= 500 else "bad_request")


def _codes(body: object) -> list[str]:
    """The `type`, `code` and `status` of an error body, and of the error in it; Google's reasons too."""
    body = _alone(body)
    levels = [one for one in (body, body.get("error")) if isinstance(one, dict)] if isinstance(body, dict) else []
    found = [str(one.get(key) or "") for one in levels for key in ("type", "code", "status")]
    details = [detail for one in levels for detail in _items(one.get("details")) if isinstance(detail, dict)]
    return [*found, *(str(detail.get("reason") or "") for detail in details)]


def _items(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _alone(body: object) -> object:
    """The first object of a body that is a list of them, as Gemini's are at the address for OpenAI's API."""
    return body[0] if isinstance(body, list) and body and isinstance(body[0], dict) else body


def error_text(body: object) -> str:
    """What an error body says to people, whichever provider wrote it."""
    if isinstance(body, str):
        return " ".join(body.split())[:500]
    if isinstance(body, list) and body and isinstance(body[0], dict) and body[0].get("error"):
        return error_text(body[0])
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


def retry_delay(body: object) -> float | None:
    """The seconds that Google asks to wait in a body: its `RetryInfo`, or the sentence that says the same.

    It sends no header: https://github.com/vercel/ai/issues/18627. Gateways pass the body on as a text in a text.
    """
    if not isinstance(body, dict | list):
        return None
    text = json.dumps(body, default=str)
    found = _RETRY_DELAY.search(text) or _RETRY_SENTENCE.search(text)
    return None if found is None else float(found[1])


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Whom a failed call was made to; `key` is known here so that no message ever shows it."""

    provider: str
    model: str
    base_url: str
    key: str | None
    key_variable: str | None


def from_sdk(
    error: Exception,
    at: Endpoint,
    *,
    streaming: bool,
    retries: list[dict[str, Any]],
    request: dict[str, Any] | None = None,
) -> ProviderError | None:
    """The `ProviderError` for what an SDK raised; None for what is no failure of the call (a bug, say).

    Args:
        error: what was raised.
        at: whom the call was made to.
        streaming: whether an answer had begun.
        retries: the attempts that failed.
        request: the body that was sent, if it may have been too long.
    """
    found = _kind_and_text(error, at.base_url, streaming)
    if found is None:
        return None
    kind, text = found
    body = getattr(error, "body", None)
    response = getattr(error, "response", None)
    status = getattr(error, "status_code", None)
    if status is None and body is not None:
        status = 200  # a bare APIError is an error event inside a response that began well
    if request is not None and (size := near_window(kind, status, text, request, at.model)):
        kind = "context_length"
        text = f"{text}; {size}"
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
        retry_after_s=retry_after_s or retry_delay(body) or retry_after_s,
        body=_without(at.key, body),
        retries=retries,
    )


def _without(key: str | None, value: object) -> Any:
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
