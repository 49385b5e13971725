"""What a provider refused in a request: found, replaced by a text, and recorded with whose it was.

A provider that takes no image, file, text or schema of this kind would refuse every later request of the session too.
So the call is made again without the newest element that was not in the last request which this model took. Where
that succeeds, the element stays replaced; where it fails too, nothing has changed.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from connectagent.data import LLMRequest, LLMResponse, Message, TraceEntry
from connectagent.models.refusals import Refusal, refusal_of
from connectagent.records.sent import SentSoFar, difference, schema_key
from connectagent.session.journal import is_aside
from connectagent.session.observers import OWN
from connectagent.session.requests import names_of
from connectagent.session.snapshot import By, clone, same

_MOST = 4  # elements that are replaced for one call
_IMAGES = ("image_url", "input_image", "image")
_KINDS = {"image": ("image", "file"), "file": ("file", "image")}  # the kinds to look for, by what the error names
_WHAT = {"image": "an image", "file": "a file", "text": "a text", "tool": "the schema"}


class RefusedCall(Protocol):
    """The model call of which a provider refused something: see `Call`."""

    turn: Any
    request: LLMRequest
    conversation: Any
    place: str
    id: str
    number: int
    extra: int
    error: Exception | None
    entry: TraceEntry
    unsent: Sequence[str]
    others: bool
    tried: list[tuple[str, str, int, str | None]]

    def attempt(
        self, number: int = 1, by: By | None = None, refused: list[dict[str, Any]] | None = None
    ) -> LLMResponse | None: ...


@dataclass(frozen=True)
class Element:
    """One thing in a request that came from outside: an image, a file or a text in a message, or a tool's schema.

    Args:
        kind: `image`, `file`, `text` or `tool`.
        by: whose it is: a tool, the user, or the `by` of a handler.
        index: of its message in the request; -1 for a tool.
        tool: the name of the tool whose schema it is.
        key: of that schema.
        why: what the provider said.
    """

    kind: str
    by: By
    index: int = -1
    tool: str | None = None
    key: str | None = None
    why: str = ""

    def as_data(self) -> dict[str, Any]:
        """The element in lines of the log."""
        data = {"element": self.kind, "of": self.by, "index": self.index, "tool": self.tool, "key": self.key}
        return {**{key: value for key, value in data.items() if value not in (None, -1)}, "error": self.why}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Element:
        """The element from a line of the log."""
        kind, by, why = str(data.get("element")), data.get("of") or {}, str(data.get("error") or "")
        return cls(kind, by, int(data.get("index", -1)), data.get("tool"), data.get("key"), why)


def ask_without_refused(call: RefusedCall) -> LLMResponse | None:
    """Make a failed call again without what the provider refused.

    Returns:
        The answer; None if nothing was refused that can be replaced, if the turn ended, or if that failed too: then the
        call has its first error again.
    """
    first, conversation = call.error, call.conversation
    if conversation is None or first is None:
        return None
    replaced: list[Element] = []
    errors: list[BaseException] = [first]
    messages, hidden = call.request.messages, clone(_refused_tools(conversation))
    while (element := _next(call, messages, replaced)) is not None:
        replaced.append(element)
        call.tried.append((_asked(call), element.kind, element.index, element.tool))
        call.request.messages = _without(messages, replaced)
        if element.key is not None:
            _refused_tools(conversation).setdefault(_asked(call), {})[element.key] = element.tool
            call.others = True
        call.extra += 1
        response = call.attempt(call.number + 1, refused=[one.as_data() for one in replaced])
        if response is not None:
            _keep_replaced(call, messages, replaced)
            return response
        if call.error is None:  # the turn ended
            break
        errors.append(call.error)
    call.request.messages, conversation.refused_tools = messages, hidden
    if len(errors) > 1 and call.error is not None:
        call.error = first
        call.turn.failed_together(errors)
    return None


def _asked(call: RefusedCall) -> str:
    """The model that was asked, by which it is known what it has taken before."""
    return f"{call.entry.get('provider') or ''}:{_model(call)}"


def _model(call: RefusedCall) -> str:
    return str(call.conversation.sent.get("model") or call.request.model)


# -- finding it ----------------------------------------------------------------------------------


def _next(call: RefusedCall, messages: list[Message], replaced: Sequence[Element]) -> Element | None:
    """The next element to replace; None if there is none."""
    refusal = refusal_of(call.error)
    if refusal is None or len(replaced) >= _MOST:
        return None
    if replaced and (not refusal.kind or refusal.kind == "text"):  # it does not point at another one
        return None
    turn, id = call.turn, f"{call.place}/model{call.number + 1}"
    if turn.has_begun(id):  # the log knows what was replaced then
        recorded = turn.past.lines[turn.past.began[id]].get("refused") or []
        known = [Element.from_data(one) for one in recorded]
        return known[len(replaced)] if len(known) > len(replaced) else None
    asked = _asked(call)
    for element in _elements(call, messages, refusal):
        if (asked, element.kind, element.index, element.tool) not in call.tried:
            return element
    return None


def _elements(call: RefusedCall, messages: list[Message], refusal: Refusal) -> Iterator[Element]:
    """What may have been refused, the likeliest first: what the error names, images and files, then texts."""
    taken, schemas = _last_taken(call)
    if refusal.kind == "tool":
        yield from _tools(call, refusal, schemas)
        return
    new = list(_new_messages(call, messages, taken))
    kinds = _KINDS.get(refusal.kind, ("image", "file"))
    for index, by in new:
        for kind in kinds:
            if kind in _kinds_in(messages[index]):
                yield Element(kind, by, index, why=refusal.why)
    if refusal.kind in _KINDS:
        return
    for index, by in new:
        if "user" not in by and messages[index].get("content"):
            yield Element("text", by, index, why=refusal.why)


def _last_taken(call: RefusedCall) -> tuple[int, list[Any]]:
    """The number of the entry of the last request that this model took, and its tools; -1 if it took none."""
    taken, schemas, so_far = -1, list[Any](), SentSoFar()
    provider, model = call.entry.get("provider"), _model(call)
    for number, entry in enumerate(call.conversation.session["trace"]):
        if not isinstance(entry, dict) or entry.get("type") != "llm_call" or is_aside(entry):
            continue
        so_far.take(entry)
        same_model = entry.get("provider") == provider and so_far.model in (None, model)
        if same_model and entry.get("status") == "success":
            taken, schemas = number, so_far.schemas()
    return taken, schemas


def _tools(call: RefusedCall, refusal: Refusal, before: list[Any]) -> Iterator[Element]:
    """The tool whose schema was refused, if the model was not offered that schema before."""
    offered = _named_tools(call, refusal.tool)
    known = {schema_key(tool) for tool in before if not isinstance(tool, str)}
    new = [tool for tool in offered if schema_key(tool) not in known]
    if refusal.tool is None and len(new) != 1:
        return
    for tool in new:
        name = names_of([tool])[0]
        own = call.turn.agent.tools.get(name)
        by = own.by if own is not None else {"tool": name}
        yield Element("tool", by, tool=name, key=schema_key(tool), why=refusal.why)


def _named_tools(call: RefusedCall, named: str | int | None) -> list[Any]:
    """The tools of a request that an error names, by name or by their place in what was sent; None for all."""
    tools = list(call.conversation.sent.get("tools") or ())
    if isinstance(named, int):
        sent = [tool for tool in tools if names_of([tool])[0] not in call.unsent]
        return sent[named : named + 1]
    return tools if named is None else [tool for tool in tools if names_of([tool])[0] == named]


def _new_messages(call: RefusedCall, messages: list[Message], taken: int) -> Iterator[tuple[int, By]]:
    """The messages that came or were changed after an entry, but for the model's own: index and whose, newest first."""
    own = call.conversation.session["messages"]
    places, origins = _places(messages, own), _Origins(call.conversation.session["trace"])
    answered = max((index for index, one in enumerate(messages) if one["role"] == "assistant"), default=-1)
    for index in range(len(messages) - 1, -1, -1):
        if places[index] is None:  # of this request only
            yield index, _editor(call)
            continue
        number, by = origins.of(messages[index])
        is_new = number > taken if number >= 0 else taken < 0 or index > answered
        is_own = messages[index]["role"] == "system" or (messages[index]["role"] == "assistant" and not by)
        if is_new and not is_own:
            yield index, by


