"""Real servers, written with the library `mcp`, over stdio and HTTP."""

from __future__ import annotations

import _thread
import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_connectagent import AgentTester

from connectagent import Agent, ConfigError, PluginWarning
from connectagent.testing import ScriptedLLM

pytest.importorskip("mcp_types", reason="the library mcp, 2.3 or newer, is not installed")

from connectagent_mcp import Mcp, tool_name
from connectagent_mcp.hub import Hub

SERVER = Path(__file__).with_name("server.py")
STDIO = {"p": {"command": sys.executable, "args": [str(SERVER)]}}
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("p_add", {"a": 1, "b": 2}),
    ("p_fail", {}),
    ("p_picture", {}),
    ("p_slow", {"seconds": 30}),
    ("p_slow", {"seconds": 2.5, "steps": 5}),
    ("p_list_resources", {}),
    ("p_read_resource", {"uri": "note://a"}),
    ("p_get_prompt", {"name": "greet", "arguments": {"name": "Bo"}}),
]


@pytest.fixture
def port() -> Iterator[int]:
    """The port of a server over HTTP."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, str(SERVER), str(number)], stderr=subprocess.DEVNULL)
    for _ in range(200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", number)) == 0:
                break
        time.sleep(0.05)
    yield number
    process.kill()
    process.wait()


def results(calls: list[tuple[str, dict[str, Any]]], plugin: Mcp) -> list[Any]:
    llm = ScriptedLLM(*calls, "done")
    with Agent("a", llm=llm, plugins=[plugin], quiet=True, log=False, max_iterations=30) as agent:
        assert agent.input("Go") == "done"
    return [message["content"] for message in llm.requests[-1].messages if message["role"] == "tool"]


def check(read: list[Any]) -> None:
    assert read[0] == "3"
    assert read[1].startswith("Error: McpError: ")
    assert read[2][0]["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
    assert read[3].endswith("did not answer within 1.5 s")
    assert read[4] == "slept"  # longer than the limit, but with progress
    assert "note://a" in read[5]
    assert read[6:8] == ["the note", "Greet Bo"]


@pytest.mark.parametrize("trusted", [False, True])
def test_a_strict_agent_asks_a_server_for_a_resource_or_prompt_only_if_the_person_trusts_it(trusted: bool) -> None:
    calls = [call for call in CALLS if call[0] in ("p_list_resources", "p_read_resource", "p_get_prompt")]
    llm = ScriptedLLM(*calls, "done")
    plugin = Mcp({"p": {**STDIO["p"], "trusted": trusted}})
    with Agent("a", llm=llm, plugins=[plugin], trust="strict", quiet=True, log=False) as agent:
        agent.input("Go")
        statuses = [entry["status"] for entry in agent.session["trace"] if entry["type"] == "tool_execution"]
    assert statuses == ["success", *(["success"] * 2 if trusted else ["rejected"] * 2)]


def test_a_server_over_stdio_gives_tools_resources_and_prompts_and_may_change_and_die() -> None:
    steps: list[float] = []
    plugin = Mcp(STDIO, timeout_s=1.5, on_progress=lambda server, tool, done, total, message: steps.append(done))
    read = results([*CALLS, ("p_grow", {}), ("p_late", {}), ("p_die", {}), ("p_add", {"a": 2, "b": 2})], plugin)
    check(read)
    assert steps == [1, 2, 3, 4, 5]
    assert read[8:10] == ["grown", "late"]
    assert read[10].startswith("Error: McpError: the MCP server 'p' ")  # it is not called twice
    assert read[11] == "4"  # by a new process


def test_a_server_over_http_gives_the_same(port: int) -> None:
    plugin = Mcp({"p": {"url": f"http://127.0.0.1:{port}/mcp"}}, timeout_s=1.5)
    read = results([*CALLS, ("p_die", {}), ("p_add", {"a": 1, "b": 1})], plugin)
    check(read)
    assert read[8].startswith("Error: McpError: ") and read[9].startswith("Error: McpError: ")


def test_a_hundred_agents_share_a_process_and_leave_none_behind() -> None:
    code = f"""
from connectagent import Agent
from connectagent.testing import ScriptedLLM
from pytest_connectagent import AgentTester
from connectagent_mcp import Mcp
spec = {STDIO!r}
agents = [Agent(f"a{{i}}", llm=ScriptedLLM(("p_process", {{}}), "x"), plugins=[Mcp(spec)], quiet=True, log=False)
          for i in range(100)]
for agent in agents:
    agent.input("Go")
print({{[m for m in agent.session["messages"] if m["role"] == "tool"][0]["content"] for agent in agents}})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), timeout=60)
    assert done.returncode == 0, done.stderr
    (number,) = eval(done.stdout)
    with pytest.raises(ProcessLookupError):
        os.kill(int(number), 0)


