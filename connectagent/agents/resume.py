"""Resuming a session from its record.

A turn that was stopped runs again from its beginning, and looks each operation up: see `session.journal`. A
person's decision about a wait is written before it takes effect.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

from connectagent.agents.decisions import Decision, decided, is_given_again, still_paused
from connectagent.agents.plugin_changes import changed_plugins
from connectagent.agents.tree import walk
from connectagent.data import TokenUsage, TraceEntry
from connectagent.errors import ConfigError, Paused
from connectagent.loop.ending import RESUMED, Given, resumptions
from connectagent.loop.run import take_root_turn
from connectagent.records.file import Held, hold
from connectagent.records.find import find_record
from connectagent.records.history import RecordedSession, read_session
from connectagent.records.incomplete import lost_behind
from connectagent.records.log import ResumedFrom
from connectagent.records.own import decision_mark, journal_of
from connectagent.records.paths import tell
from connectagent.records.read import refuse_odd
from connectagent.records.write import MemoryLog
from connectagent.session.history import as_session
from connectagent.session.journal import BEGAN, Journal
from connectagent.session.messages import text_of, user_message
from connectagent.session.usage import spent_in, spent_inside


class ShownWait(NamedTuple):
    """A wait that `resume(record)` has shown without taking the session: a decision that follows is about it.

    Args:
        record: the record.
        renamed: whether it may be of an agent of another name.
        own, turn: the agent's own session then. If a turn of it was taken since, a decision is about that session.
    """

    record: Path
    renamed: bool
    own: Path | None
    turn: int


CALLS = ("llm_call", "tool_execution")  # entries that are amended


def parse_place(place: str | int | None) -> tuple[int, int] | None:
    """`"3"` or `"3.2"` as turn and iteration; the iteration is 0 for the turn's beginning.

    Raises:
        ConfigError: it is neither.
    """
    if place is None:
        return None
    turn, _, iteration = str(place).partition(".")
    if not turn.isdecimal() or not (iteration or "0").isdecimal() or int(turn) < 1:
        raise ConfigError(f"a place is TURN or TURN.ITERATION, for example '3' or '3.2', not {place!r}")
    return int(turn), int(iteration or 0)


def is_record(record: str | os.PathLike[str]) -> Path:
    """The path of a record: a path, or what `find_record` takes, among the records of this project.

    Raises:
        ConfigError: there is no such record, several are meant, or another user made it and no path is given.
    """
    file = Path(record)
    if file.is_file():
        return file
    if not isinstance(record, str) or not record or (os.path.dirname(record) and record.endswith(".yaml")):
        raise ConfigError(f"there is no record {str(record)!r}; records are in .co/evals/, and end in .yaml")
    file = find_record(record)
    if file.stat().st_uid != getattr(os, "geteuid", lambda: 0)():
        raise ConfigError(f"{file} belongs to another user, who chose its name and id; if you trust it, give its path")
    return file


def resume(agent: Any, record: Any, place: Any, fork: bool, decision: Decision, renamed: bool = False) -> str | None:
    """Give an agent the session of a record, and finish its open turn; the result.

    Raises:
        ConfigError: there is no such record or place, it is another agent's, another process has it, or a decision
            does not fit.
        Paused: the turn waits for a decision, still or again.
    """
    if record is None:
        return _resume_here(agent, decision)
    path, at = is_record(record), parse_place(place)
    held = None if fork else _locked(agent.log, path)
    agent._shown = None
    try:
        return reopen(agent, path, at, fork, decision, held, renamed)
    except Paused:
        if not fork and agent.record != path:  # it still waits, and the agent has not taken its session
            agent._shown = ShownWait(path.absolute(), renamed, *_session_now(agent))
        raise
    finally:
        if held is not None:
            held.close()


def _locked(log: MemoryLog, path: Path) -> Held:
    """Lock a record. Lines of the agent's own that could not be written are written first.

    Raises:
        SessionBusy: another agent has it.
        OSError: it cannot be opened or written.
    """
    if log.has_waiting and log.path == path:
        try:
            held = log.hold()
        except OSError as error:
            if error.errno not in (errno.ESTALE, errno.ENOENT):
                raise
            log.leave()  # another process has gone on with it
        else:
            if held is not None:
                return held
    return hold(path)


def reopen(
    agent: Any,
    path: Path,
    at: tuple[int, int] | None,
    fork: bool,
    decision: Decision,
    held: Held | None,
    renamed: bool = False,
) -> str | None:
    """Go on with a record that is locked, or forked: see `Agent.resume`."""
    from connectagent.records.misfits import (  # with the types of all entries, which few programs need
        refuse_misfits,
        refuse_odd_lines,
    )

    with refuse_odd(path):
        session = read_session(path, at)
        _check_name(agent, session, path, renamed)
        refuse_misfits(path, session.head, [] if session.open is None else session.open.items)
        asked = [line for line in session.rewound if line.get("type") == "user_input" and at is not None]
        refuse_odd_lines(path, session.head, [{"lines": asked}])  # one of them is asked again
        journal, line = _looked_up(agent, session, path, at, fork, decision)
        begun = next((line for line in _lines_of(session.open) if line.get("type") == "user_input"), None)
        given = None if begun is None else _given_again(agent, begun, decision.form)
        take_record(agent, session, journal, path, at, fork, held)
        entry = resumed_entry(agent, session, path)
    if at is None and (lost := lost_behind(path, session)):
        entry["not_recorded_from"] = lost
        why = "as the disk was full or failed: what was done then is not known"
        tell(f"{path} is not recorded from turn {lost} on, {why}")
    entry |= {"decided": decision.value} if line is not None else {}
    if session.open is None or given is None:
        agent.conversation.trace(entry)
        return _begun_anew(agent, session, at, fork, decision.form)
    entry["turn"] = session.open.number
    if line is not None:
        line["session"] = str(session.head.get("id"))
        line["mark"] = decision_mark(line["session"], line, journal.lines[journal.waits[line["id"]]])
        journal = journal.with_lines(line)
        agent.log.append(line)
    journal = _resumed(agent, journal, entry)
    place = f"T{session.open.number}"
    return _take_root_turn(agent, given, _goes_on(agent, journal, place, fork), place)


def _take_root_turn(agent: Any, given: Given, journal: Journal, place: str) -> str:
    """Take a turn again. If it fails, agents below have their stopped turns that it did not ask for again."""
    try:
        return take_root_turn(agent, given, journal, place)
    except Exception as error:
        if not isinstance(error, Paused) and agent.record is not None and agent.children:
            _take_unasked(agent)
        raise


def _take_unasked(agent: Any) -> None:
    """Give agents below the turns that they lack, as the record has them."""
    with contextlib.suppress(OSError, ConfigError):  # it could not be written to its end
        session = read_session(agent.record, goes_on=False)
        for child in walk(agent):
            recorded = session.inside.get(child.branch) if child is not agent else None
            if recorded is not None and recorded.history.turn > (child.current_session or {}).get("turn", 0):
                _take_below(agent, child, session)


def _check_name(agent: Any, session: RecordedSession, path: Path, renamed: bool) -> None:
    """Refuse the record of another agent."""
    if not renamed and (name := session.head.get("agent")) != agent.name:
        same = "if it is the same agent, call resume(..., renamed=True)"
        raise ConfigError(f"{path}: its agent is {name!r}, and this agent is {agent.name!r}; {same}")


def _looked_up(
    agent: Any, session: RecordedSession, path: Path, at: tuple[int, int] | None, fork: bool, decision: Decision
) -> tuple[Journal, TraceEntry | None]:
    """The journal of the open turn, and the line of a new decision.

    Raises:
        ConfigError: the decision does not fit.
        Paused: no decision was made yet.
    """
    journal = journal_of(_unmasked(agent, path, at) or _lines_of(session.open), session.head)
    status = session.last.get("status") if at is None else None
    again = at is None and not fork and status != "paused" and is_given_again(journal, decision)
    line = None if again else decided(journal, decision, status, fork)
    if status == "paused" and line is None and journal.waits and not journal.decided.keys() & journal.waits.keys():
        raise still_paused(journal, path)
    return journal, line


def _given_again(agent: Any, begun: TraceEntry, form: Any) -> Given:
    """What a recorded turn was given."""
    message = user_message(begun.get("content", begun.get("prompt", "")))
    return Given(message, text_of(message["content"]), begun.get("max_iterations") or agent.max_iterations, form)


def _resumed(agent: Any, journal: Journal, entry: TraceEntry) -> Journal:
    """Trace that a turn is resumed; the journal with that, and with what those changed who were told of it."""
    known = len(agent.log.lines())
    agent.conversation.trace(entry)
    return journal.with_lines(*agent.log.lines()[known:])


def _reason(fork: bool) -> str:
    return "forked" if fork else "resumed"


def _goes_on(agent: Any, journal: Journal, turn: str, fork: bool) -> Journal:
    """Begin the handlers of `on_session` for an open turn, which runs them; what they change is the turn's."""
    if "on_session" not in agent.hooks.active:
        return journal
    id = f"{turn}/resumed{len(resumptions(journal, turn)) + 1}/on_session"
    line = {"type": BEGAN, "id": id, "reason": _reason(fork), "timestamp": time.time()}
    agent.log.append(line)
    return journal.with_lines(line)


