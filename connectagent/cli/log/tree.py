"""Prints a tree node by node. Rich lays out a tree as a whole, and takes seconds and copies for each megabyte."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from connectagent.output.rows import ASCII
from connectagent.output.terminal import Terminal
from connectagent.output.text import clean, visible

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
    if not screen.is_styled and _fits(parts, screen.width - len(first)):
        yield f"{first}{''.join([text for text, _ in parts])}\n"
    else:
        yield _Label(parts, first, ahead)


def _fits(parts: list[tuple[str, str]], room: int) -> bool:
    return sum(len(text) for text, _ in parts) <= room and all(t.isascii() and "\n" not in t for t, _ in parts)


def _harmless(text: str, is_whole: bool) -> str:
    return clean(text) if is_whole or "\n" in text else visible(text, max(400, len(text)))


class _Label(NamedTuple):
    """The label of a node, for Rich: wrapped beside the lines of the tree."""

    parts: list[tuple[str, str]]
    first: str
    ahead: str

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.text import Text

        before = self.first
        for line in Text.assemble(*self.parts).wrap(console, max(8, options.max_width - len(before))):
            yield Text.assemble((before, "dim"), line)
            before = self.ahead
