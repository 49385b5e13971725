"""`Agent`: its arguments, its public methods and what it holds. Its turns run in `loop`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Unpack, cast, overload

from connectagent.agents.agent_tool import agent_tool
from connectagent.agents.awaitable import Output, Prompt, Resuming
from connectagent.agents.closing import close_dropped, dropped, watch
from connectagent.agents.copies import Repeatable
from connectagent.agents.links import start, take_turn
from connectagent.agents.resources import Resources, refuse_in_setup
from connectagent.agents.runtime import default
from connectagent.agents.tree import DIRECTIONS, NoModel, agents_in
from connectagent.data import LLM, ToolCall, TraceEntry
from connectagent.errors import ConfigError
from connectagent.hooks.discovery import find_handlers, left_out
from connectagent.hooks.host import Host
from connectagent.loop.boundary import Boundary
from connectagent.loop.dry_run import DryRuns
from connectagent.loop.ending import Ending, Given
from connectagent.loop.execute import execute_inside, execute_outside
from connectagent.loop.stream import Events, streamed
from connectagent.models.connection import given
from connectagent.models.names import default_model, parse_model
from connectagent.records.log import Log
from connectagent.records.write import new_log
from connectagent.session.messages import text_of, user_message
from connectagent.session.prompt import SystemPrompt, read_prompt
from connectagent.session.snapshot import By
from connectagent.session.state import initial_state
from connectagent.session.usage import Spent
from connectagent.settings import overrides
from connectagent.settings.tracebacks import shorten, with_short_tracebacks
from connectagent.tools.awaiting import operating
from connectagent.tools.registry import ToolRegistry

OWN_PLUGINS = "connectagent.builtin"  # loaded by name, as plugins are: that room is above this one
CONNECTAGENT = "connectagent"


class Agent(Repeatable):
    """A model with tools, a conversation, and plugins that observe and steer each step of it.

    Args:
        name: identifies the agent in records and logs.
        tools: functions, methods, objects, `Tool`s or agents; one, a list or a tuple.
        system_prompt: text, a path to a text file, or the name of a file in `prompts/`; a path with
            spaces only as a `Path`.
        model: `claude-...`, `gpt-...` or `provider/model`; by default the setting `model`, else that of the first
            provider with a key, else `offline`.
        llm: anything with `model` and `complete(messages, tools)`, instead of `model`.
        api_key: the provider's key, instead of its environment variable.
        base_url: the provider's address, instead of its own.
        max_iterations: how many model calls a turn may take.
        trust: `"open"`, `"careful"`, `"strict"`, a policy text, a path to one, or an `Agent` that judges.
        log: None writes a record and a text log into `.co/`, False writes neither; a path is where the text log goes.
        quiet: whether nothing is shown on the terminal, of agents inside neither, whatever their own `quiet` says.
        plugins: marked functions, lists, modules, objects, installed names, also with options, `("name", {...})`;
            `"no:name"` leaves one out.
        on_events: the same as `plugins`, for this agent without those below it; they run after `plugins`.
        stream: whether handlers of `on_text` get the model's text as it arrives.
        options: parameters of the provider that are sent with each request, such as `temperature`.
        plugin_errors: `"raise"`, or `"warn"`: an exception of a handler becomes a warning and a trace entry,
            except in `before_` and `around_` hooks, which may be guards.
        state: the initial `current_session["state"]` of each session; each `{name}` in the system prompt must
            then be in it.
        sub_agents: agents that the model may hand over to, with the tool `transfer_to_agent`.
        description: how this agent is described to the models of other agents.
        transfer_to: to whom the agent may hand over: any of `"children"`, `"parent"`, `"siblings"`; by default all.
        inherit_plugins: whether the parent's plugins run in this agent too, before its own.
        run: a function of `agent` and `prompt` in place of a model: it returns the result, or yields its pieces.
        output_key: the key of the state under which the result is stored.
        output: the type that each `input()` returns in place of text, as its own `output=` does for one turn.
        output_retries: how often an answer that does not fit `output` is sent back in a turn.
        parallel_tools: how many tool calls of a round may run at the same time.

    Raises:
        ConfigError: the name, the model, the system prompt, the tree of agents or a setting cannot be used.
        ToolDefinitionError: a tool cannot be used.
        HandlerError, PluginError: a plugin cannot be used.
    """

    @with_short_tracebacks
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
        output: Any = None,
        output_retries: int = 2,
        parallel_tools: int = 1,
    ) -> None:
        _check(name, plugin_errors)
        self._state = initial_state(state)  # of each new session
        self._connection = given(model, api_key, base_url, options, llm)
        self.last_usage = None
        self.spent = Spent()
        self.turning, self.executing = threading.Lock(), threading.RLock()
        self.runtime = default()
        self._join(name, sub_agents, tools, description, transfer_to, inherit_plugins, run, output_key)
        chosen = [[plugins, *self.added], on_events]
        self.left_out = left_out(chosen)
        self.prompted = SystemPrompt(read_prompt(system_prompt))
        self.max_iterations = _limit(overrides.get("max_iterations", max_iterations))
        self.parallel_tools, self.streaming = _limit(parallel_tools, "parallel_tools"), stream or "stream" in overrides
        self._executed = 0
        self.form, self.output_retries = None if output is None else self.form_for(output), output_retries
        announce: Any = lambda *entries: self.conversation.announce(*entries)  # noqa: E731
        self.boundary = Boundary(self, announce, warn_only=plugin_errors == "warn", dry_runs=DryRuns())
        self.current_session = None
        self.hooks = Host(self.boundary)
        own = import_module(OWN_PLUGINS).built_in(trust=trust, log=log, quiet=quiet)
        asked_for = ("trust",) if log is None else ("trust", "record", "textlog")
        named = overrides.get("model")
        found, self.switched_off, out = find_handlers(own, chosen, named or model, asked_for, provider_of=parse_model)
        self.hooks.load(handlers := list(filter(self.runtime.takes, found)))
        self.shows_calls = not out.built_in("xray")
        self.resources = Resources(self, handlers)
        self.tools = ToolRegistry(tools, agent_tool=agent_tool, resources=self.resources.names)
        self.log: Log = new_log(log is not False and not out.built_in("record", asked_for))
        self.llm: LLM = self._choose_llm(llm, model, named)
        self.remember(handlers)
        self._tell_ready()
        self.take_in()
        watch(self)

    def _choose_llm(self, llm: LLM | None, model: str | None, named: str | None) -> LLM:
        """The model of a new agent; `named`: the one that the person at the command line named."""
        if self.body is not None and llm is None and model is None:
            return NoModel(self.name)
        if llm is not None and not named:
            return llm
        return self.create_llm(named or (default_model() if model is None else model))

    # -- turns ---------------------------------------------------------------------------------

    @overload
    def input(
        self, prompt: Prompt, max_iterations: int | None = None, *, key: str | None = None, output: None = None
    ) -> str: ...
    @overload
    def input(
        self, prompt: Prompt, max_iterations: int | None = None, *, key: str | None = None, output: type[Output]
    ) -> Output: ...
    def input(
        self, prompt: Prompt, max_iterations: int | None = None, *, key: str | None = None, output: Any = None
    ) -> Any:
        """Give the agent a user's message and return the turn's result.

        Args:
            prompt: text, an `Image`, a `File`, or a list of text, images and files.
            max_iterations: how many model calls this turn may take, instead of the agent's own number.
            key: identifies this turn inside another agent's turn, in place of the prompt: for example where the
                prompt contains the time.
            output: the type of the result in place of text: a pydantic model, a dataclass, a TypedDict, or a type
                such as `list[int]`. The tools stay available; an answer that does not fit is sent back.

        Raises:
            OutputError: the result does not fit `output`.
            Paused: a call in it waits for a person.
            ProviderError: a model call failed and no handler recovered it.
            Exception: whatever a handler raised, with a note that names it.
        """
        try:
            form = self.form if output is None else self.form_for(output)
            text = self.answer(prompt, max_iterations, key=key, form=form)
            return text if form is None else form.result(self, text)
        except BaseException as error:
            shorten(error)
            raise

    def answer(
        self, prompt: Prompt, max_iterations: int | None = None, *, key: str | None = None, form: Any = None
    ) -> str:
        """Take a turn as `input()` does; the result stays text."""
        message = user_message(prompt)
        limit = self.max_iterations if max_iterations is None else _limit(max_iterations)
        self.refuse_inside("input()")
        if dropped:
            close_dropped()
        text = prompt if isinstance(prompt, str) else text_of(message["content"])
        return str(start(self, "input", partial(take_turn, self, Given(message, text, limit, form), key)))

    def stream(self, prompt: Prompt, max_iterations: int | None = None, *, output: Any = None) -> Events:
        """Take a turn as `input()` does, as an iterator of what happens in it.

        Yields:
            each trace entry, including those of inner agents; pieces of the models' text, `{"type": "text", "text"}`;
            at the end `{"type": "result", "result", "outcome"}`. Leaving the loop early ends the turn, as
            `end_turn()` does.

        Raises:
            Exception: what `input()` raises, from `next()`.
        """
        return streamed(self, partial(self.input, prompt, max_iterations, output=output))

    @with_short_tracebacks
    def resume(
        self,
        record: str | Path | None = None,
        *,
        place: str | int | None = None,
        fork: bool = False,
        approve: bool | str = False,
        reject: str | tuple[str, str] | None = None,
        answer: Any = None,
        wait: str | None = None,
        output: Any = None,
        renamed: bool = False,
    ) -> Any:
        """Go on with the session of a record, and finish the turn that was stopped in it.

        What is finished is not done again. Where a tool was started and did not finish, the person at the terminal
        is asked whether to run it again; without a terminal, it runs again only if it is `@tool(idempotent=True)`.

        Args:
            record: which session: the path of its record, its id or the first four characters of it, or an
                agent's name, for its last one. What follows is appended to the record. None for this agent's own
                session.
            place: `"TURN"` or `"TURN.ITERATION"`: go back to before it.
            fork: write to a copy with an id of its own, which names this record.
            approve: True approves the waiting call; where several wait, the id of one.
            reject: why the waiting call is rejected; the model reads it.
            answer: the value that replaces the waiting call.
            wait: the id of the wait that `reject` or `answer` is about, where several wait.
            output: the `output` that the turn's `input()` was given.
            renamed: take the record of an agent of another name too: this agent had that name.

        Returns:
            The result of the finished turn, else of the last one; None where there is no turn.

        Raises:
            Paused: the turn still waits for a decision.
            ConfigError: there is no such record, several are meant, it is another agent's or cannot be used, or the
                decision or place does not fit it.
        """
        from connectagent.agents.decisions import Decision
        from connectagent.agents.resume import resume  # loads the reader of records

        self.refuse_inside("resume()")
        form = self.form if output is None else self.form_for(output)
        decision = Decision.of(approve, reject, answer, wait)._replace(form=form)
        text = start(self, "resume", partial(resume, self, record, place, fork, decision, renamed))
        return text if form is None or text is None else form.result(self, text)

    def resume_stream(self, record: str | Path | None = None, **how: Unpack[Resuming]) -> Events:
        """Go on with a session as `resume()` does, as an iterator of what happens, like `stream()`.

        What was finished before is not shown again.

        Args:
            record, how: as for `resume()`.

        Yields:
            the items of `stream()`; the last has the result.

        Raises:
            Exception: what `resume()` raises, from `next()`.
        """
        return streamed(self, partial(self.resume, record, **how))

    # -- for handlers and tools ----------------------------------------------------------------

    @with_short_tracebacks
    def execute_tool(self, name: str, arguments: dict[str, Any] | None = None, *, key: str | None = None) -> TraceEntry:
        """Run one tool without the model, with all its hooks; nothing is added to the messages.

        Args:
            name: the tool.
            arguments: its arguments.
            key: identifies this call within its handler or tool, in place of the arguments.

        Returns:
            The call's trace entry: `status`, `result`, `timing` and so on.

        Raises:
            ConfigError: the arguments are no dict.
        """
        refuse_in_setup("execute_tool()")
        if not isinstance(arguments, dict | None):
            raise ConfigError(f"the arguments of execute_tool({name!r}) are a dict, not {arguments!r:.80}")
        self._executed += 1
        call = ToolCall(f"executed_{self._executed}", name, dict(arguments or {}))
        turn = self.turn
        if turn is None:
            outside = partial(execute_outside, self, call, self._executed)
            return cast(TraceEntry, operating(partial(start, self, "execute_tool", outside)))
        return cast(TraceEntry, operating(partial(execute_inside, turn, call, key)))

    # -- what it holds -------------------------------------------------------------------------

    def add_tool(self, tool: Any) -> None:
        """Add tools: whatever `tools=` takes."""
        self.check_children(agents_in(tool))
        self.take_in(self.tools.add(tool))

    def remove_tool(self, name: str) -> None:
        """Remove a tool.

        Raises:
            ToolNotFound: there is none of that name; the message lists the known names.
        """
        self.let_go(self.tools.remove(name))

    def list_tools(self) -> list[str]:
        """The names of the tools."""
        return self.tools.names()

    def reset_conversation(self) -> None:
        """Forget the conversation, also of the agents below; the next `input()` begins a new session and record.

        What the session has cost is forgotten too: `total_cost` begins at 0.

        Raises:
            RuntimeError: a turn is running.
        """
        self.refuse_inside("reset_conversation()")
        vars(self).pop("conversation", None)
        self.current_session = self.boundary.snapshot = self.last_usage = None
        self.spent, self.outside, self.spent_outside = Spent(), {}, {}
        self._shown = None
        self.leave_log()
        for child in self.children:
            child.reset_conversation()

    @property
    def ledger(self) -> list[dict[str, Any]]:
        """The time and the cost of each handler so far, the slowest first.

        One dict each: `plugin`, `hook`, `handler`, `calls`, `duration_ms`, and for its own model calls
        `model_calls`, `input_tokens`, `output_tokens`, `cost` (USD).
        """
        return self.hooks.ledger()

    @property
    def ended(self) -> Ending | None:
        """The ending that was asked for in the running turn; None where it goes on."""
        return None if self.turn is None else self.turn.ended

    @property
    def total_cost(self) -> float:
        """USD, for all model calls in this session whose price is known, including those of inner agents."""
        return self.spent.known_cost

    @property
    def record(self) -> Path | None:
        """The session's file; inside another agent's turn, the outer session's. None where nothing is recorded."""
        return self.turn.log.path if self.turn is not None else self.log.path

    @property
    def by(self) -> By:
        """This agent as the `by` of an entry."""
        return {"plugin": CONNECTAGENT, "agent": self.name, "branch": self.branch}

    def __repr__(self) -> str:
        return f"Agent({self.name!r}, model={self.llm.model!r}, tools={self.list_tools()!r})"


def _check(name: Any, plugin_errors: Any) -> None:
    if not isinstance(name, str) or not name.strip():
        raise ConfigError(f"an agent's name is a str that is not empty, not {name!r}")
    if plugin_errors not in ("raise", "warn"):
        raise ConfigError(f"plugin_errors is 'raise' or 'warn', not {plugin_errors!r}")


def _limit(value: Any, name: str = "max_iterations") -> int:
    if type(value) is not int or value < 1:
        of = "model calls" if name == "max_iterations" else "tool calls at the same time"
        raise ConfigError(f"{name} is a whole number of {of}, at least 1, not {value!r}")
    return value