def test_a_server_that_does_not_start_is_a_warning_that_quotes_it() -> None:
    broken = {"b": {"command": sys.executable, "args": ["-c", "raise SystemExit('no key')"], "start_s": 5}}
    with pytest.warns(PluginWarning, match=r"'b' cannot be reached(.|\n)*no key"):
        assert results([("b_x", {})], Mcp(broken))[0].startswith("Error: there is no tool 'b_x'")


WRONG = [{}, {"command": "x", "url": "http://y"}, {"comand": "x"}, {"command": "${NO}"}, {"command": "x", "only": 1}]


@pytest.mark.parametrize("server", [*WRONG, {"command": "x", "trusted": "${NO:-false}"}])
def test_a_mistake_in_a_description_is_an_error(server: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="mcp: "):
        Mcp({"p": server})


def test_one_name_in_only_is_that_tool_and_none_whose_name_is_a_part_of_it() -> None:
    agent = Agent("a", model="offline", plugins=[Mcp({"p": {**STDIO["p"], "only": "process_id"}})], quiet=True)
    assert "p_process" not in agent.tools
    assert Mcp({"p": {"command": "x", "only": "add"}}).servers[0]["only"] == ["add"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_variables_are_filled_in_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    monkeypatch.setenv("WHERE", "here")
    file, text = tmp_path / ".mcp.json", '{"type": "stdio", "command": "x", "args": ["${WHERE}", "${NO:-b}"]}'
    file.write_text(f'{{"mcpServers": {{"p": {text}}}}}', encoding)
    assert Mcp(file=str(file)).servers == [{"name": "p", "command": "x", "args": ["here", "b"]}]


def test_names_are_such_as_providers_take() -> None:
    assert tool_name("a b", "c.d") == "a_b_c_d"
    assert len(tool_name("server", "x" * 100)) == 64
    assert tool_name("s", "x" * 100) != tool_name("s", "x" * 101)


def test_it_keeps_the_rules_on_every_path(agenttester: AgentTester) -> None:
    checked = agenttester.check(Mcp(STDIO), changes={"tools"})
    assert {"on_agent_ready", "after_user_input", "after_tools"} <= checked.hooks


TICKS = """
import sys, asyncio
from mcp.server import MCPServer

server = MCPServer("ticks")

@server.tool()
async def tick() -> str:
    "Write to a file for a minute."
    for _ in range(1200):
        with open(sys.argv[1], "a") as file:
            file.write("x")
        await asyncio.sleep(0.05)
    return "done"

server.run("stdio")
"""


@pytest.mark.parametrize("how", ["cancelled", "interrupted"])
def test_a_server_is_told_that_nobody_waits_for_a_call_any_more(how: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    (tmp_path / "ticks.py").write_text(TICKS)
    plugin = Mcp({"p": {"command": sys.executable, "args": [str(tmp_path / "ticks.py"), str(mark)]}})

    async def cancelled(agent: Agent) -> None:
        async with asyncio.timeout(1.5):
            await agent.ainput("Go")

    with Agent("a", llm=ScriptedLLM(("p_tick", {}), "done"), plugins=[plugin], quiet=True, log=False) as agent:
        if how == "cancelled":
            with pytest.raises(TimeoutError):
                asyncio.run(cancelled(agent))
        else:
            threading.Timer(1.5, _thread.interrupt_main).start()
            with pytest.raises(KeyboardInterrupt):
                agent.input("Go")
        time.sleep(0.3)
        size = mark.stat().st_size
        time.sleep(0.4)
        assert size > 0 and mark.stat().st_size == size


def test_a_hub_without_connections_closes() -> None:
    Hub().close()


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def test_an_agent_is_a_server_for_the_official_client(tmp_path: Path) -> None:
    from mcp import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    (tmp_path / "script.py").write_text(
        "from connectagent import Agent\n"
        "def look(place: str) -> str:\n"
        "    '''Look.'''\n"
        "    print('noise')\n"
        "    return f'{place} is empty'\n"
        "agent = Agent('watch man', [look], model='offline', description='Looks at places.')\n"
    )
    code = "from connectagent_mcp.serve import group; group()"
    server = StdioServerParameters(
        command=sys.executable, args=["-W", "ignore", "-c", code, "serve", "script.py"], env=environment(), cwd=tmp_path
    )

    async def ask() -> tuple[Any, Any]:
        # Without `errlog` the client takes what sys.stderr was when its module was imported: a captured one in tests.
        with open(tmp_path / "errors.log", "w") as errors:
            async with Client(stdio_client(server, errlog=errors)) as client:
                tools = (await client.list_tools()).tools
                return tools, await client.call_tool("watch_man", {"prompt": "look at 'shelf'"})

    tools, result = asyncio.run(ask())
    assert [tool.name for tool in tools] == ["watch_man"] and "Looks at places." in str(tools[0].description)
    assert not result.is_error and "shelf is empty" in result.content[0].text
