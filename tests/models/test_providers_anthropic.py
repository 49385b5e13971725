"""Anthropic's wire over real HTTP: lines 4 to 6 and 22 to 30 of PITFALLS.md, each by its number, and more."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from wire_server import (
    Answer,
    WireServer,
    block_events,
    message,
    message_body,
    message_stream,
    text_events,
    tool_use,
)

from connectagent.data import LLMResponse
from connectagent.errors import ProviderError
from connectagent.models.anthropic import AnthropicLLM
from connectagent.models.anthropic_messages import to_wire, tools_to_wire
from connectagent.models.origin import Origin
from connectagent.session.messages import assistant_message

HELLO: list[Any] = [{"role": "user", "content": "hello"}]
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}
THINKING = {"type": "thinking", "thinking": "Hm.", "signature": "sig-1"}
REDACTED = {"type": "redacted_thinking", "data": "blob"}


def llm_at(server: WireServer, model: str = "claude-sonnet-4-5", **options: Any) -> AnthropicLLM:
    return AnthropicLLM(model, api_key="test-key-1", base_url=server.url, options=options)


def answer_to(*answers: Answer, **options: Any) -> LLMResponse:
    with WireServer(*answers) as server:
        return llm_at(server, **options).complete(HELLO, [ADD])


def streamed(*events: Any, **how: Any) -> tuple[LLMResponse, list[str]]:
    pieces: list[str] = []
    with WireServer(message_stream(*events, **how)) as server:
        return llm_at(server).stream(HELLO, [ADD], on_text=pieces.append), pieces


def call(id: str, name: str = "add", arguments: Any = "{}") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(id: str, content: Any = "4") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": content}


CLAUDE = Origin("anthropic", "api.anthropic.com", "claude-sonnet-4-5")


def sent(history: list[Any], origin: Origin = CLAUDE) -> list[dict[str, Any]]:
    return to_wire(history, origin)[1]


def moved(response: LLMResponse) -> dict[str, Any]:
    """The message of an answer, as if it were of Anthropic itself and not of a server on loopback."""
    answer: dict[str, Any] = dict(assistant_message(response))
    if answer.get("provider_data"):
        answer["provider_data"] = {**answer["provider_data"], "address": CLAUDE.address}
    return answer


def test_pitfall_04_names_in_the_history_are_made_fit() -> None:
    history = [*HELLO, {"role": "assistant", "tool_calls": [call("a", "mcp.add")]}]
    assert sent(history)[1]["content"][0]["name"] == "mcp_add"


def test_pitfall_05_schemas_have_no_choice_at_their_top() -> None:
    parameters = {
        "anyOf": [
            {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
            {"type": "object", "properties": {"url": {"type": "string"}}, "required": ["url"]},
        ],
        "allOf": [{"properties": {"n": {"type": "integer"}}, "required": ["n"]}],
    }
    tool = {"type": "function", "function": {"name": "load", "parameters": parameters}}
    (made,) = tools_to_wire([tool])
    schema = made["input_schema"]
    assert schema["type"] == "object" and set(schema["properties"]) == {"path", "url", "n"}
    assert schema["required"] == ["n"]
    assert not schema.keys() & {"anyOf", "oneOf", "allOf"}
    assert tools_to_wire([{"type": "function", "function": {"name": "now"}}]) == [
        {"name": "now", "input_schema": {"type": "object", "properties": {}}}
    ]


def test_pitfall_06_ids_of_other_providers_are_mapped_and_own_ones_kept() -> None:
    history = [*HELLO]
    for id in ("toolu_01", "functions.add:0", "0", "0"):
        history += [{"role": "assistant", "tool_calls": [call(id)]}, result(id)]
    wire = sent(history)
    asked = [block["id"] for one in wire for block in one["content"] if block["type"] == "tool_use"]
    answered = [block["tool_use_id"] for one in wire for block in one["content"] if block["type"] == "tool_result"]
    assert asked == answered and len(set(asked)) == 4
    assert (asked[0], asked[2]) == ("toolu_01", "0")
    assert all(id.isalnum() for id in (asked[1], asked[3]))
    assert wire == sent(history)


def test_pitfall_22_all_results_are_in_one_user_message_before_any_text() -> None:
    pixel = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    history = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call("a"), call("b")]},
        {"role": "user", "content": "too early"},
        result("b", [{"type": "text", "text": "look"}, pixel]),
        result("a"),
        result("unknown"),
        {"role": "user", "content": "go on"},
    ]
    wire = sent(history)
    assert [one["role"] for one in wire] == ["user", "assistant", "user"]
    assert [block.get("tool_use_id") or block["text"] for block in wire[2]["content"]] == [
        "b", "a", "too early", "go on",
    ]  # fmt: skip
    assert wire[2]["content"][0]["content"] == [
        {"type": "text", "text": "look"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}},
    ]


@pytest.mark.parametrize("arguments", ['{"a": 1}', {"a": 1}])
def test_pitfall_23_input_is_a_dict(arguments: Any) -> None:
    history = [*HELLO, {"role": "assistant", "tool_calls": [call("a", arguments=arguments)]}, result("a")]
    assert sent(history)[1]["content"][0]["input"] == {"a": 1}


@pytest.mark.parametrize("broken", ["", None, "{", "[1]", "NaN"])
def test_pitfall_23_broken_arguments_are_an_empty_dict(broken: Any) -> None:
    history = [*HELLO, {"role": "assistant", "tool_calls": [call("a", arguments=broken)]}, result("a")]
    assert sent(history)[1]["content"][0]["input"] == {}


def test_pitfall_23_tools_stay_in_the_request_while_the_history_has_calls() -> None:
    history = [*HELLO, {"role": "assistant", "tool_calls": [call("a")]}, result("a")]
    with WireServer(message("ok")) as server:
        llm_at(server, cache_control=False).complete(history, [])
        llm_at(server, tool_choice="auto").complete(HELLO, [])
    assert server.requests[0]["tools"] == [{"name": "add", "input_schema": {"type": "object"}}]
    assert server.requests[0]["tool_choice"] == {"type": "none"}
    assert not server.requests[1].keys() & {"tools", "tool_choice"}


def test_pitfall_24_nothing_empty_is_sent() -> None:
    history = [
        {"role": "user", "content": ""},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": [{"type": "text", "text": " "}, {"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": " ", "tool_calls": [call("a"), call("b")]},
        result("a", ""),
        result("b", []),
        {"role": "assistant", "content": "So: \n"},
    ]
    wire = sent(history)
    texts = [block["text"] for one in wire for block in one["content"] if block["type"] == "text"]
    assert all(text.strip() for text in texts)
    assert [one["role"] for one in wire] == ["user", "assistant", "user", "assistant"]
    assert wire[-1]["content"][-1]["text"] == "So:"


def test_pitfall_24_an_answer_without_content_is_not_sent_back() -> None:
    with pytest.raises(ProviderError) as caught:
        answer_to(message(stop="end_turn"))
    assert caught.value.kind == "empty"
    assert [one["role"] for one in sent([*HELLO, assistant_message(LLMResponse()), *HELLO])] == ["user"]


def thinking_round(**options: Any) -> tuple[list[dict[str, Any]], LLMResponse]:
    said = message(THINKING, REDACTED, "I add. ", tool_use("toolu_1", "add", a=1), stop="tool_use")
    with WireServer(said, message("ok")) as server:
        llm = llm_at(server, **options)
        response = llm.complete(HELLO, [ADD])
        llm.complete([*HELLO, assistant_message(response), result("toolu_1")], [ADD])
    content: list[dict[str, Any]] = server.requests[1]["messages"][1]["content"]
    return content, response


def test_pitfall_25_thinking_goes_back_as_it_came() -> None:
    content, response = thinking_round()
    assert json.dumps(content) == json.dumps(
        [THINKING, REDACTED, {"type": "text", "text": "I add. "}, tool_use("toolu_1", "add", a=1)]
    )
    assert response.content == "I add. "


def test_pitfall_25_thinking_without_text_and_unasked_is_kept() -> None:
    silent = {"type": "thinking", "thinking": "", "signature": "sig"}
    response = answer_to(message(silent, "hi"))
    assert sent([*HELLO, moved(response)])[1]["content"][0] == silent


def test_pitfall_25_an_edited_message_keeps_its_thinking_and_nothing_else_of_what_was_said() -> None:
    _, response = thinking_round()
    edited = {**moved(response), "content": "[redacted]"}
    blocks = sent([*HELLO, edited, result("toolu_1")])[1]["content"]
    assert blocks[:2] == [THINKING, REDACTED]
    assert blocks[2:] == [{"type": "text", "text": "[redacted]"}, tool_use("toolu_1", "add", a=1)]
    edited["tool_calls"] = [call("toolu_1", arguments='{"a": 99}')]
    assert sent([*HELLO, edited, result("toolu_1")])[1]["content"][3]["input"] == {"a": 99}


def test_pitfall_25_thinking_is_dropped_for_another_provider() -> None:
    _, response = thinking_round()
    history = [*HELLO, moved(response), result("toolu_1")]
    assert [block["type"] for block in sent(history)[1]["content"]] == [
        "thinking", "redacted_thinking", "text", "tool_use"
    ]  # fmt: skip
    for change in ({"provider": "other"}, {"address": "other:443"}, {"model": "claude-opus-4-5"}):
        other = replace(CLAUDE, **change)
        assert [block["type"] for block in sent(history, other)[1]["content"]] == ["text", "tool_use"]


def test_pitfall_25_streamed_thinking_is_put_together() -> None:
    response, pieces = streamed(
        *block_events(
            0,
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking_delta", "thinking": "H"},
            {"type": "thinking_delta", "thinking": "m."},
            {"type": "signature_delta", "signature": "sig-1"},
        ),
        *block_events(1, REDACTED),
        *text_events(2, "hi"),
    )
    assert pieces == ["hi"]
    assert response.provider_data is not None
    assert response.provider_data["content"][:2] == [THINKING, REDACTED]


def test_pitfall_26_system_is_a_field_and_roles_alternate() -> None:
    history: list[Any] = [
        {"role": "system", "content": "One."},
        {"role": "developer", "content": "Two."},
        {"role": "assistant", "content": "I begin."},
        {"role": "assistant", "content": "And go on."},
        {"role": "user", "content": "hi"},
        {"role": "system", "content": "Mind the time."},
    ]
    system, wire, _ = to_wire(history, CLAUDE)
    assert system == "One.\n\nTwo."
    assert [one["role"] for one in wire] == ["user", "assistant", "user"]
    assert [block["text"] for block in wire[1]["content"]] == ["I begin.", "And go on."]
    assert [block["text"] for block in wire[2]["content"]] == ["hi", "Mind the time."]


@pytest.mark.parametrize(
    ("model", "options", "limit"),
    [
        ("claude-sonnet-4-5", {}, 8192),
        ("claude-3-haiku-20240307", {}, 4096),
        ("claude-sonnet-4-5", {"max_tokens": 5}, 5),
        ("claude-sonnet-4-5", {"thinking": {"type": "enabled", "budget_tokens": 10_000}}, 18_192),
    ],
)
def test_pitfall_26_max_tokens_is_always_there(model: str, options: dict[str, Any], limit: int) -> None:
    with WireServer(message("ok")) as server:
        llm_at(server, model, temperature=0.5, **options).complete(HELLO)
    assert server.requests[0]["max_tokens"] == limit
    assert server.requests[0]["temperature"] == 0.5


def test_pitfall_26_a_high_limit_is_streamed_under_the_hood() -> None:
    with WireServer(message_stream(*text_events(0, "Hel", "lo"))) as server:
        response = llm_at(server, max_tokens=64_000).complete(HELLO)
    assert response.content == "Hello"
    assert server.requests[0]["stream"] is True


@pytest.mark.parametrize("pieces", [[""], [], ["{", "}"], ['{"a"', ": 1}"]])
def test_pitfall_27_empty_streamed_input(pieces: list[str]) -> None:
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    response, texts = streamed(
        *text_events(0, "I add."), *block_events(1, tool_use("t", "add"), *deltas), stop="tool_use"
    )
    assert response.content == "I add." and texts == ["I add."]
    assert response.tool_calls is not None
    assert response.tool_calls[0].arguments == ({"a": 1} if len(pieces) == 2 and "a" in pieces[0] else {})
    assert response.tool_calls[0].error is None


@pytest.mark.parametrize("text", ['{"a": ', "[1]", '{"a": NaN}'])
def test_pitfall_27_broken_streamed_input_is_an_error_of_the_call(text: str) -> None:
    delta = {"type": "input_json_delta", "partial_json": text}
    response, _ = streamed(*block_events(0, THINKING), *block_events(1, tool_use("t", "add"), delta), stop="tool_use")
    assert response.tool_calls is not None and response.tool_calls[0].error
    blocks = sent([*HELLO, moved(response), result("t")])[1]["content"]
    assert blocks == [THINKING, tool_use("t", "add")]


def test_pitfall_27_a_call_that_the_limit_cut_is_not_run() -> None:
    response = answer_to(message(tool_use("t", "add", a=1), stop="max_tokens"))
    assert response.tool_calls is not None and "not complete" in str(response.tool_calls[0].error)


def test_pitfall_28_the_providers_own_tools_are_not_the_clients() -> None:
    searched = [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
        {"type": "text", "text": "It is", "citations": [{"type": "web_search_result_location"}]},
        {"type": "text", "text": " so."},
    ]
    response = answer_to(message(*searched))
    assert (response.content, response.tool_calls) == ("It is so.", None)
    assert sent([*HELLO, moved(response), *HELLO])[1]["content"] == searched


def test_pitfall_28_a_pause_is_answered_by_sending_the_content_back() -> None:
    paused = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    with WireServer(message("One. ", paused, stop="pause_turn"), message("Two.")) as server:
        response = llm_at(server).complete(HELLO)
    assert server.requests[1]["messages"][1]["content"][1] == paused
    assert (response.content, response.finish_reason) == ("One. Two.", "end_turn")
    assert response.usage is not None and response.usage.input_tokens == 20


@pytest.mark.parametrize(
    ("stop", "kind"),
    [("max_tokens", "length"), ("refusal", "refusal"), ("model_context_window_exceeded", "context_length")],
)
def test_pitfall_28_an_end_without_text_is_no_good_answer(stop: str, kind: str) -> None:
    with pytest.raises(ProviderError) as caught:
        answer_to(message(stop=stop))
    assert caught.value.kind == kind and caught.value.finish_reason == stop


def test_pitfall_29_input_tokens_count_the_cached_ones() -> None:
    counted = {
        "input_tokens": 10,
        "cache_read_input_tokens": 100,
        "cache_creation_input_tokens": 1000,
        "output_tokens": 5,
        "output_tokens_details": {"new": 1},
    }
    usage = answer_to(message("hi", usage=counted)).usage
    assert usage is not None
    assert (usage.input_tokens, usage.cached_tokens, usage.cache_write_tokens) == (1110, 100, 1000)
    assert usage.cost == pytest.approx(10 * 3e-6 + 100 * 0.3e-6 + 1000 * 3.75e-6 + 5 * 15e-6)
    assert answer_to(Answer({**message_body("hi"), "usage": None})).usage is None


def test_pitfall_29_fields_of_an_answer_that_a_request_does_not_know_are_not_sent_back() -> None:
    block = {**tool_use("t", "add", a=1), "caller": {"type": "direct"}, "new": 1}
    response = answer_to(message({"type": "text", "text": "I add.", "parsed_output": None, "citations": None}, block))
    assert response.provider_data is None
    blocks = sent([*HELLO, moved(response), result("t")])[1]["content"]
    assert blocks == [{"type": "text", "text": "I add."}, tool_use("t", "add", a=1)]


@pytest.mark.parametrize(("named", "kind"), [("overloaded_error", "overloaded"), ("api_error", "server")])
def test_pitfall_30_an_error_inside_a_stream_is_told_by_its_type(named: str, kind: str) -> None:
    error = {"type": "error", "error": {"type": named, "message": "Sorry."}}
    pieces: list[str] = []
    with (
        WireServer(message_stream(*text_events(0, "The")[:2], error, whole=False)) as server,
        pytest.raises(ProviderError, match="Sorry") as caught,
    ):
        llm_at(server).stream(HELLO, on_text=pieces.append)
    assert (caught.value.kind, caught.value.status) == (kind, 200)
    assert pieces == ["The"]


@pytest.mark.parametrize(("cut", "kind"), [(False, "stream"), (True, "connection")])
def test_pitfall_30_a_stream_without_its_end_is_an_error(cut: bool, kind: str) -> None:
    with (
        WireServer(message_stream(*text_events(0, "The"), whole=False, cut=cut)) as server,
        pytest.raises(ProviderError) as caught,
    ):
        llm_at(server).stream(HELLO, on_text=str)
    assert caught.value.kind == kind


def test_streamed_calls_and_usage_are_read() -> None:
    inputs = [{"type": "input_json_delta", "partial_json": piece} for piece in ('{"a"', ": 2}")]
    response, _ = streamed(*block_events(0, tool_use("t", "add"), *inputs), stop="tool_use")
    assert response.tool_calls is not None and response.tool_calls[0].arguments == {"a": 2}
    assert response.finish_reason == "tool_use"
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (10, 7)


def test_the_beginning_of_a_cut_history_is_a_users() -> None:
    cut = [result("gone"), {"role": "assistant", "tool_calls": [call("a")]}, result("a")]
    assert [one["role"] for one in sent(cut)] == ["user", "assistant", "user"]
    assert sent([])[0]["role"] == "user"


def test_parts_of_every_kind_become_blocks() -> None:
    parts = [
        "plain",
        {"type": "text", "text": "cached", "cache_control": {"type": "ephemeral"}, "stray": 1},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
        {"type": "input_audio", "input_audio": {}},
        {"type": "image_url", "image_url": "nonsense"},
    ]
    blocks = sent([{"role": "user", "content": parts}])[0]["content"]
    assert blocks[:5] == [
        {"type": "text", "text": "plain"},
        {"type": "text", "text": "cached", "cache_control": {"type": "ephemeral"}},
        {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
    ]
    assert [block["type"] for block in blocks[5:]] == ["text", "text"]


def test_options_of_either_format_work() -> None:
    with WireServer(message("ok")) as server:
        llm = llm_at(
            server, tool_choice={"type": "function", "function": {"name": "add"}}, betas=["one-1", "two-2"],
            tools=[{"type": "web_search_20250305", "name": "web_search"}], system="Mine.",
        )  # fmt: skip
        llm.complete([{"role": "system", "content": "Theirs."}, *HELLO], [ADD])
    body = server.requests[0]
    assert body["tool_choice"] == {"type": "tool", "name": "add"}
    assert [tool["name"] for tool in body["tools"]] == ["add", "web_search"]
    assert [block["text"] for block in body["system"]] == ["Mine."]
    assert "betas" not in body and server.headers[0]["anthropic-beta"] == "one-1,two-2"


def test_what_on_text_raises_comes_through_as_it_is() -> None:
    def stop(text: str) -> None:
        raise KeyboardInterrupt

    with WireServer(message_stream(*text_events(0, "a", "b")), message("ok")) as server:
        llm = llm_at(server)
        with pytest.raises(KeyboardInterrupt):
            llm.stream(HELLO, on_text=stop)
        assert llm.complete(HELLO).content == "ok"


@pytest.mark.parametrize("body", [{}, {"content": None}, [], "null", "<html>"])
def test_what_is_no_answer_is_a_bad_response(body: Any) -> None:
    with pytest.raises(ProviderError) as caught:
        answer_to(Answer(body))
    assert caught.value.kind == "bad_response"
