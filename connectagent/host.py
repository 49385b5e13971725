"""The host: which handlers there are, in which order they run, and whose doing everything is.

pluggy keeps the specs, the registrations and the order; the host runs the handlers itself, because it
watches each one: its time, what it changes (see `attribution`), and the errors that it raises.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pluggy

from connectagent import hookspecs
from connectagent.attribution import By, Shadow, other_calls, peek, peek_one, put_back, same, shown
from connectagent.errors import HookResultError, PluginError, PluginWarning, ToolRejected
from connectagent.hooks import Handler, name_of
from connectagent.hookspecs import CONTRACTS, HOOKS, PROJECT
from connectagent.ledger import paying, rows
from connectagent.messages import value_problem
from connectagent.session import Continue, LLMResponse, ToolCall, TraceEntry
from connectagent.tools import Tool

_MAY_REJECT = ("before_tools", "before_each_tool")


class Decision(NamedTuple):
    """A value that a handler supplied, and whose it is."""

    value: Any
    by: By


class PluginHost(pluggy.PluginManager):
    """The handlers of one agent.

    Args:
        agent: what handlers receive as `agent`.
        announce: takes the trace entries that tell what a handler changed.
        forgiving: whether an exception of a handler that only watches becomes a warning.
    """

    def __init__(self, agent: Any, announce: Callable[[TraceEntry], None], *, forgiving: bool = False) -> None:
        super().__init__(PROJECT)
        self.forgiving = forgiving
        self.add_hookspecs(hookspecs)
        self.agent = agent
        self.announce = announce
        self.shadow: Shadow | None = None
        self.loaded: list[Handler] = []
        self.handlers: dict[str, tuple[Handler, ...]] = dict.fromkeys(HOOKS, ())
        self.blames = 0  # how many errors were found to be a handler's
        self._blamed: dict[int, tuple[BaseException, Handler, int]] = {}
        self._running: list[By | None] = []  # whose code is running, innermost last; None for one not watched

    # -- registration --------------------------------------------------------------------------

    def load(self, handlers: Iterable[Handler]) -> None:
        """Register handlers, in place of those that were, so that they run in the order in which they are given.

        Raises:
            PluginError: the same function is listed twice for one hook.
        """
        listed = list(handlers)
        for index, handler in enumerate(listed):
            for other in listed[:index]:
                if handler.hook == other.hook and handler.function == other.function:
                    raise PluginError(
                        f"{name_of(handler.function)!r} ({handler.by['file']}:{handler.by['line']}) is listed twice: "
                        f"by {other.plugin!r} and by {handler.plugin!r}; list it once"
                    )
        for known in self.loaded:
            self.unregister(known)
        self.loaded = listed
        # pluggy calls the last registered first, and the last registered wrapper is the outermost.
        for index, handler in reversed(list(enumerate(listed))):
            self.register(handler, f"{handler.plugin}:{handler.hook}:{index}")
        for hook in HOOKS:
            implementations = getattr(self.hook, hook).get_hookimpls()
            self.handlers[hook] = tuple(implementation.plugin for implementation in reversed(implementations))

    def parse_hookimpl_opts(self, plugin: object, name: str) -> Any:
        """pluggy asks for each attribute of a plugin; ours are handlers, with one function each."""
        return plugin.opts if name == "hookable" and isinstance(plugin, Handler) else None

    # -- dispatch ------------------------------------------------------------------------------

    def first(self, hook: str, **arguments: Any) -> Decision | None:
        """Call handlers until one returns a value."""
        for handler in self.handlers[hook]:
            value = self._call(handler, arguments)
            if value is not None:
                return Decision(value, handler.by)
        return None

    def chain(self, hook: str, convert: Callable[[Any], Any] | None = None, **arguments: Any) -> tuple[Any, Any]:
        """Call every handler; each sees the value that those before it left.

        Returns:
            The value, and the last `Continue` as a `Decision`, if there was one.
        """
        name, going_on = CONTRACTS[hook].chained, None
        for handler in self.handlers[hook]:
            value = self._call(handler, arguments)
            if isinstance(value, Continue):
                going_on = Decision(value, handler.by)
            elif value is not None:
                arguments[name] = convert(value) if convert else value
                self._announce_value(handler, name, arguments)
        return arguments[name], going_on

    def observe(self, hook: str, only: Iterable[Handler] | None = None, **arguments: Any) -> None:
        """Call every handler, or `only` these; none may return a value."""
        for handler in self.handlers[hook] if only is None else only:
            self._call(handler, arguments)

    def collect(self, hook: str, **arguments: Any) -> list[Any]:
        """Call every handler and return the values, without None."""
        values = [self._call(handler, arguments) for handler in self.handlers[hook]]
        return [value for value in values if value is not None]

    def around(
        self, hook: str, operation: Callable[[], Any], convert: Callable[[Any], Any] | None = None, **arguments: Any
    ) -> Any:
        """Run an operation inside the hook's handlers, the first of them outermost."""
        if not self.handlers[hook]:
            return operation()
        entered: list[tuple[Handler, Any]] = []
        result, error = None, None
        try:
            for handler in self.handlers[hook]:
                entered.append((handler, handler(arguments)))  # before it begins: Ctrl-C must still reach it
                if not self._watched(handler, arguments, _resume, *entered[-1], None, None)[0]:
                    raise self._blame(HookResultError(f"{_who(handler)} returned before its yield"), handler)
            result = operation()
        except BaseException as raised:
            error = raised
        while entered:
            handler, generator = entered[-1]
            try:
                yielded, value = self._watched(
                    handler, arguments, _resume, handler, generator, error, result, expected=error
                )
                if yielded:
                    generator.close()
                    raise self._blame(HookResultError(f"{_who(handler)} yields more than once"), handler)
                if value is not None and (error is None or isinstance(error, Exception)):
                    result, error = convert(value) if convert else value, None
                    self._announce_value(handler, "result", {**arguments, "result": result})
            except BaseException as raised:
                error = raised
            entered.pop()
        if error is not None:
            raise error
        return result

    def require(self, decision: Decision, *kinds: type) -> None:
        """Refuse a value that the hook takes in other cases only.

        Raises:
            HookResultError: the value is none of the kinds.
        """
        if not isinstance(decision.value, kinds):
            handler = next(one for one in self.handlers[decision.by["hook"]] if one.by is decision.by)
            accepted = ", ".join(kind.__name__ for kind in kinds)
            problem = f"{_who(handler)} returned {_short(decision.value)}; here it takes None, {accepted}"
            raise self._blame(HookResultError(problem), handler)

    def ledger(self) -> list[dict[str, Any]]:
        """What each handler that has run cost, the longest first."""
        return rows(handler for group in self.handlers.values() for handler in group)

    def owner_of(self, error: BaseException, since: int = 0) -> By | None:
        """The handler that raised an error, or None where it was not one.

        Args:
            error: what was raised. The same object may be raised again by a tool or a model.
            since: what `blames` was before the operation that raised it; older blames do not count.
        """
        found = self._blamed.get(id(error))
        return found[1].by if found is not None and found[2] > since else None

    def take_blame(self, error: BaseException, host: PluginHost) -> None:
        """Take over whose an error is from the host of an agent that this one called."""
        if (found := host._blamed.get(id(error))) is not None and id(error) not in self._blamed:
            self.blames += 1
            self._blamed[id(error)] = (error, found[1], self.blames)

    def lend(self, running: list[By | None]) -> list[By | None]:
        """Let another thread run handlers; returns what was running."""
        lent, self._running = self._running, running
        return lent

    def forget_errors(self) -> None:
        """Let go of the errors of handlers, and of what Ctrl-C left running: those of a turn that is over."""
        self._blamed.clear()
        self._running.clear()

    def _call(self, handler: Handler, arguments: dict[str, Any]) -> Any:
        if not self.forgiving or handler.trusted or handler.hook.startswith("before_"):
            return self._watched(handler, arguments, _run, handler, arguments)
        try:
            return self._watched(handler, arguments, _run, handler, arguments)
        except Exception as error:
            if self.owner_of(error) is not handler.by:
                raise
            warnings.warn(f"{_who(handler)} raised {type(error).__name__}: {error}", PluginWarning, stacklevel=2)
            if handler.hook != "on_trace" and self.shadow is not None:  # else it would fail on its own failure
                entry = {"type": "error", "by": handler.by, "error": str(error), "error_type": type(error).__name__}
                self.announce(entry)
            return None

    def _watched(
        self,
        handler: Handler,
        arguments: dict[str, Any],
        function: Callable[..., Any],
        *given: Any,
        expected: BaseException | None = None,
    ) -> Any:
        """Run a handler, or a half of one; what it changes is traced, or rolled back when it raises.

        Args:
            expected: an error that passes through the handler and is not its own.
        """
        shadow = None if handler.trusted else self.shadow
        before = None
        if shadow is not None:
            self.settle()
            shadow.sync()
            before = peek(arguments)
        account, payer = handler.account, paying.get()
        paying.set(account)
        self._running.append(None if handler.trusted else handler.by)
        started, since = time.perf_counter(), self.blames
        try:
            value = function(*given)
        except BaseException as error:
            decided = error is expected or _is_rejection(error, handler)
            if shadow is not None:
                self._take_changes(handler, arguments, before) if decided else self._roll_back(shadow, before)
            if error is not expected:
                self._blame(error, handler, since)
            raise
        else:
            if shadow is not None:
                self._take_changes(handler, arguments, before)
            return value
        finally:
            self._running.pop()
            account.calls += 1
            account.seconds += time.perf_counter() - started
            paying.set(payer)

    def run_tool(self, tool: Tool, arguments: dict[str, Any]) -> Any:
        """Run a tool; what it changes in the session is traced as its own."""
        file, _, line = tool.origin.rpartition(":")
        shadow, by = self.shadow, {"tool": tool.name, "file": file, "line": line}
        self.settle()
        if shadow is not None:
            shadow.sync()
        self._running.append(by)
        interrupted = True
        try:
            value = tool.run(arguments)
            interrupted = False
            return value
        except Exception:
            interrupted = False
            raise
        finally:
            self._running.pop()
            if shadow is not None:
                self.agent.current_session = shadow.session  # a tool may change the session, not replace it
                if not shadow.unchanged():
                    with contextlib.suppress(*[HookResultError] if interrupted else []):  # Ctrl-C must not be lost
                        self._announce_changes(shadow, by)

    def running(self) -> By | None:
        """Whose code is running now: the innermost handler or tool."""
        return self._running[-1] if self._running else None

    def settle(self) -> None:
        """Before the loop or another handler changes the session inside a handler: take what that one did.

        What a handler changed before it made the agent act stays, even if the handler raises later.
        """
        by = self._running[-1] if self._running else None
        if by is not None and self.shadow is not None and not self.shadow.unchanged():
            self._announce_changes(self.shadow, by)

    def _take_changes(self, handler: Handler, arguments: dict[str, Any], before: dict[str, Any] | None) -> None:
        shadow = self.shadow
        if shadow is None:
            return
        try:
            if self.agent.current_session is not shadow.session:
                raise HookResultError(f"{_who(handler)} replaced agent.current_session; change it in place")
            if not shadow.unchanged():
                self._announce_changes(shadow, handler.by)
            edited = []
            for name, then in (before or {}).items():
                if not same(then, peek_one(arguments[name])):
                    if problem := value_problem(arguments[name]) or other_calls(then, arguments[name]):
                        raise HookResultError(f"{_who(handler)} left {name} in a form that cannot be used: {problem}")
                    edited.append(name)
        except (HookResultError, RecursionError) as error:
            self._roll_back(shadow, before)
            if isinstance(error, RecursionError):
                error = HookResultError(f"{_who(handler)} left something nested too deep, or in a circle")
            raise self._blame(error, handler) from None
        for name in edited:
            self._announce_value(handler, name, arguments)

    def _announce_changes(self, shadow: Shadow, by: By) -> None:
        try:
            entries = shadow.changes(by)
        except HookResultError:
            shadow.restore()
            raise
        for entry in entries:
            self.announce(entry)

    def _roll_back(self, shadow: Shadow, before: dict[str, Any] | None) -> None:
        self.agent.current_session = shadow.session
        put_back(before or {})
        if not shadow.unchanged():
            shadow.restore()

    def _announce_value(self, handler: Handler, name: str, arguments: dict[str, Any]) -> None:
        """Trace that a handler changed or replaced what its hook is about."""
        entry: TraceEntry = {"type": "change", "by": handler.by, "of": name, "value": shown(arguments[name])}
        if name != "tool_call" and isinstance(arguments.get("tool_call"), ToolCall):
            entry["call_id"] = arguments["tool_call"].id
        self.announce(entry)

    def _blame(self, error: BaseException, handler: Handler, since: int = -1) -> BaseException:
        """Name the handler in a note of its error, unless one that it called was named; the error stays as it is."""
        if self.owner_of(error, since) is None:
            self.blames += 1
            self._blamed[id(error)] = (error, handler, self.blames)
            if not _is_rejection(error, handler):
                version = f" {handler.version}" if handler.version else ""
                with contextlib.suppress(Exception):  # an exception class that takes no attributes
                    error.add_note(
                        f"raised by {_who(handler)}, of plugin {handler.plugin!r}{version}; "
                        f"without it: plugins=['no:{handler.plugin}']"
                    )
        return error


