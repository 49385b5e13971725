"""One callback as the user wrote it: whether it can be called, where it stands, and how it is called."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from types import CodeType, FunctionType
from typing import Any

from connectagent import HandlerError, HookResultError, run_async
from connectagent_adk.models import kinds_for

# ADK's own names of the parameters, in the order in which it gives them by position where the names do not fit.
PARAMETERS: dict[str, tuple[str, ...]] = {
    "before_agent_callback": ("callback_context",),
    "after_agent_callback": ("callback_context",),
    "before_model_callback": ("callback_context", "llm_request"),
    "after_model_callback": ("callback_context", "llm_response"),
    "on_model_error_callback": ("callback_context", "llm_request", "error"),
    "before_tool_callback": ("tool", "args", "tool_context"),
    "after_tool_callback": ("tool", "args", "tool_context", "tool_response"),
    "on_tool_error_callback": ("tool", "args", "tool_context", "error"),
}
# The parameters of the methods of ADK's plugins, which are always given by name.
PLUGIN_PARAMETERS: dict[str, tuple[str, ...]] = {
    **PARAMETERS,
    "before_agent_callback": ("agent", "callback_context"),
    "after_agent_callback": ("agent", "callback_context"),
    "before_tool_callback": ("tool", "tool_args", "tool_context"),
    "after_tool_callback": ("tool", "tool_args", "tool_context", "result"),
    "on_tool_error_callback": ("tool", "tool_args", "tool_context", "error"),
    "on_user_message_callback": ("invocation_context", "user_message"),
    "before_run_callback": ("invocation_context",),
    "after_run_callback": ("invocation_context",),
    "on_event_callback": ("invocation_context", "event"),
    "on_agent_error_callback": ("agent", "callback_context", "error"),
    "on_run_error_callback": ("invocation_context", "error"),
    "close": (),
}
_IN_PLUGINS = {"args": "tool_args", "tool_response": "result"}


class Callback:
    """A callback that was given for one of ADK's slots.

    Args:
        slot: ADK's name of the slot, such as `before_tool_callback`.
        function: a function, async function, method, partial or callable object.
        of_plugin: whether it is a method of one of ADK's plugins, whose parameters have other names.

    Attributes:
        kinds: the classes of what it is given.
        stand_in: a function with its name, file and line, by which connectagent names it; never called.
        stand_in_around: the same as a generator, for hooks around an operation.

    Raises:
        HandlerError: it cannot be called, or not with the slot's parameters.
    """

    def __init__(self, slot: str, function: Any, of_plugin: bool = False) -> None:
        self.slot = slot
        self.function = function
        self.of_plugin = of_plugin
        self.names = (PLUGIN_PARAMETERS if of_plugin else PARAMETERS)[slot]
        if isinstance(function, type) or not callable(function):
            raise HandlerError(
                f"{slot}={function!r:.100} is no function; give a function that takes {', '.join(self.names)}, "
                "or a list of them"
            )
        holder = _holder(function)
        self.stand_in = _stand_in(holder, function, around=False)
        self.stand_in_around = _stand_in(holder, function, around=True)
        self.by_name = self._binds_by_name()
        self.kinds = kinds_for(holder)

    def __str__(self) -> str:
        code = self.stand_in.__code__
        return f"{self.slot} {self.stand_in.__qualname__!r} ({code.co_filename}:{code.co_firstlineno})"

    def __call__(self, **given: Any) -> Any:
        """Call it, and run what it awaits to its end."""
        if self.of_plugin:
            given = {_IN_PLUGINS.get(name, name): value for name, value in given.items()}
        given = {name: given[name] for name in self.names}
        value = self.function(**given) if self.by_name else self.function(*given.values())
        return run_async(value) if inspect.isawaitable(value) else value

    def refuse(self, value: Any, takes: str) -> HookResultError:
        """The error for a value that the slot does not take."""
        shown = f"{type(value).__name__} {value!r:.80}"
        return HookResultError(f"{self} returned {shown}; it takes None or {takes}")

    def _binds_by_name(self) -> bool:
        try:
            # What a decorator hides comes first, as in ADK: its own is often (*args, **kwargs), which takes anything.
            signature, own = inspect.signature(self.function), inspect.signature(self.function, follow_wrapped=False)
        except ValueError:  # some built-in callables do not tell theirs
            return True
        names = self.names
        for each in (signature, own):
            if _binds(each, **dict.fromkeys(names)):
                return True
            if _binds(each, *names):
                return False
        raise HandlerError(f"{self} takes {signature}; ADK gives it ({', '.join(names)}), by these names")


def _binds(signature: inspect.Signature, *values: Any, **named: Any) -> bool:
    try:
        signature.bind(*values, **named)
    except TypeError:
        return False
    return True


def _holder(function: Any) -> Any:
    """The plain function behind partials, methods, callable objects and decorators."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):
        function = getattr(function, "__call__", function)  # noqa: B004  the method itself is wanted
    return inspect.unwrap(getattr(function, "__func__", function))


def _stand_in(holder: Any, function: Any, around: bool) -> FunctionType:
    """A function that stands where the callback does.

    connectagent names a handler by the function that it wraps, but takes none that is async.
    """

    def named() -> Any: ...

    def yielding() -> Any:
        yield

    named = yielding if around else named
    code = getattr(holder, "__code__", None)
    file, line = (code.co_filename, code.co_firstlineno) if isinstance(code, CodeType) else ("?", 0)
    named.__code__ = named.__code__.replace(co_filename=file, co_firstlineno=line)
    named.__qualname__ = getattr(holder, "__qualname__", type(function).__name__).rpartition("<locals>.")[2]
    assert isinstance(named, FunctionType)
    return named


def named_like(first: FunctionType, callbacks: Sequence[Callback]) -> FunctionType:
    """A stand-in for a list of callbacks: it has all their names, and stands where the first one does."""
    named = FunctionType(first.__code__, first.__globals__)
    named.__qualname__ = ", ".join(callback.stand_in.__qualname__ for callback in callbacks)
    return named