def _unmasked(agent: Any, path: Path, at: tuple[int, int] | None) -> list[TraceEntry]:
    """The lines of the open turn as this process knows them; none where another one wrote the record."""
    return list(agent.log.lines()) if at is None and agent.log.path == path else []


def resumed_entry(agent: Any, session: RecordedSession, path: Path) -> TraceEntry:
    """The entry that says with which record an agent goes on, and what is different now."""
    now = agent.conversation.session
    entry: TraceEntry = {"type": "resumed", "by": RESUMED, "record": str(path), "turn": now["turn"]}
    more = {"plugins": changed_plugins(agent, session.head), "switched_off": agent.switched_off}
    return {**entry, "iteration": now["iteration"], **{key: value for key, value in more.items() if value}}


def _with_lines(trace: list[TraceEntry], journal: Journal) -> list[TraceEntry]:
    """A trace with the journal's own lines of calls, so that their later changes appear in it."""
    lines = {_key(line): line for line in journal.lines if line.get("type") in CALLS and "id" in line}
    return [lines.get(_key(entry), entry) for entry in trace]


def _key(line: TraceEntry) -> tuple[Any, ...]:
    return line.get("type"), line.get("id"), line.get("timestamp")


def _lines_of(part: Any) -> list[TraceEntry]:
    return [] if part is None else part.lines


