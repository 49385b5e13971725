"""What a model call was sent, by its `llm_call`: what differs from the call before, and a digest of all of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, cast

from connectagent.data import Message, TraceEntry
from connectagent.output.masking import current
from connectagent.records.yaml_lines import json_line
from connectagent.session.conversation import Conversation
from connectagent.session.snapshot import Snapshot, same
from connectagent.settings.own import blake2b

_ADDRESS, _HALVES = re.compile(r"\b0x[0-9a-f]{6,}\b"), re.compile("[\ud800-\udfff]")


_encode = json.JSONEncoder(ensure_ascii=False).encode
_MANY = 50  # up to so many containers, a value is never too deep for a record


class Hash(Protocol):
    """A hash of some bytes, to which more can be added."""

    def update(self, data: bytes, /) -> None: ...
    def digest(self) -> bytes: ...
    def hexdigest(self) -> str: ...
    def copy(self) -> Hash: ...


def canonical(value: object) -> str:
    """A value in the form of a record, without what differs between processes; secrets count by their masks."""
    text = as_recorded(value)
    return as_recorded(current().value(value)) if current().suspects(text) else text


def as_recorded(value: object) -> str:
    """The same of a value from a record, whose secrets are masked."""
    try:
        text = _encode(value)
        if text.count("{") + text.count("[") > _MANY:
            text = json_line(value)
    except (TypeError, ValueError, RecursionError):  # what is not data
        text = json_line(value)
    if not text.isascii():
        text = without_halves(text)
    return _ADDRESS.sub("0x", text) if "0x" in text else text


def without_halves(text: str) -> str:
    """A text as it stands in a record, which has no halves of surrogate pairs."""
    return _HALVES.sub("\ufffd", text)


def mark_of(value: object, shown: Callable[[Any], str] = canonical) -> bytes:
    """What stands for a message, a schema or the options in digests; the order of its keys does not count."""
    if isinstance(value, dict):
        value = dict(sorted(value.items(), key=_key))
    found: bytes = _new_hash(shown(value).encode()).digest()
    return found


def _key(item: tuple[Any, Any]) -> str:
    return str(item[0])


def _new_hash(data: bytes = b"") -> Hash:
    return blake2b(data, digest_size=16)


def schema_key(tool: object, shown: Callable[[Any], str] = canonical) -> str:
    """What stands in a record for a tool's schema that it already has."""
    return mark_of(tool, shown).hex()[:12]


def digest(
    model: object,
    messages: Iterable[Message],
    tools: Iterable[Any],
    options: object,
    output: dict[str, Any] | None = None,
) -> str:
    """The digest of a request as it was handed to the LLM: twelve hex digits.

    Args:
        model, messages, tools, options: of the request.
        output: how a structured answer was asked for, with its `schema`; None for text.
    """
    return _whole(_hash_of(map(mark_of, messages)), _given(model, tools, options, output))


def recorded_digest(
    model: object,
    messages: Iterable[Message],
    tools: Iterable[Any],
    options: object,
    output: dict[str, Any] | None = None,
) -> str:
    """The same of a request that was rebuilt from a record, whose secrets are masked already."""
    mark = partial(mark_of, shown=as_recorded)
    return _whole(_hash_of(map(mark, messages)), _given(model, tools, options, output, mark))


def _hash_of(marks: Iterable[bytes]) -> Hash:
    return _new_hash(b"".join(marks))


def _given(
    model: object,
    tools: Iterable[Any],
    options: object,
    output: dict[str, Any] | None,
    mark: Callable[[Any], bytes] = mark_of,
) -> bytes:
    """The marks of what a request has besides its messages."""
    given = b"tools" + b"".join(map(mark, tools)) + b"options" + mark(options or {}) + mark(model)
    return given + b"output" + mark(output["schema"]) if output else given


def _whole(hashed: Hash, given: bytes) -> str:
    hashed.update(given)
    return str(hashed.hexdigest()[:12])


