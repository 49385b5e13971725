"""What the failure of a record is, where nobody names it, and whether a session shows the same one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from connectagent.data import TraceEntry
from connectagent.replay.recording import PROGRAM, RecordedTurn
from connectagent.testing.reports.trying import Shown
from connectagent.testing.symptoms import Symptom, symptom

_NO_PLUGIN = (None, PROGRAM, "(outside)", "(resume)", "(interrupt)", "connectagent")


def last_failure(turns: Sequence[RecordedTurn]) -> Symptom | None:
    """What failed last in a session: a turn, a handler, or a call that was rejected; None where nothing did."""
    for turn in reversed(turns):
        if text := next(_failures(turn), None):
            return symptom(text)
    return None


def _failures(turn: RecordedTurn) -> Iterator[str]:
    """The failures of a turn, the last one first."""
    if turn.end.get("status") == "error":
        yield from _end(turn)
    for entry in reversed(turn.entries):
        if entry.get("type") == "error" and _by(entry):
            yield f"error {entry.get('error_type')}{_by(entry)}"
        elif entry.get("type") == "tool_execution" and entry.get("status") == "rejected":
            yield f"rejected {entry.get('tool_name')}{_by(entry)}"


def _end(turn: RecordedTurn) -> Iterator[str]:
    """The error with which a turn ended."""
    kind = str(turn.end.get("error") or "").partition(":")[0].rpartition(".")[2]
    errors = (entry for entry in reversed(turn.entries) if entry.get("type") == "error")
    nothing: TraceEntry = {}
    entry = next((one for one in errors if kind in ("", one.get("error_type"))), nothing)
    kind = kind or str(entry.get("error_type"))
    if kind.isidentifier():
        yield f"error {kind}{_by(entry)}"


def _by(entry: TraceEntry) -> str:
    plugin = (entry.get("by") or {}).get("plugin")
    return "" if plugin in _NO_PLUGIN else f" by {plugin}"


def turns_that_show(wanted: Symptom, turns: Sequence[RecordedTurn]) -> Iterator[tuple[int, Shown]]:
    """The turns of a record that show a failure, the last one first."""
    for at in reversed(range(len(turns))):
        entry = wanted.found(turns[at].entries)
        if entry is not None:
            yield at, Shown(entry)


def is_same(wanted: Symptom, one: Shown, other: Shown) -> bool:
    """Whether two sessions show the same failure: of the same handler, raised in the same place."""
    if wanted.kind not in ("error", "rejected"):
        return True
    places: set[Any] = {one.raised_in, other.raised_in}
    return one.who == other.who and (len(places) == 1 or "" in places)
