"""Many processes at once: each session has a record of its own, and each record is whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from record_agents import __file__ as script

from connectagent.records.read import read_record


def start(*arguments: str, folder: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(Path(script).parents[2])}
    environment.pop("CONNECTAGENT_DIR", None)
    return subprocess.Popen([sys.executable, script, *arguments], cwd=folder, env=environment)


def results_in(turn: dict[str, object]) -> list[str]:
    trace = turn["trace"]
    assert isinstance(trace, list)
    return [entry["result"] for entry in trace if entry["type"] == "tool_execution"]


def test_eight_processes_of_the_same_seconds_write_160_whole_records(tmp_path: Path) -> None:
    processes = [start("runs", "20", folder=tmp_path) for _ in range(8)]
    assert [process.wait(60) for process in processes] == [0] * 8
    records = [read_record(path) for path in (tmp_path / ".co/evals").iterdir()]
    assert len(records) == 160
    for record in records:
        (turn,) = record["turns"]
        assert turn["status"] == "answered"
        assert results_in(turn) == ["worked on 0"]
    log = (tmp_path / ".co/logs/twin.log").read_text().splitlines()
    assert len(log) == 160 * 5
    assert all(" twin " in line for line in log)