def _begun_anew(agent: Any, session: RecordedSession, at: tuple[int, int] | None, fork: bool, form: Any) -> str | None:
    """The last turn's result. One that was rewound, or cut off before its message was added, is taken again."""
    if agent.conversation.session["turn"]:  # else the session begins in its first turn
        agent.hooks.observe("on_session", agent=agent, reason=_reason(fork))
    if at is not None:
        return str(agent.answer(_prompt_of(session, at[0]), form=form))
    if session.open is not None and "input" in session.last:
        return str(agent.answer(session.last["input"], form=form))
    return session.last.get("result") if session.last.get("status") else None


def take_record(
    agent: Any,
    session: RecordedSession,
    journal: Journal,
    path: Path,
    at: tuple[int, int] | None,
    fork: bool,
    held: Held | None,
) -> None:
    """Give an agent and those below it their sessions from the record."""
    for recorded in (session.own, *session.inside.values()):
        recorded.trace = _with_lines(recorded.trace, journal)
    spent, inside = spent_in(session.paid), spent_inside(session.paid)
    restored = as_session(session.own.history, session.own.trace, session.last if session.open is None else None)
    place = None if at is None else list(at)
    origin = ResumedFrom(restored, path, fork, place, session.messages, str(session.head.get("id") or ""), held)
    origin.unsummed = session.unsummed
    if at is not None:  # an agent below may have begun in a turn that no longer counts
        for child in agent.children:
            child.reset_conversation()
    agent.log.go_on(origin)
    agent.take_session(restored)
    agent.open_log()
    agent.spent = spent
    usages = [entry["usage"] for entry in restored["trace"] if isinstance(entry.get("usage"), TokenUsage)]
    agent.last_usage = usages[-1] if usages else None
    agent.outside, agent.spent_outside = session.inside, inside
    for child in walk(agent):
        if child is not agent:
            _take_below(agent, child, session)


def _take_below(agent: Any, child: Any, session: RecordedSession) -> None:
    if (own := session.inside.pop(child.branch, None)) is not None:
        child.take_session(as_session(own.history, own.trace))
        child.conversation.home = agent.log
    child.spent = agent.spent_outside.pop(child.branch, child.spent)


def _prompt_of(session: RecordedSession, turn: int) -> Any:
    """The prompt of a turn that is rewound."""
    for entry in reversed(session.rewound):
        if entry.get("type") == "user_input" and entry.get("turn") == turn:
            return entry.get("content", entry.get("prompt"))
    return ""


def _session_now(agent: Any) -> tuple[Path | None, int]:
    """Where an agent's own session is recorded, and how many turns it has begun."""
    return agent.record, (agent.current_session or {}).get("turn", 0)


def _resume_here(agent: Any, decision: Decision) -> str | None:
    """Resume the agent's own session, in the process in which it was paused; or the one whose wait was shown last."""
    shown: ShownWait | None = agent._shown
    if shown is not None and _session_now(agent) == (shown.own, shown.turn):
        return resume(agent, shown.record, None, False, decision, shown.renamed)
    if agent.record is not None:
        return resume(agent, agent.record, None, False, decision, renamed=True)
    journal = Journal(agent.log.lines())
    if not journal.waits or agent.current_session is None:
        raise ConfigError("nothing waits for a decision in this session; give the path of a record")
    line = decided(journal, decision, "paused", False)
    if line is None and not any(wait in journal.decided for wait in journal.waits):
        raise still_paused(journal, Path("(not recorded)"))
    journal = journal if line is None else journal.with_lines(line)
    return _go_on_here(agent, journal, decision.form)


def _go_on_here(agent: Any, journal: Journal, form: Any) -> str:
    """Run a stopped turn again in the same process, from the conversation before it."""
    begun = next(
        line for line in journal.lines if line.get("type") == "user_input" and line.get("at", "/").count("/") == 0
    )
    place = begun["at"]
    trace = agent.conversation.session["trace"]
    trace[:] = _with_lines(trace, journal)
    agent.rewind([place])
    for child in walk(agent):
        if child is not agent:
            child.rewind(journal.unfinished(child.branch))
    journal = _resumed(agent, journal, {"type": "resumed", "by": RESUMED, "turn": begun["turn"]})
    journal = _goes_on(agent, journal, place, False)
    return take_root_turn(agent, _given_again(agent, begun, form), journal, place)
