"""Masking a text that arrives in pieces.

A stream looks for the same things in the same order as a whole text is masked: exact values, each shape, fields, the
user's patterns. Each of these passes takes what the one before it has let go, and lets go what no further text can
turn into a secret. So nothing that was shown is masked later, and all pieces together are what the whole text shows.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable

from connectagent.output.masking import Mask, current
from connectagent.output.masking.patterns import SHAPES, Shape, may_hold_shape, settled_fields

MOST = 10_000  # characters that wait: of what is longer nothing is shown (a PEM key of 8192 bits has 6400)
_CONTEXT = 300  # characters that were let go and decide what the next ones mean: a field's name, its line
_WINDOW = 1000  # characters of a line that may be one match of a user's pattern
_LINE = re.compile(r"[^\n]*")

Settle = Callable[[str, int, int, bool], tuple[list[tuple[int, int, str]], int]]
"""Takes a text, up to where it was let go, where the last mask ended, and whether nothing follows. Gives start, end and
mark of each secret behind that, and up to where nothing changes any more."""


class _Pass:
    """One thing that is looked for, in a text that arrives in pieces.

    Args:
        settle: finds it.
        goes_on: what is dropped once more than MOST characters waited; None: all may wait.
    """

    def __init__(self, settle: Settle, goes_on: re.Pattern[str] | None) -> None:
        self.settle = settle
        self.goes_on = goes_on
        self._text = ""  # what was let go last, and what waits
        self._done = 0  # up to where it was let go
        self._at = 0
        self._dropping = False

    @property
    def waits(self) -> bool:
        """Whether it holds something back."""
        return self._dropping or self._done < len(self._text)

    def skip(self, text: str) -> None:
        """Take a text in which there is nothing for it, while nothing waits."""
        self._text = (self._text + text)[-_CONTEXT:]
        self._done = len(self._text)
        self._at = 0

    def feed(self, piece: str, whole: bool = False) -> str:
        """Take a piece; what is settled now."""
        text = self._text + piece
        if self._dropping and self.goes_on:
            rest = self.goes_on.match(text, self._done)
            self._done = self._at = rest.end() if rest else self._done
            self._dropping = self._done == len(text)
        done = self._done
        parts = []
        spans, settled = self.settle(text, done, self._at, whole)
        for start, end, mark in spans:
            parts += [text[done:start], mark]
            done = self._at = end
        parts.append(text[done:settled])
        if len(text) - settled > MOST and self.goes_on:
            parts.append(f"[masked: over {MOST} characters]")
            self._dropping = True
            settled = len(text)
        cut = max(0, settled - _CONTEXT)
        self._text, self._done, self._at = text[cut:], settled - cut, max(0, self._at - cut)
        return "".join(parts)


def _search(
    search: Callable[[str, int], re.Match[str] | None],
    open_at: Callable[[str, int], int],
    mark: Callable[[re.Match[str]], str],
) -> Settle:
    """Settle by a search for the next secret, and for the place from which on more text may change what is one."""

    def settle(text: str, done: int, at: int, whole: bool) -> tuple[list[tuple[int, int, str]], int]:
        spans = []
        opened = len(text) + 1 if whole else open_at(text, done)
        found = search(text, done)
        while found and found.start() < opened:
            start, end = found.span()
            spans.append((start, end, mark(found)))
            at = end + (end == start)
            if opened < at:  # it began within this one
                opened = open_at(text, at)
            found = search(text, at)
        return spans, min(opened, len(text))

    return settle


def _values(mask: Mask) -> _Pass:
    """The pass of the values that are looked for wherever they stand."""
    forms = sorted(mask.forms)

    def open_at(text: str, at: int) -> int:
        for index in range(max(at, len(text) - mask.longest), len(text)):
            if text[index] in mask.begins:
                tail = text[index:]
                after = bisect_right(forms, tail)  # the first that is more than the tail, if one begins so
                if after < len(forms) and forms[after].startswith(tail):
                    return index
        return len(text)

    return _Pass(_search(mask.exact.search, open_at, mask.value_mark), None)


def _pattern(pattern: re.Pattern[str]) -> _Pass:
    """The pass of a user's pattern. Nobody knows beforehand what it matches: the last line waits, or its end."""

    def open_at(text: str, at: int) -> int:
        # `$` matches before a line break that ends the text: it ends a line when something follows it.
        line = text.rfind("\n", at, len(text) - 1) + 1
        opened = max(at, line, len(text) - _WINDOW)
        for found in pattern.finditer(text, at):
            if found.start() < opened and found.end() == len(text):
                return found.start()
        return opened

    return _Pass(_search(pattern.search, open_at, lambda match: "[masked]"), _LINE)


def _fields(own: tuple[str, ...]) -> _Pass:
    """The pass of the fields with secret names."""
    return _Pass(lambda text, done, at, whole: settled_fields(text, own, at, done, whole), _LINE)


_SHAPES = [Shape(label) for label in SHAPES]


class _Shapes:
    """A pass for each shape. All of them take 80 us a piece, so they run only where a shape may be."""

    def __init__(self) -> None:
        self._passes = [_Pass(_search(one.search, one.open_at, one.mark), one.goes_on) for one in _SHAPES]
        self._waits = False
        self._tail = ""  # what came last
        self._skipped = ""  # what they have not seen

    def feed(self, piece: str, whole: bool = False) -> str:
        """Take a piece; what is settled now."""
        seen = self._tail + piece
        self._tail = seen[-20:]
        if not self._waits and not may_hold_shape(seen):
            self._skipped = (self._skipped + piece)[-_CONTEXT:]
            return piece
        for step in self._passes:
            if self._skipped:
                step.skip(self._skipped)
            piece = step.feed(piece, whole)
        self._waits = any(step.waits for step in self._passes)
        self._skipped = ""
        return piece


class Stream:
    """Masks a text that arrives in pieces. Only what may begin a secret waits.

    What waits longer than 10,000 characters is masked, whatever it is, and so is what follows in the same word (in a
    private key: the same text of letters; in a field: the same line). A match of a user's pattern is seen within a
    line, and up to 1000 characters long there: with one, a text is shown line by line. A secret that is given while a
    text streams is masked from where its beginning arrives after that.
    """

    def __init__(self) -> None:
        self._mask: Mask | None = None
        self._passes: list[_Pass | _Shapes] = []

    def feed(self, piece: str) -> str:
        """Take a piece; what may be shown now."""
        mask = current()
        if not mask.active:
            return self.flush() + piece
        before = self._take(mask) if mask is not self._mask else ""
        for step in self._passes:
            piece = step.feed(piece)
            if not piece:
                break
        return before + piece

    def flush(self) -> str:
        """The text is whole: what is left of it."""
        left = ""
        for step in self._passes:
            left = step.feed(left, whole=True)
        self._mask = None
        self._passes = []
        return left

    def _take(self, mask: Mask) -> str:
        """Use another mask from now on, also for what waits. Returns what waited for patterns that are gone."""
        steps: list[_Pass | _Shapes] = [_values(mask), _Shapes(), _fields(mask.own), *map(_pattern, mask.patterns)]
        left = ""
        for step in self._passes[len(steps) :]:
            left = step.feed(left, whole=True)
        for index, (step, new) in enumerate(zip(self._passes, list(steps), strict=False)):
            if isinstance(step, _Pass) and isinstance(new, _Pass):
                step.settle = new.settle
            steps[index] = step
        self._mask = mask
        self._passes = steps
        return left
