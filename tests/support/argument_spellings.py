"""Other spellings of an argument with which a model can mean the same value, and its form as text."""

from __future__ import annotations

import json
from typing import Any

import pydantic
from argument_types import Numbered


def escaped(text: str) -> str:
    """JSON text with each letter inside of strings written as an escape."""
    inside, made = False, ""
    for letter in text:
        inside ^= letter == '"'
        made += f"\\u{ord(letter):04x}" if inside and letter.isascii() and letter.isalpha() else letter
    return made


def spellings(value: Any) -> list[Any]:
    """What a model may send for a JSON value; not each fits each type."""
    if isinstance(value, bool):
        words = ("true", "yes", "y", "on", "t", "1", "True", "ON") if value else ("false", "no", "n", "off", "f", "0")
        return [value, int(value), float(value), *words]
    if isinstance(value, int):
        text = str(value)
        whole = [float(value)] if abs(value) < 2**53 else []
        texts = [text, f" {text} ", f"+{text}", f"0{text}", f"{text}.0", f"{value:_}", f"{text}\n"]
        return [value, *whole, *texts, f"{text}.", f"{value:e}", bool(value)]
    if isinstance(value, float):
        return [value, str(value), f" {value} ", f"+{value}", f"{value}0", int(value) if value == value // 1 else value]
    if isinstance(value, str):
        return [value, f" {value}", value.upper(), value.lower(), [value], json.dumps(value)]
    if isinstance(value, list | dict):
        text = json.dumps(value)
        reversed_too = [dict(reversed(value.items()))] if isinstance(value, dict) else []
        one = [value[0]] if isinstance(value, list) and len(value) == 1 else []
        return [value, text, escaped(text), json.dumps(value, indent=2), f" {text}", *reversed_too, *one]
    return [value, "null", "None", ""]


def text(form: Any) -> str:
    return json.dumps(form, sort_keys=True)


def plain(value: Any) -> Any:
    """A value as something that is equal for equal values of one type only."""
    kind = type(value).__name__
    if isinstance(value, pydantic.BaseModel):
        fields = [(name, plain(getattr(value, name))) for name in sorted(value.model_fields_set)]
        return kind, fields, plain(value.model_extra)
    if isinstance(value, dict):
        return kind, sorted((plain(key), plain(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return kind, [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return kind, sorted(map(plain, value))
    if hasattr(value, "get_secret_value"):
        return kind, plain(value.get_secret_value())
    if hasattr(value, "__next__"):
        try:
            return kind, [plain(item) for item in value]
        except pydantic.ValidationError:
            return kind, "refused when it is read"
    if isinstance(value, Numbered) and value.id < 0:
        return kind, value.n  # it was left out
    if hasattr(value, "__dataclass_fields__"):
        return kind, [(name, plain(getattr(value, name))) for name in value.__dataclass_fields__]
    if kind == "Decimal" and value.is_finite():
        return kind, str(value.normalize() + 0)
    return kind, str(value)
