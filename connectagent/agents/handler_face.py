"""The part of an agent that handlers and tools use too; `hooks/agent_api.py` is its contract."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from connectagent.agents import handler_calls
from connectagent.agents.copies import MadeWith
from connectagent.agents.core import AgentCore
from connectagent.agents.resources import Resources, refuse_in_setup
from connectagent.agents.tree import agents_in
from connectagent.data import LLM, Session, TokenUsage, TraceEntry
from connectagent.hooks.host import Host
from connectagent.loop.ending import Ending
from connectagent.session.usage import Spent
from connectagent.settings.tracebacks import with_short_tracebacks
from connectagent.tools.registry import ToolRegistry


class HandlerFace:
    """An agent as handlers and tools use it. Each name is a line or two over an `AgentCore`."""

    _core: AgentCore
    _made_with: MadeWith

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        # Here, and not in `Agent`: so `inspect.signature(Agent)` is that of its `__init__`.
        self = super().__new__(cls)
        self._made_with = MadeWith(args, kwargs)  # those of a subclass's own __init__, too
        return self

    # -- for handlers and tools -----------------------------------------------------------------

    def ask(
        self,
        prompt: str | list[Any],
        *,
        output: type[Any] | None = None,
        system_prompt: str | None = None,
        model: str | None = None,
        tools: Any = (),
    ) -> Any:
        """Ask a model once, outside the conversation.

        The call is traced, counted and recorded with the turn, and is not repeated on resume.
        `around_llm` and `on_error` handlers see it, except the handler that makes the call.

        Args:
            prompt: text, a list of texts, `Image`s and parts of a message, or a list of whole messages.
            output: a pydantic model to return an instance of. An answer that does not fit is sent back once.
            system_prompt: the system prompt of this call.
            model: a name as `Agent` takes it; by default the agent's own model.
            tools: what `Agent(tools=)` takes, or schemas. They are not run: the caller gets the `tool_calls`.

        Returns:
            The `LLMResponse`, or the instance of `output`.

        Raises:
            RuntimeError: no turn is running, or it no longer waits for the code.
            ProviderError: the call failed, and no handler recovered it; `TurnEndedError` where `end_turn()` came first.
            OutputError: the second answer does not fit `output` either.
        """
        refuse_in_setup("ask()")
        from connectagent.loop.ask import ask  # loads pydantic, which few programs need

        return ask(self._core, prompt, output, system_prompt, model, tools)

    @with_short_tracebacks
    def execute_tool(self, name: str, arguments: dict[str, Any] | None = None, *, key: str | None = None) -> TraceEntry:
        """Run one tool without the model, with all its hooks; nothing is added to the messages.

        Args:
            name: the tool.
            arguments: its arguments.
            key: identifies this call within its handler or tool, in place of the arguments.

        Returns:
            The call's trace entry: `status`, `result`, `timing` and so on.

        Raises:
            ConfigError: the arguments are no dict.
        """
        return handler_calls.execute_tool(self._core, name, arguments, key)

    def end_turn(self, result: str | None = None, *, scope: str = "agent", outcome: str = "ended") -> None:
        """End the turn before the next call of a model or tool; `on_complete` still fires.

        Args:
            result: what `input()` returns; by default the last text of the model.
            scope: which of the nested turns to end: `"agent"`, this agent's only; `"loop"`, those up to the next
                `Loop`; `"turn"`, all of them.
            outcome: one word for the reason, for `on_complete` and the record.

        Raises:
            RuntimeError: no turn is running, or no `Loop`, or the turn no longer waits for the code.
            ValueError: the scope is not one of the three, or the outcome is reserved or not one word.
        """
        handler_calls.end_turn(self._core, result, scope, outcome)

    @property
    def ended(self) -> Ending | None:
        """How the running turn was asked to end: `result`, `outcome` and `by`; None where it goes on."""
        return None if self._core.turn is None else self._core.turn.ended

    @property
    def in_turn(self) -> bool:
        """Whether a turn of this agent is running."""
        return self._core.turning.locked()

    def trace(self, type: str, /, **fields: Any) -> TraceEntry:
        """Add an entry of a plugin's own to the trace; it is recorded, and `on_trace` fires for it.

        Args:
            type: the entry's type; none of connectagent's own.
            fields: what else it has, as data. `by`, which names who added it, and its place are connectagent's.
                A text in `show` appears on the terminal, in the chat and in `log show`.

        Returns:
            The entry.

        Raises:
            RuntimeError: the agent has not had an `input()` yet.
            ValueError: the type or a field is connectagent's own.
        """
        return handler_calls.add_to_trace(self._core, type, fields)

    def plugin(self, name: str) -> Any:
        """The object, module or function of one of this agent's plugins.

        Raises:
            PluginError: there is none of that name; the message lists the known names.
        """
        return handler_calls.plugin_of(self._core, name)

    @property
    def replaying(self) -> bool:
        """Whether a record is played: nothing is to be sent or written outside then."""
        return self._core.replaying

    def create_llm(self, model: str) -> LLM:
        """Another model, with this agent's plugins.

        It gets this agent's key, address and options if they were given for its provider.
        """
        return self._core.create_llm(model)

    @property
    def _resources(self) -> Resources:
        """Makes the resources that handlers take."""
        return self._core.resources

    def _fire_hook(self, hook: str, operation: Callable[[], Any] | None, given: dict[str, Any]) -> tuple[Any]:
        """Call the handlers of a hook that a plugin defined; the result, in a tuple. See `OwnHook.fire`."""
        return (handler_calls.fire(self._core, hook, operation, given),)

    # -- what it holds --------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Identifies the agent in records and logs."""
        return self._core.name

    @name.setter
    def name(self, text: str) -> None:
        self._core.name = text

    @property
    def description(self) -> str | None:
        """How the agent is described to the models of other agents."""
        return self._core.description

    @description.setter
    def description(self, text: str | None) -> None:
        self._core.description = text

    @property
    def llm(self) -> LLM:
        """The model; assign another one between turns."""
        return self._core.llm

    @llm.setter
    def llm(self, llm: LLM) -> None:
        self._core.llm = llm

    @property
    def tools(self) -> ToolRegistry:
        """The registry of its tools."""
        return self._core.tools

    @property
    def system_prompt(self) -> str:
        """The system prompt, with its placeholders. What handlers of `on_agent_ready` make of it counts as theirs."""
        return self._core.system_prompt

    @system_prompt.setter
    def system_prompt(self, text: str) -> None:
        self._core.change_system_prompt(text)

    @property
    def max_iterations(self) -> int:
        """How many model calls a turn may take."""
        return self._core.max_iterations

    @max_iterations.setter
    def max_iterations(self, number: int) -> None:
        self._core.max_iterations = number

    @property
    def parallel_tools(self) -> int:
        """How many tool calls of a round may run at the same time."""
        return self._core.parallel_tools

    @parallel_tools.setter
    def parallel_tools(self, number: int) -> None:
        self._core.parallel_tools = number

    @property
    def hooks(self) -> Host:
        """The plugin manager."""
        return self._core.hooks

    @property
    def switched_off(self) -> list[str]:
        """The plugins named in code that the command line left out."""
        return self._core.switched_off

    # -- tools ----------------------------------------------------------------------------------

    def add_tool(self, tool: Any) -> None:
        """Add tools: whatever `tools=` takes."""
        core = self._core
        core.tree.check_children(agents_in(tool))
        core.tree.join_children(core.tools.add(tool))

    def remove_tool(self, name: str) -> None:
        """Remove a tool.

        Raises:
            ToolNotFound: there is none of that name; the message lists the known names.
        """
        self._core.tree.part_from(self._core.tools.remove(name))

    def list_tools(self) -> list[str]:
        """The names of the tools."""
        return self._core.tools.names()

    # -- the session ----------------------------------------------------------------------------

    @property
    def current_session(self) -> Session | None:
        """The session, or None before the first turn; a tool that runs beside others gets it read-only."""
        return self._core.current_session

    @current_session.setter
    def current_session(self, session: Session | dict[str, Any] | None) -> None:
        self._core.current_session = session

    @property
    def session(self) -> Session:
        """`current_session`, which is not None.

        Raises:
            RuntimeError: the agent has not had an `input()` yet.
        """
        return handler_calls.begun(self.name, self.current_session)

    @property
    def state(self) -> dict[str, Any]:
        """The session's state; in a tool that runs beside others, or that was left behind, its own copy.

        Raises:
            RuntimeError: the agent has not had an `input()` yet.
        """
        return handler_calls.state_of(self._core)

    @property
    def record(self) -> Path | None:
        """The session's file; inside another agent's turn, the outer session's. None where nothing is recorded."""
        return self._core.record

    @property
    def recording(self) -> bool:
        """Whether its sessions are recorded: not with `log=False`."""
        return self._core.log.recording

    # -- time, tokens and cost ------------------------------------------------------------------

    @property
    def last_usage(self) -> TokenUsage | None:
        """What the last model call took, or None."""
        return self._core.last_usage

    @property
    def total_cost(self) -> float:
        """USD, for all model calls in this session whose price is known, including those of inner agents."""
        return self._core.spent.known_cost

    @property
    def spent(self) -> Spent:
        """What the session has cost, with inner agents: `tokens`, `calls`, and `cost` (USD; None without a price)."""
        return self._core.spent

    @property
    def ledger(self) -> list[dict[str, Any]]:
        """The time and the cost of each handler so far, the slowest first.

        One dict each: `plugin`, `hook`, `handler`, `calls`, `duration_ms`, and for its own model calls
        `model_calls`, `input_tokens`, `output_tokens`, `cost` (USD).
        """
        return self._core.hooks.ledger()

    @property
    def slow_handlers(self) -> list[tuple[str, str, float, float]]:
        """The calls of handlers in this turn that took over 5 ms: plugin, hook, start in Unix seconds, seconds."""
        return list(self._core.boundary.slow_calls)

    @property
    def context_window(self) -> int | None:
        """How many tokens the agent's model takes; None where that is not known."""
        return handler_calls.window_of(self._core)

    @property
    def context_percent(self) -> float:
        """How much of the model's context window the last call took, 0-100.

        Where the window is not known, 128,000 tokens are assumed.
        """
        return handler_calls.used_percent(self._core, self.context_window)
