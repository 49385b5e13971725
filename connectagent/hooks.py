"""The markers, and the check that a function can be the handler that its marker says.

A marker is pluggy's own with the hook's name filled in. It leaves the function as it is and checks it at
once, so that a mistake is told where it is made.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Protocol, TypeVar, overload

import pluggy

from connectagent.errors import HandlerError, ToolRejected
from connectagent.hookspecs import AROUND, CONTRACTS, EVENTS, PARAMETERS, PROJECT
from connectagent.ledger import Account

F = TypeVar("F", bound=Callable[..., Any])
_MARKS = "connectagent_marks"  # beside pluggy's `connectagent_impl`, which holds one mark only
_hookimpl = pluggy.HookimplMarker(PROJECT)


@dataclass(slots=True, eq=False)
class Handler:
    """One function that is marked for one hook, as the host calls it.

    Args:
        hook: the hook's name.
        function: what is called.
        opts: pluggy's options of the marker.
        plugin: the name of the plugin that brought it.
        version: the version of the plugin's distribution, or None.
        trusted: whether it is one of the package's own, which are not watched for changes.
        shadowed: whether it runs on copies, and only what it would have done is traced.
    """

    hook: str
    function: Callable[..., Any]
    opts: dict[str, Any]
    plugin: str
    version: str | None = None
    trusted: bool = False
    shadowed: bool = False
    positional: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    by: dict[str, Any] = field(default_factory=dict)
    account: Account = field(default_factory=Account)
    hookable: Callable[..., Any] = field(init=False, repr=False)  # for pluggy, which takes no partials

    def __post_init__(self) -> None:
        self.hookable = self.function
        if not inspect.isroutine(self.function) or event_of(self.function):  # whose parameter has any name
            self.hookable = (lambda: (yield)) if self.opts["wrapper"] else (lambda: None)
        self.positional, self.keywords = check_handler(self.function, self.hook)
        file, line = where(self.function)
        self.by = {
            "plugin": self.plugin,
            "version": self.version,
            "hook": self.hook,
            "handler": name_of(self.function),
            "file": file,
            "line": line,
        }

    def __call__(self, arguments: dict[str, Any]) -> Any:
        """Call the function with the part of a hook's arguments that it names."""
        if self.keywords:
            return self.function(
                *[arguments[name] for name in self.positional], **{name: arguments[name] for name in self.keywords}
            )
        return self.function(*[arguments[name] for name in self.positional])


class Marker(Protocol):
    """A decorator that is named after a hook: `@after_tools` or `@after_tools(tryfirst=True)`."""

    @overload
    def __call__(self, function: F, /) -> F: ...
    @overload
    def __call__(self, *, tryfirst: bool = False, trylast: bool = False) -> Callable[[F], F]: ...


def _marker(hook: str) -> Marker:
    def marker(function: Any = None, /, *, tryfirst: bool = False, trylast: bool = False) -> Any:
        def mark(function: Any) -> Any:
            target = getattr(function, "__func__", function)  # staticmethod, classmethod, bound method
            if not callable(target):
                raise HandlerError(f"@{hook} marks functions, not {function!r}")
            if tryfirst and trylast:
                raise HandlerError(f"@{hook} at {_place(target)}: tryfirst and trylast exclude each other")
            check_handler(target, hook, unbound=target is function or not inspect.ismethod(function))
            wrapper = CONTRACTS[hook].kind == "around"
            _hookimpl(target, specname=hook, wrapper=wrapper, tryfirst=tryfirst, trylast=trylast)
            marks = dict(getattr(target, _MARKS, {}))
            marks[hook] = getattr(target, f"{PROJECT}_impl")
            setattr(target, _MARKS, marks)
            return function

        return mark if function is None else mark(function)

    marker.__name__ = marker.__qualname__ = hook
    marker.__doc__ = f"Mark a function as a handler of `{hook}`: see `connectagent hooks {hook}`."
    return marker


after_user_input = _marker("after_user_input")
before_llm = _marker("before_llm")
after_llm = _marker("after_llm")
before_tools = _marker("before_tools")
before_each_tool = _marker("before_each_tool")
after_each_tool = _marker("after_each_tool")
after_tools = _marker("after_tools")
on_error = _marker("on_error")
on_complete = _marker("on_complete")
around_turn = _marker("around_turn")
around_llm = _marker("around_llm")
around_tool = _marker("around_tool")
on_trace = _marker("on_trace")
on_text = _marker("on_text")
on_agent_ready = _marker("on_agent_ready")
register_models = _marker("register_models")
register_commands = _marker("register_commands")


# ConnectOnion's events and the hooks that fire where they do.
CONNECTONION = {name: name for name in (*EVENTS, "on_agent_ready")} | {"before_iteration": "before_llm"}
_UNORDERED = {"wrapper": False, "hookwrapper": False, "optionalhook": False, "tryfirst": False, "trylast": False}


def event_of(function: object) -> str | None:
    """The ConnectOnion event that a function is for, or None: its markers set `_event_type`."""
    event = None if isinstance(function, type) else getattr(function, "_event_type", None)
    return event if type(event) is str and not hasattr(function, _MARKS) else None


