"""Stops an agent before it makes a call that its budget does not have.

A call is counted before it is made: each attempt, also of agents below and of handlers. What it may cost is reserved
before it, and settled after it. Counts of turns and sessions
are kept in memory, and are counted again from the record when a session is resumed. Those of a day are in a file beside
the records. The options are on `Budget`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from weakref import ref

from connectagent import (
    ConfigError,
    LLMResponse,
    Pause,
    ToolRejected,
    TraceEntry,
    Waiting,
    around_llm,
    around_tool,
    around_turn,
    on_agent_closed,
)
from connectagent.records import read_record
from connectagent.settings import co_folder

if TYPE_CHECKING:
    from connectagent import Agent

_WARN = 0.8  # the part of a limit at which the trace gets an entry
_NAMES = {"model_calls": "model calls", "tool_calls": "tool calls", "tokens": "tokens", "usd": "USD", "seconds": "s"}
_ATTEMPT = re.compile(r"/(model|tool)\d+$")  # the places of attempts in a record


@dataclass
class Used:
    """What was used so far."""

    model_calls: int = 0
    tool_calls: int = 0
    tokens: int = 0
    usd: float = 0.0
    seconds: float = 0.0

    def spend(self, amount: Amount) -> None:
        """Add what a model call cost."""
        self.tokens += amount.tokens or 0
        self.usd += amount.usd or 0.0


class Amount(NamedTuple):
    """What one model call cost, or is expected to; None where that is not known."""

    tokens: int | None
    usd: float | None


NOTHING = Amount(0, 0.0)


def _amount(usage: Any) -> Amount:
    """The amount of a `TokenUsage`, its form in a record, or None."""
    data = usage if isinstance(usage, dict) else {} if usage is None else asdict(usage)
    if not data:
        return Amount(None, None)
    return Amount((data.get("input_tokens") or 0) + (data.get("output_tokens") or 0), data.get("cost"))


@dataclass
class Ledger:
    """The counts of one session, for the outermost agent that has the plugin and those below it."""

    agent: ref[Agent]
    used: Used
    turn: int
    runs: bool = False  # whether that agent is in a turn
    since: float = 0.0  # the monotonic time up to which its turns are in `used`
    warned: set[str] = field(default_factory=set)
    largest: Amount = NOTHING  # of the calls so far: what the next one is expected to cost
    lost: int = 0  # calls that a killed process left before any call had a known cost
    unknown: str | None = None  # why what was used is not known

    def learn(self, amount: Amount) -> None:
        """Remember the largest call; calls that were lost before the first one count as much as this."""
        self.largest = Amount(
            max(self.largest.tokens or 0, amount.tokens or 0), max(self.largest.usd or 0.0, amount.usd or 0.0)
        )
        if self.largest != NOTHING:
            for _ in range(self.lost):
                self.used.spend(self.largest)
            self.lost = 0


class Budget:
    """The plugin: `Agent(plugins=[("budget", {"usd": 2})])`; what is None has no limit.

    Args:
        model_calls: attempts at a model.
        tool_calls: attempts at a tool.
        tokens: input and output tokens.
        usd: the price of the model calls, where prices are known.
        seconds: how long turns run; the time in which they are paused does not count.
        per: what has this budget: a `turn`, a `session`, or a `day` of all sessions of the project.
        unpriced: what becomes of calls after one without a price (or, with `tokens`, without tokens): `refuse` ends
            the turn, `allow` goes on and says so in each turn.

    Raises:
        ConfigError: a limit is no number from 0 up, or `per` or `unpriced` is something else.
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
    ) -> None:
        given = {"model_calls": model_calls, "tool_calls": tool_calls, "tokens": tokens, "usd": usd, "seconds": seconds}
        for option, value in given.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0):
                raise ConfigError(f"budget: {option} is a number from 0 up, not {value!r}")
        if per not in ("turn", "session", "day"):
            raise ConfigError(f"budget: per is 'turn', 'session' or 'day', not {per!r}")
        self.limits = {option: value for option, value in given.items() if value is not None}
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
    def watch_model(self, agent: Agent) -> Generator[None, LLMResponse, None]:
        """Reserve what an attempt may cost, or end the turn before it; afterwards count what it did cost."""
        reserved = self._take(agent, "model_calls")
        if reserved is None:
            yield  # the turn has ended, so the model is not asked
            return
        try:
            response = yield
        except Exception as error:  # a failed answer may have cost something
            self._settle(agent, reserved, _amount(getattr(error, "usage", None)), getattr(error, "retries", None), True)
            raise
        except BaseException:  # nobody knows what it cost: what is reserved stays counted
            self._settle(agent, reserved, reserved, None)
            raise
        self._settle(agent, reserved, _amount(response.usage), response.retries)

    @around_tool(trylast=True)
    def watch_tool(self, agent: Agent) -> Generator[None, Any, None]:
        """Count an attempt at a tool, or end the turn before it."""
        taken = self._take(agent, "tool_calls") is not None
        try:
            yield
        except (Pause, Waiting):  # it begins again when a person has decided
            with self._used(agent) as used:
                used.tool_calls -= taken
            raise

    @on_agent_closed
    def forget(self, agent: Agent) -> None:
        """Forget the sessions of an agent."""
        with self._lock:
            gone = [id for id, ledger in self._ledgers.items() if ledger.agent() in (agent, None)]
            for id in gone:
                del self._ledgers[id]

    # -- the counts ----------------------------------------------------------------------------

    def _take(self, agent: Agent, what: str) -> Amount | None:
        """Count one call, and reserve what it may cost; None, and the turn ends, where the budget has not got that."""
        with self._used(agent) as used:
            ledger = self._ledger(agent)
            wanted = ledger.largest if what == "model_calls" else NOTHING
            why = self._refusal(ledger, used, what, wanted)
            if why is None:
                setattr(used, what, getattr(used, what) + 1)
                used.spend(wanted)
                return wanted
        if not ledger.runs:  # a tool that a program runs between turns
            raise ToolRejected(why)
        leads = ledger.agent()
        whole = leads is not None and leads.parent is None
        agent.end_turn(why, scope="turn" if whole else "agent", outcome="budget")
        return None

    def _refusal(self, ledger: Ledger, used: Used, what: str, wanted: Amount) -> str | None:
        """Why a call may not be made; None if it may."""
        if what == "model_calls" and ledger.unknown is not None and self.unpriced == "refuse":
            return f"The budget cannot be kept: {ledger.unknown}; unpriced='allow' goes on without this limit."
        over = next((name for name in self.limits if self._is_over(name, used, what, wanted)), None)
        if over is None:
            return None
        amount = _shown(getattr(used, over))
        return f"The budget is used up: {amount} of {_shown(self.limits[over])} {_NAMES[over]} a {self.per}."

    def _settle(self, agent: Agent, reserved: Amount, actual: Amount, retries: Any, failed: bool = False) -> None:
        """Count what a call cost in place of what was reserved, and the attempts that the SDK made before it."""
        unknown = None if failed else self._unknown(actual)
        tell = False
        with self._used(agent) as used:
            ledger = self._ledger(agent)
            used.model_calls += len(retries or ())
            used.tokens += (actual.tokens or 0) - (reserved.tokens or 0)
            used.usd += (actual.usd or 0.0) - (reserved.usd or 0.0)
            ledger.learn(actual)
            if unknown is not None:
                ledger.unknown, tell = unknown, "unknown" not in ledger.warned
                ledger.warned.add("unknown")
        if tell:
            agent.trace("budget", of="unknown", per=self.per, show=f"the budget cannot be kept: {unknown}")

    def _unknown(self, actual: Amount) -> str | None:
        """What is not known of a call, though a limit needs it."""
        if "tokens" in self.limits and actual.tokens is None:
            return "an answer came without its tokens"
        if "usd" in self.limits and actual.usd is None:
            return "an answer came whose price is not known"
        return None

    def _is_over(self, name: str, used: Used, what: str, wanted: Amount) -> bool:
        """Whether a call would exceed a limit."""
        limit = self.limits[name]
        if name.endswith("_calls"):
            return bool(name == what and getattr(used, name) + 1 > limit)
        reserved = getattr(wanted, name, 0) or 0
        return bool(getattr(used, name) >= limit or getattr(used, name) + reserved > limit * (1 + 1e-9))

    @contextlib.contextmanager
    def _used(self, agent: Agent) -> Iterator[Used]:
        """What was used so far, to be read and changed by one thread (and of a day: one process) at a time."""
        warnings: list[dict[str, Any]] = []
        with self._lock:
            ledger = self._ledger(agent)
            with _today() if self.per == "day" else contextlib.nullcontext(ledger.used) as used:
                now = time.monotonic()
                if ledger.runs:
                    used.seconds, ledger.since = used.seconds + now - ledger.since, now
                yield used
                for name, limit in self.limits.items():
                    if getattr(used, name) >= _WARN * limit and name not in ledger.warned:
                        ledger.warned.add(name)
                        warnings.append({"of": name, "used": getattr(used, name), "limit": limit, "per": self.per})
        for warning in warnings:
            used_up = f"{_shown(warning['used'])} of {_shown(warning['limit'])} {_NAMES[warning['of']]}"
            agent.trace("budget", **warning, show=f"{used_up} a {self.per} are used")

    def _ledger(self, agent: Agent) -> Ledger:
        """The counts of the session; those of a new turn begin at 0, those of a resumed one where it stopped."""
        session = agent.session
        ledger = self._ledgers.get(session["id"])
        if ledger is None or (ledger.agent() is not agent and not ledger.runs):
            ledger = Ledger(ref(agent), Used(), session["turn"])
            self._ledgers[session["id"]] = ledger
            _count_recorded(ledger, agent, session["turn"] if self.per == "turn" else None, self._unknown)
        if ledger.agent() is agent and ledger.turn != session["turn"]:
            ledger.turn = session["turn"]
            if self.per == "turn":
                ledger.used, ledger.lost = Used(), 0
            if self.per == "turn" or self.unpriced == "allow":
                ledger.warned.discard("unknown")  # each turn says it
            if self.per == "turn":
                ledger.warned.clear()
                ledger.unknown = None
        return ledger


