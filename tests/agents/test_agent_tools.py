"""Agents as tools: one at a time, and eight at the same time; ends, errors and Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import connectagent
from connectagent import (
    Agent,
    LLMResponse,
    ProviderError,
    Retry,
    TokenUsage,
    ToolRejected,
    after_each_tool,
    around_tool,
    before_each_tool,
    on_complete,
    on_error,
    xray,
)
from connectagent.loop.nested import MAX_DEPTH
from connectagent.testing import HookRecorder, ScriptedLLM, call
from connectagent.testing import conversation_problems as problems


def made(name: str, *script: Any, **options: Any) -> Agent:
    return Agent(name, llm=ScriptedLLM(*script), **{"log": False, "quiet": True, **options})


def session(agent: Agent) -> dict[str, Any]:
    assert agent.current_session is not None
    return agent.current_session  # type: ignore[return-value]


def results(agent: Agent) -> list[Any]:
    return [message["content"] for message in session(agent)["messages"] if message["role"] == "tool"]


def asking(*names: str) -> list[Any]:
    return [call(name, prompt=f"for {name}") for name in names]


def check(*agents: Agent) -> None:
    for agent in agents:
        assert isinstance(agent.llm, ScriptedLLM)
        for messages in [*(request.messages for request in agent.llm.requests), session(agent)["messages"]]:
            assert problems(messages) == []


# -- one at a time -----------------------------------------------------------------------------------


def test_an_agent_as_a_tool_is_given_a_prompt_and_gives_its_result() -> None:
    child = made("child", "Fine.", description="Knows a lot.")
    root = made("root", asking("child"), "Done.", tools=[child])
    assert root.tools["child"].description == "Knows a lot."
    assert root.input("Hi") == "Done."
    assert results(root) == ["Fine."] and session(child)["messages"][0]["content"] == "for child"
    kinds = [entry["type"] for entry in session(root)["trace"]]
    assert kinds == ["user_input", "llm_call", "agent_turn", "tool_execution", "llm_call"]


def test_the_end_of_a_childs_part_ends_its_own_part_only() -> None:
    def stop(agent: Any) -> str:
        """Stop."""
        agent.end_turn("Stopped.")
        return "ok"

    child = made("child", ("stop", {}), tools=[stop])
    root = made("root", asking("child"), "Done.", tools=[child])
    assert root.input("Hi") == "Done." and results(root) == ["Stopped."]
    assert session(child)["outcome"] == "ended" and session(root)["outcome"] == "answered"


@pytest.mark.parametrize("result", ["Stopped.", None])
def test_the_end_of_the_whole_turn_ends_each_agents_and_completes_each(result: str | None) -> None:
    def stop(agent: Any) -> str:
        """Stop."""
        agent.end_turn(result, scope="turn")
        return "ok"

    recorder = HookRecorder()
    inner = made("inner", LLMResponse("Halt.", [call("stop")]), tools=[stop])
    child = made("child", asking("inner"), tools=[inner])
    root = made("root", [*asking("child"), call("child", prompt="again")], tools=[child], plugins=[recorder])
    expected = result or ""
    assert root.input("Hi") == expected
    assert [session(agent)["outcome"] for agent in (root, child, inner)] == ["ended"] * 3
    assert [given["result"] for given in recorder.of("on_complete")] == [expected] * 3
    assert results(root)[1] == "not run: the turn was ended"
    check(root, child, inner)
    with pytest.raises(ValueError, match="'agent', 'loop' or 'turn', not 'all'"):
        made("x", ("end", {}), plugins=[before_each_tool(lambda agent: agent.end_turn(scope="all"))]).input("x")


def test_a_childs_failing_model_is_a_tool_error_that_the_parents_model_reads() -> None:
    seen: list[tuple[str, Any]] = []

    @on_error
    def note(agent: Agent, tool_call: Any) -> None:
        seen.append((agent.name, tool_call and tool_call.name))

    child = made("child", ProviderError("down", kind="server", provider="x"))
    root = made("root", asking("child"), "Pity.", tools=[child], plugins=[note])
    assert root.input("Hi") == "Pity." and results(root) == ["Error: ProviderError: down"]
    assert seen == [("child", None), ("root", "child")]
    check(root, child)


@pytest.mark.parametrize("hook", ["before_llm", "around_turn", "on_complete", "on_trace"])
def test_a_childs_broken_handler_reaches_the_caller_and_no_tool_is_blamed(hook: str) -> None:
    def event(agent: Agent) -> None:
        raise OSError("no disk")

    def around(agent: Agent) -> Any:
        yield
        raise OSError("no disk")

    broken = getattr(connectagent, hook)(around if hook.startswith("around") else event)
    child = made("child", "x", plugins=[broken])
    middle = made("middle", asking("child"), tools=[child])
    recorder = HookRecorder()
    root = made("root", asking("middle"), tools=[middle], plugins=[recorder])
    with pytest.raises(OSError, match="no disk") as raised:
        root.input("Hi")
    assert len(raised.value.__notes__) == 1 and f"{hook} handler" in raised.value.__notes__[0]
    assert recorder.of("on_error") == []
    for agent in (root, middle):
        (entry,) = [entry for entry in session(agent)["trace"] if entry["type"] == "tool_execution"]
        assert entry["status"] == "interrupted" and "error" not in entry
        assert session(agent)["trace"][-1]["by"]["handler"].endswith(broken.__name__)
        assert problems(session(agent)["messages"]) == []


def test_an_agent_that_is_in_its_turn_already_is_an_error_for_the_one_that_asks_it() -> None:
    def ask_root(agent: Any) -> str:
        """Ask."""
        return str(agent.root.input("You again"))

    child = made("child", ("ask_root", {}), "Ok.", tools=[ask_root])
    root = made("root", asking("child"), "Done.", tools=[child])
    assert root.input("Hi") == "Done."
    assert "is in a turn" in results(child)[0]


def test_agents_inside_agents_have_a_limit_that_says_so() -> None:
    agents = [made(f"a{MAX_DEPTH + 1}", "deep")]
    for depth in range(MAX_DEPTH, -1, -1):
        agents.insert(0, made(f"a{depth}", asking(f"a{depth + 1}"), f"end {depth}", tools=[agents[0]]))
    assert agents[0].input("Hi") == "end 0"
    assert (
        f"{MAX_DEPTH} is the limit" in results(agents[MAX_DEPTH])[0] and "a0 > a1 > a2" in results(agents[MAX_DEPTH])[0]
    )
    assert agents[-1].current_session is None


def test_what_children_cost_counts_for_their_callers() -> None:
    def spent(cost: float | None) -> LLMResponse:
        return LLMResponse("ok", usage=TokenUsage(10, 1, cost=cost))

    inner = made("inner", spent(0.25))
    child = made("child", asking("inner"), spent(0.5), tools=[inner])
    root = made("root", asking("child"), spent(1.0), tools=[child])
    root.input("Hi")
    assert (root.total_cost, child.total_cost, inner.total_cost) == (1.75, 0.75, 0.25)
    (link,) = [entry for entry in session(root)["trace"] if entry["type"] == "agent_turn"]
    assert link["usage"].input_tokens == 20 and link["usage"].cost is None  # one call told no price


# -- at the same time ----------------------------------------------------------------------------------


def test_calls_of_agents_in_one_round_work_at_the_same_time_and_hooks_keep_their_order() -> None:
    together, seen = threading.Barrier(3, timeout=10), []

    def meeting(text: str) -> Any:
        def answer(messages: Any, tools: Any) -> str:
            together.wait()
            return text

        return answer

    class Watch:
        @before_each_tool
        def before(self, agent: Agent, tool_call: Any) -> None:
            seen.append(f"before {tool_call.name} {session(agent)['pending_tool']['name']}")

        @around_tool
        def around(self, agent: Agent, tool_call: Any) -> Any:
            seen.append(f"> {tool_call.name}")
            session(agent)["state"][f"in {tool_call.name}"] = True
            result = yield
            seen.append(f"< {tool_call.name} {result} {session(agent)['pending_tool']['name']}")

        @after_each_tool
        def after(self, agent: Agent, tool_call: Any, result: Any) -> None:
            seen.append(f"after {tool_call.name} {result} {session(agent)['pending_tool']['name']}")

    def plain(x: int) -> int:
        """Double."""
        return 2 * x

    children = [made(name, meeting(name.upper())) for name in "abc"]
    round_of = [*asking("a"), call("plain", x=2), *asking("b", "c"), call("nope")]
    root = made("root", round_of, "Done.", tools=[*children, plain], plugins=[Watch()])
    assert root.input("Hi") == "Done."
    assert seen == [
        *[f"before {name} {name}" for name in ("a", "plain", "b", "c", "nope")],
        "> plain", "< plain 4 plain", "> a", "> b", "> c", "< a A a", "< b B b", "< c C c",
        "after a A a", "after plain 4 plain", "after b B b", "after c C c", f"after nope {results(root)[4]} nope",
    ]  # fmt: skip
    assert results(root)[:4] == ["A", "4", "B", "C"]
    by = {entry["by"].get("handler") for entry in session(root)["trace"] if "by" in entry}
    assert {name.rpartition(".")[2] for name in by} == {"around"}
    assert session(root)["pending_tool"] is None
    check(root, *children)


def test_two_calls_of_one_agent_work_one_after_the_other() -> None:
    a, b = made("a", "1", "2"), made("b", "3")
    root = made("root", [*asking("a", "b"), call("a", prompt="more")], "Done.", tools=[a, b])
    assert root.input("Hi") == "Done." and results(root) == ["1", "3", "2"]
    assert session(a)["turn"] == 2
    check(root, a, b)


def count(agent: Any, n: int) -> str:
    """Count."""
    state = agent.current_session["state"]
    assert xray.agent is agent and xray.user_prompt == f"for {agent.name}"
    state[f"by {agent.name}"] = n
    state["all"] = agent.name
    state.setdefault("path", []).append(agent.name)
    return f"{agent.name} {n}"


def _eight(**options: Any) -> tuple[Agent, list[Agent]]:
    names = [f"c{n}" for n in range(8)]
    children = [made(name, tools=[count], **options) for name in names]
    root = made("root", tools=children, plugins=[Shared()], **options)
    return root, children


class Shared:
    """A plugin that all agents have, and that changes each one's own session."""

    @before_each_tool
    def note(self, agent: Agent, tool_call: Any) -> None:
        session(agent)["state"][f"note {agent.name} {tool_call.name}"] = tool_call.arguments

    @after_each_tool
    def sign(self, agent: Agent, result: Any) -> str:
        return f"{result} ({agent.name})"


