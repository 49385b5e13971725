"""CPU time, throughput and memory of many sessions at once, beside pydantic-ai and the OpenAI Agents SDK.

    pip install pydantic-ai-slim[openai] openai-agents
    python benchmarks/peers.py [turns] [sessions ...]
    SVG=docs/images/sessions.svg python benchmarks/peers.py     draws the plot too

All three take the same turns against a local server that thinks for 100 ms: three model calls and two rounds of one
tool. connectagent takes them by `agent.map()`, with the record of each session on disk. The others are measured twice:
as they come, without a trace and with nothing on disk, and keeping what they can. Each measurement is a process of its
own, and the frameworks take turns, so that a busy machine is busy for all of them.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from async_turns import SERVER
from plot import Series, write_svg

ROUNDS = 3
PROMPT = "Look both items up."


def lookup(key: str) -> str:
    """Look a thing up."""
    return f"the value of {key} " * 10


def with_connectagent(turns: int, sessions: int, url: str) -> int:
    from connectagent import Agent

    agent = Agent("a", [lookup], model="gpt-4o-mini", api_key="key", base_url=url, quiet=True)
    items = agent.map([(str(number), PROMPT) for number in range(turns)], concurrency=sessions)
    return sum(item.result == "done" for item in items)


async def _at_once(turns: int, sessions: int, take: Any) -> int:
    gate = asyncio.Semaphore(sessions)

    async def one() -> bool:
        async with gate:
            return bool(await take() == "done")

    return sum(await asyncio.gather(*(one() for _ in range(turns))))


def with_pydantic_ai(turns: int, sessions: int, url: str, kept: bool = False) -> int:
    """Take the turns; `kept`: write the messages of each to a file, as its documentation shows."""
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    agent = Agent(OpenAIChatModel("gpt-4o-mini", provider=OpenAIProvider(base_url=url, api_key="key")), tools=[lookup])

    numbers = itertools.count()

    async def take() -> str:
        result = await agent.run(PROMPT)
        if kept:
            Path(f"{next(numbers)}.json").write_bytes(result.all_messages_json())
        return str(result.output)

    return asyncio.run(_at_once(turns, sessions, take))


def with_openai_agents(turns: int, sessions: int, url: str, kept: bool = False) -> int:
    """Take the turns; `kept`: each in a session of its SQLite file, and traced, as it does by default."""
    from agents import Agent, OpenAIChatCompletionsModel, Runner, SQLiteSession, function_tool, set_tracing_disabled
    from openai import AsyncOpenAI

    set_tracing_disabled(not kept)
    model = OpenAIChatCompletionsModel("gpt-4o-mini", AsyncOpenAI(base_url=url, api_key="key"))
    agent = Agent(name="a", model=model, tools=[function_tool(lookup)])

    numbers = itertools.count()

    async def take() -> str:
        session = SQLiteSession(f"{turns}-{next(numbers)}", "sessions.db") if kept else None
        return str((await Runner.run(agent, PROMPT, session=session)).final_output)

    return asyncio.run(_at_once(turns, sessions, take))


FRAMEWORKS: dict[str, Callable[[int, int, str], int]] = {
    "connectagent": with_connectagent,
    "pydantic-ai": with_pydantic_ai,
    "openai-agents": with_openai_agents,
    "pydantic-ai, kept": partial(with_pydantic_ai, kept=True),
    "openai-agents, kept": partial(with_openai_agents, kept=True),
}
DRAWN = ("connectagent", "pydantic-ai", "openai-agents")


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def memory_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(framework: str, turns: int, sessions: int, url: str) -> None:
    """Take the turns and print turns per second, ms of CPU a turn, and the MB that they added."""
    take = FRAMEWORKS[framework]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        take(2, 2, url)  # imports, connections and caches
        since, cpu, memory = time.perf_counter(), cpu_s(), memory_mb()
        answered = take(turns, sessions, url)
        took, cpu = time.perf_counter() - since, cpu_s() - cpu
        assert answered == turns, f"{framework}: {answered} of {turns} were answered"
        print(turns / took, cpu / turns * 1000, memory_mb() - memory)
        os.chdir("/")


def main(turns: int, counts: list[int]) -> None:
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            url = f"http://127.0.0.1:{server.stdout.readline().strip()}/v1"
            print("sessions  framework              turns/s  CPU ms/turn   MB more")
            rates: Series = {framework: [] for framework in DRAWN}
            cpus: Series = {framework: [] for framework in DRAWN}
            for sessions in counts:
                found: dict[str, list[list[float]]] = {framework: [] for framework in FRAMEWORKS}
                for framework in list(FRAMEWORKS) * ROUNDS:
                    number = max(sessions, min(turns, 10 * sessions))
                    command = [sys.executable, __file__, "measure", framework, str(number), str(sessions), url]
                    told = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
                    found[framework].append([float(word) for word in told.stdout.split()])
                for framework, rounds in found.items():
                    rate, cpu, memory = (statistics.median(one) for one in zip(*rounds, strict=True))
                    print(f"{sessions:8}  {framework:20} {rate:9.1f} {cpu:12.2f} {memory:9.1f}", flush=True)
                    if framework in DRAWN:
                        rates[framework].append((sessions, rate))
                        cpus[framework].append((sessions, cpu))
            if path := os.environ.get("SVG"):
                titles = ("turns a second, by sessions at once", "ms of CPU a turn, by sessions at once")
                write_svg(Path(path), list(zip(titles, (rates, cpus), strict=True)))
        finally:
            server.kill()


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        measure(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
    else:
        given = [int(word) for word in sys.argv[1:]]
        main(given[0] if given else 300, given[1:] or [1, 10, 100, 1000])
