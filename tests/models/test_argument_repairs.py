"""Arguments that are written around with something, or encoded twice, are read; well-formed ones never change."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from wire_server import Answer, WireServer, chat, chat_stream, finish, message, message_stream, response

from connectagent import Agent
from connectagent.models.anthropic import AnthropicLLM
from connectagent.models.argument_repairs import repaired
from connectagent.models.content import tool_call
from connectagent.models.openai import OpenAILLM
from connectagent.models.responses import ResponsesLLM

GIVEN = {"text": 'a\nb\t"c" {d}', "n": 1}
PLAIN = json.dumps(GIVEN)
RAW_BREAKS = PLAIN.replace("\\n", "\n").replace("\\t", "\t")
REPAIRED = {
    "encoded twice": json.dumps(PLAIN),
    "encoded three times": json.dumps(json.dumps(PLAIN)),
    "raw breaks": RAW_BREAKS,
    "raw breaks, encoded twice": json.dumps(RAW_BREAKS),
    "a fence": f"```json\n{PLAIN}\n```",
    "a fence without a language": f"```\n{PLAIN}```",
    "an end of a call": f"{PLAIN}\n</tool_call>",
    "a call": f"<tool_call>{PLAIN}</tool_call>",
    "a token": f"{PLAIN}<|call|>",
    "an empty object in front": "{}" + PLAIN,
    "twice": PLAIN + PLAIN,
    "a mark": "\ufeff```" + PLAIN + "```",
}
UNREADABLE = {
    "cut": PLAIN[:-4],
    "cut, encoded twice": json.dumps(PLAIN[:-4]),
    "cut in a fence": f"```json\n{PLAIN[:-4]}",
    "two objects": PLAIN + '{"n": 2}',
    "an object and a sentence": PLAIN + " and now?",
    "a number": "7",
    "a text": '"Paris"',
    "a list": f"[{PLAIN}]",
    "not JSON": "{'n': 1}",
    "a constant": '{"n": NaN}',
    "a bracket too many": PLAIN + "}",
    "encoded too often": json.dumps(json.dumps(json.dumps(json.dumps(PLAIN)))),
    "noise alone": "```json\n```",
}


@pytest.mark.parametrize("raw", REPAIRED.values(), ids=REPAIRED)
def test_arguments_are_read(raw: str) -> None:
    call = tool_call("c1", "note", raw, set(), "openai")
    assert (call.arguments, call.error, call.raw) == (GIVEN, None, None)


@pytest.mark.parametrize("raw", UNREADABLE.values(), ids=UNREADABLE)
def test_what_holds_no_certain_object_stays_unreadable(raw: str) -> None:
    call = tool_call("c1", "note", raw, set(), "openai")
    assert call.arguments == {} and call.error is not None


def answers(raw: str) -> dict[str, tuple[Any, Answer, Answer]]:
    """The wires: the class of the model, an answer with these arguments, and a text."""
    delta = {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "note", "arguments": raw}}]}
    started = {"type": "tool_use", "id": "c1", "name": "note", "input": {}}
    events = [
        {"type": "content_block_start", "index": 0, "content_block": started},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": raw}},
        {"type": "content_block_stop", "index": 0},
    ]
    return {
        "chat": (OpenAILLM, chat(calls=[("c1", "note", raw)]), chat("Done.")),
        "chat, streamed": (OpenAILLM, chat_stream(delta, finish()), chat_stream({"content": "Done."}, finish())),
        "anthropic, streamed": (AnthropicLLM, message_stream(*events, stop="tool_use"), message("Done.")),
        "responses": (ResponsesLLM, response(("c1", "note", raw)), response("Done.")),
    }


@pytest.mark.parametrize("raw", REPAIRED.values(), ids=REPAIRED)
@pytest.mark.parametrize("wire", answers(""))
def test_the_tool_runs_and_the_arguments_go_back_as_an_object(wire: str, raw: str) -> None:
    ran: list[Any] = []

    def note(text: str, n: int) -> str:
        ran.append({"text": text, "n": n})
        return "noted"

    made, asks, says = answers(raw)[wire]
    if wire == "anthropic, streamed":
        says = message_stream(
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Done."}}
        )
    with WireServer(asks, says) as server:
        llm = made("model-1", api_key="test-key-1", base_url=server.url)
        Agent("a", [note], llm=llm, stream=wire.endswith("streamed"), log=False, quiet=True).input("go")
        sent = json.dumps(server.requests[1])
    assert ran == [GIVEN]
    assert json.dumps(PLAIN)[1:-1] in sent or PLAIN in sent or json.dumps(GIVEN) in sent


@pytest.mark.parametrize(
    "name",
    ["note", "functions.note", "note<|channel|>commentary", "functions.note<|channel|>json", "note <|constrain|>json"],
)
@pytest.mark.parametrize("wire", ["chat", "chat, streamed", "responses"])
def test_a_name_with_tokens_of_harmony_is_that_of_the_tool(wire: str, name: str) -> None:
    def note(text: str, n: int) -> str:
        ran.append(text)
        return "noted"

    ran: list[str] = []
    made, asks, says = answers(PLAIN)[wire]
    named = json.loads(json.dumps(asks.body).replace('"note"', json.dumps(name)))
    text = (asks.text or "").replace('"note"', json.dumps(name)) or None
    with WireServer(Answer(named, text=text), says) as server:
        llm = made("model-1", api_key="test-key-1", base_url=server.url)
        Agent("a", [note], llm=llm, stream=wire.endswith("streamed"), log=False, quiet=True).input("go")
        assert "<|" not in json.dumps(server.requests[1])
    assert ran == [GIVEN["text"]]


@pytest.mark.parametrize("name", ["functions_note", "functions.", "a.b", "<|x|>", "functions.a b", "", "x" * 65])
def test_other_names_stay(name: str) -> None:
    assert tool_call("c1", name, "{}", set(), "openai").name == name


def test_well_formed_arguments_never_change() -> None:
    chance = random.Random(3)
    parts = ["```", "</tool_call>", "<|call|>", "{}", '"', "\\", "\n", "{", "}", '{"a": 1}', "x", "null", "\ufeff", "ß"]
    for _ in range(5_000):
        text = "".join(chance.choices(parts, k=chance.randrange(0, 6)))
        given = {chance.choice(parts): text, "n": json.dumps({"a": text}), "deep": [{"b": text}]}
        raw = json.dumps(given, ensure_ascii=chance.random() < 0.5)
        assert tool_call("c1", "note", raw, set(), "openai").arguments == given
        # what is cut is not read, wherever it was cut
        begin = raw[: chance.randrange(1, len(raw))]
        assert repaired(begin) in (None, {}) or json.loads(begin)
