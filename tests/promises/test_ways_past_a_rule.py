"""Ways in which a model spells what a rule denies: each guard sees what the tool would get, and refuses."""

from __future__ import annotations

import datetime
import json
import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from connectagent_adk import adk_callbacks
from connectagent_policy import Policy
from connectagent_shellhooks import ShellHooks

from connectagent import Agent, Paused, ToolRejected, before_each_tool, before_tools
from connectagent.testing import ScriptedLLM, call

ran: list[Any] = []


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran.clear()


@dataclass
class Letter:
    to: str
    copies: int = 1


def mail(to: list[str]) -> str:
    """Send mail."""
    ran.append(to)
    return "sent"


def label(tags: dict[str, str]) -> str:
    """Label a thing."""
    ran.append(tags)
    return "labelled"


def post(letter: Letter) -> str:
    """Post a letter."""
    ran.append(letter)
    return "posted"


def pay(amount: int) -> str:
    """Pay."""
    ran.append(amount)
    return "paid"


def meet(day: datetime.date) -> str:
    """Meet."""
    ran.append(day)
    return "met"


def wipe(really: bool) -> str:
    """Wipe."""
    ran.append(really)
    return "wiped"


TOOLS = [mail, label, post, pay, meet, wipe]
EVIL = "a@evil.com"
# tool, parameter, what the rule denies in it as JSON writes it, and the ways in which a model may spell it
WAYS: dict[str, tuple[str, str, list[Any]]] = {
    "mail": ("to", EVIL, [[EVIL], f'["{EVIL}"]', '["\\u0061@evil.com"]', f' ["{EVIL}" ]', f'\n["x@y.org", "{EVIL}"]']),
    "label": ("tags", EVIL, [{"k": EVIL}, f'{{"k":"{EVIL}"}}', '{"k": "\\u0061@evil.com"}', f'{{"\\u006b":"{EVIL}"}}']),
    "post": ("letter", EVIL, [{"to": EVIL}, f'{{"to": "{EVIL}"}}', '{"to": "\\u0061@evil.com", "copies": "1"}']),
    "pay": ("amount", "1000", [1000, "1000", "1_000", 1000.0, "+1000", " 1000 ", "1000.0", "01000"]),
    "meet": ("day", "2020-01-01", ["2020-01-01", 1577836800, 1577836800.0, "1577836800", "2020-01-01T00:00:00"]),
    "wipe": ("really", "true", [True, "true", "True", "yes", "Y", "on", "1", 1, 1.0, "t"]),
}
CASES = [(name, one) for name, (_, _, spelt) in WAYS.items() for one in spelt]


def is_denied(name: str, arguments: dict[str, Any]) -> bool:
    """A rule as a plain guard writes it: it looks for the value in the JSON of an argument, exactly."""
    parameter, denied, _ = WAYS[name]

    def holds(value: Any) -> bool:
        if isinstance(value, dict):
            return any(map(holds, value.values()))
        if isinstance(value, list):
            return any(map(holds, value))
        return (value if isinstance(value, str) else json.dumps(value)) == denied

    return holds(arguments[parameter])


def policy() -> Any:
    rules = [f"  - deny: {name}\n    arguments: {{{at}: '{denied}'}}" for name, (at, denied, _) in WAYS.items()]
    return Policy(text="\n".join(["rules:", "  - allow: '*'", *rules]) + "\n")


def shell_hook(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The hook of a user's own settings, which need nobody's word."""
    folder = Path("of_the_user").absolute()
    folder.mkdir()
    script = folder / "guard.py"
    script.write_text(
        f"import sys, json\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_ways_past_a_rule import is_denied\n"
        "call = json.load(sys.stdin)\n"
        "sys.exit(2 if is_denied(call['tool_name'], call['tool_input']) else 0)\n"
    )
    command = shlex.join([sys.executable, str(script)])
    hooks = {"hooks": {"PreToolUse": [{"matcher": "*", "hooks": [{"type": "command", "command": command}]}]}}
    (folder / "settings.json").write_text(json.dumps(hooks))
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    return ShellHooks(project=False, fail_closed=False)  # so that only a hook that ran can refuse


def adk() -> Any:
    def before_tool(tool: Any, args: dict[str, Any], tool_context: Any) -> dict[str, Any] | None:
        return {"error": "denied"} if is_denied(tool.name, args) else None

    return adk_callbacks(before_tool_callback=before_tool)


@before_each_tool
def own(tool_call: Any) -> None:
    if is_denied(tool_call.name, tool_call.arguments):
        raise ToolRejected("denied")


@before_tools
def own_of_rounds(tool_calls: Any) -> None:
    if any(is_denied(one.name, one.arguments) for one in tool_calls):
        raise ToolRejected("denied")


GUARDS: dict[str, Any] = {
    "policy": policy,
    "adk": adk,
    "a handler of before_each_tool": lambda: own,
    "a handler of before_tools": lambda: own_of_rounds,
}


def agent_of(guard: Any, name: str, value: Any, **options: Any) -> Agent:
    llm = ScriptedLLM([call(name, **{WAYS[name][0]: value})], "Done.")
    plain: dict[str, Any] = {"log": False, "quiet": True}
    return Agent("a", TOOLS, llm=llm, plugins=[guard], **{**plain, **options})


@pytest.mark.parametrize("how", ["in series", "in parallel", "by execute_tool"])
@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize(("name", "value"), CASES)
def test_a_denied_value_is_denied_in_each_spelling(name: str, value: Any, guard: str, how: str) -> None:
    if how == "by execute_tool":
        agent_of(GUARDS[guard](), name, value).execute_tool(name, {WAYS[name][0]: value})
    else:
        agent_of(GUARDS[guard](), name, value, parallel_tools=4 if how == "in parallel" else 1).input("Go.")
    assert ran == []


@pytest.mark.parametrize(("name", "value"), CASES)
def test_without_a_guard_the_tool_gets_that_value_in_each_spelling(name: str, value: Any) -> None:
    agent_of([], name, value).input("Go.")
    assert len(ran) == 1


@pytest.mark.parametrize(("name", "value"), CASES if os.environ.get("CONNECTAGENT_MATRIX") == "all" else CASES[1::4])
def test_a_hook_in_a_shell_is_given_what_the_tool_would_get(
    name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent_of(shell_hook(monkeypatch), name, value).input("Go.")
    assert ran == []


@pytest.mark.parametrize(("name", "value"), CASES)
def test_a_call_that_waited_is_decided_in_its_form_when_the_turn_is_resumed(name: str, value: Any) -> None:
    rules = "rules:\n  - ask: '*'\n"
    agent = agent_of(Policy(text=rules), name, value, log=None)
    with pytest.raises(Paused) as paused:
        agent.input("Go.")
    waiting = paused.value.waiting[0].call
    assert waiting is not None and is_denied(name, waiting["arguments"])
    goes_on = Agent("a", TOOLS, llm=ScriptedLLM("Done."), quiet=True, plugins=[Policy(text=rules), own])
    goes_on.resume(agent.record, approve=True)
    assert ran == []  # the guard behind the one that asked decides too, on what was approved
