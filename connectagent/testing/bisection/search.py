"""The search for what makes a recorded failure happen."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from connectagent.errors import short_path
from connectagent.hooks.handler import Handler
from connectagent.testing.bisection import finding as found
from connectagent.testing.bisection.case import BudgetSpent, Case, NoModel
from connectagent.testing.bisection.chance import ALPHA, Judge, Rate, by_chance, halved
from connectagent.testing.bisection.finding import Cause, Finding
from connectagent.testing.bisection.prompt import Piece, joined, line_around, lines_of, whole_texts, without, words_of
from connectagent.testing.bisection.trial import Arm, Outcome, Verdict, made, outcome_of, unit_of
from connectagent.testing.ddmin import smallest

PLUGINS, HANDLERS, PROMPT = "plugins", "handlers", "prompt"
_TEXTS = 20  # how many texts are left out one by one at most, the newest first
_FRESH = 1_000  # samples from this number on confirm what was found with others


class Bisection:
    """One search.

    Args:
        case: what is searched.
        by: what is varied: `plugins` or `handlers`, and `prompt`.
        samples: how often an arm is run, where a model has a part in it.
        keep: plugins that stay on.
    """

    def __init__(self, case: Case, by: Collection[str], samples: int = 10, keep: Iterable[str] = ()) -> None:
        self.case, self.by, self.samples, self.keep = case, by, samples, set(keep)
        self.by_handlers = HANDLERS in by
        self.finding = Finding(case.path.name, case.symptom.text, case.place, spent=case.spent)
        self._seen: dict[tuple[Arm, int], Outcome] = {}

    def run(self) -> Finding:
        """Search until something is found, the budget is spent, or Ctrl-C is pressed."""
        try:
            with self.case.guard:
                try:
                    self._search()
                except NoModel as error:
                    self.case.offline = self.finding.offline = str(error)
                    self._seen.clear()
                    self._search()
        except BudgetSpent:
            self.finding.stopped = "budget"
        except KeyboardInterrupt:
            self.finding.stopped = "interrupted"
        return self.finding

    def rate(self, first: int, count: int) -> dict[str, Any]:
        """How often it happens with everything on."""
        everything = self._arm(())
        with self.case.guard:
            try:
                rate = self._rate(everything, first, count)
            except NoModel as error:
                return {"bad": 0, "of": 0, "why": str(error)}
        rate = Rate(rate.bad * count, count) if rate.of == 1 else rate
        return {"bad": rate.bad, "of": rate.of, "why": self._why(everything)}

    def _search(self) -> None:
        self._name_units()
        everything = self._arm(())
        self.finding.with_ = self._rate(everything)
        if not self.finding.with_.of:
            self.finding.why = self._why(everything)
            return
        if self.finding.with_.bad == 0:
            self.finding.verdict = found.GONE
            return
        if self.finding.units and {PLUGINS, HANDLERS} & set(self.by):
            self._search_units()
        else:
            self.finding.verdict = found.PROMPT
        if PROMPT in self.by and self.finding.verdict in (found.CONFIRMED, found.PROMPT):
            self._search_prompt()

    def _name_units(self) -> None:
        """Find what can be switched off, first what left a trace in the record."""
        agent = made(self.case, Arm())
        handlers = [one for part in (agent, *agent.below) for one in part.hooks.loaded if not one.builtin]
        units: dict[str, list[Handler]] = {}
        for handler in handlers:
            if handler.plugin not in self.keep:
                units.setdefault(unit_of(handler, self.by_handlers), []).append(handler)
        until = [one for one in self.case.entries if one["number"] <= self.case.place.entry["number"]]
        traced = {str((one.get("by") or {}).get("plugin")) for one in until}
        silent = [name for name, own in units.items() if own[0].plugin not in traced]
        self.finding.silent = silent
        self.finding.units = [*(name for name in units if name not in silent), *silent]
        self.finding.places = {name: _place(own, self.by_handlers) for name, own in units.items()}

    # -- looking -------------------------------------------------------------------------------

    def _look(self, arm: Arm, number: int) -> Outcome:
        if self._is_sure(arm):
            return self._seen[arm, 0]
        if (arm, number) not in self._seen:
            self._seen[arm, number] = outcome_of(self.case, arm, number)
            self._seen.setdefault((arm, 0), self._seen[arm, number])
        return self._seen[arm, number]

    def _is_sure(self, arm: Arm) -> bool:
        """Whether a further run would be the same as the first, as no model's own answer had a part in that."""
        return (arm, 0) in self._seen and not self._seen[arm, 0].sampled

    def _rate(self, arm: Arm, first: int = 0, count: int | None = None) -> Rate:
        """How often an arm is bad; of 0 where that cannot be told."""
        rate = Rate()
        for number in range(first, first + (count or self.samples)):
            outcome = self._look(arm, number)
            if outcome.verdict is not Verdict.UNKNOWN:
                rate = Rate(rate.bad + (outcome.verdict is Verdict.BAD), rate.of + 1)
            elif not outcome.sampled:
                return Rate()
        return rate

    def _why(self, arm: Arm) -> str:
        """Why it cannot be told what an arm does."""
        return next((one.why for (seen, _), one in self._seen.items() if seen == arm and one.why), "")

    def _is_bad(self, arm: Arm, often: Rate, seldom: Rate) -> bool | None:
        """Whether an arm is bad, by as few runs as possible; None where that cannot be told."""

        def look(number: int) -> bool | None:
            verdict = self._look(arm, number).verdict
            return None if verdict is Verdict.UNKNOWN else verdict is Verdict.BAD

        return Judge(often, seldom, 3 * self.samples).is_bad(look, lambda: self._is_sure(arm))

    def _confirmed(self, names: list[str], arm: Arm, more: Arm, first: int = _FRESH) -> Cause | None:
        """A cause, if fresh samples say so too.

        Args:
            names: what it is.
            arm: without it.
            more: with it.
            first: the number of the first sample with it; 0 takes those again that nothing was chosen by.
        """
        if self._is_sure(arm) and self._is_sure(more):
            return Cause(names, Rate(1, 1), Rate(0, 1), 0.0)
        for count in (self.samples, 2 * self.samples):
            with_, less = self._rate(more, first, count), self._rate(arm, _FRESH, count)
            if with_.of and less.of and (p := by_chance(with_, less)) < ALPHA / 2:
                return Cause(names, with_, less, p)
        self.finding.with_, self.finding.without = with_, less
        return None

    # -- plugins and handlers ------------------------------------------------------------------

    def _arm(self, off: Iterable[str]) -> Arm:
        return Arm(frozenset(off), self.by_handlers)

    def _search_units(self) -> None:
        finding, units = self.finding, self.finding.units
        nothing = self._arm(units)
        finding.without = self._rate(nothing)
        if not finding.without.of:
            self._search_one_by_one(self._why(nothing))
            return
        if not self._differs(nothing):
            is_same = finding.without.bad / finding.without.of >= 0.5 * finding.with_.bad / finding.with_.of
            finding.verdict = found.PROMPT if is_same else found.CHANCE
            return
        often, seldom = finding.with_, finding.without
        off = smallest(units, lambda some: self._is_bad(self._arm(some), often, seldom) is False)
        rest: Callable[[list[str]], Arm] = lambda on: self._arm(one for one in units if one not in on)  # noqa: E731
        needed = smallest(units, lambda some: self._is_bad(rest(some), often, seldom) is True)
        finding.cause = self._confirmed(off, self._arm(off), self._arm(()))
        if finding.cause is not None and self._confirmed(needed, nothing, rest(needed)) is not None:
            finding.needed, finding.verdict = needed, found.CONFIRMED
        else:
            finding.cause, finding.verdict = None, found.CHANCE

    def _differs(self, nothing: Arm) -> bool:
        """Whether it happens more often with all plugins than without any; what is not clear is looked at again."""
        finding = self.finding
        for count in (self.samples, 2 * self.samples):
            finding.with_, finding.without = self._rate(self._arm(()), 0, count), self._rate(nothing, 0, count)
            p = by_chance(finding.with_, finding.without)
            if p < ALPHA or (self._is_sure(nothing) and self._is_sure(self._arm(()))):
                return finding.with_.bad > finding.without.bad
            if p > 0.2:
                break
        return False

    def _search_one_by_one(self, why: str) -> None:
        """Switch off each alone, where it cannot be told what happens without all of them."""
        finding, seldom = self.finding, Rate(0, self.finding.with_.of)
        for name in finding.units:
            arm = self._arm([name])
            is_bad = self._is_bad(arm, finding.with_, seldom)
            if is_bad is None:
                finding.untold[name] = self._why(arm)
            elif not is_bad and (cause := self._confirmed([name], arm, self._arm(()))) is not None:
                finding.cause, finding.verdict, finding.untold = cause, found.CONFIRMED, {}
                return
        finding.why = why
        if self.case.offline is not None:
            finding.suspects, finding.untold = list(finding.untold), {}

    # -- the prompt ----------------------------------------------------------------------------

    def _search_prompt(self) -> None:
        """Find the smallest text of the last request without which it does not happen, all else whole."""
        runs = [one for (arm, _), one in self._seen.items() if arm == self._arm(())]
        run = next((one for one in runs if one.verdict is Verdict.BAD and one.request is not None), None)
        if run is None or run.request is None:
            return
        self._messages, self._key = run.request, run.key
        often, seldom = self.finding.with_, Rate(0, self.finding.with_.of)
        careful: Callable[[list[Piece]], bool] = lambda some: self._is_bad(self._left_out(some), often, seldom) is False  # noqa: E731
        texts = whole_texts(self._messages)
        if not self._seems_good(texts):  # without any text it may do anything
            texts = next(([one] for one in texts[:_TEXTS] if careful([one])), [])
        for is_good, search in ((self._seems_good, halved), (careful, smallest)) if texts else ():
            pieces = self._narrowed(texts, is_good, search)
            if not is_good(pieces):
                continue
            text = joined(pieces, self._messages)
            cause = self._confirmed([text], self._left_out(pieces), self._arm(()), first=0)
            if cause is not None:
                self._take_text(cause, pieces)
                return

    def _take_text(self, cause: Cause, pieces: list[Piece]) -> None:
        finding = self.finding
        finding.text, finding.message, finding.verdict = cause, pieces[0].message, found.CONFIRMED
        finding.line, finding.maker = line_around(pieces, self._messages), self.case.maker_of(cause.names[0])

    def _narrowed(
        self, texts: list[Piece], is_good: Callable[[list[Piece]], bool], search: Callable[..., list[Piece]]
    ) -> list[Piece]:
        pieces = search(texts, is_good)
        for split in (lines_of, words_of):
            pieces = search(split(pieces, self._messages), is_good) if pieces else []
        return pieces

    def _seems_good(self, pieces: list[Piece]) -> bool:
        """One look."""
        return self._look(self._left_out(pieces), 0).verdict is Verdict.GOOD

    def _left_out(self, pieces: list[Piece]) -> Arm:
        out = tuple(pieces)
        return Arm(by_handlers=self.by_handlers, edit=_Edit(out), key=self._key)


class _Edit(tuple[Piece, ...]):
    """Leaves pieces out; equal ones are the same edit."""

    def __call__(self, messages: list[Any]) -> list[Any]:
        return without(messages, list(self))


def _place(handlers: list[Handler], by_handlers: bool) -> str:
    """The hooks of handlers, and where the first is."""
    hooks = ", ".join(dict.fromkeys(handler.hook for handler in handlers))
    by = handlers[0].by
    where = f"{short_path(by['file'])}:{by['line']}" if by["file"] != "?" else ""
    return where if by_handlers else f"{hooks}, {where}" if where else hooks
