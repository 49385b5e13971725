"""Masking a text that arrives in pieces."""

from __future__ import annotations

import os

from connectagent.masking import Mask, current
from connectagent.masking.shapes import open_at

_CONTEXT = 300  # characters before the next piece that decide what it means: a field's name, a key's beginning
_MOST = 600


class Stream:
    """A text that arrives in pieces, without its secrets: only what may be the beginning of one waits."""

    def __init__(self) -> None:
        self._raw = ""  # what arrived last: shown or not
        self._shown = ""  # what was shown of that

    def feed(self, piece: str) -> str:
        """Take a piece; what may be shown now."""
        mask = current()
        if not mask.active:
            return self.flush() + piece
        self._raw += piece
        cut = min(open_at(mask.without_values(self._raw)), _begins(mask, self._raw))
        masked = mask.piece(self._raw[:cut])
        if cut < len(self._raw):  # the end of a secret may be the beginning of another one: it is not cut in two
            masked = os.path.commonprefix([masked, mask.piece(self._raw)])  # noqa: RUF071
        out = self._next(masked)
        if cut > _MOST:
            self._raw = self._raw[cut - _CONTEXT :]
            self._shown = mask.piece(self._raw[:_CONTEXT])
        return out

    def flush(self) -> str:
        """The text is whole: what is left of it."""
        out = self._next(current().piece(self._raw))
        self._raw = self._shown = ""
        return out

    def _next(self, masked: str) -> str:
        out = masked[len(self._shown) :]
        self._shown = masked if len(masked) > len(self._shown) else self._shown
        return out


def _begins(mask: Mask, text: str) -> int:
    """Where, at the end of a text, a value that is looked for may begin."""
    for index in range(max(0, len(text) - mask.longest), len(text)):
        if text[index] not in mask.begins:
            continue
        tail = text[index:]
        if any(form.startswith(tail) and len(form) > len(tail) for form in mask.forms):
            return index
    return len(text)
