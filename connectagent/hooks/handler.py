"""A handler: one function marked for one hook, and the check of its signature."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from types import FunctionType, ModuleType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from connectagent.errors import HandlerError, PluginError, did_you_mean
from connectagent.hooks.specs import AROUND, CONTRACTS, PARAMETERS
from connectagent.session.usage import Account

F = TypeVar("F", bound=Callable[..., Any])
MARKS = "connectagent_marks"  # pluggy's own `connectagent_impl` has room for one mark only
RESOURCE = "resource"  # in place of a hook: the function makes a resource
_numbers = count()
known_resources: set[str] = set()  # the names of the resources that this process has defined
_LookedUp = tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]], dict[str, Any]]
_looked_up: WeakKeyDictionary[Any, dict[tuple[str, bool, int], _LookedUp]] = WeakKeyDictionary()


@dataclass(slots=True, eq=False)
class Handler:
    """One function that is marked for one hook.

    Args:
        hook: the hook's name.
        function: the function.
        opts: the marker's options, as pluggy has them.
        plugin: the name of its plugin.
        version: the version of the plugin's distribution, or None.
        builtin: whether it is of a built-in plugin; its changes are not attributed.
        shadowed: whether it runs on copies, and only its intended changes are traced.
        local: whether agents below its agent do not inherit it, as with `on_events` and `inherited = False`.
        thing: what was listed or registered: the function, or the object or module that has it.
        options: what the plugin was given: by its name, or when its object was made.
        number: of handlers in the order in which they were made, and so listed.

    Attributes:
        resources: the parameters that are resources of the agent.
        by_name: whether the function is given some of its arguments by name.
    """

    hook: str
    function: Callable[..., Any]
    opts: dict[str, Any]
    plugin: str
    version: str | None = None
    builtin: bool = False
    shadowed: bool = False
    local: bool = False
    thing: Any = None
    options: dict[str, Any] = field(default_factory=dict)
    number: int = field(default_factory=_numbers.__next__)
    positional: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    by_name: bool = False
    by: dict[str, Any] = field(default_factory=dict)
    account: Account = field(default_factory=Account)

    def __post_init__(self) -> None:
        (self.positional, self.keywords, self.resources), place = _known(self.function, self.hook)
        self.by_name = bool(self.keywords or self.resources)
        self.by = {"plugin": self.plugin, "version": self.version, "hook": self.hook, **place}

    @property
    def reaches_turn(self) -> bool:
        """Whether it also runs in agents outside of the tree that are asked in a turn of its agent."""
        return not self.local and getattr(self.thing, "reach", None) == "turn"

    def __call__(self, arguments: dict[str, Any]) -> Any:
        """Call the function with those arguments of the hook that it takes."""
        if self.resources:
            return self._with_resources(arguments)
        given = map(arguments.__getitem__, self.positional)
        if self.keywords:
            return self.function(*given, **{name: arguments[name] for name in self.keywords})
        return self.function(*given)

    def _with_resources(self, arguments: dict[str, Any]) -> Any:
        """The same for a function that takes resources, which are made where they are not there yet."""
        call = functools.partial(self.function, **{name: arguments[name] for name in self.positional + self.keywords})

        def given() -> dict[str, Any]:
            made: dict[str, Any] = arguments["agent"].resources.give(self.resources, who(self))
            return made

        def begun_later() -> Any:  # a generator: they are made when its first half runs
            return (yield from call(**given()))

        around = self.hook != RESOURCE and CONTRACTS[self.hook].kind == "around"
        return begun_later() if around else call(**given())


def _known(function: Any, hook: str) -> _LookedUp:
    """What `check_handler` says of a function, and where it stands: looked up once for those that many agents have."""
    plain = getattr(function, "__func__", function)
    found = _looked_up.setdefault(plain, {}) if type(plain) is FunctionType else {}
    key = hook, plain is function, len(known_resources)
    if key not in found:
        file, line = where(function)
        found[key] = check_handler(function, hook), {"handler": name_of(function), "file": file, "line": line}
    return found[key]


def event_of(function: object) -> str | None:
    """The ConnectOnion event that a function is for, or None: its markers set `_event_type`."""
    event = None if isinstance(function, type) else getattr(function, "_event_type", None)
    return event if type(event) is str and not hasattr(function, MARKS) else None


def check_handler(
    function: Callable[..., Any], hook: str, *, unbound: bool = False
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The positional and the keyword-only parameters of the hook that a handler takes, and the resources.

    Args:
        function: the handler.
        hook: its hook.
        unbound: whether a leading `self` or `cls` is still to be bound.

    Raises:
        HandlerError: the hook cannot call the function; the message has file, line and the hook's parameters.
    """
    place = f"@{hook} handler {name_of(function)!r} ({place_of(function)})"
    _check_kind(_code_holder(function), hook, place)
    names = parameters_of(function, unbound)
    for parameter in names:
        _check_parameter(parameter, hook, place)
    taken = [parameter for parameter in names if parameter.name in _given_by(hook)]
    return (
        tuple(parameter.name for parameter in taken if parameter.kind is not parameter.KEYWORD_ONLY),
        tuple(parameter.name for parameter in taken if parameter.kind is parameter.KEYWORD_ONLY),
        tuple(parameter.name for parameter in names if is_resource(parameter, hook)),
    )


