"""The agent and its loop: a model call, a tool round, a model call, until the model is done."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, cast

from connectagent.asking import as_response, ask_model, shown_call, trace_model_call
from connectagent.attribution import clone
from connectagent.builtin import built_in
from connectagent.calls import new_entry, run_call
from connectagent.delegation import agent_tool
from connectagent.discovery import find_handlers, left_out
from connectagent.errors import ConfigError, Pause, ToolRejected
from connectagent.handover import answered_elsewhere
from connectagent.holdings import Holdings
from connectagent.host import Decision, PluginHost
from connectagent.llm import LLM, default_model
from connectagent.messages import NOT_RUN, assistant_message, text_of, user_message
from connectagent.parts import Part
from connectagent.pausing import BEGINNING, Point, paused
from connectagent.prompts import read_prompt
from connectagent.rounds import run_calls
from connectagent.session import Image, LLMRequest, LLMResponse, Message, ToolCall, TraceEntry
from connectagent.settings import overrides
from connectagent.state import initial_state
from connectagent.streaming import Events, streamed
from connectagent.tools import ToolRegistry
from connectagent.tree import DIRECTIONS, NoModel


class Agent(Holdings):
    """A model with tools, a conversation, and plugins that see and steer each moment of it.

    Args:
        name: tells agents apart in records and logs.
        tools: functions, methods, objects, `Tool`s or agents; one, a list or a tuple.
        system_prompt: text, a path to a text file, or the name of a file in `prompts/`.
        model: `claude-...`, `gpt-...` or `provider/model`; without it see `connectagent.llm.default_model`.
        llm: anything with `model` and `complete(messages, tools)`, instead of `model`.
        api_key: the provider's key, instead of its environment variable.
        base_url: the provider's address, instead of its own.
        max_iterations: how many model calls a turn may take.
        trust: `"open"`, `"careful"`, `"strict"`, a policy text, a path to one, or an `Agent` that judges.
        log: None writes `.co/`, False writes nothing, a path replaces the text log's.
        quiet: whether nothing is shown on the terminal.
        plugins: marked functions, lists, modules, objects, installed names; `"no:name"` leaves one out.
        on_events: the same as `plugins`; they run after them.
        stream: whether the model's text is told as it arrives, by `on_text`.
        options: parameters of the provider that are sent with each request, such as `temperature`.
        plugin_errors: `"raise"`, or `"warn"`: an exception of a handler becomes a warning and a trace entry,
            except in `before_` and `around_` hooks, which may be guards.
        state: what `current_session["state"]` of each new session begins with; each `{name}` in the system
            prompt must then be in the state.
        sub_agents: agents that the model may hand over to, with the tool `transfer_to_agent`.
        description: what other agents are told of this one.
        transfer_to: to whom the agent may hand over: `"children"`, `"parent"`, `"siblings"`.
        inherit_plugins: whether the parent's plugins act in this agent too, before its own.
        run: a function of `agent` and `prompt` that gives the result, in place of a model.
        output_key: where in the state the result is stored.

    Raises:
        ConfigError: the name, the model, the system prompt, the tree of agents or a setting cannot be used.
        ToolDefinitionError: a tool cannot be used.
        HandlerError, PluginError: a plugin cannot be used.
    """

    def __init__(
        self,
        name: str,
        tools: Any = None,
        system_prompt: str | Path | None = None,
        model: str | None = None,
        *,
        llm: LLM | None = None,
        api_key: str | None = None,
        base_url: str | None = None,
        max_iterations: int = 10,
        trust: Any = None,
        log: bool | str | Path | None = None,
        quiet: bool = False,
        plugins: Any = None,
        on_events: Any = None,
        stream: bool = False,
        options: dict[str, Any] | None = None,
        plugin_errors: str = "raise",
        state: dict[str, Any] | None = None,
        sub_agents: Any = None,
        description: str | None = None,
        transfer_to: Iterable[str] = DIRECTIONS,
        inherit_plugins: bool = True,
        run: Callable[..., Any] | None = None,
        output_key: str | None = None,
    ) -> None:
        if not isinstance(name, str) or not name.strip():
            raise ConfigError(f"an agent's name is a str that is not empty, not {name!r}")
        super().__init__(initial_state(state), {"api_key": api_key, "base_url": base_url, "options": options})
        self._join(name, sub_agents, tools, description, transfer_to, inherit_plugins, run, output_key)
        self.left_out = left_out([plugins, on_events])
        self.system_prompt = read_prompt(system_prompt)
        self.max_iterations = _limit(max_iterations)
        self.tools = ToolRegistry(tools, agent_tool=agent_tool)
        self.streaming = stream
        self.ended: Decision | None = None
        self._executed = 0
        if plugin_errors not in ("raise", "warn"):
            raise ConfigError(f"plugin_errors is 'raise' or 'warn', not {plugin_errors!r}")
        announce = lambda *entries: self.conversation.announce(*entries)  # noqa: E731
        self.hooks = PluginHost(self, announce, forgiving=plugin_errors == "warn")
        own = built_in(trust=trust, log=log, quiet=quiet)
        self.hooks.load(find_handlers(own, [plugins, on_events], overrides.get("model") or model))
        named = overrides.get("model")
        if run is not None and llm is None and model is None:
            self.llm: LLM = NoModel(name)
        else:
            self.llm = llm if llm is not None and not named else self.create_llm(named or model or default_model())
        self.hooks.observe("on_agent_ready", agent=self)
        self.take_in()

    # -- the loop ------------------------------------------------------------------------------

    def input(self, prompt: str | Image | list[Any], max_iterations: int | None = None) -> str:
        """Give the agent a user's message and return the turn's result.

        Args:
            prompt: text, an `Image`, or a list of text and images.
            max_iterations: how many model calls this turn may take, instead of the agent's own number.

        Raises:
            ProviderError: a model call failed and no handler recovered it.
            Exception: whatever a handler raised, with a note that names it.
        """
        message = user_message(prompt)
        return self._run(text_of(message["content"]), max_iterations, message)

    def _run(
        self, prompt: str, max_iterations: int | None, message: Message | None = None, point: Point = BEGINNING
    ) -> str:
        limit = self.max_iterations if max_iterations is None else _limit(max_iterations)
        self._refuse_inside("input()")
        with self._turning:  # not acquire() and release(): Ctrl-C between them and a `try` would leave it locked
            try:
                self._take_session()
                self.part = Part(self, message, prompt)
                self.conversation.begin_turn(prompt) if message is not None else self.conversation.take_over()
                turn = partial(self._turn, message, prompt, limit, point)
                around = partial(self.hooks.around, "around_turn", turn, agent=self, prompt=prompt)
                return str(self.part.run(around))
            finally:
                self.ended = self.part = None
                self.hooks.forget_turn()

    def stream(self, prompt: str | Image | list[Any], max_iterations: int | None = None) -> Events:
        """A turn of `input()` as an iterator: what happens in it, when it is asked for.

        Yields:
            each trace entry; pieces of the model's text, `{"type": "text", "text"}`; at last `{"type": "result",
            "result", "outcome"}`. Who leaves the loop early ends the turn, as `end_turn()` does.

        Raises:
            Exception: what `input()` raises, from `next()`.
        """
        return streamed(self, partial(self.input, prompt, max_iterations))

    def _turn(self, message: Message | None, prompt: str, limit: int, point: Point) -> str:
        talk, part = self.conversation, cast(Part, self.part)
        try:
            part.begin()
            if message is not None:
                talk.append(message)
                entry: TraceEntry = {"type": "user_input", "turn": talk.session["turn"], "prompt": prompt}
                own = {} if limit == self.max_iterations else {"max_iterations": limit}
                own |= {} if message["content"] == prompt else {"content": clone(message["content"])}
                talk.trace({**entry, **own})
            self.ended = self.hooks.first("after_user_input", agent=self, prompt=prompt) or self.ended
            while True:
                result, more = self._complete(*self._iterate(limit, point))
                if more is None or talk.session["iteration"] >= limit or part.stopped:
                    return part.keep(result)
                self.ended, point, message = None, BEGINNING, user_message(more.value.prompt)
                talk.append(message, by=more.by)
                part.prompted(message, more.value.prompt)
        except Pause as pause:
            raise paused(self, pause) from None
        except BaseException as error:
            by = self.hooks.owner_of(error)
            talk.trace_quietly({"type": "error", "by": by, "error": str(error), "error_type": type(error).__name__})
            raise
        finally:
            talk.end_turn()

    def _iterate(self, limit: int, point: Point) -> tuple[str, str]:
        talk, response = self.conversation, point.response
        while self.ended is None:
            if response is None:
                if (elsewhere := answered_elsewhere(self)) is not None:
                    return elsewhere
                if self.ended is not None:
                    break
                if talk.session["iteration"] >= limit:
                    return f"Task incomplete: Maximum iterations ({limit}) reached.", "max_iterations"
                talk.session["iteration"] += 1
                response = self._next_response(point.answer)
                if response is None:
                    break
                talk.append(assistant_message(response))
            if response.tool_calls:
                self._tool_round(response.tool_calls, point)
            elif self.ended is None:
                return response.content or "", "answered"
            response, point = None, BEGINNING
        return self._ending(cast(Decision, self.ended)), "ended"

    def _next_response(self, response: LLMResponse | None) -> LLMResponse | None:
        request = LLMRequest(self.conversation.session["messages"], self.tools.schemas(), self.llm.model)
        response = response or self._ask(request)
        if response is None:
            return None
        response, _ = self.hooks.chain("after_llm", as_response, agent=self, request=request, response=response)
        return as_response(response)

    def _ask(self, request: LLMRequest) -> LLMResponse | None:
        answer = self.hooks.first("before_llm", agent=self, request=request)
        if self.ended is not None:
            return None
        if answer is None:
            return ask_model(self, request)
        response = as_response(answer.value)
        trace_model_call(self, request, response, "stand_in", by=answer.by)
        return response

    def _tool_round(self, calls: list[ToolCall], point: Point) -> None:
        talk, reason = self.conversation, "the turn was ended"
        talk.shadow.mark_round()
        try:
            if self.ended is None:
                talk.session["pending_tools"] = [shown_call(call) for call in calls]
                entries = run_calls(self, calls, self._before_tools(calls), point)
                self.hooks.observe("after_tools", agent=self, entries=entries)
        except BaseException as error:
            reason = "the turn was paused" if isinstance(error, Pause) else f"{type(error).__name__} ended the turn"
            raise
        finally:
            talk.session["pending_tools"] = None
            skipped = {"status": "skipped", "result": NOT_RUN.format(reason=reason)}
            talk.close_round([(call, {**new_entry(self, call), **skipped}) for call in calls])

    def _before_tools(self, calls: list[ToolCall]) -> ToolRejected | None:
        try:
            self.hooks.observe("before_tools", agent=self, tool_calls=list(calls))
        except ToolRejected as rejection:
            return rejection
        return None

    def _complete(self, result: str, outcome: str) -> tuple[str, Decision | None]:
        session = self.conversation.session
        session.update(result=result, outcome=outcome)
        result, more = self.hooks.chain("on_complete", agent=self, result=result, outcome=outcome)
        self.hooks.tell()
        session["result"] = result
        return result, more

    def resume(
        self,
        record: str | Path,
        *,
        place: str | int | None = None,
        fork: bool = False,
        approve: bool = False,
        reject: str | None = None,
        answer: Any = None,
    ) -> str | None:
        """Go on with the session of a record; a turn that was stopped in it is finished.

        What had been done is not done again. A tool that was started and did not finish is asked about at a
        terminal; elsewhere only one that is marked `@tool(idempotent=True)` runs again.

        Args:
            record: the record's path. What follows is written to it.
            place: `"TURN"` or `"TURN.ITERATION"`: go back to before it.
            fork: write to a record of its own, which links to this one.
            approve: of a turn that was paused: what waits is done.
            reject: why what waits is not done.
            answer: what stands in for it.

        Returns:
            The result of the turn that was open, else of the last one; None where there is none.

        Raises:
            Paused: the turn waits, and nothing was decided.
            ConfigError: the record cannot be used, or the decision or place does not fit it.
        """
        from connectagent.resume import Decided, reopen  # only then is the reader of records needed

        self._refuse_inside("resume()")
        try:
            opened = reopen(self, record, place, fork, Decided(approve, reject, answer))
        except BaseException:
            self.ended = None
            self.hooks.forget_turn()
            raise
        if opened.point is not None:
            return self._run(opened.prompt, None, None, opened.point)
        return opened.result if opened.prompt is None else self.input(opened.prompt)

    # -- the rest of the public face -----------------------------------------------------------

    def end_turn(self, result: str | None = None, scope: str = "part") -> None:
        """End the turn before the next call of a model or tool; `on_complete` still fires.

        Args:
            result: what `input()` returns; without it, the last text of the model.
            scope: where agents work inside each other: `"part"`, this agent's turn only; `"loop"`, those up to
                the next `Loop`; `"turn"`, all of them.

        Raises:
            RuntimeError: no turn is running, or no `Loop`.
        """
        if not self._turning.locked() or self.part is None:
            raise RuntimeError(f"agent {self.name!r} is not in a turn: end_turn() is for handlers and tools")
        if result is not None and not isinstance(result, str):
            raise TypeError(f"end_turn() takes the turn's result, a str or None, not {type(result).__name__}")
        if scope not in ("part", "loop", "turn"):
            raise ValueError(f"end_turn(scope=...) is 'part', 'loop' or 'turn', not {scope!r}")
        decision = Decision(result, self.hooks.running() or {"plugin": "(program)"})
        if scope != "part":
            self.part.end_outward(decision, scope)
        self.ended = decision

    def execute_tool(self, name: str, arguments: dict[str, Any] | None = None) -> TraceEntry:
        """Run one tool without the model, with all its hooks; nothing is added to the messages.

        Returns:
            The call's trace entry: `status`, `result`, `timing` and so on.
        """
        if not self._turning.locked():
            self._take_session()
            self.conversation.take_over()
        elif self.hooks.running() is None:  # the consumer of `stream()`, which may have changed the session before
            self.conversation.take_changes()
        self._executed += 1
        approved = bool((self.conversation.session["pending_tool"] or {}).get("approved"))
        call = ToolCall(f"executed_{self._executed}", name, dict(arguments or {}), approved=approved)
        try:
            entry = run_call(self, call)
        except Pause:
            skipped = {"status": "skipped", "result": NOT_RUN.format(reason="it was paused")}
            self.conversation.trace_quietly({**new_entry(self, call), **skipped})
            raise
        if not self._turning.locked():
            self.hooks.tell()
        return entry

    def _ending(self, ended: Decision) -> str:
        """The result of a turn that a handler or tool ended; the conversation tells it too."""
        messages = self.conversation.session["messages"]
        if ended.value is None:
            last = messages[-1] if messages and messages[-1]["role"] == "assistant" else {}
            return text_of(last.get("content"))
        if not messages or messages[-1]["role"] != "assistant":
            self.conversation.append({"role": "assistant", "content": ended.value}, by=ended.by)
        return str(ended.value)



def _limit(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ConfigError(f"max_iterations is a whole number of model calls, at least 1, not {value!r}")
    return value
