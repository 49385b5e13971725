"""Prints a tree node by node. Rich lays out a tree as a whole, and takes seconds and copies for each megabyte."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from connectagent.output.rows import ASCII
from connectagent.output.terminal import Terminal
from connectagent.output.text import clean, visible

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions

_LEAST = 8  # cells of a label's line
_WORD = re.compile(r"\s*\S+\s*")
_AT_ONCE = 500  # lines that are written at once
_LONG = 20_000  # characters of a label that is not wrapped
_PIECE = 200_000  # characters of a long label that are written at once


class Node(NamedTuple):
    """A node of a tree.

    Args:
        parts: its label, as texts with their styles.
        children: the nodes below it, which are made when it has been printed.
        is_whole: whether the label keeps its line breaks where it has no other.
    """

    parts: tuple[tuple[str, str], ...]
    children: Iterable[Node] = ()
    is_whole: bool = False


def show_tree(root: Node, screen: Terminal) -> None:
    """Print a tree; lines of a label stay lines, other control characters are shown as escapes."""
    fork, last, down = ("+-- ", "`-- ", "|   ") if screen.glyphs is ASCII else ("├── ", "└── ", "│   ")

    def below(children: Iterable[Node], before: str) -> Iterator[Any]:
        nodes = iter(children)
        node = next(nodes, None)
        while node is not None:
            following = next(nodes, None)
            ahead = before + ("    " if following is None else down)
            yield from _laid(node, before + (last if following is None else fork), ahead, screen)
            yield from below(node.children, ahead)
            node = following

    screen.show(_laid(root, "", "", screen))
    lines = below(root.children, "")
    while some := list(islice(_up_to_a_piece(lines), _AT_ONCE)):
        screen.show(some)


def _up_to_a_piece(lines: Iterator[Any]) -> Iterator[Any]:
    length = 0
    while length < _PIECE and (line := next(lines, None)) is not None:
        yield line
        length += len(line) if isinstance(line, str) else 0


def _laid(node: Node, first: str, ahead: str, screen: Terminal) -> Iterator[Any]:
    """A node as `Terminal.show` takes it: pieces of text where it is not wrapped, else something for Rich."""
    length = sum(len(text) for text, _ in node.parts)
    if length > _LONG:
        yield first
        for text, _ in node.parts:
            for at in range(0, len(text), _PIECE):
                yield clean(text[at : at + _PIECE]).replace("\n", f"\n{ahead}")
        yield "\n"
        return
    parts = [(_harmless(text, node.is_whole), style) for text, style in node.parts]
    label, room = "".join([text for text, _ in parts]), screen.width - len(first)
    if screen.is_styled or room < _LEAST or not label.isascii() or not label.replace("\n", "").isprintable():
        yield _Label(parts, first, ahead)
        return
    if len(label) <= room and "\n" not in label:
        yield f"{first}{label}\n"
        return
    for line in label.split("\n"):
        for start, end in _lines(line, room):
            yield f"{first}{line[start:end]}".rstrip() + "\n"
            first = ahead


def _lines(text: str, width: int) -> Iterator[tuple[int, int]]:
    """Where the lines of an ASCII text begin and end when it is wrapped as Rich wraps it, in a fraction of the time."""
    line, start = _line_of(width), 0
    while len(text) - start > width:
        found = line.match(text, start)
        if found is None:  # a word that is longer than a line
            word = _WORD.match(text, start)
            if word is None:  # nothing but space
                break
            word_end = word.end()
            while word_end - start > width:
                yield start, start + width
                start += width
            found = line.match(text, start)
            stop = max(word_end, found.end() if found else 0)
        else:
            stop = found.end()
        yield start, stop
        start = stop
    if start < len(text) or not text:
        yield start, len(text)


@cache
def _line_of(width: int) -> re.Pattern[str]:
    """The words that fit into a line, and the space behind them."""
    return re.compile(rf".{{0,{width - 1}}}\S(?!\S)\s*")


def _harmless(text: str, is_whole: bool) -> str:
    return clean(text) if is_whole or "\n" in text else visible(text, max(400, len(text)))


class _Label(NamedTuple):
    """The label of a node, for Rich: wrapped beside the lines of the tree."""

    parts: list[tuple[str, str]]
    first: str
    ahead: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        from rich.text import Text

        before = self.first
        for line in Text.assemble(*self.parts).wrap(console, max(_LEAST, options.max_width - len(before))):
            yield Text.assemble((before, "dim"), line)
            before = self.ahead