def _shown(value: float) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _count_recorded(
    ledger: Ledger, agent: Agent, turn: int | None, unknown: Callable[[Amount], str | None]
) -> None:
    """Count what a session, or one turn of it, used before this process: from its record."""
    if agent.record is None or not agent.record.exists():
        return
    record = read_record(agent.record)
    if "agent" not in record:  # the disk was full when it was begun
        return
    is_own, items = record["agent"] == agent.name, record["turns"]
    inside = ("",) if is_own else _turns_of(agent, items, last=turn is not None)
    begun, lost, open_calls = set[str](), 0, set[str]()
    for item in items:
        if is_own and turn not in (None, item.get("turn")):
            continue
        own = [line for line in item["lines"] if _place(line).startswith(inside)]
        for line in own:
            lost += _is_lost(line, open_calls)
            _add(ledger.used, line, begun)
            if line.get("type") == "llm_call":
                amount = _amount(line.get("usage"))
                ledger.learn(amount)
                if line.get("status") == "success":
                    ledger.unknown = unknown(amount) or ledger.unknown
        times = [line["timestamp"] for line in own if "timestamp" in line]
        ledger.used.seconds += max(times) - min(times) if times else 0.0
    ledger.lost = lost + len(open_calls)
    ledger.learn(NOTHING)


