"""Checks the libraries of connectagent itself, in a process of its own, so that one that crashes is reported.

`python -m connectagent.cli.core_check MODULE...` is such a process; it prints each module before it imports it.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

from connectagent.errors import LIBRARIES, install_again

LIMIT_S = 60.0  # for all of them: a slow disk


def core_problems() -> list[str]:
    """What is wrong with the libraries of connectagent: missing, too old, or not to be imported."""
    found = {module: problem for module in LIBRARIES if (problem := _problem(module))}
    rest = [module for module in LIBRARIES if module not in found]
    while rest:
        broken, why = _first_broken(rest)
        if not broken:
            break
        found[broken] = why
        rest = rest[rest.index(broken) + 1 :]
    return [f"{text}. Install it again: {install_again(module)}" for module, text in found.items()]


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


def _first_broken(modules: list[str]) -> tuple[str, str]:
    """Import modules in another process; the first that cannot be imported, and why, or two empty texts."""
    command = [sys.executable, "-P", "-m", __name__, *modules]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, env=environment, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return modules[0], f"connectagent's libraries cannot be imported within {LIMIT_S:g} s"
    lines = done.stdout.decode(errors="replace").splitlines()
    begun = [line.removeprefix("import ") for line in lines if line.startswith("import ")]
    if done.returncode == 0 or not begun:
        return "", ""
    why = (done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return begun[-1], f"{begun[-1]} cannot be imported: {why}"


def main(modules: list[str]) -> None:
    """Import modules, one after the other."""
    for module in modules:
        print(f"import {module}", flush=True)
        importlib.import_module(module)


if __name__ == "__main__":
    main(sys.argv[1:])
