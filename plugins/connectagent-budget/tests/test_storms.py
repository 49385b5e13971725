"""No limit is exceeded by more than the calls under way, in storms of agents, stops, resumes and kills.

`CONNECTAGENT_BUDGET_STORMS` and `CONNECTAGENT_BUDGET_KILLS` say how many storms run inside of this process, and in
processes of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from storms import Killed, Storm, check

STORMS = int(os.environ.get("CONNECTAGENT_BUDGET_STORMS", "8"))
KILLS = int(os.environ.get("CONNECTAGENT_BUDGET_KILLS", "3"))
SCRIPT = Path(__file__).with_name("storms.py")
MOST_PROCESSES = 12


def record_of(folder: Path) -> str:
    """The record that the last event was in."""
    lines = [json.loads(line) for line in (folder / "events").read_text("utf-8").splitlines()]
    return str([line["record"] for line in lines if "record" in line][-1])


def noted(folder: Path, found: Counter[str]) -> None:
    """Add figures to a file, where somebody wants them."""
    if file := os.environ.get("CONNECTAGENT_BUDGET_FIGURES"):
        with Path(file).open("a") as figures:
            figures.write(json.dumps(found) + "\n")


def stop() -> None:
    """End a storm's process, as far as that can be done inside of this one."""
    raise Killed


@pytest.mark.parametrize("seed", range(STORMS))
def test_limits_hold_over_interrupts_pauses_and_resumes(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    record = None
    for process in range(MOST_PROCESSES):
        storm = Storm(tmp_path, seed, process, stop)
        try:
            goes_on = storm.run(record)
        except (Killed, KeyboardInterrupt):
            goes_on = True
        if not goes_on:
            break
        record = record_of(tmp_path)
    noted(tmp_path, check(storm))


@pytest.mark.skipif(os.name != "posix", reason="no SIGKILL")
@pytest.mark.parametrize("seed", range(KILLS))
def test_limits_hold_over_kills(seed: int, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SCRIPT.parent), *sys.path])}
    record: list[str] = []
    killed = 0
    for process in range(MOST_PROCESSES):
        command = [sys.executable, str(SCRIPT), str(tmp_path), str(seed + 10_000), str(process), *record]
        ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
        is_interrupted = "KeyboardInterrupt" in ran.stderr
        killed += ran.returncode == -9
        assert ran.returncode in (0, 3, -9) or is_interrupted, ran.stderr
        if ran.returncode == 0:
            break
        record = [record_of(tmp_path)]
    noted(tmp_path, check(Storm(tmp_path, seed + 10_000, 0, stop)) + Counter(killed=killed))
