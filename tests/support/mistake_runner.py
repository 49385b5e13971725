"""Runs commands of `connectagent` as mistakes need it: a full disk, closed streams, no rights, no folder."""

from __future__ import annotations

import ctypes
import os
import resource
import struct
import sys
from pathlib import Path
from typing import Any

import forked

ROOT = Path(__file__).parents[2]


def run(folder: Path, arguments: list[str], *, stdin: str = "", **given: Any) -> tuple[int, str, str]:
    """The exit code of a command, and what it wrote on standard output and standard error.

    Args:
        folder: where it runs.
        arguments: the command's.
        stdin: what it reads.
        given: `env`, where "(unset)" takes a variable away, and what `limit` takes.
    """
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(folder), "COLUMNS": "80"}
    environment |= given.pop("env", {})
    environment = {name: value for name, value in environment.items() if value != "(unset)"}
    before = [f"{__name__}:limit", {"folder": str(folder), **given}]
    done = forked.run("-m", "connectagent", *arguments, cwd=folder, env=environment, input=stdin, before=before)
    return done.returncode, done.stdout, done.stderr


def limit(given: dict[str, Any]) -> None:
    """Take away from this process what a mistake says.

    Args:
        given: `full` (numbers of streams that are a device without space), `closed` (numbers of streams that are
            closed), `bytes` (how long a file may get), `without_rights`, `no_folder`.
    """
    for number in given.get("full", []):
        os.dup2(os.open("/dev/full", os.O_WRONLY), number)
    for number in given.get("closed", []):
        os.close(number)
        setattr(sys, ("stdin", "stdout", "stderr")[number], None)  # as Python itself does when it starts so
    if given.get("bytes"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (given["bytes"], given["bytes"]))
    if given.get("without_rights"):
        _drop_rights()
    if given.get("no_folder"):
        os.rmdir(given["folder"])


def _drop_rights() -> None:
    """Give up root's right to write everywhere, by capset(2); a user without it has none to give up."""
    version_3 = struct.pack("Ii", 0x20080522, 0)
    failed = ctypes.CDLL(None).capset(version_3, struct.pack("6I", *[0] * 6))
    assert not failed
