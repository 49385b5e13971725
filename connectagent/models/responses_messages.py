"""A conversation in OpenAI's chat format as the Responses API takes it: a list of items."""

from __future__ import annotations

import re
from typing import Any

from connectagent.data import Message
from connectagent.models.content import (
    CallIds,
    as_json,
    image_problem,
    parts_of,
    sent_arguments,
    text_of,
    wire_name,
)
from connectagent.models.files import for_responses
from connectagent.models.origin import Origin
from connectagent.models.sdk import Messages

Item = dict[str, Any]

CALLS = ("function_call", "custom_tool_call")
_ID_PATTERN = re.compile(r".{1,64}", re.DOTALL)
_ROLES = {"user", "system", "developer"}
_DETAILS = ("auto", "low", "high")
_FILES = ("file_id", "file_url", "file_data")
_FIELDS: dict[str, dict[str, type]] = {  # of items that an answer is made of, and of the parts of its messages
    "message": {"content": list},
    "function_call": {"call_id": str, "name": str, "arguments": str},
    "custom_tool_call": {"call_id": str, "name": str, "input": str},
    "reasoning": {"summary": list},
    "output_text": {"text": str},
    "refusal": {"refusal": str},
}
_NO_PARAMETERS = {"type": "object", "properties": {}}
_NEVER_OWN = ("function_call_output", "custom_tool_call_output")  # which answer calls


