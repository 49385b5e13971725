"""One tool call, with its hooks, attempts, trace entries and result."""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import Any

from connectagent.data import Retry, ToolCall, TraceEntry
from connectagent.errors import ToolRejected, Waiting
from connectagent.loop.beside import Body
from connectagent.loop.call_entry import ENDED, FAILED, OF_ATTEMPT, as_result, attempt_of
from connectagent.loop.deciding import Decisions, refused
from connectagent.loop.described import shown_call
from connectagent.loop.model_choice import MAX_RETRIES
from connectagent.loop.tool_attempt import ToolAttempt
from connectagent.loop.turn import Turn
from connectagent.session.journal import TOOL_ENDED
from connectagent.session.messages import is_open
from connectagent.session.raised import named_error
from connectagent.session.snapshot import By
from connectagent.session.state import clone
from connectagent.tools.results import result_content


class ToolRun:
    """One tool call: its guards, its body, and the handlers after it.

    Args:
        turn: the turn.
        call: the call of the model, a handler or a tool.
        place: the place of the call in the turn, with a `/` at the end.
        rejection: set if `before_tools` rejected the whole round.

    Attributes:
        entry: its trace entry.
        error: the error of the last attempt.
        decided: whether the call has a result without running the tool.
    """

    def __init__(self, turn: Turn, call: ToolCall, place: str, rejection: ToolRejected | None = None) -> None:
        self.turn, self.call, self.place, self.rejection = turn, call, place, rejection
        self.id = f"{turn.id}/{place}".rstrip("/")
        self.entry = new_entry(turn, call)
        self.error: Exception | None = None
        self.decided = False
        self.decisions: Decisions | None = None  # None if no handler can decide or change the call
        host = turn.host
        if "before_each_tool" in host.active or not host.others.isdisjoint(("around_tool", "on_error")):
            self.decisions = Decisions(call, place, partial(host.is_last, "before_each_tool"))
        self._known = self._traced = False  # whether the log, and the trace, have the first attempt

    def whole(self) -> TraceEntry:
        """Take the call from `before_each_tool` to `after_each_tool`; its trace entry."""
        outer = self.turn.conversation.session["pending_tool"]  # not None if a handler or tool called execute_tool()
        self.turn.conversation.note_pending(shown_call(self.call))
        try:
            self.guard()
            self.body()
            self.settle()
            return self.entry
        except BaseException as error:
            self.stopped(error)
            raise
        finally:
            self.turn.conversation.note_pending(outer)

    def salvage(self) -> None:
        """Place the result of the body, if the round ends before it is settled."""
        if "status" in self.entry and not self._traced:
            self.turn.conversation.answer(self.call, self.entry["result"])
            runs_again = self.entry["status"] == "interrupted" or self._waits_for_resume
            place = {} if runs_again else {"id": f"{self.id}/tool1", "unsettled": True}
            self.turn.conversation.trace_quietly({**self.entry, **place})

    def hold(self) -> None:
        """Show the result of the body while its round waits: the model reads it if the turn is given up."""
        if "status" in self.entry:
            result = self.entry["result"]
            self.turn.conversation.answer(self.call, result)
            if "id" not in self.entry:  # else it is in the trace
                entry = {**new_entry(self.turn, self.call), "status": "skipped", "result": result}
                self.turn.conversation.trace_quietly(entry)

    def stopped(self, error: BaseException) -> None:
        """Answer an interrupted call; note a waiting call in its `Waiting`."""
        if self.entry.get("status") == "interrupted":
            self.turn.conversation.answer(self.call, self.entry["result"])
            if "id" not in self.entry:  # else it is in the trace since its first attempt
                self.turn.conversation.trace_quietly(self.entry)
        elif isinstance(error, Waiting):
            error.call = self.call  # the outermost call, if a tool or handler called execute_tool()

    @property
    def _waits_for_resume(self) -> bool:
        """Whether the tool was not run because Ctrl-C has stopped the turn: it runs when the turn is resumed."""
        return self.turn.stopped and self.entry.get("status") == "skipped"

    # -- before --------------------------------------------------------------------------------

    def guard(self) -> None:
        """Let handlers edit, stand in for or reject the call."""
        turn, entry = self.turn, self.entry
        try:
            if self.rejection is not None:
                raise self.rejection
            answer = None
            if self.decisions is not None:
                answer = self.decisions.take(turn) if turn.ended is None else None
                self.decisions.show(entry, entry)
            if turn.ended is not None:
                self.decide(status="skipped", result=ENDED)
            elif answer is not None:
                self.decide(status="stand_in", result=answer.value, by=answer.by)
        except ToolRejected as rejected:
            self._reject(rejected)

    def decide(self, by: By | None = None, **changed: Any) -> None:
        """Set the result of the call without running the tool."""
        self.decided = True
        self.entry.update(changed, **({"by": by} if by else {}))
        self.entry.update(self.turn.conversation.changed_by(by))

    def _reject(self, rejected: ToolRejected) -> None:
        self.decide(**refused(self.turn, rejected))

    # -- the body ------------------------------------------------------------------------------

    def body(self) -> None:
        """Run the tool, unless the call is decided or the log has its result."""
        line = None if self.turn.past is None else self.turn.closing(f"{self.id}/tool1")
        if line is not None:
            self._take(line)
        elif not self.decided:
            try:
                self.error = ToolAttempt(self, 1, self.entry).make()
            except ToolRejected as rejected:
                self._reject(rejected)

    def body_kept(self, body: Body | None = None) -> None:
        """Run the tool in a parallel round: its result is written at once.

        Args:
            body: the parallel body; with handlers around it, the result is written in the order of the calls.
        """
        self.body()
        if body is None or "around_tool" not in self.turn.host.others:
            self.keep([] if body is None else body.changes_as_data())

    def keep(self, changes: list[dict[str, Any]]) -> None:
        """Write the result and the changes of the body, before its round is settled."""
        if not self._known and not self.decided and "status" in self.entry and not self._waits_for_resume:
            line = {"type": TOOL_ENDED, "id": f"{self.id}/tool1", "entry": clone(self.entry)}
            self.turn.log.append({**line, "changes": changes} if changes else line)

    def _take(self, line: TraceEntry) -> None:
        """Take the result of the first attempt from the log."""
        self._known, self._traced = True, line["type"] == "tool_execution"
        self.entry = line if self._traced else {**self.entry, **line["entry"]}
        if not self._traced or self.entry.get("unsettled"):
            self.turn.opens(f"{self.id}/tool1")
        if not self._traced:
            self.turn.bring_home(line.get("changes", ()), f"{self.id}/tool1")
        self.error = self._raised(f"{self.id}/tool1", self.entry)
        self._end_again(self.entry)

    def _end_again(self, entry: TraceEntry) -> None:
        if "ended" in entry:
            self.turn.end_as(entry["ended"])
        if "handoff" in entry:
            self.turn.agent.request_again(self.turn, entry["handoff"])

    def _raised(self, id: str, entry: TraceEntry) -> Exception | None:
        if entry.get("status") not in FAILED or not entry.get("error_type"):
            return None
        error = named_error(str(entry["error_type"]), str(entry.get("error") or ""))
        self.turn.failed(id, error)
        return error if isinstance(error, Exception) else None

    # -- after ---------------------------------------------------------------------------------

    def settle(self) -> None:
        """Place the result; let handlers recover from an error, and see or replace the result."""
        turn, conversation = self.turn, self.turn.conversation
        if turn.stopped and self._waits_for_resume:
            conversation.place(self.call, self.entry)
            return
        if self._traced:
            if is_open(conversation.session["messages"], self.call.id):
                conversation.answer(self.call, self.entry["result"])
            turn.between.behind(f"{self.id}/tool1")
        else:
            self.entry["id"] = f"{self.id}/tool1"
            conversation.place(self.call, self.entry)
        if self.error is not None:
            self._recover()
        given = {"tool_call": self.call, "result": self.entry.get("result"), "entry": self.entry}
        result, _ = turn.chain("after_each_tool", self.place, self._take_result, self.entry, **given)
        if result is not given["result"] and result != self.entry.get("result"):  # it comes from the log
            self._take_result(result)

    def _take_result(self, value: Any) -> Any:
        """Replace the result by a handler's value, before the next handler sees the conversation."""
        result = result_content(value)
        self.turn.conversation.amend(self.call, self.entry, result=result)
        return result

    def _recover(self) -> None:
        """Let `on_error` handlers supply a result, or retry a failed call."""
        turn = self.turn
        for number in range(1, MAX_RETRIES + 1):
            if self.error is None or self.decided:  # the log has an error, and guards refuse the call now
                return
            given: dict[str, Any] = {"tool_call": self.call, "request": None, "attempt": number}
            answer = turn.decide("on_error", self.place, as_result, suffix=number, error=self.error, **given)
            if answer is None or (isinstance(answer.value, Retry) and not self._may_retry()):
                return
            if isinstance(answer.value, Retry):
                self._again(number + 1, answer.value.after_s, answer.by)
            else:
                changed = {"status": "recovered", "result": answer.value, "by": answer.by}
                self.error = None
                self._take_attempt(changed, answer.by, f"{self.id}/recovered{number}")

    def _may_retry(self) -> bool:
        """Whether the call may run again; not while the last attempt may still take effect, unless it is idempotent."""
        again = not self.entry.get("left_behind") or self.turn.agent.tools.get(self.call.name).idempotent
        return again and self.turn.ended is None

    def _again(self, number: int, after_s: float, by: By) -> None:
        turn, id = self.turn, f"{self.id}/tool{number}"
        line = turn.closing(id)
        if line is not None:
            turn.conversation.amend(self.call, self.entry, **line["value"])
            turn.between.behind(id)
            self.error = self._raised(id, line["value"])
            self._end_again(line["value"])
            return
        if not turn.has_begun(id):
            turn.agent.runtime.sleep(after_s)
        changed: TraceEntry = {"attempt": number, "started": time.time()}
        try:
            self.error = ToolAttempt(self, number, changed).make()
        except ToolRejected as rejected:
            changed.update(refused(turn, rejected))
            self.error = None
        except BaseException:
            if "status" in changed:
                with contextlib.suppress(Exception):
                    self._take_attempt(changed, by, id)
            raise
        self._take_attempt(changed, by, id)

    def _take_attempt(self, changed: TraceEntry, by: By, id: str) -> None:
        """Write the outcome of a further attempt into the entry of the call, and trace it."""
        turn = self.turn
        if "attempt" in changed:
            before = self.entry.get("attempts") or [attempt_of(self.entry)]
            changed["attempts"] = [*before, attempt_of(changed)]
        turn.conversation.amend(self.call, self.entry, **changed)
        if turn.closing(id) is None:
            value = {key: changed[key] for key in OF_ATTEMPT if key in changed}
            change = {"type": "change", "by": by, "of": "tool_execution", "call_id": self.call.id, "value": value}
            ended = changed.get("status") != "interrupted"  # else a resumed turn looks whether it may run again
            turn.conversation.trace({**change, "id": id} if ended else change)
        else:
            turn.between.behind(id)


def new_entry(turn: Turn, call: ToolCall) -> TraceEntry:
    """The trace entry of an undecided tool call."""
    described = {"tool_name": call.name, "arguments": clone(call.arguments), "call_id": call.id, "timing": 0.0}
    iteration = turn.conversation.session["iteration"]
    return {"type": "tool_execution", **described, "iteration": iteration, "timestamp": time.time()}
