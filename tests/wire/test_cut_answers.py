"""Recorded answers that are cut and relabelled: no call runs that is not complete, and none of an answer that failed.

The answers are those of `fixtures`, and of the recordings beside the repository where they are there.
`CONNECTAGENT_CUT_ANSWERS` says how many are made; 10,000 before a release.
"""

from __future__ import annotations

import copy
import json
import os
from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from stopped_answers import WIRES, answer, good, llm_at
from wire_driver import load, recordings
from wire_server import FIXTURES, Answer, WireServer, response_stream

from connectagent import Agent, ProviderError
from connectagent.tools.tool import Tool

CASES = int(os.environ.get("CONNECTAGENT_CUT_ANSWERS", "300"))
NAMES = {"openai-chat": "chat", "openai-responses": "responses", "anthropic-messages": "anthropic"}
NAMES |= {name: name for name in WIRES} | {"openai": "chat"}
Call = tuple[str, str]  # the name, and the arguments as JSON with sorted keys


@dataclass
class Recorded:
    """A recorded answer with calls."""

    wire: str
    where: str
    mode: str
    body: Any = None
    events: list[dict[str, Any]] | None = None


def events_of(text: str) -> list[dict[str, Any]]:
    """The events of a stream that are JSON objects."""
    lines = [line.removeprefix("data:").strip() for line in text.splitlines() if line.startswith("data:")]
    return [event for line in lines if line.startswith("{") and isinstance(event := json.loads(line), dict)]


def found_answers() -> list[Recorded]:
    """All recorded answers that ask for tools."""
    found: list[Recorded] = []
    for path in sorted(FIXTURES.glob("*.json")):
        data = load(path)
        found += [_recorded(NAMES[data["wire"]], given, path.stem) for given in data["answers"]]
    for path in recordings():
        data = load(path)
        for exchange in data["exchanges"]:
            response = exchange["response"]
            given = {"body": response.get("body"), "text": response.get("body_text")}
            if response["status"] == 200:
                found.append(_recorded(NAMES[data["wire"]], given, path.stem))
    return [one for one in found if _asks(one)]


def _recorded(wire: str, given: dict[str, Any], where: str) -> Recorded:
    text = given.get("text")
    if text is None:
        return Recorded(wire, where, "plain", body=given["body"])
    events = events_of(text)
    if wire == "responses":  # whose last event is the whole answer
        return Recorded(wire, where, "stream", body=events[-1]["response"])
    return Recorded(wire, where, "stream", events=events)


def _asks(one: Recorded) -> bool:
    said = json.dumps(one.events or one.body)
    return any(f'"{word}"' in said for word in ("tool_use", "tool_calls", "function_call"))


# -- what a whole answer asks for ------------------------------------------------------------------


def written(arguments: Any) -> str:
    """Arguments in one form, whoever wrote them."""
    found = json.loads(arguments or "{}") if isinstance(arguments, str | None) else arguments
    return json.dumps(found, sort_keys=True)


def plain_calls(wire: str, body: Any) -> list[dict[str, Any]]:
    """The calls of a plain answer, as they stand in it: they may be changed there."""
    if wire == "anthropic":
        return [block for block in body["content"] if block["type"] == "tool_use"]
    if wire == "responses":
        return [item for item in body["output"] if item["type"] == "function_call"]
    calls = body["choices"][0]["message"].get("tool_calls") or []
    return [call for call in calls if (call.get("function") or {}).get("name")]


def asked(wire: str, call: dict[str, Any]) -> Call:
    if wire == "anthropic":
        return call["name"], written(call["input"])
    function = call if wire == "responses" else call["function"]
    return function["name"], written(function.get("arguments"))


# -- cutting ---------------------------------------------------------------------------------------


def cut_plain(one: Recorded, random: Random, reason: str, end: str) -> tuple[Answer, Counter[Call]]:
    """A plain answer that ends inside one of its calls, and its calls that are complete."""
    body = copy.deepcopy(one.body)
    calls = plain_calls(one.wire, body)
    number = random.randrange(len(calls))
    complete = Counter(asked(one.wire, call) for call in calls[:number])
    status = random.choice(("in_progress", "incomplete"))
    if _cut_call(one.wire, calls[number], random, status):
        complete[asked(one.wire, calls[number])] += 1
    later = [id(call) for call in calls[number + 1 :]]
    _keep(one.wire, body, later)
    _label(one.wire, body, reason, end == "whole")
    return (Answer(body) if one.mode == "plain" else response_stream(body)), complete


def _cut_call(wire: str, call: dict[str, Any], random: Random, status: str) -> bool:
    """Cut the arguments of a call somewhere; whether they are complete nevertheless."""
    if wire == "anthropic":  # the server has read what came, and its form does not show where it ended
        call["input"] = dict(list(call["input"].items())[: random.randrange(len(call["input"]) + 1)])
        return False
    holder = call if wire == "responses" else call["function"]
    text = holder.get("arguments") or ""
    length = random.choice((0, random.randrange(len(text) + 1), len(text)))
    holder["arguments"] = random.choice(("", None)) if length == 0 else text[:length]
    if wire == "responses":
        holder["arguments"] = holder["arguments"] or ""
        call["status"] = status
        return False  # the item says so
    return bool(text) and length == len(text)


def _keep(wire: str, body: Any, without: list[int]) -> None:
    holder, key = {
        "anthropic": (body, "content"),
        "responses": (body, "output"),
        "chat": (body.get("choices", [{}])[0].get("message"), "tool_calls"),
    }[wire]
    holder[key] = [item for item in holder[key] if id(item) not in without]


