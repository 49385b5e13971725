"""Resources: what tools and handlers share, made once for a turn, an agent or the process, torn down in order."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_agents import entries

from connectagent import (
    Agent,
    HandlerError,
    Pause,
    Paused,
    PluginError,
    PluginWarning,
    ResourceError,
    Retry,
    after_tools,
    around_tool,
    before_each_tool,
    on_agent_closed,
    on_agent_ready,
    on_complete,
    on_error,
    register_models,
    resource,
    shadow,
    tool,
)
from connectagent.hooks.handler import known_resources
from connectagent.replay.replaying import replay
from connectagent.testing import AgentTester, ScriptedLLM, call


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Records go into a folder of the test's own, and the names of its resources end with it."""
    monkeypatch.chdir(tmp_path)
    before = set(known_resources)
    yield
    known_resources.intersection_update(before)


class Log(list[str]):
    """What happened, and a maker of resources that note it."""

    def resource(self, name: str, scope: Any = "turn") -> Callable[..., Any]:
        count = 0

        def make() -> Iterator[str]:
            nonlocal count
            count += 1
            self.append(f"+{name}{count}")
            yield f"{name}{count}"
            self.append(f"-{name}{count}")

        make.__name__ = name
        return resource(scope=scope)(make)


def look(db) -> str:  # type: ignore[no-untyped-def]  # a resource needs no annotation
    """Look."""
    return f"seen in {db}"


LOOK = (call("look"), "Done.")


def agent_with(*plugins: Any, tools: Any = (look,), script: Any = LOOK, **options: Any) -> Agent:
    options = {"log": False, "quiet": True, **options}
    return Agent("a", list(tools), llm=ScriptedLLM(*script), plugins=list(plugins), **options)


def results(agent: Agent) -> list[Any]:
    return [entry["result"] for entry in entries(agent, "tool_execution")]


# -- given by name -------------------------------------------------------------------------------


def test_tools_and_handlers_of_a_turn_share_one_and_the_model_does_not_see_it() -> None:
    log = Log()
    db = log.resource("db")

    @before_each_tool
    def guard(tool_call: Any, db: Any) -> None:
        log.append(f"guard {db}")

    @around_tool
    def around(db: Any) -> Iterator[None]:
        log.append(f"around {db}")
        yield

    agent = agent_with(db, guard, around, script=([call("look"), call("look")], "Done.", "Done."))
    assert agent.tools["look"].schema["function"]["parameters"]["properties"] == {}
    agent.input("Hi")
    assert results(agent) == ["seen in db1"] * 2
    assert log == ["+db1", *["guard db1", "around db1"] * 2, "-db1"]
    agent.input("Nobody takes it.")
    assert log[-1] == "-db1" and not re.search(r"\bdb1\b", str(agent.current_session["messages"][0]))  # type: ignore[index]


@pytest.mark.parametrize(
    ("scope", "wanted"), [("turn", ["+db1", "-db1", "+db2", "-db2", "closed"]), ("agent", ["+db1", "closed", "-db1"])]
)
def test_a_resource_is_kept_for_its_scope(scope: str, wanted: list[str]) -> None:
    log = Log()

    @on_agent_closed
    def closed() -> None:
        log.append("closed")

    with agent_with(log.resource("db", scope), closed, script=(call("look"), "Done.", call("look"), "Done.")) as agent:
        agent.input("Hi")
        agent.input("Hi")
    assert log == wanted


def test_what_fires_when_an_agent_is_closed_is_given_its_resources() -> None:
    log = Log()
    db, other = log.resource("db", "agent"), log.resource("other", "agent")

    @on_agent_closed
    def closed(db: str, other: str) -> None:
        log.append(f"closed with {db} and {other}")

    agent = agent_with(db, other, closed)
    agent.input("Hi")
    agent.close()
    assert log == ["+db1", "+other1", "closed with db1 and other1", "-other1", "-db1"]


def test_resources_that_take_others_are_torn_down_before_these() -> None:
    log = Log()
    driver, other = log.resource("driver", "agent"), log.resource("other")

    @resource
    def db(agent: Any, driver: str, other: str) -> Iterator[str]:
        log.append(f"+db of {agent.name} with {driver} and {other}")
        yield "db"
        log.append("-db")

    agent = agent_with(db, driver, other)
    agent.input("Hi")
    assert log == ["+driver1", "+other1", "+db of a with driver1 and other1", "-db", "-other1"]
    agent.close()
    assert log[-1] == "-driver1"


def test_a_function_that_returns_and_a_method_make_resources_too() -> None:
    class Shop:
        @resource
        def db(self) -> str:
            return "the shop"

        @on_complete
        def total(self, db: str, result: str) -> str:
            return f"{result} ({db})"

    agent = agent_with(Shop())
    assert agent.input("Hi") == "Done. (the shop)" and results(agent) == ["seen in the shop"]


