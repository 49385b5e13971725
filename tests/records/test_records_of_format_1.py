"""Sessions that were written as format 1, one of each shape: they are read, and their closed turns gone on from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from record_formats import shapes
from record_formats.shapes import SHAPES, Shape

from connectagent import Agent, Paused
from connectagent.cli import main
from connectagent.records import read_record
from connectagent.records.own import record_mark
from connectagent.testing import replayed

CLOSED = [name for name, shape in SHAPES.items() if shape.status == "answered"]
COMMANDS = [["log", "show"], ["log", "summary"], ["log", "export"], ["bill"], ["blame"]]
OPEN = [name for name in SHAPES if name not in CLOSED]


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stored records, in a project of this user."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)
    folder = tmp_path / ".co" / "evals"
    folder.mkdir(parents=True)
    for file in shapes.FOLDER.glob("*.yaml"):
        text = file.read_text()
        head = read_record(file)
        mark = record_mark(str(head["id"]), head.get("script"))
        (folder / file.name).write_text(text.replace(str(head["mark"]), mark))
    return folder


def made(shape: Shape, *script: Any) -> Agent:
    """The agent of a shape, with other answers of the models."""
    return shape.make(*([script] * len(shape.scripts)))


def test_each_shape_is_stored() -> None:
    assert {file.stem for file in shapes.FOLDER.glob("*.yaml")} == set(SHAPES)
    assert {read_record(file)["format"] for file in shapes.FOLDER.glob("*.yaml")} == {1}
    assert not [file for file in shapes.FOLDER.glob("*.yaml") if shapes.SECRET in file.read_text()]


def test_they_are_listed(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    found = {Path(one["path"]).stem: one["status"] for one in listed}
    assert found == {name: shape.status for name, shape in SHAPES.items()}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("command", COMMANDS, ids="-".join)
def test_they_are_shown(records: Path, name: str, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code = main([*command, str(records / f"{name}.yaml")])
    shown = capsys.readouterr()
    assert code == 0, shown.err
    assert shown.out.strip()


@pytest.mark.parametrize("name", CLOSED)
def test_they_are_replayed(records: Path, name: str) -> None:
    shape = SHAPES[name]
    assert replayed(records / f"{name}.yaml", made(shape)).same


@pytest.mark.parametrize("name", CLOSED)
@pytest.mark.parametrize("fork", [False, True], ids=["same file", "fork"])
def test_closed_turns_are_gone_on_from(records: Path, name: str, fork: bool) -> None:
    shape, file = SHAPES[name], records / f"{name}.yaml"
    before = read_record(file)["turns"]
    agent = made(shape, "Something new.")
    assert agent.resume(file, fork=fork) == before[-1]["result"]
    assert agent.input("And now?") == "Something new."
    assert agent.record is not None
    turns = read_record(agent.record)["turns"]
    assert turns[-1]["turn"] == shape.closed + 1
    assert turns[-1]["status"] == "answered"
    assert agent.record == file or fork


def test_a_session_with_a_key_is_gone_on_with(records: Path) -> None:
    agent = made(SHAPES["keyed"], "Something new.")
    session = agent.for_session("ticket-7")
    session.record.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(records / "keyed.yaml", session.record)
    assert session.turns == 2
    assert session.turn("What about tea?", number=1) == "Three pages."
    assert session.turn("And now?") == "Something new."


@pytest.mark.parametrize("name", OPEN)
def test_open_turns_run_nothing_that_nobody_decided(records: Path, name: str) -> None:
    file = records / f"{name}.yaml"
    shapes.RAN.clear()
    try:
        made(SHAPES[name], *["Something new."] * 5).resume(file)
    except Paused:
        assert name == "paused"
    assert not shapes.RAN
    assert read_record(file)["turns"][0]["status"] == "answered"
