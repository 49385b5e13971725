"""What handlers cost: how often each ran, how long, and the model calls that it made."""

from __future__ import annotations

import dataclasses
import re
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from connectagent import frame
from connectagent.data import TokenUsage, TraceEntry
from connectagent.session.journal import BEGAN, DECIDED, Journal, is_inside, only_says_stopped, place_of, turns_in

_MODEL = re.compile(r"/model\d+$")  # the places of attempts at a model


@dataclass(slots=True, eq=False)
class Spent:
    """The sum of model calls, from which every figure of tokens and cost is taken.

    Attributes:
        calls: attempts that got an answer or reported tokens.
        usage: the tokens; `cost` (USD) is the part of known price.
        priced: whether every price is known.
    """

    calls: int = 0
    usage: TokenUsage = field(default_factory=partial(TokenUsage, cost=0.0))
    priced: bool = True
    _known: bool = False

    def add(self, usage: TokenUsage | None) -> None:
        """Add one attempt; None if its usage is not known."""
        self.calls += 1
        self.priced = self.priced and usage is not None and usage.cost is not None
        if usage is not None:
            self._known, own = True, self.usage
            own.input_tokens += usage.input_tokens or 0
            own.output_tokens += usage.output_tokens or 0
            own.cached_tokens += usage.cached_tokens or 0
            own.cache_write_tokens += usage.cache_write_tokens or 0
            own.cost = (own.cost or 0.0) + (usage.cost or 0.0)

    def include(self, other: Spent) -> None:
        """Add the sum of other attempts."""
        known = self._known or other._known
        calls, priced = self.calls + other.calls, self.priced and other.priced
        self.add(other.usage)
        self.calls, self.priced, self._known = calls, priced, known

    @property
    def tokens(self) -> int | None:
        """Input and output; None if no provider reported any."""
        return None if self.calls and not self._known else self.usage.input_tokens + self.usage.output_tokens

    @property
    def cost(self) -> float | None:
        """USD, or None if a price is not known."""
        return self.usage.cost if self.priced else None

    @property
    def known_cost(self) -> float:
        """USD, of the calls whose price is known."""
        return self.usage.cost or 0.0

    def data(self) -> TokenUsage:
        """The sum as it is in entries of the trace."""
        return dataclasses.replace(self.usage, cost=self.cost)


class Spending(Protocol):
    """Whoever pays for model calls: an agent, or a handler by its account."""

    @property
    def spent(self) -> Spent: ...


class CountedTurn(Protocol):
    """The turn in which a model call was made."""

    @property
    def spent(self) -> Spent: ...
    @property
    def agent(self) -> Spending: ...
    @property
    def asked(self) -> frame.Frame | None: ...
    @property
    def parent(self) -> CountedTurn | None: ...
    @property
    def root(self) -> RootTurn: ...
    @property
    def log(self) -> LinesLog: ...


class RootTurn(CountedTurn, Protocol):
    """The outermost turn: the turns inside it, which may run at the same time, count under its lock."""

    guard: threading.Lock


class LinesLog(Protocol):
    """The log of a turn."""

    def lines(self) -> list[TraceEntry]: ...


def count(turn: CountedTurn, usage: TokenUsage | None) -> None:
    """Count an attempt at a model in its turn and in those around it, which agents at the same time share.

    It counts for their agents too, and for the handlers that asked.
    """
    asked = frame.current()
    inner: CountedTurn | None = turn
    sums, accounts = list[Spent](), dict[int, Spent]()
    while inner is not None:
        sums += [inner.spent, inner.agent.spent]
        if asked is not None and asked.account is not None:
            accounts[id(asked.account)] = asked.account.spent
        asked, inner = inner.asked, inner.parent
    with turn.root.guard:
        for one in [*sums, *accounts.values()]:
            one.add(usage)


def count_lost(turn: CountedTurn) -> None:
    """Count the attempts of a turn that Ctrl-C kept from their ends, as whoever goes on with it will."""
    lines = turn.log.lines()
    for _ in range(spent_in(lines).calls - spent_in(lines, running=True).calls):
        count(turn, None)


@dataclass(slots=True)
class Totals:
    """The sums of a session's turns.

    Args:
        turns: the turns that ended; one that was paused and resumed counts once.
        iterations: model calls with their tool rounds, of all agents of the tree.
        tools: tool calls of all agents, whatever their status.
        tokens: input and output of all model calls, including those of a turn that has not ended; None if no
            provider reported any.
        cost: their price in USD; None if a price is not known.
        known_cost: the sum of the known prices.
    """

    turns: int = 0
    iterations: int = 0
    tools: int = 0
    tokens: int | None = None
    cost: float | None = 0.0
    known_cost: float = 0.0

    def add(self, turns: int, iterations: int, tools: int, spent: Spent | None) -> None:
        """Add the sums of one or several turns."""
        self.turns += turns
        self.iterations += iterations
        self.tools += tools
        if spent is not None:
            self.spend(spent)

    def spend(self, spent: Spent) -> None:
        """Add the tokens and cost of model calls."""
        self.include(spent.tokens, spent.cost, spent.known_cost)

    def include(self, tokens: int | None, cost: float | None, known_cost: float | None) -> None:
        """Add sums as a record has them; `known_cost` is only needed where `cost` is None."""
        if tokens is not None:
            self.tokens = (self.tokens or 0) + tokens
        self.known_cost += (known_cost or 0.0) if cost is None else cost
        self.cost = None if cost is None or self.cost is None else self.known_cost

    def data(self) -> dict[str, Any]:
        """The sums as the record holds them, under `session` of each turn's summary."""
        data = dataclasses.asdict(self)
        if self.cost is not None:
            del data["known_cost"]
        return data


