"""What `from connectagent import Agent` costs beside `import pluggy`, in CPU time over a Python that imports nothing.

    python benchmarks/imports.py [runs]

Prints the median of 15 runs of each, taken in turns, and the ratio. The interpreters start without `site`: what an
editable installation imports there would count as Python's own. They read compiled modules, as those of an installed
package are, though the surroundings may forbid to write them.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import pluggy

import connectagent

CODES = {"nothing": "pass", "pluggy": "import pluggy", "Agent": "from connectagent import Agent"}
HOMES = [str(Path(str(module.__file__)).parents[1]) for module in (connectagent, pluggy)]


def cpu_ms(code: str, cache: str) -> float:
    """The CPU time, of user and system, in which a new interpreter runs a line.

    Args:
        code: the line.
        cache: the folder of the compiled modules.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(HOMES), "PYTHONPYCACHEPREFIX": cache}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    process = subprocess.Popen([sys.executable, "-S", "-c", code], env=environment, cwd=cache)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{code!r} failed")
    return (used.ru_utime + used.ru_stime) * 1000


def medians(runs: int) -> dict[str, float]:
    """Medians in milliseconds. The first round, which compiles, is not counted."""
    with tempfile.TemporaryDirectory() as cache:
        rounds = [{name: cpu_ms(code, cache) for name, code in CODES.items()} for _ in range(runs + 1)][1:]
    return {name: statistics.median(times[name] for times in rounds) for name in CODES}


def main() -> None:
    times = medians(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
    for name, time_ms in times.items():
        print(f"{name:8} {time_ms:6.1f} ms")
    ratio = (times["Agent"] - times["nothing"]) / (times["pluggy"] - times["nothing"])
    print(f"Agent costs {ratio:.1f} times what pluggy costs")


if __name__ == "__main__":
    main()
