"""One attempt at a tool: what a person decided, the handlers around the body, and the body."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from connectagent import frame
from connectagent.data import ToolCall, TraceEntry, Wait
from connectagent.errors import Diverged, Pause, ToolArgumentsError, ToolRejected, TurnEnded, Waiting
from connectagent.loop.beside import RUNS_ON
from connectagent.loop.call_entry import DATA, ENDED, IN_DOUBT, LACKS, LOST
from connectagent.loop.described import outlined
from connectagent.loop.divergence import finish
from connectagent.loop.ending import RESUMED, STOPPED
from connectagent.loop.stored import from_stored, input_digest
from connectagent.loop.turn import Turn
from connectagent.session.edits import as_data
from connectagent.session.journal import LEFT, WAIT, Journal
from connectagent.session.state import clone
from connectagent.tools.results import failure, interruption, result_content
from connectagent.tools.tool import Tool


class ToolAttempt:
    """One attempt at a tool.

    Args:
        run: the `ToolRun` of the call.
        number: the number of the attempt, from 1.
        entry: receives the result.

    Attributes:
        own: the tool's own result or error, where handlers around it may replace it.
    """

    def __init__(self, run: Any, number: int, entry: TraceEntry) -> None:
        self.turn: Turn = run.turn
        self.call: ToolCall = run.call
        self.decisions, self._first = run.decisions, run.entry
        self.id, self.number, self.entry = f"{run.id}/tool{number}", number, entry
        self.own: TraceEntry = {}

    def make(self) -> Exception | None:
        """Run the tool's function; the error, if it failed.

        Raises:
            ToolRejected: the call is refused.
            Waiting: it waits for a person.
        """
        entry = self.entry
        if self.decisions is not None:
            self.decisions.decide_again(self.turn, self.number, entry, self._first)
        tool: Tool | None = self.turn.agent.tools.get(self.call.name)
        since = self.turn.boundary.blames
        try:
            self._take(tool)
        except ToolRejected:
            raise
        except TurnEnded:
            entry.update(status="skipped", result=ENDED)
            if self.turn.stopped:  # so the function has not run, and is not in doubt when the turn is resumed
                self.turn.log.append({"type": LEFT, "id": self.id, "waits": []})
        except Pause as pause:
            raise self._wait(pause) from None
        except Waiting as waiting:
            self.turn.log.append({"type": LEFT, "id": self.id, "waits": [wait.id for wait in waiting.waits]})
            waiting.by = {"tool": self.call.name}
            raise
        except Exception as error:
            self._failed(error, since, tool)
            return error
        except BaseException as interrupt:
            self._interrupted(interrupt)
            raise
        finally:
            if self.own and any(entry.get(key) != self.own[key] for key in self.own):
                entry["original"] = outlined(self.own)
        return None

    def _take(self, tool: Tool | None) -> None:
        """Take the answer of a person, or run the tool inside the handlers around it."""
        turn, call = self.turn, self.call
        if tool is None:
            raise turn.agent.tools.missing(call.name)
        if call.error:
            raise ToolArgumentsError(f"the arguments could not be read: {call.error}; send one JSON object")
        if turn.past is not None and self._is_answered(tool, turn.past):
            return
        turn.began(self.id, call_id=call.id, tool_name=call.name, arguments=clone(call.arguments))
        with turn.inside(self.id, call):
            if "around_tool" in turn.host.active:
                run = partial(self._run, tool)
                value = turn.host.around("around_tool", run, agent=turn.agent, tool_call=call)
            else:
                value = self._run(tool)
        if turn.past is not None:
            finish(turn, self.id)
        self.entry.update(status="success", result=result_content(value))

    def _failed(self, error: Exception, since: int, tool: Tool | None) -> None:
        """Write the error of the tool into `entry`; raises the error of a handler again."""
        entry = self.entry
        if self.turn.boundary.owner_of(error, since):
            if entry.get("timing"):
                lost = f"the tool ran, but its result was lost: {type(error).__name__}"
                entry.update(status="interrupted", result=lost)
            raise error
        entry.update(failure(error), **{"from": self.turn.failed(self.id, error)})
        if getattr(error, "left_behind", False):  # it runs on
            entry["left_behind"] = True
        if tool is None:
            entry["status"] = "not_found"

    def _interrupted(self, interrupt: BaseException) -> None:
        """Write the interruption of the tool into `entry`; a waiting tool that diverged can begin again."""
        turn, past, id, entry = self.turn, self.turn.past, self.id, self.entry
        entry.update(interruption(interrupt))
        if getattr(interrupt, "left_behind", False):
            entry["result"] = f"{entry['result']}; {RUNS_ON}"
        if isinstance(interrupt, Diverged) and past is not None and id in past.left:
            turn.log.append({"type": LEFT, "id": id, "waits": past.left[id]})

    def _is_answered(self, tool: Tool, past: Journal) -> bool:
        """Whether a person's answer stands in for a tool that began before; False if the tool must run.

        Raises:
            ToolRejected: the person refuses, the tool may have taken effect already, or an argument is masked.
            Waiting: no decision was made yet.
        """
        arguments = self.call.arguments
        answered = self.id in past.began and self._is_decided(tool, past)
        if not answered and past.lacks(arguments):
            names = " and ".join(repr(name) for name in arguments if past.lacks(arguments[name]))
            raise self.turn.rejection(LACKS.format(names=names))
        return answered

    def _is_decided(self, tool: Tool, past: Journal) -> bool:
        """The same for a tool that began before; raises the same errors."""
        turn, id = self.turn, self.id
        turn.opens(id)
        waits = past.left.get(id)
        if waits is None and not tool.idempotent and not turn.agent.runs_again(self.call):
            raise self._cut_off(past)
        if not waits:  # or the waits of unrecorded agents, which are asked again
            return False
        decided = [past.lines[past.decided[wait]] for wait in waits if wait in past.decided]
        if not decided:
            raise Waiting([wait for wait in past.pending() if wait.id in waits], self.call, {"tool": self.call.name})
        turn.require_shown(past.lines[past.waits[waits[0]]], id, self.call)
        self.call.approved = past.is_approved(f"{id}/wait:{self.call.name}")
        if self.call.approved or not waits[0].startswith(f"{id}/wait:"):
            return False
        if "reject" in decided[0]:
            raise self.turn.rejection(str(decided[0]["reject"]))
        if "answer" in decided[0]:
            self.entry.update(status="stand_in", result=result_content(from_stored(decided[0]["answer"])), by=RESUMED)
            return True
        return False

    def _cut_off(self, past: Journal) -> ToolRejected:
        """The rejection of a call that the process did not finish; applies what it had changed."""
        line = past.lines[past.bodies[self.id]] if self.id in past.bodies else {}
        self.turn.bring_home(line.get("changes", ()), self.id)
        return self.turn.rejection(LOST if line else IN_DOUBT)

    def _wait(self, pause: Pause) -> Waiting:
        """Write that the tool itself waits for a person."""
        turn, call, id, by = self.turn, self.call, self.id, {"tool": self.call.name}
        shown, wait = as_data(call), f"{id}/wait:{call.name}"
        line = {"type": WAIT, "id": wait, "agent": turn.agent.name, "call": shown, "reason": pause.reason, "by": by}
        line |= {"digest": input_digest(shown["arguments"])}
        turn.log.append(line)
        turn.log.append({"type": LEFT, "id": id, "waits": [wait]})
        return Waiting([Wait(wait, turn.agent.name, shown, pause.reason, line["digest"], by)], call, by)

    def _run(self, tool: Tool | None) -> Any:
        """Run the tool's function; `own` receives its result, if handlers may replace that."""
        turn, entry = self.turn, self.entry
        if turn.ended is not None:
            raise TurnEnded
        handled = "around_tool" in turn.host.others
        if handled:  # they may have changed the call, which is then decided again
            if self.decisions is not None:
                self.decisions.decide_again(turn, self.number, entry, self._first)
            tool = turn.agent.tools.get(self.call.name)
        if tool is None:
            raise turn.agent.tools.missing(self.call.name)
        arguments = tool.bind(self.call.arguments, agent=turn.agent)
        entry["started"], started, request = time.time(), time.perf_counter(), turn.request
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
            if turn.ended is not None or turn.request is not request:
                self._note_wishes(request)

    def _note_wishes(self, request: Any) -> None:
        """Note that the body ended the turn, or asked for a handoff."""
        turn, entry = self.turn, self.entry
        if turn.ended not in (None, STOPPED):
            entry["ended_turn"] = turn.ended.result
            entry["ended"] = turn.ending_as_data()
        if turn.request is not None and turn.request is not request:
            entry["handoff"] = turn.request.as_data()
