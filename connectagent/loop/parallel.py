"""What runs at the same time: the bodies of a round's tool calls, and the turns of several agents that a body asks for.

All guards of a round run first, in order; then its bodies, in parallel. Then, in the order of the calls, each body's
changes are merged, the handlers around it finish, and its result is settled. Two or more agents that one round asks
always work in parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import Context, copy_context
from functools import partial
from typing import Any

from connectagent import frame
from connectagent.data import ToolCall, TraceEntry
from connectagent.errors import Waiting
from connectagent.frame import Frame
from connectagent.loop.beside import Beside, Body, end_with
from connectagent.loop.between_steps import NO_CHANGES
from connectagent.loop.call_entry import ENDED
from connectagent.loop.remote import Stack
from connectagent.loop.tool_call import ToolRun
from connectagent.loop.turn import Turn
from connectagent.session.messages import shown_call
from connectagent.session.snapshot import copy_of
from connectagent.session.state import state_change


def runs_together(turn: Turn, calls: list[ToolCall]) -> bool:
    """Whether calls are taken together: several ask agents, or one is carried out elsewhere while the others run."""
    tools, asks = turn.agent.tools, sum(turn.agent.asked_by(call) is not None for call in calls)
    return asks > 1 or any(tools.is_elsewhere(call.name) for call in calls)


class Round:
    """A round whose bodies run at the same time.

    Args:
        turn: the turn.
        runs: its calls, in order.
    """

    def __init__(self, turn: Turn, runs: list[ToolRun]) -> None:
        self._turn, self._runs = turn, runs
        self._limit = turn.agent.parallel_tools
        self._waits: dict[int, Waiting] = {}  # by call
        self._settled = 0
        self._contexts: dict[int, Context] = {id(run): copy_context() for run in runs}

    def run(self) -> list[TraceEntry]:
        """Run all calls.

        Raises:
            Waiting: some of them wait; the others have run.
        """
        for run in self._runs:
            self._take(run, run.guard)
        try:
            for group in self._groups():
                if self._waits and self._is_alone(group[0]):
                    break  # the calls before it are not settled
                self._run_bodies(group)
                if not self._waits:
                    self._settle(group)
        except BaseException:
            for run in self._runs[self._settled :]:
                run.salvage()
            raise
        if self._waits:
            for run in self._runs:
                run.hold()
            waiting = [self._waits[id(run)] for run in self._runs if id(run) in self._waits]
            raise Waiting([wait for one in waiting for wait in one.waits], waiting[0].call, waiting[0].by)
        return [run.entry for run in self._runs]

    def _take(self, run: ToolRun, step: Callable[[], None]) -> None:
        """Run a step of a call on the turn's own thread; if it waits, the others continue."""
        try:
            self._contexts[id(run)].run(self._pending, run, step)
        except Waiting as wait:
            self._hold(run, wait)

    def _pending(self, run: ToolRun, step: Callable[[], Any]) -> Any:
        conversation = self._turn.conversation
        outer = conversation.session["pending_tool"]
        conversation.note_pending(shown_call(run.call))
        try:
            return step()
        finally:
            conversation.note_pending(outer)

    def _take_body(self, run: ToolRun) -> None:
        self._take(run, partial(self._ahead, run.body))

    def _ahead(self, step: Callable[[], None]) -> None:
        """Run a step that looks up the result of a body, though calls before it are not settled."""
        turn, past, id = self._turn, self._turn.past, self._turn.id
        seen, between = past.seen.get(id, -1), turn.between
        turn.between = NO_CHANGES
        try:
            step()
        finally:
            turn.between = between
            past.seen[id] = seen

    def _hold(self, run: ToolRun, wait: Waiting) -> None:
        wait.call = run.call
        self._waits[id(run)] = wait

    def _settle(self, group: list[ToolRun]) -> None:
        for run in group:
            try:
                if self._turn.resumed:
                    self._turn.past.closing(f"{run.id}/tool1", self._turn.id)  # the turn has reached it now
                    self._turn.between.until(f"{run.id}/tool1")
                self._contexts[id(run)].run(self._pending, run, run.settle)
            except BaseException as error:
                run.stopped(error)
                self._settled += 1
                raise
            self._settled += 1

    # -- which run at the same time ------------------------------------------------------------

    def _is_alone(self, run: ToolRun) -> bool:
        tool = self._turn.agent.tools.get(run.call.name)
        return tool is not None and tool.alone

    def _groups(self) -> Iterator[list[ToolRun]]:
        """The groups of calls to run together; a call that runs alone is a group by itself."""
        group: list[ToolRun] = []
        for run in self._runs:
            alone = self._is_alone(run)
            if alone and group:
                yield group
                group = []
            group.append(run)
            if alone:
                yield group
                group = []
        if group:
            yield group

    def _run_bodies(self, group: list[ToolRun]) -> None:
        """Run the bodies of a group: all that ask agents at once, and of the others as many as the limit allows."""
        ready = [run for run in group if id(run) not in self._waits]
        self._turn.between.before_bodies([f"{run.id}/tool1" for run in ready])
        beside: list[ToolRun] = []
        for run in ready:
            if len(group) > 1 and (self._limit > 1 or self._asked(run) is not None):
                beside.append(run)
            else:  # first, so that the parallel ones see what these changed
                self._take(run, partial(self._ahead, run.body_kept))
        for batch in self._batches(beside):
            _Batch(self._turn, self._limit, self._contexts, self._take_body, self._hold).run(batch)

    def _asked(self, run: ToolRun) -> Any:
        return self._turn.agent.asked_by(run.call)

    def _batches(self, runs: list[ToolRun]) -> Iterator[list[ToolRun]]:
        """The calls that may run at once: an agent takes one turn at a time, and none while it waits."""
        while runs:
            agents: list[Any] = []
            batch, rest = [], []
            for number, run in enumerate(runs):
                agent = self._asked(run)
                if agent is not None and agent in agents:
                    rest = runs[number:]
                    break
                agents.append(agent)
                batch.append(run)
            yield batch
            held = [self._asked(run) for run in self._runs if id(run) in self._waits]
            runs = [run for run in rest if self._asked(run) is None or self._asked(run) not in held]


