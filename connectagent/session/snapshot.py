"""A snapshot of the session, compared with it before and after handlers and tools to find who changed what.

The snapshot equals the session whenever a handler or tool is about to run. Afterwards one comparison finds
whether anything changed (about 0.1 microseconds a message, since unchanged strings are the same objects).
If a handler raises, its changes are rolled back to the snapshot.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

from connectagent.data import LLMRequest, LLMResponse, Message, ToolCall, TraceEntry
from connectagent.errors import HookResultError
from connectagent.session.messages import message_problem
from connectagent.session.state import clone, copy_of, joined, state_delta
from connectagent.session.state import same as same  # for modules that compare clones
from connectagent.session.trace import FollowedTrace

By = dict[str, Any]


class Snapshot:
    """A copy of the session, up to date whenever handlers or tools begin to run.

    The loop changes messages through methods of the snapshot and everything else freely; `sync` copies the
    latter before a handler or tool runs.
    """

    def __init__(self, session: dict[str, Any], start: int | None = None) -> None:
        if problem := session_problem(session):
            raise HookResultError(f"current_session cannot be used: {problem}")
        self.session = session
        self.messages: list[Message] = session["messages"]  # the list objects must stay the same
        self.trace: list[TraceEntry] = session["trace"]
        self.take()
        self.traced = FollowedTrace(self.trace, start)

    def take(self) -> None:
        """Copy the whole session."""
        # Of each message what stands for it in digests, as far as it was needed.
        self.marks: list[bytes | None] = [None] * len(self.messages)
        self.marked = 0  # the messages before it are as they were when a digest was made last
        self.originals = list(self.messages)
        self.valid = 0  # how many messages from the start are known to be valid: see `Conversation.mend`
        messages, state = list(map(clone, self.messages)), copy_of(self.session["state"])
        self.copy: dict[str, Any] = {"messages": messages, "state": state}
        self.deltas: dict[int, dict[str, Any]] = {}  # by id(by): what its call has changed in the state
        self.sync()

    def _replaced(self, start: int, end: int, count: int) -> None:
        """Note that so many messages are in place of those from `start` to `end`."""
        self.marks[start:end] = [None] * count
        self.marked = min(self.marked, start)

    def insert(self, message: Message, index: int | None = None) -> None:
        """Add a message to the conversation and to the snapshot, at the end or before `index`."""
        index = len(self.messages) if index is None else index
        self.messages.insert(index, message)
        self.originals.insert(index, message)
        self.copy["messages"].insert(index, clone(message))
        self.marks.insert(index, None)
        self.marked = min(self.marked, index)
        self.valid = min(self.valid, index)

    def set_content(self, message: Message, content: Any) -> None:
        """Change the content of a message of the conversation."""
        message["content"] = content
        for index in range(len(self.originals) - 1, -1, -1):
            if self.originals[index] is message:
                self.copy["messages"][index]["content"] = clone(content)
                self._replaced(index, index + 1, 1)
                return

    def replace(self, message: Message, other: Message) -> None:
        """Replace the content of a message by that of another one; the message stays the same object."""
        for index, original in enumerate(self.originals):
            if original is message:
                message.clear()  # type: ignore[attr-defined]  # a TypedDict is a dict at run time
                message.update(clone(other))
                self.copy["messages"][index] = clone(other)
                self._replaced(index, index + 1, 1)
                self.valid = min(self.valid, index)
                return

    def remove(self, index: int) -> None:
        """Take a message out of the conversation."""
        del self.messages[index], self.originals[index], self.copy["messages"][index]
        self._replaced(index, index + 1, 0)
        self.valid = min(self.valid, index)

    def remove_one(self, message: Message) -> None:
        """Take a message out of the conversation, if it is there."""
        index = next((index for index, one in enumerate(self.messages) if one is message), None)
        if index is not None:
            self.remove(index)

    def sync(self) -> None:
        """Copy what the loop changed, except messages and state, which have methods of their own."""
        copy, session = self.copy, self.session
        if len(copy) != len(session):
            for key in copy.keys() - session:
                del copy[key]
        copy["trace"] = self.trace
        for key, value in session.items():
            if value is copy.get(key, self) or key == "messages" or key == "state" or key == "trace":
                continue
            if type(value) is not dict and type(value) is not list:
                copy[key] = value
            elif not same(value, copy.get(key)):  # a comparison costs a tenth of a copy
                copy[key] = clone(value)

    def unchanged(self) -> bool:
        """Whether the session is what it was at the last `sync`."""
        session = self.session
        if session.get("messages") is not self.messages or session.get("trace") is not self.trace:
            return False  # an equal copy would hide what the loop adds
        trace, traced = self.trace, self.traced
        start = traced.start
        if len(trace) != start + len(traced.copies) or (start and trace[start - 1] is not traced.past[-1]):
            return False
        try:
            return bool(session == self.copy and trace[start:] == traced.copies)
        except Exception:  # something that cannot be compared, like an array
            return False

    def has_strayed(self) -> bool:
        """Whether messages, state or trace changed while only the loop was running."""
        session, copy, traced = self.session, self.copy, self.traced
        kept = same(session.get("messages"), copy["messages"]) and same(session.get("state"), copy["state"])
        return not kept or not same(self.trace[traced.start :], traced.copies)

    def restore(self) -> None:
        """Put the session back to what it was at the last `sync`; lists and messages stay the same objects."""
        for original, copy in zip(self.originals, self.copy["messages"], strict=True):
            if not same(original, copy):
                original.clear()  # type: ignore[attr-defined]  # a TypedDict is a dict at run time
                original.update(clone(copy))
        self.messages[:] = self.originals
        self.traced.restore()
        kept = {key: clone(value) for key, value in self.copy.items() if key != "state"}
        kept["state"] = copy_of(self.copy["state"])
        state = self.session.get("state")
        self.session.clear()
        self.session.update(kept, messages=self.messages, trace=self.trace)
        if isinstance(state, dict):
            state.clear()
            state.update(kept["state"])
            self.session["state"] = state

    def changes(self, by: By) -> list[TraceEntry]:
        """The trace entries for what has changed since the last `sync`; brings the snapshot up to date.

        Raises:
            HookResultError: the session has a form that no provider would accept.
        """
        session, copy = self.session, self.copy
        self._check_containers(by)
        added = self.traced.added(_who(by))
        try:  # everything that can fail comes first: `restore` needs the old snapshot
            state, delta = copy["state"], {}
            if not same(session["state"], state):
                state, delta = copy_of(session["state"]), state_delta(state, session["state"])
            keys = {*session, *copy} - {"messages", "state", "trace"}
            changed = {key: clone(session.get(key)) for key in keys if not same(session.get(key), copy.get(key))}
            for entry in added:
                for key in ("at", "author", "branch"):  # as `by`: not taken from the handler
                    entry.pop(key, None)
                entry["by"] = by
            copies = clone(added)
            entries = self._message_changes(by)
        except RecursionError:
            raise HookResultError(f"{_who(by)} left the session nested too deep, or in a circle") from None
        copy["state"] = state
        if delta:
            entries.append({"type": "state_delta", "by": by, **delta})
            self.deltas[id(by)] = joined(self.deltas.get(id(by), {}), delta)
        if changed:
            entries.append({"type": "session_delta", "by": by, "delta": changed})
        if restored := self.traced.take(added, copies):
            entries.append({"type": "trace_restored", "by": by, "entries": restored})
        self.sync()
        return [*added, *entries]

    def _message_changes(self, by: By) -> list[TraceEntry]:
        """Entries that turn the old messages into the new ones, applied in order."""
        old, new = self.copy["messages"], self.messages
        first, shorter = 0, min(len(old), len(new))
        while first < shorter and same(old[first], new[first]):
            first += 1
        last = 0
        while last < shorter - first and same(old[-1 - last], new[-1 - last]):
            last += 1
        gone, come = old[first : len(old) - last], new[first : len(new) - last]
        for message in come:
            if problem := message_problem(message):
                raise HookResultError(f"{_who(by)} left a message that no model accepts, {message!r}: {problem}")
        kept = _kept(self.originals[first : len(old) - last], come)
        come = clone(come)
        entries: list[TraceEntry] = []
        at, start = 0, 0
        for was, now in [*kept, (len(gone), len(come))]:
            entries += _edits(by, first + start, gone[at:was], come[start:now])
            if now < len(come) and not same(gone[was], come[now]):
                entries.append({"type": "message_edited", "by": by, "index": first + now, "message": come[now]})
            at, start = was + 1, now + 1
        if gone or come:
            self.valid = min(self.valid, first)
            self._replaced(first, len(old) - last, len(come))
        old[first : len(old) - last] = clone(come)
        self.originals = list(new)
        return entries

    def _check_containers(self, by: By) -> None:
        session, who = self.session, _who(by)
        messages = session.get("messages")
        if messages is not self.messages:
            if not isinstance(messages, list):
                raise HookResultError(f"{who} left current_session['messages'] as {messages!r}; it must stay a list")
            self.messages[:] = messages
            session["messages"] = self.messages
        if session.get("trace") is not self.trace:
            raise HookResultError(f"{who} replaced current_session['trace']; append to it instead")
        if not isinstance(session.get("state"), dict):
            state = session.get("state")
            raise HookResultError(f"{who} left current_session['state'] as {state!r}; it must stay a dict")
        for key in ("turn", "iteration"):
            if not isinstance(session.get(key), int | float):  # 1.0 and True are equal to 1, and as good
                value = session.get(key)
                raise HookResultError(f"{who} left current_session[{key!r}] as {value!r}; it must stay an int")


def fresh_session(system_prompt: str) -> dict[str, Any]:
    """A session in which nothing was said yet."""
    messages = [{"role": "system", "content": system_prompt}] if system_prompt else []
    session = {"messages": messages, "trace": [], "turn": 0, "iteration": 0, "user_prompt": "", "pending_tool": None}
    return {**session, "pending_tools": None, "result": None, "outcome": None, "state": {}}


def session_problem(session: dict[str, Any]) -> str | None:
    """Why a dict cannot be a session, or None if it can."""
    for key, kind in (("messages", list), ("trace", list), ("state", dict), ("turn", int), ("iteration", int)):
        if type(session.get(key)) is not kind:
            return f"its {key!r} must be a {kind.__name__}, not {session.get(key)!r:.80}"
    for message in session["messages"]:
        if problem := message_problem(message):
            return f"{problem}, not {message!r:.80}"
    return None


def _kept(old: list[Message], new: list[Message]) -> list[tuple[int, int]]:
    """The old and new places of the messages that remain in the same order in both lists."""
    places = {id(message): index for index, message in enumerate(old)}
    ends: list[int] = []  # by length: the old place at which the best chain so far ends
    chains: list[tuple[Any, ...]] = []  # (old place, new place, the chain before)
    for now, message in enumerate(new):
        was = places.pop(id(message), None)
        if was is not None:
            length = bisect_left(ends, was)
            ends[length : length + 1] = [was]
            chains[length : length + 1] = [(was, now, chains[length - 1] if length else None)]
    kept, chain = [], chains[-1] if chains else None
    while chain:
        kept.append(chain[:2])
        chain = chain[2]
    return kept[::-1]


def _edits(by: By, first: int, gone: list[Message], come: list[Message]) -> list[TraceEntry]:
    """Entries that replace some messages by others."""
    edits = min(len(gone), len(come))
    entries: list[TraceEntry] = []
    for index in range(edits):
        if not same(gone[index], come[index]):
            entries.append({"type": "message_edited", "by": by, "index": first + index, "message": come[index]})
    for index in range(len(gone) - 1, edits - 1, -1):
        entries.append({"type": "message_removed", "by": by, "index": first + index})
    for index in range(edits, len(come)):
        entries.append({"type": "message", "by": by, "index": first + index, "message": come[index]})
    return entries


def _who(by: By) -> str:
    return f"{by.get('handler') or by.get('tool') or by.get('plugin')} ({by.get('file')}:{by.get('line')})"


# -- the arguments of a hook ---------------------------------------------------------------------

_EDITABLE = frozenset({"tool_call", "tool_calls", "request", "response"})


def peek(arguments: dict[str, Any]) -> dict[str, Any]:
    """A comparable copy of the arguments that a handler may edit."""
    peeked = {}
    for name in arguments:
        if name in _EDITABLE:
            peeked[name] = peek_one(arguments[name])
    return peeked


def is_as_before(then: Any, value: Any) -> bool:
    """Whether one such argument is what it was when `peek_one` copied it."""
    return same(then, _form(value))


def peek_one(value: Any) -> Any:
    """A comparable copy of one such argument."""
    if isinstance(value, LLMRequest) and not same(value._tools_seen, value.tools):  # comparing costs less than a copy
        value._tools_seen = clone(value.tools)
    return _form(value, clone)


def _form(value: Any, copied: Callable[[Any], Any] | None = None) -> Any:
    """What is compared of one such argument; `copied` copies what can be edited in place."""
    if isinstance(value, ToolCall):
        return value.id, value.name, copied(value.arguments) if copied else value.arguments, value.approved, value
    if isinstance(value, list):
        return [_form(call, copied) or (None, None, None, False, call) for call in value]
    if isinstance(value, LLMResponse):
        data = copied(value.provider_data) if copied else value.provider_data
        return value.content, _form(value.tool_calls, copied), data, value
    if isinstance(value, LLMRequest):
        tools, options = (value._tools_seen, copied(value.options)) if copied else (value.tools, value.options)
        return id(value.messages), value.model, tools, options, value.messages, value
    return None


def peek_value(value: Any) -> Any:
    """A comparable copy of a value that a handler may edit and return."""
    return peek_one(value) if isinstance(value, LLMResponse) else clone(value)


def unless_same(given: Any) -> Callable[[Any], Any]:
    """A function that maps the given value to None if it is unedited, and any other value to itself."""
    before = peek_value(given)
    return lambda value: None if value is given and same(before, peek_value(value)) else value


def put_back(before: dict[str, Any]) -> None:
    """Undo a handler's edits of its arguments; the objects stay the same."""
    for then in before.values():
        value = then[-1] if isinstance(then, tuple) else None
        if isinstance(value, ToolCall):
            _put_call_back(then)
        elif isinstance(value, LLMResponse):
            value.content, value.provider_data = then[0], clone(then[2])
            value.tool_calls = None if then[1] is None else _put_calls_back(then[1])
        elif isinstance(value, LLMRequest):
            value.messages, value.model, value.tools, value.options = then[4], then[1], clone(then[2]), clone(then[3])
        elif isinstance(then, list):
            _put_calls_back(then)


