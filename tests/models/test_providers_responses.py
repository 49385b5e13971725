"""OpenAI's Responses API over real HTTP: line 38 of PITFALLS.md, and what else must hold."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel
from wire_server import Answer, WireServer, chat, message, reasoning, response, response_body, response_stream

from connectagent import Agent, Tool, llm_do
from connectagent.data import LLMResponse
from connectagent.errors import ProviderError
from connectagent.models.anthropic import AnthropicLLM
from connectagent.models.create import create_llm
from connectagent.models.openai import OpenAILLM
from connectagent.models.origin import Origin
from connectagent.models.responses import ResponsesLLM
from connectagent.models.responses_messages import to_wire
from connectagent.session.messages import assistant_message

HELLO: list[Any] = [{"role": "user", "content": "hello"}]
ADD = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}
MODES = ("plain", "stream")


class Person(BaseModel):
    name: str


def llm_at(server: WireServer, model: str = "gpt-5", **options: Any) -> ResponsesLLM:
    return ResponsesLLM(model, api_key="test-key-1", base_url=server.openai_url, options=options)


def answer_to(answer: Answer, mode: str = "plain", told: list[str] | None = None) -> LLMResponse:
    told = [] if told is None else told
    with WireServer(response_stream(answer.body) if mode == "stream" else answer) as server:
        llm = llm_at(server)
        return llm.complete(HELLO) if mode == "plain" else llm.stream(HELLO, on_text=told.append)


def error_of(answer: Answer, mode: str = "plain") -> ProviderError:
    with WireServer(answer) as server, pytest.raises(ProviderError) as caught:
        llm = llm_at(server, max_retries=0)
        llm.complete(HELLO) if mode == "plain" else llm.stream(HELLO, on_text=str)
    return caught.value


GPT = Origin("openai-responses", "api.openai.com", "gpt-5")


def moved(messages: list[Any], address: str = GPT.address) -> list[Any]:
    """The messages, as if the answers of this API's models had come from that address."""
    found = []
    for one in messages:
        kept = one.get("provider_data")
        mine = kept and kept["provider"] == GPT.provider
        found.append({**one, "provider_data": {**kept, "address": address}} if mine else one)
    return found


def sent_by(messages: list[Any], tools: Any = None, model: str = "gpt-5", output: Any = None, **options: Any) -> Any:
    with WireServer(response("ok")) as server:
        llm = llm_at(server, model, **options)
        llm.complete(moved(messages, llm.origin.address), tools, output=output)
        assert server.paths == ["/v1/responses"]
        return server.requests[0]


def test_the_prefix_chooses_the_api_and_the_key_is_openais(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-openai")
    with WireServer(response("Hello.")) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.openai_url)
        assert llm_do("hi", model="openai-responses/gpt-5") == "Hello."
        assert server.headers[0]["authorization"] == "Bearer key-of-openai"
    assert isinstance(create_llm("openai/gpt-5"), OpenAILLM)
    assert isinstance(create_llm("gpt-5"), OpenAILLM)


def test_nothing_is_stored_and_reasoning_is_asked_for_in_full() -> None:
    body = sent_by(HELLO)
    assert (body["model"], body["store"], body["include"]) == ("gpt-5", False, ["reasoning.encrypted_content"])
    assert body["input"] == [{"role": "user", "content": "hello"}]
    assert not {"tools", "stream", "text"} & body.keys()


@pytest.mark.parametrize(
    "model", ["gpt-4o", "gpt-4.1-mini", "gpt-5-chat-latest", "gpt-5.2-chat-latest", "ft:gpt-4o:o::x"]
)
def test_a_model_without_reasoning_is_not_asked_for_it(model: str) -> None:
    assert "include" not in sent_by(HELLO, model=model)


def test_what_the_user_asked_to_be_included_stays() -> None:
    body = sent_by(HELLO, include=["file_search_call.results"])
    assert body["include"] == ["file_search_call.results", "reasoning.encrypted_content"]
    assert "include" not in sent_by(HELLO, store=True)


def test_options_of_chat_completions_work_here_too() -> None:
    choice = {"type": "function", "function": {"name": "add"}}
    body = sent_by(HELLO, [ADD], max_tokens=50, tool_choice=choice, reasoning={"effort": "low"})
    assert body["max_output_tokens"] == 50 and "max_tokens" not in body
    assert body["tool_choice"] == {"type": "function", "name": "add"}
    assert body["reasoning"] == {"effort": "low"}
    body = sent_by(HELLO, None, tool_choice=choice, parallel_tool_calls=False)
    assert not {"tool_choice", "parallel_tool_calls"} & body.keys()


def test_tools_are_flat_and_not_strict_and_the_users_own_join_them() -> None:
    with WireServer(response("ok")) as server:
        llm_at(server, tools=[{"type": "web_search"}]).complete(HELLO, [ADD])
    body = server.requests[0]
    assert body["tools"] == [
        {"type": "function", "strict": False, "name": "add", "description": "Add.", "parameters": {"type": "object"}},
        {"type": "web_search"},
    ]


