"""Parses lines of a record: JSON and a little more, which YAML 1.1 reads as the same values.

A record may come from a stranger. Only the YAML that records are written in is read: no anchors, aliases, tags,
merges, or texts over several lines. Depth and number of values are checked before a line is parsed.
"""

from __future__ import annotations

import datetime
import json
import re
from typing import Any

from connectagent.records.yaml_lines import MAX_DEPTH

MAX_VALUES = 3_000_000
"""How many values, including those in containers, a record may have to be read at once."""

_FEW = 200  # up to so many possible values, strings are counted as if they were data
# What JSON may contain raw and YAML 1.1 refuses, or takes for the end of a line.
_DOUBTFUL = re.compile("[^ -~\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_SURROGATE = re.compile(r"(?<!\\)(?:\\\\)*\\u[dD][89a-fA-F]")
_EXPONENT = re.compile(r"-?\d+\.\d+[eE][-+]\d+", re.ASCII)  # of a float that is one in YAML 1.1 too
_STRING = r'"(?:[^"\\]++|\\.)*+"'
_LONG_KEY = rf"(?:(?<=[{{,])|(?<=[{{,] ))\? (?={_STRING}\s*:)"
_YAML = re.compile(rf"{_STRING}|(?<=[\[ ])(-?)\.inf|(?<=[\[ ])\.nan|{_LONG_KEY}|NaN|Infinity")
_PAIR = re.compile(r"([a-z_]\w*):(?: (.+))?", re.ASCII)
_BARE = re.compile(r"[a-z_][\w./-]*", re.IGNORECASE | re.ASCII)
_NOT_TEXT = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))
_CONTROLS = bytes((*range(32), 127))
_WORDS = {"null": None, "true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)


def text_of(line: bytes) -> str:
    """A line without its end, as text.

    Raises:
        ValueError: it is not UTF-8, or has characters that YAML reads differently.
    """
    data = line.removesuffix(b"\n")
    if data.isascii() and len(data.translate(None, _CONTROLS)) == len(data):  # fast, and nearly every line
        return data.decode("ascii")
    return checked(data.decode("utf-8"))


def checked(text: str) -> str:
    """A text that has no characters that YAML reads differently.

    Raises:
        ValueError: it has one.
    """
    if not text.isprintable():
        found = _DOUBTFUL.search(text)
        if found is not None:
            raise ValueError(f"holds U+{ord(found[0]):04X}, which is written as an escape")
    return text


def entry_of(line: str) -> dict[str, Any]:
    """The trace entry of a line `  - {...}`.

    Raises:
        ValueError: it is no such line.
    """
    value = value_of(line[4:])
    if not isinstance(value, dict) or not line.endswith("}"):
        raise ValueError("is not an entry of a trace")
    return value


def pair_of(text: str) -> tuple[str, Any]:
    """The key and the value of a line `key: value`.

    Raises:
        ValueError: it is no such line.
    """
    found = _PAIR.fullmatch(text)
    if found is None or found[2] is None or found[1] in _NOT_TEXT:
        raise ValueError("is not a key with a value")
    return found[1], value_of(found[2])


def value_of(text: str) -> Any:
    """A value: JSON, a time, or a word that needs no quotes.

    Raises:
        ValueError: it is no value, or is too deep or too large.
    """
    if not text:
        raise ValueError("has no value")
    if text[0] in '{["':
        return _json(text)
    if text in _WORDS:
        return _WORDS[text]
    if _BARE.fullmatch(text) and text.lower() not in _NOT_TEXT:
        return text
    return datetime.datetime.fromisoformat(text) if _TIME.fullmatch(text) else _json(text)


def count_values(text: str) -> int:
    """How many values a line holds, or a little more."""
    if not text.startswith("  - ") and text.partition(": ")[2][:1] not in "[{":  # `  messages: "..."`
        return 1
    found = _count(text)
    return found if found <= _FEW else _count(_outside(text))


def _count(text: str) -> int:
    return 1 + text.count(",") + text.count("[") + 3 * text.count("{")  # a dict takes more room


def _json(text: str) -> Any:
    if "\\u" in text and _SURROGATE.search(text):
        raise ValueError("holds half a character, which YAML does not join")
    if text[0] != '"' and text.count("{") + text.count("[") > MAX_DEPTH:  # messages are one text, with many in it
        outside = _outside(text)
        if _is_deep(outside) or _count(outside) > MAX_VALUES:
            raise ValueError(f"is deeper than {MAX_DEPTH} levels, or holds over {MAX_VALUES} values")
    try:
        return _decoder.decode(text)
    except json.JSONDecodeError:
        return _yaml_decoder.decode(_YAML.sub(_as_json, text))


def _as_json(match: re.Match[str]) -> str:
    """The JSON of what is written as YAML: floats that are not finite, and the `?` before long keys."""
    text = match[0]
    if text in ("NaN", "Infinity"):
        raise ValueError("holds a number that is text to YAML")
    if text[0] == '"':
        return text
    if text[0] == "?":
        return ""
    return "NaN" if text == ".nan" else f"{match[1]}Infinity"


def _outside(text: str) -> str:
    """A line without its quoted strings."""
    return "".join(text.replace("\\\\", "").replace('\\"', "").split('"')[::2])


def _is_deep(outside: str) -> bool:
    depth = 0
    for found in re.finditer(r"[\[{]+|[\]}]+", outside):
        run = found[0]
        depth += len(run) if run[0] in "[{" else -len(run)
        if depth > MAX_DEPTH:
            return True
    return False


def _float(text: str) -> float | str:
    """A number; YAML 1.1 takes one like `1e5` for text."""
    return text if ("e" in text or "E" in text) and not _EXPONENT.fullmatch(text) else float(text)


_decoder = json.JSONDecoder(parse_float=_float, parse_constant=str)
_yaml_decoder = json.JSONDecoder(parse_float=_float)
