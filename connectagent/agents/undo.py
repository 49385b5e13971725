"""Taking the last turn of a session back, and taking it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from connectagent.agents.resume import resumed_entry, take_record
from connectagent.errors import ConfigError
from connectagent.records.file import hold
from connectagent.records.history import read_session
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
        session = read_session(path, (turn, 0))
        take_record(agent, session, Journal([]), path, (turn, 0), False, held)
        agent.conversation.trace({**resumed_entry(agent, session, path), "undone": turn})
        agent.hooks.observe("on_session", agent=agent, reason="resumed")
    finally:
        held.close()
    return int(turn)


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