def test_a_structured_answer_is_asked_for_by_text_format() -> None:
    body = sent_by(HELLO, output=Person, text={"verbosity": "low"})
    form = body["text"]["format"]
    assert (form["type"], form["name"], form["strict"]) == ("json_schema", "Person", True)
    assert form["schema"]["additionalProperties"] is False
    assert body["text"]["verbosity"] == "low"


def test_llm_do_reads_a_structured_answer() -> None:
    with WireServer(response(reasoning(), '{"name": "Ada"}')) as server:
        assert llm_do("who?", output=Person, llm=llm_at(server)) == Person(name="Ada")


def test_messages_become_items() -> None:
    pixel = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}}
    messages: list[Any] = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "Look."}, pixel, {"type": "input_audio"}]},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "see it", "arguments": '{"a":1}'}}]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "Here."}, pixel]},
        {"role": "tool", "tool_call_id": "gone", "content": "nobody asked"},
        {"role": "assistant", "content": ""},
    ]  # fmt: skip
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"}
    left_out = {"type": "input_text", "text": "[a part of type 'input_audio' is left out]"}
    assert to_wire(messages, GPT, False) == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "input_text", "text": "Look."}, image, left_out]},
        {"role": "assistant", "content": "Let me see."},
        {"type": "function_call", "call_id": "c1", "name": "see_it", "arguments": '{"a":1}'},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "Here."}, image]},
    ]


@pytest.mark.parametrize("mode", MODES)
def test_pitfall_38_reasoning_goes_back_as_it_came_before_its_call(mode: str) -> None:
    items = (reasoning(), ("c1", "add", '{"a":1}'))
    first = answer_to(response(*items), mode)
    history = [*HELLO, assistant_message(first), {"role": "tool", "tool_call_id": "c1", "content": "2"}]
    sent = sent_by(history, [ADD])["input"]
    body = response_body(*items)["output"]
    assert sent[1:3] == body
    assert sent[3] == {"type": "function_call_output", "call_id": "c1", "output": "2"}


def test_pitfall_38_a_changed_answer_goes_back_without_its_reasoning() -> None:
    answer = assistant_message(answer_to(response(reasoning(), ("c1", "add", "{}"), "Wait.")))
    answer["content"] = "Changed."
    sent = to_wire(moved([*HELLO, answer, {"role": "tool", "tool_call_id": "c1", "content": "2"}]), GPT, False)
    assert [item.get("type", item.get("role")) for item in sent[1:]] == [
        "assistant", "function_call", "function_call_output"
    ]  # fmt: skip


def test_pitfall_38_reasoning_that_nobody_can_read_stays_away() -> None:
    answer = answer_to(response(reasoning(encrypted=None), "Yes."))
    history = [*HELLO, assistant_message(answer)]
    assert [item.get("type") for item in to_wire(moved(history), GPT, False)[1:]] == ["message"]
    assert [item.get("type") for item in to_wire(moved(history), GPT, True)[1:]] == ["reasoning", "message"]


def test_pitfall_38_reasoning_with_nothing_behind_it_stays_away() -> None:
    answer = answer_to(response("Yes.", reasoning("rs_2")))
    history = [*HELLO, assistant_message(answer)]
    assert [item.get("type") for item in to_wire(moved(history), GPT, False)[1:]] == ["message"]


def test_a_conversation_goes_over_to_other_wires_and_back() -> None:
    answer = assistant_message(answer_to(response(reasoning(), ("call_x", "add", '{"a":1}'))))
    history: list[Any] = [*HELLO, answer, {"role": "tool", "tool_call_id": "call_x", "content": "2"}]
    with WireServer(chat("On chat.")) as server:
        OpenAILLM("gpt-4o", api_key="k", base_url=server.openai_url).complete(history, [ADD])
        assert "rs_1" not in str(server.requests[0])
        assert server.requests[0]["messages"][1]["tool_calls"][0]["id"] == "call_x"
    with WireServer(message({"type": "thinking", "thinking": "Hm.", "signature": "s"}, "On messages.")) as server:
        claude = AnthropicLLM("claude-sonnet-4-5", api_key="k", base_url=server.url).complete(history, [ADD])
        assert "rs_1" not in str(server.requests[0])
    history += [assistant_message(claude), {"role": "user", "content": "and now?"}]
    sent = sent_by(history, [ADD])["input"]
    assert [item.get("type", item.get("role")) for item in sent] == [
        "user", "reasoning", "function_call", "function_call_output", "assistant", "user"
    ]  # fmt: skip
    assert sent[4] == {"role": "assistant", "content": "On messages."}


@pytest.mark.parametrize("mode", MODES)
def test_an_answer_is_read(mode: str) -> None:
    told: list[str] = []
    usage = {"input_tokens": 1000, "input_tokens_details": {"cached_tokens": 800}, "output_tokens": 10}
    answer = answer_to(response(reasoning(), "Hello you.", usage=usage), mode, told)
    assert (answer.content, answer.tool_calls, answer.finish_reason) == ("Hello you.", None, "completed")
    assert answer.model == "model-as-served"
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.cached_tokens, answer.usage.output_tokens) == (1000, 800, 10)
    assert answer.usage.cost == pytest.approx((200 * 1.25 + 800 * 0.125 + 10 * 10) / 1e6)
    assert mode == "plain" or "".join(told) == "Hello you."


