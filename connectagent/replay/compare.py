"""Compares requests, tool calls and results then and now."""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from connectagent.data import Message, TraceEntry
from connectagent.output.rows import call_text
from connectagent.output.text import actor_with_place, visible
from connectagent.records.sent import canonical
from connectagent.replay.recording import Sent
from connectagent.session.journal import only_says_stopped
from connectagent.session.messages import text_of
from connectagent.session.snapshot import By

MOST_LINES = 12  # of a diff


@dataclass(slots=True)
class Divergence:
    """The first difference.

    Args:
        turn, iteration: where.
        what: `messages`, `tools` (their names), `schemas`, `options`, `output`, `model`, `request` (one call's own
            changes), `calls` (the model is asked more or less often), `result`, `error`.
        lines: a small diff; `-` is then, `+` is now.
        then_by: who made or changed it then, or {}.
        now_by: who makes or changes it now, or {}.
        agent: the agent inside whose turn it is; "" of the record's own.
    """

    turn: int
    iteration: int
    what: str
    lines: list[str]
    then_by: By = field(default_factory=dict)
    now_by: By = field(default_factory=dict)
    agent: str = ""

    @property
    def place(self) -> str:
        return f"{self.turn}.{self.iteration}" + (f" of {self.agent}" if self.agent else "")

    def __str__(self) -> str:
        whose = [f"{when}: {actor_with_place(by)}" for when, by in (("then", self.then_by), ("now", self.now_by)) if by]
        return "\n".join([f"{self.place}: other {self.what}", *self.lines, *whose])


@dataclass(slots=True)
class Call:
    """A tool call with another status or result than then.

    Args:
        turn, iteration, call_id, name, arguments: which call.
        then: its status then; None where the model did not make it.
        now: its status now.
        then_result, now_result: what the model read.
        by: who causes it now, or {}.
        agent: the agent inside that calls; "" for the record's own.
    """

    turn: int
    iteration: int
    call_id: str
    name: str
    arguments: Any
    then: str | None
    now: str
    then_result: Any
    now_result: Any
    by: By
    agent: str = ""

    @property
    def had_succeeded(self) -> bool:
        return self.then == "success"

    def __str__(self) -> str:
        then = self.then or "was not made"
        whose = f" of {self.agent}" if self.agent else ""
        called = call_text(self.name, self.arguments)
        text = f"{self.turn}.{self.iteration}{whose} {called}: {then} then, {self.now} now"
        return f"{text}, by {actor_with_place(self.by)}" if self.by else text


Difference = tuple[list[str], By, By]
"""The lines of a diff, who made or changed it then, and who does now."""


def compared(then: Sent, now: Sent) -> Divergence | None:
    """The first difference of two requests, or None."""
    for what, difference in _DIFFERENCES.items():
        if found := difference(then, now):
            return Divergence(now.turn, now.iteration, what, *found)
    return None


def _other_model(then: Sent, now: Sent) -> Difference | None:
    if then.model is None or then.model == now.model:
        return None
    return [f"- {visible(then.model)}", f"+ {visible(now.model)}"], {}, {}


def _other_tools(then: Sent, now: Sent) -> Difference | None:
    if then.tools is None or then.tools == now.tools:
        return None
    return diff(then.tools, now.tools or []), {}, {}


def _other_schemas(then: Sent, now: Sent) -> Difference | None:
    return _other_data(then.schemas, now.schemas)


def _other_options(then: Sent, now: Sent) -> Difference | None:
    return _other_data(then.options, now.options)


def _other_output(then: Sent, now: Sent) -> Difference | None:
    asked = [None if side.output is None else side.output.get("schema") for side in (then, now)]
    return None if then.output == {} else _other_data(*({"output": one} for one in asked))


def _other_data(then: object, now: object) -> Difference | None:
    if then is None or now is None or then == now or canonical(then) == canonical(now):
        return None
    sides = [json.dumps(json.loads(canonical(side)), indent=1, sort_keys=True).splitlines() for side in (then, now)]
    return diff(*sides), {}, {}


def _other_changes(then: Sent, now: Sent) -> Difference | None:
    changes = [[(*_owner(one["by"]), canonical(one["value"])) for one in side.changes] for side in (then, now)]
    if changes[0] == changes[1]:
        return None
    texts = [[f"{handler}: {value}" for _, handler, value in side] for side in changes]
    then_by, now_by = (side.changes[-1]["by"] or {} if side.changes else {} for side in (then, now))
    return diff(*texts), then_by, now_by


def _other_messages(then: Sent, now: Sent) -> Difference | None:
    at = first_difference(then.messages_since(now.agreed), now.messages_since(now.agreed))
    if at is None:
        return None
    at += now.agreed
    sides = [next(iter(side.messages_since(at)), None) for side in (then, now)]
    then_by, now_by = (next(iter(side.makers[at:]), {}) for side in (then, now))
    return [f"message {at}:", *diff(*(_lines(message) for message in sides))], then_by, now_by


