"""What is searched: a record, the step at which it shows a symptom, and the answers that all its runs share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from connectagent.agents.agent import Agent
from connectagent.data import LLMResponse, Message, TraceEntry
from connectagent.errors import ConfigError, ProviderError
from connectagent.records.blobs import blob_folder
from connectagent.records.own import why_not_own
from connectagent.records.read import count_calls, read_lazily, refuse_odd
from connectagent.records.sent import canonical
from connectagent.records.watched import WatchedAgent, watched_agents
from connectagent.replay.answers import model_answer
from connectagent.replay.network import no_network
from connectagent.replay.player import RecordEnds
from connectagent.replay.recording import Recording
from connectagent.replay.request_keys import RecordedKeys
from connectagent.replay.runs import Run, runs_of
from connectagent.session.journal import is_aside
from connectagent.session.messages import text_of
from connectagent.session.snapshot import By
from connectagent.testing.symptoms import Symptom

ANEW = ("calls", "says", "function")  # the kinds of symptoms that may be the model's own doing


MOST_CALLS = 2_000
"""How many model calls a record may have that is played again and again."""


def refuse_long(path: Path) -> None:
    """Refuse a record that is too long to be played again and again.

    Raises:
        ConfigError: it is.
    """
    if (count := count_calls(path)) > MOST_CALLS:
        megabytes = f"{path.stat().st_size / 1e6:.0f} MB"
        raise ConfigError(
            f"{path.name} has {count:,} model calls in {megabytes}: bisect, compare and report play a session dozens "
            f"of times, and take up to {MOST_CALLS:,} calls; connectagent replay plays it once"
        )


class NoModel(RecordEnds):
    """A model had to be asked, and there is none."""


class Untold(RecordEnds):
    """What would have happened cannot be told."""


class Enough(RecordEnds):
    """The symptom is there: nothing more need be asked."""


class BudgetSpent(RecordEnds):
    """No more may be spent."""


@dataclass(slots=True)
class Spent:
    """What a search has taken.

    Attributes:
        runs: how often turns were played.
        calls: how often a model was asked.
        served: how many answers came from the record.
        cost: USD of the calls whose price is known.
        unpriced: the calls whose price is not known.
    """

    runs: int = 0
    calls: int = 0
    served: int = 0
    cost: float = 0.0
    unpriced: int = 0


@dataclass(slots=True)
class Asked:
    """A recorded model call: its entry, the key of its request, and the schemas of its tools."""

    entry: TraceEntry
    key: str
    tools: list[Any]


@dataclass(slots=True)
class Place:
    """Where a record shows a symptom.

    Attributes:
        turn: the number of the turn in the record, from 0.
        entry: the entry that shows it.
        request: the model call that is asked again in each run; None where no model has a part in it.
        key: of that request.
        tried: how often it was made before it came to this.
    """

    turn: int
    entry: TraceEntry
    request: Asked | None = None
    key: str = ""
    tried: int = 0

    def __str__(self) -> str:
        return f"turn {self.turn + 1}, iteration {self.entry.get('iteration') or 0}"


@dataclass
class Case:
    """A record that shows a symptom.

    Args:
        path: the record.
        make: makes the agent, a fresh one for each run.
        symptom: what is bad.
        model: the name of the model to ask in place of the agent's own.
        live_tools: whether tools run; else they answer from the record.
        budget_usd: how much may be spent.
        progress: is called before each run, with what was taken so far.
        whole: whether all turns are played, whether or not the record shows the symptom, and no step is asked again.

    Attributes:
        answers: the recorded answers, by the key of the request, up to the step that is asked again.
        spent: what was taken so far.
        not_own: why no model is made that only the record names, or None.
        offline: why no model can be asked, or None.

    Raises:
        ConfigError: the record does not show the symptom.
    """

    path: Path
    make: Callable[[], Agent]
    symptom: Symptom | Any
    model: str | None = None
    live_tools: bool = False
    budget_usd: float | None = None
    whole: bool = False
    progress: Callable[[Spent], None] = lambda spent: None
    spent: Spent = field(default_factory=Spent)
    offline: str | None = None

    def __post_init__(self) -> None:
        refuse_long(self.path)
        self.recording = Recording(self.path)
        self.not_own = why_not_own(self.path, self.recording.head)  # now: runs have a folder of records of their own
        with refuse_odd(self.path):
            requests = self._read()
        self.place = self._find(requests)
        self.answers: dict[str, list[TraceEntry]] = {}
        self.schemas: dict[str, dict[str, Any]] = {}
        for number in sorted(requests):
            self._keep(requests[number])
        if self.place.request is not None:
            self._ask_anew(self.place)
        self._sampled: dict[tuple[str, int, int], LLMResponse | Exception] = {}
        self.guard = no_network()

    # -- the record ----------------------------------------------------------------------------

    def _read(self) -> dict[int, Asked]:
        """The model calls of the record, by the number of their line."""
        data = read_lazily(self.path)
        number = 0
        for item in data["turns"]:
            for line in item["lines"]:
                line["number"], number = number, number + 1
        self._agents = agents = watched_agents(data, blob_folder(self.path))
        requests = {asked.entry["number"]: asked for agent in agents for asked in _asked_by(agent)}
        self.entries = sorted((one for agent in agents for one in agent.entries), key=lambda one: one["number"])
        self.runs: dict[str, list[Run]] = {}
        for run in runs_of(self.entries):
            self.runs.setdefault(run_key(run.name, run.arguments), []).append(run)
        return requests

    def _find(self, requests: dict[int, Asked]) -> Place:
        """Where the symptom is shown first; of a whole session, its end."""
        if self.whole:
            return Place(len(self.recording.turns), {})
        found = self.symptom.found(self.entries)
        if found is None:
            raise ConfigError(self.symptom.why_not(self.entries))
        if self.symptom.kind == "function":
            found = self._first_shown()
        turn, at = self._turn_of(found), int(found["number"])
        if self.symptom.kind not in ANEW:
            return Place(turn, found)
        before = [number for number in requests if number <= at and _same_agent(requests[number], found)]
        return Place(turn, found, requests[max(before)] if before else None)

    @property
    def is_early(self) -> bool:
        """Whether it is looked for the symptom before a turn has ended."""
        return self.symptom.kind != "judge"

    def _first_shown(self) -> TraceEntry:
        low, high = 1, len(self.entries)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.symptom.shown_by(self.entries[:middle]) else (middle + 1, high)
        return self.entries[low - 1]

    def _turn_of(self, entry: TraceEntry) -> int:
        before = [one for one in self.entries if one["number"] <= entry["number"]]
        begun = [one for one in before if one.get("type") == "user_input" and not one.get("branch")]
        return min(max(len(begun), 1), len(self.recording.turns)) - 1

    def _keep(self, request: Asked) -> None:
        """Keep a recorded answer under its request."""
        key = request.key
        if request is self.place.request:
            self.place.key, self.place.tried = key, len(self.answers.get(key, ()))
        if request.entry.get("status") != "interrupted":
            self.answers.setdefault(key, []).append(request.entry)
        for tool in request.tools:
            function = tool.get("function") if isinstance(tool, dict) else None
            if isinstance(function, dict):
                self.schemas[str(function.get("name"))] = function

    def _ask_anew(self, place: Place) -> None:
        """Forget the recorded answer of the bad step, and those of the same request behind it: they are no evidence."""
        del self.answers[place.key][place.tried :]

    def maker_of(self, text: str) -> By:
        """Who was the first to add a text to the conversation, or to one request; {} where the record does not tell."""
        for agent in self._agents:
            lines = [*agent.history.lines, *agent.history.removed]
            made = [change for line in lines for change in line.changes if has_text(change.message, text)]
            if made:
                return min(made, key=lambda change: change.entry).by
        changes = (one for one in self.entries if (one.get("type"), one.get("of")) == ("change", "request"))
        return next((one["by"] for one in changes if one.get("by")), {})

    # -- answers -------------------------------------------------------------------------------

    def recorded(self, key: str, nth: int) -> TraceEntry | None:
        """The recorded answer when this request is made for the nth time, from 0, or None."""
        entries = self.answers.get(key, [])
        if nth < len(entries):
            return entries[nth]
        return entries[-1] if entries and key != self.place.key else None

    def sample(self, ask: Callable[[], LLMResponse], key: str, nth: int, number: int) -> LLMResponse:
        """The model's own answer of this number to a request; equal requests share their samples."""
        place = (key, nth, number)
        if place not in self._sampled:
            self._sampled[place] = self._asked(ask)
        answer = self._sampled[place]
        if isinstance(answer, Exception):
            raise answer
        return model_copy(answer)

    def _asked(self, ask: Callable[[], LLMResponse]) -> LLMResponse | Exception:
        if self.budget_usd is not None and self.spent.cost >= self.budget_usd:
            raise BudgetSpent(f"${self.spent.cost:.2f} are spent")
        self.spent.calls += 1
        try:
            with self._network():
                answer = ask()
        except ProviderError as error:
            if error.kind in ("auth", "permission", "connection"):
                raise NoModel(str(error)) from error
            return error
        except ConfigError as error:
            raise NoModel(str(error)) from error
        usage = answer.usage
        if usage is not None and usage.cost is not None:
            self.spent.cost += usage.cost
        else:
            self.spent.unpriced += 1
        return answer

    @contextmanager
    def _network(self) -> Iterator[None]:
        """Let the model be asked, while nothing else may leave this machine."""
        self.guard.__exit__(None, None, None)
        try:
            yield
        finally:
            self.guard.__enter__()

    def answer_of(self, entry: TraceEntry) -> LLMResponse:
        """A recorded answer.

        Raises:
            Exception: it was an error.
        """
        self.spent.served += 1
        return model_answer(entry)

    def run_of(self, name: str, arguments: Any, nth: int) -> Run | None:
        """What a tool came to when it was called so for the nth time, from 0, or the last; None if it never was."""
        runs = self.runs.get(run_key(name, arguments), [])
        return runs[min(nth, len(runs) - 1)] if runs else None


def run_key(name: str, arguments: Any) -> str:
    """A key that is the same for equal calls."""
    return f"{name} {canonical(arguments)}"


def has_text(message: Message | None, text: str) -> bool:
    """Whether a message has a text, or all pieces of one, in its content."""
    content = text_of(message.get("content")) if message else ""
    return all(piece.strip() in content for piece in text.split(" ... "))


def model_copy(answer: LLMResponse) -> LLMResponse:
    """An answer that handlers may change."""
    from copy import deepcopy

    return deepcopy(answer)


def _asked_by(agent: WatchedAgent) -> Iterator[Asked]:
    """The model calls of an agent of a record."""
    keys = RecordedKeys()
    for sending in agent.sendings():
        key = (RecordedKeys() if is_aside(sending.entry) else keys).of(sending)
        yield Asked(sending.entry, key, sending.known.schemas())


def _same_agent(request: Asked, entry: TraceEntry) -> bool:
    return request.entry.get("branch") == entry.get("branch")
