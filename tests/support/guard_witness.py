"""What the guards of an agent were shown of its calls."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import connectagent_policy
import pytest
from argument_spellings import spellings, text
from argument_types import KINDS, tool_function
from connectagent_adk import adk_callbacks
from connectagent_policy import Policy
from connectagent_shellhooks import ShellHooks
from connectagent_shellhooks.running import Outcome
from connectagent_shellhooks.settings import Hook

from connectagent import Tool, ToolArgumentsError

EVERY = bool(os.environ.get("CONNECTAGENT_EVERY_SPELLING"))
"""Whether all spellings are tried, in place of every seventh."""


class Seen:
    """What the guards of an agent were shown of its calls, as JSON text, by guard."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.by_guard: dict[str, list[str]] = {"policy": [], "shell hook": [], "adk": []}
        self.policy = Policy(text="rules:\n  - allow: '*'\n")
        self.hooks = ShellHooks(user=False, project=False, folder=str(folder))
        self.hooks._hooks = [Hook("PreToolUse", "", "true", "command", 5)]
        real = connectagent_policy.judge

        def judged(rules: Any, agent: str, tool: str, arguments: Any) -> Any:
            self.note("policy", arguments)
            return real(rules, agent, tool, arguments)

        def outcome(agent: Any, hook: Any, payload: dict[str, Any]) -> Outcome:
            self.note("shell hook", payload["tool_input"])
            return Outcome(0)

        def before_tool(tool: Any, args: dict[str, Any], tool_context: Any) -> None:
            self.note("adk", args)

        patch.setattr(connectagent_policy, "judge", judged)
        patch.setattr(self.hooks, "_outcome", outcome)
        self.plugins = [self.policy, self.hooks, adk_callbacks(before_tool_callback=before_tool)]

    def note(self, guard: str, arguments: Any) -> None:
        self.by_guard[guard].append(text(arguments))


def sendable(name: str) -> list[Any]:
    """The spellings of a type that fit, each as JSON carries it."""
    tool = Tool.from_function(tool_function(KINDS[name].type))
    found = []
    for sent in (one for seed in KINDS[name].sent for one in spellings(seed)):
        try:
            tool.canonical({"value": sent})
        except ToolArgumentsError:
            continue
        found.append(sent)
    return found if EVERY else found[::7]
