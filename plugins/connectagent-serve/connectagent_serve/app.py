"""The application: what each address does, and what it refuses."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ag_ui.core import RunAgentInput
from anyio import to_thread
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from connectagent import ConfigError, Paused, Store
from connectagent.output import unattended
from connectagent_serve.decisions import decision_of, decision_of_agui
from connectagent_serve.events import chunks, completion, failed, run_events, usage_of
from connectagent_serve.frontend import FrontEnd, front_end_of
from connectagent_serve.outcomes import number_of
from connectagent_serve.prompts import prompt_of, prompt_of_openai, prompts_of_agui
from connectagent_serve.refusals import JSONResponse, Refused, paused, refusal_of, refused
from connectagent_serve.runs import decided, taken
from connectagent_serve.sessions import Sessions, check_key
from connectagent_serve.state import Share, SharedState, check_state
from connectagent_serve.told import told, told_text

LOOPBACK = ("127.0.0.1", "localhost", "::1")
PAGE = Path(__file__).with_name("chat.html").read_text("utf-8")
Endpoint = Callable[[Request], Awaitable[Response]]


class _Unattended:
    """Takes turns for clients, who do not see the terminal of the server: nobody is asked there."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        with unattended():
            await self._app(scope, receive, send)


class Service:
    """Serves one agent.

    Args:
        agent, token, host, concurrency, max_bytes, shared_state, store: as for `app_of()`.

    Raises:
        ConfigError: as for `app_of()`.
    """

    def __init__(
        self,
        agent: Any,
        token: str | None,
        host: str,
        concurrency: int,
        max_bytes: int,
        shared_state: Iterable[str],
        store: Store | None,
    ) -> None:
        if token is not None and not token.strip():
            raise ConfigError("the token is empty")
        if token is None and host not in LOOPBACK:
            raise ConfigError(f"serving at {host} needs a token: --token-env names the environment variable with it")
        if concurrency < 1 or max_bytes < 1:
            raise ConfigError("concurrency and max_bytes are at least 1")
        if not agent.log.recording:
            raise ConfigError(f"agent {agent.name!r} is not recorded (log=False), and a session is its record")
        self.agent, self.token, self.max_bytes = agent, token, max_bytes
        self.loopback = host in LOOPBACK  # requests must then name this machine as their host
        self.shared = SharedState(shared_state)
        self.sessions = Sessions(agent, concurrency, self.shared, store)
        self.app = Starlette(
            routes=self._routes(),
            exception_handlers={HTTPException: refused},
            middleware=[Middleware(_Unattended)],
        )
        self.app.state.end = self.sessions.end

    def _routes(self) -> list[Route]:
        return [
            Route("/healthz", self._checked(self.health, open_to_all=True)),
            Route("/", self._checked(self.page, open_to_all=True)),
            Route("/sessions/{id}", self._checked(self.session)),
            Route("/sessions/{id}/turns", self._checked(self.turn), methods=["POST"]),
            Route("/sessions/{id}/decision", self._checked(self.decision), methods=["POST"]),
            Route("/v1/chat/completions", self._checked(self.completions), methods=["POST"]),
            Route("/v1/models", self._checked(self.models)),
            Route("/agui", self._checked(self.agui), methods=["POST"]),
            *(self._a2a() if find_spec("a2a") and find_spec("sse_starlette") else []),
        ]

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
            return JSONResponse(await to_thread.run_sync(_stands, session))

    async def turn(self, request: Request) -> Response:
        """Take a turn of a session, once."""
        body = await self._body(request)
        _only(body, "prompt", "number")
        prompt, number = prompt_of(body.get("prompt"), "prompt"), body.get("number")
        if number is not None and (type(number) is not int or number < 1):
            raise Refused(400, "number is an integer of at least 1")
        with self.sessions.slot(), self.sessions.open(request.path_params["id"]) as session:
            return _answer(session.key, await _outcome(session, session.aturn(prompt, number), number))

    async def decision(self, request: Request) -> Response:
        """Decide what waits in a session, and finish its turn."""
        decision = decision_of(await self._body(request))
        with self.sessions.slot(), self.sessions.open(request.path_params["id"]) as session:
            if not await to_thread.run_sync(lambda: session.begun):
                raise no_session()
            return _answer(session.key, await _outcome(session, session.aresume(**decision)))

    async def models(self, request: Request) -> Response:
        """The agent, as the only model of OpenAI's list."""
        one = {"id": self.agent.name, "object": "model", "created": 0, "owned_by": "connectagent"}
        return JSONResponse({"object": "list", "data": [one]})

    async def completions(self, request: Request) -> Response:
        """A turn, in the form of OpenAI's chat completions."""
        body = await self._body(request)
        key = request.headers.get("x-session-id")
        prompt = prompt_of_openai(body, is_session=key is not None)
        number = request.headers.get("x-turn-number")
        if number is not None and not re.fullmatch("[1-9][0-9]{0,8}", number):
            raise Refused(400, "X-Turn-Number is an integer of at least 1")
        key = key or uuid.uuid4().hex
        headers = {"X-Session-Id": key}
        with self.sessions.slot(), self.sessions.open(key) as session:
            taken = None if number is None else int(number)
            outcome = await _outcome(session, session.aturn(prompt, taken), taken, headers)
            if outcome["status"] == "paused":
                raise paused(outcome["waiting"], headers)
            usage = usage_of(await to_thread.run_sync(session.usage, number_of(session, taken)))
        made = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": self.agent.name}
        text = told_text(outcome["result"])
        if not body.get("stream"):
            return JSONResponse(completion(made, text, outcome["outcome"], usage), headers=headers)
        asked = isinstance(options := body.get("stream_options"), dict) and options.get("include_usage")
        pieces = chunks(made, text, outcome["outcome"], usage if asked else None)
        return StreamingResponse(pieces, media_type="text/event-stream", headers=headers)

    async def agui(self, request: Request) -> Response:
        """A turn, as events of AG-UI; the thread is the session, and its user messages number the turns.

        A run that answers interrupts, or brings results of the front end's tools, goes on with the turn that waits.
        """
        try:
            run = RunAgentInput.model_validate(await self._body(request))
        except ValidationError as error:
            wrong = sorted({".".join(map(str, one["loc"][:3])) for one in error.errors()})
            raise Refused(400, f"not a run of AG-UI: {', '.join(wrong)} does not fit") from None
        prompts = [] if run.resume else prompts_of_agui(run.messages)
        if not prompts and not run.resume:
            raise Refused(400, "a run has a user's message, or answers interrupts")
        decisions = [decision_of_agui(one) for one in run.resume or ()]
        front = front_end_of(run, self.agent)
        check_state(self.shared, run.state)
        check_key(run.thread_id)
        with self.sessions.slot():  # the stream takes one of its own: it may never begin
            events = self._run(run, prompts, decisions, front)
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
            if not read.lstrip().startswith(b"{"):
                raise Refused(400, "the body is a request of JSON-RPC, an object")

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
        self, run: RunAgentInput, prompts: list[Any], decisions: list[dict[str, Any]], front: FrontEnd
    ) -> AsyncIterator[str]:
        try:
            with self.sessions.slot(), self.sessions.open(run.thread_id, front.tools) as session:
                if decisions:  # whoever answers interrupts was told of what waits
                    told = {str((one.call or {}).get("id")) for one in session.waiting}
                    front = front._replace(told=front.told | told)
                share = Share(self.shared, session, run.state)
                what = decided(session, decisions, front, share) if decisions else taken(session, prompts, front, share)
                async for text in run_events(run, what, front, share):
                    yield text
        except Exception as error:  # another turn has begun meanwhile, or the server ends
            yield failed(error, run.thread_id)

    # -- checks --------------------------------------------------------------------------------

    def _checked(self, endpoint: Endpoint, open_to_all: bool = False) -> Endpoint:
        async def checked(request: Request) -> Response:
            name = re.sub(r":\d+$", "", request.headers.get("host", "")).strip("[]").lower()
            if self.loopback and name not in LOOPBACK:
                raise Refused(403, f"this host is not served; these are: {', '.join(LOOPBACK)}")
            if self.token is not None and not open_to_all:
                scheme, _, given = request.headers.get("authorization", "").partition(" ")
                if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self.token.encode()):
                    needed = "the server's token is needed, as 'Bearer TOKEN' in the header Authorization"
                    raise Refused(401, needed, "invalid_api_key", {"WWW-Authenticate": "Bearer"})
            try:
                return await endpoint(request)
            except Exception as error:
                raise refusal_of(error, str(request.path_params.get("id", ""))) from None

        return checked

    async def _body(self, request: Request) -> dict[str, Any]:
        """The body, an object."""
        try:
            body = json.loads(await self._read(request))
        except (ValueError, RecursionError):
            raise Refused(400, "the body is not JSON") from None
        if not isinstance(body, dict):
            raise Refused(400, "the body is an object")
        return body

    async def _read(self, request: Request) -> bytes:
        """The body, in JSON. Other types are refused: a page of another site could send them unasked."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Refused(415, "the body is JSON, with the header Content-Type: application/json")
        read = bytearray()
        async for piece in request.stream():
            read += piece
            if len(read) > self.max_bytes:
                raise Refused(413, f"a body has at most {self.max_bytes} bytes")
        return bytes(read)


async def _outcome(
    session: Any, turn: Awaitable[Any], number: int | None = None, headers: dict[str, str] | None = None
) -> dict[str, Any]:
    """What a turn came to.

    Args:
        session: the session.
        turn: takes it.
        number: of the turn, if it was asked for by one.
        headers: of the response, where it failed.

    Raises:
        HTTPException: it failed.
    """
    try:
        result = told(await turn)
        outcome = await to_thread.run_sync(session.outcome, number_of(session, number))
        return {"status": "done", "result": result, "outcome": outcome}
    except Paused as paused:
        return {"status": "paused", "waiting": _shown(paused.waiting)}
    except Exception as error:
        refusal = refusal_of(error, session.key)
        refusal.headers = {**(refusal.headers or {}), **(headers or {})}
        raise refusal from None


def _stands(session: Any) -> dict[str, Any]:
    """How a session stands.

    Raises:
        Refused: there is no such session.
    """
    if not session.begun:
        raise no_session()
    status, cost, tokens = session.sums()
    shown = {"id": session.key, "status": status, "turns": session.turns, "cost": cost, "tokens": tokens}
    return {**shown, "waiting": _shown(session.waiting)} if status == "paused" else shown


def _answer(key: str, outcome: dict[str, Any]) -> Response:
    return JSONResponse({"id": key, **outcome}, 202 if outcome["status"] == "paused" else 200)


def _shown(waits: list[Any]) -> Any:
    """What waits, as a list of objects."""
    shown = ("id", "call", "reason", "elsewhere")
    return told([{key: value for key in shown if (value := getattr(one, key)) is not False} for one in waits])


def no_session() -> Refused:
    """What is said of a session that is not there."""
    return Refused(404, "there is no such session; its first turn makes it", "no_session")


def _only(body: dict[str, Any], *known: str) -> None:
    """Refuse what would be left out: a number that is misspelt would take a turn twice."""
    if unknown := sorted(set(body) - set(known)):
        raise Refused(400, f"the body has {' and '.join(known)}, not {', '.join(unknown)[:200]}")


def _hash(tag: str) -> str:
    """The policy's name for the page's own script or style."""
    inside = PAGE.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
    return f"'sha256-{base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()}'"


POLICY = (
    f"default-src 'none'; script-src {_hash('script')}; style-src {_hash('style')}; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
