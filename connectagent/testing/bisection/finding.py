"""What a bisection found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from connectagent.errors import cut
from connectagent.output.rows import many
from connectagent.output.text import actor, visible
from connectagent.testing.bisection.case import Place, Spent
from connectagent.testing.bisection.chance import Rate, samples_needed
from connectagent.testing.signs import shown_p

CONFIRMED, CHANCE, PROMPT, GONE, UNKNOWN = "confirmed", "chance", "prompt", "gone", "cannot tell"


@dataclass(slots=True)
class Cause:
    """Something without which the symptom is gone.

    Attributes:
        names: the plugins, handlers or texts.
        with_, without: how often the symptom was there with them and without them, in fresh samples.
        p: how probable the difference is by chance; 0 where no model had a part in it.
    """

    names: list[str]
    with_: Rate
    without: Rate
    p: float

    @property
    def rates(self) -> str:
        if self.p == 0:
            return "always with it, never without it: no model has a part in it"
        return f"with it {self.with_}, without it {self.without} (fresh samples), {shown_p(self.p)}"


@dataclass(slots=True)
class Finding:
    """What a bisection found.

    Attributes:
        record: the record's name.
        symptom: what was looked for.
        place: where the record shows it.
        units: the plugins or handlers that were searched.
        silent: those of them that left no trace in the record before.
        places: by plugin or handler: its hooks and where its code is.
        verdict: `confirmed`; `prompt`: it happens without any plugin too; `chance`: what was found is not confirmed;
            `gone`: it does not happen again; `cannot tell`.
        why: more about the verdict.
        needed: a smallest part of the units with which it happens, all others off.
        cause: a smallest part of the units that is enough to turn off, with how often it happened.
        handlers: the handlers of the cause that are needed, where they were searched too.
        text: the smallest text of the request that is enough to leave out, or None.
        line: the line in which it stands.
        maker: who added that text first.
        message: the number of its message, from 0.
        untold: units of which nothing can be told, each with the reason.
        suspects: without a model: the units that change what the model is asked.
        versions: what was found of the versions of one plugin.
        offline: why no model could be asked, or None.
        stopped: `budget` or `interrupted`, or "".
        spent: what it took.
    """

    record: str
    symptom: str
    place: Place
    units: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    places: dict[str, str] = field(default_factory=dict)
    verdict: str = UNKNOWN
    why: str = ""
    needed: list[str] = field(default_factory=list)
    cause: Cause | None = None
    with_: Rate = field(default_factory=Rate)
    without: Rate = field(default_factory=Rate)
    handlers: list[str] = field(default_factory=list)
    text: Cause | None = None
    line: str = ""
    maker: dict[str, Any] = field(default_factory=dict)
    message: int | None = None
    untold: dict[str, str] = field(default_factory=dict)
    suspects: list[str] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    offline: str | None = None
    stopped: str = ""
    spent: Spent = field(default_factory=Spent)

    @property
    def is_confirmed(self) -> bool:
        """Whether there is a cause that fresh samples confirm."""
        return self.verdict == CONFIRMED

    def __str__(self) -> str:
        return "\n".join([self._head(), *self._causes(), *self._verdict(), *self._notes(), self._end()])

    def _head(self) -> str:
        silent = f", {len(self.silent)} left no trace" if self.silent else ""
        searched = f"; {many(len(self.units), 'plugin')}{silent}" if self.units else ""
        return f"{self.record}: {visible(self.symptom, 80)} in {self.place}{searched}"

    def _causes(self) -> list[str]:
        lines = []
        if self.needed and self.cause is not None:
            shown = [f"{name} ({place})" if (place := self.places.get(name)) else name for name in self.needed]
            lines.append(f"needed:    {' and '.join(shown)}")
        if self.cause is not None:
            lines.append(f"turn off:  {' and '.join(self.cause.names):<12} {self.cause.rates}")
        if self.handlers:
            lines.append(f"handlers:  {' and '.join(self.handlers)}")
        if self.text is not None:
            by = f", added by {actor(self.maker)}" if self.maker else ""
            inside = "" if self.line == self.text.names[0] else f" in {_quoted(self.line)}"
            lines.append(f"the text:  {_quoted(self.text.names[0])}{inside}, message {self.message}{by}")
            if self.cause is None:
                lines.append(f"leave out: {self.text.rates}")
        return [*lines, *self.versions]

    def _verdict(self) -> list[str]:
        rates = f"with all plugins {self.with_}, without any {self.without}"
        if self.verdict == CONFIRMED:
            return []
        if self.verdict == PROMPT:
            return [f"it happens without any plugin too: {rates}; look at the prompt"]
        if self.verdict == GONE:
            return [f"it does not happen again: {self.with_} runs show it"]
        if self.verdict == CHANCE:
            needed = samples_needed(self.with_, self.without)
            more = f"; --samples {needed} would do if the difference is real" if needed else ""
            return [f"not confirmed, it may be chance: {rates}{more}"]
        return [f"cannot tell: {visible(self.why, 300)}"] if self.why else []

    def _notes(self) -> list[str]:
        lines = [f"cannot tell of {name}: {visible(why, 200)}" for name, why in self.untold.items()]
        if self.offline is not None:
            lines.append(f"no model was asked: {visible(self.offline, 200)}")
        if self.suspects:
            lines.append(f"these change what the model is asked: {', '.join(self.suspects)}")
        if self.stopped:
            lines.append("the budget is spent; this is known so far" if self.stopped == "budget" else "interrupted")
        return lines

    def _end(self) -> str:
        spent = self.spent
        price = f"${spent.cost:.2f}" + (" and ?" if spent.unpriced and spent.cost else "")
        price = "$?" if spent.unpriced and not spent.cost else price
        counts = f"{many(spent.runs, 'run')}, {many(spent.calls, 'model call')}"
        return f"{counts}, {many(spent.served, 'answer')} from the record, {price}"


def _quoted(text: str) -> str:
    return f'"{cut(visible(text, 10**6), 120)}"'
