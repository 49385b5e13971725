"""A conversation as OpenAI's chat completions and the endpoints that speak them take it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast

from connectagent.data import Message
from connectagent.models.chat_modes import ChatMode, chat_mode, signed
from connectagent.models.content import CallIds, as_json, image_problem, parts_of, sent_arguments, text_of, wire_name
from connectagent.models.files import for_chat
from connectagent.models.openai_stream import own_content
from connectagent.models.origin import Origin
from connectagent.models.sdk import Messages

_OURS = {"role", "content", "tool_calls", "tool_call_id", "name"}  # which the message itself tells
_DETAILS = ("auto", "low", "high")
_ROLES = {"user", "system", "developer"}
_USER_PARTS = {"text", "image_url", "input_audio", "file", "video_url", "document_url"}
_APART = ("image_url", "file")  # the parts of a result that stand in a user message
_NOTES = {"image_url": "(The image is in the next user message.)", "file": "(The file is in the next user message.)"}


def to_wire(messages: Messages, origin: Origin, options: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """The conversation as OpenAI-compatible endpoints take it.

    A message that needs no change is passed on as it is: that is nearly every one, and checking it must
    cost about a microsecond. Orphaned results and messages that say nothing are left out.

    Args:
        messages: the conversation.
        origin: the model that is asked; only what it gave itself is sent back.
        options: the parameters of the request.
    """
    mode, provider = chat_mode(origin, options or {}), origin.provider
    ids = CallIds(mode.ids, unique=False)
    wire: list[dict[str, Any]] = []
    images: list[dict[str, Any]] = []
    for message in messages:
        role = message.get("role")
        content = message.get("content")
        if role == "tool":
            id = ids.result(message.get("tool_call_id"))
            if id is not None:
                wire.append(_tool_message(message, content, id, images, provider))
            continue
        if images:  # all images of a round in one message, behind its last result
            wire.append({"role": "user", "content": images})
            images = []
        if role == "assistant":
            sent = _assistant_message(message, content, ids, origin, mode)
            if sent is not None:
                wire.append(sent)
        elif type(content) is str and len(message) == 2 and role in _ROLES:
            wire.append(message)  # type: ignore[arg-type]
        else:
            wire.append(_other_message(role, content, message.get("name"), provider))
    if images:
        wire.append({"role": "user", "content": images})
    return _never_user_after_tool(wire) if mode.bridged else wire


def _never_user_after_tool(wire: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mistral's order; else it answers 400 "Unexpected role 'user' after role 'tool'"."""
    fixed: list[dict[str, Any]] = []
    for message in wire:
        if fixed and fixed[-1]["role"] == "tool" and message["role"] != "assistant" and message["role"] != "tool":
            fixed.append({"role": "assistant", "content": "OK."})
        fixed.append(message)
    return fixed


def _other_message(role: object, content: object, name: object, provider: str) -> dict[str, Any]:
    role = role if role in _ROLES else "user"
    if isinstance(content, str):
        sent: Any = content
    elif role == "user":
        sent = [_clean(part, provider) for part in parts_of(content) if part["type"] in _USER_PARTS] or ""
    else:
        sent = text_of(content)
    return {"role": role, "content": sent, **({"name": wire_name(name)} if name else {})}


def _clean(part: dict[str, Any], provider: str) -> dict[str, Any]:
    if part["type"] == "image_url":
        return _image(part)
    if part["type"] == "file":
        return for_chat(part, provider)
    if part["type"] == "text":
        return {"type": "text", "text": part["text"]} if len(part) > 2 else part
    if isinstance(part.get(part["type"]), dict | str):
        return part
    return {"type": "text", "text": f"[a part of type {part['type']!r} is left out]"}


def _image(part: dict[str, Any]) -> dict[str, Any]:
    """An image as it can be sent; one that no endpoint takes is named in words."""
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, dict) else image
    if problem := image_problem(url):
        return {"type": "text", "text": f"[an image {problem} is left out]"}
    detail = image.get("detail") if isinstance(image, dict) else None
    return {"type": "image_url", "image_url": {"url": url, **({"detail": detail} if detail in _DETAILS else {})}}


