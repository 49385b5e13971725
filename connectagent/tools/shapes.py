"""Plain types: whether JSON is canonical is told by its types alone, without asking pydantic."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

Shape = Callable[[Any], bool]
"""Whether JSON is the canonical form of a value of a plain type: what pydantic reads from it has that form."""

_NOTES = frozenset(("type", "metadata", "ref"))
_HARMLESS = frozenset(("title", "extra_fields_behavior", "coerce_numbers_to_str"))  # of exact types, and no others
_MOST_DEEP = 10  # a type that is nested deeper is not plain


def shape_of(schema: Any, deep: int = 0) -> Shape | None:
    """The shape of a plain type, from pydantic's core schema; None for any other type.

    What is not known here is not plain: a constraint, a validator, a strict or changed reading.
    """
    kind = schema.get("type") if isinstance(schema, dict) and deep < _MOST_DEEP else None
    make = _MAKERS.get(kind) if isinstance(kind, str) else None
    return None if make is None else make(schema, deep + 1)


def _has_only(schema: dict[str, Any], *keys: str) -> bool:
    return _NOTES.union(keys).issuperset(schema)


def _exactly(kind: type) -> Callable[[dict[str, Any], int], Shape | None]:
    def make(schema: dict[str, Any], deep: int) -> Shape | None:
        return _bounded(lambda value: type(value) is kind, schema, "ge", "gt", "le", "lt")

    return make


def _bounded(shape: Shape, schema: dict[str, Any], *bounds: str) -> Shape | None:
    """A shape with bounds of its value or its length."""
    if not _has_only(schema, *bounds):
        return None
    tests = [_BOUNDS[name](schema[name]) for name in bounds if schema.get(name) is not None]
    if not tests:
        return shape
    first, *others = tests
    if not others:
        return lambda value: shape(value) and first(value)
    return lambda value: shape(value) and all(test(value) for test in tests)


_BOUNDS: dict[str, Callable[[Any], Shape]] = {
    "ge": lambda bound: lambda value: bool(value >= bound),
    "gt": lambda bound: lambda value: bool(value > bound),
    "le": lambda bound: lambda value: bool(value <= bound),
    "lt": lambda bound: lambda value: bool(value < bound),
    "min_length": lambda bound: lambda value: len(value) >= bound,
    "max_length": lambda bound: lambda value: len(value) <= bound,
}


def is_text(value: object) -> bool:
    """Whether a value is text that UTF-8 can hold: a half of a surrogate pair is not."""
    if type(value) is not str:
        return False
    return value.isascii() or _is_utf8()(value)


@functools.lru_cache(maxsize=1)
def _is_utf8() -> Callable[[str], bool]:
    from pydantic_core import SchemaValidator

    return SchemaValidator({"type": "str"}).isinstance_python  # it keeps the encoded text for the next reader


_TEXT = frozenset((str,))


def _are_texts(value: object) -> bool:
    """Whether a list has texts only."""
    if type(value) is not list or not _TEXT.issuperset(map(type, value)):
        return False
    text = "".join(value)
    return text.isascii() or all(map(is_text, value))


def _text(schema: dict[str, Any], deep: int) -> Shape | None:
    return _bounded(is_text, schema, "min_length", "max_length")


def _any(schema: dict[str, Any], deep: int) -> Shape | None:
    return (lambda value: True) if _has_only(schema) else None


def _none(schema: dict[str, Any], deep: int) -> Shape | None:
    return (lambda value: value is None) if _has_only(schema) else None


def _literal(schema: dict[str, Any], deep: int) -> Shape | None:
    expected = schema.get("expected", ())
    kinds = frozenset(map(type, expected))
    if not _has_only(schema, "expected") or not kinds <= {str, int, bool, type(None)}:
        return None
    members = frozenset((type(one), one) for one in expected)  # as 1 == True
    return lambda value: type(value) in kinds and (type(value), value) in members


def _nullable(schema: dict[str, Any], deep: int) -> Shape | None:
    inner = shape_of(schema.get("schema"), deep) if _has_only(schema, "schema") else None
    return None if inner is None else (lambda value: value is None or inner(value))


def _default(schema: dict[str, Any], deep: int) -> Shape | None:
    keys = ("schema", "default", "default_factory", "default_factory_takes_data")
    return shape_of(schema.get("schema"), deep) if _has_only(schema, *keys) else None


def _list(schema: dict[str, Any], deep: int) -> Shape | None:
    each = schema.get("items_schema", {"type": "any"})
    items = shape_of(each, deep)
    if items is None:
        return None
    keys = {key: schema[key] for key in schema if key != "items_schema"}
    return _bounded(_items(each, items), keys, "min_length", "max_length")


def _items(each: dict[str, Any], items: Shape) -> Shape:
    if items is is_text:
        return _are_texts
    kind = _EXACT.get(each["type"]) if _has_only(each) else None
    if kind is None:
        return lambda value: type(value) is list and all(map(items, value))
    kinds = {kind}
    return lambda value: type(value) is list and kinds.issuperset(map(type, value))


_EXACT = {"int": int, "float": float, "bool": bool}


def _dict(schema: dict[str, Any], deep: int) -> Shape | None:
    keys = shape_of(schema.get("keys_schema", {"type": "any"}), deep)
    values = shape_of(schema.get("values_schema", {"type": "any"}), deep)
    if keys is None or values is None or not _has_only(schema, "keys_schema", "values_schema"):
        return None
    if schema.get("keys_schema", {}).get("type", "any") not in ("str", "any"):
        return None  # the keys of JSON are texts
    return lambda value: type(value) is dict and all(map(is_text, value)) and all(map(values, value.values()))


def _union(schema: dict[str, Any], deep: int) -> Shape | None:
    """A value of exactly one of the types is taken as it is, in pydantic's smart mode."""
    choices = schema.get("choices", ())
    if not _has_only(schema, "choices", "mode") or schema.get("mode", "smart") != "smart":
        return None
    shapes = [shape_of(choice, deep) for choice in choices]
    if any(shape is None or choice["type"] not in _IN_UNIONS for shape, choice in zip(shapes, choices, strict=True)):
        return None
    return _one_of([shape for shape in shapes if shape is not None])


