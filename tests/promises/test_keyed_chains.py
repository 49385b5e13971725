"""Keyed sessions and maps whose processes are killed, get Ctrl-C or wait for a person: nothing is done twice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHAINS = int(os.environ.get("KEYED_CHAINS", "6"))  # set it for a longer run


@pytest.mark.posix("has no fork")
@pytest.mark.usefixtures("ctrl_c")
def test_what_a_chain_of_stopped_processes_leaves_is_what_one_would_have(tmp_path: Path) -> None:
    program = [sys.executable, str(Path(__file__).parents[1] / "support" / "keyed_chains.py"), "0", str(CHAINS)]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
