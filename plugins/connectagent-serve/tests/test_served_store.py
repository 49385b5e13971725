"""Servers whose sessions are in a database: one with an empty folder goes on with all, and of two one is right."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("ag_ui")
httpx = pytest.importorskip("httpx")
from click.testing import CliRunner  # noqa: E402
from connectagent_serve import app_of, serve  # noqa: E402
from test_serve import PAID, Client, agent_with, events, free_port, run, served  # noqa: E402

from connectagent import LLMResponse, Pause, SqliteStore, TokenUsage, before_each_tool  # noqa: E402
from connectagent.testing import call  # noqa: E402


@before_each_tool
def asks() -> None:
    raise Pause("a payment")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Client]:
    """An application with a folder of its own, and the store that all of them have."""

    def made(name: str, *responses: Any) -> Client:
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        return Client(app_of(agent_with(*responses, plugins=[asks]), store=SqliteStore(tmp_path / "sessions.db")))

    return made


def test_a_machine_with_an_empty_folder_shows_and_decides_what_waits(machine: Any) -> None:
    first = machine("one", "Hello.", call("pay", amount=5))
    first("POST", "/sessions/t1/turns", {"prompt": "Hi"})
    assert first("POST", "/sessions/t1/turns", {"prompt": "Pay 5"}).status_code == 202
    told = machine("two")("GET", "/sessions/t1")
    assert (told.status_code, told.json()["status"], told.json()["turns"]) == (200, "paused", 1)
    assert [one["reason"] for one in told.json()["waiting"]] == ["a payment"]
    assert machine("three")("GET", "/sessions/t2").status_code == 404
    assert machine("four")("POST", "/sessions/t2/decision", {"approve": True}).status_code == 404
    decided = machine("five", "Paid.")("POST", "/sessions/t1/decision", {"approve": True})
    assert (decided.status_code, decided.json()["result"], PAID) == (200, "Paid.", [5])
    again = machine("six")("POST", "/sessions/t1/turns", {"prompt": "Pay 5", "number": 2})
    assert again.json()["result"] == "Paid." and PAID == []
    assert first("GET", "/sessions/t1").json()["turns"] == 2


def test_a_machine_with_an_empty_folder_goes_on_with_completions(machine: Any) -> None:
    body: Any = {"model": "shop", "messages": [{"role": "user", "content": "Hi"}]}
    headers = {"X-Session-Id": "s", "X-Turn-Number": "1"}
    asked: Any = ("POST", "/v1/chat/completions", body)
    first = machine("one", LLMResponse("One.", usage=TokenUsage(9, 2)))(*asked, headers=headers).json()
    again = machine("two")(*asked, headers=headers).json()
    assert again["choices"] == first["choices"] and again["usage"] == first["usage"]
    assert first["usage"]["total_tokens"] == 11


def test_a_machine_with_an_empty_folder_goes_on_with_a_thread_of_agui(machine: Any) -> None:
    machine("one", "Hello.")("POST", "/agui", run("Hi"))
    found = events(machine("two", call("pay", amount=5))("POST", "/agui", run("Hi", "Pay 5")))
    waiting = found[-1]["outcome"]["interrupts"]
    answer = {"interruptId": waiting[0]["id"], "status": "resolved", "payload": {"approve": True}}
    found = events(machine("three", "Paid.")("POST", "/agui", {**run(), "resume": [answer]}))
    assert found[-1]["type"] == "RUN_FINISHED" and "Paid." in [one.get("delta") for one in found] and PAID == [5]
    # Its call was told before it waited, and is not told again.
    assert "TOOL_CALL_START" not in [one["type"] for one in found]
    again = events(machine("four")("POST", "/agui", run("Hi", "Pay 5")))
    assert "Paid." in [one.get("delta") for one in again] and PAID == []


def test_a_machine_with_an_empty_folder_goes_on_after_a_turn_that_failed(machine: Any) -> None:
    first = machine("one", "Hello.", RuntimeError("no"))
    first("POST", "/agui", run("Hi"))
    assert events(first("POST", "/agui", run("Hi", "More")))[-1]["type"] == "RUN_ERROR"
    found = events(machine("two", "Then.")("POST", "/agui", run("Hi", "More", "And?")))
    assert "Then." in [one.get("delta") for one in found]


@pytest.mark.skipif(not (find_spec("a2a") and find_spec("sse_starlette")), reason="a2a-sdk is not installed")
def test_a_machine_with_an_empty_folder_takes_a_message_as_the_decision(machine: Any) -> None:
    from test_a2a import message, talk

    async def pays(other: Any) -> None:
        assert await other.send(message("Pay 5")) == "input_required", other.texts

    async def approves(other: Any) -> None:
        assert await other.send(message({"approve": True})) == "completed", other.texts

    talk(machine("one", call("pay", amount=5)).app, pays)
    talk(machine("two", "Paid.").app, approves)
    assert PAID == [5]


# -- processes -----------------------------------------------------------------------------------------

AGENT = """
import os, time
from connectagent import Agent, LLMResponse, ToolCall

