"""Agents in agents that wait, are decided about, and die: nothing is done twice, and nothing is lost.

A cell is a tree of `tree_cases`, what its agents do besides (`tree_features`), what is decided, whether the process
that waits goes on or another one does, and where processes die by SIGKILL: nowhere (`plain`), at a model call
(`model`), at the beginning or end of a tool (`tool`), before, inside or after a write to a record (`line`), or once
more while the killed turn goes on (`twice`).

Without CONNECTAGENT_MATRIX every tree runs with every decision and is killed at one point, each feature runs in one
of the trees, and one in ten pairs of features in one. CONNECTAGENT_MATRIX=5 runs all cells, each killed at
5 points; CONNECTAGENT_MATRIX=all kills each at every point.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from tree_cases import CASES, DECISIONS
from tree_features import FEATURES, tree_of
from tree_judge import Forks, decisions, labels, problems_of
from tree_processes import DIRECT

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="what is a record is read from /proc")

GIVEN = os.environ.get("CONNECTAGENT_MATRIX", "")
POINTS = {"": 1, "all": None}[GIVEN] if not GIVEN.isdecimal() else int(GIVEN)  # of each cell; None: all
TREES, PAIRS = 1, 0.1  # with each feature, and what part of the pairs of features, where not all cells run
MODES = ("same", "other")
# By the first word of a point's label.
GROUPS = {"line": "line", "model": "model", "ask": "model", "begin": "tool", "end": "tool", "inside": "tool"}
CELLS = [(case, kind) for case in CASES for kind in (*DECISIONS, "mixed") if kind != "mixed" or CASES[case].waits > 1]
READ = {"approve": "did", "reject": "rejected: no", "answer": "by hand"}


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    made = Forks()
    yield made
    made.close()


# -- the cells -------------------------------------------------------------------------------------------


def points_of(told: dict[str, Any]) -> list[tuple[int, int, str]]:
    """Where processes of a chain may die: which process, at which point, and its group.

    Where two writes follow each other, the moments after the first and before the second are the same.
    """
    found, passed = [], Counter[int]()
    following = [*told["points"][1:], [-1, ""]]
    for (process, label), after in zip(told["points"], following, strict=True):
        passed[process] += 1
        if label != "line after" or after != [process, "line before"]:
            found.append((process, passed[process], GROUPS[label.split()[0]]))
    return found


def killed_chains(cell: str, told: dict[str, Any], points: int | None) -> list[tuple[str, tuple[int, ...]]]:
    """The chains to run in which processes die: group, and where each process dies."""
    chance, chains = random.Random(cell), []
    for process, point, group in points_of(told):
        before = (0,) * process
        chains.append((group, (*before, point)))
        if point % 2:
            chains.append(("twice", (*before, point, chance.randint(1, 40))))
    number = len(chains) if points is None else min(points, len(chains))
    return chance.sample(chains, number)  # in this order what fails is found soon


def failures(
    forks: Forks, case: str, kind: str, mode: str, plan: dict[str, Any], points: int | None = POINTS
) -> dict[str, list[str]]:
    """The groups of a cell, with what is wrong in each; those that were not tried are missing."""
    cell = f"{case}/{kind}/{mode}"
    plain = forks.chain(case, kind, mode)
    found: dict[str, list[str]] = {f"{cell}/plain": problems_of(case, plain, plan)}
    if "error" in plain["end"]:  # there is no run in which to die
        return found
    for group, kills in killed_chains(cell, plain, points):
        if found.setdefault(f"{cell}/{group}", []):
            continue  # it fails, which is all that is to be known
        told = forks.chain(case, kind, mode, *kills)
        assert told["killed"] or tree_of(case).case.at_once, f"{cell}: no process died at {kills}"
        problems = problems_of(case, told, plan)
        found[f"{cell}/{group}"] += [f"killed at {list(kills)}: {'; '.join(problems)}"] if problems else []
    return found


@pytest.mark.parametrize("case", CASES)
def test_the_plan_of_each_tree_is_what_its_agents_are_to_do(case: str, forks: Forks) -> None:
    for kind in DECISIONS:
        told = forks.chain(case, kind, DIRECT)
        end, ran, waits = told["end"], labels(told, "ran"), decisions(told)
        assert end.get("outcome") in ("answered", "ended") and not end["problems"], end
        assert set(ran.values()) == {1} and len(waits) == CASES[case].waits and set(waits.values()) == {kind}
        wanted = Counter(CASES[case].effects)
        wanted.subtract(label.split()[1] for label in waits if kind != "approve")
        assert Counter(label.split()[1] for label in ran) == +wanted
        assert all(f"log:{name}" in end["state"] for name in +wanted)
        reads = dict(label.split(": ", 1) for label in labels(told, "read"))
        assert all(reads[label].startswith(READ[kind]) for label in waits)
        assert Counter(label for _, label in told["points"])["line after"] > 10, "no write to a record was seen"


@pytest.mark.parametrize(("case", "kind"), CELLS, ids=["-".join(cell) for cell in CELLS])
def test_nothing_is_done_twice_or_lost_however_a_tree_waits_and_dies(case: str, kind: str, forks: Forks) -> None:
    plan, found = forks.chain(case, kind, DIRECT), dict[str, list[str]]()
    for mode in MODES:
        found |= failures(forks, case, kind, mode, plan)
    assert not [f"{cell}: {wrong[0]}" for cell, wrong in found.items() if wrong]


def failures_of(cells: list[str], forks: Forks) -> list[str]:
    """What is wrong with trees with features: in each way, or each in one way and killed once."""
    found: dict[str, list[str]] = {}
    for cell in cells:
        chance = random.Random(cell)
        kinds, modes = (DECISIONS, MODES) if GIVEN else ([chance.choice(DECISIONS)], [chance.choice(MODES)])
        for kind in kinds:
            plan = forks.chain(cell, kind, DIRECT)
            if "error" in plan["end"] or plan["end"]["problems"]:
                found[f"{cell}/{kind}/plan"] = [str(plan["end"])]
                continue
            for mode in modes:
                found |= failures(forks, cell, kind, mode, plan, POINTS if GIVEN else 1)
    return [f"{cell}: {wrong[0]}" for cell, wrong in found.items() if wrong]


@pytest.mark.parametrize("feature", FEATURES)
def test_so_it_is_with_everything_that_handlers_and_tools_do(feature: str, forks: Forks) -> None:
    trees = [case for case in CASES if FEATURES[feature].at_once or not CASES[case].at_once]
    if not GIVEN:
        trees = random.Random(feature).sample(trees, TREES)
    assert not failures_of([f"{case}+{feature}" for case in trees], forks)


SMALL = ("asked", "handoff", "sequential_middle", "loop", "two_in_a_round", "body")  # trees for pairs of features


@pytest.mark.parametrize("feature", FEATURES)
def test_so_it_is_with_each_pair_of_them(feature: str, forks: Forks) -> None:
    pairs = [pair for pair in combinations(FEATURES, 2) if pair[0] == feature]
    pairs = [pair for pair in pairs if GIVEN or random.Random(f"{pair} by default").random() < PAIRS]
    cells = []
    for pair in pairs:
        trees = [case for case in SMALL if all(FEATURES[one].at_once for one in pair) or not CASES[case].at_once]
        trees = trees if GIVEN else [random.Random(str(pair)).choice(trees)]
        cells += [f"{case}+{'+'.join(pair)}" for case in trees]
    assert not failures_of(cells, forks)
