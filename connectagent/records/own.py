"""Which records are the user's own, and what is believed of others.

A record of a stranger, or of another machine, is history: what it says about calls that have a result is taken from
it. A tool call without a result may still be run, and a model call without an answer still be made, with this user's
key. So nobody but this user and this process decides about them: guards, and the handlers that choose a model or
change a request, are asked again, and a person's decision counts only with the user's mark.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from connectagent.data import TraceEntry
from connectagent.errors import short_path
from connectagent.output.masking import current
from connectagent.records.yaml_lines import json_line
from connectagent.session.journal import WAIT, WAIT_OF, Journal, calls_of
from connectagent.settings import co_folder, project_folder
from connectagent.settings.own import blake2b, mark

_ATTEMPT = re.compile(r".*/tool\d+", re.DOTALL)
_ITERATION = re.compile(r".*/\d+", re.DOTALL)  # where `before_tools` decides about a round; elsewhere about one call
_OF_MODEL = re.compile(r"(.*/(?:\d+|ask:[^/]*))/(?:before_llm|on_error\d+)", re.DOTALL)
_GIVEN_UP = ("error", "recovered")  # how an attempt at a model ends that has no answer of the model's


def record_mark(id: str, script: str | None) -> str:
    """The mark in the head of a record."""
    return mark("record", id, script or "")


def is_own(head: dict[str, Any]) -> bool:
    """Whether a record is the user's own, by the mark in its head."""
    return head.get("mark") == record_mark(str(head.get("id")), head.get("script"))


def why_not_own(record: Path, head: dict[str, Any]) -> str | None:
    """Why a record is not one of the user's own in this project, so that no model is made which only it names; or None.

    Args:
        record: the record.
        head: its head.
    """
    records = co_folder().resolve()
    if record.resolve().parent != records / "evals":
        return f"the record is none of this project's, which are in {short_path(records / 'evals')}"
    if record.stat().st_uid != getattr(os, "geteuid", lambda: 0)():
        return "the record belongs to another user"
    if not is_own(head):
        return "the record does not have your mark: another user or another machine wrote it, or it was changed"
    return None


def why_not_run(record: Path, head: dict[str, Any]) -> str | None:
    """Why no code that a record names is run or imported by itself; None where it may be.

    Every command asks here before it runs a script or loads a plugin that only a record names. The record must be
    the user's own in this project, and its script must be a Python file of the project, outside of the records.

    Args:
        record: the record.
        head: its head.

    Raises:
        ValueError: the head names a path that no system has.
    """
    if (why := why_not_own(record, head)) is not None:
        return why
    if head.get("script") is None:
        return None
    project, records = project_folder().resolve(), co_folder().resolve()
    script = Path(str(head["script"])).resolve()
    if project not in script.parents:
        return f"its script is not in this project, {short_path(project)}"
    is_record = script.exists() and script.samefile(record)
    if script.suffix != ".py" or records in script.parents or is_record:
        return "its script is no Python file of this project"
    return None


def shown_digest(wait: TraceEntry) -> str:
    """A digest of what a person is shown of a wait: the calls' names and arguments, with secrets masked; the reason."""
    calls = [[call.get("name"), call.get("arguments")] for call in calls_of(wait)]
    return written_digest([calls, wait.get("reason")])


def decision_mark(session: str, line: TraceEntry, wait: TraceEntry) -> str:
    """The mark on a person's decision: what was decided, about which calls, at which place of which session.

    Args:
        session: the id of the session.
        line: the line of the decision.
        wait: the line of what waits, as it stands in the record.
    """
    decided = [[kind, line[kind]] for kind in ("approve", "reject", "answer") if kind in line]
    return mark("decision", session, str(line.get("id")), shown_digest(wait), written_digest(decided))


