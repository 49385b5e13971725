"""The conversation rebuilt from its trace: what it was at each moment, and who made and changed each message.

The trace holds every change, so applying its entries in order rebuilds the conversation. Everything that
reads a record (blame, resume, replay) uses this module.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, dropwhile, islice
from typing import Any

from connectagent.data import BEFORE_ANSWER, BEHIND_ANSWER, Content, LLMResponse, Message, ToolCall, TraceEntry
from connectagent.errors import ConfigError
from connectagent.session.journal import LINES, is_aside, place_of
from connectagent.session.lines import Change as Change
from connectagent.session.lines import Line as Line
from connectagent.session.lines import Messages, Said, UntilResumed
from connectagent.session.messages import assistant_message, is_valid, mended, place_of_result, user_message
from connectagent.session.moments import Moment
from connectagent.session.observers import is_by_observer
from connectagent.session.snapshot import By, clone
from connectagent.session.state import merge_change

NO_ANSWER = ("error", "interrupted")  # the status of a model call that put nothing into the conversation
_ASIDE = (*LINES, "shadow")  # entries that are written later than they happened, and change nothing
_BEFORE_CALLS = ("before_llm", "around_llm")
_BEGINNING: By = {"agent": "its beginning"}


@dataclass
class Round:
    """The calls of the newest tool round, with the arguments as handlers changed them."""

    calls: list[ToolCall]

    def change(self, changed: list[dict[str, Any]]) -> None:
        """Apply the names and arguments that handlers gave to calls."""
        calls = {call.id: call for call in self.calls}
        for now in changed:
            call = calls[now["id"]]
            call.name, call.arguments = now["name"], clone(now["arguments"])


class History:
    """A conversation rebuilt by applying trace entries.

    Args:
        system_prompt: the first message; "" for none.
        messages: what the conversation began with, if it was loaded from elsewhere; replaces the system prompt.
        state: the state that it began with.
        turn: the turn after which it began.
        changes: of the system prompt, by handlers, before the session began: `{"by", "before"}` each.

    Attributes:
        lines: the messages of the conversation, each with its changes.
        removed: removed messages, each with its changes.
        entries: the applied entries, in order.
        state: `current_session["state"]`.
        session: other keys of the session, set by handlers or tools.
        turn, iteration: where the conversation is.
        answer: a model's answer that is not in the conversation yet, or None.
        round: the newest tool round, or None if the newest answer asked for none.
    """

    def __init__(
        self,
        system_prompt: str = "",
        messages: list[Message] | None = None,
        state: dict[str, Any] | None = None,
        turn: int = 0,
        changes: Sequence[dict[str, Any]] = (),
    ) -> None:
        self._beginning = (system_prompt, messages, state, turn, changes)
        self.lines: list[Line] = []
        self.removed: list[Line] = []
        self.entries: list[TraceEntry] = []
        self.state: dict[str, Any] = dict(state or {})
        self.session: dict[str, Any] = {}
        self.turn, self.iteration = turn, 0
        self.answer: LLMResponse | None = None
        self.answered_by: By = {}
        self.round: Round | None = None
        self.touched = 0  # the lines before it are as they were at the last `moment()`
        self._moment: Moment[Said] = Moment([])
        self.until_resumed = UntilResumed()
        self._begin: Line | None = None  # the message with which the turn began
        self._state_before: dict[str, Any] | None = None  # as it was when the turn began, whose entries are applied
        for message in messages or ():
            self._insert(len(self.lines), _BEGINNING, message)
        if messages is None and system_prompt:
            self._begin_with(system_prompt, changes)

    def _begin_with(self, system_prompt: str, changes: Sequence[dict[str, Any]]) -> None:
        """Put the system prompt into the conversation, and how it came about."""
        texts = [*(change["before"] for change in changes), system_prompt]
        for text, by in zip(texts, [_BEGINNING, *(change["by"] for change in changes)], strict=True):
            message: Message = {"role": "system", "content": text}
            if self.lines:
                self._edit(0, by, message)
            elif text:
                self._insert(0, by, message)

    @property
    def messages(self) -> list[Message]:
        """The conversation."""
        return [line.message for line in self.lines]

    def moment(self) -> Moment[Said]:
        """The conversation as it is now; what is as it was at the last moment is not copied."""
        kept = min(self.touched, len(self._moment))
        tail = [(line.message, line.changes[-1].by, line, len(line.changes)) for line in self.lines[kept:]]
        if tail or kept < len(self._moment):
            self._moment = Moment(tail, self._moment, kept)
        self.touched = len(self.lines)
        return self._moment

    def extend(self, entries: Iterable[TraceEntry], *, closed: bool = True) -> None:
        """Apply entries of the trace, of one turn or several.

        Args:
            entries: as `current_session["trace"]` or a record has them.
            closed: whether the turn ended after them. Otherwise its last answer may not have reached the
                conversation yet, and stays in `answer`.
        """
        listed = list(entries)
        self._state_before = None
        for number, entry in enumerate(listed):
            if self._state_before is None and not is_by_observer(entry):  # the program's changes come before the turn
                self._state_before = dict(self.state)
            self._apply(entry)
            if self.answer is not None and entry.get("type") == "llm_call" and self._follows(listed, number, closed):
                self.take_answer()

    def take_answer(self) -> None:
        """Put the model's answer into the conversation."""
        if self.answer is not None:
            self._insert(len(self.lines), self.answered_by, assistant_message(self.answer))
            self._open_round()

    def before(self, turn: int, iteration: int = 0) -> History:
        """The history up to a turn, or up to the model call of one of its iterations.

        Raises:
            ConfigError: there is no such place.
        """
        now, places = 0, []
        for number, entry in enumerate(self.entries):
            kind = entry.get("type")
            now = entry["turn"] if kind == "user_input" else now
            place = (now, 0) if kind == "user_input" else (now, entry.get("iteration")) if kind == "llm_call" else None
            if place == (turn, iteration):
                while number and (self.entries[number - 1].get("by") or {}).get("hook") in _BEFORE_CALLS:
                    number -= 1  # these handlers run again
                history = History(*self._beginning)
                history.extend(self.entries[:number])
                return history
            places += [place] if place else []
        known = ", ".join(f"{a}.{b}" if b else str(a) for a, b in places)
        wanted = f"{turn}.{iteration}" if iteration else turn
        raise ConfigError(f"the record has no turn or iteration {wanted}; it has {known or 'none'}")

    def settle(self, messages: Iterable[Message]) -> None:
        """Take a turn's messages as they were written at its end, if the entries gave different ones.

        Messages may hold what the entries of a record cannot: objects, and half of a surrogate pair.
        """
        own = list(self._known(messages))
        first = len(self.lines) - len(own)
        ends = self.lines[max(first, 0) :]
        if [line.message.get("role") for line in ends] != [message.get("role") for message in own]:
            begun = (index for index, line in enumerate(self.lines) if line is self._begin)
            del self.lines[next(begun, max(first, 0)) :]
            self.touched = min(self.touched, len(self.lines))
            for message in own:
                self._insert(len(self.lines), {"agent": "not in the trace"}, message)
            return
        for line, message in zip(ends, own, strict=True):
            if line.message is not message and line.message != message:
                line.message, self.touched = message, min(self.touched, max(first, 0))

    def _known(self, messages: Iterable[Message]) -> Iterator[Message]:
        """A turn's messages; one that is as in the conversation is the same object, so that it is there once."""
        begun = (at for at in range(len(self.lines) - 1, -1, -1) if self.lines[at] is self._begin)
        for at, message in enumerate(messages, next(begun, len(self.lines))):
            there = self.lines[at].message if at < len(self.lines) else None
            yield there if there == message else message

    def settle_state(self, change: dict[str, Any]) -> None:
        """Take the change of the state, as it was written at its end, of the turn whose entries were applied last.

        The entries of parallel agents are in the order in which they finished, but their changes were merged in the
        order in which they were asked.
        """
        self.state = dict(self.state if self._state_before is None else self._state_before)
        merge_change(self.state, change)

    def _follows(self, entries: list[TraceEntry], number: int, closed: bool) -> bool:
        """Whether an answer's message came directly after its `llm_call`, without an entry of its own."""
        calls = [call.id for call in (self.answer.tool_calls if self.answer else None) or ()]
        behind = (one for one in islice(entries, number + 1, None) if id(one) not in self.until_resumed.void)
        others = (one for one in behind if one.get("type") not in _ASIDE or one.get("call_id") in calls)
        rest = dropwhile(lambda one: _watches(one) and one.get("type") not in BEFORE_ANSWER, others)
        if (first := next(rest, None)) is None:
            return closed
        if _watches(first):  # before the message, which then has its own entry
            return False
        following = (entry.get("type") for entry in chain([first], rest))
        return next((kind for kind in following if kind in ("llm_call", "user_input", "assistant")), "") != "assistant"

    def _apply(self, entry: TraceEntry) -> None:
        self.entries.append(entry)
        apply = getattr(self, f"_on_{entry.get('type')}", None)
        if entry.get("type") in ("llm_call", "change") and is_aside(entry):
            return
        if apply is not None:
            with contextlib.suppress(KeyError, IndexError, TypeError, ValueError, AttributeError):
                apply(entry)  # a handler may have put an entry of its own into the trace, in any form

    # -- one method for each type of entry that changes something --------------------------------

    def _on_user_input(self, entry: TraceEntry) -> None:
        self.turn, self.iteration = int(entry.get("turn") or self.turn + 1), 0
        self.answer = self.round = None
        self._insert(len(self.lines), {"user": "user"}, user_message(entry.get("content", entry.get("prompt", ""))))
        self._begin = self.lines[-1]

    def _on_llm_call(self, entry: TraceEntry) -> None:
        self.iteration = int(entry.get("iteration") or self.iteration)
        if entry.get("status") in NO_ANSWER:
            return
        self.answer = _response(entry, entry.get("provider_data"))
        made = entry.get("by") if entry.get("status") in ("stand_in", "recovered") else None  # else it asked again
        self.answered_by = made or {"model": entry.get("model")}
        self.round = None

    def _on_assistant(self, entry: TraceEntry) -> None:
        self._insert(entry["index"], self.answered_by, entry["message"])
        self._open_round()

    def _on_change(self, entry: TraceEntry) -> None:
        of, by = entry.get("of"), entry.get("by") or {}
        value: Any = entry.get("value")
        if of == "response" and self.answer is not None:
            self._answer(value, by)
        elif of == "result" and by.get("hook") == "after_each_tool":
            self._result(entry["call_id"], value, by)
        elif of == "tool_execution":
            self._result(entry["call_id"], value.get("result"), by)
        elif of == "llm_call":
            self._answer(value, by)
            self.round = None
        elif of in ("tool_call", "tool_calls") and self.round is not None:
            self.round.change(value if isinstance(value, list) else [value])

    def _on_tool_execution(self, entry: TraceEntry) -> None:
        by = entry.get("by")
        if by is None:
            not_run = entry.get("held", entry.get("status")) in ("skipped", "not_found", "rejected")
            by = {"plugin": "connectagent"} if not_run else {"tool": entry.get("tool_name")}
        self._result(entry["call_id"], entry.get("result"), by)

    def _on_resumed(self, entry: TraceEntry) -> None:
        self._touch(self.until_resumed.leave(self.lines, self.entries, self.turn))

    def _on_message(self, entry: TraceEntry) -> None:
        self._insert(entry["index"], entry.get("by") or {}, entry["message"])

    def _on_message_edited(self, entry: TraceEntry) -> None:
        self._edit(entry["index"], entry.get("by") or {}, entry["message"])

    def _on_message_removed(self, entry: TraceEntry) -> None:
        if id(entry) in self.until_resumed.void:
            self._touch(self.until_resumed.remove(self.lines, entry["index"]))
        else:
            self._remove(entry["index"], entry.get("by") or {})

    def _on_mended(self, entry: TraceEntry) -> None:
        lines = {id(line.message): line for line in self.lines}
        messages, by = self.messages, {"plugin": "connectagent"}
        if is_valid(messages):
            return
        before, self.lines, self.touched = self.lines, [], 0
        for message in mended(messages):
            line = lines.pop(id(message), None)
            if line is None:
                self._insert(len(self.lines), by, message)
            else:
                self.lines.append(line)
        for index, line in enumerate(before):
            if id(line.message) in lines and id(entry) in self.until_resumed.void:
                self.until_resumed.keep(line, before[:index])
            elif id(line.message) in lines:
                line.changes.append(self._change("removed", by, None))
                self.removed.append(line)

    def _on_state_delta(self, entry: TraceEntry) -> None:
        for key, value in (entry.get("delta") or {}).items():
            if key in (entry.get("removed") or ()):
                self.state.pop(key, None)
            else:
                self.state[key] = clone(value)

    def _on_agent_turn(self, entry: TraceEntry) -> None:
        merge_change(self.state, entry)

    def _on_session_delta(self, entry: TraceEntry) -> None:
        self.session.update(clone(entry.get("delta") or {}))

    # -- the changes themselves ------------------------------------------------------------------

    def _open_round(self) -> None:
        calls, self.answer = (self.answer.tool_calls if self.answer else None) or [], None
        self.round = Round(calls) if calls else None

    def _answer(self, value: dict[str, Any], by: By) -> None:
        self.answer, self.answered_by = _response(value, value.get("provider_data")), by

    def _result(self, call_id: str, content: Content, by: By) -> None:
        index, there = place_of_result(Messages(self.lines), call_id)
        if there is not None and index is not None:
            self._edit(index, by, {**there, "content": content})
        elif index is not None:
            self._insert(index, by, {"role": "tool", "tool_call_id": call_id, "content": content})

    def _change(self, did: str, by: By, message: Message | None) -> Change:
        return Change(did, by, len(self.entries) - 1, self.turn, self.iteration, message)

    def _touch(self, index: int) -> None:
        self.touched = min(self.touched, max(index, 0))  # a handler's own entry may count from the end

    def _insert(self, index: int, by: By, message: Message) -> None:
        message = clone(message)
        self._touch(index)
        self.lines.insert(index, Line(message, [self._change("added", by, message)]))

    def _edit(self, index: int, by: By, message: Message) -> None:
        line = self.lines[index]
        self._touch(index)
        line.message = clone(message)
        line.changes.append(self._change("edited", by, line.message))

    def _remove(self, index: int, by: By) -> None:
        line = self.lines.pop(index)
        self._touch(index)
        line.changes.append(self._change("removed", by, None))
        self.removed.append(line)