class _Batch:
    """Calls whose bodies run at the same time."""

    def __init__(self, turn: Turn, limit: int, contexts: dict[int, Context], take: Any, hold: Any) -> None:
        self._turn, self._limit, self._contexts, self._take, self._hold = turn, limit, contexts, take, hold
        self._beside = Beside(turn)
        self._stacks: dict[int, Stack] = {}

    def run(self, runs: list[ToolRun]) -> None:
        """Begin the calls in order, let them run, and merge their changes in order.

        Raises:
            BaseException: the first error that is not a wait, when all are over.
        """
        looked_up = self._turn.conversation.writes.copied()  # of bodies whose end the log has
        try:
            for run in runs:
                if not run.decided and not self._turn.is_known(f"{run.id}/tool1"):
                    self._begin(run)
            self._beside.wait(lambda: all(stack.body.is_back.is_set() for stack in self._stacks.values()))
            self._come_home(runs)
        except BaseException:
            self._cut(runs)
            raise
        finally:
            self._beside.close(abandon=True)
            end_with(self._turn, self._beside.bodies)
            looked_up.close()
        self._raise_errors()

    def _begin(self, run: ToolRun) -> None:
        """Begin a call as soon as the limit allows, unless the turn was ended meanwhile."""
        agent = self._turn.agent.asked_by(run.call)
        if agent is None:
            self._beside.wait(lambda: self._running() < self._limit)
        if self._turn.ended is not None:
            run.decide(status="skipped", result=ENDED)
            return
        body = Body(self._beside, self._contexts[id(run)], shown_call(run.call))
        body.asks, body.home = agent is not None, f"{run.id}/tool1"
        stack = self._stacks[id(run)] = Stack(run, body, frame.current() or self._turn.frame)
        stack.start()
        self._beside.wait(body.entered.is_set)

    def _running(self) -> int:
        return sum(not stack.body.is_back.is_set() and not stack.body.asks for stack in self._stacks.values())

    def _errors(self) -> Iterator[BaseException]:
        for stack in self._stacks.values():
            if stack.error is not None and not isinstance(stack.error, Waiting):
                yield stack.error

    def _come_home(self, runs: list[ToolRun]) -> None:
        """In order: merge the changes of each body, and let the handlers around it finish."""
        for run in runs:
            stack = self._stacks.get(id(run))
            if stack is None:
                self._take(run)
                continue
            self._bring_home(run, stack)
            if isinstance(stack.error, Waiting):
                self._hold(run, stack.error)

    def _bring_home(self, run: ToolRun, stack: Stack) -> None:
        turn, body = self._turn, stack.body
        self._beside.wait(body.is_back.is_set)  # its line is written before its changes are merged
        changes = body.changes_as_data()
        body.context.run(body.bring_home)
        before = copy_of(turn.state)
        body.go.set()
        self._beside.wait(stack.over.is_set)
        stack.join()
        if stack.error is None and "around_tool" in turn.host.others:
            by = {"hook": "around_tool", "tool": run.call.name}
            left = state_change(before, turn.state) if body.over else {}  # else no line stands before what they changed
            run.keep([*changes, {"by": by, **left}] if left else changes)

    def _cut(self, runs: list[ToolRun]) -> None:
        """After Ctrl-C: stop what can be stopped, and let the others come home with their handlers, in order."""
        for again in (False, True):
            self._beside.cut(again)
            try:
                for run in runs:
                    stack = self._stacks.get(id(run))
                    if stack is not None and (stack.is_running or stack.body.changes):
                        self._bring_home(run, stack)
                return
            except KeyboardInterrupt:
                if again:
                    raise

    def _raise_errors(self) -> None:
        if errors := list(self._errors()):
            self._turn.failed_together(errors)
            raise next((error for error in errors if not isinstance(error, Exception)), errors[0])


