"""A conversation in OpenAI's chat format as Anthropic's messages API takes it."""

from __future__ import annotations

import re
from typing import Any

from connectagent.data import Message
from connectagent.models.content import (
    CallIds,
    as_json,
    image_problem,
    open_turn,
    parts_of,
    sent_arguments,
    text_of,
    wire_name,
)
from connectagent.models.files import for_anthropic
from connectagent.models.images import DATA_URL
from connectagent.models.json_schema import object_schema
from connectagent.models.origin import Origin
from connectagent.models.sdk import Messages

Block = dict[str, Any]

_ID_PATTERN = re.compile(r"[a-zA-Z0-9_-]+")
_MARKS = 4  # the API takes so many `cache_control`
_FIELDS: dict[Any, dict[str, type]] = {
    "text": {"text": str},
    "tool_use": {"id": str, "name": str, "input": dict},
    "thinking": {"thinking": str, "signature": str},
    "redacted_thinking": {"data": str},
}
_THINKING = ("thinking", "redacted_thinking")
_EMPTY = {"type": "text", "text": "(empty message)"}
_BEGINNING = {"type": "text", "text": "(The beginning of the conversation is not shown.)"}


def tools_to_wire(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tool schemas of OpenAI's format in Anthropic's; what is in Anthropic's already is passed on."""
    wire = []
    for tool in tools:
        function = tool.get("function")
        if not isinstance(function, dict):
            wire.append(tool)
            continue
        made = {"name": function.get("name"), "input_schema": object_schema(function.get("parameters"))}
        if function.get("description"):
            made["description"] = function["description"]
        wire.append(made)
    return wire


def tool_choice(choice: object) -> Any:
    """OpenAI's forms of `tool_choice` in Anthropic's, so that one option works with both."""
    if isinstance(choice, str):
        return {"type": {"required": "any"}.get(choice, choice)}
    if isinstance(choice, dict) and choice.get("type") == "function":
        return {"type": "tool", "name": (choice.get("function") or {}).get("name")}
    return choice


def to_wire(
    messages: Messages, origin: Origin, mode: str | None = None
) -> tuple[str, list[dict[str, Any]], list[str]]:  # fmt: skip
    """The conversation: its system text, its messages, and the names of the tools that were called in it.

    System messages at the beginning are the system text; later ones stay where they are, as the user's
    text, since what they say is said of that moment. Messages of one role in a row become one, results
    first. Orphaned results, and text that is empty, are left out.

    Args:
        messages: the conversation.
        origin: the model that is asked; only its own thinking is sent back.
        mode: the type of the request's `thinking`; None where it has none.
    """
    system: list[str] = []
    wire: list[dict[str, Any]] = []
    used: dict[str, None] = {}
    ids = CallIds(_ID_PATTERN, unique=True)
    results = 0
    for message in messages:
        role = message.get("role")
        content = message.get("content")
        if role == "tool":
            id = ids.result(message.get("tool_call_id"))
            if id is not None:
                _add(wire, "user", [_result(id, content)], results)
                results += 1
        elif role == "assistant":
            results = 0
            _add(wire, "assistant", _assistant_blocks(message, content, ids, used, origin, mode))
        elif role in ("system", "developer") and not wire:
            system.append(text_of(content))
        else:
            _add(wire, "user", _user_blocks(content) or ([] if wire and wire[-1]["role"] == "user" else [_EMPTY]))
    if not wire or wire[0]["role"] != "user":
        wire.insert(0, {"role": "user", "content": [_BEGINNING]})
    _strip_end(wire)
    _limit_marks(wire)
    return "\n\n".join(text for text in system if text.strip()), wire, list(used)


def _add(wire: list[dict[str, Any]], role: str, blocks: list[Block], at: int | None = None) -> None:
    """Add blocks as a message, or to the last one of the same role; `at`: their place in that one."""
    if not blocks:
        return
    if wire and wire[-1]["role"] == role:
        content = wire[-1]["content"]
        at = len(content) if at is None else at
        content[at:at] = blocks
    else:
        wire.append({"role": role, "content": blocks})


def _strip_end(wire: list[dict[str, Any]]) -> None:
    """The API refuses whitespace at the end of a final assistant message."""
    last = wire[-1]["content"][-1]
    if wire[-1]["role"] == "assistant" and last.get("type") == "text":
        wire[-1]["content"][-1] = {**last, "text": last["text"].rstrip()}


def _limit_marks(wire: list[dict[str, Any]]) -> None:
    """Keep the last marks for the provider's cache, as many as the API takes, and none that it does not know."""
    blocks = [block for message in wire for block in message["content"]]
    results = [block["content"] for block in blocks if block.get("type") == "tool_result" and "content" in block]
    kept: list[Any] = []
    for content in reversed([message["content"] for message in wire] + [one for one in results if type(one) is list]):
        for index in range(len(content) - 1, -1, -1):
            if "cache_control" in content[index] and not _may_mark(content[index]["cache_control"], kept):
                content[index] = {key: value for key, value in content[index].items() if key != "cache_control"}


def _may_mark(mark: object, kept: list[Any]) -> bool:
    """Whether a mark is sent, before those that are `kept`: it is one, and of their lifetime."""
    known = isinstance(mark, dict) and mark.get("type") == "ephemeral" and mark.get("ttl") in (None, "5m", "1h")
    if not known or len(kept) == _MARKS or (kept and kept[0] != mark):
        return False
    kept.append(mark)
    return True


def _user_blocks(content: object) -> list[Block]:
    if type(content) is str:
        return [{"type": "text", "text": content}] if content.strip() else []
    return [block for part in parts_of(content) if (block := _block(part)) is not None]


def _result(id: str, content: object) -> Block:
    if type(content) is str:
        return {"type": "tool_result", "tool_use_id": id, "content": content}
    if content is not None and not isinstance(content, list | tuple):
        content = as_json(content)
    blocks = _user_blocks(content)
    return {"type": "tool_result", "tool_use_id": id, **({"content": blocks} if blocks else {})}


def _block(part: dict[str, Any]) -> Block | None:
    """One part of a message as a block; a part that the API has no form for is named in words."""
    kind = part["type"]
    if kind == "text":
        if not part["text"].strip():
            return None
        return {key: part[key] for key in ("type", "text", "cache_control") if key in part}
    if kind == "image_url":
        image = part.get("image_url")
        return _image(image.get("url") if isinstance(image, dict) else image)
    if kind == "file":
        return for_anthropic(part)
    if kind in ("document", "search_result") and isinstance(part.get("source"), dict | str):  # Anthropic's own
        return part
    return {"type": "text", "text": f"[a part of type {kind!r} is left out]"}


def _image(url: Any) -> Block:
    if problem := image_problem(url):
        return {"type": "text", "text": f"[an image {problem} is left out]"}
    if found := DATA_URL.match(url):
        source = {"type": "base64", "media_type": found.group(1), "data": url[found.end() :]}
    elif url.startswith(("https://", "http://")):
        source = {"type": "url", "url": url}
    else:
        return {"type": "text", "text": "[an image that is neither a data: nor an https: URL is left out]"}
    return {"type": "image", "source": source}


def _assistant_blocks(
    message: Message, content: object, ids: CallIds, used: dict[str, None], origin: Origin, mode: str | None
) -> list[Block]:  # fmt: skip
    calls = message.get("tool_calls") or []
    text = content if type(content) is str else text_of(content)
    sent_ids = ids.begin(calls) if calls else []
    own = _own_blocks(message.get("provider_data"), origin, mode)
    blocks: list[Block] = []
    if own:
        if _is_unchanged(own, text, calls, sent_ids):
            return _unchanged(own, used)
        # a handler has changed the message since: only the thinking, which must come back untouched, is kept
        blocks = [block for block in own if block.get("type") in _THINKING]
    if not text.strip() and not calls:
        return []  # thinking alone is no message
    if text.strip():
        blocks.append({"type": "text", "text": text})
    for call, id in zip(calls, sent_ids, strict=True):
        function = (call.get("function") if isinstance(call, dict) else None) or {}
        name = wire_name(function.get("name"))
        used[name] = None
        blocks.append(
            {"type": "tool_use", "id": id, "name": name, "input": sent_arguments(function.get("arguments"))}
        )  # fmt: skip
    return blocks


def _own_blocks(kept: dict[str, Any] | None, origin: Origin, mode: str | None) -> list[Block]:
    """The blocks of a message as this provider gave them, with its thinking where this model takes that back."""
    blocks = kept.get("content") if kept and origin.shares(kept) else None
    if kept is None or not isinstance(blocks, list) or not all(map(_is_own, blocks)):
        return []
    if origin.gave(kept) and _in_mode(kept, mode):
        return list(blocks)
    return [block for block in blocks if block["type"] not in _THINKING]


def _in_mode(kept: dict[str, Any], mode: str | None) -> bool:
    """Whether thinking may stand in a request: what was asked for stays away where thinking is off.

    "When thinking is disabled, an `assistant` message in the final position cannot contain `thinking`"
    (github.com/tailcallhq/forgecode/issues/1853). Newer models think unasked, and take that back.
    """
    return mode != "disabled" and (mode is not None or not kept.get("mode"))


def may_think(messages: Messages, origin: Origin) -> bool:
    """Whether a request may have `thinking` of type `enabled`: a turn is thought through, or not at all.

    "When `thinking` is enabled, a final `assistant` message must start with a thinking block (preceeding the lastmost
    set of `tool_use` and `tool_result` blocks)"; rounds behind the first need none, if the model wrote them
    (docs.claude.com/en/docs/build-with-claude/extended-thinking, "Toggling thinking modes in conversations").
    """
    answers = open_turn(messages)
    own = all(origin.gave(answer.get("provider_data")) for answer in answers)
    return own and (not answers or _is_thought(answers[-1], origin))


def is_thought_through(messages: Messages, origin: Origin) -> bool:
    """Whether each call of the conversation is behind this model's own thinking.

    DeepSeek asks for that by Anthropic's API: "The `content[].thinking` in the thinking mode must be passed back to the
    API." (github.com/decolua/9router/issues/2397)
    """
    return all(_is_thought(message, origin) for message in messages if message.get("tool_calls"))


def _is_thought(answer: Message, origin: Origin) -> bool:
    """Whether an answer begins with this model's own thinking."""
    blocks = _own_blocks(answer.get("provider_data"), origin, "enabled")
    return bool(blocks) and blocks[0]["type"] in _THINKING


def _is_own(block: object) -> bool:
    """Whether a block can be one that the API has given; a handler may have left anything."""
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        return False
    return all(isinstance(block.get(key), kind) for key, kind in _FIELDS.get(block["type"], {}).items())


def _unchanged(own: list[Block], used: dict[str, None]) -> list[Block]:
    """The provider's own blocks without empty text; [] where only thinking is left."""
    used.update((wire_name(block.get("name")), None) for block in own if block.get("type") == "tool_use")
    blocks = [block for block in own if block.get("type") != "text" or block["text"].strip()]
    return blocks if any(block.get("type") not in _THINKING for block in blocks) else []


def _is_unchanged(blocks: list[Block], text: str, calls: list[Any], sent_ids: list[str]) -> bool:
    """Whether the message still has the text and calls of the provider's blocks."""
    said = "".join(block.get("text") or "" for block in blocks if block.get("type") == "text")
    uses = [
        (block.get("id"), block.get("name"), block.get("input")) for block in blocks if block.get("type") == "tool_use"
    ]
    if said != text or len(uses) != len(calls):
        return False
    return all(
        isinstance(call, dict)
        and call.get("id") == id == sent_id
        and (call.get("function") or {}).get("name") == name == wire_name(name)
        and sent_arguments((call.get("function") or {}).get("arguments")) == input
        for call, sent_id, (id, name, input) in zip(calls, sent_ids, uses, strict=True)
    )