def _watches(entry: TraceEntry) -> bool:
    """Whether an entry comes from a handler between a model's answer and its message, or from what one asked for."""
    place = place_of(entry).rpartition("/turn:")  # of the turn itself, which has the entries that close inner ones
    own = place[0].rpartition("/turn:")[2] if entry.get("type") == "agent_turn" else place[2]
    return (entry.get("by") or {}).get("hook") in BEHIND_ANSWER or "/after_llm/" in own


def _response(value: dict[str, Any], provider_data: dict[str, Any] | None) -> LLMResponse:
    calls = [ToolCall(**clone(call)) for call in value.get("tool_calls") or ()]
    return LLMResponse(value.get("content"), calls or None, provider_data=clone(provider_data))


def as_session(history: History, trace: list[TraceEntry], last: dict[str, Any] | None = None) -> dict[str, Any]:
    """`current_session` as it was.

    Args:
        history: the conversation.
        trace: all entries, later ones too.
        last: the summary of the last turn, if it ended.
    """
    restored = {key: value for key, value in history.session.items() if key not in _LOOPS}
    prompts = (entry.get("prompt") for entry in reversed(trace) if entry.get("type") == "user_input")
    restored.update(messages=history.messages, trace=trace, state=history.state)
    restored.update(turn=history.turn, iteration=history.iteration, user_prompt=next(prompts, ""))
    if last and last.get("status"):
        restored.update(result=last.get("result"), outcome=last["status"])
    return restored


# The loop's own keys.
_LOOPS = ("id", "turn", "iteration", "user_prompt", "pending_tool", "pending_tools", "result", "outcome")
