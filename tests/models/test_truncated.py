"""An answer that a limit of tokens has cut is told by the turn's outcome, on each wire."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import yaml
from wire_server import (
    Answer,
    WireServer,
    chat,
    chat_stream,
    finish,
    message,
    message_stream,
    response,
    response_body,
    response_stream,
    text_events,
)

from connectagent import Agent, LLMResponse, after_llm, on_complete
from connectagent.builtin.console import Console
from connectagent.models.anthropic import AnthropicLLM
from connectagent.models.openai import OpenAILLM
from connectagent.models.responses import ResponsesLLM
from connectagent.testing import ScriptedLLM

CUT_BODY = response_body("Half an", status="incomplete", why="max_output_tokens")
CUT: list[tuple[str, bool, Answer]] = [
    ("openai", False, chat("Half an", finish="length")),
    ("openai", True, chat_stream({"content": "Half an"}, finish("length"))),
    ("mistral", False, chat("Half an", finish="model_length")),
    ("anthropic", False, message("Half an", stop="max_tokens")),
    ("anthropic", True, message_stream(*text_events(0, "Half an"), stop="max_tokens")),
    ("anthropic", False, message("Half an", stop="model_context_window_exceeded")),
    ("openai-responses", False, response("Half an", status="incomplete", why="max_output_tokens")),
    ("openai-responses", True, response_stream(CUT_BODY)),
]
WHOLE = [
    ("openai", chat("All.", finish="stop")),
    ("openai", chat("All.", finish=None)),
    ("anthropic", message("All.", stop="stop_sequence")),
    ("openai-responses", response("All.")),
]


def llm_at(server: WireServer, provider: str) -> Any:
    if provider == "anthropic":
        return AnthropicLLM("claude-sonnet-4-5", api_key="k", base_url=server.url)
    if provider == "openai-responses":
        return ResponsesLLM("gpt-4o", api_key="k", base_url=server.openai_url)
    return OpenAILLM("gpt-4o", provider=provider, api_key="k", base_url=server.openai_url)


@pytest.mark.parametrize(("provider", "stream", "answer"), CUT)
def test_a_cut_answer_is_returned_and_the_outcome_is_truncated(provider: str, stream: bool, answer: Answer) -> None:
    outcomes: list[str] = []

    @on_complete
    def note(outcome: str) -> None:
        outcomes.append(outcome)

    with WireServer(answer) as server:
        agent = Agent("a", llm=llm_at(server, provider), stream=stream, on_events=[note], log=False, quiet=True)
        assert agent.input("Tell me all.") == "Half an"
    assert outcomes == ["truncated"] == [agent.current_session["outcome"]]


@pytest.mark.parametrize(("provider", "answer"), WHOLE)
def test_a_whole_answer_is_answered(provider: str, answer: Answer) -> None:
    with WireServer(answer) as server:
        agent = Agent("a", llm=llm_at(server, provider), log=False, quiet=True)
        agent.input("Tell me all.")
    assert agent.current_session["outcome"] == "answered"


def test_what_a_handler_puts_in_its_place_is_whole() -> None:
    @after_llm
    def mend(response: LLMResponse) -> str:
        return f"{response.content} answer."

    llm = ScriptedLLM(LLMResponse("Half an", finish_reason="length"))
    agent = Agent("a", llm=llm, on_events=[mend], log=False, quiet=True)
    assert agent.input("Tell me all.") == "Half an answer."
    assert agent.current_session["outcome"] == "answered"


def test_the_record_and_the_terminal_tell_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path))
    file = io.StringIO()
    llm = ScriptedLLM(LLMResponse("Half an", finish_reason="max_output_tokens"))
    agent = Agent("a", llm=llm, plugins=[Console(file, width=100)], quiet=True)
    agent.input("Tell me all.")
    assert agent.record is not None
    assert yaml.safe_load(Path(agent.record).read_text())["turns"][0]["status"] == "truncated"
    shown = file.getvalue()
    assert "the answer was cut at the limit of output tokens (max_output_tokens)" in shown
    assert "truncated" in shown.splitlines()[-1]
