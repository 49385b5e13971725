"""The JSON form of a value: what guards see of an argument, and what the function's value is read from."""

from __future__ import annotations

import collections
import dataclasses
import decimal
import enum
import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ATOMS = frozenset((str, int, float, bool, type(None)))
"""Types whose values are their own JSON form."""

_STATELESS = (list, dict, set, frozenset, tuple, str, int, float, bool)  # factories that make the same value each time
_MOST_DIGITS = 100  # of a Decimal that is written without an exponent


class NoFormError(ValueError):
    """A value has no JSON form."""


def json_form(value: object, sent: object = None) -> Any:
    """The JSON from which a value can be read again, in one spelling for each value.

    It differs from pydantic's dump where that is not for reading: secrets are not masked, excluded fields are
    there and computed ones are not, names are those that the schema shows, and sets are in order.

    Args:
        value: what pydantic made of an argument.
        sent: the JSON it was made from; it tells which fields of a dataclass were left out.

    Raises:
        NoFormError: there is none. Anything that objects of users raise may come as well.
    """
    kind = type(value)
    return value if kind in ATOMS else _former(kind)(value, sent)


def _make_former(kind: type) -> Callable[[Any, Any], Any]:
    """What makes the forms of the values of a type."""
    if issubclass(kind, (list, tuple, collections.deque)):
        return _list_form
    if issubclass(kind, Mapping):
        return _mapping_form
    if issubclass(kind, (set, frozenset)):
        return lambda value, sent: in_order(json_form(item) for item in value)
    if issubclass(kind, enum.Enum):
        return lambda value, sent: json_form(value.value)
    if issubclass(kind, decimal.Decimal):
        return lambda value, sent: decimal_form(value)
    if _is_model(kind):
        return _model_form
    if dataclasses.is_dataclass(kind):
        return _dataclass_form
    if hasattr(kind, "get_secret_value"):
        return lambda value, sent: json_form(value.get_secret_value(), sent)
    return _other_form


_former: Callable[[type], Callable[[Any, Any], Any]] = functools.lru_cache(maxsize=256)(_make_former)


def _is_model(kind: type) -> bool:
    return hasattr(kind, "model_fields") and hasattr(kind, "model_fields_set")


def _list_form(value: Iterable[Any], sent: object) -> list[Any]:
    return [json_form(item, _part(sent, index)) for index, item in enumerate(value)]


def _other_form(value: object, sent: object) -> Any:
    if isinstance(value, Iterator):
        raise NoFormError("reading it would use it up")
    return _to_json()(value)


@functools.lru_cache(maxsize=1)
def _to_json() -> Callable[[Any], Any]:
    from pydantic_core import to_jsonable_python

    return to_jsonable_python


def _part(whole: object, key: object) -> Any:
    """An item of a list or object; None where there is none."""
    if isinstance(whole, dict):
        return whole.get(key)
    if isinstance(whole, list) and isinstance(key, int) and key < len(whole):
        return whole[key]
    return None


def _mapping_form(value: Mapping[Any, Any], sent: object) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, item in value.items():
        name = key if type(key) is str else _key_form(key)
        if name in made:
            raise NoFormError("two of its keys are one in JSON")
        made[name] = json_form(item, _part(sent, name))
    return made


def _key_form(key: object) -> str:
    if isinstance(key, decimal.Decimal):
        return decimal_form(key)
    (name,) = _to_json()({key: None})
    return str(name)


def in_order(forms: Iterable[Any]) -> list[Any]:
    """The items of a set, in one order: Python's own differs from process to process."""
    found = list(forms)
    kinds = set(map(type, found))
    has_order = kinds == {str} or (kinds <= {int, float} and all(one == one for one in found))
    if has_order:
        return sorted(found)
    return sorted(found, key=lambda form: json.dumps(form, sort_keys=True))


def decimal_form(value: decimal.Decimal) -> str:
    """A number as text, the same for all numbers that are equal: `1000` for 1E+3 and 1000.00."""
    if not value.is_finite():
        return str(value)
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    kept = list(digits)
    while len(kept) > 1 and kept[-1] == 0:
        kept.pop()
        exponent += 1
    if kept == [0]:
        return "0"
    shortest = decimal.Decimal((sign, tuple(kept), exponent))
    is_short = -_MOST_DIGITS <= exponent <= _MOST_DIGITS
    return format(shortest, "f") if is_short else str(shortest)


