"""`agent.execute_tool()`: one tool without the model, inside a turn or between turns."""

from __future__ import annotations

from contextvars import copy_context

from connectagent import frame
from connectagent.data import ToolCall, TraceEntry
from connectagent.errors import Abandoned, Pause, Waiting
from connectagent.frame import Frame
from connectagent.loop.beside import Body, body_in
from connectagent.loop.call_arguments import check_arguments
from connectagent.loop.ending import Given, tear_down
from connectagent.loop.remote import Remote
from connectagent.loop.tool_call import ToolRun
from connectagent.loop.turn import Turn
from connectagent.loop.turn_agent import TurnAgent
from connectagent.session.messages import NOT_RUN

_PAUSED = NOT_RUN.format(reason="it was paused")


def execute_inside(turn: Turn, call: ToolCall, key: str | None) -> TraceEntry:
    """Run a tool as an operation of the turn."""
    asked = asking_in(turn)
    if turn.is_consumer():  # the consumer of `stream()` may have changed the session
        turn.conversation.take_changes()
    with turn.alone(asked):
        id = turn.key(asked, "exec", call.name, call.arguments, key)
        check_arguments(turn.agent.tools, call)
        run = ToolRun(turn, call, f"{id.removeprefix(turn.id + '/')}/")
        try:
            body = body_in(asked)
            return run.whole() if body is None else _from_body(body, run)
        except Waiting:
            run.skip(_PAUSED)
            raise


def asking_in(turn: Turn) -> Frame:
    """The current frame in a turn; a thread without a frame gets that of the turn's own thread.

    Raises:
        RuntimeError: the turn no longer waits for the code.
    """
    here = frame.current()
    while here is not None and here.turn is not turn:
        refuse_over(here)  # it may be of an earlier turn of this agent
        here = here.turn.asked
    if here is None:
        return turn.innermost
    refuse_over(here)
    return here


def refuse_left(what: str) -> None:
    """Refuse what code asks for after its turn, or a turn around it, has left it behind.

    Raises:
        RuntimeError: no turn waits for the code.
    """
    here = frame.current()
    while here is not None:
        refuse_over(here, what)
        here = here.turn.asked


def refuse_over(here: Frame | None, what: str = "execute_tool()") -> None:
    """Refuse what code asks for after its turn has left it behind.

    Raises:
        RuntimeError: the turn no longer waits for the code.
    """
    if here is not None and here.body is not None and (here.body.left or here.body.over):
        raise RuntimeError(f"{what} was called by a tool that the turn no longer waits for: {here.id}")


def _from_body(body: Body, run: ToolRun) -> TraceEntry:
    """Run a tool for parallel code: in its thread too, except for the handlers."""
    turn = run.turn
    remote = Remote(body, copy_context())
    outer, remote.pending = remote.pending, {"id": run.call.id, "name": run.call.name, "arguments": run.call.arguments}
    try:
        remote.call(run.guard)
        run.turn = remote  # type: ignore[assignment]
        try:
            run.body()
        finally:
            run.turn = turn
        remote.call(run.settle)
        return run.entry
    except Abandoned:
        raise
    except BaseException as error:
        remote.call(run.stopped, error)
        raise
    finally:
        remote.pending = outer


def execute_outside(agent: TurnAgent[Turn], call: ToolCall, number: int) -> TraceEntry:
    """Run a tool between turns; it is recorded, but never looked up."""
    refuse_over(frame.current())
    with agent.executing:
        log = agent.sessions.open_log()
        agent.conversation.take_over()
        turn = Turn(agent, Given({"role": "user", "content": ""}, "", 1), f"B{agent.conversation.session['turn']}", log)
        check_arguments(agent.tools, call)
        run = ToolRun(turn, call, f"{number}/")
        try:
            entry = run.whole()
        except Waiting as waiting:
            run.skip(_PAUSED)
            pause = Pause(waiting.waits[0].reason)
            pause.call = waiting.call
            raise pause from None
        finally:
            if turn.pool is not None:
                tear_down(turn.pool)
        agent.boundary.announce_pending()
        return entry
