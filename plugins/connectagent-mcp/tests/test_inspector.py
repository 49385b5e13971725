"""The official inspector, without its page, checks what `connectagent mcp serve` makes of an agent."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp_types", reason="the library mcp, 2.3 or newer, is not installed")

# Where `.ci/run` puts what npm installs.
OF_NPM = Path(os.environ.get("CONNECTAGENT_NODE") or Path(__file__).parents[3] / ".venv" / "node")
INSPECTOR = OF_NPM / "node_modules/@modelcontextprotocol/inspector-cli/build/index.js"
SCRIPT = '''
from connectagent import Agent

def look(place: str) -> str:
    """Look."""
    print("noise")
    return f"{place} is empty"

agent = Agent("watch man", [look], model="offline", description="Looks at places.", log=False)
'''
SERVE = "import sys; from connectagent_mcp.serve import group; group(['serve', 'script.py', *sys.argv[1:]])"
Inspect = Callable[..., Any]

pytestmark = pytest.mark.skipif(
    not INSPECTOR.exists() or shutil.which("node") is None,
    reason="no inspector: npm install --prefix .venv/node @modelcontextprotocol/inspector-cli",
)


@pytest.fixture(params=["stdio", "http"])
def inspect(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Inspect]:
    """Runs the inspector with a method and its options; gives the answer, or what it says of an error."""
    (tmp_path / "script.py").write_text(SCRIPT)
    path = os.pathsep.join(name for name in sys.path if name)
    given: dict[str, Any] = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}}
    command, server = [sys.executable, "-c", SERVE], None
    if request.param == "http":
        port = free_port()
        null = subprocess.DEVNULL
        server = subprocess.Popen([*command, "--http", "--port", str(port)], stdout=null, stderr=null, **given)
        wait_for(port)
        where = [f"http://127.0.0.1:{port}/mcp", "--transport", "http"]
    else:
        run = tmp_path / "serve"  # the inspector takes options of the command for its own
        run.write_text(f"#!{sys.executable}\n{SERVE}\n")
        run.chmod(0o700)
        where = [str(run)]

    def inspected(method: str, *options: str) -> Any:
        call = ["node", str(INSPECTOR), *where, "--method", method, *options]
        done = subprocess.run(call, capture_output=True, text=True, timeout=60, **given)
        return json.loads(done.stdout) if done.returncode == 0 else done.stderr

    yield inspected
    if server is not None:
        server.kill()
        server.wait()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def wait_for(port: int) -> None:
    for _ in range(300):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("the server does not listen")


def test_the_inspector_finds_one_tool_and_calls_it(inspect: Inspect) -> None:
    (tool,) = inspect("tools/list")["tools"]
    assert tool["name"] == "watch_man" and tool["description"].startswith("Looks at places.")
    assert tool["inputSchema"]["required"] == ["prompt"]
    asked = ["--tool-name", "watch_man", "--tool-arg", "prompt=look at 'shelf'", "new_conversation=true"]
    answer = inspect("tools/call", *asked)
    assert "shelf is empty" in answer["content"][0]["text"] and answer["isError"] is False
    assert answer["structuredContent"] == {"result": answer["content"][0]["text"]}


@pytest.mark.parametrize("inspect", ["http"], indirect=True)
def test_the_inspector_finds_nothing_else_and_is_told_what_is_wrong(inspect: Inspect) -> None:
    for name, told in (("other", "Unknown tool: other"), ("watch_man", "Field required")):
        refused = inspect("tools/call", "--tool-name", name)
        assert refused["isError"] is True and told in refused["content"][0]["text"]
    assert inspect("resources/list") == {"resources": []}
    assert inspect("resources/templates/list") == {"resourceTemplates": []}
    assert inspect("prompts/list") == {"prompts": []}
    assert "Unknown resource: a://b" in inspect("resources/read", "--uri", "a://b")
    assert "Unknown prompt: a" in inspect("prompts/get", "--prompt-name", "a")
