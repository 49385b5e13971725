"""How a hook is called, and the executor: it runs the handlers of one call, by the hook's contract.

pluggy orders the handlers, and calls of others reach the executor where its monitoring puts its wrappers. The boundary
runs each handler.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast

import pluggy

from connectagent.data import Continue
from connectagent.errors import HookResultError, PluginError, Waiting, short
from connectagent.hooks.contract import PROJECT
from connectagent.hooks.handler import Handler, who
from connectagent.hooks.specs import CONTRACTS, PARAMETERS
from connectagent.session.edits import peek_value
from connectagent.session.snapshot import By, clone, same


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

    def enter(self, handler: Handler, half: Generator[Any, Any, Any], arguments: dict[str, Any]) -> None:
        """Run an around handler up to its yield."""

    def leave(
        self,
        handler: Handler,
        half: Generator[Any, Any, Any],
        arguments: dict[str, Any],
        result: object,
        error: BaseException | None,
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


Over = Sequence[list[Any]]
"""Handlers that have finished and do not run again, as `[plugin, handler]`."""


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
        """Run implementations, the last one first, as pluggy asks for it."""
        if isinstance(arguments, HookCall):
            call = arguments
        else:
            _check_given(hook, implementations, arguments)
            call = HookCall(arguments)
        if CONTRACTS[hook].kind != "around":
            return self.run(hook, _handlers_in(implementations, hook), call)
        call.operation = call.operation or _operation(implementations, call)
        return self.run(hook, _handlers_in(implementations), call)

    def run(self, hook: str, handlers: Iterable[Handler], call: HookCall) -> Any:
        """Run handlers in order, by the hook's contract; what the contract gives."""
        kind = CONTRACTS[hook].kind
        if kind == "around":
            return self._around(handlers, call)
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

    def _around(self, handlers: Iterable[Handler], call: HookCall) -> Any:
        entered: list[tuple[Handler, Any]] = []
        result, error = None, None
        try:
            self.enter(handlers, call, entered)
            result = None if call.operation is None else call.operation()
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
        self, entered: list[tuple[Handler, Any]], call: HookCall, result: object, error: BaseException | None
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


class Calls(pluggy.PluginManager):
    """How the hooks of a host are called, by the loop and by others.

    Args:
        boundary: runs each handler.

    Attributes:
        active: the hooks whose calls do something: they have handlers, or calls are monitored.
        others: the hooks of these with handlers of plugins that are not built in, or all if calls are monitored.
        looked_up: hooks that count as such, since a resumed turn looks up what handlers did then.
    """

    def __init__(self, boundary: Boundary) -> None:
        super().__init__(PROJECT)
        self.boundary = boundary
        self.active: set[str] = set()
        self.others: set[str] = set()
        self.looked_up: set[str] = set()
        self._listed: dict[str, tuple[Handler, ...]] = {}
        # pluggy's monitoring and tracing put their wrappers here. The attribute is private; a test watches it.
        self._executor = Executor(boundary)
        self._inner_hookexec = cast(Any, self._executor)

    def handlers(self, hook: str) -> tuple[Handler, ...]:
        """The handlers of a hook, in the order in which they run."""
        return self._listed.get(hook, ())

    def call(self, hook: str, call: HookCall, over: Over = ()) -> Any:
        """Call handlers by the hook's contract, without those in `over`; what the contract gives.

        `call` has what they decided, and by whom.
        """
        monitored = self._inner_hookexec is not self._executor
        if not monitored:
            return self._executor.run(hook, self._without(hook, over) if over else self._listed.get(hook, ()), call)
        caller: pluggy.HookCaller = getattr(self.hook, hook)
        if over:
            caller = self.subset_hook_caller(hook, self._named(hook, over))
        # Directly: `call_extra` would inspect each function's signature every time.
        return self._inner_hookexec(hook, caller.get_hookimpls(), call, CONTRACTS[hook].kind == "first")

    def observe(self, hook: str, but: Iterable[By | None] = (), /, **arguments: Any) -> None:
        """Call every handler; none may return a value.

        Args:
            hook: the hook.
            but: handlers to leave out: those of `on_trace` do not get the entries that they cause.
            arguments: the hook's arguments.
        """
        if hook not in self.active:
            return
        excluded = {id(by) for by in but}
        over = [[one.plugin, one.by["handler"]] for one in self.handlers(hook) if id(one.by) in excluded]
        self.call(hook, HookCall(arguments), over)

    def collect(self, hook: str, **arguments: Any) -> list[Any]:
        """Call every handler and return the values, without None."""
        return list(self.call(hook, HookCall(arguments)))

    def around(
        self,
        hook: str,
        operation: Callable[[], Any],
        convert: Callable[[Any], Any] | None = None,
        over: Over = (),
        **arguments: Any,
    ) -> Any:
        """Run an operation inside the hook's handlers, the first one outermost, without those in `over`."""
        if hook not in self.active:
            return operation()
        call = HookCall(arguments)
        call.convert, call.operation = convert, operation
        return self.call(hook, call, over)

    def halves(self, hook: str, over: Over = ()) -> tuple[Any, list[Handler]]:
        """The executor and the around handlers, for running their two halves apart from the operation.

        The executor is None where calls are monitored: monitoring sees whole calls only.
        """
        return (self._executor if self._inner_hookexec is self._executor else None), self._without(hook, over)

    def _without(self, hook: str, named: Over) -> list[Handler]:
        return [one for one in self.handlers(hook) if [one.plugin, one.by["handler"]] not in named]

    def _named(self, hook: str, named: Over) -> list[Handler]:
        return [one for one in self.handlers(hook) if [one.plugin, one.by["handler"]] in named]

    def is_last(self, hook: str, by: By) -> bool:
        """Whether a handler is marked `trylast`."""
        named = (one for one in self.handlers(hook) if [one.plugin, one.by["handler"]] == [by["plugin"], by["handler"]])
        return any(one.opts.get("trylast") for one in named)

    def require(self, decision: HandlerValue, *kinds: type) -> None:
        """Refuse a value that the hook takes in other cases only.

        Raises:
            HookResultError: the value has none of these types.
        """
        if not isinstance(decision.value, kinds):
            handler = next(one for one in self.handlers(decision.by["hook"]) if one.by is decision.by)
            accepted = ", ".join(kind.__name__ for kind in kinds)
            problem = f"{who(handler)} returned {short(decision.value)}; here it takes None, {accepted}"
            raise self.boundary.blame(HookResultError(problem), handler)


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