def _tool_message(
    message: Message, content: object, id: str, images: list[dict[str, Any]], provider: str
) -> dict[str, Any]:  # fmt: skip
    """A result: its text. Its images and files, which this role may not hold, are added to `images`."""
    if type(content) is str and len(message) == 3 and message.get("tool_call_id") == id:
        return cast("dict[str, Any]", message)
    parts = parts_of(content) if isinstance(content, list | tuple) else []
    found = [part for part in parts if part["type"] in _APART]
    images.extend(_clean(part, provider) for part in found)
    if content is None or isinstance(content, str):
        text = content or ""
    else:
        text = _text_without_images(parts) if parts else as_json(content)
    return {"role": "tool", "tool_call_id": id, "content": text or (_NOTES[found[0]["type"]] if found else "")}


def _text_without_images(parts: list[dict[str, Any]]) -> str:
    """The parts of a result that are no images or files, one a line; what is no text as JSON."""
    rest = (part for part in parts if part["type"] not in _APART)
    return "\n".join(part["text"] if part["type"] == "text" else as_json(part) for part in rest)


def _assistant_message(
    message: Message, content: object, ids: CallIds, origin: Origin, mode: ChatMode
) -> dict[str, Any] | None:  # fmt: skip
    calls = message.get("tool_calls")
    kept = message.get("provider_data")
    own = kept if origin.gave(kept) else {}
    text = text_of(content)
    if not calls and not text:
        return None
    is_plain = len(message) == 2 and text is content
    if is_plain and not mode.reasons:
        return cast("dict[str, Any]", message)
    sent: dict[str, Any] = {"role": "assistant", "content": text or None}
    if calls:
        sent["tool_calls"] = _calls(calls, ids, own, kept if origin.shares(kept) else {})
    if own:
        sent.update(_extra_fields(own.get("message")))
        sent["content"] = own_content(own, text) or sent["content"]
    if mode.reasons:
        sent.setdefault("reasoning_content", "")
    return signed(sent, mode) if calls and mode.signs else sent


def _calls(calls: list[Any], ids: CallIds, own: dict[str, Any], shared: dict[str, Any]) -> list[dict[str, Any]]:
    """The calls of a message.

    Args:
        calls: as the history has them.
        ids: those of the request.
        own: what this model gave with the message.
        shared: what a model of this server gave: the form of calls is nobody's secret.
    """
    extras = own.get("extra_content")
    customs = shared.get("custom")
    return [_call(call, id, extras, customs) for call, id in zip(calls, ids.begin(calls), strict=True)]


def _extra_fields(own: object) -> dict[str, Any]:
    """What a provider needs back beside what every message has; a handler may have left anything."""
    return {key: own[key] for key in own if key not in _OURS} if isinstance(own, dict) else {}


def _fits(function: dict[str, Any]) -> bool:
    """Whether a call's function can be sent as it is: nearly all can, and the history is sent with each request."""
    name, arguments = function.get("name"), function.get("arguments")
    if len(function) != 2 or type(name) is not str or type(arguments) is not str or len(arguments) > 1000:
        return False
    return _known_to_fit(name, arguments)


@lru_cache(maxsize=4096)
def _known_to_fit(name: str, arguments: str) -> bool:
    return wire_name(name) == name and (arguments == "{}" or bool(sent_arguments(arguments)))


def _call(given: object, id: str, extras: Mapping[str, Any] | None, customs: object) -> dict[str, Any]:
    """A call of the history; its arguments are always a JSON object, since some servers refuse anything else."""
    call: dict[str, Any] = given if isinstance(given, dict) else {}
    function = call.get("function") or {}
    if isinstance(customs, list | tuple) and call.get("id") in customs:
        return {"id": id, "type": "custom", "custom": _custom(function)}
    if not extras and len(call) == 3 and call.get("id") == id and call.get("type") == "function" and _fits(function):
        return call
    raw = function.get("arguments")
    # sent as it was: a byte that differs is a miss in the provider's cache
    arguments = raw if type(raw) is str and (raw == "{}" or sent_arguments(raw)) else as_json(sent_arguments(raw))
    sent = {"id": id, "type": "function", "function": {"name": wire_name(function.get("name")), "arguments": arguments}}
    if isinstance(extras, dict) and call.get("id") in extras:
        sent["extra_content"] = extras[call["id"]]
    return sent


def _custom(function: dict[str, Any]) -> dict[str, str]:
    text = sent_arguments(function.get("arguments")).get("input") or ""
    return {"name": wire_name(function.get("name")), "input": text if isinstance(text, str) else as_json(text)}
