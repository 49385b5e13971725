"""What a plugin keeps outside of the session, where every agent that has it sees it."""

from __future__ import annotations

import contextlib
import itertools
import types
from collections import deque
from collections.abc import Iterator
from types import CodeType
from typing import Any, NamedTuple

from connectagent.plugins import plain_function

_PLAIN = (str, bytes, int, float, complex, bool, type(None))
_DEPTH, _LENGTH = 4, 40  # of what is compared; beyond it only the identity and the length count


class Place(NamedTuple):
    """Something that outlives an agent and may hold state.

    Args:
        owner: the object, class, function or module; kept, so that its identity is not given to another one.
        label: how it is called in a report.
        names: which of its attributes count; None for all.
    """

    owner: Any
    label: str
    names: frozenset[str] | None = None


class Seen:
    """A value that is compared by identity, and kept so that no other one can take its place in memory."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Seen) and self.value is other.value

    __hash__ = None  # type: ignore[assignment]


class Keeping:
    """Which attributes changed while handlers ran, and for how many agents."""

    def __init__(self) -> None:
        self.changed: dict[tuple[int, str], tuple[Place, dict[int, tuple[Any, str]]]] = {}
        self._places: dict[int, tuple[Any, list[Place]]] = {}

    def snapshot(self, function: Any) -> list[tuple[Place, dict[str, Any]]]:
        """What a handler can reach outside of the session, as it is now."""
        known = self._places.get(id(function))
        if known is None:
            known = self._places[id(function)] = (function, list(_places(function)))
        return [(place, _content(place)) for place in known[1]]

    def compare(self, before: list[tuple[Place, dict[str, Any]]], agent: int, by: Any, path: str) -> None:
        """Note what has changed since a snapshot while a handler ran for the agent of that number."""
        for place, then in before:
            now = _content(place)
            for name in {**then, **now}:
                if name not in then or name not in now or then[name] != now[name]:
                    key = (id(place.owner), name)
                    self.changed.setdefault(key, (place, {}))[1].setdefault(agent, (by, path))

    def shared(self) -> Iterator[tuple[str, list[tuple[Any, str]]]]:
        """What changed for two agents or more, with who changed it, first for each.

        What changed for one only was made when it was first needed, as a client or a lock is.
        """
        for (_, name), (place, agents) in self.changed.items():
            if len(agents) > 1:
                yield f"{name!r} of {place.label}", list(agents.values())


def _places(function: Any) -> Iterator[Place]:
    owner = getattr(function, "__self__", None)
    plain = plain_function(function)
    if owner is not None and not isinstance(owner, types.ModuleType):
        yield Place(owner, f"the {type(owner).__name__} object")
        for cls in type(owner).__mro__:
            if _package(cls.__module__) == _package(plain.__module__):
                yield Place(cls, f"the class {cls.__name__}")
    yield Place(plain, f"the function {plain.__name__}")
    names = frozenset(_names(plain.__code__, plain.__globals__, owner, set()))
    module = str(plain.__globals__.get("__name__", "?"))
    yield Place(plain.__globals__, f"the module {module}", names)


def _names(code: CodeType, known: dict[str, Any], owner: Any, done: set[CodeType]) -> Iterator[str]:
    """The global names that code may reach, by way of functions of its own module and methods of its object."""
    if code in done:
        return
    done.add(code)
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant, known, owner, done)
    for name in code.co_names:
        for value in (known.get(name), getattr(type(owner), name, None)):
            inner = value.fget if isinstance(value, property) else value
            if isinstance(inner, types.FunctionType) and inner.__globals__ is known:
                yield from _names(inner.__code__, known, owner, done)


def _content(place: Place) -> dict[str, Any]:
    owner = place.owner
    if isinstance(owner, types.FunctionType):
        values, module = _held_by(owner), owner.__module__
    elif isinstance(owner, dict):
        values, module = {name: owner[name] for name in place.names or () if name in owner}, owner.get("__name__", "")
    else:
        values, module = _attributes(owner), (owner if isinstance(owner, type) else type(owner)).__module__
    return {name: _frozen(value, module, 0) for name, value in values.items() if not _is_code(value)}


def _held_by(function: types.FunctionType) -> dict[str, Any]:
    """What a function holds by name: outer variables, attributes and defaults, but not the package's own marks."""
    code, defaults = function.__code__, function.__defaults__ or ()
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    values = {name: _cell(cell) for name, cell in cells}
    values |= {name: value for name, value in dict(vars(function)).items() if name[0] != "_"}
    values |= dict(zip(code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount], defaults, strict=True))
    values |= function.__kwdefaults__ or {}
    return {name: value for name, value in values.items() if not name.startswith("connectagent_")}


def _cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty yet
        return None


def _attributes(owner: Any) -> dict[str, Any]:
    if isinstance(owner, type):
        return {name: value for name, value in dict(vars(owner)).items() if not name.startswith("__")}
    slots = [name for cls in type(owner).__mro__ for name in getattr(cls, "__slots__", ())]
    return {name: getattr(owner, name) for name in slots if hasattr(owner, name)} | getattr(owner, "__dict__", {})


def _is_code(value: Any) -> bool:
    """Modules, functions and classes: what they hold has a place of its own, or is none of the plugin's."""
    kinds = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, type)
    return isinstance(value, (*kinds, property, staticmethod, classmethod, types.MemberDescriptorType))


def _frozen(value: Any, module: str, depth: int) -> Any:
    """A value as it is now, comparable with what it is later."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, bytearray | itertools.count):
        return repr(value)
    if depth > _DEPTH:
        return Seen(value)
    if isinstance(value, dict | list | tuple | set | frozenset | deque):
        return _frozen_items(value, module, depth) if len(value) <= _LENGTH else len(value)
    if _package(type(value).__module__) == _package(module):  # of the plugin's own; others keep what they like
        return type(value), {name: _frozen(item, module, depth + 1) for name, item in _attributes(value).items()}
    return Seen(value)


def _frozen_items(value: Any, module: str, depth: int) -> Any:
    value = _copy(value)
    if isinstance(value, dict):
        items = (_frozen(item, module, depth + 1) for item in value.values())
        return dict(zip(map(_frozen_key, value), items, strict=True))
    if isinstance(value, set | frozenset):
        return set(map(_frozen_key, value))
    return [_frozen(item, module, depth + 1) for item in value]


def _copy(value: Any) -> Any:
    """A copy, which no thread of the plugin changes while it is read."""
    kind = dict if isinstance(value, dict) else set if isinstance(value, set | frozenset) else list
    for _ in range(100):
        with contextlib.suppress(RuntimeError):  # it was changed meanwhile
            return kind(value)
    return kind()


def _frozen_key(key: Any) -> Any:
    return key if type(key) in _PLAIN else id(key)


def _package(module: str) -> str:
    return module.partition(".")[0]
