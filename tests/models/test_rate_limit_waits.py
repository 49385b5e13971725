"""A request that the provider's SDK makes again is told of while it waits: in the trace, and on the terminal."""

from __future__ import annotations

import io
import time
from typing import Any

import pytest
from wire_server import Answer, WireServer, chat, message, response

from connectagent import Agent, ProviderError, on_trace
from connectagent.builtin.console import Console
from connectagent.models.anthropic import AnthropicLLM
from connectagent.models.openai import OpenAILLM
from connectagent.models.responses import ResponsesLLM

OK = {"openai": chat("ok"), "anthropic": message("ok"), "openai-responses": response("ok")}
AT_ONCE = {"retry-after-ms": "1"}


def busy(status: int = 429, **headers: str) -> Answer:
    found = {key.replace("_", "-"): value for key, value in headers.items()} or AT_ONCE
    return Answer({"error": {"message": "busy"}}, status, found)


def llm_at(server: WireServer, provider: str = "openai", **options: Any) -> Any:
    if provider == "anthropic":
        return AnthropicLLM("claude-sonnet-4-5", api_key="k", base_url=server.url, options=options)
    adapter = ResponsesLLM if provider == "openai-responses" else OpenAILLM
    return adapter("gpt-4o", api_key="k", base_url=server.openai_url, options=options)


def waits(*answers: Answer, provider: str = "openai", **options: Any) -> list[dict[str, Any]]:
    """What the trace tells of requests that were made again."""
    with WireServer(*answers) as server:
        agent = Agent("a", llm=llm_at(server, provider, **options), log=False, quiet=True)
        try:
            agent.input("hi")
        except ProviderError as error:
            assert error.status is not None
    keys = ("model", "status", "retry_after_s", "attempt")
    entries = [entry for entry in agent.current_session["trace"] if entry["type"] == "retrying"]
    return [{key: entry[key] for key in keys if key in entry} for entry in entries]


@pytest.mark.parametrize("provider", OK)
def test_each_wait_is_told(provider: str) -> None:
    found = waits(busy(), busy(500), OK[provider], provider=provider)
    assert [(entry["status"], entry["retry_after_s"], entry["attempt"]) for entry in found] == [
        (429, 0.001, 1), (500, 0.001, 2)
    ]  # fmt: skip
    assert {entry["model"].partition("/")[0] for entry in found} == {provider}


def test_what_is_not_made_again_is_no_wait() -> None:
    assert [entry["attempt"] for entry in waits(busy())] == [1, 2]  # the third was the last
    assert waits(busy(), max_retries=0) == []
    assert waits(busy(x_should_retry="false")) == []
    assert waits(busy(400)) == []
    assert waits(busy(retry_after="3600")) == []
    asked = busy(400, x_should_retry="true", retry_after_ms="1")
    assert [entry["status"] for entry in waits(asked, chat("ok"))] == [400]


def shown(quiet: bool) -> tuple[str, float]:
    """What the terminal shows of a turn whose model makes it wait, and how long before its end."""
    at: list[float] = []

    class Noting(io.StringIO):
        def write(self, text: str) -> int:
            if "waits" in text:
                at.append(time.monotonic())
            return super().write(text)

    file = Noting()
    plugins = [] if quiet else [Console(file, width=100)]
    with WireServer(busy(retry_after_ms="400"), chat("ok")) as server:
        Agent("a", llm=llm_at(server), plugins=plugins, log=False, quiet=True).input("hi")
    return file.getvalue(), time.monotonic() - at[0] if at else 0


def test_the_terminal_says_so_before_the_wait() -> None:
    text, before = shown(quiet=False)
    assert "openai/gpt-4o: the rate limit is reached (HTTP 429): waits 400ms and tries again" in text
    assert before >= 0.4


def test_a_quiet_agent_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with WireServer(busy(), chat("ok")) as server:
        Agent("a", llm=llm_at(server), log=False, quiet=True).input("hi")
    assert capsys.readouterr() == ("", "")


def test_the_built_in_console_says_it_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with WireServer(busy(), chat("ok")) as server:
        Agent("a", llm=llm_at(server), log=False).input("hi")
    assert "the rate limit is reached" in capsys.readouterr().err


def test_an_error_of_a_handler_that_is_told_reaches_the_caller_and_nothing_is_sent_again() -> None:
    @on_trace
    def fails(entry: dict[str, Any]) -> None:
        if entry["type"] == "retrying":
            raise ValueError("I cannot wait")

    with WireServer(busy(), chat("ok")) as server:
        agent = Agent("a", llm=llm_at(server), on_events=[fails], log=False, quiet=True)
        with pytest.raises(ValueError, match="I cannot wait"):
            agent.input("hi")
        assert len(server.requests) == 1
        assert agent.input("hi again") == "ok"


def test_a_recorded_wait_is_replayed(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from connectagent.replay.replaying import replay

    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path))
    with WireServer(busy(), chat("ok")) as server:
        agent = Agent("a", llm=llm_at(server), quiet=True)
        agent.input("hi")
        assert agent.record is not None
        played = replay(agent.record, Agent("a", llm=llm_at(server), quiet=True))
        assert played.same and played.divergence is None
        assert len(server.requests) == 2