def tools_to_wire(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tool schemas of chat completions as this API takes them; what is in its own form already is passed on.

    `strict` is on here where it is not named, and refuses most schemas.
    """
    return [
        {"parameters": _NO_PARAMETERS, "strict": False, **tool["function"], "type": "function"}
        if isinstance(tool.get("function"), dict)
        else tool
        for tool in tools
    ]


def tool_choice(choice: object) -> Any:
    """The `tool_choice` of chat completions as this API takes it, so that one option works with both."""
    if isinstance(choice, dict) and isinstance(choice.get("function"), dict):
        return {"type": "function", "name": choice["function"].get("name")}
    return choice


def to_wire(messages: Messages, origin: Origin, stored: bool) -> list[Item]:
    """The conversation as items. Orphaned results and messages that say nothing are left out.

    Args:
        messages: the conversation.
        origin: the model that is asked; only its own items are sent back, with their reasoning.
        stored: whether the provider has stored its answers, so that it knows its items by their ids.
    """
    ids = CallIds(_ID_PATTERN, unique=True)
    customs: set[str] = set()
    wire: list[Item] = []
    for message in messages:
        role, content = message.get("role"), message.get("content")
        if role == "tool":
            id = ids.result(message.get("tool_call_id"))
            if id is not None:
                kind = "custom_tool_call_output" if id in customs else "function_call_output"
                wire.append({"type": kind, "call_id": id, "output": _output(content)})
        elif role == "assistant":
            items = _assistant_items(message, content, ids, origin, stored)
            customs.update(item["call_id"] for item in items if item.get("type") == "custom_tool_call")
            wire += items
        else:
            wire.append({"role": role if role in _ROLES else "user", "content": _said(content)})
    return wire


def _said(content: object) -> str | list[Item]:
    return content if isinstance(content, str) else [_part(part) for part in parts_of(content)] or ""


def _output(content: object) -> str | list[Item]:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list | tuple):
        return as_json(content)
    parts = parts_of(content)
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return [_part(part) for part in parts]


def _part(part: dict[str, Any]) -> Item:
    """One part of a message in this API's form; a part that it has no form for is named in words."""
    kind = part["type"]
    if kind == "text":
        return {"type": "input_text", "text": part["text"]}
    if kind == "image_url":
        return _image(part.get("image_url"))
    if kind == "file":
        return for_responses(part)
    if _is_input(part):  # its own
        return part
    return {"type": "input_text", "text": f"[a part of type {kind!r} is left out]"}


def _image(image: object) -> Item:
    """An image as it can be sent; one that the API does not take is named in words."""
    given = image if isinstance(image, dict) else {"url": image}
    if problem := image_problem(given.get("url")):
        return {"type": "input_text", "text": f"[an image {problem} is left out]"}
    detail = given.get("detail")
    return {"type": "input_image", "image_url": given["url"], "detail": detail if detail in _DETAILS else "auto"}


def _is_input(part: dict[str, Any]) -> bool:
    """Whether a part is one of this API's own that it takes."""
    kind = part["type"]
    if kind == "input_image" and "image_url" in part:
        return image_problem(part["image_url"]) is None
    if kind in ("input_image", "input_file"):
        return any(isinstance(part.get(key), str) and part[key] for key in _FILES)
    return kind == "input_text" and isinstance(part.get("text"), str)


def _assistant_items(message: Message, content: object, ids: CallIds, origin: Origin, stored: bool) -> list[Item]:
    calls = message.get("tool_calls") or []
    text = content if type(content) is str else text_of(content)
    sent_ids = ids.begin(calls) if calls else []
    kept = message.get("provider_data")
    if origin.gave(kept):
        own = kept.get("items")
        if isinstance(own, list) and all(map(_is_own, own)) and _says_the_same(own, text, calls, sent_ids):
            return _unchanged(own, stored)
    items: list[Item] = [{"role": "assistant", "content": text}] if text else []
    return items + [_call(call, id) for call, id in zip(calls, sent_ids, strict=True)]


def _is_own(item: Any) -> bool:
    """Whether an item can be one that the API has answered with; a handler may have left anything."""
    if not _has_fields(item) or item["type"] in _NEVER_OWN:
        return False
    if item["type"] in CALLS:
        return wire_name(item["name"]) == str(item["name"])
    if item["type"] == "message":
        return item.get("role", "assistant") == "assistant" and all(map(_is_said, item["content"]))
    return True


def _is_said(part: Any) -> bool:
    return _has_fields(part) and not part["type"].startswith("input_")


def _has_fields(value: object) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        return False
    return all(isinstance(value.get(key), kind) for key, kind in _FIELDS.get(value["type"], {}).items())


def _call(call: object, id: str) -> Item:
    function = (call.get("function") if isinstance(call, dict) else None) or {}
    raw = function.get("arguments")
    # sent as it was: a byte that differs is a miss in the provider's cache
    arguments = raw if type(raw) is str and sent_arguments(raw) else as_json(sent_arguments(raw))
    return {"type": "function_call", "call_id": id, "name": wire_name(function.get("name")), "arguments": arguments}


def _unchanged(own: list[Item], stored: bool) -> list[Item]:
    """The provider's own items, without what it would refuse.

    Reasoning that nobody can read any more, neither encrypted nor stored, is one; reasoning with nothing behind
    it another.
    """
    items = [
        {key: value for key, value in item.items() if value is not None}
        for item in own
        if stored or item.get("type") != "reasoning" or item.get("encrypted_content")
    ]
    while items and items[-1].get("type") == "reasoning":
        items.pop()
    return items


def _says_the_same(items: list[Item], text: str, calls: list[Any], sent_ids: list[str]) -> bool:
    """Whether the message still says what the provider's items say."""
    asked = [item for item in items if item.get("type") in CALLS]
    if len(asked) != len(calls) or text != text_of_items(items) + ("" if calls else refusal_of(items)):
        return False
    for call, sent_id, item in zip(calls, sent_ids, asked, strict=True):
        function = (call.get("function") if isinstance(call, dict) else None) or {}
        said = {"input": item.get("input") or ""} if item["type"] == CALLS[1] else sent_arguments(item.get("arguments"))
        if (
            call.get("id") != sent_id
            or item.get("call_id") != sent_id
            or function.get("name") != item.get("name")
            or sent_arguments(function.get("arguments")) != said
        ):
            return False
    return True


def text_of_items(items: list[Item]) -> str:
    """The text of an answer."""
    return _joined(items, "output_text", "text")


def refusal_of(items: list[Item]) -> str:
    """The words with which the model refused to answer; "" where it did not."""
    return _joined(items, "refusal", "refusal")


def _joined(items: list[Item], kind: str, key: str) -> str:
    contents = [item.get("content") for item in items if item.get("type") == "message"]
    parts = [part for content in contents if isinstance(content, list) for part in content if isinstance(part, dict)]
    said = [part.get(key) for part in parts if part.get("type") == kind]
    return "".join(text for text in said if isinstance(text, str))


def is_plain(item: Item) -> bool:
    """Whether an item says nothing that the message itself does not, so that it need not be kept."""
    return item["type"] == "function_call" or (item["type"] == "message" and not item.get("phase"))
