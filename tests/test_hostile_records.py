"""Mutated and hostile records, through every command that reads records and the view server.

200 of them; `CONNECTAGENT_HOSTILE=2000` for 2,000, `CONNECTAGENT_HOSTILE_KEEP=folder` keeps those that go wrong.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hostile_records import __file__ as script

ROOT = Path(__file__).parents[1]
COUNT = int(os.environ.get("CONNECTAGENT_HOSTILE", "60"))


@pytest.mark.posix("has no pipes among its files")
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_no_record_crashes_hangs_or_fills_the_memory_is_misread_or_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, script, str(COUNT), "7"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "CONNECTAGENT_DIR": ".co"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)
    assert told["wrong"] == []
    assert told["mb"] < 500
    # What is odd in one place is read all the same.
    assert told["codes"]["log 0"] > COUNT and told["codes"]["log 1"] > COUNT and told["codes"]["blame 0"] > COUNT / 4