def adapted(function: Any, hook: str) -> Any:
    """A ConnectOnion handler as a handler of a hook.

    It is given the agent as its only argument, whatever that is called; what it returns decides nothing; and
    what it raises before a tool cancels that call, as there. `on_error` is for tools only there.

    Raises:
        HandlerError: it cannot be called with the agent alone.
    """
    if (made := getattr(function, "_connectagent_handler", None)) is not None:
        return made  # the same one each time: listed twice, it is told
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        place = f"@{hook} handler {name_of(function)!r} ({_place(function)})"
        raise HandlerError(f"{place} is ConnectOnion's and must take one parameter, the agent: {error}") from None

    @functools.wraps(function)
    def handler(agent: Any, tool_call: Any = None) -> None:
        if hook == "on_error" and tool_call is None:
            return
        try:
            function(agent)
        except Exception as error:
            if hook != "before_each_tool" or isinstance(error, ToolRejected):
                raise
            raise ToolRejected(str(error) or type(error).__name__) from error

    taken = ["agent", "tool_call"] if hook == "on_error" else ["agent"]
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in taken]
    vars(handler)["__signature__"] = inspect.Signature(parameters)  # not that of the function, which `wraps` shows
    with contextlib.suppress(AttributeError):  # a bound method takes no attributes
        function._connectagent_handler = handler
    return handler


def marks_of(function: object) -> dict[str, dict[str, Any]]:
    """The hooks that a function is marked for, each with pluggy's options; {} for an unmarked one."""
    if isinstance(function, type):
        return {}
    marks = getattr(function, _MARKS, None)
    if marks is None and isinstance(function, functools.partial):
        marks = marks_of(function.func)
    if marks is None and (hook := CONNECTONION.get(event_of(function) or "")):
        return {hook: {**_UNORDERED, "specname": hook}}
    return marks if isinstance(marks, dict) else {}


def marked_members(thing: object) -> Iterator[Callable[..., Any]]:
    """The marked functions of a module or an object, in the order of their definition."""
    if isinstance(thing, ModuleType):
        yield from (member for member in vars(thing).values() if marks_of(member))
        return
    members: dict[str, Any] = {}
    for cls in reversed(type(thing).__mro__):
        members.update(vars(cls))
    members.update(getattr(thing, "__dict__", {}))
    for name, member in members.items():  # as they are defined: no property is run to find handlers
        if marks_of(getattr(member, "__func__", member)):
            yield getattr(thing, name)


def check_handler(
    function: Callable[..., Any], hook: str, *, unbound: bool = False
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The positional and the keyword-only parameters that a handler takes from its hook.

    Args:
        function: the handler.
        hook: the hook that it is for.
        unbound: whether a leading `self` or `cls` is still to be bound.

    Raises:
        HandlerError: the function cannot be called by this hook; with file, line and what is accepted.
    """
    place = f"@{hook} handler {name_of(function)!r} ({_place(function)})"
    code = _code_holder(function)
    if inspect.iscoroutinefunction(code) or inspect.isasyncgenfunction(code):
        raise HandlerError(f"{place} is async: the loop is synchronous; write 'def', and asyncio.run() inside it")
    around = CONTRACTS[hook].kind == "around"
    if inspect.isgeneratorfunction(code) != around:
        raise HandlerError(
            f"{place} must yield exactly once: what is before the yield runs before the operation"
            if around
            else f"{place} yields: only {', '.join(AROUND)} take generators"
        )
    parameters = list(inspect.signature(function).parameters.values())
    if unbound and parameters and parameters[0].name in ("self", "cls"):
        del parameters[0]
    given = function.keywords if isinstance(function, functools.partial) else {}
    names = [parameter for parameter in parameters if parameter.name not in given]
    for parameter in names:
        _check_parameter(parameter, hook, place)
    taken = [parameter for parameter in names if parameter.name in PARAMETERS[hook]]
    return (
        tuple(parameter.name for parameter in taken if parameter.kind is not parameter.KEYWORD_ONLY),
        tuple(parameter.name for parameter in taken if parameter.kind is parameter.KEYWORD_ONLY),
    )


def _check_parameter(parameter: inspect.Parameter, hook: str, place: str) -> None:
    accepted = f"{hook} gives {', '.join(PARAMETERS[hook]) or 'no parameters'}"
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise HandlerError(f"{place} takes {parameter}: handlers name what they take; {accepted}")
    if parameter.name in PARAMETERS[hook]:
        if parameter.default is not parameter.empty:
            raise HandlerError(f"{place} has a default on {parameter.name!r}, which the hook always gives; drop it")
    elif parameter.default is parameter.empty:
        import difflib

        near = difflib.get_close_matches(parameter.name, PARAMETERS[hook], 1, 0.4)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise HandlerError(f"{place} has an unknown parameter {parameter.name!r}.{hint} {accepted}")


def _code_holder(function: Any) -> Any:
    """The plain function behind partials, bound methods and callable objects."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function) and not isinstance(function, type):
        function = getattr(function, "__call__", function)  # noqa: B004  the method itself is wanted
    return inspect.unwrap(getattr(function, "__func__", function))


def where(function: Any) -> tuple[str, int]:
    """File and line of a function's definition; ("?", 0) for what has no Python source."""
    code = getattr(_code_holder(function), "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code else ("?", 0)


def name_of(function: Any) -> str:
    """The name by which a handler is told apart: its qualified name without `<locals>`."""
    holder = _code_holder(function)
    name = getattr(holder, "__qualname__", None) or type(function).__name__
    return str(name).rpartition("<locals>.")[2]


def _place(function: Any) -> str:
    file, line = where(function)
    return f"{file}:{line}"
