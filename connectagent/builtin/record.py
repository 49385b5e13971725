"""The record: one YAML file a session, which grows by whole lines only.

Every write leaves a valid document behind: a trace entry is one line of JSON, which is YAML, and the
lines of a turn's end are one write. So a turn costs the same however long the session is, and a process
that is killed leaves at most one torn line, which has no newline.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from connectagent.builtin.files import new_record, told, warn
from connectagent.builtin.kept import Kept
from connectagent.builtin.retention import keep_limits
from connectagent.errors import ConfigError
from connectagent.hooks import around_tool, around_turn, on_trace
from connectagent.masking import refresh
from connectagent.session import TokenUsage, ToolCall, TraceEntry
from connectagent.settings import enabled

if TYPE_CHECKING:
    from connectagent.agent import Agent

BETWEEN_TURNS = "between_turns"


def record_path(agent: Agent) -> Path | None:
    """The file of the agent's present session; None where nothing is recorded (yet)."""
    for handler in agent.hooks.handlers["around_turn"]:
        record = getattr(handler.function, "__self__", None)
        if isinstance(record, Record):
            return record.path
    return None


def read_record(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A record as data; a last line that was torn by a kill is left out.

    A turn without `status` was cut off. `messages` of a turn is JSON text.

    Raises:
        OSError: the file cannot be read.
        ConfigError: it is not a record.
    """
    import yaml

    whole = Path(path).read_bytes().rpartition(b"\n")[0]
    try:
        data = yaml.load(whole, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or {}
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not a record: {error}") from error
    turns = (data.get("turns") or []) if isinstance(data, dict) else None
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise ConfigError(f"{path}: not a record: it has no list of 'turns'")
    data["turns"] = turns
    for turn in turns:
        turn["trace"] = turn.get("trace") or []
    return data


class Record:
    """Writes what happens to `.co/evals/<agent>_<started>.yaml` while it happens.

    Entries of the trace that come between turns, as `agent.execute_tool()` makes them, stand under
    `turns` as well, as an item whose `status` is `between_turns`.
    """

    def __init__(self) -> None:
        self._session: Any = {}
        self._file: _File | None = None
        self._kept: Any = None  # makes the lines of this session
        self._failed = False
        self._turn: _Turn | None = None
        self._between = False  # whether the file ends with an item for what came between turns
        self._waiting: list[str] = []  # lines that came between turns and have no item yet
        self._messages = 0  # how many of the session's messages are in the file already
        self._lock = threading.RLock()  # tools may run `execute_tool` in threads of their own

    @property
    def path(self) -> Path | None:
        return self._file.path if self._file is not None else None

    @around_turn
    def turn(self, agent: Agent, prompt: str) -> Generator[None, str, None]:
        """Write a turn's beginning, and its end before `input()` returns."""
        self._begin(agent, prompt)
        try:
            result = yield
        except BaseException as error:
            self._end(agent, None, error)
            raise
        self._end(agent, result, None)

    @around_tool
    def tool(self, agent: Agent, tool_call: ToolCall) -> Generator[None, Any, None]:
        """Write that a tool starts: after a kill, what may have happened already is known."""
        entry: TraceEntry = {"type": "tool_started", "call_id": tool_call.id, "tool_name": tool_call.name}
        entry.update(arguments=tool_call.arguments, timestamp=time.time())
        self._add(agent, entry)
        yield

    @on_trace
    def entry(self, agent: Agent, entry: TraceEntry) -> None:
        """Write an entry of the trace as one line."""
        if self._turn is not None:
            self._turn.count(agent, entry)
        self._add(agent, entry)

    def _begin(self, agent: Agent, prompt: str) -> None:
        with self._lock:
            refresh()
            self._follow(agent)
            session: Any = agent.current_session
            turn = _Turn(min(self._messages, len(session["messages"])))
            head = f"- turn: {session['turn']}\n  input: {self._kept.scalar(prompt)}\n  trace:\n"
            # In this order Ctrl-C between two lines leaves no entry without an item above it.
            lines, self._waiting, self._between = [head, *self._waiting], [], False
            self._write(agent, "".join(lines))
            self._turn = turn

    def _end(self, agent: Agent, result: str | None, error: BaseException | None) -> None:
        with self._lock:
            turn, self._turn = self._turn, None
            if self._file is not None:
                if turn is not None and agent.current_session is not None:
                    self._write(agent, turn.summary(agent, result, error, self._kept))
                    self._messages = len(agent.current_session["messages"])
                self._file.close()

    def _add(self, agent: Agent, entry: TraceEntry) -> None:
        with self._lock:
            self._follow(agent)
            if self._failed:
                return
            line = f"  - {self._kept.entry(entry)}\n"
            if self._turn is not None or self._between:
                self._write(agent, line)
            elif entry["type"] in ("tool_started", "tool_execution"):
                item = f"- turn: {self._session['turn']}\n  status: {BETWEEN_TURNS}\n  trace:\n"
                self._write(agent, "".join([item, *self._waiting, line]))
                self._waiting, self._between = [], True
            else:
                self._waiting.append(line)
            if self._turn is None and self._file is not None:
                self._file.close()

    def _follow(self, agent: Agent) -> None:
        """Leave the file of another session behind: of the one before a reset, or of the process that forked."""
        forked = self._turn is None and self._file is not None and self._file.process != os.getpid()
        if self._session is not agent.current_session or forked:
            self._session, self._file, self._failed = agent.current_session, None, False
            self._kept = Kept(agent)
            self._waiting, self._between = [], False
            first = (self._session["messages"] or [{}])[0]
            self._messages = int(first.get("role") == "system")  # the header has it

    def _write(self, agent: Agent, text: str) -> None:
        """Append whole lines. A failure is told once and ends the session's record, never the turn."""
        if self._failed:
            return
        try:
            if self._file is None:
                started = time.gmtime()
                head = _header(agent, started, self._kept).encode("utf-8", "replace")
                self._file = _File(new_record(agent.name, started), head, synced=enabled("fsync"))
                self._kept.record = self._file.path
                keep_limits(self._file.path)
            self._file.append(text.encode("utf-8", "replace"))
        except (OSError, ValueError) as error:  # ValueError: a setting that cannot be read
            self._failed = True
            warn(agent, "record", error)


class _Turn:
    """What one turn's summary is made of, gathered while the turn runs."""

    def __init__(self, first_message: int) -> None:
        self.started = time.perf_counter()
        self.first_message = first_message
        self.anchor: Any = None  # the message at that place, by which it is found again
        self.tools: list[Any] = []
        self.calls = 0
        self.tokens: int | None = None
        self.cost: float | None = 0.0

    def count(self, agent: Agent, entry: TraceEntry) -> None:
        kind = entry["type"]
        if kind == "tool_execution":
            self.tools.append(entry.get("tool_name"))
        elif kind == "user_input":
            messages: Any = agent.current_session and agent.current_session["messages"]
            self.anchor = messages[self.first_message] if self.first_message < len(messages) else None
        elif kind == "llm_call" and entry.get("status") == "success":
            usage = entry.get("usage")
            self.calls += 1
            cost = None
            if isinstance(usage, TokenUsage):
                self.tokens = (self.tokens or 0) + (usage.input_tokens or 0) + (usage.output_tokens or 0)
                cost = usage.cost
            self.cost = None if cost is None or self.cost is None else self.cost + cost

    def summary(self, agent: Agent, result: str | None, error: BaseException | None, kept: Kept) -> str:
        session: Any = agent.current_session
        status = session.get("outcome") or "ended"
        pairs = {
            "model": kept.scalar(agent.llm.model),
            "duration_ms": str(round((time.perf_counter() - self.started) * 1000)),
            "tokens": kept.line(self.tokens if self.calls else 0),
            "cost": kept.line(self.cost),
            "tools_called": kept.line(self.tools),
            "result": kept.line(result),
            "messages": kept.messages(self._own(session["messages"])),
        }
        if error is not None:
            status = "error" if isinstance(error, Exception) else "interrupted"
            pairs["error"] = kept.line(f"{type(error).__name__}: {told(str, error)}")
        pairs["status"] = kept.scalar(status)
        return "".join(f"  {key}: {value}\n" for key, value in pairs.items())

    def _own(self, messages: list[Any]) -> list[Any]:
        """The turn's messages, though handlers may have changed how many are before them."""
        first = min(self.first_message, len(messages))
        if self.anchor is not None and (first == len(messages) or messages[first] is not self.anchor):
            found = (index for index in range(len(messages) - 1, -1, -1) if messages[index] is self.anchor)
            first = next(found, first)
        return messages[first:]


class _File:
    """A file of one session alone, appended to in whole lines.

    How much of a write has reached the file is told by the file's size, since Ctrl-C may come after any
    step: what was interrupted is completed at once, or with the next write.
    """

    def __init__(self, path: Path, head: bytes, synced: bool) -> None:
        self.path = path
        self.process = os.getpid()
        self._synced = synced
        self._pending = (0, head)  # where in the file it belongs, and what is not known to be there
        self._fd: int | None = None

    def append(self, data: bytes) -> None:
        if os.getpid() != self.process:
            return  # a fork inside a turn: the file is the parent's
        if self._fd is None:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        position, queued = self._pending
        pending = (position if queued else os.fstat(self._fd).st_size, queued + data)
        try:
            self._pending = pending
            self._flush(self._fd)
        except KeyboardInterrupt:
            self._pending = pending
            self._flush(self._fd)
            raise

    def _flush(self, fd: int) -> None:
        position, data = self._pending
        left = len(data) + 1
        while True:
            status = os.fstat(fd)
            if not status.st_nlink and not self.path.exists():
                raise FileNotFoundError(2, "it was removed", str(self.path))
            rest = memoryview(data)[max(0, status.st_size - position) :]
            if not rest:
                break
            if len(rest) >= left:  # else this would go on for ever
                raise OSError(5, "something else changes it", str(self.path))
            left = len(rest)
            try:
                os.write(fd, rest)
            except OSError as error:
                with contextlib.suppress(OSError):
                    os.ftruncate(fd, position)  # no torn line is left
                raise OSError(error.errno, error.strerror, str(self.path)) from None
        if self._synced:
            os.fsync(fd)
        self._pending = (position + len(data), b"")

    def close(self) -> None:
        """Give the descriptor back: thousands of agents may be alive between their turns."""
        fd, self._fd = self._fd, None
        if fd is not None:
            with contextlib.suppress(OSError):
                os.close(fd)


def _header(agent: Agent, started: time.struct_time, kept: Kept) -> str:
    handlers = [handler for group in agent.hooks.handlers.values() for handler in group if not handler.trusted]
    return (
        f"agent: {kept.scalar(agent.name)}\n"
        f"model: {kept.scalar(agent.llm.model)}\n"
        f"started: {time.strftime('%Y-%m-%dT%H:%M:%SZ', started)}\n"
        f"plugins: {kept.line({handler.plugin: handler.version for handler in handlers})}\n"
        f"system_prompt: {kept.line(agent.system_prompt)}\n"
        "turns:\n"
    )
