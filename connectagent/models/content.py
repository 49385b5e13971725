"""What both wires share about messages: parts of content, arguments, names and call ids."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from connectagent.data import File, Image, Message, ToolCall
from connectagent.errors import cut
from connectagent.models.images import DATA_URL, facts_of
from connectagent.models.limits import IMAGE_TYPES

Part = dict[str, Any]

_WEB_URL = re.compile(r"https?://[^\s/]+", re.IGNORECASE)
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class CannotSend(ValueError):
    """A message has something that the provider does not take.

    Args:
        text: what, and why.
        part: the part of the message.
    """

    def __init__(self, text: str, part: Part) -> None:
        super().__init__(text)
        self.part = part


def without_older(messages: Sequence[Any], part: Part, note: str) -> list[Any] | None:
    """Messages with a text in the place of a part that a tool brought, or an older message of the user; else None.

    A file that was refused once stays in the conversation, and must not make every later request fail.
    """
    newest = max((at for at, message in enumerate(messages) if message.get("role") == "user"), default=0)
    made = list(messages)
    for at, message in enumerate(messages):
        if at >= newest and message.get("role") != "tool":
            continue
        if isinstance(content := message.get("content"), list) and part in content:
            kept = [{"type": "text", "text": note} if one == part else one for one in content]
            made[at] = {**message, "content": kept}
    return None if made == list(messages) else made


def open_turn(messages: Sequence[Message]) -> list[Message]:
    """The answers of the turn that a request goes on with, the last one first; [] where it begins a turn.

    What the user says behind results is in one message with them, and does not begin a turn.
    """
    answers: list[Message] = []
    said = False  # whether the message behind is the user's
    for message in reversed(messages):
        role = message.get("role")
        if role == "assistant" and said:
            break
        if role == "assistant" and (message.get("tool_calls") or message.get("content")):
            answers.append(message)
        said = role not in ("assistant", "tool")
    return answers


def parts_of(content: object) -> list[Part]:
    """Any content of a message as a list of parts, `{"type": ..., ...}`; what says nothing is left out."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    if content is None:
        return []
    if isinstance(content, list | tuple):
        return [part for item in content if (part := as_part(item)) is not None]
    part = as_part(content)
    return [part] if part else []


def as_part(item: object) -> Part | None:
    """One item of content as a part; None if it says nothing."""
    if isinstance(item, str):
        return {"type": "text", "text": item} if item else None
    if isinstance(item, Image | File):
        return item.part()
    if not isinstance(item, dict) or not isinstance(item.get("type"), str):
        return {"type": "text", "text": as_json(item)}
    if item["type"] == "text":
        text = item.get("text")
        return item if isinstance(text, str) and text else None
    if item["type"] == "image" and isinstance(item.get("source"), dict):  # Anthropic's form, of MCP tools for example
        source = item["source"]
        url = source.get("url") or f"data:{source.get('media_type')};base64,{source.get('data')}"
        return {"type": "image_url", "image_url": {"url": url}}
    return item


def image_problem(url: object) -> str | None:
    """Why no provider takes a URL as that of an image, or None; a `data:` URL holds PNG, JPEG, GIF or WebP."""
    if not isinstance(url, str):
        return "without a URL"
    if found := DATA_URL.match(url):
        if found[1].lower() not in IMAGE_TYPES:
            return f"of type {found[1][:40]}" if found[1] else "without a type"
        return None if facts_of(url) is not None else "that is no base64"
    return None if _WEB_URL.match(url) else "that is neither a data: nor an https: URL"


def text_of(content: object) -> str:
    """The text of any content, without what is no text; parts are joined as they are."""
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in parts_of(content) if part["type"] == "text")


def as_json(value: object) -> str:
    """Any value as compact JSON; what JSON has no form for becomes its text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def json_text(arguments: dict[str, Any]) -> str:
    """Arguments in the form in which messages have those that connectagent writes."""
    return json.dumps(arguments, ensure_ascii=False)


def wire_name(name: object) -> str:
    """A tool's name as every provider takes it back: `^[a-zA-Z0-9_-]{1,64}$`."""
    text = str(name or "tool")
    return text if _NAME.fullmatch(text) else re.sub(r"[^a-zA-Z0-9_-]", "_", text)[:64]


