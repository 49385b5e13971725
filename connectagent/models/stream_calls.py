"""The tool calls of a Chat stream, put together from their deltas.

By the format `index` tells the calls of an answer apart, `id` and `name` come once, `arguments` in pieces. Servers
differ, and what each of them is known to send is read:

| what comes | who sends it, as reported |
| --- | --- |
| every call at index 0, ids differ | Gemini, Ollama (ollama/ollama#15457), Grok (oracle/langchain-oracle#108) |
| no index, in some deltas or in all | Mistral, Gemini (openai/openai-python#2806), gateways (vercel/ai#18333) |
| another index for each piece of one call | Nebius, Cerebras (dirac-run/dirac#215) |
| another id for each piece of one call, without a name | LM Studio (NousResearch/hermes-agent#106943) |
| id and name in each delta | Kimi, MiniMax (NousResearch/hermes-agent#11984) |
| one id for several calls | DeepSeek, Zhipu (HKUDS/nanobot#3943) |
| a name in pieces | Gemini (continuedev/continue#5849) |
| `{}` before the arguments | proxies of Anthropic and Bedrock (BerriAI/litellm#4537, openai/openai-agents-js#712) |
| all arguments so far in each delta | DeepSeek by Qianfan (NousResearch/hermes-agent#35718) |

Whatever comes, a piece whose call is not certain makes the calls that it may belong to unreadable: no tool runs with
another call's arguments, or with its defaults because its own arguments were lost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from itertools import count, pairwise
from typing import Any, NamedTuple

RawCall = dict[str, Any]
"""A call as a plain answer has it; `problem` says why it must not run, if it must not."""

_STRUCTURE = re.compile(r'["\\{}\[\]]')
_EMPTY_OBJECT = re.compile(r"\s*\{\s*\}\s*")
_UNCERTAIN = "pieces of arguments came that may belong to this call or to another one"


class CallAssembler:
    """Collects the deltas of an answer's calls.

    Args:
        tools: the names of the tools that were sent: they tell a name in pieces from the names of two calls.
    """

    def __init__(self, tools: Collection[str] = ()) -> None:
        self._tools = frozenset(tools)
        self._calls: list[_Call] = []
        self._clock = count()

    def add(self, item: RawCall) -> None:
        """Add one item of a delta's `tool_calls`."""
        delta = _delta_of(item)
        call = self._call_of(delta)
        if call is None or self._begins_another(call, delta):
            call = _Call(delta.index, delta.id, next(self._clock), self._tools)
            self._calls.append(call)
        if call.id is None:
            call.id = delta.id
        call.custom = call.custom or bool(item.get("custom"))
        call.extra_content = item.get("extra_content") or call.extra_content
        call.add(next(self._clock), delta)

    def calls(self) -> list[RawCall]:
        """The calls of the answer, which has come to its end: in the order of their indexes, where all have one."""
        found = _with_their_pieces(sorted(self._united(), key=lambda call: call.began))
        _doubt(found)
        indexes = {id(call): call.index for call in found if isinstance(call.index, int)}
        if len(indexes) == len(found):
            found.sort(key=lambda call: indexes[id(call)])
        return [call.raw() for call in found]

    def _call_of(self, delta: _Delta) -> _Call | None:
        """The call that a delta continues, unless it begins another one: by its id, else by its index."""
        here = [call for call in self._calls if delta.index is None or call.index == delta.index]
        if delta.id is None:
            return _continued(here, delta)
        known = [call for call in self._calls if call.id == delta.id]
        if known:
            known = [call for call in known if call in here or call.index is None]
            return known[-1] if known else None
        return here[0] if len(here) == 1 and here[0].id is None else None

    def _begins_another(self, call: _Call, delta: _Delta) -> bool:
        """Whether a delta that seems to continue a call begins another one."""
        if call.complete and delta.begins_object:
            return _object_begins_another(call, delta)
        if not delta.name or not call.names:
            return False
        if delta.id is not None and delta.id == call.id:
            return False
        if call.complete:
            named_once_more = call.waits_for_arguments or (call.id is not None and delta.id is None)
            return not named_once_more or delta.renames(call) or delta.stands_beside(call)
        if delta.renames(call):
            return self._are_two_names(call.name, delta)
        return delta.stands_beside(call) and not call.pieces and not delta.piece

    def _are_two_names(self, before: str, delta: _Delta) -> bool:
        """Whether a name that follows another one is that of another call, or a piece of the same."""
        if any(tool.startswith(before + delta.name) for tool in self._tools):
            return False
        return delta.index is None or before in self._tools

    def _united(self) -> list[_Call]:
        """The calls, with the deltas of one that came under several indexes, or twice, in one."""
        groups: list[list[_Call]] = []
        for call in self._calls:
            group = next((group for group in groups if _is_the_same(group[0], call)), None)
            if group is None:
                groups.append([call])
            else:
                group.append(call)
        return [call for group in groups for call in _one_or_several(group)]


