"""A part: one turn of an agent, and how it hangs in the turn of the agent of its tree that called it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from connectagent.attribution import By
from connectagent.errors import Paused
from connectagent.host import Decision
from connectagent.session import Message, TokenUsage, TraceEntry
from connectagent.state import same, snapshot

if TYPE_CHECKING:
    from connectagent.agent import Agent

MAX_DEPTH = 10  # agents that call each other, one inside the other
CONNECTAGENT = "connectagent"

_current: ContextVar[Part | None] = ContextVar("connectagent_part", default=None)


class Abandoned(BaseException):
    """Nobody waits for this part any more, and what its caller has must not be touched."""


class Seat(Protocol):
    """A place in a round of which several calls run at the same time: see `rounds`."""

    def leave(self) -> bool:
        """Let others of the round go on, while this one is in another agent's turn; False where it cannot."""

    def come_back(self) -> None:
        """Wait until it is this one's turn again.

        Raises:
            KeyboardInterrupt: Ctrl-C came meanwhile.
            Abandoned: it came twice.
        """


class Handed:
    """What an agent that leads a turn gives to the one that is to answer, and what it gets back.

    Args:
        target: the agent that is to answer.
        context: what was said meanwhile; "" for nothing.
        leader: the part in which the turn runs.
    """

    def __init__(self, target: Agent, context: str, leader: Part) -> None:
        self.target, self.context, self.leader = target, context, leader
        self.outcome = ""
        self.transfer: Transfer | None = None


class Transfer:
    """A wish to hand over: to whom, what to tell, and whose wish it is."""

    def __init__(self, target: Agent, message: str = "", by: str = "") -> None:
        self.target, self.message, self.by = target, message, by


handed_over: ContextVar[Handed | None] = ContextVar("connectagent_handed", default=None)
own_seat: ContextVar[Seat | None] = ContextVar("connectagent_seat", default=None)  # of the call that runs here
open_seat: ContextVar[Seat | None] = ContextVar("connectagent_open_seat", default=None)  # which may be left now


def current() -> Part | None:
    """The turn in which this code runs; what Ctrl-C left behind at an unlucky moment does not count."""
    part = _current.get()
    return part if part is not None and part.agent.part is part and part.agent.in_turn else None


