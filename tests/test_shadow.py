"""Shadowed plugins: whatever they do has no effect, and the trace tells what they would have done."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from allowed_folder import allow_here
from conversation_faults import ACTS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted_agents import CALL, agent_with, double, entries, fails, is_by, note, session_of

from connectagent import (
    Agent,
    ConfigError,
    Continue,
    PluginError,
    ToolRejected,
    after_each_tool,
    after_llm,
    after_tools,
    around_llm,
    around_tool,
    before_each_tool,
    before_llm,
    hooks,
    on_agent_ready,
    on_error,
    on_trace,
    register_models,
    shadow,
    use,
)
from connectagent.cli.plan import plan_of, text_of
from connectagent.hooks.specs import AROUND, EVENTS, PARAMETERS
from connectagent.output.rows import UNICODE, rows_of
from connectagent.records.read import read_record
from connectagent.settings import overrides
from connectagent.testing import ScriptedLLM

SCRIPT = ([CALL, ("fails", {}), ("unknown", {})], OSError("overloaded"), "Done.")
TIMES = ("timestamp", "started", "timing", "duration_ms")


def recover(error: Exception, tool_call: Any) -> Any:
    return "recovered" if tool_call is None else None


def run(*plugins: Any, script: Any = SCRIPT) -> tuple[Agent, ScriptedLLM, dict[str, Any]]:
    """A turn with a tool round, failing tools and a failing model; and all that is to be seen of it."""
    llm = ScriptedLLM(*script)
    tools = [double, fails, note]
    agent = Agent("a", tools, "Be good.", llm=llm, plugins=[on_error(recover), *plugins], log=False, quiet=True)
    result = agent.input("Hi")
    session = session_of(agent)
    trace = [plain(entry) for entry in session["trace"] if entry["type"] != "shadow"]
    rest = {key: value for key, value in session.items() if key not in ("id", "trace")}
    seen = {"result": result, "session": rest, "trace": trace, "requests": [plain_request(r) for r in llm.requests]}
    seen |= {"tools": agent.list_tools(), "prompt": agent.system_prompt, "ended": agent.ended}
    return agent, llm, seen


def plain(value: Any) -> Any:
    """An entry without times and without the ids that the script numbers."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if key not in TIMES}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return "call" if isinstance(value, str) and value.startswith("call_") else value


def plain_request(request: Any) -> Any:
    return plain(list(request))


def expected() -> dict[str, Any]:
    return without_ids(run()[2])


def without_ids(seen: dict[str, Any]) -> dict[str, Any]:
    return {key: plain(value) for key, value in seen.items()}


def of(agent: Agent, hook: str) -> list[dict[str, Any]]:
    return [entry["would"] for entry in entries(agent, "shadow") if entry["hook"] == hook]


def handler_of(hook: str, act: Any) -> Any:
    """A handler of any hook that takes all that the hook gives."""
    names = ", ".join(PARAMETERS[hook])
    body = "    outcome = yield\n    return act(locals())" if hook in AROUND else "    return act(locals())"
    scope: dict[str, Any] = {"act": act}
    exec(f"def handler({names}):\n{body}", scope)
    return getattr(hooks, hook)(scope["handler"])


VALUELESS = ("before_tools", "after_tools", "on_trace")
HOOKS_SEEN = (*EVENTS, *AROUND, "on_trace")


# -- each hook -----------------------------------------------------------------------------------


