"""Who did what: changes are named, half-done ones are rolled back, and a broken plugin is never the tool's fault."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest
from scripted_agents import CALL, agent_with, contents, entries, is_by, note, session_of

from connectagent import (
    Agent,
    HookResultError,
    ToolCall,
    after_tools,
    after_user_input,
    before_each_tool,
    on_complete,
    on_trace,
)
from connectagent.hooks.specs import EVENTS
from connectagent.testing import HookRecorder, call

# -- what handlers and tools change --------------------------------------------------------------


def test_a_message_that_a_handler_adds_is_traced_with_its_plugin_hook_file_and_line() -> None:
    @after_tools
    def reflect(agent: Agent) -> None:
        session_of(agent)["messages"].append({"role": "user", "content": "Think."})

    agent = agent_with(reflect)
    agent.input("Hi")
    (entry,) = entries(agent, "message")
    assert entry["message"] == {"role": "user", "content": "Think."} and is_by(entry, reflect, "after_tools")
    assert contents(agent) == ["Hi", None, "4", "Think.", "Done."]


def test_a_message_that_is_added_during_a_round_comes_behind_its_results() -> None:
    @before_each_tool
    def early(agent: Agent) -> None:
        session_of(agent)["messages"].append({"role": "user", "content": "Early."})

    agent = agent_with(early, script=([CALL, CALL], "Done."))
    agent.input("Hi")
    assert contents(agent) == ["Hi", None, "4", "4", "Early.", "Early.", "Done."]


def test_edited_and_removed_messages_are_traced() -> None:
    @after_tools
    def redact(agent: Agent) -> None:
        messages = session_of(agent)["messages"]
        messages[0]["content"] = "***"

    @on_complete
    def forget(agent: Agent) -> None:
        del session_of(agent)["messages"][-1]

    agent = agent_with(redact, forget)
    agent.input("secret")
    (edited,), (removed,) = entries(agent, "message_edited"), entries(agent, "message_removed")
    assert edited["index"] == 0 and edited["message"]["content"] == "***" and is_by(edited, redact, "after_tools")
    assert removed["index"] == 3 and is_by(removed, forget, "on_complete")


def test_changes_of_state_are_traced_nested_ones_too_and_temporary_keys_never() -> None:
    @after_user_input
    def begin(agent: Agent) -> None:
        session_of(agent)["state"].update({"plan": {"steps": []}, "temp:secret": 1})

    @after_tools
    def step(agent: Agent) -> None:
        session_of(agent)["state"]["plan"]["steps"].append("one")
        session_of(agent)["state"]["temp:other"] = 2

    agent = agent_with(begin, step)
    agent.input("Hi")
    first, second = entries(agent, "state_delta")
    assert first["delta"] == {"plan": {"steps": []}} and is_by(first, begin, "after_user_input")
    assert second["delta"] == {"plan": {"steps": ["one"]}} and is_by(second, step, "after_tools")
    assert session_of(agent)["state"] == {"plan": {"steps": ["one"]}}


def test_what_a_tool_changes_is_the_tools() -> None:
    agent = agent_with(script=(("note", {}), "Done."))
    agent.input("Hi")
    (delta,), (message,) = entries(agent, "state_delta"), entries(agent, "message")
    assert delta["by"]["tool"] == message["by"]["tool"] == "note" and delta["by"]["file"] == inspect.getsourcefile(note)
    assert contents(agent) == ["Hi", None, "ok", "noted", "Done."]


def test_edited_arguments_keep_the_original_ones() -> None:
    @before_each_tool
    def bigger(tool_call: ToolCall) -> None:
        tool_call.arguments["x"] = 50

    agent = agent_with(bigger)
    agent.input("Hi")
    (tool,), (change,) = entries(agent, "tool_execution"), entries(agent, "change")
    assert (tool["original_arguments"], tool["arguments"], tool["result"]) == ({"x": 2}, {"x": 50}, "100")
    assert change["of"] == "tool_call" and is_by(change, bigger, "before_each_tool")


def test_what_the_program_changes_between_turns_is_the_programs() -> None:
    agent = agent_with(script=("One.", "Two."))
    agent.input("Hi")
    session_of(agent)["messages"].append({"role": "user", "content": "By the way."})
    agent.input("And?")
    (entry,) = entries(agent, "message")
    assert entry["by"]["plugin"] == "(program)" and contents(agent) == ["Hi", "One.", "By the way.", "And?", "Two."]


def test_a_trace_entry_that_a_handler_adds_tells_whose_it_is_and_is_announced() -> None:
    @after_tools
    def measure(agent: Agent) -> None:
        session_of(agent)["trace"].append({"type": "measured", "seconds": 3})

    hooks = HookRecorder()
    agent = agent_with(hooks, measure)
    agent.input("Hi")
    (entry,) = entries(agent, "measured")
    assert is_by(entry, measure, "after_tools") and len(hooks.of("on_trace:measured")) == 1


def test_a_trace_entry_that_the_program_adds_between_turns_is_announced_once_as_its_own() -> None:
    hooks = HookRecorder()
    agent = agent_with(hooks, script=("One.", "Two.", "Three."))
    agent.input("Hi")
    session_of(agent)["trace"].append({"type": "measured", "seconds": 3})
    agent.input("And?")
    agent.input("And?")
    (entry,) = entries(agent, "measured")
    assert entry["by"]["plugin"] == "(program)" and len(hooks.of("on_trace:measured")) == 1


# -- handlers that fail --------------------------------------------------------------------------


def spoil(agent: Agent) -> None:
    session = session_of(agent)
    session["messages"].insert(0, {"role": "user", "content": "half"})
    session["messages"][-1]["content"] = "spoilt"
    session["messages"][1].setdefault("deep", {})["er"] = 1
    session["state"].setdefault("list", []).append("half")
    session["state"]["kept"]["nested"].append("half")
    session["trace"].append({"type": "half"})
    session["own"] = "half"
    session["user_prompt"] = "spoilt"
    agent.current_session = {}


@pytest.mark.parametrize("hook", [hook for hook in EVENTS if hook != "on_error"])
def test_a_handler_that_replaces_the_session_is_named_and_the_session_is_put_back(hook: str) -> None:
    from connectagent import hooks

    seen: list[Any] = []

    def handler(agent: Agent) -> None:
        seen.append(session_of(agent))
        agent.current_session = {**session_of(agent)}  # type: ignore[typeddict-item]

    agent = agent_with(getattr(hooks, hook)(handler))
    with pytest.raises(HookResultError, match=r"handler .*replaced agent.current_session; change it in place"):
        agent.input("Hi")
    assert agent.current_session is seen[0]


def test_a_tool_changes_the_session_but_does_not_replace_it() -> None:
    def rebuild(agent: Agent) -> str:
        """Rebuild the session."""
        agent.current_session = {**session_of(agent), "state": {"mine": 1}}  # type: ignore[typeddict-item]
        return "rebuilt"

    seen: list[Any] = []
    agent = agent_with(
        after_user_input(lambda agent: seen.append(session_of(agent))),
        after_tools(lambda agent: seen.append(session_of(agent))),
        script=(call("rebuild"), "Done."),
    )
    agent.add_tool(rebuild)
    assert agent.input("Hi") == "Done."
    assert seen[1] is seen[0] is agent.current_session and not seen[0]["state"]


@pytest.mark.parametrize("hook", [hook for hook in EVENTS if hook != "on_error"])
def test_a_handler_that_raises_leaves_the_session_exactly_as_it_was(hook: str) -> None:
    from connectagent import hooks

    seen: dict[str, Any] = {}

    def handler(agent: Agent) -> None:
        session = session_of(agent)
        if session["turn"] == 1:
            session["state"]["kept"] = {"nested": [1]}
            return
        seen.update(session=session, before=copy.deepcopy(session), messages=session["messages"])
        spoil(agent)
        raise ValueError("broken plugin")

    agent = agent_with(getattr(hooks, hook)(handler), script=(CALL, "Done.", CALL, "Done."))
    agent.input("Hi")
    with pytest.raises(ValueError, match="broken plugin"):
        agent.input("Again")
    session, before = session_of(agent), seen["before"]
    assert session is seen["session"] and session["messages"] is seen["messages"]
    count = len(before["trace"])
    assert session["trace"][:count] == before["trace"]
    assert {entry["type"] for entry in session["trace"][count:]} <= {"error", "tool_execution"}
    assert session["messages"][: len(before["messages"])] == before["messages"]
    assert session["state"] == before["state"]
    assert set(session) == set(before) and session["user_prompt"] == "Again"


def test_a_handlers_error_has_a_note_that_names_plugin_hook_file_and_line() -> None:
    class Approve:
        name = "approve"

        @before_each_tool
        def ask(self) -> None:
            raise KeyError("x")

    with pytest.raises(KeyError) as caught:
        agent_with(Approve()).input("Hi")
    (told,) = caught.value.__notes__
    for part in (
        "'approve'",
        "before_each_tool",
        "Approve.ask",
        f"{__file__}:{inspect.getsourcelines(Approve.ask)[1]}",
    ):
        assert part in told


def test_on_error_never_sees_a_handlers_error_and_no_tool_is_blamed() -> None:
    recorder = HookRecorder()

    @before_each_tool
    def broken() -> None:
        raise OSError("mine")

    agent = agent_with(recorder, broken)
    with pytest.raises(OSError, match="mine"):
        agent.input("Hi")
    assert "on_error" not in recorder.names
    assert [entry["status"] for entry in entries(agent, "tool_execution")] == ["skipped"]
    (error,) = entries(agent, "error")
    assert is_by(error, broken, "before_each_tool") and error["error_type"] == "OSError"


def test_an_equal_copy_of_the_messages_is_taken_into_the_sessions_own_list() -> None:
    @after_tools
    def copies(agent: Agent) -> None:
        session_of(agent)["messages"] = list(session_of(agent)["messages"])

    agent = agent_with(copies)
    agent.input("Hi")
    assert contents(agent) == ["Hi", None, "4", "Done."]


BAD_MESSAGES = [
    "text",
    {},
    {"role": "user"},
    {"role": "robot", "content": "x"},
    {"role": "tool", "content": "no id"},
    {"role": "assistant", "content": None},
    {"role": "assistant", "content": None, "tool_calls": [{"id": 5}]},
    {"role": "user", "content": [{"type": "text"}]},
]


@pytest.mark.parametrize("message", BAD_MESSAGES, ids=[str(number) for number in range(len(BAD_MESSAGES))])
def test_a_malformed_message_is_an_error_that_names_the_handler_and_is_taken_back(message: Any) -> None:
    @after_tools
    def careless(agent: Agent) -> None:
        session_of(agent)["messages"].append(message)

    agent = agent_with(careless)
    with pytest.raises(HookResultError, match=r"after_tools|careless"):
        agent.input("Hi")
    assert contents(agent) == ["Hi", None, "4"]


@pytest.mark.parametrize("key", ["messages", "trace", "state", "turn"])
def test_a_session_that_loses_a_part_is_put_back(key: str) -> None:
    @after_tools
    def careless(agent: Agent) -> None:
        del session_of(agent)[key]

    agent = agent_with(careless)
    with pytest.raises(HookResultError):
        agent.input("Hi")
    assert contents(agent) == ["Hi", None, "4"] and session_of(agent)["turn"] == 1


def test_a_handler_of_the_trace_that_raises_is_named_too() -> None:
    @on_trace
    def broken(entry: dict[str, Any]) -> None:
        if entry["type"] == "llm_call":
            raise ValueError("trace")

    with pytest.raises(ValueError) as caught:
        agent_with(broken).input("Hi")
    assert "on_trace" in caught.value.__notes__[0]


def test_the_same_exception_object_is_a_handlers_once_and_a_tools_the_next_time() -> None:
    shared = ValueError("shared")

    def breaks() -> str:
        """Break."""
        raise shared

    @before_each_tool
    def guard(agent: Agent) -> None:
        if session_of(agent)["turn"] == 1:
            raise shared

    agent = agent_with(guard, script=(("breaks", {}), ("breaks", {}), "Done."))
    agent.add_tool(breaks)
    with pytest.raises(ValueError, match="shared"):
        agent.input("Hi")
    assert agent.input("Again") == "Done."
    assert entries(agent, "tool_execution")[-1]["status"] == "error"


def test_an_exception_that_takes_no_attributes_reaches_the_caller_as_it_is() -> None:
    class Frozen(Exception):
        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError("frozen")

    @after_tools
    def fail() -> None:
        raise Frozen("cold")

    agent = agent_with(fail)
    with pytest.raises(Frozen, match="cold"):
        agent.input("Hi")
    (error,) = entries(agent, "error")
    assert is_by({"by": error["by"]}, fail, "after_tools")
