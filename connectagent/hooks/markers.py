"""The markers: decorators that mark a function as a handler of a hook.

A marker is pluggy's own for one hook. It returns the function unchanged and checks its signature at once, so that an
error points to the definition.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType, NoneType
from typing import Any, Protocol, overload

import pluggy

from connectagent.errors import HandlerError, did_you_mean
from connectagent.hooks.connectonion import CONNECTONION, UNORDERED
from connectagent.hooks.contract import PROJECT
from connectagent.hooks.handler import MARKS, F, check_handler, event_of, place_of, where
from connectagent.hooks.specs import CONTRACTS
from connectagent.settings.tracebacks import with_short_tracebacks

_hookimpl = pluggy.HookimplMarker(PROJECT)


class Marker(Protocol):
    """A decorator that is named after a hook: `@after_tools` or `@after_tools(tryfirst=True)`."""

    @overload
    def __call__(self, function: F, /) -> F: ...
    @overload
    def __call__(self, *, tryfirst: bool = False, trylast: bool = False) -> Callable[[F], F]: ...


def marker(hook: str) -> Marker:
    """The marker of a hook."""

    @with_short_tracebacks
    def marker(function: object = None, /, *, tryfirst: bool = False, trylast: bool = False) -> Any:
        @with_short_tracebacks
        def mark(function: object) -> Any:
            target = getattr(function, "__func__", function)  # staticmethod, classmethod, bound method
            if not callable(target):
                raise HandlerError(f"@{hook} marks functions, not {function!r}")
            if tryfirst and trylast:
                raise HandlerError(f"@{hook} at {place_of(target)}: tryfirst and trylast exclude each other")
            unbound = target is function or not inspect.ismethod(function)
            taken = check_handler(target, hook, unbound=unbound)
            _warn_of_retired(hook, (*taken[0], *taken[1]), target)
            wrapper = CONTRACTS[hook].kind == "around"
            _hookimpl(target, specname=hook, wrapper=wrapper, tryfirst=tryfirst, trylast=trylast)
            marks = dict(getattr(target, MARKS, {}))
            marks[hook] = getattr(target, f"{PROJECT}_impl")
            setattr(target, MARKS, marks)
            return function

        return mark if function is None else mark(function)

    marker.__name__ = marker.__qualname__ = hook
    marker.__doc__ = f"Mark a function as a handler of `{hook}`: see `connectagent hooks {hook}`."
    return marker


def _warn_of_retired(hook: str, parameters: tuple[str, ...], function: object) -> None:
    """Warn, at the function's file and line, that its hook or a parameter will be removed."""
    contract = CONTRACTS[hook]
    found = [contract.retired, *(contract.retired_parameters.get(name) for name in parameters)]
    for warning in found:
        if warning is not None:
            import warnings

            file, line = where(function)
            warnings.warn_explicit(warning, type(warning), file, line, module=function.__module__)


after_user_input = marker("after_user_input")
before_llm = marker("before_llm")
after_llm = marker("after_llm")
before_tools = marker("before_tools")
before_each_tool = marker("before_each_tool")
after_each_tool = marker("after_each_tool")
after_tools = marker("after_tools")
on_error = marker("on_error")
on_complete = marker("on_complete")
around_turn = marker("around_turn")
around_llm = marker("around_llm")
around_tool = marker("around_tool")
on_trace = marker("on_trace")
on_text = marker("on_text")
on_agent_ready = marker("on_agent_ready")
on_agent_closed = marker("on_agent_closed")
on_session = marker("on_session")
register_models = marker("register_models")
register_commands = marker("register_commands")
register_chat_commands = marker("register_chat_commands")


def marks_of(function: object) -> dict[str, dict[str, Any]]:
    """The hooks that a function is marked for, each with pluggy's options; {} for an unmarked one."""
    if isinstance(function, type):
        return {}
    marks = getattr(function, MARKS, None)
    if marks is None and isinstance(function, functools.partial):
        marks = marks_of(function.func)
    if marks is None and (hook := CONNECTONION.get(event_of(function) or "")):
        return {hook: {**UNORDERED, "specname": hook}}
    return marks if isinstance(marks, dict) else {}


def foreign_mark(function: object) -> str | None:
    """The project of a `pluggy.HookimplMarker` that marks a function which no marker of this package marks."""
    own = getattr(function, "__dict__", None)
    if not isinstance(own, dict) or isinstance(function, type) or marks_of(function):
        return None
    marks = (name for name, value in own.items() if name.endswith("_impl") and _is_options(value))
    return next((name.removesuffix("_impl") for name in marks), None)


def _is_options(value: object) -> bool:
    return isinstance(value, dict) and {"tryfirst", "trylast", "optionalhook"} <= value.keys()


def _refuse_foreign(function: Callable[..., Any], thing: object) -> None:
    """Refuse a function that only pluggy's own marker marks: it would be a handler that never runs.

    Raises:
        HandlerError: it is one.
    """
    project = foreign_mark(function)
    if project in (None, "pytest") or (isinstance(thing, ModuleType) and function.__module__ != thing.__name__):
        return
    name = function.__name__
    near = did_you_mean(name, CONTRACTS) if name not in CONTRACTS else ""
    use = f"mark it with @{name}" if name in CONTRACTS else "mark it with one of connectagent's markers"
    raise HandlerError(
        f"{name!r} ({place_of(function)}) is marked by pluggy.HookimplMarker({project!r}), which connectagent does not "
        f"read, so that it would never run: {use}: from connectagent import after_tools, ...{near}"
    )


def marked_members(thing: object) -> Iterator[Callable[..., Any]]:
    """The marked functions of a module or an object, in the order of their definition.

    Raises:
        HandlerError: a function has only a mark that no hook takes.
    """
    if isinstance(thing, ModuleType):
        for member in list(vars(thing).values()):
            _refuse_foreign(member, thing)
            if marks_of(member):
                yield member
        return
    members: dict[str, Any] = {}
    for cls in reversed(type(thing).__mro__[:-1]):  # nobody can mark what `object` has
        members.update(vars(cls))
    members.update(getattr(thing, "__dict__", {}))
    for name, member in members.items():  # from the class: no property is run
        if type(member) in (str, NoneType) or (type(member) is FunctionType and not member.__dict__):
            continue  # nothing has marked it; most members are such, and each agent's plugins are looked through
        _refuse_foreign(getattr(member, "__func__", member), thing)
        if marks_of(getattr(member, "__func__", member)):
            yield getattr(thing, name)