def parameters_of(function: Callable[..., Any], unbound: bool) -> list[inspect.Parameter]:
    """The parameters that a handler is to be given."""
    parameters = list(inspect.signature(function).parameters.values())
    if unbound and parameters and parameters[0].name in ("self", "cls"):
        del parameters[0]
    given = function.keywords if isinstance(function, functools.partial) else {}
    return [parameter for parameter in parameters if parameter.name not in given]


def is_resource(parameter: inspect.Parameter, hook: str) -> bool:
    """Whether a handler's parameter is a resource: it has no default, the hook does not give it, and there is one."""
    return (
        parameter.name not in _given_by(hook)
        and parameter.name in known_resources
        and parameter.default is parameter.empty
    )


def _given_by(hook: str) -> tuple[str, ...]:
    return ("agent",) if hook == RESOURCE else PARAMETERS[hook]


def _check_kind(code: object, hook: str, place: str) -> None:
    """Refuse async functions, generators for other hooks than around hooks, and functions without yield for these."""
    if inspect.iscoroutinefunction(code) or inspect.isasyncgenfunction(code):
        way = "write 'def', and connectagent.run_async() inside it"
        raise HandlerError(f"{place} is async: the loop is synchronous; {way}")
    if hook == RESOURCE:  # it may yield or return
        return
    yields, around = inspect.isgeneratorfunction(code), CONTRACTS[hook].kind == "around"
    if around and not yields:
        raise HandlerError(f"{place} must yield exactly once: what is before the yield runs before the operation")
    if yields and not around:
        raise HandlerError(f"{place} yields: only {', '.join(AROUND)} take generators")


def _check_parameter(parameter: inspect.Parameter, hook: str, place: str) -> None:
    given = _given_by(hook)
    accepted = f"{hook} gives {', '.join(given) or 'no parameters'}"
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise HandlerError(f"{place} takes {parameter}: handlers name what they take; {accepted}")
    if parameter.name in given:
        if parameter.default is not parameter.empty:
            raise HandlerError(f"{place} has a default on {parameter.name!r}, which the hook always gives; drop it")
    elif is_resource(parameter, hook):
        if "agent" not in given:
            raise HandlerError(f"{place} cannot take the resource {parameter.name!r}: it is given no agent; {accepted}")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise HandlerError(f"{place}: the resource {parameter.name!r} is given by name; drop the '/'")
    elif parameter.default is parameter.empty:
        hint = did_you_mean(parameter.name, [*given, *known_resources], 0.4)
        more = "; resources are defined, or imported, before what takes them" if known_resources else ""
        raise HandlerError(f"{place} has an unknown parameter {parameter.name!r}.{hint} {accepted}{more}")


def _code_holder(function: Any) -> Any:
    """The plain function behind partials, bound methods and callable objects."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function) and not isinstance(function, type):
        function = getattr(function, "__call__", function)  # noqa: B004  the method itself is needed
    return inspect.unwrap(getattr(function, "__func__", function))


def where(function: object) -> tuple[str, int]:
    """File and line of a function's definition; ("?", 0) for what has no Python source."""
    code = getattr(_code_holder(function), "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code else ("?", 0)


def name_of(function: object) -> str:
    """A handler's name: the qualified name without `<locals>`."""
    holder = _code_holder(function)
    name = getattr(holder, "__qualname__", None) or type(function).__name__
    return str(name).rpartition("<locals>.")[2]


def place_of(function: object) -> str:
    file, line = where(function)
    return f"{file}:{line}"


def is_function(thing: object) -> bool:
    return inspect.isroutine(thing) or isinstance(thing, functools.partial)


def described(thing: object) -> str:
    """Something that was given as a plugin, for errors: its kind, its name and its place."""
    if isinstance(thing, ModuleType):
        return f"module {thing.__name__!r} ({getattr(thing, '__file__', None) or '?'})"
    what = f"function {name_of(thing)!r}" if is_function(thing) else f"{type(thing).__name__} {thing!r:.80}"
    return f"{what} ({place_of(thing)})" if callable(thing) else what


def who(handler: Handler) -> str:
    """A handler for errors: hook, name, file and line."""
    by = handler.by
    return f"{handler.hook} handler {by['handler']!r} ({by['file']}:{by['line']})"


def tell_apart(listed: list[Handler]) -> None:
    """Number handlers of the same name, such as methods of two objects: the log identifies handlers by name."""
    taken: set[tuple[str, str, str]] = set()
    for handler in listed:
        name, number = handler.by["handler"], 1
        while (key := (handler.hook, handler.plugin, handler.by["handler"])) in taken:
            number += 1
            handler.by["handler"] = f"{name}#{number}"
        taken.add(key)


def refuse_twice(listed: list[Handler]) -> None:
    """Refuse handlers of which two are the same function for one hook.

    Raises:
        PluginError: there are such.
    """
    for index, handler in enumerate(listed):
        for other in listed[:index]:
            if handler.hook == other.hook and handler.function == other.function:
                raise PluginError(
                    f"{name_of(handler.function)!r} ({handler.by['file']}:{handler.by['line']}) is listed twice: "
                    f"by {other.plugin!r} and by {handler.plugin!r}; list it once"
                )
