"""A trace entry for the page: one short row, and its values as shortened texts."""

from __future__ import annotations

from typing import Any

from connectagent.commands.tables import number_of
from connectagent.errors import cut
from connectagent.output.rows import FAILED, UNICODE, call_text, change_text, first_line, rows_of
from connectagent.output.text import actor
from connectagent.records.blobs import REFERENCE
from connectagent.records.changes_by_plugins import inner_turn
from connectagent.records.texts import data_text
from connectagent.session.journal import is_aside, marks_in
from connectagent.stop_reasons import is_whole

MOST_IN_ROW = 240  # characters of a text in a row
MOST_IN_DETAIL = 4_000  # characters of an opened text, before "more" is asked for

_WEAK = ("rejected", "recovered", "skipped", "stand_in", "ended", "max_iterations", "truncated", "refused", "paused")
_OWN_KEYS = ("type", "by", "timestamp", "status", "call_id", "iteration", "turn", "index", "hook", "of")


def row_of(entry: dict[str, Any], number: int) -> dict[str, Any]:
    """The row of an entry; also of a handler's entry, which may have any values.

    Args:
        entry: the recorded entry.
        number: its number in the record, from 0.

    Returns:
        `n`, `kind` (`input`, `model`, `tool`, `agent`, `wait`, `started`, `handler`, `other`), `type`, `name`, `text`;
        where known `start` (Unix seconds), `ms`, `status`, `bad` (2: failed, 1: not as asked), `badges`, `in` (the
        turn of an inner agent that it is in), and keys of the type.
    """
    row: dict[str, Any] = {"n": number, "type": _short(entry.get("type"), 40), "kind": "other", "name": "", "text": ""}
    start, status = number_of(entry.get("timestamp")), entry.get("status")
    row |= {"in": _short(inside, 400)} if (inside := inner_turn(entry)) else {}
    row |= {"start": start} if start is not None else {}
    if isinstance(status, str):
        ended = entry.get("held") or status
        row["status"] = _short("held" if "held" in entry else status, 40)
        row["bad"] = 2 if ended in FAILED else 1 if ended in _WEAK else 0
    try:
        row |= by_of(entry.get("by")) | _ROWS.get(str(entry.get("type")), _other)(entry)
    except Exception:
        row |= {"name": row["type"], "text": _short(data_text(entry))}
    return row


def by_of(by: Any) -> dict[str, Any]:
    """Who made an entry, in short texts: `plugin`, `who`, `by`, `hook`, `where`, as far as they are known."""
    if not isinstance(by, dict):
        return {}
    version = f" {by['version']}" if by.get("version") else ""
    pairs = {
        "plugin": _short(by.get("plugin") or by.get("tool") or "?", 60),
        "who": actor(by),
        "by": _short(f"{by.get('plugin') or by.get('tool') or '?'}{version}", 80),
        "hook": _short(by.get("hook") or "", 40),
    }
    if by.get("file") and by["file"] != "?":
        pairs["where"] = _short(f"{by['file']}:{by.get('line')}", 300)
    return {key: value for key, value in pairs.items() if value}


def _input(entry: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "input", "name": "input", "text": _line(entry.get("prompt"))}


def _llm_call(entry: dict[str, Any]) -> dict[str, Any]:
    ms = number_of(entry.get("duration_ms")) or 0.0
    end, usage = number_of(entry.get("timestamp")), entry.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    calls = ", ".join(str(call.get("name")) for call in entry.get("tool_calls") or () if isinstance(call, dict))
    said = _error(entry) if entry.get("status") == "error" else _line(entry.get("content"))
    row = {
        "kind": "model",
        "name": _short(str(entry.get("model")).rpartition("/")[2], 80),
        "text": said,
        "calls": _short(calls, 120),
        "start": None if end is None else end - ms / 1000,  # the entry is made at the call's end
        "ms": ms,
        "iteration": number_of(entry.get("iteration")),
        "tokens_in": number_of(usage.get("input_tokens")),
        "tokens_out": number_of(usage.get("output_tokens")),
        "cost": number_of(usage.get("cost")),
        "error": _short(entry.get("error_type") or "", 60),
        "attempt": number_of(entry.get("attempt")),
        "aside": is_aside(entry),
        "badges": _badges(entry, usage),
    }
    return {key: value for key, value in row.items() if value not in (None, "", False, [])}


