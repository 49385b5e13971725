"""What the loop and the conversation call on an agent: its session, its log and its place in the turn."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast

from connectagent import frame
from connectagent.agents.agent_tool import AskAgent
from connectagent.agents.body import parameters_of
from connectagent.agents.handoff import HandoffRequest, delegate
from connectagent.agents.runtime import Runtime
from connectagent.agents.tree import Node
from connectagent.data import LLM, Session, TokenUsage, ToolCall, TraceEntry
from connectagent.frame import Frame
from connectagent.hooks.host import Host
from connectagent.loop.boundary import Boundary
from connectagent.loop.ending import Ending, Given
from connectagent.loop.model_choice import without_forced_call
from connectagent.loop.nested import ask_inside
from connectagent.loop.run import take_root_turn
from connectagent.loop.turn import Turn
from connectagent.records.log import Log
from connectagent.session.conversation import Conversation
from connectagent.session.prompt import SystemPrompt
from connectagent.session.snapshot import By, clone
from connectagent.session.usage import Spent
from connectagent.tools.awaiting import operating

if TYPE_CHECKING:
    from connectagent.agents.resume import ShownWait


class Links(Node):
    """An agent as the loop and the conversation use it; `Agent` adds the public methods."""

    boundary: Boundary
    llm: LLM
    prompted: SystemPrompt
    runtime: Runtime
    _connection: Any  # the key, address and options given in code
    spent: Spent
    listener: Any = None  # who streams this agent's next turn
    hooks: Host
    switched_off: list[str]
    max_iterations: int
    log: Log  # where the lines of this agent's own sessions go
    _state: dict[str, Any] | None
    _shown: ShownWait | None = None  # what `resume(record)` has shown, and `resume(approve=...)` is about
    form: Any = None  # of results; None for text
    closed = False
    last_usage: TokenUsage | None
    fresh = True  # whether its session has not begun yet
    _session: Session | None = None

    @property
    def current_session(self) -> Session | None:
        """The session. A tool that runs beside others gets it read-only, with its own copy of the state."""
        here = frame.current()
        if here is not None and here.body is not None and here.turn.agent is self:
            return cast(Session, here.body.session())
        return self._session

    @current_session.setter
    def current_session(self, session: Session | dict[str, Any] | None) -> None:
        self._session = cast("Session | None", session)
        watched = self.boundary.snapshot
        self.boundary.replaced = watched is not None and session is not watched.session

    @cached_property
    def conversation(self) -> Conversation:
        """The object through which the loop changes `current_session`."""
        self._session = None
        return self._take_session()

    def label(self, labels: dict[str, str]) -> None:
        super().label(labels)
        if "conversation" in vars(self):
            self.conversation.labels = labels

    def form_for(self, output: Any) -> Any:
        """The form of results for `output`; None for text."""
        from connectagent.loop.output import form_of  # with pydantic, which few programs need

        return form_of(output)

    # -- what the loop asks of it --------------------------------------------------------------

    def refuse_inside(self, what: str) -> None:
        """Refuse what may only be called between turns.

        Raises:
            RuntimeError: a turn is running, or the agent is closed.
        """
        if self.closed:
            raise RuntimeError(f"agent {self.name!r} is closed; {what} comes too late: make a new agent")
        if self.turning.locked():
            raise RuntimeError(
                f"agent {self.name!r} is in a turn; {what} is for between turns, and was called by its own handler or "
                f"tool, or by another thread; {self._instead()}"
            )

    def _instead(self) -> str:
        """What to do where it is in a turn: code that a fresh agent shares may name agents of the old one."""
        here = frame.current()
        found = None if here is None else here.turn.agent.root.find(self.name)
        if found in (None, self):
            return "make an agent for each"
        return f"the tree that asks has an agent of that name of its own: agent.root.find({self.name!r})"

    def give_up_wait(self) -> None:
        """Forget that the agent's turn waits: it has gone on, or nobody will go on with it."""
        if self.waits_in is not None and self.waits_in.agent is self:
            self.waits_in.waiting = ()

    def leave_log(self) -> None:
        """Leave the session's log."""
        self.give_up_wait()
        self.log.leave()

    def take_session(self, session: dict[str, Any]) -> None:
        """Go on with a session that was read from a record."""
        self.give_up_wait()
        self._session = cast(Session, session)
        self._take_session()
        self.conversation.state_before = self.conversation.snapshot.copy["state"]  # observers are told of the resume

    def _take_session(self) -> Conversation:
        """Go on with the session that the program left in `current_session`: the same, another one, or none."""
        session = cast("dict[str, Any] | None", self._session)
        if session is None or "conversation" not in vars(self) or session is not self.conversation.session:
            begun = Conversation(self, self.name, self.prompted.text, session, self._state, self.labels)
            self.conversation, self._session = begun, cast(Session, begun.session)
            self.fresh, self.boundary.snapshot, self.boundary.replaced = session is None, begun.snapshot, False
        return self.conversation

    def open_log(self) -> Log:
        """The log of the current session."""
        conversation = self._take_session()
        self.log.follow(self)
        conversation.session["id"] = self.log.id
        return self.log

    def enter_session(self, turn: Turn, branch: str | None) -> dict[str, str]:
        """Take the session for an inner turn; the labels of its entries.

        Args:
            turn: the inner turn. If it had begun, the session goes back to its beginning.
            branch: the agent's branch, if it is not in the tree of the agent that asks it.
        """
        self._take_session()
        if not self.log.recording:
            turn.log.withhold(turn.id)
        if branch is not None:
            began = turn.has_begun(turn.id)
            if not self.take_recorded(turn, branch, began) and began:
                self.rewind([turn.id])
                for child in self.below:
                    child.rewind(turn.past.unfinished(child.branch))
            self.conversation.labels = {"author": self.name, "branch": branch}
        self.conversation.session["id"] = turn.log.id
        return self.conversation.labels

    def take_recorded(self, turn: Turn, branch: str, anew: bool) -> bool:
        """Take what the record has of this agent and those below it, outside the tree; whether it had something.

        Args:
            turn: a turn of the resumed session.
            branch: the agent's branch in it.
            anew: whether to replace what the agent has done in this process.
        """
        for child in self.below:
            child._take_recorded(turn, child.branch, anew)
        return self._take_recorded(turn, branch, anew)

    def _take_recorded(self, turn: Turn, branch: str, anew: bool) -> bool:
        outside = turn.root.agent.outside
        spent = turn.root.agent.spent_outside.pop(branch, None)
        if spent is not None and self.conversation.home is not turn.log:  # else it was counted in this process
            self.spent = spent
        if branch not in outside or (self.conversation.session["turn"] and not anew):
            return False
        from connectagent.session.history import as_session

        recorded = outside.pop(branch)
        self.take_session(as_session(recorded.history, recorded.trace))
        self.conversation.home = turn.log
        return True

    def rewind(self, places: list[str]) -> None:
        """Go back to before the first of these turns, which began in this process and have not ended."""
        from connectagent.session.history import History, as_session

        before = self.conversation
        trace: list[TraceEntry] = before.session["trace"]
        known = before.begins_behind
        first = next((n for n, entry in enumerate(trace) if n >= known and entry.get("at") in places), None)
        if first is None:
            return
        history = History(*before.beginning)
        history.extend(trace[known:first])
        self.take_session(as_session(history, trace))
        after = self.conversation
        after.beginning, after.begins_behind, after.home = before.beginning, known, before.home
        heard = next((before.heard[id] for id in places if id in before.heard), before.session.get("heard"))
        if heard:
            after.session["heard"] = heard

    def hear(self, heard: dict[str, int] | None) -> None:
        """Set how many messages of other agents this one has read, for a turn whose result is taken from the record."""
        if heard:
            session = self.conversation.session
            session["heard"] = {**(session.get("heard") or {}), **heard}

    def leave_session(self) -> None:
        """End an inner turn: the agent has its own labels again."""
        self.conversation.labels = self.labels

    @property
    def system_prompt(self) -> str:
        """The system prompt, with its placeholders. What handlers of `on_agent_ready` make of it counts as theirs."""
        return self.prompted.text

    @system_prompt.setter
    def system_prompt(self, text: str) -> None:
        self.prompted.change(text, self.boundary.innermost())

    def beginning_for(self, log: Log, own_state: bool) -> dict[str, Any]:
        """What the conversation began with that a log does not have; {} where it has everything."""
        begun = self.conversation.beginning_for(log, self.system_prompt, own_state)
        if "system_prompt" in begun and self.prompted.changes:
            begun["system_prompt_changes"] = clone(self.prompted.changes)
        return begun

    def state_left(self) -> dict[str, Any]:
        """The state at the end of a turn, with the keys that last for one turn only."""
        return {**self.conversation.session["state"], **self.conversation.dropped}

    def call_options(self) -> dict[str, Any]:
        """A copy of the provider's parameters for a model call of this agent."""
        llm: Any = self.llm  # not isinstance(): a protocol's members are looked up anew each time
        own = llm.options if hasattr(llm, "with_options") else self._connection.options
        options = clone(dict(own)) if own else {}
        session = self.current_session
        return options if session is None or session["iteration"] < 2 else without_forced_call(options)

    def delegate(self, turn: Turn) -> Ending | None:
        """The ending of a turn that another agent, or a function, answers in place of the model."""
        ending = delegate(turn)
        return turn.last_words() if ending is None and turn.ended is not None else ending

    def asked_by(self, call: ToolCall) -> Node | None:
        """The agent of the tree that a tool call asks; None for other tools."""
        function = getattr(self.tools.get(call.name), "function", None) if self.labels else None
        return function.agent if isinstance(function, AskAgent) else None

    def request_again(self, turn: Turn, request: dict[str, Any]) -> None:
        """Give a turn the handoff request that was recorded."""
        target = self.root.find(request["target"])
        if target is not None:
            turn.request = HandoffRequest(target, request["message"], request["by"])

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

    @property
    def body_parameters(self) -> list[str]:
        """Which of `agent` and `prompt` the function takes that runs in place of a model."""
        return parameters_of(self.body.function) if self.body is not None and self.body.function is not None else []

    # -- what the conversation asks of it ------------------------------------------------------

    def place(self) -> str | None:
        """The current place in the turn; None outside of turns."""
        here = frame.current()
        if here is not None and here.turn.agent is self:
            return str(here.place)
        return None if self.turn is None else str(self.turn.id)

    def emit(self, entry: TraceEntry, copy: TraceEntry, causes: list[By | None]) -> None:
        """Write a copy of an entry to the log, pass the entry to the stream, and call the handlers of `on_trace`."""
        turn = self.turn
        if turn is None:
            self.open_log().append(copy)
            if self.listener is not None and self.listener.is_own_thread():
                self.listener.listen(self, entry)
        else:
            if (at := entry.get("at")) is not None:  # before the line that says so
                turn.touched.add(at)
                if at in turn.runs:
                    turn.runs[at].begin()
            turn.log.append(copy)
            for listener in turn.listeners:
                listener.listen(self, entry)
        if "on_trace" in self.hooks.active:
            self.hooks.observe("on_trace", causes, agent=self, entry=entry)

    def keep_session(self, session: dict[str, Any]) -> None:
        """Undo an assignment to `current_session`."""
        self._session, self.boundary.replaced = cast(Session, session), False


