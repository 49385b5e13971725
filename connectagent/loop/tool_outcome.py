"""What becomes of tool calls that do not simply run and return: errors, retries, decisions, results from the log."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from connectagent.data import Retry, ToolCall, TraceEntry, Wait
from connectagent.errors import Diverged, Pause, ToolRejected, TurnEnded, Waiting
from connectagent.loop.beside import RUNS_ON
from connectagent.loop.call_entry import ENDED, FAILED, IN_DOUBT, LACKS, LOST, OF_ATTEMPT, as_result, attempt_of
from connectagent.loop.deciding import refused
from connectagent.loop.described import handling, outlined
from connectagent.loop.ending import RESUMED, STOPPED, Ending
from connectagent.loop.model_choice import MAX_RETRIES
from connectagent.loop.stored import from_stored, input_digest, wait_id
from connectagent.loop.turn import Turn
from connectagent.session.edits import as_data
from connectagent.session.journal import LEFT, WAIT, Journal
from connectagent.session.raised import named_error
from connectagent.session.snapshot import By
from connectagent.tools.results import failure, interruption, result_content
from connectagent.tools.tool import Tool


class ToolOutcome:
    """What becomes of a tool call that does not simply run and return: see `ToolRun`.

    Attributes:
        error: the error of the last attempt.
        decided: whether the call has a result without running the tool.
        own: the tool's own result or error in an attempt, where handlers around it may replace it.
    """

    turn: Turn
    call: ToolCall
    place: str
    id: str
    entry: TraceEntry
    error: Exception | None = None
    decided = False
    own: TraceEntry
    attempt: Callable[[int, TraceEntry], Exception | None]  # runs the tool: its number, and the entry of the attempt
    _known = _traced = False  # whether the log, and the trace, have the first attempt

    # -- an attempt that raised ----------------------------------------------------------------

    def _ended_with(
        self, error: BaseException, id: str, entry: TraceEntry, tool: Tool | None, since: int
    ) -> Exception | None:
        """Write what an attempt raised into its entry; the error of the tool.

        Args:
            error: what it raised.
            id: the place of the attempt.
            entry: its entry.
            tool: the tool; None if there is none of that name.
            since: `Boundary.blames` before the attempt.

        Raises:
            ToolRejected: the call is refused.
            Waiting: it waits for a person.
            BaseException: the error of a handler, or what interrupted the tool.
        """
        turn = self.turn
        if isinstance(error, TurnEnded):
            entry.update(status="skipped", result=ENDED)
            if turn.stopped:  # so the function has not run, and is not in doubt when the turn is resumed
                turn.log.append({"type": LEFT, "id": id, "waits": []})
            return None
        if isinstance(error, Pause):
            raise self._wait(error, id) from None
        if isinstance(error, Waiting):
            turn.log.append({"type": LEFT, "id": id, "waits": [wait.id for wait in error.waits]})
            error.by = {"tool": self.call.name}
        elif not isinstance(error, Exception):
            self._interrupted(error, id, entry)
        elif not isinstance(error, ToolRejected):
            self._failed(error, id, entry, tool, since)
            return error
        raise error

    def _failed(self, error: Exception, id: str, entry: TraceEntry, tool: Tool | None, since: int) -> None:
        """Write the error of the tool into `entry`; raises the error of a handler again."""
        if self.turn.boundary.owner_of(error, since):
            if entry.get("timing"):
                lost = f"the tool ran, but its result was lost: {type(error).__name__}"
                entry.update(status="interrupted", result=lost)
            raise error
        entry.update(failure(error), **{"from": self.turn.failed(id, error)})
        if getattr(error, "left_behind", False):  # it runs on
            entry["left_behind"] = True
        if tool is None:
            entry["status"] = "not_found"

    def _interrupted(self, interrupt: BaseException, id: str, entry: TraceEntry) -> None:
        """Write the interruption of the tool into `entry`; a waiting tool that diverged can begin again."""
        turn, past = self.turn, self.turn.past
        entry.update(interruption(interrupt))
        if getattr(interrupt, "left_behind", False):
            entry["result"] = f"{entry['result']}; {RUNS_ON}"
        if isinstance(interrupt, Diverged) and id in past.left:
            turn.log.append({"type": LEFT, "id": id, "waits": past.left[id]})

    # -- what a person decided -----------------------------------------------------------------

    def _is_answered(self, id: str, entry: TraceEntry, tool: Tool | None, past: Journal) -> bool:
        """Whether a person's answer stands in for a tool that began before; False if the tool must run.

        The tool may be gone meanwhile.

        Raises:
            ToolRejected: the person refuses, the tool may have taken effect already, or an argument is masked.
            Waiting: no decision was made yet.
        """
        arguments = self.call.arguments
        answered = id in past.began and self._is_decided(id, entry, tool, past)
        if not answered and past.lacks(arguments):
            names = " and ".join(repr(name) for name in arguments if past.lacks(arguments[name]))
            raise self.turn.rejection(LACKS.format(names=names))
        return answered

    def _is_decided(self, id: str, entry: TraceEntry, tool: Tool | None, past: Journal) -> bool:
        """The same for a tool that began before; raises the same errors."""
        turn = self.turn
        turn.opens(id)
        waits = past.left.get(id)
        again = tool is not None and tool.idempotent
        if waits is None and not again and not turn.agent.runs_again(self.call):
            raise self._cut_off(id, past)
        if not waits:  # or the waits of unrecorded agents, which are asked again
            return False
        decided = [past.lines[past.decided[wait]] for wait in waits if wait in past.decided]
        if not decided:
            raise Waiting([wait for wait in past.pending() if wait.id in waits], self.call, {"tool": self.call.name})
        own = past.wait_of_tool(id)  # it may have been approved before a call inside began to wait
        if own is not None:
            turn.require_shown(past.lines[past.waits[own]], id, [self.call])
        self.call.approved = own is not None and past.is_approved(own)
        if self.call.approved or waits[0] != own:
            return False
        return self._takes_decision(decided[0], entry)

    def _takes_decision(self, decision: TraceEntry, entry: TraceEntry) -> bool:
        """Take a person's decision about the tool itself; whether it is an answer in place of the tool.

        Raises:
            ToolRejected: the person refuses.
        """
        if "reject" in decision:
            raise self.turn.rejection(str(decision["reject"]))
        if "answer" not in decision:
            return False
        entry.update(status="stand_in", result=result_content(from_stored(decision["answer"])), by=RESUMED)
        return True

    def _cut_off(self, id: str, past: Journal) -> ToolRejected:
        """The rejection of a call that the process did not finish; applies what it had changed."""
        line = past.lines[past.bodies[id]] if id in past.bodies else {}
        self.turn.reapply(id)
        self.turn.bring_home(line.get("changes", ()), id)
        return self.turn.rejection(LOST if line else IN_DOUBT)

    def _wait(self, pause: Pause, id: str) -> Waiting:
        """Write that the tool itself waits for a person."""
        turn, call, by = self.turn, self.call, {"tool": self.call.name}
        shown = as_data(call)
        wait = wait_id(id, call.name, [shown], pause.reason)
        line = {"type": WAIT, "id": wait, "agent": turn.agent.name, "call": shown, "reason": pause.reason, "by": by}
        line |= {"digest": input_digest(shown["arguments"])}
        elsewhere = turn.agent.tools.is_elsewhere(call.name)
        line |= {"elsewhere": True} if elsewhere else {}
        turn.log.append(line)
        turn.log.append({"type": LEFT, "id": id, "waits": [wait]})
        return Waiting([Wait(wait, turn.agent.name, shown, pause.reason, line["digest"], by, elsewhere)], call, by)

    def _note_own(self, entry: TraceEntry, ended: Ending | None, request: Any) -> None:
        """Outline the tool's own outcome, if handlers around it replaced it; note how these or it ended the turn.

        Args:
            entry: of the attempt.
            ended, request: how the turn was ended, and the handoff that was asked for, before the attempt.
        """
        turn, own, self.own = self.turn, self.own, {}
        if any(entry.get(key) != own[key] for key in own):
            entry["original"] = outlined(own)
        if turn.ended is not ended and turn.ended not in (None, STOPPED):
            entry["ended_turn"] = turn.ended.result
            entry["ended"] = turn.ending_as_data()
        if turn.request is not None and turn.request is not request:
            entry["handoff"] = turn.request.as_data()

    # -- what the log has of it ------------------------------------------------------------------

    def _take(self, line: TraceEntry) -> None:
        """Take the result of the first attempt from the log."""
        self._known, self._traced = True, line["type"] == "tool_execution"
        self.entry = line if self._traced else {**self.entry, **line["entry"]}
        if not self._traced or self.entry.get("unsettled"):
            self.turn.opens(f"{self.id}/tool1")
        if self._traced:
            self._note_changes(f"{self.id}/tool1")
        else:
            self.turn.bring_home(line.get("changes", ()), f"{self.id}/tool1")
        self.error = self._raised(f"{self.id}/tool1", self.entry)
        self._end_again(self.entry)

    def _note_changes(self, id: str) -> None:
        """Note what the body wrote, which a parallel one may overwrite: the trace lacks what changed nothing."""
        past, conversation = self.turn.past, self.turn.conversation
        line = past.lines[past.bodies[id]] if id in past.bodies else {}
        for change in line.get("changes", ()):
            if "turn" not in change and conversation.writes.are_noted:
                conversation.writes.note(change, change["by"], conversation.session["state"])

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

    # -- again -----------------------------------------------------------------------------------

    def _recover(self) -> None:
        """Let `on_error` handlers supply a result, or retry a failed call."""
        turn = self.turn
        for number in range(1, MAX_RETRIES + 1):
            if self.error is None or self.decided:  # the log has an error, and guards refuse the call now
                return
            given: dict[str, Any] = {"tool_call": self.call, "request": None, "attempt": number}
            with handling(self.error, turn.boundary.originals):
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
        if self.turn.ended is not None:
            return False
        if not self.entry.get("left_behind"):
            return True
        tool = self.turn.agent.tools.get(self.call.name)
        return tool is None or tool.idempotent  # one that is gone is not found, so that nothing runs twice

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
            self.error = self.attempt(number, changed)
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
