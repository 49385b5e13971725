"""Markdown on a terminal while it arrives.

The block that is arriving is drawn again with each piece; a block that is complete stays as it is. So whatever stops an
answer, what is shown is readable.
"""

from __future__ import annotations

import re
import sys
import time
from typing import ClassVar

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderResult
from rich.constrain import Constrain
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement
from rich.padding import Padding
from rich.syntax import Syntax
from rich.theme import Theme

from connectagent.output.terminal import Terminal, rows_taken

MOST_CELLS = 100  # of a line: longer ones are hard to read
_CODES = re.compile(r"\x1b\[[\d;]*m")
_SHARE = 4  # drawing takes at most one part in so many of the time

# No backgrounds, and few colours: it must be readable on light and dark terminals.
_THEME = Theme(
    {
        **{f"markdown.h{level}": "bold" for level in (1, 2, 3)},
        **{f"markdown.h{level}": "italic" for level in (4, 5, 6, 7)},
        "markdown.code": "cyan",
        "markdown.block_quote": "dim",
        "markdown.hr": "dim",
        "markdown.item.bullet": "dim",
        "markdown.item.number": "dim",
        "markdown.link": "underline",
        "markdown.link_url": "dim",
        "markdown.table.border": "dim",
        "markdown.table.header": "bold",
    }
)

_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])  # HTML is shown, not dropped


class _Heading(Heading):
    """A heading at the left edge, without a frame."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _Code(CodeBlock):
    """Code in the terminal's own colours."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip()
        shown = Syntax(code, self.lexer_name, theme="ansi_dark", background_color="default", word_wrap=True)
        yield Padding(shown, (0, 0, 0, 2))


class _Markdown(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _Heading,
        "fence": _Code,
        "code_block": _Code,
    }

    def __init__(self, text: str) -> None:
        super().__init__(text, hyperlinks=False)  # the model chooses the address: it is shown
        self.parsed = _PARSER.parse(text)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with console.use_theme(_THEME):
            yield from super().__rich_console__(console, options)


def lines_of(text: str, terminal: Terminal) -> list[str]:
    """A text of Markdown as the lines that a terminal shows."""
    # One cell is left: in the last one, terminals differ about where the cursor is.
    shown = Constrain(_Markdown(text), min(MOST_CELLS, terminal.width - 1))
    lines = terminal.drawn([shown]).split("\n")
    full = [at for at, line in enumerate(lines) if _CODES.sub("", line).strip()]
    return lines[full[0] : full[-1] + 1] if full else [""]


class Arriving:
    """An answer that is drawn on standard output as it arrives. Its text must be harmless to a terminal.

    Args:
        terminal: what draws it.
    """

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._source = ""  # of the block that is arriving
        self._drawn: list[str] = []  # its lines on the terminal; the last one has not ended
        self._blocks = 0  # that are complete
        self._next = 0.0  # when to draw again
        self._late = False  # whether something has arrived that is not drawn

    def feed(self, text: str) -> None:
        """Take a piece of the answer."""
        with Terminal._lock:
            self._source += text
            self._late = True
            self.catch_up()

    def catch_up(self) -> None:
        """Draw what has arrived, unless it was drawn a moment ago; call it now and then, under the terminal's lock."""
        if self._late and time.monotonic() >= self._next:
            self._draw()

    def end(self) -> None:
        """The answer is whole, or was cut; what follows begins in a line of its own."""
        with Terminal._lock:
            self._draw()
            if self._drawn:
                self._write("\n")
            self._source, self._drawn, self._blocks = "", [], 0

    def _draw(self) -> None:
        began, self._late = time.monotonic(), False
        while (at := _second_block(self._source)) is not None:
            self._replace(lines_of(self._source[:at], self._terminal))
            self._write("\n")
            self._source, self._drawn, self._blocks = self._source[at:], [], self._blocks + 1
        if self._source.strip():
            self._replace(lines_of(self._source, self._terminal))
        now = time.monotonic()
        self._next = now + (now - began) * _SHARE

    def _replace(self, lines: list[str]) -> None:
        """Replace the shown lines of the block, in one write: it must not flicker."""
        old = self._drawn
        if not old and self._blocks:
            self._write("\n")
        same = next((at for at, pair in enumerate(zip(old, lines, strict=False)) if pair[0] != pair[1]), None)
        self._drawn = lines
        if same is None and len(lines) >= len(old):
            more = lines[len(old) :]
            self._write("\n".join(["", *more] if old and more else more))
            return
        same = len(lines) - 1 if same is None else same
        if same == len(old) - 1 == len(lines) - 1 and lines[-1].startswith(old[-1]):
            self._write(lines[-1][len(old[-1]) :])
            return
        first, rows = self._in_sight(old, same)
        self._write("\r" + (f"\x1b[{rows - 1}A" if rows > 1 else "") + "\x1b[J" + "\n".join(lines[first:]))

    def _in_sight(self, lines: list[str], first: int) -> tuple[int, int]:
        """Of drawn lines, the first one that can be drawn again, at least this one, and the rows from there on."""
        width, height = self._terminal.width, self._terminal.height
        at = len(lines) - 1
        rows = rows_taken(lines[at], width)
        while at > first and (more := rows_taken(lines[at - 1], width)) + rows < height:  # the rest has left the screen
            at, rows = at - 1, rows + more
        return at, min(rows, height)

    @staticmethod
    def _write(text: str) -> None:
        if text:
            sys.stdout.write(text)
            sys.stdout.flush()


def _second_block(text: str) -> int | None:
    """Where the second block of a text begins; None while there is only one, which more text may change."""
    if "\n" not in text:
        return None
    starts = [token.map[0] for token in _PARSER.parse(text) if token.level == 0 and token.map]
    return sum(len(line) + 1 for line in text.split("\n")[: starts[1]]) if len(starts) > 1 else None
