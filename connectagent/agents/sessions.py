"""An agent's session: how its turns begin, its conversation, its log, and what becomes of them after a resume."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from connectagent import frame
from connectagent.agents.arguments import whole_number
from connectagent.agents.closing import close_dropped, dropped
from connectagent.agents.runtime import Runtime
from connectagent.agents.tree import TreeAgent
from connectagent.data import LLM, AgentBase, Message, Session, TraceEntry
from connectagent.frame import Frame
from connectagent.loop.boundary import Boundary
from connectagent.loop.ending import Given
from connectagent.loop.nested import ask_inside
from connectagent.loop.run import take_root_turn
from connectagent.loop.stream import Lockstep
from connectagent.loop.turn import Turn, turn_in
from connectagent.loop.turn_agent import TurnAgent
from connectagent.records.log import Log
from connectagent.session.conversation import Conversation
from connectagent.session.messages import text_of
from connectagent.session.prompt import SystemPrompt
from connectagent.session.snapshot import By, clone
from connectagent.session.usage import Spent
from connectagent.tools.awaiting import operating

if TYPE_CHECKING:
    from connectagent.records.history import RecordedAgent


class ShownWait(NamedTuple):
    """A wait that `resume(record)` has shown without taking the session: a decision that follows is about it.

    Args:
        record: the record.
        renamed: whether it may be of an agent of another name.
        own, turn: the agent's own session then. If a turn of it was taken since, a decision is about that session.
    """

    record: Path
    renamed: bool
    own: Path | None
    turn: int


class SessionAgent(TreeAgent, Protocol):
    """An agent as its session knows it."""

    face: AgentBase
    boundary: Boundary
    prompted: SystemPrompt
    log: Log
    turn: Turn | None
    listener: Lockstep | None
    spent: Spent
    llm: LLM
    max_iterations: int
    switched_off: list[str]
    shows_calls: bool

    @property
    def current_session(self) -> Session | None: ...
    @property
    def conversation(self) -> Conversation: ...
    @property
    def sessions(self) -> SessionKeeper: ...
    def give_up_wait(self) -> None:
        """Forget that the agent's turn waits."""