class _Origins:
    """Who brought or changed each message of a conversation last, by its entries."""

    def __init__(self, trace: Sequence[TraceEntry]) -> None:
        self._results: dict[str, tuple[int, By]] = {}
        self._messages: list[tuple[int, By, Message]] = []  # the newest first
        for number, entry in reversed(list(enumerate(trace))):
            if not isinstance(entry, dict):
                continue
            kind, by = entry.get("type"), entry.get("by") or {}
            if kind == "tool_execution" or (kind == "change" and entry.get("of") in ("result", "tool_execution")):
                own = {"tool": entry.get("tool_name")} if kind == "tool_execution" else {}
                self._results.setdefault(str(entry.get("call_id")), (number, by or own))
            elif kind in ("message", "message_edited") and isinstance(entry.get("message"), dict):
                self._messages.append((number, by, entry["message"]))
            elif kind == "user_input":
                message: Message = {"role": "user", "content": entry.get("content", entry.get("prompt"))}
                self._messages.append((number, {"user": "user"}, message))

    def of(self, message: Message) -> tuple[int, By]:
        """The number of the entry that brought or changed a message last, and whose it is; -1 if none did."""
        found = next((one for one in self._messages if same(one[2], message)), None)
        known = (-1, {}) if found is None else found[:2]
        if message["role"] != "tool":
            return known
        return max(known, self._results.get(str(message.get("tool_call_id")), (-1, {})), key=_first)


def _first(pair: tuple[int, By]) -> int:
    return pair[0]


