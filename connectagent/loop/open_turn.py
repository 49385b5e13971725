"""What the operations of a turn need of it. `Turn` is made of them, and stands above their modules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from connectagent.data import LLM, ToolCall, TraceEntry
from connectagent.errors import ToolRejected
from connectagent.frame import Frame
from connectagent.hooks.host import Host
from connectagent.loop.between_steps import BetweenSteps
from connectagent.loop.ending import RESUMED, Ending
from connectagent.records.log import Log
from connectagent.session.conversation import Conversation
from connectagent.session.journal import Journal
from connectagent.session.lost_updates import Copy
from connectagent.session.snapshot import By
from connectagent.session.usage import CountedTurn, Spent
from connectagent.tools.registry import ToolRegistry


class OperatingAgent(Protocol):
    """The agent in whose turn an operation runs."""

    @property
    def name(self) -> str: ...
    @property
    def by(self) -> By: ...
    @property
    def llm(self) -> LLM: ...
    @property
    def tools(self) -> ToolRegistry: ...
    @property
    def conversation(self) -> Conversation: ...
    @property
    def spent(self) -> Spent: ...
    def create_llm(self, model: str) -> LLM:
        """Another model, with the agent's plugins."""

    def call_options(self) -> dict[str, Any]:
        """A copy of the provider's parameters for a model call."""


class Blame(Protocol):
    """Runs handlers and tools, and knows whose errors are."""

    @property
    def running(self) -> Sequence[By | None]: ...
    def owner_of(self, error: BaseException, since: int = 0) -> By | None:
        """The handler that raised an error, or None if no handler did."""


class OpenTurn(CountedTurn, Protocol):
    """A turn that is running, as its hooks, its parallel bodies and its journal's checks use it."""

    ended: Ending | None

    @property
    def id(self) -> str: ...
    @property
    def agent(self) -> OperatingAgent: ...
    @property
    def host(self) -> Host: ...
    @property
    def boundary(self) -> Blame: ...
    @property
    def conversation(self) -> Conversation: ...
    @property
    def log(self) -> Log: ...
    @property
    def past(self) -> Journal: ...
    @property
    def resumed(self) -> bool: ...
    @property
    def frame(self) -> Frame: ...
    @property
    def between(self) -> BetweenSteps: ...
    @property
    def runs(self) -> dict[str, Any]: ...
    @property
    def touched(self) -> set[str]: ...
    @property
    def listeners(self) -> list[Any]: ...
    @property
    def outward(self) -> tuple[Ending, str] | None: ...
    @property
    def state(self) -> dict[str, Any]: ...
    def is_own_thread(self) -> bool:
        """Whether this is the thread in which the turn ran."""

    def has_changes(self, id: str) -> bool:
        """Whether handlers of a hook changed anything, as far as this process knows."""

    def began(self, id: str, **more: Any) -> None:
        """Write that an operation begins."""

    def opens(self, id: str) -> None:
        """Note that an operation runs now, though the log may have a part of it."""

    def reapply(self, id: str, passed: list[list[Any]] | None = None) -> list[TraceEntry]:
        """Apply the changes of a finished operation again."""

    def failed(self, id: str, error: BaseException) -> list[str]:
        """Note that an operation ended with an error; the operations that ended with the same error before."""

    def rejection(self, reason: str, by: By = RESUMED) -> ToolRejected:
        """The rejection of a call that no handler made."""

    def require_shown(self, wait: TraceEntry, place: str, calls: Sequence[ToolCall]) -> None:
        """Refuse calls that are not those that a person was shown."""

    def bring_home(self, changes: Iterable[dict[str, Any]], place: str, copy: Copy | None = None) -> None:
        """Apply the changes of a parallel body."""

    def end(self, ending: Ending, scope: str = "agent") -> None:
        """End the turn before its next call of a model or tool."""

    def closing(self, id: str) -> TraceEntry | None:
        """The line that ended an operation; None if the operation must run."""

    def end_as(self, data: dict[str, Any]) -> None:
        """End the turn as in data of `ending_as_data`."""

    def ending_as_data(self) -> dict[str, Any]:
        """The ending in the form of a line."""

    def stop_inner(self) -> None:
        """Interrupt the turns inside this one at their next step."""
