"""A session as a tree of data from which parts can be taken: only what replay needs of a record."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from connectagent.data import TraceEntry
from connectagent.records.misfits import refuse_odd_lines
from connectagent.records.read import read_record, refuse_odd
from connectagent.records.yaml_lines import json_line, scalar
from connectagent.replay.inside import turns_inside
from connectagent.replay.recording import PROGRAM, RecordedTurn, Recording, Watched, checked_data
from connectagent.replay.runs import CHANGES
from connectagent.session.journal import BEGAN
from connectagent.session.moments import Moment
from connectagent.session.observers import OWN

Tree = dict[str, Any]
"""`head`: the keys above the turns. `turns`: `{"place", "before", "entries", "end"}` each.

A list or dict that stands in two places, as the arguments of a call do, is one object: a change is made in both.
"""

_NOT_NEEDED = ("timestamp", "started", "duration_ms", "at", "masked", "raised_at", "from", "author", "branch")
_OF_CALLS = (*_NOT_NEEDED, "retries", "request", "digest", "entries_since_request", "tool_calls_count")
_BY = ("plugin", "version", "hook", "handler", "tool", "agent")
_HEAD = ("agent", "model", "max_iterations", "system_prompt", "begins_with", "tools")
_END = ("error", "stream_left", "status")


class Outline(Recording):
    """A recording without the requests: they are dear to rebuild, and nothing is compared with them."""

    def _watched(self, sends: dict[int, int]) -> Watched:
        watched = self.history(Watched)
        assert isinstance(watched, Watched)
        watched.seen = defaultdict(lambda: Moment([]))
        return watched


def read(path: Path) -> Outline:
    """A record.

    Raises:
        OSError: it cannot be read.
        ConfigError: it is no record.
    """
    return Outline(path, checked_data(path))


def outline(tree: Tree) -> Outline:
    """A tree as the recording that replay plays."""
    return Outline(Path("report.yaml"), data_of(tree))


def tree_of(recording: Recording) -> Tree:
    """What replay needs of a record."""
    head = {key: recording.head[key] for key in _HEAD if recording.head.get(key)}
    turns = [_turn(turn, f"T{turn.number}") for turn in recording.turns]
    return {"head": {**head, **_schemas(recording.turns)}, "turns": turns}


def _schemas(turns: Iterable[RecordedTurn]) -> Tree:
    """The tools as the model was offered them last; {} where they are not known."""
    found = [sent.schemas for turn in turns for sent in turn.sent if sent.schemas]
    return {"tools": found[-1]} if found else {}


def sessions_in(recording: Recording) -> Iterator[tuple[Tree, list[RecordedTurn]]]:
    """The session of a record, and those of the agents inside it, each as a session of its own.

    Yields:
        what replay needs of it, and its turns.
    """
    yield tree_of(recording), recording.turns
    began: dict[Any, TraceEntry] = {}
    for line in (line for item in recording.items for line in item["lines"]):
        if line.get("type") == BEGAN and "agent" in line:
            began.setdefault(str(line.get("branch")).partition(".")[2], line)
    for branch, turns in turns_inside(recording).items():
        line = began.get(branch, {})
        head = {"agent": line.get("agent"), "system_prompt": line.get("system_prompt"), "model": _model(turns.values())}
        head = {key: value for key, value in head.items() if value} | _schemas(turns.values())
        yield {"head": head, "turns": [_turn(turn, id) for id, turn in turns.items()]}, list(turns.values())


def _model(turns: Iterable[RecordedTurn]) -> Any:
    return next((entry.get("model") for turn in turns for entry in turn.answers), None)


def _turn(turn: RecordedTurn, place: str) -> Tree:
    entries = [_lean(entry) for entry in turn.entries if _is_played(entry)]
    before = [_lean(entry) for entry in turn.before if _is_played(entry)]
    _offer(entries, next((sent.tools for sent in turn.sent if sent.tools), None))
    begun = any(entry.get("type") == "user_input" for entry in entries)
    given = "" if begun else turn.input.get("prompt") or ""
    end = {key: turn.end[key] for key in _END if turn.end.get(key) is not None}
    return {"place": place, "input": given, "before": before, "entries": entries, "end": end}


def _offer(entries: list[TraceEntry], names: list[str] | None) -> None:
    """Note the tools at a turn's first model call; in a record, that of an earlier turn may have them."""
    first = next((entry for entry in entries if entry.get("type") == "llm_call"), None)
    if first is not None and names:
        first["tools"] = list(names)


def _is_played(entry: TraceEntry) -> bool:
    """Whether replay takes anything from an entry; what handlers did then is not played."""
    kind, by = entry.get("type"), entry.get("by") or {}
    if kind == "change":
        return entry.get("of") in ("tool_call", "tool_execution")
    if kind in CHANGES:
        return bool(by.get("tool")) or by.get("plugin") in (PROGRAM, OWN["plugin"])
    return kind in ("user_input", "llm_call", "tool_execution", "paused", "resumed")


