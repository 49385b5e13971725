"""Sessions that were written as format 1, one of each shape: they are read, and their closed turns gone on from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from record_formats import shapes
from record_formats.shapes import SHAPES, Shape

from connectagent import Agent, ConfigError, DivergenceError, SqliteStore
from connectagent.cli import main
from connectagent.records import read_record
from connectagent.records.history import joined_turns
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
    text, before = file.read_text(), read_record(file)
    agent = made(shape, "Something new.")
    assert agent.resume(file, fork=fork) == before["turns"][-1]["result"]
    assert agent.input("And now?") == "Something new."
    assert file.read_text() == text
    assert agent.record is not None and agent.record != file
    after = read_record(agent.record)
    assert after["format"] == 2
    assert after["forked_from"] == str(file)
    assert after["id"] != before["id"]
    assert after["turns"][-1]["turn"] == shape.closed + 1
    assert after["turns"][-1]["status"] == "answered"
    assert after["turns"][:-1] == before["turns"]


def test_a_session_with_a_key_is_gone_on_with(records: Path) -> None:
    agent = made(SHAPES["keyed"], "Something new.")
    session = agent.for_session("ticket-7")
    session.record.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(records / "keyed.yaml", session.record)
    assert session.turns == 2
    assert session.turn("What about tea?", number=1) == "Three pages."
    assert session.turn("And now?") == "Something new."
    assert read_record(session.record)["format"] == 2
    again = made(SHAPES["keyed"], "Once more.").for_session("ticket-7")
    assert again.turns == 3
    assert again.turn("And then?") == "Once more."
    assert again.record == session.record


def test_a_session_with_a_key_in_a_store_is_gone_on_with(records: Path, tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "sessions.db")
    first = made(SHAPES["keyed"], "Something new.").for_session("ticket-7", store)
    store.append(first.record.name, 0, (records / "keyed.yaml").read_bytes())
    assert first.turn("And now?") == "Something new."
    first.record.unlink()
    again = made(SHAPES["keyed"], "Once more.").for_session("ticket-7", store)
    assert again.turns == 3
    assert again.turn("And then?") == "Once more."


def test_an_open_turn_of_a_session_with_a_key_is_left(records: Path) -> None:
    session = made(SHAPES["killed"], "Something new.").for_session("ticket-7")
    shutil.copy(records / "killed.yaml", session.record)
    with pytest.raises(ConfigError, match="--abandon"):
        session.turn("And now?")
    made(SHAPES["killed"]).resume(session.record, abandon=True)
    again = made(SHAPES["killed"], "Something new.").for_session("ticket-7")
    assert again.turn("And now?") == "Something new."
    assert again.turns == 3
    with pytest.raises(DivergenceError, match="was given up"):
        again.turn("Die.", number=2)


@pytest.mark.parametrize("name", OPEN)
def test_an_open_turn_is_not_gone_on_with(records: Path, name: str) -> None:
    file = records / f"{name}.yaml"
    text = file.read_text()
    shapes.RAN.clear()
    agent = made(SHAPES[name], *["Something new."] * 5)
    for decision in ({}, {"approve": True}):
        with pytest.raises(ConfigError, match=r"--abandon, or agent.resume\(record, abandon=True\)"):
            agent.resume(file, **decision)
    assert not shapes.RAN
    assert file.read_text() == text
    assert list(file.parent.glob("*_20*.yaml")) == []


@pytest.mark.parametrize("name", OPEN)
def test_an_open_turn_is_left_as_it_is_and_the_session_goes_on(records: Path, name: str) -> None:
    shape = SHAPES[name]
    agent = made(shape, "Something new.")
    shapes.RAN.clear()
    assert agent.resume(records / f"{name}.yaml", abandon=True) is None
    assert agent.record is not None
    with pytest.raises(ConfigError, match="takes no place, fork or decision"):
        agent.resume(agent.record, abandon=True, approve=True)
    other = made(shape, "Something new.")
    assert other.resume(agent.record) is None
    assert other.input("And now?") == "Something new."
    assert not shapes.RAN
    statuses = [turn["status"] for turn in joined_turns(read_record(agent.record))]
    assert statuses[-2:] == ["abandoned", "answered"]


@pytest.mark.parametrize("name", CLOSED)
def test_a_closed_turn_is_gone_back_into(records: Path, name: str) -> None:
    shape = SHAPES[name]
    whole = read_record(records / f"{name}.yaml")["turns"][0]["lines"]
    last = max(line["iteration"] for line in whole if line["type"] == "llm_call" and line["id"].count("/") == 2)
    agent = made(shape, "Another answer.", "Another one.")
    result = agent.resume(records / f"{name}.yaml", place=f"1.{last}")
    assert result in ("Another answer.", "Another one.", "ANOTHER ANSWER.")
