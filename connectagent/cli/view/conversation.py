"""The conversation for the page: each message, who made it and who changed it."""

from __future__ import annotations

from typing import Any

from connectagent.cli.view.rows import excerpt, has_masked
from connectagent.output.words import word_diff
from connectagent.records.texts import content_text
from connectagent.session.history import Change, History, Line

MOST_IN_MESSAGE = 1_500  # characters of a message, before "more" is asked for
_MOST_IN_DIFF = 20_000  # characters of a message whose words are compared
_THOUGHTS = ("thinking", "reasoning", "reasoning_content", "reasoning_text", "summary_text")


def conversation_of(history: History, most: int | None = MOST_IN_MESSAGE) -> list[dict[str, Any]]:
    """The messages with their changes, the removed ones last.

    Args:
        history: whose entries have a `number`: see `number_lines`.
        most: characters of a text; None for all.
    """
    here = [_line_data(history, line, number, most) for number, line in enumerate(history.lines)]
    return here + [_line_data(history, line, None, most) for line in history.removed]


def news_of(lines: list[dict[str, Any]], known: int) -> dict[str, Any]:
    """What is new in a conversation.

    Args:
        lines: of `conversation_of`.
        known: the number of the newest entry that the reader knows; -1 for none.

    Returns:
        `keys` of all messages in order, and `lines`, by their keys: those of new and changed messages. The message
        `42.0` is the first one that entry 42 made.
    """
    keys: list[str] = []
    made: dict[Any, int] = {}
    new = {}
    for line in lines:
        first = line["changes"][0]["entry"]
        made[first] = made.get(first, -1) + 1
        keys.append(f"{'given' if first is None else first}.{made[first]}")
        newest = max(-1 if change["entry"] is None else change["entry"] for change in line["changes"])
        if known < 0 or newest > known:
            new[keys[-1]] = line
    return {"keys": keys, "lines": new}


def images_of(message: Any) -> list[str]:
    """The addresses of the images in a message."""
    content = (message or {}).get("content")
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    urls = [part["image_url"].get("url") for part in parts if isinstance(part.get("image_url"), dict)]
    return [url for url in urls if isinstance(url, str)]


def thoughts_of(value: Any, depth: int = 0) -> list[str]:
    """The texts in which a model thought, in what its provider wants back."""
    if depth > 8:
        return []
    if isinstance(value, list):
        return [text for item in value for text in thoughts_of(item, depth + 1)]
    if not isinstance(value, dict):
        return []
    kind = value.get("type")
    texts = [value[key] for key in _THOUGHTS if isinstance(value.get(key), str) and value[key]]
    if kind in _THOUGHTS and isinstance(value.get("text"), str):
        texts.append(value["text"])
    return texts + [text for item in value.values() for text in thoughts_of(item, depth + 1)]


def _line_data(history: History, line: Line, number: int | None, most: int | None) -> dict[str, Any]:
    changes = [_change_data(history, change, most) for change in line.changes]
    for before, change, data in zip(line.changes, line.changes[1:], changes[1:], strict=False):
        texts = content_text(before.message), content_text(change.message)
        if change.message is not None and max(map(len, texts)) <= _MOST_IN_DIFF:
            data["diff"] = word_diff(*texts)
    return {"message": number, "role": str(line.message.get("role")), "changes": changes}


def _change_data(history: History, change: Change, most: int | None) -> dict[str, Any]:
    entry = history.entries[change.entry].get("number") if change.entry >= 0 else None
    by = {str(key): value for key, value in change.by.items() if isinstance(value, str | int)}
    data = {"did": change.did, "by": by, "turn": change.turn, "iteration": change.iteration, "entry": entry}
    message: dict[str, Any] | None = change.message  # type: ignore[assignment]
    if message is None:
        return data
    call_texts = []
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        call_texts.append(excerpt(f"{function.get('name')}({function.get('arguments')})", most)["text"])
    data |= excerpt(content_text(message), most) | {"calls": call_texts}
    images, thoughts = images_of(message), thoughts_of(message.get("provider_data") or message.get("_provider_data"))
    more = {"images": len(images), "thoughts": [excerpt(one, most)["text"] for one in thoughts]}
    more["masked"] = has_masked(data["text"])
    return data | {key: value for key, value in more.items() if value}
