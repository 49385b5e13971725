"""Agents in agents that wait, are decided about, and die: nothing is done twice, and nothing is lost.

A cell is a tree of `tree_cases`, what is decided, whether the process that waits goes on or another one does, and where
processes die by SIGKILL: nowhere (`plain`), at a model call (`model`), at the beginning or end of a tool (`tool`),
before, inside or after a write to a record (`line`), or once more while the killed turn goes on (`twice`).

CONNECTAGENT_MATRIX=all tries every point, which takes half an hour. Without it every plain cell runs, and a few points
of each tree, decision and mode.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tree_processes
from tree_cases import CASES, DECISIONS, TOOLS
from tree_processes import DIRECT

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="what is a record is read from /proc")

EVERY_POINT = os.environ.get("CONNECTAGENT_MATRIX") == "all"
SAMPLE = 3  # points of each tree, decision and mode
GROUPS = {"line": "line", "model": "model", "begin": "tool", "end": "tool"}  # by the first word of a point's label
CELLS = [(case, kind) for case in CASES for kind in (*DECISIONS, "mixed") if kind != "mixed" or CASES[case].waits > 1]
READ = {"approve": "did", "reject": "rejected: no", "answer": "by hand"}


class Forks:
    """The process that forks those of the cases."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self.process = subprocess.Popen(
            [sys.executable, tree_processes.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # agents tell there that a record cannot be written
            env=environment,
            text=True,
        )

    def chain(self, case: str, kind: str, mode: str, *kills: int) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps([case, kind, mode, kills]) + "\n")
        self.process.stdin.flush()
        told: dict[str, Any] = json.loads(self.process.stdout.readline())
        return told

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    made = Forks()
    yield made
    made.close()


# -- what a chain must have done -------------------------------------------------------------------------


def problems_of(case: str, told: dict[str, Any], plan: dict[str, Any]) -> list[str]:
    """What is wrong with a chain, compared with a run in which guards decided by themselves and nothing died."""
    end, ran, wanted = told["end"], _labels(told, "ran"), _labels(plan, "ran")
    doubts = set(_labels(told, "doubt"))
    found = [f"ran twice: {label}" for label, runs in ran.items() if runs > 1]
    found += [f"ran without need: {label}" for label in ran.keys() - wanted.keys()]
    found += _about_decisions(told, _decisions(plan))
    found += [f"in doubt without a death in it: {label}" for label in sorted(doubts - _open_in_deaths(case, told))]
    read = {label.split(":")[0] for label in _labels(told, "read")}
    found += [f"in doubt after its result was read: {label}" for label in sorted(doubts & read)]
    if "error" in end:
        return [end["error"].splitlines()[0], *found]
    found += [f"did not run: {label}" for label in wanted.keys() - ran.keys() - doubts]
    sides = ([read for read in _labels(side, "read") if read.split(":")[0] not in doubts] for side in (told, plan))
    reads, planned = map(set, sides)
    found += [f"a model read {read!r}" for read in sorted(reads - planned)]
    found += [f"no model read {read!r}" for read in sorted(planned - reads)]
    found += [f"the conversation is not valid: {problem}" for problem in end["problems"]]
    for key in ("result", "outcome", "state"):
        is_, should_be = _without(end[key], doubts), _without(plan["end"][key], doubts)
        if is_ != should_be:
            found.append(f"another {key}: {_difference(is_, should_be)}")
    return found


def _labels(told: dict[str, Any], what: str) -> Counter[str]:
    return Counter(label for _, noted, label in told["ledger"] if noted == what)


def _decisions(told: dict[str, Any]) -> dict[str, str]:
    return {label: what for _, what, label in told["ledger"] if what in DECISIONS}


def _about_decisions(told: dict[str, Any], waits: dict[str, str]) -> list[str]:
    """Whether each call that waits was asked about once, and ran only if just it was approved."""
    found, decided, carried_out = [], dict[str, int](), set[str]()
    for process, what, label in told["ledger"]:
        if what == "ran" and label in waits and waits[label] != "approve":
            found.append(f"ran although it was not approved: {label}")
        if what == "ran" and label in waits and label not in decided:
            found.append(f"ran before it was decided: {label}")
        if what in DECISIONS:
            # One that died with a decision in its hand may not have written it down.
            if label in carried_out or decided.get(label, -1) not in (-1, *told["killed"]):
                found.append(f"asked again: {label}")
            decided[label] = process
        if what in ("ran", "read"):
            carried_out.add(label.split(": ")[0])
    if "error" not in told["end"] and decided.keys() != waits.keys():
        found.append(f"asked about {sorted(decided)}, not {sorted(waits)}")
    return found


