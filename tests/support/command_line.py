"""Commands of `connectagent` in this process, with what they print."""

from __future__ import annotations

import contextlib
import io
from typing import NamedTuple

from connectagent.cli import main


class Ran(NamedTuple):
    """A command that is over; `output` has what it wrote on both streams, in order."""

    exit_code: int
    output: str


def run_command(*arguments: str) -> Ran:
    """Run `connectagent ARGUMENTS` as its console script does."""
    written = io.StringIO()
    with contextlib.redirect_stdout(written), contextlib.redirect_stderr(written):
        code = main(list(arguments))
    return Ran(code, written.getvalue())