def _is_lost(line: TraceEntry, open_calls: set[str]) -> bool:
    """Whether a line tells that a model call before it was lost; `open_calls`: those without an end so far."""
    place, kind = _place(line), line.get("type")
    attempt = _ATTEMPT.search(place)
    if attempt is None or attempt[1] != "model":
        return False
    if kind == "began":
        again = place in open_calls
        open_calls.add(place)
        return again
    if kind in ("llm_call", "closed"):
        open_calls.discard(place)
    return kind == "llm_call" and line.get("status") == "interrupted" and line.get("usage") is None


def _turns_of(agent: Agent, items: list[dict[str, Any]], last: bool) -> tuple[str, ...]:
    """The places of the turns of an agent that works inside of another one, or of its last turn."""
    mine = [line for item in items for line in item["lines"] if line.get("agent") == agent.name]
    turns = [f"{line['id']}/" for line in mine if line.get("type") == "began"]
    return tuple(turns[-1:] if last else turns)


def _place(line: TraceEntry) -> str:
    return str(line.get("id") or line.get("at"))


def _add(used: Used, line: TraceEntry, begun: set[str]) -> None:
    """Add a line of a record; `begun`: the attempts that count, which may turn out not to have been made."""
    place, kind = _place(line), line.get("type")
    if kind == "llm_call":
        used.spend(_amount(line.get("usage")))
        used.model_calls += len(line.get("retries") or ())
    attempt = _ATTEMPT.search(place)
    if attempt is None:
        return
    ended = line["value"] if isinstance(line.get("value"), dict) else line
    what, change = f"{attempt[1]}_calls", 0
    if kind == "began":
        begun.add(place)
        change = 1
    elif place in begun and (kind in ("closed", "left") or ended.get("status") == "skipped"):
        begun.discard(place)  # it was not made after all, or paused
        change = -1
    setattr(used, what, getattr(used, what) + change)


@contextlib.contextmanager
def _today() -> Iterator[Used]:
    """What all sessions of the project used today; the file is locked meanwhile, and replaced in one step.

    Raises:
        ConfigError: the file cannot be used. Nobody knows then what was spent, so nothing more is.
    """
    from filelock import FileLock  # few budgets are of a day

    folder = co_folder()
    file, day = folder / "budget.json", time.strftime("%Y-%m-%d")
    with _usable(file):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / "budget.lock").acquire(poll_interval=0.01)
    with lock:
        with _usable(file):
            found = json.loads(file.read_text("utf-8")) if file.exists() else {}
            # Nobody used less than none.
            used = Used(**{name: max(0, value) for name, value in found.get(day, {}).items()})
        yield used
        with _usable(file):
            new = file.with_name(f"{file.name}.{os.getpid()}.new")
            new.write_text(json.dumps({day: asdict(used)}), "utf-8")
            new.replace(file)


@contextlib.contextmanager
def _usable(file: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"budget: the counts of the day cannot be kept in {file}: {error}; make it writable or, if it is damaged, "
            "remove it, or take per='session'"
        ) from error
