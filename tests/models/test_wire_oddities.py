"""What few providers send, and must not be lost: custom calls, old calls, thinking in lists, marks, frames, bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
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

from connectagent import Agent, LLMResponse, Tool, ToolCall, after_llm, before_each_tool, llm_do
from connectagent.models.anthropic import AnthropicLLM
from connectagent.models.content import read_arguments
from connectagent.models.failures import kind_of
from connectagent.models.openai import OpenAILLM
from connectagent.models.responses import ResponsesLLM
from connectagent.testing import ScriptedLLM

HELLO: list[Any] = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "object", "properties": {"input": {"type": "string"}}}
MODES = ("plain", "stream")


def llm_at(server: WireServer, provider: str = "openai") -> Any:
    if provider == "anthropic":
        return AnthropicLLM("claude-sonnet-4-5", api_key="k", base_url=server.url)
    if provider == "openai-responses":
        return ResponsesLLM("gpt-4o", api_key="k", base_url=server.openai_url)
    return OpenAILLM("gpt-4o", provider=provider, api_key="k", base_url=server.openai_url)


def driven(answers: list[Answer], tools: list[Any], mode: str, provider: str = "openai") -> tuple[list[Any], Agent]:
    """The requests of a turn, and its agent."""
    with WireServer(*answers) as server:
        agent = Agent("a", tools, llm=llm_at(server, provider), stream=mode == "stream", log=False, quiet=True)
        agent.input("go")
        return server.requests, agent


def noting(ran: list[str]) -> Callable[..., str]:
    def shell(input: str) -> str:
        ran.append(input)
        return "2 files"

    return shell


# -- custom calls -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_custom_call_is_run_and_goes_back_as_it_came(mode: str) -> None:
    custom = {"id": "c1", "type": "custom", "custom": {"name": "shell", "input": "ls -l"}}
    if mode == "plain":
        asks = chat(calls=[custom], finish="tool_calls")
    else:
        asks = chat_stream(
            {"tool_calls": [{"index": 0, "id": "c1", "type": "custom", "custom": {"name": "shell", "input": ""}}]},
            {"tool_calls": [{"index": 0, "custom": {"input": "ls "}}]},
            {"tool_calls": [{"index": 0, "custom": {"input": "-l"}}]},
            finish("tool_calls"),
        )
    answers = [asks, chat("Done.") if mode == "plain" else chat_stream({"content": "Done."}, finish())]
    ran: list[str] = []
    requests, agent = driven(answers, [Tool("shell", "Run.", SCHEMA, noting(ran))], mode)
    assert ran == ["ls -l"] and agent.current_session["result"] == "Done."
    assert requests[1]["messages"][1]["tool_calls"] == [custom]
    assert requests[1]["messages"][2] == {"role": "tool", "tool_call_id": "c1", "content": "2 files"}


# -- calls of the old form ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_an_old_function_call_is_run(mode: str) -> None:
    if mode == "plain":
        old = {"name": "shell", "arguments": '{"input": "ls"}'}
        answers = [chat(function_call=old, finish="function_call"), chat("Done.")]
    else:
        asks = chat_stream(
            {"function_call": {"name": "shell", "arguments": ""}},
            {"function_call": {"arguments": '{"input"'}},
            {"function_call": {"arguments": ': "ls"}'}},
            finish("function_call"),
        )
        answers = [asks, chat_stream({"content": "Done."}, finish())]
    ran: list[str] = []
    requests, agent = driven(answers, [Tool("shell", "Run.", SCHEMA, noting(ran))], mode)
    assert ran == ["ls"] and agent.current_session["result"] == "Done."
    sent = requests[1]["messages"]
    assert sent[2]["tool_call_id"] == sent[1]["tool_calls"][0]["id"]


@pytest.mark.parametrize("mode", MODES)
def test_an_empty_one_beside_real_calls_is_none(mode: str) -> None:
    calls = [{"index": 0, "id": "c1", "function": {"name": "shell", "arguments": '{"input": "ls"}'}}]
    empty = {"name": "", "arguments": ""}
    if mode == "plain":
        answers = [chat(calls=calls, function_call=empty), chat("Done.")]
    else:
        asks = chat_stream({"tool_calls": calls, "function_call": empty}, finish("tool_calls"))
        answers = [asks, chat_stream({"content": "Done."}, finish())]
    ran: list[str] = []
    driven(answers, [Tool("shell", "Run.", SCHEMA, noting(ran))], mode)
    assert ran == ["ls"]


# -- Mistral's thinking ------------------------------------------------------------------------------------------

THOUGHT = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm, well."}]}
SAID = {"type": "text", "text": "Hello you."}


def thinking(mode: str) -> Answer:
    if mode == "plain":
        return chat([THOUGHT, SAID])
    return chat_stream(
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm, "}]}]},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "well."}]}]},
        {"content": [{"type": "text", "text": "Hello "}]},
        {"content": "you."},
        finish(),
    )


def mistral_history(mode: str, provider: str = "mistral", change: str | None = None) -> Any:
    """What is sent of an answer with thinking in the next turn, after the text that was shown."""
    told: list[str] = []
    with WireServer(thinking(mode), chat("Yes.")) as server:
        llm = llm_at(server, "mistral")
        agent = Agent("a", llm=llm, log=False, quiet=True)
        agent.input("hi") if mode == "plain" else told.extend(
            entry["text"] for entry in agent.stream("hi") if entry["type"] == "text"
        )
        assert mode == "plain" or "".join(told) == "Hello you."
        assert agent.current_session["messages"][-1]["content"] == "Hello you."
        if change:
            agent.current_session["messages"][-1]["content"] = change
        agent.llm = llm_at(server, provider)
        agent.input("and?")
        return server.requests[1]["messages"][1]["content"]


@pytest.mark.parametrize("mode", MODES)
def test_thinking_in_a_list_goes_back_to_its_provider(mode: str) -> None:
    assert mistral_history(mode) == [THOUGHT, SAID]
    assert mistral_history(mode, "openai") == "Hello you."
    assert mistral_history(mode, change="Changed.") == "Changed."


# -- byte order marks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("provider", ["openai", "anthropic", "openai-responses"])
def test_a_byte_order_mark_before_an_answer_is_dropped(provider: str, mode: str) -> None:
    plain = {"openai": chat, "anthropic": message, "openai-responses": response}[provider]("Hello you.")
    streams = {
        "openai": chat_stream({"content": "Hello "}, {"content": "you."}, finish()),
        "anthropic": message_stream(*text_events(0, "Hello ", "you.")),
        "openai-responses": response_stream(response_body("Hello you.")),
    }
    answer = Answer("\ufeff" + json.dumps(plain.body)) if mode == "plain" else streams[provider]
    if mode == "stream":
        answer.text = f"\ufeff{answer.text}"
    told: list[str] = []
    with WireServer(answer) as server:
        llm = llm_at(server, provider)
        found = llm.complete(HELLO) if mode == "plain" else llm.stream(HELLO, on_text=told.append)
    assert found.content == "Hello you."
    assert mode == "plain" or "".join(told) == "Hello you."


def test_a_byte_order_mark_before_arguments_is_dropped() -> None:
    assert read_arguments('\ufeff{"a": 1}') == ({"a": 1}, None)


# -- frames without data -----------------------------------------------------------------------------------------

# Events that the format allows, and that say nothing: https://html.spec.whatwg.org/multipage/server-sent-events.html
FRAMES = {
    "retry": "retry: 3000\n\n",
    "data alone": "data:\n\n",
    "a blank": "data: \n\n",
    "two blanks": "data:  \n\n",
    "event": "event: ping\n\n",
    "event and data": "event: ping\ndata:\n\n",
    "id": "id: 7\n\n",
    "comment": ": keep-alive\n\n",
    "comment behind an id": "id: 7\n\n: keep-alive\n\n",
    "blank lines": "\n\n\n",
}


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("provider", ["openai", "anthropic", "openai-responses"])
def test_frames_without_data_are_skipped(provider: str, frame: str, ending: str) -> None:
    streams = {
        "openai": chat_stream({"content": "Hello "}, {"content": "you."}, finish()),
        "anthropic": message_stream(*text_events(0, "Hello ", "you.")),
        "openai-responses": response_stream(response_body("Hello you.")),
    }
    events = (streams[provider].text or "").split("\n\n")
    text = FRAMES[frame] + FRAMES[frame].join(f"{event}\n\n" for event in events if event) + FRAMES[frame]
    told: list[str] = []
    with WireServer(Answer(text=text.replace("\n", ending))) as server:
        found = llm_at(server, provider).stream(HELLO, on_text=told.append)
    assert found.content == "".join(told) == "Hello you."
    assert len(server.requests) == 1


# -- the bytes of arguments --------------------------------------------------------------------------------------

RAW = '{"input":"ä", "b":1.0}'


@pytest.mark.parametrize("provider", ["openai", "openai-responses"])
def test_arguments_go_back_byte_for_byte(provider: str) -> None:
    asks = chat(calls=[("c1", "shell", RAW)]) if provider == "openai" else response(("c1", "shell", RAW))
    tool = Tool("shell", "Run.", {"type": "object"}, lambda **given: "done")
    requests, agent = driven([asks, chat("ok") if provider == "openai" else response("ok")], [tool], "plain", provider)
    assert agent.current_session["messages"][1]["tool_calls"][0]["function"]["arguments"] == RAW
    sent = json.dumps(requests[1], ensure_ascii=False)
    assert json.dumps(RAW, ensure_ascii=False) in sent


def test_arguments_go_back_byte_for_byte_after_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path))
    dies = [True]

    @before_each_tool
    def die(agent: Any) -> None:
        if dies.pop() if dies else False:
            raise KeyboardInterrupt

    tool = Tool("shell", "Run.", {"type": "object"}, lambda **given: "done")
    with WireServer(chat(calls=[("c1", "shell", RAW)]), chat("ok")) as server:
        agent = Agent("a", [tool], llm=llm_at(server), on_events=[die], quiet=True)
        with pytest.raises(KeyboardInterrupt):
            agent.input("go")
        again = Agent("a", [tool], llm=llm_at(server), on_events=[die], quiet=True)
        again.resume(agent.record)
    assert server.requests[1]["messages"][1]["tool_calls"][0]["function"]["arguments"] == RAW


def test_what_a_handler_changed_is_sent() -> None:
    @after_llm
    def change(response: LLMResponse) -> None:
        for call in response.tool_calls or []:
            call.arguments["input"] = "changed"

    tool = Tool("shell", "Run.", {"type": "object"}, lambda **given: "done")
    llm = ScriptedLLM(LLMResponse(None, [ToolCall("c1", "shell", {"input": "ls"}, raw='{"input":"ls"}')]), "ok")
    agent = Agent("a", [tool], llm=llm, on_events=[change], log=False, quiet=True)
    agent.input("go")
    sent = agent.current_session["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(sent) == {"input": "changed"}


# -- prompts and errors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", ["", "  \n", []])
def test_an_empty_prompt_of_llm_do_is_refused(prompt: Any) -> None:
    llm = ScriptedLLM("never asked")
    with pytest.raises(ValueError, match="the prompt is empty"):
        llm_do(prompt, llm=llm)
    assert llm_do("hi", llm=llm) == "never asked"


@pytest.mark.parametrize(("status", "kind"), [(401, "auth"), (503, "overloaded"), (529, "overloaded")])
@pytest.mark.parametrize(
    "told",
    [
        {"type": "invalid_request_error", "message": "Context window of the key is unknown."},
        {"type": "rate_limit_error", "code": "model_not_found", "message": "Sorry."},
        {"type": "authentication_error", "message": "overloaded"},
    ],
)
def test_a_status_that_says_it_all_keeps_its_kind(status: int, kind: str, told: dict[str, str]) -> None:
    assert kind_of(status, {"error": told}) == kind
    assert kind_of(400, {"error": {"code": "context_length_exceeded"}}) == "context_length"
