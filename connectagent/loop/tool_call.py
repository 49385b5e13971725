"""One tool call, with its hooks, attempts, trace entries and result."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from connectagent import frame
from connectagent.data import ToolCall, TraceEntry
from connectagent.errors import Pause, ToolRejected, TurnEnded, Waiting
from connectagent.loop.beside import Body
from connectagent.loop.call_arguments import refuse_unfit
from connectagent.loop.call_entry import BEGUN, DATA, ENDED, HELD
from connectagent.loop.deciding import Asked, Decisions, refused
from connectagent.loop.divergence import finish
from connectagent.loop.tool_outcome import ToolOutcome
from connectagent.loop.turn import Turn
from connectagent.session.journal import TOOL_ENDED
from connectagent.session.messages import shown_call
from connectagent.session.snapshot import By, clone
from connectagent.tools.awaiting import CALLER
from connectagent.tools.results import failure, interruption, result_content
from connectagent.tools.tool import Tool

_DECIDING = ("before_tools", "around_tool", "on_error")  # hooks whose handlers may decide about the call, or change it


class ToolRun(ToolOutcome):
    """One tool call: its guards, its body, and the handlers after it.

    Args:
        turn: the turn.
        call: the call of the model, a handler or a tool.
        place: the place of the call in the turn, with a `/` at the end.
        rejection: set if `before_tools` rejected the whole round.
        of_round: the handlers of `before_tools` that decided about the call in its round, if it is in one.

    Attributes:
        entry: its trace entry.
    """

    def __init__(
        self,
        turn: Turn,
        call: ToolCall,
        place: str,
        rejection: ToolRejected | None = None,
        of_round: Asked | None = None,
    ) -> None:
        self.turn, self.call, self.place, self.rejection = turn, call, place, rejection
        self.id = f"{turn.id}/{place}".rstrip("/")
        self.entry = {
            "type": "tool_execution",
            "tool_name": call.name,
            "arguments": clone(call.arguments),
            "call_id": call.id,
            "timing": 0.0,
            "iteration": turn.conversation.session["iteration"],
            "timestamp": time.time(),
        }
        if call.sent is not None:
            self.entry["sent_arguments"] = clone(call.sent)
        self.own = {}
        self.decisions: Decisions | None = None  # None if no handler can decide or change the call
        host = turn.host
        if "before_each_tool" in host.active or not host.others.isdisjoint(_DECIDING):
            self.decisions = Decisions(call, place, of_round)

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
                known = {key: self.entry[key] for key in HELD if key in self.entry}
                self.skip(result, held=self.entry["status"], **known)

    def skip(self, result: Any, **held: Any) -> None:
        """Trace that the tool was not run, or that its result is held back."""
        entry = {key: self.entry[key] for key in BEGUN} | {"timing": 0.0, "status": "skipped", "result": result}
        self.turn.conversation.trace_quietly({**entry, **held})

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
        if (caller := CALLER.get()) is not None:
            caller.before_tool()
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
        line = self.turn.closing(f"{self.id}/tool1") if self.turn.resumed else None
        if line is not None:
            self._take(line)
        elif not self.decided:
            try:
                self.error = self.attempt(1, self.entry)
            except ToolRejected as rejected:
                self._reject(rejected)

    def attempt(self, number: int, entry: TraceEntry) -> Exception | None:
        """Run the tool's function inside the handlers around it; the error, if it failed.

        Args:
            number: of the attempt, from 1.
            entry: receives the result.

        Raises:
            ToolRejected: the call is refused.
            Waiting: it waits for a person.
        """
        turn, call, id = self.turn, self.call, f"{self.id}/tool{number}"
        if self.decisions is not None:
            self.decisions.decide_again(turn, number, entry, self.entry)
        tool, since = turn.agent.tools.by_name.get(call.name), turn.boundary.blames
        ended, request = turn.ended, turn.request
        try:
            if turn.resumed and self._is_answered(id, entry, tool, turn.past):
                return None
            if tool is None:
                raise turn.agent.tools.missing(call.name)
            if call.error or call.misfit is not None:
                refuse_unfit(call)
            turn.began(id, call_id=call.id, tool_name=call.name, arguments=clone(call.arguments))
            with turn.frame.inside(id, call):
                if "around_tool" in turn.host.active:
                    run = partial(self._run, tool, number, entry)
                    value = turn.host.around("around_tool", run, agent=turn.agent, tool_call=call)
                else:
                    value = self._run(tool, number, entry)
            if turn.resumed:
                finish(turn, id)
            entry.update(status="success", result=result_content(value))
        except BaseException as error:
            return self._ended_with(error, id, entry, tool, since)
        finally:
            if self.own or turn.ended is not ended or turn.request is not request:
                self._note_own(entry, ended, request)
        return None

    def _run(self, tool: Tool | None, number: int, entry: TraceEntry) -> Any:
        """Run the tool's function; `own` receives its result, if handlers may replace that."""
        turn = self.turn
        if turn.ended is not None:
            raise TurnEnded
        handled = "around_tool" in turn.host.others
        if handled:  # they may have changed the call, which is then decided again
            if self.decisions is not None:
                self.decisions.decide_again(turn, number, entry, self.entry)
            tool = turn.agent.tools.get(self.call.name)
            refuse_unfit(self.call)
        if tool is None:
            raise turn.agent.tools.missing(self.call.name)
        arguments = tool.bind(self.call.arguments, agent=turn.agent)
        entry["started"], started = time.time(), time.perf_counter()
        try:
            value = turn.boundary.run_tool(tool, arguments)
            if type(value) in DATA:
                entry["result_type"] = type(value).__name__
            if handled:
                self.own.update(status="success", result=result_content(value))
            return value
        except BaseException as error:
            if handled and not isinstance(error, (ToolRejected, Pause, Waiting)):
                self.own.update(failure(error) if isinstance(error, Exception) else interruption(error))
            raise
        finally:
            took, here = (time.perf_counter() - started) * 1000, frame.current()
            waited_s = 0.0 if here is None or here.body is None else here.body.waited_s  # for the turn's own thread
            entry["timing"], entry["duration_ms"] = round(took - waited_s * 1000, 3), round(took, 3)

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

    # -- after ---------------------------------------------------------------------------------

    def settle(self, fires: bool = True) -> None:
        """Place the result; let handlers recover from an error, and see or replace the result.

        Args:
            fires: whether `after_each_tool` does; not where its round did not begin.
        """
        turn, conversation = self.turn, self.turn.conversation
        if turn.stopped and self._waits_for_resume:
            conversation.answer(self.call, self.entry["result"], self.entry)
            return
        if self._traced:
            if f"{self.id}/tool1" not in turn.between.placed:
                conversation.answer(self.call, self.entry["result"])
            turn.between.behind(f"{self.id}/tool1")
        else:
            self.entry["id"] = f"{self.id}/tool1"
            conversation.answer(self.call, self.entry["result"], self.entry)
        if self.error is not None:
            self._recover()
        if not fires or "after_each_tool" not in turn.host.active:
            return
        given = {"tool_call": self.call, "result": self.entry.get("result"), "entry": self.entry}
        result, _ = turn.chain("after_each_tool", self.place, self._take_result, self.entry, **given)
        if result is not given["result"] and result != self.entry.get("result"):  # it comes from the log
            self._take_result(result)

    def _take_result(self, value: Any) -> Any:
        """Replace the result by a handler's value, before the next handler sees the conversation."""
        result = result_content(value)
        self.turn.conversation.amend(self.call, self.entry, result=result)
        return result
