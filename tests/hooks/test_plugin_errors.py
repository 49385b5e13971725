"""`plugin_errors="warn"`: a plugin that only watches cannot end a turn, and a guard always can."""

from __future__ import annotations

from typing import Any

import pytest

from connectagent import Agent, ConfigError, PluginWarning, hooks
from connectagent.hooks.specs import AROUND, BRINGING, HOOKS
from connectagent.testing import ScriptedLLM, call

GUARDS = ("before_llm", "before_tools", "before_each_tool", *AROUND)
WATCHING = [hook for hook in HOOKS if hook not in (*GUARDS, *BRINGING)]


def double(x: int) -> int:
    """Double a number."""
    return 2 * x


def failing(hook: str) -> Any:
    def watch(agent: Any) -> None:
        if agent.current_session is not None:
            agent.current_session["messages"].append({"role": "user", "content": "half-done"})
        raise OSError("no disk")

    def guard(agent: Any) -> Any:
        watch(agent)
        yield

    return getattr(hooks, hook)(guard if hook in AROUND else watch)


def agent_with(hook: str) -> Agent:
    llm = ScriptedLLM(call("double", x=2), call("double", y=2), call("nope"), "Done.")
    quiet: Any = {"log": False, "quiet": True, "stream": True}
    return Agent("a", [double], llm=llm, plugins=[failing(hook)], plugin_errors="warn", **quiet)


@pytest.mark.parametrize("hook", WATCHING)
def test_an_exception_of_a_handler_that_watches_is_a_warning_and_a_trace_entry(hook: str) -> None:
    with pytest.warns(PluginWarning, match=f"{hook} handler .* raised OSError: no disk"):
        agent = agent_with(hook)
        assert agent.input("Hi") == "Done."
        agent.close()
    session: Any = agent.current_session
    assert all(message["content"] != "half-done" for message in session["messages"])
    told = [entry for entry in session["trace"] if entry["type"] == "error"]
    if hook not in ("on_trace", "on_agent_ready"):
        assert told and all(entry["by"]["hook"] == hook and entry["error"] == "no disk" for entry in told)


@pytest.mark.parametrize("hook", GUARDS)
def test_a_guard_fails_closed(hook: str) -> None:
    with pytest.raises(OSError, match="no disk"):
        agent_with(hook).input("Hi")


def test_another_word_is_refused() -> None:
    with pytest.raises(ConfigError, match="'raise' or 'warn'"):
        Agent("a", llm=ScriptedLLM(), plugin_errors="ignore", log=False, quiet=True)
