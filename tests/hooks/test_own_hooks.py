"""Hooks that plugins define for other plugins: `@hookspec`, and `fire`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import forked
import pytest
from click.testing import CliRunner
from scripted_agents import CALL, agent_with, double, entries, is_by

from connectagent import (
    Agent,
    HandlerError,
    HookResultError,
    Pause,
    Paused,
    PluginError,
    PluginWarning,
    after_tools,
    before_each_tool,
    before_tools,
    hookspec,
    shadow,
)
from connectagent.cli.group import cli
from connectagent.hooks import specs
from connectagent.hooks.own import own_hooks
from connectagent.replay.replaying import replay
from connectagent.settings import overrides
from connectagent.testing import ScriptedLLM, call


@pytest.fixture(autouse=True)
def none_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The hooks that a test defines end with it."""
    monkeypatch.chdir(tmp_path)
    before, given = own_hooks(), dict(overrides)
    yield
    overrides.clear()
    overrides.update(given)
    for name in own_hooks():
        if name not in before:
            for table in (specs.SPECS, specs.CONTRACTS, specs.PARAMETERS):
                del table[name]


def defined() -> Any:
    """A chain, as a plugin for squeezeion would define it."""

    @hookspec(kind="chain", takes=list, chained="messages")
    def before_squeeze(agent: Any, messages: list[Any]) -> Any:
        """Old messages are about to be summed up."""

    return before_squeeze


def firing(hook: Any, **given: Any) -> tuple[Callable[..., Any], list[Any]]:
    """A handler that fires a hook, and what it was given back each time."""
    found: list[Any] = []

    @after_tools
    def squeezes(agent: Any) -> None:
        found.append(hook.fire(agent=agent, **given))

    return squeezes, found


# -- kinds ---------------------------------------------------------------------------------------


def test_a_chain_passes_the_value_on_in_the_order_of_the_list() -> None:
    hook = defined()

    @hook
    def first(messages: list[Any]) -> list[Any]:
        return [*messages, "first"]

    @hook
    def second(messages: list[Any]) -> list[Any]:
        return [*messages, "second"]

    @hook(tryfirst=True)
    def ahead(agent: Any, messages: list[Any]) -> list[Any]:
        return [*messages, agent.name]

    squeezes, found = firing(hook, messages=["m"])
    agent = agent_with(squeezes, first, second, ahead)
    agent.input("Hi")
    assert found == [["m", "a", "first", "second"]]
    changes = [entry for entry in entries(agent, "change") if entry["of"] == "messages"]
    assert [change["by"]["handler"] for change in changes] == ["ahead", "first", "second"]
    assert is_by(changes[1], first, "before_squeeze")
    assert ("before_squeeze", 1) in [(row["hook"], row["calls"]) for row in agent.ledger if row["handler"] == "first"]


def test_each_kind_gives_what_its_contract_says() -> None:
    seen: list[str] = []

    @hookspec(kind="first", takes=(str,))
    def pick_model(agent: Any) -> str | None:
        """A model is needed."""

    @hookspec
    def on_budget(agent: Any, left: float) -> None:
        """The budget has changed."""

    @hookspec(kind="collect")
    def report(agent: Any) -> Any:
        """A report is made."""

    @hookspec(kind="around")
    def around_fetch(agent: Any, url: str) -> Any:
        """A page is fetched."""

    @pick_model
    def none() -> None:
        seen.append("none")

    @pick_model
    def small() -> str:
        return "small"

    @pick_model
    def never() -> str:
        raise AssertionError

    @on_budget
    def look(left: float) -> None:
        seen.append(f"{left}")

    @report
    def one() -> int:
        return 1

    @report
    def two() -> dict[str, int]:
        return {"two": 2}

    @around_fetch
    def cached(url: str) -> Iterator[Any]:
        text = yield
        return f"<{text} of {url}>"

    agent = agent_with(none, small, never, look, one, two, cached)
    for where in ("outside", "inside"):
        given: list[Any] = []

        def every(agent: Any, given: list[Any] = given) -> None:
            given += [pick_model.fire(agent=agent), on_budget.fire(agent=agent, left=2.5), report.fire(agent=agent)]
            given.append(around_fetch.fire(lambda: "page", agent=agent, url="u"))

        if where == "outside":
            every(agent)
        else:
            with agent.hooks.add(*_handlers(after_tools(every))):
                agent.input("Hi")
        assert given == ["small", None, [1, {"two": 2}], "<page of u>"], where
    assert seen == ["none", "2.5"] * 2


