"""Stops an agent before it makes a call that its budget does not have.

A call is counted before it is made: each attempt, also of agents below and of handlers. Counts of turns and sessions
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
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
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

    def spend(self, usage: Any) -> None:
        """Add the usage of a model call: a `TokenUsage`, its form in a record, or None."""
        data = usage if isinstance(usage, dict) else asdict(usage) if usage is not None else {}
        self.tokens += (data.get("input_tokens") or 0) + (data.get("output_tokens") or 0)
        self.usd += data.get("cost") or 0.0


@dataclass
class Ledger:
    """The counts of one session, for the outermost agent that has the plugin and those below it."""

    agent: ref[Agent]
    used: Used
    turn: int
    runs: bool = False  # whether that agent is in a turn
    since: float = 0.0  # the monotonic time up to which its turns are in `used`
    warned: set[str] = field(default_factory=set)


class Budget:
    """The plugin: `Agent(plugins=[("budget", {"usd": 2})])`; what is None has no limit.

    Args:
        model_calls: attempts at a model.
        tool_calls: attempts at a tool.
        tokens: input and output tokens.
        usd: the price of the model calls, where prices are known.
        seconds: how long turns run; the time in which they are paused does not count.
        per: what has this budget: a `turn`, a `session`, or a `day` of all sessions of the project.

    Raises:
        ConfigError: a limit is no number from 0 up, or `per` is something else.
    """

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
    ) -> None:
        given = {"model_calls": model_calls, "tool_calls": tool_calls, "tokens": tokens, "usd": usd, "seconds": seconds}
        for option, value in given.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0):
                raise ConfigError(f"budget: {option} is a number from 0 up, not {value!r}")
        if per not in ("turn", "session", "day"):
            raise ConfigError(f"budget: per is 'turn', 'session' or 'day', not {per!r}")
        self.limits = {option: value for option, value in given.items() if value is not None}
        self.per = per
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
        """Count an attempt at a model, or end the turn before it."""
        usage = None
        if not self._take(agent, "model_calls"):
            yield  # the turn has ended, so the model is not asked
            return
        try:
            usage = (yield).usage
        except Exception as error:
            usage = getattr(error, "usage", None)  # a failed answer may have cost something
            raise
        finally:
            with self._used(agent) as used:
                used.spend(usage)

    @around_tool(trylast=True)
    def watch_tool(self, agent: Agent) -> Generator[None, Any, None]:
        """Count an attempt at a tool, or end the turn before it."""
        taken = self._take(agent, "tool_calls")
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

    def _take(self, agent: Agent, what: str) -> bool:
        """Count one call; False, and the turn ends, where the budget has none left."""
        with self._used(agent) as used:
            over = next((name for name in self.limits if self._is_over(name, used, what)), None)
            if over is None:
                setattr(used, what, getattr(used, what) + 1)
                return True
            amount = _shown(getattr(used, over))
        why = f"The budget is used up: {amount} of {_shown(self.limits[over])} {_NAMES[over]} a {self.per}."
        ledger = self._ledger(agent)
        if not ledger.runs:  # a tool that a program runs between turns
            raise ToolRejected(why)
        agent.end_turn(why, scope="turn" if ledger.agent() is agent.root else "agent", outcome="budget")
        return False

    def _is_over(self, name: str, used: Used, what: str) -> bool:
        """Whether a call would exceed a limit; what a call costs is known only after it."""
        if name.endswith("_calls"):
            return bool(name == what and getattr(used, name) + 1 > self.limits[name])
        return bool(getattr(used, name) >= self.limits[name])

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
            used = _recorded(agent, session["turn"] if self.per == "turn" else None)
            ledger = self._ledgers[session["id"]] = Ledger(ref(agent), used, session["turn"])
        if ledger.agent() is agent and ledger.turn != session["turn"]:
            ledger.turn = session["turn"]
            if self.per == "turn":
                ledger.used, ledger.warned = Used(), set()
        return ledger


def _shown(value: float) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _recorded(agent: Agent, turn: int | None) -> Used:
    """What a session, or one turn of it, used before this process: from its record."""
    used, begun = Used(), set[str]()
    if agent.record is None or not agent.record.exists():
        return used
    record = read_record(agent.record)
    if "agent" not in record:  # the disk was full when it was begun
        return used
    is_own, items = record["agent"] == agent.name, record["turns"]
    inside = ("",) if is_own else _turns_of(agent, items, last=turn is not None)
    for item in items:
        if is_own and turn not in (None, item.get("turn")):
            continue
        own = [line for line in item["lines"] if _place(line).startswith(inside)]
        for line in own:
            _add(used, line, begun)
        times = [line["timestamp"] for line in own if "timestamp" in line]
        used.seconds += max(times) - min(times) if times else 0.0
    return used


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
        used.spend(line.get("usage"))
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
