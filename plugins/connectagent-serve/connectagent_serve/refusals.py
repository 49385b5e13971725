"""What a client is told where something is refused or fails: a status, a message without secrets, and what to do."""

from __future__ import annotations

import json
import logging
import math
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse as _JSONResponse

from connectagent import ConfigError, DivergenceError, ProviderError, SessionBusy
from connectagent_serve.told import told

LOG = logging.getLogger("connectagent.serve")
_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
_LATER = ("rate_limit", "overloaded")  # kinds of errors of providers, which pass
# OpenAI's clients send a request again after 409, 429 and 5xx. Without a session of its own it would be another turn.
_NEVER_AGAIN = {"X-Should-Retry": "false"}


class JSONResponse(_JSONResponse):
    """A body in JSON, whatever the texts: a half of a surrogate pair, which UTF-8 does not have, is escaped."""

    def render(self, content: Any) -> bytes:
        """The body."""
        try:
            return super().render(content)
        except UnicodeEncodeError:
            return json.dumps(content, separators=(",", ":")).encode()


class Refused(HTTPException):
    """A request is refused, or a turn has failed.

    Args:
        status: of the response.
        message: why, and what is accepted.
        code: a word for programs.
        headers: of the response.
        more: further keys of the error.
    """

    def __init__(
        self, status: int, message: str, code: str | None = None, headers: dict[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(status, message, headers)
        self.code, self.more = code, more


def refusal_of(error: Exception, key: str) -> HTTPException:
    """An error of a turn as a response.

    Args:
        error: what was raised.
        key: of the session.
    """
    if isinstance(error, HTTPException):
        return error
    if isinstance(error, SessionBusy):
        return Refused(409, f"session {key!r} is in a turn, and one runs at a time: ask again later", "busy")
    if isinstance(error, DivergenceError):
        return Refused(409, told(str(error)), "diverged", _NEVER_AGAIN)
    if isinstance(error, ConfigError):
        return Refused(400, told(str(error)))
    said = told(f"{type(error).__name__}: {error}")
    if isinstance(error, ProviderError) and error.kind in _LATER:
        after = {"Retry-After": str(max(1, math.ceil(error.retry_after_s or 1)))}
        return Refused(503, said, error.kind, {**after, **_NEVER_AGAIN})
    return Refused(500, said, type(error).__name__, _NEVER_AGAIN)


def paused(waiting: list[dict[str, Any]], headers: dict[str, str]) -> Refused:
    """A turn waits, in an answer that has no place for it."""
    then = "POST /sessions/{id}/decision decides it, where id is the header X-Session-Id"
    return Refused(
        409, f"the turn waits for a decision: {then}", "paused", {**headers, **_NEVER_AGAIN}, waiting=waiting
    )


async def refused(request: Request, error: Exception) -> JSONResponse:
    """The response, in the form of OpenAI's errors."""
    assert isinstance(error, HTTPException)
    if error.status_code >= 500:
        LOG.error("%s %s: %s", request.method, request.url.path, error.detail)
    message, code = error.detail, getattr(error, "code", None)
    if error.status_code == 405:
        message = f"this address takes {(error.headers or {}).get('Allow', 'another method')}, not {request.method}"
    elif error.status_code == 404 and message == "Not Found":
        there = ", ".join(f"{'/'.join(sorted(route.methods - {'HEAD'}))} {route.path}" for route in request.app.routes)
        message = f"there is nothing at this address; there is: {there}"
    server = "server_error" if error.status_code >= 500 else "invalid_request_error"
    kind = _TYPES.get(error.status_code, server)
    body = {"message": told(message), "type": kind, "param": None, "code": code, **getattr(error, "more", {})}
    return JSONResponse({"error": body}, error.status_code, error.headers)