def _run_of_eight(root: Agent, children: list[Agent], n: int) -> None:
    root.reset_conversation()
    names = [child.name for child in children]
    root.llm = ScriptedLLM(asking(*names), "Done.")
    for child in children:
        child.llm = ScriptedLLM(("count", {"n": n}), f"{child.name} is done")
    assert root.input(f"run {n}") == "Done."
    assert results(root) == [f"{name} is done (root)" for name in names]
    state = session(root)["state"]
    assert state["all"] == "c7" and state["path"] == names  # each began the list, and nothing of it is lost
    assert [state[f"by {name}"] for name in names] == [n] * 8
    trace = session(root)["trace"]
    assert [entry["agent"] for entry in trace if entry["type"] == "agent_turn"] == names
    assert [entry["tool_name"] for entry in trace if entry["type"] == "tool_execution"] == names
    for entry in trace:
        if entry["type"] == "state_delta":
            agent = entry["by"].get("agent")
            keys = {f"by {agent}", "all", "path", f"note {agent} count"} if agent else None
            assert set(entry["delta"]) == keys or entry["by"]["handler"] == "Shared.note"
        assert entry["author"] == "root" and entry["type"] != "session_delta"
    for child in children:
        assert results(child) == [f"{child.name} {n} ({child.name})"]
        own = [entry for entry in session(child)["trace"] if entry["type"] == "state_delta"]
        whose = [entry["by"].get("agent") or entry["by"].get("tool") or entry["by"]["handler"] for entry in own]
        assert whose == ["root", "Shared.note", "count"]
        assert {entry["author"] for entry in session(child)["trace"]} == {child.name}


