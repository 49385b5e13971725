"""A checker of requests: the rules of OpenAI's chat completions and Responses API, and of Anthropic's messages.

Written from the providers' own error texts, not from the package's code that keeps to them.
"""

from __future__ import annotations

import json
import re
from typing import Any

_IMAGE = re.compile(r"https?://[^/]|data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/]", re.IGNORECASE)
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ANTHROPIC_ID = re.compile(r"[a-zA-Z0-9_-]+")
_MISTRAL_ID = re.compile(r"[a-zA-Z0-9]{9}")
ASKED = {
    "openai": ("openai", "api.openai.com", "gpt-4o"),
    "mistral": ("mistral", "api.mistral.ai", "mistral-large-latest"),
    "openai-responses": ("openai-responses", "api.openai.com", "gpt-5"),
    "anthropic": ("anthropic", "api.anthropic.com", "claude-sonnet-4-5"),
}
"""For each provider: its name, its address and the model for which a conversation is checked."""


def conversation_problems(messages: Any) -> list[str]:
    """Everything that OpenAI, by either API, or Anthropic would refuse in a request for these messages, or [].

    Args:
        messages: in OpenAI's chat format, as `agent.current_session["messages"]` or `ScriptedLLM.requests` have them.
    """
    from connectagent.models.anthropic_messages import to_wire as to_anthropic
    from connectagent.models.openai_messages import to_wire as to_openai
    from connectagent.models.origin import Origin
    from connectagent.models.responses_messages import to_wire as to_responses

    found = [f"session: {text}" for text in order_problems(messages)]
    for provider in ("openai", "mistral"):
        found += [f"{provider}: {text}" for text in _openai(to_openai(messages, Origin(*ASKED[provider])), provider)]
    items = to_responses(messages, Origin(*ASKED["openai-responses"]), False)
    found += [f"openai-responses: {text}" for text in _responses(items)]
    system, wire, _ = to_anthropic(messages, Origin(*ASKED["anthropic"]))
    return found + [f"anthropic: {text}" for text in _anthropic(system, wire)]


def order_problems(messages: object) -> list[str]:
    """What the two wires share: each call has one result directly behind its round, and nothing else is there."""
    if not isinstance(messages, list):
        return [f"messages are a {type(messages).__name__}"]
    found: list[str] = []
    waiting: list[str] = []
    for index, message in enumerate(messages):
        role = message.get("role")
        if role == "tool":
            if message.get("tool_call_id") not in waiting:
                found.append(f"{index}: a result without its call: {message!r:.200}")
            else:
                waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            found.append(f"{index}: {role} comes before the results of {waiting}")
        waiting = []
        if "tool_calls" in message:
            calls = message["tool_calls"]
            if role != "assistant" or not isinstance(calls, list) or not calls:
                found.append(f"{index}: tool_calls of {role}: {calls!r:.100}")
            else:
                waiting = [call["id"] for call in calls]
                if len(set(waiting)) < len(waiting):
                    found.append(f"{index}: two calls with one id: {waiting}")
    return found + ([f"the end comes before the results of {waiting}"] if waiting else [])


def _body(body: object) -> list[str]:
    """A body that cannot be encoded never leaves the machine."""
    from connectagent.models.sdk import encoded

    try:
        json.loads(encoded({"messages": body}).decode("utf-8"))
    except Exception as error:
        return [f"cannot be encoded: {error!r:.200}"]
    return []


# -- OpenAI --------------------------------------------------------------------------------------


def _openai(wire: list[dict[str, Any]], provider: str) -> list[str]:
    found = _body(wire) + order_problems(wire)
    if not wire:
        found.append("[] is too short: 'messages'")
    for index, message in enumerate(wire):
        found += [f"{index}: {text} in {message!r:.300}" for text in _openai_message(message)]
        for call in message.get("tool_calls") or ():
            found += [f"{index}: {text} in {call!r:.300}" for text in _openai_call(call, provider)]
        if provider == "mistral" and index and message["role"] == "user" and wire[index - 1]["role"] == "tool":
            found.append(f"{index}: unexpected role 'user' after role 'tool'")
    return found


def _openai_message(message: dict[str, Any]) -> list[str]:
    found = []
    role, content = message.get("role"), message.get("content")
    if unknown := set(message) - {"role", "content", "name", "tool_calls", "tool_call_id"}:
        found.append(f"unknown keys {sorted(unknown)}")
    if role not in ("system", "developer", "user", "assistant", "tool"):
        found.append(f"role {role!r}")
    if content is None:
        if role != "assistant" or not message.get("tool_calls"):
            found.append("content is null")
    elif isinstance(content, list):
        found += _openai_parts(content, role)
    elif not isinstance(content, str):
        found.append(f"content is a {type(content).__name__}")
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        found.append("no tool_call_id")
    return found