def _places(messages: list[Message], own: list[Message]) -> list[int | None]:
    """Where each message of a request stands in the conversation; None where it does not."""
    if messages is own:
        return list(range(len(own)))
    places: list[int | None] = []
    for part in difference(messages, own):
        places += range(*part) if isinstance(part, list) else [None]
    return places


def _editor(call: RefusedCall) -> By:
    """The handler that changed a request last."""
    for entry in reversed(call.conversation.session["trace"]):
        if isinstance(entry, dict) and entry.get("type") == "change" and entry.get("of") == "request":
            return entry.get("by") or {}
    return {"hook": "before_llm"}


def _kinds_in(message: Message) -> set[str]:
    """The kinds of parts of a message that are no text."""
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    return {_kind_of(part) for part in parts} - {"text"}


def _kind_of(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else "text"
    if kind in _IMAGES:
        return "image"
    return "text" if kind in ("text", "input_text") else "file"


# -- replacing it --------------------------------------------------------------------------------


def _without(messages: list[Message], replaced: Sequence[Element]) -> list[Message]:
    """The messages with a text in the place of each element."""
    made = list(messages)
    for element in replaced:
        if 0 <= element.index < len(made):
            made[element.index] = _replaced(made[element.index], element)
    return made


def _replaced(message: Message, element: Element) -> Message:
    content, text = message.get("content"), f"[{_WHAT[element.kind]} {_whose(element.by)} is left out: {element.why}]"
    made: Message = {**message}
    made.pop("provider_data", None)
    if element.kind == "text" or not isinstance(content, list):
        made["content"] = text
    else:
        made["content"] = [{"type": "text", "text": text} if _kind_of(one) == element.kind else one for one in content]
    return made


def _whose(by: By) -> str:
    """Whose an element is, in words."""
    if "tool" in by:
        return f"that the tool {by['tool']!r} returned"
    if "user" in by:
        return "of the user"
    name = by.get("plugin") or by.get("agent") or by.get("hook")
    return f"of {name}" if name else "of this conversation"


def _keep_replaced(call: RefusedCall, messages: list[Message], replaced: Sequence[Element]) -> None:
    """Replace for good what was left out of a request that the provider took; traced, with whose it was."""
    conversation, turn = call.conversation, call.turn
    own, snapshot = conversation.session["messages"], conversation.snapshot
    for number, element in enumerate(replaced, 1):
        if element.kind == "tool":
            told = f"tool {element.tool!r} is left out of requests to {_asked(call)}, which refused it: {element.why}"
            warnings.warn(told, RuntimeWarning, stacklevel=2)
            continue
        turn.boundary.settle()  # what threads have changed so far moves messages, and is told first
        places = _places(messages, own if messages is own else snapshot.originals)
        at = places[element.index] if element.index < len(places) else None
        if at is None or at >= len(snapshot.originals):
            continue
        id = f"{call.id}/replaced{number}"
        if (line := turn.closing(id)) is not None:
            conversation.reapply([line])
            turn.between.behind(id)
            continue
        made = _replaced(snapshot.copy["messages"][at], element)
        snapshot.replace(snapshot.originals[at], made)
        entry = {"type": "message_edited", "id": id, "by": OWN, "index": at, "message": clone(made)}
        conversation.trace({**entry, "refused": element.as_data()}, settled=True)
    if messages is own:
        call.request.messages = own


# -- tools that were refused before --------------------------------------------------------------


def offered(
    conversation: Any, llm: Any, name: str | None, names: list[str], tools: list[Any]
) -> tuple[list[str], list[Any]]:
    """The tools of a request without those whose schemas the model has refused in this conversation.

    Args:
        conversation: the conversation.
        llm: the model.
        name: by which a handler chose it.
        names, tools: the names and schemas of all tools.
    """
    if not tools or not (refused := _refused_tools(conversation)):
        return names, tools
    keys = refused.get(f"{getattr(llm, 'provider', None) or ''}:{name or llm.model}")
    left = [tool for tool in tools if schema_key(tool) not in keys] if keys else tools
    return (names, tools) if len(left) == len(tools) else (names_of(left), left)


def _refused_tools(conversation: Any) -> dict[str, dict[str, str | None]]:
    """By model, the keys and names of tools whose schemas it has refused, as the conversation's entries have them."""
    if conversation.refused_tools is not None:
        known: dict[str, dict[str, str | None]] = conversation.refused_tools
        return known
    found: dict[str, dict[str, str | None]] = {}
    so_far = SentSoFar()
    for entry in conversation.session["trace"]:
        if not isinstance(entry, dict) or entry.get("type") != "llm_call" or is_aside(entry):
            continue
        so_far.take(entry)
        refused = entry.get("refused")
        if entry.get("status") != "success" or not isinstance(refused, list):
            continue
        asked = f"{entry.get('provider') or ''}:{so_far.model}"
        for one in refused:
            if isinstance(one, dict) and isinstance(one.get("key"), str):
                found.setdefault(asked, {})[one["key"]] = one.get("tool")
    conversation.refused_tools = found
    return found
