"""Streamed tool calls of the Chat wire: however servers cut, number and repeat them, calls come out as they were.

What cannot be told apart comes out as a call with an error: never two calls in one, one call twice, or a call with its
tool's defaults because its arguments were lost.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
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
    tool_use,
)

from connectagent.data import LLMResponse
from connectagent.models.anthropic import AnthropicLLM
from connectagent.models.openai import OpenAILLM
from connectagent.models.responses import ResponsesLLM

NAMES = ("look", "look_up", "pay", "list_all", "get_weather")
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in NAMES]
HELLO: list[Any] = [{"role": "user", "content": "hello"}]
SEEDS = 5  # of 250 cases each
RECORDINGS = sorted((Path(__file__).parents[2] / "../shared/wire").resolve().glob("*chat*.json"))

Delta = dict[str, Any]
Call = tuple[str, dict[str, Any]]


def delta(index: int | None, id: str | None, name: str | None, arguments: Any = None) -> Delta:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    given = {"index": index, "id": id, "function": function}
    return {key: value for key, value in given.items() if value is not None}


def answer_of(deltas: list[Delta]) -> Answer:
    return chat_stream(*({"tool_calls": [one]} for one in deltas), finish("tool_calls"))


def responses_to(answers: list[Answer]) -> Iterator[LLMResponse]:
    """What the wire makes of each answer, by the real SDK over HTTP."""
    with WireServer(*answers) as server:
        llm = OpenAILLM("gpt-4o", provider="openrouter", api_key="test-key-1", base_url=server.openai_url)
        for _ in answers:
            yield llm.stream(HELLO, TOOLS, on_text=str)


def read(*deltas: Delta) -> list[tuple[str, dict[str, Any], bool]]:
    """The name and arguments of each call, and whether it can be run."""
    (response,) = responses_to([answer_of(list(deltas))])
    return [(call.name, call.arguments, call.error is None) for call in response.tool_calls or []]


A = {"a": 1}
B = {"b": [{"c": 2}, {}]}
TEXT_A = '{"a": 1}'
TEXT_B = '{"b": [{"c": 2}, {}]}'


@pytest.mark.parametrize(
    ("deltas", "calls"),
    [
        pytest.param(
            [delta(0, "x", "look", ""), delta(1, "x", None, TEXT_A)],
            [("look", A, True)],
            id="one call at two indexes, arguments at the second",
        ),
        pytest.param(
            [delta(0, "x", "look", TEXT_A), delta(1, "x", "look", "")],
            [("look", A, True)],
            id="one call at two indexes, arguments at the first",
        ),
        pytest.param(
            [delta(0, "x", "look", '{"a"'), delta(1, "x", "look", ": 1}")],
            [("look", A, True)],
            id="one call at two indexes, arguments in two halves",
        ),
        pytest.param(
            [delta(0, "x", "look", TEXT_A), delta(0, "x", "look", TEXT_A)],
            [("look", A, True)],
            id="a whole call twice",
        ),
        pytest.param(
            [delta(0, "x", "look", TEXT_A), delta(1, "x", "look", '{"a"'), delta(1, None, None, ":1}")],
            [("look", A, True)],
            id="a whole call twice, spelled otherwise and in pieces",
        ),
        pytest.param(
            [delta(None, "x", "look", '{"a"'), delta(None, "x", None, ": "), delta(None, "x", None, "1}")],
            [("look", A, True)],
            id="no index, the id in each delta",
        ),
        pytest.param(
            [
                delta(None, "x", "look", '{"a"'),
                delta(None, "y", "pay", '{"b": ['),
                delta(None, "x", None, ": 1}"),
                delta(None, "y", None, '{"c": 2}'),
                delta(None, "y", None, ", {}]}"),
            ],
            [("look", A, True), ("pay", B, True)],
            id="no index, two calls in turns",
        ),
        pytest.param(
            [delta(0, None, None, '{"a"'), delta(0, None, None, ": 1}"), delta(0, "x", "look")],
            [("look", A, True)],
            id="arguments before the name",
        ),
        pytest.param(
            [delta(0, None, "look", TEXT_A), delta(0, None, "pay", TEXT_B), delta(0, None, "look", '{"a": 2}')],
            [("look", A, True), ("pay", B, True), ("look", {"a": 2}, True)],
            id="parallel calls at index 0 without ids",
        ),
        pytest.param(
            [
                delta(0, None, "look", '{"a"'),
                delta(0, None, None, ": 1}"),
                delta(0, None, "pay", '{"b": [{"c"'),
                delta(0, None, None, ": 2}, {}]}"),
            ],
            [("look", A, True), ("pay", B, True)],
            id="parallel calls at index 0 without ids, in pieces",
        ),
        pytest.param(
            [delta(0, "x", "look", "{}"), delta(0, None, None, '{"a"'), delta(0, None, None, ": 1}")],
            [("look", A, True)],
            id="an empty object, then the arguments",
        ),
        pytest.param(
            [delta(0, "x", "pay", "{}"), delta(0, "x", "pay", '{"b": ['), delta(0, "x", "pay", '{"c": 2}, {}]}')],
            [("pay", B, True)],
            id="an empty object, then nested arguments, the id in each delta",
        ),
        pytest.param([delta(0, "x", "look", "{}")], [("look", {}, True)], id="no arguments"),
        pytest.param([delta(0, "x", "look", "")], [("look", {}, True)], id="no arguments, as an empty text"),
        pytest.param(
            [delta(0, "x", "get_", ""), delta(0, None, "weather", ""), delta(0, None, None, TEXT_A)],
            [("get_weather", A, True)],
            id="a name in pieces",
        ),
        pytest.param(
            [delta(0, "x", "look", ""), delta(0, None, "_up", ""), delta(0, None, None, TEXT_A)],
            [("look_up", A, True)],
            id="a name in pieces, the first of which is a tool too",
        ),
        pytest.param(
            [delta(0, "x", "look", '{"a"'), delta(0, "x", "look", ": 1}"), delta(0, "x", "look", "")],
            [("look", A, True)],
            id="id and name in each delta",
        ),
        pytest.param(
            [delta(0, None, "look", ""), delta(0, None, "pay", "")],
            [("look", {}, True), ("pay", {}, True)],
            id="two calls without arguments at index 0",
        ),
        pytest.param(
            [delta(0, "x", "look", "")] + [delta(0, f"x{n}", None, piece) for n, piece in enumerate(TEXT_A)],
            [("look", A, True)],
            id="another id for each piece",
        ),
        pytest.param(
            [delta(0, "x", "look", '{"a"'), delta(1, None, None, ": "), delta(2, None, None, "1}")],
            [("look", A, True)],
            id="another index for each piece",
        ),
        pytest.param(
            [delta(0, "x", "look", TEXT_A), delta(1, "x", "look", '{"a": 2}')],
            [("look", A, True), ("look", {"a": 2}, True)],
            id="one id for two calls",
        ),
        pytest.param(
            [
                delta(0, "x", "look", ""),
                delta(1, "x", "look", ""),
                delta(0, None, None, TEXT_A),
                delta(1, None, None, '{"a": 2}'),
            ],
            [("look", A, True), ("look", {"a": 2}, True)],
            id="one id for two calls, both named first",
        ),
        pytest.param(
            [delta(0, "x", "look", TEXT_A[:end]) for end in (1, 3, 5, 8, 8)],
            [("look", A, True)],
            id="all arguments so far in each delta",
        ),
        pytest.param(
            [delta(1, "y", "pay", TEXT_B), delta(0, "x", "look", TEXT_A)],
            [("look", A, True), ("pay", B, True)],
            id="the second call first",
        ),
        pytest.param(
            [delta(0, "x", "look", A), delta(1, "y", "pay", B)],
            [("look", A, True), ("pay", B, True)],
            id="arguments as objects",
        ),
        # what nobody can tell apart
        pytest.param(
            [
                delta(0, "x", "look", '{"a":'),
                delta(0, "y", "pay", '{"a":'),
                delta(0, None, None, "1}"),
                delta(0, None, None, '{"c": 2}}'),
            ],
            [("look", {}, False), ("pay", {}, False)],
            id="two calls in turns at index 0, ids in the first deltas only",
        ),
        pytest.param(
            [delta(0, "x", "look", ""), delta(0, "y", "pay", ""), delta(0, None, None, TEXT_A)],
            [("look", {}, False), ("pay", {}, False)],
            id="arguments that belong to either of two calls",
        ),
        pytest.param(
            [delta(0, "x", "look", TEXT_A), delta(0, None, None, TEXT_B)],
            [("look", A, True), ("", B, False)],
            id="arguments of a call without a name",
        ),
    ],
)
def test_a_call_is_put_together(deltas: list[Delta], calls: list[tuple[str, dict[str, Any], bool]]) -> None:
    assert read(*deltas) == calls


# ----------------------------------------------------------------------------------------- any order and any cut


def random_arguments(chance: random.Random) -> dict[str, Any]:
    texts = ("", "x", "}{", 'a "quoted" \\ one', "größe\n{", "]]}}", "</tool_call>", "[1, {")
    values: list[Any] = [*texts, 0, -1.5, None, True, [], {}, [{"a": 1}, {"b": [2]}], {"c": {"d": "}"}}]
    return {f"k{n}": chance.choice(values) for n in range(chance.randrange(0, 4))}


def pieces_of(chance: random.Random, text: str) -> list[str]:
    cuts = sorted(chance.sample(range(1, len(text)), min(chance.randrange(0, 6), len(text) - 1)))
    return [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def random_deltas(chance: random.Random) -> tuple[list[Call], list[Delta], bool]:
    """Calls, deltas that tell them, and whether those say of each piece to which call it belongs."""
    index = chance.choice(["own", "own", "shared", "missing"])
    ids = chance.choice(["each", "first", "none"])
    names = chance.choice(["first", "first", "each", "pieces", "last"])
    repeat = chance.random() < 0.2 and ids == "each"
    told_apart = index == "own" or ids == "each"
    turns = chance.random() < 0.4 and (told_apart or ids == "first")
    if not told_apart and (names == "last" or (names == "pieces" and ids == "none")):
        names = "first"  # such deltas read as well as those of other calls
    calls: list[Call] = []
    for _ in range(chance.randrange(1, 5)):
        name = chance.choice(NAMES)
        arguments = random_arguments(chance)
        again = any(name == before and (not arguments or not had or arguments == had) for before, had in calls)
        if not again or (index == "own" or ids == "each"):
            calls.append((name, arguments))
    told: list[list[Delta]] = []
    for at, (name, arguments) in enumerate(calls):
        text = chance.choice(["{}", ""]) if not arguments else json.dumps(arguments, ensure_ascii=chance.random() < 0.5)
        pieces = ["", *pieces_of(chance, text)] if text else [""]
        if chance.random() < 0.1 and len(text) > 2 and (told_apart or not turns):
            pieces = [text[: len(text) // 3], text[: len(text) // 2], text, text]  # all so far, each time
        elif chance.random() < 0.1 and arguments and names in ("first", "each") and told_apart:
            pieces = ["{}", *pieces]
        number = {"own": at, "shared": 0, "missing": None}[index]
        deltas = [delta(number, f"c{at}" if ids == "each" else None, None, piece) for piece in pieces]
        if ids == "first":
            deltas[0]["id"] = f"c{at}"
        name_them(chance, deltas, name, names, number, deltas[0].get("id"))
        if repeat and pieces[0] == "":
            other = None if number is None else number + chance.choice([0, 0, 7])
            deltas += [
                delta(other, f"c{at}", name if n == 0 else None, p)
                for n, p in enumerate(pieces_of(chance, text or "{}"))
            ]
        told.append(deltas)
    deltas = in_turns(chance, told) if turns else [one for deltas in told for one in deltas]
    # arguments of one call, at an index of its own or with its id in each delta, can be told apart
    clear = told_apart or (not turns and names in ("first", "each") and all(a for _, a in calls))
    return calls, deltas, clear


def name_them(
    chance: random.Random, deltas: list[Delta], name: str, how: str, index: int | None, id: str | None
) -> None:
    if how == "each":
        for one in deltas:
            one["function"]["name"] = name
    elif how == "pieces":
        cut = chance.randrange(1, len(name))
        deltas[0]["function"]["name"] = name[:cut]
        deltas.insert(1, delta(index, id, name[cut:]))
    elif how == "last":
        deltas.append(delta(index, id, name))
    else:
        deltas[0]["function"]["name"] = name


def in_turns(chance: random.Random, told: list[list[Delta]]) -> list[Delta]:
    """The deltas of several calls mixed, those of each call in their order."""
    left = [list(deltas) for deltas in told]
    mixed = []
    while any(left):
        mixed.append(chance.choice([deltas for deltas in left if deltas]).pop(0))
    return mixed


def as_text(name: str, arguments: dict[str, Any]) -> str:
    return json.dumps([name, arguments], sort_keys=True)


def judge(calls: list[Call], response: LLMResponse) -> str | None:
    """What is wrong with the calls of a response, or None; `unclear` where one has an error in place of a call."""
    told = Counter(as_text(*call) for call in calls)
    runs = [call for call in response.tool_calls or [] if call.error is None and call.name in NAMES]
    errors = len(response.tool_calls or []) - len(runs)
    ran = Counter(as_text(call.name, call.arguments) for call in runs)
    if ran - told:
        return f"ran {dict(ran - told)}, which nobody called"
    if told - ran and not errors:
        return f"lost {dict(told - ran)}"
    return "unclear" if told - ran or errors else None


@pytest.mark.parametrize("seed", range(SEEDS))
def test_calls_in_any_order_and_cut_come_out_as_they_were_or_with_an_error(seed: int) -> None:
    chance = random.Random(seed)
    cases = [random_deltas(chance) for _ in range(250)]
    verdicts = Counter[str]()
    for (calls, deltas, clear), answer in zip(cases, responses_to([answer_of(c[1]) for c in cases]), strict=True):
        found = judge(calls, answer)
        shown = f"{found}\n{calls}\n" + "\n".join(map(str, deltas))
        assert found in (None, "unclear"), shown
        assert not (clear and found), shown
        verdicts[str(found)] += 1
    assert verdicts["None"] > 200


# --------------------------------------------------------------------------------------------------- recordings


def recorded() -> list[tuple[str, list[Call]]]:
    """The calls of each answer of the recordings, plain or streamed, that has some."""
    found = []
    for path in RECORDINGS:
        for exchange in json.loads(path.read_text("utf-8"))["exchanges"]:
            response = exchange["response"]
            body, text = response.get("body"), response.get("body_text") or ""
            if isinstance(body, dict) and response["status"] == 200:
                messages = [choice.get("message") or {} for choice in body.get("choices") or []]
                raw = [call for message in messages for call in message.get("tool_calls") or []]
            else:
                raw = plain_calls(text)
            calls = [(one["function"]["name"], json.loads(one["function"]["arguments"] or "{}")) for one in raw]
            if calls:
                found.append((path.stem, calls))
    return found


def plain_calls(text: str) -> list[dict[str, Any]]:
    """The calls of a recorded stream: by index, as the format has it."""
    calls: dict[int, dict[str, Any]] = {}
    for line in text.splitlines():
        chunk = json.loads(line[5:]) if line.startswith("data:") and "[DONE]" not in line else {}
        for choice in chunk.get("choices") or []:
            for one in choice["delta"].get("tool_calls") or []:
                call = calls.setdefault(one["index"], {"function": {"name": "", "arguments": ""}})
                call["function"]["name"] = call["function"]["name"] or one["function"].get("name")
                call["function"]["arguments"] += one["function"].get("arguments") or ""
    return list(calls.values())


@pytest.mark.skipif(not RECORDINGS, reason="the recordings of third parties are not part of the project")
def test_recorded_calls_cut_anew_come_out_as_they_were() -> None:
    chance = random.Random(7)
    cases = [(name, calls) for name, calls in recorded() for _ in range(12)]
    assert len(cases) > 200
    told = []
    for _, calls in cases:
        deltas: list[list[Delta]] = []
        for at, (name, arguments) in enumerate(calls):
            pieces = ["", *pieces_of(chance, json.dumps(arguments))]
            own, first = chance.choice([(at + 1, True), (at + 1, False), (0, False), (None, False)]), f"r{at}"
            index, once = own
            mine = [delta(index, first if n == 0 or not once else None, None, p) for n, p in enumerate(pieces)]
            mine[0]["function"]["name"] = name
            deltas.append(mine)
        told.append(in_turns(chance, deltas))
    for (name, calls), deltas_of, answer in zip(cases, told, responses_to([answer_of(d) for d in told]), strict=True):
        found = [(call.name, call.arguments) for call in answer.tool_calls or [] if call.error is None]
        assert Counter(as_text(*one) for one in found) == Counter(as_text(*one) for one in calls), (name, deltas_of)


# --------------------------------------------------------------------------------------------------- other wires


def block(index: int, id: str, name: str, *pieces: str, stop: bool = True) -> list[dict[str, Any]]:
    """The events of a call of Anthropic's."""
    started = {"type": "tool_use", "id": id, "name": name, "input": {}}
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    return [
        {"type": "content_block_start", "index": index, "content_block": started},
        *({"type": "content_block_delta", "index": index, "delta": one} for one in deltas),
        *([{"type": "content_block_stop", "index": index}] if stop else []),
    ]