def _lean(entry: TraceEntry) -> TraceEntry:
    """An entry without times, places in files and empty values."""
    left_out = _OF_CALLS if entry.get("type") == "llm_call" else _NOT_NEEDED
    made = {key: _MADE.get(key, _same)(value) for key, value in entry.items() if key not in left_out}
    return {key: value for key, value in made.items() if key in _EVEN_EMPTY or value not in (None, [], {})}


def _by(by: Any) -> Any:
    return {key: value for key, value in by.items() if key in _BY and value is not None} if isinstance(by, dict) else by


def _without_by(value: Any) -> Any:
    return {key: item for key, item in value.items() if key != "by"} if isinstance(value, dict) else value


def _same(value: Any) -> Any:
    return value


_EVEN_EMPTY = ("content", "result", "prompt", "arguments")
_MADE: dict[str, Callable[[Any], Any]] = {"by": _by, "value": _without_by, "timing": lambda timing: int(bool(timing))}


def share_arguments(entries: list[TraceEntry]) -> None:
    """Make the equal arguments of one call one object."""
    known: dict[str, Any] = {}
    for entry in entries:
        calls = entry.get("tool_calls") if isinstance(entry.get("tool_calls"), list) else [entry.get("call") or {}]
        for call in (call for call in calls or () if isinstance(call, dict) and "arguments" in call):
            known[str(call.get("id"))] = call["arguments"]
        same = known.get(str(entry.get("call_id")))
        if same is not None and entry.get("arguments") == same:
            entry["arguments"] = same


# -- back to a record ----------------------------------------------------------------------------


def data_of(tree: Tree) -> dict[str, Any]:
    """A tree as `read_record` would give it: the turns and iterations that are left are numbered anew."""
    turns = []
    for number, turn in enumerate(tree["turns"], 1):
        trace = [_outside(entry, number) for entry in turn["before"]]
        trace += _numbered(turn, number)
        given = next((entry for entry in trace if entry.get("type") == "user_input"), {})
        item = {"turn": number, "input": str(given.get("prompt", turn["input"])), **turn["end"]}
        turns.append({**item, "trace": trace, "lines": list(trace)})
    return {"format": 1, **tree["head"], "turns": turns}


def _outside(entry: TraceEntry, number: int) -> TraceEntry:
    return {**entry, "id": re.sub(r"^B\d+", f"B{number - 1}", str(entry["id"]))} if "id" in entry else dict(entry)


def _numbered(turn: Tree, number: int) -> list[TraceEntry]:
    iterations = {entry["iteration"] for entry in turn["entries"] if isinstance(entry.get("iteration"), int)}
    now = {old: new for new, old in enumerate(sorted(iterations), 1)}
    place = re.compile(rf"{re.escape(turn['place'])}(?:/(\d+))?(?=/|\Z)")

    def moved(match: re.Match[str]) -> str:
        return f"T{number}" + (f"/{now.get(int(match[1]), match[1])}" if match[1] else "")

    made = []
    for entry in turn["entries"]:
        changed: TraceEntry = {}
        if "id" in entry:
            changed["id"] = place.sub(moved, str(entry["id"]), count=1)
        if entry.get("iteration") in now:
            changed["iteration"] = now[entry["iteration"]]
        if entry.get("type") == "user_input":
            changed["turn"] = number
        made.append({**entry, **changed})
    return made


def text_of(head: dict[str, Any], tree: Tree) -> str:
    """A tree as the text of a record, with these keys above its own."""
    data = data_of(tree)
    turns = data.pop("turns")
    lines = [f"{key}: {_value(value)}" for key, value in {**data, **head}.items()]
    lines.append("turns:")
    for item in turns:
        lines += [f"- turn: {item['turn']}", f"  input: {_value(item['input'])}", "  trace:"]
        lines += [f"  - {json_line(entry)}" for entry in item["trace"]]
        lines += [f"  {key}: {_value(item[key])}" for key in _END if key in item]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    return scalar(value) if isinstance(value, str) else json_line(value)


def from_report(path: Path) -> tuple[dict[str, Any], Outline]:
    """The head of a report, and its session as a recording.

    Raises:
        OSError: it cannot be read.
        ConfigError: it is no record.
    """
    data = read_record(path)
    with refuse_odd(path):
        refuse_odd_lines(path, data, data["turns"])
        recording = Outline(path, data)
    return recording.head, recording


def size(tree: Tree) -> int:
    """How many characters a tree takes, about."""
    return len(json.dumps(tree, ensure_ascii=False, default=str))
