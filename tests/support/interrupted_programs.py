"""Programs that get Ctrl-C: with a handler of SIGINT of their own, also where this process ignores it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path


def lines_of(program: str, folder: Path) -> list[str]:
    """What a program that sends itself Ctrl-C prints; it ends without an error."""
    script = folder / "script.py"
    script.write_text(program)
    started = subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    out, error = started.communicate(timeout=60)
    assert (started.returncode, error) == (0, "")
    return out.splitlines()
