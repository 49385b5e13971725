"""Exceptions made again from the errors in a record."""

from __future__ import annotations

import builtins
from typing import Any

from connectagent.data import TraceEntry
from connectagent.errors import Cancelled, ProviderError, ToolArgumentsError

_OWN: dict[str, type[BaseException]] = {one.__name__: one for one in (Cancelled, ToolArgumentsError)}


def tool_error(kind: str, result: str, interrupt: bool = False) -> BaseException:
    """The error of a tool, from the name of its type and the result that the model read."""
    if interrupt:
        return named_error(kind, "", BaseException)
    text = result.removeprefix("Error: ")
    if kind in ("ToolArgumentsError", "ToolNotFound"):
        return named_error(kind, text)
    return named_error(kind, "" if text == kind else text.removeprefix(f"{kind}: "))


def model_error(own: dict[str, Any], entry: TraceEntry) -> BaseException:
    """The error of a model call, from its `llm_call` entry."""
    kind, text = str(own.get("error_type")), str(own.get("error") or "")
    if own.get("error_kind"):
        details = {"status": own.get("error_status"), "retry_after_s": own.get("retry_after_s")}
        provider, retries = str(own.get("error_provider") or "?"), entry.get("retries")
        error = ProviderError(text, kind=own["error_kind"], provider=provider, retries=retries, **details)
        error.model = entry.get("model")
        error.finish_reason = own.get("finish_reason")
        return error
    return named_error(kind, text)


def named_error(kind: str, text: str, base: type[BaseException] = Exception) -> BaseException:
    """An error with this class name and text: of Python's own class, or of a new subclass."""
    found = _OWN.get(kind) or getattr(builtins, kind, None)
    if not (isinstance(found, type) and issubclass(found, BaseException)) or issubclass(found, BaseExceptionGroup):
        found = base
    given = [text] if text else []
    if found.__name__ == kind:
        try:
            own: BaseException = found(*given)
            if str(own) == text:
                return own
        except TypeError:  # one that takes more than a text
            pass
    made = type(kind, (found,), {"__init__": lambda self, *given: None, "__str__": lambda self: text})
    named: BaseException = made(text)
    return named
