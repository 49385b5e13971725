"""What one line tells of a record, from its head and its tail."""

from __future__ import annotations

import datetime
import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from connectagent.errors import ConfigError
from connectagent.records.find import agent_in_name
from connectagent.records.locks import lock
from connectagent.records.read import BETWEEN_TURNS, entry_of, pair_of

_BLOCK = 4096
_MOST_HEAD = 1 << 18  # bytes that a long system prompt may take before the first input
_MOST_TAIL = 1 << 16  # bytes that are read for sums alone
_TEXT = re.compile(r'"((?:[^"\\]|\\u[0-9a-fA-F]{4}|\\[^u])*)')


@dataclass(slots=True)
class Totals:
    """The sums of a session's turns.

    Args:
        turns: those that have ended, a turn that was paused and resumed once.
        iterations: model calls with their tool rounds.
        tools: tool calls, whatever became of them.
        tokens: input and output; None where no provider told.
        cost: USD; None where a price is not known.
    """

    turns: int = 0
    iterations: int = 0
    tools: int = 0
    tokens: int | None = None
    cost: float | None = 0.0

    def add(self, turns: int, iterations: int, tools: int, tokens: int | None, cost: float | None) -> None:
        """Add what one or several turns came to."""
        self.turns += turns
        self.iterations += iterations
        self.tools += tools
        self.tokens = self.tokens if tokens is None else (self.tokens or 0) + tokens
        self.cost = None if cost is None or self.cost is None else self.cost + cost

    def data(self) -> dict[str, Any]:
        """The sums as the record holds them, under `session` of each turn's summary."""
        return asdict(self)


@dataclass(slots=True)
class Summary:
    """One record in short.

    Args:
        path: the file.
        agent: the agent's name.
        model: the model that the session began with.
        started: when the session began (UTC), or None.
        script: the script that made the agent, where the record tells.
        status: of the last turn: `answered`, `ended`, `max_iterations`, `error`, `interrupted`, `paused`; `running`
            where a process is writing it, `crashed` where none is and it never ended (`unfinished` where the system
            cannot tell the two apart); `between_turns` and `empty` of a session without a turn.
        turns: turns that have begun; None where the head and the tail do not tell.
        totals: the sums of the turns that have ended; None where the tail does not tell.
        first_words: of the first input.
        size: bytes.
    """

    path: Path
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
        """The summary as JSON takes it."""
        sums = (self.totals or Totals(tokens=None, cost=None)).data() | {"turns": self.turns}
        if self.totals is None:
            sums |= {"iterations": None, "tools": None}
        return {
            "path": str(self.path),
            "agent": self.agent,
            "model": self.model,
            "started": self.started.isoformat().replace("+00:00", "Z") if self.started else None,
            "script": self.script,
            "status": self.status,
            **sums,
            "first_words": self.first_words,
            "size": self.size,
        }


def summarise(path: str | os.PathLike[str]) -> Summary:
    """A record in short; only its head and its tail are read, some kilobytes.

    Raises:
        OSError: the file cannot be read.
        ConfigError: it is not a record.
    """
    with open(path, "rb", buffering=0) as file:
        fd = file.fileno()
        size = os.fstat(fd).st_size
        head, first_words = _head(fd, size)
        if "agent" not in head and not b"format: ".startswith(os.pread(fd, 8, 0)):
            raise ConfigError(f"{path}: not a record: it has no 'agent:'")
        tail = _Tail(fd, size)
        status, tail = (tail.status, tail) if tail.status else _unended(fd, tail)
    started = head.get("started")
    return Summary(
        path=Path(path),
        agent=str(head.get("agent") or agent_in_name(Path(path))),
        model=head.get("model"),
        started=started if isinstance(started, datetime.datetime) else None,
        script=head.get("script"),
        status=status,
        turns=tail.turns,
        totals=tail.totals,
        first_words=first_words,
        size=tail.size,
    )