def test_a_name_of_its_own_and_a_parameter_with_a_default() -> None:
    @resource(name="db")
    def connect() -> str:
        return "connected"

    def plain(db: str = "mine") -> str:
        """A default is the author's own."""
        return db

    @after_tools
    def note(agent: Agent, db: str = "mine") -> None:
        agent.state["noted"] = db

    agent = agent_with(connect, note, tools=[look, plain], script=([call("look"), call("plain")], "Done."))
    assert "db" in agent.tools["plain"].schema["function"]["parameters"]["properties"]
    agent.input("Hi")
    assert results(agent) == ["seen in connected", "mine"] and agent.state["noted"] == "mine"


def test_a_tool_that_is_added_later_and_methods_of_objects_are_given_it() -> None:
    class Desk:
        def find(self, what: str, db: Any) -> str:
            """Find something."""
            return f"{what} in {db}"

    db = Log().resource("db")
    agent = agent_with(db, tools=[Desk()], script=([call("find", what="tea"), call("look")], "Done."))

    @on_agent_ready
    def adds(agent: Any) -> None:
        agent.add_tool(look)

    agent.add_tool(look)
    agent.input("Hi")
    assert results(agent) == ["tea in db1", "seen in db1"]


# -- mistakes ------------------------------------------------------------------------------------


def test_mistakes_are_found_when_the_agent_is_made() -> None:
    log = Log()
    db = log.resource("db")

    @before_each_tool
    def guard(db: Any) -> None: ...

    with pytest.raises(HandlerError, match=r"takes the resource 'db'\. Agent 'a' has no such resource: list it"):
        agent_with(guard, tools=[])
    with pytest.raises(PluginError, match="has the name of another one"):
        agent_with(db, Log().resource("db"))

    @resource(scope="agent")
    def longer(db: str) -> str:
        return db

    with pytest.raises(PluginError, match=r"'longer' .* is kept for the agent and cannot take resource 'db'"):
        agent_with(db, longer)

    @resource(name="one")
    def first() -> str:
        return ""

    @resource
    def two(one: str) -> str:
        return one

    @resource(name="one")
    def again(two: str) -> str:
        return two

    with pytest.raises(PluginError, match="needs itself: one > two > one"):
        agent_with(again, two)


def test_mistakes_are_found_where_they_are_made() -> None:
    Log().resource("database")
    with pytest.raises(HandlerError, match=r"unknown parameter 'databse'\. Did you mean 'database'"):

        @before_each_tool
        def guard(databse: Any) -> None: ...

    with pytest.raises(HandlerError, match="scope is one of turn, agent, process, not 'session'"):
        resource(scope="session")(look)  # type: ignore[call-overload]
    with pytest.raises(HandlerError, match="outlives agents"):

        @resource(scope="process")
        def pool(agent: Any) -> None: ...

    with pytest.raises(HandlerError, match="is async"):

        @resource
        async def later() -> None: ...

    with pytest.raises(HandlerError, match="given no agent"):

        @register_models
        def models(database: Any) -> dict[str, Any]:
            return {}


# -- errors --------------------------------------------------------------------------------------


def test_a_resource_that_cannot_be_made_is_the_tool_s_error_which_names_it_and_may_be_tried_again() -> None:
    tried: list[int] = []

    @resource
    def db() -> str:
        tried.append(1)
        if len(tried) == 1:
            raise ConnectionError("refused")
        return "db"

    seen: list[str] = []

    @on_error
    def again(error: Exception) -> Retry:
        seen.append(str(error))
        return Retry()

    agent = agent_with(db, again)
    agent.input("Hi")
    assert results(agent) == ["seen in db"]
    (text,) = seen
    assert "resource 'db' (" in text and "which tool 'look'" in text and "ConnectionError: refused" in text
    tried.clear()
    agent = agent_with(db)
    agent.input("Hi")
    (entry,) = entries(agent, "tool_execution")
    assert entry["status"] == "error" and entry["error_type"] == "ResourceError"


@pytest.mark.parametrize("hook", [before_each_tool, around_tool])
def test_one_that_a_handler_takes_is_the_handler_s_error(hook: Any) -> None:
    @resource
    def db() -> Iterator[str]:
        if not known_resources:
            yield "never"

    def event(db: Any) -> None: ...

    def around(db: Any) -> Iterator[None]:
        yield

    handler = hook(around if hook is around_tool else event)
    agent = agent_with(db, handler, tools=[tool(name="look")(lambda: "seen")])
    with pytest.raises(ResourceError, match="it returned before its yield") as caught:
        agent.input("Hi")
    assert "around" in caught.value.__notes__[0] or "event" in caught.value.__notes__[0]