def _open_in_deaths(case: str, told: dict[str, Any]) -> set[str]:
    """The calls that may have taken effect when a process died: no other step began since their tool did."""
    found: set[str] = set()
    for died in told["killed"]:
        points = [label for process, label in told["points"] if process == died]
        steps = [point for point in points if not point.startswith("line")]
        for n, step in enumerate(steps):
            label = step.removeprefix("begin ")
            if step != label and (CASES[case].at_once or steps[n + 1 :] in ([], [f"end {label}"])):
                found.add(label)
        trailing = points[max((n + 1 for n, point in enumerate(points) if point in steps), default=0) :]
        if "line after" in trailing:  # it may have been written that a tool begins
            found |= _labels(told, "doubt").keys() - _labels(told, "ran").keys()
    return {label for label in found if label.split()[0] in TOOLS}  # neither an agent nor a hand-off is in doubt


def _without(value: Any, doubts: set[str]) -> Any:
    """A result or state without what came of the calls in doubt."""
    if isinstance(value, dict):
        kept = {key: _without(item, doubts) for key, item in value.items() if not (doubts and key == "count")}
        return {key: item for key, item in kept.items() if not (doubts and item == [])}
    if isinstance(value, list):
        return [item for item in value if item not in doubts]
    if not isinstance(value, str):
        return value
    for label in doubts:
        value = value.replace(f"did {label}", "in doubt")
    return re.sub(r"(rejected: )?in doubt: [^|()]*?(?= \||\))", "in doubt", value)


def _difference(is_: Any, should_be: Any) -> str:
    if isinstance(is_, dict) and isinstance(should_be, dict):
        keys = [key for key in {**should_be, **is_} if is_.get(key) != should_be.get(key)]
        is_, should_be = ({key: side.get(key) for key in keys} for side in (is_, should_be))
    return f"{str(is_)[:300]} in place of {str(should_be)[:300]}"


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


def killed_chains(cell: str, told: dict[str, Any]) -> list[tuple[str, tuple[int, ...]]]:
    """The chains to run in which processes die: group, and where each process dies."""
    chance, chains = random.Random(cell), []
    for process, point, group in points_of(told):
        before = (0,) * process
        chains.append((group, (*before, point)))
        if point % 2:
            chains.append(("twice", (*before, point, chance.randint(1, 40))))
    return chance.sample(chains, len(chains) if EVERY_POINT else min(SAMPLE, len(chains)))  # what fails is found soon


def failures(forks: Forks, case: str, kind: str, mode: str, plan: dict[str, Any]) -> dict[str, list[str]]:
    """The groups of a cell, with what is wrong in each; those that were not tried are missing."""
    cell = f"{case}/{kind}/{mode}"
    plain = forks.chain(case, kind, mode)
    found: dict[str, list[str]] = {"plain": problems_of(case, plain, plan)}
    if "error" in plain["end"]:  # there is no run in which to die
        return dict.fromkeys(("plain", "twice", *GROUPS.values()), found["plain"])
    for group, kills in killed_chains(cell, plain):
        if found.setdefault(group, []):
            continue  # it fails, which is all that is to be known
        told = forks.chain(case, kind, mode, *kills)
        assert told["killed"] or CASES[case].at_once, f"{cell}: no process died at {kills}"
        problems = problems_of(case, told, plan)
        found[group] += [f"killed at {list(kills)}: {'; '.join(problems)}"] if problems else []
    return found


@pytest.mark.parametrize("case", CASES)
def test_the_plan_of_each_tree_is_what_its_agents_are_to_do(case: str, forks: Forks) -> None:
    for kind in DECISIONS:
        told = forks.chain(case, kind, DIRECT)
        end, ran, waits = told["end"], _labels(told, "ran"), _decisions(told)
        assert end.get("outcome") in ("answered", "ended") and not end["problems"], end
        assert set(ran.values()) == {1} and len(waits) == CASES[case].waits and set(waits.values()) == {kind}
        wanted = Counter(CASES[case].effects)
        wanted.subtract(label.split()[1] for label in waits if kind != "approve")
        assert Counter(label.split()[1] for label in ran) == +wanted
        assert all(f"log:{name}" in end["state"] for name in +wanted)
        reads = dict(label.split(": ", 1) for label in _labels(told, "read"))
        assert all(reads[label].startswith(READ[kind]) for label in waits)
        assert Counter(label for _, label in told["points"])["line after"] > 10, "no write to a record was seen"


@pytest.mark.parametrize(("case", "kind"), CELLS, ids=["-".join(cell) for cell in CELLS])
def test_nothing_is_done_twice_or_lost_however_a_tree_waits_and_dies(case: str, kind: str, forks: Forks) -> None:
    plan = forks.chain(case, kind, DIRECT)
    found = {
        f"{case}/{kind}/{mode}/{group}": wrong
        for mode in ("same", "other")
        for group, wrong in failures(forks, case, kind, mode, plan).items()
    }
    assert not [f"{cell}: {wrong[0]}" for cell, wrong in found.items() if wrong]
