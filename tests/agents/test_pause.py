"""A turn that waits: `Pause` stops it anywhere, and a decision ends it in another process as if it had not stopped."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import forked
import pytest
from awaiting import go_on, take

import connectagent
from connectagent import Agent, LLMResponse, Pause, Paused, Sequential, ToolCall, before_each_tool, hooks, xray
from connectagent.agents.decisions import waiting_in
from connectagent.errors import ConfigError, HookResultError
from connectagent.hooks.specs import EVENTS, PARAMETERS
from connectagent.loop.stream import streamed
from connectagent.records.history import history_of
from connectagent.records.read import read_record
from connectagent.records.summary import summarise
from connectagent.testing import ScriptedLLM, call, conversation_problems

PLACES = ("before_llm", "before_tools", "before_each_tool", "tool")
CALLS = [ToolCall("c1", "work", {"n": 1}), ToolCall("c2", "work", {"n": 2}), ToolCall("c3", "work", {"n": 3})]
ROUND = LLMResponse("On it.", CALLS)
RUN: dict[str, Callable[..., Any]] = {
    "plain": take,
    "streamed": lambda agent, prompt: list(agent.stream(prompt))[-1]["result"],
    "awaited": partial(take, awaited=True),
}
RESUME: dict[str, Callable[..., Any]] = {
    "plain": go_on,
    "streamed": lambda agent, path, **decided: list(streamed(agent, partial(agent.resume, path, **decided)))[-1][
        "result"
    ],
    "awaited": partial(go_on, awaited=True),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)
    return tmp_path


class Plan:
    """What one process does: an agent whose `before`, `pauses` and `behind` handlers note each hook that fires."""

    def __init__(self, place: str, *responses: Any, ask: bool = True) -> None:
        self.log: list[tuple[str, ...]] = []
        self.ran: list[int] = []
        self.approved: list[int] = []
        self.place, self.ask = place, ask
        marked = [self.noting(hook, name) for name in ("before", "pauses", "behind") for hook in EVENTS]
        self.llm = ScriptedLLM(*responses)
        self.agent = Agent("clerk", [self.work], llm=self.llm, quiet=True, plugins=[marked, self.around()])

    def work(self, n: int) -> str:
        """Work."""
        if n == 2:
            self.pause("tool", xray.approved)
            self.approved += [n] if xray.approved else []
        self.ran.append(n)
        return f"worked on {n}"

    def pause(self, place: str, approved: bool = False) -> None:
        if self.ask and place == self.place and not approved:
            raise Pause("needs a manager")

    def noting(self, hook: str, name: str) -> Any:
        def handler(**given: Any) -> None:
            call = given.get("tool_call")
            self.log.append((hook, name, call.id if call else ""))
            late = hook != "before_llm" or any(message["role"] == "tool" for message in given["request"].messages)
            if name == "pauses" and late and (call is None or call.id == "c2"):
                self.pause(hook)

        parameters = ", ".join(PARAMETERS[hook])
        passed = ", ".join(f"{parameter}={parameter}" for parameter in PARAMETERS[hook])
        scope = {"handler": handler}
        exec(f"def {name}({parameters}):\n    return handler({passed})", scope)
        return getattr(hooks, hook)(scope[name])

    def around(self) -> Any:
        @hooks.around_tool
        def around(tool_call: ToolCall) -> Iterator[None]:
            self.log.append(("around_tool", "", tool_call.id))
            yield

        return around


def paused_turn(place: str, how: str = "plain") -> tuple[Plan, Paused]:
    plan = Plan(place, ROUND)
    with pytest.raises(Paused) as caught:
        RUN[how](plan.agent, "Do it.")
    return plan, caught.value


def check(plan: Plan, path: Path) -> list[str]:
    """The results of the round; what was resumed is as whole as what was not."""
    assert plan.agent.current_session is not None
    messages = plan.agent.current_session["messages"]
    assert conversation_problems(messages) == []
    assert history_of(path).messages == messages
    assert summarise(path).status == "answered"
    return [str(message["content"]) for message in messages if message["role"] == "tool"]


@pytest.mark.parametrize("how", RUN)
@pytest.mark.parametrize("place", PLACES)
def test_an_approved_turn_ends_as_if_it_had_not_stopped(place: str, how: str) -> None:
    straight = Plan(place, ROUND, "Done.", ask=False)
    assert straight.agent.input("Do it.") == "Done."
    first, pause = paused_turn(place, how)
    assert pause.reason == "needs a manager"
    assert (pause.call.id if pause.call else None) == ("c2" if place in ("before_each_tool", "tool") else None)
    assert pause.record is not None and summarise(pause.record).status == "paused"
    second = Plan(place, "Done.")
    assert RESUME[how](second.agent, pause.record, approve=True) == "Done."
    assert first.ran + second.ran == [1, 2, 3]
    assert second.approved == ([2] if place in ("tool", "before_each_tool", "before_tools") else [])
    assert check(second, pause.record) == ["worked on 1", "worked on 2", "worked on 3"]
    again = [("around_tool", "", "c2")] if place == "tool" else []
    assert first.log + [entry for entry in second.log if entry not in again] == straight.log
    assert straight.agent.current_session is not None and second.agent.current_session is not None
    assert second.agent.current_session["messages"] == straight.agent.current_session["messages"]


@pytest.mark.parametrize("how", RUN)
@pytest.mark.parametrize("place", PLACES[1:])
def test_a_rejected_call_is_not_run_and_the_model_reads_why(place: str, how: str) -> None:
    first, pause = paused_turn(place, how)
    second = Plan(place, "Then not.")
    assert RESUME[how](second.agent, pause.record, reject="too dear") == "Then not."
    assert pause.record is not None
    no, whole = "rejected: too dear", place == "before_tools"
    expected = [no] * 3 if whole else ["worked on 1", no, "worked on 3"]
    assert check(second, pause.record) == expected
    assert first.ran + second.ran == ([] if whole else [1, 3])
    fired = [entry for entry in first.log + second.log if entry[0] == "after_each_tool"]
    names = ("before", "pauses", "behind")
    assert fired == [("after_each_tool", name, id) for id in ("c1", "c2", "c3") for name in names]
    assert second.agent.current_session is not None
    entries = [e for e in second.agent.current_session["trace"] if e.get("status") == "rejected"]
    assert [entry["by"] for entry in entries] == [{"plugin": "(resume)"}] * len(expected[: 3 if whole else 1])


@pytest.mark.parametrize("how", RUN)
@pytest.mark.parametrize("place", ["before_each_tool", "tool"])
def test_an_answer_stands_in_for_the_call(place: str, how: str) -> None:
    first, pause = paused_turn(place, how)
    second = Plan(place, "I see.")
    assert RESUME[how](second.agent, pause.record, answer={"from": "the manager"}) == "I see."
    assert pause.record is not None
    assert check(second, pause.record) == ["worked on 1", '{"from": "the manager"}', "worked on 3"]
    assert first.ran + second.ran == [1, 3]


@pytest.mark.parametrize(("decided", "result"), [({"answer": "Mine."}, "Mine."), ({"reject": "no"}, "rejected: no")])
def test_a_decision_about_a_model_call_stands_in_for_it(decided: dict[str, Any], result: str) -> None:
    _, pause = paused_turn("before_llm")
    second = Plan("before_llm")
    assert second.agent.resume(pause.record, **decided) == result
    assert second.llm.requests == [] and pause.record is not None
    assert len(check(second, pause.record)) == 3
    assert ("before_llm", "behind", "") not in second.log


def test_two_pauses_one_after_the_other_in_one_turn() -> None:
    def pay(euro: int) -> str:
        """Pay."""
        if not xray.approved:
            raise Pause(f"{euro} euro?")
        return f"paid {euro}"

    calls = [ToolCall("c1", "pay", {"euro": 10}), ToolCall("c2", "pay", {"euro": 20})]
    agent = lambda *script: Agent("payer", [pay], llm=ScriptedLLM(*script), quiet=True)  # noqa: E731
    with pytest.raises(Paused, match="10 euro") as first:
        agent(LLMResponse(None, calls)).input("Pay.")
    with pytest.raises(Paused, match="20 euro") as second:
        agent().resume(first.value.record, approve=True)
    assert second.value.record == first.value.record and second.value.call.id == "c2"
    last = agent("Half of it.")
    assert last.resume(first.value.record, reject="enough") == "Half of it."
    assert last.current_session is not None
    results = [message["content"] for message in last.current_session["messages"] if message["role"] == "tool"]
    assert results == ["paid 10", "rejected: enough"]
    assert conversation_problems(last.current_session["messages"]) == []


@pytest.mark.parametrize("place", PLACES)
def test_without_a_decision_it_goes_on_waiting_and_nothing_is_written(place: str) -> None:
    _, pause = paused_turn(place)
    assert pause.record is not None
    before = pause.record.read_bytes()
    with pytest.raises(Paused, match="needs a manager") as caught:
        Plan(place).agent.resume(pause.record)
    assert caught.value.call == pause.call and caught.value.reason == pause.reason
    for wrong in ({"approve": True, "reject": "no"}, {"reject": "a", "answer": "b"}):
        with pytest.raises(ConfigError, match="give one of"):
            Plan(place).agent.resume(pause.record, **wrong)
    assert pause.record.read_bytes() == before


@pytest.mark.parametrize(
    ("decision", "words"),
    [
        ({"approve": 5}, "approve is True, or the id of what waits, not 5"),
        ({"approve": ["yes"]}, "approve is True"),
        ({"reject": 5}, "reject is why, a str, not 5"),
        ({"approve": True, "wait": 5}, "wait is the id of what waits"),
    ],
)
def test_what_is_no_decision_decides_nothing(decision: dict[str, Any], words: str) -> None:
    """It may come from a form, or from the body of a request."""
    _, pause = paused_turn("before_each_tool")
    assert pause.record is not None
    before = pause.record.read_bytes()
    with pytest.raises(ConfigError, match=words):
        Plan("before_each_tool").agent.resume(pause.record, **decision)
    assert pause.record.read_bytes() == before


def test_a_decision_that_does_not_fit_leaves_nothing_behind_in_the_agent() -> None:
    _, pause = paused_turn("before_tools")
    plan = Plan("before_tools", "Hello.")
    with pytest.raises(ConfigError, match="takes approve=True or reject"):
        plan.agent.resume(pause.record, answer="x")
    assert plan.agent.input("Hi") == "Hello."
    assert ("after_user_input", "before", "") in plan.log
    _, pause = paused_turn("before_llm")
    with pytest.raises(ConfigError, match="a str or an LLMResponse"):
        Plan("before_llm").agent.resume(pause.record, answer=3)
    record = next(path for path in Path(".co/evals").iterdir() if summarise(path).status == "answered")
    with pytest.raises(ConfigError, match="nothing waits for a decision: the last turn's status is 'answered'"):
        plan.agent.resume(record, approve=True)


@pytest.mark.parametrize("place", PLACES)
def test_the_next_input_goes_on_instead_and_the_model_is_told(place: str) -> None:
    plan, pause = paused_turn(place)
    plan.ask, plan.llm.responses = False, [ROUND, "Well then."]
    assert plan.agent.input("Leave it.") == "Well then."
    assert conversation_problems(plan.llm.requests[-1].messages) == []
    told = [message["content"] for message in plan.llm.requests[1].messages if message["role"] == "tool"]
    if place != "before_llm":
        assert told[-1] == "not run: the turn was paused"
    assert pause.record is not None and check(plan, pause.record)[:3] == told
    with pytest.raises(ConfigError, match="nothing waits"):
        Plan(place).agent.resume(pause.record, approve=True)


@pytest.mark.parametrize("hook", [hook for hook in (*EVENTS, "on_trace") if not hook.startswith("before_")])
def test_a_pause_in_another_hook_is_an_error_that_names_the_handler(hook: str) -> None:
    exec(f"def misplaced({', '.join(PARAMETERS[hook])}):\n    raise Pause('no')", scope := {"Pause": Pause})
    handler = getattr(hooks, hook)(scope["misplaced"])

    def fails(n: int) -> str:
        """Fail."""
        raise OSError("no")

    llm = ScriptedLLM(("fails", {"n": 1}), "Done.")
    agent = Agent("odd", [fails], llm=llm, quiet=True, log=False, plugins=[handler])
    with pytest.raises(HookResultError, match=f"{hook} handler 'misplaced' .* raised Pause"):
        agent.input("Go.")
    assert agent.current_session is not None
    assert conversation_problems(agent.current_session["messages"]) == []


@pytest.mark.parametrize("hook", ["around_turn", "around_llm", "around_tool"])
@pytest.mark.parametrize("half", ["before", "after"])
def test_a_pause_of_an_around_handler_is_an_error_that_names_it(hook: str, half: str) -> None:
    def misplaced(agent: Any) -> Iterator[None]:
        if half == "before":
            raise Pause("no")
        yield
        raise Pause("no")

    handler = getattr(hooks, hook)(misplaced)
    agent = Agent("odd", [noop], llm=ScriptedLLM(("noop", {}), "Done."), quiet=True, log=False, plugins=[handler])
    with pytest.raises(HookResultError, match=f"{hook} handler 'misplaced'"):
        agent.input("Go.")


def noop() -> str:
    """Do nothing."""
    return "nothing"


def test_around_tool_sees_the_pause_and_around_turn_what_input_raises() -> None:
    seen: list[str] = []

    @hooks.around_turn
    @hooks.around_tool
    def watching(agent: Any) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            seen.append(type(error).__name__)
            raise

    def waits() -> str:
        """Wait."""
        raise Pause("why not")

    agent = Agent("seen", [waits], llm=ScriptedLLM(("waits", {})), quiet=True, plugins=[watching])
    with pytest.raises(Paused):
        agent.input("Go.")
    assert seen == ["Pause", "Paused"]


def test_a_handler_about_the_turn_may_end_the_wait_with_a_value() -> None:
    @hooks.around_turn
    def impatient(agent: Any) -> Iterator[None]:
        try:
            yield
        except Paused:
            return "no time"  # type: ignore[return-value]

    plan = Plan("tool", ROUND)
    agent = Agent("hasty", [plan.work], llm=ScriptedLLM(ROUND, "Next."), quiet=True, plugins=[impatient])
    assert agent.input("Go.") == "no time"
    (path,) = Path(".co/evals").glob("hasty*")
    assert summarise(path).status == "ended"


def test_on_complete_and_on_error_do_not_fire_for_a_pause() -> None:
    for place in PLACES:
        plan, _ = paused_turn(place)
        assert not {"on_complete", "on_error", "after_tools"} & {entry[0] for entry in plan.log} - (
            {"after_tools"} if place == "before_llm" else set()
        )


def test_a_pause_in_a_call_that_a_tool_makes_is_one_of_that_tool() -> None:
    ran: list[str] = []

    def inner() -> str:
        """Ask."""
        if not xray.approved:
            raise Pause("inner")
        ran.append("inner")
        return "inside"

    def outer(agent: Any) -> str:
        """Call the other one."""
        ran.append("outer")
        return f"<{agent.execute_tool('inner')['result']}>"

    agent = lambda *script: Agent("nested", [inner, outer], llm=ScriptedLLM(*script), quiet=True)  # noqa: E731
    first = agent(("outer", {}))
    with pytest.raises(Paused) as caught:
        first.input("Go.")
    assert caught.value.call.name == "inner"  # what is decided is the innermost call
    second = agent("Done.")
    assert second.resume(caught.value.record, approve=True) == "Done."
    assert ran == ["outer", "outer", "inner"]
    assert second.current_session is not None
    assert second.current_session["messages"][-2]["content"] == "<inside>"
    entries = [e for e in read_record(caught.value.record)["turns"][0]["trace"] if e["type"] == "tool_execution"]
    assert [(e["tool_name"], e["status"]) for e in entries] == [("inner", "skipped"), ("outer", "skipped")]


@pytest.mark.parametrize("hook", ["before_llm", "before_each_tool"])
def test_a_pause_in_a_call_that_a_handler_makes_is_one_of_that_handler(hook: str) -> None:
    def asks() -> str:
        """Ask."""
        raise Pause("inner")

    asked: list[bool] = []

    def calling(agent: Any) -> None:
        if not asked:  # the call that it makes fires before_each_tool too
            asked.append(True)
            agent.execute_tool("asks")

    def build(*script: Any) -> Agent:
        handler = getattr(hooks, hook)(calling)
        return Agent("nested", [asks, noop], llm=ScriptedLLM(*script), quiet=True, plugins=[handler])

    with pytest.raises(Paused) as caught:
        build(("noop", {})).input("Go.")
    trace = read_record(caught.value.record)["turns"][0]["trace"]
    (entry,) = [entry for entry in trace if entry["type"] == "paused"]
    assert entry["hook"] == hook and entry["call"]["name"] == "asks"
    script = [("noop", {}), "Done."] if hook == "before_llm" else ["Done."]
    assert build(*script).resume(caught.value.record, approve=True) == "Done."


def test_outside_of_a_turn_the_program_gets_the_pause_itself() -> None:
    plan = Plan("tool", "Fine.")
    with pytest.raises(Pause, match="needs a manager") as caught:
        plan.agent.execute_tool("work", {"n": 2})
    assert caught.value.call.name == "work"
    assert plan.agent.current_session is not None and plan.agent.current_session["pending_tool"] is None
    assert plan.agent.input("Go on.") == "Fine."
    (path,) = Path(".co/evals").iterdir()
    assert [e["status"] for e in read_record(path)["turns"][0]["trace"] if e["type"] == "tool_execution"] == ["skipped"]


def test_the_message_names_the_record_by_its_path_from_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, pause = paused_turn("tool")
    assert str(pause).startswith("paused: needs a manager; its record is .co/evals/clerk_")
    (folder / "other").mkdir()
    monkeypatch.chdir(folder / "other")
    with pytest.raises(Paused) as caught:
        Plan("tool").agent.resume(pause.record)
    assert f"its record is {folder}/.co/evals/clerk_" in str(caught.value)
    agent = Agent("clerk", [Plan("tool").work], llm=ScriptedLLM(ROUND), quiet=True, log=False)
    with pytest.raises(Paused, match="needs a manager; it is not recorded, so only this process can go on with it"):
        agent.input("Go.")


# -- the command line ----------------------------------------------------------------------------

SCRIPT = '''
from connectagent import Agent, LLMResponse, Pause, ToolCall, xray

class Model:
    model = "test/one"

    def complete(self, messages, tools=None):
        if messages[-1]["role"] == "tool":
            return LLMResponse("It says: " + messages[-1]["content"])
        return LLMResponse(None, [ToolCall("c1", "pay", {"euro": 500})])

def pay(euro: int) -> str:
    """Pay."""
    if not xray.approved:
        raise Pause("needs a manager")
    return f"paid {euro}"

agent = Agent("payer", [pay], llm=Model())
'''


def command(*arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    Path("pay.py").write_text(SCRIPT)
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(connectagent.__file__).parents[1])}
    return forked.run("-m", "connectagent", *arguments, env=environment, input=typed)


def test_the_command_line_says_how_a_paused_turn_goes_on_and_resume_ends_it(folder: Path) -> None:
    paused = command("run", "pay.py", "Pay.")
    assert paused.returncode == 75
    (path,) = Path(".co/evals").iterdir()
    [wait] = waiting_in(path)
    assert f"  connectagent resume {path} --approve '{wait.id}'\n  or, with the same ID: --reject" in paused.stderr
    assert "pay paused the turn: needs a manager" in paused.stderr
    assert "paused: needs a manager · 1 iteration" in paused.stderr and "failed" not in paused.stderr
    waiting = command("resume")
    assert waiting.returncode == 75 and f"connectagent resume {path}" in waiting.stderr
    approved = command("resume", str(path), "--approve", wait.id)
    assert (approved.returncode, approved.stdout) == (0, "It says: paid 500\n")
    assert f"goes on from {path.name}, turn 1, approved" in approved.stderr
    again = command("resume", str(path), "--approve", wait.id)
    assert again.returncode == 1 and "nothing waits for a decision" in again.stderr
    log = Path(".co/logs/payer.log").read_text()
    assert "  paused: needs a manager" in log and "  resumed from " in log
    shown = command("log", "show", path.name).stdout
    assert "pay paused the turn: needs a manager" in shown


GUARD = """
from connectagent import ToolRejected, before_each_tool, xray