@pytest.mark.parametrize("hook", HOOKS_SEEN)
def test_what_a_shadowed_handler_edits_stays_out_of_the_session_and_is_told(hook: str) -> None:
    def act(given: dict[str, Any]) -> None:
        session = given["agent"].current_session
        session["messages"].append({"role": "user", "content": "mine"})
        session["messages"][0]["content"] = "spoilt"
        session["state"]["mine"] = [1]
        session["own"] = 1
        if "entry" in given:
            given["entry"]["status"] = "spoilt"
        if given.get("request") is not None:
            given["request"].messages = []
        if "tool_call" in given and given["tool_call"] is not None:
            given["tool_call"].arguments["x"] = 50

    agent, _, seen = run(shadow(handler_of(hook, act)))
    assert without_ids(seen) == expected()
    changes = [change for would in of(agent, hook) for change in would["changes"]]
    assert {"message", "message_edited", "state_delta", "session_delta"} <= {change["type"] for change in changes}
    if hook in ("before_each_tool", "around_tool", "before_llm"):
        assert "change" in {change["type"] for change in changes}


@pytest.mark.parametrize("hook", [hook for hook in HOOKS_SEEN if hook not in VALUELESS])
def test_what_a_shadowed_handler_returns_is_told_and_not_taken(hook: str) -> None:
    agent, _, seen = run(shadow(handler_of(hook, lambda given: "mine")))
    assert without_ids(seen) == expected()
    assert all(would == {"return": "mine"} for would in of(agent, hook)) and of(agent, hook)


@pytest.mark.parametrize("error", [ValueError, ToolRejected, SystemExit, GeneratorExit, MemoryError])
@pytest.mark.parametrize("hook", HOOKS_SEEN)
def test_what_a_shadowed_handler_raises_is_told_and_goes_no_further(hook: str, error: type[BaseException]) -> None:
    def act(given: dict[str, Any]) -> None:
        given["agent"].current_session["messages"].clear()
        raise error("mine")

    agent, _, seen = run(shadow(handler_of(hook, act)))
    assert without_ids(seen) == expected()
    assert {would["raise"]["error_type"] for would in of(agent, hook)} == {error.__name__}


