"""A session as it was recorded: the conversation of each agent in it, and the open turn."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from connectagent.data import TokenUsage, TraceEntry
from connectagent.errors import ConfigError
from connectagent.records.amended import amend
from connectagent.records.around import goes_on
from connectagent.records.blobs import blob_folder, restored
from connectagent.records.file import BETWEEN_TURNS, INCOMPLETE
from connectagent.records.messages import TurnMessages
from connectagent.records.read import own_entries, read_lazily, require_agent
from connectagent.session.history import History
from connectagent.session.journal import WITHHELD, Journal, only_says_stopped, place_of, turns_in
from connectagent.session.prompt import prompt_changes
from connectagent.session.snapshot import clone
from connectagent.session.usage import Totals, duration_of, own_tools, spent_in

Kind = TypeVar("Kind", bound=History)

STOPPED = ("paused", "error", "interrupted", "cancelled", None)
"""The statuses of turns that may go on; None where the process died."""
UNRECORDED = "unrecorded"
"""In an item: the turn went on without its record, so nobody can go on with it."""
_MESSAGES = ("message", "message_removed", "mended", "tool_execution")  # entries that add messages, or take some away


@dataclass
class Part:
    """One turn of a record, or what came between two turns: an item, and the items that continue it.

    Args:
        number: the turn's number.
        items: the items, as recorded.
        lines: the lines of all items, without what was rewound.
    """

    number: Any
    items: list[dict[str, Any]]
    lines: list[TraceEntry]

    @property
    def last(self) -> dict[str, Any]:
        """The newest item."""
        return self.items[-1]

    @property
    def is_turn(self) -> bool:
        """Whether it is a turn."""
        return bool(self.last.get("status") != BETWEEN_TURNS)

    @property
    def is_open(self) -> bool:
        """Whether the turn may go on."""
        return self.is_turn and self.last.get("status") in STOPPED and not self.last.get(UNRECORDED)


def parts_of(record: dict[str, Any], at: tuple[int, int] | None = None) -> list[Part]:
    """The turns of a record, each with the items that continue it, without what was rewound.

    Args:
        record: as `read_record` returns it.
        at: the turn and iteration before which to end; iteration 0 is the turn's beginning.

    Raises:
        ConfigError: there is no such place.
    """
    parts: list[Part] = []
    for item in record["turns"]:
        if item.get("from"):
            parts = _before(parts, *item["from"])
        _join(parts, item)
    return _before(parts, *at) if at is not None else parts


def _join(parts: list[Part], item: dict[str, Any], anew: bool = False) -> None:
    """Add an item to the turn that it continues, or begins anew from a record; `anew`: or begins anew otherwise."""
    before = next((part for part in reversed(parts) if part.is_turn), None)
    again = goes_on(item) or (anew and "from" not in item and item.get("status") != BETWEEN_TURNS)
    if again and before is not None and before.number == item.get("turn"):
        before.items.append(item)
        before.lines += item["lines"]
    else:
        parts.append(Part(item.get("turn"), [item], list(item["lines"])))


def _before(parts: list[Part], turn: int, iteration: int) -> list[Part]:
    """The turns before a turn, or before an iteration of it."""
    for number, part in enumerate(parts):
        if not part.is_turn or part.number != turn:
            continue
        if not iteration:
            return parts[:number]
        for count, line in enumerate(part.lines):
            place = str(line.get("id") or line.get("at") or "")
            if place.startswith(f"T{turn}/{iteration}/"):
                return [*parts[:number], Part(turn, [{"turn": turn, "lines": []}], part.lines[:count])]
    known = ", ".join(f"{a}.{b}" if b else str(a) for a, b in dict.fromkeys(_places(parts)))
    wanted = f"{turn}.{iteration}" if iteration else turn
    raise ConfigError(f"the record has no turn or iteration {wanted}; it has {known or 'none'}")


def _places(parts: list[Part]) -> Iterator[tuple[Any, int]]:
    """Turn and iteration of each place to which a record can be rewound; iteration 0 is a turn's beginning."""
    for part in parts:
        if part.is_turn:
            yield part.number, 0
            for line in part.lines:
                if line.get("type") == "llm_call" and str(line.get("id")).count("/") == 2:
                    yield part.number, int(line.get("iteration") or 0)


