"""One run of a recorded session with some handlers switched off: recorded answers first, then the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from connectagent.agents.agent import Agent
from connectagent.data import LLMResponse, Message
from connectagent.errors import ConnectAgentError
from connectagent.hooks.handler import Handler
from connectagent.replay.handlers import made_with
from connectagent.replay.live import LivePlaying, ask_model
from connectagent.replay.recording import RecordedTurn
from connectagent.replay.request_keys import LiveKeys
from connectagent.replay.runs import Run
from connectagent.session.snapshot import clone
from connectagent.testing.bisection.case import BudgetSpent, Case, Enough, NoModel, Untold

Edit = Callable[[list[Message]], list[Message]]
"""Makes other messages of those of the request that is asked again."""


class Verdict(Enum):
    """What a run shows."""

    BAD = "bad"
    GOOD = "good"
    UNKNOWN = "cannot tell"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run came to.

    Attributes:
        verdict: whether it shows the symptom.
        why: why that cannot be told, or "".
        sampled: whether a model's own answer had a part in it, so that another run may come to something else.
        request: the messages that the model was asked last, or None.
        key: of that request.
        cost: USD of all answers, recorded ones too; None where a price is not known.
    """

    verdict: Verdict
    why: str = ""
    sampled: bool = False
    request: list[Message] | None = None
    key: str = ""
    cost: float | None = 0.0


def unit_of(handler: Handler, by_handlers: bool) -> str:
    """The name of what is switched off as a whole: a plugin, or one of its handlers."""
    if not by_handlers:
        return handler.plugin
    return f"{handler.plugin}: {handler.by['handler']} ({handler.hook})"


@dataclass(frozen=True, slots=True)
class Arm:
    """What a run changes.

    Attributes:
        off: the units that are switched off.
        by_handlers: whether units are handlers.
        edit: makes other messages of the request with this key.
        key: of that request.
        make: makes the agent, in place of the case.
        model: the model to ask, for which no answer is recorded.
    """

    off: frozenset[str] = frozenset()
    by_handlers: bool = False
    edit: Edit | None = None
    key: str = ""
    make: Callable[[], Agent] | None = None
    model: str | None = None

    def takes(self, handler: Handler) -> bool:
        """Whether an agent gets a handler."""
        return handler.builtin or unit_of(handler, self.by_handlers) not in self.off


def made(case: Case, arm: Arm) -> Agent:
    """A fresh agent, without what is switched off.

    Raises:
        Exception: it cannot be made so.
    """
    return made_with(arm.make or case.make, arm.takes)


