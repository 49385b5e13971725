"""What handlers and tools ask of their agent: to end the turn, to trace, to ask a model, to run a tool."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any, cast

from connectagent import frame
from connectagent.agents.core import AgentCore
from connectagent.agents.resources import refuse_in_setup
from connectagent.agents.sessions import start
from connectagent.data import CORE_TYPES, Session, ToolCall, TraceEntry
from connectagent.errors import ConfigError, PluginError, did_you_mean
from connectagent.hooks.entry_points import normalized
from connectagent.loop.beside import body_in
from connectagent.loop.ending import Ending
from connectagent.loop.execute import execute_inside, execute_outside, refuse_left
from connectagent.loop.fire import fire_hook
from connectagent.loop.remote import Remote
from connectagent.models.prices import context_window
from connectagent.session.snapshot import By, clone
from connectagent.tools.awaiting import operating

DEFAULT_CONTEXT_WINDOW = 128_000  # tokens, where a model's own is not known
SCOPES = ("agent", "loop", "turn")
PROGRAM: By = {"plugin": "(program)"}
_OF_HOST = ("by", "at", "id", "author", "branch")  # keys of entries that nobody else may set
STATUSES = ("paused", "error", "interrupted", "cancelled", "abandoned", "crashed", "running", "between_turns")


def end_turn(agent: AgentCore, result: str | None, scope: str, outcome: str) -> None:
    """End the agent's turn: see `Agent.end_turn`."""
    refuse_left("end_turn()")
    turn = agent.turn
    if turn is None:
        raise RuntimeError(f"agent {agent.name!r} is not in a turn: end_turn() is for handlers and tools")
    if result is not None and not isinstance(result, str):
        raise TypeError(f"end_turn() takes the turn's result, a str or None, not {type(result).__name__}")
    if scope not in SCOPES:
        raise ValueError(f"end_turn(scope=...) is 'agent', 'loop' or 'turn', not {scope!r}")
    if not isinstance(outcome, str) or not outcome.isidentifier() or outcome in STATUSES:
        taken = ", ".join(STATUSES)
        raise ValueError(f"end_turn(outcome=...) is one word, and none of {taken}, not {outcome!r}")
    if scope == "loop" and not any(one.agent.is_loop for one in turn.callers()):
        raise RuntimeError(f"agent {agent.name!r} is not in a Loop: end_turn(scope='loop') ends one")
    turn.end(Ending(result, outcome, agent.boundary.innermost() or PROGRAM), scope)


def add_to_trace(agent: AgentCore, type: str, fields: dict[str, Any]) -> TraceEntry:
    """Add an entry to the trace: see `Agent.trace`."""
    if not isinstance(type, str) or not type.strip() or type in CORE_TYPES:
        raise ValueError(f"agent.trace() takes a type of your own, a text, not {type!r}, as connectagent's are")
    if own := [name for name in fields if name in _OF_HOST]:
        raise ValueError(f"agent.trace() sets {own[0]!r} itself; its fields are named otherwise than {_OF_HOST}")
    refuse_in_setup("trace()")
    begun(agent.name, agent.current_session)
    entry = {"type": type, **clone(fields), "by": agent.boundary.innermost() or PROGRAM}
    refuse_left("trace()")
    here = frame.current()
    body = None if here is None or here.turn.agent is not agent else body_in(here)
    if body is None:
        agent.conversation.trace(entry)
    else:
        Remote(body, copy_context()).call(agent.conversation.trace, entry)
    return entry


def execute_tool(agent: AgentCore, name: str, arguments: dict[str, Any] | None, key: str | None) -> TraceEntry:
    """Run one tool: see `Agent.execute_tool`."""
    refuse_in_setup("execute_tool()")
    if not isinstance(arguments, dict | None):
        raise ConfigError(f"the arguments of execute_tool({name!r}) are a dict, not {arguments!r:.80}")
    agent.executed += 1
    call = ToolCall(f"executed_{agent.executed}", name, dict(arguments or {}))
    turn = agent.turn
    if turn is None:
        outside = partial(execute_outside, agent, call, agent.executed)
        return cast(TraceEntry, operating(partial(start, agent, "execute_tool", outside)))
    return cast(TraceEntry, operating(partial(execute_inside, turn, call, key)))


def fire(agent: AgentCore, hook: str, operation: Callable[[], Any] | None, given: dict[str, Any]) -> Any:
    """Call the handlers of a hook that a plugin defined; the result by the hook's kind: see `OwnHook.fire`."""
    refuse_in_setup(f"{hook}.fire()")
    refuse_left(f"{hook}.fire()")
    return fire_hook(agent, hook, operation, given)


def begun(name: str, session: Session | None) -> Session:
    """The session of an agent of this name, which has begun.

    Raises:
        RuntimeError: the agent has not had an `input()` yet.
    """
    if session is None:
        raise RuntimeError(f"agent {name!r} has no session before its first input()")
    return session


def plugin_of(agent: AgentCore, name: str) -> Any:
    """The object, module or function of one of an agent's plugins: see `Agent.plugin`."""
    found = {handler.plugin: handler.thing for handler in reversed(agent.hooks.loaded) if not handler.builtin}
    for known, thing in found.items():
        if normalized(known) == normalized(name):
            return thing
    listed = ", ".join(sorted(found)) or "none"
    raise PluginError(f"agent {agent.name!r} has no plugin {name!r}.{did_you_mean(name, found)} It has: {listed}")


def state_of(agent: AgentCore) -> dict[str, Any]:
    """The state of the session for the code that runs here: see `Agent.state`."""
    here = frame.current()
    if here is not None and here.body is not None and here.body.left and here.turn.agent is agent:
        return here.body.state  # of a turn that may be over
    if agent.turn is not None:
        return agent.turn.state
    return begun(agent.name, agent.current_session)["state"]


def window_of(agent: AgentCore) -> int | None:
    """How many tokens an agent's model takes; None where that is not known."""
    return getattr(agent.llm, "context_window", None) or context_window(agent.llm.model)


def used_percent(agent: AgentCore, window: int | None) -> float:
    """How much of the context window the last model call took, 0-100."""
    usage = agent.last_usage
    if usage is None:
        return 0.0
    return min(100.0, 100.0 * (usage.input_tokens + usage.output_tokens) / (window or DEFAULT_CONTEXT_WINDOW))