_IN_UNIONS = ("str", "int", "float", "bool", "none", "literal", "list", "dict", "nullable")


def _one_of(shapes: Iterable[Shape]) -> Shape:
    found = tuple(shapes)
    return lambda value: any(shape(value) for shape in found)


def _enum(schema: dict[str, Any], deep: int) -> Shape | None:
    values = [member.value for member in schema.get("members", ())]
    kinds = frozenset(map(type, values))
    if not _has_only(schema, "cls", "members", "sub_type") or not kinds <= {str, int}:
        return None
    expected = frozenset(values)
    return lambda value: type(value) in kinds and value in expected


def _date(schema: dict[str, Any], deep: int) -> Shape | None:
    if not _has_only(schema):
        return None
    from datetime import date

    def is_date(value: object) -> bool:
        if type(value) is not str:
            return False
        try:
            return date.fromisoformat(value).isoformat() == value
        except ValueError:
            return False

    return is_date


def _tuple(schema: dict[str, Any], deep: int) -> Shape | None:
    shapes = [shape_of(item, deep) for item in schema.get("items_schema", ())]
    known = tuple(shape for shape in shapes if shape is not None)
    if len(known) < len(shapes) or not _has_only(schema, "items_schema"):
        return None

    def fits(value: object) -> bool:
        if type(value) is not list or len(value) != len(known):
            return False
        return all(shape(item) for shape, item in zip(known, value, strict=True))

    return fits


def _typed_dict(schema: dict[str, Any], deep: int) -> Shape | None:
    if not _has_only(schema, "fields", "cls", "cls_name", "computed_fields", "extra_behavior", "config"):
        return None
    fields = schema.get("fields", {})
    required = {name for name, field in fields.items() if field.get("required")}
    return _object(fields, required, schema, deep)


def _model(schema: dict[str, Any], deep: int) -> Shape | None:
    inner = schema.get("schema", {})
    is_known = _has_only(schema, "cls", "schema", "config", "custom_init", "root_model", "frozen")
    if not is_known or schema.get("custom_init") or schema.get("root_model"):
        return None
    if inner.get("type") != "model-fields" or not _has_only(inner, "fields", "model_name", "computed_fields"):
        return None
    fields = inner["fields"]
    required = {name for name, field in fields.items() if field["schema"].get("type") != "default"}
    return _object(fields, required, schema, deep)


def _dataclass(schema: dict[str, Any], deep: int) -> Shape | None:
    """Only with all fields: those that are left out are in its form as well."""
    inner = schema.get("schema", {})
    is_known = _has_only(schema, "cls", "fields", "schema", "post_init", "frozen", "slots", "config")
    if not is_known or schema.get("post_init") or inner.get("type") != "dataclass-args":
        return None
    if not _has_only(inner, "dataclass_name", "fields", "computed_fields", "collect_init_only"):
        return None
    fields = {field["name"]: field for field in inner["fields"]}
    if inner.get("collect_init_only") or not all(field.get("init", True) for field in inner["fields"]):
        return None
    return _object(fields, set(fields), schema, deep)


def _object(fields: dict[str, Any], required: set[str], owner: dict[str, Any], deep: int) -> Shape | None:
    """The shape of an object that has fields with these names."""
    shapes: dict[str, Shape] = {}
    for name, field in fields.items():
        shape = shape_of(field.get("schema"), deep)
        if shape is None or not _has_only(field, "name", "schema", "required", "kw_only", "init", "frozen"):
            return None
        shapes[name] = shape
    if not _HARMLESS.issuperset(owner.get("config") or ()):
        return None

    def fits(value: object) -> bool:
        if type(value) is not dict:
            return False
        for key, item in value.items():
            known = shapes.get(key)
            if known is None or not known(item):
                return False
        return required <= value.keys()

    return fits


_MAKERS: dict[str, Callable[[dict[str, Any], int], Shape | None]] = {
    "str": _text,
    "int": _exactly(int),
    "float": _exactly(float),
    "bool": _exactly(bool),
    "none": _none,
    "any": _any,
    "literal": _literal,
    "nullable": _nullable,
    "default": _default,
    "list": _list,
    "dict": _dict,
    "union": _union,
    "enum": _enum,
    "date": _date,
    "tuple": _tuple,
    "typed-dict": _typed_dict,
    "model": _model,
    "dataclass": _dataclass,
}


def kinds_in(schema: object) -> set[str]:
    """The kinds of types that a core schema mentions anywhere."""
    found: set[str] = set()
    ahead, seen = [schema], set[int]()
    while ahead:
        one = ahead.pop()
        if not isinstance(one, dict | list | tuple) or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, dict) and isinstance(one.get("type"), str):
            found.add(one["type"])
        ahead += one.values() if isinstance(one, dict) else one
    return found
