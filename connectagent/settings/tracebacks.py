"""Tracebacks that show the user's own lines."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar, cast

from connectagent.errors import ConfigError, hide_own_frames
from connectagent.settings.values import setting

F = TypeVar("F", bound=Callable[..., Any])


def shorten(error: BaseException) -> None:
    """Take the package's frames out of the traceback of an error, unless the settings ask for them."""
    with suppress(ConfigError):  # a settings file that cannot be read has an error of its own
        if setting("traceback") == "full":
            return
    hide_own_frames(error)


def with_short_tracebacks(function: F) -> F:
    """Shorten the tracebacks of a function's errors."""

    @functools.wraps(function)
    def shortening(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            shorten(error)
            raise

    return cast(F, shortening)
