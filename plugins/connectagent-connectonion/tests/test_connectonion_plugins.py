"""Plugins in ConnectOnion's form, functions with an `_event_type` that take the agent, run as they are."""

from __future__ import annotations

import inspect
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from connectagent_connectonion import CONNECTONION
from scripted_agents import CALL, agent_with, contents, double, entries, fails, is_by, session_of

from connectagent import Agent, HandlerError, PluginError, shadow
from connectagent.testing import ScriptedLLM, call


def on(event: str) -> Any:
    """What ConnectOnion's decorators do: they tag the function and return it."""

    def mark(function: Any) -> Any:
        function._event_type = event
        return function

    return mark


# -- plugins in the form that ConnectOnion's own have ---------------------------------------------


def think_and_act(seen: list[Any]) -> list[Any]:
    """Plan when the user has spoken, look back when the tools are done."""

    @on("after_user_input")
    def plan(agent: Any) -> str:
        prompt = agent.current_session["user_prompt"]
        agent.current_session["messages"].append({"role": "assistant", "content": f"Plan: {prompt}"})
        return "a plan that is nobody's result"

    @on("after_tools")
    def look_back(agent: Any) -> None:
        last = agent.current_session["trace"][-1]
        if last["type"] == "tool_execution" and last["status"] == "success":
            text = f"{last['tool_name']} {last['arguments']} gave {last['result'][:200]}"
            agent.current_session["messages"].append({"role": "assistant", "content": text})
            seen.append(last["timing"])

    return [plan, look_back]


@on("before_each_tool")
def shell_approval(whoever: Any) -> None:
    pending = whoever.current_session.get("pending_tool")
    if not pending or pending["name"] != "bash":
        return
    if "rm" in pending["arguments"].get("command", ""):
        raise ValueError(f"{pending['id'][:5]}: the user said no")


@on("after_each_tool")
def format_images(agent: Any) -> None:
    last = agent.current_session["trace"][-1]
    if last["type"] != "tool_execution" or not last["result"].startswith("data:image/"):
        return
    messages = agent.current_session["messages"]
    for index in range(len(messages) - 1, -1, -1):
        if messages[index]["role"] == "tool" and messages[index]["tool_call_id"] == last["call_id"]:
            messages[index]["content"] = "The picture is below."
            picture = {"type": "image_url", "image_url": {"url": last["result"]}}
            messages.insert(index + 1, {"role": "user", "content": [{"type": "text", "text": "It:"}, picture]})
            last["result"] = "a picture"
            break


def todo_list() -> list[Any]:
    def begin(agent: Any) -> None:
        agent.current_session.setdefault("todos", []).append(agent.current_session["turn"])

    def remind(agent: Any) -> bool:
        if agent.current_session["iteration"] == 1:
            agent.current_session["messages"].append({"role": "system", "content": "Keep the list."})
        return True

    def done(agent: Any) -> str:
        used = [entry["tool_name"] for entry in agent.current_session["trace"] if entry["type"] == "tool_execution"]
        agent.current_session["todos"].append(used)
        return "not the result"

    return [on("after_user_input")(begin), on("before_iteration")(remind), on("on_complete")(done)]


def bash(command: str) -> str:
    """Run a command."""
    return f"ran {command}"


def draw() -> str:
    """Draw."""
    return "data:image/png;base64,iVBORw0KGgo="


# -- what they do here ---------------------------------------------------------------------------


def test_a_plugin_that_plans_and_looks_back_adds_its_messages() -> None:
    seen: list[float] = []
    agent = agent_with(think_and_act(seen))
    assert agent.input("Hi") == "Done."
    assert contents(agent) == ["Hi", "Plan: Hi", None, "4", "double {'x': 2} gave 4", "Done."]
    assert len(seen) == 1 and seen[0] >= 0
    assert [entry["by"]["handler"] for entry in entries(agent, "message")] == ["plan", "look_back"]


