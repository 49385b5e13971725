"""Thirty plugins, each with one typical bug of an author: `agenttester` finds it, and names rule and handler.

The author of each has declared what the plugin is meant to change; the bug is what is left.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from found_faults import end_when_found
from pytest_connectagent import AgentTester, PluginFaults
from pytest_connectagent.faults import RULES

from connectagent import (
    Agent,
    HandlerError,
    LLMResponse,
    Retry,
    ToolRejected,
    after_each_tool,
    after_llm,
    after_tools,
    after_user_input,
    around_llm,
    around_tool,
    before_each_tool,
    before_llm,
    hooks,
    on_agent_ready,
    on_complete,
    on_error,
    on_trace,
)
from connectagent.hooks.markers import on_text
from connectagent.testing import call

Bug = tuple[Any, dict[str, Any], str, str]
BUGS: list[Bug] = []


def bug(rule: str, words: str = "", **options: Any) -> Callable[[Any], Any]:
    """A plugin with a bug: the rule that it breaks, words of the report, and what its author declared."""

    def add(plugin: Any) -> Any:
        BUGS.append((plugin, options, rule, words))
        return plugin

    return add


def user(text: str) -> Any:
    return {"role": "user", "content": text}


# -- time and threads ----------------------------------------------------------------------------


@bug("hangs", "in blocks (", limit_s=0.3)
@before_llm
def blocks(agent: Agent) -> None:
    """It waits for something that does not come."""
    time.sleep(60)


LOCK = threading.Lock()


@bug("hangs", "holds_a_lock", limit_s=2)
@around_tool
def holds_a_lock(tool_call: Any) -> Iterator[None]:
    """A lock around the operation: an agent inside it waits for the lock for ever."""
    with LOCK:
        yield


@bug("leaks", "threads running after all agents were closed")
class LeaksThreads:
    """A thread for each agent, which nobody ends."""

    @on_agent_ready
    def start(self) -> None:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()


FILES: list[Any] = []


@bug("leaks", "left files open", shares_state=True)
@on_agent_ready
def leaks_files() -> None:
    """A file for each agent, which nobody closes."""
    FILES.append(open(os.devnull))  # noqa: SIM115


# -- agents that share a plugin ------------------------------------------------------------------

SEEN: list[str] = []


@bug("shares state", "'SEEN' of the module")
@after_user_input
def global_list(prompt: str) -> None:
    """A global of the module, which all agents of the process share."""
    SEEN.append(prompt)


@bug("raises", "AssertionError")
class OneCallAtATime:
    """It takes the call that began last for the one that ends."""

    current = ""

    @before_each_tool
    def begin(self, tool_call: Any) -> None:
        self.current = tool_call.id

    @after_each_tool
    def end(self, tool_call: Any) -> None:
        assert self.current == tool_call.id


@bug("raises", "KeyError")
class TimesByName:
    """A timer by the tool's name: two calls of one tool at once have one key."""

    def __init__(self) -> None:
        self.started: dict[str, float] = {}

    @around_tool
    def time(self, tool_call: Any) -> Iterator[None]:
        self.started[tool_call.name] = time.perf_counter()
        yield
        del self.started[tool_call.name]


@bug("raises", "(a dry run)", changes={"messages"})
class FirstAgentOnly:
    """It keeps the agent that it was made for, and changes that one's conversation in the turns of all others."""

    agent: Any = None

    @on_agent_ready
    def keep(self, agent: Agent) -> None:
        self.agent = self.agent or agent

    @after_tools
    def note(self) -> None:
        self.agent.current_session["messages"].append(user("Think."))


# -- the conversation ----------------------------------------------------------------------------


@bug("order", "provider_data", changes={"response"})
@after_llm
def drops_provider_data(response: LLMResponse) -> LLMResponse:
    """A new answer in place of a changed copy: what the provider needs back is gone."""
    return LLMResponse((response.content or "").strip(), response.tool_calls, response.usage)


@bug("order", "before the results of", changes={"messages"})
@after_each_tool
def message_between(agent: Agent, tool_call: Any) -> None:
    """A note between a call and its result."""
    messages = agent.session["messages"]
    at = next(at for at, message in enumerate(messages) if message.get("tool_call_id") == tool_call.id)
    messages.insert(at, user(f"{tool_call.name} was called."))


@bug("order", "no provider takes", changes={"request"})
@before_llm
def cuts_anywhere(request: Any) -> None:
    """The last two messages only, wherever the cut falls."""
    request.messages = request.messages[-2:]


@bug("changes", "changed request")
@before_llm
def edits_tools(request: Any) -> None:
    """It takes request.tools for a copy."""
    for tool in request.tools:
        tool["function"]["description"] += " Be careful."


