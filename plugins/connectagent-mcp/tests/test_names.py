"""No two tools of servers have one name, and no rule for a server's tools fits another server's."""

from __future__ import annotations

import fnmatch
import itertools
import random
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from connectagent import Agent
from connectagent.testing import ScriptedLLM

pytest.importorskip("mcp_types", reason="the library mcp, 2.3 or newer, is not installed")

from connectagent_mcp import Mcp, tool_name
from connectagent_mcp.names import ToolNames, plain_name

OFFERS = """
import sys
from mcp.server import MCPServer
server = MCPServer(sys.argv[1])
for name in sys.argv[2:]:
    server.add_tool(lambda: " ".join(sys.argv[1:2]), name=name, description="Say whose tool it is.")
server.run()
"""


def described(tmp_path: Path, servers: dict[str, list[str]]) -> dict[str, Any]:
    script = tmp_path / "offers.py"
    script.write_text(OFFERS)
    return {
        name: {"command": sys.executable, "args": [str(script), name, *tools]} for name, tools in servers.items()
    }


def names_in(agent: Agent) -> list[str]:
    """The names of the tools, without those for resources and prompts."""
    return sorted(name for name in agent.tools.names() if not re.search("_(list|read|get)_[a-z]+$", name))


@pytest.mark.parametrize("order", [["a", "a_b"], ["a_b", "a"]])
def test_each_of_two_servers_has_its_own_tools(order: list[str], tmp_path: Path) -> None:
    offered = {"a": ["b_c", "d"], "a_b": ["c", "d"]}
    spec = described(tmp_path, {name: offered[name] for name in order})
    llm = ScriptedLLM("done")
    with pytest.warns(UserWarning, match="the tools of 'a_b' begin with 'a-b'"):
        agent = Agent("x", llm=llm, plugins=[Mcp(spec)], quiet=True, log=False)
    with agent:
        names = names_in(agent)
        assert len(names) == 4 and names == sorted({*names, "a_d", "a-b_c", "a-b_d"})
        (other,) = set(names) - {"a_d", "a-b_c", "a-b_d"}
        assert re.fullmatch("a_[0-9a-f]{8}_b_c", other)
        told = {name: agent.execute_tool(name, {})["result"] for name in names}
    assert told == {"a_d": "a", other: "a", "a-b_c": "a_b", "a-b_d": "a_b"}


def test_only_takes_tools_of_its_own_server(tmp_path: Path) -> None:
    spec = described(tmp_path, {"a": ["b_c", "c"], "a_b": ["c", "b_c"]})
    spec["a"]["only"] = ["c"]
    spec["a_b"]["only"] = ["c"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        agent = Agent("x", llm=ScriptedLLM("done"), plugins=[Mcp(spec)], quiet=True, log=False)
    with agent:
        assert names_in(agent) == ["a-b_c", "a_c"]


@pytest.mark.parametrize("rule", ["a_*", "a_b_*", "a_b_c", "a-b_*", "a_?_c"])
def test_a_rule_of_a_policy_fits_tools_of_one_server(rule: str, tmp_path: Path) -> None:
    policy = pytest.importorskip("connectagent_policy")
    spec = described(tmp_path, {"a": ["b_c", "b", "c"], "a_b": ["c", "c_d"]})
    guard = policy.Policy(text=f"rules:\n  - allow: {rule!r}\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        probe = Agent("x", llm=ScriptedLLM("done"), plugins=[Mcp(spec)], quiet=True, log=False)
        with probe:
            names = names_in(probe)
        llm = ScriptedLLM([(name, {}) for name in names], "done")
        agent = Agent("x", llm=llm, plugins=[Mcp(spec), guard], quiet=True, log=False)
    with agent:
        agent.input("Go")
        calls = [entry for entry in agent.session["trace"] if entry["type"] == "tool_execution"]
        ran = {entry["result"] for entry in calls if entry["status"] == "success"}
    assert len(calls) == len(names)
    assert len(ran) <= 1


def test_names_that_are_unique_stay_as_they_were() -> None:
    names = ToolNames(["time", "git-hub", "my server", "git"])
    assert names.of("time", "now") == "time_now" and names.of("git-hub", "b.c") == "git-hub_b_c"
    assert names.of("my server", "x") == "my_server_x" == tool_name("my server", "x") and names.renamed() == []
    assert len(names.of("time", "x" * 100)) == 64 and names.of("time", "x" * 100) != names.of("time", "x" * 101)


def test_tools_of_one_server_that_differ_in_letters_that_no_provider_takes_have_names_of_their_own() -> None:
    names = ToolNames(["s"])
    found = {names.of("s", tool, True) for tool in ("x.y", "x_y", "x/y", "x y")}
    assert len(found) == 4 and "s_x_y" in found


def test_no_name_is_anothers_whatever_servers_there_are() -> None:
    chance = random.Random(7)
    parts = ["a", "b", "c", "_", "-", " ", ".", "a_b", "__", "é"]
    words = sorted({"".join(chance.choices(parts, k=chance.randrange(1, 5))) for _ in range(400)})
    for _ in range(300):
        servers = chance.sample(words, 4)
        names = ToolNames(servers)
        again = ToolNames(chance.sample(servers, len(servers)))
        tools = [(server, tool) for server in servers for tool in chance.sample(words, 12)]
        given = {pair: names.of(*pair, True) for pair in tools}
        assert given == {pair: again.of(*pair, True) for pair in tools}
        assert len(set(given.values())) == len(given), servers
        assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in given.values())
        for one, other in itertools.permutations(servers, 2):
            for pattern in (f"{plain_name(one)}_*", f"{names.prefixes[one]}_*"):
                if pattern == f"{plain_name(other)}_*" and pattern != f"{names.prefixes[one]}_*":
                    continue  # both are written so: the rule is of the one whose name it is
                hit = [given[pair] for pair in tools if pair[0] == other and fnmatch.fnmatchcase(given[pair], pattern)]
                assert not hit, (servers, one, other, hit)