def test_an_approval_that_raises_cancels_the_call_and_the_turn_goes_on() -> None:
    script = ([("bash", {"command": "rm -r /"}), ("bash", {"command": "ls"})], "Done.")
    agent = Agent("a", [bash], llm=ScriptedLLM(*script), plugins=[[shell_approval]], log=False, quiet=True)
    assert agent.input("Hi") == "Done."
    refused, ran = entries(agent, "tool_execution")
    assert (refused["status"], refused["result"]) == ("rejected", "rejected: call_: the user said no")
    assert (ran["status"], ran["result"]) == ("success", "ran ls")
    assert is_by(refused, shell_approval, "before_each_tool")


def test_a_formatter_of_images_edits_the_result_and_the_picture_comes_behind_the_round() -> None:
    llm = ScriptedLLM([("draw", {}), CALL], "Done.")
    agent = Agent("a", [draw, double], llm=llm, on_events=[format_images], log=False, quiet=True)
    assert agent.input("Hi") == "Done."
    sent = llm.requests[1].messages
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "tool", "user"]
    assert sent[2]["content"] == "The picture is below." and sent[4]["content"][1]["type"] == "image_url"


def test_a_todo_list_keeps_its_own_key_and_what_it_returns_decides_nothing() -> None:
    agent = agent_with(todo_list(), script=(CALL, "Done.", "Again."))
    assert (agent.input("Hi"), agent.input("Hi")) == ("Done.", "Again.")
    assert session_of(agent)["todos"] == [1, ["double"], 2, ["double"]]
    assert [content for content in contents(agent) if content == "Keep the list."] == ["Keep the list."] * 2


@pytest.mark.parametrize("event", [event for event in CONNECTONION if event != "on_error"])
@pytest.mark.parametrize("value", [True, "mine", {"role": "user"}, 0])
def test_a_value_is_ignored_at_every_event(event: str, value: Any) -> None:
    calls: list[Any] = []

    @on(event)
    def handler(agent: Any) -> Any:
        calls.append(agent)
        return value

    agent = agent_with(handler)
    assert agent.input("Hi") == "Done." and contents(agent) == ["Hi", None, "4", "Done."]
    assert calls and all(one == agent and isinstance(one, Agent) for one in calls)


def test_errors_of_tools_are_seen_with_their_entry_and_those_of_models_are_not() -> None:
    seen: list[Any] = []

    @on("on_error")
    def note(agent: Any) -> str:
        seen.append({key: agent.current_session["trace"][-1][key] for key in ("type", "status", "error_type")})
        return "recovered"

    agent = agent_with(note, script=(("fails", {}), OSError("overloaded")))
    with pytest.raises(OSError, match="overloaded"):
        agent.input("Hi")
    assert seen == [{"type": "tool_execution", "status": "error", "error_type": "OSError"}]
    assert entries(agent, "tool_execution")[0]["status"] == "error"


def test_what_the_last_entries_tell_is_what_they_tell_there() -> None:
    seen: dict[str, Any] = {}

    def last(event: str) -> Any:
        return on(event)(lambda agent: seen.setdefault(event, dict(agent.current_session["trace"][-1])))

    agent = agent_with([last(event) for event in ("after_user_input", "after_llm", "after_each_tool", "after_tools")])
    agent.input("Hi")
    assert seen["after_user_input"] | {"timestamp": 0} == {
        "type": "user_input", "turn": 1, "prompt": "Hi", "timestamp": 0, "at": "T1",
    }  # fmt: skip
    assert seen["after_llm"]["type"] == "llm_call"
    assert {"model", "duration_ms", "tool_calls_count", "iteration", "timestamp"} < set(seen["after_llm"])
    for event in ("after_each_tool", "after_tools"):
        entry = seen[event]
        assert (entry["type"], entry["tool_name"], entry["arguments"]) == ("tool_execution", "double", {"x": 2})
        assert (entry["result"], entry["status"]) == ("4", "success") and entry["timing"] >= 0


def test_a_plugin_gives_the_tool_the_path_that_it_cleaned() -> None:
    got = []

    def read(path: str) -> str:
        """Read a file."""
        got.append(path)
        return "text"

    @on("before_each_tool")
    def clean(agent: Any) -> None:
        pending = agent.current_session["pending_tool"]
        pending["arguments"]["path"] = pending["arguments"]["path"].rpartition("/")[2]

    llm = ScriptedLLM([call("read", path="/etc/passwd")], "Done.")
    Agent("reader", llm=llm, tools=[read], plugins=[[clean]], log=False, quiet=True).input("Go.")
    assert got == ["passwd"]


