"""Runs a process in a container of docker, or of podman, which takes the same command line."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import sysconfig
from contextlib import suppress

from connectagent_sandbox.limits import Limits

_PROCESSES = 256


@functools.cache
def why_no_container(client: str, image: str) -> str | None:
    """Why containers of an image cannot be used here; None where they can.

    Args:
        client: the program, `docker` or `podman`.
        image: the image's name.
    """
    problem = _problem([client, "version", "--format", "{{.Server.Version}}"])
    if problem is not None:
        return f"{client} does not work here: {problem}"
    if _problem([client, "image", "inspect", image]) is not None:
        return f"{client} has no image {image!r}"
    return None


def _problem(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stderr.strip() or f"exit code {done.returncode}") if done.returncode else None


def run_line(limits: Limits, image: str, name: str, program: str, folder: str) -> list[str]:
    """The command line that runs a Python program in a container.

    Args:
        limits: what it may use.
        image: the image's name.
        name: the container's.
        program: the program's file.
        folder: where it runs.
    """
    command = [limits.docker, "run", "--rm", "--interactive", "--pull", "never", "--name", name]
    command += [] if limits.network else ["--network", "none"]
    command += ["--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    command += ["--pids-limit", str(_PROCESSES), "--memory", f"{int(limits.memory_mb)}m"]
    command += ["--user", f"{os.getuid()}:{os.getgid()}", "--workdir", folder]
    for path in dict.fromkeys([*modules(), os.path.dirname(program), *map(os.path.abspath, limits.read)]):
        command += ["--mount", f"type=bind,source={path},target={path},readonly"]
    for path in map(os.path.abspath, limits.write):
        command += ["--mount", f"type=bind,source={path},target={path}"]
    own = {"HOME": "/tmp", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": os.pathsep.join(modules())}
    for variable in (*(f"{key}={value}" for key, value in own.items()), *limits.env):
        command += ["--env", variable]  # without `=` the client passes its own: values are in no list of processes
    return [*command, image, "python3", "-P", program]


def modules() -> list[str]:
    """The folders of `sys.path`, without those of the standard library, which the image has."""
    standard = sysconfig.get_path("stdlib")
    found = dict.fromkeys(os.path.abspath(one) for one in sys.path)
    return [path for path in found if os.path.isdir(path) and path not in (standard, f"{standard}/lib-dynload")]


def remove(client: str, name: str) -> None:
    """End a container, and remove it."""
    with suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run([client, "rm", "--force", name], capture_output=True, timeout=20)
