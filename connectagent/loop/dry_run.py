"""Shadowed handlers: they run on copies, and the trace records what they would have done."""

from __future__ import annotations

import contextlib
import copy
import inspect
import time
from collections.abc import Callable
from typing import Any

from connectagent.data import AgentBase, LLMRequest, LLMResponse, TokenUsage, ToolCall, TraceEntry
from connectagent.errors import INTERRUPTS, HookResultError
from connectagent.hooks.handler import Handler, who
from connectagent.hooks.specs import CONTRACTS
from connectagent.loop.boundary import Boundary, check_value, resume
from connectagent.session.edits import as_data, unless_same
from connectagent.session.messages import NOT_RUN
from connectagent.session.snapshot import ATOMS, Snapshot, clone, same
from connectagent.tools.registry import ToolRegistry
from connectagent.tools.tool import Tool

_PASSED = (LLMRequest, LLMResponse, ToolCall)
_SKIPPED = NOT_RUN.format(reason="the handler is shadowed")
_GONE = object()
_FOR_PACKAGE = ("_fire_hook", "_resources")  # what the hooks' room asks of an agent


def copied(value: Any, made: dict[int, Any]) -> Any:
    """A deep copy; what cannot be copied is shared.

    Args:
        value: what to copy.
        made: the copies so far by the id of the original, so that one object in two places stays one.
    """
    kind = type(value)
    if kind in ATOMS:
        return value
    if id(value) in made:
        return made[id(value)]
    if kind is dict:
        made[id(value)] = items = dict[Any, Any]()
        for key, item in value.items():  # a call for each atom would be most of the cost
            items[key] = item if type(item) in ATOMS else copied(item, made)
    elif kind is list:
        made[id(value)] = listed = list[Any]()
        listed += [item if type(item) in ATOMS else copied(item, made) for item in value]
    elif kind in _PASSED:
        made[id(value)] = passed = copy.copy(value)
        for name in kind.__slots__:
            setattr(passed, name, copied(getattr(value, name), made))
    elif isinstance(value, BaseException):
        made[id(value)] = value  # a copy would have lost its traceback
    else:
        made[id(value)] = value
        with contextlib.suppress(Exception):  # locks, connections, generators
            made[id(value)] = copy.deepcopy(value)
    return made[id(value)]


class DryRuns:
    """The dry runs of an agent's handlers. They keep changes of `state`, so that each plugin finds its own again.

    Args:
        face: the agent.
    """

    def __init__(self, face: AgentBase) -> None:
        self.face = face
        self._session: Any = None
        self._kept: dict[str, dict[Any, tuple[int, Any]]] = {}

    def of(self, handler: Handler, real: Boundary) -> DryRun:
        """One run of a handler, beside the boundary of its agent."""
        return DryRun(real, handler, self)

    def recall(self, session: dict[str, Any], plugin: str, copy: dict[str, Any]) -> None:
        """Put what a plugin left into a copy of the session; `temp:` keys live for one turn."""
        if session is not self._session:
            self._session, self._kept = session, {}
        for key, (turn, value) in self._kept.get(plugin, {}).items():
            if value is _GONE:
                copy["state"].pop(key, None)
            elif turn == copy["turn"] or not str(key).startswith("temp:"):
                copy["state"][key] = copied(value, {})

    def keep(self, plugin: str, before: dict[Any, Any], copy: dict[str, Any]) -> None:
        """Keep what a plugin changed in a copy of the state."""
        after, kept = copy["state"], self._kept.setdefault(plugin, {})
        for key in {**before, **after}:
            value = after.get(key, _GONE)
            if key not in before or value is _GONE or not same(before[key], value):
                kept[key] = (copy["turn"], value)