def test_an_error_names_the_handler_and_its_own_line() -> None:
    @on("after_llm")
    def broken(agent: Any) -> None:
        raise KeyError("x")

    with pytest.raises(KeyError) as caught:
        agent_with(broken).input("Hi")
    (told,) = caught.value.__notes__
    assert "broken" in told and f"{__file__}:{inspect.getsourcelines(broken)[1]}" in told


def test_a_handler_that_does_not_take_the_agent_alone_is_told() -> None:
    @on("after_llm")
    def two(agent: Any, response: Any) -> None: ...

    async def later(agent: Any) -> None: ...

    with pytest.raises(HandlerError, match="must take one parameter, the agent"):
        agent_with(two)
    with pytest.raises(HandlerError, match="is async"):
        agent_with(on("after_llm")(later))


def test_an_event_that_has_no_hook_is_told_with_those_that_have_one() -> None:
    with pytest.raises(PluginError, match="ConnectOnion's event 'on_stop_signal'; those with a hook are: after_user"):
        agent_with(on("on_stop_signal")(lambda agent: None))


def test_the_same_function_twice_is_told_and_modules_and_shadows_work() -> None:
    with pytest.raises(PluginError, match="listed twice"):
        agent_with([shell_approval], shell_approval)
    module = types.ModuleType("theirs")
    plugin = think_and_act([])
    vars(module).update(plan=plugin[0], re_act=plugin)
    agent = agent_with(module)
    agent.input("Hi")
    assert contents(agent)[1] == "Plan: Hi" and entries(agent, "message")[0]["by"]["plugin"] == "theirs"
    shadowed = agent_with(shadow(think_and_act([])))
    shadowed.input("Hi")
    assert contents(shadowed) == ["Hi", None, "4", "Done."] and len(entries(shadowed, "shadow")) == 2


# -- what only ConnectOnion's agents have -----------------------------------------------------------


def test_what_a_plugin_prints_is_traced_shown_and_written_to_the_text_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    @on("after_user_input")
    def plan(agent: Any) -> None:
        agent.logger.print("[dim]/planning...[/dim]", style="bold")

    @on("on_complete")
    def judge(agent: Any) -> None:
        agent.logger.print("as [/it was")

    log = tmp_path / "a.log"
    agent = Agent("a", llm=ScriptedLLM("Done."), plugins=[[plan, judge]], log=log)
    agent.input("Hi")
    first, last = entries(agent, "log")
    assert (first["text"], last["text"]) == ("/planning...", "as [/it was")
    assert is_by(first, plan, "after_user_input")
    assert "/planning..." in capfd.readouterr().err and "log: /planning..." in log.read_text()


def test_events_reach_the_connection_that_a_program_sets_and_there_is_none_before() -> None:
    seen: list[Any] = []

    class Client:
        def log(self, event: str, **data: Any) -> None:
            seen.append((event, data))

    @on("after_llm")
    def thinking(agent: Any) -> None:
        if agent.connection:
            agent.connection.log("llm", type=agent.current_session["trace"][-1]["type"])

    @on("on_error")
    def failed(agent: Any) -> None:
        if agent.connection:
            agent.connection.log("error", text=agent.current_session["trace"][-1]["error"])

    agent = agent_with([thinking, failed], script=("One.", ("fails", {}), "Two."))
    agent.input("Hi")
    assert seen == []
    vars(agent)["connection"] = Client()
    agent.input("Hi")
    llm = ("llm", {"type": "llm_call"})
    assert seen == [llm, ("error", {"text": "no disk"}), llm]


