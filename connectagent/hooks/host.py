"""The host: which handlers there are, and in which order they run.

pluggy keeps the specs, the registrations and the order, and gives subsets, monitoring and tracing. What runs the
handlers is an executor of our own, in the place where pluggy's monitoring puts its wrappers.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import pluggy

from connectagent.errors import HookResultError, PluginError, short
from connectagent.hooks import specs
from connectagent.hooks.discovery import handlers_of, plugin_name
from connectagent.hooks.entry_points import normalized
from connectagent.hooks.executor import Boundary, Executor, HandlerValue, HookCall, Registration, nothing
from connectagent.hooks.handler import Handler, name_of, who
from connectagent.hooks.specs import CONTRACTS, HOOKS, PROJECT
from connectagent.session.snapshot import By
from connectagent.session.usage import rows

Over = Sequence[list[Any]]
"""Handlers that are not to run again, as `[plugin, handler]`."""


class Host(pluggy.PluginManager):
    """The handlers of one agent.

    A plugin that is registered later runs earlier, as pluggy has it. The lists of `Agent(...)` and `add` keep the
    order in which handlers are listed. `tryfirst` and `trylast` override both.

    Args:
        boundary: runs each handler.
    """

    def __init__(self, boundary: Boundary) -> None:
        super().__init__(PROJECT)
        self.boundary = boundary
        # Here pluggy's own monitoring and tracing put their wrappers. The place has no public name: see the test of it.
        self._inner_hookexec = self._executor = cast(Any, Executor(boundary))
        self.add_hookspecs(specs)
        self._arranging = threading.RLock()
        self._numbers = itertools.count()

    # -- registration --------------------------------------------------------------------------

    def handlers(self, hook: str) -> tuple[Handler, ...]:
        """The handlers of a hook, in the order in which they run."""
        found = dict.fromkeys(one.plugin.handler for one in getattr(self.hook, hook).get_hookimpls())
        return tuple(reversed(found))

    @property
    def loaded(self) -> list[Handler]:
        """All handlers: hook by hook, in the order in which they run."""
        return [handler for hook in HOOKS for handler in self.handlers(hook)]

    def load(self, handlers: Iterable[Handler]) -> None:
        """Register handlers, in place of those that were, so that they run in the order in which they are given.

        Raises:
            PluginError: the same function is listed twice for one hook.
        """
        listed = list(handlers)
        _refuse_twice(listed)
        with self._arranging:
            self._arrange(listed, HOOKS)

    def add(self, *handlers: Handler) -> contextlib.ExitStack:
        """Add handlers at the end of the list, and those of the package's own plugins at the end of these.

        Returns:
            What takes them away again: `with hooks.add(handler):`, or its `close()`.

        Raises:
            PluginError: the same function is there already for that hook.
        """
        with self._arranging:
            _refuse_twice([*self.loaded, *handlers])
            for hook in {handler.hook for handler in handlers}:
                listed = list(self.handlers(hook))
                for handler in handlers:
                    if handler.hook == hook:
                        listed.insert(_place_of(handler, listed), handler)
                self._arrange(listed, [hook])
        undo = contextlib.ExitStack()
        undo.callback(self._remove, handlers)
        return undo

    def without(self, plugins: Iterable[str | Handler]) -> contextlib.ExitStack:
        """Do without plugins, each given by its name, or without single handlers.

        Returns:
            What puts them back into their places: `with hooks.without(["approve"]):`, or its `close()`.
        """
        given = list(plugins)
        names = {normalized(one) for one in given if isinstance(one, str)}
        with self._arranging:
            before = {hook: self.handlers(hook) for hook in HOOKS}
            gone = [one for one in self.loaded if one in given or normalized(one.plugin) in names]
            self._remove(gone)
        undo = contextlib.ExitStack()
        undo.callback(self._put_back, gone, before)
        return undo

    def _put_back(self, gone: list[Handler], before: dict[str, tuple[Handler, ...]]) -> None:
        with self._arranging:
            for hook in {handler.hook for handler in gone}:
                listed = list(self.handlers(hook))
                for index, handler in enumerate(before[hook]):
                    if handler in gone and handler not in listed:
                        ahead = [listed.index(one) for one in before[hook][:index] if one in listed]
                        listed.insert(max(ahead, default=-1) + 1, handler)
                self._arrange(listed, [hook])

    def _arrange(self, listed: list[Handler], hooks: Iterable[str]) -> None:
        """Register handlers in a new order; the old registrations go afterwards, so that no call misses a handler."""
        old = [one for one in self._registrations() if one.handler.hook in hooks]
        _tell_apart(listed)
        for handler in reversed(listed):  # pluggy calls the last registered first
            self._register(handler)
        for registration in reversed(old):  # so that what is left of them keeps the order
            super().unregister(registration)

    def _register(self, handler: Handler) -> None:
        super().register(Registration(handler), f"{handler.plugin}:{handler.hook}:{next(self._numbers)}")

    def _remove(self, handlers: Iterable[Handler]) -> None:
        with self._arranging:
            for registration in self._registrations():
                if registration.handler in handlers:
                    super().unregister(registration)

    def _registrations(self) -> list[Registration]:
        return [plugin for _, plugin in self.list_name_plugin() if isinstance(plugin, Registration)]

    def parse_hookimpl_opts(self, plugin: object, name: str) -> Any:
        """pluggy asks for each attribute of a plugin; ours are registrations, with one function each."""
        if name != "call" or not isinstance(plugin, Registration):
            return None
        return {**plugin.handler.opts, "specname": plugin.handler.hook, "wrapper": False}  # the executor drives those

    # -- plugins, as pluggy documents it ---------------------------------------------------------

    def register(self, plugin: Any, name: str | None = None) -> str | None:
        """Register what `plugins=` takes: a marked function, an object, a module; it runs before those that are there.

        Returns:
            The plugin's name; None where that is blocked.

        Raises:
            ValueError: the plugin is registered, or the name is taken.
            PluginError: the plugin brings no handler.
        """
        found = list(handlers_of(plugin, name))
        known_as = found[0].plugin if found else self.get_canonical_name(plugin)
        if self.is_blocked(known_as):
            return None
        with self._arranging:
            if self.is_registered(plugin) or (name is not None and self.has_plugin(name)):
                raise ValueError(f"plugin {known_as!r} is registered already: {plugin!r:.80}")
            _refuse_twice([*self.loaded, *found])
            _tell_apart([*self.loaded, *found])
            for handler in reversed(found):
                self._register(handler)
        return known_as

    def unregister(self, plugin: Any = None, name: str | None = None) -> Any:
        """Unregister a plugin with all of its handlers; one that runs in a call comes to its end.

        Returns:
            The plugin; None where there is none of that name.

        Raises:
            ValueError: the plugin is not registered, or not under that name.
        """
        if isinstance(plugin, Registration):
            return super().unregister(plugin, name)
        with self._arranging:
            known_as = name if plugin is None else self.get_name(plugin)
            if known_as is None or (name is not None and name != known_as):
                raise ValueError(f"plugin {plugin!r:.80} is not registered{f' as {name!r}' if name else ''}")
            found = self.get_plugin(known_as) if plugin is None else plugin
            if found is not None:
                self._remove([one for one in self.loaded if _is_of(one, found if name is None else name)])
        return found

    def get_canonical_name(self, plugin: Any) -> str:
        """The name by which a plugin is known that is given none."""
        return plugin_name(plugin)

    def get_plugin(self, name: str) -> Any:
        """The plugin that is registered under a name: the function, object or module itself; None for none."""
        return next((one.thing for one in self.loaded if one.plugin == name), None)

    def get_name(self, plugin: Any) -> str | None:
        """The name under which a plugin is registered; None where it is not."""
        if isinstance(plugin, Registration):
            return super().get_name(plugin)
        return next((one.plugin for one in self.loaded if _is_of(one, plugin)), None)

    def is_registered(self, plugin: Any) -> bool:
        """Whether a plugin is registered."""
        return self.get_name(plugin) is not None

    def get_hookcallers(self, plugin: Any) -> list[pluggy.HookCaller] | None:
        """The hooks for which a plugin has handlers; None where it is not registered."""
        if isinstance(plugin, Registration):
            return super().get_hookcallers(plugin)
        found = {one.hook for one in self.loaded if _is_of(one, plugin)}
        return [getattr(self.hook, hook) for hook in HOOKS if hook in found] or None

    def subset_hook_caller(self, name: str, remove_plugins: Iterable[Any]) -> pluggy.HookCaller:
        """A caller of a hook that leaves out plugins, or single handlers."""
        removed = list(remove_plugins)
        known = [one.plugin for one in getattr(self.hook, name).get_hookimpls()]
        gone = [one for one in known if any(one is thing or _is_of(one.handler, thing) for thing in removed)]
        return super().subset_hook_caller(name, gone)

    # -- calling a hook --------------------------------------------------------------------------

    def has_others(self, hook: str) -> bool:
        """Whether a hook has handlers that are not the package's own, or something monitors calls."""
        for one in getattr(self.hook, hook)._hookimpls:  # asked often: a generator would take longer than the answer
            if not one.plugin.handler.builtin:
                return True
        return self._is_monitored

    def run(self, hook: str, call: HookCall, over: Over = ()) -> None:
        """Call handlers by the hook's contract; those that are over are left out. What they did is in the call."""
        if not self.is_idle(hook):
            self._call(hook, call, self._named(hook, over) if over else ())

    def observe(
        self, hook: str, but: Iterable[By | None] = (), ready: Callable[[], None] = nothing, /, **arguments: Any
    ) -> None:
        """Call every handler; none may return a value.

        Args:
            hook: the hook.
            but: handlers that are left out: those of the trace are not told what they do themselves.
            ready: is called before each handler.
            arguments: what the hook gives.
        """
        if self.is_idle(hook):
            return
        told = {id(by) for by in but}
        gone = [one for one in self.handlers(hook) if id(one.by) in told] if told else ()
        self._call(hook, HookCall(arguments, None, ready), gone)

    def collect(self, hook: str, **arguments: Any) -> list[Any]:
        """Call every handler and return the values, without None."""
        return list(self._call(hook, HookCall(arguments)))

    def around(
        self,
        hook: str,
        operation: Callable[[], Any],
        convert: Callable[[Any], Any] | None = None,
        over: Over = (),
        **arguments: Any,
    ) -> Any:
        """Run an operation inside the hook's handlers, the first of them outermost; some may be left out."""
        if self.is_idle(hook):
            return operation()
        gone = self._named(hook, over) if over else ()
        return self._call(hook, HookCall(arguments, convert, operation=operation), gone)

    def halves(self, hook: str, over: Over = ()) -> tuple[Any, list[Handler]]:
        """What runs the two halves of around handlers, and those handlers; for what runs beside the thread of both.

        Where calls are monitored there are no halves, only whole calls: None.
        """
        gone = self._named(hook, over) if over else ()
        handlers = [one for one in self.handlers(hook) if one not in gone]
        return (None if self._is_monitored else self._executor), handlers

    def _named(self, hook: str, named: Over) -> list[Handler]:
        return [one for one in self.handlers(hook) if [one.plugin, one.by["handler"]] in named]

    def is_last(self, hook: str, by: By) -> bool:
        """Whether a handler is one of those that shall run behind the others (`trylast`)."""
        named = (one for one in self.handlers(hook) if [one.plugin, one.by["handler"]] == [by["plugin"], by["handler"]])
        return any(one.opts.get("trylast") for one in named)

    def is_idle(self, hook: str) -> bool:
        """Whether nobody would see a call: no handler, and nothing that monitors."""
        return not getattr(self.hook, hook)._hookimpls and not self._is_monitored

    @property
    def _is_monitored(self) -> bool:
        return self._inner_hookexec is not self._executor

    def _call(self, hook: str, call: HookCall, but: Sequence[Handler] = ()) -> Any:
        """Run what pluggy has ordered, past its `call_extra`, which would look at each function's signature anew."""
        caller: pluggy.HookCaller = self.subset_hook_caller(hook, but) if but else getattr(self.hook, hook)
        return self._inner_hookexec(hook, caller.get_hookimpls(), call, CONTRACTS[hook].kind == "first")

    def require(self, decision: HandlerValue, *kinds: type) -> None:
        """Refuse a value that the hook takes in other cases only.

        Raises:
            HookResultError: the value is none of the kinds.
        """
        if not isinstance(decision.value, kinds):
            handler = next(one for one in self.handlers(decision.by["hook"]) if one.by is decision.by)
            accepted = ", ".join(kind.__name__ for kind in kinds)
            problem = f"{who(handler)} returned {short(decision.value)}; here it takes None, {accepted}"
            raise self.boundary.blame(HookResultError(problem), handler)

    def ledger(self) -> list[dict[str, Any]]:
        """What each handler that has run cost, the longest first."""
        return rows(self.loaded)


