"""OpenAI's wire over real HTTP: lines 1 to 21 of PITFALLS.md, each by its number, and what else must hold."""

from __future__ import annotations

from typing import Any

import pytest
from wire_server import Answer, WireServer, chat, chat_stream, completion, finish, usage_chunk

from connectagent.data import LLMResponse
from connectagent.errors import ProviderError
from connectagent.models.openai import OpenAILLM
from connectagent.models.openai_messages import to_wire
from connectagent.models.origin import Origin
from connectagent.session.messages import assistant_message

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    },
}
PIXEL = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
HELLO: list[Any] = [{"role": "user", "content": "hello"}]


def llm_at(server: WireServer, model: str = "gpt-4o", provider: str = "openai", **options: Any) -> OpenAILLM:
    return OpenAILLM(model, provider=provider, api_key="test-key-1", base_url=server.openai_url, options=options)


def answer_to(*answers: Answer, provider: str = "openai") -> LLMResponse:
    """The response for these answers of the server, plain."""
    with WireServer(*answers) as server:
        return llm_at(server, provider=provider).complete(HELLO, [ADD])


def streamed(*chunks: Any, provider: str = "openai", **how: Any) -> tuple[LLMResponse, list[str]]:
    pieces: list[str] = []
    with WireServer(chat_stream(*chunks, **how)) as server:
        return llm_at(server, provider=provider).stream(HELLO, [ADD], on_text=pieces.append), pieces


def at(provider: str) -> Origin:
    """A model of a provider."""
    return Origin(provider, "example.com", "a-model")


def calls_of(response: LLMResponse) -> list[tuple[str, str, dict[str, Any]]]:
    return [(call.id, call.name, call.arguments) for call in response.tool_calls or []]


def call(id: str, name: str = "add", arguments: Any = "{}") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def delta(index: int | None, id: str | None = None, name: str | None = None, arguments: Any = "") -> dict[str, Any]:
    one: dict[str, Any] = {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
    if index is not None:
        one["index"] = index
    return {"tool_calls": [one]}


# --------------------------------------------------------------------------------------------- sending


def test_pitfall_01_a_result_without_its_call_is_left_out() -> None:
    cut: list[Any] = [{"role": "tool", "tool_call_id": "gone", "content": "4"}, *HELLO]
    assert to_wire(cut, at("openai")) == HELLO


def test_pitfall_01_every_result_of_a_round_is_sent_behind_its_call() -> None:
    history: list[Any] = [
        {"role": "assistant", "content": None, "tool_calls": [call("a"), call("b")]},
        {"role": "tool", "tool_call_id": "b", "content": "2"},
        {"role": "tool", "tool_call_id": "a", "content": "1"},
    ]
    assert [message.get("tool_call_id") for message in to_wire(history, at("openai"))] == [None, "b", "a"]


def test_pitfall_02_arguments_go_back_as_a_string_and_empty_lists_not_at_all() -> None:
    history: list[Any] = [
        {"role": "assistant", "content": "hm", "tool_calls": []},
        {"role": "assistant", "content": "", "tool_calls": [call("a", arguments={"a": 1})]},
        {"role": "tool", "tool_call_id": "a", "content": "1"},
    ]
    with WireServer(chat("ok")) as server:
        llm_at(server, tool_choice="auto", parallel_tool_calls=False).complete(history, [])
    body = server.requests[0]
    assert body["messages"][0] == {"role": "assistant", "content": "hm"}
    assert body["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"a":1}'
    assert not body.keys() & {"tools", "tool_choice", "parallel_tool_calls"}


@pytest.mark.parametrize(
    ("content", "sent"),
    [
        (None, ""),
        ({"n": 1}, '{"n":1}'),
        ([{"n": 1}, {"n": 2}], '{"n":1}\n{"n":2}'),
        ([{"type": "text", "text": "one"}, "two"], "one\ntwo"),
        ([], "[]"),
        (7, "7"),
    ],
)
def test_pitfall_03_the_content_of_a_tool_message_is_a_string(content: Any, sent: str) -> None:
    history: list[Any] = [
        {"role": "assistant", "content": None, "tool_calls": [call("a")]},
        {"role": "tool", "tool_call_id": "a", "content": content},
    ]
    assert to_wire(history, at("openai"))[1] == {"role": "tool", "tool_call_id": "a", "content": sent}


def test_pitfall_03_images_of_results_go_into_one_user_message_behind_the_round() -> None:
    history: list[Any] = [
        {"role": "assistant", "content": None, "tool_calls": [call("a"), call("b")]},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "here"}, PIXEL]},
        {"role": "tool", "tool_call_id": "b", "content": [PIXEL]},
        {"role": "user", "content": "and?"},
    ]
    wire = to_wire(history, at("openai"))
    assert [message["role"] for message in wire] == ["assistant", "tool", "tool", "user", "user"]
    assert wire[1]["content"] == "here"
    assert "image" in wire[2]["content"]
    assert wire[3]["content"] == [PIXEL, PIXEL]


