"""A server that is killed and started again while many clients talk to it. `SERVE_KILLS=20` makes it a longer run."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("ag_ui")
httpx = pytest.importorskip("httpx")
import anyio  # noqa: E402
from ag_ui.core import Event  # noqa: E402
from pydantic import TypeAdapter  # noqa: E402
from test_serve import free_port, served  # noqa: E402

KILLS = int(os.environ.get("SERVE_KILLS", "1"))
CLIENTS, TURNS = 6 * min(KILLS, 10), 2 + 2 * KILLS  # of each kind; of each session
EVENT: TypeAdapter[Any] = TypeAdapter(Event)
AGENT = """
import time
from connectagent import Agent, LLMResponse, ToolCall, ToolRejected, before_each_tool

def note(text: str) -> str:
    "Note a text."
    with open("notes", "a") as file:
        file.write(text + "\\n")
    time.sleep(0.05)
    return "noted " + text

@before_each_tool
def guard(tool_call):
    if tool_call.arguments["text"].endswith(".2"):
        raise ToolRejected("never")

class Model:
    model = "m"
    def complete(self, messages, tools=None):
        said = messages[-1]["content"]
        if messages[-1]["role"] == "tool":
            return LLMResponse("It says " + said)
        return LLMResponse(None, [ToolCall("c-" + said, "note", {"text": said})])

agent = Agent("shop", tools=[note], llm=Model(), plugins=[guard], quiet=True)
"""


class Clients:
    """Clients that ask again until they have their answers."""

    def __init__(self, http: Any) -> None:
        self.http, self.left, self.events = http, 2 * CLIENTS, 0

    async def plain(self, key: str) -> None:
        for turn in range(1, TURNS + 1):
            told = None
            while told is None:
                body = {"prompt": f"{key}.{turn}", "number": turn}
                try:
                    reply = await self.http.post(f"/sessions/{key}/turns", json=body)
                    assert reply.status_code in (200, 409, 503), reply.text
                    told = reply.json()["result"] if reply.status_code == 200 else None
                except httpx.HTTPError:
                    await anyio.sleep(0.1)
            self.check(told, f"{key}.{turn}")
        self.left -= 1

    async def agui(self, key: str) -> None:
        messages: list[dict[str, Any]] = []
        for turn in range(1, TURNS + 1):
            messages.append({"id": f"u{turn}", "role": "user", "content": f"{key}.{turn}"})
            told: list[str] = []
            while not told:
                found = await self.run({"threadId": key, "runId": f"r{turn}", "messages": messages})
                if found and found[-1]["type"] == "RUN_FINISHED":
                    told = [one["delta"] for one in found if one["type"] == "TEXT_MESSAGE_CONTENT"]
                elif found and found[-1]["type"] == "RUN_ERROR":
                    assert found[-1]["code"] in ("busy", "ended"), found
                    await anyio.sleep(0.1)
            (answer,) = told
            self.check(answer, f"{key}.{turn}")
            messages.append({"id": f"a{turn}", "role": "assistant", "content": answer})
        self.left -= 1

    async def run(self, body: Any) -> list[dict[str, Any]]:
        """The events of a run, each of them valid; the stream may be cut off between two of them."""
        text = ""
        try:
            async with self.http.stream("POST", "/agui", json=body) as reply:
                async for piece in reply.aiter_text():
                    text += piece
        except httpx.HTTPError:
            await anyio.sleep(0.1)
        *blocks, cut = text.split("\n\n")
        found = []
        for block in blocks:
            assert block.startswith("data: ") and "\n" not in block
            found.append(json.loads(block[6:]))
            EVENT.validate_python(found[-1])
        self.events += len(found)
        return found if not cut else []

    @staticmethod
    def check(told: str, prompt: str) -> None:
        in_doubt = "in doubt" in told  # the tool ran when the server was killed
        assert told == f"It says {'rejected: never' if prompt.endswith('.2') else f'noted {prompt}'}" or in_doubt


@pytest.mark.parametrize("kept", ["in the folder", "in a store"])
def test_nothing_is_lost_or_done_twice_and_each_event_is_valid(kept: str, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT, "utf-8")
    port, chance = free_port(), random.Random(7)
    more = ["--concurrency", "200", *(["--store", "sessions.db"] if kept == "in a store" else [])]
    processes = [served(tmp_path, port, more=more)]

    async def kill(clients: Clients) -> None:
        for _ in range(KILLS):
            await anyio.sleep(chance.uniform(0.3, 1.0))
            processes[-1].kill()
            processes[-1].wait()
            if kept == "in a store":
                with suppress(FileNotFoundError):  # it was killed before its first turn
                    shutil.rmtree(tmp_path / ".co")
            processes.append(await anyio.to_thread.run_sync(lambda: served(tmp_path, port, more=more)))

    async def talk() -> Clients:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            clients = Clients(http)
            with anyio.fail_after(60 + 60 * KILLS):
                async with anyio.create_task_group() as group:
                    group.start_soon(kill, clients)
                    for number in range(CLIENTS):
                        group.start_soon(clients.plain, f"p{number}")
                        group.start_soon(clients.agui, f"a{number}")
            for key in [f"{kind}{number}" for kind in "pa" for number in range(CLIENTS)]:
                assert (await http.get(f"/sessions/{key}")).json()["turns"] == TURNS
            return clients

    try:
        clients = anyio.run(talk)
    finally:
        processes[-1].kill()
        processes[-1].wait()
    assert clients.left == 0 and clients.events >= CLIENTS * TURNS * 5
    notes = Counter((tmp_path / "notes").read_text().split())
    assert max(notes.values()) == 1 and not any(note.endswith(".2") for note in notes)
    asked = 2 * CLIENTS * (TURNS - 1)  # the second of each is refused
    assert len(notes) >= asked - 2 * CLIENTS * KILLS  # a tool that was about to begin is in doubt too
