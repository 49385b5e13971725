"""The hooks: when each fires, what its handlers are given, and what they may return.

This is the only definition of a hook: `connectagent hooks NAME` prints its docstring, `markers.py` has a marker of
its name, and the executor reads its contract.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from connectagent.data import Continue, LLMRequest, LLMResponse, ToolCall, TraceEntry
from connectagent.hooks.agent_api import AgentAPI
from connectagent.hooks.contract import Contract, spec

if TYPE_CHECKING:
    import click  # for readers and type checkers; nothing is imported at run time

# -- the nine events -----------------------------------------------------------------------------


@spec("first", (str,))
def after_user_input(agent: AgentAPI, prompt: str) -> str | None:
    """A user's message has been added to the conversation.

    Fires: once per `input()`.

    Args:
        agent: the agent; the message is the last of `agent.current_session["messages"]`.
        prompt: the text of the message.

    Returns:
        None: the turn goes on.
        str: is the turn's result; the model is not called and `on_complete` fires.
    """


@spec("first", (LLMResponse, str))
def before_llm(agent: AgentAPI, request: LLMRequest) -> LLMResponse | str | None:
    """The model is about to be called.

    Fires: each iteration.

    Args:
        agent: the agent.
        request: `messages`, `tools`, `model`, `options`. Edit `request.messages` in place to change the
            conversation for good; assign a new list to change this one call. The others are this call's.

    Returns:
        None: the call is made.
        LLMResponse, str: stands in for the model's answer.
    """


@spec("chain", (LLMResponse, str), "response")
def after_llm(agent: AgentAPI, request: LLMRequest, response: LLMResponse) -> LLMResponse | str | None:
    """The model has answered.

    Fires: after every response, including those that a handler supplied.

    Args:
        agent: the agent.
        request: what was asked.
        response: `content`, `tool_calls`, `usage`, as the handlers before this one left it.

    Returns:
        None: the response stays.
        LLMResponse, str: takes its place.
    """


@spec("observe")
def before_tools(agent: AgentAPI, tool_calls: list[ToolCall]) -> None:
    """A tool round is about to begin.

    Fires: once per tool round; the assistant's message is in `messages`.

    A handler that let a call pass is asked again about that call alone if it changes, and about each call that
    `agent.execute_tool` makes.

    Args:
        agent: the agent.
        tool_calls: all calls of the round, in the model's order; their names and arguments may be edited. A call whose
            arguments do not fit has a `misfit`.

    Returns:
        None.

    Raises:
        ToolRejected: every one of these calls is rejected; the model reads the reason.
    """


@spec("first")
def before_each_tool(agent: AgentAPI, tool_call: ToolCall) -> Any:
    """One tool is about to be called.

    Tools that the provider runs itself, such as web search, are no tool calls here: no hook fires for them.

    Fires: for every tool call, including those of unknown tools.

    Args:
        agent: the agent.
        tool_call: `id`, `name`, `arguments` in the form that the tool gets; name and arguments may be edited. `misfit`
            says why arguments do not fit.

    Returns:
        None: the tool is called.
        any other value: stands in for the tool's result.

    Raises:
        ToolRejected: the call is rejected; the model reads the reason.
    """


@spec("chain", (), "result")
def after_each_tool(agent: AgentAPI, tool_call: ToolCall, result: Any, entry: TraceEntry) -> Any:
    """One tool call has its result.

    Fires: for every tool call, whatever its outcome: see `entry["status"]`.

    Args:
        agent: the agent; the result is in `messages`, at its place.
        tool_call: the call.
        result: the result, as the handlers before this one left it.
        entry: the call's trace entry, the last of the trace: entries caused by handlers are appended later.

    Returns:
        None: the result stays, as it does where a handler returns the same `result` object.
        any other value: takes its place, in `messages` and in the trace.
    """


@spec("observe")
def after_tools(agent: AgentAPI, entries: list[TraceEntry]) -> None:
    """A tool round is over.

    Fires: once per tool round; all results are in `messages`.

    Args:
        agent: the agent.
        entries: the trace entries of the round's calls, in the model's order.

    Returns:
        None.
    """


@spec("first")
def on_error(
    agent: AgentAPI, error: Exception, tool_call: ToolCall | None, request: LLMRequest | None, attempt: int
) -> Any:
    """A tool or a model call failed.

    Fires: when a tool raised or was not found, or its arguments did not fit (`tool_call` is set), and
    when a model call failed (`tool_call` is None), including those of `agent.ask()`. Not for errors of handlers.

    Args:
        agent: the agent.
        error: what was raised.
        tool_call: the failed call, or None for a model call.
        request: what the model was sent, or None for a tool; changes hold for the next attempt.
        attempt: which attempt has failed, from 1.

    Returns:
        None: the model reads the tool's error; a model's error reaches the caller of `input()`.
        Retry: the call is made again, by another model where it has one.
        LLMResponse, str: for a model call, is the answer.
        any other value: for a tool call, is the result.
    """


@spec("chain", (str, Continue), "result")
def on_complete(agent: AgentAPI, result: str, outcome: str) -> str | Continue | None:
    """The turn has its result.

    Fires: once per `input()` that returns; again after a `Continue`.

    Args:
        agent: the agent.
        result: what `input()` will return, as the handlers before this one left it.
        outcome: `answered`, `truncated` where the answer is cut or not known to be whole, `refused`, `ended`,
            `max_iterations`, or `transferred` to another agent.

    Returns:
        None: the result stays.
        str: is returned instead; the model's own text stays in `messages`.
        Continue: the loop goes on, unless it has reached its limit.
    """


# -- around an operation -------------------------------------------------------------------------


@spec("around", (str,))
def around_turn(agent: AgentAPI, prompt: str) -> Generator[None, Any, Any]:
    """The whole of a turn runs inside the handler's `yield`.

    If the turn is resumed, what the handler changes then replaces what it had changed.

    Fires: once per `input()`, and again when the turn is resumed.

    Args:
        agent: the agent.
        prompt: the text of the user's message.

    Yields:
        once; `yield` gives the turn's result, or raises what the turn raised.

    Returns:
        None: the outcome stays.
        str: is the turn's result.
    """
    yield


@spec("around", (LLMResponse, str))
def around_llm(agent: AgentAPI, request: LLMRequest) -> Generator[None, Any, Any]:
    """A model call runs inside the handler's `yield`.

    Fires: each time that the model is called, again for each `Retry`; not for stand-ins.

    Args:
        agent: the agent.
        request: `messages`, `tools`, `model`, `options`; changes before the `yield` are sent.

    Yields:
        once; `yield` gives the LLMResponse, or raises what the call raised.

    Returns:
        None: the outcome stays.
        LLMResponse, str: is the answer.
    """
    yield


@spec("around")
def around_tool(agent: AgentAPI, tool_call: ToolCall) -> Generator[None, Any, Any]:
    """A tool runs inside the handler's `yield`.

    Fires: each time that a tool is called, again for each `Retry`; not for unknown tools, stand-ins and
    rejected calls.

    Args:
        agent: the agent.
        tool_call: `id`, `name`, `arguments`.

    Yields:
        once; `yield` gives what the tool returned, or raises what it raised.

    Returns:
        None: the outcome stays.
        any other value: is the tool's result; neither the trace nor the record sees the tool's own.
    """
    yield


# -- observing and joining -----------------------------------------------------------------------


@spec("observe")
def on_trace(agent: AgentAPI, entry: TraceEntry) -> None:
    """Something happened and is in the trace.

    Fires: at each trace entry; not for those that the handler itself causes.

    Args:
        agent: the agent.
        entry: the entry, tagged by `type`.

    Returns:
        None.
    """


@spec("observe")
def on_text(agent: AgentAPI, text: str, attempt: int) -> None:
    """A piece of an answer's text has arrived.

    It comes from the model, or from a generator of `Agent(run=...)`.

    Fires: while a streamed answer arrives, for each piece, in order; only with `Agent(stream=True)` and in
    `agent.stream()`. The call may still fail afterwards: what was shown is then no answer.

    Args:
        agent: the agent.
        text: the piece.
        attempt: at the model call, from 1. With another attempt the text begins anew: what was shown of the last one is
            no answer.

    Returns:
        None.
    """


@spec("observe")
def on_agent_ready(agent: AgentAPI) -> None:
    """An agent has been made.

    Fires: once, at the end of `Agent(...)`; for a plugin that a child inherits, when its parent is made.

    Args:
        agent: the agent; tools may be added and `agent.system_prompt` extended.

    Returns:
        None.
    """


@spec("observe")
def on_agent_closed(agent: AgentAPI) -> None:
    """An agent was closed.

    Fires: once: at `close()`, at the end of `with Agent(...)`, at the end of the process, or after the last reference
    is gone; for the agents below first. Every handler runs, even if others raise.

    Args:
        agent: the agent, which takes no further turn.

    Returns:
        None.
    """


@spec("observe")
def on_session(agent: AgentAPI, reason: str) -> None:
    """A session begins, or goes on from a record.

    Fires: in a session's first turn, before its first message, for agents inside others too; and when an agent
    is given the session of a record, before the open turn goes on.

    Args:
        agent: the agent; its session is there, with the messages so far.
        reason: `begun`, `resumed`, or `forked` where what follows is written to a copy of the record.

    Returns:
        None.
    """


# -- bringing things -----------------------------------------------------------------------------


@spec("collect", (dict,))
def register_models() -> dict[str, Callable[[str], Any]]:
    """Model names are looked up.

    Fires: when an agent is made, before its model is.

    Args:
        none.

    Returns:
        dict: from the prefix in `prefix/model` to a function that takes the model's name and gives an LLM.
    """
    return {}


@spec("observe")
def register_commands(cli: click.Group) -> None:
    """The command line is being built.

    Fires: once per run of `connectagent`.

    Args:
        cli: a click group to add commands to; one that is called `log blame` stands below `connectagent log`.

    Returns:
        None.
    """


@spec("collect", (dict,))
def register_chat_commands(agent: AgentAPI) -> dict[str, Callable[[str], Any]]:
    """A chat with the agent begins.

    Fires: once per `connectagent chat`, before the first turn.

    Args:
        agent: the agent of the chat.

    Returns:
        dict: from a command's name, without its slash, to a function that takes the text after it. The first line of
            its docstring is its help, and what it returns is shown, if it is not None.
    """
    return {}


EVENTS = (
    "after_user_input",
    "before_llm",
    "after_llm",
    "before_tools",
    "before_each_tool",
    "after_each_tool",
    "after_tools",
    "on_error",
    "on_complete",
)
AROUND = ("around_turn", "around_llm", "around_tool")
OBSERVING = ("on_trace", "on_text", "on_agent_ready", "on_agent_closed", "on_session")
BRINGING = ("register_models", "register_commands", "register_chat_commands")
HOOKS = EVENTS + AROUND + OBSERVING + BRINGING

SPECS: dict[str, Callable[..., Any]] = {name: globals()[name] for name in HOOKS}
CONTRACTS: dict[str, Contract] = {name: one.contract for name, one in SPECS.items()}  # type: ignore[attr-defined]
PARAMETERS: dict[str, tuple[str, ...]] = {
    name: one.__code__.co_varnames[: one.__code__.co_argcount] for name, one in SPECS.items()
}
NAMESPACE = type("specs", (), {name: staticmethod(spec) for name, spec in SPECS.items()})