class _Delta(NamedTuple):
    """What one delta says of a call; `piece` is of its arguments."""

    index: Any
    id: Any
    name: str
    piece: str

    @property
    def begins_object(self) -> bool:
        return self.piece.lstrip().startswith("{")

    def renames(self, call: _Call) -> bool:
        """Whether it has another name than a call."""
        return bool(self.name) and bool(call.names) and self.name != call.name

    def stands_beside(self, call: _Call) -> bool:
        """Whether it may be a call of its own, as Mistral sends whole calls: with a name, without an index."""
        return self.index is None and self.id is None and call.id is None and bool(self.name)


def _delta_of(item: RawCall) -> _Delta:
    function = item.get("custom") or item.get("function") or {}
    piece = function.get("arguments", function.get("input"))
    if piece is not None and not isinstance(piece, str):
        piece = json.dumps(piece, ensure_ascii=False, separators=(",", ":"))
    id = item.get("id")
    return _Delta(item.get("index"), None if id == "" else id, function.get("name") or "", piece or "")


class _Call:
    """What came for one call; pieces carry their place in the stream."""

    def __init__(self, index: object, id: object, began: int, tools: Collection[str]) -> None:
        self.index = index
        self.id = id
        self.began = began
        self._tools = tools
        self.names: list[tuple[int, str]] = []
        self.pieces: list[tuple[int, str]] = []
        self.custom = False
        self.extra_content: Any = None
        self.uncertain = False
        self._scan = _Scan()
        self._grows = True  # whether each piece so far begins with the one before
        self._last = self._scan

    def add(self, place: int, delta: _Delta) -> None:
        if delta.begins_object and self.waits_for_arguments:
            self.pieces = []  # `{}`, in whose place these come
            self._scan = _Scan()
            self._grows = True
        if delta.name:
            self.names.append((place, delta.name))
        piece = delta.piece
        if not piece:
            return
        self._grows = self._grows and piece.startswith(self.pieces[-1][1] if self.pieces else "")
        self.pieces.append((place, piece))
        if self.custom:
            return
        self._scan.feed(piece)
        if self._grows:
            self._last = _Scan()
            self._last.feed(piece)

    def take(self, other: _Call) -> None:
        """Add what came for another one."""
        self.names = sorted([*self.names, *other.names])
        self.pieces = sorted([*self.pieces, *other.pieces])
        self.extra_content = self.extra_content or other.extra_content
        self.uncertain = self.uncertain or other.uncertain

    @property
    def complete(self) -> bool:
        """Whether the arguments so far are a whole object, by their brackets."""
        if self._grows and len(self.pieces) > 1:
            return self._last.complete
        return self._scan.complete

    @property
    def waits_for_arguments(self) -> bool:
        """Whether `{}` came behind the name: it may stand for arguments that are still to come."""
        if not self.complete or not self.names or self.named_late:
            return False
        return _EMPTY_OBJECT.fullmatch(self.text) is not None

    def just_had(self, piece: str) -> bool:
        """Whether a piece is the arguments once more, as they came in the last delta."""
        return self._grows and bool(self.pieces) and self.pieces[-1][1] == piece

    def repeats(self, other: _Call) -> bool:
        """Whether it says what another call has said already."""
        return self.arguments == other.arguments and (not self.names or self.name == other.name)

    def shares_index(self, other: _Call) -> bool:
        """Whether a delta without an id may belong to either."""
        return self.index is None or other.index is None or self.index == other.index

    @property
    def named_late(self) -> bool:
        """Whether the name came behind arguments."""
        return bool(self.names) and bool(self.pieces) and self.names[0] > self.pieces[0]

    @property
    def has_none(self) -> bool:
        """Whether no arguments came, or `{}`."""
        return not self.custom and (not self.text.strip() or self.arguments == {})

    @property
    def is_lost(self) -> bool:
        """Whether arguments came that cannot be read, or whose call is not known."""
        if self.custom or not self.text.strip():
            return self.uncertain
        return self.uncertain or not self.names or self.arguments is None

    @property
    def text(self) -> str:
        return "".join(piece for _, piece in self.pieces)

    @property
    def whole_text(self) -> str:
        """The arguments as text, where deltas may repeat what came before, or begin with `{}`."""
        text = self.text
        if _object(text) is not None:
            return text
        pieces = [piece for _, piece in self.pieces if piece.strip()]
        grows = len(pieces) > 1 and all(after.startswith(before) for before, after in pairwise(pieces))
        if grows and _object(pieces[-1]) is not None:
            return pieces[-1]
        return _behind_empty_objects(text)

    @property
    def arguments(self) -> dict[str, Any] | None:
        """The arguments; None if they never came, or are no JSON object."""
        return _object(self.whole_text)

    @property
    def name(self) -> str:
        """The name: one that came several times counts once, pieces of one are joined."""
        names = [name for _, name in self.names]
        joined = "".join(names)
        repeated = names and all(name == names[0] for name in names)
        likely = [names[0], joined] if repeated else [joined, *reversed(names)]
        return next((name for name in likely if name in self._tools), likely[0])

    def raw(self) -> RawCall:
        name = self.name or None
        call: RawCall = {"id": self.id, "function": {"name": name, "arguments": self.whole_text}}
        if self.custom:
            call["custom"] = {"name": name, "input": self.text}
        if self.extra_content:
            call["extra_content"] = self.extra_content
        if self.uncertain:
            call["problem"] = _UNCERTAIN
        return call