def _put_calls_back(then: list[Any]) -> list[Any]:
    for call in then:
        _put_call_back(call)
    return [call[-1] for call in then]


def _put_call_back(then: tuple[Any, ...]) -> None:
    if isinstance(call := then[-1], ToolCall):
        call.id, call.name, call.approved = *then[:2], then[3]
        if not same(call.arguments, then[2]):
            call.arguments = clone(then[2])


def other_calls(then: Any, now: Any) -> str | None:
    """Why the calls are not the ones that the model made, or None. Each result must find its call."""
    if not isinstance(now, ToolCall | list):
        return None
    old, new = (side if isinstance(side, list) else [side] for side in (then, peek_one(now)))
    kept = [call[0] for call in old] == [call[0] for call in new]
    if kept and [call[3] for call in old] != [call[3] for call in new]:
        return "approval is decided by a person, with resume()"
    return None if kept else "calls keep their ids and their number; raise ToolRejected to refuse one"


def as_data(value: Any) -> Any:
    """A value as a trace entry shows it."""
    if isinstance(value, ToolCall):
        return {"id": value.id, "name": value.name, "arguments": clone(value.arguments)}
    if isinstance(value, list) and value and isinstance(value[0], ToolCall):
        return [as_data(call) for call in value]
    if isinstance(value, LLMResponse):
        answer = {"content": value.content, "tool_calls": [as_data(call) for call in value.tool_calls or ()]}
        return {**answer, "provider_data": clone(value.provider_data)} if value.provider_data else answer
    if isinstance(value, LLMRequest):
        options = {"options": shown_options(value.options)} if value.options else {}
        return {"model": value.model, "messages": len(value.messages), "tools": len(value.tools), **options}
    return clone(value)


def shown_options(options: dict[str, Any]) -> dict[str, Any]:
    """Options of a request as a trace entry shows them: without the values of headers, which may be keys."""
    shown: dict[str, Any] = clone(options)
    if isinstance(headers := shown.get("extra_headers"), dict):
        shown["extra_headers"] = dict.fromkeys(headers, "***")
    return shown
