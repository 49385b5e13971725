"""Hooks that plugins define for other plugins: `@hookspec` makes a marker, and `fire` calls its handlers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial, update_wrapper
from typing import Any, TypeVar, get_args, overload

from connectagent.errors import HandlerError, PluginError, did_you_mean
from connectagent.hooks.contract import Kind, spec
from connectagent.hooks.entry_points import OWN_HOOKS, Installed, guarded, imported, installed
from connectagent.hooks.handler import F, place_of, where
from connectagent.hooks.markers import marker
from connectagent.hooks.specs import CONTRACTS, HOOKS, PARAMETERS, SPECS

S = TypeVar("S", bound=Callable[..., Any])
KINDS: tuple[Kind, ...] = get_args(Kind)


class OwnHook:
    """A hook that a plugin defines: a marker for handlers of others, and the way to call these.

    Args:
        function: its definition: name, parameters and docstring.

    Attributes:
        name: the hook's name.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.name = function, function.__name__
        update_wrapper(self, function)
        self._mark = marker(self.name)

    @overload
    def __call__(self, function: F, /) -> F: ...
    @overload
    def __call__(self, /, *, tryfirst: bool = False, trylast: bool = False) -> Callable[[F], F]: ...
    def __call__(self, function: F | None = None, /, *, tryfirst: bool = False, trylast: bool = False) -> Any:
        """Mark a function as a handler of this hook."""
        mark = self._mark(tryfirst=tryfirst, trylast=trylast)
        return mark if function is None else mark(function)

    def __repr__(self) -> str:
        return f"<hook {self.name}({', '.join(PARAMETERS[self.name])})>"

    def fire(self, operation: Callable[[], Any] | None = None, /, **given: Any) -> Any:
        """Call the handlers that an agent has for this hook.

        In a turn the call is an operation of it: a turn that is resumed takes the result from its record.

        Args:
            operation: of an `around` hook: what runs inside of the handlers, without parameters.
            given: the hook's parameters, all of them; `agent` is the agent.

        Returns:
            By the hook's kind: the first value or None, the chained value, None, what the operation returned, or a
            list of values.

        Raises:
            TypeError: a parameter is missing or unknown, or the operation does not fit the kind.
            Exception: what a handler raised, with a note that names it.
        """
        kind = CONTRACTS[self.name].kind
        self._check(operation, kind, given)
        found = given["agent"].fire_hook(self.name, operation, given)
        if found is not None:
            return found[0]
        # A shadowed handler fired it: no other handler runs.
        if operation is not None:
            return operation()
        return given[CONTRACTS[self.name].chained] if kind == "chain" else [] if kind == "collect" else None

    def _check(self, operation: object, kind: str, given: dict[str, Any]) -> None:
        known = PARAMETERS[self.name]
        for name in given:
            if name not in known:
                hint = did_you_mean(name, known, 0.4)
                raise TypeError(f"{self.name}.fire() has no parameter {name!r}.{hint} It takes: {', '.join(known)}")
        if missing := [name for name in known if name not in given]:
            raise TypeError(f"{self.name}.fire() needs {missing[0]!r}; it takes: {', '.join(known)}, all by name")
        if (operation is not None) != (kind == "around"):
            wants = "takes the operation first, a function" if kind == "around" else "takes no operation"
            raise TypeError(f"{self.name}.fire() {wants}: the hook's kind is {kind!r}")
        if not hasattr(given["agent"], "fire_hook"):
            raise TypeError(f"{self.name}.fire() takes an Agent as 'agent', not {type(given['agent']).__name__}")


