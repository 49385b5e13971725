"""Servers of others, from npm and PyPI: over stdio and HTTP, killed in a call, and started again."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from connectagent import Agent
from connectagent.testing import ScriptedLLM

pytest.importorskip("mcp_types", reason="the library mcp, 2.3 or newer, is not installed")

from connectagent_mcp import Mcp

# Where `.ci/run` puts what npm installs.
OF_NPM = Path(os.environ.get("CONNECTAGENT_NODE") or Path(__file__).parents[3] / ".venv" / "node")
NODE = OF_NPM / "node_modules" / ".bin"
LONG: tuple[str, dict[str, Any]] = ("all_trigger-long-running-operation", {"duration": 20, "steps": 4})


def of_npm(name: str) -> str:
    if not (NODE / name).exists() or shutil.which("node") is None:
        pytest.skip(f"{name} is not installed: npm install --prefix .venv/node @modelcontextprotocol/{name[4:]}")
    return str(NODE / name)


def of_pypi(name: str) -> str:
    path = shutil.which(name, path=str(Path(sys.executable).parent))
    if path is None:
        pytest.skip(f"{name} is not installed: pip install {name}")
    return path


def results(servers: dict[str, Any], *calls: tuple[str, dict[str, Any]], timeout_s: float = 10) -> list[Any]:
    llm = ScriptedLLM(*calls, "done")
    plugin = Mcp(servers, timeout_s=timeout_s)
    with Agent("a", llm=llm, plugins=[plugin], quiet=True, log=False, max_iterations=20) as agent:
        assert agent.input("Go") == "done"
    return [message["content"] for message in llm.requests[-1].messages if message["role"] == "tool"]


def soon(act: Callable[[], Any]) -> threading.Thread:
    """Do it two seconds from now, in the midst of a long call."""
    thread = threading.Timer(2, act)
    thread.start()
    return thread


def kill(pattern: str) -> None:
    found = subprocess.run(["pgrep", "-f", pattern], capture_output=True, text=True, timeout=10)
    for number in found.stdout.split():
        os.kill(int(number), signal.SIGKILL)


def check_everything(read: list[Any]) -> None:
    assert read[0] == "Echo: hi" and "5" in read[1]
    assert any(part.get("type") == "image_url" for part in read[2]), read[2]


EVERYTHING: list[tuple[str, dict[str, Any]]] = [
    ("all_echo", {"message": "hi"}),
    ("all_get-sum", {"a": 2, "b": 3}),
    ("all_get-tiny-image", {}),
]


@pytest.mark.skipif(shutil.which("pgrep") is None, reason="it takes pgrep")
def test_the_servers_own_example_over_stdio_also_killed_in_a_call(tmp_path: Path) -> None:
    script = tmp_path / "everything-stdio"
    script.symlink_to(Path(of_npm("mcp-server-everything")).resolve())
    servers = {"all": {"command": "node", "args": [str(script), "stdio"]}}
    killing = soon(lambda: kill(str(script)))
    read = results(servers, *EVERYTHING, LONG, ("all_echo", {"message": "again"}))
    killing.join()
    check_everything(read)
    assert read[3].startswith("Error: McpError: "), read[3]
    assert read[4] == "Echo: again"


@pytest.fixture
def http(tmp_path: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """The address of the same server over HTTP, and what kills it and starts it again."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [of_npm("mcp-server-everything"), "streamableHttp"]
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        if started:
            started[-1].kill()
            started[-1].wait()
        given: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        started.append(subprocess.Popen(command, env={**os.environ, "PORT": str(port)}, **given))
        for _ in range(300):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.05)
        raise AssertionError("the server does not listen")

    start()
    yield f"http://127.0.0.1:{port}/mcp", start
    started[-1].kill()
    started[-1].wait()


def test_the_same_over_http_also_killed_in_a_call(http: tuple[str, Callable[[], None]]) -> None:
    address, restart = http
    killing = soon(restart)
    again = ("all_echo", {"message": "again"})
    read = results({"all": {"url": address}}, *EVERYTHING, LONG, again, again)
    killing.join()
    check_everything(read)
    assert read[3].startswith("Error: McpError: "), read[3]
    assert read[5] == "Echo: again", read


def test_files_and_memory(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    servers = {
        "files": {"command": of_npm("mcp-server-filesystem"), "args": [str(folder)]},
        "memory": {"command": of_npm("mcp-server-memory"), "env": {"MEMORY_FILE_PATH": str(tmp_path / "memory.json")}},
    }
    read = results(
        servers,
        ("files_write_file", {"path": str(folder / "a.txt"), "content": "hello"}),
        ("files_read_text_file", {"path": str(folder / "a.txt")}),
        ("files_read_text_file", {"path": str(tmp_path / "outside.txt")}),
        ("memory_create_entities", {"entities": [{"name": "Bo", "entityType": "cat", "observations": ["purrs"]}]}),
        ("memory_search_nodes", {"query": "purrs"}),
    )
    assert (folder / "a.txt").read_text() == "hello" == read[1]
    assert read[2].startswith("Error: McpError: Access denied")
    assert "Bo" in read[4]


def test_servers_of_pypi(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True, timeout=30)
    (tmp_path / "new.txt").write_text("x")
    servers = {
        "time": {"command": of_pypi("mcp-server-time"), "args": ["--local-timezone", "UTC"]},
        "git": {"command": of_pypi("mcp-server-git"), "args": ["--repository", str(tmp_path)]},
    }
    there = {"source_timezone": "Europe/Berlin", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    calls: list[tuple[str, dict[str, Any]]] = [
        ("time_convert_time", there),
        ("time_convert_time", {**there, "time": "noon"}),
        ("git_git_status", {"repo_path": str(tmp_path)}),
    ]
    converted, wrong, status = results(servers, *calls)
    assert "Asia/Tokyo" in converted and wrong.startswith("Error: McpError: ") and "new.txt" in status