def note(text: str) -> str:
    "Note a text."
    with open("../notes", "a") as file:
        file.write(text + "\\n")
    return "noted"

class Model:
    model = "m"
    def complete(self, messages, tools=None):
        time.sleep(0.03)
        last = max(at for at, message in enumerate(messages) if message["role"] == "user")
        told = [message["content"] for message in messages[last:] if message["role"] == "tool"]
        if len(told) == 2:
            return LLMResponse("It says " + " and ".join(told))
        text = f"{messages[last]['content']}.{len(told)}"
        return LLMResponse(None, [ToolCall(f"c{len(told)}", "note", {"text": text})])

agent = Agent("shop", tools=[note], llm=Model(), quiet=True)
"""


def test_of_two_servers_with_folders_of_their_own_each_turn_has_one(tmp_path: Path) -> None:
    ports, servers, answers = [free_port(), free_port()], [], list[Any]()
    for name, port in zip(("one", "two"), ports, strict=True):
        (tmp_path / name).mkdir()
        (tmp_path / name / "agent.py").write_text(AGENT, "utf-8")
        servers.append(served(tmp_path / name, port, more=["--store", "../sessions.db"]))

    def ask(port: int, key: str, number: int) -> None:
        body = {"prompt": f"{key}.{number}", "number": number}
        reply = httpx.post(f"http://127.0.0.1:{port}/sessions/{key}/turns", json=body, timeout=60)
        answers.append((key, number, reply))

    try:
        for number in range(1, 4):
            each = [(port, f"s{key}", number) for key in range(4) for port in ports]
            threads = [threading.Thread(target=ask, args=one) for one in each]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for one in each:  # who was refused asks again
                ask(*one)
        told = [httpx.get(f"http://127.0.0.1:{port}/sessions/s{key}").json() for key in range(4) for port in ports]
    finally:
        for server in servers:
            server.kill()
            server.wait()
    statuses = Counter(reply.status_code for *_, reply in answers)
    assert set(statuses) <= {200, 409} and statuses[409] > 0  # some were refused
    results: dict[Any, set[str]] = {}
    for key, number, reply in answers:
        if reply.status_code == 200:
            results.setdefault((key, number), set()).add(reply.json()["result"])
    assert len(results) == 12 and all(len(said) == 1 for said in results.values())
    assert [one["turns"] for one in told] == [3] * 8
    notes = Counter((tmp_path / "notes").read_text().split())
    assert max(notes.values()) == 1
    for (key, number), (said,) in results.items():
        for at, tool in enumerate(said.removeprefix("It says ").split(" and ", 1)):
            # One that was taken over between beginning and result is in doubt; it ran.
            assert notes[f"{key}.{number}.{at}"] == 1 and (tool == "noted" or "in doubt" in said), said


def test_a_store_that_cannot_be_used_is_named_before_the_server_says_that_it_serves(tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text("from connectagent import Agent\nagent = Agent('shop', model='offline')\n", "utf-8")
    done = CliRunner().invoke(serve, [str(script), "--store", str(tmp_path / "none" / "sessions.db")])
    assert done.exit_code == 2 and "there is no folder" in done.output and "is served" not in done.output
