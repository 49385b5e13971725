"""One tool call, with its hooks, attempts, trace entries and result."""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import Any

from connectagent import frame
from connectagent.data import Retry, ToolCall, TraceEntry, Wait
from connectagent.errors import Diverged, Pause, ToolArgumentsError, ToolRejected, TurnEnded, Waiting
from connectagent.loop.beside import RUNS_ON, Body
from connectagent.loop.call_entry import DATA, ENDED, FAILED, IN_DOUBT, LACKS, LOST, OF_ATTEMPT, as_result, attempt_of
from connectagent.loop.deciding import refused
from connectagent.loop.described import outlined, shown_call
from connectagent.loop.divergence import finish
from connectagent.loop.model_call import MAX_RETRIES
from connectagent.loop.operations import RESUMED
from connectagent.loop.stored import from_stored, input_digest
from connectagent.loop.turn import Turn
from connectagent.session.journal import LEFT, TOOL_ENDED, WAIT, Journal
from connectagent.session.raised import named_error
from connectagent.session.snapshot import By, as_data
from connectagent.session.state import clone
from connectagent.tools.results import failure, interruption, result_content
from connectagent.tools.tool import Tool


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
        self.entry = turn.new_entry(call)
        self.error: Exception | None = None
        self.decided = False
        self._decisions = turn.decisions_about(self)
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
            place = {} if self.entry["status"] == "interrupted" else {"id": f"{self.id}/tool1"}
            self.turn.conversation.trace_quietly({**self.entry, **place})

    def stopped(self, error: BaseException) -> None:
        """Answer an interrupted call; note a waiting call in its `Waiting`."""
        if self.entry.get("status") == "interrupted":
            self.turn.conversation.answer(self.call, self.entry["result"])
            self.turn.conversation.trace_quietly(self.entry)
        elif isinstance(error, Waiting):
            error.call = self.call  # the outermost call, if a tool or handler called execute_tool()

    # -- before --------------------------------------------------------------------------------

    def guard(self) -> None:
        """Let handlers edit, stand in for or reject the call."""
        turn, entry = self.turn, self.entry
        try:
            if self.rejection is not None:
                raise self.rejection
            answer = None
            if self._decisions is not None:
                answer = self._decisions.take() if turn.ended is None else None
                self._decisions.show(entry, entry)
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

    def _tool(self, number: int, entry: TraceEntry) -> Tool | None:
        """The tool that the call names now; a changed call is decided again first."""
        if self._decisions is not None:
            self._decisions.decide_again(number, entry, self.entry)
        return self.turn.agent.tools.get(self.call.name)  # type: ignore[no-any-return]

    # -- the body ------------------------------------------------------------------------------

    def body(self) -> None:
        """Run the tool, unless the call is decided or the log has its result."""
        line = self.turn.closing(f"{self.id}/tool1")
        if line is not None:
            self._take(line)
        elif not self.decided:
            try:
                self.error = self._attempt(1, self.entry)
            except ToolRejected as rejected:
                self._reject(rejected)

    def body_kept(self, body: Body | None = None) -> None:
        """Run the tool in a parallel round: its result is written at once.

        Args:
            body: the parallel body; with handlers around it, the result is written in the order of the calls.
        """
        self.body()
        if body is None or not self.turn.host.has_others("around_tool"):
            self.keep([] if body is None else body.changes_as_data())

    def keep(self, changes: list[dict[str, Any]]) -> None:
        """Write the result and the changes of the body, before its round is settled."""
        if not self._known and not self.decided and "status" in self.entry:
            line = {"type": TOOL_ENDED, "id": f"{self.id}/tool1", "entry": clone(self.entry)}
            self.turn.log.append({**line, "changes": changes} if changes else line)

    def _take(self, line: TraceEntry) -> None:
        """Take the result of the first attempt from the log."""
        self._known, self._traced = True, line["type"] == "tool_execution"
        self.entry = line if self._traced else {**self.entry, **line["entry"]}
        if not self._traced:
            self.turn.opens(f"{self.id}/tool1")
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

    def _attempt(self, number: int, entry: TraceEntry) -> Exception | None:
        """Run the tool's function; `entry` receives the result. The error, if it failed.

        Raises:
            ToolRejected: the call is refused.
            Waiting: it waits for a person.
        """
        turn, call, id = self.turn, self.call, f"{self.id}/tool{number}"
        tool, since, own = self._tool(number, entry), turn.boundary.blames, TraceEntry()
        try:
            if tool is None:
                raise turn.agent.tools.missing(call.name)
            if call.error:
                raise ToolArgumentsError(f"the arguments could not be read: {call.error}; send one JSON object")
            if self._is_answered(tool, id, entry):
                return None
            turn.began(id, call_id=call.id, tool_name=call.name, arguments=clone(call.arguments))
            run = partial(self._run, number, entry, own)
            with turn.within(id):
                value = turn.host.around("around_tool", run, agent=turn.agent, tool_call=call)
            if turn.past is not None:
                finish(turn, id)
            entry.update(status="success", result=result_content(value))
            return None
        except ToolRejected:
            raise
        except TurnEnded:
            entry.update(status="skipped", result=ENDED)
            return None
        except Pause as pause:
            raise self._wait(id, pause) from None
        except Waiting as waiting:
            turn.log.append({"type": LEFT, "id": id, "waits": [wait.id for wait in waiting.waits]})
            waiting.by = {"tool": call.name}
            raise
        except Exception as error:
            self._failed(id, entry, error, since)
            if tool is None:
                entry["status"] = "not_found"
            return error
        except BaseException as interrupt:
            self._interrupted(id, entry, interrupt)
            raise
        finally:
            if any(entry.get(key) != own[key] for key in own):
                entry["original"] = outlined(own)

    def _failed(self, id: str, entry: TraceEntry, error: Exception, since: int) -> None:
        """Write the error of the tool into `entry`; raises the error of a handler again."""
        if self.turn.boundary.owner_of(error, since):
            if entry.get("timing"):
                lost = f"the tool ran, but its result was lost: {type(error).__name__}"
                entry.update(status="interrupted", result=lost)
            raise error
        entry.update(failure(error), **{"from": self.turn.failed(id, error)})
        if getattr(error, "left_behind", False):  # it runs on
            entry["left_behind"] = True

    def _interrupted(self, id: str, entry: TraceEntry, interrupt: BaseException) -> None:
        """Write the interruption of the tool into `entry`; a waiting tool that diverged can begin again."""
        turn, past = self.turn, self.turn.past
        entry.update(interruption(interrupt))
        if getattr(interrupt, "left_behind", False):
            entry["result"] = f"{entry['result']}; {RUNS_ON}"
        if isinstance(interrupt, Diverged) and past is not None and id in past.left:
            turn.log.append({"type": LEFT, "id": id, "waits": past.left[id]})

    def _is_answered(self, tool: Tool, id: str, entry: TraceEntry) -> bool:
        """Whether a person's answer stands in for a tool that began before; False if the tool must run.

        Raises:
            ToolRejected: the person refuses, the tool may have taken effect already, or an argument is masked.
            Waiting: no decision was made yet.
        """
        past, arguments = self.turn.past, self.call.arguments
        if past is None:
            return False
        answered = id in past.began and self._is_decided(tool, id, entry, past)
        if not answered and past.lacks(arguments):
            names = " and ".join(repr(name) for name in arguments if past.lacks(arguments[name]))
            raise self.turn.rejection(LACKS.format(names=names))
        return answered

    def _is_decided(self, tool: Tool, id: str, entry: TraceEntry, past: Journal) -> bool:
        """The same for a tool that began before; raises the same errors."""
        turn = self.turn
        turn.opens(id)
        waits = past.left.get(id)
        if waits is None and not tool.idempotent and not turn.agent.runs_again(self.call):
            raise self._cut_off(id, past)
        if not waits:  # or the waits of unrecorded agents, which are asked again
            return False
        decided = [past.lines[past.decided[wait]] for wait in waits if wait in past.decided]
        if not decided:
            raise Waiting([wait for wait in past.pending() if wait.id in waits], self.call, {"tool": self.call.name})
        self.call.approved = past.is_approved(f"{id}/wait:{self.call.name}")
        if self.call.approved or not waits[0].startswith(f"{id}/wait:"):
            return False
        if "reject" in decided[0]:
            raise self.turn.rejection(str(decided[0]["reject"]))
        if "answer" in decided[0]:
            entry.update(status="stand_in", result=result_content(from_stored(decided[0]["answer"])), by=RESUMED)
        return "answer" in decided[0]

    def _cut_off(self, id: str, past: Journal) -> ToolRejected:
        """The rejection of a call that the process did not finish; applies what it had changed."""
        line = past.lines[past.bodies[id]] if id in past.bodies else {}
        self.turn.bring_home(line.get("changes", ()), id)
        return self.turn.rejection(LOST if line else IN_DOUBT)

    def _wait(self, id: str, pause: Pause) -> Waiting:
        """Write that the tool itself waits for a person."""
        turn, call, by = self.turn, self.call, {"tool": self.call.name}
        shown, wait = as_data(call), f"{id}/wait:{call.name}"
        line = {"type": WAIT, "id": wait, "agent": turn.agent.name, "call": shown, "reason": pause.reason, "by": by}
        line |= {"digest": input_digest(shown["arguments"])}
        turn.log.append(line)
        turn.log.append({"type": LEFT, "id": id, "waits": [wait]})
        return Waiting([Wait(wait, turn.agent.name, shown, pause.reason, line["digest"], by)], call, by)

    def _run(self, number: int, entry: TraceEntry, own: TraceEntry) -> Any:
        """Run the tool's function; `own` receives its result, if handlers may replace that."""
        turn = self.turn
        if turn.ended is not None:
            raise TurnEnded
        if (tool := self._tool(number, entry)) is None:
            raise turn.agent.tools.missing(self.call.name)
        arguments = tool.bind(self.call.arguments, agent=turn.agent)
        handled = turn.host.has_others("around_tool")
        entry["started"], started, ended, request = time.time(), time.perf_counter(), turn.ended, turn.request
        try:
            value = turn.boundary.run_tool(tool, arguments)
            if type(value) in DATA:
                entry["result_type"] = type(value).__name__
            if handled:
                own.update(status="success", result=result_content(value))
            return value
        except BaseException as error:
            if handled and not isinstance(error, (ToolRejected, Pause, Waiting)):
                own.update(failure(error) if isinstance(error, Exception) else interruption(error))
            raise
        finally:
            here = frame.current()
            waited = here.body.waited_s if here is not None and here.body is not None else 0.0
            took = time.perf_counter() - started
            entry["timing"], entry["duration_ms"] = round((took - waited) * 1000, 3), round(took * 1000, 3)
            if turn.ended is not None and turn.ended is not ended:
                entry["ended_turn"] = turn.ended.result
                entry["ended"] = turn.ending_as_data()
            if turn.request is not None and turn.request is not request:
                entry["handoff"] = turn.request.as_data()

    # -- after ---------------------------------------------------------------------------------

    def settle(self) -> None:
        """Place the result; let handlers recover from an error, and see or replace the result."""
        turn, conversation = self.turn, self.turn.conversation
        if self._traced:
            conversation.answer(self.call, self.entry["result"])
        else:
            self.entry["id"] = f"{self.id}/tool1"
            conversation.place(self.call, self.entry)
        self._recover()
        given = {"tool_call": self.call, "result": self.entry.get("result"), "entry": self.entry}
        with conversation.ending_with(self.entry) as ready:
            result, _ = turn.chain("after_each_tool", self.place, self._take_result, ready, **given)
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
            if self.error is None:
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
            self.error = self._raised(id, line["value"])
            self._end_again(line["value"])
            return
        if not turn.has_begun(id):
            turn.agent.runtime.sleep(after_s)
        changed: TraceEntry = {"attempt": number, "started": time.time()}
        try:
            self.error = self._attempt(number, changed)
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
            change = {"type": "change", "id": id, "by": by, "of": "tool_execution", "call_id": self.call.id}
            turn.conversation.trace({**change, "value": value})
