"""`adk_callbacks`: ADK's callbacks as a plugin, each of them a handler of its own; those before a tool are one."""

from __future__ import annotations

import contextlib
import copy
import difflib
import inspect
from collections.abc import Callable, Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, TypeVar

from connectagent import (
    HandlerError,
    HookResultError,
    LLMRequest,
    LLMResponse,
    ToolArgumentsError,
    ToolCall,
    after_each_tool,
    after_llm,
    after_tools,
    after_user_input,
    before_each_tool,
    before_llm,
    on_complete,
    on_error,
)
from connectagent_adk.callback import PARAMETERS, Callback, named_like
from connectagent_adk.contexts import Context, Services, texts_of, turn_of
from connectagent_adk.requests import RequestView
from connectagent_adk.translation import (
    content_of,
    is_content,
    is_of_user,
    is_response,
    llm_response,
    plain_text,
    response_from,
    result_dict,
    text_in,
)

if TYPE_CHECKING:
    from connectagent import Agent

_Answer = TypeVar("_Answer", bound="str | LLMResponse | None")

_ANSWERING = ("before_agent_callback", "before_model_callback", "after_model_callback", "on_model_error_callback")
_RAN = ("success", "stand_in", "recovered")  # what became of a call that after_tool_callback is for


def adk_callbacks(
    *,
    before_agent_callback: Any = None,
    after_agent_callback: Any = None,
    before_model_callback: Any = None,
    after_model_callback: Any = None,
    on_model_error_callback: Any = None,
    before_tool_callback: Any = None,
    after_tool_callback: Any = None,
    on_tool_error_callback: Any = None,
    artifact_service: Any = None,
    shared_state: MutableMapping[str, Any] | None = None,
    user_id: str = "user",
    **unknown: Any,
) -> AdkCallbacks:
    """Make a plugin of ADK's callbacks: `Agent(..., plugins=[adk_callbacks(before_model_callback=check)])`.

    Each is one function or a list; they may be async. In a list the first value decides, as ADK has it.

    Args:
        before_agent_callback: `(callback_context)`; content is the turn's result, and the model is not called.
        after_agent_callback: `(callback_context)`; content is the turn's result, and joins the conversation.
        before_model_callback: `(callback_context, llm_request)`; a response stands in for the model's.
        after_model_callback: `(callback_context, llm_response)`; a response takes the place of the model's.
        on_model_error_callback: `(callback_context, llm_request, error)`; a response recovers.
        before_tool_callback: `(tool, args, tool_context)`; a dict stands in for the tool's result.
        after_tool_callback: `(tool, args, tool_context, tool_response)`; a dict takes the result's place.
        on_tool_error_callback: `(tool, args, tool_context, error)`; a dict recovers.
        artifact_service: where `save_artifact` and `load_artifact` keep things: `InMemoryArtifactService()`, or
            one of ADK's; by default the agent's plugin `artifacts`, if it has it.
        shared_state: where state of `app:` and `user:` is kept for all sessions: a dict, or a mapping on disk.
        user_id: whose state and artifacts those of `user:` are.

    Raises:
        HandlerError: a callback cannot be called with its parameters, or its name is not one of the above.
    """
    given = locals()
    for name, value in unknown.items():
        near = difflib.get_close_matches(name, PARAMETERS, 1, 0.5)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        code = getattr(value, "__code__", None)
        where = f"{code.co_filename}:{code.co_firstlineno}" if code else f"{value!r:.80}"
        raise HandlerError(f"ADK has no {name!r} ({where}).{hint} Known: {', '.join(PARAMETERS)}")
    listed = {
        slot: [Callback(slot, one) for one in (value if isinstance(value, list | tuple) else [value])]
        for slot in PARAMETERS
        if (value := given[slot]) is not None
    }
    if not any(listed.values()):
        raise HandlerError(f"adk_callbacks() was given no callback; it takes {', '.join(PARAMETERS)}")
    return AdkCallbacks(listed, Services(artifact_service, shared_state, user_id))


