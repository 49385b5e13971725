"""Follows a plugin's code line by line: presses Ctrl-C at one of them, and sees the rejections that it raises."""

from __future__ import annotations

import ast
import functools
import linecache
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from connectagent import ToolRejected


class Lines:
    """Follows the lines of some files as they run, and presses Ctrl-C at one of them.

    Attributes:
        seen: file and line of each line, in the order in which they ran.
        rejected: each `ToolRejected` that was raised in these files, with file and line.
    """

    def __init__(self, files: set[str], at: int = 0, press: Callable[[], None] | None = None) -> None:
        self.files, self.at, self.press = files, at, press
        self.seen: list[tuple[str, int]] = []
        self.rejected: dict[int, tuple[BaseException, str, int]] = {}
        self.pressed = False

    def __enter__(self) -> Lines:
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in self.files:
            return None
        if event == "exception" and isinstance(argument[1], ToolRejected):
            self.rejected.setdefault(id(argument[1]), (argument[1], frame.f_code.co_filename, frame.f_lineno))
        if event == "line" and frame.f_lineno not in _safe_lines(frame.f_code.co_filename):
            self.seen.append((frame.f_code.co_filename, frame.f_lineno))
            if len(self.seen) == self.at and self.press is not None:
                self.pressed = True
                self.press()
                raise KeyboardInterrupt
        return self._trace


@functools.cache
def _safe_lines(file: str) -> frozenset[int]:
    """The lines before which Python looks for no signals: `try:`, the first of `finally:`, and the heads of `with`,
    which are passed again on leaving. A Ctrl-C there, which no user can press, would leave a lock locked for ever."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return frozenset()
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.With):
            lines.update(range(node.lineno, max(node.lineno + 1, node.body[0].lineno)))
        elif isinstance(node, ast.Try):
            lines.update([node.lineno, *(statement.lineno for statement in node.finalbody[:1])])
    return frozenset(lines)
