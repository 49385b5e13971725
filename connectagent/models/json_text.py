"""JSON in the text of a model: models put it into a code fence, behind their thoughts, or a sentence before it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

_DECODER = json.JSONDecoder()
_BEGIN = re.compile(r'\{(?=\s*["}])')  # of an object: other braces are prose
_NEXT = re.compile(r'["{}\[\]]')
_STRING_END = re.compile(r'(?:[^"\\]|\\.)*"', re.DOTALL)
_THOUGHT = re.compile(r"<(/?)(?:think|thinking|thought|reasoning)>", re.IGNORECASE)


def objects_in(text: str) -> list[tuple[int, int]]:
    """Where the JSON objects of a text begin and end, in order, without those of its thoughts.

    What is inside an object is not one of them, even if the object around it is no valid JSON.
    """
    found = list(_objects(text))
    thought = _end_of_thoughts(text, found)
    return [] if thought is None else [(begin, end) for begin, end in found if begin >= thought]


def _end_of_thoughts(text: str, objects: list[tuple[int, int]]) -> int | None:
    """Where the thoughts of a text end; None if they do not. A tag inside an object is text."""
    end = 0
    is_open = False
    for tag in _THOUGHT.finditer(text):
        if not any(begin <= tag.start() < behind for begin, behind in objects):
            is_open = not tag[1]
            end = tag.end()
    return None if is_open else end


def _objects(text: str) -> Iterator[tuple[int, int]]:
    at = 0
    while (begin := _BEGIN.search(text, at)) is not None:
        try:
            _, at = _DECODER.raw_decode(text, begin.start())
        except (ValueError, RecursionError):
            end = _end_of(text, begin.start())
            if end is None:  # it was cut: what stands in it is a part of it
                return
            at = end
        else:
            yield begin.start(), at


def _end_of(text: str, at: int) -> int | None:
    """The place behind the bracket that closes the one at a place; None if there is none."""
    depth = 0
    while (found := _NEXT.search(text, at)) is not None:
        at = found.end()
        if found[0] == '"':
            end = _STRING_END.match(text, at)
            if end is None:
                return None
            at = end.end()
            continue
        depth += 1 if found[0] in "{[" else -1
        if depth == 0:
            return at
    return None


def json_in(text: str) -> list[str]:
    """The JSON objects of a text, the last first.

    If it has none: what may have been meant for one, so that the reader can say what is wrong with it, else the text.
    """
    found = [text[begin:end] for begin, end in reversed(objects_in(text))]
    if found:
        return found
    thought = _end_of_thoughts(text, [])
    meant = None if thought is None else _BEGIN.search(text, thought)
    return [text if meant is None else text[meant.start() :]]


def json_alone(text: str) -> str:
    """A text that is a JSON object and nothing else, out of its code fence if it stands in one; any other as it is."""
    text = text.strip()
    fenced = re.fullmatch(r"```(?:json)?\s*(\{.*\})\s*```", text, re.DOTALL)
    return fenced[1] if fenced else text


def repeated_key(text: str) -> str | None:
    """A key that stands twice in one object of a JSON text, or None; readers differ in which of the two they take."""
    found: list[str] = []

    def note(pairs: list[tuple[str, object]]) -> None:
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                found.append(key)
            seen.add(key)

    try:
        json.loads(text, object_pairs_hook=note)
    except (ValueError, RecursionError):
        return None  # whoever reads it says what is wrong
    return found[0] if found else None
