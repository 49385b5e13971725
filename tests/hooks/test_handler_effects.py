"""What a handler returns unchanged, what ends the trace meanwhile, and what errors of tools say."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest
from scripted_agents import agent_with, contents, entries, session_of

from connectagent import (
    Agent,
    Image,
    LLMResponse,
    after_each_tool,
    after_llm,
    after_tools,
    around_llm,
    around_tool,
    around_turn,
    before_each_tool,
    on_complete,
    on_error,
    on_trace,
    shadow,
)
from connectagent.testing import ScriptedLLM, call

# -- a value that is returned as it was given --------------------------------------------------------


@after_llm
def same_response(response: LLMResponse) -> LLMResponse:
    return response


@after_each_tool
def same_result(result: Any) -> Any:
    return result


@on_complete
def same_end(result: str) -> str:
    return result


@around_llm
def same_answer(request: Any) -> Any:
    return (yield)


@around_tool
def same_value(tool_call: Any) -> Any:
    return (yield)


@around_turn
def same_turn(prompt: str) -> Any:
    return (yield)


UNCHANGING = [same_response, same_result, same_end, same_answer, same_value, same_turn]


@pytest.mark.parametrize("handler", UNCHANGING)
@pytest.mark.parametrize("wrap", [lambda handler: handler, shadow], ids=["run", "shadowed"])
def test_a_handler_that_returns_what_it_was_given_has_changed_nothing(handler: Any, wrap: Any) -> None:
    plain, agent = agent_with(), agent_with(wrap(handler))
    assert agent.input("Hi") == plain.input("Hi") == "Done."
    assert [entry["type"] for entry in session_of(agent)["trace"]] == [
        entry["type"] for entry in session_of(plain)["trace"]
    ]
    assert contents(agent) == contents(plain)


def test_a_list_that_was_edited_and_returned_is_a_change() -> None:
    def look() -> list[Any]:
        """Look."""
        return ["It:", Image(b"\x89PNG\r\n\x1a\n")]

    @after_each_tool
    def shorten(result: Any) -> Any:
        del result[1:]
        return result

    agent = Agent("a", [look], llm=ScriptedLLM(("look", {}), "Done."), plugins=[shorten], log=False, quiet=True)
    agent.input("Hi")
    (change,) = entries(agent, "change")
    (entry,) = entries(agent, "tool_execution")
    assert change["of"] == "result" and change["value"] == entry["result"] == contents(agent)[2]
    assert len(entry["result"]) == 1


def test_a_response_that_was_edited_and_returned_is_one_change() -> None:
    @after_llm
    def shout(response: LLMResponse) -> LLMResponse:
        response.content = "DONE."
        return response

    @around_llm
    def polite(request: Any) -> Any:
        response = yield
        response.content = f"Well, {response.content}"
        return response

    agent = agent_with(shout, script=("Done.",))
    assert agent.input("Hi") == "DONE." and len(entries(agent, "change")) == 1
    agent = agent_with(polite, script=("Done.",))
    assert agent.input("Hi") == "Well, Done." and len(entries(agent, "change")) == 1


def test_an_equal_value_of_its_own_takes_the_place() -> None:
    @after_each_tool
    def again(result: str) -> str:
        return "".join(["4", " "])[:1] + "!"

    agent = agent_with(again)
    agent.input("Hi")
    assert [entry["value"] for entry in entries(agent, "change")] == ["4!"] and "4!" in contents(agent)


# -- the end of the trace while the handlers about a call run -------------------------------------------


def touch(agent: Agent, name: str) -> None:
    session = session_of(agent)
    session["state"][name] = session["state"].get(name, 0) + 1
    session["messages"].append({"role": "user", "content": name})


@before_each_tool
def before(agent: Agent) -> None:
    touch(agent, "before")


@around_tool
def around(agent: Agent) -> Any:
    touch(agent, "around")
    value = yield
    touch(agent, "around")
    return f"{value}!"


@on_error
def recover(agent: Agent, tool_call: Any) -> str:
    touch(agent, "error")
    return "recovered"


@on_trace
def count(agent: Agent, entry: Any) -> None:
    if entry["type"] == "tool_execution":
        session_of(agent)["state"]["told"] = entry["call_id"]


@after_each_tool
def redact(agent: Agent, result: Any) -> str:
    touch(agent, "redact")
    return f"<{result}>"


@after_each_tool
def own_entry(agent: Agent) -> None:
    session_of(agent)["trace"].append({"type": "mine"})


@after_each_tool
def another_call(agent: Agent, tool_call: Any) -> None:
    if not tool_call.id.startswith("executed"):
        agent.execute_tool("double", {"x": 1})


MEDDLERS = [before, around, recover, count, redact, own_entry, another_call]


@pytest.mark.parametrize("plugins", [*([one] for one in MEDDLERS), MEDDLERS, MEDDLERS[::-1]])
@pytest.mark.parametrize("tool", ["double", "fails", "missing"])
def test_the_trace_ends_with_the_calls_own_entry_in_after_each_tool(plugins: list[Any], tool: str) -> None:
    seen: list[bool] = []

    @after_each_tool(tryfirst=True)
    def first(agent: Agent, entry: Any) -> None:
        seen.append(session_of(agent)["trace"][-1] is entry)

    @after_each_tool(trylast=True)
    def last(agent: Agent, entry: Any) -> None:
        seen.append(session_of(agent)["trace"][-1] is entry)

    @after_tools
    def after(agent: Agent, entries: Any) -> None:
        seen.append(session_of(agent)["trace"][-1] is entries[-1])

    told: list[Any] = []

    @on_trace
    def tell(entry: Any) -> None:
        told.append(entry)

    arguments = {"x": 2} if tool == "double" else {}
    script = ([(tool, arguments), (tool, arguments)], "Done.")
    agent = agent_with(plugins, first, last, after, tell, script=script)
    assert agent.input("Hi") == "Done."
    assert seen and all(seen)
    trace = session_of(agent)["trace"]
    assert list(map(id, trace)) == list(map(id, told))  # nothing is lost, and the order is that of what happened


def test_what_handlers_caused_is_in_the_trace_when_one_of_them_ends_the_turn() -> None:
    @after_each_tool
    def breaks(agent: Agent) -> None:
        raise KeyError("x")

    agent = agent_with(redact, own_entry, breaks)
    with pytest.raises(KeyError):
        agent.input("Hi")
    kinds = [entry["type"] for entry in session_of(agent)["trace"]]
    assert kinds[2:] == ["tool_execution", "message", "state_delta", "change", "mine", "error"]


# -- errors of tools -----------------------------------------------------------------------------------


def test_the_error_of_a_tool_is_the_exceptions_own_text_and_the_result_is_the_models() -> None:
    def slow() -> str:
        """Be slow."""
        raise TimeoutError("Connection timeout")

    def silent() -> str:
        """Say nothing."""
        raise TimeoutError

    script = ([("slow", {}), ("silent", {}), ("nothing", {}), ("slow", {"x": 1})], "Done.")
    agent = Agent("a", [slow, silent], llm=ScriptedLLM(*script), log=False, quiet=True)
    agent.input("Hi")
    first, second, third, fourth = entries(agent, "tool_execution")
    assert (first["error"], first["error_type"]) == ("Connection timeout", "TimeoutError")
    assert first["result"] == contents(agent)[2] == "Error: TimeoutError: Connection timeout"
    assert (second["error"], second["error_type"], second["result"]) == ("", "TimeoutError", "Error: TimeoutError")
    assert (third["status"], third["error_type"]) == ("not_found", "ToolNotFound")
    assert third["result"] == f"Error: {third['error']}" and fourth["result"] == f"Error: {fourth['error']}"


# -- execute_tool in two threads ------------------------------------------------------------------------------


def executed_in_two_threads(*handlers: Any, inside: threading.Event, over: threading.Event) -> Agent:
    """An agent that is asked for `double(1)`, and for `double(3)` as soon as a handler of the first is running."""
    agent = agent_with(*handlers, script=("Done.",))
    agent.input("Hi")

    def execute(x: int) -> None:
        with contextlib.suppress(KeyError):
            agent.execute_tool("double", {"x": x})

    first, second = (threading.Thread(target=execute, args=(x,)) for x in (1, 3))
    first.start()
    assert inside.wait(10)
    second.start()
    second.join(1)  # with a lock it waits for the first
    over.set()
    first.join()
    second.join()
    return agent


def test_a_handlers_error_in_one_thread_leaves_what_another_did_meanwhile() -> None:
    inside, over, set_by_second = threading.Event(), threading.Event(), threading.Event()

    @before_each_tool
    def guard(agent: Agent, tool_call: Any) -> None:
        if tool_call.arguments["x"] == 1:
            inside.set()
            set_by_second.wait(1)
            raise KeyError("x")
        session_of(agent)["state"]["kept"] = True
        set_by_second.set()
        over.wait(10)

    agent = executed_in_two_threads(guard, inside=inside, over=over)
    assert session_of(agent)["state"] == {"kept": True}


def test_a_change_in_one_thread_is_its_own_handlers_though_another_ends_meanwhile() -> None:
    inside, over, set_by_second = threading.Event(), threading.Event(), threading.Event()

    @before_each_tool
    def waits(tool_call: Any) -> None:
        if tool_call.arguments["x"] == 1:
            inside.set()
            set_by_second.wait(1)

    @before_each_tool
    def changes(agent: Agent, tool_call: Any) -> None:
        if tool_call.arguments["x"] == 3:
            session_of(agent)["state"]["mine"] = True
            set_by_second.set()
            over.wait(10)

    agent = executed_in_two_threads(waits, changes, inside=inside, over=over)
    assert [entry["by"]["handler"] for entry in entries(agent, "state_delta")] == ["changes"]


def test_a_tool_did_not_run_where_a_handler_raised_before_it() -> None:
    ran: list[bool] = []

    def look() -> str:
        """Look."""
        ran.append(True)
        return "seen"

    @around_tool
    def breaks(tool_call: Any) -> Any:
        raise LookupError("too early")
        yield

    agent = Agent("a", [look], llm=ScriptedLLM(("look", {}), "Done."), on_events=[breaks], log=False, quiet=True)
    with pytest.raises(LookupError):
        agent.input("Hi")
    assert ran == []
    (entry,) = [entry for entry in agent.session["trace"] if entry["type"] == "tool_execution"]
    assert entry["status"] == "skipped" and entry["result"] == "not run: LookupError ended the turn"


def test_the_state_is_the_same_dict_when_a_handler_s_change_of_it_is_undone() -> None:
    @after_llm
    def breaks(agent: Agent) -> None:
        agent.state["key"] = "lost"
        raise LookupError("no")

    agent = Agent("a", llm=ScriptedLLM("Hi.", "Hi."), log=False, quiet=True, state={"key": "kept"}, on_events=[breaks])
    with pytest.raises(LookupError):
        agent.input("Hi")
    state = agent.session["state"]
    with pytest.raises(LookupError):
        agent.input("Hi")
    assert agent.session["state"] is state and state == {"key": "kept"}


def test_a_result_that_is_edited_in_place_is_a_change_though_nothing_is_returned() -> None:
    def look() -> list[dict[str, str]]:
        """Look."""
        return [{"type": "text", "text": "kept"}, {"type": "text", "text": "cut"}]

    @after_each_tool
    def cut(result: Any) -> None:
        result.pop()

    agent = Agent("a", [look], llm=ScriptedLLM(call("look"), "Done."), on_events=[cut], log=False, quiet=True)
    agent.input("Go")
    kept = [{"type": "text", "text": "kept"}]
    assert session_of(agent)["messages"][2]["content"] == kept
    assert [entry["result"] for entry in entries(agent, "tool_execution")] == [kept]
    assert [(entry["of"], entry["by"]["handler"]) for entry in entries(agent, "change")] == [("result", "cut")]
