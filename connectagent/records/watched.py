"""What each model call was sent, and what each change replaced: a session replayed up to a moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from connectagent.data import Message, ToolCall, TraceEntry
from connectagent.records.blobs import restored
from connectagent.records.history import history_begun, inside_begun, parts_of, settle, void_entries
from connectagent.records.read import own_entries
from connectagent.records.sent import SentSoFar
from connectagent.session.history import History, Line
from connectagent.session.instruction import with_instruction
from connectagent.session.journal import LINES, is_aside
from connectagent.session.moments import Moment
from connectagent.session.snapshot import By
from connectagent.session.state import clone

NEW, CHANGED, SAME = "new", "changed", "same"


@dataclass(slots=True)
class SentMessage:
    """One message of a request.

    Args:
        message: the message.
        by: who made it, or changed it last; {} where it is not known.
        state: since the call before: `new`, `changed` or `same`.
        before: of a changed one: what it was.
        line: its line in the conversation; None for a message of this request only.
        changes: how many changes its line had then.
    """

    message: Message
    by: By
    state: str
    before: Message | None = None
    line: Line | None = None
    changes: int = 0


@dataclass(slots=True)
class Request:
    """What one model call was sent, in the form in which connectagent gives it to a model's adapter.

    Args:
        entry: the `llm_call` entry.
        messages: the messages, each with what is new since the call before.
        gone: the messages of the call before that were not sent again.
        tools: the schemas of the tools; their names where the record has no schemas.
        options: the parameters of the provider's API.
        before: the `llm_call` entry of the call before; None for the first.
        model: the model that was asked; of a record that does not tell, the one that answered.
        output: how a structured answer was asked for: `name`, `schema`, and `in_words` if the last message asks.
        tool_makers: by the name of a tool: who added or changed it for this request only.
    """

    entry: TraceEntry
    messages: list[SentMessage]
    gone: list[Message]
    tools: list[Any]
    options: dict[str, Any]
    before: TraceEntry | None = None
    model: Any = None
    output: dict[str, Any] | None = None
    tool_makers: dict[str, By] = field(default_factory=dict)

    def data(self) -> dict[str, Any]:
        """The whole request as data."""
        messages = [sent.message for sent in self.messages]
        asked = self.output or {}
        if asked.get("in_words"):
            messages = with_instruction(messages, asked["schema"])
        more = {"tools": self.tools, "output": None if asked.get("in_words") else self.output}
        given = {key: value for key, value in more.items() if value}
        return {"model": self.model, "messages": messages, **given, **self.options}


Sent = tuple[Message, By, Line | None, int]
"""A message that was sent, by whom, its line, and how often that was changed then."""


class Watched(History):
    """A history that remembers what was sent, and what changes replaced.

    Attributes:
        moments: by the number of an entry in `entries`: the conversation before it.
        replaced: by the id of Python of an entry: the value before it, and after it.
    """

    def __init__(self, *beginning: Any) -> None:
        super().__init__(*beginning)
        self.marks: set[int] = set()
        self.moments: dict[int, Moment[Any]] = {}
        self.replaced: dict[int, tuple[Any, Any]] = {}

    def _apply(self, entry: TraceEntry) -> None:
        if len(self.entries) in self.marks:
            self.moments[len(self.entries)] = self.moment()
        try:
            before = _BEFORE.get(str(entry.get("type")), _nothing)(self, entry)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            before = None
        if before is not None:
            self.replaced[id(entry)] = before
        super()._apply(entry)


def _nothing(history: Watched, entry: TraceEntry) -> None:
    return None


def _message(history: Watched, entry: TraceEntry) -> tuple[Any, Any]:
    then = None if entry["type"] == "message" else history.lines[entry["index"]].message
    return then, entry.get("message")


def _state(history: Watched, entry: TraceEntry) -> tuple[Any, Any]:
    of = history.state if entry["type"] == "state_delta" else history.session
    now = {key: value for key, value in entry["delta"].items() if key not in (entry.get("removed") or ())}
    return {key: clone(of[key]) for key in entry["delta"] if key in of}, now


def _change(history: Watched, entry: TraceEntry) -> tuple[Any, Any] | None:
    of, value = entry.get("of"), entry.get("value")
    if of == "response" and history.answer is not None:
        return {"content": history.answer.content, "tool_calls": _as_data(history.answer.tool_calls or ())}, value
    if of in ("tool_call", "tool_calls") and history.round is not None:
        return _calls_then(history.round.calls, value), value
    if of in ("result", "tool_execution"):
        return _result_then(history, entry.get("call_id")), value["result"] if isinstance(value, dict) else value
    return None, value


def _calls_then(calls: list[ToolCall], value: Any) -> Any:
    then = _as_data(calls)
    return then if isinstance(value, list) else next((one for one in then if one["id"] == value["id"]), None)


def _result_then(history: Watched, call_id: Any) -> Any:
    results = (line.message for line in reversed(history.lines) if line.message.get("role") == "tool")
    return next((one.get("content") for one in results if one.get("tool_call_id") == call_id), None)


def _as_data(calls: Iterable[ToolCall]) -> list[dict[str, Any]]:
    return [{"id": call.id, "name": call.name, "arguments": clone(call.arguments)} for call in calls]


_BEFORE: dict[str, Callable[[Watched, TraceEntry], tuple[Any, Any] | None]] = {
    "message": _message,
    "message_edited": _message,
    "message_removed": _message,
    "state_delta": _state,
    "session_delta": _state,
    "change": _change,
}


@dataclass
class WatchedAgent:
    """One agent of a record, watched.

    Args:
        branch: of an inner agent; None for the root.
        history: its conversation.
        entries: its entries in order, with those that no longer count left out.
    """

    branch: str | None
    history: Watched
    entries: list[TraceEntry] = field(default_factory=list)
    marks: dict[int, int] = field(default_factory=dict)  # by the number of an `llm_call`: when it was sent

    def requests(self) -> Iterator[Request]:
        """The requests, in order."""
        before: tuple[TraceEntry, list[Sent]] | None = None
        for entry, sent, known, makers in self.sent():
            if is_aside(entry):
                yield _request(entry, sent, None, known)
                continue
            made = _request(entry, sent, before, known)
            made.tool_makers = makers
            yield made
            before = entry, sent

    def sent(self) -> Iterator[tuple[TraceEntry, list[Sent], SentSoFar, dict[str, By]]]:
        """For each model call: its entry, its messages, what else it was sent, and who changed tools in it by name.

        A message that stayed the same is the same tuple in each of them.
        """
        known = SentSoFar()
        for number, entry in enumerate(self.entries):
            if entry.get("type") != "llm_call" or entry.get("status") == "stand_in":
                continue
            if is_aside(entry):
                aside = SentSoFar()
                aside.take(entry)
                yield entry, _alone(aside.messages, {}), aside, {}
                continue
            known.take(entry)
            moment = self.history.moments.get(self.marks[number])
            own: list[Sent] = moment.since() if moment is not None else []
            edits = self._edits(number)
            others = known.own([one[0] for one in own]) if known.is_edited else None
            yield entry, own if others is None else _edited(own, others, edits), known, _tool_makers(edits)

    def _edits(self, number: int) -> list[TraceEntry]:
        """How handlers changed the request of a model call, the newest first."""
        edits: list[TraceEntry] = []
        for entry in reversed(self.entries[:number]):
            if entry.get("type") in ("llm_call", "user_input"):
                break
            edits += [entry] if (entry.get("type"), entry.get("of")) == ("change", "request") else []
        return edits


def watched_agents(record: dict[str, Any], blobs: Path | None = None) -> list[WatchedAgent]:
    """The agents of a record, the root first, each with its requests and changes.

    The entries are those of the record, or, with blobs, copies with their long texts; `number` of an entry is kept.

    Args:
        record: as `read_record` returns it.
        blobs: the folder of its long texts; None leaves their place holders.
    """
    whole: Callable[[Any], Any] = partial(restored, folder=blobs) if blobs is not None else _same
    parts = parts_of(record)
    void = [void_entries(part) for part in parts]
    agents: dict[str | None, WatchedAgent] = {None: WatchedAgent(None, history_begun(record, whole, Watched))}
    for part in parts:
        for branch, history in inside_begun(part.lines, set(agents), Watched):
            agents[branch] = WatchedAgent(branch, history)
    for asked, agent in agents.items():
        name = asked.rpartition(".")[2] if asked is not None else record.get("agent")
        for part, gone in zip(parts, void, strict=True):
            own = [one for one in own_entries(part.lines, name, asked) if id(one) not in gone]
            entries = [whole(one) for one in own]
            agent.marks |= dict(_sends(agent.entries, entries))
            agent.history.marks = set(agent.marks.values())
            agent.entries += entries
            agent.history.extend(entries, closed="status" in part.last or "messages" in part.last)
            if asked is None:
                settle(agent.history, part, whole)
    for agent in agents.values():
        agent.history.take_answer()  # of a turn that has not ended
    return list(agents.values())


def request_of(record: dict[str, Any], number: int, blobs: Path | None = None) -> Request | None:
    """What a model call was sent; None where the record does not tell.

    Args:
        record: as `read_record` returns it, each entry with its `number`.
        number: the number of its `llm_call`.
        blobs: the folder of its long texts.
    """
    turns = record["turns"]
    there = (at for at, turn in enumerate(turns) if any(one.get("number") == number for one in turn["lines"]))
    last = next(there, None)
    if last is None:
        return None
    then = {**record, "turns": turns[: last + 1]}  # what was rewound or done again later counted then
    for agent in watched_agents(then, blobs):
        if any(entry.get("number") == number for entry in agent.entries):
            return next((made for made in agent.requests() if made.entry.get("number") == number), None)
    return None


def _same(value: Any) -> Any:
    return value


def _sends(before: list[TraceEntry], entries: list[TraceEntry]) -> Iterator[tuple[int, int]]:
    """By the number of each model call of the conversation: the number of the entry before which it was sent."""
    trace = [*before, *entries]
    for number in range(len(before), len(trace)):
        entry = trace[number]
        if entry.get("type") != "llm_call" or is_aside(entry):
            continue
        place, left = number, int(entry.get("entries_since_request") or 0)
        while place > len(before) and left:
            place -= 1
            left -= trace[place].get("type") not in LINES
        yield number, place


def _alone(messages: Any, by: By) -> list[Sent]:
    """Messages of one request only."""
    own: list[Any] = [message for message in messages or () if isinstance(message, dict)]
    return [(message, by, None, 0) for message in own]


def _tool_makers(edits: list[TraceEntry]) -> dict[str, By]:
    """By the name of a tool: who added or changed it in one request."""
    makers: dict[str, By] = {}
    for entry in reversed(edits):
        value = entry.get("value")
        changed = value.get("changed_tools") if isinstance(value, dict) else None
        makers |= dict.fromkeys(changed or (), entry.get("by") or {})
    return makers


def _edited(own: list[Sent], messages: Any, edits: list[TraceEntry]) -> list[Sent]:
    """The messages of one edited request: those of the conversation with their lines, others by who edited it.

    Where several plugins edited it, nobody can tell whose the others are.
    """
    plugins = {(entry.get("by") or {}).get("plugin") for entry in edits}
    by: By = (edits[0].get("by") or {}) if len(plugins) == 1 else {}
    made, free = _alone(messages, by), dict(enumerate(own))
    for place, (message, *_) in enumerate(made):
        at = next((at for at, one in free.items() if one[0] == message), None)
        if at is not None:
            made[place] = free.pop(at)
    return made


def _request(
    entry: TraceEntry, now: list[Sent], before: tuple[TraceEntry, list[Sent]] | None, known: SentSoFar
) -> Request:
    then = before[1] if before is not None else []
    lines = {id(one[2]): number for number, one in enumerate(then) if one[2] is not None}
    kept: set[int] = set()
    sent = []
    for place, (message, by, line, changes) in enumerate(now):
        at = _place_then(then, lines, now[place], place, kept)
        if at is None:
            sent.append(SentMessage(message, by, NEW, None, line, changes))
            continue
        kept.add(at)
        same = then[at][2:] == (line, changes) or then[at][0] == message
        state, was = (SAME, None) if same else (CHANGED, then[at][0])
        sent.append(SentMessage(message, by, state, was, line, changes))
    gone = [one[0] for place, one in enumerate(then) if place not in kept]
    model = entry.get("model") if known.model is None else known.model
    options, then_entry = dict(known.options or {}), before[0] if before else None
    return Request(entry, sent, gone, known.schemas(), options, then_entry, model, known.output)


def _place_then(then: list[Sent], lines: dict[int, int], now: Sent, place: int, kept: set[int]) -> int | None:
    """Where a message stood in the call before; None if it is new."""
    if now[2] is not None and id(now[2]) in lines:
        return lines[id(now[2])]
    places = [place] if place < len(then) else []  # at the same place, or anywhere
    return next((at for at in [*places, *range(len(then))] if at not in kept and then[at][0] == now[0]), None)