def test_pitfall_04_names_in_the_history_are_made_fit() -> None:
    history: list[Any] = [{"role": "assistant", "content": None, "tool_calls": [call("a", "mcp.tool " + "x" * 80)]}]
    name = to_wire(history, at("openai"))[0]["tool_calls"][0]["function"]["name"]
    assert name == ("mcp_tool_" + "x" * 80)[:64]


def test_pitfall_05_a_strict_schema_closes_every_object_and_requires_all() -> None:
    from pydantic import BaseModel

    from connectagent.models.output_forms import OutputForm, response_format
    from connectagent.models.strict_schemas import OPENAI

    class Author(BaseModel):
        name: str
        born: int | None = None

    class Book(BaseModel):
        title: str
        authors: list[Author] = []

    class Free(BaseModel):
        counts: dict[str, int]

    form = response_format(OutputForm.of(Book).by("strict"), OPENAI)["json_schema"]
    assert form["strict"] is True
    for schema in (form["schema"], form["schema"]["$defs"]["Author"]):
        assert schema["additionalProperties"] is False
        assert schema["required"] == list(schema["properties"])
    assert response_format(OutputForm.of(Free).by("strict"), OPENAI)["json_schema"]["strict"] is False


def test_pitfall_06_mistral_gets_its_own_ids_unchanged_and_others_as_nine_alphanumerics() -> None:
    history: list[Any] = [
        {"role": "assistant", "content": None, "tool_calls": [call("wyFNfgjhN"), call("call_of_openai_1")]},
        {"role": "tool", "tool_call_id": "wyFNfgjhN", "content": "1"},
        {"role": "tool", "tool_call_id": "call_of_openai_1", "content": "2"},
        {"role": "user", "content": "go on"},
    ]
    wire = to_wire(history, at("mistral"))
    ids = [item["id"] for item in wire[0]["tool_calls"]]
    assert ids[0] == "wyFNfgjhN"
    assert len(ids[1]) == 9 and ids[1].isalnum()
    assert [message["tool_call_id"] for message in wire[1:3]] == ids
    assert wire == to_wire(history, at("mistral"))
    assert [message["role"] for message in wire] == ["assistant", "tool", "tool", "assistant", "user"]


def test_pitfall_06_ids_that_a_provider_gave_are_never_rewritten() -> None:
    history: list[Any] = []
    for _ in range(2):  # Kimi counts from 0 in every round
        history.append({"role": "assistant", "content": None, "tool_calls": [call("0"), call("functions.add:1")]})
        history += [{"role": "tool", "tool_call_id": id, "content": "1"} for id in ("0", "functions.add:1")]
    wire = to_wire(history, at("openrouter"))
    assert [item["id"] for message in wire for item in message.get("tool_calls", [])] == ["0", "functions.add:1"] * 2


@pytest.mark.parametrize(
    ("model", "key"),
    [
        ("gpt-5-mini", "max_completion_tokens"),
        ("o3", "max_completion_tokens"),
        ("codex-mini-latest", "max_completion_tokens"),
        ("ft:gpt-5-mini-2025-08-07:org::abc", "max_completion_tokens"),
        ("ft:o4-mini-2025-04-16:org::abc", "max_completion_tokens"),
        ("gpt-4o", "max_tokens"),
        ("ft:gpt-4o-mini-2024-07-18:org::abc", "max_tokens"),
    ],
)
def test_pitfall_07_only_what_the_user_set_is_sent(model: str, key: str) -> None:
    with WireServer(chat("ok")) as server:
        llm_at(server, model).complete(HELLO)
        llm_at(server, model, max_tokens=7, timeout_s=9, extra_body={"x": 1}).complete(HELLO)
    assert server.requests[0].keys() == {"model", "messages"}
    assert server.requests[1] == {"model": model, "messages": HELLO, key: 7, "x": 1}