def read_history(record: dict[str, Any], blobs: Path | None = None) -> History:
    """The conversation of a record's agent.

    A turn that was cut off leaves `answer` and `round` as they were then.

    Args:
        record: as `read_record` returns it.
        blobs: the folder of its long texts; None leaves their place holders.
    """
    whole = partial(restored, folder=blobs) if blobs is not None else clone
    history = history_begun(record, whole, History)
    for part in parts_of(record):
        _extend(history, part, record.get("agent"), whole)
    return history


def history_begun(record: dict[str, Any], whole: Callable[[Any], Any], kind: Callable[..., Kind]) -> Kind:
    """The history of a record's agent as its session began.

    Args:
        record: as `read_record` returns it.
        whole: gives a value with its long texts.
        kind: makes the history: its class.
    """
    first = record.get("begins_with") or {}
    messages, state = (whole(first.get(key)) for key in ("messages", "state"))
    prompt, changes = (whole(record.get(key)) for key in ("system_prompt", "system_prompt_changes"))
    return kind(prompt or "", messages, state, int(first.get("turn") or 0), prompt_changes(changes))


def _extend(
    history: History,
    part: Part,
    agent_name: object,
    whole: Callable[[Any], Any],
    entry: Callable[[Any], Any] | None = None,
) -> None:
    """Apply a turn's entries, each made by `entry` or `whole`, that still count or counted until it was resumed."""
    void = void_entries(part)
    mine = own_entries(part.lines, agent_name)
    own = [line for line in mine if id(line) not in void or line.get("type") in _MESSAGES]
    entries = [(entry or whole)(line) for line in own]
    history.until_resumed.void |= {id(made) for line, made in zip(own, entries, strict=True) if id(line) in void}
    history.extend(entries, closed="status" in part.last or "messages" in part.last)
    settle(history, part, whole)


def settle(history: History, part: Part, whole: Callable[[Any], Any]) -> None:
    """Take what a turn's end holds of messages and state.

    Args:
        history: with the turn's entries.
        part: the turn.
        whole: gives a value with its long texts.
    """
    if isinstance(given := part.last.get("messages"), str | TurnMessages) and len(part.items) == 1:
        history.settle(map(whole, json.loads(given) if isinstance(given, str) else given))
    if isinstance(part.last.get("state"), dict):
        history.settle_state(whole(part.last["state"]))


def void_entries(part: Part) -> set[int]:
    """The entries of a turn (by Python's id) that no longer count: their operation began again, or went on."""
    void = {id(part.lines[number]) for number in Journal(part.lines).void}
    stopped = (entry for item in part.items[:-1] for entry in item["lines"] if only_says_stopped(entry))
    return void | set(map(id, stopped))