RUNS = int(os.environ.get("CONNECTAGENT_RUNS", "120"))


def test_many_runs_of_eight_agents_at_the_same_time_do_not_mix() -> None:
    root, children = _eight()
    before = threading.active_count()
    for n in range(RUNS):
        _run_of_eight(root, children, n)
    assert threading.active_count() <= before  # threads of earlier tests may end meanwhile
    check(root, *children)


def test_the_records_of_eight_agents_at_the_same_time_do_not_mix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from connectagent.records.read import own_entries, read_record

    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path))
    root, children = _eight(log=None)
    for n in range(30):
        _run_of_eight(root, children, n)
        (turn,) = read_record(root.record or "")["turns"]
        inside = [entry for entry in turn["trace"] if entry["type"] == "agent_turn"]
        assert [entry["result"] for entry in inside] == [f"{child.name} is done" for child in children]
        for child in children:
            own = own_entries(turn["lines"], child.name, child.branch)
            assert [entry["type"] for entry in own] == [entry["type"] for entry in session(child)["trace"]]
    assert len(list(tmp_path.glob("evals/*.yaml"))) == 30


def test_a_stand_in_a_rejection_and_a_retry_have_their_places_in_such_a_round() -> None:
    @before_each_tool
    def decide(agent: Agent, tool_call: Any) -> Any:
        if tool_call.name == "b":
            raise ToolRejected("Not b.")
        return "stand-in" if tool_call.name == "c" else None

    @on_error
    def again(tool_call: Any) -> Any:
        return Retry() if tool_call is not None else None

    children = [made("a", OSError("once"), "A"), made("b"), made("c"), made("d", "D")]
    root = made("root", asking("a", "b", "c", "d"), "Done.", tools=children, plugins=[decide, again])
    assert root.input("Hi") == "Done."
    assert results(root) == ["A", "rejected: Not b.", "stand-in", "D"]
    check(root)