def test_plain_answers_keep_nothing_and_a_phase_is_kept() -> None:
    assert answer_to(response("Hi.", ("c1", "add", "{}"))).provider_data is None
    said = {**response_body("Looking.")["output"][0], "phase": "commentary"}
    kept = answer_to(response(said, ("c1", "add", "{}"))).provider_data
    assert kept is not None and kept["items"][0]["phase"] == "commentary"


@pytest.mark.parametrize("mode", MODES)
def test_a_refusal_is_told_as_one(mode: str) -> None:
    told: list[str] = []
    refused = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No, sorry."}]}
    answer = answer_to(response(refused), mode, told)
    assert (answer.content, answer.finish_reason) == ("No, sorry.", "refusal")
    assert mode == "plain" or "".join(told) == "No, sorry."


@pytest.mark.parametrize("mode", MODES)
def test_a_cut_answer_tells_why(mode: str) -> None:
    cut = response("Half an", status="incomplete", why="max_output_tokens")
    assert answer_to(cut, mode).finish_reason == "max_output_tokens"
    call = {**response_body(("c1", "add", "{}"))["output"][0], "status": "incomplete"}
    calls = answer_to(response(call, status="incomplete", why="max_output_tokens"), mode).tool_calls
    assert calls is not None and "not complete" in str(calls[0].error)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (response_body(reasoning(), status="incomplete", why="max_output_tokens"), "length"),
        (response_body(status="incomplete", why="content_filter"), "content_filter"),
        (response_body(reasoning()), "empty"),
        (response_body(status="failed", error={"code": "rate_limit_exceeded", "message": "Slow down."}), "rate_limit"),
        (response_body(status="failed", error={"code": "server_error", "message": "Sorry."}), "server"),
    ],
)
def test_what_is_no_answer_is_an_error(body: dict[str, Any], kind: str, mode: str) -> None:
    assert error_of(response_stream(body) if mode == "stream" else Answer(body), mode).kind == kind


def test_an_answer_in_another_form_is_an_error() -> None:
    assert error_of(chat("This is chat.")).kind == "bad_response"
    assert error_of(Answer({})).kind == "bad_response"


def test_a_cut_stream_is_an_error_and_so_is_an_error_inside() -> None:
    body = response_body("Hello you.")
    assert error_of(response_stream(body, whole=False), "stream").kind == "stream"
    assert error_of(response_stream(body, whole=False, cut=True), "stream").kind == "connection"
    told = 'data: {"type": "error", "code": "rate_limit_exceeded", "message": "Too much."}\n\n'
    error = error_of(Answer(text=told), "stream")
    assert error.kind == "rate_limit" and "Too much." in str(error)


def test_a_last_event_without_the_items_is_met() -> None:
    body = response_body("Hello", ("c1", "add", '{"a":1}'))
    answer = response_stream(body, whole=False)
    answer.text = str(answer.text) + 'data: {"type": "response.completed", "response": {"status": "completed"}}\n\n'
    with WireServer(answer) as server:
        found = llm_at(server).stream(HELLO, on_text=str)
    assert found.content == "Hello" and found.tool_calls is not None and found.tool_calls[0].arguments == {"a": 1}


@pytest.mark.parametrize("mode", MODES)
def test_a_custom_call_is_run_and_goes_back_as_it_came(mode: str) -> None:
    custom = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c1", "name": "shell", "input": "ls -l"}
    bodies = [response_body(custom), response_body("Done.")]
    ran: list[str] = []
    with WireServer(*(response_stream(body) if mode == "stream" else Answer(body) for body in bodies)) as server:
        shell = Tool("shell", "Run.", {"type": "object", "properties": {"input": {"type": "string"}}}, _noting(ran))
        agent = Agent("a", [shell], llm=llm_at(server), log=False, quiet=True, stream=mode == "stream")
        assert agent.input("list") == "Done."
    assert ran == ["ls -l"]
    assert server.requests[1]["input"][1:] == [
        custom, {"type": "custom_tool_call_output", "call_id": "c1", "output": "2 files"}
    ]  # fmt: skip


def _noting(ran: list[str]) -> Any:
    def shell(input: str) -> str:
        ran.append(input)
        return "2 files"

    return shell


def test_a_resumed_session_sends_the_reasoning_again(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path))
    first, answers = response_body(reasoning(), "Forty-two."), []
    with WireServer(Answer(first), response("As I said.")) as server:
        agent = Agent("thinker", llm=llm_at(server), quiet=True)
        answers.append(agent.input("Think."))
        again = Agent("thinker", llm=llm_at(server), quiet=True)
        again.resume(agent.record)
        answers.append(again.input("And?"))
    assert answers == ["Forty-two.", "As I said."]
    assert server.requests[1]["input"][1:3] == first["output"]