def _place_of(handler: Handler, listed: list[Handler]) -> int:
    """Where in a list a handler is added."""
    if not handler.builtin:
        return len(listed)
    plain = [one.builtin and not one.opts.get("tryfirst") and not one.opts.get("trylast") for one in listed]
    return len(plain) - plain[::-1].index(True) if True in plain else 0


def _is_of(handler: Handler, plugin: Any) -> bool:
    """Whether a handler is that one, or one of a plugin, which is given itself or by its name."""
    if isinstance(plugin, str):
        return handler.plugin == plugin
    return handler is plugin or handler.thing is plugin or (inspect.ismethod(plugin) and handler.thing == plugin)


def _tell_apart(listed: list[Handler]) -> None:
    """Number handlers of one name, such as those of two objects of a class: the log tells by names which has run."""
    taken: set[tuple[str, str, str]] = set()
    for handler in listed:
        name, number = handler.by["handler"], 1
        while (key := (handler.hook, handler.plugin, handler.by["handler"])) in taken:
            number += 1
            handler.by["handler"] = f"{name}#{number}"
        taken.add(key)


def _refuse_twice(listed: list[Handler]) -> None:
    for index, handler in enumerate(listed):
        for other in listed[:index]:
            if handler.hook == other.hook and handler.function == other.function:
                raise PluginError(
                    f"{name_of(handler.function)!r} ({handler.by['file']}:{handler.by['line']}) is listed twice: "
                    f"by {other.plugin!r} and by {handler.plugin!r}; list it once"
                )
