"""No command runs or imports what only a record names: each command, with each name in a head or a line made evil.

A sample of the fields by default; `CONNECTAGENT_MATRIX=all` takes every field with every spelling.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from record_agents import worker

from connectagent.cli import main
from connectagent.cli.group import cli
from connectagent.hooks import entry_points

SPELLINGS = ("{folder}/evil.py", "./evil.py", "evil.py", "evil:plugin", "evil_module", "evil", "evil/model")
EVIL = "from pathlib import Path\nPath({ran!r}).touch()\n"
# What a command needs besides the record. A new command without a row is tried with the record alone.
MORE = {
    "bisect": ["--bad", "says /./"],
    "compare": ["--bad", "says /./"],
    "bill": ["-p", "no:x"],
    "report": ["--bad", "says /./"],
    "blame": ["0"],
}
ENDLESS = ("view",)  # it serves until it is stopped; the pages are tried by the hostile records
RECORD = re.compile(r"records?|first|second|one|other|before|after")


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The command lines that are given a record, from the tree of commands; RECORD stands for it."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        elif name not in ENDLESS:
            given: list[str] = []
            for parameter in command.params:
                if parameter.name is not None and RECORD.fullmatch(parameter.name):
                    given += ["RECORD"] if isinstance(parameter, click.Argument) else [parameter.opts[0], "RECORD"]
            if given:
                yield (*path, name, *given, *MORE.get(name, []))


def fields(lines: list[str]) -> list[tuple[str, str]]:
    """Where a record has a text: the head or a type of line, and the key."""
    found: dict[tuple[str, str], None] = {}
    for line in lines:
        if line.startswith("  - {"):
            entry = json.loads(line[4:])
            found |= {(str(entry.get("type")), key): None for key in entry if isinstance(entry[key], str | dict)}
        elif (pair := re.match(r"([a-z_]+): ", line)) is not None:
            found["head", pair[1]] = None
    return list(found)


def evil(lines: list[str], field: tuple[str, str], name: str) -> str:
    """The record with a name in a field of all lines of a type; plugins are named as a record names them."""
    kind, key = field
    made = []
    for line in lines:
        if kind == "head" and line.startswith(f"{key}: "):
            value: Any = {name: None} if key in ("plugins", "plugin_sources") else name
            line = f"{key}: {json.dumps(value)}"
        elif kind != "head" and line.startswith("  - {") and (entry := json.loads(line[4:])).get("type") == kind:
            old = entry.get(key)
            entry[key] = {**dict.fromkeys(old, name), "plugin": name} if isinstance(old, dict) else name
            line = f"  - {json.dumps(entry)}"
        made.append(line)
    return "\n".join(made) + "\n"


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What appears if anything evil runs: a file, a module, and an installed plugin with a model and a command."""
    found, folder, site = tmp_path / "ran", tmp_path / "far", tmp_path / "site"
    folder.mkdir()
    info = site / "connectagent_evil-1.0.dist-info"
    info.mkdir(parents=True)
    for file in (folder / "evil.py", site / "evil.py", site / "evil_module.py", site / "evil_plugin.py"):
        file.write_text(EVIL.format(ran=str(found)))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: connectagent-evil\nVersion: 1.0\n")
    declared = "[connectagent]\nevil = evil_plugin\n[connectagent.models]\nevil = evil_plugin\n"
    (info / "entry_points.txt").write_text(declared)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.chdir(folder)
    entry_points._declared.cache_clear()
    entry_points._read.cache_clear()
    return found


def test_there_are_commands_that_take_a_record() -> None:
    names = {command[0] for command in commands(cli)}
    assert {"log", "replay", "report", "resume", "bisect", "compare", "bill", "blame", "chat"} <= names


def test_nothing_that_only_a_record_names_runs(ran: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agent = worker(rounds=1, calls=1)
    agent.input("Go.")
    text = Path(str(agent.record)).read_text()
    # The mark is a stranger's, and the file lies outside of the project's records.
    lines = re.sub(r"^mark: .*$", 'mark: "0"', text, flags=re.MULTILINE).splitlines()
    lines.insert(1, 'script: "shop.py"')
    whole = os.environ.get("CONNECTAGENT_MATRIX") == "all"
    places = fields(lines)
    assert ("head", "plugins") in places and ("llm_call", "model") in places
    for number, field in enumerate(places):
        names = SPELLINGS if whole or field == ("head", "plugins") else [SPELLINGS[number % len(SPELLINGS)]]
        for name in names:
            Path("odd.yaml").write_text(evil(lines, field, name.format(folder=Path.cwd())))
            few = [("report", "RECORD"), ("replay", "RECORD")]
            for command in commands(cli) if whole or field[0] == "head" else few:
                main(["odd.yaml" if word == "RECORD" else word for word in command])
                assert not ran.exists(), f"{field} {name!r}: {command}"
                assert not {"evil_module", "evil_plugin"} & sys.modules.keys()
    capsys.readouterr()


def test_a_report_names_no_plugin_that_is_loaded(ran: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agent = worker(rounds=1, calls=1)
    agent.input("Go.")
    assert main(["report", str(agent.record), "--bad", "says /./", "-o", "bug.yaml"]) == 0
    text = Path("bug.yaml").read_text()
    for name in SPELLINGS:
        needs = json.dumps([{"name": name.format(folder=Path.cwd()), "from": "connectagent-evil"}])
        Path("odd.yaml").write_text(re.sub(r"^needs: .*$", f"needs: {needs}", text, flags=re.MULTILINE))
        assert main(["replay", "odd.yaml"]) == 2
        assert not ran.exists(), name
    told = capsys.readouterr().err
    assert "only the report names it" in told
