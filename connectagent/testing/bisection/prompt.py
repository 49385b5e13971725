"""The texts of a request, and the request without some of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from connectagent.data import Message
from connectagent.session.snapshot import clone

LEFT_OUT = "(left out)"
_LINES, _WORDS = re.compile(r"[^\n]*\n|[^\n]+"), re.compile(r"\S+\s*|\s+")


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a message's text.

    Attributes:
        message: the number of the message, from 0.
        part: the number of the part of its content; None where that is one text.
        start, end: where in the text.
    """

    message: int
    part: int | None
    start: int
    end: int

    def text(self, messages: list[Message]) -> str:
        """The text of the piece."""
        return _text(messages[self.message], self.part)[self.start : self.end]


def whole_texts(messages: list[Message]) -> list[Piece]:
    """The texts of all messages, the newest first."""
    found = []
    for number, message in enumerate(messages):
        content = message.get("content")
        parts: list[int | None] = list(range(len(content))) if isinstance(content, list) else [None]
        lengths = [(part, len(_text(message, part))) for part in parts]
        found += [Piece(number, part, 0, length) for part, length in lengths if length]
    return found[::-1]


def lines_of(pieces: list[Piece], messages: list[Message]) -> list[Piece]:
    """The lines of some texts, the last first: what was added stands behind what was there."""
    return _split(pieces, messages, _LINES)


def words_of(pieces: list[Piece], messages: list[Message]) -> list[Piece]:
    """The words of some lines, the last first."""
    return _split(pieces, messages, _WORDS)


def line_around(pieces: list[Piece], messages: list[Message]) -> str:
    """The line in which the first of some pieces stands."""
    first = min(pieces, key=_place)
    text = _text(messages[first.message], first.part)
    end = text.find("\n", first.start)
    return text[text.rfind("\n", 0, first.start) + 1 : end if end >= 0 else None].strip()


def joined(pieces: list[Piece], messages: list[Message]) -> str:
    """Pieces as a text to show, in the order of the conversation; `...` stands where something is between them."""
    ordered = sorted(pieces, key=_place)
    text = ordered[0].text(messages) if ordered else ""
    for before, piece in pairwise(ordered):
        next_to = (before.message, before.part, before.end) == (piece.message, piece.part, piece.start)
        text = text + piece.text(messages) if next_to else f"{text.rstrip()} ... {piece.text(messages)}"
    return text.strip()


def without(messages: list[Message], pieces: list[Piece]) -> list[Message]:
    """The messages without some pieces; the conversation stays one that a provider takes."""
    made: list[Any] = clone(messages)
    for piece in sorted(pieces, key=_place, reverse=True):
        text = _text(made[piece.message], piece.part)
        _put(made[piece.message], piece.part, text[: piece.start] + text[piece.end :])
    empty = {piece.message for piece in pieces if _is_empty(made[piece.message])}
    kept: list[Any] = []
    for number, message in enumerate(made):
        if number not in empty:
            kept.append(message)
        elif message.get("tool_calls"):
            kept.append({**message, "content": None})
        elif message.get("role") == "tool":
            kept.append({**message, "content": LEFT_OUT})
    if not kept or kept[-1].get("role") not in ("user", "tool"):  # there is nothing to answer
        kept.append({"role": "user", "content": LEFT_OUT})
    return kept


def _split(pieces: list[Piece], messages: list[Message], into: re.Pattern[str]) -> list[Piece]:
    found = []
    for piece in pieces:
        at = piece.start
        for match in into.finditer(piece.text(messages)):
            found.append(Piece(piece.message, piece.part, at + match.start(), at + match.end()))
    return sorted(found, key=_place, reverse=True)


def _text(message: Any, part: int | None) -> str:
    content = message.get("content")
    if part is None:
        return content if isinstance(content, str) else ""
    item = content[part]
    return str(item.get("text") or "") if isinstance(item, dict) else item if isinstance(item, str) else ""


def _put(message: Any, part: int | None, text: str) -> None:
    if part is None:
        message["content"] = text
    elif isinstance(message["content"][part], dict):
        message["content"][part]["text"] = text
    else:
        message["content"][part] = text


def _is_empty(message: Any) -> bool:
    content = message.get("content")
    if isinstance(content, list):
        message["content"] = content = [one for one in content if not (isinstance(one, dict) and one.get("text") == "")]
    return not content or (isinstance(content, str) and not content.strip())


def _place(piece: Piece) -> tuple[int, int, int]:
    return piece.message, piece.part or 0, piece.start
