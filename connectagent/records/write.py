"""The log of a session: in memory while a turn is open, and one YAML file that grows by whole lines.

Every write leaves a valid document: a trace entry is one line of JSON, which is YAML, and the lines of a turn's end
are one write. So the cost of a turn does not grow with the session, and a killed process leaves at most one torn
line, without a newline.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from connectagent.data import TraceEntry
from connectagent.errors import SessionBusy, Unrecorded
from connectagent.output.masking import refresh
from connectagent.records.encode import Encoder, without_texts
from connectagent.records.file import BETWEEN_TURNS, Held, RecordFile, hold_file
from connectagent.records.head import forked, header
from connectagent.records.locks import owner
from connectagent.records.log import LoggedAgent, LoggedTurn, ResumedFrom
from connectagent.records.paths import is_given_up, is_keyed, new_record, tell, warn
from connectagent.records.turn_item import TurnItem, iterations_in
from connectagent.session.journal import (
    ABANDONED,
    BEGAN,
    CLOSED,
    Journal,
    is_inside,
    place_of,
)
from connectagent.session.usage import Totals, spent_in, tool_calls
from connectagent.settings import enabled, looking_once


def new_log(recording: bool) -> MemoryLog:
    """The log of an agent's sessions.

    Args:
        recording: whether they are written to files.

    Raises:
        ConfigError: a setting of the records cannot be used.
    """
    if recording:
        from connectagent.records.retention import check_limits

        check_limits()
    return RecordLog() if recording else MemoryLog()


class MemoryLog:
    """A log without a file: the unmasked lines of the open turn."""

    recording = False

    def __init__(self) -> None:
        self.id = _new_id()
        self._lines: list[TraceEntry] = []
        self._lock = threading.RLock()  # agents in threads write into the log of one root turn

    @property
    def path(self) -> Path | None:
        """The session's file; None where nothing is written (yet)."""
        return None

    @property
    def has_waiting(self) -> bool:
        """Whether lines wait for a disk that is full or fails."""
        return False

    def hold(self) -> Held | None:
        """Lock the record; None where there is none that this process can go on with."""
        return None

    def lines(self) -> list[TraceEntry]:
        """The lines of the open turn, or of the one that stopped last."""
        return list(self._lines)

    def follow(self, agent: LoggedAgent) -> None:
        """Change to the agent's current session."""

    def leave(self) -> None:
        """Leave the session."""
        self._lines, self.id = [], _new_id()

    def go_on(self, origin: ResumedFrom) -> None:
        """Go on with the record of the agent's current session."""
        self.id = _new_id() if origin.fork or not origin.id else origin.id

    def withhold(self, turn: str) -> None:
        """Write the lines of an inner turn without texts and arguments: its agent has `log=False`."""

    def begin(self, turn: LoggedTurn) -> None:
        """Begin or resume a root turn."""
        with self._lock:
            lines, self._lines = self._lines, []
            if turn.resumed:
                self._lines += map(dict, turn.past.lines)
            elif lines:  # what the program changed before it is the turn's
                self._lines += [line for line in lines if line.get("at") == turn.id]

    def append(self, line: TraceEntry) -> None:
        """Add a copy of one line; later changes of its entry are lines of their own."""
        with self._lock:
            self._lines.append(dict(line))

    def end(self, turn: LoggedTurn, result: str | None, error: BaseException | None) -> None:
        """End or stop a root turn; the lines of a finished one are dropped."""
        with self._lock:
            turn.over = True
            if error is None:
                self._lines = []


def _new_id() -> str:
    return os.urandom(6).hex()


