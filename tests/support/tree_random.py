"""Random trees of agents, each told by a number: in every process the same."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count
from random import Random
from typing import Any

from tree_cases import Case, World

from connectagent import Agent, Loop, Parallel, Sequential

DEPTH = 3
KINDS = ("asks", "hands over", "two in a round", "sequence", "loop", "parallel", "body")


def random_case(seed: int) -> Case:
    """A tree of random agents; each tool of it appends to a file."""
    return Case(partial(_tree, seed), 0, {}, at_once=True)


def _tree(seed: int, w: World) -> Agent:
    numbers = count(1)
    names = iter(lambda: f"a{next(numbers)}", "")
    return _grown(w, Random(seed), names, "root", 1)


def _grown(w: World, chance: Random, names: Iterator[str], name: str, depth: int) -> Agent:
    kind = "works" if depth == DEPTH or chance.random() < 0.2 * (depth - 1) else chance.choice(KINDS)
    several = 1 if kind in ("asks", "hands over") else 0 if kind == "works" else 2
    below = [_grown(w, chance, names, next(names), depth + 1) for _ in range(several)]
    guarded, first, last = chance.random() < 0.3, _round(chance), _round(chance)
    match kind:
        case "works":
            return w.agent(name, first, last, guarded=guarded)
        case "asks":
            asked = [below[0].name] * chance.randint(1, 2)
            return w.agent(name, [*first, *asked], last, guarded=guarded, asks=below)
        case "hands over":
            return w.agent(name, first, [f"to {below[0].name}"], guarded=guarded, sub_agents=below)
        case "two in a round":
            return w.agent(name, [below[0].name, *first, below[1].name], last, guarded=guarded, asks=below)
        case "body":
            return _body(name, below)
    options: dict[str, Any] = {"quiet": True, "description": "Works.", "output_key": f"out:{name}"}
    if kind == "loop":
        return Loop(name, below, max_rounds=2, **options)
    return (Parallel if kind == "parallel" else Sequential)(name, below, **options)


def _round(chance: Random) -> list[str]:
    return [chance.choice(("ship", "pay")) for _ in range(chance.randint(1, 2))]


def _body(name: str, below: list[Agent]) -> Agent:
    def run(agent: Agent) -> str:
        told = [one.input(f"Do part {number}.") for number in (1, 2) for one in below]
        return f"{name}({' | '.join(told)})"

    return Agent(name, run=run, sub_agents=below, quiet=True, description="Works.", output_key=f"out:{name}")
