"""From messages in OpenAI's chat format to ADK's contents, and back.

What comes back is read by its fields, not by its class: stand-ins, Google's own types and dicts are alike.
"""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from connectagent import LLMResponse, ToolCall
from connectagent_adk.models import Kinds

Message = dict[str, Any]
_SYSTEM = ("system", "developer")


def get(thing: Any, name: str) -> Any:
    """A field of an object or of a dict, which may spell it `likeThis`."""
    if isinstance(thing, dict):
        head, *rest = name.split("_")
        return thing.get(name, thing.get(head + "".join(word.title() for word in rest)))
    return getattr(thing, name, None)


def parts_of(content: Any) -> list[Any]:
    """The parts of a content, a text, a part, or a list of them."""
    if content is None:
        return []
    if isinstance(content, str):
        return [{"text": content}]
    if isinstance(content, list | tuple):
        return [part for item in content for part in parts_of(item)]
    parts = get(content, "parts")
    return [content] if parts is None and get(content, "role") is None else parts_of(parts)


def text_in(content: Any) -> str:
    """The text of a content, without the model's thoughts."""
    texts = (get(part, "text") for part in parts_of(content) if not get(part, "thought"))
    return "".join(text for text in texts if isinstance(text, str))


def is_content(value: Any) -> bool:
    """Whether something can be read as a content."""
    return isinstance(value, str) or any(_has(value, name) for name in ("parts", "text"))


def content_of(value: Any) -> Any:
    """A content itself, or the one of a response."""
    return value if is_content(value) else get(value, "content")


def is_of_user(value: Any) -> bool:
    """Whether a content, or that of a response, has the user's role; one that calls tools is always the model's."""
    content = content_of(value)
    if content is None or isinstance(content, str) or get(content, "role") != "user":
        return False
    return not any(get(part, "function_call") is not None for part in parts_of(content))


def is_response(value: Any) -> bool:
    """Whether something can be read as a model's answer."""
    return is_content(value) or any(_has(value, name) for name in ("content", "error_code", "error_message"))


def _has(value: Any, name: str) -> bool:
    return get(value, name) is not None if isinstance(value, dict) else hasattr(value, name)


# -- to ADK --------------------------------------------------------------------------------------


def system_text(messages: list[Message]) -> tuple[str, int]:
    """The text of the system messages at the beginning, and how many they are."""
    count = 0
    while count < len(messages) and messages[count]["role"] in _SYSTEM:
        count += 1
    return "\n\n".join(plain_text(message["content"]) for message in messages[:count]), count


def contents_of(
    messages: list[Message], types: Any, texts: frozenset[str] = frozenset()
) -> list[tuple[Any, list[Message]]]:
    """Contents, each with the messages that it stands for; the results of one round are one content.

    Args:
        texts: the names of the tools that return a str.
    """
    pairs: list[tuple[Any, list[Message]]] = []
    names: dict[str, str] = {}
    for message in messages:
        for call in message.get("tool_calls") or ():
            names[call["id"]] = call["function"]["name"]
        if message["role"] != "tool":
            role = "model" if message["role"] == "assistant" else "user"
            pairs.append((types.Content(role=role, parts=_parts(message, types)), [message]))
            continue
        id = message["tool_call_id"]
        name = names.get(id, "")
        response = result_dict(plain_text(message["content"]), parse_all=name not in texts)
        part = types.Part(function_response=types.FunctionResponse(id=id, name=name, response=response))
        if pairs and pairs[-1][1][-1]["role"] == "tool":
            pairs[-1][0].parts.append(part)
            pairs[-1][1].append(message)
        else:
            pairs.append((types.Content(role="user", parts=[part]), [message]))
    return pairs


def _parts(message: Message, types: Any) -> list[Any]:
    content = message.get("content")
    parts = [_part(part, types) for part in content] if isinstance(content, list) else []
    if isinstance(content, str) and (content or not message.get("tool_calls")):
        parts.append(types.Part(text=content))
    for call in message.get("tool_calls") or ():
        function = call["function"]
        args = result_dict(function["arguments"])
        parts.append(types.Part(function_call=types.FunctionCall(id=call["id"], name=function["name"], args=args)))
    return parts


def _part(part: dict[str, Any], types: Any) -> Any:
    if part.get("type") != "image_url":
        return types.Part(text=part.get("text") or f"[{part.get('type')}]")
    url = part["image_url"]["url"]
    head, comma, data = url.partition(";base64,")
    if not comma or not head.startswith("data:"):
        return types.Part(file_data=types.FileData(file_uri=url))
    return types.Part(inline_data=types.Blob(data=base64.b64decode(data), mime_type=head[5:]))


def plain_text(content: Any) -> str:
    """The text in a message's content, an image as `[image]`: as connectagent has it in `user_prompt`."""
    if isinstance(content, list):
        return "\n".join(str(part.get("text", f"[{str(part.get('type')).removesuffix('_url')}]")) for part in content)
    return content or ""


def result_dict(text: str, *, parse_all: bool = False) -> dict[str, Any]:
    """A tool's result as the dict that ADK has for it: of a JSON object the object, else `{"result": ...}`.

    Args:
        text: the result as the model reads it.
        parse_all: whether other JSON than an object is parsed too; not so for a tool that returns a str.
    """
    if text == "None" and parse_all:
        return {"result": None}  # what a tool that returns nothing gives
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {"result": text}
    if isinstance(value, dict):
        return value
    return {"result": value if parse_all else text}


