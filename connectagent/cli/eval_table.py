"""The end of `connectagent eval`: scores with intervals, what did not pass, and what changed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from connectagent.commands.failure import plain
from connectagent.errors import cut, short_path
from connectagent.output.rows import Row, many, price, tokens
from connectagent.output.terminal import Terminal
from connectagent.testing.evals.changes import Change, Compared, Signs, differing, saved_variant
from connectagent.testing.evals.sums import ALL, Scores, Taken, mean_of, sums_of
from connectagent.testing.evals.trial import Trial

MOST_LISTED = 10  # of a list, in lines
_NOTHING = "-"


def show(
    taken: Sequence[Taken], checks: Sequence[str], before: Mapping[str, Scores] | None, compared: Sequence[Compared]
) -> None:
    """Print the end of an evaluation on standard output.

    Args:
        taken: the variants.
        checks: the names of the checks.
        before: the scores of a saved evaluation, by variant; None where there is none.
        compared: what is worse and better than there, and than with the first variant.
    """
    terminal = Terminal(sys.stdout)
    rows = [*checks, ALL] if len(checks) > 1 else checks
    terminal.show([_table(taken, rows, before), *_spent(taken), *_not_passed(taken)])
    for one in compared:
        terminal.show(_compared(one, before or {}))
    terminal.show(_method(compared))


def _of(before: Mapping[str, Scores], taken: Taken) -> Scores:
    other = saved_variant(before, taken)
    return {} if other is None else before[other]


def _table(taken: Sequence[Taken], checks: Sequence[str], before: Mapping[str, Scores] | None) -> Any:
    from rich.table import Table
    from rich.text import Text

    several, table = len(taken) > 1, Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    names = ["check", *(["variant"] if several else []), "score", "95 % interval", "cases"]
    names += [] if before is None else ["saved"]
    for name in names:
        left = name in ("check", "variant")
        table.add_column(name, justify="left" if left else "right", no_wrap=not left, overflow="fold")
    scores = [one.scores for one in taken]
    for name in checks:
        for one, found in zip(taken, scores, strict=True):
            earlier = {} if before is None else _of(before, one).get(name, {})
            first = name if one is taken[0] else ""
            cells = [first, *([one.name] if several else []), *_cells(found.get(name, {}))]
            cells += [] if before is None else [_share(mean_of(earlier).score) if earlier else _NOTHING]
            table.add_row(*(Text(plain(cell)) for cell in cells))
    return table


def _cells(cases: Mapping[str, Sequence[float]]) -> list[str]:
    if not cases:
        return [_NOTHING, _NOTHING, "0"]
    mean = mean_of(cases)
    return [_share(mean.score), f"{mean.low * 100:.0f} to {_share(mean.high)}", str(mean.cases)]


def _share(score: float) -> str:
    """A share in percent; never 100 or 0 where it is not quite."""
    percent = score * 100
    near = 99 < percent < 100 or 0 < percent < 1
    return f"{min(max(percent, 0.1), 99.9):.1f} %" if near else f"{percent:.0f} %"


def _spent(taken: Sequence[Taken]) -> Iterator[Row]:
    """What each variant took."""
    yield Row(0, ())
    for one in taken:
        sums = sums_of(one.trials)
        parts = [f"{sums['passed']} of {many(sums['trials'], 'answer')} passed"]
        parts += [f"{sums['failed']} failed"] if sums["failed"] else []
        parts += [f"{sums['waiting']} waiting for a decision"] if sums["waiting"] else []
        parts += [f"{tokens(sums['tokens'])} tokens"] if sums["tokens"] else []
        parts += [_price(sums["cost"], sums["known_cost"])] if sums["trials"] else []
        judged = sums["known_checks_cost"] or sums["checks_cost"] is None
        parts += [f"judges {_price(sums['checks_cost'], sums['known_checks_cost'])}"] if judged else []
        yield Row(0, ((f"{plain(one.name)}: " * bool(one.name) + " · ".join(parts), ""),), wrap=True)


def _price(cost: float | None, known: float) -> str:
    """A cost; `?` where a price is not known."""
    return price(cost) if cost is not None else f"{price(known)}+?" if known else "?"


def _not_passed(taken: Sequence[Taken]) -> list[Row]:
    """The trials that did not pass, with the reasons of their checks; first those whose turns did not end."""
    every = [(one.name, trial) for one in taken for trial in one.trials]
    every.sort(key=lambda pair: pair[1].scores is not None)
    lines = [(name, trial, text) for name, trial in every for text in _reasons(trial)]
    rows = [Row(0, ()), Row(0, (("not passed", "bold red"),))] if lines else []
    for name, trial, text in lines[:MOST_LISTED]:
        which = f"{name}: " if name else ""
        number = f" ({trial.number})" if trial.number > 1 else ""
        rows.append(Row(2, ((plain(f"{which}{trial.case.id}{number}: {text}"), ""),), wrap=True))
    return rows + _more(len(lines))


def _reasons(trial: Trial) -> Iterator[str]:
    if trial.status == "waiting":
        yield f"waits for a decision{_see(trial)}"
    elif trial.scores is None:
        yield cut(f"{type(trial.item.error).__name__}: {trial.item.error}", 300) + _see(trial)
    for name, score in (trial.scores or {}).items():
        if not score.passed:
            value = "" if score.value == 0 else f"{_share(score.value)} "
            yield cut(f"{name}: {value}{' '.join(score.reason.split()) or 'not passed'}", 300)


def _see(trial: Trial) -> str:
    return "" if trial.record is None else f"; connectagent log show {short_path(trial.record)}"


def _compared(found: Compared, before: Mapping[str, Scores]) -> list[Row]:
    """What is worse and better on the other side: how many, by which check, and which cases."""
    worse, better = [one for one in found.changes if one.is_worse], [one for one in found.changes if one.is_better]
    words = f"{found.taken.name} {found.words}".strip()
    if before and found.other is None:
        words += f", which have no variant {found.taken.name!r} but {', '.join(map(repr, before))}"
    same = len(found.changes) - len(worse) - len(better)
    text = f"{words}: {len(worse)} worse, {len(better)} better, {same} the same"
    text += f"; {many(found.new, 'case')} not scored there" if found.new else ""
    text += f"; {many(found.gone, 'case')} of it not taken now" if found.gone else ""
    rows = [Row(0, ()), Row(0, ((plain(text), ""),), wrap=True)]
    rows += [_signs(check, signs) for check, signs in found.signs.items() if signs.differ]
    return rows + [Row(2, ((_change(one), "red"),), wrap=True) for one in worse[:MOST_LISTED]] + _more(len(worse))


def _signs(check: str, signs: Signs) -> Row:
    style = "" if signs.may_be_chance else "bold red" if signs.worse > signs.better else "bold green"
    return Row(2, ((plain(f"{check}: {signs}"), style),), wrap=True)


def _method(compared: Sequence[Compared]) -> list[Row]:
    """How the probabilities were found, where there are any."""
    count = len(differing(compared))
    text = "p: the sign test over cases" + f", corrected for {count} comparisons (Holm)" * (count > 1)
    return [Row(0, ()), Row(0, ((text, "dim"),), wrap=True)] if count else []


def _change(change: Change) -> str:
    now = "did not end" if change.after is None else _share(change.after)
    return plain(f"{change.case}: {change.check}: {_share(change.before)}, now {now}")


def _more(number: int) -> list[Row]:
    return [Row(2, ((f"and {number - MOST_LISTED} more", "dim"),))] if number > MOST_LISTED else []
