"""The parts of a request, each with who made it: the schemas of tools, the system prompt, messages and results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import accumulate, chain, islice
from typing import Any, NamedTuple

from connectagent.data import Message, TraceEntry
from connectagent.records.requests import Request, Sending, Sent
from connectagent.session.history import Line
from connectagent.session.instruction import instruction
from connectagent.session.journal import is_aside
from connectagent.session.messages import text_of
from connectagent.session.moments import Moment
from connectagent.session.snapshot import By

UNKNOWN = "?"
SYSTEM, SCHEMA, FORM, RESULT, MESSAGE, ANSWER, NOT_RECORDED = (
    *("system prompt", "tool schema", "answer's schema", "tool result", "message", "answer", "not told"),
)


class Part(NamedTuple):
    """A piece of a request, in the order in which providers read it: tools, system prompt, messages.

    Args:
        who: the plugin that made it, else the user, the model, the tool or the agent.
        kind: one of the words above.
        name: the tool, or the first words of the message.
        text: its text.
        line: the line of its message; None for a tool and for a message of one request only.
        changes: how many changes the line had.
        size: the bytes of the text.
    """

    who: str
    kind: str
    name: str
    text: str
    line: Line | None = None
    changes: int = 0
    size: int = 0


class Divided:
    """Requests as parts, in the order in which providers read them; those of a message are made once."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Sent, list[Part]]] = {}  # by Python's id of a message as it was sent
        self._before: Sending | None = None
        self._given: Any = None
        self._around: tuple[list[Part], list[Part]] = [], []  # the parts before and behind the messages
        self._front = 0  # how many parts are before those of the messages that are not moved there
        self._last_system = -1  # the place of the last message that is moved there
        self._ends: list[int] = []  # of each message: how many parts there are up to it
        self._moment: Moment[Part] = Moment([])

    def moment(self, sending: Sending) -> Moment[Part]:
        """The parts of the next request of a conversation; those that it begins with as the one before are shared."""
        given = sending.known.schemas(), sending.known.output, sending.makers
        kept = sending.shared(self._before) if given == self._given else 0
        messages = sending.messages(kept)
        if kept <= self._last_system or any(map(_is_system, messages)):
            kept, messages = 0, sending.messages()
        front: list[Part] = []
        if not kept:
            self._given, self._around = given, _around(*given)
            front = [*self._around[0], *(part for one in messages if _is_system(one) for part in self._of(one, None))]
            self._front = len(front)
            self._last_system = max((at for at, one in enumerate(messages) if _is_system(one)), default=-1)
        count = self._ends[kept - 1] if kept else self._front
        del self._ends[kept:]
        others = [[] if _is_system(one) else self._of(one, None) for one in messages]
        self._ends += islice(accumulate(map(len, others), initial=count), 1, None)
        tail = [*front, *chain.from_iterable(others), *self._around[1]]
        self._before, self._moment = sending, Moment(tail, self._moment, count if kept else 0)
        return self._moment

    def parts(
        self,
        entry: TraceEntry,
        messages: list[Sent],
        tools: list[Any],
        output: dict[str, Any] | None,
        makers: dict[str, By],
    ) -> list[Part]:
        """The parts of one request."""
        aside = who_of(entry.get("by") or {}) if is_aside(entry) else None
        system: list[Part] = []
        others: list[Part] = []
        for sent in messages:
            (system if _is_system(sent) else others).extend(self._of(sent, aside))
        before, behind = _around(tools, output, makers, aside)
        return [*before, *system, *others, *behind]

    def _of(self, sent: Sent, aside: str | None) -> list[Part]:
        found = self._made.get(id(sent))
        if found is None or aside is not None:
            found = self._made[id(sent)] = sent, list(_message_parts(sent, aside))
        return found[1]


def _is_system(sent: Sent) -> bool:
    """Whether a message is put in front of the others."""
    return sent[0].get("role") == "system"


def _around(
    tools: list[Any], output: dict[str, Any] | None, makers: dict[str, By], aside: str | None = None
) -> tuple[list[Part], list[Part]]:
    """The parts before the messages, and those behind them."""
    form = list(_form(output, aside))
    before, behind = ([], form) if form and output is not None and output.get("in_words") else (form, [])
    return [*schemas(tools, makers), *before], behind


