"""Messages and answers of a model: made, shown in entries, and kept in an order that each provider takes.

All providers share one rule: each call in an assistant's `tool_calls` has exactly one `tool` message,
directly after it and before anything else (otherwise OpenAI and Anthropic answer 400).
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Sequence
from typing import Any

from connectagent.data import Continue, File, Image, LLMRequest, LLMResponse, Message, TokenUsage, ToolCall
from connectagent.errors import ProviderError
from connectagent.session.requests import json_problem, tools_problem
from connectagent.session.snapshot import clone, copy_of
from connectagent.stop_reasons import problem_of

NOT_RUN = "not run: {reason}"
_LONGEST_QUOTE = 300
LEFT_OUT = "(The conversation so far is not shown.)"
# Made once: `json.dumps` with other options than its own makes an encoder for each call.
_STRICT, _AS_SENT = json.JSONEncoder(ensure_ascii=False, allow_nan=False), json.JSONEncoder(ensure_ascii=False)
_ROLES = ("system", "developer", "user", "assistant", "tool")


def user_message(prompt: object) -> Message:
    """A user's message from text, an `Image`, a `File`, or a list of text, images, files and parts.

    Raises:
        TypeError: the prompt is none of these.
    """
    if isinstance(prompt, str):
        return {"role": "user", "content": prompt}
    parts = [_part(part) for part in (prompt if isinstance(prompt, (list, tuple)) else [prompt])]
    if not parts:
        raise TypeError("the prompt is empty: give a str, an Image, a File, or a list of them")
    return {"role": "user", "content": parts}


def _part(part: object) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if isinstance(part, Image | File):
        return part.part()
    if isinstance(part, dict) and isinstance(part.get("type"), str):
        return part
    raise TypeError(f"a prompt is a str, an Image, a File, or a list of them, not {type(part).__name__}: {part!r}")


def text_of(content: object) -> str:
    """The text of a message's content, with `[image]` for an image."""
    if isinstance(content, str):
        return content
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    return "\n".join(str(part.get("text", f"[{str(part.get('type')).removesuffix('_url')}]")) for part in parts)


