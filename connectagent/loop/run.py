"""The loop: a model call, a round of tools, a model call, until the model has answered."""

from __future__ import annotations

from functools import partial
from typing import Any

from connectagent import frame
from connectagent.data import LLMResponse, ToolCall, TraceEntry
from connectagent.errors import Diverged, DivergenceError, Paused, ToolRejected, Unrecorded, Waiting, short_path
from connectagent.loop.call_arguments import check_arguments
from connectagent.loop.call_entry import ENDED
from connectagent.loop.deciding import Asked
from connectagent.loop.divergence import finish
from connectagent.loop.ending import Ending, Given, tear_down
from connectagent.loop.model_call import call_model
from connectagent.loop.parallel import Round, runs_together
from connectagent.loop.tool_call import ToolRun
from connectagent.loop.turn import Turn
from connectagent.session.journal import CLOSED, Journal
from connectagent.session.messages import NOT_RUN, assistant_message, shown_call
from connectagent.session.usage import count_lost
from connectagent.stop_reasons import stop_reason

# An answer that was filtered or that failed never comes so far, unless a handler gives it, which answers for it.
_OUTCOMES = {"truncated": "truncated", "unknown": "truncated", "refused": "refused"}


def run_turn(turn: Turn) -> str:
    """Take one turn from the user's message to its result, with the handlers around it."""
    with turn.frame:
        if "around_turn" in turn.host.active:
            around = turn.host.around("around_turn", partial(take_steps, turn), agent=turn.agent, prompt=turn.prompt)
            result = str(around)
        else:
            result = take_steps(turn)
    if turn.resumed:
        finish(turn, turn.id)
    return result


def take_steps(turn: Turn) -> str:
    """Take the steps of a turn, from the user's message to the result that `on_complete` leaves."""
    try:
        turn.begin()
        if (value := turn.decide("after_user_input", prompt=turn.prompt)) is not None:
            turn.ended = Ending(value.value, "ended", value.by)
        while True:
            followup = turn.complete(answer(turn))
            if followup is None:
                return str(turn.conversation.session["result"])
            turn.prompt_again(followup)
    except BaseException as error:
        if (stopped := turn.on_stop(error)) is not error:
            raise stopped from None
        raise
    finally:  # pending calls and `temp:` state are cleared
        turn.conversation.end_turn()


def answer(turn: Turn) -> Ending:
    """Iterate until the model has answered, a handler or tool has ended the turn, or its limit is reached."""
    while turn.ended is None:
        if turn.agent.body is not None or turn.conversation.labels:  # a function in place of the model, or a tree
            ending: Ending | None = turn.agent.delegate(turn)
            if ending is not None:
                return ending
        if turn.conversation.session["iteration"] >= turn.limit:
            return turn.out_of_iterations()
        response = iterate(turn)
        if response is not None and response.tool_calls:
            run_tools(turn, response.tool_calls)
        elif response is not None and turn.ended is None and (turn.output is None or turn.output.fits(turn, response)):
            outcome = _OUTCOMES.get(stop_reason(response.finish_reason).end, "answered")
            return Ending(response.content or "", outcome, {"model": response.model})
    return turn.last_words()


def iterate(turn: Turn) -> LLMResponse | None:
    """Ask the model, and append its answer to the conversation; None if the turn ended before."""
    turn.conversation.session["iteration"] += 1
    response = call_model(turn)
    if response is not None:
        turn.conversation.append(assistant_message(response))
    return response


def run_tools(turn: Turn, calls: list[ToolCall]) -> None:
    """Run one round of tools; every call is answered, however the round ends."""
    conversation = turn.conversation
    stopped: str | None = None
    place = f"{conversation.session['iteration']}/"
    for call in calls:
        check_arguments(turn.agent.tools, call)
    conversation.session["pending_tools"] = list(map(shown_call, calls))
    try:
        if turn.ended is None:
            entries = run_round(turn, decided_runs(turn, calls, place))
            if not turn.stopped:  # else some of them run when the turn is resumed
                turn.notify("after_tools", place, entries[-1], entries=entries)
        elif not turn.stopped:
            leave_out(turn, calls, place)
        stopped = ENDED if turn.stopped else None
    except BaseException as error:
        why = "the turn was paused" if isinstance(error, Waiting) else f"{type(error).__name__} ended the turn"
        stopped = NOT_RUN.format(reason=why)
        raise
    finally:
        conversation.close_round(calls, stopped)