def own_name(name: str) -> str:
    """The name of a tool without what a server left of the model's format around it, as it was sent otherwise.

    gpt-oss writes `functions.look<|channel|>commentary`: vllm-project/vllm#42454. No tool is sent with such a name.
    """
    if _NAME.fullmatch(name):
        return name
    bare = name.partition("<|")[0].strip().removeprefix("functions.")
    return bare if _NAME.fullmatch(bare) else name


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def read_arguments(raw: object) -> tuple[dict[str, Any], str | None]:
    """The arguments of a call as a dict, and why they cannot be read (then the dict is empty).

    `None`, `""` and `{}` all mean no arguments: providers send each of them for a tool that takes none.
    """
    if isinstance(raw, dict):
        return raw, None
    if raw is None or (isinstance(raw, str) and raw.strip() in ("", "null")):
        return {}, None
    if not isinstance(raw, str):
        return {}, f"the arguments must be a JSON object, not {type(raw).__name__}"
    raw = raw.removeprefix("\ufeff")  # a byte order mark, which JSON does not know
    try:
        value = json.loads(raw, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        return {}, f"the arguments are not valid JSON ({error}): {cut(raw, 200)}"
    if not isinstance(value, dict):
        return {}, f"the arguments must be a JSON object, not {type(value).__name__}: {cut(raw, 200)}"
    return value, None


def repaired_arguments(raw: str, error: str) -> tuple[dict[str, Any], str | None]:
    """The arguments in a text that is no JSON object, and the error of reading it where they stay unreadable."""
    from connectagent.models.argument_repairs import repaired  # nearly all can be read as they are

    found = repaired(raw)
    return ({}, error) if found is None else (found, None)


def sent_arguments(raw: object) -> dict[str, Any]:
    """The arguments of a call in the history, to be read only; {} where they are broken.

    The whole history is sent with every request, so that short ones are kept; a long one is read again
    rather than held in memory.
    """
    if isinstance(raw, str) and len(raw) <= 1000:
        return _kept_arguments(raw)
    return read_arguments(raw)[0]


@lru_cache(maxsize=4096)
def _kept_arguments(raw: str) -> dict[str, Any]:
    return read_arguments(raw)[0]


def tool_call(id: object, name: object, raw: object, taken: set[str], provider: str) -> ToolCall:
    """One call of a response; an id that is missing, empty or taken is made up.

    Args:
        id: what the provider sent.
        name: what the provider sent.
        raw: the arguments as the provider sent them.
        taken: the ids of the response's calls so far; the new one is added.
        provider: whose format a made-up id gets.
    """
    text = ""
    if isinstance(id, str):
        text = id
    elif id is not None:
        text = str(id)
    if not text or text in taken:
        text = new_id(provider)
    taken.add(text)
    arguments, error = read_arguments(raw)
    as_it_came = isinstance(raw, str) and error is None
    if error is not None and isinstance(raw, str):
        arguments, error = repaired_arguments(raw, error)
    if not name:
        error = error or "the call names no tool"
    plain = str(raw) if as_it_came and arguments and raw != json_text(arguments) else None
    return ToolCall(text, own_name(str(name or "")), arguments, error, raw=plain)


CUT_CALL = "the answer was cut inside this call: its arguments are not complete"


def not_run(call: ToolCall, problem: str | None) -> ToolCall:
    """The call; with a problem it has no arguments, and is not run."""
    if problem and call.error is None:
        call.arguments = {}
        call.raw = None
        call.error = problem
    return call


Said = tuple[object, object, object]
"""What a call of an answer says: its id, its name, its arguments as they came."""


def without_repeats(items: list[dict[str, Any]], said: Callable[[dict[str, Any]], Said | None]) -> list[dict[str, Any]]:
    """The items of an answer without calls that it says a second time: with the id and name of another one.

    The second one is no call if its arguments are the same, or none; if the first one has none, it is not.

    Args:
        items: what the answer is made of.
        said: what an item says as a call; None for what is no call.
    """
    if len(items) < 2:
        return items
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for item in items:
        if (call := said(item)) and call[0]:
            found.setdefault((str(call[0]), str(call[1])), []).append(read_arguments(call[2])[0])
    if all(len(same) == 1 for same in found.values()):
        return items
    kept = []
    seen: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for item in items:
        call = said(item)
        if call and call[0]:
            key = (str(call[0]), str(call[1]))
            arguments = read_arguments(call[2])[0]
            before = seen.setdefault(key, [])
            if arguments in before or (not arguments and any(found[key])):
                continue
            before.append(arguments)
        kept.append(item)
    return kept


def says_nothing(arguments: object) -> bool:
    """Whether arguments as a provider sent them are missing. Only a whole answer says by that that there are none."""
    return arguments in (None, {}) or (isinstance(arguments, str) and arguments.strip() in ("", "null"))


def new_id(provider: str) -> str:
    """A fresh id for a call, in the provider's own format."""
    unique = os.urandom(16).hex()
    return unique[:9] if provider == "mistral" else f"call_{unique[:24]}"


class CallIds:
    """The ids of calls on their way to one provider, for one request.

    An id in the provider's format is sent as it is: the provider may have given it. Others (a history
    that another provider began) are replaced by a digest, so that they are the same in each request.

    Args:
        pattern: what the provider takes, or None for anything that is not empty.
        unique: whether an id may occur once in the whole history (Anthropic) or once in a round.
    """

    def __init__(self, pattern: re.Pattern[str] | None, *, unique: bool) -> None:
        self._pattern = pattern
        self._unique = unique
        self._taken: set[str] = set()
        self._open: dict[str, list[str]] = {}

    def begin(self, calls: list[Any]) -> list[str]:
        """The ids to send for the calls of one assistant message."""
        taken = self._taken if self._unique else set()
        plain: list[Any] = [call.get("id") for call in calls if type(call) is dict]
        if len({id for id in plain if type(id) is str and id not in taken and self._fits(id)}) == len(calls):
            taken.update(plain)
            self._open = {id: [id] for id in plain}
            return plain
        self._open = {}
        sent = []
        for call in calls:
            old = call.get("id") if isinstance(call, dict) else None
            old = old if isinstance(old, str) else str(old or "")
            new = self._unused(old, taken)
            taken.add(new)
            self._open.setdefault(old, []).append(new)
            sent.append(new)
        return sent

    def _unused(self, id: str, taken: set[str]) -> str:
        """The id itself where the provider takes it and it is not taken; else its first digest that is not."""
        if self._fits(id) and id not in taken:
            return id
        count = 0
        while (new := _digest(f"{id}#{len(taken)}#{count}")) in taken:
            count += 1
        return new

    def _fits(self, id: str) -> bool:
        return bool(id) and (self._pattern is None or self._pattern.fullmatch(id) is not None)

    def result(self, id: object) -> str | None:
        """The id to send for a result; None where no call of this round waits for it."""
        waiting = self._open.get(id if isinstance(id, str) else str(id or ""))
        return waiting.pop(0) if waiting else None


def _digest(text: str) -> str:
    """Nine alphanumerics: the one form that every provider takes, Mistral too."""
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()[:9]