@pytest.mark.parametrize("hook", HOOKS_SEEN)
def test_ctrl_c_in_a_shadowed_handler_reaches_the_caller(hook: str) -> None:
    def act(given: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(shadow(handler_of(hook, act)))


@pytest.mark.parametrize("hook", HOOKS_SEEN)
def test_a_shadowed_handler_that_does_nothing_leaves_no_entry(hook: str) -> None:
    agent, _, seen = run(shadow(handler_of(hook, lambda given: None)))
    assert without_ids(seen) == expected()
    assert entries(agent, "shadow") == []


def test_a_value_that_the_hook_does_not_take_is_told_as_the_error_that_it_would_be() -> None:
    agent, _, _ = run(shadow(handler_of("after_tools", lambda given: "mine")))
    assert of(agent, "after_tools")[0]["raise"]["error_type"] == "HookResultError"
    agent, _, _ = run(shadow(handler_of("on_complete", lambda given: Continue("more"))))
    assert of(agent, "on_complete") == [{"return": Continue("more")}]


def test_an_entry_names_the_handler_and_the_call() -> None:
    @before_each_tool
    def guard() -> None:
        raise ToolRejected("never")

    agent, _, _ = run(shadow(guard), script=(CALL, "Done."))
    (entry,) = entries(agent, "shadow")
    assert is_by(entry, guard, "before_each_tool") and entry["hook"] == "before_each_tool"
    assert entry["call_id"] == entries(agent, "tool_execution")[0]["call_id"]
    assert entry["would"] == {"raise": {"error": "never", "error_type": "ToolRejected"}}


# -- around handlers -----------------------------------------------------------------------------


def test_a_shadowed_around_handler_sees_the_outcome_and_its_own_copy_goes_on() -> None:
    seen: list[Any] = []

    @around_tool
    def wrap(agent: Agent, tool_call: Any) -> Any:
        messages = session_of(agent)["messages"]
        messages.append({"role": "user", "content": "lost"})
        session_of(agent)["state"]["mine"] = 1
        try:
            seen.append((yield))
        except OSError as error:
            seen.append(error)
            return "saved"
        seen.append((len(messages), session_of(agent)["state"], messages is session_of(agent)["messages"]))
        return None

    agent, _, result = run(shadow(wrap))
    assert without_ids(result) == expected()
    assert seen[0] == 4 and seen[1] == (3, {"mine": 1}, True)
    assert isinstance(seen[2], OSError) and str(seen[2]) == "no disk"
    assert [list(would) for would in of(agent, "around_tool")] == [["changes"], ["changes"], ["return"]]


def test_a_shadowed_around_handler_leaves_the_error_that_passes_through_it_as_it_was() -> None:
    failure = OSError("overloaded")

    @around_llm
    def wrap(agent: Agent) -> Any:
        try:
            yield
        except OSError as error:
            raise RuntimeError("mine") from error

    @around_llm
    def again() -> Any:
        try:
            yield
        except OSError as error:
            error.add_note("mine")
            raise

    agent = agent_with(shadow(wrap), shadow(again), script=(failure,))
    with pytest.raises(OSError) as caught:
        agent.input("Hi")
    assert caught.value is failure and not getattr(failure, "__notes__", []) and failure.__cause__ is None
    assert of(agent, "around_llm") == [{"raise": {"error": "mine", "error_type": "RuntimeError"}}]


@pytest.mark.parametrize(
    ("body", "said"), [("if False:\n        yield", "before its yield"), ("yield\n    yield", "more than once")]
)
def test_a_shadowed_generator_that_breaks_the_rule_is_told(body: str, said: str) -> None:
    scope: dict[str, Any] = {}
    exec(f"def handler():\n    {body}", scope)
    agent, _, seen = run(shadow(around_llm(scope["handler"])))
    assert without_ids(seen) == expected()
    assert said in of(agent, "around_llm")[0]["raise"]["error"]


# -- what the agent can be asked to do -----------------------------------------------------------


def test_what_a_shadowed_handler_asks_of_the_agent_is_noted_and_not_done() -> None:
    seen: dict[str, Any] = {}

    def more(x: int) -> int:
        """Add."""
        return x

    @before_llm
    def act(agent: Agent) -> None:
        if session_of(agent)["iteration"] > 1:
            return
        agent.add_tool(more)
        agent.remove_tool("note")
        seen["tools"] = agent.list_tools()
        seen["result"] = agent.execute_tool("double", {"x": 1})
        seen["said"] = agent.tools.double(x=3)
        agent.system_prompt += " Or not."
        seen["prompt"] = agent.system_prompt
        agent.end_turn("over")
        seen["is_agent"] = isinstance(agent, Agent)
        seen["name"] = (agent.name, agent.max_iterations, agent.total_cost)
        with pytest.raises(RuntimeError, match="between turns"):
            agent.reset_conversation()
        with pytest.raises(RuntimeError, match="is in a turn"):
            agent.input("again")
        with pytest.raises(TypeError):
            agent.end_turn(5)  # type: ignore[arg-type]
        with pytest.raises(AttributeError, match="current_session"):
            agent._core.conversation.append({"role": "user", "content": "by the back door"})

    agent, _, result = run(shadow(act))
    assert without_ids(result) == expected()
    assert seen["tools"] == ["double", "fails", "more"] and seen["prompt"] == "Be good. Or not."
    assert seen["result"]["status"] == "skipped" and "shadowed" in seen["said"] and seen["is_agent"]
    assert seen["name"] == ("a", 10, 0.0)
    (would,) = of(agent, "before_llm")
    assert would["calls"] == [
        {"call": "add_tool", "arguments": {"tool": "more"}},
        {"call": "remove_tool", "arguments": {"name": "note"}},
        {"call": "execute_tool", "arguments": {"name": "double", "arguments": {"x": 1}}},
        {"call": "double", "arguments": {"x": 3}},
        {"set": "system_prompt", "value": "Be good. Or not."},
        {"call": "end_turn", "arguments": {"result": "over"}},
    ]


def test_what_a_shadowed_plugin_would_do_when_the_agent_is_made_is_told_in_the_first_turn() -> None:
    @on_agent_ready
    def ready(agent: Agent) -> None:
        agent.remove_tool("double")
        agent.input("hello?")

    agent, _, seen = run(shadow(ready))
    assert without_ids(seen) == expected()
    first = session_of(agent)["trace"][0]
    assert first["would"]["calls"][0] == {"call": "remove_tool", "arguments": {"name": "double"}}


def test_a_shadowed_handler_that_holds_the_agent_itself_cannot_change_its_session() -> None:
    held: list[Agent] = []

    @after_llm
    def act() -> None:
        session_of(held[0])["messages"].clear()
        held[0].current_session = None

    agent = agent_with(shadow(act))
    held.append(agent)
    assert agent.input("Hi") == "Done."
    assert [message["role"] for message in session_of(agent)["messages"]] == ["user", "assistant", "tool", "assistant"]


def test_what_cannot_be_copied_is_shared_and_the_rest_is_not() -> None:
    class Box:
        value = 1

    @after_tools
    def act(agent: Agent) -> None:
        session_of(agent)["state"]["box"].value = 2
        assert session_of(agent)["state"]["lock"] is lock

    lock, box = threading.Lock(), Box()
    agent = agent_with(shadow(act), script=(CALL, "Done."))
    agent.execute_tool("double", {"x": 1})
    session_of(agent)["state"].update(box=box, lock=lock)
    agent.input("Hi")
    assert box.value == 1 and of(agent, "after_tools") == []


# -- state, order, costs -------------------------------------------------------------------------


def test_a_shadowed_plugin_finds_its_own_state_again_and_nobody_else_does() -> None:
    class Count:
        @before_each_tool
        def count(self, agent: Agent) -> None:
            state = session_of(agent)["state"]
            state["temp:round"] = state.get("temp:round", 0) + 1
            state["count"] = state.get("count", 0) + 1
            raise ToolRejected(f"{state['count']} {state['temp:round']}")

    @before_each_tool
    def other(agent: Agent) -> None:
        assert "count" not in session_of(agent)["state"]

    agent = agent_with(shadow(Count()), other, script=([CALL] * 2, "1", CALL, "2"))
    agent.input("Hi")
    agent.input("Hi")
    assert [would["raise"]["error"] for would in of(agent, "before_each_tool")] == ["1 1", "2 2", "3 1"]
    agent.reset_conversation()
    agent.llm = ScriptedLLM(CALL, "3")
    agent.input("Hi")
    assert of(agent, "before_each_tool")[0]["raise"]["error"] == "1 1"


def test_agent_state_and_agent_session_are_those_of_the_copy() -> None:
    @before_each_tool
    def begin(agent: Agent) -> None:
        agent.state["mine"] = {"calls": 1}
        agent.session["messages"].append({"role": "user", "content": "hm"})

    @after_each_tool
    def look(agent: Agent) -> str:
        return f"{agent.state['mine']['calls']} call"

    plugin = type("plugin", (), {"begin": staticmethod(begin), "look": staticmethod(look)})()
    agent, _, _ = run(shadow(plugin), script=(CALL, "Done."))
    first, second = entries(agent, "shadow")
    kinds = [change["type"] for change in first["would"]["changes"]]
    assert sorted(kinds) == ["message", "state_delta"]
    assert second["would"] == {"return": "1 call"}
    assert "mine" not in agent.state
    assert "hm" not in str(agent.session["messages"])


def test_handlers_that_read_the_last_entry_find_the_one_that_they_would_find_without() -> None:
    last: list[str] = []

    @after_each_tool(trylast=True)
    def each(agent: Agent) -> None:
        last.append(session_of(agent)["trace"][-1]["type"])

    @after_tools(trylast=True)
    def round_(agent: Agent) -> None:
        last.append(session_of(agent)["trace"][-1]["type"])

    noisy = [handler_of(hook, lambda given: "mine") for hook in ("before_each_tool", "after_each_tool", "around_tool")]
    run(shadow(noisy), each, round_)
    assert set(last) == {"tool_execution"} and len(last) == 4


def test_a_shadowed_handler_is_charged_as_any_other() -> None:
    agent, _, _ = run(shadow(handler_of("after_llm", lambda given: "mine")))
    (row,) = [row for row in agent.ledger if row["hook"] == "after_llm"]
    assert row["calls"] == 2


def test_real_handlers_of_the_trace_see_what_shadowed_ones_would_have_done() -> None:
    seen: list[str] = []
    watching = on_trace(lambda entry: seen.append(entry["type"]))
    agent = agent_with(watching, shadow(handler_of("on_complete", lambda given: "mine")))
    assert agent.input("Hi") == "Done."
    assert seen[-1] == "shadow"


def test_what_runs_outside_a_turn_is_told_too() -> None:
    agent = agent_with(shadow(handler_of("after_each_tool", lambda given: "mine")))
    assert agent.execute_tool("double", {"x": 2})["result"] == "4"
    assert of(agent, "after_each_tool") == [{"return": "mine"}]


def test_the_terminal_has_a_line_for_what_would_have_been_done() -> None:
    @before_each_tool
    def guard(agent: Agent, tool_call: Any) -> None:
        tool_call.arguments["x"] = 3
        session_of(agent)["state"]["n"] = 1
        session_of(agent)["trace"].append({"type": "mine"})
        agent.end_turn("over")
        raise ToolRejected("never\x1b[2J")

    agent, _, _ = run(shadow(guard), script=(CALL, "Done."))
    (row,) = rows_of(entries(agent, "shadow")[0], UNICODE)
    assert row.parts[0][0].startswith(
        "(guard would end_turn, add to the trace, change the state, change the tool call, raise ToolRejected: never"
    )
    assert rows_of({"type": "shadow"}, UNICODE) and rows_of({"type": "shadow", "would": {"return": None}}, UNICODE)


def test_a_shadowed_plugin_brings_no_model_and_is_told_to_have_one() -> None:
    @register_models
    def models() -> Any:
        return {"mine": ScriptedLLM}

    with pytest.raises(ConfigError, match="mine"):
        Agent("a", model="mine/x", plugins=[shadow(models)], log=False, quiet=True)
    agent = Agent("a", model="offline", plugins=[shadow(models)], log=False, quiet=True)
    agent.input("Hi")
    assert of(agent, "register_models") == [{"return": {"mine": ScriptedLLM}}]


def test_the_record_of_a_shadowed_plugin_is_one_yaml_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path))
    handlers = [handler_of(hook, lambda given: object()) for hook in HOOKS_SEEN if hook != "on_trace"]
    agent = Agent("a", [double], llm=ScriptedLLM(CALL, "Done."), plugins=[shadow(handlers)], quiet=True)
    assert agent.input("Hi") == "Done."
    (path,) = tmp_path.glob("evals/*.yaml")
    (turn,) = read_record(path)["turns"]
    told = {entry["hook"] for entry in turn["trace"] if entry["type"] == "shadow"}
    assert told == {*HOOKS_SEEN} - {"on_error", "on_trace"}