def test_an_error_in_a_teardown_names_the_resource_and_the_others_are_torn_down() -> None:
    log = Log()
    first = log.resource("first")

    @resource
    def db(first: str) -> Iterator[str]:
        yield "db"
        raise OSError("gone")

    @resource(name="db")
    def twice(first: str) -> Iterator[str]:
        yield "db"
        yield "db"

    for made, problem in ((db, r"resource 'db' .* could not be torn down: OSError: gone"), (twice, "more than once")):
        agent = agent_with(made, first)
        with pytest.warns(PluginWarning, match=problem):
            assert agent.input("Hi") == "Done."
    assert log == ["+first1", "-first1", "+first2", "-first2"]
    agent = agent_with(resource(scope="agent")(_raises_at_its_end))
    agent.input("Hi")
    with pytest.raises(ResourceError, match="OSError: no"):
        agent.close()


def _raises_at_its_end() -> Iterator[str]:
    yield "db"
    raise OSError("no")


_raises_at_its_end.__name__ = "db"


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_turn_that_stops_tears_down(error: type[BaseException]) -> None:
    log = Log()

    @after_tools
    def stops() -> None:
        raise error

    with pytest.raises(error):
        agent_with(log.resource("db"), stops).input("Hi")
    assert log == ["+db1", "-db1"]


def test_the_code_of_a_resource_asks_nothing_of_the_turn() -> None:
    @resource
    def db(agent: Any) -> Any:
        return agent.ask("Who?")

    agent = agent_with(db)
    agent.input("Hi")
    assert "ask() is for handlers and tools" in results(agent)[0]


# -- together with the rest ----------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["turn", "agent", "process"])
def test_tools_that_run_at_once_share_one(scope: Any) -> None:
    made: list[int] = []

    @resource(scope=scope)
    def db() -> object:
        made.append(threading.get_ident())
        time.sleep(0.02)
        return object()

    given: list[object] = []

    def look(db: Any) -> str:
        """Look."""
        given.append(db)
        return "seen"

    agent = agent_with(db, tools=[look], script=([call("look") for _ in range(8)], "Done."), parallel_tools=8)
    agent.input("Hi")
    assert len(made) == 1 and len(given) == 8 and len(set(map(id, given))) == 1


def test_a_tree_of_agents_shares_one_and_so_do_agents_that_work_at_once() -> None:
    log = Log()
    db = log.resource("db")

    def child(name: str) -> Agent:
        return Agent(name, [look], llm=ScriptedLLM(call("look"), name), log=False, quiet=True, plugins=[db])

    children = [child("one"), child("two")]
    script = ([call("one", prompt="go"), call("two", prompt="go"), call("look")], "Done.")
    agent = agent_with(db, tools=[look, *children], script=script)
    agent.input("Hi")
    assert log == ["+db1", "-db1"] and results(children[0]) == results(children[1]) == ["seen in db1"]


def test_handlers_that_a_child_inherits_take_the_parent_s() -> None:
    log = Log()
    db = log.resource("db", "agent")

    @before_each_tool
    def guard(agent: Any, db: Any) -> None:
        log.append(f"{agent.name} {db}")

    inner = Agent("inner", [tool(name="work")(lambda: "ok")], llm=ScriptedLLM(call("work"), "yes"), log=False,
                  quiet=True)  # fmt: skip
    agent = agent_with(db, guard, tools=[inner], script=(call("inner", prompt="go"), "Done."))
    agent.input("Hi")
    assert log == ["+db1", "a db1", "inner db1"]
    agent.close()
    assert log[-1] == "-db1"


def test_a_paused_turn_tears_down_and_makes_another_when_it_goes_on() -> None:
    log = Log()
    db = log.resource("db")

    def pay(db: Any) -> str:
        """Pay."""
        log.append(f"pay {db}")
        return "paid"

    @before_each_tool
    def waits(tool_call: Any) -> None:
        if tool_call.name == "pay" and not tool_call.approved:
            raise Pause("sure?")

    script = [call("look"), call("pay")]
    agent = agent_with(db, waits, tools=[look, pay], script=(script,), log=None)
    with pytest.raises(Paused):
        agent.input("Hi")
    assert log == ["+db1", "-db1"]
    other = agent_with(db, waits, tools=[look, pay], script=("Done.",), log=None)
    assert other.resume(agent.record, approve=True) == "Done."
    assert log[2:] == ["+db2", "pay db2", "-db2"]
    assert other.record is not None and not re.search(r"\bdb2\b", other.record.read_text(encoding="utf-8"))


def test_a_replayed_tool_makes_none() -> None:
    log = Log()
    db = log.resource("db")
    agent = agent_with(db, log=None)
    agent.input("Hi")
    assert agent.record is not None
    played = replay(agent.record, agent_with(db))
    assert played.results == ["Done."]
    assert log == ["+db1", "-db1"]


