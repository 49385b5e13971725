"""The messages of a turn in a record, which are half of it: read one after the other, when they are needed."""

from __future__ import annotations

import codecs
import json
import os
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from connectagent.records.file import open_to_read
from connectagent.records.lines import checked, value_of

KEY = b'  messages: "'
"""How their line begins: it is one text, the JSON of the list."""

_LAST = b'"\n'
_PIECE = 1 << 20  # bytes that are read at once
_NEXT = re.compile(r"\s*([,\]])\s*")
_decode = json.JSONDecoder().raw_decode


class TurnMessages:
    """The messages of a turn; going through them reads the record.

    Args:
        path: the record.
        start: where their line begins.
        end: where the next line begins.
    """

    def __init__(self, path: str | os.PathLike[str], start: int, end: int) -> None:
        self._path = path
        self._start = start
        self._end = end

    def __iter__(self) -> Iterator[Any]:
        """The messages.

        Raises:
            OSError: the file cannot be read.
            ValueError: the line is not written as records are.
        """
        texts = self._texts()
        known = ""
        while len(known.rstrip()) < 2 and (more := "".join(islice(texts, 1))):
            known = f"{known}{more}".lstrip()
        if not known.startswith("["):
            raise ValueError("has no list of messages")
        behind = _NEXT.match(known, 1)
        at = 1
        while behind is None or behind[1] != "]":
            try:
                value, end = _decode(known, at)
                behind = _NEXT.match(known, end)
            except json.JSONDecodeError:
                behind = None
            if behind is not None:
                yield value
                at = behind.end()
            elif more := "".join(islice(texts, 1 + len(known) // _PIECE)):  # of a long message as much again
                known = f"{known[at:]}{more}".lstrip()
                at = 0
            else:
                raise ValueError("has a list of messages without an end")
        if behind.end() < len(known) or any(map(str.strip, texts)):
            raise ValueError("has more than a list of messages")

    def text(self) -> str:
        """Their JSON, as the record has it.

        Raises:
            OSError, ValueError: as for going through them.
        """
        return "".join(self._texts())

    def _texts(self) -> Iterator[str]:
        """The JSON of the list in pieces."""
        decoder = codecs.getincrementaldecoder("utf-8")()
        rest = ""
        with open_to_read(self._path) as file:
            file.seek(self._start + len(KEY))
            while (left := self._end - len(_LAST) - file.tell()) > 0 and (data := file.read(min(_PIECE, left))):
                try:
                    text = rest + decoder.decode(data)
                except UnicodeDecodeError as error:
                    raise ValueError("is no text in UTF-8") from error
                cut = len(text) - _unfinished(text)
                rest = text[cut:]
                if cut:
                    yield value_of(f'"{checked(text[:cut])}"')
            if rest or file.read(len(_LAST)) != _LAST:
                raise ValueError("is no text, or no whole one")


def _unfinished(text: str) -> int:
    """How many characters at the end of a JSON text are the beginning of an escape."""
    at = text.rfind("\\", max(0, len(text) - 6))
    if at < 0 or (at - len(text[: at + 1].rstrip("\\"))) % 2:  # an even number of backslashes: each pair is one
        return 0
    size = len(text) - at
    return size if size < (6 if text[at + 1 : at + 2] == "u" else 2) else 0
