"""The host: which handlers there are, in which order they run, and whose doing everything is.

pluggy keeps the specs, the registrations and the order; the host runs the handlers itself, because it
watches each one (see `watching`), and runs shadowed ones on copies (see `shadowing`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pluggy

from connectagent import hookspecs
from connectagent.attribution import By
from connectagent.errors import HookResultError, PluginError, PluginWarning, ToolRejected
from connectagent.hooks import Handler, name_of
from connectagent.hookspecs import CONTRACTS, HOOKS, PROJECT
from connectagent.ledger import rows
from connectagent.session import Continue, TraceEntry
from connectagent.shadowing import Memory, ShadowRun
from connectagent.watching import Watch, resume, run, short, who


class Decision(NamedTuple):
    """A value that a handler supplied, and whose it is."""

    value: Any
    by: By


class PluginHost(pluggy.PluginManager, Watch):
    """The handlers of one agent.

    Args:
        agent: what handlers receive as `agent`.
        announce: takes the trace entries that tell what a handler changed.
        forgiving: whether an exception of a handler that only watches becomes a warning.
    """

    def __init__(self, agent: Any, announce: Callable[..., None], *, forgiving: bool = False) -> None:
        pluggy.PluginManager.__init__(self, PROJECT)
        Watch.__init__(self, agent, announce)
        self.forgiving = forgiving
        self.add_hookspecs(hookspecs)
        self.loaded: list[Handler] = []
        self.handlers: dict[str, tuple[Handler, ...]] = dict.fromkeys(HOOKS, ())
        self.untold: list[TraceEntry] = []  # what shadowed handlers would have done, until `tell`
        self._memory = Memory()
        self._ran: dict[tuple[str, str], tuple[By | None, Decision | None]] = {}  # see `has_run`

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
        handlers, outcome = self._left(hook, arguments) if self._ran else (self.handlers[hook], None)
        for handler in handlers:
            value = self._call(handler, arguments)
            if value is not None:
                return Decision(value, handler.by)
        return outcome

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
                self.announce_value(handler, name, arguments)
        return arguments[name], going_on

    def observe(self, hook: str, but: Iterable[By | None] = (), /, **arguments: Any) -> None:
        """Call every handler; none may return a value.

        Args:
            hook: the hook.
            but: handlers that are left out: those of the trace are not told what they do themselves.
            arguments: what the hook gives.
        """
        for handler in self._left(hook, arguments)[0] if self._ran else self.handlers[hook]:
            if not any(by is handler.by for by in but):
                self._call(handler, arguments)

    def has_run(self, hook: str, last: By | None = None, *, call_id: str = "", outcome: Decision | None = None) -> None:
        """The next time that a hook fires, leave out what had run before the turn was stopped: see `resume`.

        Args:
            hook: the hook.
            last: the last of its handlers that ran; None for all of them.
            call_id: the tool call about which it fires.
            outcome: what was decided meanwhile: the hook's value, or a `ToolRejected` that it raises.
        """
        self._ran[hook, call_id] = (last, outcome)

    def _left(self, hook: str, arguments: dict[str, Any]) -> tuple[tuple[Handler, ...], Decision | None]:
        """The handlers of a hook that have not run yet, and what came of those that have."""
        handlers, call = self.handlers[hook], arguments.get("tool_call")
        last, outcome = self._ran.pop((hook, call.id if call else ""), ({}, None))
        if outcome is not None and isinstance(outcome.value, ToolRejected):
            self.keep_owner(outcome.value, outcome.by)
            raise outcome.value
        if last is None or outcome is not None:
            return (), outcome
        same_one = [(last.get("plugin"), last.get("handler")) == (h.plugin, h.by["handler"]) for h in handlers]
        return handlers[same_one.index(True) + 1 :] if True in same_one else handlers, None

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
                half = ShadowRun(self, handler, self._memory) if handler.shadowed else handler(arguments)
                entered.append((handler, half))  # before it begins: Ctrl-C must still reach it
                self._enter(handler, half, arguments)
            result = operation()
        except BaseException as raised:
            error = raised
        while entered:
            try:
                value = self._leave(*entered[-1], arguments, result, error)
                if value is not None and (error is None or isinstance(error, Exception)):
                    result, error = convert(value) if convert else value, None
                    self.announce_value(entered[-1][0], "result", {**arguments, "result": result})
            except BaseException as raised:
                error = raised
            entered.pop()
        if error is not None:
            raise error
        return result

    def _enter(self, handler: Handler, half: Any, arguments: dict[str, Any]) -> None:
        """Run an around handler up to its yield."""
        if isinstance(half, ShadowRun):
            self.untold += half.enter(arguments)
        elif not self.watched(handler, arguments, resume, handler, half, None, None)[0]:
            raise self.blame(HookResultError(f"{who(handler)} returned before its yield"), handler)

    def _leave(
        self, handler: Handler, half: Any, arguments: dict[str, Any], result: Any, error: BaseException | None
    ) -> Any:
        """Run the rest of an around handler, which sees the outcome; the value that it returns."""
        if isinstance(half, ShadowRun):
            self.untold += half.leave(result, error)
            if handler.hook == "around_turn":  # the loop has no entry of its own any more
                self.tell()
            return None
        yielded, value = self.watched(handler, arguments, resume, handler, half, error, result, expected=error)
        if yielded:
            half.close()
            raise self.blame(HookResultError(f"{who(handler)} yields more than once"), handler)
        return value

    def tell(self) -> None:
        """Trace what shadowed handlers would have done.

        It waits for the loop's next entry: handlers that read the last entry of the trace find the one that
        they would find without the shadowed ones.
        """
        untold, self.untold = self.untold, []
        self.announce(*untold)

    def require(self, decision: Decision, *kinds: type) -> None:
        """Refuse a value that the hook takes in other cases only.

        Raises:
            HookResultError: the value is none of the kinds.
        """
        if not isinstance(decision.value, kinds):
            handler = next(one for one in self.handlers[decision.by["hook"]] if one.by is decision.by)
            accepted = ", ".join(kind.__name__ for kind in kinds)
            problem = f"{who(handler)} returned {short(decision.value)}; here it takes None, {accepted}"
            raise self.blame(HookResultError(problem), handler)

    def ledger(self) -> list[dict[str, Any]]:
        """What each handler that has run cost, the longest first."""
        return rows(handler for group in self.handlers.values() for handler in group)

    def forget_turn(self) -> None:
        """Let go of what was known of a turn that is over: the errors of handlers, and what had run before."""
        self.forget_errors()
        self._ran.clear()

    def _call(self, handler: Handler, arguments: dict[str, Any]) -> Any:
        if handler.shadowed:
            if arguments.get("entry", {}).get("type") != "shadow":  # else on_trace would go on for ever
                self.untold += ShadowRun(self, handler, self._memory).call(arguments)
            return None
        if not self.forgiving or handler.trusted or handler.hook.startswith("before_"):
            return self.watched(handler, arguments, run, handler, arguments)
        try:
            return self.watched(handler, arguments, run, handler, arguments)
        except Exception as error:
            if self.owner_of(error) is not handler.by:
                raise
            from connectagent.masking import current  # it has many patterns to compile

            told = current().text(f"{who(handler)} raised {type(error).__name__}: {error}")
            warnings.warn(told, PluginWarning, stacklevel=2)
            if handler.hook != "on_trace" and self.shadow is not None:  # else it would fail on its own failure
                entry = {"type": "error", "by": handler.by, "error": str(error), "error_type": type(error).__name__}
                self.announce(entry)
            return None
