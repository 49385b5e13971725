"""Why did it do that? The plugins, handlers or texts without which a recorded failure does not happen."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from connectagent.agents.agent import Agent
from connectagent.agents.resume import is_record
from connectagent.errors import ConfigError, did_you_mean
from connectagent.replay.sandbox import sandboxed
from connectagent.testing.bisection.case import Case, Spent
from connectagent.testing.bisection.finding import Cause, Finding
from connectagent.testing.bisection.search import HANDLERS, PLUGINS, PROMPT, Bisection
from connectagent.testing.bisection.versions import Search, Versions, in_a_process
from connectagent.testing.symptoms import symptom

__all__ = ["Cause", "Finding", "bisect"]


def bisect(
    record: str | os.PathLike[str],
    make: Callable[[], Agent],
    bad: str,
    *,
    by: Collection[str] = (PLUGINS, PROMPT),
    samples: int = 10,
    keep: Iterable[str] = (),
    model: str | None = None,
    budget_usd: float | None = None,
    live_tools: bool = False,
    progress: Callable[[Spent], None] = lambda spent: None,
) -> Finding:
    """Find what makes a recorded failure happen: plugins or handlers, and the text of the prompt.

    The turns are played again with some plugins switched off. Recorded answers serve while a request is the same as
    then; from the first difference on the model is asked. The step that is bad is always asked again.

    Args:
        record: the record's path, or what else `resume` takes.
        make: makes the agent, a fresh one for each run.
        bad: what is bad, as `calls refund`; see `connectagent.testing.symptoms.symptom`.
        by: what is varied: `plugins`, `handlers`, `prompt`. With the first two, the handlers of the plugins that are
            found are searched.
        samples: how often each side of a comparison is run.
        keep: plugins that stay on.
        model: a model to ask in place of the agent's own.
        budget_usd: how much the model calls may cost.
        live_tools: whether tools run; else they answer from the record.
        progress: is called before each run, with `runs`, `calls`, `served` and `cost` so far.

    Raises:
        ConfigError: the record does not show it, or an argument cannot be used.
    """
    known = (PLUGINS, HANDLERS, PROMPT)
    for one in by:
        if one not in known:
            raise ConfigError(f"by has {one!r}.{did_you_mean(one, known)} It takes {', '.join(known)}")
    if samples < 1:
        raise ConfigError(f"samples is a whole number from 1, not {samples}")
    case = Case(is_record(record), make, symptom(bad), model, live_tools, budget_usd, progress=progress)
    with sandboxed():
        finding = Bisection(case, [one for one in by if PLUGINS not in by or one != HANDLERS], samples, keep).run()
        if {PLUGINS, HANDLERS} <= set(by) and finding.cause is not None and not finding.stopped:
            guilty = {*finding.needed, *finding.cause.names}
            inside = Bisection(case, [HANDLERS], samples, {*finding.units, *keep} - guilty).run()
            finding.handlers, finding.stopped = inside.needed, inside.stopped
        return finding


def rate_of(
    record: Path, make: Callable[[], Agent], bad: str, first: int, count: int, **options: Any
) -> dict[str, Any]:
    """How often the failure happens with everything on: `bad`, `of`, and `why` where that cannot be told.

    Args:
        record, make, bad, options: as for `bisect`.
        first: the number of the first sample.
        count: how many samples.
    """
    case = Case(record, make, symptom(bad), **options)
    with sandboxed():
        return Bisection(case, (), count).rate(first, count)


def bisect_versions(record: Path, bad: str, versions: str, command: Sequence[str], samples: int) -> Finding:
    """Find the first version of a plugin with which a recorded failure happens.

    Args:
        record, bad, samples: as for `bisect`.
        versions: `NAME=1.0..2.0`, or `./file.py@REVISION..REVISION`.
        command: runs one version; it is given `--rate FIRST,COUNT`.

    Raises:
        ConfigError: the record does not show it, or there are no such versions.
    """
    case = Case(record, lambda: Agent("unused"), symptom(bad))
    finding = Finding(record.name, bad, case.place)
    with TemporaryDirectory(prefix="connectagent-bisect-") as folder:
        return Search(Versions(versions, Path(folder)), in_a_process(command), samples, finding).run()