def _badges(entry: dict[str, Any], usage: dict[str, Any]) -> list[str]:
    """Words about a model call that a person should see at once."""
    tried = len(entry["retries"]) if isinstance(entry.get("retries"), list) else 0
    cached, whole = number_of(usage.get("cached_tokens")) or 0, number_of(usage.get("input_tokens")) or 0
    badges = {
        "cut": was_cut(entry),
        f"retried {tried}x": tried,
        f"cached {round(100 * cached / whole) if whole else 0}%": cached,
        "masked": has_masked(entry),
    }
    return [word for word, is_so in badges.items() if is_so]


def was_cut(entry: dict[str, Any]) -> bool:
    """Whether a model's answer is not whole."""
    return not is_whole(entry.get("finish_reason"))


def has_masked(value: Any) -> bool:
    """Whether something in a value was masked."""
    if isinstance(value, str):
        return "[masked" in value and bool(marks_in(value))
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(map(has_masked, inside))


def _tool(entry: dict[str, Any]) -> dict[str, Any]:
    call = call_text("", entry.get("arguments") or {})
    row: dict[str, Any] = {"kind": "tool", "name": _short(entry.get("tool_name"), 80), "args": _short(call[1:-1])}
    row["call"] = _short(entry.get("call_id"), 200)
    failed = entry.get("status") in FAILED and entry.get("error")
    row["text"] = _error(entry) if failed else _line(entry.get("result")).removeprefix("rejected: ")
    row["ms"] = number_of(entry.get("timing")) or 0.0
    row |= {"badges": ["masked"]} if has_masked([entry.get("arguments"), entry.get("result")]) else {}
    return row | {"error": _short(entry["error_type"], 60)} if entry.get("error_type") else row


def _began(entry: dict[str, Any]) -> dict[str, Any]:
    """A tool, an inner agent's turn or a model call that has begun."""
    row = {"kind": "started", "of": "model", "name": "model", "id": _short(entry.get("id"), 400)}
    if "call_id" in entry:
        args = call_text("", entry.get("arguments") or {})[1:-1]
        row |= {"of": "tool", "name": _short(entry.get("tool_name"), 80), "args": _short(args)}
        row["call"] = _short(entry.get("call_id"), 200)
    elif "agent" in entry:
        row |= {"of": "agent", "name": _short(entry["agent"], 80), "branch": _short(entry.get("branch"), 200)}
    return row


def _agent_turn(entry: dict[str, Any]) -> dict[str, Any]:
    recorded, outcome = entry.get("usage"), str(entry.get("outcome"))
    usage = recorded if isinstance(recorded, dict) else {}
    row = {
        "kind": "agent",
        "name": _short(entry.get("agent"), 80),
        "branch": _short(entry.get("branch"), 200),
        "id": _short(entry.get("id"), 400),
        "status": "success" if outcome == "answered" else outcome,
        "bad": 2 if outcome in FAILED else 1 if outcome in _WEAK else 0,
        "text": _error(entry) if entry.get("error") else _line(entry.get("result")),
        "ms": number_of(entry.get("duration_ms")) or 0.0,
        "start": number_of(entry.get("started")),
        "tokens_in": number_of(usage.get("input_tokens")),
        "tokens_out": number_of(usage.get("output_tokens")),
        "cost": number_of(usage.get("cost")),
        "error": _short(entry.get("error_type") or "", 60),
    }
    return {key: value for key, value in row.items() if value not in (None, "")}


def _wait(entry: dict[str, Any]) -> dict[str, Any]:
    call = entry.get("call")
    of = str(entry.get("of") or "")
    shown = call_text(call["name"], call.get("arguments") or {}) if isinstance(call, dict) else of
    return {"kind": "wait", "name": "waits", "args": _short(shown), "text": _line(entry.get("reason"))}


def _decided(entry: dict[str, Any]) -> dict[str, Any]:
    what = next((key for key in ("approve", "reject", "answer") if key in entry), "decided")
    text = "" if what == "approve" else _line(data_text(entry.get(what)))
    return {"kind": "wait", "name": "decided", "did": f"{what}d" if what == "approve" else what, "text": text}


