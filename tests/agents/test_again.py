"""Agents of the same definition: `agent.again()`, and agents that travel to another process."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from connectagent import (
    Agent,
    ConnectAgentError,
    Loop,
    Parallel,
    Pause,
    Paused,
    ProviderError,
    Sequential,
    ToolCall,
    ToolRejected,
    after_tools,
    after_user_input,
    before_each_tool,
    before_llm,
    on_agent_ready,
)
from connectagent.testing import ScriptedLLM, call


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def shout(text: str) -> str:
    """Make a text loud."""
    return text.upper()


@before_each_tool
def guard(agent: Agent) -> None:
    raise ToolRejected("never")


@after_tools
def count(agent: Agent) -> None:
    agent.state["rounds"] = agent.state.get("rounds", 0) + 1


class Helper(Agent):
    """A subclass with arguments of its own."""

    def __init__(self, who: str, words: int = 1) -> None:
        super().__init__(who, tools=[add], plugins=[guard], quiet=True, log=False)
        self.words = words


def agent_of(name: str = "a", **options: Any) -> Agent:
    return Agent(name, **{"tools": [add], "quiet": True, "log": False, **options})


def plugins_of(agent: Agent) -> list[str]:
    return [handler.plugin for handler in agent.hooks.loaded]


def test_a_fresh_agent_has_the_same_definition_and_no_session() -> None:
    agent = agent_of(plugins=[guard], system_prompt="Be kind.", state={"a": 1}, max_iterations=4)
    agent.input("hello")
    fresh = agent.again()
    assert (fresh.name, fresh.system_prompt, fresh.max_iterations) == ("a", "Be kind.", 4)
    assert (fresh.list_tools(), plugins_of(fresh)) == (["add"], ["guard"])
    assert fresh.current_session is None and fresh.hooks is not agent.hooks


def test_what_was_added_and_removed_since_counts() -> None:
    agent = agent_of(plugins=[guard])
    agent.add_tool(shout)
    agent.remove_tool("add")
    agent.hooks.register(count)
    agent.hooks.unregister(guard)
    agent.max_iterations = 2
    fresh = agent.again().again()
    assert (fresh.list_tools(), plugins_of(fresh), fresh.max_iterations) == (["shout"], ["count"], 2)


class Bringer:
    """A plugin with tools: one from the beginning, one from the first turn on."""

    name = "bringer"

    @on_agent_ready
    def bring(self, agent: Agent) -> None:
        agent.add_tool(add)

    @after_user_input
    def bring_more(self, agent: Agent) -> None:
        if "shout" not in agent.tools:
            agent.add_tool(shout)


@pytest.mark.parametrize("used", [False, True])
def test_tools_that_plugins_bring_are_brought_to_a_fresh_agent_once(used: bool) -> None:
    below = Agent("below", model="offline", quiet=True)
    agent = Agent("helper", model="offline", plugins=[Bringer()], sub_agents=[below], quiet=True, log=False)
    if used:
        agent.input("Hello")
    for fresh in (agent.again(), pickle.loads(pickle.dumps(agent))):
        assert fresh.tools.names() == ["add", "transfer_to_agent", *["shout"] * used]
        assert fresh.sub_agents[0].tools.names() == ["add", "transfer_to_agent"]
    assert below.again().tools.names() == ["add"]
    agent.remove_tool("add")
    assert "add" not in agent.again().tools and "add" not in agent.again().again().tools
    with agent:
        assert [item.status for item in agent.map(["one", "two"])] == ["answered", "answered"]


def test_plugins_are_added_and_none_is_lost() -> None:
    seen: list[str] = []

    @before_llm
    def look(agent: Agent) -> None:
        seen.append(agent.name)

    llm = ScriptedLLM(call("add", a=1, b=2), "done")
    fresh = agent_of(plugins=[guard], llm=llm).again(plugins=[look]).again(plugins=[count])
    fresh.input("add")
    assert sorted(plugins_of(fresh)) == ["count", "guard", "look"]
    assert seen and fresh.state["rounds"] == 1
    assert [e["status"] for e in fresh.session["trace"] if e["type"] == "tool_execution"] == ["rejected"]


@pytest.mark.parametrize("workflow", [Sequential, Parallel, Loop])
def test_the_agents_below_are_fresh_too(workflow: Any) -> None:
    below = [agent_of("x"), agent_of("y", tools=[agent_of("z")])]
    tree = workflow("s", below, plugins=[guard], quiet=True, log=False)
    fresh = tree.again()
    assert [agent.branch for agent in fresh.below] == ["s.x", "s.y", "s.y.z"]
    assert not {id(agent) for agent in fresh.below} & {id(agent) for agent in tree.below}
    assert all("guard" in plugins_of(agent) for agent in fresh.below)
    assert fresh.input("hi")
    assert all(agent.current_session is None for agent in tree.below)


def test_an_agent_of_a_tree_keeps_the_guards_that_it_inherits() -> None:
    child = agent_of("child")
    Agent("top", sub_agents=[child], plugins=[guard], trust="strict", quiet=True, log=False)
    alone = child.again()
    assert alone.parent is None and {"guard", "trust"} <= set(plugins_of(alone))


@before_llm
def first() -> None:
    """See a request before others."""


@before_llm
def middle() -> None:
    """See a request between others."""


@before_llm
def last() -> None:
    """See a request after others."""


def seen_below(agent: Agent) -> list[str]:
    return [handler.plugin for handler in agent.below[0].hooks.handlers("before_llm") if not handler.builtin]


def test_plugins_of_the_parent_come_first_below_in_each_fresh_tree() -> None:
    tree = agent_of("top", sub_agents=[agent_of("below", plugins=[last])], plugins=[first])
    fresh = [tree, tree.again(), tree.again().again(), pickle.loads(pickle.dumps(tree))]
    assert [seen_below(agent) for agent in fresh] == [["first", "last"]] * 4
    assert seen_below(tree.again(plugins=[middle])) == ["first", "middle", "last"]


def test_a_plugin_that_a_fresh_tree_leaves_out_is_left_out_below() -> None:
    tree = agent_of("top", sub_agents=[agent_of("below", sub_agents=[agent_of("low")])], plugins=[first, guard])
    for fresh in (tree.again(plugins=["no:guard"]), tree.again().again(plugins="no:guard").again()):
        assert [set(plugins_of(agent)) & {"first", "guard"} for agent in [fresh, *fresh.below]] == [{"first"}] * 3


def test_a_trust_policy_travels_with_a_tree_and_with_an_agent_of_it() -> None:
    below = agent_of("below", llm=None, model="offline")
    top = agent_of("top", sub_agents=[below], trust="strict", llm=None, model="offline")
    tree, alone = pickle.loads(pickle.dumps(top)), pickle.loads(pickle.dumps(below))
    assert [plugins_of(agent).count("trust") for agent in (tree, tree.below[0], alone)] == [1, 1, 1]
    with pytest.raises(ToolRejected, match="only tools that change nothing may run"):
        alone.hooks.handlers("before_each_tool")[-1].function(alone, ToolCall("c1", "add", {"a": 1, "b": 2}))


def test_the_guards_that_a_fresh_agent_had_from_its_parent_stay_in_another_tree_too() -> None:
    child = agent_of("child", sub_agents=[agent_of("low")], plugins=[last])
    agent_of("top", sub_agents=[child], plugins=[guard], trust="strict")
    alone = child.again().again()
    agent_of("other", sub_agents=[alone], plugins=[first])
    assert seen_below(alone.root) == ["first", "last"]
    assert all({"guard", "trust"} <= set(plugins_of(agent)) for agent in (alone, alone.below[0]))


def test_a_subclass_is_made_with_its_own_arguments() -> None:
    fresh = Helper("h", words=5).again()
    assert isinstance(fresh, Helper) and fresh.words == 5


@pytest.mark.parametrize("tree", [False, True], ids=["alone", "tree"])
def test_pickling_sends_the_definition(tree: bool) -> None:
    agent: Agent = Helper("h", 3)
    if tree:
        agent = Sequential("s", [agent_of("x", plugins=[guard]), agent_of("y")], plugins=[count], quiet=True, log=False)
    agent.add_tool(shout)
    agent.hooks.register(count) if not tree else None
    agent.input("hello")
    there = pickle.loads(pickle.dumps(agent))
    assert type(there) is type(agent) and there.current_session is None
    assert (there.list_tools(), plugins_of(there)) == (agent.list_tools(), plugins_of(agent))
    assert [plugins_of(one) for one in there.below] == [plugins_of(one) for one in agent.below]
    assert there.input("hi")


def test_another_process_takes_a_turn_and_its_guard_acts(tmp_path: Path) -> None:
    (tmp_path / "made.py").write_text(
        "from connectagent import Agent, ToolRejected, before_each_tool\n"
        "def pay(amount: int) -> str:\n    'Pay.'\n    open('paid', 'w').close()\n    return 'paid'\n"
        "@before_each_tool\ndef guard(agent):\n    raise ToolRejected('no')\n"
        "agent = Agent('payer', tools=[pay], plugins=[guard], quiet=True, log=False)\n"
    )
    (tmp_path / "main.py").write_text(
        "from concurrent.futures import ProcessPoolExecutor\nfrom multiprocessing import get_context\n"
        "from made import agent\n"
        "def take(agent):\n"
        "    agent.input('pay 5')\n"
        "    return [e['status'] for e in agent.session['trace'] if e['type'] == 'tool_execution']\n"
        "if __name__ == '__main__':\n"
        "    with ProcessPoolExecutor(1, mp_context=get_context('spawn')) as pool:\n"
        "        print(pool.submit(take, agent).result())\n"
    )
    done = subprocess.run([sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "['rejected']", done.stderr
    assert not (tmp_path / "paid").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"api_key": "sk-1234567890", "model": "gpt-4o"}, "api_key=..., which does not travel"),
        ({"tools": [lambda: 1]}, "tools="),
        ({"plugins": [after_tools(lambda agent: None)]}, "plugins="),
    ],
)
def test_what_cannot_travel_is_named(options: dict[str, Any], words: str) -> None:
    for tool in options.get("tools", ()):
        tool.__name__, tool.__annotations__ = "one", {"return": int}
    with pytest.raises(TypeError) as caught:
        pickle.dumps(agent_of(**options))
    assert words in str(caught.value) and "sk-1234567890" not in str(caught.value)


def test_errors_travel_with_what_they_say() -> None:
    @before_each_tool
    def ask() -> None:
        raise Pause("may it?")

    def work(n: int) -> str:
        """Work."""
        return "done"

    with pytest.raises(Paused) as caught:
        Agent("clerk", [work], llm=ScriptedLLM(call("work", n=1)), plugins=[ask], quiet=True).input("Go")
    paused = pickle.loads(pickle.dumps(caught.value))
    assert type(paused) is Paused and str(paused) == str(caught.value)
    assert vars(paused) == vars(caught.value) and paused.waiting[0].reason == "may it?"
    down = pickle.loads(pickle.dumps(ProviderError("down", kind="server", provider="x", status=500, retry_after_s=2)))
    assert (str(down), down.kind, down.status, down.retry_after_s) == ("down", "server", 500, 2)
    for kind in _kinds(ConnectAgentError):
        if not any("__init__" in vars(base) for base in kind.__mro__ if issubclass(base, ConnectAgentError)):
            assert type(pickle.loads(pickle.dumps(kind("why")))) is kind


def _kinds(kind: type[ConnectAgentError]) -> Iterator[type[ConnectAgentError]]:
    yield kind
    for other in kind.__subclasses__():
        yield from _kinds(other)


def test_cloudpickle_sends_functions_too() -> None:
    cloudpickle = pytest.importorskip("cloudpickle")

    @before_each_tool
    def refuse(agent: Agent) -> None:
        raise ToolRejected("never")

    there = pickle.loads(cloudpickle.dumps(agent_of(plugins=[refuse])))
    assert plugins_of(there) == ["refuse"] and there.input("hi")


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy])
def test_a_copy_is_refused_and_the_ways_are_named(how: Any) -> None:
    with pytest.raises(TypeError, match=r"agent\.again\(\).*fork=True"):
        how(agent_of())
