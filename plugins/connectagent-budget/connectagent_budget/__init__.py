"""Stops an agent before it makes a call that its budget does not have.

A call is counted before it is made: each attempt, also of agents below and of handlers. What it may cost is reserved
before it, and settled after it. Counts of turns and sessions
are kept in memory, and are counted again from the record when a session is resumed. Those of a day are in a file beside
the records. The options are on `Budget`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import ref

from connectagent import (
    ConfigError,
    LLMRequest,
    LLMResponse,
    Pause,
    ToolCall,
    ToolRejected,
    Waiting,
    around_llm,
    around_tool,
    around_turn,
    on_agent_closed,
)
from connectagent_budget.counts import Attempt, Ledger, Used, amount_of, count_recorded, today
from connectagent_budget.estimate import NOTHING, Amount, estimate, full_name, has_no_price
from connectagent_budget.limits import Limit, Refusal, limits_of

if TYPE_CHECKING:
    from connectagent import Agent

_WARN = 0.8  # the part of a limit at which the trace gets an entry


class Budget:
    """The plugin: `Agent(plugins=[("budget", {"usd": 2})])`; what is None has no limit.

    Args:
        model_calls: attempts at a model.
        tool_calls: attempts at a tool.
        tokens: input and output tokens.
        usd: the price of the model calls.
        seconds: how long turns run; the time in which they are paused does not count.
        tools: attempts at single tools, by name: `{"search": 5}`. The model reads that a call is refused.
        agents: limits of single agents and those that they ask, by name: `{"billing": {"usd": 1}}`. They end the
            agent's turn only. All limits but `seconds` and `agents`.
        per: what has this budget: a `turn`, a `session`, or a `day` of all sessions of the project.
        unpriced: what becomes of calls whose price (or, with `tokens`, whose tokens) nobody knows, and of those
            after them: `refuse` ends the turn, `allow` goes on and says so in each turn.

    Raises:
        ConfigError: a limit is no number from 0 up or has no such name, or `per` or `unpriced` is something else.
    """

    changes = ("turn?", "trace?")
    shares_state = True

    name: ClassVar[str] = "budget"
    scope: ClassVar[str] = "process"  # agents that are named together in settings share one budget
    reach: ClassVar[str] = "turn"  # agents outside of the tree that are asked in a turn share its budget

    def __init__(
        self,
        model_calls: int | None = None,
        tool_calls: int | None = None,
        tokens: int | None = None,
        usd: float | None = None,
        seconds: float | None = None,
        per: str = "turn",
        unpriced: str = "refuse",
        tools: Mapping[str, int] | None = None,
        agents: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        given = {"model_calls": model_calls, "tool_calls": tool_calls, "tokens": tokens, "usd": usd, "seconds": seconds}
        self.limits = limits_of({**given, "tools": tools, "agents": agents})
        if per not in ("turn", "session", "day"):
            raise ConfigError(f"budget: per is 'turn', 'session' or 'day', not {per!r}")
        if unpriced not in ("refuse", "allow"):
            raise ConfigError(f"budget: unpriced is 'refuse' or 'allow', not {unpriced!r}")
        self.per = per
        self.unpriced = unpriced
        self._ledgers: dict[str, Ledger] = {}  # by session
        self._lock = threading.RLock()

    # -- what is watched -----------------------------------------------------------------------

    @around_turn
    def watch_turn(self, agent: Agent) -> Generator[None, Any, None]:
        """Begin a budget with the outermost turn, and measure its time."""
        with self._lock:
            ledger = self._ledger(agent)
        if ledger.agent() is not agent:
            yield
            return
        try:
            ledger.runs, ledger.since = True, time.monotonic()
            yield
        finally:
            with self._used(agent):
                pass
            ledger.runs = False

    @around_llm(trylast=True)  # innermost: what other handlers stop is not counted
    def watch_model(self, agent: Agent, request: LLMRequest) -> Generator[None, LLMResponse, None]:
        """Reserve what an attempt may cost, or end the turn before it; afterwards count what it did cost."""
        attempt = Attempt("model_calls", _names(agent), request.model)
        reserved = None
        if not self._is_refused(agent, attempt, request):
            reserved = self._reserve(agent, attempt, request)
        if reserved is None:
            yield  # the turn has ended, so the model is not asked
            return
        try:
            response = yield
        except Exception as error:  # a failed answer may have cost something
            actual = amount_of(getattr(error, "usage", None), request.model)
            self._settle(agent, attempt, reserved, actual, getattr(error, "retries", None))
            raise  # after Ctrl-C nobody knows what it cost: what is reserved stays counted
        actual = amount_of(response.usage, request.model)
        self._settle(agent, attempt, reserved, actual, response.retries)
        self._note_unknown(agent, self._unknown(actual, attempt.agents))

    @around_tool(trylast=True)
    def watch_tool(self, agent: Agent, tool_call: ToolCall) -> Generator[None, Any, None]:
        """Count an attempt at a tool, or refuse it, or end the turn before it."""
        attempt = Attempt("tool_calls", _names(agent), tool_call.name)
        is_taken = self._take(agent, attempt, NOTHING)
        try:
            yield
        except (Pause, Waiting):  # it begins again when a person has decided
            if is_taken:
                with self._used(agent) as used:
                    used.count(attempt, -1)
            raise

    @on_agent_closed
    def forget(self, agent: Agent) -> None:
        """Forget the sessions of an agent."""
        with self._lock:
            gone = [id for id, ledger in self._ledgers.items() if ledger.agent() in (agent, None)]
            for id in gone:
                del self._ledgers[id]

    # -- what is not known ---------------------------------------------------------------------

    def _is_refused(self, agent: Agent, attempt: Attempt, request: LLMRequest) -> bool:
        """Whether the price of a call is not known and must be: the turn ends then, before the call."""
        limited = self._limited("usd", attempt.agents)
        if not limited or not has_no_price(request.model, agent.llm):
            return False
        unknown = f"the price of {full_name(request.model)} is not known"
        self._tell_unknown(agent, unknown)
        if self.unpriced == "allow":
            return False
        self._end(agent, _not_kept(unknown), whole=None in limited)
        return True

    def _limited(self, what: str, agents: tuple[str, ...]) -> set[str | None]:
        """Whose limits of tokens or USD a call counts for; None is that of all agents."""
        return {limit.agent for limit in self.limits if limit.name == what and limit.agent in (None, *agents)}

    def _unknown(self, actual: Amount, agents: tuple[str, ...]) -> dict[str | None, str]:
        """Whose limits cannot be counted after a call, and why."""
        found: dict[str | None, str] = {}
        if actual.usd is None:
            found |= dict.fromkeys(self._limited("usd", agents), "an answer came whose price is not known")
        if actual.tokens is None:
            found |= dict.fromkeys(self._limited("tokens", agents), "an answer came without its tokens")
        return found

    def _note_unknown(self, agent: Agent, unknown: dict[str | None, str]) -> None:
        """Keep in mind that the sum of what was used is not known any more."""
        if not unknown:
            return
        with self._lock:
            self._ledger(agent).unknown.update(unknown)
        self._tell_unknown(agent, next(iter(unknown.values())))

    def _tell_unknown(self, agent: Agent, unknown: str) -> None:
        """Trace once a turn that something is not known."""
        with self._lock:
            ledger = self._ledger(agent)
            is_new = "unknown" not in ledger.warned
            ledger.warned.add("unknown")
        if is_new:
            agent.trace("budget", of="unknown", per=self.per, show=f"the budget cannot be kept: {unknown}")

    # -- the counts ----------------------------------------------------------------------------

    def _reserve(self, agent: Agent, attempt: Attempt, request: LLMRequest) -> Amount | None:
        """Take what a model call may cost: what the largest one so far has cost, before that an estimate."""
        is_priced = bool(self._limited("usd", attempt.agents))
        if not is_priced and not self._limited("tokens", attempt.agents):
            return NOTHING if self._take(agent, attempt, NOTHING) else None
        with self._lock:  # of a day: no other process is waited for meanwhile
            ledger = self._ledger(agent)
            known = ledger.largest.get(full_name(request.model))
            expected = estimate(request, output=known is None, priced=is_priced)
            if expected is None:
                known = known or ledger.largest_of_all
            wanted = NOTHING.at_least(*(amount for amount in (known, expected) if amount is not None))
            return wanted if self._take(agent, attempt, wanted) else None

    def _take(self, agent: Agent, attempt: Attempt, wanted: Amount) -> bool:
        """Count an attempt and what it may cost; False, and the turn ends, where the budget has not got that.

        Raises:
            ToolRejected: that tool may not be called again, or no turn runs that could end.
        """
        with self._used(agent) as used:
            ledger = self._ledger(agent)
            refusal = self._refusal(ledger, used, attempt, wanted)
            if refusal is None:
                used.reserve(attempt, wanted)
                return True
        if not ledger.runs or refusal.tool is not None:
            raise ToolRejected(refusal.why)
        self._end(agent, refusal.why, whole=refusal.agent is None)
        return False

    def _refusal(self, ledger: Ledger, used: Used, attempt: Attempt, wanted: Amount) -> Refusal | None:
        """What keeps an attempt from being made; None if it may be."""
        if attempt.kind == "model_calls" and self.unpriced == "refuse":
            for agent in (None, *attempt.agents):
                if agent in ledger.unknown:
                    return Refusal(_not_kept(ledger.unknown[agent]), agent)
        largest = ledger.largest_of_all.at_least(wanted)
        for limit in self.limits:
            if limit.is_over(used, largest, attempt, wanted):
                return Refusal(limit.refusal(used, largest, wanted, self.per), limit.agent, limit.tool)
        return None

    def _end(self, agent: Agent, why: str, whole: bool) -> None:
        """End the turn, with those around it, or that of an agent only which has a limit of its own."""
        leads = self._ledger(agent).agent()
        whole = whole and leads is not None and leads.parent is None
        agent.end_turn(why, scope="turn" if whole else "agent", outcome="budget")

    def _settle(self, agent: Agent, attempt: Attempt, reserved: Amount, actual: Amount, retries: Any) -> None:
        """Count what a call cost in place of what was reserved, and the attempts that the SDK made before it."""
        with self._used(agent) as used:
            used.settle(attempt, reserved, actual, len(retries or ()))
            self._ledger(agent).learn(attempt.name, actual)

    @contextlib.contextmanager
    def _used(self, agent: Agent) -> Iterator[Used]:
        """What was used so far, to be read and changed by one thread (and of a day: one process) at a time."""
        warnings: list[Limit] = []
        with self._lock:
            ledger = self._ledger(agent)
            with today() if self.per == "day" else contextlib.nullcontext(ledger.used) as used:
                now = time.monotonic()
                if ledger.runs:
                    used.seconds, ledger.since = used.seconds + now - ledger.since, now
                yield used
                largest = ledger.largest_of_all
                for limit in self.limits:
                    if limit not in ledger.warned and limit.of(used, largest) >= _WARN * limit.most:
                        ledger.warned.add(limit)
                        warnings.append(limit)
                told = [(limit.entry(used, largest), limit.amounts(used, largest, self.per)) for limit in warnings]
        for entry, amounts in told:
            agent.trace("budget", **entry, per=self.per, show=f"{amounts} are used")

    def _ledger(self, agent: Agent) -> Ledger:
        """The counts of the session; those of a new turn begin at 0, those of a resumed one where it stopped."""
        session = agent.session
        ledger = self._ledgers.get(session["id"])
        if ledger is None or (ledger.agent() is not agent and not ledger.runs):
            ledger = Ledger(ref(agent), Used(), session["turn"])
            self._ledgers[session["id"]] = ledger
            count_recorded(ledger, agent, session["turn"] if self.per == "turn" else None, self._unknown)
        if ledger.agent() is agent and ledger.turn != session["turn"]:
            ledger.turn = session["turn"]
            if self.per == "turn":
                ledger.used = Used()
            if self.per == "turn" or self.unpriced == "allow":
                ledger.warned.discard("unknown")  # each turn says it
            if self.per == "turn":
                ledger.warned.clear()
                ledger.unknown.clear()
        return ledger


def _names(agent: Agent) -> tuple[str, ...]:
    """The names of an agent and of those in whose turns it works."""
    return tuple(one.name for one in (agent, *agent.callers))


def _not_kept(unknown: str) -> str:
    return f"The budget cannot be kept: {unknown}; unpriced='allow' goes on without this limit."
