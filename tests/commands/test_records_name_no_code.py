"""No command runs or imports what only a record names: each command, with each name in a head or a line made evil.

A sample of the fields by default; `CONNECTAGENT_MATRIX=all` takes every field with every spelling.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import sys
from pathlib import Path
from typing import Any

import named_models
import pytest
from record_agents import worker
from record_commands import SCRIPT, arguments, commands

from connectagent import Agent, LLMResponse, Paused, ToolCall, after_user_input
from connectagent.cli import main
from connectagent.cli.group import cli
from connectagent.errors import ConfigError
from connectagent.hooks import entry_points
from connectagent.replay.playing import agent_from_record
from connectagent.replay.recording import Recording
from connectagent.testing import bisect

SPELLINGS = ("{folder}/evil.py", "./evil.py", "evil.py", "evil:plugin", "evil_module", "evil", "evil/model")
EVIL = "from pathlib import Path\nPath({ran!r}).touch()\n"
WHOLE = os.environ.get("CONNECTAGENT_MATRIX") == "all"
OWN = """
from record_agents import worker
agent = worker(rounds=1, calls=1)
"""


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
    assert {"log", "replay", "report", "resume", "bisect", "compare", "bill", "blame"} <= names
    assert {command[0] for command in commands(cli) if SCRIPT in command} > {"replay", "resume", "bisect"}


def test_nothing_that_only_a_record_names_runs(ran: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agent = worker(rounds=1, calls=1)
    agent.input("Go.")
    text = Path(str(agent.record)).read_text()
    # The mark is a stranger's, and the file lies outside of the project's records.
    lines = re.sub(r"^mark: .*$", 'mark: "0"', text, flags=re.MULTILINE).splitlines()
    lines.insert(1, 'script: "shop.py"')
    Path(SCRIPT).write_text(OWN)
    places = fields(lines)
    assert ("head", "plugins") in places and ("llm_call", "model") in places
    for number, field in enumerate(places):
        names = SPELLINGS if WHOLE or field == ("head", "plugins") else [SPELLINGS[number % len(SPELLINGS)]]
        for name in names:
            Path("odd.yaml").write_text(evil(lines, field, name.format(folder=Path.cwd())))
            few = [("report", "RECORD"), ("replay", "RECORD"), ("resume", "RECORD", "--script", SCRIPT)]
            for command in commands(cli) if WHOLE or field[0] == "head" else few:
                main(arguments(command, "odd.yaml"))
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


# -- models ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("named"))
    try:
        return named_models.records()
    finally:
        os.chdir(before)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the models that are made, those of no provider too; each of them answers."""
    monkeypatch.chdir(tmp_path)
    names: list[str] = []

    def connected(name: str, *more: Any) -> named_models.Model:
        names.append(name)
        return named_models.Model(name)

    monkeypatch.setattr("connectagent.agents.handler_api.connected", connected)
    return names


def resumed(lines: list[str], shape: str) -> None:
    """Resume a record, whatever comes of it."""
    Path("odd.yaml").write_text("\n".join(lines) + "\n")
    with contextlib.suppress(Paused, ConfigError, OSError):
        named_models.agent(shape=shape).resume("odd.yaml")


@pytest.mark.parametrize("mark", ["", 'mark: "0"'], ids=["no mark", "another's mark"])
@pytest.mark.parametrize("shape", named_models.SHAPES)
def test_no_model_that_only_a_record_names_is_made(
    shape: str, mark: str, named: dict[str, list[str]], made: list[str], ran: Path
) -> None:
    """Each place in which a line may name a model; what is made is what the program's own handlers name."""
    lines = [mark if line.startswith("mark: ") else line for line in named[shape]]
    tried = list(named_models.naming([line for line in lines if line], "openai/evil"))
    assert len(tried) > 100
    rng, wrong = random.Random(shape + mark), []
    for what, changed in tried if WHOLE else rng.sample(tried, 60):
        made.clear()
        resumed(changed, shape)
        if "openai/evil" in made:
            wrong.append(what)
    assert wrong == []


def test_ones_own_record_names_its_model(named: dict[str, list[str]], made: list[str], ran: Path) -> None:
    """With the mark a turn goes on with the model that its handlers had chosen."""
    there = "\n".join(named["retried"])
    changed = there.replace('"model": "own/last"', '"model": "own/third"')
    assert changed != there
    resumed(changed.splitlines(), "retried")
    assert made == ["own/third"]


def test_a_program_chooses_the_model_of_a_strangers_record_anew(named: dict[str, list[str]], made: list[str]) -> None:
    """What the record says of the call without an answer is not taken, so the handlers are asked again."""
    lines = [line for line in named["first"] if not line.startswith("mark: ")]
    changed = "\n".join(lines).replace('"model": "own/other"', '"model": "openai/evil"')
    assert changed.count("openai/evil") == 2  # the change that the handler made, and the request that it left
    resumed(changed.splitlines(), "first")
    assert made == ["own/other"]


@pytest.mark.parametrize("seed", range(4))
def test_no_two_or_three_lines_together_name_a_model(
    seed: int, named: dict[str, list[str]], made: list[str], ran: Path
) -> None:
    rng = random.Random(seed)
    for _ in range(400 if WHOLE else 15):
        shape = rng.choice(list(named))
        changed, done = [line for line in named[shape] if not line.startswith("mark: ")], []
        for _ in range(rng.randint(2, 4)):
            what, changed = rng.choice(list(named_models.naming(changed, "openai/evil")))
            done.append(what)
        made.clear()
        resumed(changed, shape)
        assert "openai/evil" not in made, (shape, done)


def test_bisect_asks_no_model_that_only_a_record_names(made: list[str], ran: Path) -> None:
    class Asks:
        model = "openai/evil"

        def complete(self, messages: Any, tools: Any = None) -> LLMResponse:
            if len(messages) > 2:
                return LLMResponse("Done.")
            return LLMResponse(None, [ToolCall("c1", "work", {"n": 1, "x": 1.0})])

    @after_user_input
    def adds(agent: Agent) -> None:
        agent.session["messages"].append({"role": "user", "content": "And so on."})

    agent = worker(plugins=[adds])
    agent.llm = Asks()
    agent.input("Go.")
    record = Path(str(agent.record))
    mine = record.read_text()

    def make() -> Agent:
        return agent_from_record(Recording(record), plugins=[adds])

    record.write_text(re.sub(r"^mark: .*\n", "", mine, flags=re.MULTILINE))
    finding = bisect(record, make, "calls work")
    assert made == [] and "name a model; only the record names 'openai/evil'" in str(finding)
    bisect(record, make, "calls work", model="own/mine")
    assert set(made) == {"own/mine"}
    made.clear()
    record.write_text(mine)
    finding = bisect(record, make, "calls work")
    assert set(made) == {"openai/evil"}, str(finding)
