"""The executor: it runs the handlers of one call of a hook, by the hook's contract.

pluggy finds and orders the handlers. The boundary runs each of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import pluggy

from connectagent.data import Continue
from connectagent.errors import PluginError, Waiting
from connectagent.hooks.handler import Handler, who
from connectagent.hooks.specs import CONTRACTS, PARAMETERS
from connectagent.session.edits import peek_value
from connectagent.session.snapshot import By
from connectagent.session.state import clone, same


class HandlerValue(NamedTuple):
    """A value that a handler supplied, and the handler's `by`."""

    value: Any
    by: By


class Boundary(Protocol):
    """Runs one handler: checks its value, measures its time, and attributes its changes and errors to it."""

    def call(self, handler: Handler, arguments: dict[str, Any]) -> Any:
        """Run a handler; its checked value, or None."""

    def begin(self, handler: Handler, arguments: dict[str, Any]) -> Any:
        """Make the generator of an around handler, without running any of it."""

    def enter(self, handler: Handler, half: Any, arguments: dict[str, Any]) -> None:
        """Run an around handler up to its yield."""

    def leave(
        self, handler: Handler, half: Any, arguments: dict[str, Any], result: Any, error: BaseException | None
    ) -> Any:
        """Run the rest of an around handler with the outcome; the value that it returns."""

    def announce_value(self, handler: Handler, name: str, arguments: dict[str, Any]) -> None:
        """Trace that a handler replaced the value of its hook."""

    def blame(self, error: BaseException, handler: Handler) -> BaseException:
        """Name the handler in its error."""

    def keep_owner(self, error: BaseException, by: By) -> None:
        """Remember the handler that raised an error."""


def nothing() -> None:
    """Do nothing."""


class HookCall(dict[str, Any]):
    """The arguments of one call of a hook, with what the executor needs for it.

    Attributes:
        convert: converts a handler's value before it replaces the chained value, or the operation's.
        ready: is called before each handler of a chain or an observing hook.
        decided: the value that a handler supplied; for `on_complete` the last `Continue`.
        operation: the operation of an around hook; None: the function that `call_extra` adds.
    """

    convert: Callable[[Any], Any] | None = None
    ready: Callable[[], None] = staticmethod(nothing)
    decided: HandlerValue | None = None
    operation: Callable[[], Any] | None = None


class Registration:
    """A handler as pluggy registers it: `implementation.plugin`, as monitoring sees it.

    Args:
        handler: the handler. While handlers are reordered it has two registrations, and runs once.
    """

    __slots__ = ("handler",)

    def __init__(self, handler: Handler) -> None:
        self.handler = handler

    def call(self, **arguments: Any) -> Any:
        """Refuse: pluggy requires a function, but the executor runs the handlers.

        Raises:
            PluginError: always; pluggy bypassed the executor.
        """
        raise PluginError(
            f"pluggy {pluggy.__version__} ran {who(self.handler)} past the host, which would not check what it does; "
            "install the version that the host is made for: pip install 'pluggy==1.7.*'"
        )

    def __dir__(self) -> list[str]:
        return ["call"]  # pluggy looks at each attribute of a plugin

    def __repr__(self) -> str:
        return f"<{who(self.handler)}>"