@overload
def hookspec(function: Callable[..., Any] | None, /) -> OwnHook: ...
@overload
def hookspec(
    *,
    kind: Kind = "observe",
    takes: type | tuple[type, ...] = (),
    chained: str = "",
    warn_on_impl: Warning | None = None,
    warn_on_impl_args: Mapping[str, Warning] | None = None,
) -> Callable[[Callable[..., Any]], OwnHook]: ...
def hookspec(
    function: Callable[..., Any] | None = None,
    /,
    *,
    kind: Kind = "observe",
    takes: type | tuple[type, ...] = (),
    chained: str = "",
    warn_on_impl: Warning | None = None,
    warn_on_impl_args: Mapping[str, Warning] | None = None,
) -> Any:
    """Define a hook for other plugins: the function's name, parameters and docstring are the hook's.

    Args:
        kind: `observe` (no values), `first` (the first value ends the call), `chain` (each handler gets the value of
            the one before it), `around` (generators around an operation), `collect` (a list of all values).
        takes: the type, or types, that a handler may return; without it, any.
        chained: for `chain`, the parameter with the value.
        warn_on_impl: a warning for whoever defines a handler of it, as pluggy has it: the hook will be removed.
        warn_on_impl_args: the same for parameters, by name.

    Returns:
        The hook: a marker, `@before_compact`, with `before_compact.fire(agent=agent, ...)`.

    Raises:
        HandlerError: the definition does not fit its kind.
        PluginError: the name is taken.
    """

    def define(function: Callable[..., Any]) -> OwnHook:
        types = takes if isinstance(takes, tuple) else (takes,)
        _check(function, kind, types, chained)
        name = function.__name__
        _refuse_taken(name, function)
        spec(kind, types, chained, retired=warn_on_impl, retired_parameters=warn_on_impl_args)(function)
        SPECS[name] = function
        CONTRACTS[name] = function.contract  # type: ignore[attr-defined]
        PARAMETERS[name] = tuple(inspect.signature(function).parameters)
        return OwnHook(function)

    return define if function is None else define(function)


def own_hooks() -> list[str]:
    """The names of the hooks that plugins have defined so far in this process."""
    return [name for name in CONTRACTS if name not in HOOKS]


def find_hook(name: str) -> bool:
    """Import the installed plugin that declares a hook; whether the hook is defined then.

    Raises:
        PluginError: the plugin cannot be loaded.
    """
    for plugin in installed(OWN_HOOKS):
        if plugin.name == name and name not in SPECS:
            guarded(plugin, partial(imported, plugin))
    return name in SPECS


def hooks_of(plugin: Installed) -> list[str]:
    """The hooks that a plugin's distribution declares, and those that its modules have defined so far."""
    own = plugin.entry.value.partition(":")[0].partition(".")[0].strip()
    declared = [one.name for one in installed(OWN_HOOKS) if one.distribution == plugin.distribution]
    return list(dict.fromkeys([*declared, *(n for n in own_hooks() if SPECS[n].__module__.partition(".")[0] == own)]))


def _refuse_taken(name: str, function: object) -> None:
    """Refuse a name that another file's hook has; in the same file a second definition replaces the first."""
    if name in HOOKS:
        raise PluginError(f"@hookspec at {place_of(function)}: {name!r} is a hook of connectagent; name it otherwise")
    if name in SPECS and where(SPECS[name])[0] != where(function)[0]:
        raise PluginError(
            f"@hookspec at {place_of(function)}: a hook {name!r} is defined at {place_of(SPECS[name])} already; "
            "name it otherwise"
        )


def _check(function: object, kind: object, types: tuple[Any, ...], chained: object) -> None:
    if not inspect.isfunction(function):
        raise HandlerError(f"@hookspec defines a hook by a function, not by {function!r:.80}")
    place = f"@hookspec {function.__name__!r} ({place_of(function)})"
    if kind not in KINDS:
        hint = did_you_mean(str(kind), KINDS)
        raise HandlerError(f"{place}: kind is one of {', '.join(KINDS)}, not {kind!r}.{hint}")
    parameters = inspect.signature(function).parameters.values()
    for one in parameters:
        if one.kind not in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY) or one.default is not one.empty:
            raise HandlerError(f"{place}: {one} cannot be a parameter of a hook: it takes names, without defaults")
    names = [one.name for one in parameters]
    if "agent" not in names:
        raise HandlerError(f"{place} needs the parameter 'agent': its handlers are those of an agent")
    if (chained in names) != (kind == "chain") or (kind != "chain" and chained):
        raise HandlerError(f"{place}: chained= names the parameter that handlers of kind='chain' pass on: {names}")
    if not all(isinstance(one, type) for one in types):
        raise HandlerError(f"{place}: takes= is a type or a tuple of types, not {types!r}")
