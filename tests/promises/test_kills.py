"""kill -9 at any moment, real processes, both wires over HTTP: the session goes on as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import kill_agents
import pytest
import yaml
from wire_server import (
    Answer,
    _QuietServer,
    block_events,
    chat,
    chat_stream,
    finish,
    message,
    message_stream,
    text_events,
    tool_use,
    usage_chunk,
)

from connectagent.records.read import read_record
from connectagent.records.summary import summarise
from connectagent.testing import rules

KILLS = int(os.environ.get("KILLS", "30"))  # set it for a longer run
ROUNDS, CALLS = 3, 3


class Provider:
    """A provider of both wires that tells from each request what comes next, and refuses what is not valid."""

    def __init__(self) -> None:
        self.refused: list[Any] = []
        self.read: defaultdict[str, set[str]] = defaultdict(set)  # the results that a model has read
        self.asked: defaultdict[str, threading.Event] = defaultdict(threading.Event)
        provider = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def do_POST(self) -> None:
                length = int(self.headers["content-length"])
                sent = self.rfile.read(length)
                if len(sent) < length:  # the agent was killed while it sent
                    self.close_connection = True
                    return
                body = json.loads(sent)
                anthropic = self.path.endswith("/messages")
                answer = provider.answer(body, anthropic)
                data = (answer.text if answer.text is not None else json.dumps(answer.body)).encode()
                self.send_response(answer.status)
                self.send_header("content-type", answer.content_type)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self.http = _QuietServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"

    def answer(self, body: dict[str, Any], anthropic: bool) -> Answer:
        messages = body["messages"]
        problems = rules._anthropic(body.get("system"), messages) if anthropic else rules._openai(messages, "openai")
        if problems:
            self.refused.append((problems, messages))
            return Answer({"error": {"message": str(problems), "type": "invalid_request_error"}}, status=400)
        texts = [(message["role"], text) for message in messages for text in _texts(message)]
        last = max(n for n, (_, text) in enumerate(texts) if text.startswith("turn "))
        turn, tag = texts[last][1].split()[1], texts[last][1].split()[3]
        self.read[tag].update(text for _, text in texts if text.startswith("result of "))
        self.asked[tag].set()
        round = sum(1 for _, text in texts[last:] if text == "Go on.")
        calls = [] if round >= ROUNDS else [(f"{tag}t{turn}r{round}c{n}", n) for n in range(CALLS)]
        return (_anthropic if anthropic else _openai)(calls, bool(body.get("stream")))


def _texts(message: dict[str, Any]) -> Iterator[str]:
    content = message.get("content") or ""
    for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
        if part["type"] == "tool_result":
            yield from _texts(part)
        elif part["type"] == "text":
            yield part["text"]


def _openai(calls: list[Any], stream: bool) -> Answer:
    made = [(id, "look" if n == 1 else "step", json.dumps({"n": n})) for id, n in calls]
    if not stream:
        return chat("Done.", finish="stop") if not made else chat(None, calls=made, finish="tool_calls")
    deltas: list[Any] = [{"role": "assistant", "content": "Do" if not made else None}]
    deltas += [{"content": "ne."}] if not made else []
    for index, (id, name, arguments) in enumerate(made):
        call = {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
        deltas.append({"tool_calls": [call]})
    return chat_stream(*deltas, finish("tool_calls" if made else "stop"), usage_chunk())


def _anthropic(calls: list[Any], stream: bool) -> Answer:
    blocks = [tool_use(id, "look" if n == 1 else "step", n=n) for id, n in calls]
    if not stream:
        return message(*(blocks or ["Done."]), stop="tool_use" if blocks else "end_turn")
    events: list[dict[str, Any]] = [] if blocks else text_events(0, "Do", "ne.")
    for index, block in enumerate(blocks):
        delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        events += block_events(index, {**block, "input": {}}, delta)
    return message_stream(*events, stop="tool_use" if blocks else "end_turn")


class Forks:
    """The process that forks the agents."""

    def __init__(self, url: str) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        environment.pop("CONNECTAGENT_DIR", None)
        line = [sys.executable, kill_agents.__file__, url]
        self.process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True)
        self.lock = threading.Lock()

    def fork(self, **order: Any) -> int:
        assert self.process.stdin is not None and self.process.stdout is not None
        with self.lock:
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()
            return int(self.process.stdout.readline())


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.001)
    raise AssertionError("it does not die")


def told(folder: Path, name: str, seconds: float = 60) -> dict[str, Any]:
    deadline = time.monotonic() + seconds
    while not (folder / name).exists():
        assert time.monotonic() < deadline, "the resumed agent does not come to an end"
        time.sleep(0.005)
    found: dict[str, Any] = json.loads((folder / name).read_text())
    return found


def results_in(path: Path) -> set[str]:
    entries = [entry for turn in read_record(path)["turns"] for entry in turn["trace"]]
    return {entry["result"] for entry in entries if entry["type"] == "tool_execution"}


def killed_and_resumed(number: int, provider: Provider, forks: Forks, folder: Path) -> Counter[str]:
    """Kill an agent at a random moment, sometimes once more while it goes on, and hold what comes of it."""
    chance, tag, seen = random.Random(), f"k{number}", Counter[str]()
    anthropic, stream = number % 2 == 0, number % 4 < 2
    folder.mkdir()
    order: dict[str, Any] = {"tag": tag, "folder": str(folder), "stream": stream, "told": "told", "turn": 999}
    order["awaited"] = number % 3 == 0
    order.update(model="claude-sonnet-4-5", url=provider.url) if anthropic else order.update(
        model="gpt-4o", url=f"{provider.url}/v1"
    )
    pid = forks.fork(do="work", **order)
    assert provider.asked[tag].wait(30)
    time.sleep(chance.uniform(0, 0.3))
    kill(pid)
    (path,) = (folder / ".co/evals").glob("*.yaml")
    data = path.read_bytes()
    yaml.load(data[: data.rfind(b"\n") + 1], Loader=yaml.CSafeLoader)
    seen["torn"] += not data.endswith(b"\n")
    if chance.random() < 0.3:
        pid = forks.fork(do="resume", record=str(path), **{**order, "told": "first", "turn": 998})
        time.sleep(chance.uniform(0, 0.2))
        if not (folder / "first").exists():
            seen["killed again"] += 1
        kill(pid) if _alive(pid) else None
    assert provider.read[tag] <= results_in(path), f"{folder}: a result that was received is not in the record"
    seen["cut off"] += summarise(path).status == "crashed"
    seen["results"] += len(provider.read[tag])
    forks.fork(do="resume", record=str(path), **order)
    end = told(folder, "told")
    assert end == {"result": "Done.", "problems": [], "same": True}, f"{folder}: {end.get('error') or end}"
    assert summarise(path).status == "answered"
    assert provider.read[tag] <= results_in(path)
    runs = Counter((folder / "side").read_text().splitlines()) if (folder / "side").exists() else Counter[str]()
    twice = {line for line, count in runs.items() if count > 1 and line.startswith("step ")}
    assert not twice, f"{folder}: ran twice: {twice}"
    seen["looked again"] += sum(count > 1 for line, count in runs.items() if line.startswith("look "))
    seen["in doubt"] += path.read_text().count('"result": "rejected: in doubt')
    return seen


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.posix("has no fork")
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_whatever_moment_an_agent_is_killed_at_it_goes_on_and_no_tool_runs_twice(tmp_path: Path) -> None:
    provider, seen = Provider(), Counter[str]()
    threading.Thread(target=provider.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    forks = Forks(provider.url)
    try:
        with ThreadPoolExecutor(4) as pool:
            for one in pool.map(
                lambda number: killed_and_resumed(number, provider, forks, tmp_path / str(number)), range(KILLS)
            ):
                seen.update(one)
    finally:
        assert forks.process.stdin is not None and forks.process.stdout is not None
        forks.process.stdin.close()
        forks.process.wait(30)
        forks.process.stdout.close()
        provider.http.shutdown()
        provider.http.server_close()
    assert not provider.refused, provider.refused[0]
    print(f"{KILLS} kills: {dict(seen)}")
    assert seen["cut off"] > KILLS / 4 and seen["results"] > KILLS
