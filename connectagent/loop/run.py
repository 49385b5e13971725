"""The loop: a model call, a round of tools, a model call, until the model has answered."""

from __future__ import annotations

from functools import partial

from connectagent.data import LLMResponse, ToolCall, TraceEntry
from connectagent.errors import ToolRejected, Waiting
from connectagent.loop.described import shown_call
from connectagent.loop.divergence import finish
from connectagent.loop.ending import Ending
from connectagent.loop.model_call import call_model
from connectagent.loop.parallel import Round, asks_several
from connectagent.loop.tool_call import ToolRun
from connectagent.loop.turn import Turn
from connectagent.session.messages import NOT_RUN, assistant_message


def run_turn(turn: Turn) -> str:
    """Take one turn from the user's message to its result, with the handlers around it."""
    with turn.frame:
        if "around_turn" in turn.host.active:
            around = turn.host.around("around_turn", partial(take_steps, turn), agent=turn.agent, prompt=turn.prompt)
            result = str(around)
        else:
            result = take_steps(turn)
    if turn.past is not None:
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
            if followup is None or turn.exhausted:
                return turn.keep()
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
        ending: Ending | None = turn.agent.delegate(turn)
        if ending is not None:  # a function in place of the model, or a hand-off
            return ending
        if turn.ended is not None:
            break
        if turn.exhausted:
            return turn.out_of_iterations()
        response = iterate(turn)
        if response is not None and response.tool_calls:
            run_tools(turn, response.tool_calls)
        elif response is not None and turn.ended is None and (turn.output is None or turn.output.fits(turn, response)):
            outcome = "truncated" if response.finish_reason and response.truncated else "answered"
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
    conversation, place, reason = turn.conversation, f"{turn.iteration}/", "the turn was ended"
    conversation.session["pending_tools"] = list(map(shown_call, calls))
    try:
        if turn.ended is None:
            rejection = turn.rejects("before_tools", place, tool_calls=list(calls))
            entries = run_round(turn, calls, rejection)
            if not turn.stopped:  # else some of them run when the turn is resumed
                turn.notify("after_tools", place, entries[-1], entries=entries)
    except BaseException as error:
        waits = isinstance(error, Waiting)
        reason = "the turn was paused" if waits else f"{type(error).__name__} ended the turn"
        raise
    finally:
        conversation.close_round(calls, NOT_RUN.format(reason=reason))


def run_round(turn: Turn, calls: list[ToolCall], rejection: ToolRejected | None) -> list[TraceEntry]:
    """Run the calls of a round, one after the other or several at the same time; their trace entries."""
    entries, runs = [], []
    for number, call in enumerate(calls, 1):
        runs.append(ToolRun(turn, call, f"{turn.iteration}/c{number}/", rejection))
    if len(runs) > 1 and (turn.agent.parallel_tools > 1 or asks_several(turn, calls)):
        return Round(turn, runs).run()
    for run in runs:
        entries.append(run.whole())
    return entries
