"""An option that takes one value and is given twice is refused, for every command; others keep all their values."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from connectagent.cli import main
from connectagent.cli.group import cli
from connectagent.commands.plugin_options import AgentCommand
from connectagent.settings import overrides


def single(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every option of every command that takes one value."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from single(command, (*path, name))
            continue
        for one in command.params:
            if isinstance(one, click.Option) and not (one.multiple or one.is_flag or one.count):
                yield (*path, name, one.opts[-1])


@pytest.mark.parametrize("words", list(single(cli)), ids=" ".join)
def test_an_option_of_one_value_is_refused_when_it_is_given_twice(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "1", words[-1], "2"]) == 2
    assert f"option {words[-1]!r} is given twice" in capsys.readouterr().err


# -- options of plugins ------------------------------------------------------------------------------

BUDGET = """
from connectagent import on_complete

class Budget:
    def __init__(self, usd: float = 1.0, calls: int = 2): ...

    @on_complete
    def show(self, result): ...
"""
TWICE = [  # each gives `usd` two values
    ["-p", "budget:usd=1,usd=2"],
    ["-p", "budget:usd=1,calls=3,usd=1"],
    ["-p", "budget:usd=1", "-p", "budget:usd=2"],
    ["-p", "budget:usd=1", "-p", "connectagent-budget:usd=2"],
    ["-p", "budget:usd=1", "-p", "no:x", "-p", "budget:calls=3,usd=2"],
    ["-p", "shadow:budget:usd=1", "-p", "shadow:budget:usd=2"],
]
OWN = [  # where options of plugins are options of the command
    ["--budget-usd", "1", "--budget-usd", "2"],
    ["--budget-usd=1", "--budget-usd", "2"],
    ["--budget-usd", "1", "-p", "budget:usd=2"],
]


def with_plugins(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command that takes plugins, from the tree of commands."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from with_plugins(command, (*path, name))
        elif any("-p" in one.opts for one in command.params):
            yield (*path, name), command


@pytest.fixture
def budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed plugin with options."""
    folder = tmp_path / "site"
    info = folder / "connectagent_budget-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "repeated_budget.py").write_text(BUDGET)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: connectagent-budget\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[connectagent]\nbudget = repeated_budget:Budget\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("repeated_budget", None)


@pytest.mark.parametrize("words", [words for words, _ in with_plugins(cli)], ids=" ".join)
def test_an_option_of_a_plugin_is_refused_when_it_is_given_twice(
    words: tuple[str, ...], budget: None, capsys: pytest.CaptureFixture[str]
) -> None:
    command = dict(with_plugins(cli))[words]
    given = [*TWICE, *OWN] if isinstance(command, AgentCommand) else TWICE
    named = [value for one in command.params if one.required for value in required(one)]
    for options in given:
        assert main([*words, *named, *options]) == 2, options
        told = capsys.readouterr().err
        assert re.search(r"option 'usd' of plugin (shadow:|connectagent-)?budget is given twice", told), (options, told)


def required(parameter: click.Parameter) -> list[str]:
    """What a command needs before it looks at its options."""
    return ["x.py"] if isinstance(parameter, click.Argument) else [parameter.opts[0], "says /./"]


def test_a_variant_gives_an_option_once(budget: None, capsys: pytest.CaptureFixture[str]) -> None:
    Path("cases.jsonl").write_text('{"prompt": "Hi", "expected": "Ho"}\n')
    Path("x.py").write_text("")
    for options in (*TWICE, *OWN, ["--model", "a", "--model", "b"]):
        variant = "x=" + " ".join(options)
        assert main(["eval", "x.py", "cases.jsonl", "--check", "exact", "--variant", variant]) == 2
        assert "is given twice" in capsys.readouterr().err, options


def test_different_options_of_a_plugin_may_be_given_one_by_one(
    budget: None, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("x.py").write_text(
        "from connectagent import Agent\nfrom connectagent.testing import ScriptedLLM\n"
        "agent = Agent('a', llm=ScriptedLLM('Done.'), log=False, quiet=True, plugins=[('budget', {'usd': 5.0})])\n"
    )
    for options in (
        ["-p", "budget:usd=1,calls=2"],
        ["-p", "budget:usd=1", "-p", "budget:calls=2"],
        ["--budget-usd", "1", "--budget-calls", "2", "-p", "budget"],
        ["-p", "no:xray", "-p", "no:xray", "-p", "budget", "-p", "budget"],
    ):
        code = main(["run", "x.py", "Go.", *options])
        told = capsys.readouterr()
        overrides.clear()
        assert (code, told.out.strip()) == (0, "Done."), (options, told)


def test_a_key_in_the_json_of_an_option_is_given_once(budget: None, capsys: pytest.CaptureFixture[str]) -> None:
    Path("x.py").write_text("from connectagent import Agent\nagent = Agent('a', model='offline', log=False)\n")
    assert main(["run", "x.py", "Go.", "-p", 'budget:calls={"search": 1, "mail": 2, "search": 9}']) != 0
    assert "'search' is given twice in" in capsys.readouterr().err