def test_rejected_and_invalid_calls_make_none() -> None:
    log = Log()

    def find(what: int, db: Any) -> str:
        """Find something."""
        return "found"

    agent = agent_with(log.resource("db"), tools=[find], script=(call("find", what="x"), "Done."))
    agent.input("Hi")
    assert log == [] and entries(agent, "tool_execution")[0]["status"] == "error"


def test_a_shadowed_handler_is_given_the_resource_itself() -> None:
    log = Log()
    db = log.resource("db")

    @before_each_tool
    def guard(db: Any) -> str:
        return f"stand in of {db}"

    agent = agent_with(db, shadow(guard))
    agent.input("Hi")
    assert results(agent) == ["seen in db1"] and log == ["+db1", "-db1"]
    assert entries(agent, "shadow")[0]["would"]["return"] == "stand in of db1"


def test_between_turns_a_tool_has_resources_of_its_own() -> None:
    log = Log()
    agent = agent_with(log.resource("db"))
    assert agent.execute_tool("look")["result"] == "seen in db1" and log == ["+db1", "-db1"]

    @on_agent_ready
    def begins(db: Any) -> None: ...

    with pytest.raises(ResourceError, match="kept for a turn, and there is none now"):
        agent_with(log.resource("db"), begins)


PROCESS = """
from connectagent import Agent, on_agent_closed, resource
from connectagent.testing import ScriptedLLM, call

@resource(scope="process")
def pool():
    print("+pool")
    yield "pool"
    print("-pool")

@resource(scope="agent")
def db(agent, pool):
    print("+db", agent.name)
    yield "db"
    print("-db", agent.name)

def look(db, pool) -> str:
    "Look."
    return db + pool

@on_agent_closed
def closed(agent):
    print("closed", agent.name)

agents = [Agent(name, [look], llm=ScriptedLLM(call("look"), "Done."), log=False, quiet=True, plugins=[pool, db, *more])
          for name, more in (("one", [closed]), ("two", []))]
for agent in agents:
    agent.input("Hi")
"""


def test_the_end_of_the_process_tears_down_agents_before_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", PROCESS], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split("\n")[:-1]
    assert lines[:3] == ["+pool", "+db one", "+db two"] and lines[-1] == "-pool"
    assert sorted(lines[3:-1]) == ["-db one", "-db two", "closed one"]


def test_an_agent_that_nobody_closes_is_torn_down_later() -> None:
    log = Log()
    agent_with(log.resource("db", "agent")).input("Hi")
    gc.collect()
    agent_with(tools=[])  # making an agent closes those that are gone
    assert log == ["+db1", "-db1"]


def test_the_plugin_tester_drives_a_plugin_with_resources(agenttester: Any) -> None:
    class Desk:
        @resource
        def shelf(self) -> Iterator[list[str]]:
            yield []

        @before_each_tool
        def notes(self, tool_call: Any, shelf: list[str]) -> None:
            shelf.append(tool_call.name)

        @around_tool
        def around(self, shelf: list[str]) -> Iterator[None]:
            yield

    assert agenttester.check(Desk)


def test_a_tool_that_takes_too_long_is_given_one_too() -> None:
    log, go = Log(), threading.Event()

    @tool(timeout_s=0.05)
    def slow(db: Any) -> str:
        """Work."""
        log.append(f"slow {db}")
        go.wait(5)
        return "late"

    agent = agent_with(log.resource("db"), tools=[slow], script=(call("slow"), "Done."))
    agent.input("Hi")
    go.set()
    assert "took longer" in results(agent)[0] and log == ["+db1", "slow db1", "-db1"]


def test_ctrl_c_while_one_is_made_ends_the_turn_and_tears_down_the_others() -> None:
    log = Log()
    first = log.resource("first")

    @resource
    def db(first: str) -> str:
        raise KeyboardInterrupt

    agent = agent_with(first, db, script=(call("look"), "Done."))
    with pytest.raises(KeyboardInterrupt):
        agent.input("Hi")
    assert log == ["+first1", "-first1"]
    assert agent.current_session is not None and agent.current_session["messages"][-1]["role"] == "tool"


def test_a_streamed_turn_that_is_left_tears_down() -> None:
    log = Log()
    agent = agent_with(log.resource("db"), script=([call("look"), call("look")], "Done."))
    for entry in agent.stream("Hi"):
        if entry["type"] == "tool_execution":
            break
    assert log == ["+db1", "-db1"]


def test_the_tester_of_plugins_says_which_resource_is_not_there() -> None:
    @resource
    def elsewhere() -> int:
        return 1

    @after_tools
    def takes(agent: Agent, elsewhere: int) -> None: ...

    wrong = r"^after_tools handler 'takes' \(.*\) takes the resource 'elsewhere'. Agent 'tested' has no such resource"
    with pytest.raises(HandlerError, match=wrong):
        AgentTester().check(takes)
