"""The command line: `connectagent`.

Nothing is imported here before it is known to be needed: `--version` loads no click, `--help` no SDK.
"""

from __future__ import annotations

import sys

COMMANDS = {
    "demo": "connectagent.cli.demo",
    "run": "connectagent.cli.run",
    "chat": "connectagent.cli.chat",
    "hooks": "connectagent.cli.hooks",
}
"""The own commands, each with the module that holds a click command of the same name."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return the exit code: 0, 1 (failed), 2 (usage), 130 (Ctrl-C)."""
    given = sys.argv[1:] if arguments is None else arguments
    if given in (["--version"], ["-V"]):
        print(f"connectagent {version()}")
        return 0
    from connectagent.cli.group import invoke

    return invoke(given)


def version() -> str:
    """The version of the installed package; in a checkout that is not installed, the project's own."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("connectagent")
    except PackageNotFoundError:
        import tomllib
        from pathlib import Path

        try:
            project = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text("utf-8"))
            return str(project["project"]["version"])
        except (OSError, KeyError, tomllib.TOMLDecodeError):
            return "(not installed)"
