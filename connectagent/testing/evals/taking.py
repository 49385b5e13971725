"""Takes the cases of an evaluation: each as often as asked, with a score by each check."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from hashlib import sha256
from typing import Any

from connectagent.agents.batch import Batch, BatchLimits, Item
from connectagent.testing.evals.scoring import Check, scored
from connectagent.testing.evals.trial import Case, Trial


def trials(
    agent: Any,
    cases: Sequence[Case],
    checks: Sequence[Check],
    *,
    run: str,
    limits: BatchLimits,
    repeat: int = 1,
    concurrency: int = 16,
    watch: Callable[[Batch], object] = lambda batch: None,
) -> Iterator[Trial]:
    """Take each case so many times, as `agent.map()` does, and score each as soon as its turn has ended.

    Args:
        agent: whose definition answers.
        cases: the cases.
        checks: what scores the answers; they run in the threads of the map.
        run: the name under which records are the state: see `Agent.map()`.
        limits: when to begin no more; what checks spend counts too.
        repeat: how often each case is taken.
        concurrency: how many run at the same time.
        watch: gets the batch before it begins.

    Yields:
        the trials, as they end.

    Raises:
        BatchStopped: a limit was reached, after the trials that ran.
    """
    prompts = [(_key(case, number), case.prompt) for case in cases for number in range(1, repeat + 1)]
    done: dict[int, Trial] = {}

    def then(item: Item) -> float:
        case, number = divmod(item.number, repeat)
        trial = done[item.number] = Trial(cases[case], number + 1, item, batch.gate)
        return scored(trial, checks)

    batch = Batch(agent, prompts, concurrency, run, limits, {}, then)
    watch(batch)
    with closing(batch.items()) as items:
        for item in items:
            yield done.pop(item.number)


def _key(case: Case, number: int) -> str:
    """Names the session of a trial: another one where the case has another prompt now."""
    return f"{case.id}.{digest_of(case.prompt)}" + (f".{number}" if number > 1 else "")


def digest_of(text: str) -> str:
    """A few characters that tell texts apart."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
