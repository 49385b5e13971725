"""CPU time of a served turn beside that of a mapped one.

    PYTHONPATH=plugins/connectagent-serve python benchmarks/serve.py [turns] [sessions]

Both take the turns of `peers.py`, against the same local server that thinks for 100 ms: served over HTTP, a request for
each turn, and by `agent.map()`. The project holds itself to 1.3 times the CPU time of `map` at 100 sessions.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time

import httpx
from async_turns import SERVER
from peers import PROMPT, cpu_s, lookup, with_connectagent

ROUNDS = 3


def serve(sessions: int, url: str) -> None:
    """Serve the agent; the CPU time so far is at /cpu."""
    import uvicorn
    from connectagent_serve import KEEP_ALIVE_S, app_of
    from starlette.responses import PlainTextResponse

    from connectagent import Agent

    agent = Agent("a", [lookup], model="gpt-4o-mini", api_key="key", base_url=url, quiet=True)
    app = app_of(agent, concurrency=sessions)
    app.add_route("/cpu", lambda request: PlainTextResponse(str(cpu_s())))
    config = uvicorn.Config(app, port=0, log_level="error", timeout_keep_alive=KEEP_ALIVE_S)
    server = uvicorn.Server(config)
    socket = config.bind_socket()
    print(socket.getsockname()[1], flush=True)
    server.run([socket])


def map_(turns: int, sessions: int, url: str) -> None:
    """Print ms of CPU a mapped turn."""
    with_connectagent(2, 2, url)
    cpu = cpu_s()
    assert with_connectagent(turns, sessions, url) == turns
    print((cpu_s() - cpu) / turns * 1000)


async def asked(turns: int, sessions: int, address: str) -> float:
    """Ms of CPU a served turn."""
    gate, limits = asyncio.Semaphore(sessions), httpx.Limits(max_connections=sessions)
    async with httpx.AsyncClient(base_url=address, limits=limits, timeout=60) as client:

        async def one(number: int) -> bool:
            async with gate:
                answer = await client.post(f"/sessions/s{number}/turns", json={"prompt": PROMPT, "number": 1})
                return bool(answer.json().get("result") == "done")

        await asyncio.gather(*(one(-number) for number in (1, 2)))
        before = float((await client.get("/cpu")).text)
        assert all(await asyncio.gather(*(one(number) for number in range(turns))))
        return (float((await client.get("/cpu")).text) - before) / turns * 1000


def started(*arguments: object) -> subprocess.Popen[str]:
    place = {"cwd": tempfile.mkdtemp(), "env": {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}}
    command = [sys.executable, os.path.abspath(__file__), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **place)  # type: ignore[call-overload, no-any-return]


def main(turns: int, sessions: int) -> None:
    found: dict[str, list[float]] = {"map": [], "serve": []}
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as model:
        assert model.stdout is not None
        url = f"http://127.0.0.1:{model.stdout.readline().strip()}/v1"
        try:
            for _ in range(ROUNDS):
                found["map"].append(float(started("map", turns, sessions, url).communicate()[0]))
                with started("serve", sessions, url) as server:
                    assert server.stdout is not None
                    address = f"http://127.0.0.1:{server.stdout.readline().strip()}"
                    time.sleep(0.5)
                    try:
                        found["serve"].append(asyncio.run(asked(turns, sessions, address)))
                    finally:
                        server.kill()
        finally:
            model.kill()
    mapped, served = (statistics.median(found[name]) for name in ("map", "serve"))
    print(f"{sessions} sessions: map {mapped:.2f} ms, serve {served:.2f} ms of CPU a turn: {served / mapped:.2f}")


if __name__ == "__main__":
    given = sys.argv[1:]
    if given[:1] == ["serve"]:
        serve(int(given[1]), given[2])
    elif given[:1] == ["map"]:
        map_(int(given[1]), int(given[2]), given[3])
    else:
        main(*(int(word) for word in [*given, "300", "100"][:2]))
