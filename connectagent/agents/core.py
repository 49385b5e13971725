"""What an agent is made of. The loop and the rooms beside it take an `AgentCore`; `Agent` is its face."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from connectagent.agents import closing
from connectagent.agents.agent_tool import AskAgent, agent_tool, core_of
from connectagent.agents.arguments import Arguments, ModelArguments, PluginArguments, TurnArguments, whole_number
from connectagent.agents.body import NoModel, body_of, parameters_of, repeats
from connectagent.agents.copies import MadeWith
from connectagent.agents.handoff import HandoffRequest, delegate
from connectagent.agents.resources import Resources
from connectagent.agents.runtime import default
from connectagent.agents.sessions import SessionKeeper, answer, refuse_inside
from connectagent.agents.tree import TreeNode, same_handler
from connectagent.data import LLM, AgentBase, Session, TokenUsage, ToolCall
from connectagent.hooks.discovery import find_handlers, left_out, model_handlers
from connectagent.hooks.entry_points import normalized
from connectagent.hooks.handler import Handler
from connectagent.hooks.host import Host
from connectagent.loop.boundary import Boundary
from connectagent.loop.dry_run import DryRuns
from connectagent.loop.ending import Ending
from connectagent.loop.model_choice import without_forced_call
from connectagent.loop.stream import Lockstep
from connectagent.loop.turn import Turn
from connectagent.models.connection import given as given_connection
from connectagent.models.create import connected
from connectagent.models.names import default_model, parse_model
from connectagent.records.log import Log
from connectagent.records.write import new_log
from connectagent.session.conversation import Conversation
from connectagent.session.messages import user_message
from connectagent.session.prompt import SystemPrompt, read_prompt
from connectagent.session.snapshot import By, clone
from connectagent.session.state import initial_state
from connectagent.session.usage import Spent
from connectagent.settings import overrides
from connectagent.tools.registry import ToolRegistry

OWN_PLUGINS = "connectagent.builtin"  # loaded by name, as plugins are: that room is above this one
CONNECTAGENT = "connectagent"


class AgentCore:
    """One agent, as the loop and the rooms beside it use it.

    Args:
        face: the agent that the program, its handlers and its tools have.
        given: the arguments of the agent.
        made_with: how it was made, to make it again.

    Attributes:
        boundary: runs its handlers and tools.
        hooks: its handlers.
        llm: its model.
        log: where the lines of its own sessions go.
        runtime: makes models, sleeps and runs its turns.
        tree: its place among other agents.
        sessions: its session.
        body: the function of `Agent(run=...)` as a tool, or None.
        form: of results; None for text.
        turn: the turn that is running, or None.
        turning, executing: are held while a turn, or a tool call between turns, runs.
        listener: who streams the agent's next turn.
        waits_in: the paused root turn in which a turn of this agent waits, or None.
        spent: what the session has cost.
    """

    closed = False
    watched = False  # whether somebody must close it

    def __init__(self, face: AgentBase, given: Arguments, made_with: MadeWith) -> None:
        given.check()
        self.face, self.name, self.made_with = face, given.name, made_with
        first_state = initial_state(given.state)
        model = given.model
        self.connection = given_connection(model.model, model.api_key, model.base_url, model.options, model.llm)
        self.last_usage: TokenUsage | None = None
        self.spent = Spent()
        self.runtime = default()
        self._begin_turns()
        given.check_texts()
        self.description = given.place.description
        self.tree: TreeNode[AgentCore] = TreeNode(self, given.place)
        self.body = None if given.turns.run is None else body_of(given.turns.run, given.name)
        self.tools = ToolRegistry()
        self.tree.take_given(given.place.sub_agents, given.tools)
        chosen = [[given.plugins.plugins, *made_with.added], given.plugins.on_events]
        self.tree.left_out = left_out(chosen)
        self.prompted = SystemPrompt(read_prompt(given.system_prompt))
        self._take_turn_arguments(given.turns)
        warn_only = given.plugins.errors == "warn"
        self.boundary = Boundary(self, self._announce, warn_only=warn_only, dry_runs=DryRuns(self.face))
        self.sessions = SessionKeeper(self, first_state)
        self.is_recorded = True
        self.hooks = Host(self.boundary)
        handlers = self._load_plugins(given.plugins, chosen, given.model.model)
        self.resources = Resources(self, handlers)
        self.tools = ToolRegistry(given.tools, agent_tool=agent_tool, resources=self.resources.names)
        self.log: Log = new_log(self.is_recorded)
        self.llm: LLM = self._choose_llm(model)
        made_with.note(self, handlers)

    def take_place(self) -> None:
        """Tell the handlers of `on_agent_ready` of the agent, which is made now, and put its children below it."""
        self.tell_ready()
        self.tree.join_children()
        closing.watch(self)

    def _begin_turns(self) -> None:
        self.turn: Turn | None = None
        self.turning, self.executing = threading.Lock(), threading.RLock()
        self.executed = 0  # how many tools were called between turns or by handlers
        self.listener: Lockstep | None = None
        self.waits_in: Turn | None = None

    def _take_turn_arguments(self, given: TurnArguments) -> None:
        self.max_iterations = whole_number(overrides.get("max_iterations", given.max_iterations))
        self.parallel_tools = whole_number(given.parallel_tools, "parallel_tools")
        self.streaming = given.stream or "stream" in overrides
        self.form = None if given.output is None else self.form_for(given.output)
        self.output_retries = given.output_retries
        self.output_key = given.output_key

    def _load_plugins(self, given: PluginArguments, chosen: list[Any], model: str | None) -> list[Handler]:
        """Load connectagent's own plugins and the given ones; their handlers."""
        own = import_module(OWN_PLUGINS).built_in(trust=given.trust, log=given.log, quiet=given.quiet)
        asked_for = ("trust",) if given.log is None else ("trust", "record", "textlog")
        named = overrides.get("model") or model
        found, self.switched_off, out = find_handlers(own, chosen, named, asked_for, provider_of=parse_model)
        handlers = list(filter(self.runtime.takes, found))
        self.hooks.load(handlers)
        self.shows_calls = not out.built_in("xray")
        self.is_recorded = given.log is not False and not out.built_in("record", asked_for)
        return handlers

    def _choose_llm(self, given: ModelArguments) -> LLM:
        """The model of a new agent. The person at the command line may name another one."""
        if self.body is not None and given.llm is None and given.model is None:
            return NoModel(self.name)
        named = overrides.get("model")
        if given.llm is not None and not named:
            return given.llm
        return self.create_llm(named or (default_model() if given.model is None else given.model))

    def _announce(self, *entries: dict[str, Any]) -> None:
        self.conversation.announce(*entries)

    def tell_ready(self, known: Iterable[Handler] = ()) -> None:
        """Call the handlers of `on_agent_ready` but the known ones; the tools that they bring are not later changes."""
        told = [one.by for one in self.hooks.loaded if any(one == other or same_handler(one, other) for other in known)]
        before = set(self.tools.names())
        self.hooks.observe("on_agent_ready", told, agent=self.face)
        self.made_with.tools += [name for name in self.tools.names() if name not in before]

    def label(self, labels: dict[str, str]) -> None:
        """Set the keys of each trace entry."""
        self.sessions.label(labels)

    # -- its session ---------------------------------------------------------------------------

    @property
    def current_session(self) -> Session | None:
        """The session, as the code that asks may change it."""
        return self.sessions.current

    @current_session.setter
    def current_session(self, session: Session | dict[str, Any] | None) -> None:
        self.sessions.current = session

    @property
    def conversation(self) -> Conversation:
        """The object through which the loop changes the session."""
        return self.sessions.conversation

    @property
    def system_prompt(self) -> str:
        """The system prompt, with its placeholders."""
        return self.prompted.text

    def change_system_prompt(self, text: str) -> None:
        """Set the system prompt. What handlers of `on_agent_ready` make of it counts as theirs."""
        self.prompted.change(text, self.boundary.innermost())

    def reset(self) -> None:
        """Forget the conversation, also of the agents below.

        Raises:
            RuntimeError: a turn is running.
        """
        self.refuse_inside("reset_conversation()")
        self.sessions.forget()
        self.last_usage = None
        self.spent = Spent()
        for child in self.tree.children:
            child.reset()

    # -- its turns -----------------------------------------------------------------------------

    @property
    def record(self) -> Path | None:
        """The session's file; inside another agent's turn, the outer session's. None where nothing is recorded."""
        return self.log.path if self.turn is None else self.turn.log.path

    @property
    def by(self) -> By:
        """This agent as the `by` of an entry."""
        return {"plugin": CONNECTAGENT, "agent": self.name, "branch": self.tree.branch}

    @property
    def replaying(self) -> bool:
        """Whether a record is played: nothing is to be sent or written outside then."""
        parent = self.tree.parent
        return self.runtime.replays or (parent is not None and parent.replaying)

    @property
    def is_loop(self) -> bool:
        """Whether its function runs other agents repeatedly."""
        return self.body is not None and repeats(self.body.function)

    @property
    def body_parameters(self) -> list[str]:
        """Which of `agent` and `prompt` the function takes that runs in place of a model."""
        return parameters_of(self.body.function) if self.body is not None and self.body.function is not None else []

    def form_for(self, output: Any) -> Any:
        """The form of results for `output`; None for text."""
        from connectagent.loop.output import form_of  # with pydantic, which few programs need

        return form_of(output)

    def refuse_inside(self, what: str) -> None:
        """Refuse what may only be called between turns.

        Raises:
            RuntimeError: a turn is running, or the agent is closed.
        """
        refuse_inside(self, what)

    def leave_log(self) -> None:
        """Leave the session's log."""
        self.sessions.leave_log()

    def give_up_wait(self) -> None:
        """Forget that the agent's turn waits: it has gone on, or nobody will go on with it."""
        if self.waits_in is not None and self.waits_in.agent is self:
            self.waits_in.waiting = ()

    def call_options(self) -> dict[str, Any]:
        """A copy of the provider's parameters for a model call of this agent."""
        llm: Any = self.llm  # not isinstance(): a protocol's members are looked up anew each time
        own = llm.options if hasattr(llm, "with_options") else self.connection.options
        options = clone(dict(own)) if own else {}
        session = self.current_session
        return options if session is None or session["iteration"] < 2 else without_forced_call(options)

    def create_llm(self, model: str) -> LLM:
        """Another model, with this agent's plugins."""
        if self.runtime.create_model is not None:
            return self.runtime.create_model(model)
        brought = self.hooks.collect("register_models")
        known = {normalized(handler.plugin) for handler in self.hooks.handlers("register_models")}
        brought += [handler({}) or {} for handler in model_handlers(model, known, parse_model)]
        factories = {prefix: factory for models in brought for prefix, factory in models.items()}
        return connected(model, self.connection, factories)

    # -- other agents --------------------------------------------------------------------------

    def answer(
        self, prompt: Any, max_iterations: int | None = None, *, key: str | None = None, form: Any = None
    ) -> str:
        """Take a turn as `input()` does; the result stays text."""
        return answer(self, user_message(prompt), max_iterations, key=key, form=form)

    def delegate(self, turn: Turn) -> Ending | None:
        """The ending of a turn that another agent, or a function, answers in place of the model."""
        ending = delegate(turn)
        return turn.last_words() if ending is None and turn.ended is not None else ending

    def asked_by(self, call: ToolCall) -> AgentCore | None:
        """The agent of the tree that a tool call asks; None for other tools."""
        function = getattr(self.tools.get(call.name), "function", None) if self.tree.labels else None
        if not isinstance(function, AskAgent):
            return None
        asked: AgentCore = core_of(function.agent)
        return asked

    def request_again(self, turn: Turn, request: dict[str, Any]) -> None:
        """Give a turn the handoff request that was recorded."""
        target = self.tree.root.tree.find(request["target"])
        if target is not None:
            turn.request = HandoffRequest(target, request["message"], request["by"])

    # -- people and the process ----------------------------------------------------------------

    def runs_again(self, call: ToolCall) -> bool:
        """Whether the person at the terminal wants a call in doubt to run again; False without a terminal."""
        from connectagent.output.rows import call_text
        from connectagent.output.typed import can_ask, forget_typed, one_question

        if not can_ask():
            return False
        with one_question():
            print(f"{self.name}: the process ended while {call_text(call.name, call.arguments)} ran.", file=sys.stderr)
            forget_typed()
            print("It may have taken effect. Run it again? [y]es, [N]o: ", end="", file=sys.stderr, flush=True)
            return sys.stdin.readline().strip().lower() in ("y", "yes")

    def keep_open(self) -> None:
        """Keep the agent until it is closed: it has something to tear down then."""
        closing.keep_open(self)

    def closes_at_exit(self) -> None:
        """Tear down what belongs to the process when it ends, after the agents were closed."""
        closing.close_at_exit()

    def __del__(self) -> None:
        closing.note_dropped(self)

    def __repr__(self) -> str:
        return repr(self.face)
