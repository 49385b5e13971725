"""A tree of agents: names, parents, what is found, and the plugins that children inherit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from connectagent import (
    Agent,
    ConfigError,
    Sequential,
    after_tools,
    before_each_tool,
    before_llm,
    on_agent_ready,
    on_complete,
)
from connectagent.testing import HookRecorder, ScriptedLLM


def made(name: str, *script: Any, **options: Any) -> Agent:
    return Agent(name, llm=ScriptedLLM(*script), log=False, quiet=True, **options)


def test_a_tree_knows_parents_root_branches_and_names() -> None:
    invoices, helper = made("invoices"), made("helper")
    billing = made("billing", sub_agents=[invoices])
    root = made("root", sub_agents=billing, tools=[helper])
    assert (root.parent, billing.parent, invoices.parent, helper.parent) == (None, root, billing, root)
    assert {agent.root for agent in (root, billing, invoices, helper)} == {root}
    assert [agent.branch for agent in (root, billing, invoices, helper)] == [
        "root",
        "root.billing",
        "root.billing.invoices",
        "root.helper",
    ]
    assert root.find("invoices") is invoices and billing.find("billing") is billing
    assert billing.find("helper") is None and billing.root.find("helper") is helper


@pytest.mark.parametrize("name", ["user", "a b", "1x", "a.b", "é", "x" * 65])
@pytest.mark.parametrize("place", ["parent", "sub_agent", "tool"])
def test_a_name_that_cannot_be_in_a_tree_is_refused_when_the_tree_is_made(name: str, place: str) -> None:
    child = made("child" if place == "parent" else name)
    top = name if place == "parent" else "top"
    given: Any = {"tools": [child]} if place == "tool" else {"sub_agents": [child]}
    with pytest.raises(ConfigError, match="cannot be named") as told:
        made(top, **given)
    assert repr(name) in str(told.value) and isinstance(told.value, ValueError)
    assert child.parent is None and child.labels == {}


def test_a_lone_agent_may_have_any_name() -> None:
    assert made("a b", "Hi.").input("x") == "Hi."
    with pytest.raises(ConfigError):
        made("")


def test_two_agents_of_one_name_are_refused_with_both_places() -> None:
    left, right = made("left", sub_agents=[made("same")]), made("right", tools=[made("same")])
    with pytest.raises(ConfigError, match=r"'same': 'root\.left\.same' and 'root\.right\.same'"):
        made("root", sub_agents=[left, right])
    with pytest.raises(ConfigError, match=r"'root' and 'root\.root'"):
        made("root", sub_agents=[made("root")])
    with pytest.raises(ConfigError, match="'twin'"):
        made("root", tools=[made("twin"), made("twin")])
    assert left.parent is None and right.parent is None and left.branch == "left"


def test_an_agent_has_one_parent() -> None:
    child = made("child")
    first = made("first", sub_agents=[child])
    with pytest.raises(ConfigError, match=r"'child' is under 'first' already \('first\.child'\).*'second'"):
        made("second", tools=[child])
    with pytest.raises(ConfigError, match="twice"):
        other = made("other")
        made("third", sub_agents=[other], tools=[other])
    assert child.parent is first and other.parent is None


def test_an_agent_cannot_be_under_itself() -> None:
    child = made("child")
    root = made("root", sub_agents=[child])
    for agent in (root, child):
        with pytest.raises(ConfigError, match="under itself"):
            agent.add_tool(agent)
    with pytest.raises(ConfigError, match="under itself"):
        child.add_tool([root])
    assert root.parent is None and root.list_tools() == ["transfer_to_agent"]


def test_what_is_no_agent_is_refused_as_sub_agent() -> None:
    with pytest.raises(ConfigError, match="takes agents, not str 'billing'"):
        made("root", sub_agents=["billing"])


def test_a_failed_construction_leaves_no_half_made_tree() -> None:
    @on_agent_ready
    def broken(agent: Agent) -> None:
        if agent.name == "second":
            raise OSError("no disk")

    first, second = made("first"), made("second")
    with pytest.raises(OSError, match="no disk"):
        made("root", sub_agents=[first, second], plugins=[broken])
    for child in (first, second):
        assert child.parent is None and child.branch == child.name and child.labels == {}
        assert child.list_tools() == [] and child.hooks.handlers("on_agent_ready")[-1:] == ()
    root = made("root", sub_agents=[first, second])
    assert first.parent is root and first.list_tools() == ["transfer_to_agent"]

    def transfer_to_agent() -> str:
        """Mine."""
        return ""

    third = made("third")
    with pytest.raises(TypeError, match="transfer_to_agent"):
        made("top", tools=[transfer_to_agent], sub_agents=[third])
    assert third.parent is None and third.list_tools() == []


def test_an_agent_that_is_added_as_a_tool_joins_and_one_that_is_removed_leaves() -> None:
    root, helper = (
        made("root", ("helper", {"prompt": "go"}), "Done.", plugins=[counting := Counting()]),
        made("helper", "Ok."),
    )
    root.add_tool(helper)
    assert helper.parent is root and helper.branch == "root.helper"
    assert root.input("Hi") == "Done." and counting.seen == ["root", "helper", "root"]
    root.remove_tool("helper")
    assert helper.parent is None and helper.labels == {} and root.labels == {}
    assert len(helper.hooks.handlers("before_llm")) == 0


class Counting:
    def __init__(self) -> None:
        self.seen: list[str] = []

    @before_llm
    def count(self, agent: Agent) -> None:
        self.seen.append(agent.name)


def test_children_inherit_handlers_before_their_own_and_through_generations() -> None:
    seen: list[tuple[str, str]] = []

    def noting(label: str) -> Any:
        @before_llm
        def note(agent: Agent) -> None:
            seen.append((label, agent.name))

        return note

    grandchild = made("grandchild", "3", plugins=[noting("grandchild")])
    child = made("child", ("grandchild", {"prompt": "go"}), "2", tools=[grandchild], plugins=[noting("child")])
    root = made("root", ("child", {"prompt": "go"}), "1", tools=[child], plugins=[noting("root")])
    assert root.input("go") == "1"
    assert seen[:1] == [("root", "root")]
    assert seen[1:3] == [("root", "child"), ("child", "child")]
    assert seen[3:6] == [("root", "grandchild"), ("child", "grandchild"), ("grandchild", "grandchild")]


def test_on_events_act_in_their_agent_only() -> None:
    mine, everywhere = Counting(), Counting()

    @on_complete
    def replace(agent: Agent) -> str:
        return f"replaced in {agent.name}"

    one = Sequential("inner", [made("one", "1")], log=False, quiet=True)
    asking = made("asking", ("asked", {"prompt": "go"}), "2", tools=[made("asked", "3")])
    asking.add_tool(made("added"))
    root = Sequential(
        "root", [one, asking], log=False, quiet=True, on_events=[mine, replace], plugins=[everywhere]
    )
    assert root.input("go") == "replaced in root"
    assert mine.seen == [] and everywhere.seen == ["one", "asking", "asked", "asking"]
    assert [child.current_session["result"] for child in root.sub_agents] == ["1", "2"]  # type: ignore[index]


def test_a_plugin_that_a_child_lists_itself_runs_once_there() -> None:
    counting = Counting()
    child = made("child", "2", plugins=[counting])
    root = made("root", ("child", {"prompt": "go"}), "1", tools=[child], plugins=[counting])
    root.input("go")
    assert counting.seen == ["root", "child", "root"]


def test_a_child_with_an_object_of_its_own_for_a_plugin_keeps_its_own() -> None:
    mine, theirs = Counting(), Counting()
    child = made("child", "2", plugins=[mine])
    root = made("root", ("child", {"prompt": "go"}), "1", tools=[child], plugins=[theirs])
    root.input("go")
    assert mine.seen == ["child"] and theirs.seen == ["root", "root"]


def test_a_child_may_do_without_its_parents_plugins() -> None:
    counting = Counting()
    child = made("child", "2", inherit_plugins=False)
    root = made("root", ("child", {"prompt": "go"}), "1", tools=[child], plugins=[counting])
    root.input("go")
    assert counting.seen == ["root", "root"]


def test_a_child_may_leave_one_plugin_of_its_parent_out_by_name() -> None:
    counting = Counting()
    child = made("child", plugins=["no:trust"])
    made("root", tools=[child], plugins=[counting], trust="strict")
    assert {handler.plugin for handler in child.hooks.loaded} == {"Counting"}


def test_a_plugin_may_act_in_its_own_agent_only() -> None:
    class Own:
        inherited = False

        @before_llm
        def note(self, agent: Agent) -> None:
            noted.append(agent.name)

    noted: list[str] = []
    plugin = Own()
    child = made("child", "1")
    made("parent", ("child", {"prompt": "Go"}), "2", tools=[child], plugins=[plugin]).input("Hi")
    assert noted == ["parent", "parent"]
    listing = made("child", "1", plugins=[plugin])
    made("parent", ("child", {"prompt": "Go"}), "2", tools=[listing], plugins=[plugin]).input("Hi")
    assert noted[2:] == ["parent", "child", "parent"]


def test_an_inherited_plugin_meets_the_child_when_the_tree_is_made() -> None:
    met: list[str] = []

    def look() -> str:
        """Look."""
        return "seen"

    @on_agent_ready
    def ready(agent: Agent) -> None:
        met.append(agent.name)
        agent.add_tool(look)

    grandchild = made("grandchild")
    child = made("child", sub_agents=[grandchild])
    made("root", sub_agents=[child], plugins=[ready])
    assert sorted(met) == ["child", "grandchild", "root"]
    assert "look" in grandchild.tools


def test_each_agent_has_its_own_built_in_plugins_and_its_parents_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path))

    def wipe() -> str:
        """Wipe."""
        return "gone"

    child = Agent("child", tools=[wipe], llm=ScriptedLLM(("wipe", {}), "2"), quiet=True)
    root = Agent("root", tools=[child], llm=ScriptedLLM(("child", {"prompt": "x"}), "1"), trust="open", quiet=True)
    assert len(child.hooks.handlers("around_turn")) == len(root.hooks.handlers("around_turn")) == 1
    root.input("go")
    assert [path.name[:5] for path in tmp_path.glob("evals/*.yaml")] == ["root_"]

    strict_child = made("child", ("wipe", {}), "2", tools=[wipe])
    made("root", ("child", {"prompt": "x"}), "1", tools=[strict_child], trust="strict")
    assert strict_child.input("go") == "2"
    assert strict_child.current_session is not None
    assert strict_child.current_session["trace"][2]["status"] == "rejected"


def test_handlers_know_in_which_agent_they_run_and_cost_is_kept_apart() -> None:
    recorder = HookRecorder()
    child = made("child", "2")
    root = made("root", ("child", {"prompt": "go"}), "1", tools=[child], plugins=[recorder])
    root.input("go")
    assert recorder.names.count("around_turn:enter") == 2
    calls = {row["hook"]: row["calls"] for row in child.ledger}
    assert calls["before_llm"] == 1 and {row["hook"]: row["calls"] for row in root.ledger}["before_llm"] == 2


def test_a_guard_of_the_root_refuses_a_childs_call() -> None:
    from connectagent import ToolRejected

    @before_each_tool
    def no_wiping(tool_call: Any) -> None:
        if tool_call.name == "wipe":
            raise ToolRejected("No.")

    def wipe() -> str:
        """Wipe."""
        raise AssertionError("it ran")

    child = made("child", ("wipe", {}), "2", tools=[wipe])
    root = made("root", ("child", {"prompt": "go"}), "1", tools=[child], plugins=[no_wiping])
    root.input("go")
    assert child.current_session is not None
    assert child.current_session["messages"][2]["content"] == "rejected: No."


def test_each_entry_of_a_tree_tells_who_wrote_it_and_where() -> None:
    @after_tools
    def own_entry(agent: Agent) -> None:
        assert agent.current_session is not None
        agent.current_session["trace"].append({"type": "mine"})

    child = made("child", "2")
    root = made("root", ("child", {"prompt": "go"}), "1", tools=[child], plugins=[own_entry])
    root.input("go")
    assert root.current_session is not None and child.current_session is not None
    entries = root.current_session["trace"]
    assert {entry["author"] for entry in entries} == {"root"} and "mine" in [entry["type"] for entry in entries]
    assert {entry["branch"] for entry in entries if entry["type"] != "agent_turn"} == {"root"}
    assert {(e["author"], e["branch"]) for e in child.current_session["trace"]} == {("child", "root.child")}
    lone = made("lone", "1")
    lone.input("x")
    assert lone.current_session is not None
    assert not any("author" in entry for entry in lone.current_session["trace"])


def test_a_reset_forgets_the_conversations_of_the_whole_tree() -> None:
    child = made("child", "2")
    root = made("root", ("child", {"prompt": "go"}), "1", tools=[child])
    root.input("go")
    root.reset_conversation()
    assert root.current_session is None and child.current_session is None