class Digests:
    """Digests of requests, of which each may begin with the first messages of the one before.

    Attributes:
        count: how many first messages are known from the one before.
    """

    def __init__(self) -> None:
        self.count = 0
        self._hashed = _new_hash()
        self._given: tuple[Any, bytes] | None = None

    def of(
        self,
        marks: list[bytes],
        more: int,
        model: object,
        tools: list[Any],
        options: object,
        output: dict[str, Any] | None,
    ) -> str:
        """The digest of the next request.

        Args:
            marks: of its messages behind those that are known.
            more: how many of these the next request may begin with.
            model, tools, options, output: as for `digest`.
        """
        self._hashed.update(b"".join(marks[:more]))
        self.count += more
        hashed, given = self._hashed.copy(), (model, tools, options, output)
        hashed.update(b"".join(marks[more:]))
        if self._given is None or not same(self._given[0], given):
            self._given = given, _given(*given)
        return _whole(hashed, self._given[1])


def sent_digest(sent: dict[str, Any], messages: list[Message] | None, conversation: Conversation | None) -> str:
    """The digest of a request of the running turn; what is as it was in the call before is not looked at again.

    Args:
        sent: its `model`, the schemas of its `tools`, its `options`, and the `output` that it asks for.
        messages: its messages; None: they are those of the conversation.
        conversation: the conversation, which keeps in its `sent` what the next digest needs; None for a call of a
            handler or tool.
    """
    if conversation is None:
        return digest(sent["model"], messages or (), sent["tools"], sent["options"], sent["output"])
    before, snapshot = conversation.sent, conversation.snapshot
    mark = partial(_mark_as_recorded, instead=conversation.instead)
    marks = _marks_of(snapshot.copy["messages"], snapshot, mark)
    if messages is None:
        hashed = _hash_behind(marks, snapshot, before)
    else:
        known = dict(zip(map(id, snapshot.originals), marks, strict=True))
        hashed = _hash_of(known.get(id(one)) or mark(one) for one in messages)
    given = sent["model"], sent["tools"], sent["options"], sent["output"]
    if not same(before.get("given"), given):
        before["given"], before["given_marks"] = given, _given(*given)
    return _whole(hashed, before["given_marks"])


def _mark_as_recorded(message: Message, instead: dict[str, str]) -> bytes:
    """The mark of a message, in which the record may have another text: without what lives for one turn."""
    content = message.get("content")
    if isinstance(content, str) and content in instead:
        return mark_of({**message, "content": instead[content]})
    return mark_of(message)


def _marks_of(messages: list[Message], snapshot: Snapshot, mark: Callable[[Any], bytes]) -> list[bytes]:
    """The marks of the conversation's messages; those that stayed the same have theirs."""
    marks = snapshot.marks
    if len(marks) != len(messages):  # Ctrl-C came between a change and the note of it
        marks[:], snapshot.marked = [None] * len(messages), 0
    for at in range(snapshot.marked, len(marks)):
        marks[at] = marks[at] or mark(messages[at])
    return cast("list[bytes]", marks)


def _hash_behind(marks: list[bytes], snapshot: Snapshot, before: dict[str, Any]) -> Hash:
    """The hash of all marks, which goes on where that of the call before ended."""
    known: tuple[Hash | None, int] = before.get("hashed", (None, 0))
    hashed, count = known
    if hashed is None or snapshot.marked < count:
        hashed, count = _new_hash(), 0
    hashed.update(b"".join(marks[count:]))
    before["hashed"] = hashed, len(marks)
    snapshot.marked = len(marks)
    return hashed.copy()


