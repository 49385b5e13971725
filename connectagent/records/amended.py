"""The entries of calls with what later entries say of them: changed results, and further attempts."""

from __future__ import annotations

from typing import Any

from connectagent.data import TraceEntry


def amend(entries: list[TraceEntry]) -> None:
    """Apply later changes to the entries of calls, so that they are as in the session."""
    calls: dict[Any, TraceEntry] = {}
    for entry in entries:
        kind = entry.get("type")
        of = entry.get("of")
        value = entry.get("value")
        if kind == "tool_execution":
            calls[entry.get("call_id")] = entry
        elif kind == "llm_call":
            calls[entry.get("id")] = entry
        elif kind == "change" and of in ("tool_execution", "result", "llm_call"):
            own = str(entry.get("id")).removesuffix("/recovered")
            call = calls.get(own if of == "llm_call" else entry.get("call_id"))
            changed = {"result": value} if of == "result" else value
            if call is not None and isinstance(changed, dict):
                by = {"by": entry.get("by")} if changed.get("status") == "recovered" else {}
                call.update({**changed, **by})


def with_retries(entries: list[TraceEntry]) -> list[TraceEntry]:
    """Entries for readers: a retried tool call has the outcome of its last attempt, and lists all attempts."""
    merged = list(entries)
    calls: dict[Any, int] = {}
    for number, entry in enumerate(merged):
        if entry.get("type") == "tool_execution":
            calls[entry.get("call_id")] = number
        elif (value := retried(entry)) is not None and entry.get("call_id") in calls:
            at = calls[entry["call_id"]]
            first = {key: one for key, one in merged[at].items() if key not in ("error", "error_type", "raised_at")}
            merged[at] = {**first, **value}
    return merged


def retried(entry: TraceEntry) -> dict[str, Any] | None:
    """The outcome of a retried tool call, if an entry is one."""
    value = entry.get("value") if entry.get("type") == "change" and entry.get("of") == "tool_execution" else None
    return value if isinstance(value, dict) and isinstance(value.get("attempts"), list) else None
