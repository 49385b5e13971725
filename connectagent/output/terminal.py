"""A terminal, or a file in its place, for text of users, models and tools.

Nothing is read as markup, and a character that a terminal would obey is shown as an escape. The first line loads rich.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import re
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, TextIO

from connectagent.errors import libraries
from connectagent.output import masking
from connectagent.output.rows import ASCII, UNICODE, Glyphs, Row
from connectagent.output.text import visible

if TYPE_CHECKING:
    import rich.console
    from rich.text import Text

# xterm itself, GNU screen and the console of Linux cut lines that no longer fit; other terminals break them.
_BREAKS_LINES = not (os.environ.get("TERM") == "linux" or "XTERM_VERSION" in os.environ or "STY" in os.environ)
_TOKENS = re.compile(r"\n|[^\S\n]+|\S+")
_CODES = re.compile(r"\x1b\[[\d;]*m")
_TRAILING = re.compile(rf" (?: |{_CODES.pattern})*$", re.MULTILINE)  # rich fills the cells of its tables


@dataclass(slots=True)
class _Line:
    """A text that is arriving: where, whose, and how many cells of its last line are taken."""

    file: TextIO
    owner: object
    column: int


def is_gone(error: BaseException) -> bool:
    """Whether an error says that nobody reads a pipe any more; on Windows such a write is an invalid argument."""
    windows = os.name == "nt" and isinstance(error, OSError) and error.errno == errno.EINVAL and error.filename is None
    return windows or isinstance(error, BrokenPipeError)


class Terminal:
    """Shows lines. It drops what it cannot write: a terminal that went away breaks nothing.

    Args:
        file: where to write; None for `sys.stderr`, as it is at each line.
        width: cells in a line; None for the terminal's own, 80 where there is none.

    Attributes:
        is_gone: whether nobody reads what is written any more, as behind `| head -1`.
    """

    _lock: ClassVar[threading.RLock] = threading.RLock()  # one for all: agents share the terminal
    _arriving: ClassVar[_Line | None] = None

    def __init__(self, file: TextIO | None = None, width: int | None = None) -> None:
        self._file = file
        self._width = width
        self.is_gone = False

    @property
    def file(self) -> TextIO | None:
        """Where lines go; None in a process that has no stderr."""
        return sys.stderr if self._file is None else self._file

    @property
    def width(self) -> int:
        """Cells in a line."""
        given = str(self._width or os.environ.get("COLUMNS") or "")
        if given.isdecimal() and int(given):
            return max(20, int(given))
        columns = 0
        if self.interactive:
            with suppress(OSError, ValueError, AttributeError):
                columns = os.get_terminal_size(self.file.fileno()).columns  # type: ignore[union-attr]
        return max(20, columns or 80)

    @property
    def height(self) -> int:
        """Lines on the screen."""
        with suppress(OSError, ValueError, AttributeError):
            return os.get_terminal_size(self.file.fileno()).lines or 24  # type: ignore[union-attr]
        return 24

    @property
    def interactive(self) -> bool:
        """Whether somebody sits in front of it."""
        try:
            return self.file is not None and self.file.isatty()
        except (ValueError, AttributeError):
            return False

    @property
    def glyphs(self) -> Glyphs:
        """The symbols that its encoding can show."""
        return UNICODE if self._encoding == "utf-8" else ASCII

    @property
    def _encoding(self) -> str:
        return _codec(getattr(self.file, "encoding", None) or "utf-8")

    def text(self, value: object, limit: int = 400) -> str:
        """A value as one line of text without secrets, which this terminal can show and does not obey."""
        text = masking.current().text(value if isinstance(value, str) else visible(value, sys.maxsize))
        return self._encodable(visible(text, limit))

    def _encodable(self, text: str) -> str:
        return text.encode(self._encoding, "backslashreplace").decode(self._encoding)

    def show(self, things: Iterable[Any], owner: object = None) -> None:
        """Print rows, other rich renderables, or pieces of text, as whole lines.

        Args:
            things: what to print; text is written as it is, so it must be harmless to a terminal.
            owner: whose lines they are; they end the text that is arriving from the same one.
        """
        file = self.file
        if file is None:
            return
        with Terminal._lock:
            text = self.drawn(things)  # loads rich; a fork meanwhile could never load it
            line = Terminal._arriving
            start = ""
            if line is not None and line.file is file:
                start = "\n" if line.column else ""
                line.column = 0
                if line.owner is owner:
                    Terminal._arriving = None
            self._write(file, start + text)

    def drawn(self, things: Iterable[Any]) -> str:
        """Rows, other rich renderables or pieces of text as text for this terminal, each line with its end."""
        width = self.width
        shown = []
        styled = self.is_styled
        console = _rich(styled, self._encoding)
        for thing in things:
            if isinstance(thing, str):
                shown.append(thing)
                continue
            lines = self._laid(thing, min(width, 100)) if isinstance(thing, Row) else [thing]
            if isinstance(thing, Row) and not styled:  # what Rich would print, in a tenth of the time
                shown += [f"{line.plain.rstrip(' ')}\n" for line in lines]
                continue
            with console.capture() as capture:
                for line in lines:
                    console.print(line, width=width, soft_wrap=isinstance(thing, Row))
            shown.append(_TRAILING.sub(lambda found: found[0].replace(" ", ""), capture.get()))
        return self._encodable("".join(shown))

    @property
    def is_styled(self) -> bool:
        """Whether it shows styles: NO_COLOR and FORCE_COLOR decide, as in other programs."""
        if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
            return False
        return self.interactive or os.environ.get("FORCE_COLOR", "0") not in ("", "0")

    def stream(self, owner: object, text: str, indent: int = 0, *, force: bool = False) -> bool:
        """Print a piece of arriving text. Returns False and prints nothing while the text of another owner arrives.

        A line breaks before the word that does not fit, where the pieces show where words begin.
        """
        file = self.file
        if file is None:
            return True
        lines = text.replace("\r", "").replace("\t", "    ").split("\n")
        text = "\n".join(self._encodable(visible(one, len(one))) for one in lines)
        with Terminal._lock:
            line = Terminal._arriving
            if line is not None and line.file is file and line.owner is not owner:
                if not force:
                    return False
                self.end(line.owner)
                line = None
            column = line.column if line is not None and line.file is file else 0
            out, column = _wrapped(text, column, indent, self.width)
            Terminal._arriving = _Line(file, owner, column)
            self._write(file, out)
        return True

    def end(self, owner: object, *, typed: bool = False) -> None:
        """End the text that arrived; `typed`: the user has ended its line by an answer."""
        with Terminal._lock:
            line = Terminal._arriving
            if line is not None and line.owner is owner:
                line.column = 0 if typed else line.column
                self.show((), owner)

    def _write(self, file: TextIO, text: str) -> None:
        try:
            file.write(text)
            file.flush()
        except (OSError, ValueError) as error:
            if not is_gone(error):  # a full disk, a file that was closed here
                return
            # What stays in the buffer would make Python exit with 120.
            self.is_gone = True
            with suppress(OSError, ValueError, AttributeError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, file.fileno())
                os.close(nowhere)

    def _laid(self, row: Row, width: int) -> list[Text]:
        """A row as lines: what is on the left gives way to what is on the right, which stays whole."""
        from rich.cells import cell_len
        from rich.text import Text

        pad = " " * min(row.indent, width // 2)
        if row.wrap:
            text = "".join(self.text(part, sys.maxsize) for part, _ in row.parts)
            lines = _wrapped(text, 0, len(pad), width)[0].split("\n")
            return [Text(line, row.parts[0][1]) for line in lines]
        right = self.text(row.right)
        room = width - len(pad) - (cell_len(right) + 2 if right else 0)
        below = room < 12 or (row.stack and sum(cell_len(self.text(part)) for part, _ in row.parts) > room)
        left = Text(pad)
        room = width - len(pad) if below else room
        for part, style in row.parts:
            clipped = clip(self.text(part), room, self.glyphs.more)
            left.append(clipped, style)
            room -= cell_len(clipped)
        if not right:
            return [left]
        if below:
            return [left, Text(pad + clip(right, width - len(pad), self.glyphs.more), "dim")]
        return [left.append(" " * (room + 2) + right, "dim")]


if hasattr(os, "register_at_fork"):  # a fork has no thread that would release the lock, nor that of the file below it
    _LOCK = Terminal._lock
    os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


def clip(text: str, cells: int, more: str) -> str:
    """Text of at most so many cells; what is left out is marked."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= cells:
        return text
    if cells <= len(more):
        return ""
    return set_cell_size(text, cells - len(more)).rstrip() + more


