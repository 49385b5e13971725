"""Everything in the README is true: its code and its commands run, its tables are the code's own."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from connectagent.cli.hooks import markdown_table
from connectagent.models.names import PROVIDERS
from connectagent.settings import SETTINGS, overrides
from connectagent.testing.plugin_tester.observer import CHANGES

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return [
        pytest.param(found.group(1), id=f"line {README[: found.start()].count(chr(10)) + 1}")
        for found in re.finditer(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    ]


def between(name):
    return README.split(f"<!-- {name} -->\n")[1].split(f"\n<!-- end of {name} -->")[0]


def settings_table():
    rows = ["| setting | environment variable | means |", "| --- | --- | --- |"]
    return "\n".join(
        [*rows, *(f"| `{name}` | `CONNECTAGENT_{name.upper()}` | {means} |" for name, means in SETTINGS.items())]
    )


def changes_table():
    rows = [f"| `{kind}` | {means} |" for kind, means in CHANGES.items()]
    return "\n".join(["| kind | the plugin |", "| --- | --- |", *rows])


def lines_with(text):
    return [line for line in README.splitlines() if text in line]


@pytest.fixture
def offline(monkeypatch, tmp_path):
    for provider in PROVIDERS.values():
        if provider.key_variable:
            monkeypatch.delenv(provider.key_variable, raising=False)
    for name in SETTINGS:
        monkeypatch.delenv(f"CONNECTAGENT_{name.upper()}", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("code", blocks("python"))
def test_a_python_block_runs_without_a_key_and_without_a_network(code, offline):
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})


@pytest.mark.parametrize("code", [block for block in blocks("sh") if "venv" not in block.values[0]])
def test_a_shell_block_runs(code, offline, tmp_path):
    for command in ("connectagent", "python"):
        wrapper = tmp_path / "bin" / command
        wrapper.parent.mkdir(exist_ok=True)
        module = "-m connectagent" if command == "connectagent" else ""
        wrapper.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {module} "$@"\n')
        wrapper.chmod(0o755)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["sh", "-euc", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_first_agent_says_that_it_is_the_offline_model(offline, capsys):
    exec(blocks("python")[0].values[0], {})
    assert "[offline]" in capsys.readouterr().out


@pytest.mark.parametrize("heading", ["An agent in eight lines", "A handler in eight lines"])
def test_what_is_promised_in_eight_lines_is_written_in_eight(heading):
    block = README.split(f"## {heading}")[1].split("```python\n")[1].split("```")[0]
    assert len([line for line in block.splitlines() if line.strip()]) <= 8


def test_the_sections_are_in_the_order_in_which_they_are_looked_for():
    headings = re.findall(r"^## (.*)$", README, re.MULTILINE)
    assert headings[:6] == [
        "Two commands",
        "An agent in eight lines",
        "A handler in eight lines",
        "The hooks",
        "Where the record goes",
        "How to bring a provider",
    ]


def test_the_hook_table_is_the_one_that_the_specs_make():
    assert between("hooks") == markdown_table(), "write it anew: connectagent hooks --markdown"


def test_the_changes_table_lists_every_kind_of_change():
    assert between("changes") == changes_table(), f"write it anew:\n{changes_table()}"


def test_the_settings_table_lists_every_setting():
    assert between("settings") == settings_table(), f"write it anew:\n{settings_table()}"


def test_every_provider_is_named():
    section = README.split("## How to bring a provider")[1].split("\n## ")[0]
    assert [name for name in PROVIDERS if name != "co" and f"`{name}`" not in section] == []


def test_each_of_the_two_commands_is_one_line():
    (demo,) = lines_with("bin/connectagent demo")
    (tests,) = lines_with("bin/pytest")
    for line in (demo, tests):
        assert line.startswith("python3 -m venv .venv && .venv/bin/pip install -q ")


def test_the_checks_of_every_change_run_the_test_command_of_the_readme():
    script = (ROOT / ".ci" / "run").read_text()
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert "grep -m 1 'bin/pytest' README.md" in script
    assert script.rstrip().splitlines()[-2:] == ['bash -euc "$tests -rs" || status=$?', 'exit "$status"']


def test_every_command_has_a_row():
    from connectagent.cli.commands import COMMANDS

    assert [name for name in COMMANDS if f"| `connectagent {name}" not in README] == []


def test_the_readme_leaves_no_options_of_the_command_line_in_force():
    assert overrides == {}