def joined_turns(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The turns of a record for readers, each turn as one item, without entries that no longer count.

    An item that is `resumed`, or begins its turn anew, continues the one of the same number. `lines` are those of all.
    """
    parts: list[Part] = []
    for item in record["turns"]:
        _join(parts, item, anew=True)
    return [_joined(part, record.get("agent")) if len(part.items) > 1 else part.last for part in parts]


def _joined(part: Part, agent_name: object) -> dict[str, Any]:
    first, void = part.items[0], void_entries(part)
    trace = [entry for item in part.items for entry in item["trace"] if id(entry) not in void]
    turn = {**part.last, "input": first.get("input"), "trace": trace, "lines": part.lines}
    turn |= _sums_of(part.items)
    turn["duration_ms"] = round(sum(map(duration_of, part.items)))
    if "tools_called" in part.last:
        turn["tools_called"] = own_tools((one for one in trace if one.get("type") == "tool_execution"), agent_name)
    return turn


def _sums_of(items: list[dict[str, Any]]) -> dict[str, Any]:
    """Tokens and cost of a turn's items; of one that never ended, from its lines."""
    sums = Totals()
    for item in items:
        if "cost" in item:
            sums.include(item.get("tokens"), item["cost"], item.get("known_cost"))
        else:
            sums.spend(spent_in(item["lines"]))
    return {"tokens": sums.tokens, "cost": sums.cost, "known_cost": sums.known_cost}


def history_of(path: Path) -> History:
    """The conversation of a record's agent, with its long texts.

    Raises:
        OSError: the file cannot be read.
        ConfigError: it is not a record.
    """
    return read_history(read_lazily(path), blob_folder(path))


@dataclass
class Recorded:
    """What one agent is resumed with.

    Args:
        history: its conversation, up to the open turn.
        trace: its entries, including those of the open turn.
    """

    history: History
    trace: list[TraceEntry]


@dataclass
class RecordedSession:
    """A record as data for resuming its agent and the agents inside it.

    Args:
        head: the pairs above the turns.
        own: of the record's agent.
        inside: of inner agents, by branch.
        last: the newest item of the last turn; {} where there is none.
        open: the turn that goes on; None where it ended.
        lines: the lines up to where it goes on.
        paid: all lines, also those that no longer count: their model calls were paid.
        messages: how many messages there were when the last finished turn ended.
        rewound: all entries of the root, including those behind the place to go on from.
        unsummed: the items of killed turns since the last sums, each with the earlier lines of its turn.
    """

    head: dict[str, Any]
    own: Recorded
    inside: dict[str, Recorded]
    last: dict[str, Any]
    open: Part | None
    lines: list[TraceEntry] = field(default_factory=list)
    paid: list[TraceEntry] = field(default_factory=list)
    messages: int = 0
    rewound: list[TraceEntry] = field(default_factory=list)
    unsummed: list[tuple[list[TraceEntry], dict[str, Any]]] = field(default_factory=list)


def read_session(path: Path, at: tuple[int, int] | None = None, *, goes_on: bool = True) -> RecordedSession:
    """The session of a record.

    Args:
        path: the record.
        at: the turn and iteration to go on before; None for the end.
        goes_on: whether the last turn may go on, if it was stopped; otherwise it stays as it is.

    Raises:
        OSError: the file cannot be read.
        ConfigError: it is not a record, or has no such place.
    """
    record = read_lazily(path)
    require_agent(record, path)
    whole = partial(restored, folder=blob_folder(path))
    for item in record["turns"]:
        item["lines"] = [_line(line, whole) for line in item["lines"]]
    parts = parts_of(record, at)
    items = record.pop("turns")  # the rest is the head
    last = next((part for part in reversed(parts) if part.is_turn), None)
    opened = last if last is not None and last.is_open and goes_on else None
    if goes_on:
        _refuse_incomplete(path, parts, opened, at)
    ended = [part for part in parts if part is not opened]
    history = history_begun(record, whole, History)
    for part in ended:
        _extend(history, part, record["agent"], whole, clone)  # the lines have their texts already
    lines = _lines_of(parts)
    amend(own_entries(_lines_of(ended), record["agent"]))
    own = Recorded(history, own_entries(lines, record["agent"]))
    session = RecordedSession(record, own, _inside(parts, opened), last.last if last else {}, opened, lines)
    session.messages = len(history.messages)
    session.paid = [line for item in items for line in item["lines"]]
    session.rewound = own_entries(session.paid, record["agent"])
    session.unsummed = _unsummed(items)
    return session


def _unsummed(items: list[dict[str, Any]]) -> list[tuple[list[TraceEntry], dict[str, Any]]]:
    found: list[tuple[list[TraceEntry], dict[str, Any]]] = []
    before: list[TraceEntry] = []  # of the same turn
    for item in items:
        if item.get("status") == BETWEEN_TURNS:
            continue
        before = before if item.get("resumed") else []
        if "session" in item:
            found = []
        else:
            found.append((list(before), item))
        before += item["lines"]
    return found


def _refuse_incomplete(path: Path, parts: list[Part], opened: Part | None, at: tuple[int, int] | None) -> None:
    """Refuse to go on with a turn that was not recorded to its end, or of which not even the first line is there."""
    if at is not None or not path.name.endswith(INCOMPLETE):
        return
    why = "is not recorded to its end, so what was done is not known"
    if opened is not None:
        raise ConfigError(f"{path} {why}; go back: place={opened.number}")
    if not any(part.is_turn for part in parts):
        raise ConfigError(f"{path} {why}: no turn is in it, so there is no place to go back to; begin a new session")


def _lines_of(parts: list[Part]) -> list[TraceEntry]:
    return [line for part in parts for line in part.lines]


def _line(line: TraceEntry, whole: Callable[[Any], Any]) -> TraceEntry:
    made: TraceEntry = whole(line)
    if isinstance(made.get("usage"), dict):
        made["usage"] = TokenUsage(**made["usage"])
    return made


def _inside(parts: list[Part], opened: Part | None) -> dict[str, Recorded]:
    """The finished turns of inner agents; their open turns are looked up when they go on."""
    found: dict[str, Recorded] = {}
    names: dict[str, Any] = {}
    for part in parts:
        lines, journal, void = _with_texts(part.lines), Journal(part.lines), void_entries(part)
        found |= {branch: Recorded(history, []) for branch, history in inside_begun(lines, set(found), History)}
        for line in lines:
            branch = line.get("branch")
            if line.get("type") == "began":
                names.setdefault(str(branch), line.get("agent"))
            is_over = part is not opened or journal.is_ended(str(line.get("id")))
            if line.get("type") == "began" and line.get("heard") and branch in found and is_over:
                found[branch].history.session.setdefault("heard", {}).update(line["heard"])
        for branch, recorded in found.items():
            entries = own_entries(lines, names[branch], branch)
            recorded.trace += entries
            ended = _of_ended_turns(entries, journal, part is not opened)
            recorded.history.extend(clone([entry for entry in ended if id(entry) not in void]))
    return found


def _with_texts(lines: list[TraceEntry]) -> list[TraceEntry]:
    """The lines without those of agents with `log=False`, which cannot be resumed."""
    return [line for line in lines if not line.get(WITHHELD)]


def inside_begun(
    lines: list[TraceEntry], known: Container[Any], kind: Callable[..., Kind]
) -> Iterator[tuple[str, Kind]]:
    """The inner agents that begin in some lines: their branches, each with the conversation that it began with.

    Args:
        lines: lines of the log.
        known: the branches that began before.
        kind: makes a history: its class.
    """
    seen: set[str] = set()
    for line in lines:
        branch = line.get("branch")
        if line.get("type") == "began" and isinstance(branch, str) and branch not in known and branch not in seen:
            seen.add(branch)
            begins = line.get("begins_with") or {}
            prompt, messages = str(line.get("system_prompt") or ""), clone(begins.get("messages"))
            changes = prompt_changes(line.get("system_prompt_changes"))
            yield branch, kind(prompt, messages, begins.get("state"), int(begins.get("turn") or 0), changes)


def turn_of(entry: TraceEntry) -> str:
    """The inner turn that an entry is about, by its place; "" for none. What closes a turn belongs to its caller's."""
    place = place_of(entry)
    around = turns_in(place.rpartition("/turn:")[0] if entry.get("type") == "agent_turn" else place)
    return around[-1] if around else ""


def _of_ended_turns(entries: list[TraceEntry], journal: Journal, all_ended: bool) -> list[TraceEntry]:
    """The entries of an inner agent's finished turns, without abandoned ones.

    Args:
        entries: the agent's own, in order.
        journal: of all lines among which they are.
        all_ended: whether every turn among these lines has ended.
    """
    found, turn = [], ""
    for entry in entries:
        turn = turn_of(entry) or turn
        if not journal.is_abandoned(turn) if all_ended else journal.is_ended(turn):
            found.append(entry)
    return found
