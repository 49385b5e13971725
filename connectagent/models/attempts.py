"""The attempts of one request: an SDK makes it again by itself, and here is noted what became of each."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Protocol

from connectagent import frame
from connectagent.models.failures import retry_after, retry_delay
from connectagent.tools.awaiting import CALLER

_MAX_RETRIES = 2  # of both SDKs, where the options name no other number
_BUSY = (429, 503)
_LONGEST_WAIT_S = 120  # what asks for more is given up by OpenAI's SDK
_current: ContextVar[Attempts | None] = ContextVar("connectagent_attempts", default=None)


class HTTPResponse(Protocol):
    """A response as the HTTP library of an SDK has it."""

    @property
    def status_code(self) -> int: ...
    @property
    def headers(self) -> Any: ...
    def read(self) -> bytes: ...


class Raised(BaseException):
    """On its way through an SDK: what a handler raised. An Exception would be taken for a lost connection."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class Attempts:
    """The attempts of a request: `with Attempts(model, max_retries) as attempts:` around the SDK's call.

    Args:
        model: whom it is made to.
        max_retries: how often the SDK makes it again; None for its own number.
    """

    def __init__(self, model: str, max_retries: int | None) -> None:
        self.model, self.max_retries = model, _MAX_RETRIES if max_retries is None else max_retries
        self._made: list[dict[str, Any]] = []

    def __enter__(self) -> Attempts:
        self._token, self._caller = _current.set(self), CALLER.get()
        self._compute(True)
        return self

    def __exit__(self, *raised: object) -> None:
        self._compute(False)
        _current.reset(self._token)

    def _compute(self, now: bool) -> None:
        """Compute beside few others in awaited turns; the request itself only waits."""
        if self._caller is not None:
            self._caller.compute(now)

    def begin(self) -> None:
        """Another attempt is made."""
        self._compute(False)
        self._made.append({"status": None, "began": time.perf_counter()})

    def answered(self, status: int, headers: Mapping[str, str]) -> None:
        """Note the answer of an attempt; the running turn traces that the SDK waits to try again."""
        self._compute(True)
        if not self._made:
            return
        answer = {"status": status, "retry_after_s": retry_after(headers) if status >= 400 else None}
        self._made[-1].update(answer)
        here = frame.current()
        if not self._will_retry(status, answer["retry_after_s"], headers):
            return
        self._compute(False)  # it sleeps
        if here is None or here.turn.over:
            return
        body = None if self._caller is None else self._caller.body
        retry = {"model": self.model, **answer, "attempt": len(self._made)}
        try:
            here.turn.retrying(retry) if body is None else body.call(here.turn.retrying, retry)
        except Exception as error:
            raise Raised(error) from None

    def _will_retry(self, status: int, wait_s: float | None, headers: Mapping[str, str]) -> bool:
        """Whether the SDK will make the request again. It does not tell; these are its documented rules."""
        if len(self._made) > self.max_retries or (wait_s or 0) > _LONGEST_WAIT_S:
            return False
        asked = headers.get("x-should-retry")
        return asked == "true" or (asked != "false" and (status in (408, 409, 429) or status >= 500))

    def failed(self) -> list[dict[str, Any]]:
        """The attempts that failed, as they are stored: `status` (None: no answer), `duration_ms`, `retry_after_s`.

        `duration_ms` reaches to the next attempt, so that the SDK's wait is in it.
        """
        ends = [attempt["began"] for attempt in self._made[1:]] + [time.perf_counter()]
        return [
            {
                "status": attempt["status"],
                "duration_ms": round((end - attempt["began"]) * 1000, 1),
                "retry_after_s": attempt.get("retry_after_s"),
            }
            for attempt, end in zip(self._made, ends, strict=True)
            if attempt["status"] is None or attempt["status"] >= 400
        ]


def attempt_hooks() -> dict[str, list[Callable[[Any], None]]]:
    """Event hooks for an SDK's HTTP client, which note each attempt of the current request."""
    return {"request": [_note_request], "response": [_note_response]}


def _note_request(request: object) -> None:
    if (attempts := _current.get()) is not None:
        attempts.begin()


def _note_response(response: HTTPResponse) -> None:
    _add_wait(response)
    if (attempts := _current.get()) is not None:
        attempts.answered(response.status_code, response.headers)


def _add_wait(response: HTTPResponse) -> None:
    """Give a response the header that Google leaves out, so that the SDK waits as long as its body asks for."""
    if response.status_code not in _BUSY or retry_after(response.headers) is not None:
        return
    with contextlib.suppress(ValueError):  # no JSON
        wait_s = retry_delay(json.loads(response.read()))
        if wait_s is not None:
            response.headers["retry-after"] = str(wait_s)