def _handlers(function: Any) -> list[Any]:
    from connectagent.hooks.discovery import handlers_of

    return list(handlers_of(function))


def test_without_handlers_a_hook_gives_nothing_of_its_own() -> None:
    hook = defined()

    @hookspec(kind="around")
    def around_fetch(agent: Any) -> Any:
        """A page is fetched."""

    agent = agent_with()
    assert hook.fire(agent=agent, messages=["m"]) == ["m"]
    assert around_fetch.fire(lambda: "page", agent=agent) == "page"


# -- mistakes ------------------------------------------------------------------------------------


def test_a_handler_is_checked_where_it_is_defined() -> None:
    hook = defined()
    with pytest.raises(HandlerError, match=r"@before_squeeze handler .*unknown parameter 'mesages'. Did you mean"):

        @hook
        def wrong(mesages: Any) -> None: ...

    with pytest.raises(HandlerError, match="yields: only"):

        @hook
        def generator(agent: Any) -> Any:
            yield


@pytest.mark.parametrize(
    ("options", "source", "problem"),
    [
        ({"kind": "chian"}, "def h(agent): ...", "Did you mean 'chain'"),
        ({"kind": "chain"}, "def h(agent, x): ...", "chained= names the parameter"),
        ({"kind": "chain", "chained": "y"}, "def h(agent, x): ...", "chained= names the parameter"),
        ({"chained": "x"}, "def h(agent, x): ...", "chained= names the parameter"),
        ({}, "def h(x): ...", "needs the parameter 'agent'"),
        ({}, "def h(agent, x=1): ...", "without defaults"),
        ({}, "def h(agent, *x): ...", "without defaults"),
        ({"takes": "str"}, "def h(agent): ...", "takes= is a type"),
    ],
)
def test_a_definition_that_does_not_fit_its_kind_is_refused(options: Any, source: str, problem: str) -> None:
    exec(source, names := dict[str, Any]())
    with pytest.raises(HandlerError, match=problem):
        hookspec(**options)(names["h"])


def test_a_name_is_taken_by_one_file(tmp_path: Path) -> None:
    defined()
    defined()  # in the same file a second definition replaces the first
    text = "from connectagent import hookspec\n@hookspec\ndef before_squeeze(agent): ...\n"
    with pytest.raises(PluginError, match=r"a hook 'before_squeeze' is defined at .*test_own_hooks.py:\d+ already"):
        exec(compile(text, str(tmp_path / "other.py"), "exec"), {})
    with pytest.raises(PluginError, match="'after_tools' is a hook of connectagent"):
        exec("from connectagent import hookspec\n@hookspec\ndef after_tools(agent): ...\n", {})


def test_a_call_with_wrong_parameters_is_refused() -> None:
    hook, agent = defined(), agent_with()
    with pytest.raises(TypeError, match=r"no parameter 'message'\. Did you mean 'messages'"):
        hook.fire(agent=agent, message=[])
    with pytest.raises(TypeError, match="needs 'messages'"):
        hook.fire(agent=agent)
    with pytest.raises(TypeError, match="takes no operation: the hook's kind is 'chain'"):
        hook.fire(lambda: None, agent=agent, messages=[])
    with pytest.raises(TypeError, match="takes an Agent as 'agent', not str"):
        hook.fire(agent="a", messages=[])


# -- blame ---------------------------------------------------------------------------------------


def test_the_handler_that_raises_is_named_and_not_the_one_that_fires() -> None:
    hook = defined()

    @hook
    def breaks(agent: Any) -> None:
        agent.state["half"] = True
        raise OSError("no disk")

    squeezes, _ = firing(hook, messages=[])
    agent = agent_with(squeezes, breaks)
    with pytest.raises(OSError, match="no disk") as caught:
        agent.input("Hi")
    (note,) = caught.value.__notes__
    assert "before_squeeze handler" in note and "breaks" in note and "half" not in agent.state


def test_a_value_of_another_type_is_refused() -> None:
    hook = defined()

    @hook
    def wrong() -> str:
        return "text"

    with pytest.raises(HookResultError, match="before_squeeze takes None, list"):
        hook.fire(agent=agent_with(wrong), messages=[])