class AdkCallbacks:
    """The plugin that `adk_callbacks` makes: it acts in the agent that lists it, and not in those below.

    Args:
        callbacks: the callbacks of each slot, in order.
        services: where artifacts and shared state are kept.
    """

    name = "adk"
    inherited = False

    def __init__(self, callbacks: dict[str, list[Callback]], services: Services) -> None:
        self._callbacks = callbacks
        self._services = services
        for slot, group in callbacks.items():
            self._add_slot(slot, group)

    def _add_slot(self, slot: str, group: list[Callback]) -> None:
        if slot == "before_tool_callback":
            self._add(f"{slot}_0", before_each_tool, self._before_tool(group), *group)
        else:
            for number, callback in enumerate(group):
                marker, handler = getattr(self, f"_{slot}")(callback)
                self._add(f"{slot}_{number}", marker, handler, callback)
        for number, callback in enumerate(group):
            if "tool_context" in callback.names:
                self._add(f"{slot}_{number}_ending", after_tools, self._ending(callback), callback)
            if slot in _ANSWERING:
                self._add(f"{slot}_{number}_of_user", on_complete, self._of_user(callback), callback)

    def _add(self, name: str, marker: Any, handler: Callable[..., Any], *callbacks: Callback) -> None:
        """Mark a handler as an attribute of this object, where connectagent finds the handlers of a plugin.

        Traces, errors, plan and ledger name the user's callbacks in its place.
        """
        handler.__signature__ = inspect.signature(handler)  # type: ignore[attr-defined]
        is_around = inspect.isgeneratorfunction(handler)
        first = callbacks[0].stand_in_around if is_around else callbacks[0].stand_in
        handler.__wrapped__ = first  # type: ignore[attr-defined]
        if len(callbacks) > 1:
            handler.__wrapped__ = named_like(first, callbacks)  # type: ignore[attr-defined]
        setattr(self, name, marker(handler))

    def __repr__(self) -> str:
        return f"adk_callbacks({', '.join(str(callback) for group in self._callbacks.values() for callback in group)})"

    def _call(self, agent: Agent, callback: Callback, call: ToolCall | None = None, **given: Any) -> Any:
        """Call a callback, and do what it asks for by its context."""
        turn = turn_of(agent, self._services)
        context = Context(agent, turn, callback.kinds.types, self._services, call.id if call else None)
        given["callback_context" if call is None else "tool_context"] = given["invocation_context"] = context
        value = callback(agent=agent, **given)
        actions, state = context.actions, turn.session["state"]
        for key, written in actions.state_delta.items():
            if key in state or written is not None:
                state[key] = written
        self._services.share(actions.state_delta)
        for filename, version in actions.artifact_delta.items() if self._services.artifacts else ():
            agent.trace("artifact", name=filename, version=version)
        if actions.transfer_to_agent:
            _hand_over(agent, callback, actions.transfer_to_agent, in_round=call is not None)
        if call is not None and actions.skip_summarization:
            turn.endings[id(callback)] = call.id
        if actions.escalate:
            turn.escalated = True
        return value

    def _ending(self, callback: Callback) -> Callable[..., None]:
        def handler(agent: Agent, entries: list[dict[str, Any]]) -> None:
            turn = turn_of(agent, self._services)
            wanted = turn.endings.pop(id(callback), None)
            for entry in entries:
                if entry.get("call_id") == wanted is not None:
                    result = entry.get("result")
                    agent.end_turn(plain_text(result))
                    turn.ended = agent.ended

        return handler

    def _of_user(self, callback: Callback) -> Callable[..., None]:
        def handler(agent: Agent) -> None:
            """Give the turn's answer the role that the callback's content has: it stands there as the model's."""
            text = turn_of(agent, self._services).of_user.pop(id(callback), None)
            session: Any = agent.session
            messages = session["messages"]
            for place in range(len(messages) - 1, -1, -1) if text is not None else ():
                message = messages[place]
                if message["role"] == "assistant" and message["content"] == text and not message.get("tool_calls"):
                    messages[place] = {"role": "user", "content": text}
                    return
                if message["role"] == "user" and plain_text(message["content"]) == session["user_prompt"]:
                    return  # what is before it belongs to other turns

        return handler

    @on_complete(trylast=True)
    def leave(self, agent: Agent, result: str) -> None:
        """Leave the `Loop` around the agent at the end of a turn in which a callback set `actions.escalate`."""
        if turn_of(agent, self._services).escalated:
            with contextlib.suppress(RuntimeError):  # there is no Loop
                agent.end_turn(result, scope="loop")

    def _first_only(self, agent: Agent, callback: Callback, key: Any, decide: Callable[[], Any]) -> Any:
        """Run a callback unless one before it has decided; connectagent's own chains run them all.

        Args:
            key: tells apart the moments of an iteration at which callbacks of this slot run.
            decide: runs the callback; gives whether it decided, and what connectagent is to take.
        """
        session: Any = agent.current_session
        decided, mine = turn_of(agent, self._services).decided, (callback.slot, session["iteration"], key)
        if mine in decided:
            return None
        done, value = decide()
        if done:
            decided.add(mine)
        return value

    def _heard(self, agent: Agent, callback: Callback, value: Any, answer: _Answer) -> _Answer:
        """Note where an answer is to stand in the conversation as the user's."""
        if answer is not None and is_of_user(value):
            turn_of(agent, self._services).of_user[id(callback)] = text_in(content_of(value))
        return answer

    # -- one method for each slot: the marker of its hook, and the handler ------------------------

    def _before_agent_callback(self, callback: Callback) -> Any:
        def handler(agent: Agent) -> str | None:
            value = self._call(agent, callback)
            return self._heard(agent, callback, value, _text(callback, value))

        return after_user_input, handler

    def _after_agent_callback(self, callback: Callback) -> Any:
        def handler(agent: Agent, outcome: str) -> str | None:
            def decide() -> tuple[bool, str | None]:
                value = self._call(agent, callback)
                text = _text(callback, value)
                if text:  # ADK adds what it returns to the conversation
                    session: Any = agent.current_session
                    role = "user" if is_of_user(value) else "assistant"
                    session["messages"].append({"role": role, "content": text})
                return text is not None, text

            if outcome == "ended" and agent.ended is not turn_of(agent, self._services).ended:
                return None  # the agent did not run to its end, as with ADK's end_invocation
            return self._first_only(agent, callback, "turn", decide)  # type: ignore[no-any-return]

        return on_complete, handler

    def _before_model_callback(self, callback: Callback) -> Any:
        def handler(agent: Agent, request: LLMRequest) -> LLMResponse | None:
            view = _view(agent, request, callback)
            value = self._call(agent, callback, llm_request=view.llm_request)
            view.write_back(callback)
            return self._heard(agent, callback, value, _answer(callback, value))

        return before_llm, handler

    def _after_model_callback(self, callback: Callback) -> Any:
        def handler(agent: Agent, response: LLMResponse) -> LLMResponse | None:
            def decide() -> tuple[bool, LLMResponse | None]:
                mine = llm_response(response, callback.kinds)
                if response.content in turn_of(agent, self._services).of_user.values():
                    mine.content.role = "user"  # an edit keeps the role
                value = self._call(agent, callback, llm_response=mine)
                if value and not is_response(value):
                    raise callback.refuse(value, "LlmResponse")
                self._heard(agent, callback, value or mine, response)
                return bool(value), response_from(value or mine, response, callback.kinds.types)

            if _is_stand_in(agent):
                return None
            return self._first_only(agent, callback, "model", decide)  # type: ignore[no-any-return]

        return after_llm, handler

    def _on_model_error_callback(self, callback: Callback) -> Any:
        def handler(
            agent: Agent, error: Exception, tool_call: ToolCall | None, request: LLMRequest | None
        ) -> LLMResponse | None:
            if tool_call is not None or request is None:
                return None
            view = _view(agent, request, callback)
            value = self._call(agent, callback, llm_request=view.llm_request, error=error)
            return self._heard(agent, callback, value, _answer(callback, value))

        return on_error, handler

    def _before_tool(self, group: list[Callback]) -> Callable[..., Any]:
        """One handler for a list: connectagent asks the handlers before a changed one again, and ADK does not."""

        def handler(agent: Agent, tool_call: ToolCall) -> Any:
            turn = turn_of(agent, self._services)
            guard = turn.guard_of(tool_call)
            if guard.has_left(self, tool_call):
                return None
            guard.begin(tool_call)
            value = None
            for callback in group:
                tool = _tool(agent, tool_call, callback)
                with _noting(callback, of=group):
                    value = self._call(agent, callback, tool_call, tool=tool, args=tool_call.arguments)
                if value is not None:
                    break
            guard.leave(self, tool_call)
            return _result(value)

        return handler

    def _after_tool_callback(self, callback: Callback) -> Any:
        def handler(agent: Agent, tool_call: ToolCall, result: Any, entry: dict[str, Any]) -> Any:
            def decide() -> tuple[bool, Any]:
                response = _tool_response(agent, tool_call, result)
                before = copy.deepcopy(response)
                tool, args = _tool(agent, tool_call, callback), self._args(agent, tool_call)
                value = self._call(agent, callback, tool_call, tool=tool, args=args, tool_response=response)
                edited = response if value is None and response != before else None
                return value is not None, _result(value) if edited is None else edited

            if entry.get("status") not in _RAN or agent.tools.get(tool_call.name) is None:
                return None
            return self._first_only(agent, callback, tool_call.id, decide)

        return after_each_tool, handler

    def _on_tool_error_callback(self, callback: Callback) -> Any:
        def handler(agent: Agent, error: Exception, tool_call: ToolCall | None) -> Any:
            if tool_call is None:
                return None
            tool, args = _tool(agent, tool_call, callback), self._args(agent, tool_call)
            return _result(self._call(agent, callback, tool_call, tool=tool, args=args, error=error))

        return on_error, handler

    def _args(self, agent: Agent, tool_call: ToolCall) -> dict[str, Any]:
        """The arguments for callbacks after the tool: one dict for all of them, which the call does not share."""
        return turn_of(agent, self._services).guard_of(tool_call).args_after(tool_call)