def outcome_of(case: Case, arm: Arm, sample: int) -> Outcome:
    """Run a case once.

    Args:
        case: the case.
        arm: what the run changes.
        sample: the number of the run; with the same number equal requests get the same answers.

    Raises:
        NoModel, BudgetSpent: the model cannot be asked.
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    case.progress(case.spent)
    case.spent.runs += 1
    try:
        agent = made(case, arm)
    except (ConnectAgentError, ImportError, AttributeError, TypeError, ValueError, KeyError) as error:
        return Outcome(Verdict.UNKNOWN, f"the agent cannot be made: {type(error).__name__}: {error}")
    return Trial(case, agent, arm, sample).run()


class Trial(LivePlaying):
    """One run.

    Args:
        case, arm, sample: see `outcome_of`.
        agent: the agent, which is changed for good.
    """

    def __init__(self, case: Case, agent: Agent, arm: Arm, sample: int) -> None:
        self.case, self.arm, self.sample = case, arm, sample
        self.asked: Counter[str] = Counter()
        self.ran: Counter[tuple[str, str]] = Counter()
        self.sampled, self.turn = False, 0
        self.stopped: BaseException | None = None
        self.request: list[Message] | None = None
        self.key, self._keys = "", LiveKeys()
        self.cost: float | None = 0.0
        super().__init__(case.recording, agent, case.live_tools, case.schemas)

    def run(self) -> Outcome:
        """Play the turns up to the one that shows the symptom."""
        self.begin_session()
        for number, turn in enumerate(self.recording.turns[: self.case.place.turn + 1]):
            self.turn = number
            self.before(turn)
            self.begin(turn)
            _, error = self.outcome(turn, lambda: self.input(turn))  # noqa: B023
            if isinstance(error, Untold | BudgetSpent | NoModel) or _is_new(error, turn):
                self.stop(error)
            if self.stopped is not None:
                break
        return self._verdict()

    def _verdict(self) -> Outcome:
        if isinstance(self.stopped, BudgetSpent | NoModel):
            raise self.stopped
        shown, why = Verdict.GOOD, ""
        if self.case.symptom.shown_by(self.entries):
            shown = Verdict.BAD
        elif self.stopped is not None:
            shown, why = Verdict.UNKNOWN, _text(self.stopped)
        return Outcome(shown, why, self.sampled, self.request, self.key, self.cost)

    def stop(self, error: Any) -> Any:
        """Remember what stopped the run, in case that a handler swallows it."""
        self.stopped = self.stopped or error
        return error

    # -- answers -------------------------------------------------------------------------------

    def answer(self, own: Any, messages: list[Message], tools: Any, output: type[Any] | None) -> LLMResponse:
        """The recorded answer to a request, else the model's own.

        Raises:
            RecordEnds: the run stops here.
            Exception: the answer is an error.
        """
        case = self.case
        key = whole = self._key(own, messages, tools, output)
        if self.arm.edit is not None and key == self.arm.key:
            messages = self.arm.edit(messages)
            key = self._key(own, messages, tools, output)
        nth = self.asked[key]
        self.asked[key] += 1
        if (entry := case.recorded(key, nth)) is not None:
            self._count(entry.get("usage"))
            return case.answer_of(entry)
        if case.is_early and (case.symptom.shown_by(self.entries) or self._is_past()):
            raise Enough
        self.request, self.key = clone(messages), whole
        if case.offline is not None:
            return self._answer_offline(key, nth)
        self.sampled = True

        def asked() -> LLMResponse:
            return ask_model(self.model(own), messages, tools, output)

        answer = case.sample(asked, key, nth, self.sample)
        self._count(answer.usage)
        return answer

    def _count(self, usage: Any) -> None:
        """Count the cost of an answer: a `TokenUsage`, or a record's."""
        cost = usage.get("cost") if isinstance(usage, dict) else getattr(usage, "cost", None)
        self.cost = None if cost is None or self.cost is None else self.cost + cost

    def _key(self, own: Any, messages: list[Message], tools: Any, output: type[Any] | None) -> str:
        form = None if output is None else {"schema": output.model_json_schema()}
        key = self._keys.of(messages, tools or [], getattr(own, "options", None), form)
        return key if self.arm.model is None else f"{key} {self.arm.model}"

    def _is_past(self) -> bool:
        """Whether the step is over in which handlers, without a model, made it bad then."""
        place, session = self.case.place, self.agent.current_session
        if place.request is not None or place.entry.get("branch") or session is None or self.turn < place.turn:
            return False
        return int(session.get("iteration") or 0) > int(place.entry.get("iteration") or 0)

    def _answer_offline(self, key: str, nth: int) -> LLMResponse:
        """The recorded answer of the bad step, if that is asked the same; else what a model would say is not known."""
        place = self.case.place
        if key == place.key and nth == place.tried and place.request is not None:
            return self.case.answer_of(place.request.entry)
        raise self.stop(Untold(f"the model would be asked something else, and {self.case.offline}"))

    def model(self, own: Any) -> Any:
        """The model to ask.

        Raises:
            NoModel: there is none.
        """
        named = self.arm.model or self.case.model
        if named is None and not self.is_only_named(own):
            return own
        if named is None and (why := self.case.not_own) is not None:
            raise self.stop(NoModel(f"name a model; only the record names {own.model!r}: {why}"))
        try:
            return self.create_model(named or own.model)
        except ConnectAgentError as error:
            raise self.stop(NoModel(str(error))) from error

    def find(self, name: str, arguments: str, given: Any) -> tuple[Run | None, str]:
        """What a tool came to when it was called so."""
        nth = self.ran[name, arguments]
        self.ran[name, arguments] += 1
        run = self.case.run_of(name, given, nth)
        if run is None:
            return None, "it was not called so then"
        by = (run.outcome.get("by") or {}).get("plugin")
        if run.outcome.get("original") and (by is None or by in self.arm.off):
            why = f"a handler replaced the result of {name}, and the record does not have what it replaced"
            raise self.stop(Untold(why))
        return replace(run, used=False), ""


def _is_new(error: BaseException | None, turn: RecordedTurn) -> bool:
    """Whether an error ends a turn that did not end with such a one then: what is behind it cannot be told."""
    return isinstance(error, Exception) and not str(turn.end.get("error") or "").startswith(type(error).__name__)


def _text(error: BaseException) -> str:
    return str(error) if isinstance(error, Untold) else f"the turn fails with {type(error).__name__}: {error}"