@before_each_tool(trylast=True)
def guard(tool_call):
    if tool_call.approved:
        raise ToolRejected("not even so")
"""


def test_the_command_that_is_printed_has_the_plugins_and_the_policy_of_the_command_that_paused() -> None:
    Path("my guard.py").write_text(GUARD)
    paused = command("run", "pay.py", "Pay.", "-p", "./my guard.py", "--trust", "open", "--model", "offline")
    printed = paused.stderr.splitlines()[-2].strip()
    assert paused.returncode == 75
    assert "--model offline --trust open -p './my guard.py' --approve 'T1/1/c1/tool1/wait:pay~" in printed
    approved = command(*shlex.split(printed)[1:])
    assert "the plugins are not the same" not in approved.stderr
    assert approved.returncode == 0


SEVERAL = """
from connectagent import Agent, LLMResponse, Pause, ToolCall, xray

class Model:
    model = "test/one"

    def __init__(self, *calls):
        self.calls = list(calls)

    def complete(self, messages, tools=None):
        results = [message["content"] for message in messages if message["role"] == "tool"]
        return LLMResponse(", ".join(results)) if results else LLMResponse(None, self.calls)

def pay(euro: int) -> str:
    \"\"\"Pay.\"\"\"
    if not xray.approved:
        raise Pause(f"{euro} need a manager")
    with open("paid", "a") as file:
        file.write(f"{euro}\\n")
    return f"paid {euro}"