def start(agent: Any, what: str, action: Callable[[], Any]) -> Any:
    """Run `action` for an agent's method `what`: here, or where an asyncio loop runs here, in a thread of its own."""
    if agent.runtime.run is not None:
        return agent.runtime.run(agent, what, action)
    running = getattr(sys.modules.get("asyncio.events"), "_get_running_loop", None)
    if running is None or running() is None:
        return action()
    from connectagent.tools.loops import on_loop_thread  # loads asyncio

    return on_loop_thread(what, action)


def take_turn(agent: Any, given: Given, key: str | None = None) -> str:
    """Take a turn of an agent, inside the current turn if there is one; its result."""
    here = frame.current()
    asked = None if here is None and agent.parent is None else _asked(agent, here)
    if asked is None:
        return take_root_turn(agent, given)
    return str(operating(partial(ask_inside, agent, given, asked, key))["result"])


def _asked(agent: Any, here: Frame | None) -> Frame | None:
    """The frame that asks for a turn of an agent now, or None for a root turn; `here`: that of this code.

    A thread without a frame belongs to the turn of the nearest agent above.

    Raises:
        RuntimeError: the turn of the asking code is over.
    """
    if here is None:
        above = agent.parent
        while above is not None and above.turn is None:
            above = above.parent
        return None if above is None else above.turn.innermost
    if here.body is not None and here.body.left:
        raise RuntimeError(f"agent {agent.name!r} was asked by a tool that its turn no longer waits for: {here.id}")
    if not here.turn.over:
        return here
    if here.turn.is_own_thread():  # left behind by Ctrl-C
        return None
    raise RuntimeError(f"agent {agent.name!r} was asked by code whose turn is over: {here.id}")