@pytest.mark.parametrize("broken", ['{"a": ', "[1]", '"a"', "{'a': 1}", '{"a": NaN}'])
def test_pitfall_08_broken_arguments_go_back_as_an_empty_object(broken: str) -> None:
    history: list[Any] = [{"role": "assistant", "content": None, "tool_calls": [call("a", arguments=broken)]}]
    assert to_wire(history, at("ollama"))[0]["tool_calls"][0]["function"]["arguments"] == "{}"


def test_messages_that_need_no_change_are_passed_on_as_they_are() -> None:
    history: list[Any] = [
        {"role": "system", "content": "be brief"},
        *HELLO,
        {"role": "assistant", "content": "hi"},
    ]
    assert all(sent is message for sent, message in zip(to_wire(history, at("openai")), history, strict=True))


def test_odd_messages_become_valid_ones() -> None:
    history: list[Any] = [
        {"role": "user", "content": None, "stray": 1},
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}}, {"type": "odd"}, PIXEL]},
        {"role": "user", "content": {"some": "dict"}},
        {"role": "oracle", "content": "?"},
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": [{"type": "text", "text": "said"}], "stray": 1},
        {"role": "assistant", "tool_calls": ["?", {"function": None}]},
    ]
    wire = to_wire(history, at("openai"))
    assert wire[0] == {"role": "user", "content": ""}
    assert wire[1]["content"] == [{"type": "text", "text": "a"}, PIXEL]
    assert wire[2]["content"] == [{"type": "text", "text": '{"some":"dict"}'}]
    assert wire[3]["role"] == "user"
    assert wire[4] == {"role": "assistant", "content": "said"}
    ids = [item["id"] for item in wire[5]["tool_calls"]]
    assert len(set(ids)) == 2 and all(ids)


def test_lone_surrogates_do_not_break_the_request() -> None:
    with WireServer(chat("ok")) as server:
        llm_at(server).complete([{"role": "user", "content": "a\ud83dz and \ud83d\ude00 ä"}])
    assert server.requests[0]["messages"][0]["content"] == "a\ufffdz and 😀 ä"


# ------------------------------------------------------------------------------------------- receiving


@pytest.mark.parametrize("reason", ["stop", "", None, "tool_calls"])
def test_pitfall_09_calls_count_not_finish_reason(reason: str | None) -> None:
    response = answer_to(chat(calls=[("c1", "add", '{"a": 1}')], finish=reason))
    assert calls_of(response) == [("c1", "add", {"a": 1})]


def test_pitfall_09_cut_arguments_are_an_error_of_their_call() -> None:
    response = answer_to(chat(calls=[("c1", "add", '{"a": 1'), ("c2", "add", "{}")], finish="tool_calls"))
    assert response.tool_calls is not None
    first, second = response.tool_calls
    assert first.arguments == {} and first.error is not None and "not valid JSON" in first.error
    assert second.error is None


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, None),
        ("", None),
        ("I add.", "I add."),
        ([{"type": "thinking", "thinking": []}, {"type": "text", "text": "I add."}], "I add."),
    ],
)
def test_pitfall_10_content_next_to_calls(content: Any, text: str | None) -> None:
    assert answer_to(chat(content, calls=[("c1", "add", "{}")])).content == text


def test_pitfall_10_the_content_key_may_be_missing() -> None:
    response = answer_to(Answer(completion({"role": "assistant", "tool_calls": [call("c1")]})))
    assert response.content is None and len(response.tool_calls or []) == 1


