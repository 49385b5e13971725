"""Each decision that a handler or tool can make in a turn, and what is seen of it: the same wherever the turn runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from connectagent import Agent, Retry

PROMPT = "Go."
Boom = type("Boom", (Exception,), {})


# -- the agent -----------------------------------------------------------------------------------


def work(x: int) -> int:
    """Work."""
    return 2 * x


def bad() -> int:
    """Fail."""
    raise Boom("no")


def once_bad(agent: Any) -> str:
    """Fail the first time."""
    agent.fails = getattr(agent, "fails", 0) + 1
    if agent.fails == 1:
        raise Boom("no")
    return "yes"


def ending(agent: Any) -> str:
    """End the turn."""
    agent.end_turn("Ended.")
    return "last"


def answering(value: Any) -> Callable[[Agent], Any]:
    """Change the state, and decide."""

    def act(agent: Agent) -> Any:
        assert agent.current_session is not None
        agent.current_session["state"]["decided"] = True
        return value

    return act


class Decision(NamedTuple):
    """A decision and what is seen of it.

    Args:
        script: the model's responses.
        handler: the hook in which it is made and what is done there; None where a tool makes it.
        log: the hooks that fire and the entries (`+`) that are told, with what they say.
        trace: the turn's entries as they are in the end, where they are not those that were told.
        result: what `input()` returns.
        outcome: the session's.
    """

    script: list[Any]
    handler: tuple[str, Callable[[Agent], Any]] | None
    log: str
    trace: str | None
    result: str
    outcome: str = "answered"


WORK: Any = ("work", {"x": 2})

DECISIONS = {
    "answer before the agent": Decision(
        [],
        ("after_user_input", answering("Mine.")),
        """
        >turn
        +user_input 'Go.'
        after_user_input
        +state_delta by decide delta {'decided': True}
        +message 'Mine.' by decide delta {'decided': True}
        on_complete 'Mine.' ended
        <turn 'Mine.'
        """,
        None,
        "Mine.",
        "ended",
    ),
    "stand in for the model": Decision(
        [],
        ("before_llm", answering("Mine.")),
        """
        >turn
        +user_input 'Go.'
        after_user_input
        before_llm
        +state_delta by decide delta {'decided': True}
        +llm_call stand_in 'Mine.' by decide delta {'decided': True}
        after_llm 'Mine.'
        on_complete 'Mine.' answered
        <turn 'Mine.'
        """,
        None,
        "Mine.",
    ),
    "stand in for a tool": Decision(
        [WORK, "Done."],
        ("before_each_tool", answering("mine")),
        """
        >turn
        +user_input 'Go.'
        after_user_input
        before_llm
        >llm
        <llm ['work']
        +llm_call success [work]
        after_llm ['work']
        before_tools [work]
        before_each_tool work
        +state_delta by decide delta {'decided': True}
        +tool_execution work stand_in 'mine' by decide delta {'decided': True}
        after_each_tool work 'mine' stand_in
        after_tools [stand_in]
        before_llm
        >llm
        <llm 'Done.'
        +llm_call success 'Done.'
        after_llm 'Done.'
        on_complete 'Done.' answered
        <turn 'Done.'
        """,
        None,
        "Done.",
    ),
    "replace after a tool": Decision(
        [WORK, "Done."],
        ("after_each_tool", answering("mine")),
        """
        >turn
        +user_input 'Go.'
        after_user_input
        before_llm
        >llm
        <llm ['work']
        +llm_call success [work]
        after_llm ['work']
        before_tools [work]
        before_each_tool work
        >tool work
        <tool work 4
        +tool_execution work success '4'
        after_each_tool work '4' success
        +state_delta by decide delta {'decided': True}
        +change result 'mine' by decide delta {'decided': True}
        after_tools [success]
        before_llm
        >llm
        <llm 'Done.'
        +llm_call success 'Done.'
        after_llm 'Done.'
        on_complete 'Done.' answered
        <turn 'Done.'
        """,
        """
        user_input 'Go.'
        llm_call success [work]
        tool_execution work success 'mine'
        state_delta by decide delta {'decided': True}
        change result 'mine' by decide delta {'decided': True}
        llm_call success 'Done.'
        """,
        "Done.",
    ),
    "recover from a tool's error": Decision(
        [("bad", {}), "Done."],
        ("on_error", answering("mine")),
        """
        >turn
        +user_input 'Go.'
        after_user_input
        before_llm
        >llm
        <llm ['bad']
        +llm_call success [bad]
        after_llm ['bad']
        before_tools [bad]
        before_each_tool bad
        >tool bad
        <tool bad Boom('no')
        +tool_execution bad error 'Error: Boom: no'
        on_error bad Boom('no')
        +state_delta by decide delta {'decided': True}
        +change tool_execution recovered 'mine' by decide delta {'decided': True}
        after_each_tool bad 'mine' recovered
        after_tools [recovered]
        before_llm
        >llm
        <llm 'Done.'
        +llm_call success 'Done.'
        after_llm 'Done.'
        on_complete 'Done.' answered
        <turn 'Done.'
        """,
        """
        user_input 'Go.'
        llm_call success [bad]
        tool_execution bad recovered 'mine' by decide
        state_delta by decide delta {'decided': True}
        change tool_execution recovered 'mine' by decide delta {'decided': True}
        llm_call success 'Done.'
        """,
        "Done.",
    ),
    "try a tool again": Decision(
        [("once_bad", {}), "Done."],
        ("on_error", answering(Retry())),
        """
        >turn
        +user_input 'Go.'
        after_user_input
        before_llm
        >llm
        <llm ['once_bad']
        +llm_call success [once_bad]
        after_llm ['once_bad']
        before_tools [once_bad]
        before_each_tool once_bad
        >tool once_bad
        <tool once_bad Boom('no')
        +tool_execution once_bad error 'Error: Boom: no'
        on_error once_bad Boom('no')
        +state_delta by decide delta {'decided': True}
        >tool once_bad
        <tool once_bad 'yes'
        +change tool_execution success 'yes' by decide delta {'decided': True}
        after_each_tool once_bad 'yes' success
        after_tools [success]
        before_llm
        >llm
        <llm 'Done.'
        +llm_call success 'Done.'
        after_llm 'Done.'
        on_complete 'Done.' answered
        <turn 'Done.'
        """,
        """
        user_input 'Go.'
        llm_call success [once_bad]
        tool_execution once_bad success 'yes'
        state_delta by decide delta {'decided': True}
        change tool_execution success 'yes' by decide delta {'decided': True}
        llm_call success 'Done.'
        """,
        "Done.",
    ),
    "recover from a model's error": Decision(
        [Boom("down")],
        ("on_error", answering("Mine.")),
        """
        >turn
        +user_input 'Go.'
        after_user_input
        before_llm
        >llm
        <llm Boom('down')
        +llm_call error
        on_error Boom('down')
        +state_delta by decide delta {'decided': True}
        +change llm_call recovered 'Mine.' by decide delta {'decided': True}
        after_llm 'Mine.'
        on_complete 'Mine.' answered
        <turn 'Mine.'
        """,
        """
        user_input 'Go.'
        llm_call recovered 'Mine.' by decide
        state_delta by decide delta {'decided': True}
        change llm_call recovered 'Mine.' by decide delta {'decided': True}
        """,
        "Mine.",
    ),
    "try a model again": Decision(
        [Boom("down"), "Done."],
        ("on_error", answering(Retry())),
        """
        >turn
        +user_input 'Go.'
        after_user_input
        before_llm
        >llm
        <llm Boom('down')
        +llm_call error
        on_error Boom('down')
        +state_delta by decide delta {'decided': True}
        >llm
        <llm 'Done.'
        +llm_call success 'Done.' by decide
        after_llm 'Done.'
        on_complete 'Done.' answered
        <turn 'Done.'
        """,
        None,
        "Done.",
    ),
    "end the turn in a handler": Decision(
        [[WORK, WORK]],
        ("before_each_tool", lambda agent: agent.end_turn("Ended.")),
        """
        >turn
        +user_input 'Go.'
        after_user_input
        before_llm
        >llm
        <llm ['work', 'work']
        +llm_call success [work, work]
        after_llm ['work', 'work']
        before_tools [work, work]
        before_each_tool work
        +tool_execution work skipped 'not run: the turn was ended'
        after_each_tool work 'not run: the turn was ended' skipped
        +tool_execution work skipped 'not run: the turn was ended'
        after_each_tool work 'not run: the turn was ended' skipped
        after_tools [skipped, skipped]
        +message 'Ended.' by decide
        on_complete 'Ended.' ended
        <turn 'Ended.'
        """,
        None,
        "Ended.",
        "ended",
    ),
    "end the turn in a tool": Decision(
        [[("ending", {}), WORK]],
        None,
        """
        >turn
        +user_input 'Go.'
        after_user_input
        before_llm
        >llm
        <llm ['ending', 'work']
        +llm_call success [ending, work]
        after_llm ['ending', 'work']
        before_tools [ending, work]
        before_each_tool ending
        >tool ending
        <tool ending 'last'
        +tool_execution ending success 'last'
        after_each_tool ending 'last' success
        +tool_execution work skipped 'not run: the turn was ended'
        after_each_tool work 'not run: the turn was ended' skipped
        after_tools [success, skipped]
        +message 'Ended.' by ending
        on_complete 'Ended.' ended
        <turn 'Ended.'
        """,
        None,
        "Ended.",
        "ended",
    ),
    "replace the result": Decision(
        [WORK, "Done."],
        ("on_complete", answering("Mine.")),
        """
        >turn
        +user_input 'Go.'
        after_user_input
        before_llm
        >llm
        <llm ['work']
        +llm_call success [work]
        after_llm ['work']
        before_tools [work]
        before_each_tool work
        >tool work
        <tool work 4
        +tool_execution work success '4'
        after_each_tool work '4' success
        after_tools [success]
        before_llm
        >llm
        <llm 'Done.'
        +llm_call success 'Done.'
        after_llm 'Done.'
        on_complete 'Done.' answered
        +state_delta by decide delta {'decided': True}
        +change result 'Mine.' by decide delta {'decided': True}
        <turn 'Mine.'
        """,
        None,
        "Mine.",
    ),
}