def written_digest(value: object) -> str:
    """A digest of a value that is the same before it is written into a record and after it was read from there."""
    written = json_line(current().value(value))
    return blake2b(written.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def journal_of(lines: Iterable[TraceEntry], head: dict[str, Any]) -> Journal:
    """The journal of a recorded turn, as far as its record is believed."""
    return RecordedJournal(lines, str(head.get("id")), is_own(head))


class RecordedJournal(Journal):
    """A journal without decisions about calls, of tools and models, that have no result and are not the user's own.

    Args:
        lines: the lines of the log.
        record: the record's id.
        is_own: whether the record is the user's own; a person's decision has a mark of its own in any case.
    """

    def __init__(self, lines: Iterable[TraceEntry], record: str, is_own: bool) -> None:
        super().__init__(lines)
        self._record, self._is_own = record, is_own
        for wait, number in list(self.decided.items()):
            if not self._is_by_user(wait, self.lines[number]) and not self._is_settled(wait.rpartition(WAIT_OF)[0]):
                self._wait_again(wait)
        for table in (self.closed, self.parts):
            for id in [id for id in table if not self._is_believed(id)]:
                self._forget(table, id)

    def with_lines(self, *lines: TraceEntry) -> RecordedJournal:
        return RecordedJournal([*self.lines, *lines], self._record, self._is_own)

    def _is_by_user(self, wait: str, line: TraceEntry) -> bool:
        """Whether a decision is this user's, about the calls that its wait shows, in this session."""
        if wait not in self.waits or line.get("session") != self._record:
            return False
        return bool(line.get("mark") == decision_mark(self._record, line, self.lines[self.waits[wait]]))

    def _wait_again(self, wait: str) -> None:
        """Leave out a decision, and what the handlers that waited for it came to then."""
        del self.decided[wait]
        hook = self.lines[self.waits[wait]].get("hook") if wait in self.waits else None
        if hook is not None:
            self.closed.pop(hook, None)
            self.parts[hook] = self.waits[wait]

    def is_over(self, hook: str, turn: str) -> bool:
        return (self._is_believed(hook) or hook in self.parts) and super().is_over(hook, turn)

    def _is_believed(self, id: str) -> bool:
        """Whether what the record says of an operation counts: no decision about an open call, nor what it asked."""
        if self._is_own:
            return True
        for kind in ("/ask:", "/hook:"):
            if kind in id and not _ATTEMPT.fullmatch(id.rpartition(kind)[0]):
                return False
        return not (_is_guard(id) or _OF_MODEL.fullmatch(id)) or self._is_settled(id)

    def _is_settled(self, id: str) -> bool:
        """Whether the calls that a hook or a wait is about have a result: no tool runs, and no model is asked."""
        if (found := _OF_MODEL.fullmatch(id)) is not None:
            return self._has_answer(found[1])
        place, _, hook = id.rpartition("/") if _is_guard(id) else (id, "", "")
        if _ATTEMPT.fullmatch(place):
            return self._has_result(place)
        if not hook.startswith("before_tools") or not _ITERATION.fullmatch(place):
            return self._has_result(f"{place}/tool1")
        answers = (self.lines[number] for id, number in self.closed.items() if id.startswith(f"{place}/model"))
        most = max((len(line.get("tool_calls") or ()) for line in answers), default=0)
        return all(self._has_result(f"{place}/c{number}/tool1") for number in range(1, most + 1))

    def _has_answer(self, call: str) -> bool:
        """Whether a call of a model has its answer: no attempt before that is made again."""
        attempt = 1
        while (number := self.closed.get(id := f"{call}/model{attempt}")) is not None and not self.is_open(id):
            if self.lines[number].get("status") not in _GIVEN_UP:
                return True
            attempt += 1
        return False

    def _has_result(self, attempt: str) -> bool:
        """Whether an attempt at a tool has a result; a failed one may be made again."""
        line = self.lines[self.closed[attempt]] if attempt in self.closed else None
        if line is None or self.is_open(attempt):
            return False
        outcome = line.get("value") or line.get("entry") or line
        return outcome.get("error_type") is None

    def _forget(self, table: dict[str, int], id: str) -> None:
        """Leave out what a record says of an operation, but for the handler whose wait a person has decided."""
        line = self.lines[table[id]]
        if table is self.closed or line.get("type") != WAIT or line["id"] not in self.decided:
            del table[id]
            return
        by = line.get("by") or {}
        keys = ("type", "id", "hook", "of", "agent", "call", "calls", "reason", "by")
        kept: TraceEntry = {key: line[key] for key in keys if key in line}
        self.lines[table[id]] = {**kept, "over": [[by.get("plugin"), by.get("handler")]]}


def _is_guard(id: str) -> bool:
    return id[id.rfind("/") + 1 :].startswith(("before_each_tool", "before_tools"))
