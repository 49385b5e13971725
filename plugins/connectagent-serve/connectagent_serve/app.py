"""The application: what each address does, and what it refuses."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ag_ui.core import RunAgentInput
from pydantic import ValidationError
from pydantic_core import to_jsonable_python
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from connectagent import ConfigError, DivergenceError, Paused, SessionBusy, mask
from connectagent_serve.events import chunk, completion, data, refused, run_events, text_of
from connectagent_serve.sessions import Sessions, check_key

LOOPBACK = ("127.0.0.1", "localhost", "::1")
PAGE = Path(__file__).with_name("chat.html").read_text("utf-8")
Endpoint = Callable[[Request], Awaitable[Response]]


class Service:
    """Serves one agent.

    Args:
        agent, token, host, concurrency, max_bytes: as for `app_of()`.

    Raises:
        ConfigError: as for `app_of()`.
    """

    def __init__(self, agent: Any, token: str | None, host: str, concurrency: int, max_bytes: int) -> None:
        if token is not None and not token.strip():
            raise ConfigError("the token is empty")
        if token is None and host not in LOOPBACK:
            raise ConfigError(f"serving at {host} needs a token: --token-env names the environment variable with it")
        if concurrency < 1 or max_bytes < 1:
            raise ConfigError("concurrency and max_bytes are at least 1")
        self.agent, self.token, self.max_bytes = agent, token, max_bytes
        self.loopback = host in LOOPBACK  # requests must then name this machine as their host
        self.sessions = Sessions(agent, concurrency)
        self.app = Starlette(
            routes=[
                Route("/healthz", self._checked(self.health, open_to_all=True)),
                Route("/", self._checked(self.page, open_to_all=True)),
                Route("/sessions/{id}", self._checked(self.session)),
                Route("/sessions/{id}/turns", self._checked(self.turn), methods=["POST"]),
                Route("/sessions/{id}/decision", self._checked(self.decision), methods=["POST"]),
                Route("/v1/chat/completions", self._checked(self.completions), methods=["POST"]),
                Route("/agui", self._checked(self.agui), methods=["POST"]),
                *(self._a2a() if find_spec("a2a") and find_spec("sse_starlette") else []),
            ],
            exception_handlers={HTTPException: _refused},
        )

    # -- addresses -----------------------------------------------------------------------------

    async def health(self, request: Request) -> Response:
        """Whether the process answers."""
        return JSONResponse({"status": "ok"})

    async def page(self, request: Request) -> Response:
        """The chat page, which loads nothing else."""
        return HTMLResponse(PAGE, headers={"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"})

    async def session(self, request: Request) -> Response:
        """How a session stands, and what waits in it."""
        with self.sessions.open(request.path_params["id"]) as session:
            if not session.record.exists():
                raise HTTPException(404, "there is no such session")
            status, cost, tokens = session.sums()
            shown = {"id": session.key, "status": status, "turns": session.turns, "cost": cost, "tokens": tokens}
            if status == "paused":
                shown["waiting"] = _shown(session.waiting)
            return JSONResponse(mask(shown))

    async def turn(self, request: Request) -> Response:
        """Take a turn of a session, once."""
        body = await self._body(request)
        prompt, number = _text(body.get("prompt"), "prompt"), body.get("number")
        if number is not None and (type(number) is not int or number < 1):
            raise HTTPException(400, "number is an integer of at least 1")
        with self.sessions.slot(), self.sessions.open(request.path_params["id"]) as session:
            return _answer(session.key, await self._outcome(session.aturn, prompt, number))

    async def decision(self, request: Request) -> Response:
        """Decide what waits in a session, and finish its turn."""
        body = await self._body(request)
        if not set(body) <= {"approve", "reject", "answer", "wait"} or not set(body) & {"approve", "reject", "answer"}:
            raise HTTPException(400, "a decision has approve, reject or answer, and perhaps wait")
        with self.sessions.slot(), self.sessions.open(request.path_params["id"]) as session:
            if not session.record.exists():
                raise HTTPException(404, "there is no such session")
            return _answer(session.key, await self._outcome(session.aresume, **body))

    async def completions(self, request: Request) -> Response:
        """A turn, in the form of OpenAI's chat completions."""
        body = await self._body(request)
        messages, key = body.get("messages"), request.headers.get("x-session-id")
        if not isinstance(messages, list) or not messages or not all(isinstance(one, dict) for one in messages):
            raise HTTPException(400, "messages is a list of objects that is not empty")
        if messages[-1].get("role") != "user":
            raise HTTPException(400, "the last message is the user's")
        if key is None and len(messages) > 1:
            raise HTTPException(400, "a conversation needs the header X-Session-Id; the agent has its own instructions")
        number = request.headers.get("x-turn-number")
        if number is not None and not re.fullmatch("[1-9][0-9]{0,8}", number):
            raise HTTPException(400, "X-Turn-Number is an integer of at least 1")
        prompt, key = _text(messages[-1].get("content"), "content"), key or uuid.uuid4().hex
        with self.sessions.slot(), self.sessions.open(key) as session:
            outcome = await self._outcome(session.aturn, prompt, None if number is None else int(number))
        headers = {"X-Session-Id": key}
        if outcome["status"] == "paused":
            return JSONResponse(_error("the turn waits for a decision", **outcome), 409, headers)
        made = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": self.agent.name}
        if body.get("stream"):
            chunks = _chunks(made, text_of(outcome["result"]))
            return StreamingResponse(chunks, media_type="text/event-stream", headers=headers)
        return JSONResponse(completion(made, outcome["result"]), headers=headers)

    async def agui(self, request: Request) -> Response:
        """A turn, as events of AG-UI; the thread is the session, and its user messages number the turns.

        A run that answers interrupts goes on with the turn that waits.
        """
        try:
            run = RunAgentInput.model_validate(await self._body(request))
        except ValidationError as error:
            raise HTTPException(400, f"not a run of AG-UI: {error.error_count()} fields do not fit") from None
        users = [message for message in run.messages if message.role == "user"]
        if not users and not run.resume:
            raise HTTPException(400, "a run has a user's message, or answers interrupts")
        prompt = "" if run.resume else _text(users[-1].content, "content")
        decisions = [{"wait": one.interrupt_id, **_decision(one)} for one in run.resume or ()]
        check_key(run.thread_id)
        with self.sessions.slot():  # the stream takes one of its own: it may never begin
            events = self._run(run, prompt, len(users), decisions)
            return StreamingResponse(events, media_type="text/event-stream")

    def _a2a(self) -> list[Route]:
        """The agent's card, and messages of other agents."""
        from a2a.server.request_handlers.response_helpers import agent_card_to_dict  # type: ignore[import-not-found, misc, unused-ignore]

        from connectagent_serve.a2a import card_of, endpoint_of

        answer = endpoint_of(self.sessions, self.token is not None)

        async def card(request: Request) -> Response:
            """What the agent says of itself; everybody may read it."""
            made = card_of(self.agent, str(request.url_for("a2a")), self.token is not None)
            return JSONResponse(agent_card_to_dict(made))

        async def a2a(request: Request) -> Response:
            """A message of another agent, within the limits of every body."""
            read = await self._read(request)

            async def receive() -> Any:
                return {"type": "http.request", "body": read, "more_body": False}

            response: Response = await answer(Request(request.scope, receive))
            return response

        return [
            Route("/.well-known/agent-card.json", self._checked(card, open_to_all=True)),
            Route("/a2a", self._checked(a2a), methods=["POST"], name="a2a"),
        ]

    # -- turns ---------------------------------------------------------------------------------

    async def _run(
        self, run: RunAgentInput, prompt: str, number: int, decisions: list[dict[str, Any]]
    ) -> AsyncIterator[str]:
        try:
            with self.sessions.slot(), self.sessions.open(run.thread_id) as session:
                async for text in run_events(run, _taken(session, prompt, number, decisions)):
                    yield text
        except HTTPException as error:  # another turn has begun meanwhile
            yield refused(error.detail)

    async def _outcome(self, take: Callable[..., Awaitable[Any]], *given: Any, **more: Any) -> dict[str, Any]:
        """What a turn came to; errors become responses without secrets."""
        try:
            return {"status": "done", "result": to_jsonable_python(await take(*given, **more), fallback=str)}
        except Paused as paused:
            return {"status": "paused", "waiting": mask(_shown(paused.waiting))}
        except (SessionBusy, DivergenceError) as error:
            raise HTTPException(409, mask(str(error))) from None
        except (ConfigError, TypeError, ValueError) as error:
            raise HTTPException(400, mask(str(error))) from None
        except Exception as error:
            raise HTTPException(500, mask(f"{type(error).__name__}: {error}")) from None

    # -- checks --------------------------------------------------------------------------------

    def _checked(self, endpoint: Endpoint, open_to_all: bool = False) -> Endpoint:
        async def checked(request: Request) -> Response:
            name = re.sub(r":\d+$", "", request.headers.get("host", "")).strip("[]").lower()
            if self.loopback and name not in LOOPBACK:
                raise HTTPException(403, "this host is not served")
            if self.token is not None and not open_to_all:
                given = request.headers.get("authorization", "").encode()
                if not hmac.compare_digest(given, f"Bearer {self.token}".encode()):
                    raise HTTPException(401, "a bearer token is needed", {"WWW-Authenticate": "Bearer"})
            return await endpoint(request)

        return checked

    async def _body(self, request: Request) -> dict[str, Any]:
        """The body, an object."""
        try:
            body = json.loads(await self._read(request))
        except (ValueError, RecursionError):
            raise HTTPException(400, "the body is not JSON") from None
        if not isinstance(body, dict):
            raise HTTPException(400, "the body is an object")
        return body

    async def _read(self, request: Request) -> bytes:
        """The body, in JSON. Other types are refused: a page of another site could send them unasked."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise HTTPException(415, "the body is application/json")
        read = bytearray()
        async for piece in request.stream():
            read += piece
            if len(read) > self.max_bytes:
                raise HTTPException(413, f"a body has at most {self.max_bytes} bytes")
        return bytes(read)


async def _taken(
    session: Any, prompt: str, number: int, decisions: list[dict[str, Any]]
) -> AsyncIterator[dict[str, Any]]:
    """What happens in a turn that begins, or that goes on by one decision after the other."""
    if not decisions:
        async with session.astream(prompt, number) as entries:
            async for entry in entries:
                yield entry
    for left, decision in zip(range(len(decisions) - 1, -1, -1), decisions, strict=True):
        async with session.aresume_stream(**decision) as entries:
            try:
                async for entry in entries:
                    yield entry
            except Paused:
                if not left:
                    raise


def _decision(entry: Any) -> dict[str, Any]:
    """The decision in an answer to an interrupt of AG-UI.

    Raises:
        HTTPException: there is none.
    """
    given = entry.payload
    if entry.status == "cancelled":
        return {"reject": "cancelled"}
    if isinstance(given, str) and given.strip():
        return {"answer": given}
    if isinstance(given, bool):
        given = {"approve": given}
    known = {"approve", "reject", "answer"}
    if not isinstance(given, dict) or len(given) != 1 or not set(given) <= known:
        raise HTTPException(400, "an interrupt is answered with a text, true, false, or one of approve, reject, answer")
    return {"reject": "rejected"} if given.get("approve") is False else given


def _answer(key: str, outcome: dict[str, Any]) -> Response:
    return JSONResponse({"id": key, **outcome}, 202 if outcome["status"] == "paused" else 200)


def _shown(waits: list[Any]) -> list[dict[str, Any]]:
    return [{"id": one.id, "call": one.call, "reason": one.reason} for one in waits]


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise HTTPException(400, f"{name} is a text that is not empty")
    return value


def _error(message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, **more}}


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse(_error(error.detail), error.status_code, error.headers)


async def _chunks(made: dict[str, Any], text: str) -> AsyncIterator[str]:
    yield data(chunk(made, {"role": "assistant", "content": text}, None))
    yield data(chunk(made, {}, "stop"))
    yield "data: [DONE]\n\n"


def _hash(tag: str) -> str:
    """The policy's name for the page's own script or style."""
    inside = PAGE.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
    return f"'sha256-{base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()}'"


POLICY = (
    f"default-src 'none'; script-src {_hash('script')}; style-src {_hash('style')}; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
