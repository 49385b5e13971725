"""Anthropic's prompt caching: which blocks of a request are marked with `cache_control`.

A mark asks to keep everything before it: tools, then system text, then messages. The API takes four marks. It
looks only some twenty blocks back from one for what was kept, less than a round of many tool calls brings: so
the end of the user message before the last is marked too, where the last mark of the request before stood.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Block = dict[str, Any]
Place = tuple[int, ...]
"""Where a block stands, in the order in which the API reads a request."""

EPHEMERAL: Block = {"type": "ephemeral"}
_MAX_MARKS = 4
# Thinking cannot be marked, and of what the provider's own tools say it is not known.
_MARKABLE = {"text", "image", "document", "search_result", "tool_use", "tool_result"}


def mark(body: dict[str, Any], form: Block) -> None:
    """Mark the last message, the system text, the user's message before, and the tools, as far as marks are left.

    Marks that the user's own parts carry count. The latest of them stay, where they are more than four.

    Args:
        body: a request; what is marked in it is copied before.
        form: the mark, for example `{"type": "ephemeral", "ttl": "1h"}`.
    """
    marks = {place: block["cache_control"] for place, block in _blocks(body) if block.get("cache_control")}
    surplus = len(marks) - _MAX_MARKS
    for place in [place for place in marks if place[0] == 2][: max(surplus, 0)]:
        _unmark(body["messages"][place[1]]["content"], place[2:])
    left = -surplus
    for place, blocks, index in _ends(body):
        if left <= 0:
            break
        if place not in marks:
            blocks[index] = {**blocks[index], "cache_control": _fitting(form, place, marks)}
            left -= 1


def _unmark(blocks: list[Block], place: Place) -> None:
    block = blocks[place[0]] = dict(blocks[place[0]])
    if len(place) == 1:
        del block["cache_control"]
    else:
        block["content"] = list(block["content"])
        _unmark(block["content"], place[1:])


def _fitting(form: Block, place: Place, marks: dict[Place, Block]) -> Block:
    """The mark with the lifetime that the user's own marks leave it: longer ones must come before shorter ones."""
    after = [found for at, found in marks.items() if at > place and found.get("ttl") == "1h"]
    if after:
        return after[0]
    before = any(at < place and found.get("ttl") != "1h" for at, found in marks.items())
    return EPHEMERAL if before else form


def _ends(body: dict[str, Any]) -> list[tuple[Place, list[Block], int]]:
    """The blocks to be marked, the most useful first: their place, and the list and index at which they stand."""
    found: list[tuple[Place, list[Block], int]] = []
    messages = body["messages"]
    users = [index for index, message in enumerate(messages) if message.get("role") == "user"]
    for at in list(dict.fromkeys([len(messages) - 1, *users[-2:][::-1]]))[:2]:
        content = messages[at].get("content")
        blocks = content if isinstance(content, list) else []
        index = _last(blocks, lambda block: block.get("type") in _MARKABLE)
        if index is not None:
            found.append(((2, at, index), blocks, index))
    if isinstance(body.get("system"), str):
        body["system"] = [{"type": "text", "text": body["system"]}]
    for number, key in ((1, "system"), (0, "tools")):
        blocks = body[key] = list(body.get(key) or [])
        index = _last(blocks, lambda block: not block.get("defer_loading"))
        if index is not None:
            found.insert(1 if number else len(found), ((number, index), blocks, index))
        else:
            del body[key]
    return found


def _last(blocks: list[Any], fits: Callable[[Any], bool]) -> int | None:
    return next((n for n in range(len(blocks) - 1, -1, -1) if isinstance(blocks[n], dict) and fits(blocks[n])), None)


def _blocks(body: dict[str, Any]) -> Iterator[tuple[Place, Block]]:
    """The blocks of a request that may carry a mark, those inside of results too."""
    for number, key in enumerate(("tools", "system")):
        if isinstance(body.get(key), list):
            yield from _inside(body[key], (number,))
    for index, message in enumerate(body["messages"]):
        if isinstance(message.get("content"), list):
            yield from _inside(message["content"], (2, index))


def _inside(blocks: list[Any], place: Place) -> Iterator[tuple[Place, Block]]:
    for index, block in enumerate(blocks):
        if isinstance(block, dict):
            yield (*place, index), block
            if block.get("type") == "tool_result" and isinstance(block.get("content"), list):
                yield from _inside(block["content"], (*place, index))
