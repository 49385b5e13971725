"""What leaves the server is without secrets, by one rule; a turn that is asked for again has the same answer."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("ag_ui")
httpx = pytest.importorskip("httpx")
import anyio  # noqa: E402
import connectagent_serve  # noqa: E402
from connectagent_serve import app_of  # noqa: E402
from pydantic import BaseModel  # noqa: E402

from connectagent import Agent, Pause, before_each_tool, tool  # noqa: E402
from connectagent.testing import ScriptedLLM, call  # noqa: E402

KEY = "sk-proj-Ab3dEf6hIj9lMn2pQr5tUv8xYz1Bc4Df7Gh0"
TEXTS = {
    "key": f"The key is {KEY}.",
    "field": f'password="{KEY}" and more',
    "half": f"\ud83d {KEY} \u00e9",
    "json": json.dumps({"token": KEY, "n": 1}),
    "plain": "Nothing \u00e9 secret.",
}


class Login(BaseModel):
    user: str
    password: str


@tool
def look(key: str) -> str:
    """Look something up."""
    if "fail" in key:
        raise ValueError(f"no {key}")
    return f"found {key}"


@before_each_tool
def wait(agent: Any) -> None:
    """Let a person decide."""
    raise Pause(f"is {KEY} right?")


def fails(agent: Any) -> str:
    raise RuntimeError(f"no answer with {KEY}")


def _agent(kind: str, text: str) -> Agent:
    if kind == "error":
        return Agent("shop", run=fails, quiet=True)
    calls = [] if kind == "typed" else [call("look", key=KEY), call("look", key=f"fail {KEY}")]
    options: dict[str, Any] = {"output": Login} if kind == "typed" else {}
    plugins = [wait] if kind == "paused" else []
    return Agent("shop", tools=[look], plugins=plugins, llm=ScriptedLLM(*calls, text), quiet=True, **options)


def _request(route: str) -> tuple[str, Any, dict[str, str]]:
    if route == "turns":
        return "/sessions/s1/turns", {"prompt": "Hi", "number": 1}, {}
    if route == "agui":
        message = {"id": "1", "role": "user", "content": "Hi"}
        run = {"threadId": "s1", "runId": "r1", "tools": [], "context": [], "state": {}, "forwardedProps": {}}
        return "/agui", {**run, "messages": [message]}, {}
    if route.startswith("a2a"):
        method = "SendStreamingMessage" if route == "a2a stream" else "SendMessage"
        message = {"messageId": "m", "contextId": "s1", "role": "ROLE_USER", "parts": [{"text": "Hi"}]}
        params = {"message": {**message, "metadata": {"turn": 1}}}
        asked = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return "/a2a", asked, {"A2A-Version": "1.0"}
    body = {"model": "shop", "messages": [{"role": "user", "content": "Hi"}], "stream": route == "chat stream"}
    return "/v1/chat/completions", body, {"X-Session-Id": "s1", "X-Turn-Number": "1"}


def _ask(app: Any, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
    async def ask() -> Any:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8000") as client:
            given = {} if body is None else {"json": body}
            return await client.request(method, path, headers=headers, **given)

    return anyio.run(ask)


def _answer(reply: Any, route: str) -> Any:
    """What a reply says of the turn's result, without the ids and times that are made for each reply."""
    if route == "turns":
        return reply.content
    found = re.findall(r'"(?:content|delta|text)": ?("(?:[^"\\]|\\.)*"|\{[^}]*\})', reply.text)
    return found[-1] if route in ("agui", "a2a", "a2a stream") else found[:1]


ROUTES = ["turns", "chat", "chat stream", "agui", "a2a", "a2a stream"]
CASES = [("done", text) for text in TEXTS.values()] + [
    ("typed", json.dumps({"user": "Bo", "password": KEY})),
    ("error", ""),
    ("paused", "Done."),
]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(("kind", "text"), CASES, ids=[*TEXTS, "typed", "error", "paused"])
def test_what_leaves_the_server_has_no_secret(co_dir: Path, route: str, kind: str, text: str) -> None:
    if route.startswith("a2a"):
        pytest.importorskip("a2a")
        pytest.importorskip("sse_starlette")
    path, body, headers = _request(route)
    app = app_of(_agent(kind, text))
    first = _ask(app, "POST", path, body, headers)
    again = _ask(app_of(_agent(kind, text)), "POST", path, body, headers)
    listed = _ask(app, "GET", "/sessions/s1")
    for reply in (first, again, listed):
        assert KEY not in reply.text and KEY[8:-8] not in reply.text
        assert reply.text, reply.status_code
    if kind != "error":
        assert first.status_code == again.status_code
    if kind in ("done", "typed"):
        assert _answer(again, route) == _answer(first, route)


def test_only_one_module_masks() -> None:
    """A new route takes `told`, or is found here."""
    folder = Path(connectagent_serve.__file__).parent
    uses = re.compile(r"\bmask\(|import .*\bmask\b")
    masking = [file.name for file in folder.glob("*.py") if uses.search(file.read_text("utf-8"))]
    assert masking == ["told.py"]
