"""Judges what became of a tree of `tree_cases` whose processes died: what was done twice, lost, or is another one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from typing import Any

import tree_processes
from tree_cases import DECISIONS, PRICE, TOOLS, inner
from tree_features import tree_of


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

    def chain(self, case: str, kind: str, mode: str, *kills: int | float) -> dict[str, Any]:
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


# -- what a chain must have done -------------------------------------------------------------------------


def problems_of(cell: str, told: dict[str, Any], plan: dict[str, Any]) -> list[str]:
    """What is wrong with a chain, compared with a run in which guards decided by themselves and nothing died."""
    end, ran, wanted = told["end"], labels(told, "ran"), labels(plan, "ran")
    doubts, masked = set(labels(told, "doubt")), set(labels(told, "masked"))
    found = [f"ran twice: {label}" for label, runs in ran.items() if runs > 1]
    found += [f"ran without need: {label}" for label in ran.keys() - wanted.keys()]
    found += [f"ran, but is told not to have run: {label}" for label in masked & ran.keys()]
    found += _about_decisions(told, decisions(plan))
    found += [f"in doubt without a death in it: {label}" for label in sorted(doubts - _open_in_deaths(cell, told))]
    read = {label.split(":")[0] for label in labels(told, "read")}
    found += [f"not run after its result was read: {label}" for label in sorted((doubts | masked) & read)]
    if masked and told["points"][-1][0] == 0:
        found.append(f"masked in the process that knows the value: {sorted(masked)}")
    if "error" in end:
        return [end["error"].splitlines()[0], *found]
    lost = {label for one in doubts | masked for label in (one, inner(one))}
    found += [f"did not run: {label}" for label in wanted.keys() - ran.keys() - lost]
    sides = ([read for read in labels(side, "read") if read.split(":")[0] not in lost] for side in (told, plan))
    reads, planned = map(set, sides)
    found += [f"a model read {read!r}" for read in sorted(reads - planned)]
    found += [f"no model read {read!r}" for read in sorted(planned - reads)]
    found += end["problems"] + _about_sums(cell, told) + _about_hooks(told, plan, lost)
    ends = [end, plan["end"]]
    if cell.startswith("random:") and decisions(plan):  # a call that waits no longer runs before those beside it:
        ends = [{**one, "state": {**one["state"], "count": None}} for one in ends]  # a key that both set is the later's
    for key in ("result", "outcome", "state", "conversations"):
        is_, should_be = (_without(one[key], lost) for one in ends)
        if key == "state":
            should_be = _unasked(is_, should_be, lost)
        if is_ != should_be:
            found.append(f"another {key}: {_difference(is_, should_be)}")
    return found


def _about_sums(cell: str, told: dict[str, Any]) -> list[str]:
    """Whether each answer of a model is counted once; one that a process had when it died may be lost."""
    (tokens, cost), answers = told["end"]["spent"], sum(labels(told, "answered").values())
    counted, price = tokens / (PRICE.input_tokens + PRICE.output_tokens), PRICE.cost or 0
    lost = len(told["killed"]) * (8 if tree_of(cell).case.at_once else 1)  # at the same time
    costs = [counted * price, *([None] if lost else [])]
    if not answers - lost <= counted <= answers or cost not in costs:
        return [f"{answers} answers were received, {counted} counted, for {cost}"]
    return []


def _about_hooks(told: dict[str, Any], plan: dict[str, Any], lost: set[str]) -> list[str]:
    """Whether each hook fired as often as in the plan; where a process died, once more at most."""
    fired, planned = labels(told, "hook"), labels(plan, "hook")
    most = {hook: planned[hook] + len(told["killed"]) for hook in fired}
    found = [f"fired {fired[hook]} times: {hook}" for hook in fired if fired[hook] > most[hook]]
    missing = [] if lost else planned.keys() - fired.keys()
    return found + [f"did not fire: {hook}" for hook in sorted(missing)]


def labels(told: dict[str, Any], what: str) -> Counter[str]:
    return Counter(label for _, noted, label in told["ledger"] if noted == what)


def decisions(told: dict[str, Any]) -> dict[str, str]:
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


def _open_in_deaths(cell: str, told: dict[str, Any]) -> set[str]:
    """The calls that may have taken effect when a process died: no other step began since their tool did."""
    found: set[str] = set()
    at_once = tree_of(cell).case.at_once
    for died in told["killed"]:
        points = [label for process, label in told["points"] if process == died]
        steps = [point for point in points if not point.startswith(("line", "inside"))]
        for n, step in enumerate(steps):
            label = step.removeprefix("begin ")
            later = steps[n + 1 :]
            inside = later.index(f"end {label}") + 1 if f"end {label}" in later else 0
            if step != label and (at_once or all(other.startswith("ask ") for other in later[inside:])):
                found.add(label)  # a tool may ask a model itself
        trailing = points[max((n + 1 for n, point in enumerate(points) if point in steps), default=0) :]
        if "line after" in trailing:  # it may have been written that a tool begins
            found |= labels(told, "doubt").keys() - labels(told, "ran").keys()
    return {label for label in found if label.split()[0] in TOOLS}  # neither an agent nor a hand-off is in doubt


def _without(value: Any, lost: set[str]) -> Any:
    """A result or state without what came of the calls that did not run, or may not have."""
    if isinstance(value, dict):
        kept = {key: _without(item, lost) for key, item in value.items() if not (lost and key == "count")}
        return {key: item for key, item in kept.items() if not (lost and item == [])}
    if isinstance(value, list):
        return [_without(item, lost) for item in value if item not in lost]
    if not isinstance(value, str):
        return value
    value = re.sub(r"(Do part \d) after \d+\.", r"\1.", value) if lost else value  # what was counted before
    for label in lost:
        value = re.sub(rf"(did|stood in|recovered) {label}(?= \||\)|$)", "lost", value)
    return re.sub(r"(rejected: )?(in doubt: |'token' is masked)[^|()]*?(?= \||\)|$)", "lost", value)


def _unasked(is_: dict[str, Any], should_be: dict[str, Any], lost: set[str]) -> dict[str, Any]:
    """The state that should be, without what handlers asked a model about calls that were lost before that."""
    known = dict(should_be)
    for key, asked in should_be.items():
        if key.startswith("judged:"):
            of_agent = (label.split() for label in lost)
            may_lack = Counter(f"yes to Well, {name}?" for name, agent, _ in of_agent if key == f"judged:{agent}")
            rest = iter(asked)
            in_order = all(answer in rest for answer in is_.get(key, ()))
            if in_order and not Counter(asked) - Counter(is_.get(key, ())) - may_lack:
                known.pop(key)
                known |= {key: is_[key]} if key in is_ else {}
    return known


def _difference(is_: Any, should_be: Any) -> str:
    if isinstance(is_, dict) and isinstance(should_be, dict):
        keys = [key for key in {**should_be, **is_} if is_.get(key) != should_be.get(key)]
        is_, should_be = ({key: side.get(key) for key in keys} for side in (is_, should_be))
    return f"{str(is_)[:300]} in place of {str(should_be)[:300]}"
