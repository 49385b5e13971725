"""The request for a structured answer in words, for models that cannot be made to give one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


def instruction(schema: dict[str, Any]) -> str:
    """The request for an answer with a JSON Schema."""
    text = json.dumps(schema, ensure_ascii=False)
    return f"Answer with one JSON object and nothing else. It must fit this JSON Schema:\n{text}"


def with_instruction(messages: Sequence[Any], schema: dict[str, Any]) -> list[Any]:
    """The conversation with `instruction` at the end of its last message, or behind it where that is not the user's."""
    words = instruction(schema)
    last = messages[-1] if messages else {}
    content = last.get("content")
    if last.get("role") != "user" or not isinstance(content, str | list):
        return [*messages, {"role": "user", "content": words}]
    joined = f"{content}\n\n{words}" if isinstance(content, str) else [*content, {"type": "text", "text": words}]
    return [*messages[:-1], {**last, "content": joined}]
