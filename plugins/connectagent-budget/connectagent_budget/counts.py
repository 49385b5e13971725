"""What was used so far: in memory, from the record of a session, or in the file of a day."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

from connectagent import ConfigError, TokenUsage, TraceEntry
from connectagent.records import read_record
from connectagent.settings import co_folder
from connectagent_budget.estimate import FREE, NOTHING, Amount, full_name

if TYPE_CHECKING:
    from connectagent import Agent

_ATTEMPT = re.compile(r"/(model|tool)\d+$")  # the places of attempts in a record


class Attempt(NamedTuple):
    """An attempt at a model or a tool.

    Args:
        kind: `model_calls` or `tool_calls`: what it is counted as.
        agents: the names of the agent that makes it and of those around it.
        name: of the tool, or of the model.
    """

    kind: str
    agents: tuple[str, ...]
    name: str


@dataclass
class Used:
    """What was used so far, and by which tools and agents; an agent's count includes those that it asks.

    Attributes:
        unsettled: calls of which nothing is counted in `tokens` and `usd`: nobody knew before them what they may cost,
            and they have not ended, or were lost. Each is taken for the largest call that is known.
    """

    model_calls: int = 0
    tool_calls: int = 0
    tokens: int = 0
    usd: float = 0.0
    seconds: float = 0.0
    unsettled: int = 0
    tools: dict[str, int] = field(default_factory=dict)
    agents: dict[str, Used] = field(default_factory=dict)

    def parts(self, agents: Iterable[str]) -> list[Used]:
        """These counts and those of some agents, each once."""
        return [self, *(self.agents.setdefault(name, Used()) for name in dict.fromkeys(agents))]

    def count(self, attempt: Attempt, change: int = 1) -> None:
        """Count an attempt, or take it back."""
        for part in self.parts(attempt.agents):
            setattr(part, attempt.kind, getattr(part, attempt.kind) + change)
            if attempt.kind == "tool_calls":
                part.tools[attempt.name] = part.tools.get(attempt.name, 0) + change

    def reserve(self, attempt: Attempt, amount: Amount) -> None:
        """Count an attempt and what it may cost."""
        self.count(attempt)
        self.spend(amount, attempt.agents)
        if attempt.kind == "model_calls" and amount == NOTHING:
            self.leave_unsettled(attempt.agents)

    def settle(self, attempt: Attempt, reserved: Amount, actual: Amount, retries: int) -> None:
        """Count what a call has cost in place of what was reserved for it, and the attempts that an SDK made before."""
        self.spend(actual, attempt.agents)
        for part in self.parts(attempt.agents):
            part.tokens -= reserved.tokens or 0
            part.usd -= reserved.usd or 0.0
            part.unsettled -= reserved == NOTHING
            part.model_calls += retries

    def spend(self, amount: Amount, agents: Iterable[str]) -> None:
        """Add what a model call has cost, as far as that is known."""
        for part in self.parts(agents):
            part.tokens += amount.tokens or 0
            part.usd += amount.usd or 0.0

    def leave_unsettled(self, agents: Iterable[str]) -> None:
        """Count a call of which nobody knows what it costs."""
        for part in self.parts(agents):
            part.unsettled += 1


def amount_of(usage: TokenUsage | Mapping[str, Any] | None, model: str) -> Amount:
    """What a usage, or its form in a record, amounts to."""
    if usage is None:
        return NOTHING if model == FREE else Amount(None, None)
    data = asdict(usage) if isinstance(usage, TokenUsage) else usage
    if not data:
        return Amount(None, None)
    return Amount((data.get("input_tokens") or 0) + (data.get("output_tokens") or 0), data.get("cost"))


@dataclass
class Ledger:
    """The counts of one session, for the outermost agent that has the plugin and those below it.

    Attributes:
        runs: whether that agent is in a turn.
        since: the monotonic time up to which its turns are in `used`.
        warned: what the trace has told.
        largest: the largest call so far of each model: what its next one is expected to cost at least.
        unknown: why what was used is not known: of an agent that has limits, and by None of all agents.
    """

    agent: ref[Agent]
    used: Used
    turn: int
    runs: bool = False
    since: float = 0.0
    warned: set[object] = field(default_factory=set)
    largest: dict[str, Amount] = field(default_factory=dict)
    unknown: dict[str | None, str] = field(default_factory=dict)

    @property
    def largest_of_all(self) -> Amount:
        """The largest call so far of any model."""
        return NOTHING.at_least(*self.largest.values())

    def learn(self, model: str, amount: Amount) -> None:
        """Remember what a call has cost, as far as that is known."""
        if amount.tokens is not None or amount.usd is not None:
            name = full_name(model)
            self.largest[name] = NOTHING.at_least(amount, self.largest.get(name, NOTHING))


Unknown = Callable[[Amount, tuple[str, ...]], dict[str | None, str]]
"""Whose limits a call of some agents makes unknown, and why."""


# -- a session's record ------------------------------------------------------------------------


def count_recorded(ledger: Ledger, agent: Agent, turn: int | None, unknown: Unknown) -> None:
    """Count what a session, or one turn of it, used before this process: from its record."""
    if agent.record is None or not agent.record.exists():
        return
    record = read_record(agent.record)
    if "agent" not in record:  # the disk was full when it was begun
        return
    is_own, items = record["agent"] == agent.name, record["turns"]
    inside = ("",) if is_own else _turns_of(agent, items, last=turn is not None)
    reader = _Reader(ledger, record["agent"], unknown)
    for item in items:
        reader.learn_agents(item["lines"])
        if is_own and turn not in (None, item.get("turn")):
            continue
        own = [line for line in item["lines"] if _place(line).startswith(inside)]
        for line in own:
            reader.read(line)
        times = [line["timestamp"] for line in own if "timestamp" in line]
        ledger.used.seconds += max(times) - min(times) if times else 0.0
    reader.end()


class _Reader:
    """Counts the lines of a record.

    Args:
        ledger: where they are counted.
        agent: the name of the record's agent.
        unknown: what a call makes unknown.

    Attributes:
        inner: the agents of inner turns, by the turns' places.
        begun: the attempts that count so far, by place; some turn out not to have been made.
        open: the attempts at models that have no end so far, by place.
    """

    def __init__(self, ledger: Ledger, agent: str, unknown: Unknown) -> None:
        self.ledger = ledger
        self.agent = agent
        self.unknown = unknown
        self.inner: dict[str, str] = {}
        self.begun: dict[str, Attempt] = {}
        self.open: dict[str, Attempt] = {}

    def learn_agents(self, lines: Iterable[TraceEntry]) -> None:
        """Note which turns are of which agents."""
        for line in lines:
            if line.get("type") == "began" and isinstance(line.get("agent"), str):
                self.inner[str(line.get("id"))] = line["agent"]

    def read(self, line: TraceEntry) -> None:
        """Count a line."""
        place = _place(line)
        kind = line.get("type")
        if kind == "llm_call":
            self._model_call(line, place)
        found = _ATTEMPT.search(place)
        if found is None:
            return
        if kind == "began":
            name = str(line.get("tool_name") or "")
            attempt = Attempt(f"{found[1]}_calls", self._agents(place), name)
            if found[1] == "model":
                if place in self.open:  # the one before was lost
                    self.ledger.used.leave_unsettled(attempt.agents)
                self.open[place] = attempt
            self.begun[place] = attempt
            self.ledger.used.count(attempt)
            return
        if kind in ("llm_call", "closed"):
            self.open.pop(place, None)
        if place in self.begun and _was_not_made(line):
            self.ledger.used.count(self.begun.pop(place), -1)

    def end(self) -> None:
        """Count the calls that have no end: they were lost."""
        for attempt in self.open.values():
            self.ledger.used.leave_unsettled(attempt.agents)

    def _model_call(self, line: TraceEntry, place: str) -> None:
        used = self.ledger.used
        agents = self._agents(place)
        model = str(line.get("model"))
        amount = amount_of(line.get("usage"), model)
        used.spend(amount, agents)
        for part in used.parts(agents):
            part.model_calls += len(line.get("retries") or ())
        if line.get("status") == "interrupted" and line.get("usage") is None:
            self.ledger.used.leave_unsettled(agents)
        if line.get("status") == "success":
            self.ledger.unknown.update(self.unknown(amount, agents))
        self.ledger.learn(model, amount)

    def _agents(self, place: str) -> tuple[str, ...]:
        """The agents around a place, the nearest first."""
        steps = place.split("/")
        around = ("/".join(steps[:end]) for end, step in enumerate(steps, 1) if step.startswith("turn:"))
        inner = [self.inner[turn] for turn in around if turn in self.inner]
        return (*reversed(inner), self.agent)


def _was_not_made(line: TraceEntry) -> bool:
    """Whether a line says that an attempt was not made after all, or paused."""
    if line.get("type") in ("closed", "left"):
        return True
    ended = line["value"] if isinstance(line.get("value"), dict) else line
    is_refused = ended.get("status") == "rejected" and "started" not in ended
    return is_refused or ended.get("status") == "skipped"


def _turns_of(agent: Agent, items: list[dict[str, Any]], last: bool) -> tuple[str, ...]:
    """The places of the turns of an agent that works inside of another one, or of its last turn."""
    mine = [line for item in items for line in item["lines"] if line.get("agent") == agent.name]
    turns = [f"{line['id']}/" for line in mine if line.get("type") == "began"]
    return tuple(turns[-1:] if last else turns)


def _place(line: TraceEntry) -> str:
    return str(line.get("id") or line.get("at"))


# -- the file of a day -------------------------------------------------------------------------


@contextlib.contextmanager
def today() -> Iterator[Used]:
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
            used = _read_used(found.get(day, {}))
        yield used
        with _usable(file):
            new = file.with_name(f"{file.name}.{os.getpid()}.new")
            new.write_text(json.dumps({day: asdict(used)}), "utf-8")
            new.replace(file)


def _read_used(data: dict[str, Any]) -> Used:
    """Counts from the file; nobody used less than none."""
    sums = {name: max(0, value) for name, value in data.items() if name not in ("tools", "agents")}
    tools = {name: max(0, value) for name, value in data.get("tools", {}).items()}
    agents = {name: _read_used(value) for name, value in data.get("agents", {}).items()}
    return Used(**sums, tools=tools, agents=agents)


@contextlib.contextmanager
def _usable(file: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"budget: the counts of the day cannot be kept in {file}: {error}; make it writable or, if it is damaged, "
            "remove it, or take per='session'"
        ) from error