@pytest.mark.parametrize("arguments", ["", None, "{}", " ", {}, "missing"])
def test_pitfall_11_all_forms_of_no_arguments(arguments: Any) -> None:
    one = call("c1", arguments=arguments)
    if arguments == "missing":
        del one["function"]["arguments"]
    response = answer_to(chat(calls=[one]))
    assert response.tool_calls is not None
    assert response.tool_calls[0].arguments == {} and response.tool_calls[0].error is None


@pytest.mark.parametrize("arguments", ["[1, 2]", "3", '"text"', "{", '{"a": Infinity}', [1]])
def test_pitfall_11_what_is_no_object_is_an_error_of_the_call(arguments: Any) -> None:
    response = answer_to(chat(calls=[call("c1", arguments=arguments)]))
    assert response.tool_calls is not None
    assert response.tool_calls[0].arguments == {} and response.tool_calls[0].error


def test_pitfall_12_odd_calls_are_read() -> None:
    odd = [
        {"index": 0, "id": "", "function": {"name": "add", "arguments": "{}"}},
        {"function": {"name": "add", "arguments": '{"a": 2}'}},
        {"id": "c3", "type": "custom", "custom": {"name": "shell", "input": "ls"}},
        {"id": "c3", "type": "function"},
    ]
    response = answer_to(chat(calls=odd, function_call={"name": "", "arguments": ""}))
    calls = response.tool_calls or []
    assert [one.name for one in calls] == ["add", "add", "shell", ""]
    assert len({one.id for one in calls}) == 4 and all(one.id for one in calls)
    assert [bool(one.error) for one in calls] == [False, False, False, True]
    assert calls[2].arguments == {"input": "ls"}


@pytest.mark.parametrize("choices", [[], None])
def test_pitfall_13_no_choices_with_an_error_object(choices: Any) -> None:
    body = {"choices": choices, "error": {"message": "blocked by policy", "code": "content_filter"}}
    with pytest.raises(ProviderError, match="blocked by policy") as caught:
        answer_to(Answer(body))
    assert caught.value.kind == "content_filter" and caught.value.status == 200


@pytest.mark.parametrize("body", [{}, {"choices": []}, completion(None), [], "null", "<html>hello</html>"])
def test_pitfall_13_what_is_no_answer_is_a_bad_response(body: Any) -> None:
    with pytest.raises(ProviderError) as caught:
        answer_to(Answer(body))
    assert caught.value.kind == "bad_response"


def test_pitfall_14_a_refusal_says_its_words() -> None:
    response = answer_to(chat(None, refusal="I can't help with that."))
    assert (response.content, response.finish_reason) == ("I can't help with that.", "refusal")


@pytest.mark.parametrize("content", ["", None])
@pytest.mark.parametrize(("reason", "kind"), [("length", "length"), ("content_filter", "content_filter")])
def test_pitfall_14_an_answer_without_text_is_no_good_answer(content: Any, reason: str, kind: str) -> None:
    with pytest.raises(ProviderError) as caught:
        answer_to(chat(content, finish=reason))
    assert caught.value.kind == kind


def test_pitfall_14_a_cut_text_keeps_its_finish_reason() -> None:
    response = answer_to(chat("Once upon", finish="length"))
    assert (response.content, response.finish_reason) == ("Once upon", "length")


def test_pitfall_15_reasoning_goes_back_to_its_own_provider_only() -> None:
    google = {"extra_content": {"google": {"thought_signature": "sig"}}}
    said = chat(
        None,
        calls=[{**call("c1"), **google}],
        reasoning_content="hm",
        reasoning_details=[{"type": "reasoning.encrypted", "data": "x"}],
        annotations=[],
        odd=None,
    )
    with WireServer(said, chat("ok")) as server:
        llm = llm_at(server, provider="deepseek")
        history = [*HELLO, assistant_message(llm.complete(HELLO, [ADD]))]
        history.append({"role": "tool", "tool_call_id": "c1", "content": "1"})
        llm.complete(history, [ADD])
        llm_at(server, provider="groq").complete(history, [ADD])
        OpenAILLM("gpt-4o", api_key="k", base_url=server.openai_url).complete(history, [ADD])
    own, groq, openai = (request["messages"][1] for request in server.requests[1:])
    assert own["reasoning_content"] == "hm"
    assert own["reasoning_details"] == [{"type": "reasoning.encrypted", "data": "x"}]
    assert own["tool_calls"][0]["extra_content"] == google["extra_content"]
    assert own.keys() == {"role", "content", "tool_calls", "reasoning_content", "reasoning_details"}
    for other in (groq, openai):
        assert other == {"role": "assistant", "content": None, "tool_calls": [call("c1")]}