class RecordLog(MemoryLog):
    """Writes what happens to `.co/evals/<agent>_<started>.yaml` while it happens.

    Entries between turns, as from `agent.execute_tool()`, are an item under `turns` too, with the `status`
    `between_turns`.
    """

    recording = True

    def __init__(self) -> None:
        super().__init__()
        self._session: Any = {}
        self._agent: Any = None
        self._file: RecordFile | None = None
        self._encoder: Any = None  # of this session
        self._failed = False  # nothing more is written
        self._lost: Exception | None = None  # why the turn must end: what is its state could not be written
        self._withheld: set[str] = set()  # turns that are written without texts
        self._turn: TurnItem | None = None
        self._origin: ResumedFrom | None = None  # of a resumed session
        self._given: tuple[RecordFile, str] | None = None  # the file of the next session, and its key
        self._place: list[int] | None = None  # where the session was rewound to before the next turn
        self._between = False  # whether the file ends with an item `between_turns`
        self._waiting: list[str] = []  # lines between turns that have no item yet
        self._totals = Totals()  # of finished turns, for readers of the tail
        self._messages = 0  # how many of the session's messages are in the file

    @property
    def path(self) -> Path | None:
        return self._file.path if self._file is not None else None

    def begin(self, turn: LoggedTurn) -> None:
        looking_once(lambda: self._begin_turn(turn))

    def _begin_turn(self, turn: LoggedTurn) -> None:
        with self._lock:
            refresh()
            self.follow(turn.agent)
            self._recover()
            if not turn.resumed and self._lines:  # nobody goes on with open turns of the last turn
                for id in Journal(self._lines).open_turns():
                    self.append({"type": CLOSED, "id": id, "outcome": ABANDONED, "timestamp": time.time()})
            self._withheld.clear()
            MemoryLog.begin(self, turn)
            written = TurnItem(min(self._messages, len(turn.conversation.snapshot.originals)))
            if turn.resumed:
                written.resume(turn.past.lines)
            self._write("")  # handlers may ask for the file
            rest = "".join([f"{self._from()}  trace:\n", *self._waiting])
            if self._file is not None:
                self._file.first = partial(self._item, turn, rest)
            self._waiting, self._between, self._turn = [], False, written

    def _item(self, turn: LoggedTurn, rest: str) -> bytes:
        """The item's beginning, made with the turn's first line: `around_turn` may first add secrets of the prompt."""
        what = "resumed: true" if turn.resumed else f"input: {self._encoder.scalar(turn.prompt)}"
        who = f"owner: {self._encoder.line(owner())}"
        return f"- turn: {self._session['turn']}\n  {what}\n  {who}\n{rest}".encode("utf-8", "replace")

    def end(self, turn: LoggedTurn, result: str | None, error: BaseException | None) -> None:
        with self._lock:
            was_lost = self._lost if error is None else None  # a handler or tool that catches all has gone on
            if was_lost is not None:
                result, error = None, was_lost
            ends = None
            told = ""
            before = replace(self._totals)
            if self._file is not None and self._turn is not None:
                ends = partial(self._turn.summary, turn, self.lines(), encoder=self._encoder)
                told = ends(totals=self._totals, result=result, error=error)  # after Ctrl-C here the turn still ends
            self._turn = None
            super().end(turn, result, error)
            try:
                if ends is not None:
                    self._write_end(turn, told, partial(ends, totals=before))
            finally:  # after Ctrl-C too: nobody could go on with a record that stays locked
                if self._file is not None:
                    self._file.close()
            if was_lost is not None:
                raise was_lost

    def _write_end(self, turn: LoggedTurn, told: str, ends: partial[str]) -> None:
        """Write the lines that end a turn. If they cannot be written, what waits says that the turn has stopped.

        So the same call goes on with the turn, and another prompt begins the next one.

        Args:
            turn: the turn.
            told: the lines.
            ends: makes the lines for another result and error, with the sums from before the turn.
        """
        was_lost = self._lost is not None
        waited = 0 if self._file is None else len(self._file.pending[1])
        try:
            self._write(told)
            self._messages = len(turn.conversation.snapshot.originals)
        except OSError as failed:
            if self._file is not None and self.has_waiting and not was_lost:
                stopped = ends(result=None, error=failed)
                self._totals = ends.keywords["totals"]
                self._file.replace_waiting(waited, stopped.encode("utf-8", "replace"))
            raise

    def append(self, line: TraceEntry) -> None:
        with self._lock:
            begins = line["type"] == BEGAN
            if begins and self._lost is not None:  # who catches all went on
                if self._turn is not None:
                    raise self._stops(self._lost)
                self._recover()
            super().append(line)
            if self._failed:
                return
            if self._withheld:
                line = self._without_withheld(line)
            text = f"  - {self._encoder.entry(line)}\n"
            if self._turn is None:
                self._append_between(line, text)
                return
            before = self._file and self._file.pending
            try:
                if begins:
                    self._write_beginning(text)
                else:
                    self._write(text)
            finally:  # Ctrl-C may come before the line is in the file: then it does not count
                if self._file is None or self._file.pending is not before:
                    self._turn.count(self._agent, line)

    def _write_beginning(self, text: str) -> None:
        """Write that an operation begins. If that fails it has not begun, and is not in doubt: no line of it waits."""
        file = self._file
        waited = 0 if file is None else len(file.pending[1])
        first = None if file is None else file.first
        try:
            self._write(text)
        except Unrecorded:
            self._lines.pop()
            if file is not None and self.has_waiting:
                file.forget(waited, first)
            raise

    def _append_between(self, line: TraceEntry, text: str) -> None:
        """Add a line between turns, of a tool that the program executed or of what it changed."""
        if (spent := spent_in([line], running=True)).calls:
            self._totals.spend(spent)
        if self._between:
            self._write(text)
        elif line["type"] == "tool_execution" or _begins_outside(line) or "undone" in line:
            item = f"- turn: {self._session['turn']}\n  status: {BETWEEN_TURNS}\n{self._from()}  trace:\n"
            self._write("".join([item, *self._waiting, text]))
            self._waiting, self._between = [], True
        else:
            self._waiting.append(text)
        if self._file is not None:
            self._file.close()

    def _from(self) -> str:
        """The line of an item that says where the session was rewound to before it; "" where it was not."""
        place, self._place = self._place, None
        return "" if place is None else f"  from: {place}\n"

    def withhold(self, turn: str) -> None:
        self._withheld.add(turn)

    def _without_withheld(self, line: TraceEntry) -> TraceEntry:
        if any(is_inside(place_of(line), turn) for turn in self._withheld):
            return without_texts(line)
        if "call" in line and any(is_inside(wait, turn) for wait in line.get("waits", ()) for turn in self._withheld):
            return {**line, "call": None}  # which waits inside
        return line

    def go_on(self, origin: ResumedFrom) -> None:
        self._origin = origin

    def write_to(self, file: RecordFile, key: str) -> None:
        """Write the next session, which has this key, to this file, which is locked."""
        self._given = file, key

    def hold(self) -> Held | None:
        """Lock the record, with the lines that wait; None where there is none that this process can go on with.

        Raises:
            SessionBusy: another agent has it.
            OSError: it cannot be opened, what waits cannot be written yet, or another agent has written to it since.
        """
        if self._file is not None and self._file.process != os.getpid():
            self._file = None  # a fork: it is the parent's
        if self._file is None or self._failed or self._file.behind is not None:
            return None
        held = hold_file(self._file)
        try:
            self._recover()
        except BaseException:
            held.close()
            raise
        return held

    @property
    def has_waiting(self) -> bool:
        return self._lost is not None and not self._failed

    def _recover(self) -> None:
        """Write what waits, so that the session goes on.

        Raises:
            OSError: it cannot be written yet.
        """
        if not self.has_waiting or self._file is None:
            return
        try:
            self._file.complete()
        except OSError as error:
            raise _later(error) from None
        self._lost = None

    def leave(self) -> None:
        super().leave()
        self._origin = self._given = None

    def follow(self, agent: LoggedAgent) -> None:
        """Change to the agent's session, after a reset, a resume or a fork of the process."""
        forked = self._turn is None and self._file is not None and self._file.process != os.getpid()
        if self._session is agent.current_session and not forked:
            return
        self._agent = agent
        self._session, self._file, self._failed, self._lost, self._lines = agent.current_session, None, False, None, []
        self._encoder = Encoder(agent)
        self._waiting, self._between, self._totals = [], False, Totals()
        first = (self._session["messages"] or [{}])[0]
        self._messages = int(first.get("role") == "system")  # the header has it
        self.id, self._place = _new_id(), None
        origin = self._origin
        if origin is not None and origin.session is not self._session:
            origin = self._origin = None
        if origin is None:
            return
        self._messages, self._place = origin.messages, origin.place
        self._totals = _sums_before(agent, origin)
        if not origin.fork and not forked:
            self.id = origin.id or self.id
            self._file = (
                origin.held.file if origin.held is not None else RecordFile(origin.record, b"", synced=enabled("fsync"))
            )
            self._encoder.record = origin.record

    def _write(self, text: str) -> None:
        """Append whole lines.

        A failure is reported once and ends the session's record, never the turn. Where the record is the state of the
        program, as of a session with a key, it ends the turn instead, and the lines wait.

        Raises:
            Unrecorded: it ends the turn, as the record is the program's state, or another writer was faster.
        """
        if self._failed:
            return
        try:
            if self._file is None:
                self._file = looking_once(self._begin_file)  # between turns too
            was_behind = self._file.behind
            self._file.append(text.encode("utf-8", "replace"))
            if self._file.behind is not None and was_behind is None:
                why = f"{self._file.path} cannot be written: {self._file.behind}"
                tell(f"{why}; the store has the session, and the file gets it later")
        except Exception as error:
            self._fails(error)

    def _fails(self, error: Exception) -> None:
        """What a failed write does: see `_write`."""
        file = self._file or (self._given[0] if self._given is not None else None)
        is_state = file is not None and (file.elsewhere is not None or is_keyed(file.path))
        if is_state or isinstance(error, SessionBusy):
            self._stop_for(error, file)
            return
        self._failed = True
        if not isinstance(error, (OSError, ValueError)):  # ValueError: a setting that cannot be read
            raise error
        warn(self._agent, "record", error)
        if self._file is not None and is_given_up(self._agent):
            self._file.give_up()

    def _stop_for(self, error: Exception, file: RecordFile | None) -> None:
        """Stop the turn of a session that is the program's state, unless it stops already."""
        is_of_disk = isinstance(error, OSError) and file is not None and file.elsewhere is None
        waits = is_of_disk and self._file is not None
        if waits and self._lost is not None:
            return
        self._failed = not waits
        self._lost = _later(error) if is_of_disk else error
        raise self._stops(self._lost) from None

    def _stops(self, error: Exception) -> BaseException:
        """What ends the turn, or what the program gets outside of one."""
        return error if self._turn is None else Unrecorded(error)

    def _begin_file(self) -> RecordFile:
        """A new file, and room for it among the others."""
        file = self._new_file()
        self._encoder.record = file.path
        _make_room(file.path)
        return file

    def _new_file(self) -> RecordFile:
        """The file of a session that begins, or is forked."""
        started, agent, (file, key) = time.gmtime(), self._agent, self._given or (None, None)
        if file is not None:
            self._encoder.record = file.path  # where long texts of the head go too
        head = header(agent, self.id, started, self._encoder, key).encode("utf-8", "replace")
        if file is not None:
            file.begin(head)
            self._given = None
            return file
        if self._origin is not None:
            head = forked(self._origin.record, self.id)
        return RecordFile(new_record(agent.name, started), head, synced=enabled("fsync"))


def _later(error: Exception) -> OSError:
    """An error of the disk that ends a turn, with what goes on with it."""
    assert isinstance(error, OSError)
    why = f"{error.strerror or error}; the turn stops here, and the same call goes on with it once that is over"
    return OSError(error.errno, why, error.filename)


def _make_room(new: Path) -> None:
    from connectagent.records.retention import keep_limits

    keep_limits(new)


def _begins_outside(line: TraceEntry) -> bool:
    """Whether an operation begins that is in no turn; what a turn begins before its item is there waits for that."""
    return line["type"] == BEGAN and not place_of(line).startswith("T")


def _sums_before(agent: LoggedAgent, origin: ResumedFrom) -> Totals:
    """The sums of a record's turns, including killed ones without sums."""
    from connectagent.records.summary import summarise  # only resuming reads records

    totals = summarise(origin.record, held=True).totals or Totals()
    for before, item in origin.unsummed:
        killed = TurnItem(0)
        killed.resumed = bool(item.get("resumed"))
        killed.iterations_before = iterations_in(before)
        killed.lines_before = before
        for line in item["lines"]:
            killed.count(agent, line)
        killed.add_to(totals, len(tool_calls([*before, *item["lines"]])), None)
    return totals