@dataclass(slots=True)
class Account:
    """The costs of one handler.

    Args:
        calls: how often it was called; each half of an `around_` handler counts.
        seconds: how long it ran, including handlers and tools that it called.
        spent: the model calls that it made, by `agent.ask`, `llm_do` or an agent of its own.
    """

    calls: int = 0
    seconds: float = 0.0
    spent: Spent = field(default_factory=Spent)


def usage_of(entry: TraceEntry) -> TokenUsage | None:
    """The usage of a model call, also from a record, where it is a dict."""
    usage = entry.get("usage")
    if not isinstance(usage, dict):
        return usage
    names = [field.name for field in dataclasses.fields(TokenUsage)]
    return TokenUsage(**{name: _number(usage.get(name)) for name in names if _number(usage.get(name)) is not None})


def _number(value: object) -> Any:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def took_tokens(entry: TraceEntry) -> bool:
    """Whether an entry is an attempt at a model that took tokens, or may have; a stand-in took none."""
    if entry.get("type") != "llm_call":
        return False
    own = entry.get("original") or entry  # what the model did, if an around handler changed that
    interrupted = "interrupted" in (entry.get("status"), own.get("status"))
    return entry.get("usage") is not None or interrupted or own.get("status") == "success"


def spent_in(entries: Iterable[TraceEntry], running: bool = False, spent: Spent | None = None) -> Spent:
    """The sum of the model calls in entries: each attempt once, void ones too.

    Args:
        entries: lines of a log, or entries of a trace.
        running: whether an attempt without an end may still get one; otherwise it was lost, and its usage is not
            known.
        spent: a sum to add them to.
    """
    spent = spent or Spent()
    begun: set[str] = set()
    for entry in entries:
        kind, id = entry.get("type"), str(entry.get("id"))
        if kind == "began" and _MODEL.search(id):
            if id in begun:  # the one before was lost
                spent.add(None)
            begun.add(id)
        elif kind in ("llm_call", "closed"):
            begun.discard(id)
        if took_tokens(entry):
            spent.add(usage_of(entry))
    for _ in () if running else begun:
        spent.add(None)
    return spent


def tool_calls(lines: Sequence[TraceEntry]) -> list[TraceEntry]:
    """The tool calls in the lines of a turn: each call once, as the trace has it after a pause or a kill too."""
    void = Journal(lines).void
    resumed = max((number for number, line in enumerate(lines) if line.get("type") == "resumed"), default=0)
    found = []
    for number, line in enumerate(lines):
        is_made_again = number < resumed and only_says_stopped(line)
        if line.get("type") == "tool_execution" and number not in void and not is_made_again:
            found.append(line)
    return found


def own_tools(calls: Iterable[TraceEntry], agent_name: object) -> list[Any]:
    """The names of the tools that the root agent called, from the calls of its tree."""
    own = (call for call in calls if call.get("branch") in (None, agent_name))
    return [call.get("tool_name") for call in own if "/turn:" not in str(call.get("id", ""))]


def spent_inside(lines: Iterable[TraceEntry]) -> dict[str, Spent]:
    """What inner agents spent, by branch; each includes the agents that it asked."""
    branches: dict[str, str] = {}  # by the id of a turn
    found: dict[str, list[TraceEntry]] = {}
    for line in lines:
        place = place_of(line)
        if line.get("type") == BEGAN and isinstance(line.get("branch"), str):
            branches[place] = line["branch"]
        for branch in {branches[turn] for turn in turns_in(place) if turn in branches}:
            found.setdefault(branch, []).append(line)
    return {branch: spent_in(own) for branch, own in found.items()}


def duration_of(item: dict[str, Any]) -> float:
    """Milliseconds that a turn took, from its item in a record; a killed turn ended with its last line."""
    recorded = _number(item.get("duration_ms"))
    return _elapsed(item.get("lines") or ()) if recorded is None else float(recorded)


def time_in(lines: Iterable[TraceEntry], place: str) -> float:
    """Milliseconds that an operation took so far, without the time while its turn was stopped."""
    runs: list[list[TraceEntry]] = [[]]
    for line in lines:
        if line.get("type") == "resumed":
            runs.append([])
        elif line.get("type") != DECIDED and is_inside(place_of(line), place):
            runs[-1].append(line)
    return sum(map(_elapsed, runs))


def _elapsed(lines: Iterable[TraceEntry]) -> float:
    """Milliseconds from the earliest beginning to the latest end in some lines."""
    begins: list[float] = []
    ends: list[float] = []
    for line in lines:
        at, ms = _number(line.get("timestamp")), _number(line.get("duration_ms", line.get("timing")))
        started = _number(line.get("started")) if line.get("type") in ("llm_call", "tool_execution") else None
        begins += [time for time in (at, started) if time is not None]
        ends += [time for time in (at, started + ms / 1000 if started and ms else None) if time is not None]
    return (max(ends) - min(begins)) * 1000 if begins else 0.0


def rows(handlers: Iterable[Any]) -> list[dict[str, Any]]:
    """The cost of each handler that has run, the longest first."""
    made = [
        {
            **{key: handler.by[key] for key in ("plugin", "hook", "handler")},
            "calls": handler.account.calls,
            "duration_ms": round(handler.account.seconds * 1000, 3),
            "model_calls": handler.account.spent.calls,
            "input_tokens": handler.account.spent.usage.input_tokens,
            "output_tokens": handler.account.spent.usage.output_tokens,
            "cost": handler.account.spent.cost,
        }
        for handler in {id(handler): handler for handler in handlers}.values()
        if handler.account.calls
    ]
    return sorted(made, key=lambda row: -row["duration_ms"])