def _openai_parts(content: list[Any], role: object) -> list[str]:
    kinds = ("text", "image_url", "input_audio", "file") if role == "user" else ("text",)
    found = [] if content else ["content is an empty list"]
    for part in content:
        if not isinstance(part, dict) or part.get("type") not in kinds:
            found.append(f"part {part!r:.100}")
        elif part["type"] == "text" and not isinstance(part.get("text"), str):
            found.append(f"a text part without text {part!r:.100}")
        elif part["type"] == "image_url" and not _IMAGE.match(_url_of(part)):
            found.append(f"an image without a URL of PNG, JPEG, GIF or WebP {part!r:.100}")
        elif not isinstance(part.get(part["type"]), dict | str):
            found.append(f"a part without what it is about {part!r:.100}")
    return found


def _url_of(part: dict[str, Any]) -> str:
    image = part.get("image_url")
    return str(image.get("url")) if isinstance(image, dict) else ""


def _openai_call(call: object, provider: str) -> list[str]:
    if not isinstance(call, dict) or call.get("type") != "function" or not isinstance(call.get("function"), dict):
        return ["a call that is not a function's"]
    found = []
    id, function = call.get("id"), call["function"]
    if not isinstance(id, str) or not 1 <= len(id) <= 40:
        found.append(f"id {id!r}")
    elif provider == "mistral" and not _MISTRAL_ID.fullmatch(id):
        found.append(f"id {id!r}: Mistral takes nine alphanumerics")
    if not isinstance(function.get("name"), str) or not _NAME.fullmatch(function["name"]):
        found.append(f"name {function.get('name')!r}")
    if not isinstance(function.get("arguments"), str):
        return [*found, "arguments are not text"]
    try:
        if not isinstance(json.loads(function["arguments"], parse_constant=_refused), dict):
            found.append("arguments are not an object")
    except ValueError:
        found.append("arguments are not JSON")
    return found


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


# -- Responses -----------------------------------------------------------------------------------

_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
_OUTPUTS = {"function_call_output": "function_call", "custom_tool_call_output": "custom_tool_call"}


def _responses(wire: list[dict[str, Any]]) -> list[str]:
    found = _body(wire) + ([] if wire else ["[] is too short: 'input'"])
    waiting: dict[Any, str] = {}
    taken: set[Any] = set()
    for index, item in enumerate(wire):
        kind, id = item.get("type", "message"), item.get("call_id")
        if kind in _OUTPUTS:
            if waiting.pop(id, None) != _OUTPUTS[kind]:
                found.append(f"{index}: no tool call found for {kind} with call_id {id!r}")
            said = item.get("output")
            found += [f"{index}: {text}" for text in ([] if isinstance(said, str) else _input_parts(said))]
        elif kind in _CALLS:
            found += [f"{index}: {text} in {item!r:.300}" for text in _responses_call(item, _CALLS[kind], taken)]
            waiting[id] = kind
        elif kind == "message":
            found += [f"{index}: {text} in {item!r:.300}" for text in _responses_message(item)]
        elif kind == "reasoning" and (index + 1 == len(wire) or wire[index + 1].get("role") == "user"):
            found.append(f"{index}: reasoning was provided without its required following item")
    return found + ([f"no tool output found for {list(waiting)}"] if waiting else [])


def _responses_call(item: dict[str, Any], given: str, taken: set[Any]) -> list[str]:
    found = []
    id, name = item.get("call_id"), item.get("name")
    if not isinstance(id, str) or not 1 <= len(id) <= 64 or id in taken:
        found.append(f"call_id {id!r}")
    taken.add(id)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        found.append(f"name {name!r}")
    return found if isinstance(item.get(given), str) else [*found, f"{given} are not text"]


def _responses_message(item: dict[str, Any]) -> list[str]:
    role, content = item.get("role", "assistant" if item.get("type") else None), item.get("content")
    if role not in ("user", "system", "developer", "assistant"):
        return [f"role {role!r}"]
    if isinstance(content, str):
        return []
    if role != "assistant":
        return _input_parts(content)
    said = {"output_text": "text", "refusal": "refusal"}
    parts = content if isinstance(content, list) else [content]
    texts = [part.get(said.get(str(part.get("type")), "")) if isinstance(part, dict) else None for part in parts]
    return [] if all(isinstance(text, str) for text in texts) else ["content that no answer has"]


