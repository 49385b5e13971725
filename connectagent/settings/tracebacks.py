"""Tracebacks that show the user's own lines."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar, cast

from connectagent.errors import ConfigError, did_you_mean, hide_own_frames
from connectagent.settings.values import setting

F = TypeVar("F", bound=Callable[..., Any])


def shorten(error: BaseException) -> None:
    """Take the package's frames out of the traceback of an error, unless the settings ask for them."""
    with suppress(ConfigError):  # a settings file that cannot be read has an error of its own
        if setting("traceback") == "full":
            return
    hide_own_frames(error)


def with_short_tracebacks(function: F) -> F:
    """Shorten the tracebacks of a function's errors, and name the nearest argument for an unknown one."""

    @functools.wraps(function)
    def shortening(*args: Any, **kwargs: Any) -> Any:
        try:
            _check_names(shortening, function, kwargs)
            return function(*args, **kwargs)
        except BaseException as error:
            shorten(error)
            raise

    return cast(F, shortening)


def _check_names(shown: Callable[..., Any], function: Callable[..., Any], given: dict[str, Any]) -> None:
    """Refuse names of arguments that a function does not have, in better words than Python's."""
    code = function.__code__
    known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if code.co_flags & inspect.CO_VARKEYWORDS or given.keys() <= {*known}:
        return
    name = next(name for name in given if name not in known)
    accepted = [one for one in known[code.co_posonlyargcount :] if one != "self"]
    called = shown.__qualname__.removesuffix(".__init__")
    listed = ", ".join(accepted) or "none"
    raise TypeError(f"{called}() has no argument {name!r}.{did_you_mean(name, accepted)} It has: {listed}")
