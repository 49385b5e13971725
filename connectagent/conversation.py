"""The conversation as the loop changes it: each change is in the session, the shadow and the trace at once."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable
from typing import Any

from connectagent.attribution import By, Shadow, clone
from connectagent.errors import HookResultError
from connectagent.host import PluginHost
from connectagent.messages import LEFT_OUT, mend, place_of_result, says_nothing
from connectagent.prompts import Prompt
from connectagent.session import CHANGES_MESSAGES, LLMRequest, Message, ToolCall, TraceEntry
from connectagent.state import drop_temporary, is_temporary, snapshot, state_delta

OWN = {"plugin": "connectagent"}  # by: what the loop itself changes
PROGRAM: By = {"plugin": "(program)", "file": "?", "line": 0}  # what the code changes that uses the agent


class _Untold(threading.local):
    """The entries of the trace that handlers have not been told yet; each thread tells its own."""

    def __init__(self) -> None:
        self.entries: list[tuple[TraceEntry, list[By | None]]] = []  # each with whose code brought it about
        self.telling: list[By | None] | None = None  # the same of the entry that is being told


class Conversation:
    """One session, and the doors through which the loop changes it.

    Args:
        agent: what handlers of `on_trace` receive.
        host: runs these handlers.
        system_prompt: the first message; "" for none.
        session: a session to go on with, for example one that was stored; what it lacks is filled in.
        state: what the state of a session without one begins with; None: the prompt's placeholders may stay open.
    """

    def __init__(
        self,
        agent: Any,
        host: PluginHost,
        system_prompt: str,
        session: dict[str, Any] | None = None,
        state: dict[str, Any] | None = None,
    ) -> None:
        self.agent = agent
        self.host = host
        self._untold = _Untold()
        self.told = 0  # entries of the trace so far
        self.offered: list[str] = []  # the tools of the newest model call, by name
        self.session: dict[str, Any] = {} if session is None else session
        messages = [{"role": "system", "content": system_prompt}] if system_prompt else []
        fresh = {"messages": messages, "trace": [], "turn": 0, "iteration": 0, "user_prompt": "", "pending_tool": None}
        fresh |= {"pending_tools": None, "result": None, "outcome": None, "state": {}}
        begins = "state" not in self.session
        for key, value in fresh.items():
            self.session.setdefault(key, value)
        self.shadow = host.shadow = Shadow(self.session)
        self.prompt = Prompt(system_prompt, strict=state is not None)
        entries = (entry for entry in reversed(self.session["trace"]) if isinstance(entry, dict))
        last = next((entry for entry in entries if entry.get("index") == 0 and entry.get("by") == OWN), {})
        self._filled = last.get("message", {}).get("content", system_prompt)
        if begins:  # behind the shadow's back: so it is traced as what the program gave
            self.session["state"].update(snapshot(state or {}))
        self.dropped: dict[str, Any] = {}  # the `temp:` state of the last turn

    def take_over(self) -> None:
        """Trace what the program changed since the last turn.

        Raises:
            HookResultError: it left what no provider takes; the change is undone.
        """
        self.session.update(pending_tool=None, pending_tools=None)
        self.shadow.sync()
        self.take_changes()
        self.shadow.mark_round()

    def take_changes(self, by: By = PROGRAM) -> None:
        """Trace what the program changed; raises as `take_over` does."""
        self.agent.current_session = self.session  # it may be changed, not replaced
        if not self.shadow.unchanged():
            try:
                entries = self.shadow.changes(by)
            except HookResultError:
                self.shadow.restore()
                raise
            self.announce(*entries)

    def begin_turn(self, prompt: str) -> None:
        """Start the next turn.

        Raises:
            ConfigError: the system prompt names state that there is none; nothing of the turn is there yet.
        """
        self.take_over()
        state, system = self.session["state"], self._system()
        filled = self._filled
        if system and system["content"] == filled:  # one that somebody else has edited stays as it is
            filled = self.prompt.fill(state, self.agent.name)
        self.session["turn"] += 1
        self.session.update(iteration=0, user_prompt=prompt, result=None, outcome=None)
        if system and filled != self._filled:
            self._filled = filled
            self.shadow.set_content(system, filled)
            told = {**system, "content": self.prompt.shown(state)}
            self.trace({"type": "message_edited", "by": OWN, "index": 0, "message": told})
        self.mend()

    def _system(self) -> Message | None:
        """The system message, while it is the first."""
        first: Message | None = next(iter(self.session["messages"]), None)
        return first if first and first["role"] == "system" else None

    def end_turn(self) -> None:
        """Leave nothing of the turn behind: no pending calls, no `temp:` state."""
        self.session.update(pending_tool=None, pending_tools=None)
        state = self.session.get("state")
        self.dropped = {key: state[key] for key in state if is_temporary(key)} if isinstance(state, dict) else {}
        if isinstance(state, dict) and drop_temporary(state):
            self.shadow.copy["state"] = snapshot(state)
        self.shadow.sync()

    def append(self, message: Message, by: By | None = None) -> None:
        """Add a message at the end; `by` tells whose it is, where it is not the user's or the model's.

        A model's answer follows its `llm_call` in the trace without an entry of its own, unless messages were
        changed meanwhile: then an entry tells where it stands.
        """
        self.host.settle()
        self.shadow.insert(message)
        index = len(self.session["messages"]) - 1
        if by is not None:
            told = {"type": "message", "by": by, "index": index, "message": clone(message)}
            self.trace({**told, **self.changed_by(by)})
        elif message["role"] == "assistant" and self._messages_changed():
            self.trace({"type": "assistant", "index": index, "message": clone(message)})

    def _messages_changed(self) -> bool:
        """Whether something was done to messages since the last model call, or it was made in another process."""
        for entry in reversed(self.session["trace"]):
            if entry["type"] == "llm_call":
                return False
            if entry["type"] in (*CHANGES_MESSAGES, "resumed"):
                return True
        return False

    def merge_state(self, changed: dict[str, Any], gone: Iterable[str], by: By) -> None:
        """Take over what another agent, or the loop itself, changes in the state."""
        self.host.settle()
        state, before = self.session["state"], self.shadow.copy["state"]
        state.update(snapshot(changed))
        for key in gone:
            state.pop(key, None)
        told = state_delta(before, state)
        self.shadow.copy["state"] = snapshot(state)
        if told:
            self.trace({"type": "state_delta", "by": by, **told})

    def trace(self, entry: TraceEntry) -> None:
        """Add an entry to the trace and announce it."""
        self.host.settle()
        if self.host.untold:
            self.host.tell()
        self._add(entry)
        self._tell(entry)

    def trace_quietly(self, entry: TraceEntry) -> None:
        """Trace on the way out of a turn, where no handler's error may hide the one that ended it."""
        with contextlib.suppress(Exception):
            self.trace(entry)

    def announce(self, *entries: TraceEntry) -> None:
        """Trace what code of others changed; an entry that it added to the trace itself stays where it is."""
        known = {id(entry) for entry in self.shadow.followed}
        for entry in entries:
            if id(entry) not in known:
                self._add(entry)
            elif self.agent.marks:
                self.shadow.amend(entry, **{**self.agent.marks, **entry})
        self._tell(*entries)

    def _add(self, entry: TraceEntry) -> None:
        entry.setdefault("timestamp", time.time())
        for key, value in self.agent.marks.items():
            entry.setdefault(key, value)
        if entry["type"] == "change":
            entry.update(self.changed_by(entry["by"]))
        self.shadow.append(entry)

    def _tell(self, *entries: TraceEntry) -> None:
        """Call the handlers of `on_trace`, in the order of the trace.

        What a handler changes when it is told of one entry makes further entries, which are told after all
        that stand before them, but not to those who brought them about. Each is told, whatever is raised.
        """
        self.told += len(entries)
        untold = self._untold
        untold.entries += [(entry, [*(untold.telling or ()), *self.host.all_running()]) for entry in entries]
        if untold.telling is not None:
            return
        errors: list[BaseException] = []
        try:
            while untold.entries:
                entry, untold.telling = untold.entries.pop(0)
                try:
                    self.host.observe("on_trace", untold.telling, agent=self.agent, entry=entry)
                except BaseException as error:
                    errors.append(error)
        finally:
            untold.telling = None
            untold.entries.clear()
        if errors:
            raise errors[0]

    def changed_by(self, by: By | None) -> dict[str, Any]:
        """The state that a handler changed in the call in which it decided: `delta`, `removed`; {} for none."""
        return clone(self.shadow.deltas.get(id(by), {}))  # type: ignore[no-any-return]

    def note_pending(self, call: dict[str, Any] | None) -> None:
        """Say which call is being run; it is the loop's doing, also inside of a tool or handler that asked for it."""
        self.session["pending_tool"] = call
        self.shadow.copy["pending_tool"] = clone(call)

    def place(self, call: ToolCall, entry: TraceEntry) -> None:
        """Put a call's result behind its assistant message, and its entry into the trace."""
        self.answer(call, entry["result"])
        self.trace(entry)

    def answer(self, call: ToolCall, content: Any) -> None:
        """Put a result behind the assistant message that asked for it, or in the place of the one that is there."""
        self.host.settle()
        index, there = place_of_result(self.session["messages"], call.id)
        if there is not None:
            self.shadow.set_content(there, content)
        elif index is not None:
            self.shadow.insert({"role": "tool", "tool_call_id": call.id, "content": content}, index)

    def amend(self, call: ToolCall, entry: TraceEntry, **changed: Any) -> None:
        """Change a call's entry that is in the trace already, and its result with it."""
        self.host.settle()
        self.shadow.amend(entry, **changed)
        if "result" in changed:
            self.answer(call, changed["result"])

    def close_round(self, entries: list[tuple[ToolCall, TraceEntry]]) -> None:
        """Answer the calls of a round that have no result; what is left of a round is always valid.

        Args:
            entries: all calls of the round, each with the entry that is traced if it has no result.
        """
        waiting = iter(entries)
        try:
            for call, entry in waiting:
                if self._is_open(call):
                    self.answer(call, entry["result"])
                    self.trace_quietly(entry)
        finally:  # Ctrl-C in a handler of that trace entry: the others are answered all the same
            for call, entry in waiting:
                if self._is_open(call):
                    self.answer(call, entry["result"])

    def _is_open(self, call: ToolCall) -> bool:
        index, there = place_of_result(self.session["messages"], call.id)
        return there is None and index is not None

    def mend(self, request: LLMRequest | None = None) -> None:
        """Make the conversation one that every provider takes, whatever was done to it."""
        messages = self.session["messages"]
        if request is not None and request.messages is not messages:
            mended = mend(request.messages)
            request.messages = request.messages if mended is None else mended
            if says_nothing(request.messages):
                request.messages = [*request.messages, {"role": "user", "content": LEFT_OUT}]
            return
        if request is not None and says_nothing(messages):  # no provider takes an empty conversation
            self.append({"role": "user", "content": LEFT_OUT}, by=OWN)
        for told in (True, True, False):  # a handler of that trace entry may break it again
            mended, before = mend(messages, self.shadow.valid), len(messages)
            self.shadow.valid = before
            if mended is None:
                return
            messages[:] = mended
            self.shadow.take()
            self.shadow.valid = len(mended)
            if told:
                self.trace({"type": "mended", "messages_before": before, "messages": len(mended)})