def piece(index: int, text: str) -> dict[str, Any]:
    delta = {"type": "input_json_delta", "partial_json": text}
    return {"type": "content_block_delta", "index": index, "delta": delta}


@pytest.mark.parametrize(
    ("events", "calls"),
    [
        pytest.param(
            [*block(0, "x", "look", '{"a"', ": 1}"), *block(0, "y", "pay", TEXT_B)],
            [("look", A, True), ("pay", B, True)],
            id="two blocks with one index",
        ),
        pytest.param(
            [*block(0, "x", "look", TEXT_A, stop=False), *block(0, "y", "pay", "")],
            [("look", A, True), ("pay", {}, True)],
            id="two blocks with one index, the first not stopped",
        ),
        pytest.param(
            [*block(0, "x", "look", stop=False), *block(0, "y", "pay", stop=False), piece(0, TEXT_A)],
            [("look", {}, False), ("pay", {}, False)],
            id="two blocks with one index at once",
        ),
        pytest.param(
            [*block(0, "x", "look", stop=False), *block(0, "x", "look", TEXT_A)],
            [("look", A, True)],
            id="one block begun twice",
        ),
        pytest.param(
            [*block(0, "x", "look", TEXT_A), *block(1, "x", "look", TEXT_A)],
            [("look", A, True)],
            id="one block twice",
        ),
        pytest.param(
            [*block(0, "x", "look"), *block(1, "x", "look", TEXT_A)],
            [("look", A, True)],
            id="one block at two indexes",
        ),
    ],
)
def test_blocks_of_anthropic_are_told_apart(
    events: list[dict[str, Any]], calls: list[tuple[str, dict[str, Any], bool]]
) -> None:
    with WireServer(message_stream(*events, stop="tool_use")) as server:
        llm = AnthropicLLM("claude-sonnet-4-5", api_key="test-key-1", base_url=server.url)
        found = llm.stream(HELLO, TOOLS, on_text=str).tool_calls or []
    assert [(call.name, call.arguments, call.error is None) for call in found] == calls


