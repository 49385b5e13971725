"""Ctrl-C at a line of the package, raised in this process where a tracer sees it."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import connectagent

PACKAGE = str(Path(connectagent.__file__).parent)
WATCHED = tuple(
    f"{PACKAGE}/{name}.py"
    for name in [
        "agents/agent",
        "session/snapshot",
        "loop/tool_call",
        "session/conversation",
        "hooks/executor",
        "hooks/host",
        "session/messages",
    ]
)


class CtrlC:
    """Raises KeyboardInterrupt at the `at`-th line that runs inside the package."""

    def __init__(self, at: int, watched: tuple[str, ...] = WATCHED) -> None:
        self.at, self.where, self.watched = at, "", watched
        self.lines: list[str] = []

    def __enter__(self) -> CtrlC:
        self.before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self.before)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(self.watched):
            return None
        if event == "line" and _may_be_interrupted(frame):
            self.lines.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
            if len(self.lines) == self.at:
                self.where = self.lines[-1]
                raise KeyboardInterrupt
        return self._trace


def _may_be_interrupted(frame: FrameType) -> bool:
    """Not at `with lock` and `try`: CPython looks for signals after calls and at jumps, which these are not."""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    return not line.startswith(("with self._turning:", "try:"))
