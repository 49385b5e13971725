"""The record: one YAML file a session, which grows by whole lines only.

Every write leaves a valid document behind: a trace entry is one line of JSON, which is YAML, and the
lines of a turn's end are one write. So a turn costs the same however long the session is, and a process
that is killed leaves at most one torn line, which has no newline.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Generator
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from connectagent.builtin.files import new_record, told, warn
from connectagent.builtin.kept import Kept
from connectagent.builtin.retention import keep_limits
from connectagent.errors import Paused
from connectagent.hooks import around_tool, around_turn, on_trace
from connectagent.masking import refresh
from connectagent.messages import text_of
from connectagent.records import BETWEEN_TURNS, Totals, lock, summarise
from connectagent.session import TokenUsage, ToolCall, TraceEntry
from connectagent.settings import enabled

if TYPE_CHECKING:
    from connectagent.agent import Agent
    from connectagent.pausing import Origin


def record_path(agent: Agent) -> Path | None:
    """The file of the agent's present session; None where nothing is recorded (yet)."""
    for handler in agent.hooks.handlers["around_turn"]:
        record = getattr(handler.function, "__self__", None)
        if isinstance(record, Record):
            return record.path
    return None


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
        self._origin: Origin | None = None  # the record that the session was resumed from
        self._place: tuple[int, int] | None = None  # where the session was taken back to before the next turn
        self._between = False  # whether the file ends with an item for what came between turns
        self._waiting: list[str] = []  # lines that came between turns and have no item yet
        self._totals = Totals()  # of the turns that have ended, for those who read the file's tail alone
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
            head = f"- turn: {session['turn']}\n  input: {self._kept.scalar(prompt)}\n"
            if self._is_resumed(session):
                turn.resumed, turn.first_iteration = True, session["iteration"]
                turn.anchor = _message_of(session, prompt)
                head = f"- turn: {session['turn']}\n  resumed: true\n"
            if self._place is not None:
                head, self._place = f"{head}  from: {list(self._place)}\n", None
            head += "  trace:\n"
            # In this order Ctrl-C between two lines leaves no entry without an item above it.
            lines, self._waiting, self._between = [head, *self._waiting], [], False
            self._write(agent, "".join(lines))
            self._turn = turn

    @staticmethod
    def _is_resumed(session: Any) -> bool:
        """Whether the turn had begun in another process: its first entry is in the trace already."""
        begun = (entry for entry in reversed(session["trace"]) if entry.get("type") == "user_input")
        return bool(next(begun, {"turn": 0})["turn"] == session["turn"])

    def _end(self, agent: Agent, result: str | None, error: BaseException | None) -> None:
        with self._lock:
            turn, self._turn = self._turn, None
            if self._file is not None:
                if turn is not None and agent.current_session is not None:
                    self._write(agent, turn.summary(agent, self._totals, result, error, self._kept))
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
            self._waiting, self._between, self._totals = [], False, Totals()
            first = (self._session["messages"] or [{}])[0]
            self._messages = int(first.get("role") == "system")  # the header has it
            origin, self._place = agent.origin, None
            self._origin = origin if origin is not None and origin.session is self._session else None
            if self._origin is not None:
                self._messages, self._place = len(self._session["messages"]), self._origin.place
                self._totals = summarise(self._origin.record).totals or Totals()
                if not self._origin.fork and not forked:
                    self._file = _File(self._origin.record, b"", synced=enabled("fsync"))
                    self._kept.record = self._origin.record

    def _write(self, agent: Agent, text: str) -> None:
        """Append whole lines. A failure is told once and ends the session's record, never the turn."""
        if self._failed:
            return
        try:
            if self._file is None:
                started = time.gmtime()
                head = _header(agent, started, self._kept).encode("utf-8", "replace")
                if self._origin is not None:
                    head = _forked(self._origin.record)
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
        self.resumed = False  # whether it began in another process
        self.first_iteration = 0
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

    def summary(
        self, agent: Agent, totals: Totals, result: str | None, error: BaseException | None, kept: Kept
    ) -> str:
        session: Any = agent.current_session
        status = session.get("outcome") or "ended"
        spent = self.tokens if self.calls else 0
        long = [[plugin, hook, round(at, 3), round(took * 1000, 3)] for plugin, hook, at, took in agent.hooks.long]
        totals.add(not self.resumed, session["iteration"] - self.first_iteration, len(self.tools), spent, self.cost)
        pairs = {
            "model": kept.scalar(agent.llm.model),
            "duration_ms": str(round((time.perf_counter() - self.started) * 1000)),
            "tokens": kept.line(spent),
            "cost": kept.line(self.cost),
            "tools_called": kept.line(self.tools),
            "result": kept.line(result),
            "messages": kept.messages(self._own(session["messages"])),
            **({"handlers": kept.line(long)} if long else {}),
            "session": kept.line(totals.data()),  # behind all that may be long: who lists records reads tails
        }
        if error is not None:
            status = "error" if isinstance(error, Exception) else "interrupted"
            status = "paused" if isinstance(error, Paused) else status
            pairs["error"] = kept.line(f"{type(error).__name__}: {told(str, error)}".removeprefix("Paused: "))
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
        self._whole = bool(head)  # else the file's last line may be torn
        self._open_file: FileIO | None = None

    def append(self, data: bytes) -> None:
        if os.getpid() != self.process:
            return  # a fork inside a turn: the file is the parent's
        if self._open_file is None or self._open_file.closed:
            self._open()
        assert self._open_file is not None
        position, queued = self._pending
        pending = (position if queued else os.fstat(self._open_file.fileno()).st_size, queued + data)
        try:
            self._pending = pending
            self._flush(self._open_file.fileno())
        except KeyboardInterrupt:
            self._pending = pending
            self._flush(self._open_file.fileno())
            raise

    def _open(self) -> None:
        # No lock may be left behind by Ctrl-C: a FileIO is closed in one step, at the latest with its last reference.
        file = FileIO(self.path, "r+", opener=lambda path, flags: os.open(path, os.O_RDWR | os.O_APPEND))
        try:
            if not _locked(file.fileno()):
                raise OSError(11, "another agent is writing it", str(self.path))
            if not self._whole:
                _drop_torn_line(file.fileno())
            self._open_file, self._whole = file, True
        except BaseException:
            file.close()
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
        if self._open_file is not None:
            self._open_file.close()


