"""The part of an agent that handlers may rely on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from connectagent.data import LLM, Session, TraceEntry

if TYPE_CHECKING:
    from pathlib import Path

    from connectagent.tools.registry import ToolRegistry


class AgentAPI(Protocol):
    """The `agent` that handlers are given."""

    name: str
    llm: LLM
    tools: ToolRegistry
    system_prompt: str
    max_iterations: int
    current_session: Session | None
    @property
    def session(self) -> Session: ...
    @property
    def state(self) -> dict[str, Any]: ...
    @property
    def record(self) -> Path | None: ...
    @property
    def replaying(self) -> bool: ...
    @property
    def slow_handlers(self) -> list[tuple[str, str, float, float]]: ...
    def plugin(self, name: str) -> Any: ...
    def end_turn(self, result: str | None = None, *, scope: str = "agent", outcome: str = "ended") -> None: ...
    def trace(self, type: str, **fields: Any) -> TraceEntry: ...
    def ask(self, prompt: str | list[Any], **options: Any) -> Any: ...
    def execute_tool(self, name: str, arguments: dict[str, Any] | None = None) -> TraceEntry: ...
    def add_tool(self, tool: Any) -> None: ...
    def create_llm(self, model: str) -> LLM: ...
