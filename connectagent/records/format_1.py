"""Format 1 of the record, which earlier versions wrote: its lines as lines of format 2.

In format 1, a hook whose handlers only observed had no line for its end. It had ended where the code that reached it
went on after it.
"""

from __future__ import annotations

from typing import Any

from connectagent.data import TraceEntry
from connectagent.records.lines import entry_of, text_of
from connectagent.records.yaml_lines import entry_line
from connectagent.session.journal import (
    BEGAN,
    CLOSED,
    DECIDED,
    WAIT,
    frame_of,
    is_hook,
    is_inside,
    place_of,
    turns_in,
)

_FIRST = b"format: 1\n"


def begins_as_format_1(data: bytes) -> bool:
    """Whether a record is in format 1; `data`: how its file begins."""
    return data.startswith(_FIRST)


def convert(record: dict[str, Any]) -> None:
    """Convert the lines of a record that was read, if it is in format 1; `turns` are its items, with their `lines`."""
    if record.get("format") != 1:
        return
    hooks = _OpenHooks()
    for item in record["turns"]:
        made: list[TraceEntry] = []
        for line in item["lines"]:
            made += [*hooks.ended_before(line), line]
        item["lines"] = made


def converted(record: bytes) -> bytes:
    """A record in format 1 as one in format 2.

    Raises:
        ValueError: a line is not written as records are.
    """
    hooks = _OpenHooks()
    made: list[bytes] = []
    for data in record.splitlines(keepends=True):
        if data.startswith(b"  - {"):
            ended = hooks.ended_before(entry_of(text_of(data)))
            made += [f"  - {entry_line(line)}\n".encode() for line in ended]
        made.append(data)
    return b"".join(made).replace(_FIRST, b"format: 2\n", 1)


class _OpenHooks:
    """The hooks that have begun, and whose end has not been seen."""

    def __init__(self) -> None:
        self._frames: dict[str, str] = {}  # by hook: whose code reached it
        self._waits: dict[str, str] = {}  # by hook: the undecided wait of one of its handlers

    def ended_before(self, line: TraceEntry) -> list[TraceEntry]:
        """The ends of the hooks that were over before a line."""
        id, kind, place = line.get("id"), line.get("type"), place_of(line)
        ended = [hook for hook in self._frames if self._is_over(hook, line, place)]
        for hook in ended:
            del self._frames[hook]
        if isinstance(id, str):
            self._note(id, kind, line)
        return [{"type": CLOSED, "id": hook} for hook in ended]

    def _note(self, id: str, kind: Any, line: TraceEntry) -> None:
        if kind == BEGAN and is_hook(id):
            self._frames[id] = frame_of(id, _turn_of(id))
        elif kind == CLOSED:
            self._frames.pop(id, None)
        elif kind == WAIT:
            self._waits[str(line.get("hook"))] = id
        elif kind == DECIDED:
            self._waits = {hook: wait for hook, wait in self._waits.items() if wait != id}

    def _is_over(self, hook: str, line: TraceEntry, place: str) -> bool:
        """Whether a line is of the code that reached a hook, so that this went on after it."""
        turn = _turn_of(hook)
        if hook in self._waits or line.get("type") == DECIDED or place.startswith(f"{turn}/resumed"):
            return False
        return place != turn and is_inside(place, self._frames[hook]) and not is_inside(place, hook)


def _turn_of(hook: str) -> str:
    """The innermost turn around a hook."""
    return [hook.partition("/")[0], *turns_in(hook)][-1]