@contextlib.contextmanager
def _noting(callback: Callback, of: list[Callback]) -> Iterator[None]:
    """Name the callback in its error, where the handler is a list of them."""
    try:
        yield
    except Exception as error:
        if len(of) > 1:
            error.add_note(f"raised by {callback}")
        raise


def _hand_over(agent: Agent, callback: Callback, name: str, in_round: bool) -> None:
    """Let another agent of the tree answer, when the round of tools is over.

    Raises:
        HookResultError: it is no callback of a tool, or there is no such agent to hand over to.
    """
    tool, cause = agent.tools.get("transfer_to_agent") if in_round else None, None
    problem = f"{agent.name!r} has no agents to hand over to" if in_round else "only callbacks of tools can hand over"
    try:
        if tool is not None and tool.function is not None:
            tool.function(agent, name)  # not by execute_tool(), which would ask the callbacks again
            return
    except ToolArgumentsError as error:
        problem, cause = str(error), error
    raise HookResultError(f"{callback} set actions.transfer_to_agent={name!r}: {problem}") from cause


def _is_stand_in(agent: Agent) -> bool:
    """Whether the newest answer is a handler's and not the model's: ADK has no `after_model_callback` for those."""
    trace = agent.session["trace"]
    newest = next((entry for entry in reversed(trace) if entry["type"] == "llm_call"), {})
    return newest.get("status") == "stand_in"