class SessionKeeper:
    """Keeps the session of one agent.

    Args:
        core: the agent.
        first_state: the state of each new session.

    Attributes:
        boundary: runs the agent's handlers and tools.
        fresh: whether the session has not begun yet.
        outside: by branch, the recorded sessions of agents outside the tree, until these are asked.
        spent_outside: by branch, what those agents spent.
        shown: what `resume(record)` has shown, and `resume(approve=...)` is about.
    """

    def __init__(self, core: SessionAgent, first_state: dict[str, Any] | None) -> None:
        self._core = core
        self.boundary = core.boundary
        self.first_state = first_state
        self.fresh = True
        self.outside: dict[str, RecordedAgent] = {}
        self.spent_outside: dict[str, Spent] = {}
        self.shown: ShownWait | None = None
        self._session: Session | None = None

    @property
    def current(self) -> Session | None:
        """The session. A tool that runs beside others gets it read-only, with its own copy of the state."""
        here = frame.current()
        if here is not None and here.body is not None and here.turn.agent is self._core:
            return cast(Session, here.body.session())
        return self._session

    @current.setter
    def current(self, session: Session | dict[str, Any] | None) -> None:
        self._session = cast("Session | None", session)
        watched = self.boundary.snapshot
        self.boundary.replaced = watched is not None and session is not watched.session

    @cached_property
    def conversation(self) -> Conversation:
        """The object through which the loop changes the session."""
        self._session = None
        return self._take_current()

    def label(self, labels: dict[str, str]) -> None:
        """Set the keys of each trace entry."""
        if "conversation" in vars(self):
            self.conversation.labels = labels

    def forget(self) -> None:
        """Forget the conversation; the next turn begins a new session."""
        vars(self).pop("conversation", None)
        self.current = None
        self.boundary.snapshot = None
        self.outside = {}
        self.spent_outside = {}
        self.shown = None
        self.leave_log()

    def take(self, session: dict[str, Any]) -> None:
        """Go on with a session that was read from a record."""
        self._core.give_up_wait()
        self._session = cast(Session, session)
        self._take_current()
        self.conversation.state_before = self.conversation.snapshot.copy["state"]  # observers are told of the resume

    def _take_current(self) -> Conversation:
        """Go on with the session that the program left in `current_session`: the same, another one, or none."""
        session = cast("dict[str, Any] | None", self._session)
        if session is None or "conversation" not in vars(self) or session is not self.conversation.session:
            core = self._core
            labels = core.tree.labels
            begun = Conversation(self, core.name, core.prompted.text, session, self.first_state, labels)
            self.conversation = begun
            self._session = cast(Session, begun.session)
            self.fresh = session is None
            self.boundary.snapshot = begun.snapshot
            self.boundary.replaced = False
        return self.conversation

    # -- its log -------------------------------------------------------------------------------

    def open_log(self) -> Log:
        """The log of the current session."""
        conversation = self._take_current()
        log = self._core.log
        log.follow(self._core)
        conversation.session["id"] = log.id
        return log

    def leave_log(self) -> None:
        """Leave the session's log."""
        self._core.give_up_wait()
        self._core.log.leave()

    def beginning_for(self, log: Log, own_state: bool) -> dict[str, Any]:
        """What the conversation began with that a log does not have; {} where it has everything."""
        prompted = self._core.prompted
        begun = self.conversation.beginning_for(log, prompted.text, own_state)
        if "system_prompt" in begun and prompted.changes:
            begun["system_prompt_changes"] = clone(prompted.changes)
        return begun

    # -- turns inside those of other agents ----------------------------------------------------

    def enter(self, turn: Turn, branch: str | None) -> dict[str, str]:
        """Take the session for an inner turn; the labels of its entries.

        Args:
            turn: the inner turn. If it had begun, the session goes back to its beginning.
            branch: the agent's branch, if it is not in the tree of the agent that asks it.
        """
        self._take_current()
        if not self._core.log.recording:
            turn.log.withhold(turn.id)
        if branch is not None:
            began = turn.has_begun(turn.id)
            if not self.take_recorded(turn, branch, began) and began:
                self.rewind([turn.id])
                for child in self._core.tree.below:
                    child.sessions.rewind(turn.past.unfinished(child.tree.branch))
            self.conversation.labels = {"author": self._core.name, "branch": branch}
        self.conversation.session["id"] = turn.log.id
        return self.conversation.labels

    def leave(self) -> None:
        """End an inner turn: the agent has its own labels again."""
        self.conversation.labels = self._core.tree.labels

    def state_at_end(self) -> dict[str, Any]:
        """The state at the end of a turn, with the keys that last for one turn only."""
        return {**self.conversation.session["state"], **self.conversation.dropped}

    def note_heard(self, heard: dict[str, int] | None) -> None:
        """Note how many messages of others it has read, for a turn whose result is taken from the record."""
        if heard:
            session = self.conversation.session
            session["heard"] = {**(session.get("heard") or {}), **heard}

    def take_recorded(self, turn: Turn, branch: str, anew: bool) -> bool:
        """Take what the record has of this agent and those below it, outside the tree; whether it had something.

        Args:
            turn: a turn of the resumed session.
            branch: the agent's branch in it.
            anew: whether to replace what the agent has done in this process.
        """
        for child in self._core.tree.below:
            child.sessions._take_recorded(turn, child.tree.branch, anew)
        return self._take_recorded(turn, branch, anew)

    def _take_recorded(self, turn: Turn, branch: str, anew: bool) -> bool:
        resumed = cast(SessionKeeper, turn.root.agent.sessions)  # which are all of this class
        outside = resumed.outside
        spent = resumed.spent_outside.pop(branch, None)
        if spent is not None and self.conversation.home is not turn.log:  # else it was counted in this process
            self._core.spent = spent
        if branch not in outside or (self.conversation.session["turn"] and not anew):
            return False
        from connectagent.session.history import as_session

        recorded = outside.pop(branch)
        self.take(as_session(recorded.history, recorded.trace))
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
        self.take(as_session(history, trace))
        after = self.conversation
        after.beginning = before.beginning
        after.begins_behind = known
        after.home = before.home
        heard = next((before.heard[id] for id in places if id in before.heard), before.session.get("heard"))
        if heard:
            after.session["heard"] = heard

    # -- what the conversation asks of it ------------------------------------------------------

    def place(self) -> str | None:
        """The current place in the turn; None outside of turns."""
        here = frame.current()
        if here is not None and here.turn.agent is self._core:
            return here.place
        return None if self._core.turn is None else self._core.turn.id

    def emit(self, entry: TraceEntry, copy: TraceEntry, causes: list[By | None]) -> None:
        """Write a copy of an entry to the log, pass the entry to the stream, and call the handlers of `on_trace`."""
        core = self._core
        turn = core.turn
        if turn is None:
            self.open_log().append(copy)
            if core.listener is not None and core.listener.is_own_thread():
                core.listener.listen(core, entry)
        else:
            if (at := entry.get("at")) is not None:  # before the line that says so
                turn.touched.add(at)
                if at in turn.runs:
                    turn.runs[at].begin()
            turn.log.append(copy)
            for listener in turn.listeners:
                listener.listen(core, entry)
        if "on_trace" in core.hooks.active:
            core.hooks.observe("on_trace", causes, agent=core.face, entry=entry)

    def keep_session(self, session: dict[str, Any]) -> None:
        """Undo an assignment to `current_session`."""
        self._session = cast(Session, session)
        self.boundary.replaced = False