def assistant_message(response: LLMResponse) -> Message:
    """The message that puts a model's answer into the conversation, text and calls.

    The arguments of a call are `{}` if they could not be read, since some servers parse them again.
    """
    message: Message = {"role": "assistant", "content": response.content}
    calls: list[dict[str, Any]] = []
    for call in response.tool_calls or ():
        try:
            text = _STRICT.encode(call.arguments)
            if call.raw is not None and call.raw != text and _AS_SENT.encode(json.loads(call.raw)) == text:
                text = call.raw
        except (TypeError, ValueError, RecursionError):
            text = "{}"
        calls.append({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": text}})
    if calls:
        message["tool_calls"] = calls
    elif response.content is None:
        message["content"] = ""
    if response.provider_data:
        message["provider_data"] = response.provider_data
    return message


def as_response(value: object) -> LLMResponse:
    """The answer of a model or handler, as a response whose calls can be answered.

    Raises:
        ProviderError: it is neither an LLMResponse nor a str.
    """
    if isinstance(value, str):
        value = LLMResponse(value)
    if not isinstance(value, LLMResponse):
        problem = f"the model answered with {type(value).__name__} {value!r:.80}; complete() returns an LLMResponse"
        raise ProviderError(problem, kind="bad_response", provider="?")
    try:
        return _tidied(value)
    except TypeError as found:
        problem, usage = f"the model's answer cannot be used: {found}", value.usage
        usage = usage if isinstance(usage, TokenUsage) else TokenUsage()
        raise ProviderError(problem, kind="bad_response", provider="?", usage=usage) from None


def refuse_unusable(response: LLMResponse, model: str, provider: str | None, must_be_whole: bool = False) -> None:
    """Refuse an answer of a model that stopped for a reason for which it cannot be used.

    Args:
        response: the answer.
        model: who gave it.
        provider: the name of its provider, if it has one.
        must_be_whole: whether nothing but a whole text will do.

    Raises:
        ProviderError: there is nothing in it that can be used: see `problem_of`.
    """
    has_text, has_calls, reason = bool(response.content), bool(response.tool_calls), response.finish_reason
    found = problem_of(reason, has_text=has_text, has_calls=has_calls, must_be_whole=must_be_whole)
    if found is None:
        return
    said = f": {response.content[:_LONGEST_QUOTE]}" if response.content else ""
    error = ProviderError(
        f"{model}: {found.text}{said} ({found.kind})",
        kind=found.kind,
        provider=provider or "?",
        model=model,
        retries=response.retries,
        usage=response.usage or TokenUsage(),
    )
    error.finish_reason = reason
    raise error


def _tidied(response: LLMResponse) -> LLMResponse:
    """A copy of a response whose calls can be answered: each has an id of its own, a name and a dict.

    A copy, because a handler may supply the same response twice, and other handlers edit its calls.

    Raises:
        TypeError: the response has a form that cannot be used.
    """
    if not isinstance(response.content, str | None) or not isinstance(response.provider_data, dict | None):
        raise TypeError("a response's content is a str or None, its provider_data a dict or None")
    given = [] if response.tool_calls is None else response.tool_calls
    calls: list[ToolCall] = []
    used: set[str] = set()
    for call in given if isinstance(given, list) else [None]:
        if not isinstance(call, ToolCall):
            raise TypeError(f"a response's tool_calls are a list of ToolCall(id, name, arguments), not {given!r:.80}")
        id, error, arguments = call.id, call.error, call.arguments
        if not isinstance(id, str) or not id or id in used:
            id = _new_id(given, used)
        used.add(id)
        if not isinstance(arguments, dict):
            error = error or f"the arguments must be a JSON object, not {type(arguments).__name__}"
            arguments = {}
        calls.append(ToolCall(id, str(call.name), copy_of(arguments), error, raw=call.raw))
    return dataclasses.replace(response, tool_calls=calls)


def _new_id(calls: list[Any], used: set[str]) -> str:
    """An id that is not used, and that no other call has."""
    taken = used | {call.id for call in calls if isinstance(call, ToolCall) and isinstance(call.id, str)}
    return next(id for id in (f"call_{n}" for n in itertools.count(1)) if id not in taken)


def shown_call(call: ToolCall) -> dict[str, Any]:
    """A call in the form of the session and the trace."""
    shown = {"id": call.id, "name": call.name, "arguments": clone(call.arguments)}
    if call.error:
        shown["error"] = call.error
    if call.raw is not None:
        shown["raw"] = call.raw
    return {**shown, "approved": True} if call.approved else shown


def describe_answer(response: LLMResponse) -> dict[str, Any]:
    """A model's answer in the form of a trace entry."""
    answer = {"content": response.content, "tool_calls": list(map(shown_call, response.tool_calls or ()))}
    return {**answer, "provider_data": clone(response.provider_data)} if response.provider_data else answer


def place_of_result(messages: Sequence[Message], call_id: str) -> tuple[int | None, Message | None]:
    """Where a call's result belongs, and the message that is there already, if any.

    Returns:
        The index at which to insert it (None if the call is gone), and the result already at that index.
    """
    for index in range(len(messages), 0, -1):  # behind the newest message that asked for it
        before = set()
        for call in messages[index - 1].get("tool_calls") or ():
            if call["id"] == call_id:
                while index < len(messages) and messages[index].get("tool_call_id") in before:
                    index += 1
                there = index < len(messages) and messages[index].get("tool_call_id") == call_id
                return index, messages[index] if there else None
            before.add(call["id"])
    return None, None


def is_open(messages: Sequence[Message], call_id: str) -> bool:
    """Whether a call has no result, not even one that was moved elsewhere."""
    for message in reversed(messages):
        for call in message.get("tool_calls") or ():
            if call["id"] == call_id:
                return True
        if message.get("tool_call_id") == call_id:
            return False
    return False


def mended(messages: Sequence[Message]) -> list[Message]:
    """The conversation with every result in its place.

    A misplaced result is moved after its call, a missing one is filled in, and one without a call is dropped.
    """
    made: list[Message] = []
    for index, message in enumerate(messages):
        calls = message.get("tool_calls")
        if message["role"] == "tool":
            continue
        if not calls:
            made.append(_without_calls(message) if "tool_calls" in message else message)
            continue
        single = {call["id"]: call for call in calls}  # two calls with one id cannot both be answered
        made.append(message if len(single) == len(calls) else {**message, "tool_calls": list(single.values())})
        results = _results_after(messages, index)
        for call_id in single:
            missing: Message = {"role": "tool", "tool_call_id": call_id, "content": NOT_RUN.format(reason="no result")}
            made.append(results.get(call_id, missing))
    return made


def says_nothing(messages: Sequence[Message]) -> bool:
    """Whether nothing of a conversation would be sent: orphaned results and empty answers are left out."""
    for message in messages:
        role = message["role"]
        if role == "assistant":
            if message.get("tool_calls") or text_of(message.get("content")):
                return False
        elif role != "tool":
            return False
    return True


def sendable(messages: list[Message]) -> list[Message]:
    """The conversation in an order that providers accept, and not empty."""
    sent = messages if is_valid(messages) else mended(messages)
    return [*sent, {"role": "user", "content": LEFT_OUT}] if says_nothing(sent) else sent


def _without_calls(message: Message) -> Message:
    """A message without its empty `tool_calls`, which OpenAI refuses."""
    kept: Message = {**message, "content": message.get("content") or ""}
    del kept["tool_calls"]
    return kept


def _results_after(messages: Sequence[Message], index: int) -> dict[str, Message]:
    """The results after an assistant message, by call id, up to the next call with the same id."""
    wanted = {call["id"] for call in messages[index]["tool_calls"]}
    results: dict[str, Message] = {}
    for message in messages[index + 1 :]:
        if message["role"] == "tool" and message["tool_call_id"] in wanted:
            results.setdefault(message["tool_call_id"], message)
        for call in message.get("tool_calls") or ():
            wanted.discard(call["id"])
    return results


def is_valid(messages: Sequence[Message], valid: int = 0) -> bool:
    """Whether every result is in its place. Handlers and callers may edit messages freely; no provider takes all.

    Args:
        messages: the conversation.
        valid: how many messages from the start are known to be valid; they are not checked again.
    """
    while valid and messages[valid - 1]["role"] == "tool":  # back to the beginning of the last round
        valid -= 1
    if valid and messages[valid - 1].get("tool_calls"):
        valid -= 1
    open_ids: list[str] = []
    for message in messages[valid:]:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_ids:
                return False
            open_ids.remove(message["tool_call_id"])
            continue
        if open_ids:
            return False
        if "tool_calls" in message:
            if not message["tool_calls"]:
                return False
            for call in message["tool_calls"]:
                if call["id"] in open_ids:
                    return False
                open_ids.append(call["id"])
    return not open_ids


def message_problem(message: object) -> str | None:
    """Why something is not a message in OpenAI's chat format, or None if it is one."""
    if not isinstance(message, dict):
        return "a message is a dict with 'role' and 'content'"
    role, content, calls = message.get("role"), message.get("content"), message.get("tool_calls")
    if role not in _ROLES:
        return f"its role must be one of {', '.join(_ROLES)}"
    if isinstance(content, list):
        if problem := _parts_problem(content):
            return problem
    elif not isinstance(content, str) and not (content is None and role == "assistant" and calls):
        return "its content must be a str or a list of parts"
    if problem := _keys_problem(message):
        return problem
    if "tool_calls" in message and (
        role != "assistant" or not isinstance(calls, list) or not all(map(_is_call, calls))
    ):
        return "tool_calls is a list of {'id': str, 'type': 'function', 'function': {'name': str, 'arguments': str}}"
    return None


def _keys_problem(message: dict[str, Any]) -> str | None:
    if not isinstance(message.get("provider_data", {}), dict | None):
        return "its provider_data is a dict"
    if message["role"] == "tool" and not isinstance(message.get("tool_call_id"), str):
        return "a tool message needs the 'tool_call_id' of its call"
    return None


def _parts_problem(content: list[Any]) -> str | None:
    """Why a list is not the content of a message, or None if it is."""
    if not content or not all(isinstance(part, dict) and isinstance(part.get("type"), str) for part in content):
        return "a list of content holds parts such as {'type': 'text', 'text': '...'}"
    if not all(map(_is_part, content)):
        return "a text part holds a str as 'text', an image_url part {'url': str} as 'image_url'"
    return None


def _is_part(part: dict[str, Any]) -> bool:
    image = part.get("image_url")
    if part["type"] == "image_url":
        return isinstance(image, dict) and isinstance(image.get("url"), str)
    return part["type"] != "text" or isinstance(part.get("text"), str)


def value_problem(value: object) -> str | None:
    """Why a request, a response, a call, a list of calls or a `Continue` cannot be used, or None."""
    if isinstance(value, Continue):
        return None if isinstance(value.prompt, str) else f"Continue(prompt) takes a str, not {value.prompt!r:.80}"
    if isinstance(value, LLMRequest):
        return _request_problem(value)
    if isinstance(value, LLMResponse):
        try:
            _tidied(value)
        except TypeError as error:
            return str(error)
        return None
    return _calls_problem(value if isinstance(value, list) else [value] if isinstance(value, ToolCall) else [])


def _request_problem(request: LLMRequest) -> str | None:
    if (
        not isinstance(request.messages, list)
        or not isinstance(request.tools, list)
        or not isinstance(request.model, str)
        or not isinstance(request.options, dict)
    ):
        return "a request has lists of messages and of tools, the name of a model, and a dict of options"
    for message in request.messages:
        if problem := message_problem(message):
            return f"{message!r:.200}: {problem}"
    if problem := json_problem(request.options):
        return f"its options: {problem}"
    return tools_problem(request.tools)


def _calls_problem(calls: list[Any]) -> str | None:
    for call in calls:
        if not isinstance(call, ToolCall) or type(call.name) is not str or type(call.arguments) is not dict:
            return "a call has a str as name and a dict as arguments"
    return None


def _is_call(call: object) -> bool:
    if not isinstance(call, dict):
        return False
    function = call.get("function")
    return (
        isinstance(function, dict)
        and isinstance(call.get("id"), str)
        and isinstance(function.get("name"), str)
        and isinstance(function.get("arguments"), str)
    )