def at_once(turn: Turn, jobs: list[tuple[Any, Callable[[], Any]]]) -> list[Any]:
    """Run jobs in threads, each in a copy of this context, and merge their changes in order.

    Args:
        turn: the turn whose code asks for them.
        jobs: each with its agent; an agent takes one turn at a time.

    Raises:
        BaseException: the first error, when all are over. Ctrl-C ends the turns inside them first; a second one
            leaves them behind.
    """
    here, beside = frame.current() or turn.frame, Beside(turn)
    running = partial(beside.wait, lambda: all(body.done.is_set() for body in beside.bodies))
    try:
        for number, (agent, job) in enumerate(jobs):
            if any(agent is other for other, _ in jobs[:number]):
                running()
                _all_home(beside)
            body = Body(beside, copy_context())
            body.asks = True
            body.home = here.id
            body.begin(here.by, turn.state, turn.conversation.writes)
            body.start(job, Frame(turn, here.id, here.by, here.account, body, here.call, here.place))
            beside.wait(body.entered.is_set)
        running()
    except BaseException:
        beside.cut()
        running()
        raise
    finally:
        beside.close(abandon=True)
        _all_home(beside)
        end_with(turn, beside.bodies)
    return _outcomes(turn, beside.bodies)


def _all_home(beside: Beside) -> None:
    for body in beside.bodies:
        body.bring_home()


def _outcomes(turn: Turn, bodies: list[Body]) -> list[Any]:
    """The results of bodies.

    Raises:
        Waiting: some wait, and the others are over.
        BaseException: the error of one of them.
    """
    results: list[Any] = []
    waits: list[Waiting] = []
    others: list[BaseException] = []
    for body in bodies:
        try:
            results.append(body.outcome())
        except Waiting as wait:
            waits.append(wait)
        except BaseException as error:
            others.append(error)
    if others:
        turn.failed_together(others)
        raise next((error for error in others if not isinstance(error, Exception)), others[0])
    if waits:
        raise Waiting([wait for one in waits for wait in one.waits], waits[0].call, waits[0].by)
    return results
