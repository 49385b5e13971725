"""Reads a record as data, whole or without its middle. It may come from a stranger: see `records.lines`."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from io import BufferedReader
from typing import Any

from connectagent.errors import ConfigError, ConnectAgentError
from connectagent.records.around import settle_around
from connectagent.records.file import BETWEEN_TURNS, open_to_read, refuse_newer
from connectagent.records.lines import MAX_VALUES, count_values, entry_of, pair_of, text_of, value_of
from connectagent.records.messages import KEY, TurnMessages
from connectagent.session.journal import LINES

_PIECE = 1 << 20  # bytes that are read of a line at once
ODD = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What code may raise on a record's values that connectagent would not have written."""


@contextlib.contextmanager
def refuse_odd(*paths: str | os.PathLike[str]) -> Iterator[None]:
    """Turn the errors of a `with` block that come from odd values in records into a `ConfigError`.

    It names the first line that connectagent would not have written so, if one is found.

    Args:
        paths: the records that are read.

    Raises:
        ConfigError: there was one.
    """
    try:
        yield
    except (ConnectAgentError, UnicodeError):
        raise
    except ODD as error:
        from connectagent.records.misfits import odd_text  # with the types of all entries, which few programs need

        raise ConfigError(odd_text(paths, f"{type(error).__name__}: {error}")) from error


def read_record(path: str | os.PathLike[str], most: int = MAX_VALUES, conversation: bool = True) -> dict[str, Any]:
    """A record as data; a last line that was torn by a kill is left out, and a turn that was torn before its first.

    A turn without `status` was cut off. `messages` of a turn is JSON text. `lines` of a turn are all its lines, `trace`
    those that people are shown: see `shown_lines`.

    Args:
        path: the record.
        most: how many values it may have.
        conversation: whether to read the messages and state of each turn, half of a long record.

    Raises:
        OSError: the file cannot be read.
        ConfigError: it is not a record, or is too large to be read at once.
    """
    data = load_record(path, most, conversation)
    with refuse_odd(path):
        _tell_apart(data)
    return data


def read_lazily(path: str | os.PathLike[str], most: int = MAX_VALUES) -> dict[str, Any]:
    """A record as data, like `read_record`; `messages` of a turn are read from the file when they are gone through.

    Raises:
        OSError: the file cannot be read.
        ConfigError: it is not a record, or is too large to be read at once.
    """
    reader = _Reader(most)
    with open_to_read(path) as file:
        refuse_newer(file, path)
        start = 0
        for line, _ in _with_turns(file, None, (KEY,)):
            _take(path, reader, line)
            end = file.tell()
            if line == b"\n" and end - start > len(line):
                reader.put_messages(TurnMessages(path, start, end))
            start = end
    data = _checked(path, reader.data)
    with refuse_odd(path):
        _tell_apart(data)
    return data


def _tell_apart(data: dict[str, Any]) -> None:
    # One write begins a turn, up to its first line of `trace`: what has none was torn, and nothing of it had begun.
    data["turns"] = [turn for turn in data["turns"] if turn["trace"] or turn.get("status") not in (None, BETWEEN_TURNS)]
    for turn in data["turns"]:
        turn["lines"] = [line for line in turn["trace"] if isinstance(line, dict)]
        if len(turn["lines"]) < len(turn["trace"]):
            turn["unreadable"] = len(turn["trace"]) - len(turn["lines"])
    settle_around(data["turns"])
    for turn in data["turns"]:
        turn["trace"] = shown_lines(turn["lines"], data.get("agent"))


def load_record(path: str | os.PathLike[str], most: int = MAX_VALUES, conversation: bool = True) -> dict[str, Any]:
    """A record as data, unchanged: as `read_record`, but `trace` of a turn are all its lines.

    Raises:
        OSError: the file cannot be read.
        ConfigError: it is not a record, or is too large to be read at once.
    """
    with open_to_read(path) as file:
        refuse_newer(file, path)
        return _read(path, file if conversation else (line for line, _ in _with_turns(file, None)), most)