class Executor:
    """Runs the handlers of a hook.

    Args:
        boundary: runs each handler.
    """

    def __init__(self, boundary: Boundary) -> None:
        self.boundary = boundary

    def __call__(
        self, hook: str, implementations: Sequence[pluggy.HookImpl], arguments: Mapping[str, Any], firstresult: bool
    ) -> Any:
        """Run the implementations by the hook's contract, the last one first."""
        if isinstance(arguments, HookCall):
            call = arguments
        else:
            _check_given(hook, implementations, arguments)
            call = HookCall(arguments)
        kind = CONTRACTS[hook].kind
        if kind == "around":
            operation = call.operation or _operation(implementations, call)
            return self._around(_handlers_in(implementations), operation, call)
        handlers = _handlers_in(implementations, hook)
        if kind == "first":
            return self._first(handlers, call)
        if kind == "chain":
            return self._chain(handlers, CONTRACTS[hook].chained, call)
        values = []
        for handler in handlers:
            call.ready()
            if (value := self.boundary.call(handler, call)) is not None:
                values.append(value)
        return values if kind == "collect" else None

    def _first(self, handlers: Iterable[Handler], call: HookCall) -> Any:
        for handler in handlers:
            value = self.boundary.call(handler, call)
            if value is not None:
                call.decided = HandlerValue(value, handler.by)
                return value
        return None

    def _chain(self, handlers: Iterable[Handler], name: str, call: HookCall) -> Any:
        for handler in handlers:
            call.ready()
            given, before = call[name], clone(call[name])
            value = self.boundary.call(handler, call)
            if isinstance(value, Continue):
                call.decided = HandlerValue(value, handler.by)
                continue
            value = given if value is None else value  # it may have been edited in place
            if value is not given or not same(before, value):
                call[name] = call.convert(value) if call.convert else value
                self.boundary.announce_value(handler, name, call)
        return call[name]

    def _around(self, handlers: Iterable[Handler], operation: Callable[[], Any], call: HookCall) -> Any:
        entered: list[tuple[Handler, Any]] = []
        result, error = None, None
        try:
            self.enter(handlers, call, entered)
            result = operation()
        except BaseException as raised:
            error = raised
        return self.leave(entered, call, result, error)

    def enter(self, handlers: Iterable[Handler], call: HookCall, entered: list[tuple[Handler, Any]]) -> None:
        """Run around handlers up to their yields; those that have begun are added to `entered`."""
        for handler in handlers:
            half = self.boundary.begin(handler, call)
            entered.append((handler, half))  # before it begins: Ctrl-C must still reach it
            self.boundary.enter(handler, half, call)

    def leave(
        self, entered: list[tuple[Handler, Any]], call: HookCall, result: Any, error: BaseException | None
    ) -> Any:
        """Run the rest of around handlers, the last one first; the final outcome of the operation."""
        boundary = self.boundary
        while entered:
            try:
                before = peek_value(result)
                value = boundary.leave(*entered[-1], call, result, error)
                kept = error is None and value is result and same(before, peek_value(result))
                if value is not None and not kept and (error is None or isinstance(error, (Exception, Waiting))):
                    result, error = call.convert(value) if call.convert else value, None
                    boundary.announce_value(entered[-1][0], "result", {**call, "result": result})
            except BaseException as raised:
                error = raised
            entered.pop()
        if error is not None:
            raise error
        return result


def _check_given(hook: str, implementations: Sequence[pluggy.HookImpl], arguments: Mapping[str, Any]) -> None:
    """Refuse a call without what its handlers take, as pluggy does.

    Raises:
        pluggy.HookCallError: an argument is missing.
    """
    extra = "" if CONTRACTS[hook].kind == "around" else hook
    taken = [name for one in _handlers_in(implementations, extra) for name in (*one.positional, *one.keywords)]
    for name in (*taken, *filter(None, [CONTRACTS[hook].chained])):
        if name not in arguments:
            takes = ", ".join(PARAMETERS[hook])
            raise pluggy.HookCallError(f"hook call must provide argument {name!r}: {hook} takes {takes}")


def _handlers_in(implementations: Sequence[pluggy.HookImpl], hook: str = "") -> Iterable[Handler]:
    """The handlers in the order in which they run, each once; with `hook`, those that `call_extra` adds too.

    A handler with two registrations runs at the place of the older one, which is later in the order.
    """
    found: dict[Handler, None] = {}
    for one in implementations:
        if isinstance(one.plugin, Registration):
            found[one.plugin.handler] = None
        elif hook:
            found[Handler(hook, one.function, dict(one.opts), "(call_extra)")] = None
    return reversed(found)


def _operation(implementations: Sequence[pluggy.HookImpl], call: HookCall) -> Callable[[], Any]:
    """The operation of an around hook: the function that `call_extra` adds; without one, it does nothing."""
    for one in implementations:
        if one.plugin is None:
            return functools.partial(one.function, *[call[name] for name in one.argnames])
    return lambda: None