def test_a_handler_about_one_call_may_ask_an_agent_and_the_order_stays() -> None:
    seen: list[str] = []

    @before_each_tool
    def ask(agent: Agent, tool_call: Any) -> None:
        seen.append(tool_call.name)
        if agent.name == "root" and tool_call.name in ("a", "b"):
            agent.execute_tool("judge", {"prompt": "May it?"})

    judge = made("judge", "Yes.", "Yes.")
    children = [made("a", "A"), made("b", "B"), judge]
    root = made("root", asking("a", "b"), "Done.", tools=children, plugins=[ask])
    assert root.input("Hi") == "Done." and results(root) == ["A", "B"]
    assert seen == ["a", "judge", "b", "judge"]
    links = [entry["agent"] for entry in session(root)["trace"] if entry["type"] == "agent_turn"]
    assert links == ["judge", "judge", "a", "b"]
    check(root, *children)


def test_a_broken_handler_in_one_ends_the_round_when_the_others_are_back() -> None:
    @on_complete
    def broken(agent: Agent) -> None:
        if agent.name == "a":
            raise OSError("no disk")

    children = [made("a", "A"), made("b", "B"), made("c", "C")]
    root = made("root", [*asking("a", "b"), call("nope"), *asking("c")], tools=children, plugins=[broken])
    with pytest.raises(OSError) as raised:
        root.input("Hi")
    assert len(raised.value.__notes__) == 1
    assert [entry["status"] for entry in session(root)["trace"] if entry["type"] == "tool_execution"] == [
        "interrupted", "success", "not_found", "success",
    ]  # fmt: skip
    assert problems(session(root)["messages"]) == []
    root.llm = ScriptedLLM("On we go.")
    assert root.input("And now?") == "On we go."


def test_a_guard_that_raises_about_one_call_of_a_round_lets_none_of_the_agents_begin() -> None:
    @before_each_tool
    def broken(agent: Agent, tool_call: Any) -> None:
        if tool_call.name == "b":
            raise OSError("no disk")

    a, b = made("a", "A"), made("b", "B")
    root = made("root", asking("a", "b"), tools=[a, b], plugins=[broken])
    with pytest.raises(OSError):
        root.input("Hi")
    assert results(root) == ["not run: OSError ended the turn"] * 2
    assert a.current_session is None and b.current_session is None
    check(root)


def test_context_variables_reach_the_threads_and_handlers_pay_for_their_own_calls_only() -> None:
    children = [made(name, LLMResponse(name, usage=TokenUsage(1, 1, cost=1.0))) for name in "ab"]

    @around_tool
    def around(tool_call: Any) -> Any:
        yield

    root = made("root", asking("a", "b"), "Done.", tools=children, plugins=[around])
    root.input("Hi")
    assert root.total_cost == 2.0
    assert [row["model_calls"] for row in root.ledger if row["handler"].endswith("around")] == [0]


