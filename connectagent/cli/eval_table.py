"""The end of `connectagent eval`: scores with intervals, what did not pass, and what changed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from connectagent.cli.failure import plain
from connectagent.errors import cut, short_path
from connectagent.output.rows import Row, many, price, tokens
from connectagent.output.terminal import Terminal
from connectagent.testing.evals.report import Taken
from connectagent.testing.evals.sums import ALL, Change, Means, compared, mean_of, sums_of
from connectagent.testing.evals.trial import Trial

MOST_LISTED = 10  # of a list, in lines
_NOTHING = "-"


def show(taken: Sequence[Taken], checks: Sequence[str], before: dict[str, Means] | None) -> None:
    """Print the end of an evaluation on standard output.

    Args:
        taken: the variants.
        checks: the names of the checks.
        before: the mean scores of a saved evaluation, by variant; None where there is none.
    """
    terminal = Terminal(sys.stdout)
    rows = [*checks, ALL] if len(checks) > 1 else checks
    terminal.show([_table(taken, rows, before), *_spent(taken), *_not_passed(taken)])
    for one in taken:
        earlier = None if before is None else _of(before, one)
        words = "since the saved results"
        if before and not earlier:
            words += f", which have no variant {one.name!r} but {', '.join(map(repr, before))}"
        terminal.show(_since(one, checks, earlier, words) if earlier is not None else [])
        if one is not taken[0]:
            terminal.show(_since(one, checks, taken[0].means, f"against {taken[0].name}"))


def _of(before: dict[str, Means], taken: Taken) -> Means:
    """The saved scores of a variant; those of the only one, where no variant has the name."""
    only = next(iter(before.values())) if len(before) == 1 else {}
    return before.get(taken.name, only)


def _table(taken: Sequence[Taken], checks: Sequence[str], before: dict[str, Means] | None) -> Any:
    from rich.table import Table
    from rich.text import Text

    several, table = len(taken) > 1, Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    names = ["check", *(["variant"] if several else []), "score", "95 % interval", "cases"]
    names += [] if before is None else ["saved"]
    for name in names:
        left = name in ("check", "variant")
        table.add_column(name, justify="left" if left else "right", no_wrap=not left, overflow="fold")
    means = [one.means for one in taken]
    for name in checks:
        for one, found in zip(taken, means, strict=True):
            earlier = {} if before is None else _of(before, one).get(name, {})
            first = name if one is taken[0] else ""
            cells = [first, *([one.name] if several else []), *_cells(found.get(name, {}))]
            cells += [] if before is None else [_share(mean_of(earlier).score) if earlier else _NOTHING]
            table.add_row(*(Text(plain(cell)) for cell in cells))
    return table


def _cells(cases: dict[str, float]) -> list[str]:
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


def _since(taken: Taken, checks: Sequence[str], before: Means, words: str) -> list[Row]:
    """What is worse and better than before; `words` says than what."""
    ids = [case.id for case, _ in taken.by_case()]
    found = compared(before, taken.means, ids, checks)
    worse, same = [one for one in found if one.is_worse], [one for one in found if one.before == one.after]
    text = f"{len(worse)} worse, {sum(one.is_better for one in found)} better, {len(same)} the same"
    new, gone = len({*ids} - {one.case for one in found}), len({id for name in before for id in before[name]} - {*ids})
    text += f"; {many(new, 'case')} not scored there" if new else ""
    text += f"; {many(gone, 'case')} of it not taken now" if gone else ""
    name = f"{taken.name} " if taken.name else ""
    rows = [Row(0, ()), Row(0, ((plain(f"{name}{words}: {text}"), ""),), wrap=True)]
    rows += [Row(2, ((_change(one), "red"),), wrap=True) for one in worse[:MOST_LISTED]] + _more(len(worse))
    return rows


def _change(change: Change) -> str:
    now = "did not end" if change.after is None else _share(change.after)
    return plain(f"{change.case}: {change.check}: {_share(change.before)}, now {now}")


def _more(number: int) -> list[Row]:
    return [Row(2, ((f"and {number - MOST_LISTED} more", "dim"),))] if number > MOST_LISTED else []
