"""Many turns at once in one event loop, against a local server that thinks for 100 ms.

    python benchmarks/async_turns.py [turns]
    FREEZE=1 python benchmarks/async_turns.py       with gc.freeze() before the turns

Each turn has three model calls and two rounds of one tool. Prints how long the event loop stood still, and the CPU time
of a turn: awaited by `ainput()`, and by `input()` in a thread for each turn. The project holds itself to no lost turn,
20 ms, and 1.5 times the CPU time of the threads.

Python's garbage collector stops every thread while it goes through all objects, of which the provider's SDK alone makes
70,000. So the longest standstill is printed also without those in which it did, and the collector's own longest run.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import subprocess
import sys
import threading
import time
from typing import Any

SERVER = r'''
import asyncio, json
def body(n):
    done = n == 2
    message = {"role": "assistant", "content": "done" if done else None}
    if not done:
        message["tool_calls"] = [{"id": f"call_{n}", "type": "function", "function":
            {"name": "lookup", "arguments": json.dumps({"key": f"item {n}"})}}]
    data = json.dumps({"id": "x", "object": "chat.completion", "created": 1, "model": "gpt-4o-mini", "choices":
        [{"index": 0, "message": message, "finish_reason": "stop" if done else "tool_calls"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}}).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(data) + data
async def serve(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(next(l for l in head.lower().split(b"\r\n") if l.startswith(b"content-length")).split(b":")[1])
            sent = json.loads(await reader.readexactly(length))
            await asyncio.sleep(0.1)
            writer.write(body(sum(message["role"] == "tool" for message in sent["messages"])))
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1000)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
'''


def lookup(key: str) -> str:
    """Look a thing up."""
    return f"the value of {key} " * 10


def agents(turns: int, url: str) -> list[Any]:
    from connectagent import Agent

    options: dict[str, Any] = {"model": "gpt-4o-mini", "api_key": "key", "base_url": url, "log": False, "quiet": True}
    return [Agent(f"a{number}", [lookup], **options) for number in range(turns)]


class Collector:
    """Notes how long the full runs of the garbage collector take, in seconds."""

    def __init__(self) -> None:
        self.runs = [0.0]
        self.noted = 0  # beginnings and ends of runs
        self.runs_now = False
        self._since = 0.0
        gc.callbacks.append(self._note)

    def _note(self, phase: str, info: dict[str, int]) -> None:
        self.noted += info["generation"] == 2
        self.runs_now = info["generation"] == 2 and phase == "start"
        if info["generation"] == 2 and phase == "start":
            self._since = time.perf_counter()
        elif info["generation"] == 2:
            self.runs.append(time.perf_counter() - self._since)


async def awaited(made: list[Any], collector: Collector) -> tuple[list[Any], list[tuple[float, bool]]]:
    """The results of turns that are awaited; and for how long the loop stood still, and whether it was the collector.

    The second list has one item for each time that the loop was looked at, the shortest first.
    """
    lags: list[tuple[float, bool]] = []

    async def watch() -> None:
        while True:
            since, noted = time.perf_counter(), collector.noted
            await asyncio.sleep(0.001)
            lags.append((time.perf_counter() - since - 0.001, collector.runs_now or collector.noted > noted))

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0.05)
    lags.clear()
    results = await asyncio.gather(*(agent.ainput("Go") for agent in made), return_exceptions=True)
    watching.cancel()
    return results, sorted(lags)


def in_threads(made: list[Any]) -> list[Any]:
    results: list[Any] = []
    threads = [threading.Thread(target=lambda agent=agent: results.append(agent.input("Go"))) for agent in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def measure(how: str, turns: int, url: str) -> None:
    asyncio.run(agents(1, url)[0].ainput("Warm up"))
    made = agents(turns, url)
    if os.environ.get("FREEZE"):
        gc.collect()
        gc.freeze()
    collector = Collector()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    since, cpu = time.perf_counter(), usage.ru_utime + usage.ru_stime
    results, lags = asyncio.run(awaited(made, collector)) if how == "ainput" else (in_threads(made), [])
    wall, usage = time.perf_counter() - since, resource.getrusage(resource.RUSAGE_SELF)
    cpu = (usage.ru_utime + usage.ru_stime - cpu) / turns * 1000
    answered = sum(result == "done" for result in results)
    print(f"{how:8} {answered}/{turns} answered in {wall:.2f} s, {cpu:.2f} ms CPU a turn", flush=True)
    if lags:
        longest, nearly = lags[-1][0], lags[int(len(lags) * 0.99)][0]
        own = max(lag for lag, was_collector in lags if not was_collector)
        print(f"         the loop stood still {longest * 1000:.1f} ms at most, {own * 1000:.1f} without the collector, "
              f"{nearly * 1000:.1f} in 99 %; the collector's longest run took {max(collector.runs) * 1000:.1f} ms",
              flush=True)  # fmt: skip


def main(turns: int) -> None:
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        url = f"http://127.0.0.1:{server.stdout.readline().strip()}/v1"
        for how in ("ainput", "threads", "ainput", "threads"):
            subprocess.run([sys.executable, __file__, how, str(turns), url], check=True, env={**os.environ})
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    if len(sys.argv) == 4:
        measure(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