# -- naming --------------------------------------------------------------------------------------

GUARD = "from connectagent import before_each_tool\n\n@before_each_tool\ndef guard():\n    return 'mine'\n"


@pytest.fixture
def guard_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "guard.py").write_text(GUARD)
    return tmp_path / "guard.py"


def shadowed_results(**options: Any) -> tuple[Any, str]:
    agent = Agent("a", [double], llm=ScriptedLLM(CALL, "Done."), log=False, quiet=True, **options)
    agent.input("Hi")
    return [entry["would"] for entry in entries(agent, "shadow")], text_of(plan_of(agent))


def test_a_file_is_shadowed_by_code_by_setting_by_project_and_by_the_command_line(
    guard_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = [{"return": "mine"}]
    assert shadowed_results(plugins=["shadow:./guard.py"])[0] == mine
    assert shadowed_results(on_events=[shadow("./guard.py")])[0] == mine
    with use("shadow:./guard.py"):
        assert shadowed_results()[0] == mine
    monkeypatch.setitem(overrides, "plugins", ["shadow:./guard.py"])
    found, plan = shadowed_results()
    assert found == mine and "named by command line, shadowed: nothing that it does takes effect" in plan
    monkeypatch.delitem(overrides, "plugins")
    monkeypatch.setenv("CONNECTAGENT_PLUGINS", "shadow:./guard.py")
    assert shadowed_results()[0] == mine
    monkeypatch.delenv("CONNECTAGENT_PLUGINS")
    Path("pyproject.toml").write_text('[tool.connectagent]\nplugins = ["shadow:./guard.py"]\n')
    allow_here(monkeypatch, tmp_path / "state")
    Path("deeper").mkdir()
    monkeypatch.chdir("deeper")
    assert shadowed_results()[0] == mine


def test_a_plugin_is_not_both_named_and_shadowed(guard_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mine() -> None: ...

    marked = after_tools(mine)
    for plugins in (["./guard.py", "shadow:./guard.py"], [shadow(marked), marked]):
        with pytest.raises(PluginError, match="both named and shadowed"):
            agent_with(*plugins)
    monkeypatch.setenv("CONNECTAGENT_PLUGINS", "./guard.py")
    with pytest.raises(PluginError, match="both named and shadowed"):
        agent_with("shadow:./guard.py")
    monkeypatch.setenv("CONNECTAGENT_PLUGINS", "shadow:./guard.py")
    assert agent_with("shadow:./guard.py").input("Hi") == "Done."
    with pytest.raises(PluginError, match="named twice"):
        agent_with("shadow:./guard.py", "shadow:./guard.py")


def test_a_shadowed_plugin_is_left_out_by_its_name(guard_file: Path) -> None:
    agent = agent_with("shadow:./guard.py", "no:guard")
    assert agent.input("Hi") == "Done." and entries(agent, "shadow") == []


@pytest.mark.parametrize("plugin", ["shadow:nobody", "shadow:", "shadow:./missing.py", "shadow:no:guard"])
def test_a_shadow_of_nothing_is_an_error(plugin: str) -> None:
    with pytest.raises(PluginError):
        agent_with(plugin)
    with pytest.raises(PluginError, match="takes a marked function"):
        shadow(None)


# -- whatever they do ----------------------------------------------------------------------------

FAULTS = st.lists(
    st.tuples(st.sampled_from(HOOKS_SEEN), st.sampled_from(sorted(ACTS)), st.integers(0, 60)), min_size=1, max_size=8
)


def mean_handlers(faults: list[tuple[str, str, int]]) -> list[Any]:
    def handler(hook: str, name: str, n: int) -> Any:
        def act(given: dict[str, Any]) -> Any:
            try:
                return ACTS[name](given["agent"], given, n)
            except KeyboardInterrupt:
                raise SystemExit(n) from None  # Ctrl-C is the one thing that has an effect
            finally:
                with contextlib.suppress(Exception):
                    given["agent"].current_session["messages"].append(None)

        return handler_of(hook, act)

    return [handler(*fault) for fault in faults]


@settings(
    max_examples=int(os.environ.get("PROPERTY_CASES", "150")),
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(FAULTS)
def test_whatever_shadowed_handlers_do_the_conversation_is_the_same(faults: list[tuple[str, str, int]]) -> None:
    agent, _, seen = run(shadow(mean_handlers(faults)))
    assert without_ids(seen) == expected()
    assert {entry["hook"] for entry in entries(agent, "shadow")} == {hook for hook, _, _ in faults}