def _locked(fd: int) -> bool:
    """Take the writer's lock; readers that ask whether somebody writes hold it for a moment."""
    for _ in range(50):
        if lock(fd) is not False:
            return True
        time.sleep(0.01)
    return False


def _drop_torn_line(fd: int) -> None:
    """Take away a last line that a kill has torn, so that the next one begins at a line's beginning."""
    end = os.fstat(fd).st_size
    while end:
        start = max(0, end - 65536)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            return os.ftruncate(fd, start + newline + 1)
        end = start


def _message_of(session: Any, prompt: str) -> Any:
    """The message with which a turn began that was resumed."""
    users = (message for message in reversed(session["messages"]) if message["role"] == "user")
    return next((message for message in users if text_of(message.get("content")) == prompt), None)


def _header(agent: Agent, started: time.struct_time, kept: Kept) -> str:
    handlers = [handler for group in agent.hooks.handlers.values() for handler in group if not handler.trusted]
    script = _script()
    return (
        f"agent: {kept.scalar(agent.name)}\n"
        f"model: {kept.scalar(agent.llm.model)}\n"
        f"started: {time.strftime('%Y-%m-%dT%H:%M:%SZ', started)}\n"
        + (f"script: {kept.line(script)}\n" if script else "")
        + f"plugins: {kept.line({handler.plugin: handler.version for handler in handlers})}\n"
        + (f"max_iterations: {agent.max_iterations}\n" if agent.max_iterations != 10 else "")
        + f"system_prompt: {kept.line(agent.system_prompt)}\n"
        f"{_beginning(agent, kept)}turns:\n"
    )


def _script() -> str | None:
    """The program that made the agent, as a file from which its agent can be made again."""
    for name in ("connectagent_script", "__main__"):
        file = str(getattr(sys.modules.get(name), "__file__", None) or "")
        if file.endswith(".py") and os.path.basename(file) != "__main__.py":
            return os.path.abspath(file)
    return None


def _beginning(agent: Agent, kept: Kept) -> str:
    """What the session began with, where it did not begin here, or not with nothing."""
    session: Any = agent.current_session
    begins = {key: session[key] for key in ("messages", "state")}
    begun = (entry.get("turn") for entry in reversed(session["trace"]) if entry.get("type") == "user_input")
    begins["turn"] = next(begun, 0)
    system = [{"role": "system", "content": agent.system_prompt}] if agent.system_prompt else []
    if begins["messages"] == system:
        del begins["messages"]
    begins = {key: value for key, value in begins.items() if value}
    return f"begins_with: {kept.line(begins)}\n" if begins else ""


def _forked(record: Path) -> bytes:
    """What a fork begins with: the record that it was made from, which it names."""
    whole = record.read_bytes()
    head, turns, rest = whole[: whole.rfind(b"\n") + 1].partition(b"\nturns:\n")
    head = head.partition(b"\nforked_from: ")[0]  # of a fork of a fork; it is the last line
    return head + f"\nforked_from: {json.dumps(str(record))}".encode() + turns + rest