def test_pitfall_15_openai_itself_gets_nothing_that_it_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    llm = OpenAILLM("gpt-4o", api_key="k")
    assert llm._response(completion({"content": "hi", "reasoning": "hm"})).provider_data is None


def test_pitfall_16_usage_may_be_missing_and_cached_tokens_are_inside() -> None:
    body = completion({"content": "hi"})
    assert answer_to(Answer({**body, "usage": None})).usage is None
    del body["usage"]
    assert answer_to(Answer(body)).usage is None
    counted = {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 40}}
    usage = answer_to(Answer({**body, "usage": counted})).usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.cached_tokens) == (100, 5, 40)
    assert usage.cost == pytest.approx(60 * 2.5e-6 + 40 * 1.25e-6 + 5 * 10e-6)


# --------------------------------------------------------------------------------------------- streams


def test_pitfall_17_chunks_without_choices_first_and_last() -> None:
    first = {"choices": [], "prompt_filter_results": []}
    response, pieces = streamed(first, {"content": "Hel"}, {"content": "lo"}, finish(), usage_chunk(9, 2))
    assert pieces == ["Hel", "lo"] and response.content == "Hello"
    assert response.usage is not None and response.usage.input_tokens == 9


def test_pitfall_18_calls_are_collected_by_index() -> None:
    response, _ = streamed(
        delta(0, "c1", "add", ""),
        delta(1, "c2", "add", '{"a"'),
        delta(0, None, None, '{"a": 1}'),
        delta(1, None, None, ": 2}"),
        finish("tool_calls"),
    )
    assert calls_of(response) == [("c1", "add", {"a": 1}), ("c2", "add", {"a": 2})]


def test_pitfall_18_a_repeated_id_and_name_count_once() -> None:
    response, _ = streamed(delta(0, "0", "add", ""), delta(0, "0", "add", '{"a": 1}'), provider="openrouter")
    assert calls_of(response) == [("0", "add", {"a": 1})]


def test_pitfall_18_whole_calls_without_index_or_with_one_index() -> None:
    together = [delta(None, "c1", "add", '{"a": 1}'), delta(None, "c2", "add", None)]
    response, _ = streamed(*together, finish("tool_calls"), provider="mistral")
    assert calls_of(response) == [("c1", "add", {"a": 1}), ("c2", "add", {})]
    same_index = [delta(0, "c1", "add", '{"a": 1}'), delta(0, "c2", "add", '{"a": 2}')]
    response, _ = streamed(*same_index, finish("tool_calls"), provider="gemini")
    assert [arguments for _, _, arguments in calls_of(response)] == [{"a": 1}, {"a": 2}]
    both = {"choices": [{"index": 0, "delta": delta(0, "c1", "add", "{}"), "finish_reason": "tool_calls"}]}
    response, _ = streamed(both)
    assert calls_of(response) == [("c1", "add", {})] and response.finish_reason == "tool_calls"


def test_pitfall_19_finish_reason_twice_and_usage_behind_it() -> None:
    response, _ = streamed({"content": "hi"}, finish(), finish(), usage_chunk(3, 1))
    assert response.finish_reason == "stop" and response.usage is not None


def test_pitfall_19_a_finish_reason_or_done_alone_is_a_whole_stream() -> None:
    assert streamed({"content": "hi"}, finish(), done=False)[0].content == "hi"
    assert streamed({"content": "hi"}, done=True)[0].content == "hi"


