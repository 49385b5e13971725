"""The methods of an agent for handlers and tools."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from connectagent import frame
from connectagent.agents.body import repeats
from connectagent.agents.links import Links
from connectagent.agents.resources import refuse_in_setup
from connectagent.data import CORE_TYPES, LLM, Session, TraceEntry
from connectagent.errors import PluginError, did_you_mean
from connectagent.hooks.discovery import model_handlers
from connectagent.hooks.entry_points import normalized
from connectagent.loop.ending import Ending
from connectagent.loop.execute import refuse_left
from connectagent.loop.fire import fire_hook
from connectagent.loop.remote import Remote
from connectagent.models.create import connected
from connectagent.models.names import parse_model
from connectagent.models.prices import context_window
from connectagent.session.snapshot import By, clone

DEFAULT_CONTEXT_WINDOW = 128_000  # tokens, where a model's own is not known
SCOPES = ("agent", "loop", "turn")
PROGRAM: By = {"plugin": "(program)"}
_OF_HOST = ("by", "at", "id", "author", "branch")  # keys of entries that nobody else may set
STATUSES = ("paused", "error", "interrupted", "cancelled", "abandoned", "crashed", "running", "between_turns")


class HandlerAPI(Links):
    """An agent as handlers and tools use it; `hooks/agent_api.py` is its contract."""

    @property
    def context_percent(self) -> float:
        """How much of the model's context window the last call took, 0-100.

        Where the window is not known, 128,000 tokens are assumed.
        """
        if self.last_usage is None:
            return 0.0
        window = self.context_window or DEFAULT_CONTEXT_WINDOW
        return min(100.0, 100.0 * (self.last_usage.input_tokens + self.last_usage.output_tokens) / window)

    @property
    def context_window(self) -> int | None:
        """How many tokens the agent's model takes; None where that is not known."""
        return getattr(self.llm, "context_window", None) or context_window(self.llm.model)

    @property
    def session(self) -> Session:
        """`current_session`, which is not None.

        Raises:
            RuntimeError: the agent has not had an `input()` yet.
        """
        if self.current_session is None:
            raise RuntimeError(f"agent {self.name!r} has no session before its first input()")
        return self.current_session

    @property
    def state(self) -> dict[str, Any]:
        """The session's state; in a tool that runs beside others, or that was left behind, its own copy.

        Raises:
            RuntimeError: the agent has not had an `input()` yet.
        """
        here = frame.current()
        if here is not None and here.body is not None and here.body.left and here.turn.agent is self:
            return here.body.state  # type: ignore[no-any-return]  # of a turn that may be over
        return self.session["state"] if self.turn is None else self.turn.state

    @property
    def replaying(self) -> bool:
        """Whether a record is played: nothing is to be sent or written outside then."""
        return self.runtime.replays or (self.parent is not None and self.parent.replaying)

    @property
    def slow_handlers(self) -> list[tuple[str, str, float, float]]:
        """The calls of handlers in this turn that took over 5 ms: plugin, hook, start in Unix seconds, seconds."""
        return list(self.boundary.slow_calls)

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
        refuse_left("end_turn()")
        turn = self.turn
        if turn is None:
            raise RuntimeError(f"agent {self.name!r} is not in a turn: end_turn() is for handlers and tools")
        if result is not None and not isinstance(result, str):
            raise TypeError(f"end_turn() takes the turn's result, a str or None, not {type(result).__name__}")
        if scope not in SCOPES:
            raise ValueError(f"end_turn(scope=...) is 'agent', 'loop' or 'turn', not {scope!r}")
        if not isinstance(outcome, str) or not outcome.isidentifier() or outcome in STATUSES:
            taken = ", ".join(STATUSES)
            raise ValueError(f"end_turn(outcome=...) is one word, and none of {taken}, not {outcome!r}")
        loops = (one for one in turn.callers() if one.agent.body is not None and repeats(one.agent.body.function))
        if scope == "loop" and next(loops, None) is None:
            raise RuntimeError(f"agent {self.name!r} is not in a Loop: end_turn(scope='loop') ends one")
        turn.end(Ending(result, outcome, self.boundary.innermost() or PROGRAM), scope)

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
        if not isinstance(type, str) or not type.strip() or type in CORE_TYPES:
            raise ValueError(f"agent.trace() takes a type of your own, a text, not {type!r}, as connectagent's are")
        if own := [name for name in fields if name in _OF_HOST]:
            raise ValueError(f"agent.trace() sets {own[0]!r} itself; its fields are named otherwise than {_OF_HOST}")
        refuse_in_setup("trace()")
        _ = self.session
        entry = {"type": type, **clone(fields), "by": self.boundary.innermost() or PROGRAM}
        refuse_left("trace()")
        here = frame.current()
        if here is None or here.body is None or here.turn.agent is not self:
            self.conversation.trace(entry)
        else:
            Remote(here.body, copy_context()).call(self.conversation.trace, entry)
        return entry

    def fire_hook(self, hook: str, operation: Callable[[], Any] | None, given: dict[str, Any]) -> tuple[Any]:
        """Call the handlers of a hook that a plugin defined; the result, in a tuple. See `OwnHook.fire`."""
        refuse_in_setup(f"{hook}.fire()")
        refuse_left(f"{hook}.fire()")
        return (fire_hook(self, hook, operation, given),)

    def plugin(self, name: str) -> Any:
        """The object, module or function of one of this agent's plugins.

        Raises:
            PluginError: there is none of that name; the message lists the known names.
        """
        found = {handler.plugin: handler.thing for handler in reversed(self.hooks.loaded) if not handler.builtin}
        for known, thing in found.items():
            if normalized(known) == normalized(name):
                return thing
        listed = ", ".join(sorted(found)) or "none"
        raise PluginError(f"agent {self.name!r} has no plugin {name!r}.{did_you_mean(name, found)} It has: {listed}")

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

        return ask(self, prompt, output, system_prompt, model, tools)

    def create_llm(self, model: str) -> LLM:
        """Another model, with this agent's plugins.

        It gets this agent's key, address and options if they were given for its provider.
        """
        if self.runtime.create_model is not None:
            return self.runtime.create_model(model)
        brought = self.hooks.collect("register_models")
        known = {normalized(handler.plugin) for handler in self.hooks.handlers("register_models")}
        brought += [handler({}) or {} for handler in model_handlers(model, known, parse_model)]
        factories = {prefix: factory for models in brought for prefix, factory in models.items()}
        return connected(model, self._connection, factories)
