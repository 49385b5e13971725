"""The conversation, changed by the loop: each change goes to the session, the snapshot and the trace."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any

from connectagent.data import BEFORE_ANSWER, Content, LLMRequest, Message, ToolCall, TraceEntry
from connectagent.errors import HookResultError
from connectagent.session.changes import session_problem, take_changes
from connectagent.session.lost_updates import Copy, LostWrite, StateWrites, lost_update
from connectagent.session.messages import (
    LEFT_OUT,
    is_open,
    is_valid,
    mended,
    message_problem,
    place_of_result,
    says_nothing,
    sendable,
)
from connectagent.session.observers import OWN, PROGRAM, around_tool_at, by_agent, is_by_observer
from connectagent.session.prompt import Prompt, last_filled
from connectagent.session.repeats import Repeats
from connectagent.session.snapshot import By, Snapshot, clone, copy_of, same
from connectagent.session.state import (
    StateChange,
    drop_temporary,
    lasting,
    merge_change,
    mergeable,
    state_change,
    state_delta,
)
from connectagent.session.surroundings import PendingEntries, Surroundings, threads

# What a new session has besides its messages, its trace and its state.
_AT_FIRST = {"turn": 0, "iteration": 0, "user_prompt": "", "pending_tool": None, "pending_tools": None}
_AT_FIRST |= {"result": None, "outcome": None}


class Conversation:
    """One session, and the methods by which the loop changes it.

    Args:
        around: the agent's side, which is notified of changes.
        name: the agent's name.
        system_prompt: the first message; "" for none.
        session: a session to continue, for example a stored one; missing keys are filled in.
        state: the initial state of a session without one; None: the prompt's placeholders may stay open.
        labels: keys that each entry of the trace carries.

    Raises:
        HookResultError: the given session cannot be used.

    Attributes:
        changed: whether messages were changed, or a handler failed, since the model answered.
        announced: how many entries of the trace were announced so far.
        begins_behind: how many entries the trace had at the beginning.
        sent: what the newest model call was sent, as the loop keeps it.
        instead: by a text of the conversation: the text that a record has in its place.
        dropped: the `temp:` state of the last turn.
        repeats: what a resumed turn is expected to do again.
        refused_tools: by model, the keys and names of tools whose schemas it has refused; None: not looked up.
        heard: `session["heard"]` before each turn that began by a handoff, by the turn's place.
    """

    changed = False
    home: Any = None  # the log that has all of its turns
    repeats: Repeats | None = None
    dropped: dict[str, Any]
    heard: dict[str, dict[str, int]]
    sent: dict[str, Any]
    instead: dict[str, str]
    refused_tools: dict[str, dict[str, str | None]] | None = None

    def __init__(
        self,
        around: Surroundings,
        name: str,
        system_prompt: str,
        session: dict[str, Any] | None = None,
        state: dict[str, Any] | None = None,
        labels: dict[str, str] | None = None,
    ) -> None:
        self._around, self._running = around, around.boundary
        self.name, self.labels = name, labels or {}
        self._pending = PendingEntries()
        messages = [{"role": "system", "content": system_prompt}] if system_prompt else []
        self.session: dict[str, Any] = {} if session is None else session
        begins = "state" not in self.session
        for key, value in {"messages": messages, "trace": [], **_AT_FIRST, "state": {}}.items():
            self.session.setdefault(key, value)
        if session is not None and (problem := session_problem(session)):
            raise HookResultError(f"current_session cannot be used: {problem}")
        trace = self.session["trace"]
        self.announced, self.begins_behind = 0, len(trace)
        self.prompt = Prompt(system_prompt, state is not None)
        self.snapshot = Snapshot(self.session)
        first = None if session is None else clone(session["messages"])
        self.begun = self.beginning = (system_prompt, first, self.snapshot.copy["state"], self.session["turn"])
        self._filled = last_filled(trace, system_prompt) if trace else system_prompt
        if begins and state:  # after the snapshot, so that it is traced as a change by the program
            self.session["state"].update(copy_of(state))
        self.unmerged: list[tuple[By, StateChange]] = []  # the changes of inner agents whose turns wait
        self.writes = StateWrites()
        self.snapshot.on_state = self._note_writes
        self.dropped, self.heard, self.sent, self.instead = {}, {}, {}, {}
        self.refused_tools = None if trace else {}

    def _settle(self) -> None:
        """Trace what others have changed so far, before the loop changes something."""
        running = self._running
        if running.running or running.alive or threads():
            running.settle()

    def take_over(self) -> None:
        """Trace what the program changed since the last turn.

        Raises:
            HookResultError: it left something that no provider accepts; the change is undone.
        """
        self.session.update(pending_tool=None, pending_tools=None)
        self.snapshot.sync()
        if not self.snapshot.unchanged():
            self.announce(*take_changes(self.snapshot, PROGRAM))
        if restored := self.snapshot.traced.begin_round():
            self.announce(restored)

    def take_changes(self, by: By = PROGRAM) -> None:
        """Trace what the program changed during a turn; raises as `take_over` does."""
        self._around.keep_session(self.session)  # it may be changed, not replaced
        if not self.snapshot.unchanged():
            self.announce(*take_changes(self.snapshot, by))

    def begin_turn(self, prompt: str) -> None:
        """Start the next turn.

        Raises:
            ConfigError: the system prompt needs state that is missing; nothing has begun.
        """
        self.take_over()
        self.state_before = self.snapshot.copy["state"]  # replaced with each change, never modified
        self.writes = StateWrites()
        if self.unmerged:
            self._merge_waiting()
        messages, state, filled = self.snapshot.copy["messages"], self.session["state"], self._filled
        system = messages[0] if messages and messages[0]["role"] == "system" else None
        if system and system["content"] == filled:  # one that was edited stays as it is
            filled = self.prompt.fill(state, self.name)
        self.session["turn"] += 1
        self.session.update(iteration=0, user_prompt=prompt, result=None, outcome=None)
        if system and filled != self._filled:
            self._filled = filled
            self.snapshot.set_content(self.snapshot.originals[0], filled)
            recorded = self.prompt.as_data(state)
            self.instead = {} if recorded == filled else {filled: recorded}
            message = {**system, "content": recorded}
            self.trace({"type": "message_edited", "by": OWN, "index": 0, "message": message})
        self.mend()

    def end_turn(self) -> None:
        """Clear the pending calls and the `temp:` state of the turn."""
        self.repeats = None
        self.session.update(pending_tool=None, pending_tools=None)
        state, self.dropped = self.session.get("state"), {}
        if state and isinstance(state, dict):
            before = dict(state)
            if drop_temporary(state):
                self.dropped = {key: before[key] for key in before if key not in state}
                self.snapshot.copy["state"] = copy_of(state)
        self.snapshot.sync()

    def beginning_for(self, log: object, system_prompt: str, own_state: bool) -> dict[str, Any]:
        """What the conversation begins with, as far as a log does not have it; {} if it has everything."""
        if self.home is log:
            return {}
        self.home = log
        begins = {"messages": self.session["messages"], "turn": self.session["turn"]}
        begins |= {"state": state} if own_state and (state := lasting(self.session["state"])) else {}
        system = [{"role": "system", "content": system_prompt}] if system_prompt else []
        if not begins["turn"] and begins["messages"] == system and "state" not in begins:
            return {"system_prompt": system_prompt} if system_prompt else {}
        return {"begins_with": clone(begins), "system_prompt": system_prompt}

    # -- messages and state --------------------------------------------------------------------

    def append(self, message: Message, by: By | None = None) -> None:
        """Add a message at the end; `by` says whose it is, if not the user's or the model's.

        A model's answer has no entry but its `llm_call`, unless messages were changed meanwhile or a handler failed:
        then another one says where it is. An answer that asks for tools begins a round of the trace.
        """
        self._settle()
        index = len(self.snapshot.originals)
        self.snapshot.insert(message)
        own = self.snapshot.copy["messages"][index]  # which no thread can change
        if by is not None:
            entry = {"type": "message", "by": by, "index": index, "message": clone(own)}
            self.trace({**entry, **self.changed_by(by)}, settled=True)
        elif own["role"] == "assistant" and self.changed:
            self.trace({"type": "assistant", "index": index, "message": clone(own)}, settled=True)
        if by is None and "tool_calls" in own and (restored := self.snapshot.traced.begin_round()):
            self.announce(restored)

    def set_state(self, wanted: dict[str, Any], by: By) -> None:
        """Make the state equal to another agent's."""

        def become(state: dict[str, Any]) -> None:
            state.clear()
            state.update(copy_of(wanted))

        self._change_state(become, by)

    def set_key(self, key: str, value: object, by: By) -> None:
        """Set one key of the state."""
        self._change_state(lambda state: state.update({key: value}), by)

    def _change_state(self, change: Callable[[dict[str, Any]], Any], by: By) -> None:
        self._settle()
        state, before = self.session["state"], self.snapshot.copy["state"]
        change(state)
        delta = state_delta(before, state)
        self.snapshot.copy["state"] = copy_of(state)
        if delta:
            self.trace({"type": "state_delta", "by": by, **delta})

    def merge(self, change: StateChange, by: By, copy: Copy | None = None) -> list[LostWrite]:
        """Merge an inner agent's changes of the state, which its closing entry records.

        Args:
            change: the changes.
            by: the agent.
            copy: the copy of the state that it changed; None where it worked on the state as it is.

        Returns:
            What others wrote to the state since it was copied, and is overwritten.
        """
        if not any(change.get(key) for key in ("delta", "appended", "inside", "removed")):
            return []
        self._settle()
        before = self.snapshot.copy["state"]
        merge_change(self.session["state"], change)
        self.snapshot.copy["state"] = copy_of(self.session["state"])
        if copy is None:
            self._note_writes(by, before)
            return []
        return self.writes.note(change, by, self.snapshot.copy["state"], copy)

    def _merge_waiting(self) -> None:
        """Merge the changes of inner agents whose turns wait and are given up; they worked at the same time."""
        together = self.writes.copied()
        while self.unmerged:
            by, change = self.unmerged.pop(0)
            if lost := self.merge(change, by, self.writes.oldest()):
                self.trace(lost_update(by, lost))
        together.close()

    def merge_traced(self, change: StateChange, by: By, copy: Copy | None) -> list[LostWrite]:
        """As `merge`, and trace the changes, as those of a tool."""
        lost: list[LostWrite] = []

        def merge(state: dict[str, Any]) -> None:
            merge_change(state, change)
            if copy is not None:
                lost.extend(self.writes.note(change, by, copy_of(state), copy))

        self._change_state(merge, by)
        return lost

    def _note_writes(self, by: By, before: dict[str, Any]) -> None:
        if self.writes.are_noted:
            now = self.snapshot.copy["state"]
            self.writes.note(state_change(before, now), by, now)

    def reapply(self, changes: Iterable[TraceEntry]) -> None:
        """Apply the changes of messages and state in entries of the log."""
        snapshot, messages = self.snapshot, self.session["messages"]
        for entry in changes:
            kind, index = entry.get("type"), entry.get("index", 0)
            self.changed = self.changed or kind in BEFORE_ANSWER
            if kind in ("message", "assistant"):
                snapshot.insert(clone(entry["message"]), index)
            elif kind == "message_edited" and index < len(messages):  # it may have been of a step that is void
                snapshot.replace(messages[index], entry["message"])
            elif kind == "message_removed" and index < len(messages):
                snapshot.remove(index)
            elif kind == "mended":
                self.mend(silently=True)
            elif kind == "state_delta":
                self.merge(mergeable(entry), entry.get("by") or {})
            elif kind == "agent_turn":
                self.merge(entry, by_agent(entry))
            elif kind == "session_delta":
                self.session.update(clone(entry.get("delta") or {}))
        snapshot.sync()

    # -- the trace -----------------------------------------------------------------------------

    def trace(
        self, entry: TraceEntry, at: str | None = None, since: int | None = None, *, settled: bool = False
    ) -> None:
        """Add an entry to the trace and announce it.

        Args:
            entry: the entry.
            at: its place, where it is known.
            since: of a model call: `announced` when its request was sent.
            settled: whether the entry tells what was just done to the messages, so that no change of a thread may be
                told between.
        """
        if self.repeats is not None and self.repeats.has(entry, self._around.place()):
            return
        if not settled:
            self._settle()
        if since is not None and self.announced > since:  # threads may have changed something just now
            entry["entries_since_request"] = self.announced - since
        if self._running.pending:
            self._running.announce_pending()
        self._emit([(entry, self._add(entry, at))])

    def trace_quietly(self, entry: TraceEntry) -> None:
        """Trace while an error ends the turn: no handler's error may hide that one."""
        with contextlib.suppress(Exception):
            self.trace(entry)

    def announce(self, *entries: TraceEntry) -> None:
        """Trace changes of handlers or tools; an entry that they added to the trace themselves stays where it is."""
        known = {id(entry) for entry in self.snapshot.traced.newest}
        added = []
        for entry in entries:
            if id(entry) not in known:
                added.append((entry, self._add(entry)))
            else:
                at, now = self._around.place(), entry.get("timestamp", time.time())
                stamped = {"timestamp": now, **({"at": at} if at else {}), **self.labels}
                added.append((entry, self.snapshot.traced.amend(entry, stamped)))
        self._emit(added)

    def _add(self, entry: TraceEntry, at: str | None = None) -> TraceEntry:
        """Add an entry to the trace; a copy of it that no longer changes."""
        entry.setdefault("timestamp", time.time())
        if "id" not in entry and (place := at or self._around.place()) is not None:
            entry["at"] = around_tool_at(place) if entry.get("by") and is_by_observer(entry) else place
        for key, value in self.labels.items():
            entry.setdefault(key, value)
        if entry["type"] == "change":
            entry.update(self.changed_by(entry["by"]))
        if entry.get("of") != "llm_call":
            self.changed = self.changed or entry["type"] in BEFORE_ANSWER
        return self.snapshot.traced.append(entry)

    def _emit(self, added: list[tuple[TraceEntry, TraceEntry]]) -> None:
        """Emit entries, each with its copy, in the order of the trace.

        What a handler changes when it receives one makes further entries. They are emitted after all entries before
        them, but not to the handlers that caused them. Each is emitted, whatever is raised.
        """
        self.announced += len(added)
        pending, causes = self._pending, [*(self._pending.causes or ()), *self._running.running]
        pending.entries = [*pending.entries, *zip(added, repeat(causes))]
        if pending.causes is not None:
            return
        errors: list[BaseException] = []
        try:
            while pending.entries:
                ((entry, copy), pending.causes), *pending.entries = pending.entries
                try:
                    self._around.emit(entry, copy, pending.causes)
                except BaseException as error:
                    errors.append(error)
        finally:
            pending.causes, pending.entries = None, ()
        if errors:
            raise errors[0]

    def changed_by(self, by: By | None) -> dict[str, Any]:
        """The state that a handler changed in the call that decided: `delta`, `removed`; {} for none."""
        return clone(self.snapshot.deltas.get(id(by), {}))  # type: ignore[no-any-return]

    # -- tool calls ----------------------------------------------------------------------------

    def note_pending(self, call: dict[str, Any] | None) -> None:
        """Set the call that is being run, as a change by the loop even inside a tool or handler."""
        self.session["pending_tool"] = call
        self.snapshot.pending = call
        self.snapshot.copy["pending_tool"] = call and clone(call)

    def answer(self, call: ToolCall, content: Content, entry: TraceEntry | None = None) -> None:
        """Put a result after the assistant message that asked for it, or replace the one that is there.

        `entry` is the call's entry, if it is to be traced.
        """
        self._settle()
        snapshot = self.snapshot
        index, there = place_of_result(snapshot.copy["messages"], call.id)
        if index is not None and there is not None:
            if not same(there.get("content"), content):
                snapshot.set_content(snapshot.originals[index], content)
        elif index is not None:
            self.snapshot.insert({"role": "tool", "tool_call_id": call.id, "content": content}, index)
        if entry is not None:
            self.trace(entry, settled=True)

    def amend(self, call: ToolCall, entry: TraceEntry, **changed: Any) -> None:
        """Change a traced entry of a call, and its result with it."""
        self.amend_entry(entry, **changed)
        if "result" in changed:
            self.answer(call, changed["result"])

    def amend_entry(self, entry: TraceEntry, **changed: Any) -> None:
        """Change an entry of the trace."""
        self._settle()
        self.snapshot.traced.amend(entry, changed)

    def close_round(self, calls: list[ToolCall], result: str | None) -> None:
        """Answer the calls of a round that have no result, so that the conversation is valid.

        Args:
            calls: the calls.
            result: of those that were not run, as the turn stops; None: it goes on, and each had a result, which
                handlers may have removed.
        """
        self.session["pending_tools"] = None
        messages = self.snapshot.copy["messages"]
        if is_valid(messages, self.snapshot.valid):  # so each has its result
            self.snapshot.valid = len(messages)
            return
        if result is None:
            self.mend()
            return
        waiting = iter(calls)
        try:
            for call in waiting:
                if is_open(messages, call.id):
                    self.answer(call, result)
                    entry = {"type": "tool_execution", "tool_name": call.name, "arguments": clone(call.arguments)}
                    entry |= {"call_id": call.id, "timing": 0.0, "iteration": self.session["iteration"]}
                    self.trace_quietly({**entry, "status": "skipped", "result": result})
        finally:  # after Ctrl-C in a handler of that entry: answer the others all the same
            for call in waiting:
                if is_open(messages, call.id):
                    self.answer(call, result)

    def mend(self, request: LLMRequest | None = None, *, silently: bool = False) -> list[Message]:
        """Make the conversation valid for every provider, whatever was done to it.

        The messages of a model call are taken here and nowhere else. Where threads may change them at any moment, they
        are the snapshot's: what a thread changes afterwards counts in the next request.

        Args:
            request: a request that is to be sent, whose messages may be others than the conversation's.
            silently: whether nothing is traced.

        Returns:
            The messages to send.
        """
        own = self.session["messages"]
        snapshot = self.snapshot
        are_others = request is not None and (self._running.alive > 0 or threads() > 0)  # or there were, just now
        if are_others:
            self._running.settle()
        if request is not None and request.messages is not own:
            return _own_messages(request, are_others)
        messages = snapshot.copy["messages"]
        says_something = messages and messages[-1]["role"] != "assistant"  # if it is valid: a result has its call
        if (request is None or says_something) and (
            snapshot.valid == len(messages) or is_valid(messages, snapshot.valid)
        ):
            snapshot.valid = len(messages)
        else:
            self._mend(request, silently)
        if request is not None and request.messages is not own:
            return request.messages
        return list(snapshot.copy["messages"]) if are_others else snapshot.messages

    def _mend(self, request: LLMRequest | None, silently: bool) -> None:
        snapshot = self.snapshot
        if request is not None and says_nothing(snapshot.copy["messages"]):  # no provider accepts an empty conversation
            self.append({"role": "user", "content": LEFT_OUT}, by=OWN)
        for announced in (True, True, False):  # a handler of that trace entry may break it again
            self._settle()
            messages = snapshot.copy["messages"]
            valid, before = is_valid(messages, snapshot.valid), len(messages)
            snapshot.valid = before
            if valid:
                break
            if not announced and request is not None:  # the record tells these messages as the request's own
                request.messages = sendable(clone(mended(messages)))
                snapshot.valid = 0
                return
            snapshot.adopt(mended(messages))
            snapshot.valid = len(snapshot.originals)
            if announced and not silently:
                self.trace({"type": "mended", "messages_before": before, "messages": snapshot.valid}, settled=True)
        if request is not None and says_nothing(snapshot.copy["messages"]):
            request.messages = sendable(clone(snapshot.copy["messages"]))  # it was emptied again meanwhile


def _own_messages(request: LLMRequest, are_others: bool) -> list[Message]:
    """The messages of a request that handlers gave other ones, as they may be sent.

    Args:
        request: the request, which has them afterwards.
        are_others: whether threads may change them at any moment.
    """
    messages = request.messages
    if are_others:
        messages = [one for one in clone(list(messages)) if message_problem(one) is None]
    request.messages = sendable(messages)
    return request.messages
