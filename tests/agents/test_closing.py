"""The end of an agent's life: who learns of it, when, and what is left behind."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
from test_discovery import site  # noqa: F401  a fixture

from connectagent import Agent, PluginError, PluginWarning, after_tools, on_agent_closed
from connectagent.testing import ScriptedLLM, call

ROOT = Path(__file__).parents[2]


class Notes:
    """A plugin that notes which agents were closed."""

    name = "notes"

    def __init__(self, *, raises: bool = False) -> None:
        self.closed: list[str] = []
        self.raises = raises

    @on_agent_closed
    def note(self, agent: Any) -> None:
        self.closed.append(agent.name)
        if self.raises:
            raise ValueError(f"no end for {agent.name}")


def made(name: str = "a", **arguments: Any) -> Agent:
    return Agent(name, llm=ScriptedLLM("Done.", "Done."), quiet=True, **{"log": False, **arguments})


def test_an_agent_is_closed_once() -> None:
    notes = Notes()
    agent = made(plugins=[notes])
    assert agent.input("Go.") == "Done."
    agent.close()
    agent.close()
    assert notes.closed == ["a"] and agent.closed


def test_with_closes_it_where_the_block_raises_too() -> None:
    notes = Notes()
    with pytest.raises(KeyError), made(plugins=[notes]) as agent:
        agent.input("Go.")
        raise KeyError
    assert notes.closed == ["a"]


@pytest.mark.parametrize("step", ["input", "resume", "reset_conversation"])
def test_a_closed_agent_takes_no_turn(step: str) -> None:
    agent = made()
    agent.input("Go.")
    agent.close()
    with pytest.raises(RuntimeError, match=r"agent 'a' is closed; .* make a new agent"):
        getattr(agent, step)(*(["Go."] if step == "input" else []))


def test_an_agent_is_not_closed_inside_its_turn() -> None:
    @after_tools
    def shut(agent: Any) -> None:
        agent.close()

    agent = made(plugins=[shut], tools=[lambda_tool])
    agent.llm = ScriptedLLM(call("lambda_tool"), "Done.")
    with pytest.raises(RuntimeError, match="is in a turn"):
        agent.input("Go.")
    assert not agent.closed


def lambda_tool() -> str:
    """Do nothing."""
    return "nothing"


def test_agents_below_are_closed_first_and_plugins_of_the_tree_know_of_each() -> None:
    notes = Notes()
    leaf = made("leaf", description="A leaf.")
    middle = made("middle", sub_agents=[leaf], description="A middle.")
    made("root", sub_agents=[middle], plugins=[notes]).close()
    assert notes.closed == ["leaf", "middle", "root"]


def test_every_handler_runs_and_the_first_error_is_raised() -> None:
    first, second, third = Notes(raises=True), Notes(raises=True), Notes()
    second.name, third.name = "second", "third"  # type: ignore[misc]
    agent = made(plugins=[first, second, third])
    with pytest.raises(ValueError, match="no end for a") as raised:
        agent.close()
    assert third.closed == ["a"] and agent.closed
    assert any("another handler of on_agent_closed raised ValueError" in note for note in raised.value.__notes__)


def test_the_record_is_whole_when_the_handlers_run() -> None:
    seen = []

    @on_agent_closed
    def read(agent: Any) -> None:
        seen.append(Path(agent.record).read_text().count("status: answered"))

    with made(plugins=[read], log=None) as agent:
        agent.input("Go.")
    assert seen == [1]


def test_a_dropped_agent_is_closed_when_the_next_one_is_made() -> None:
    notes = Notes()
    agent = made(plugins=[notes])
    agent.input("Go.")
    del agent
    gc.collect()
    assert notes.closed == []  # not by the garbage collector, which comes in the middle of code that may hold locks
    made("next")
    assert notes.closed == ["a"]
    gc.collect()
    made("another")
    assert notes.closed == ["a"]


def test_a_dropped_agent_is_closed_when_another_one_takes_a_turn() -> None:
    notes = Notes()
    agent, other = made(plugins=[notes]), made("other")
    del agent
    gc.collect()
    assert notes.closed == []
    other.input("Go.")
    assert notes.closed == ["a"]


def test_what_fails_at_the_end_of_a_dropped_agent_is_a_warning() -> None:
    agent = made(plugins=[Notes(raises=True)])
    del agent
    gc.collect()
    with pytest.warns(PluginWarning, match="agent 'a': ValueError: no end for a"):
        made("next")


SCRIPT = """
from connectagent import Agent, on_agent_closed
from connectagent.testing import ScriptedLLM