CTRL_C = """
import os, signal, sys, threading, time
from connectagent import Agent, before_llm, on_trace
from connectagent.testing import ScriptedLLM, call

entered = threading.Barrier(3)
pressed = threading.Event()

def slow(agent) -> str:
    "Work."
    entered.wait()
    pressed.wait(20)
    return "worked"

def child(name):
    return Agent(name, tools=[slow], llm=ScriptedLLM(("slow", {}), "never asked"), log=False, quiet=True)

def fast(messages, tools):
    return "fast is done"

inner = child("inner")
a = child("a")
b = Agent("b", tools=[inner], llm=ScriptedLLM([call("inner", prompt="x")], "never asked"), log=False, quiet=True)
c = Agent("c", llm=ScriptedLLM(fast), log=False, quiet=True)
calls = [call(name, prompt="x") for name in ("a", "c", "b", "d")]
d = Agent("d", llm=ScriptedLLM("x"), log=False, quiet=True)
seen = []

@on_trace
def note(agent, entry):
    seen.append((agent.name, entry["type"]))
    if (agent.name, entry["type"]) == ("c", "llm_call"):
        c_done.set()

c_done = threading.Event()
root = Agent("root", tools=[a, b, c, d], llm=ScriptedLLM(calls, "never asked"), log=False, quiet=True, plugins=[note])

def press():
    entered.wait()
    c_done.wait()
    while c.turning.locked() and not c.current_session["outcome"]:
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGINT)
    while a.turn.ended is None or inner.turn.ended is None:
        time.sleep(0.001)
    pressed.set()

presser = threading.Thread(target=press)
presser.start()
try:
    root.input("Hi")
except KeyboardInterrupt:
    print("interrupted")
presser.join()
results = [m["content"] for m in root.current_session["messages"] if m["role"] == "tool"]
print(results)
print([agent.current_session["outcome"] for agent in (a, b, inner, c)])
print(threading.active_count())
root.llm = ScriptedLLM([call("a", prompt="y"), call("b", prompt="y")], "It goes on.")
a.llm, b.llm = ScriptedLLM("A"), ScriptedLLM("B")
print(root.input("Go on."))
"""


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_ends_the_children_closes_the_round_and_goes_on(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(CTRL_C)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "interrupted"
    texts = eval(lines[1])
    assert texts[0] == texts[2] == "interrupted before it finished: KeyboardInterrupt"
    assert texts[1] in ("fast is done", texts[0])
    assert eval(lines[2]) == [None, None, None, "answered"]
    assert lines[3:] == ["1", "It goes on."]


CTRL_C_TWICE = """
import os, signal, threading, time
from connectagent import Agent
from connectagent.testing import ScriptedLLM, call

asked, hung = threading.Event(), threading.Event()

def slow(messages, tools):
    asked.set()
    hung.wait(20)
    return "late"

a = Agent("a", llm=ScriptedLLM(slow, "A"), log=False, quiet=True)
b = Agent("b", llm=ScriptedLLM("B"), log=False, quiet=True)
calls = [call("a", prompt="x"), call("b", prompt="x")]
root = Agent("root", tools=[a, b], llm=ScriptedLLM(calls), log=False, quiet=True)

def press():
    asked.wait()
    os.kill(os.getpid(), signal.SIGINT)
    while a.turn.ended is None:
        time.sleep(0.001)
    time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)

presser = threading.Thread(target=press)
presser.start()
try:
    root.input("Hi")
except KeyboardInterrupt:
    print("interrupted", a.in_turn)
presser.join()
before = [dict(message) for message in root.current_session["messages"]]
hung.set()
while a.in_turn:
    time.sleep(0.001)
print(before == root.current_session["messages"], a.current_session["outcome"], a.turn)
root.llm = ScriptedLLM(call("a", prompt="again"), "It goes on.")
print(root.input("Go on."), root.current_session["messages"][-2]["content"])
"""


@pytest.mark.usefixtures("ctrl_c")
def test_a_second_ctrl_c_waits_no_longer_and_what_comes_late_changes_nothing(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(CTRL_C_TWICE)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["interrupted True", "True None None", "It goes on. A"]


@pytest.mark.usefixtures("ctrl_c")
def test_a_child_that_is_interrupted_itself_interrupts_all() -> None:
    def pressed() -> str:
        """Be interrupted."""
        raise KeyboardInterrupt

    a, b = made("a", ("pressed", {}), tools=[pressed]), made("b", "B")
    root = made("root", asking("a", "b"), tools=[a, b])
    with pytest.raises(KeyboardInterrupt):
        root.input("Hi")
    assert len(results(root)) == 2 and problems(session(root)["messages"]) == []
    root.llm = ScriptedLLM("On.")
    assert root.input("And?") == "On."
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