class DryRunAgent:
    """The `agent` of a shadowed handler: reads pass through; actions are noted instead of done.

    Args:
        agent: the agent itself.
        calls: receives the actions.
    """

    current_session: Any
    tools: ToolRegistry

    def __init__(self, agent: AgentBase, calls: list[dict[str, Any]]) -> None:
        vars(self).update(_agent=agent, _calls=calls, current_session=None)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # isinstance(agent, Agent) holds
        return type(vars(self)["_agent"])

    def __repr__(self) -> str:
        return repr(vars(self)["_agent"])

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "current_session":  # which `Boundary` checks
            vars(self)["_calls"].append({"set": name, "value": _shown(value)})
        vars(self)[name] = value

    def __getattr__(self, name: str) -> Any:
        """An attribute of the real agent."""
        agent, calls = vars(self)["_agent"], vars(self)["_calls"]
        if name.startswith("_") and name not in _FOR_PACKAGE:
            raise AttributeError(f"a shadowed handler is not given agent.{name}; read agent.current_session")
        if name in ("session", "state"):  # of the copy
            return self.session["state"] if name == "state" else type(agent).session.fget(self)
        if name == "tools":
            vars(self)["tools"] = _DryRunTools(agent.tools, calls)
            return self.tools
        value = getattr(agent, name)
        if name == "create_llm" or not (inspect.ismethod(value) and value.__self__ is agent):
            return copied(value, {}) if isinstance(value, dict | list | TokenUsage) else value
        return {"list_tools": self._list_tools, "add_tool": self._add_tool, "remove_tool": self._remove_tool}.get(
            name, self._noting(name, value)
        )

    def _list_tools(self) -> list[str]:
        return self.tools.names()

    def _add_tool(self, tool: Any) -> None:
        self.tools.add(tool)

    def _remove_tool(self, name: str) -> None:
        self.tools.remove(name)

    def _noting(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """A method that notes its call; it refuses what the agent would refuse."""
        agent, calls = vars(self)["_agent"], vars(self)["_calls"]

        def note(*args: Any, **kwargs: Any) -> Any:
            given = inspect.signature(method).bind(*args, **kwargs).arguments
            ends, in_turn = name == "end_turn", agent.in_turn
            if ends and not (in_turn and isinstance(given.get("result"), str | None)):
                return method(*args, **kwargs)  # raises
            if name in ("input", "reset_conversation") and in_turn:
                return method(*args, **kwargs)  # raises
            calls.append({"call": name, "arguments": {key: _shown(value) for key, value in given.items()}})
            if name == "ask":
                return LLMResponse(_SKIPPED) if given.get("output") is None else None
            if name == "execute_tool":
                return _skipped(given["name"], given.get("arguments") or {})
            return "" if name == "input" else None

        return note


class _DryRunTools(ToolRegistry):
    """The agent's tools, which can be called, but do not run."""

    def __init__(self, tools: ToolRegistry, calls: list[dict[str, Any]]) -> None:
        self._calls: list[dict[str, Any]] | None = None
        own = [self._idle(tool, calls) for tool in tools]
        super().__init__(own, agent_tool=tools._agent_tool, resources=tools._resources)
        self._calls = calls

    @staticmethod
    def _idle(tool: Tool, calls: list[dict[str, Any]]) -> Tool:
        idle = copy.copy(tool)

        def function(*args: Any, **kwargs: Any) -> str:
            given = {**{str(number): _shown(value) for number, value in enumerate(args)}, **kwargs}
            calls.append({"call": tool.name, "arguments": {key: _shown(value) for key, value in given.items()}})
            return _SKIPPED

        idle.function = function
        return idle

    def add(self, source: object) -> list[Tool]:
        new = super().add(source)
        if self._calls is not None:
            self._calls += [{"call": "add_tool", "arguments": {"tool": tool.name}} for tool in new]
        return new

    def remove(self, name: str) -> Tool:
        gone = super().remove(name)
        if self._calls is not None:
            self._calls.append({"call": "remove_tool", "arguments": {"name": name}})
        return gone


class DryRun(Boundary):
    """One run of a shadowed handler on a copy of the agent, watched like a real one: it makes the same entries.

    Args:
        real: the boundary of the agent itself.
        handler: the handler.
        runs: has the changes of `state` by shadowed plugins.
    """

    def __init__(self, real: Boundary, handler: Handler, runs: DryRuns) -> None:
        self.real, self.handler, self.runs = real, handler, runs
        self.calls: list[dict[str, Any]] = []
        self.changes: list[TraceEntry] = []
        self.given: dict[str, Any] = {}
        self.generator: Any = None
        super().__init__(DryRunAgent(runs.face, self.calls), lambda *entries: self.changes.extend(entries))

    @property
    def replaced(self) -> bool:  # type: ignore[override]  # the copy of the agent does not tell
        """Whether the handler replaced `current_session`."""
        return self.snapshot is not None and self.agent.current_session is not self.snapshot.session

    def blame(self, error: BaseException, handler: Handler, since: int = -1) -> BaseException:
        return error  # it may be the agent's own error, so it gets no note

    def whole(self, arguments: dict[str, Any]) -> list[TraceEntry]:
        """Run the handler; the entry of what it would have done, if anything."""
        self._copy(arguments)
        changed = unless_same(self.given.get(CONTRACTS[self.handler.hook].chained))
        return self._perform(self._checked, changed)

    def _checked(self) -> Any:
        value = self.handler(self.given)
        check_value(self.handler, value)
        return value

    def first_half(self, arguments: dict[str, Any]) -> list[TraceEntry]:
        """Run an around handler up to its yield."""
        self._copy(arguments)
        self.generator = self.handler(self.given)

        def begin() -> None:
            if not resume(self.handler, self.generator, None, None)[0]:
                raise HookResultError(f"{who(self.handler)} returned before its yield")

        return self._perform(begin, lambda value: None)

    def second_half(self, result: Any, error: BaseException | None) -> list[TraceEntry]:
        """Run the rest of an around handler with the outcome of the operation."""
        if getattr(self.generator, "gi_frame", None) is None:  # it ended before its yield
            return []
        self._copy({})
        outcome = copied(result, {})
        changed = unless_same(outcome)

        def end() -> Any:
            yielded, value = resume(self.handler, self.generator, error, outcome)
            if yielded:
                self.generator.close()
                raise HookResultError(f"{who(self.handler)} yields more than once")
            return value

        decides = error is None or isinstance(error, Exception)
        return self._perform(end, lambda value: changed(value) if decides else None, error)

    def _copy(self, arguments: dict[str, Any]) -> None:
        """Copy the session and the arguments; an around handler keeps the session object that it has seen."""
        made: dict[int, Any] = {}
        if self.real.snapshot is not None:
            self.real.ready(self.real.snapshot)
            self._copy_session(self.real.snapshot, made)
        for name, value in arguments.items():
            self.given[name] = self.agent if name == "agent" else copied(value, made)

    def _copy_session(self, real: Snapshot, made: dict[int, Any]) -> None:
        session, before = copied(real.session, made), self.snapshot
        self.runs.recall(real.session, self.handler.plugin, session)
        if before is not None:  # the handler may hold these lists from before its yield
            before.messages[:], before.trace[:] = session["messages"], session["trace"]
            before.session.clear()
            before.session.update(session, messages=before.messages, trace=before.trace)
            session = before.session
        self.snapshot = Snapshot(session, real.traced.start)
        self.agent.current_session = session

    def _perform(
        self, function: Callable[[], Any], decision: Callable[[Any], Any], expected: BaseException | None = None
    ) -> list[TraceEntry]:
        """Run the handler, or one half of it.

        Raises:
            KeyboardInterrupt, Cancelled: the turn was interrupted meanwhile.
        """
        would: dict[str, Any] = {}
        shadow = self.snapshot
        state = clone(shadow.session["state"]) if shadow is not None else {}
        try:
            with _untouched(expected or self.given.get("error")):
                value = decision(self.watched(self.handler, self.given, function, expected=expected))
            if value is not None:
                would["return"] = as_data(value)
        except BaseException as error:
            if error is not expected:
                if isinstance(error, INTERRUPTS):
                    raise
                would["raise"] = {"error": _text(error), "error_type": type(error).__name__}
        finally:
            self._restore()
        if shadow is not None:
            self.runs.keep(self.handler.plugin, state, shadow.session)
        would |= {"changes": list(self.changes)} if self.changes else {}
        would |= {"calls": list(self.calls)} if self.calls else {}
        self.changes.clear()
        self.calls.clear()
        return [self._entry(would)] if would else []

    def _entry(self, would: dict[str, Any]) -> TraceEntry:
        by = self.handler.by
        entry = {"type": "shadow", "by": by, "hook": self.handler.hook, "would": would, "timestamp": time.time()}
        call = self.given.get("tool_call")
        return {**entry, "call_id": call.id} if isinstance(call, ToolCall) else entry

    def _restore(self) -> None:
        """Undo what the handler did to the real agent, which it may hold from elsewhere."""
        real = self.real
        if real.snapshot is not None and (
            real.agent.current_session is not real.snapshot.session or not real.snapshot.unchanged()
        ):
            real.roll_back(real.snapshot, None)


@contextlib.contextmanager
def _untouched(error: BaseException | None) -> Any:
    """Keep an error unchanged, even if a handler raises it again."""
    if not isinstance(error, BaseException):
        yield
        return
    trace, context, cause = error.__traceback__, error.__context__, error.__cause__
    suppressed, notes = error.__suppress_context__, list(getattr(error, "__notes__", ()))
    try:
        yield
    finally:
        with contextlib.suppress(Exception):
            error.__traceback__, error.__context__, error.__cause__ = trace, context, cause
            error.__suppress_context__ = suppressed
            if notes != list(getattr(error, "__notes__", ())):
                error.__notes__ = notes


def _skipped(name: Any, arguments: dict[str, Any]) -> TraceEntry:
    """The entry of a tool call that is not made."""
    entry = {"type": "tool_execution", "tool_name": name, "arguments": clone(arguments), "call_id": "shadowed"}
    return {**entry, "result": _SKIPPED, "status": "skipped", "timing": 0.0, "timestamp": time.time()}


def _shown(value: Any) -> Any:
    """An argument in the form of a trace entry."""
    if isinstance(value, str | int | float | bool | dict | list | None):
        return clone(value)
    return _text(value)[:200]


def _text(value: Any) -> str:
    try:
        return str(value) if isinstance(value, BaseException) else repr(value)
    except Exception as error:
        return f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"