class SentSoFar:
    """What model calls were sent besides the conversation, by their entries, which are taken in order.

    Attributes:
        model: the model that was asked; None where the record does not tell.
        names: the names of the tools.
        tools: their schemas, or their names; None where the record does not tell.
        options: the parameters of the provider's API; None where there are none.
        output: how a structured answer was asked for: its `name` and `schema`, and `in_words`; None for text.
        edited: the messages of this call as a difference from the conversation; None where they are the same.
        messages: the messages of this call, from a record that has them whole.
    """

    def __init__(self) -> None:
        self.model: Any = None
        self.names: list[str] = []
        self.tools: list[Any] | None = None
        self.options: dict[str, Any] | None = None
        self.output: dict[str, Any] | None = None
        self.edited: list[Any] | None = None
        self.messages: list[Any] | None = None
        self._schemas: dict[str, Any] = {}

    def take(self, entry: TraceEntry) -> None:
        """Take what an `llm_call` has."""
        recorded = entry.get("request")
        given: dict[str, Any] = recorded if isinstance(recorded, dict) else {}
        self.names = entry.get("tools", self.names)
        self.model = given.get("model", self.model)
        self.options = given.get("options", self.options)
        self.output = _as_output(given["output"]) if "output" in given else self.output
        self.edited, self.messages = (one if isinstance(one, list) else None for one in map(given.get, _OF_ONE_CALL))
        if isinstance(given.get("tools"), list):
            self.tools = [self._schema(tool) for tool in given["tools"]]

    def schemas(self) -> list[Any]:
        """The schemas of the tools, or their names."""
        return list(self.names if self.tools is None else self.tools)

    def _schema(self, tool: object) -> Any:
        if isinstance(tool, str):
            return self._schemas.get(tool, tool)
        return self._schemas.setdefault(schema_key(tool, as_recorded), tool)

    @property
    def is_edited(self) -> bool:
        """Whether the messages of this call are not those of the conversation."""
        return self.edited is not None or self.messages is not None

    def own(self, conversation: Sequence[Message]) -> list[Message] | None:
        """The messages of this call, if they are not those of the conversation."""
        return self.messages if self.edited is None else rebuilt(self.edited, conversation)


def _as_output(recorded: object) -> dict[str, Any] | None:
    if not isinstance(recorded, dict) or not isinstance(recorded.get("schema"), dict):
        return None
    return {**recorded, "name": str(recorded.get("name"))}


_OF_ONE_CALL = ("edited", "messages")


# -- messages of one call ------------------------------------------------------------------------


def difference(
    messages: Sequence[Message], conversation: Sequence[Message], copies: Sequence[Message] | None = None
) -> list[Any]:
    """Messages as a difference from those of the conversation.

    Args:
        messages: the messages.
        conversation: those of the conversation.
        copies: the same as the record tells them, where threads may change the conversation's meanwhile.

    Returns:
        `[3, 7]` for the messages of the conversation from number 3 to before number 7; every other message itself.
    """
    parts: list[Any] = []
    told = conversation if copies is None else copies
    for message, at in zip(messages, _places(messages, conversation, told), strict=True):
        if at is None:
            parts.append(message)
        elif parts and isinstance(parts[-1], list) and parts[-1][1] == at:
            parts[-1][1] = at + 1
        else:
            parts.append([at, at + 1])
    return parts


def _places(
    messages: Sequence[Message], conversation: Sequence[Message], told: Sequence[Message]
) -> Iterator[int | None]:
    """Where each message stands in the conversation, as itself or as it is told; None where it does not."""
    places = {id(message): at for at, message in enumerate(conversation)}
    texts: dict[Any, list[int]] = {}
    following = 0
    for message in messages:
        at = places.get(id(message))
        if at is None and following < len(told) and same(told[following], message):
            at = following
        if at is None:
            texts = texts or _by_text(told)
            at = next((one for one in texts.get(_text(message), ()) if same(told[one], message)), None)
        if at is not None:
            following = at + 1
        yield at


def _by_text(conversation: Sequence[Message]) -> dict[Any, list[int]]:
    texts: dict[Any, list[int]] = {}
    for at, message in enumerate(conversation):
        texts.setdefault(_text(message), []).append(at)
    return texts


def _text(message: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    content = message.get("content")
    return message.get("role"), content if isinstance(content, str) else None, message.get("tool_call_id")


def rebuilt(parts: Iterable[Any], conversation: Sequence[Message]) -> list[Message]:
    """The messages of a `difference`."""
    messages: list[Any] = []
    for part in parts:
        messages += conversation[slice(*part)] if isinstance(part, list) else [part]
    return messages
