"""The command line: `connectagent`.

Imports are lazy: `--version` loads no click, `--help` no SDK.
"""

from __future__ import annotations

import sys

from connectagent import __version__


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return the exit code: 0, 1 (failed), 2 (usage), 75 (paused), 130 (Ctrl-C)."""
    given = sys.argv[1:] if arguments is None else arguments
    if given in (["--version"], ["-V"]):
        print(f"connectagent {__version__}")
        return 0
    try:
        from connectagent.cli.group import invoke
    except ImportError as error:
        from connectagent.errors import library_problem

        print(f"error: {library_problem(error) or error}", file=sys.stderr)
        return 1
    from connectagent.settings import overrides

    before = dict(overrides)
    overrides["program"] = None  # the command itself is no program of the project
    try:
        return invoke(given)
    finally:
        overrides.clear()
        overrides.update(before)