RAW = ("x", "look", TEXT_A)
AGAIN = ("x", "look", '{"a":1}')
OTHER = ("x", "look", '{"a":2}')
WIRES: dict[str, Any] = {
    "chat": (OpenAILLM, lambda *calls: chat(calls=calls)),
    "chat, streamed": (OpenAILLM, lambda *calls: answer_of([delta(0, *call) for call in calls])),
    "anthropic": (
        AnthropicLLM,
        lambda *calls: message(*(tool_use(id, name, **json.loads(text or "{}")) for id, name, text in calls)),
    ),
    "responses": (ResponsesLLM, response),
    "responses, streamed": (ResponsesLLM, lambda *calls: response_stream(response_body(*calls))),
}


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("said", "calls"),
    [
        ((RAW, AGAIN), [A]),
        ((RAW, ("x", "look", "")), [A]),
        ((("x", "look", ""), RAW), [A]),
        ((("x", "look", ""), ("x", "look", "{}")), [{}]),
        ((RAW, OTHER), [A, {"a": 2}]),
        ((RAW, ("y", "look", TEXT_A)), [A, A]),
    ],
)
def test_a_call_that_an_answer_says_twice_is_one(wire: str, said: Any, calls: list[dict[str, Any]]) -> None:
    made, answer = WIRES[wire]
    with WireServer(answer(*said)) as server:
        llm = made("model-1", api_key="test-key-1", base_url=server.url)
        if wire.endswith("streamed"):
            found = llm.stream(HELLO, TOOLS, on_text=str).tool_calls or []
        else:
            found = llm.complete(HELLO, TOOLS).tool_calls or []
    assert [call.arguments for call in found if call.error is None] == calls
    assert len({call.id for call in found}) == len(found)


def test_items_of_responses_with_one_index_are_told_apart() -> None:
    body = response_body(RAW, ("y", "pay", TEXT_B))
    whole = response_stream(body)
    events = (whole.text or "").replace('"output_index": 1', '"output_index": 0')
    last = events.rindex("event: response.completed")
    events = events[:last] + events[last:].replace(json.dumps(body["output"]), "[]")
    with WireServer(Answer(text=events)) as server:
        llm = ResponsesLLM("model-1", api_key="test-key-1", base_url=server.openai_url)
        found = llm.stream(HELLO, TOOLS, on_text=str).tool_calls or []
    assert [(call.name, call.arguments) for call in found] == [("look", A), ("pay", B)]