def _unended(fd: int, tail: _Tail) -> tuple[str, _Tail]:
    """What has become of a turn that has no status: its writer holds a lock on the file."""
    free = lock(fd, shared=True)
    if not free:
        return "unfinished" if free is None else "running", tail
    tail = _Tail(fd, os.fstat(fd).st_size)  # it may have ended since it was read
    return tail.status or "crashed", tail


# -- the head ------------------------------------------------------------------------------------


def _head(fd: int, size: int) -> tuple[dict[str, Any], str]:
    """The pairs above the turns, and the first words of the first input."""
    length = _BLOCK
    while True:
        data = os.pread(fd, length, 0)
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
        if line.startswith("  trace:"):  # of an item that came before the first turn
            continue
        if number == len(lines) - 1:  # the last one may go on
            break
        if line == "turns:":
            head["turns"] = None
        elif not line.startswith((" ", "-")):
            try:
                key, value = pair_of(line)
            except (ValueError, RecursionError):
                continue
            head[key] = value
    return head, None


def _words(raw: str, most: int = 200) -> str:
    """The first line of a text whose JSON may be cut off anywhere."""
    found = _TEXT.match(raw[: most * 6])
    text = raw[:most] if found is None else str(json.loads(f'"{found[1]}"', strict=False))
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:most]


# -- the tail ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Tail:
    """What the end of a record tells, read backwards until it is known.

    Args:
        fd: the file.
        size: where to begin.
    """

    fd: int
    size: int
    status: str | None = field(default=None, init=False)  # None: the last turn has not ended
    turns: int | None = field(default=None, init=False)
    totals: Totals | None = field(default=None, init=False)
    known: bool = field(default=False, init=False)  # whether `status` is
    ended: bool = field(default=False, init=False)  # whether some turn has
    items: bool = field(default=False, init=False)  # whether there are any
    between: bool = field(default=False, init=False)  # whether the lines are of an item between two turns

    def __post_init__(self) -> None:
        for position, line in self._lines():
            if self.known and position < self.size - _MOST_TAIL:
                return
            if line.startswith("  session: "):
                self._sums(line)
                return
            if not line.startswith((" ", "- turn: ")):  # the head
                break
            self._take(line)
        if not self.known:
            self.status = BETWEEN_TURNS if self.items else "empty"
        self.turns, self.totals = self.turns or 0, None if self.ended else Totals()

    def _take(self, line: str) -> None:
        """Learn what one line of an item tells."""
        if line.startswith("  status: "):
            self._end(line[10:])
        elif line.startswith("  - "):
            self.known = self.known or _of_a_turn(line)
        elif line.startswith("- turn: "):
            if not self.between:
                self.known = True
                self._number(line)
            self.between, self.items = False, True
        elif not line.startswith(("  trace:", "  error: ")):
            self.known = self.known or not self.between

    def _end(self, status: str) -> None:
        self.between = status == BETWEEN_TURNS
        if self.between:
            return
        self.ended = True
        if not self.known:
            self.status, self.known = status, True

    def _sums(self, line: str) -> None:
        try:
            self.totals = Totals(**pair_of(line[2:])[1])
        except (ValueError, TypeError):
            return
        if self.turns is None:
            self.turns = self.totals.turns

    def _number(self, line: str) -> None:
        if self.turns is None and line[8:].isdecimal():
            self.turns = int(line[8:])

    def _lines(self) -> Iterator[tuple[int, str]]:
        """The whole lines from the last to the first, each with where it begins."""
        position, rest, block, torn = self.size, b"", _BLOCK, True
        while position:
            start = max(0, position - block)
            data = os.pread(self.fd, position - start, start) + rest
            position, block = start, min(block * 2, 1 << 20)
            first, *lines = data.split(b"\n")
            at = start + len(data)
            for line in reversed(lines):
                at -= len(line)
                if not torn:
                    yield at, line.decode("utf-8", "replace")
                torn = False
                at -= 1
            rest = first
        if not torn:
            yield 0, rest.decode("utf-8", "replace")


def _of_a_turn(line: str) -> bool:
    """Whether an entry is one that comes in turns only."""
    try:
        return entry_of(line).get("type") in ("llm_call", "user_input")
    except (ValueError, RecursionError):
        return False