class _Scan:
    """How far a JSON text has come that comes in pieces; each letter is looked at once."""

    def __init__(self) -> None:
        self.complete = False
        self._depth = 0
        self._quoted = False
        self._escaped = False

    def feed(self, piece: str) -> None:
        read = 1 if self._escaped else 0
        for match in _STRUCTURE.finditer(piece):
            if match.start() < read:
                continue
            mark = match[0]
            if mark == "\\":
                read = match.start() + 2
            elif mark == '"':
                self._quoted = not self._quoted
                self.complete = self.complete or (self._depth == 0 and not self._quoted)
            elif not self._quoted:
                self._depth += 1 if mark in "{[" else -1
                self.complete = self.complete or self._depth == 0
        self._escaped = read > len(piece)


def _object_begins_another(call: _Call, delta: _Delta) -> bool:
    """Whether an object that comes behind a whole one is that of another call."""
    if delta.renames(call):
        return True
    if call.just_had(delta.piece):
        return delta.stands_beside(call) and len(call.pieces) == 1
    return delta.stands_beside(call) or not call.waits_for_arguments


def _continued(here: list[_Call], delta: _Delta) -> _Call | None:
    """The call that a delta without an id continues: the one of its name, or the one that is not complete."""
    if delta.name:
        named = [call for call in here if call.names and call.names[-1][1] == delta.name]
        waiting = [call for call in named if not call.complete or call.waits_for_arguments]
    else:
        waiting = [call for call in here if not call.complete]
    if len(waiting) > 1 and delta.piece.strip():
        for call in waiting:
            call.uncertain = True
    last = waiting or here
    return last[-1] if last else None


def _is_the_same(first: _Call, call: _Call) -> bool:
    """Whether what came for a call may be more of another one: by the id, else by index and name."""
    if first.id is not None and call.id is not None:
        return bool(first.id == call.id)
    if not call.names or first.name != call.name:
        return False
    if first.index is not None and call.index is not None:
        return bool(first.index == call.index)
    return not call.text.strip() and first.arguments is not None  # the name once more, and nothing else


def _one_or_several(group: list[_Call]) -> list[_Call]:
    """One call where the deltas of a group make one, else those that differ."""
    first = group[0]
    if len(group) == 1:
        return group
    joined = _Call(first.index, first.id, first.began, first._tools)
    joined.custom = first.custom
    for call in group:
        joined.take(call)
    one_name = len({call.name for call in group if call.names}) < 2
    unreadable = all(call.arguments is None for call in group)
    if one_name and (unreadable or joined.arguments is not None):
        return [joined]
    kept: list[_Call] = []
    for call in group:
        if call.arguments is None:
            repeated = one_name and not call.text.strip()
        else:
            repeated = any(call.repeats(other) for other in kept)
        if not repeated:
            kept.append(call)
    return kept


def _with_their_pieces(calls: list[_Call]) -> list[_Call]:
    """The calls, with pieces that named no call given to the one call whose arguments are not complete."""
    found: list[_Call] = []
    for call in calls:
        named = [] if call.names else _named_before(call, found)
        waiting = [other for other in named if other.arguments is None and not other.custom]
        if len(waiting) == 1:
            waiting[0].take(call)
        elif waiting and call.text.strip():
            for other in waiting:
                other.uncertain = True
        elif not named or (call.text.strip() and not any(call.repeats(other) for other in named)):
            found.append(call)
    return found


def _named_before(call: _Call, found: list[_Call]) -> list[_Call]:
    """The calls with a name that pieces may belong to: those of their index, if there are some."""
    named = [other for other in found if other.names]
    return [other for other in named if other.index == call.index] or named


def _doubt(calls: list[_Call]) -> None:
    """Mark calls without arguments where those of their index were lost, and calls whose order is not known."""
    for call in calls:
        beside = [other for other in calls if other is not call and call.shares_index(other)]
        if call.has_none and any(other.is_lost for other in beside):
            call.uncertain = True
        if call.id is None and any(other.id is None and other.named_late for other in beside):
            call.uncertain = True


def _behind_empty_objects(text: str) -> str:
    """A text without `{}` before its object."""
    while (match := _EMPTY_OBJECT.match(text)) and text[match.end() :].startswith("{"):
        text = text[match.end() :]
    return text


def _object(text: str) -> dict[str, Any] | None:
    """The JSON object that a text is; None for anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
