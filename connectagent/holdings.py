"""What an agent holds: its tools, its session, the connection to its model, and what it has cost."""

from __future__ import annotations

import threading
import time
from typing import Any, cast

from connectagent.conversation import Conversation
from connectagent.discovery import model_handlers
from connectagent.host import PluginHost
from connectagent.installed import normalized
from connectagent.llm import LLM
from connectagent.pausing import Origin
from connectagent.providers import context_window, create_llm
from connectagent.session import Session, TokenUsage
from connectagent.tools import ToolRegistry
from connectagent.tree import Member, agents_in

DEFAULT_CONTEXT_WINDOW = 128_000  # tokens, where a model's own is not known


class Holdings(Member):
    """What an agent holds; `Agent` adds the loop.

    Attributes:
        hooks: its handlers.
        tools: its tools.
        llm: its model.
        current_session: the session, or None before the first `input()`.
        last_usage: the tokens of the last model call, or None.
        total_cost: USD, of all model calls whose price is known.
        origin: where the session comes from, if it was resumed.
    """

    name: str
    system_prompt: str
    hooks: PluginHost
    tools: ToolRegistry
    llm: LLM

    def __init__(self, state: dict[str, Any] | None, connection: dict[str, Any]) -> None:
        self.current_session: Session | None = None
        self.last_usage: TokenUsage | None = None
        self.total_cost = 0.0
        self.origin: Origin | None = None
        self._state = state  # what each new session begins with
        self._connection = connection  # key, address and options of the model's provider
        self._conversation: Conversation | None = None
        self._turning = threading.Lock()

    def add_tool(self, tool: Any) -> None:
        """Add tools: whatever `tools=` takes."""
        self.check_children(agents_in(tool))
        self.take_in(self.tools.add(tool))

    def remove_tool(self, name: str) -> None:
        """Remove a tool.

        Raises:
            ToolNotFound: there is none of that name; the message lists those that there are.
        """
        self.let_go(self.tools.remove(name))

    def list_tools(self) -> list[str]:
        """The names of the tools."""
        return self.tools.names()

    def reset_conversation(self) -> None:
        """Forget the conversation, that of the agents below too; the next `input()` begins a new session and record.

        Raises:
            RuntimeError: a turn is running.
        """
        self._refuse_inside("reset_conversation()")
        self._conversation = self.current_session = self.hooks.shadow = self.last_usage = None
        for child in self.children:
            child.reset_conversation()

    @property
    def context_percent(self) -> float:
        """How much of the model's context window the last call took, 0-100.

        Where the window is not known, 128,000 tokens are assumed.
        """
        if self.last_usage is None:
            return 0.0
        window = getattr(self.llm, "context_window", None) or context_window(self.llm.model) or DEFAULT_CONTEXT_WINDOW
        return min(100.0, 100.0 * (self.last_usage.input_tokens + self.last_usage.output_tokens) / window)

    @property
    def ledger(self) -> list[dict[str, Any]]:
        """What each handler cost so far, the longest first.

        One dict each: `plugin`, `hook`, `handler`, `calls`, `duration_ms`, and of the model calls that it made
        itself `model_calls`, `input_tokens`, `output_tokens`, `cost` (USD).
        """
        return self.hooks.ledger()

    @property
    def conversation(self) -> Conversation:
        """The doors through which the loop changes `current_session`."""
        if self._conversation is None:
            self._conversation = Conversation(self, self.hooks, self.system_prompt, None, self._state)
            self.current_session = cast(Session, self._conversation.session)
        return self._conversation

    def take_session(self, session: dict[str, Any], origin: Origin) -> None:
        """Go on with a session that was read from a record."""
        self.current_session, self.origin = cast(Session, session), origin
        self._take_session()

    def _take_session(self) -> None:
        """Go on with the session that the program left in `current_session`: the same, another one, or none."""
        if self.current_session is None:
            self._conversation = None
        elif self._conversation is None or self.current_session is not self._conversation.session:
            stored = cast(dict[str, Any], self.current_session)
            self._conversation = Conversation(self, self.hooks, self.system_prompt, stored, self._state)

    def _refuse_inside(self, what: str) -> None:
        if self._turning.locked():
            raise RuntimeError(
                f"agent {self.name!r} is in a turn; {what} is for between turns, and was called by its own handler or "
                "tool, or by another thread; make an agent for each"
            )

    def create_llm(self, model: str) -> LLM:
        """Another model, with this agent's plugins, key, address and options."""
        brought = self.hooks.collect("register_models")
        known = {normalized(handler.plugin) for handler in self.hooks.handlers["register_models"]}
        brought += [handler({}) or {} for handler in model_handlers(model, known)]
        factories = {prefix: factory for models in brought for prefix, factory in models.items()}
        return create_llm(model, factories=factories, **self._connection)

    def wait(self, after_s: float) -> None:
        """Wait before a call is made again, in seconds."""
        time.sleep(after_s)

    def __repr__(self) -> str:
        return f"Agent({self.name!r}, model={self.llm.model!r}, tools={self.list_tools()!r})"
