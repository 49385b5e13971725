"""kill -9 at any moment, often twice in a row: random trees of agents go on as if nothing had happened."""

from __future__ import annotations

import os
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tree_cases import DECISIONS
from tree_features import FEATURES
from tree_judge import Forks, problems_of
from tree_processes import DIRECT

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="what is a record is read from /proc")

KILLS = int(os.environ.get("TREE_KILLS", "30"))  # set it for a longer run
BESIDE = [name for name in FEATURES if FEATURES[name].at_once]


def killed_and_resumed(number: int, forks: Forks) -> tuple[str, Counter[str], list[str]]:
    """Kill a random tree at random moments, mostly twice in a row; what was seen of it, and what is wrong."""
    chance = random.Random(number)  # the tree and the moments; the machine makes something else of these each time
    cell = "+".join([f"random:{number}", *sorted(chance.sample(BESIDE, chance.randint(0, 2)), key=BESIDE.index)])
    kind, mode = chance.choice(DECISIONS), chance.choice(("same", "other"))
    plan = forks.chain(cell, kind, DIRECT)
    assert "error" not in plan["end"] and not plan["end"]["problems"], f"{cell}/{kind}: {plan['end']}"
    before = [0] * chance.choice((0, 0, 1, 2) if mode == "other" else (0,))
    kills = [*before, *(chance.uniform(0.002, plan["seconds"]) for _ in range(chance.choice((1, 2, 2, 3))))]
    told = forks.chain(cell, kind, mode, *kills)
    seen = Counter(kills=len(told["killed"]), trees=1)
    deaths = [label for process, label in told["points"] if process in told["killed"]]
    seen["tools ended"] = sum(label.startswith("end ") for label in deaths)
    seen["in doubt"] = sum(what == "doubt" for _, what, _ in told["ledger"])
    return f"{cell}/{kind}/{mode} killed at {kills}", seen, problems_of(cell, told, plan)


def test_whatever_moment_a_tree_is_killed_at_it_goes_on_and_no_tool_runs_twice() -> None:
    seen, wrong, numbers = Counter[str](), list[str](), iter(range(10 * KILLS))
    beside = [Forks(), Forks()]

    def work(forks: Forks) -> None:
        while seen["kills"] < KILLS:
            told, new, problems = killed_and_resumed(next(numbers), forks)
            seen.update(new)
            wrong.extend([f"{told}: {'; '.join(problems)}"] if problems else [])

    try:
        with ThreadPoolExecutor(len(beside)) as pool:
            list(pool.map(work, beside))
    finally:
        for forks in beside:
            forks.close()
    print(f"{dict(seen)}, wrong: {len(wrong)}")
    assert not wrong, "\n".join(wrong)
    assert seen["tools ended"] > KILLS / 4


@pytest.mark.parametrize("share", [0.2, 0.4, 0.6, 0.8])
def test_handlers_are_asked_about_a_call_inside_a_tool_whatever_goes_on_beside_it(share: float) -> None:
    """Lines of agents that worked beside a call that waited do not prove that handlers inside it have run."""
    cell = "random:709+session+execute_in_tool"
    forks = Forks()
    try:
        plan = forks.chain(cell, "approve", DIRECT)
        told = forks.chain(cell, "approve", "same", share * plan["seconds"])
        assert problems_of(cell, told, plan) == []
    finally:
        forks.close()
