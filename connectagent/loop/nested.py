"""Turns as operations of the turn that asks for them."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from connectagent.data import TraceEntry
from connectagent.errors import Abandoned, Paused, Waiting
from connectagent.frame import Frame
from connectagent.loop.described import describe_error
from connectagent.loop.ending import Given
from connectagent.loop.run import refuse_waiting, run_turn
from connectagent.loop.turn import Turn
from connectagent.session.raised import model_error
from connectagent.session.snapshot import copy_of
from connectagent.session.state import lasting, state_change

_STOPPED = ("interrupted", "paused", "error")
MAX_DEPTH = 10  # how many turns may be nested


def _beside(body: Any, turn: Turn) -> str:
    """Take a turn inside a parallel body, or outside of one if `body` is None."""
    if body is None:
        return run_turn(turn)
    body.leave_turn()
    try:
        return run_turn(turn)
    finally:
        body.come_back()


def ask_inside(agent: Any, given: Given, asked: Frame, key: str | None = None, handoff: Any = None) -> TraceEntry:
    """Take a turn as an operation of another turn; its closing entry.

    Raises:
        Waiting: something in it waits for a person.
        RuntimeError: the agent waits inside a turn of another agent.
        Exception: the error of the turn.
    """
    if agent.waits_in is not None:
        refuse_waiting(agent)
    caller = asked.turn
    with caller.alone(asked):
        id = caller.key(asked, "turn", agent.name, given.message["content"], key)
    line: TraceEntry | None = caller.past.closing(id, caller.id)
    if line is None:
        line = _inner_turn(agent, given, asked, id, handoff)
    else:
        agent.take_recorded(caller, str(line.get("branch")), False)
        agent.hear(caller.past.lines[caller.past.began[id]].get("heard"))
        caller.take_closing(line, line, known=True)
        if line.get("error_type"):
            error = model_error(line, line)
            caller.failed(id, error)
            raise error
    return line


def _inner_turn(agent: Any, given: Given, asked: Frame, id: str, handoff: Any) -> TraceEntry:
    caller: Turn = asked.turn
    _meet(agent, caller)
    turn = Turn(agent, given, id, caller.log, asked, caller.past)
    turn.handoff = handoff
    with agent.turning, agent._guarded_by(caller.agent):
        state = _begin(caller, turn)
        ending: TraceEntry = {"outcome": "interrupted", "open": True}
        base: dict[str, Any] | None = None
        try:
            agent.turn = turn
            turn.prepare()
            if state is not None:
                agent.conversation.set_state(state, caller.agent.by)
                base = copy_of(agent.conversation.session["state"])
            result = _beside(asked.body, turn)
            ending = {"outcome": agent.conversation.session["outcome"], "result": result, **_wanted(turn)}
        except Abandoned:
            turn.abandoned = True
            raise
        except Paused as paused:
            ending, agent.waits_in = {"outcome": "paused", "open": True}, turn.root
            raise Waiting(paused.waiting) from None
        except Exception as error:
            caller.boundary.take_blame(error, agent.boundary)
            ending = {"outcome": "error", "result": None, **describe_error(error), "from": caller.failed(id, error)}
            raise
        finally:
            _end(caller, turn, ending, base)
    return turn.line


def _begin(caller: Turn, turn: Turn) -> dict[str, Any] | None:
    """Begin an inner turn; a copy of the caller's state, which is the tree's, or None outside of the caller's tree."""
    agent, handoff = turn.agent, turn.handoff
    branch = _branch_outside(agent, caller)
    related, labels = branch is None, agent.enter_session(turn, branch)
    state = copy_of(caller.state) if related else None
    body = None if turn.asked is None else turn.asked.body
    if state is not None:
        turn.copy = (caller.conversation if body is None else body).writes.copied(state)
    caller.opens(turn.id)
    caller.between.everything()
    if not turn.has_begun(turn.id):
        more = agent.beginning_for(turn.log, not related) | ({} if handoff is None else {"heard": handoff.heard()})
        caller.began(turn.id, agent=agent.name, branch=labels.get("branch"), **more)
    caller.inner.append(turn)
    if caller.stopped or (body is not None and body.cut):  # checked now: they are set before `inner` is read
        turn.stop()
    if caller.left is not None:
        turn.leave(caller.left)
    return state


def _end(caller: Turn, turn: Turn, ending: TraceEntry, base: dict[str, Any] | None) -> None:
    """End an inner turn; `base`: the state with which it began."""
    agent = turn.agent
    agent.turn = None
    turn.over = True
    if not turn.abandoned:
        _close(caller, turn, ending, {} if base is None else state_change(base, agent.state_left()))
    if turn.copy is not None:
        turn.copy.close()
    caller.inner.remove(turn)  # only now: where Ctrl-C came before, the caller tells which of its hooks are over
    agent.boundary.forget_errors()
    if turn.resumed:
        agent.hooks.look_up(())
    agent.leave_session()


def _close(caller: Turn, turn: Turn, ending: TraceEntry, change: dict[str, Any]) -> None:
    """Write the closing entry of an inner turn, and merge its changes."""
    agent, session, (ms, spent) = turn.agent, turn.conversation.session, turn.sums()
    turn.line = {
        "type": "agent_turn",
        "id": turn.id,
        "agent": agent.name,
        "branch": turn.branch,
        "turn": session["turn"],
        "record": None if turn.log.path is None else str(turn.log.path),
        "started": turn.started,
        "duration_ms": round(ms, 3),
        "usage": spent.data(),
        "timestamp": time.time(),
        **ending,
        **lasting(change),
    }
    quietly = contextlib.suppress(Exception) if ending["outcome"] in _STOPPED else contextlib.nullcontext()
    with quietly:  # a handler's error must not hide the one that stopped the turn
        if ending["outcome"] in _STOPPED:
            turn.close_silent()
        caller.take_closing(turn.line, change, copy=turn.copy)


def _wanted(turn: Turn) -> dict[str, Any]:
    """What a turn asks of the turns around it: a handoff, or to end too."""
    wanted: dict[str, Any] = {}
    if turn.request is not None:
        wanted["handoff"] = turn.request.as_data()
    if turn.outward is not None:
        ending, scope = turn.outward
        result = turn.conversation.session["result"] if ending.result is None else ending.result
        wanted["outward"] = {**ending._asdict(), "result": result, "scope": scope}
    return wanted


def _meet(agent: Any, caller: Turn) -> None:
    """Refuse an agent that is too deep inside others; tell the root's runtime of any other."""
    _check_depth(agent, caller)
    caller.root.agent.runtime.on_inner(agent, _branch_outside(agent, caller) or agent.branch)


def _branch_outside(agent: Any, caller: Turn) -> str | None:
    """The branch of an agent of another tree; None for one of the caller's own."""
    return None if agent.root is caller.agent.root else f"{caller.branch or caller.agent.name}.{agent.name}"


def _check_depth(agent: Any, caller: Turn) -> None:
    callers = [caller, *caller.callers()]
    if len(callers) > MAX_DEPTH:
        chain = " > ".join([*(one.agent.name for one in reversed(callers)), agent.name])
        raise RuntimeError(
            f"agent {agent.name!r} was not asked: it would be {len(callers)} agents inside each other "
            f"({chain}), and {MAX_DEPTH} is the limit"
        )