def _label(wire: str, body: Any, reason: str, whole: bool) -> None:
    if wire == "anthropic":
        body["stop_reason"] = reason or None
    elif wire == "chat":
        body["choices"][0]["finish_reason"] = reason or None
    else:
        is_status = whole or reason in ("cancelled", "incomplete")
        body["status"] = reason if is_status else "incomplete"
        body["incomplete_details"] = None if is_status else {"reason": reason}


def cut_stream(one: Recorded, random: Random, reason: str) -> tuple[Answer, None]:
    """A stream that lacks the end of its calls, though its last events come.

    What is complete of it is not known here (None), but no call may run with other arguments than those of the whole
    answer.
    """
    events = copy.deepcopy(one.events or [])
    pieces = [event for event in events if _is_piece(one.wire, event)]
    dropped = pieces[random.randrange(len(pieces)) :] if pieces else []
    if dropped and random.random() < 0.5:  # the first of them is cut, and not gone
        _cut_piece(one.wire, dropped.pop(0), random)
    for event in dropped if one.wire == "chat" else ():  # which may have the reason beside the calls
        event["choices"][0]["delta"].pop("tool_calls")
    gone = {id(event) for event in dropped if one.wire == "anthropic"}
    kept = [event for event in events if id(event) not in gone]
    for event in kept:
        if one.wire == "anthropic" and event.get("type") == "message_delta":
            event["delta"]["stop_reason"] = reason or None
    choices = [choice for event in kept for choice in event.get("choices") or []]
    for choice in [one for one in choices if one.get("finish_reason")] or choices[-1:]:  # some streams name none
        choice |= {"finish_reason": reason or None, "native_finish_reason": None}
    return streamed(one, kept), None


def _is_piece(wire: str, event: dict[str, Any]) -> bool:
    if wire == "anthropic":
        begins = event.get("type") == "content_block_start" and event["content_block"]["type"] == "tool_use"
        return begins or (event.get("delta") or {}).get("type") == "input_json_delta"
    return any((choice.get("delta") or {}).get("tool_calls") for choice in event.get("choices") or [])


def _cut_piece(wire: str, event: dict[str, Any], random: Random) -> None:
    if wire == "anthropic":
        if "delta" in event:
            text = event["delta"]["partial_json"]
            event["delta"]["partial_json"] = text[: random.randrange(len(text) + 1)]
        return
    for call in event["choices"][0]["delta"]["tool_calls"]:
        text = (call.get("function") or {}).get("arguments")
        if isinstance(text, str):
            call["function"]["arguments"] = random.choice((text[: random.randrange(len(text) + 1)], "", None))


# -- the property ----------------------------------------------------------------------------------


def streamed(one: Recorded, events: list[dict[str, Any]]) -> Answer:
    """Events as a stream of their wire."""
    if one.wire == "anthropic":
        return Answer(text="".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events))
    return Answer(text="".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n")


def whole_calls(server: WireServer, one: Recorded) -> list[Call]:
    """What the answer asks for as it was recorded."""
    if one.events is None:
        return [asked(one.wire, call) for call in plain_calls(one.wire, one.body)]
    server.answers[:] = [streamed(one, one.events)]
    server.requests.clear()
    response = llm_at(server, one.wire).stream([{"role": "user", "content": "Hi"}], on_text=lambda text: None)
    return [(call.name, written(call.arguments)) for call in response.tool_calls or ()]


def ran_of(server: WireServer, one: Recorded, whole: list[Call]) -> tuple[list[Call], ProviderError | None]:
    """The calls that run where the server answers, and the error of the turn."""
    ran: list[Call] = []

    def noting(name: str) -> Any:
        def note(**arguments: Any) -> str:
            ran.append((name, written(arguments)))
            return "done"

        return note

    anything = {"type": "object", "properties": {}, "additionalProperties": True}
    tools = [Tool(name, "", anything, noting(name)) for name in sorted({name for name, _ in whole})]
    agent = Agent("cut", tools, llm=llm_at(server, one.wire), stream=one.mode == "stream", log=False, quiet=True)
    server.requests.clear()
    try:
        agent.input("Hi", max_iterations=2)
    except ProviderError as error:
        return ran, error
    return ran, None


@pytest.mark.parametrize("seed", range(4))
def test_no_call_of_an_answer_that_is_not_whole_runs_unless_it_is_complete(seed: int) -> None:
    random, seen = Random(seed), Counter[str]()
    ends = ("whole", "truncated", "truncated", "truncated", "refused", "filtered", "failed", "unknown")
    with WireServer(Answer({})) as server:
        answers = [(one, whole) for one in found_answers() if (whole := whole_calls(server, one))]
        while sum(seen.values()) < CASES // 4:
            one, whole = random.choice(answers)
            end = random.choice(ends)
            reasons = [reason for reason, (of, _) in WIRES[one.wire].items() if of == end]
            if not reasons or (end == "refused" and one.wire != "anthropic"):  # it stands in the message there
                continue
            reason = random.choice(reasons)
            made, complete = cut_stream(one, random, reason) if one.events else cut_plain(one, random, reason, end)
            done = answer(one.wire, one.mode, good(one.wire), "Done.", [])
            server.answers[:] = [made] * (10 if reason == "pause_turn" else 1) + [done]
            ran, error = ran_of(server, one, whole)
            about = (one.where, one.wire, one.mode, reason, ran, made, error)
            if end == "truncated":
                allowed = Counter(whole) if complete is None else complete
                assert not Counter(ran) - allowed, about
                without = [arguments for _, arguments in ran if arguments == "{}"]
                assert len(without) <= str(made).count("{}"), about
            elif end != "whole":
                assert ran == [] and (error is not None or end == "unknown"), about  # whose text is a result
            seen[f"{one.wire} {one.mode} {end} {'ran' if ran else 'none'}"] += 1
    assert any("truncated ran" in key for key in seen) and any("truncated none" in key for key in seen), seen
