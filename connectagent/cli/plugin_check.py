"""Loads plugins to check them, each in a process of its own, so that a hang or a crash affects no other.

`python -m connectagent.cli.plugin_check FILE GROUP NAME DISTRIBUTION VALUE` is such a process; it writes to FILE.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from connectagent.cli.plugin_status import Status, declared, everything, status_of
from connectagent.errors import PluginError
from connectagent.hooks.distributions import way_out
from connectagent.hooks.entry_points import Installed, problem_of

LIMIT_S = 10.0


def check(plugins: Iterable[Installed], limit: float = LIMIT_S) -> list[Status]:
    """Load each plugin in a process of its own; their statuses.

    Args:
        plugins: the plugins.
        limit: how many seconds each may take.
    """
    with ThreadPoolExecutor(max_workers=max(2, os.cpu_count() or 1)) as threads:
        return list(threads.map(partial(_tried, limit=limit), plugins))


def _tried(plugin: Installed, limit: float) -> Status:
    unloaded = declared(plugin)
    if problem_of(plugin):
        return unloaded
    with tempfile.TemporaryDirectory(prefix="connectagent-doctor-") as folder:
        file = Path(folder) / "status.json"
        ended = _load(plugin, file, limit)
        try:
            status = Status(**json.loads(file.read_bytes()))
        except (OSError, ValueError, TypeError):
            status = unloaded
            status.status = "broken"
            status.error = f"plugin {plugin.name!r} ({plugin}) cannot be loaded: {ended}"
            status.way_out = way_out(plugin, PluginError())
    return status


def _load(plugin: Installed, file: Path, limit: float) -> str:
    """Load a plugin in another process, which writes the status; how that process ended."""
    names = [plugin.entry.group, plugin.name, plugin.distribution, plugin.entry.value]
    command = [sys.executable, "-P", "-m", __name__, str(file), *names]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    silent = subprocess.DEVNULL
    process = subprocess.Popen(
        command, stdin=silent, stdout=silent, stderr=silent, env=environment, start_new_session=True
    )
    try:
        code = process.wait(limit)
    except subprocess.TimeoutExpired:
        return f"it took longer than {limit:g} s"
    finally:
        _end(process)
    return f"it ended the process, by {_signal(-code)}" if code < 0 else f"it ended the process, with exit code {code}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and those that it started."""
    with contextlib.suppress(OSError):  # all have ended
        os.killpg(process.pid, signal.SIGKILL) if hasattr(os, "killpg") else process.kill()
    process.wait()


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def main(file: str, group: str, name: str, distribution: str, value: str) -> None:
    """Load one plugin, and write its status to a file."""
    wanted = (group, name, distribution, value)
    for plugin in everything():
        if (plugin.entry.group, plugin.name, plugin.distribution, plugin.entry.value) == wanted:
            text = json.dumps(status_of(plugin).data())
            Path(file).write_text(text, encoding="utf-8")
            break
    sys.stdout.flush()
    os._exit(0)  # threads and exit handlers of the plugin may never end


if __name__ == "__main__":
    main(*sys.argv[1:])
