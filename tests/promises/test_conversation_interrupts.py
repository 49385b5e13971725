"""Ctrl-C at every line: wherever in the package a turn is interrupted, the conversation goes on with the next one."""

from __future__ import annotations

import contextlib
import itertools
import linecache
import os
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import connectagent
from connectagent import Agent, LLMResponse, ToolCall, ToolRejected, after_tools, around_tool, before_each_tool
from connectagent.session import snapshot as snapshot_module
from connectagent.session.snapshot import FollowedTrace
from connectagent.testing import ScriptedLLM
from connectagent.testing import conversation_problems as problems

PACKAGE = str(Path(connectagent.__file__).parent)
MODULES = ("agent", "attribution", "calls", "conversation", "host", "messages")
WATCHED = tuple(
    f"{PACKAGE}/{name}.py"
    for name in [
        "agents/agent",
        "session/snapshot",
        "loop/tool_call",
        "session/conversation",
        "hooks/executor",
        "hooks/host",
        "session/messages",
    ]
)


class CtrlC:
    """Raises KeyboardInterrupt at the `at`-th line that runs inside the package."""

    def __init__(self, at: int, watched: tuple[str, ...] = WATCHED) -> None:
        self.at, self.where, self.watched = at, "", watched
        self.lines: list[str] = []

    def __enter__(self) -> CtrlC:
        self.before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self.before)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(self.watched):
            return None
        if event == "line" and _may_be_interrupted(frame):
            self.lines.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
            if len(self.lines) == self.at:
                self.where = self.lines[-1]
                raise KeyboardInterrupt
        return self._trace


def _may_be_interrupted(frame: FrameType) -> bool:
    """Not at `with lock` and `try`: CPython looks for signals after calls and at jumps, which these are not."""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    return not line.startswith(("with self._turning:", "try:"))


def double(x: int) -> int:
    """Double a number."""
    return 2 * x


def fail() -> str:
    """Fail."""
    raise OSError("no disk")


@before_each_tool
def refuse_nine(tool_call: ToolCall) -> None:
    if tool_call.arguments.get("x") == 9:
        raise ToolRejected("not nine")


@after_tools
def reflect(agent: Agent) -> None:
    assert agent.current_session is not None
    agent.current_session["messages"].append({"role": "user", "content": "Think."})
    agent.current_session["state"]["rounds"] = agent.current_session["state"].get("rounds", 0) + 1


@around_tool
def pass_through(tool_call: ToolCall) -> Any:
    yield


def _agent() -> Agent:
    calls = [("double", {"x": 1}), ("fail", {}), ("double", {"x": 9}), ("unknown", {})]
    llm = ScriptedLLM(
        LLMResponse("Let me see.", [ToolCall(f"c{n}", name, dict(given)) for n, (name, given) in enumerate(calls)]),
        LLMResponse(None, [ToolCall("c0", "double", {"x": 3})]),
        "Done.",
    )
    plugins = [refuse_nine, reflect, pass_through]
    return Agent("busy", [double, fail], "Be good.", llm=llm, plugins=plugins, log=False, quiet=True)


def _next_turn(agent: Agent) -> list[str]:
    """What is wrong with the conversation when it goes on."""
    llm = ScriptedLLM([("double", {"x": 4})], "It goes on.")
    agent.llm = llm
    try:
        if (result := agent.input("Go on.")) != "It goes on.":
            return [f"the next turn gave {result!r}"]
    except BaseException as error:
        return [f"the next turn failed: {error!r}"]
    assert agent.current_session is not None
    found = [text for request in llm.requests for text in problems(request.messages)]
    return found + problems(agent.current_session["messages"])


def _lines(agent: Agent, times: int) -> list[int]:
    """The points of a turn at which to interrupt it: each line, the first `times` times that it runs."""
    with CtrlC(0) as watch:
        agent.input("Go.")
    seen: Counter[str] = Counter()
    points = []
    for number, place in enumerate(watch.lines, start=1):
        seen[place] += 1
        if seen[place] <= times:
            points.append(number)
    return points


def _started(turns_before: int) -> Agent:
    agent = _agent()
    if turns_before:
        agent.input("First.")
        agent.llm = _agent().llm
    return agent


def _interrupted_at(line: int, turns_before: int) -> tuple[str, list[str]]:
    agent = _started(turns_before)
    with CtrlC(line) as ctrl_c:
        try:
            agent.input("Go.")
        except KeyboardInterrupt:
            pass
        else:
            if ctrl_c.where:
                return ctrl_c.where, ["the interrupt was swallowed"]
    return ctrl_c.where, _next_turn(agent) if ctrl_c.where else []


STEP = 1 if os.environ.get("CONNECTAGENT_CUTS") == "all" else 2  # by default every second line


@pytest.mark.parametrize(("turns_before", "times"), [(0, 4), (1, 1)])
def test_a_turn_that_is_interrupted_at_any_line_of_the_package_can_go_on(turns_before: int, times: int) -> None:
    broken: dict[str, list[str]] = {}
    points = _lines(_started(turns_before), times)
    assert len(points) > 200
    for line in list(points)[::STEP]:
        where, found = _interrupted_at(line, turns_before)
        assert where
        if found:
            broken.setdefault(where, found)
    assert not broken, "\n".join(f"{where}: {found}" for where, found in broken.items())


def test_an_entry_whose_writing_ctrl_c_cut_off_is_not_taken_for_the_next_one() -> None:
    for at in itertools.count(1):
        trace: list[dict[str, Any]] = []
        followed = FollowedTrace(trace, 0)
        with CtrlC(at, (snapshot_module.__file__,)) as ctrl_c, contextlib.suppress(KeyboardInterrupt):
            followed.append({"type": "first"})
        if not ctrl_c.where:
            break
        followed.append({"type": "second"})
        followed.restore()
        assert trace[-1] == {"type": "second"} and trace[:-1] in ([], [{"type": "first"}]), ctrl_c.where
    assert at > 5
