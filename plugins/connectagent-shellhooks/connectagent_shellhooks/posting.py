"""Sends the JSON of an event to an address, and reads what it answers."""

from __future__ import annotations

import os
import re
from typing import Any

import httpx

from connectagent import arguments_text, run_async
from connectagent_shellhooks.running import Outcome
from connectagent_shellhooks.settings import GUARDS, Hook

_MOST = 1_000_000  # bytes of an answer that are read
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")


def post(hook: Hook, payload: dict[str, Any]) -> Outcome:
    """Send an event to a hook's address. Only a status of 200 to 299 says anything, and of a guard only JSON."""
    try:
        status, text = run_async(_answer(hook, arguments_text(payload)), hook.timeout_s)
    except TimeoutError:
        return Outcome(problem=f"it did not answer within {hook.timeout_s:g} s")
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        return Outcome(problem=f"it cannot be reached: {type(error).__name__}: {error}")
    if not 200 <= status < 300:
        return Outcome(problem=f"it answered with status {status}")
    outcome = Outcome(0, text)
    if hook.event in GUARDS and text.strip() and outcome.data() is None:  # such as the page of a login
        outcome.problem = "its answer is no JSON object"
    return outcome


async def _answer(hook: Hook, payload: str) -> tuple[int, str]:
    own = {name: _filled(value, hook.variables) for name, value in hook.headers}
    headers, read = {"Content-Type": "application/json", **own}, b""
    async with (
        httpx.AsyncClient(timeout=hook.timeout_s) as client,
        client.stream("POST", str(hook.run), content=payload, headers=headers) as response,
    ):
        async for piece in response.aiter_bytes():
            read = (read + piece)[:_MOST]
            if len(read) == _MOST:
                break
        return response.status_code, read.decode("utf-8", "replace").replace("\0", "")


def _filled(value: str, variables: tuple[str, ...]) -> str:
    """A header with the variables that it may have; others are empty."""

    def put(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        return os.environ.get(name, "") if name in variables else ""

    return _VARIABLE.sub(put, value)