@pytest.mark.parametrize("cut", [False, True])
def test_pitfall_19_a_cut_stream_is_an_error(cut: bool) -> None:
    pieces: list[str] = []
    with (
        WireServer(chat_stream({"content": "The capital"}, done=False, cut=cut)) as server,
        pytest.raises(ProviderError) as caught,
    ):
        llm_at(server).stream(HELLO, on_text=pieces.append)
    assert caught.value.kind == ("connection" if cut else "stream")
    assert pieces == ["The capital"]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": 429, "message": "slow down"}, "rate_limit"),
        ({"code": 502, "message": "upstream broke"}, "server"),
        ({"message": "engine is overloaded"}, "overloaded"),
        ("no more", "stream"),
    ],
)
def test_pitfall_20_an_error_inside_a_stream(error: Any, kind: str) -> None:
    pieces: list[str] = []
    with (
        WireServer(chat_stream({"content": "The"}, {"error": error, "choices": []})) as server,
        pytest.raises(ProviderError) as caught,
    ):
        llm_at(server).stream(HELLO, on_text=pieces.append)
    assert (caught.value.kind, caught.value.status) == (kind, 200)
    assert (error if isinstance(error, str) else error["message"]) in str(caught.value)
    assert pieces == ["The"]


def test_pitfall_20_an_error_event_inside_a_stream() -> None:
    text = 'event: error\ndata: {"error": {"message": "Tool call failed", "code": "tool_use_failed"}}\n\n'
    with WireServer(Answer(text=text)) as server, pytest.raises(ProviderError) as caught:
        llm_at(server, provider="groq").stream(HELLO, on_text=str)
    assert caught.value.kind == "tool_use_failed"


def test_pitfall_21_comments_and_unknown_keys_are_noise() -> None:
    chunk = {"choices": [{"index": 0, "delta": {"content": "hi"}, "native_finish_reason": None}], "obfuscation": "x"}
    response, _ = streamed("OPENROUTER PROCESSING", chunk, "OPENROUTER PROCESSING", finish(), provider="openrouter")
    assert response.content == "hi" and response.provider_data is None


def test_pitfall_36_a_streamed_text_that_was_cut_is_no_exception() -> None:
    response, pieces = streamed({"content": "Once upon"}, finish("length"))
    assert (response.content, response.finish_reason, pieces) == ("Once upon", "length", ["Once upon"])


def test_streamed_reasoning_is_put_together() -> None:
    response, pieces = streamed(
        {"reasoning_content": "I "},
        {"reasoning_content": "think", "reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "I "}]},
        {"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "think", "signature": "s"}]},
        {"content": "hi", "reasoning_content": None},
        finish(),
        provider="openrouter",
    )
    assert pieces == ["hi"]
    assert response.provider_data is not None
    assert response.provider_data.pop("address").startswith("127.0.0.1:")
    assert response.provider_data == {
        "provider": "openrouter",
        "model": "gpt-4o",
        "message": {
            "reasoning_content": "I think",
            "reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "I think", "signature": "s"}],
        },
    }


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_what_on_text_raises_comes_through_as_it_is(error: type[BaseException]) -> None:
    def stop(text: str) -> None:
        raise error

    with WireServer(chat_stream({"content": "a"}, {"content": "b"}, finish()), chat("ok")) as server:
        llm = llm_at(server)
        with pytest.raises(error):
            llm.stream(HELLO, on_text=stop)
        assert llm.complete(HELLO).content == "ok"


def test_a_stream_asks_for_usage_where_the_provider_takes_that() -> None:
    with WireServer(chat_stream({"content": "hi"}, finish())) as server:
        llm_at(server).stream(HELLO, on_text=str)
        llm_at(server, provider="mistral").stream(HELLO, on_text=str)
    assert server.requests[0]["stream_options"] == {"include_usage": True}
    assert "stream_options" not in server.requests[1]


def test_native_tools_join_the_agents() -> None:
    native = {"type": "web_search"}
    with WireServer(chat("ok")) as server:
        llm_at(server, tools=[native], tool_choice="auto").complete(HELLO, [ADD])
    assert server.requests[0]["tools"] == [ADD, native]
    assert server.requests[0]["tool_choice"] == "auto"


def test_arguments_are_sent_byte_for_byte() -> None:
    raw = '{"a":   1, "b": "ä"}'
    history: list[Any] = [{"role": "assistant", "content": None, "tool_calls": [call("a", arguments=raw)]}]
    assert to_wire(history, at("openai"))[0]["tool_calls"][0]["function"]["arguments"] == raw