def decided_runs(turn: Turn, calls: list[ToolCall], place: str) -> list[ToolRun]:
    """The calls of a round, on which the handlers of `before_tools` have decided."""
    rejection: ToolRejected | None = None
    asked: Asked | None = None
    if "before_tools" in turn.host.active:
        asked = Asked("before_tools", place)
        try:
            asked.ask(turn, calls, place)
        except ToolRejected as rejected:
            rejection = rejected
    runs: list[ToolRun] = []
    for number, call in enumerate(calls):
        at = f"{place}c{number + 1}/"
        runs.append(ToolRun(turn, call, at, rejection, None if asked is None else asked.of_call(number, at)))
    return runs


def run_round(turn: Turn, runs: list[ToolRun]) -> list[TraceEntry]:
    """Run the calls of a round, one after the other or several at the same time; their trace entries."""
    if len(runs) > 1 and (turn.agent.parallel_tools > 1 or runs_together(turn, [run.call for run in runs])):
        return Round(turn, runs).run()
    entries: list[TraceEntry] = []
    for run in runs:
        entries.append(run.whole())
    return entries


def leave_out(turn: Turn, calls: list[ToolCall], place: str) -> None:
    """Answer the calls of a round that does not begin, since the turn was ended before it."""
    for number, call in enumerate(calls, 1):
        run = ToolRun(turn, call, f"{place}c{number}/")
        run.guard()
        run.body()
        run.settle(fires=False)


# -- root turns ------------------------------------------------------------------------------------


def take_root_turn(agent: Any, given: Given, past: Journal | None = None, id: str | None = None) -> str:
    """Take or resume a root turn; it is in the log before this returns.

    Raises:
        RuntimeError: the agent waits inside a turn of another one.
    """
    if agent.waits_in is not None:
        refuse_waiting(agent)
        agent.give_up_wait()
    with agent.turning:  # not acquire() and release(): Ctrl-C between them and a `try` would leave it locked
        log = agent.open_log()
        number = agent.conversation.session["turn"] + 1
        turn = Turn(agent, given, id or f"T{number}", log, None, past)
        try:
            agent.turn = turn
            turn.prepare()
            log.begin(turn)
            try:
                result = run_turn(turn)
                log.end(turn, result, None)
            except BaseException as raised:
                error = raised if turn.over else _stopped_by(turn, raised)
                log.end(turn, None, error)
                if error is raised:
                    raise
                raise error from None
            return result
        finally:
            frame.CURRENT.set(None)  # Ctrl-C between a frame and its end leaves it there
            turn.over, agent.turn = True, None
            agent.boundary.forget_errors()
            if turn.resumed:
                agent.hooks.look_up(())
            if turn.pool is not None:
                tear_down(turn.pool)


def _stopped_by(turn: Turn, error: BaseException) -> BaseException:
    """Note what stopped a root turn: something waits, it failed, or Ctrl-C came; the exception to raise."""
    turn.close_silent()
    if isinstance(error, Unrecorded):
        error = error.error
    elif isinstance(error, Diverged):
        error = DivergenceError("\n".join([str(error), *getattr(error, "__notes__", ())]))
    if isinstance(error, Paused):
        turn.waiting, turn.agent.waits_in = error.waiting, turn
    elif isinstance(error, Exception):
        failure = {"error_type": type(error).__name__, "from": turn.failed(turn.id, error), "open": True}
        turn.log.append({"type": CLOSED, "id": turn.id, **failure})
    else:
        count_lost(turn)
    return error


def refuse_waiting(agent: Any) -> None:
    """Refuse a turn of an agent that waits inside another's turn: the person must decide what they were shown."""
    root = agent.waits_in
    if root.agent is agent or not root.waiting:
        return
    name, record = root.agent.name, f", whose record is {short_path(root.log.path)}" if root.log.path else ""
    ids = ", ".join(wait.id for wait in root.waiting)
    raise RuntimeError(
        f"agent {agent.name!r} waits inside turn {root.id} of agent {name!r}{record}, and takes no other turn before "
        f"that is decided ({ids}): call resume() of {name!r} with a decision; or give the turn up, with input() or "
        f"reset_conversation() of {name!r}"
    )
