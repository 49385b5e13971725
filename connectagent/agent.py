"""The agent and its loop: a model call, a tool round, a model call, until the model is done."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, cast

from connectagent.builtin import built_in
from connectagent.calls import as_response, ask_model, new_entry, run_call, shown_call, trace_model_call
from connectagent.conversation import Conversation
from connectagent.discovery import find_handlers, left_out, model_handlers
from connectagent.errors import ConfigError, ToolRejected
from connectagent.handover import answered_elsewhere
from connectagent.host import Decision, PluginHost
from connectagent.installed import normalized
from connectagent.llm import LLM, default_model
from connectagent.messages import NOT_RUN, assistant_message, text_of, user_message
from connectagent.parts import Part
from connectagent.prompts import read_prompt
from connectagent.providers import context_window, create_llm
from connectagent.rounds import run_calls
from connectagent.session import Image, LLMRequest, LLMResponse, Message, Session, TokenUsage, ToolCall, TraceEntry
from connectagent.settings import overrides
from connectagent.tools import ToolRegistry
from connectagent.tree import DIRECTIONS, Member, NoModel, agent_tool, agents_in

DEFAULT_CONTEXT_WINDOW = 128_000  # tokens, where a model's own is not known


class Agent(Member):
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
        sub_agents: Any = None,
        description: str | None = None,
        transfer_to: Iterable[str] = DIRECTIONS,
        inherit_plugins: bool = True,
        run: Callable[..., Any] | None = None,
        output_key: str | None = None,
    ) -> None:
        if not isinstance(name, str) or not name.strip():
            raise ConfigError(f"an agent's name is a str that is not empty, not {name!r}")
        self._join(name, sub_agents, tools, description, transfer_to, inherit_plugins, run, output_key)
        self.left_out = left_out([plugins, on_events])
        self.system_prompt = read_prompt(system_prompt)
        self.max_iterations = _limit(max_iterations)
        self.tools = ToolRegistry(tools, agent_tool=agent_tool)
        self.streaming = stream
        self.current_session: Session | None = None
        self.last_usage: TokenUsage | None = None
        self.total_cost = 0.0
        self.ended: Decision | None = None
        self._connection: dict[str, Any] = {"api_key": api_key, "base_url": base_url, "options": options}
        self._conversation: Conversation | None = None
        self._turning = threading.Lock()
        self._executed = 0
        if plugin_errors not in ("raise", "warn"):
            raise ConfigError(f"plugin_errors is 'raise' or 'warn', not {plugin_errors!r}")
        announce = lambda entry: self.conversation.announce(entry)  # noqa: E731
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
        limit = self.max_iterations if max_iterations is None else _limit(max_iterations)
        if self._turning.locked():
            raise RuntimeError(
                f"agent {self.name!r} is in a turn: input() was called by its own handler or tool, or by another "
                "thread; make an agent for each"
            )
        with self._turning:  # not acquire() and release(): Ctrl-C between them and a `try` would leave it locked
            try:
                text = text_of(message["content"])
                self._take_session()
                self.part = Part(self, message, text)
                self.conversation.begin_turn(text)
                turn = partial(self._turn, message, text, limit)
                around = partial(self.hooks.around, "around_turn", turn, agent=self, prompt=text)
                return str(self.part.run(around))
            finally:
                self.ended = self.part = None
                self.hooks.forget_errors()

    def _turn(self, message: Message, prompt: str, limit: int) -> str:
        talk, part = self.conversation, cast(Part, self.part)
        try:
            part.begin()
            talk.append(message)
            talk.trace({"type": "user_input", "turn": talk.session["turn"], "prompt": prompt})
            self.ended = self.hooks.first("after_user_input", agent=self, prompt=prompt) or self.ended
            while True:
                result, more = self._complete(*self._iterate(limit))
                if more is None or talk.session["iteration"] >= limit or part.stopped:
                    return part.keep(result)
                self.ended, message = None, user_message(more.value.prompt)
                talk.append(message, by=more.by)
                part.prompted(message, more.value.prompt)
        except BaseException as error:
            by = self.hooks.owner_of(error)
            talk.trace_quietly({"type": "error", "by": by, "error": str(error), "error_type": type(error).__name__})
            raise
        finally:
            talk.end_turn()

    def _iterate(self, limit: int) -> tuple[str, str]:
        talk = self.conversation
        while self.ended is None:
            if (elsewhere := answered_elsewhere(self)) is not None:
                return elsewhere
            if self.ended is not None:
                break
            if talk.session["iteration"] >= limit:
                return f"Task incomplete: Maximum iterations ({limit}) reached.", "max_iterations"
            talk.session["iteration"] += 1
            response = self._next_response()
            if response is None:
                break
            talk.append(assistant_message(response))
            if response.tool_calls:
                self._tool_round(response.tool_calls)
            elif self.ended is None:
                return response.content or "", "answered"
        return self._ending(cast(Decision, self.ended)), "ended"

    def _next_response(self) -> LLMResponse | None:
        request = LLMRequest(self.conversation.session["messages"], self.tools.schemas(), self.llm.model)
        answer = self.hooks.first("before_llm", agent=self, request=request)
        if self.ended is not None:
            return None
        if answer is not None:
            response = as_response(answer.value)
            trace_model_call(self, request, response, "stand_in", by=answer.by)
        else:
            response = ask_model(self, request)
        response, _ = self.hooks.chain("after_llm", as_response, agent=self, request=request, response=response)
        return as_response(response)

    def _tool_round(self, calls: list[ToolCall]) -> None:
        talk, reason = self.conversation, "the turn was ended"
        talk.shadow.mark_round()
        try:
            if self.ended is None:
                talk.session["pending_tools"] = [shown_call(call) for call in calls]
                entries = run_calls(self, calls, self._before_tools(calls))
                self.hooks.observe("after_tools", agent=self, entries=entries)
        except BaseException as error:
            reason = f"{type(error).__name__} ended the turn"
            raise
        finally:
            talk.session["pending_tools"] = None
            for call in talk.close_round(calls, reason):
                entry = {**new_entry(self, call), "status": "skipped", "result": NOT_RUN.format(reason=reason)}
                talk.trace_quietly(entry)

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
        session["result"] = result
        return result, more

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
        self._executed += 1
        return run_call(self, ToolCall(f"executed_{self._executed}", name, dict(arguments or {})))

    def add_tool(self, tool: Any) -> None:
        """Add tools: whatever `tools=` takes."""
        self.check_children(agents_in(tool))
        self.take_in(self.tools.add(tool))

    def remove_tool(self, name: str) -> None:
        """Remove a tool.

        Raises:
            ToolNotFound: there is none of that name; the message lists those that there are.
        """
        self.let_go(self.tools.remove(name))

    def list_tools(self) -> list[str]:
        """The names of the tools."""
        return self.tools.names()

    def reset_conversation(self) -> None:
        """Forget the conversation, that of the agents below too; the next `input()` begins a new session and record.

        Raises:
            RuntimeError: a turn is running.
        """
        if self._turning.locked():
            raise RuntimeError(f"agent {self.name!r} is in a turn; reset_conversation() is for between turns")
        self._conversation = self.current_session = self.hooks.shadow = self.last_usage = None
        for child in self.children:
            child.reset_conversation()

    @property
    def context_percent(self) -> float:
        """How much of the model's context window the last call took, 0-100.

        Where the window is not known, 128,000 tokens are assumed.
        """
        if self.last_usage is None:
            return 0.0
        window = getattr(self.llm, "context_window", None) or context_window(self.llm.model) or DEFAULT_CONTEXT_WINDOW
        return min(100.0, 100.0 * (self.last_usage.input_tokens + self.last_usage.output_tokens) / window)

    @property
    def ledger(self) -> list[dict[str, Any]]:
        """What each handler cost so far, the longest first.

        One dict each: `plugin`, `hook`, `handler`, `calls`, `duration_ms`, and of the model calls that it made
        itself `model_calls`, `input_tokens`, `output_tokens`, `cost` (USD).
        """
        return self.hooks.ledger()

    def __repr__(self) -> str:
        return f"Agent({self.name!r}, model={self.llm.model!r}, tools={self.list_tools()!r})"

    # -- the session ---------------------------------------------------------------------------

    @property
    def conversation(self) -> Conversation:
        """The doors through which the loop changes `current_session`."""
        if self._conversation is None:
            self._conversation = Conversation(self, self.hooks, self.system_prompt)
            self.current_session = cast(Session, self._conversation.session)
        return self._conversation

    def _take_session(self) -> None:
        """Go on with the session that the program left in `current_session`: the same, another one, or none."""
        if self.current_session is None:
            self._conversation = None
        elif self._conversation is None or self.current_session is not self._conversation.session:
            stored = cast(dict[str, Any], self.current_session)
            self._conversation = Conversation(self, self.hooks, self.system_prompt, stored)

    def _ending(self, ended: Decision) -> str:
        """The result of a turn that a handler or tool ended; the conversation tells it too."""
        messages = self.conversation.session["messages"]
        if ended.value is None:
            last = messages[-1] if messages and messages[-1]["role"] == "assistant" else {}
            return text_of(last.get("content"))
        if not messages or messages[-1]["role"] != "assistant":
            self.conversation.append({"role": "assistant", "content": ended.value}, by=ended.by)
        return str(ended.value)

    def create_llm(self, model: str) -> LLM:
        """Another model, with this agent's plugins, key, address and options."""
        brought = self.hooks.collect("register_models")
        known = {normalized(handler.plugin) for handler in self.hooks.handlers["register_models"]}
        brought += [handler({}) or {} for handler in model_handlers(model, known)]
        factories = {prefix: factory for models in brought for prefix, factory in models.items()}
        return create_llm(model, factories=factories, **self._connection)


def _limit(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ConfigError(f"max_iterations is a whole number of model calls, at least 1, not {value!r}")
    return value