def clerk(name, euro):
    return Agent(name, [pay], llm=Model(ToolCall("c1", "pay", {"euro": euro})), quiet=True)

calls = [ToolCall("c1", "ann", {"prompt": "Pay."}), ToolCall("c2", "bob", {"prompt": "Pay."})]
agent = Agent("payers", [clerk("ann", 1), clerk("bob", 2)], llm=Model(*calls), quiet=True)
"""


def test_the_command_line_decides_each_of_several_calls_that_wait() -> None:
    command()
    Path("several.py").write_text(SEVERAL)
    paused = command("run", "--quiet", "several.py", "Pay.")
    (path,) = Path(".co/evals").iterdir()
    printed = [shlex.split(line) for line in paused.stderr.splitlines() if "connectagent resume" in line]
    first, second = (line[-1] for line in printed)
    unnamed = command("resume", str(path), "--approve")
    assert unnamed.returncode == 2 and first in unnamed.stderr and second in unnamed.stderr
    still = command(*printed[1][1:])
    assert still.returncode == 75 and "1 need a manager" in still.stderr
    assert Path("paid").read_text() == "2\n"
    done = command("resume", str(path), "--reject", first, "no")
    assert (done.returncode, done.stdout) == (0, "rejected: no, paid 2\n")
    assert Path("paid").read_text() == "2\n"


@pytest.mark.parametrize(("option", "said"), [("--reject", "rejected: yes"), ("--answer", "yes")])
def test_the_command_line_takes_the_other_decisions(option: str, said: str) -> None:
    assert command("run", "--quiet", "pay.py", "Pay.").returncode == 75
    [path] = Path(".co/evals").iterdir()
    done = command("resume", "payer", option, waiting_in(path)[0].id, "yes")
    assert (done.returncode, done.stdout) == (0, f"It says: {said}\n")


def test_a_chat_goes_on_after_a_pause_and_tells_the_model() -> None:
    talked = command("chat", "pay.py", typed="Pay.\n")
    assert talked.returncode == 75
    assert "paused: needs a manager" in talked.stderr
    talked = command("chat", "pay.py", typed="Pay.\n/reset\nPay.\n")
    assert talked.stderr.count("paused: needs a manager") == 2


# -- agents in agents ----------------------------------------------------------------------------


def tree_of(root: tuple[Any, ...], child: tuple[Any, ...], by_tool: bool) -> tuple[Agent, Agent]:
    def refund(amount: int) -> str:
        """Refund an amount."""
        return f"refunded {amount}"

    @before_each_tool
    def manager(tool_call: ToolCall) -> None:
        if tool_call.name == "refund":
            raise Pause("needs a manager")

    billing = Agent("billing", tools=[refund], llm=ScriptedLLM(*child), on_events=[manager], quiet=True)
    place: dict[str, Any] = {"tools": [billing]} if by_tool else {"sub_agents": [billing]}
    return Agent("root", llm=ScriptedLLM(*root), quiet=True, **place), billing


@pytest.mark.parametrize(
    ("decision", "read"),
    [({"approve": True}, "refunded 5"), ({"reject": "no"}, "rejected: no"), ({"answer": "by hand"}, "by hand")],
)
@pytest.mark.parametrize("by_tool", [True, False], ids=["as a tool", "by transfer"])
def test_where_another_agent_waits_all_wait_and_the_decision_reaches_it(
    co_dir: Path, by_tool: bool, decision: dict[str, Any], read: str
) -> None:
    ask = call("billing", prompt="Refund 5") if by_tool else call("transfer_to_agent", agent_name="billing")
    root, _ = tree_of(([ask],), ([call("refund", amount=5)],), by_tool)
    with pytest.raises(Paused, match="needs a manager") as paused:
        root.input("Refund me")
    assert paused.value.record.name.startswith("root_")
    again, below = tree_of(("Done, says root.", "And more."), ("Done, says billing.", "More."), by_tool)
    assert again.resume(paused.value.record, **decision) == ("Done, says root." if by_tool else "Done, says billing.")
    session: Any = below.current_session
    assert [message["content"] for message in session["messages"] if message["role"] == "tool"] == [read]
    assert again.input("And?") == ("And more." if by_tool else "More.")
    third, lowest = tree_of(("Third.",), ("Third.",), by_tool)
    third.resume(paused.value.record)
    assert lowest.current_session is not None and lowest.current_session["messages"] == session["messages"]
    assert third.input("A third time?") == "Third."


CUT_OFF = """
import os, sys
from connectagent import Agent, Pause, xray
from connectagent.testing import ScriptedLLM, call

