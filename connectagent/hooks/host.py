"""The host: the handlers of an agent and their order.

Specs, registration, order, subsets, monitoring and tracing are pluggy's. Our executor runs the handlers; it stands
where pluggy's monitoring puts its wrappers.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import pluggy

from connectagent.errors import HookResultError, PluginError, short
from connectagent.hooks.contract import PROJECT
from connectagent.hooks.discovery import handlers_of, plugin_name
from connectagent.hooks.entry_points import normalized
from connectagent.hooks.executor import Boundary, Executor, HandlerValue, HookCall, Registration
from connectagent.hooks.handler import RESOURCE, Handler, refuse_twice, tell_apart, who
from connectagent.hooks.specs import CONTRACTS, HOOKS, NAMESPACE, SPECS
from connectagent.session.snapshot import By
from connectagent.session.usage import rows

Over = Sequence[list[Any]]
"""Handlers that have finished and do not run again, as `[plugin, handler]`."""


class Host(pluggy.PluginManager):
    """The handlers of one agent.

    A plugin that is registered later runs earlier, as in pluggy. Handlers listed in `Agent(...)` and `add` run in the
    listed order. `tryfirst` and `trylast` override both.

    Args:
        boundary: runs each handler.

    Attributes:
        active: the hooks whose calls do something: they have handlers, or calls are monitored.
        others: the hooks of these with handlers of plugins that are not built in, or all if calls are monitored.
    """

    def __init__(self, boundary: Boundary) -> None:
        super().__init__(PROJECT)
        self.boundary = boundary
        self.active: set[str] = set()
        self.others: set[str] = set()
        # pluggy's monitoring and tracing put their wrappers here. The attribute is private; a test watches it.
        self._inner_hookexec = self._executor = cast(Any, Executor(boundary))
        for name, spec in _own_specs().items():  # of each agent's host: pluggy would inspect each function again
            caller = pluggy.HookCaller(name, self._hookexec)
            caller.spec = spec
            setattr(self.hook, name, caller)
        for hook in list(CONTRACTS)[len(HOOKS) :]:
            self.know(hook)
        self._arranging = threading.RLock()
        self._numbers = itertools.count()

    # -- registration --------------------------------------------------------------------------

    def handlers(self, hook: str) -> tuple[Handler, ...]:
        """The handlers of a hook, in the order in which they run."""
        found = getattr(getattr(self.hook, hook, None), "_hookimpls", None)  # `get_hookimpls` would copy the list
        return tuple(reversed(dict.fromkeys(one.plugin.handler for one in found))) if found else ()

    @property
    def loaded(self) -> list[Handler]:
        """All handlers: hook by hook, in the order in which they run."""
        return [handler for hook in (*CONTRACTS, RESOURCE) for handler in self.handlers(hook)]

    def know(self, hook: str) -> None:
        """Take in a hook that a plugin has defined."""
        if hook in SPECS and not hasattr(self.hook, hook):
            self.add_hookspecs(type(hook, (), {hook: staticmethod(SPECS[hook])}))

    def load(self, handlers: Iterable[Handler]) -> None:
        """Register these handlers in place of all others, to run in the given order.

        Raises:
            PluginError: the same function is listed twice for one hook.
        """
        listed = list(handlers)
        refuse_twice(listed)
        with self._arranging:
            self._arrange(listed, (*CONTRACTS, RESOURCE))

    def add(self, *handlers: Handler) -> contextlib.ExitStack:
        """Add handlers at the end; those of built-in plugins behind the other built-in ones.

        Returns:
            A context manager that removes them: `with hooks.add(handler):`, or its `close()`.

        Raises:
            PluginError: the same function is there already for that hook.
        """
        with self._arranging:
            refuse_twice([*self.loaded, *handlers])
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
        """Remove plugins, given by name, or single handlers.

        Returns:
            A context manager that puts them back in their places: `with hooks.without(["approve"]):`, or its `close()`.
        """
        given = list(plugins)
        names = {normalized(one) for one in given if isinstance(one, str)}
        with self._arranging:
            before = {hook: self.handlers(hook) for hook in (*CONTRACTS, RESOURCE)}
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
        """Register handlers in a new order; the old registrations go last, so that no call misses a handler."""
        old = [one for one in self._registrations() if one.handler.hook in hooks]
        tell_apart(listed)
        for handler in reversed(listed):  # pluggy calls the last registered first
            self._register(handler)
        for registration in reversed(old):  # so that the rest keeps its order meanwhile
            self.unregister(registration)

    def _register(self, handler: Handler) -> None:
        self.know(handler.hook)
        super().register(Registration(handler), f"{handler.plugin}:{handler.hook}:{next(self._numbers)}")
        self.active.add(handler.hook)
        if not handler.builtin:
            self.others.add(handler.hook)

    def _remove(self, handlers: Iterable[Handler]) -> None:
        with self._arranging:
            for registration in self._registrations():
                if registration.handler in handlers:
                    self.unregister(registration)

    def _registrations(self) -> list[Registration]:
        return [plugin for _, plugin in super().list_name_plugin() if isinstance(plugin, Registration)]

    def parse_hookimpl_opts(self, plugin: object, name: str) -> Any:
        """The options of a registration's only function; pluggy asks for every attribute of a plugin."""
        if name != "call" or not isinstance(plugin, Registration):
            return None
        return {**plugin.handler.opts, "specname": plugin.handler.hook, "wrapper": False}  # the executor drives those

    # -- plugins, as pluggy documents it ---------------------------------------------------------

    def register(self, plugin: Any, name: str | None = None) -> str | None:
        """Register what `plugins=` takes: a marked function, an object, a module. It runs before earlier ones.

        Returns:
            The plugin's name; None where it is blocked.

        Raises:
            ValueError: the plugin is registered already, or the name is taken.
            PluginError: the plugin has no handler.
        """
        found = list(handlers_of(plugin, name))
        known_as = found[0].plugin if found else self.get_canonical_name(plugin)
        if self.is_blocked(known_as):
            return None
        with self._arranging:
            if self.is_registered(plugin) or (name is not None and self.has_plugin(name)):
                raise ValueError(f"plugin {known_as!r} is registered already: {plugin!r:.80}")
            refuse_twice([*self.loaded, *found])
            tell_apart([*self.loaded, *found])
            for handler in reversed(found):
                self._register(handler)
        return known_as

    def unregister(self, plugin: Any = None, name: str | None = None) -> Any:
        """Unregister a plugin with all of its handlers; one that is running finishes.

        Returns:
            The plugin; None where there is none of that name.

        Raises:
            ValueError: the plugin is not registered, or not under that name.
        """
        if isinstance(plugin, Registration):
            super().unregister(plugin, name)
            self._note(plugin.handler.hook)
            return plugin
        with self._arranging:
            known_as = name if plugin is None else self.get_name(plugin)
            if known_as is None or (name is not None and name != known_as):
                raise ValueError(f"plugin {plugin!r:.80} is not registered{f' as {name!r}' if name else ''}")
            found = self.get_plugin(known_as) if plugin is None else plugin
            if found is not None:
                self._remove([one for one in self.loaded if _is_of(one, found if name is None else name)])
        return found

    def add_hookspecs(self, module_or_class: Any) -> None:
        """Refuse hooks that are not defined with `connectagent.hookspec`: they have no contract.

        Raises:
            PluginError: there are such hooks.
        """
        for name, member in vars(module_or_class).items():
            if hasattr(member, f"{PROJECT}_spec") and name not in SPECS:
                raise PluginError(f"hook {name!r} has no contract; define it with @connectagent.hookspec")
        super().add_hookspecs(module_or_class)
        for name in vars(module_or_class).keys() & SPECS:
            self._note(name)

    def list_name_plugin(self) -> list[tuple[str, Any]]:
        """The plugins with their names, and blocked names with None, as `get_plugin` gives them."""
        named = {one.plugin: one.thing for one in reversed(self.loaded)}
        return [*named.items(), *((name, None) for name, plugin in super().list_name_plugin() if plugin is None)]

    def get_plugins(self) -> set[Any]:
        """The plugins; in place of one without a hash, its registered handlers."""
        return {one.handler.thing if _has_hash(one.handler.thing) else one for one in self._registrations()}

    def get_canonical_name(self, plugin: Any) -> str:
        """The name of a plugin that is registered without one."""
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
        return [getattr(self.hook, hook) for hook in (*CONTRACTS, RESOURCE) if hook in found] or None

    def subset_hook_caller(self, name: str, remove_plugins: Iterable[Any]) -> pluggy.HookCaller:
        """A caller of a hook that leaves out plugins, or single handlers."""
        removed = list(remove_plugins)
        known = [one.plugin for one in getattr(self.hook, name).get_hookimpls()]
        gone = [one for one in known if any(one is thing or _is_of(one.handler, thing) for thing in removed)]
        return super().subset_hook_caller(name, gone)

    def add_hookcall_monitoring(self, before: Any, after: Any) -> Callable[[], None]:
        """Call functions before and after each call of a hook, handlers or not; what undoes it."""
        undo = super().add_hookcall_monitoring(before, after)
        self._note(*vars(self.hook))

        def stop() -> None:
            undo()
            self._note(*vars(self.hook))

        return stop

    def _note(self, *hooks: str) -> None:
        """Note which of the hooks are active now: the loop asks it too often to look each time."""
        monitored = self._inner_hookexec is not self._executor
        for hook in hooks:
            found = getattr(self.hook, hook)._hookimpls
            (self.active.add if monitored or found else self.active.discard)(hook)
            other = monitored or any(not one.plugin.handler.builtin for one in found)
            (self.others.add if other else self.others.discard)(hook)

    # -- calling a hook --------------------------------------------------------------------------

    def call(self, hook: str, call: HookCall, over: Over = ()) -> Any:
        """Call handlers by the hook's contract, without those in `over`; what the contract gives.

        `call` has what they decided, and by whom.
        """
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
        gone = self._named(hook, over) if over else ()
        handlers = [one for one in self.handlers(hook) if one not in gone]
        return (self._executor if self._inner_hookexec is self._executor else None), handlers

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

    def ledger(self) -> list[dict[str, Any]]:
        """The time and cost of each handler that has run, the slowest first."""
        return rows(self.loaded)


@functools.cache
def _own_specs() -> dict[str, Any]:
    """The specs of the package's own hooks, as pluggy makes them."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(NAMESPACE)
    return {name: caller.spec for name, caller in vars(manager.hook).items()}


def _place_of(handler: Handler, listed: list[Handler]) -> int:
    """The index at which a handler is added to a list."""
    if not handler.builtin:
        return len(listed)
    plain = [one.builtin and not one.opts.get("tryfirst") and not one.opts.get("trylast") for one in listed]
    return len(plain) - plain[::-1].index(True) if True in plain else 0


def _is_of(handler: Handler, plugin: Any) -> bool:
    """Whether a handler is `plugin`, or belongs to the plugin, given as an object or by name."""
    if isinstance(plugin, str):
        return handler.plugin == plugin
    return handler is plugin or handler.thing is plugin or (inspect.ismethod(plugin) and handler.thing == plugin)


def _has_hash(thing: Any) -> bool:
    with contextlib.suppress(TypeError):
        hash(thing)
        return True
    return False
