"""What gets past a guard that is a hook, and what does not; the README lists what does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from connectagent_shellhooks import ShellHooks
from connectagent_shellhooks.running import run_command
from connectagent_shellhooks.settings import Hook
from shellhooks_attacks import ARGUMENTS, FAILED, HABITS, MATCHERS, RULES, SAYINGS

from connectagent import Agent
from connectagent.testing import ScriptedLLM, call


def test_there_are_over_a_hundred() -> None:
    assert len(SAYINGS) + len(HABITS) + len(ARGUMENTS) + len(MATCHERS) + len(RULES) > 100


def ran(tmp_path: Path, run: str, arguments: dict[str, Any] | None = None, **options: Any) -> list[str]:
    """The commands that a tool was given, where this hook guards it."""
    given: list[str] = []

    def bash(command: str) -> str:
        given.append(command)
        return "done"

    plugin = ShellHooks(user=False, project=False, folder=str(tmp_path), **options)
    plugin._hooks = [Hook("PreToolUse", "", run, "command", 0.3)]
    llm = ScriptedLLM(call("bash", **(arguments or {"command": "ls"})), "Done.")
    Agent("guarded", [bash], llm=llm, plugins=[plugin], quiet=True, log=False).input("Go")
    return given


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize(("what", "said", "code", "refused"), SAYINGS, ids=[one[0] for one in SAYINGS])
def test_what_a_hook_says_refuses_the_call_or_not(
    what: str, said: str, code: int, refused: bool, closed: bool, tmp_path: Path
) -> None:
    (tmp_path / "said").write_text(said, "utf-8")
    given = ran(tmp_path, f'cat "$CLAUDE_PROJECT_DIR/said"; exit {code}', **({} if closed else {"fail_closed": False}))
    assert given == ([] if refused or (closed and what in FAILED) else ["ls"])


@pytest.mark.parametrize("fail_closed", [False, True])
@pytest.mark.parametrize(("what", "run", "refused", "closed"), HABITS, ids=[one[0] for one in HABITS])
def test_a_hook_that_misbehaves_neither_hangs_the_agent_nor_lets_through_what_it_refuses(
    what: str, run: str, refused: bool, closed: bool, fail_closed: bool, tmp_path: Path
) -> None:
    given = ran(tmp_path, run, fail_closed=fail_closed)
    assert given == ([] if (closed if fail_closed else refused) else ["ls"])


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=range(len(ARGUMENTS)))
def test_arguments_reach_a_hook_as_they_are(arguments: dict[str, Any], tmp_path: Path) -> None:
    payload = {"hook_event_name": "PreToolUse", "tool_input": arguments}
    assert run_command('cat > "$CLAUDE_PROJECT_DIR/got"', payload, tmp_path, 10).code == 0
    assert json.loads((tmp_path / "got").read_text()) == payload


@pytest.mark.parametrize(("matcher", "name", "seen"), MATCHERS)
def test_a_matcher_is_for_these_tools(matcher: str, name: str, seen: bool) -> None:
    assert Hook("PreToolUse", matcher, "true", "command", 1).is_for(name) is seen


@pytest.mark.parametrize(("rule", "command", "runs"), RULES)
def test_a_rule_is_for_these_commands(rule: str, command: str, runs: bool) -> None:
    assert Hook("PreToolUse", "", "true", "command", 1, rule).is_for("Bash", {"command": command}) is runs