def _retrying(entry: dict[str, Any]) -> dict[str, Any]:
    wait = number_of(entry.get("retry_after_s"))
    waits = "" if wait is None else f"; the provider asks to wait {wait:g} s"
    text = f"attempt {entry.get('attempt')} failed: HTTP {entry.get('status')}{waits}"
    model = _short(str(entry.get("model")).rpartition("/")[2], 80)
    return {"kind": "wait", "name": model, "text": _short(text), "bad": 1}


def _message(entry: dict[str, Any]) -> dict[str, Any]:
    did = {"message": "added", "message_edited": "edited", "message_removed": "removed"}[entry["type"]]
    message = entry.get("message")
    role = message.get("role") if isinstance(message, dict) else None
    text = _line(message.get("content")) if isinstance(message, dict) else ""
    return _handler(entry, f"{did} a {role or ''} message".replace("  ", " "), text)


def _change(entry: dict[str, Any]) -> dict[str, Any]:
    did, text = change_text(entry)
    value = entry.get("value")
    if isinstance(value, dict) and "name" in value and "arguments" in value:
        value = call_text(value["name"], value["arguments"])
    elif isinstance(value, dict) and value.get("content"):
        value = value["content"]
    return _handler(entry, did, _line(data_text(value) if text is None else text))


def _delta(entry: dict[str, Any]) -> dict[str, Any]:
    removed = entry.get("removed") or ()
    pairs = entry.get("delta") or {}
    changes = [f"{key} removed" if key in removed else f"{key} = {data_text(value)}" for key, value in pairs.items()]
    return _handler(entry, f"changed the {str(entry['type']).partition('_')[0]}", _short(", ".join(changes)))


def _failure(entry: dict[str, Any]) -> dict[str, Any]:
    row = {"text": _error(entry), "bad": 2, "error": _short(entry.get("error_type") or "error", 60)}
    return _handler(entry, "raised", "") | row if entry.get("by") else row | {"name": "turn"}


def _error(entry: dict[str, Any]) -> str:
    """The message of an error, without its type."""
    return _line(entry.get("error")).removeprefix("Error: ").removeprefix(f"{entry.get('error_type')}: ")


def _handler(entry: dict[str, Any], did: str, text: str) -> dict[str, Any]:
    return {"kind": "handler", "name": actor(entry.get("by")), "did": did, "text": text}


def _other(entry: dict[str, Any]) -> dict[str, Any]:
    """The row of another type: as on the console, or its values."""
    made = rows_of(entry, UNICODE)
    rest = {key: value for key, value in entry.items() if key not in _OWN_KEYS}
    text = "; ".join("".join(part for part, _ in row.parts) for row in made) or (data_text(rest) if rest else "")
    kind = "handler" if entry.get("by") else "other"
    return {"kind": kind, "name": _short(entry.get("type"), 60), "text": _line(text)}


_ROWS = {
    "user_input": _input,
    "llm_call": _llm_call,
    "tool_execution": _tool,
    "began": _began,
    "agent_turn": _agent_turn,
    "wait": _wait,
    "decided": _decided,
    "retrying": _retrying,
    "message": _message,
    "message_edited": _message,
    "message_removed": _message,
    "change": _change,
    "state_delta": _delta,
    "session_delta": _delta,
    "error": _failure,
}


# -- values --------------------------------------------------------------------------------------


def fields_of(entry: dict[str, Any], most: int | None = MOST_IN_DETAIL) -> list[dict[str, Any]]:
    """The values of an entry as texts: `key`, `text`, and `length` where the text is not whole.

    Args:
        entry: an entry, or a message.
        most: characters of each text; None for all.
    """
    return [{"key": str(key), **excerpt(data_text(value, 2), most)} for key, value in entry.items()]


def excerpt(text: str, most: int | None) -> dict[str, Any]:
    """A text: `text`, and its `length` if it was shortened: in characters, or in bytes for a blob."""
    stored = REFERENCE.search(text) if len(text) < 1 << 20 else None
    if most is None or len(text) <= most:
        return {"text": text, "length": int(stored[1])} if stored else {"text": text}
    return {"text": text[:most], "length": max(len(text), int(stored[1]) if stored else 0)}


def _line(value: Any) -> str:
    return "" if value is None else _short(first_line(value))


def _short(value: Any, most: int = MOST_IN_ROW) -> str:
    return cut(str(value), most)
