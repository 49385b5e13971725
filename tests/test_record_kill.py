"""kill -9: whatever the moment, the record loads and holds every tool result that the model had read."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from record_agents import __file__ as script

from connectagent.records import read_record

KILLS = 50


def start(*arguments: str, folder: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(Path(script).parents[1])}
    environment.pop("CONNECTAGENT_DIR", None)
    return subprocess.Popen([sys.executable, script, *arguments], cwd=folder, env=environment)


def killed_after(seconds: float, folder: Path) -> None:
    """Start the agent, let it work for a while, and kill it."""
    folder.mkdir()
    process = start("kill", str(folder / "side"), folder=folder)
    try:
        deadline = time.monotonic() + 30
        while not (folder / "side").exists() and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(seconds)
    finally:
        process.kill()
        process.wait()


def results_in(turn: dict[str, object]) -> list[str]:
    trace = turn["trace"]
    assert isinstance(trace, list)
    return [entry["result"] for entry in trace if entry["type"] == "tool_execution"]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_a_record_survives_kill_9_at_fifty_random_points(tmp_path: Path) -> None:
    chance = random.Random()
    torn = cut_off = finished = 0
    for number in range(KILLS):
        folder = tmp_path / str(number)
        killed_after(chance.uniform(0, 0.1), folder)
        recorded: set[str] = set()
        for path in (folder / ".co/evals").glob("*.yaml"):
            data = path.read_bytes()
            yaml.load(data[: data.rfind(b"\n") + 1], Loader=yaml.CSafeLoader)
            record = read_record(path)
            torn += not data.endswith(b"\n")
            cut_off += sum("status" not in turn for turn in record["turns"])
            assert all("status" in turn for turn in record["turns"][:-1])
            recorded.update(result for turn in record["turns"] for result in results_in(turn))
        side = (folder / "side").read_bytes().rpartition(b"\n")[0]
        read = [json.loads(line) for line in side.splitlines()]
        assert set(read) <= recorded
        finished += len(read)
    assert finished > 0  # the agents had been working
    assert cut_off > 0
    print(f"{KILLS} kills: {finished} results read and recorded, {cut_off} turns cut off, {torn} torn lines")


def test_twenty_processes_of_the_same_second_write_twenty_whole_records(tmp_path: Path) -> None:
    processes = [start("once", folder=tmp_path) for _ in range(20)]
    assert [process.wait(60) for process in processes] == [0] * 20
    records = [read_record(path) for path in (tmp_path / ".co/evals").iterdir()]
    assert len(records) == 20
    for record in records:
        (turn,) = record["turns"]
        assert turn["status"] == "answered"
        assert results_in(turn) == ["worked on 0"]
    log = (tmp_path / ".co/logs/twin.log").read_text().splitlines()
    assert len(log) == 20 * 5
    assert all(" twin " in line for line in log)