def test_objects_whose_methods_are_tools_are_found_by_the_name_of_their_class() -> None:
    class Gmail:
        def __init__(self) -> None:
            self.contacts: list[str] = []

        def send(self, to: str) -> str:
            """Send."""
            return f"sent to {to}"

    @on("after_each_tool")
    def keep_contact(agent: Any) -> None:
        last = agent.current_session["trace"][-1]
        if last["tool_name"] == "send" and last["status"] == "success":
            agent.tools.gmail.contacts.append(last["arguments"]["to"])
            seen.append((agent.tools.names(), len(agent.tools), "send" in agent.tools, agent.tools["send"].name))
            seen.append((agent.tools.send("me"), [tool.name for tool in agent.tools], bool(agent.tools)))
            seen.append((agent.tools.get_instance("gmail") is gmail, agent.tools.get_instance("calendar")))

    gmail, seen = Gmail(), []
    llm = ScriptedLLM(("send", {"to": "Ada"}), "Done.")
    Agent("a", [gmail], llm=llm, plugins=[[keep_contact]], log=False, quiet=True).input("Hi")
    assert gmail.contacts == ["Ada"]
    assert seen == [(["send"], 1, True, "send"), ("sent to me", ["send"], True), (True, None)]


def test_what_a_plugin_does_to_the_agent_is_done_to_the_agent() -> None:
    @on("after_llm")
    def act(agent: Any) -> None:
        agent.mood = "calm"
        agent.end_turn("Enough.")
        seen.append((agent, repr(agent), {agent: 1}, agent.name, agent.max_iterations))

    seen: list[Any] = []
    agent = agent_with(act)
    assert agent.input("Hi") == "Enough." and vars(agent)["mood"] == "calm"
    ((given, text, keys, name, limit),) = seen
    assert given == agent and given == given and text == repr(agent) and keys[agent] == 1
    assert (name, limit) == ("a", 10)


def test_plugins_of_one_round_all_find_the_calls_own_entry() -> None:
    seen: list[float] = []

    @on("after_tools")
    def behind(agent: Any) -> None:
        seen.append(agent.current_session["trace"][-1]["timing"])

    agent = agent_with(think_and_act(seen), [behind])
    agent.input("Hi")
    assert len(seen) == 2 and contents(agent)[-2] == "double {'x': 2} gave 4"


def test_the_eight_plugins_of_connectonion_run_a_turn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("connectonion", reason="connectonion is not installed: pip install connectonion==0.6.1")
    from connectonion import useful_plugins
    from connectonion.useful_events_handlers import reflect

    asked: list[str] = []
    for name in ("useful_plugins.re_act", "useful_plugins.eval", "useful_events_handlers.reflect"):
        module = sys.modules[f"connectonion.{name}"]
        monkeypatch.setattr(module, "llm_do", lambda prompt, **options: asked.append(prompt) or "a thought")
    for name in ("shell_approval", "gmail_plugin", "calendar_plugin"):
        module = sys.modules[f"connectonion.useful_plugins.{name}"]
        monkeypatch.setattr(module, "pick", lambda question, options, **more: options[0])

    class Client:
        def log(self, event: str, **data: Any) -> None:
            events.append(event)

    class Gmail:
        def send(self, to: str, subject: str, body: str) -> str:
            """Send."""
            return "sent"

        def update_contact(self, to: str, last_contact: str, next_contact_date: str) -> str:
            """Update."""
            contacts.append(to)
            return "Updated"

    def create_event(title: str) -> str:
        """Create an event."""
        return "created"

    events: list[str] = []
    contacts: list[str] = []
    script = [("bash", {"command": "rm x"}), ("send", {"to": "Ada", "subject": "s", "body": "b"})]
    script += [("create_event", {"title": "t"}), ("draw", {})]
    plugins = [getattr(useful_plugins, name) for name in useful_plugins.__all__] + [[reflect]]
    assert len(plugins) == 8
    for given in [*([plugin] for plugin in plugins), plugins[:-1]]:  # re_act has reflect in it
        llm = ScriptedLLM(*([call] for call in script), ("fails", {}), "Done.")
        agent = Agent("a", [bash, Gmail(), create_event, draw, fails], llm=llm, plugins=given, log=tmp_path / "log")
        vars(agent)["connection"] = Client()
        assert agent.input("Hi") == "Done."
    assert contents(agent).count("🤔 a thought") == 5 and "💭 a thought" in contents(agent)
    assert session_of(agent)["evaluation"] == "a thought" and contacts == ["Ada", "Ada"]
    assert "Screenshot captured (image provided below)" in contents(agent)
    assert {"message", "tool_start", "tool_result", "error", "complete"} <= set(events)