def _view(agent: Agent, request: LLMRequest, callback: Callback) -> RequestView:
    tools = {tool.name: tool.description for tool in agent.tools}
    return RequestView(request, tools, callback.kinds, texts_of(agent))


def _text(callback: Callback, value: Any) -> str | None:
    """The text of a content; ADK takes no notice of what is false."""
    if not value:
        return None
    if not is_content(value):
        raise callback.refuse(value, "Content")
    return text_in(value)


def _answer(callback: Callback, value: Any) -> LLMResponse | None:
    """What stands in for a model's answer; ADK takes no notice of what is false."""
    if not value:
        return None
    if not is_response(value):
        raise callback.refuse(value, "LlmResponse")
    return response_from(value)


def _result(value: Any) -> Any:
    """What a tool's callback returned: a dict, or as ADK makes it one."""
    return value if value is None or isinstance(value, dict) else {"result": value}


def _tool(agent: Agent, tool_call: ToolCall, callback: Callback) -> Any:
    tool = agent.tools.get(tool_call.name)
    return callback.kinds.tool(name=tool_call.name, description=tool.description if tool else "Tool not found")


def _tool_response(agent: Agent, tool_call: ToolCall, result: Any) -> dict[str, Any]:
    """A result as a dict. connectagent has it as text: the annotation shows whether a tool returns a str."""
    if not isinstance(result, str):
        return {"result": plain_text(result)}
    return result_dict(result, parse_all=tool_call.name not in texts_of(agent))