def llm_response(response: LLMResponse, kinds: Kinds) -> Any:
    """A model's answer as ADK has it."""
    types, usage = kinds.types, response.usage
    parts = [types.Part(text=response.content)] if response.content else []
    for call in response.tool_calls or ():
        args = copy.deepcopy(call.arguments)  # so that an edit shows by comparison
        parts.append(types.Part(function_call=types.FunctionCall(id=call.id, name=call.name, args=args)))
    counts = usage and types.GenerateContentResponseUsageMetadata(
        prompt_token_count=usage.input_tokens,
        candidates_token_count=usage.output_tokens,
        cached_content_token_count=usage.cached_tokens,
        total_token_count=usage.input_tokens + usage.output_tokens,
    )
    return kinds.response(
        content=types.Content(role="model", parts=parts),
        usage_metadata=counts,
        model_version=response.model,
        finish_reason=types.FinishReason[_finish_reason(response, types)],
    )


def _finish_reason(response: LLMResponse, types: Any) -> str:
    """Why a model stopped, in ADK's word: `STOP` for an answer that is known to be whole, and for no other one."""
    if response.whole:
        return "STOP"
    if response.truncated:
        return "MAX_TOKENS"
    if response.finish_reason == "refusal":
        return "SAFETY"
    own = str(response.finish_reason).upper()
    return own if own in types.FinishReason.__members__ else "OTHER"


# -- from ADK ------------------------------------------------------------------------------------


def answer_of(value: Any) -> tuple[str | None, list[ToolCall]]:
    """Text and calls of a model's answer, or of what a callback returned as one."""
    content = content_of(value)
    calls = [call for part in parts_of(content) if (call := get(part, "function_call")) is not None]
    text = text_in(content)
    if not text and not calls and (get(value, "error_code") or get(value, "error_message")):
        text = str(get(value, "error_message") or f"The model failed: {get(value, 'error_code')}")
    made = [ToolCall(get(call, "id") or "", str(get(call, "name")), _arguments(get(call, "args"))) for call in calls]
    return text or (None if made else ""), made


def _arguments(args: Any) -> Any:
    """A dict of arguments; what is none stays, and the model reads why."""
    return dict(args) if isinstance(args, Mapping) else args or {}


def response_from(value: Any, original: LLMResponse | None = None, types: Any = None) -> LLMResponse | None:
    """What a callback made of an answer; None where it says what the original says.

    Args:
        value: what it made.
        original: the answer that it was given, if there was one.
        types: of which kind that was.
    """
    text, calls = answer_of(value)
    reason = _word_of(get(value, "finish_reason"))
    if original is None:
        code = None if is_content(value) else _word_of(get(value, "error_code"))
        return LLMResponse(text, calls or None, finish_reason=code or reason)
    if reason is None or reason == _finish_reason(original, types):
        reason = original.finish_reason
    same = (text or "") == (original.content or "") and reason == original.finish_reason
    if same and calls == [replace(call, error=None) for call in original.tool_calls or ()]:
        return None
    return replace(original, content=text, tool_calls=calls or None, finish_reason=reason)


def _word_of(reason: Any) -> str | None:
    """The word of a reason, which may be a member of an enum; None where none is given."""
    return str(getattr(reason, "name", reason)) if reason else None


class Ids:
    """Ids for the calls of contents that a callback wrote without any."""

    def __init__(self) -> None:
        self.open: dict[str, list[str]] = {}
        self.made = 0

    def of_call(self, call: Any) -> str:
        """The id of a call."""
        name, id = str(get(call, "name")), get(call, "id")
        if not id:
            self.made += 1
            id = f"call_adk_{self.made}"
        self.open.setdefault(name, []).append(id)
        return str(id)

    def of_result(self, response: Any) -> str:
        """The id of the call that a result answers: its own, or the first call of that name without a result."""
        waiting = self.open.get(str(get(response, "name")), [])
        id = get(response, "id") or (waiting[0] if waiting else "")
        if id in waiting:
            waiting.remove(id)
        return str(id)


def messages_of(content: Any, ids: Ids) -> list[Message]:
    """The messages that say what a content says: one for each result in it, and one for the rest."""
    role = {"model": "assistant", "assistant": "assistant", "system": "system"}.get(get(content, "role") or "", "user")
    messages: list[Message] = []
    # A content with calls is the model's, whatever its role: nobody else may make them.
    rest: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for part in parts_of(content):
        if (response := get(part, "function_response")) is not None:
            text = _result_text(get(response, "response"))
            messages.append({"role": "tool", "tool_call_id": ids.of_result(response), "content": text})
        elif (call := get(part, "function_call")) is not None:
            function = {"name": str(get(call, "name")), "arguments": _json(get(call, "args") or {})}
            calls.append({"id": ids.of_call(call), "type": "function", "function": function})
        elif not get(part, "thought"):
            rest += _message_parts(part)
    if rest or calls or not messages:
        message: Message = {"role": "assistant" if calls else role, "content": _joined(rest)}
        messages.append({**message, "tool_calls": calls} if calls else message)
    return messages


def _message_parts(part: Any) -> Iterable[dict[str, Any]]:
    if (blob := get(part, "inline_data")) is not None:
        data = base64.b64encode(get(blob, "data") or b"").decode("ascii")
        yield {"type": "image_url", "image_url": {"url": f"data:{get(blob, 'mime_type')};base64,{data}"}}
    elif (file := get(part, "file_data")) is not None:
        yield {"type": "image_url", "image_url": {"url": str(get(file, "file_uri"))}}
    elif isinstance(text := get(part, "text"), str):
        yield {"type": "text", "text": text}


def _joined(parts: list[dict[str, Any]]) -> Any:
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _result_text(response: Any) -> str:
    if isinstance(response, dict) and list(response) == ["result"] and isinstance(response["result"], str):
        return response["result"]
    return _json(response if response is not None else {})


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
