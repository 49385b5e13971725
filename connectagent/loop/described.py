"""Errors and outcomes in the form of trace entries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from connectagent.errors import Diverged, ProviderError, TurnEnded, Waiting
from connectagent.output.text import describe


def describe_error(error: BaseException) -> dict[str, Any]:
    """An error in the form of a trace entry."""
    described: dict[str, Any] = {"error": describe(str, error), "error_type": type(error).__name__}
    if isinstance(error, ProviderError):
        described |= {"error_kind": error.kind, "error_provider": error.provider, "error_status": error.status}
        described |= {"retry_after_s": error.retry_after_s, "finish_reason": error.finish_reason}
    return {key: value for key, value in described.items() if value is not None}


def outlined(own: dict[str, Any] | None) -> dict[str, Any] | None:
    """The outcome of a call before an around handler replaced it, without texts, since those may be secret."""
    if own is None:
        return None
    kept = ("error_type", "error_kind", "error_provider", "error_status", "retry_after_s", "finish_reason")
    status = own.get("status") or ("error" if "error_type" in own else "success")
    return {"status": status, **{key: own[key] for key in kept if key in own}}


Originals = dict[int, tuple[BaseException, BaseException]]
"""By the id of an error that a handler raised: the error, and the original that the handler was to handle."""


@contextmanager
def handling(original: BaseException, originals: Originals) -> Iterator[None]:
    """Keep an error while handlers handle it: it is the context of what they raise, and a note names it.

    Args:
        original: the error of a model or tool.
        originals: is added what the handlers raise.
    """
    try:
        yield
    except (TurnEnded, Waiting, Diverged):  # these say how the turn goes on, and hide nothing
        raise
    except BaseException as raised:
        keep_original(raised, original)
        if raised is not original:
            originals[id(raised)] = (raised, original)
        raise


def keep_original(raised: BaseException, original: BaseException | None) -> None:
    """Make an error the context of one that was raised while it was handled, as Python does in an `except` block.

    Interrupts and pauses say how the turn goes on, and hide nothing.
    """
    if not isinstance(raised, Exception) or not isinstance(original, Exception):
        return
    if _is_among(raised, _chain(original)):
        return
    is_shown = _is_among(original, _seen(raised))
    chain = _chain(raised)
    with suppress(Exception):  # an exception class that takes no attributes
        if not _is_among(original, chain):
            chain[-1].__context__ = original
    with suppress(Exception):
        if not is_shown:
            raised.add_note(f"while handling {type(original).__name__}: {describe(str, original)}")


def _is_among(error: BaseException, errors: list[BaseException]) -> bool:
    return any(one is error for one in errors)  # a class of errors may define `==`


def _chain(error: BaseException) -> list[BaseException]:
    """An error, its context, the context of this one, and so on."""
    found: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and not _is_among(one, found):
        found.append(one)
        one = one.__context__
    return found


def _seen(error: BaseException) -> list[BaseException]:
    """The errors that a traceback shows with one."""
    found: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and not _is_among(one, found):
        found.append(one)
        shown = None if one.__suppress_context__ else one.__context__
        one = shown if one.__cause__ is None else one.__cause__
    return found
