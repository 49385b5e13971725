"""Runs commands of `connectagent` in processes that are forked from one that has it loaded: some 30 ms each."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import struct
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

# What nearly every command loads.
USED = ("connectagent.cli.run", "connectagent.cli.summary", "connectagent.cli.group", "connectagent.builtin.console")
USED += ("connectagent.builtin.textlog", "connectagent.models.offline", "rich.text", "rich.console", "yaml")
ROOT = Path(__file__).parents[1]


class Runner:
    """A process that forks one child for each command."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, folder: Path, arguments: list[str], **given: Any) -> tuple[int, str, str]:
        """The exit code of a command, and what it wrote on standard output and standard error.

        Args:
            folder: where it runs.
            arguments: the command's.
            given: `env`, `stdin`, `bytes` (how long a file may get), `without_rights`, `closed` and `full` (numbers of
                streams that are closed, or a device without space).
        """
        assert self.process.stdin is not None and self.process.stdout is not None
        outputs = [folder.parent / "stdout", folder.parent / "stderr"]
        for path in outputs:
            path.write_text("")
        request = {"folder": str(folder), "outputs": [str(path) for path in outputs], "arguments": arguments, **given}
        print(json.dumps(request), file=self.process.stdin, flush=True)
        code = int(self.process.stdout.readline())
        return code, *(path.read_text(errors="replace") for path in outputs)

    def close(self) -> None:
        self.process.communicate()


def _prepare(request: dict[str, Any]) -> None:
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update({"PATH": "/usr/bin:/bin", "HOME": request["folder"], "COLUMNS": "80", **request.get("env", {})})
    for name in [name for name, value in os.environ.items() if value == "(unset)"]:
        del os.environ[name]
    read, write = os.pipe()
    os.write(write, request.get("stdin", "").encode())
    os.close(write)
    os.dup2(read, 0)
    for number, path in enumerate(request["outputs"], 1):
        os.dup2(os.open("/dev/full" if number in request.get("full", []) else path, os.O_WRONLY), number)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", 1)
    for number in request.get("closed", []):
        os.close(number)
        setattr(sys, ("stdin", "stdout", "stderr")[number], None)  # as Python itself does when it starts so
    if request.get("bytes"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["bytes"], request["bytes"]))
    if request.get("without_rights"):
        _drop_rights()
    if request.get("no_folder"):
        os.rmdir(request["folder"])


def _drop_rights() -> None:
    """Give up root's right to write everywhere, by capset(2); a user without it has none to give up."""
    version_3 = struct.pack("Ii", 0x20080522, 0)
    failed = ctypes.CDLL(None).capset(version_3, struct.pack("6I", *[0] * 6))
    assert not failed


def _serve() -> None:
    for name in USED:
        import_module(name)
    from connectagent.cli import main

    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _prepare(json.loads(line))
            sys.argv[1:] = json.loads(line)["arguments"]
            raise SystemExit(main())
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    _serve()