def read_ends(path: str | os.PathLike[str], turn: int | None, most: int = 500) -> dict[str, Any]:
    """A long record without its middle, like `read_record`; its turns have no messages and no state.

    Args:
        path: the record.
        turn: the number of the turn whose entries are read; None for all turns.
        most: how many lines of `trace` are read at the beginning, and at the end. `{"type": "left_out",
            "lines": 100}` replaces those between them, in each turn.

    Raises:
        OSError: the file cannot be read.
        ConfigError: it is not a record.
    """
    with open_to_read(path) as file:
        refuse_newer(file, path)
        count = sum(1 for line, is_wanted in _with_turns(file, turn) if is_wanted and line.startswith(b"  - "))
        file.seek(0)
        data = _read(path, _ends(file, turn, most, count - most))
    with refuse_odd(path):
        _tell_apart(data)
    return data


def read_head(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The keys of a record above its turns, such as `id`, `agent`, `model`, `script`; of any length, nearly at once.

    Raises:
        OSError: the file cannot be read.
        ConfigError: it is not a record.
    """
    data = read_ends(path, None, 1)
    return {key: value for key, value in data.items() if key != "turns"}


def each_line(path: str | os.PathLike[str], most: int = MAX_VALUES) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The lines of all turns, one at a time and each with the record so far, in which turns have no lines.

    A record of any length takes the memory of its longest line: lines are let go, messages and state are not read.

    Args:
        path: the record.
        most: how many values it may have.

    Raises:
        OSError: the file cannot be read.
        ConfigError: it is not a record, or is too large to be read.
    """
    reader = _Reader(most)
    with open_to_read(path) as file:
        refuse_newer(file, path)
        for data, _ in _with_turns(file, None):
            _take(path, reader, data)
            for line in reader.let_go():
                yield reader.data, line
    _checked(path, reader.data)


def count_calls(path: str | os.PathLike[str]) -> int:
    """How many model calls a record has; its lines are not parsed.

    Raises:
        OSError: the file cannot be read.
        ConfigError: it is no regular file, or in a later format.
    """
    with open_to_read(path) as file:
        refuse_newer(file, path)
        return sum(line.startswith(b'  - {"type": "llm_call"') for line, _ in _with_turns(file, None))


def _ends(file: BufferedReader, turn: int | None, first: int, last: int) -> Iterator[bytes]:
    """The lines of a record without its middle, other turns, and the long lines of a turn's end."""
    number = left_out = 0
    for line, is_wanted in _with_turns(file, turn):
        if line.startswith(b"  - "):
            number += is_wanted
            if not is_wanted or first < number <= last:
                left_out += 1
                continue
        if left_out:
            yield b'  - {"type": "left_out", "lines": %d}\n' % left_out
            left_out = 0
        yield line


def _with_turns(
    file: BufferedReader, turn: int | None, without: tuple[bytes, ...] = (b"  messages: ", b"  state: ")
) -> Iterator[tuple[bytes, bool]]:
    """The lines of a record, empty ones for those that begin with some texts, and whether each is of that turn."""
    start, is_wanted = b"- turn: %d\n" % (turn or 0), turn is None
    while line := file.readline(_PIECE):
        is_left_out = line.startswith(without)
        pieces = [line]
        while pieces[-1] and not pieces[-1].endswith(b"\n"):
            more = file.readline(_PIECE)
            pieces = [more] if is_left_out else [*pieces, more]
        line = pieces[-1][-1:] if is_left_out else b"".join(pieces)
        if turn is not None and line.startswith(b"- "):
            is_wanted = line == start
        yield line, is_wanted


def _read(path: str | os.PathLike[str], lines: Iterable[bytes], most: int = MAX_VALUES) -> dict[str, Any]:
    reader = _Reader(most)
    for line in lines:
        _take(path, reader, line)
    return _checked(path, reader.data)


def _take(path: str | os.PathLike[str], reader: _Reader, line: bytes) -> None:
    if line.endswith(b"\n"):  # else it is torn, or being written
        try:
            reader.take(line)
        except ValueError as error:
            raise ConfigError(f"{path}: not a record: line {reader.number} {_reason(error)}") from error


def _reason(error: ValueError) -> str:
    if type(error) is ValueError:
        return str(error)
    at = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
    return f"is not written as records are{at}"


def _checked(path: str | os.PathLike[str], data: dict[str, Any]) -> dict[str, Any]:
    turns = data["turns"] = data.get("turns") or []
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise ConfigError(f"{path}: not a record: it has no list of 'turns'")
    for turn in turns:
        turn["trace"] = turn.get("trace") or []
        if not isinstance(turn["trace"], list):
            raise ConfigError(f"{path}: not a record: the 'trace' of a turn is not a list")
    return data


def require_agent(record: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Refuse a record that does not name its agent.

    Raises:
        ConfigError: it does not.
    """
    if record.keys() <= {"format", "turns"}:
        raise ConfigError(f"{path}: an empty record: its process was killed before it had written the head")
    if not isinstance(record.get("agent"), str):
        raise ConfigError(f"{path}: not a record: it has no 'agent:'")


class _Reader:
    """Reads a record line by line.

    Attributes:
        data: what was read.
        number: of the last line.
    """

    def __init__(self, most: int) -> None:
        self.data: dict[str, Any] = {}
        self.number = 0
        self._most = most
        self._values = 0
        self._turns: list[Any] | None = None
        self._trace: list[Any] | None = None

    def take(self, line: bytes) -> None:
        """Read a line.

        Raises:
            ValueError: it is not written as records are, or the record is too large.
        """
        self.number += 1
        text = text_of(line)
        self._values += count_values(text)
        if self._values > self._most:
            raise ValueError(f"is behind {self._most} values: the record holds more than is read at once")
        if text.startswith("  - ") and self._trace is not None:
            self._trace.append(entry_of(text) if text.startswith("{", 4) else value_of(text[4:]))
        elif text and not text.startswith("#"):
            self._take_pair(text)

    def let_go(self) -> list[dict[str, Any]]:
        """The lines of the newest turn, which it then no longer has; what is no line is left out."""
        trace = self._turns[-1].get("trace") if self._turns else None
        if not trace or not isinstance(trace, list):
            return []
        lines = [line for line in trace if isinstance(line, dict)]
        trace.clear()
        return lines

    def put_messages(self, messages: TurnMessages) -> None:
        """Put the messages of the newest turn, whose line was left out, where they belong."""
        self._trace = None
        if self._turns:
            self._turns[-1]["messages"] = messages

    def _take_pair(self, text: str) -> None:
        self._trace = None
        if text.startswith("- ") and self._turns is not None:
            self._turns.append(dict([pair_of(text[2:])]))
        elif text == "  trace:" and self._turns and "trace" not in self._turns[-1]:
            self._trace = self._turns[-1]["trace"] = []
        elif text.startswith("  ") and self._turns:
            self._turns[-1].update([pair_of(text[2:])])
        elif text == "turns:" and "turns" not in self.data:
            self._turns = self.data["turns"] = []
        else:
            self._turns = None
            self.data.update([pair_of(text)])


def own_entries(lines: list[dict[str, Any]], agent_name: object, branch: str | None = None) -> list[dict[str, Any]]:
    """The entries of one agent's trace among the lines of a record.

    Args:
        lines: the lines under `trace:`.
        agent_name: the agent's.
        branch: its branch, for an inner agent.
    """
    mine = (branch,) if branch is not None else (None, agent_name)
    return [line for line in lines if line.get("type") not in LINES and is_own(line, agent_name, mine)]


def is_own(line: dict[str, Any], agent_name: object, branches: tuple[Any, ...]) -> bool:
    """Whether an entry is in an agent's own trace."""
    if line.get("type") == "agent_turn":  # its `branch` is that of the agent that was asked
        return line.get("author") == agent_name or (None in branches and "author" not in line)
    return line.get("branch") in branches


def shown_lines(lines: list[dict[str, Any]], agent_name: object) -> list[dict[str, Any]]:
    """The lines that people are shown: the trace of the record's agent, and the tools that it began to run."""
    return [line for line in lines if is_shown(line, agent_name)]


def is_shown(line: dict[str, Any], agent_name: object) -> bool:
    """Whether a line is among `shown_lines`."""
    if line.get("type") in LINES:
        return line.get("type") == "began" and "call_id" in line and "/turn:" not in str(line.get("id"))
    return is_own(line, agent_name, (None, agent_name))
