"""Values as lines of JSON that YAML 1.1 reads as the same values."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from connectagent.data import TraceEntry
from connectagent.output.text import describe
from connectagent.session.state import lasting

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MAX_DEPTH = 100  # of containers in one line: YAML's loaders recurse and would fail on the whole file
MAX_KEY = 1000  # characters, escapes included: YAML takes a longer one only after a `?`


def _fields(value: DataclassInstance) -> dict[str, Any]:
    return {name: getattr(value, name, None) for name in value.__dataclass_fields__}


_encode = json.JSONEncoder(ensure_ascii=False, check_circular=False, default=_fields).encode
_encode_exactly = json.JSONEncoder(ensure_ascii=False).encode
_quote = json.encoder.encode_basestring
# What JSON may contain raw and YAML 1.1 may not, or takes for the end of a line.
_UNSAFE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")
_BARE = re.compile(r"(?!(?:y|n|yes|no|on|off|true|false|null)\Z)[a-z_][\w./-]*\Z", re.IGNORECASE | re.ASCII)


def entry_line(entry: TraceEntry) -> str:
    """An entry of the trace as one line, without keys of the state that last for one turn."""
    delta = entry.get("delta")
    if isinstance(delta, dict):
        entry = {**entry, "delta": lasting(delta)}
    return json_line(entry)


def json_line(value: object) -> str:
    """A value as one line of JSON that YAML 1.1 reads as the same value; what is not data becomes its repr.

    Floats that are not finite, and keys of over 1,000 characters, are written as YAML.
    """
    try:
        text = _encode(value) if _is_simple(value, MAX_DEPTH) else _yaml(value, MAX_DEPTH, ())
    except Exception as error:  # another thread changes it meanwhile: the turn must go on
        kind = str(value.get("type")) if isinstance(value, dict) else ""
        text = _encode({"type": kind, "not_recorded": f"{type(error).__name__}: {describe(str, error)}"})
    return _UNSAFE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return "\ufffd" if "\ud800" <= match[0] <= "\udfff" else f"\\u{ord(match[0]):04x}"


_PLAIN = (str, bool, type(None))


def _is_simple(value: Any, depth: int) -> bool:
    """Whether the C encoder, which is ten times faster, writes it as YAML reads it."""
    kind = type(value)
    if kind in _PLAIN:
        return True
    if kind is int:
        return bool(-(1 << 63) < value < 1 << 63)
    if kind is float:
        return "." in float.__repr__(value)  # neither infinite nor an exponent without a point
    if not depth:
        return False
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str or len(key) > MAX_KEY // 6:
                return False
            if type(item) not in _PLAIN and not _is_simple(item, depth - 1):
                return False
        return True
    if kind in (list, tuple):
        return all([_is_simple(item, depth - 1) for item in value])
    return dataclasses.is_dataclass(kind) and kind.__base__ is object and _is_simple(_fields(value), depth)


def _yaml(value: object, depth: int, above: tuple[int, ...]) -> str:
    if value is None or isinstance(value, (str, int, float)):
        return _yaml_scalar(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = _fields(value)
    if not isinstance(value, (dict, list, tuple, set, frozenset, Mapping)):
        return _quote(str(value) if isinstance(value, os.PathLike) else describe(repr, value))
    if depth == 0 or id(value) in above:
        return _quote(f"<{type(value).__name__}: {'it contains itself' if depth else 'too many levels'}>")
    above = (*above, id(value))
    if not isinstance(value, (dict, Mapping)):
        return "[" + ", ".join([_yaml(item, depth - 1, above) for item in list(value)]) + "]"
    return "{" + ", ".join([_yaml_key(key) + _yaml(item, depth - 1, above) for key, item in list(value.items())]) + "}"


def _yaml_key(key: object) -> str:
    text = _yaml_scalar(key) if key is None or isinstance(key, (str, int, float)) else _quote(describe(repr, key))
    text = text if text[0] == '"' else f'"{text}"'  # as JSON does with numbers
    return f"{text}: " if len(text) <= MAX_KEY // 6 or len(_UNSAFE.sub(_escape, text)) <= MAX_KEY else f"? {text} : "


def _yaml_scalar(value: str | float | None) -> str:
    if isinstance(value, str):
        return _quote(value)
    if value is None or isinstance(value, bool):
        return "null" if value is None else "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value) if value.bit_length() < 14_000 else _quote(hex(value))  # Python reads 4,300 digits
    text = float.__repr__(value)
    if text[-1] in "nf":  # nan, inf, -inf
        return text.replace("nan", ".nan").replace("inf", ".inf")
    return text if "." in text else text.replace("e", ".0e")  # YAML takes 1e-05 for text


def json_text(value: object) -> str:
    """A value as JSON text, exactly: lone surrogates are escaped."""
    try:
        text = _encode_exactly(value)
    except Exception:  # objects, circles
        text = json_line(value)
    return re.sub("[\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", text)


def record_value(value: Any) -> str:
    """A value as a record has it behind a key, in one line: a plain text bare, all else as JSON."""
    return scalar(value) if isinstance(value, str) else json_line(value)


def scalar(text: str) -> str:
    return text if isinstance(text, str) and _BARE.match(text) else json_line(text)
