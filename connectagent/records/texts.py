"""Values of a record as text."""

from __future__ import annotations

import datetime
import json
from typing import Any

from connectagent.records.messages import TurnMessages
from connectagent.session.messages import text_of


def plain_value(value: Any) -> str:
    """A value that JSON does not have, as text; a time, and messages of a turn, as in the record."""
    if isinstance(value, TurnMessages):
        return value.text()
    if isinstance(value, datetime.datetime):
        return value.isoformat().replace("+00:00", "Z")
    return str(value)


def data_text(value: Any, indent: int | None = None) -> str:
    """A value of an entry as whole text: a text unchanged, others as JSON."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, indent=indent, ensure_ascii=False, default=plain_value)
    except (TypeError, ValueError, RecursionError):  # what YAML has and JSON has not: keys that are lists
        return str(value)


def content_text(message: Any) -> str:
    """The content of a message as text; "" for none."""
    content = (message or {}).get("content")
    if content is None:
        return ""
    if isinstance(content, str | list):
        return text_of(content)
    return data_text(content, 2)


def text_of_value(value: Any) -> str:
    """A value that a change replaced as text: a message or an answer as its content with its calls."""
    if value is None:
        return ""
    if not isinstance(value, dict) or not ("role" in value or set(value) == {"content", "tool_calls"}):
        return data_text(value, 2)
    calls = [call.get("function") or call for call in value.get("tool_calls") or () if isinstance(call, dict)]
    lines = [f"-> {call.get('name')}({data_text(call.get('arguments'))})" for call in calls]
    return "\n".join([text for text in (content_text(value), *lines) if text])
