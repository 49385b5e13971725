"""What a person, a judge or a shell hook reads of a call's arguments is the JSON that the guards decide on."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import connectagent_approve
import connectagent_notify
import pytest
from connectagent_approve import Approve
from connectagent_shellhooks import ShellHooks
from connectagent_shellhooks.settings import Hook

from connectagent import Agent, Pause, Paused, ToolCall, before_each_tool
from connectagent.builtin import trust
from connectagent.commands import failure
from connectagent.output.text import arguments_text
from connectagent.testing import ScriptedLLM, call

ROOT = Path(__file__).parents[2]


class Posing:
    """Looks like a text that a guard lets pass."""

    def __repr__(self) -> str:
        return "ann"


class Failing:
    def __repr__(self) -> str:
        raise OSError("no")


def take(value: Any) -> str:
    """Take something."""
    return "taken"


def pay(amount: int, sure: bool = False) -> str:
    """Pay."""
    return "paid"


def waits(tool_call: ToolCall) -> None:
    raise Pause("look at it")


Read = Callable[[ToolCall, Path, pytest.MonkeyPatch, pytest.CaptureFixture[str]], str]


def agent_of(**more: Any) -> Agent:
    return Agent("a", [take, pay], llm=more.pop("llm", None) or ScriptedLLM(), quiet=True, log=False, **more)


def approve(one: ToolCall, folder: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    patch.setattr(connectagent_approve, "can_ask", lambda: True)
    patch.setattr(connectagent_approve, "_read", lambda question: "y")
    patch.setenv("COLUMNS", "100000")
    agent_of(plugins=[Approve()]).execute_tool(one.name, one.arguments)
    return capsys.readouterr().err


def careful(one: ToolCall, folder: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    patch.setattr(trust, "can_ask", lambda: True)
    patch.setattr(trust, "forget_typed", lambda: None)
    (folder / "typed").write_text("y\n")
    patch.setenv("COLUMNS", "100000")
    with open(folder / "typed") as typed:
        patch.setattr(sys, "stdin", typed)
        agent_of(trust="careful").execute_tool(one.name, one.arguments)
    return capsys.readouterr().err


def judge(one: ToolCall, folder: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    llm = ScriptedLLM('{"allowed": true, "reason": "x"}')
    agent_of(trust=Agent("judge", llm=llm, quiet=True, log=False)).execute_tool(one.name, one.arguments)
    return str(llm.requests[0].messages[-1]["content"])


def shell_hook(one: ToolCall, folder: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    plugin = ShellHooks(user=False, project=False, folder=str(folder))
    plugin._hooks = [Hook("PreToolUse", "", f"cat > {folder}/given", "command", 10)]
    agent_of(plugins=[plugin]).execute_tool(one.name, one.arguments)
    return (folder / "given").read_text("utf-8")


def prompt_hook(one: ToolCall, folder: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    plugin = ShellHooks(user=False, project=False, folder=str(folder))
    plugin._hooks = [Hook("PreToolUse", "", "May it run?", "prompt", 10)]
    llm = ScriptedLLM('{"ok": true, "reason": "x"}')
    agent_of(plugins=[plugin], llm=llm).execute_tool(one.name, one.arguments)
    return str(llm.requests[0].messages[-1]["content"])


def paused(one: ToolCall) -> Paused:
    llm = ScriptedLLM(one, "Done.")
    with pytest.raises(Paused) as stopped:
        agent_of(llm=llm, on_events=[before_each_tool(waits)]).input("Go")
    return stopped.value


def error_lines(one: ToolCall, folder: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    return "\n".join(failure._lines_of_pause(paused(one)))


def decide_line(one: ToolCall, folder: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    return failure.call_line(paused(one).waiting[0])


def message(one: ToolCall, folder: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    return connectagent_notify._waits(paused(one))


READS: dict[str, Read] = {
    one.__name__: one
    for one in (approve, careful, judge, shell_hook, prompt_hook, error_lines, decide_line, message)
}  # fmt: skip
OF_PROGRAMS = ("approve", "careful", "judge", "shell_hook", "prompt_hook")
"""Who reads arguments that a program gives to `execute_tool`, which may be objects."""
SENT: dict[str, tuple[ToolCall, list[str]]] = {
    # what the model sends, and the JSON that is read
    "spelled": (call("pay", amount="1_000", sure="yes"), ["1000", "true"]),
    "escaped": (call("take", value=["\u00fcber", {"to": "\u65e5"}]), ['["\u00fcber", {"to": "\u65e5"}]']),
    "half a letter": (call("take", value=["\ud800x"]), ['["\\ud800x"]']),
    "not a number": (call("take", value=[float("inf")]), ["[Infinity]"]),
}
GIVEN: dict[str, tuple[Any, str]] = {
    "an object": ([Posing()], '["<test_shown_arguments.Posing: ann>"]'),
    "an object without a repr": ([Failing()], '["<test_shown_arguments.Failing: '),
    "keys that are no texts": ([{(1, 2): "x"}], """["<builtins.dict: {(1, 2): 'x'}>"]"""),
    "two keys that are one in JSON": ([{1: "x", "1": "y"}], """["<builtins.dict: {1: 'x', '1': 'y'}>"]"""),
}


@pytest.mark.parametrize("what", SENT)
@pytest.mark.parametrize("who", READS)
def test_each_reads_the_json_that_guards_decide_on(
    who: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, expected = SENT[what]
    read = READS[who](call(one.name, **one.arguments), tmp_path, monkeypatch, capsys)
    for part in expected:
        assert part in read, read


@pytest.mark.parametrize("what", GIVEN)
@pytest.mark.parametrize("who", OF_PROGRAMS)
def test_an_object_of_a_program_is_named_by_its_type(
    who: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    value, expected = GIVEN[what]
    read = READS[who](call("take", value=value), tmp_path, monkeypatch, capsys)
    assert expected in read or json.dumps(expected)[1:-1] in read, read


def test_json_text_is_json() -> None:
    value = {"a": [1, 1.5, True, None, "\u00fc\ud800\U0001f600"], "b": {}}
    assert json.loads(arguments_text(value)) == value
    circle: list[Any] = []
    circle.append(circle)
    assert arguments_text(circle) == '["<builtins.list: [[...]]>"]'


SHOWING = (
    *("connectagent/builtin/trust.py", "connectagent/output/rows.py", "connectagent/commands/failure.py"),
    "plugins/connectagent-approve/connectagent_approve/__init__.py",
    "plugins/connectagent-notify/connectagent_notify/__init__.py",
    *(
        f"plugins/connectagent-shellhooks/connectagent_shellhooks/{file}.py"
        for file in ("__init__", "running", "posting")
    ),
)


@pytest.mark.parametrize("file", SHOWING)
def test_one_function_makes_that_json(file: str) -> None:
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    made = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "dumps"]
    assert not made and "arguments_text" in (ROOT / file).read_text("utf-8")
