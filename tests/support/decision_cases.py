"""An agent in which a decision of the table is made, and what it does as lines that can be compared."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from decision_table import PROMPT, Decision, bad, ending, once_bad, work

from connectagent import Agent, LLMResponse, hooks
from connectagent.data import ToolCall
from connectagent.testing import HookRecorder, ScriptedLLM

NAME = "decider"


def once(hook: str, act: Callable[[Agent], Any]) -> Any:
    """A handler that acts the first time that it is called in the turn about `PROMPT`."""
    left = [1]

    def decide(agent: Agent) -> Any:
        if agent.current_session is None or agent.current_session["user_prompt"] != PROMPT or not left:
            return None
        left.clear()
        return act(agent)

    return getattr(hooks, hook)(decide)


def made(decision: Decision, *before: Any, script: Any = None, **options: Any) -> tuple[Agent, HookRecorder]:
    """An agent in which the decision will be made, with a recorder that is listed first.

    Args:
        decision: the decision.
        before: handlers between the recorder and the one that decides.
        script: the model's responses, if they are others.
        options: the rest goes to `Agent`.
    """
    recorder = HookRecorder()
    own = [] if decision.handler is None else [once(*decision.handler)]
    llm = ScriptedLLM(*(decision.script if script is None else script))
    settings = {"log": False, "quiet": True, "llm": llm, **options}
    return Agent(NAME, [work, bad, once_bad, ending], plugins=[recorder, *before, *own], **settings), recorder


def log_of(recorder: HookRecorder) -> list[str]:
    """The hooks that fired, a line each, but for what depends on where the turn runs."""
    left = ("on_text", "on_agent_ready", "on_session")
    lines = [_line(name, given) for name, given in recorder.calls if name not in left]
    return [line for line in lines if line is not None]


def trace_of(agent: Agent) -> list[str]:
    """The entries of the newest turn, a line each."""
    assert agent.current_session is not None
    trace = agent.current_session["trace"]
    start = max(number for number, entry in enumerate(trace) if entry["type"] == "user_input")
    lines = [shape(entry) for entry in trace[start:]]
    return [line for line in lines if line is not None]


def shape(entry: dict[str, Any]) -> str | None:
    """An entry without ids, times and marks; None for one that only tells where the turn runs."""
    by = entry.get("by") or {}
    # A turn that goes on says by `assistant` where the answer stands that it found.
    if entry["type"] in ("paused", "resumed", "assistant") or (by.get("plugin") == "connectagent" and "agent" in by):
        return None
    if "the turn was paused" in str(entry.get("result")):
        return None
    value = entry.get("value", entry)
    value = value if isinstance(value, dict) else {"result": value}
    words = [entry["type"], entry.get("of"), entry.get("tool_name"), value.get("status"), _text(value)]
    words += [f"by {by.get('handler') or by.get('tool') or by['plugin']}" if by else None]
    words += [f"delta {entry['delta']}" if "delta" in entry else None]
    return " ".join(word for word in words if word)


def _text(entry: dict[str, Any]) -> str | None:
    if entry.get("tool_calls"):
        return f"[{', '.join(one['name'] for one in entry['tool_calls'])}]"
    content = entry.get("message", entry).get("content", entry.get("result", entry.get("prompt")))
    return None if content is None else repr(content)


def _line(name: str, given: dict[str, Any]) -> str | None:
    if name.startswith("on_trace"):
        told = shape(given["entry"])
        return None if told is None else f"+{told}"
    call, end = given.get("tool_call"), given.get("error", given.get("response", given.get("result")))
    if isinstance(end, LLMResponse):
        end = [one.name for one in end.tool_calls] if end.tool_calls else end.content
    calls = [one.name for one in given.get("tool_calls", ())]
    calls += [entry["status"] for entry in given.get("entries", ())]
    short = re.sub(r"around_(\w+):(enter|exit)", lambda found: "><"[found[2] == "exit"] + found[1], name)
    words = [short, call.name if isinstance(call, ToolCall) else None, f"[{', '.join(calls)}]" if calls else None]
    words += [None if end is None else repr(end), given.get("outcome"), given.get("entry", {}).get("status")]
    return " ".join(word for word in words if word)


class Stop:
    """A plugin that does something when the recorder before it has noted so many lines."""

    def __init__(self, at: int, act: Callable[[], None]) -> None:
        self.at, self.act = at, act
        self.recorder: HookRecorder

    def look(self) -> None:
        if len(log_of(self.recorder)) == self.at + 1:
            self.at = -1
            self.act()

    @hooks.before_llm
    def before_llm(self) -> None:
        self.look()

    @hooks.before_tools
    def before_tools(self) -> None:
        self.look()

    @hooks.before_each_tool
    def before_each_tool(self) -> None:
        self.look()

    @hooks.on_trace
    def on_trace(self) -> None:
        self.look()
