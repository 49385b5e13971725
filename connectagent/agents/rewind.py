"""Taking the last turn of a session back, taking it again, or leaving it as it was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from connectagent.agents.resume import resumed_entry, take_record
from connectagent.errors import ConfigError
from connectagent.records.file import Held, hold
from connectagent.records.history import Part, RecordedSession, read_session
from connectagent.records.read import refuse_odd
from connectagent.session.journal import Journal


def take_back(agent: Any) -> int:
    """Go back to before the last turn of an agent's session, and stay there; the turn's number.

    The record has the turn still, and the line that takes it back.

    Raises:
        ConfigError: there is no turn, or nothing is recorded.
    """
    agent.refuse_inside("taking a turn back")
    turn = (agent.current_session or {}).get("turn") or 0
    if not turn:
        raise ConfigError("there is no turn to take back")
    path = recorded_at(agent)
    held = hold(path)
    try:
        _take(agent, read_session(path, (turn, 0)), path, held, (turn, 0), undone=turn)
    finally:
        held.close()
    return int(turn)


def give_up(agent: Any, path: Path, held: Held) -> None:
    """Give an agent the session of a locked record, without going on with its last turn, which was stopped.

    Raises:
        ConfigError: the record cannot be used.
    """
    with refuse_odd(path):
        _take(agent, read_session(path, goes_on=False), path, held)


def may_be_left(part: Part) -> bool:
    """Whether another prompt may give a turn up: an error, Ctrl-C or cancelling has stopped it, or no person decides.

    One that was killed, or in which a person is to decide, goes on first.
    """
    if not part.is_open or part.last.get("status") != "paused":
        return part.is_open and part.last.get("status") is not None
    waits = Journal(part.lines).pending()
    return bool(waits) and all(wait.elsewhere for wait in waits)


def _take(
    agent: Any, session: RecordedSession, path: Path, held: Held, at: tuple[int, int] | None = None, **more: Any
) -> None:
    """Give an agent the session of a record, and take no turn of it; `more`: of the entry that says so."""
    take_record(agent, session, Journal(), path, at, False, held)
    agent.conversation.trace({**resumed_entry(agent, session, path), **more})
    agent.hooks.observe("on_session", agent=agent, reason="resumed")


def take_again(agent: Any) -> Any:
    """Take the last turn of an agent's session again, as `agent.resume(place=...)` does; its result.

    Raises:
        ConfigError: there is no turn, or nothing is recorded.
    """
    turn = (agent.current_session or {}).get("turn") or 0
    if not turn:
        raise ConfigError("there is no turn to take again")
    return agent.resume(recorded_at(agent), place=turn)


def recorded_at(agent: Any) -> Path:
    """The record of an agent's session.

    Raises:
        ConfigError: nothing is recorded.
    """
    path = agent.record
    if path is None:
        raise ConfigError(f"going back needs a record, and agent {agent.name!r} has none (log=False)")
    return Path(path)