def test_an_error_becomes_a_warning_where_the_agent_says_so() -> None:
    @hookspec
    def on_budget(agent: Any) -> None:
        """The budget has changed."""

    @on_budget
    def breaks() -> None:
        raise OSError("no disk")

    squeezes, found = firing(on_budget)
    agent = agent_with(squeezes, breaks, plugin_errors="warn")
    with pytest.warns(PluginWarning, match="on_budget handler .*no disk"):
        agent.input("Hi")
    assert found == [None]


def test_a_pause_is_for_the_hooks_before_a_call() -> None:
    hook = defined()

    @hook
    def waits() -> None:
        raise Pause("sure?")

    squeezes, _ = firing(hook, messages=[])
    with pytest.raises(HookResultError, match="raised Pause"):
        agent_with(squeezes, waits).input("Hi")


def test_a_shadowed_handler_changes_nothing_and_one_that_fires_calls_nobody() -> None:
    hook, seen = defined(), list[str]()

    @hook
    def adds(messages: list[Any]) -> list[Any]:
        seen.append("adds")
        return [*messages, "more"]

    squeezes, found = firing(hook, messages=["m"])
    agent = agent_with(squeezes, shadow(adds))
    agent.input("Hi")
    assert found == [["m"]] and seen == ["adds"]
    (entry,) = entries(agent, "shadow")
    assert entry["hook"] == "before_squeeze" and entry["would"]["return"] == ["m", "more"]

    seen.clear()
    squeezes, found = firing(hook, messages=["m"])
    agent = agent_with(shadow(squeezes), adds)
    agent.input("Hi")
    assert found == [["m"]] and seen == []


# -- once ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["observe", "first", "chain", "collect", "around"])
def test_a_resumed_turn_takes_what_was_fired_from_its_record(kind: Any) -> None:
    seen: list[str] = []

    @hookspec(kind=kind, chained="value" if kind == "chain" else "")
    def weigh(agent: Any, value: int) -> Any:
        """Something is weighed."""

    def event(agent: Any, value: int) -> Any:
        seen.append("handler")
        agent.state["weighed"] = agent.state.get("weighed", 0) + 1
        return None if kind == "observe" else value + 1

    def around(agent: Any, value: int) -> Any:
        event(agent, value)
        return (yield) + 1

    def operation() -> int:
        seen.append("operation")
        return 5

    handler = weigh(around if kind == "around" else event)
    results: list[Any] = []

    @before_tools
    def fires(agent: Any) -> None:
        results.append(weigh.fire(*([operation] if kind == "around" else []), agent=agent, value=5))
        agent.execute_tool("ask")

    @before_each_tool
    def waits(tool_call: Any) -> None:
        if tool_call.name == "ask" and not tool_call.approved:
            raise Pause("sure?")

    def ask() -> str:
        """Ask."""
        return "asked"

    def made(*script: Any) -> Agent:
        return Agent("a", [double, ask], llm=ScriptedLLM(*script), quiet=True, plugins=[fires, waits, handler])

    agent = made(CALL, "Done.")
    with pytest.raises(Paused):
        agent.input("Hi")
    other = made("Done.")
    assert other.resume(agent.record, approve=True) == "Done."
    wanted = {"observe": None, "first": 6, "chain": 6, "collect": [6], "around": 6}[kind]
    assert results == [wanted, wanted] and other.state == {"weighed": 1}
    assert seen == (["handler", "operation"] if kind == "around" else ["handler"])


def test_a_hook_that_was_fired_when_the_process_died_begins_again() -> None:
    seen: list[str] = []

    @hookspec(kind="around")
    def around_fetch(agent: Any) -> Any:
        """A page is fetched."""

    @around_fetch
    def notes(agent: Any) -> Iterator[Any]:
        seen.append("before")
        agent.state["notes"] = agent.state.get("notes", 0) + 1
        agent.execute_tool("look", {"n": 1})
        text = yield
        seen.append("after")
        return f"{text}!"

    def look(n: int) -> str:
        """Look."""
        seen.append(f"look {n}")
        if n == 2 and seen.count("look 2") == 1:
            raise KeyboardInterrupt
        return "seen"

    @after_tools
    def fires(agent: Any) -> None:
        def fetch() -> str:
            agent.execute_tool("look", {"n": 2})
            return "page"

        agent.state["page"] = around_fetch.fire(fetch, agent=agent)

    def made(*script: Any) -> Agent:
        return Agent("a", [double, look], llm=ScriptedLLM(*script), quiet=True, plugins=[fires, notes])

    agent = made(CALL)
    with pytest.raises(KeyboardInterrupt):
        agent.input("Hi")
    other = made("Done.")
    assert other.resume(agent.record) == "Done."
    assert other.state == {"notes": 1, "page": "page!"}
    assert seen.count("look 1") == 1 and seen.count("after") == 1


