"""What each model call was sent, and what each change replaced: a session replayed up to a moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from connectagent.data import ToolCall, TraceEntry
from connectagent.records.blobs import restored
from connectagent.records.history import history_begun, inside_begun, parts_of, settle, void_entries
from connectagent.records.read import own_entries
from connectagent.records.requests import Compared, Request, Sending, Unrolled, alone, pieces_of
from connectagent.records.sent import SentSoFar
from connectagent.session.history import History
from connectagent.session.journal import LINES, is_aside
from connectagent.session.moments import Moment
from connectagent.session.snapshot import By, clone


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


def _result_then(history: Watched, call_id: object) -> Any:
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

    def requests(self, only: int | None = None) -> Iterator[Request]:
        """The requests, in order.

        Args:
            only: the number of the one entry whose request is wanted.
        """
        before: Sending | None = None
        for sending in self.sendings():
            entry = sending.entry
            if only in (None, entry.get("number")):
                yield _request(sending, None if is_aside(entry) else before)
            if not is_aside(entry):
                before = sending

    def sendings(self) -> Iterator[Sending]:
        """For each model call what it was sent, until the next one is asked for."""
        known, conversation = SentSoFar(), Unrolled()
        for number, entry in enumerate(self.entries):
            if number in self.marks:
                conversation.go_to(self.history.moments.get(self.marks[number]) or Moment([]))
            if entry.get("type") != "llm_call" or entry.get("status") == "stand_in":
                continue
            if is_aside(entry):
                aside = SentSoFar()
                aside.take(entry)
                yield Sending(entry, [*alone(aside.messages, {})], Unrolled(), aside, {})
                continue
            known.take(entry)
            edits = self._edits(number)
            plugins = {(edit.get("by") or {}).get("plugin") for edit in edits}
            by: By = (edits[0].get("by") or {}) if len(plugins) == 1 else {}  # of several, nobody can tell whose it is
            yield Sending(entry, pieces_of(known, conversation, by), conversation, known, _tool_makers(edits))
            conversation.mark()

    def _edits(self, number: int) -> list[TraceEntry]:
        """How handlers changed the request of a model call, the newest first."""
        edits: list[TraceEntry] = []
        for at in range(number - 1, -1, -1):
            entry = self.entries[at]
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
            agent.marks |= dict(_sends(len(agent.entries), entries))
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
            return next(agent.requests(number), None)
    return None


def _same(value: object) -> Any:
    return value


def _sends(before: int, entries: list[TraceEntry]) -> Iterator[tuple[int, int]]:
    """By the number of each model call of the conversation: the number of the entry before which it was sent.

    Args:
        before: how many entries come before these.
        entries: of one turn.
    """
    for number, entry in enumerate(entries):
        if entry.get("type") != "llm_call" or is_aside(entry):
            continue
        place, left = number, int(entry.get("entries_since_request") or 0)
        while place and left:
            place -= 1
            left -= entries[place].get("type") not in LINES
        yield before + number, before + place


def _tool_makers(edits: list[TraceEntry]) -> dict[str, By]:
    """By the name of a tool: who added or changed it in one request."""
    makers: dict[str, By] = {}
    for entry in reversed(edits):
        value = entry.get("value")
        changed = value.get("changed_tools") if isinstance(value, dict) else None
        makers |= dict.fromkeys(changed or (), entry.get("by") or {})
    return makers


def _request(sending: Sending, before: Sending | None) -> Request:
    entry, known, conversation = sending.entry, sending.known, sending.conversation
    found = Compared(sending.pieces, before.pieces if before is not None else [], conversation)
    model = entry.get("model") if known.model is None else known.model
    then = before.entry if before is not None else None
    given = dict(known.options or {}), then, model, known.output, sending.makers
    return Request(entry, found.pieces, conversation.moment, found.gone, known.schemas(), *given)
