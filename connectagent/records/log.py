"""The log as the loop uses it, and what it needs of an agent and a turn. `records.write` has the logs themselves."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from connectagent.data import LLM, TraceEntry
from connectagent.hooks.host import Host
from connectagent.records.file import Held
from connectagent.records.paths import SessionOwner
from connectagent.session.conversation import Conversation
from connectagent.session.journal import Journal
from connectagent.session.prompt import SystemPrompt
from connectagent.session.snapshot import By
from connectagent.session.usage import Spent


class SlowCalls(Protocol):
    """What has run the handlers of an agent."""

    @property
    def slow_calls(self) -> Collection[tuple[str, str, float, float]]: ...


class LoggedAgent(SessionOwner, Protocol):
    """The agent whose sessions a log writes."""

    @property
    def name(self) -> str: ...
    @property
    def llm(self) -> LLM: ...
    @property
    def hooks(self) -> Host: ...
    @property
    def switched_off(self) -> list[str]: ...
    @property
    def max_iterations(self) -> int: ...
    @property
    def prompted(self) -> SystemPrompt: ...
    @property
    def conversation(self) -> Conversation: ...
    @property
    def boundary(self) -> SlowCalls: ...


class TurnEnding(Protocol):
    """How a turn is to end."""

    @property
    def by(self) -> By: ...


class LoggedTurn(Protocol):
    """A root turn that a log writes.

    Attributes:
        over: set by the log once the turn has ended.
    """

    over: bool

    @property
    def id(self) -> str: ...
    @property
    def agent(self) -> LoggedAgent: ...
    @property
    def past(self) -> Journal: ...
    @property
    def resumed(self) -> bool: ...
    @property
    def prompt(self) -> str: ...
    @property
    def conversation(self) -> Conversation: ...
    @property
    def spent(self) -> Spent: ...
    @property
    def ended(self) -> TurnEnding | None: ...


class ResumedFrom:
    """The record that a session was resumed from.

    Args:
        session: the resumed `agent.current_session`.
        record: the file.
        fork: whether what follows is written to a new record.
        place: the turn and iteration to go on before; None for the end.
        messages: how many of the session's messages the record has.
        id: the session's id.
        held: the locked file.
        unsummed: the items of killed turns since the last sums, each with the earlier lines of its turn.
    """

    def __init__(
        self,
        session: Mapping[str, object],
        record: Path,
        fork: bool,
        place: list[int] | None,
        messages: int,
        id: str,
        held: Held | None = None,
    ) -> None:
        self.session, self.record, self.fork, self.place = session, record, fork, place
        self.messages, self.id, self.held = messages, id, held
        self.unsummed: Sequence[tuple[list[TraceEntry], dict[str, Any]]] = ()


class Log(Protocol):
    """Where the lines of a session are written: what the loop did, and how far a turn has come.

    Attributes:
        id: the session's id.
        recording: whether it writes sessions to files.
    """

    id: str
    recording: bool

    @property
    def path(self) -> Path | None:
        """The session's file; None where nothing is written (yet)."""

    @property
    def has_waiting(self) -> bool:
        """Whether lines wait for a disk that is full or fails."""

    def append(self, line: TraceEntry) -> None:
        """Write one line: an entry of the trace, or a line of the log's own. It must not change afterwards."""

    def follow(self, agent: LoggedAgent) -> None:
        """Switch to the agent's current session."""

    def leave(self) -> None:
        """The session is over."""

    def go_on(self, origin: ResumedFrom) -> None:
        """Go on with the record of the agent's current session."""

    def hold(self) -> Held | None:
        """Lock the record; None where there is none that this process can go on with."""

    def lines(self) -> list[TraceEntry]:
        """The lines of the open turn, before masking."""

    def withhold(self, turn: str) -> None:
        """Write the lines of this inner turn without texts and arguments: its agent is not to be recorded."""

    def begin(self, turn: LoggedTurn) -> None:
        """A root turn begins or is resumed."""

    def end(self, turn: LoggedTurn, result: str | None, error: BaseException | None) -> None:
        """A root turn has ended or stopped."""