# -- how a turn begins ------------------------------------------------------------------------------


class TurnTaker(TurnAgent[Turn], Protocol):
    """An agent that takes a turn.

    Attributes:
        closed: whether it is closed, so that it takes no further one.
    """

    closed: bool

    @property
    def runtime(self) -> Runtime: ...


def answer(
    agent: TurnTaker, message: Message, max_iterations: int | None = None, *, key: str | None = None, form: Any = None
) -> str:
    """Take a turn of an agent as `input()` does, with a user's message; the result stays text."""
    limit = agent.max_iterations if max_iterations is None else whole_number(max_iterations)
    refuse_inside(agent, "input()")
    if dropped:
        close_dropped()
    content = message["content"]
    text = content if isinstance(content, str) else text_of(content)
    return str(start(agent, "input", partial(take_turn, agent, Given(message, text, limit, form), key)))


def start(agent: TurnTaker, what: str, action: Callable[[], Any]) -> Any:
    """Run `action` for an agent's method `what`: here, or where an asyncio loop runs here, in a thread of its own."""
    if agent.runtime.run is not None:
        return agent.runtime.run(agent.face, what, action)
    running = getattr(sys.modules.get("asyncio.events"), "_get_running_loop", None)
    if running is None or running() is None:
        return action()
    from connectagent.tools.loops import on_loop_thread  # loads asyncio

    return on_loop_thread(what, action)


def take_turn(agent: TurnTaker, given: Given, key: str | None = None) -> str:
    """Take a turn of an agent, inside the current turn if there is one; its result."""
    here = frame.current()
    asked = None if here is None and agent.tree.parent is None else _asked(agent, here)
    if asked is None:
        return take_root_turn(agent, given)
    return str(operating(partial(ask_inside, agent, given, asked, key))["result"])


def _asked(agent: TurnTaker, here: Frame | None) -> Frame | None:
    """The frame that asks for a turn of an agent now, or None for a root turn; `here`: that of this code.

    A thread without a frame belongs to the turn of the nearest agent above.

    Raises:
        RuntimeError: the turn of the asking code is over.
    """
    if here is None:
        above = agent.tree.parent
        while above is not None:
            if above.turn is not None:
                return above.turn.innermost
            above = above.tree.parent
        return None
    if here.body is not None and here.body.left:
        raise RuntimeError(f"agent {agent.name!r} was asked by a tool that its turn no longer waits for: {here.id}")
    if not here.turn.over:
        return here
    if here.turn.is_own_thread():  # left behind by Ctrl-C
        return None
    raise RuntimeError(f"agent {agent.name!r} was asked by code whose turn is over: {here.id}")


def refuse_inside(agent: TurnTaker, what: str) -> None:
    """Refuse what may only be called between turns.

    Raises:
        RuntimeError: a turn of the agent is running, or it is closed.
    """
    if agent.closed:
        raise RuntimeError(f"agent {agent.name!r} is closed; {what} comes too late: make a new agent")
    if agent.turning.locked():
        raise RuntimeError(
            f"agent {agent.name!r} is in a turn; {what} is for between turns, and was called by its own handler or "
            f"tool, or by another thread; {_instead(agent)}"
        )


def _instead(agent: TurnTaker) -> str:
    """What to do where an agent is in a turn: code that a fresh agent shares may name agents of the old one."""
    here = frame.current()
    found = None if here is None else turn_in(here).agent.tree.root.tree.find(agent.name)
    if found in (None, agent):
        return "make an agent for each"
    return f"the tree that asks has an agent of that name of its own: agent.root.find({agent.name!r})"
