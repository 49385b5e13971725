"""What changed in a text, word by word."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher

SAME = "="
REMOVED = "-"
ADDED = "+"
Piece = tuple[str, str]
"""`=`, `-` or `+`, and the text that is the same, was removed or added."""

_WORDS = re.compile(r"\w+|\s+|[^\w\s]")
_LINES = re.compile(r"[^\n]*\n|[^\n]+")
_MOST = 1_000_000  # comparisons of words, or of lines


def word_diff(before: str, after: str) -> list[Piece]:
    """The pieces of both texts in order.

    Without the added ones they are `before`, without the removed ones `after`. Very long texts are compared by
    lines, or as a whole.
    """
    if before == after:
        return [(SAME, before)] if before else []
    pieces = _diff(_WORDS.findall(before), _WORDS.findall(after))
    if pieces is None:
        pieces = []
        for kind, old, new in _changes(_LINES.findall(before), _LINES.findall(after)):
            inner = [(SAME, old)] if kind == "equal" else _diff(_WORDS.findall(old), _WORDS.findall(new))
            pieces += inner if inner is not None else [(REMOVED, old), (ADDED, new)]
    return _joined(pieces)


def _diff(old: list[str], new: list[str]) -> list[Piece] | None:
    """The pieces of two lists of words; None where comparing them would take too long."""
    first = 0
    while first < min(len(old), len(new)) and old[first] == new[first]:
        first += 1
    last = 0
    while last < min(len(old), len(new)) - first and old[-1 - last] == new[-1 - last]:
        last += 1
    middle = old[first : len(old) - last]
    other = new[first : len(new) - last]
    if len(middle) * len(other) > _MOST:
        return None
    pieces = [(SAME, "".join(old[:first]))]
    for kind, was, now in _changes(middle, other):
        pieces += [(SAME, was)] if kind == "equal" else [(REMOVED, was), (ADDED, now)]
    return [*pieces, (SAME, "".join(old[len(old) - last :]))]


def _changes(old: Sequence[str], new: Sequence[str]) -> list[tuple[str, str, str]]:
    if len(old) * len(new) > 40 * _MOST:
        return [("replace", "".join(old), "".join(new))]
    found = SequenceMatcher(None, old, new, autojunk=len(old) * len(new) > _MOST).get_opcodes()
    return [(kind, "".join(old[a:b]), "".join(new[c:d])) for kind, a, b, c, d in found]


def _joined(pieces: list[Piece]) -> list[Piece]:
    """The pieces with changes that only blanks separate as one, removed words before added ones."""
    joined: list[Piece] = []
    gone = come = ""
    for at, (kind, text) in enumerate(pieces):
        goes_on = any(next_kind != SAME for next_kind, _ in pieces[at + 1 : at + 2])
        between = (gone or come) and text.isspace() and goes_on
        if kind == SAME and text and not between:
            joined += [(REMOVED, gone), (ADDED, come), (SAME, text)]
            gone = come = ""
        else:
            gone += text if kind != ADDED else ""
            come += text if kind != REMOVED else ""
    return [piece for piece in [*joined, (REMOVED, gone), (ADDED, come)] if piece[1]]