@pytest.mark.parametrize("parallel", [1, 2])
def test_tools_fire_hooks_too(parallel: int) -> None:
    @hookspec(kind="first")
    def price_of(agent: Any, what: str) -> Any:
        """A price is needed."""

    @price_of
    def lists(agent: Any, what: str) -> int:
        agent.state.setdefault("asked", []).append(what)
        return len(what)

    def buy(agent: Any, what: str) -> str:
        """Buy something."""
        return f"{what}: {price_of.fire(agent=agent, what=what)}"

    llm = ScriptedLLM([call("buy", what="tea"), call("buy", what="bread")], "Done.")
    agent = Agent("a", [buy], llm=llm, log=False, quiet=True, plugins=[lists], parallel_tools=parallel)
    agent.input("Hi")
    assert [entry["result"] for entry in entries(agent, "tool_execution")] == ["tea: 3", "bread: 5"]
    assert sorted(agent.state["asked"]) == ["bread", "tea"]


def test_an_inner_agent_fires_to_the_plugins_that_it_inherits() -> None:
    hook, seen = defined(), list[str]()

    @hook
    def notes(agent: Any) -> None:
        seen.append(agent.name)

    def work(agent: Any) -> str:
        """Work."""
        hook.fire(agent=agent, messages=[])
        return "ok"

    inner = Agent("inner", [work], llm=ScriptedLLM(call("work"), "yes"), log=False, quiet=True)
    outer = Agent("outer", [inner], llm=ScriptedLLM(call("inner", prompt="go"), "Done."), log=False, quiet=True,
                  plugins=[notes])  # fmt: skip
    assert outer.input("Hi") == "Done." and seen == ["inner"]


KILLED = """
import os
from pathlib import Path
from connectagent import Agent, after_tools, hookspec, on_session
from connectagent.testing import ScriptedLLM, call
from connectagent.replay.replaying import replay

def note(text):
    with open("seen.txt", "a") as file:
        file.write(text + "\\n")

@hookspec(kind="collect")
def report(agent):
    'A report is made.'

@report
def one(agent):
    note("one")
    agent.state["reports"] = agent.state.get("reports", 0) + 1
    return 1

@on_session
def begins(agent, reason):
    note(reason)
    agent.state["began"] = agent.state.get("began", 0) + (reason == "begun")

@after_tools
def fires(agent):
    agent.state["report"] = report.fire(agent=agent)
    if not os.path.exists("killed"):
        Path("killed").touch()
        os._exit(9)

def look() -> str:
    'Look.'
    note("look")
    return "seen"

again = os.path.exists("killed")
agent = Agent("a", [look], llm=ScriptedLLM(*([] if again else [call("look")]), "Done."), quiet=True,
              plugins=[begins, fires, one])
if again:
    print(agent.resume(next(Path(".co/evals").glob("*.yaml"))), agent.state)
else:
    agent.input("Hi")
"""


def test_after_a_kill_nothing_that_was_fired_is_fired_again(tmp_path: Path) -> None:
    Path("script.py").write_text(KILLED)
    assert forked.run("script.py", timeout=60).returncode == 9
    done = forked.run("script.py", timeout=60)
    assert done.stdout == "Done. {'began': 1, 'reports': 1, 'report': [1]}\n", done.stderr
    assert Path("seen.txt").read_text().split() == ["begun", "look", "one", "resumed"]