def pay():
    "Pay."
    if not xray.approved:
        raise Pause("needs a manager")
    print("paid", flush=True)
    return "paid"

def last(messages, tools):
    if sys.argv[1] == "killed":
        os.kill(os.getpid(), 9)
    raise KeyboardInterrupt

agent = Agent("payer", tools=[pay], llm=ScriptedLLM(call("pay"), last), quiet=True)
try:
    agent.input("Pay.")
except Exception:
    agent.llm = ScriptedLLM(last)
    agent.resume(agent.record, approve=True)
"""


@pytest.mark.parametrize("how", ["killed", "interrupted"])
def test_a_decision_may_be_given_again_after_the_turn_that_it_continued_was_cut_off(how: str, folder: Path) -> None:
    Path("cut.py").write_text(CUT_OFF)
    assert forked.run("cut.py", how).stdout == "paid\n"
    (path,) = Path(".co/evals").iterdir()

    def pay() -> str:
        """Pay."""
        raise AssertionError("it is paid")

    def payer() -> Agent:
        return Agent("payer", [pay], llm=ScriptedLLM("Done."), quiet=True)

    with pytest.raises(ConfigError, match="was decided already, otherwise"):
        payer().resume(path, reject="too much")
    assert payer().resume(path, approve=True) == "Done."
    with pytest.raises(ConfigError, match="nothing waits for a decision: the last turn's status is 'answered'"):
        payer().resume(path, approve=True)


def test_the_terminal_names_the_agent_that_pauses_inside(capsys: pytest.CaptureFixture[str]) -> None:
    def pay() -> str:
        """Pay."""
        raise Pause("needs a manager")

    with pytest.raises(Paused):
        Sequential("desk", [Agent("payer", [pay], llm=ScriptedLLM(call("pay")))]).input("Pay.")
    said = capsys.readouterr().err
    assert "tool pay paused the turn: needs a manager" in said and "payer paused the turn: needs a manager" in said
    assert "a handler paused" not in said
