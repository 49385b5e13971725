"""An answer that is cut off, refused or out of iterations is served as such, in each format and however often."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("ag_ui")
httpx = pytest.importorskip("httpx")
openai = pytest.importorskip("openai", reason="openai is not installed")
uvicorn = pytest.importorskip("uvicorn")
from ag_ui.core import Event  # noqa: E402
from connectagent_serve import app_of  # noqa: E402
from pydantic import TypeAdapter  # noqa: E402

from connectagent import Agent, LLMResponse, ProviderError, ToolCall, tool  # noqa: E402
from connectagent.testing import ScriptedLLM  # noqa: E402

LIMIT = "Task incomplete: Maximum iterations (1) reached."
MESSAGES: Any = [{"role": "user", "content": "Hi"}]


@tool
def look() -> str:
    """Look."""
    return "nothing"


# By the outcome: the model's answer, the turn's result, its `finish_reason`, AG-UI's last event and A2A's state.
CASES: dict[str, tuple[LLMResponse, str, str, str, str]] = {
    "answered": (LLMResponse("Yes."), "Yes.", "stop", "RUN_FINISHED", "completed"),
    "truncated": (LLMResponse("Once", finish_reason="length"), "Once", "length", "RUN_ERROR", "failed"),
    "refused": (LLMResponse("I cannot.", finish_reason="refusal"), "I cannot.", "stop", "RUN_ERROR", "rejected"),
    "max_iterations": (LLMResponse(None, [ToolCall("c", "look", {})]), LIMIT, "length", "RUN_ERROR", "failed"),
}
UNKNOWN = LLMResponse("Half", finish_reason="one_of_next_year")


def app_with(*responses: Any) -> Any:
    return app_of(Agent("shop", tools=[look], llm=ScriptedLLM(*responses), quiet=True, max_iterations=1))


@contextmanager
def address_of(app: Any) -> Iterator[str]:
    """Serve an application on the loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def client_of(address: str) -> Any:
    return openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)


def asked(address: str, stream: bool) -> tuple[Any, Any, Any]:
    """Content, refusal and finish_reason, as OpenAI's own client reads them."""
    headers = {"X-Session-Id": "s", "X-Turn-Number": "1"}
    with client_of(address) as client:
        if not stream:
            made = client.chat.completions.create(model="shop", messages=MESSAGES, extra_headers=headers)
            choice = made.choices[0]
            return choice.message.content, choice.message.refusal, choice.finish_reason
        said: dict[str, str] = {}
        end = None
        create = client.chat.completions.create
        for chunk in create(model="shop", messages=MESSAGES, extra_headers=headers, stream=True):
            choice = chunk.choices[0]
            for key in ("content", "refusal"):
                if (piece := getattr(choice.delta, key)) is not None:
                    said[key] = said.get(key, "") + piece
            end = choice.finish_reason or end
        return said.get("content"), said.get("refusal"), end


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("outcome", CASES)
def test_openais_client_reads_why_a_turn_has_ended(co_dir: Path, outcome: str, stream: bool) -> None:
    response, text, reason, *_ = CASES[outcome]
    expected = (None, text, reason) if outcome == "refused" else (text, None, reason)
    with address_of(app_with(response)) as address:
        assert asked(address, stream) == expected
        assert asked(address, stream) == expected  # from its record
    with address_of(app_with()) as address:  # by another server
        assert asked(address, stream) == expected


def test_openais_client_raises_for_a_stream_of_a_cut_answer(co_dir: Path) -> None:
    with address_of(app_with(CASES["truncated"][0])) as address, client_of(address) as client:
        stream = client.chat.completions.stream(model="shop", messages=MESSAGES)
        with stream as events, pytest.raises(openai.LengthFinishReasonError):
            events.get_final_completion()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("outcome", ["answered", "truncated", "refused"])
def test_an_agent_with_a_served_agent_as_its_model_has_the_same_outcome(
    co_dir: Path, outcome: str, stream: bool
) -> None:
    response, text, *_ = CASES[outcome]
    with address_of(app_with(response)) as address:
        agent = Agent("a", model="openai/shop", base_url=f"{address}/v1", api_key="k", quiet=True, stream=stream)
        assert (agent.input("Hi"), agent.session["outcome"]) == (text, outcome)


@pytest.mark.parametrize("outcome", CASES)
def test_a_session_says_how_its_turn_has_ended(co_dir: Path, outcome: str) -> None:
    response, text, *_ = CASES[outcome]
    for app in (app_with(response), app_with()):  # taken, then read
        with address_of(app) as address:
            said = httpx.post(f"{address}/sessions/s/turns", json={"prompt": "Hi", "number": 1}).json()
            assert said == {"id": "s", "status": "done", "result": text, "outcome": outcome}


def test_an_answer_that_stopped_for_an_unknown_reason_is_not_whole(co_dir: Path) -> None:
    with address_of(app_with(UNKNOWN)) as address:
        assert asked(address, False) == ("Half", None, "length")


@pytest.mark.parametrize("response", [
    LLMResponse("Half", finish_reason="content_filter"), LLMResponse("Half", finish_reason="error"),
    LLMResponse(None, finish_reason="length"), ProviderError("none", kind="empty", provider="x"),
    ProviderError("no", kind="refusal", provider="x"),
])  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_of_which_nothing_is_used_is_an_error(co_dir: Path, response: Any, stream: bool) -> None:
    with address_of(app_with(response)) as address, pytest.raises(openai.APIStatusError) as caught:
        asked(address, stream)
    assert caught.value.status_code == 500 and caught.value.code == "ProviderError"
    assert caught.value.response.headers["X-Should-Retry"] == "false"


@pytest.mark.parametrize("outcome", CASES)
def test_a_run_of_agui_is_finished_with_a_good_answer_only(co_dir: Path, outcome: str) -> None:
    response, text, _, last, _ = CASES[outcome]
    messages = [{"id": "1", "role": "user", "content": "Hi"}]
    run = {"threadId": "t", "runId": "r", "messages": messages, "tools": [], "context": [], "state": {}}
    for app in (app_with(response), app_with()):  # taken, then read
        with address_of(app) as address:
            reply = httpx.post(f"{address}/agui", json={**run, "forwardedProps": {}})
        events = [json.loads(line[6:]) for line in reply.text.split("\n\n") if line]
        for one in events:
            TypeAdapter(Event).validate_python(one)
        assert events[-1]["type"] == last and events[-1].get("code", "answered") == outcome
        assert text in [one.get("delta") for one in events]


@pytest.mark.parametrize("outcome", CASES)
def test_a_task_of_a2a_is_completed_with_a_good_answer_only(co_dir: Path, outcome: str) -> None:
    pytest.importorskip("a2a", reason="a2a-sdk is not installed")
    pytest.importorskip("sse_starlette", reason="sse-starlette is not installed")
    from test_a2a import Other, message, talk

    response, text, _, _, state = CASES[outcome]

    async def steps(other: Other) -> None:
        assert await other.send(message("Hi", turn=1)) == state
        assert text in other.texts

    for app in (app_with(response), app_with()):  # taken, then read
        talk(app, steps)
