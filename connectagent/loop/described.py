"""Errors in the form of trace entries."""

from __future__ import annotations

from typing import Any

from connectagent.errors import ProviderError
from connectagent.output.text import describe


def describe_error(error: BaseException) -> dict[str, Any]:
    """An error in the form of a trace entry."""
    described: dict[str, Any] = {"error": describe(str, error), "error_type": type(error).__name__}
    if isinstance(error, ProviderError):
        described |= {"error_kind": error.kind, "error_provider": error.provider, "error_status": error.status}
        described["retry_after_s"] = error.retry_after_s
    return {key: value for key, value in described.items() if value is not None}


def outlined(own: dict[str, Any] | None) -> dict[str, Any] | None:
    """The outcome of a call before an around handler replaced it, without texts, since those may be secret."""
    if own is None:
        return None
    kept = ("error_type", "error_kind", "error_provider", "error_status", "retry_after_s")
    status = own.get("status") or ("error" if "error_type" in own else "success")
    return {"status": status, **{key: own[key] for key in kept if key in own}}
