"""Answers that are refused, filtered, failed or empty: the provider's words, odd shapes, and who else may answer."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from stopped_answers import llm_at
from wire_server import (
    Answer,
    WireServer,
    block_events,
    chat,
    chat_stream,
    completion,
    finish,
    message,
    message_body,
    message_stream,
    response,
    response_body,
    text_events,
    tool_use,
)

from connectagent import (
    Agent,
    LLMResponse,
    OutputError,
    ProviderError,
    Retry,
    ToolCall,
    before_llm,
    llm_do,
    on_error,
)
from connectagent.testing import ScriptedLLM, call, replayed


@dataclass
class Report:
    """A report, all of whose fields have defaults."""

    title: str = "untitled"
    pages: int = 0


DETAILS = {"type": "refusal", "category": "cyber", "explanation": "It could do harm."}
FILTERS = {"hate": {"filtered": True, "severity": "high"}, "violence": {"filtered": False, "severity": "safe"}}
UPSTREAM = {"code": 502, "message": "The upstream provider broke off."}
PAY = [{"index": 0, "id": "c1", "type": "function", "function": {"name": "pay", "arguments": '{"usd": 5}'}}]


def choice(finish: str | None, **more: Any) -> dict[str, Any]:
    """A plain answer with keys beside its message; `message` has more of that."""
    body = completion({"role": "assistant", "content": "Half an", **more.pop("message", {})}, finish)
    body["choices"][0] |= more
    return body


def ended(reason: str, **more: Any) -> dict[str, Any]:
    """The last chunk of a stream, with keys beside its reason."""
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": reason, **more}]}


def refused_stream(*events: dict[str, Any]) -> Answer:
    """A stream that ends with a refusal and its details."""
    made = message_stream(*events, stop="refusal")
    reason = '"stop_reason": "refusal"'
    made.text = str(made.text).replace(reason, f'{reason}, "stop_details": {json.dumps(DETAILS)}')
    return made


# What comes, the kind of the error, its reason, and the provider's words in it.
WORDS: dict[str, tuple[str, Answer, str, str | None, str]] = {
    "refusal after text": (
        "anthropic", Answer({**message_body("Well, ", stop="refusal"), "stop_details": DETAILS}),
        "refusal", "refusal", "refused to answer: cyber: It could do harm.",
    ),
    "refusal after text, streamed": (
        "anthropic", refused_stream(*text_events(0, "Well, ")),
        "refusal", "refusal", "refused to answer: cyber: It could do harm.",
    ),
    "refusal with a call": (
        "anthropic", Answer({**message_body(tool_use("t", "pay", usd=5), stop="refusal"), "stop_details": None}),
        "refusal", "refusal", "the model refused to answer",
    ),
    "refusal in words with a call": (
        "chat", chat(None, calls=[("c1", "pay", '{"usd": 5}')], refusal="I will not pay."),
        "refusal", "refusal", "refused to answer: I will not pay.",
    ),
    "refusal in words with a call, Responses": (
        "responses",
        response({"type": "message", "content": [{"type": "refusal", "refusal": "No."}]}, ("c1", "pay", '{"usd": 5}')),
        "refusal", "refusal", "refused to answer: No.",
    ),
    "filters of Azure": (
        "chat", Answer(choice("content_filter", content_filter_results=FILTERS)),
        "content_filter", "content_filter", "held the answer back: hate (high)",
    ),
    "filters of Azure, streamed": (
        "chat", chat_stream(
            {"content": "Half an"},
            ended("content_filter", content_filter_results=FILTERS),
        ), "content_filter", "content_filter", "held the answer back: hate (high)",
    ),
    "an error beside half a text": (
        "chat", Answer(choice("error", error=UPSTREAM)), "server", "error", "The upstream provider broke off.",
    ),
    "an error beside a call": (
        "chat", Answer(choice("error", error=UPSTREAM, message={"content": None, "tool_calls": PAY})),
        "server", "error", "The upstream provider broke off.",
    ),
    "an error beside a call, streamed": (
        "chat", chat_stream(
            {"tool_calls": PAY}, ended("error", error=UPSTREAM),
        ), "server", "error", "The upstream provider broke off.",
    ),
    "an error whose kind its code tells": (
        "chat", Answer(choice("error", error={"code": 429, "message": "Slow down."})),
        "rate_limit", "error", "Slow down.",
    ),
    "an error without words": (
        "chat", Answer(choice("error")), "server", "error", "failed inside the answer; it began 'Half an'",
    ),
    "an error beside good choices": (
        "chat", Answer({**choice("stop"), "error": UPSTREAM}), "server", None, "The upstream provider broke off.",
    ),
    "a failure that only the native reason tells": (
        "chat", Answer(choice("stop", native_finish_reason="network_error", message={"content": ""})),
        "server", "network_error", "lost its own connection",
    ),
    "a good reason behind a bad one": (
        "chat", chat_stream({"content": "Half an"}, finish("content_filter"), finish("stop")),
        "content_filter", "content_filter", "held the answer back",
    ),
    "reasoning only": ("chat", chat(None, reasoning_content="Hm."), "empty", "stop", "neither a text nor a call"),
    "reasoning only, streamed": (
        "chat", chat_stream({"reasoning_content": "Hm."}, {"content": ""}, finish()),
        "empty", "stop", "neither a text nor a call",
    ),
    "thinking only, in parts": (
        "chat", chat([{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}]),
        "empty", "stop", "neither a text nor a call",
    ),
    "thinking only": (
        "anthropic", message({"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}),
        "empty", "end_turn", "neither a text nor a call",
    ),
    "no blocks": ("anthropic", message(), "empty", "end_turn", "neither a text nor a call"),
    "no blocks, streamed": ("anthropic", message_stream(), "empty", "end_turn", "neither a text nor a call"),
    "a message without text": (
        "responses", response({"type": "message", "content": []}), "empty", "completed", "neither a text nor a call",
    ),
    "a status is missing": (
        "responses", Answer({**response_body(("c1", "pay", '{"usd": 5}')), "status": None}),
        "bad_response", "not_given", "not known to be good: not_given",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WORDS)
def test_an_answer_that_cannot_be_used_is_an_error_with_the_providers_words(name: str) -> None:
    wire, answer, kind, reason, words = WORDS[name]
    paid: list[int] = []

    def pay(usd: int = 1) -> str:
        """Pay."""
        paid.append(usd)
        return "paid"

    with WireServer(answer) as server:
        llm = llm_at(server, wire)
        agent = Agent("a", [pay], llm=llm, stream=answer.text is not None, log=False, quiet=True)
        with pytest.raises(ProviderError) as caught:
            agent.input("Hi")
    assert (caught.value.kind, caught.value.finish_reason, paid) == (kind, reason, [])
    assert words in str(caught.value) and caught.value.body and caught.value.status == 200
    assert pickle.loads(pickle.dumps(caught.value)).finish_reason == reason
    (entry,) = [entry for entry in agent.session["trace"] if entry["type"] == "llm_call"]
    assert (entry["status"], entry.get("finish_reason")) == ("error", reason)
    assert agent.session["messages"][-1]["role"] == "user"  # the conversation can go on


def test_what_is_neither_text_nor_call_may_be_an_answer() -> None:
    sound = chat(None, audio={"id": "audio_1", "data": "AAAA", "transcript": "Hello."})
    searched = message({"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}})
    for wire, answer in (("chat", sound), ("anthropic", searched)):
        with WireServer(answer) as server:
            agent = Agent("a", llm=llm_at(server, wire), log=False, quiet=True)
            assert (agent.input("Hi"), agent.session["outcome"]) == ("", "answered")


def test_a_stream_of_deltas_whose_blocks_never_began_keeps_its_text() -> None:
    deltas = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "Hm."}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Hel"}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "lo."}},
    ]
    told: list[str] = []
    with WireServer(message_stream(*deltas)) as server:
        response = llm_at(server, "anthropic").stream([{"role": "user", "content": "Hi"}], on_text=told.append)
    assert (response.content, told) == ("Hello.", ["Hel", "lo."])


@pytest.mark.parametrize("stream", [False, True])
def test_a_malformed_form_is_no_object_of_defaults(stream: bool) -> None:
    written = '{"title": "Report" "pages": 3}'
    events = block_events(0, tool_use("t", "Report"), {"type": "input_json_delta", "partial_json": written})
    bad = message_stream(*events, stop="tool_use")
    options = {} if stream else {"max_tokens": 30_000}  # above which the adapter streams by itself
    with WireServer(bad) as server:
        llm = llm_at(server, "anthropic").with_options(options)
        agent = Agent("a", llm=llm, stream=stream, output_retries=1, log=False, quiet=True)
        with pytest.raises(OutputError, match="JSON") as caught:
            agent.input("Hi", output=Report)
        assert "Report" in str(caught.value) and len(server.requests) == 2
        with pytest.raises(OutputError, match="JSON"):
            llm_do("Hi", Report, llm=llm.with_options({"max_tokens": 30_000}))
    fixed = block_events(0, tool_use("t", "Report"), {"type": "input_json_delta", "partial_json": '{"title": "Yes"}'})
    with WireServer(bad, message_stream(*fixed, stop="tool_use")) as server:
        agent = Agent("a", llm=llm_at(server, "anthropic").with_options(options), stream=stream, log=False, quiet=True)
        assert agent.input("Hi", output=Report) == Report("Yes")
    assert "JSON" in str(server.requests[1]["messages"][-1])


# -- models of one's own, and handlers -------------------------------------------------------------


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        (LLMResponse("Half", finish_reason="content_filter"), "content_filter"),
        (LLMResponse("", [ToolCall("c", "pay", {"usd": 5})], finish_reason="error"), "server"),
        (LLMResponse("", [ToolCall("c", "pay", {"usd": 5})], finish_reason="brand_new"), "bad_response"),
        (LLMResponse("No.", [ToolCall("c", "pay", {"usd": 5})], finish_reason="refusal"), "refusal"),
    ],
)
def test_a_model_of_ones_own_has_the_same_rules(response: LLMResponse, kind: str) -> None:
    paid: list[int] = []

    def pay(usd: int = 1) -> None:
        """Pay."""
        paid.append(usd)

    agent = Agent("a", [pay], llm=ScriptedLLM(response), log=False, quiet=True)
    with pytest.raises(ProviderError) as caught:
        agent.input("Hi")
    assert (caught.value.kind, paid) == (kind, [])


@pytest.mark.parametrize(
    ("reason", "outcome", "whole"),
    [
        (None, "answered", True), ("STOP", "answered", True), ("refusal", "refused", False),
        ("max_tokens", "truncated", False), ("brand_new", "truncated", False),
    ],
)  # fmt: skip
def test_a_text_of_ones_own_model_has_its_outcome(reason: str | None, outcome: str, whole: bool) -> None:
    response = LLMResponse("Text.", finish_reason=reason)
    agent = Agent("a", llm=ScriptedLLM(response, response, response), log=False, quiet=True)
    assert (agent.input("Hi"), agent.session["outcome"], response.whole) == ("Text.", outcome, whole)
    if whole:
        assert llm_do("Hi", llm=agent.llm) == "Text."
    else:
        with pytest.raises(ProviderError, match="Text"):
            llm_do("Hi", llm=agent.llm)


def test_a_handler_answers_for_what_it_gives() -> None:
    @before_llm
    def stand_in() -> LLMResponse:
        return LLMResponse("Held back.", finish_reason="content_filter")

    agent = Agent("a", llm=ScriptedLLM(), on_events=[stand_in], log=False, quiet=True)
    assert (agent.input("Hi"), agent.session["outcome"]) == ("Held back.", "answered")


def test_on_error_may_stand_in_for_a_refused_answer() -> None:
    @on_error
    def tell(error: Exception) -> str | None:
        return "Not this." if isinstance(error, ProviderError) and error.finish_reason == "refusal" else None

    with WireServer(message("Well, ", stop="refusal")) as server:
        agent = Agent("a", llm=llm_at(server, "anthropic"), on_events=[tell], log=False, quiet=True)
        assert (agent.input("Hi"), agent.session["outcome"]) == ("Not this.", "answered")


def test_a_cut_answer_to_llm_do_in_a_tool_is_asked_for_elsewhere(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)

    @on_error
    def elsewhere(error: Exception, tool_call: Any) -> Retry | None:
        return Retry(model=ScriptedLLM("All of it.")) if tool_call is None else None

    with WireServer(chat("Half of", finish="length")) as server:
        inner = llm_at(server, "chat")

        def read() -> str:
            """Read."""
            return llm_do("Read.", llm=inner)

        script = (call("read"), "Done.")
        agent = Agent("a", [read], llm=ScriptedLLM(*script), on_events=[elsewhere], quiet=True)
        agent.input("Hi")
    (entry,) = [entry for entry in agent.session["trace"] if entry["type"] == "tool_execution"]
    assert entry["result"] == "All of it."
    assert replayed(str(agent.record), Agent("a", [read], llm=ScriptedLLM(), on_events=[elsewhere], quiet=True)).same


def test_the_tokens_of_an_answer_that_cannot_be_used_are_counted() -> None:
    with WireServer(chat('{"title": "Rep', finish="length")) as server:
        agent = Agent("a", llm=llm_at(server, "chat"), log=False, quiet=True)
        with pytest.raises(ProviderError) as caught:
            agent.input("Hi", output=Report)
    assert caught.value.usage.input_tokens == 10 and agent.spent.calls == 1 and agent.total_cost > 0


def test_a_record_of_an_older_version_is_replayed_as_it_was(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)

    def work() -> str:
        """Work."""
        return "worked"

    stop = LLMResponse(None, [ToolCall("c", "work", {})], finish_reason="tool_calls")
    agent = Agent("a", [work], llm=ScriptedLLM(stop, LLMResponse("Done.", finish_reason="stop")), quiet=True)
    agent.input("Hi")
    record = Path(str(agent.record))
    text = record.read_text("utf-8")
    old = text.replace('"finish_reason": "tool_calls"', '"finish_reason": "content_filter"')
    assert old != text
    record.write_text(old, "utf-8")
    assert replayed(str(record)).same  # that call ran then
