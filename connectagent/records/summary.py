"""Summaries of records, from their head and tail."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from connectagent.errors import ConfigError
from connectagent.records.disk import read_at
from connectagent.records.file import BETWEEN_TURNS, FORMAT, INCOMPLETE, open_to_read
from connectagent.records.find import agent_in_name
from connectagent.records.lines import entry_of, pair_of, text_of, value_of
from connectagent.records.locks import is_elsewhere, lock
from connectagent.session.usage import Totals, spent_in

_BLOCK = 4096
_MOST_HEAD = 1 << 18  # bytes that a long system prompt may take before the first input
_MOST_TAIL = 1 << 23  # bytes after the last sums
NEWER = "newer"  # the status of a record in a later format
_ITEM = re.compile(rb"^(?:- |  )(turn|session|status|trace(?=:\n  - )): ?([^\n]*)\n", re.MULTILINE)
_OWNER = re.compile(rb"^  owner: ([^\n]*)\n", re.MULTILINE)
_CALL = re.compile(rb'^  - [^\n]*?"type": ?"(?:llm_call|began|closed)"[^\n]*', re.MULTILINE)
_TEXT = re.compile(r'"((?:[^"\\]|\\u[0-9a-fA-F]{4}|\\[^u])*)')


@dataclass(slots=True)
class Summary:
    """The summary of one record.

    Args:
        path: the file.
        id: the session's id, or None.
        agent: the agent's name.
        model: the model that the session began with.
        started: when the session began (UTC), or None.
        script: the script that made the agent, or None.
        status: of the last turn: `answered`, `ended`, `max_iterations`, `error`, `interrupted`, `cancelled`, `paused`;
            `running` while a process is writing it, `crashed` where the process is gone, `unfinished` where nobody can
            tell: another host began the turn, or the system has no locks; `not recorded from turn 3` where the disk
            was full; `newer` of a record that a later version wrote; `between_turns` and `empty` of a session without
            a turn.
        turns: how many turns have begun; None where head and tail do not show it.
        totals: the sums of finished turns; None where the tail does not have them.
        first_words: of the first input.
        size: bytes.
    """

    path: Path
    id: str | None
    agent: str
    model: str | None
    started: datetime.datetime | None
    script: str | None
    status: str
    turns: int | None
    totals: Totals | None
    first_words: str
    size: int

    def data(self) -> dict[str, Any]:
        """The summary as data for JSON."""
        sums = (self.totals or Totals(tokens=None, cost=None)).data() | {"turns": self.turns}
        if self.totals is None:
            sums |= {"iterations": None, "tools": None, "known_cost": None}
        else:
            sums["known_cost"] = self.totals.known_cost
        return {
            "path": str(self.path),
            "id": self.id,
            "agent": self.agent,
            "model": self.model,
            "started": self.started.isoformat().replace("+00:00", "Z") if self.started else None,
            "script": self.script,
            "status": self.status,
            **sums,
            "first_words": self.first_words,
            "size": self.size,
        }


def summarise(path: str | os.PathLike[str], held: bool = False) -> Summary:
    """Summarise a record; only its head and tail are read, some kilobytes.

    Args:
        path: the record.
        held: whether the caller holds the record's lock.

    Raises:
        OSError: the file cannot be read.
        ConfigError: it is not a record.
    """
    with open_to_read(path) as file:
        fd = file.fileno()
        size = os.fstat(fd).st_size
        head, first_words = _head(fd, size)
        if "agent" not in head and not b"format: ".startswith(read_at(fd, 8, 0)):
            raise ConfigError(f"{path}: not a record: it has no 'agent:'")
        tail = _tail(fd)
        status, tail = (tail.status, tail) if tail.status else _unended(fd, tail)
        if isinstance(number := head.get("format"), int) and number > FORMAT:
            status = NEWER
        if str(path).endswith(INCOMPLETE):
            status = "not recorded" + ("" if tail.turns is None else f" from turn {tail.turns + bool(tail.status)}")
    started = head.get("started")
    return Summary(
        path=Path(path),
        id=head["id"] if isinstance(head.get("id"), str) else None,
        agent=str(head.get("agent") or agent_in_name(Path(path))),
        model=head.get("model"),
        started=started if isinstance(started, datetime.datetime) else None,
        script=head.get("script"),
        status=status,
        turns=tail.turns,
        totals=tail.all_totals(status == "running" and not held),
        first_words=first_words,
        size=tail.size,
    )


def _unended(fd: int, tail: _Tail) -> tuple[str, _Tail]:
    """The status of a turn that has none in the record: a running writer holds a lock on the file."""
    free = lock(fd, shared=True)
    if not free:
        return "unfinished" if free is None else "running", tail
    tail = _tail(fd)  # it may have ended since it was read
    return tail.status or ("unfinished" if is_elsewhere(tail.owner) else "crashed"), tail


# -- the head ------------------------------------------------------------------------------------


def _head(fd: int, size: int) -> tuple[dict[str, Any], str]:
    """The pairs above the turns, and the first words of the first input."""
    length = _BLOCK
    while True:
        data = read_at(fd, length, 0)
        head, words = _pairs(data.decode("utf-8", "ignore"))
        if words is not None or length >= min(size, _MOST_HEAD):
            return head, words or ""
        length *= 4


def _pairs(text: str) -> tuple[dict[str, Any], str | None]:
    head: dict[str, Any] = {}
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if line.startswith("  input: "):
            return head, _words(line[9:])
        if line.startswith("  trace:"):  # of an item before the first turn
            continue
        if number == len(lines) - 1:  # the last one may go on
            break
        if line == "turns:":
            head["turns"] = None
        elif not line.startswith((" ", "-")):
            try:
                key, value = pair_of(line)
            except ValueError:
                continue
            head[key] = value
    return head, None


def _words(raw: str, most: int = 200) -> str:
    """The first line of a text whose JSON may be cut off anywhere."""
    found = _TEXT.match(raw[: most * 6])
    text = raw[:most] if found is None else str(json.loads(f'"{found[1]}"', strict=False))
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:most]


# -- the tail ------------------------------------------------------------------------------------


class _Tail(NamedTuple):
    """The end of a record; the names are those of `Summary`, and `status` is None for an open turn."""

    size: int
    status: str | None
    turns: int | None
    totals: Totals | None
    calls: list[dict[str, Any]]  # the lines of model calls that follow the sums
    owner: Any = None  # the process that began the last item

    def all_totals(self, running: bool) -> Totals | None:
        """The sums, with the model calls after them."""
        spent = spent_in(self.calls, running)
        if self.totals is not None and spent.calls:
            self.totals.spend(spent)
        return self.totals


def _tail(fd: int) -> _Tail:
    """The last sums of a record, and the items after them."""
    size = os.fstat(fd).st_size
    end, is_whole = _end(fd, size)
    lines = [(key.decode(), value.decode("utf-8", "replace")) for key, value in _ITEM.findall(end)]
    summed = bool(lines) and lines[0][0] == "session"
    totals = _sums(lines[0][1]) if summed else Totals()
    items = _items(lines[summed:], began_before=summed or not is_whole)
    turns = [item for item in items if item[1] != BETWEEN_TURNS]
    if not turns:
        return _Tail(size, BETWEEN_TURNS if items else "empty", 0, totals, _calls(end))
    if not summed and (not is_whole or any(status for _, status in turns)):  # without sums for them
        totals = None
    return _Tail(size, turns[-1][1], _last_number(turns, totals), totals, _calls(end), _owner(end))


def _owner(end: bytes) -> Any:
    """The process that began the last turn; None where the record does not say."""
    with contextlib.suppress(ValueError):
        for line in reversed(_OWNER.findall(end)):
            return value_of(text_of(line))
    return None


def _items(lines: list[tuple[str, str]], began_before: bool) -> list[list[str | None]]:
    """The number and the status of each item."""
    items: list[list[str | None]] = [[None, None]] if began_before else []
    torn = False
    for key, value in [*lines, ("turn", "")]:
        if key == "turn":
            if torn and items[-1][1] in (None, BETWEEN_TURNS):  # before its first line
                items.pop()
            items.append([value, None])
        elif items and key != "trace":
            items[-1][1] = value
        torn = key == "turn" or (torn and key != "trace")
    return items[:-1]


def _last_number(turns: list[list[str | None]], totals: Totals | None) -> int | None:
    numbers = [int(number) for number, _ in turns if number and number.isdecimal() and len(number) < 19]
    if numbers:
        return numbers[-1]
    return totals.turns if totals else None


def _sums(raw: str) -> Totals | None:
    """The sums of a line `session: {...}`; None where it has none."""
    with contextlib.suppress(ValueError):
        sums = value_of(raw)
        names = [field.name for field in dataclasses.fields(Totals)]
        known: dict[str, Any] = {name: sums.get(name) for name in names} if isinstance(sums, dict) else {}
        whole = (known.get(name) for name in ("turns", "iterations", "tools"))
        if known.get("known_cost") is None:  # all prices are known, or an earlier version wrote the line
            known["known_cost"] = known.get("cost") or 0.0
        may_lack = (known.get(name) for name in ("tokens", "cost", "known_cost") if known.get(name) is not None)
        if all(type(value) is int for value in whole) and all(type(value) in (int, float) for value in may_lack):
            return Totals(**known)
    return None


def _calls(end: bytes) -> list[dict[str, Any]]:
    """The lines of model calls."""
    found = []
    for line in _CALL.findall(end):
        with contextlib.suppress(ValueError):
            found.append(entry_of(text_of(line)))
    return found


def _end(fd: int, size: int) -> tuple[bytes, bool]:
    """The whole lines from the last `session:` line on, and whether the lines are complete.

    Without such a line they are all lines, or the last ones of a long file, which are not complete.
    """
    start = size
    data = b""
    at = -1
    block = _BLOCK
    while start and at < 0 and size - start < _MOST_TAIL:
        begin = max(0, start - block)
        block = block * 2
        data = read_at(fd, start - begin, begin) + data
        start = begin
        at = data.rfind(b"\n  session: ", 0, data.rfind(b"\n") + 1)  # no line that is torn
    return data[max(0, at) : data.rfind(b"\n") + 1], at >= 0 or not start