@bug("raises", "'list' object has no attribute 'lower'")
@before_llm
def text_only(request: Any) -> None:
    """A prompt with an image is a list."""
    [message["content"].lower() for message in request.messages if message["role"] == "user"]


@bug("raises", "'list' object has no attribute 'splitlines'")
@after_tools
def text_results_only(agent: Agent) -> None:
    """A tool that draws gives a list."""
    messages: Any = agent.session["messages"]
    [message["content"].splitlines() for message in messages if message["role"] == "tool"]


# -- what a hook takes ---------------------------------------------------------------------------


@bug("raises", "HookResultError", changes={"result"})
@on_error
def says_true(error: Exception, tool_call: Any) -> Any:
    """True recovers a tool, and is no answer of a model."""
    return True


@bug("raises", "returned before its yield")
@around_llm
def yields_sometimes(request: Any) -> Iterator[None]:
    """With a long conversation it returns before its yield."""
    if len(request.messages) > 3:
        return
    yield


@bug("raises", "KeyError: 'x'")
@before_each_tool
def trusts_arguments(tool_call: Any) -> None:
    """The model forgets an argument."""
    if tool_call.name == "do_work":
        assert tool_call.arguments["x"] is not None


@bug("raises", "is not given agent._core")
@after_user_input
def private(agent: Any) -> None:
    """It reaches into the agent, which a dry run does not have."""
    assert agent._core is not None


@bug("HandlerError", "is async")
class IsAsync:
    """The loop is synchronous."""

    def __init__(self) -> None:
        async def log(agent: Agent) -> None:
            pass

        self.log = hooks.after_tools(log)


# -- decisions -----------------------------------------------------------------------------------


@bug("interrupts", "swallowed KeyboardInterrupt", changes={"result"})
@around_tool
def swallows(tool_call: Any) -> Iterator[Any]:
    """Ctrl-C is no error of a tool."""
    try:
        return (yield)
    except BaseException as error:
        return f"failed: {error}"


@bug("rejections", "caught it itself", changes={"rejection"})
@before_each_tool
def catches_its_rejection(tool_call: Any) -> None:
    """The guard's own `except Exception` takes the rejection too."""
    try:
        if tool_call.name == "do_fail":
            raise ToolRejected("it fails")
    except Exception as error:
        str(error)


@bug("rejections", "although it was rejected", changes={"trace"})
@before_each_tool
def runs_ahead(agent: Agent, tool_call: Any) -> None:
    """It runs the tool ahead, to have its result at once; another plugin rejects the call."""
    if tool_call.name == "do_work" and isinstance(tool_call.arguments, dict):
        try:
            agent.tools["do_work"].function(**tool_call.arguments)
        except TypeError:
            return


@bug("changes", "ended the turn")
@on_error
def ends_where_no_tool_is(agent: Agent, error: Exception) -> None:
    """It gives up where the model invents a tool."""
    if type(error).__name__ == "ToolNotFound":
        agent.end_turn("There is no such tool.")


# -- state, resuming, replaying ------------------------------------------------------------------


@bug("foreign state", "state['theirs']", changes={"state"})
@after_user_input
def clears_the_state(agent: Agent) -> None:
    """It cleans up what others keep there."""
    agent.state.clear()


@bug("differs", "resumed", changes={"messages"})
class PlansOnce:
    """Whether it has planned is known to this process only: a resumed turn has two plans."""

    planned = False

    @before_llm
    def plan(self, request: Any) -> None:
        if not self.planned:
            request.messages.append(user("Make a plan first."))
        self.planned = True


@bug("differs", "streamed", changes={"state"})
@on_text
def counts_pieces(agent: Agent, text: str) -> None:
    """What it counts is there only where the text is streamed."""
    agent.state["pieces"] = agent.state.get("pieces", 0) + 1


@bug("replay", "the time or on chance", changes={"messages"})
@after_user_input
def tells_the_date(agent: Agent) -> None:
    """Another date on another day."""
    agent.session["messages"].append(user(f"Today is {datetime.now():%Y-%m-%d}."))


@bug("replay", "the time or on chance", changes={"request"})
@before_llm
def marks_the_request(request: Any) -> None:
    """Another id each time."""
    request.messages = [*request.messages, user(f"Request {uuid.uuid4()}")]


# -- output --------------------------------------------------------------------------------------


@bug("changes", "printed 'done'")
@on_complete
def prints() -> None:
    """It prints though the agent is quiet."""
    print("done")


@bug("secrets", "printed a secret", changes={"terminal"})
@on_trace
def prints_secrets(entry: Any) -> None:
    """It prints arguments and results as they are."""
    print(entry.get("arguments"), entry.get("result"))


