"""The times that tools ran in a recorded turn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from connectagent.data import TraceEntry
from connectagent.errors import ToolArgumentsError
from connectagent.records.history import turn_of
from connectagent.session.journal import TOOL_ENDED

RESUME = "(resume)"  # the plugin, in `by`, of a decision
CHANGES = ("message", "message_edited", "message_removed", "state_delta", "lost_update", "session_delta")


@dataclass(slots=True)
class Run:
    """One time that a tool ran: the call, what came of it, and what it changed in the session."""

    id: str
    name: str
    arguments: Any
    outcome: TraceEntry
    changes: list[TraceEntry] = field(default_factory=list)
    used: bool = False


def runs_of(entries: list[TraceEntry], bodies: Iterable[TraceEntry] = ()) -> list[Run]:
    """The times that tools ran in a turn.

    Args:
        entries: the turn's own, in order; those of what a tool changed come before its own.
        bodies: what came of the tools of each round, as `ended_bodies` has it: a round that was stopped has no more.
    """
    runs = list(_counted(entries))
    known = {(run.id, str(run.outcome.get("iteration"))) for run in runs}
    for entry in bodies:
        call, name = str(entry.get("call_id")), str(entry.get("tool_name"))
        if (call, str(entry.get("iteration"))) not in known:
            taken = {id(one) for run in runs for one in run.changes}
            own = (one for one in entries if one.get("type") in CHANGES and (one.get("by") or {}).get("tool") == name)
            changes = [one for one in own if id(one) not in taken]
            runs.append(Run(call, name, entry.get("arguments"), entry, changes))
    return runs


def ended_bodies(lines: Iterable[TraceEntry]) -> dict[str, list[TraceEntry]]:
    """What came of tools whose rounds were not over, by the inner turn; "" for the record's agent."""
    found: dict[str, list[TraceEntry]] = {}
    for line in lines:
        if line.get("type") == TOOL_ENDED and "status" in line["entry"]:
            found.setdefault(turn_of(line), []).append(line["entry"])
    return found


def _counted(entries: list[TraceEntry]) -> Iterator[Run]:
    """The runs whose results count; the entries of what each changed come before its own."""
    changed: dict[str, list[TraceEntry]] = {}
    calls: dict[str, tuple[str, Any]] = {}
    for entry in _withoutrepeated(entries):
        kind, tool, id = entry.get("type"), (entry.get("by") or {}).get("tool"), str(entry.get("call_id"))
        if kind in CHANGES and tool:
            changed.setdefault(tool, []).append(entry)
        elif kind == "paused" and (call := _paused_call(entry)):
            outcome: TraceEntry = {"status": "paused", "reason": entry.get("reason")}
            yield Run(call["id"], call["name"], call["arguments"], outcome, changed.pop(call["name"], []))
        elif kind == "tool_execution":
            calls[id] = (str(entry.get("tool_name")), entry.get("arguments"))
            if _ran(entry):
                yield Run(id, *calls[id], entry, changed.pop(calls[id][0], []))
        elif kind == "change":
            of = entry.get("of")
            value: Any = entry.get("value")
            if of == "tool_call" and isinstance(value, dict):
                calls[str(value.get("id"))] = (str(value.get("name")), value.get("arguments"))
            elif of == "tool_execution" and id in calls and ran_again(value):
                yield Run(id, *calls[id], value, changed.pop(calls[id][0], []))


def repeated(entries: list[TraceEntry], kind: str) -> set[int]:
    """The indexes of attempts at which a turn stopped, and which it made again when it was resumed."""
    ids = {at: _attempt(entry) for at, entry in enumerate(entries) if entry.get("type") == kind}
    last = {id: at for at, id in ids.items()}
    stopped = ("interrupted", "error") if kind == "llm_call" else ("interrupted",)
    return {at for at, id in ids.items() if last[id] != at and entries[at].get("status") in stopped}


def _withoutrepeated(entries: list[TraceEntry]) -> list[TraceEntry]:
    again = repeated(entries, "tool_execution")
    return [entry for at, entry in enumerate(entries) if at not in again]


def _attempt(entry: TraceEntry) -> tuple[str, ...]:
    """Which attempt an entry is about; one of a tool that was stopped does not have its place."""
    if entry.get("type") == "llm_call" and entry.get("id"):
        return (str(entry["id"]),)  # in the record of a stranger, anything
    return str(entry.get("turn")), str(entry.get("iteration")), str(entry.get("call_id") or id(entry))


def _paused_call(entry: TraceEntry) -> Any:
    """The call whose tool itself paused the turn; None where something else did."""
    return entry.get("call") if entry.get("hook") == "tool" else None


def _ran(entry: TraceEntry) -> bool:
    """Whether the tool's function ran, or a resumed session decided in its place; a held result has another entry."""
    if "held" in entry:
        return False
    return bool(entry.get("timing")) or (entry.get("by") or {}).get("plugin") == RESUME


def ran_again(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    has_run = value.get("status") in ("success", "error", "interrupted")
    return has_run and value.get("error_type") != ToolArgumentsError.__name__