def _input_parts(content: object) -> list[str]:
    if not isinstance(content, list) or not content:
        return [f"content is {content!r:.100}"]
    return [f"part {part!r:.100}" for part in content if not isinstance(part, dict) or not _is_input_part(part)]


def _is_input_part(part: dict[str, Any]) -> bool:
    kind, texts = part.get("type"), {key: part[key] for key in part if isinstance(part[key], str) and part[key]}
    if kind == "input_text":
        return isinstance(part.get("text"), str)
    if kind == "input_image" and part.get("detail", "auto") in ("auto", "low", "high"):
        return _IMAGE.match(texts.get("image_url", "")) is not None or "file_id" in texts
    return kind == "input_file" and bool(texts.keys() & {"file_id", "file_url", "file_data"})


# -- Anthropic -----------------------------------------------------------------------------------


def _anthropic(system: str, wire: list[dict[str, Any]]) -> list[str]:
    found = _body([system, wire])
    if not wire or wire[0].get("role") != "user":
        found.append("the first message must be the user's")
    seen: set[str] = set()
    waiting: list[str] = []
    before = None
    for index, message in enumerate(wire):
        role, blocks = message.get("role"), message.get("content")
        if role not in ("user", "assistant") or role == before or set(message) != {"role", "content"}:
            found.append(f"{index}: role {role!r} after {before!r}, keys {sorted(message)}")
        before = role
        if not isinstance(blocks, list) or not blocks:
            found.append(f"{index}: messages must have non-empty content: {blocks!r:.100}")
            continue
        found += [f"{index}: {text}" for text in _anthropic_results(blocks, waiting)]
        waiting = [str(block.get("id")) for block in blocks if block.get("type") == "tool_use"]
        for block in blocks:
            found += [f"{index}: {text} in {block!r:.300}" for text in _block(block, role, seen)]
    return found + _cache_marks(wire) + _anthropic_end(wire, waiting)


def _anthropic_results(blocks: list[dict[str, Any]], waiting: list[str]) -> list[str]:
    """What is wrong about the results in a message, where these calls wait for theirs."""
    found = []
    results = [block.get("tool_use_id") for block in blocks if block.get("type") == "tool_result"]
    if sorted(map(str, results)) != sorted(waiting):
        found.append(f"tool_use {waiting} must be answered directly behind, was by {results}")
    if any(block.get("type") != "tool_result" for block in blocks[: len(results)]):
        found.append(f"tool results come before everything else: {[block.get('type') for block in blocks]}")
    return found


def _cache_marks(wire: list[dict[str, Any]]) -> list[str]:
    marks = sum("cache_control" in block for message in wire for block in message.get("content") or ())
    return [f"a maximum of 4 blocks with cache_control may be provided, found {marks}"] if marks > 4 else []


def _anthropic_end(wire: list[dict[str, Any]], waiting: list[str]) -> list[str]:
    found = [f"the end comes before the results of {waiting}"] if waiting else []
    if wire and wire[-1].get("role") == "assistant":
        text = str(wire[-1]["content"][-1].get("text", ""))
        if text.endswith((" ", "\n", "\t")):
            found.append("final assistant content cannot end with trailing whitespace")
    return found


def _block(block: dict[str, Any], role: object, seen: set[str]) -> list[str]:
    kind = block.get("type")
    if kind == "text":
        text = block.get("text")
        return [] if isinstance(text, str) and text.strip() else ["text content blocks must be non-empty"]
    if kind == "image" and role == "user":
        return [] if isinstance(block.get("source"), dict) else ["an image without a source"]
    if kind == "tool_use" and role == "assistant":
        return _tool_use(block, seen)
    if kind == "tool_result" and role == "user":
        return _tool_result(block, seen)
    return [f"a block of type {kind!r} in a message of {role!r}"]


def _tool_result(block: dict[str, Any], seen: set[str]) -> list[str]:
    content = block.get("content", "")
    if isinstance(content, str):
        return []
    if not isinstance(content, list) or not content:
        return ["the content of a result is text or blocks"]
    return [text for inner in content for text in _block(inner, "user", seen)]


def _tool_use(block: dict[str, Any], seen: set[str]) -> list[str]:
    found = []
    id = block.get("id")
    if not isinstance(id, str) or not _ANTHROPIC_ID.fullmatch(id):
        found.append(f"id {id!r}")
    if id in seen:
        found.append("tool_use ids must be unique")
    seen.add(str(id))
    if not isinstance(block.get("input"), dict):
        found.append("input is not an object")
    if not isinstance(block.get("name"), str) or not _NAME.fullmatch(block["name"]):
        found.append(f"name {block.get('name')!r}")
    return found
