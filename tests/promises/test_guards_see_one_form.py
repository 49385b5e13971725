"""Every spelling that reaches a function with one value reaches each guard with that value."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import connectagent_approve
import connectagent_policy
import pytest
from argument_types import KINDS, tool_function
from connectagent_adk import adk_callbacks
from connectagent_approve import Approve
from connectagent_policy import Policy
from connectagent_shellhooks import ShellHooks
from connectagent_shellhooks.running import Outcome
from connectagent_shellhooks.settings import Hook
from test_canonical_arguments import spellings, text

from connectagent import Agent, Tool, ToolArgumentsError
from connectagent.testing import ScriptedLLM, call

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


@pytest.mark.parametrize("parallel", [1, 4])
@pytest.mark.parametrize("name", KINDS)
def test_guards_see_the_form_of_each_spelling(
    name: str, parallel: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = tool_function(KINDS[name].type)
    sent = sendable(name)
    seen = Seen(tmp_path, monkeypatch)
    rounds = [[call("take", value=one) for one in sent[start : start + 4]] for start in range(0, len(sent), 4)]
    tool = Tool.from_function(function)
    llm = ScriptedLLM(*rounds, "Done.")
    agent = Agent(
        "a", [tool], llm=llm, plugins=seen.plugins, parallel_tools=parallel, log=False, quiet=True, max_iterations=200
    )
    agent.input("Go")
    entries = [entry for entry in agent.session["trace"] if entry["type"] == "tool_execution"]
    assert len(entries) == len(sent) and all(entry["status"] in ("success", "error") for entry in entries)
    expected = [text(tool.canonical({"value": one})) for one in sent]
    assert [text(entry["arguments"]) for entry in entries] == expected
    for guard, shown in seen.by_guard.items():
        assert sorted(shown) == sorted(expected), guard


@pytest.mark.parametrize("name", KINDS)
def test_a_person_is_shown_the_form_of_each_spelling(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100000")
    monkeypatch.setattr(connectagent_approve, "can_ask", lambda: True)
    monkeypatch.setattr(connectagent_approve, "_read", lambda question: "y")
    tool = Tool.from_function(tool_function(KINDS[name].type))
    sent = sendable(name)
    llm = ScriptedLLM(*(call("take", value=one) for one in sent), "Done.")
    agent = Agent("a", [tool], llm=llm, plugins=[Approve()], log=False, quiet=True, max_iterations=200)
    agent.input("Go")
    shown = capsys.readouterr().err.split("a wants to call take")[1:]
    assert len(shown) == len(sent)
    for one, printed in zip(sent, shown, strict=True):
        form = tool.canonical({"value": one})["value"]
        as_text = form if isinstance(form, str) else json.dumps(form, ensure_ascii=False)
        lines = [connectagent_approve._visible(line) for line in as_text.splitlines() or [""]]
        expected = "\n".join(["  value:", *(f"  | {line}" for line in lines)])
        assert printed.strip("\n") == expected


class Posing:
    def __repr__(self) -> str:
        return "ann"


def test_an_object_is_not_shown_as_a_text() -> None:
    shown = connectagent_approve.arguments_text({"to": [Posing()]})
    assert shown == '{"to": ["<test_guards_see_one_form.Posing: ann>"]}'


def test_the_sample_says_how_many() -> None:
    counts = {name: len(sendable(name)) for name in KINDS}
    assert all(counts.values()), json.dumps(counts)
    print(f"{len(counts)} types, {sum(counts.values())} spellings")
