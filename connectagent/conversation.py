"""The conversation as the loop changes it: each change is in the session, the shadow and the trace at once."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from typing import Any

from connectagent.attribution import By, Shadow, clone, state_delta
from connectagent.errors import HookResultError
from connectagent.host import PluginHost
from connectagent.messages import LEFT_OUT, NOT_RUN, mend, place_of_result, says_nothing
from connectagent.session import LLMRequest, Message, ToolCall, TraceEntry


class Conversation:
    """One session, and the doors through which the loop changes it.

    Args:
        agent: what handlers of `on_trace` receive.
        host: runs these handlers.
        system_prompt: the first message; "" for none.
        session: a session to go on with, for example one that was stored; what it lacks is filled in.
    """

    def __init__(self, agent: Any, host: PluginHost, system_prompt: str, session: dict[str, Any] | None = None) -> None:
        self.agent = agent
        self.host = host
        self.session: dict[str, Any] = {} if session is None else session
        messages = [{"role": "system", "content": system_prompt}] if system_prompt else []
        fresh = {"messages": messages, "trace": [], "turn": 0, "iteration": 0, "user_prompt": "", "pending_tool": None}
        fresh |= {"pending_tools": None, "result": None, "outcome": None, "state": {}}
        for key, value in fresh.items():
            self.session.setdefault(key, value)
        self.shadow = host.shadow = Shadow(self.session)
        self.dropped: dict[str, Any] = {}  # the `temp:` state of the last turn

    def take_over(self) -> None:
        """Trace what the program changed since the last turn.

        Raises:
            HookResultError: it left what no provider takes; the change is undone.
        """
        self.shadow.mark_round()
        self.end_turn()
        if not self.shadow.unchanged():
            try:
                entries = self.shadow.changes({"plugin": "(program)", "file": "?", "line": 0})
            except HookResultError:
                self.shadow.restore()
                raise
            for entry in entries:
                self.announce(entry)

    def begin_turn(self, prompt: str) -> None:
        """Start the next turn."""
        self.take_over()
        self.session["turn"] += 1
        self.session.update(iteration=0, user_prompt=prompt, result=None, outcome=None)
        self.mend()

    def end_turn(self) -> None:
        """Leave nothing of the turn behind: no pending calls, no `temp:` state."""
        self.session.update(pending_tool=None, pending_tools=None)
        state = self.session.get("state")
        self.dropped = {}
        if isinstance(state, dict) and any(str(key).startswith("temp:") for key in state):
            for key in [key for key in state if str(key).startswith("temp:")]:
                self.dropped[key] = state.pop(key)
            self.shadow.copy["state"] = clone(state)
        self.shadow.sync()

    def append(self, message: Message, by: By | None = None) -> None:
        """Add a message at the end; `by` tells whose it is, where it is not the user's or the model's."""
        self.host.settle()
        self.shadow.insert(message)
        if by is not None:
            index = len(self.session["messages"]) - 1
            self.trace({"type": "message", "by": by, "index": index, "message": clone(message)})

    def merge_state(self, changed: dict[str, Any], gone: Iterable[str], by: By) -> None:
        """Take over what another agent, or the loop itself, changes in the state."""
        self.host.settle()
        state, before = self.session["state"], self.shadow.copy["state"]
        state.update(clone(changed))
        for key in gone:
            state.pop(key, None)
        delta = state_delta(before, state)
        self.shadow.copy["state"] = clone(state)
        if delta:
            self.trace({"type": "state_delta", "by": by, "delta": delta})

    def trace(self, entry: TraceEntry) -> None:
        """Add an entry to the trace and announce it."""
        self.host.settle()
        entry.setdefault("timestamp", time.time())
        for key, value in self.agent.marks.items():
            entry.setdefault(key, value)
        self.shadow.append(entry)
        self.host.observe("on_trace", agent=self.agent, entry=entry)

    def trace_quietly(self, entry: TraceEntry) -> None:
        """Trace on the way out of a turn, where no handler's error may hide the one that ended it."""
        with contextlib.suppress(Exception):
            self.trace(entry)

    def announce(self, entry: TraceEntry) -> None:
        """Trace what code of others changed; an entry that it added to the trace itself stays where it is."""
        if any(entry is known for known in self.session["trace"][self.shadow.start :]):
            if self.agent.marks:
                self.shadow.amend(entry, **{**self.agent.marks, **entry})
            self.host.observe("on_trace", agent=self.agent, entry=entry)
        else:
            self.trace(entry)

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

    def close_round(self, calls: list[ToolCall], reason: str) -> list[ToolCall]:
        """Answer the calls of a round that have no result; what is left of a round is always valid.

        Returns:
            The calls that had none.
        """
        without = []
        for call in calls:
            index, there = place_of_result(self.session["messages"], call.id)
            if there is None and index is not None:
                self.answer(call, NOT_RUN.format(reason=reason))
                without.append(call)
        return without

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
            self.append({"role": "user", "content": LEFT_OUT}, by={"plugin": "connectagent"})
        mended, before = mend(messages, self.shadow.valid), len(messages)
        if mended is not None:
            messages[:] = mended
            self.shadow.take()
        self.shadow.valid = len(messages)
        if mended is not None:
            self.trace({"type": "mended", "messages_before": before, "messages": len(messages)})
            if request is not None and (again := mend(messages)) is not None:  # a handler of that trace entry did it
                messages[:] = again
                self.shadow.take()