def parts_of_request(request: Request) -> list[Part]:
    """The parts of one request alone."""
    messages: list[Sent] = [(one.message, one.by, one.line, one.changes) for one in request.messages]
    return Divided().parts(request.entry, messages, request.tools, request.output, request.tool_makers)


def schemas(tools: Iterable[Any], makers: dict[str, By] | None = None) -> Iterator[Part]:
    """The schemas of tools as parts."""
    for tool in tools:
        inside = tool.get("function") if isinstance(tool, dict) else None
        name = str((inside or tool).get("name") or tool.get("type")) if isinstance(tool, dict) else str(tool)
        text = _json(tool)
        yield Part(who_of((makers or {}).get(name) or {"agent": ""}), SCHEMA, name, text, size=size_of(text))


def _form(output: dict[str, Any] | None, aside: str | None) -> Iterator[Part]:
    """How a structured answer was asked for, as a part."""
    if output is not None:
        text = instruction(output["schema"]) if output.get("in_words") else _json(output["schema"])
        yield Part(aside or who_of({"agent": ""}), FORM, output["name"], text, size=size_of(text))


def _message_parts(sent: Sent, aside: str | None) -> Iterator[Part]:
    message, _, line, changes = sent
    role = str(message.get("role"))
    kind = {"system": SYSTEM, "developer": SYSTEM, "tool": RESULT}.get(role, MESSAGE)
    pieces = _pieces(sent)
    name = _name(message if line is None else line.changes[0].message or message, kind)
    if line is not None and isinstance(line.changes[0].by.get("tool"), str):
        name = line.changes[0].by["tool"]
    for by, text in pieces:
        yield Part(aside or who_of(by), kind, name, text, line, changes, size_of(text))


def _pieces(sent: Sent) -> list[tuple[By, str]]:
    """The text of a message in pieces, each with who wrote it."""
    message, maker, line, changes = sent
    if line is None:
        return [(maker, message_text(message))]
    pieces: list[tuple[By, str]] = []
    for change in line.changes[:changes]:
        if change.message is not None:
            pieces = _rewritten(pieces, message_text(change.message), change.by)
    text = message_text(message)
    return pieces if "".join(piece for _, piece in pieces) == text else _rewritten(pieces, text, {})


def _rewritten(pieces: list[tuple[By, str]], now: str, by: By) -> list[tuple[By, str]]:
    """The pieces of a text after an edit: what is the same at both ends keeps its writer."""
    then = "".join(text for _, text in pieces)
    start = same_until(then, now)
    end = same_until(then[start:][::-1], now[start:][::-1])
    kept = [*_cut(pieces, 0, start), (by, now[start : len(now) - end]), *_cut(pieces, len(then) - end, len(then))]
    return [piece for piece in kept if piece[1]]


def _cut(pieces: list[tuple[By, str]], start: int, end: int) -> Iterator[tuple[By, str]]:
    at = 0
    for by, text in pieces:
        yield by, text[max(0, start - at) : max(0, end - at)]
        at += len(text)


def same_until(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def message_text(message: Message) -> str:
    """A message as the text that is measured: its role, what was said, and the calls that were asked for."""
    content = message.get("content")
    said = content if isinstance(content, str) else text_of(content) if isinstance(content, list) else ""
    calls = [call.get("function") for call in message.get("tool_calls") or () if isinstance(call, dict)]
    return "".join([f"{message.get('role')}: {said}", *map(_json, calls), "\n"])


def _name(message: Message, kind: str) -> str:
    if kind == SYSTEM:
        return ""
    if kind == RESULT:
        return str(message.get("name") or message.get("tool_call_id") or "")
    words = " ".join(message_text(message).split())
    return words if len(words) <= 60 else words[:57] + "..."


def who_of(by: By) -> str:
    """Who made something, in one word: a plugin's name, or `user`, `model`, `tool`, `agent`."""
    plugin = by.get("plugin")
    if isinstance(plugin, str):
        return plugin
    kind = next((key for key in ("user", "model", "tool", "agent") if key in by), None)
    return UNKNOWN if kind is None else f"({kind})"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def size_of(text: str) -> int:
    """The bytes of a text."""
    return len(text.encode("utf-8", "replace"))
