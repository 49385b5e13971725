"""The host: the handlers of an agent and their order.

Specs, registration, order, subsets, monitoring and tracing are pluggy's.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import threading
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import pluggy

from connectagent.errors import PluginError
from connectagent.hooks.contract import PROJECT
from connectagent.hooks.discovery import handlers_of, plugin_name
from connectagent.hooks.entry_points import normalized
from connectagent.hooks.executor import Boundary, Calls, Registration
from connectagent.hooks.handler import RESOURCE, Handler, refuse_twice, tell_apart
from connectagent.hooks.specs import CONTRACTS, HOOKS, NAMESPACE, SPECS
from connectagent.session.usage import rows


class Host(Calls):
    """The handlers of one agent.

    A plugin that is registered later runs earlier, as in pluggy. Handlers listed in `Agent(...)` and `add` run in the
    listed order. `tryfirst` and `trylast` override both.

    Args:
        boundary: runs each handler.
    """

    def __init__(self, boundary: Boundary) -> None:
        super().__init__(boundary)
        self._arranging = threading.RLock()
        vars(self)["hook"] = _Callers(self._hookexec)
        for hook in list(CONTRACTS)[len(HOOKS) :]:
            self.know(hook)
        self._numbers = itertools.count()

    # -- registration --------------------------------------------------------------------------

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
        try:
            for handler in reversed(listed):  # pluggy calls the last registered first
                self._register(handler)
            for registration in reversed(old):  # so that the rest keeps its order meanwhile
                super().unregister(registration)
        finally:
            self._note(*{handler.hook for handler in (*listed, *(one.handler for one in old))})

    def _register(self, handler: Handler) -> None:
        self.know(handler.hook)
        super().register(Registration(handler), f"{handler.plugin}:{handler.hook}:{next(self._numbers)}")

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

    def register(self, plugin: object, name: str | None = None) -> str | None:
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
            try:
                for handler in reversed(found):
                    self._register(handler)
            finally:
                self._note(*{handler.hook for handler in found})
        return known_as

    def unregister(self, plugin: object = None, name: str | None = None) -> Any:
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

    def add_hookspecs(self, module_or_class: ModuleType | type) -> None:
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

    def get_canonical_name(self, plugin: object) -> str:
        """The name of a plugin that is registered without one."""
        return plugin_name(plugin)

    def get_plugin(self, name: str) -> Any:
        """The plugin that is registered under a name: the function, object or module itself; None for none."""
        return next((one.thing for one in self.loaded if one.plugin == name), None)

    def get_name(self, plugin: object) -> str | None:
        """The name under which a plugin is registered; None where it is not."""
        if isinstance(plugin, Registration):
            return super().get_name(plugin)
        return next((one.plugin for one in self.loaded if _is_of(one, plugin)), None)

    def is_registered(self, plugin: object) -> bool:
        """Whether a plugin is registered."""
        return self.get_name(plugin) is not None

    def get_hookcallers(self, plugin: object) -> list[pluggy.HookCaller] | None:
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
        self._note(*dir(self.hook))

        def stop() -> None:
            undo()
            self._note(*dir(self.hook))

        return stop

    def look_up(self, hooks: Iterable[str]) -> None:
        """Let calls of these hooks do something, handlers or not, in place of those that were named before.

        A resumed turn looks up what their handlers decided and changed, though these may not be there any more.
        """
        before, self.looked_up = self.looked_up, set(hooks).intersection(dir(self.hook))
        self._note(*before, *self.looked_up)

    def _note(self, *hooks: str) -> None:
        """Note which handlers these hooks have now: the loop asks it too often to look each time."""
        monitored = self._inner_hookexec is not self._executor
        with self._arranging:  # so that a thread that was overtaken does not note what was
            for hook in hooks:
                found = getattr(self.hook, hook)._hookimpls  # `get_hookimpls` would copy the list
                listed = self._listed[hook] = tuple(reversed(dict.fromkeys(one.plugin.handler for one in found)))
                wanted = monitored or hook in self.looked_up
                (self.active.add if wanted or listed else self.active.discard)(hook)
                other = wanted or not all(one.builtin for one in listed)
                (self.others.add if other else self.others.discard)(hook)

    # -- what they cost --------------------------------------------------------------------------

    def ledger(self) -> list[dict[str, Any]]:
        """The time and cost of each handler that has run, the slowest first."""
        return rows(self.loaded)


class _Callers:
    """pluggy's `HookRelay`, but a hook's caller is made when it is asked for: of most hooks an agent needs none.

    Args:
        execute: what the callers call.
    """

    __slots__ = ("__dict__", "_execute")

    def __init__(self, execute: Callable[..., Any]) -> None:
        self._execute = execute

    def __getattr__(self, name: str) -> pluggy.HookCaller:
        if name not in _own_specs():
            raise AttributeError(f"there is no hook {name!r}")
        caller = pluggy.HookCaller(name, self._execute)
        caller.spec = _own_specs()[name]  # pluggy would inspect each function again for each agent
        found: pluggy.HookCaller = vars(self).setdefault(name, caller)  # another thread may have made one
        return found

    def __dir__(self) -> list[str]:
        return [*(_own_specs() | vars(self))]


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


def _is_of(handler: Handler, plugin: object) -> bool:
    """Whether a handler is `plugin`, or belongs to the plugin, given as an object or by name."""
    if isinstance(plugin, str):
        return handler.plugin == plugin
    return handler is plugin or handler.thing is plugin or (inspect.ismethod(plugin) and handler.thing == plugin)


def _has_hash(thing: object) -> bool:
    with contextlib.suppress(TypeError):
        hash(thing)
        return True
    return False