def test_a_replay_runs_the_handlers_that_there_are_now() -> None:
    hook = defined()

    @hook
    def adds(messages: list[Any]) -> list[Any]:
        return [*messages, "more"]

    squeezes, found = firing(hook, messages=["m"])

    def made() -> Agent:
        return Agent("a", [double], llm=ScriptedLLM(CALL, "Done."), quiet=True, plugins=[squeezes, adds])

    agent = made()
    agent.input("Hi")
    assert agent.record is not None
    assert replay(agent.record, made()).results == ["Done."] and found == [["m", "more"]] * 2


# -- pluggy's ------------------------------------------------------------------------------------


def test_the_manager_knows_the_hook() -> None:
    hook, seen = defined(), list[Any]()

    @hook
    def adds(messages: list[Any]) -> list[Any]:
        return [*messages, "more"]

    agent = agent_with()
    agent.hooks.register(adds)
    undo = agent.hooks.add_hookcall_monitoring(lambda name, *_: seen.append(name), lambda *_: None)
    assert agent.hooks.hook.before_squeeze(agent=agent, messages=["m"]) == ["m", "more"]
    assert hook.fire(agent=agent, messages=["m"]) == ["m", "more"]
    undo()
    assert [name for name in seen if name != "on_trace"] == ["before_squeeze"] * 2
    agent.hooks.unregister(adds)
    assert hook.fire(agent=agent, messages=["m"]) == ["m"]
    assert agent_with().hooks.hook.before_squeeze(agent=agent, messages=["m"]) == ["m"]


# -- two packages --------------------------------------------------------------------------------

COMPACT = '''
from connectagent import hookspec, after_tools

@hookspec(kind="chain", takes=list, chained="messages")
def before_squeeze(agent, messages):
    """Old messages are about to be summed up."""

@after_tools
def squeeze(agent):
    agent.state["kept"] = before_squeeze.fire(agent=agent, messages=["old"])
'''
KEEP = '''
from connectagent_squeeze import before_squeeze

@before_squeeze
def keep(messages):
    return [*messages, "kept"]
'''


@pytest.fixture
def two_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    packages = {"squeeze": (COMPACT, "[connectagent.hooks]\nbefore_squeeze = connectagent_squeeze:before_squeeze\n"),
                "keep": (KEEP, "")}  # fmt: skip
    for name, (text, groups) in packages.items():
        (tmp_path / f"connectagent_{name}.py").write_text(text)
        info = tmp_path / f"connectagent_{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: connectagent-{name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[connectagent]\n{name} = connectagent_{name}\n{groups}")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in packages:
        sys.modules.pop(f"connectagent_{name}", None)


@pytest.mark.usefixtures("two_packages")
def test_one_package_defines_a_hook_and_another_has_a_handler_of_it() -> None:
    agent = agent_with("squeeze", "keep")
    agent.input("Hi")
    assert agent.state["kept"] == ["old", "kept"]
    (change,) = entries(agent, "change")
    assert (change["by"]["plugin"], change["by"]["version"]) == ("keep", "1.0")


@pytest.mark.usefixtures("two_packages")
def test_the_command_line_lists_the_hooks_of_plugins_and_loads_none_for_it() -> None:
    def said(*arguments: str) -> str:
        return CliRunner().invoke(cli, list(arguments), catch_exceptions=False).output

    listed = said("hooks")
    assert "Of plugins" in listed and "  before_squeeze\n      Of connectagent-squeeze 1.0" in listed
    assert "defines the hooks before_squeeze" in said("plugins", "list")
    assert "connectagent_squeeze" not in sys.modules
    assert "@before_squeeze\ndef handler(agent, messages):" in said("hooks", "before_squeeze")
    assert "Old messages are about to be summed up." in said("hooks")
    assert "Did you mean 'before_squeeze'" in said("hooks", "before_squeze")
    assert "keep: " not in said("plugins", "inspect", "squeeze")
    assert "defines the hooks: before_squeeze" in said("plugins", "inspect", "squeeze")
    assert "before_squeeze: keep of 'keep' 1.0" in said("plugins", "inspect", "keep")
    assert "before_squeeze\n  1. keep of 'keep' 1.0" in said("plugins", "plan", "-p", "keep")


def test_a_file_s_hooks_are_listed_too(tmp_path: Path) -> None:
    (tmp_path / "squeeze.py").write_text(COMPACT)
    done = CliRunner().invoke(cli, ["hooks", "before_squeeze", "-p", "./squeeze.py"], catch_exceptions=False)
    assert "def handler(agent, messages):" in done.output