def _model_form(value: Any, sent: object) -> Any:
    kind = type(value)
    if getattr(kind, "__pydantic_root_model__", False):
        return json_form(value.root, sent)
    by_name = kind.model_config.get("validate_by_alias") is False
    made: dict[str, Any] = {}
    for name, field in kind.model_fields.items():
        if name in value.model_fields_set:
            key = name if by_name else shown_name(field.validation_alias, name)
            made[key] = json_form(getattr(value, name), _part(sent, key))
    for key, item in (value.model_extra or {}).items():
        made[key] = json_form(item, _part(sent, key))
    return made


def shown_name(alias: object, name: str) -> str:
    """The name of a field in the schema that the model is shown: an alias for reading, or its own."""
    for choice in getattr(alias, "choices", [alias]):
        path = getattr(choice, "path", [choice])
        if len(path) == 1 and isinstance(path[0], str):
            return str(path[0])
    return name


def _dataclass_form(value: DataclassInstance, sent: object) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        if not field.init:
            continue
        key = _dataclass_key(value, field.name)
        is_left_out = isinstance(sent, dict) and key not in sent
        if is_left_out and _is_made_anew(field):
            continue
        made[key] = json_form(getattr(value, field.name), _part(sent, key))
    return made


def _dataclass_key(value: object, name: str) -> str:
    known = getattr(type(value), "__pydantic_fields__", {}).get(name)
    return name if known is None else shown_name(known.validation_alias, name)


def _is_made_anew(field: dataclasses.Field[Any]) -> bool:
    """Whether each reading may give a field that was left out another value, like a number or the time."""
    factory: Any = field.default_factory
    if factory is dataclasses.MISSING:
        factory = getattr(field.default, "default_factory", None)  # `pydantic.Field(default_factory=...)`
    return factory is not None and factory not in _STATELESS


def alike(one: object, other: object, form: object) -> bool:
    """Whether two values are equal, also in their types; what is made anew at each reading does not count.

    Args:
        one: a value.
        other: what was read from its form.
        form: the form.
    """
    kind = type(one)
    if kind is not type(other):
        return False
    if kind in ATOMS:
        return bool(one == other) or (one != one and other != other)
    return _comparer(kind)(one, other, form)


def _make_comparer(kind: type) -> Callable[[Any, Any, Any], bool]:
    """What compares two values of a type."""
    if issubclass(kind, (list, tuple, collections.deque)):
        return _lists_alike
    if issubclass(kind, Mapping):
        return _mappings_alike
    if _is_model(kind):
        return _models_alike
    if dataclasses.is_dataclass(kind):
        return _dataclasses_alike
    if hasattr(kind, "get_secret_value"):
        return lambda one, other, form: alike(one.get_secret_value(), other.get_secret_value(), form)
    if hasattr(kind, "utcoffset"):  # equal times may be told in different zones
        return lambda one, other, form: bool(one == other and one.utcoffset() == other.utcoffset())
    return lambda one, other, form: bool(one == other)


_comparer: Callable[[type], Callable[[Any, Any, Any], bool]] = functools.lru_cache(maxsize=256)(_make_comparer)


def _lists_alike(one: Sequence[Any], other: Sequence[Any], form: object) -> bool:
    if len(one) != len(other):
        return False
    return all(alike(a, b, _part(form, index)) for index, (a, b) in enumerate(zip(one, other, strict=True)))


def _mappings_alike(one: Mapping[Any, Any], other: Mapping[Any, Any], form: object) -> bool:
    return one.keys() == other.keys() and all(alike(one[key], other[key], _part(form, key)) for key in one)


def _models_alike(one: Any, other: Any, form: object) -> bool:
    if one.model_fields_set != other.model_fields_set:
        return False
    for name, field in type(one).model_fields.items():
        is_set = name in one.model_fields_set
        if not is_set and field.default_factory is not None:
            continue
        part = _part(form, shown_name(field.validation_alias, name)) if is_set else None
        if not alike(getattr(one, name), getattr(other, name), part):
            return False
    return alike(one.model_extra or {}, other.model_extra or {}, form)


def _dataclasses_alike(one: DataclassInstance, other: DataclassInstance, form: object) -> bool:
    for field in dataclasses.fields(one):
        key = _dataclass_key(one, field.name)
        if isinstance(form, dict) and key not in form and _is_made_anew(field):
            continue
        if not alike(getattr(one, field.name), getattr(other, field.name), _part(form, key)):
            return False
    return True
