"""What a turn needs of the agent whose turn it is. `AgentCore`, which is in a room above this one, has it all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from connectagent.data import LLM, AgentBase, Session, TokenUsage, ToolCall
from connectagent.hooks.host import Host
from connectagent.loop.boundary import Boundary
from connectagent.loop.ending import Ending
from connectagent.records.log import Log
from connectagent.session.conversation import Conversation
from connectagent.session.prompt import SystemPrompt
from connectagent.session.snapshot import By
from connectagent.session.usage import Spent
from connectagent.tools.registry import ToolRegistry
from connectagent.tools.tool import ResourceGiver, Tool

T = TypeVar("T")  # the turn
Taken = TypeVar("Taken", contravariant=True)  # the turn, where it is only taken


class TurnRuntime(Protocol):
    """What an agent takes from the process around it."""

    @property
    def asked_model(self) -> Callable[[str], LLM] | None: ...
    @property
    def stand_in(self) -> Callable[[LLM], LLM] | None: ...
    @property
    def sleep(self) -> Callable[[float], None]: ...
    @property
    def on_inner(self) -> Callable[[AgentBase, str], None]: ...


class AgentPlace(Protocol[T]):
    """Where an agent stands among other agents."""

    @property
    def root(self) -> TurnAgent[T]: ...
    @property
    def parent(self) -> TurnAgent[T] | None: ...
    @property
    def branch(self) -> str: ...
    def find(self, name: str) -> TurnAgent[T] | None:
        """The agent of that name here or below, or None."""

    def guarded_by(self, asker: Any) -> AbstractContextManager[None]:
        """Have the guards of the agent that asks, for one turn."""


class TurnSessions(Protocol[Taken]):
    """Keeps the session of an agent."""

    fresh: bool

    @property
    def conversation(self) -> Conversation: ...
    def open_log(self) -> Log:
        """The log of the current session."""

    def enter(self, turn: Taken, branch: str | None) -> dict[str, str]:
        """Take the session for an inner turn; the labels of its entries."""

    def leave(self) -> None:
        """End an inner turn."""

    def beginning_for(self, log: Log, own_state: bool) -> dict[str, Any]:
        """What the conversation began with that a log does not have."""

    def state_at_end(self) -> dict[str, Any]:
        """The state at the end of a turn."""

    def note_heard(self, heard: dict[str, int] | None) -> None:
        """Note how many messages of others it has read."""

    def take_recorded(self, turn: Taken, branch: str, anew: bool) -> bool:
        """Take what the record has of an agent outside the tree."""


class TurnAgent(Protocol[T]):
    """An agent, as its turns need it."""

    name: str
    turn: T | None
    waits_in: T | None
    last_usage: TokenUsage | None
    spent: Spent

    @property
    def face(self) -> AgentBase: ...
    @property
    def by(self) -> By: ...
    @property
    def llm(self) -> LLM: ...
    @property
    def tools(self) -> ToolRegistry: ...
    @property
    def hooks(self) -> Host: ...
    @property
    def boundary(self) -> Boundary: ...
    @property
    def runtime(self) -> TurnRuntime: ...
    @property
    def resources(self) -> ResourceGiver: ...
    @property
    def tree(self) -> AgentPlace[T]: ...
    @property
    def sessions(self) -> TurnSessions[T]: ...
    @property
    def conversation(self) -> Conversation: ...
    @property
    def current_session(self) -> Session | None: ...
    @property
    def prompted(self) -> SystemPrompt: ...
    @property
    def switched_off(self) -> list[str]: ...
    @property
    def body(self) -> Tool | None: ...
    @property
    def body_parameters(self) -> list[str]: ...
    @property
    def is_loop(self) -> bool: ...
    @property
    def shows_calls(self) -> bool: ...
    @property
    def replaying(self) -> bool: ...
    @property
    def streaming(self) -> bool: ...
    @property
    def form(self) -> Any: ...
    @property
    def max_iterations(self) -> int: ...
    @property
    def parallel_tools(self) -> int: ...
    @property
    def output_key(self) -> str | None: ...
    @property
    def output_retries(self) -> int: ...
    @property
    def turning(self) -> threading.Lock: ...
    @property
    def executing(self) -> AbstractContextManager[bool]: ...
    @property
    def listener(self) -> Any: ...
    def call_options(self) -> dict[str, Any]:
        """A copy of the provider's parameters for a model call."""

    def create_llm(self, model: str) -> LLM:
        """Another model, with the agent's plugins."""

    def give_up_wait(self) -> None:
        """Forget that the agent's turn waits."""

    def delegate(self, turn: T) -> Ending | None:
        """The ending of a turn that another agent, or a function, answers."""

    def asked_by(self, call: ToolCall) -> TurnAgent[T] | None:
        """The agent of the tree that a tool call asks."""

    def request_again(self, turn: T, request: dict[str, Any]) -> None:
        """Give a turn the handoff request that was recorded."""

    def runs_again(self, call: ToolCall) -> bool:
        """Whether a person wants a call in doubt to run again."""
