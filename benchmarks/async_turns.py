"""Many turns at once in one event loop, against a local server that thinks for 100 ms.

    python benchmarks/async_turns.py [turns]

Each turn has three model calls and two rounds of one tool. Prints how long the event loop stood still, and the CPU time
of a turn: awaited by `ainput()`, and by `input()` in a thread for each turn. The project holds itself to no lost turn,
20 ms, and 1.5 times the CPU time of the threads.
"""

from __future__ import annotations

import asyncio
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


async def awaited(made: list[Any]) -> tuple[list[Any], list[float]]:
    """The results of turns that are awaited, and for how long the loop stood still each time."""
    lags: list[float] = []

    async def watch() -> None:
        while True:
            since = time.perf_counter()
            await asyncio.sleep(0.001)
            lags.append(time.perf_counter() - since - 0.001)

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
    usage = resource.getrusage(resource.RUSAGE_SELF)
    since, cpu = time.perf_counter(), usage.ru_utime + usage.ru_stime
    results, lags = asyncio.run(awaited(made)) if how == "ainput" else (in_threads(made), [0.0])
    wall, usage = time.perf_counter() - since, resource.getrusage(resource.RUSAGE_SELF)
    cpu = (usage.ru_utime + usage.ru_stime - cpu) / turns * 1000
    answered = sum(result == "done" for result in results)
    stood = f"the loop stood still {lags[-1] * 1000:.1f} ms at most, {lags[int(len(lags) * 0.99)] * 1000:.1f} in 99 %"
    print(f"{how:8} {answered}/{turns} answered in {wall:.2f} s, {cpu:.2f} ms CPU a turn; {stood}", flush=True)


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