def _run(handler: Handler, arguments: dict[str, Any]) -> Any:
    value = handler(arguments)
    if value is not None:
        _check_value(handler, value)
    return value


def _resume(handler: Handler, generator: Any, error: BaseException | None, value: Any) -> tuple[bool, Any]:
    """Let an around handler go on; whether it yielded, and what it yielded or returned."""
    try:
        return True, generator.throw(error) if error is not None else generator.send(value)
    except StopIteration as stop:
        _check_value(handler, stop.value)
        return False, stop.value
    except RuntimeError as raised:
        if isinstance(error, StopIteration) and raised.__cause__ is error:  # Python's rule for generators
            raise error from None
        raise


def _is_rejection(error: BaseException, handler: Handler) -> bool:
    return isinstance(error, ToolRejected) and handler.hook in _MAY_REJECT


def _check_value(handler: Handler, value: Any) -> None:
    """Hold a handler's value against its hook's contract."""
    contract = CONTRACTS[handler.hook]
    if value is None:
        return
    if contract.kind == "observe":
        raise HookResultError(f"{_who(handler)} returned {_short(value)}; {handler.hook} takes no value: return None")
    if contract.takes and not isinstance(value, contract.takes):
        accepted = ", ".join(kind.__name__ for kind in contract.takes)
        raise HookResultError(f"{_who(handler)} returned {_short(value)}; {handler.hook} takes None, {accepted}")
    if isinstance(value, LLMResponse | Continue) and (problem := value_problem(value)):
        raise HookResultError(f"{_who(handler)} returned something that cannot be used: {problem}")


def _short(value: Any) -> str:
    text = f"{type(value).__name__} {value!r}"
    return text if len(text) <= 80 else text[:77] + "..."


def _who(handler: Handler) -> str:
    by = handler.by
    return f"{handler.hook} handler {by['handler']!r} ({by['file']}:{by['line']})"
