"""Checks the libraries of connectagent itself, in processes of their own, so that one that crashes is reported.

The slowest library to import has a process to itself beside one for all others.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import PackageNotFoundError, version

from connectagent.errors import LIBRARIES, install_again

LIMIT_S = 60.0  # for all of them: a slow disk
_SLOWEST = "anthropic"  # takes longer than all others together
_IMPORT = """
import importlib, sys
for module in sys.argv[1:]:
    print("import", module, flush=True)
    importlib.import_module(module)
"""


def core_problems() -> list[str]:
    """What is wrong with the libraries of connectagent: missing, too old, or not to be imported."""
    found = {module: problem for module in LIBRARIES if (problem := _problem(module))}
    rest = [module for module in LIBRARIES if module not in found]
    groups = [[module for module in rest if (module == _SLOWEST) is alone] for alone in (True, False)]
    with ThreadPoolExecutor(max_workers=len(groups)) as threads:
        for broken in threads.map(partial(_broken, until=time.monotonic() + LIMIT_S), groups):
            found |= broken
    told = {module: found[module] for module in LIBRARIES if module in found}
    return [f"{text}. Install it again: {install_again(module)}" for module, text in told.items()]


def _problem(module: str) -> str | None:
    name, _, lowest = LIBRARIES[module].partition(">=")
    try:
        there = version(name)
    except PackageNotFoundError:
        return f"connectagent needs {LIBRARIES[module]}, which is not installed"
    if _order(there) < _order(lowest):
        return f"connectagent needs {LIBRARIES[module]}, and {there} is installed"
    return None


def _order(text: str) -> list[int]:
    """The numbers of a version, before any letters: what the lowest versions of this package consist of."""
    numbers = re.split(r"[^\d.]", text)[0].split(".")
    found = [int(number) for number in numbers if number]
    return found + [0] * (4 - len(found))


def _broken(modules: Sequence[str], until: float) -> dict[str, str]:
    """The modules that cannot be imported, and why."""
    found: dict[str, str] = {}
    rest = list(modules)
    while rest:
        broken, why = _first_broken(rest, until)
        if not broken:
            break
        found[broken] = why
        rest = rest[rest.index(broken) + 1 :]
    return found


def _first_broken(modules: Sequence[str], until: float) -> tuple[str, str]:
    """Import modules in another process; the first that cannot be imported, and why, or two empty texts.

    Args:
        modules: their names.
        until: when to give up, by the monotonic clock.
    """
    command = [sys.executable, "-P", "-c", _IMPORT, *modules]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    limit = max(until - time.monotonic(), 0.0)
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, env=environment, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired as error:
        slow = _begun(error.stdout) or modules[0]
        return slow, f"{slow} cannot be imported: connectagent's libraries took longer than {LIMIT_S:g} s"
    begun = _begun(done.stdout)
    if done.returncode == 0 or not begun:
        return "", ""
    why = (done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return begun, f"{begun} cannot be imported: {why}"


def _begun(out: bytes | None) -> str:
    """The last module that a process began to import, by what it printed."""
    lines = (out or b"").decode(errors="replace").splitlines()
    begun = [line.removeprefix("import ") for line in lines if line.startswith("import ")]
    return begun[-1] if begun else ""
