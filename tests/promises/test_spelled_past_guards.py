"""The spellings with which a model can try to pass a rule that denies a value: each is denied, and nothing runs."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pydantic
import pytest
from connectagent_adk import adk_callbacks
from connectagent_policy import Policy
from connectagent_shellhooks import ShellHooks
from connectagent_shellhooks.settings import Hook

from connectagent import Agent
from connectagent.testing import ScriptedLLM, call


@dataclasses.dataclass
class Job:
    name: str
    tries: int = 3


RAN: list[str] = []


def mail(to: list[str]) -> str:
    """Mail people."""
    RAN.append(f"mail {to}")
    return "mailed"


def label(labels: dict[str, int]) -> str:
    """Label something."""
    RAN.append(f"label {labels}")
    return "labelled"


def start(job: Job) -> str:
    """Start a job."""
    RAN.append(f"start {job}")
    return "started"


def pay(amount: int) -> str:
    """Pay an amount."""
    RAN.append(f"pay {amount}")
    return "paid"


def book(day: datetime.date) -> str:
    """Book a day."""
    RAN.append(f"book {day}")
    return "booked"


def wipe(sure: bool) -> str:
    """Wipe everything."""
    RAN.append(f"wipe {sure}")
    return "wiped"


def send(whom: str = pydantic.Field(alias="to")) -> str:
    """Send something."""
    RAN.append(f"send {whom}")
    return "sent"


EVIL = "a@evil.com"
ESCAPED = "\\u0061@evil.com"  # as JSON text has it
WAYS: list[tuple[str, Callable[..., str], str, str, dict[str, Any]]] = [
    # what is spelled, the tool, the argument and the text that are denied, and what the model sends
    ("JSON text for a list", mail, "to", EVIL, {"to": f'["{EVIL}"]'}),
    ("escapes in JSON text for a list", mail, "to", EVIL, {"to": f'["{ESCAPED}"]'}),
    ("escapes in JSON text for a dict", label, "labels", "evil", {"labels": '{"\\u0065vil": 1}'}),
    ("escapes in JSON text for a dataclass", start, "job", "evil", {"job": '{"name": "\\u0065vil"}'}),
    ("escapes in a key of a dataclass", start, "job", "evil", {"job": '{"n\\u0061me": "evil"}'}),
    ("a key twice", start, "job", "evil", {"job": '{"name": "good", "name": "evil"}'}),
    ("underscores", pay, "amount", "1000", {"amount": "1_000"}),
    ("a float", pay, "amount", "1000", {"amount": 1000.0}),
    ("a plus sign", pay, "amount", "1000", {"amount": "+1000"}),
    ("spaces", pay, "amount", "1000", {"amount": " 1000 "}),
    ("a number for a date", book, "day", "1970-01-02", {"day": 86400}),
    ("a text of a number for a date", book, "day", "1970-01-02", {"day": "86400"}),
    ("yes", wipe, "sure", "true", {"sure": "yes"}),
    ("1", wipe, "sure", "true", {"sure": 1}),
    ("t", wipe, "sure", "true", {"sure": "t"}),
    ("on", wipe, "sure", "true", {"sure": "on"}),
    ("the text 1", wipe, "sure", "true", {"sure": "1"}),
    ("the text true", wipe, "sure", "true", {"sure": "true"}),
    ("an alias", send, "to", EVIL, {"to": EVIL}),
    # these do not fit, so the model reads an error
    ("JSON text of JSON text", mail, "to", EVIL, {"to": json.dumps(json.dumps([EVIL]))}),
    ("the parameter's own name", send, "to", EVIL, {"whom": EVIL}),
    ("another key", pay, "amount", "1000", {"Amount": 1000}),
]


def policy(tool: str, key: str, denied: str, folder: Path) -> Any:
    rules = [{"deny": tool, "arguments": {key: denied}, "reason": "denied here"}, {"allow": "*"}]
    return Policy(text=json.dumps({"rules": rules}))


def shell_hook(tool: str, key: str, denied: str, folder: Path) -> Any:
    """A hook that finds the text between quotes or by itself in what it reads."""
    plugin = ShellHooks(user=False, project=False, folder=str(folder))
    shown = denied if denied in ("true", "1000") else f'"{denied}"'
    deny = f"if grep -qF '{shown}' ; then echo 'denied here' >&2; exit 2; fi"
    plugin._hooks = [Hook("PreToolUse", "", deny, "command", 10)]
    return plugin


def adk(tool: str, key: str, denied: str, folder: Path) -> Any:
    def before_tool(tool: Any, args: dict[str, Any], tool_context: Any) -> dict[str, Any] | None:
        return {"error": "denied here"} if denied in json.dumps(args.get(key)) else None

    return adk_callbacks(before_tool_callback=before_tool)


GUARDS = {"policy": policy, "shell hook": shell_hook, "adk": adk}


@pytest.mark.parametrize("parallel", [1, 4])
@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("way", WAYS, ids=[way[0] for way in WAYS])
def test_no_spelling_passes_a_rule_that_denies_its_value(way: Any, guard: str, parallel: int, tmp_path: Path) -> None:
    _, function, key, denied, sent = way
    RAN.clear()
    plugin = GUARDS[guard](function.__name__, key, denied, tmp_path)
    calls = [call(function.__name__, **sent) for _ in range(2 if parallel > 1 else 1)]
    llm = ScriptedLLM(calls if parallel > 1 else calls[0], "Done.")
    agent = Agent("a", [function], llm=llm, plugins=[plugin], parallel_tools=parallel, log=False, quiet=True)
    agent.input("Go")
    assert RAN == []
    entries = [entry for entry in agent.session["trace"] if entry["type"] == "tool_execution"]
    assert len(entries) == len(calls)
    is_misfit = way in WAYS[-3:]
    for entry in entries:
        told = str(entry["result"])
        assert "denied here" in told or (is_misfit and entry["status"] == "error"), told


@pytest.mark.parametrize("guard", GUARDS)
def test_what_no_rule_denies_runs(guard: str, tmp_path: Path) -> None:
    RAN.clear()
    plugin = GUARDS[guard]("pay", "amount", "1000", tmp_path)
    llm = ScriptedLLM(call("pay", amount="+5"), "Done.")
    Agent("a", [pay], llm=llm, plugins=[plugin], log=False, quiet=True).input("Go")
    assert RAN == ["pay 5"]