@on_agent_closed
def note(agent):
    print("closed", agent.name)

def agent(name):
    return Agent(name, llm=ScriptedLLM("Done."), plugins=[note], log=False, quiet=True)

kept, dropped = agent("kept"), agent("dropped")
with agent("used"):
    pass
del dropped
print("end of the script")
"""


def test_agents_are_closed_at_the_end_of_the_process(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert done.stdout.splitlines()[:2] == ["closed used", "end of the script"]
    assert sorted(done.stdout.splitlines()[2:]) == ["closed dropped", "closed kept"]


COUNT = int(os.environ.get("CONNECTAGENT_AGENTS", "40"))


def test_agents_that_are_gone_leave_nothing_behind(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)

    def use(number: int) -> weakref.ref[Agent]:
        helper = made("helper", description="Helps.")
        agent = made(f"agent{number}", tools=[lambda_tool, helper], log=None)
        agent.llm = ScriptedLLM(call("lambda_tool"), "Done.")
        agent.input("Go.")
        return weakref.ref(agent)

    def counted() -> tuple[int, int]:
        return threading.active_count(), len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0

    use(0)
    gc.collect()
    before = counted()
    left = [use(number) for number in range(1, COUNT)]
    gc.collect()
    assert counted() == before
    assert sum(agent() is not None for agent in left) == 0


# -- plugins by name -----------------------------------------------------------------------------

SHARED = """
from connectagent import on_agent_closed

class Plugin:
    scope = {scope!r}
    made = 0

    def __init__(self, size: int = 1):
        Plugin.made += 1
        self.size = size

    @on_agent_closed
    def done(self, agent):
        pass
"""


@pytest.mark.parametrize(("scope", "number"), [("agent", 3), ("process", 1)])
def test_a_plugin_is_one_for_each_agent_or_one_for_the_process(scope: str, number: int, site: Any) -> None:  # noqa: F811
    site(f"one-{scope}", SHARED.format(scope=scope), "{module}:Plugin")
    agents = [made(plugins=[f"one-{scope}"]) for _ in range(3)]
    plugins = [agent.plugin(f"one_{scope}") for agent in agents]
    assert len({id(plugin) for plugin in plugins}) == number == type(plugins[0]).made


def test_another_scope_is_an_error(site: Any) -> None:  # noqa: F811
    site("odd", SHARED.format(scope="session"), "{module}:Plugin")
    with pytest.raises(PluginError, match="scope is 'agent' or 'process', not 'session'"):
        made(plugins=["odd"])


def test_a_plugin_is_found_by_its_name() -> None:
    notes = Notes()
    agent = made(plugins=[notes])
    assert agent.plugin("notes") is notes
    with pytest.raises(PluginError, match=r"no plugin 'note'\. Did you mean 'notes'\? It has: notes"):
        agent.plugin("note")


def test_session_and_state_are_there_from_the_first_input_on() -> None:
    agent = made(state={"count": 1})
    for name in ("session", "state"):
        with pytest.raises(RuntimeError, match=r"agent 'a' has no session before its first input\(\)"):
            getattr(agent, name)
    agent.input("Go.")
    assert agent.session is agent.current_session
    assert agent.state == {"count": 1}