_DIFFERENCES: dict[str, Callable[[Sent, Sent], Difference | None]] = {
    "model": _other_model,
    "tools": _other_tools,
    "schemas": _other_schemas,
    "options": _other_options,
    "output": _other_output,
    "request": _other_changes,
    "messages": _other_messages,
}


def _owner(by: By | None) -> tuple[str, str]:
    by = by or {}
    return str(by.get("plugin")), str(by.get("handler"))


def first_difference(then: list[Message], now: list[Message]) -> int | None:
    """The index of the first message that is not the same; None where all are."""
    for at, (one, two) in enumerate(zip(then, now, strict=False)):
        if one != two and _text(one) != _text(two):
            return at
    return None if len(then) == len(now) else min(len(then), len(now))


def _text(message: object) -> str:
    return canonical(dict(sorted(message.items()))) if isinstance(message, dict) else canonical(message)


def _lines(message: Message | None) -> list[str]:
    """A message as lines that can be compared."""
    if message is None:
        return []
    lines = [f"{message.get('role')}: {line}" for line in text_of(message.get("content")).splitlines() or [""]]
    calls = [call.get("function") or {} for call in message.get("tool_calls") or ()]
    lines += [f"calls {call.get('name')}({call.get('arguments')})" for call in calls]
    known = ("role", "content", "tool_calls")
    return lines + [f"{key}: {canonical(value)}" for key, value in sorted(message.items()) if key not in known]


def diff(then: list[str], now: list[str]) -> list[str]:
    """A small diff: what is only on one side, and one line around it."""
    lines = [line for line in difflib.unified_diff(then, now, n=1, lineterm="") if line[:2] not in ("--", "++", "@@")]
    short = [f"{line[:1]} {visible(line[1:], 200)}" for line in lines[:MOST_LINES]]
    return short if len(lines) <= MOST_LINES else [*short, f"  ... {len(lines) - MOST_LINES} more lines"]


# -- tool calls ----------------------------------------------------------------------------------


_STOPPED = ("skipped", "interrupted")


def final_calls(entries: list[TraceEntry]) -> dict[tuple[str, int], TraceEntry]:
    """The final entry of each tool call, by its id and how often that id came before."""
    calls: dict[tuple[str, int], TraceEntry] = {}
    newest: dict[str, TraceEntry] = {}
    times: Counter[str] = Counter()
    for entry in entries:
        if not isinstance(entry, dict):
            continue
        id, value = str(entry.get("call_id")), entry.get("value")
        if entry.get("type") == "tool_execution" and newest.get(id, {}).get("status") in _STOPPED:
            newest[id].update(entry)  # the turn stopped at it, and went on
        elif entry.get("type") == "tool_execution":
            newest[id] = calls[id, times[id]] = dict(entry)
            times[id] += 1
        elif entry.get("type") == "change" and id in newest:
            if entry.get("of") == "tool_execution" and isinstance(value, dict):
                newest[id].update(value)
            elif entry.get("of") == "result" and (entry.get("by") or {}).get("hook") == "after_each_tool":
                newest[id]["result"] = value
    return calls


def changed_calls(turn: int, then: list[TraceEntry], now: list[TraceEntry], agent: str = "") -> Iterator[Call]:
    """The calls of a turn that have another status or result than then."""
    before = final_calls(then)
    for key, entry in final_calls(now).items():
        old = before.get(key, {})
        if not old and only_says_stopped(entry):  # a record has this no more once its turn was resumed
            continue
        status, result = str(entry.get("status")), entry.get("result")
        if old and old.get("status") == status and canonical(old.get("result")) == canonical(result):
            continue
        yield Call(
            turn, int(entry.get("iteration") or 0), key[0], str(entry.get("tool_name")), entry.get("arguments"),
            old.get("status"), status, old.get("result"), result, entry.get("by") or {}, agent,
        )  # fmt: skip


def new_errors(then: list[TraceEntry], now: list[TraceEntry]) -> list[TraceEntry]:
    """The errors of handlers that were not there then."""
    known = Counter(map(_error_key, _errors(then)))
    found = []
    for entry in _errors(now):
        known[_error_key(entry)] -= 1
        if known[_error_key(entry)] < 0:
            found.append(entry)
    return found


def _errors(entries: list[TraceEntry]) -> list[TraceEntry]:
    return [one for one in entries if isinstance(one, dict) and one.get("type") == "error" and one.get("by")]


def _error_key(entry: TraceEntry) -> str:
    return canonical([*_owner(entry["by"]), entry.get("error_type"), entry.get("error")])