@bug("secrets", "wrote a secret", changes={"outside"})
@on_trace
def writes_secrets(entry: Any) -> None:
    """It writes arguments and results as they are."""
    with open("audit.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(entry, default=repr) + "\n")


@bug("changes", "opened 'dry.txt' for writing")
@after_tools
def writes_in_a_dry_run() -> None:
    """A file that nobody was told about, in a dry run too."""
    Path("dry.txt").write_text("x")


class Clean:
    """A plugin that uses most hooks, and keeps the rules."""

    name = "clean"

    @after_user_input
    def begin(self, agent: Agent) -> None:
        agent.state["clean"] = {"calls": 0}
        agent.session["messages"].append(user("Be brief."))

    @before_llm
    def thin_out(self, request: Any) -> None:
        request.messages = [message for message in request.messages if message.get("content") != "Be brief."]

    @around_tool
    def time(self, tool_call: Any) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            assert time.perf_counter() >= started

    @before_each_tool
    def guard(self, tool_call: Any) -> None:
        if tool_call.name == "do_fail":
            raise ToolRejected("it fails")

    @after_each_tool
    def count(self, agent: Agent, result: Any) -> Any:
        agent.state["clean"] = {"calls": agent.state["clean"]["calls"] + 1}
        return str(result).replace("hunter2", "***") if isinstance(result, str) else None

    @on_error
    def retry(self, error: Exception, tool_call: Any, attempt: int) -> Any:
        return Retry() if tool_call is None and attempt < 2 else None


# -- the tests -----------------------------------------------------------------------------------


def found(plugin: Any, options: dict[str, Any]) -> dict[str, str]:
    """The rules that a check finds broken, with the report."""
    try:
        AgentTester().check(plugin, **options)
    except PluginFaults as faults:
        return {fault.rule: str(faults) for fault in faults.faults}
    except HandlerError as error:
        return {"HandlerError": str(error)}
    return {}


@pytest.mark.parametrize(("plugin", "options", "rule", "words"), BUGS, ids=[bug[0].__name__ for bug in BUGS])
def test_a_bug_is_found(
    plugin: Any,
    options: dict[str, Any],
    rule: str,
    words: str,
    co_dir: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    end_when_found(rule, [words], monkeypatch)
    reports = found(plugin, options)
    assert rule in reports, reports
    assert words in reports[rule]
    assert __file__ in reports[rule]


def test_a_plugin_without_a_bug_passes() -> None:
    checked = AgentTester().check(Clean, changes={"messages", "state", "request", "rejection", "retry"})
    assert len(checked.hooks) == 6


def test_there_are_thirty_bugs_of_all_rules() -> None:
    assert len(BUGS) >= 30
    assert {rule for _, _, rule, _ in BUGS} - {"HandlerError"} == set(RULES) - {"declared"}  # it names no handler


def test_a_declared_change_happens_or_is_optional(co_dir: Path) -> None:
    @before_each_tool
    def idle(tool_call: Any) -> None: ...

    report = found(idle, {"changes": {"rejection", "pause?"}})["declared"]
    assert "changes={'rejection'}" in report and "changes={'rejection?'}" in report and "'pause'" not in report
    assert found(idle, {"changes": {"rejection?", "pause?"}}) == {}


def test_a_message_after_each_tool_is_in_order_though_a_pause_skipped_the_calls(co_dir: Path) -> None:
    @after_each_tool
    def notes(agent: Agent) -> None:
        agent.session["messages"].append({"role": "user", "content": "Note."})

    assert found(notes, {"changes": {"messages"}}) == {}


def test_a_rule_that_is_left_out_is_not_checked(co_dir: Path) -> None:
    options = {"changes": {"messages"}, "leave_out": "replay"}
    assert found(tells_the_date, options) == {}
    with pytest.raises(ValueError, match="Did you mean 'replay'"):
        AgentTester().check(tells_the_date, leave_out={"replays"})


def test_a_hanging_turn_is_told_though_no_handler_runs(co_dir: Path) -> None:
    @on_agent_ready
    def brings_a_tool(agent: Agent) -> None:
        agent.add_tool(waits)

    def waits() -> None:
        """Wait."""
        time.sleep(60)

    options = {"changes": {"tools"}, "responses": [call("waits"), "Done."], "limit_s": 0.3}
    report = found(brings_a_tool, options)["hangs"]
    assert "the turn has run for more than 0.6 s, in waits (" in report


def test_a_check_leaves_streams_and_folders_as_they_are(co_dir: Path) -> None:
    streams, zone = (sys.stdin, sys.stdout, sys.stderr), os.environ.get("TZ")
    found(writes_secrets, {"changes": {"outside"}})
    assert ((sys.stdin, sys.stdout, sys.stderr), os.environ.get("TZ")) == (streams, zone)
    assert not co_dir.exists()