class Part:
    """One turn of an agent, as the agents around it see it.

    Args:
        agent: whose turn it is.
        message: the user's message; None where the turn began in another process.
        prompt: its text.

    Attributes:
        caller: the turn of an agent of the same tree in which this one runs, or None.
        handed: set where a leading agent handed the conversation over.
        transfer: to whom the agent's own model wants to hand over.
        stopped: whether the turn must end, as Ctrl-C was pressed.

    Raises:
        RuntimeError: agents call each other more than `MAX_DEPTH` deep.
    """

    def __init__(self, agent: Agent, message: Message | None, prompt: str) -> None:
        caller, handed = current(), handed_over.get()
        self.agent, self.message, self.prompt = agent, message, prompt
        self.caller = caller if caller is not None and agent.marks and caller.agent.root is agent.root else None
        self.handed = handed if handed is not None and handed.target is agent else None
        self.depth: int = 0 if self.caller is None else self.caller.depth + 1
        if self.depth > MAX_DEPTH:
            raise RuntimeError(
                f"agent {agent.name!r} was not asked: it would be {self.depth} agents inside each other "
                f"({self._chain()}), and {MAX_DEPTH} is the limit"
            )
        self.transfer: Transfer | None = None
        self.handovers = 0
        self.told: set[str] = set()
        self.stopped = False
        self.inner: list[Part] = []
        self.spent, self.cost, self.priced = TokenUsage(), 0.0, True
        self.outward: tuple[Decision, Part] | None = None
        self._started = time.perf_counter()
        self._given = None if self.caller is None else snapshot(self.caller.agent.conversation.session["state"])
        self._base: dict[str, Any] | None = None
        agent.ended = None  # what Ctrl-C may have set a moment after the last turn

    @property
    def leader(self) -> Part:
        """The part in which agents hand over to each other."""
        return self if self.handed is None else self.handed.leader

    def callers(self) -> list[Part]:
        """The turns around this one, the nearest first."""
        found, part = [], self.caller
        while part is not None:
            found.append(part)
            part = part.caller
        return found

    def _chain(self) -> str:
        return " > ".join(part.agent.name for part in [*reversed(self.callers()), self])

    # -- running -------------------------------------------------------------------------------

    def run(self, operation: Callable[[], Any]) -> Any:
        """Run the turn inside its caller's, with a seat of a round given up meanwhile."""
        if not self.agent.marks:
            return operation()
        seat = open_seat.get() if self.caller is not None else None
        token, seats = _current.set(self), (own_seat.set(None), open_seat.set(None))
        error: BaseException | None = None
        if self.caller is not None:
            self.caller.inner.append(self)
            if self.caller.stopped:  # looked at now, as it is set before `inner` is read
                self.stop()
        try:
            return self._away(operation, seat)
        except Abandoned:
            self.caller = None
            raise
        except BaseException as raised:
            error = raised
            raise
        finally:
            _current.reset(token)
            own_seat.reset(seats[0])
            open_seat.reset(seats[1])
            if self.caller is not None:
                self._close(self.caller, error)

    def _away(self, operation: Callable[[], Any], seat: Seat | None) -> Any:
        if seat is None or not seat.leave():
            return operation()
        try:
            return operation()
        finally:
            seat.come_back()

    def begin(self) -> None:
        """Take over the caller's state, and hear what was said since this agent's last part."""
        if self.caller is None:
            return
        talk, by = self.agent.conversation, _by(self.caller.agent)
        if self._given:
            talk.merge_state(self._given, (), by)
        self._base = snapshot(talk.session["state"])
        if self.handed is not None and self.message is not None:
            if self.handed.context:
                leader = self.handed.leader.agent
                talk.append({"role": "user", "content": self.handed.context, "author": leader.name}, by=by)
            heard = dict(talk.session.get("heard") or {})
            heard[self.caller.agent.name] = len(self.caller.agent.conversation.session["messages"])
            talk.session["heard"] = heard

    def prompted(self, message: Message, prompt: str) -> None:
        """Go on with another message of the user."""
        self.message, self.prompt, self.transfer = message, prompt, None
        self.told.clear()

    def keep(self, result: str) -> str:
        """Store the turn's result in the state, under the agent's `output_key`."""
        key, talk = self.agent.output_key, self.agent.conversation
        if key is not None and talk.session["outcome"] != "transferred":
            talk.merge_state({key: result}, (), _by(self.agent))
        return result

    def count(self, usage: TokenUsage | None) -> None:
        """Add what a model call took."""
        self.priced = self.priced and usage is not None and usage.cost is not None
        if usage is not None:
            self.cost += usage.cost or 0.0
            _add(self.spent, usage)

    def stop(self) -> None:
        """End this turn, and those inside it, before their next call of a model or tool."""
        self.stopped = True
        self.agent.ended = Decision(None, {"plugin": "(interrupt)"})
        for part in list(self.inner):
            part.stop()

    def end_outward(self, decision: Decision, scope: str) -> None:
        """Let the turns around this one end too, as soon as it is over; up to a loop, or all of them.

        Raises:
            RuntimeError: there is no loop around.
        """
        around = self.callers()
        if scope == "loop":
            around = [part for part in around if part.agent.body is not None and repeats(part.agent.body.function)]
            if not around:
                raise RuntimeError(f"agent {self.agent.name!r} is not in a Loop: end_turn(scope='loop') ends one")
            around = around[:1]
        self.outward = (decision, around[-1]) if around else None

    # -- the end -------------------------------------------------------------------------------

    def _close(self, caller: Part, error: BaseException | None) -> None:
        """Bring home what the part changed and cost, and link its record."""
        caller.inner.remove(self)
        agent, above = self.agent, caller.agent
        session: Any = agent.conversation.session
        if error is not None:
            above.hooks.take_blame(error, agent.hooks)
        self._bring_home(caller)
        if self.handed is not None:
            self.handed.outcome, self.handed.transfer = session["outcome"] or "", self.transfer
        talk = above.conversation
        (talk.trace if error is None else talk.trace_quietly)(self._entry(session, error))
        if self.outward is not None:
            decision, outermost = self.outward
            value = session["result"] if decision.value is None else decision.value
            above.ended = Decision(value, decision.by)
            if caller is not outermost:
                caller.outward = (above.ended, outermost)

    def _bring_home(self, caller: Part) -> None:
        caller.cost, caller.priced = caller.cost + self.cost, caller.priced and self.priced
        caller.agent.total_cost += self.cost
        _add(caller.spent, self.spent)
        if self._base is not None:
            talk = self.agent.conversation
            state = {**talk.session["state"], **talk.dropped}
            changed = {key: value for key, value in state.items() if not same(self._base.get(key, _base), value)}
            gone = [key for key in self._base if key not in state]
            caller.agent.conversation.merge_state(changed, gone, _by(self.agent))

    def _entry(self, session: dict[str, Any], error: BaseException | None) -> TraceEntry:
        from connectagent.builtin.record import record_path

        record = record_path(self.agent)
        if error is not None:
            outcome = "paused" if isinstance(error, Paused) else "error"
            outcome = outcome if isinstance(error, Exception) else "interrupted"
        else:
            outcome = session["outcome"]
        self.spent.cost = self.cost if self.priced else None
        return {
            "type": "agent_turn",
            "agent": self.agent.name,
            "branch": self.agent.branch,
            "turn": session["turn"],
            "record": None if record is None else str(record),
            "outcome": outcome,
            "duration_ms": round((time.perf_counter() - self._started) * 1000, 3),
            "usage": self.spent,
        }


_base = object()


def _add(total: TokenUsage, usage: TokenUsage) -> None:
    for name in ("input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens"):
        setattr(total, name, getattr(total, name) + getattr(usage, name))


def _by(agent: Agent) -> By:
    return {"plugin": CONNECTAGENT, "agent": agent.name, "branch": agent.branch}


def repeats(function: Any) -> bool:
    """Whether the body of an agent is a loop of other agents."""
    return bool(getattr(function, "repeats", False))
