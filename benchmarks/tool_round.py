"""A round of 16 tools that take 50 ms each, with `parallel_tools=16`.

    python benchmarks/tool_round.py [rounds]

Prints the median of the rounds' times, their best one, and the CPU time of a round: for sync and async tools, by
`input()` and `ainput()`, without and with a handler around each tool. The variants take turns, so that a busy machine
slows all of them. The project holds itself to a median of 65 ms on a machine that is idle.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

from connectagent import Agent, around_tool
from connectagent.testing import ScriptedLLM, call


def nap(n: int) -> str:
    """Take a nap."""
    time.sleep(0.05)
    return f"nap {n}"


async def async_nap(n: int) -> str:
    """Take a nap."""
    await asyncio.sleep(0.05)
    return f"nap {n}"


@around_tool
def around() -> Iterator[Any]:
    return (yield)


def once(function: Any, plugins: list[Any], awaited: bool) -> tuple[float, float]:
    """The time and the CPU time of a turn with one round, in ms."""
    llm = ScriptedLLM([call(function.__name__, n=n) for n in range(16)], "Done.")
    agent = Agent("naps", [function], llm=llm, plugins=plugins, parallel_tools=16, log=False, quiet=True)

    async def turn() -> tuple[float, float]:
        since, cpu = time.perf_counter(), time.process_time()
        assert (await agent.ainput("Go") if awaited else agent.input("Go")) == "Done."
        return (time.perf_counter() - since) * 1000, (time.process_time() - cpu) * 1000

    if awaited:
        return asyncio.run(turn())
    since, cpu = time.perf_counter(), time.process_time()
    assert agent.input("Go") == "Done."
    return (time.perf_counter() - since) * 1000, (time.process_time() - cpu) * 1000


def main(rounds: int) -> None:
    variants = list(itertools.product((nap, async_nap), ([], [around]), (False, True)))
    took: dict[int, list[tuple[float, float]]] = {number: [] for number in range(len(variants))}
    for _ in range(rounds + 1):
        for number, variant in enumerate(variants):
            took[number].append(once(*variant))
    for number, (function, plugins, awaited) in enumerate(variants):
        wall, cpu = zip(*took[number][1:], strict=True)  # the first one loads modules
        name = f"{function.__name__:9} {'ainput' if awaited else 'input':6} {'around' if plugins else '':6}"
        print(f"{name} median {statistics.median(wall):5.1f} ms, best {min(wall):5.1f}, "
              f"CPU {statistics.median(cpu):5.1f} ms")  # fmt: skip


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