def rows_taken(line: str, width: int) -> int:
    """How many rows of a terminal a drawn line takes: a terminal that was made narrower since breaks it."""
    from rich.cells import chop_cells

    return len(chop_cells(_CODES.sub("", line), width)) or 1 if _BREAKS_LINES else 1


def _wrapped(text: str, column: int, indent: int, width: int) -> tuple[str, int]:
    """Text broken into lines, from a column on, and the column after it."""
    from rich.cells import cell_len, chop_cells

    parts: list[str] = []
    for token in _TOKENS.findall(text):
        if token == "\n":
            parts.append(token)
            column = 0
            continue
        if column > indent and column + cell_len(token) > width:
            if parts and parts[-1].isspace() and parts[-1] != "\n":
                parts.pop()
            parts.append("\n")
            column = 0
            if token.isspace():
                continue
        if column == 0:
            parts.append(" " * indent)
            column = indent
        chunks = chop_cells(token, max(2, width - indent)) if cell_len(token) > width - column else [token]
        parts.append(("\n" + " " * indent).join(chunks))
        column = cell_len(chunks[-1]) + (column if len(chunks) == 1 else indent)
    return "".join(parts), column


@lru_cache(maxsize=8)
def _codec(name: str) -> str:
    try:
        return codecs.lookup(name).name
    except LookupError:
        return "ascii"


class _Encoded(io.StringIO):
    """Text for a file with this encoding: rich draws its trees in ASCII where the file cannot have other lines."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding


@lru_cache(maxsize=4)
def _rich(colour: bool, encoding: str) -> rich.console.Console:
    """What turns styles into codes; without colour there are none at all, neither bold nor dim."""
    with libraries():
        from rich.console import Console as RichConsole

    return RichConsole(
        file=_Encoded(encoding),
        force_terminal=colour,
        force_jupyter=False,
        color_system="auto" if colour else None,
        legacy_windows=False,
        markup=False,
        emoji=False,
        highlight=False,
    )
