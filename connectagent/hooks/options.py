"""Options of plugins: in code, `("budget", {"model_calls": 3})`, or on the command line, `-p budget:model_calls=3`."""

from __future__ import annotations

import contextlib
import inspect
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from connectagent.errors import PluginError, did_you_mean

_GIVEN = re.compile(r"(?P<name>(?:shadow:)?[^:=]+):(?P<options>[A-Za-z_]\w*=.*)", re.DOTALL)
_BETWEEN = re.compile(r",(?=[A-Za-z_]\w*=)")
_PLAIN = {kind.__name__: kind for kind in (bool, int, float, str)}


class Text(str):
    """The text of an option on the command line, which is read as the plugin's signature says."""


class Configured(NamedTuple):
    """A plugin by its name, with options.

    Args:
        name: the name; `"shadow:name"` shadows it.
        options: the options, by name.
    """

    name: str
    options: Mapping[str, Any]


class OwnPlugin(NamedTuple):
    """A plugin of the package's own among those that agents are given, such as the gate of a batch.

    It changes nothing in the session, and is not among the plugins that records and reports list.

    Args:
        name: its name.
        plugin: the object.
    """

    name: str
    plugin: Any


def configured(item: object) -> Configured | None:
    """An item of a list of plugins as a name with options; None for other items, lists of two plugins among them.

    Raises:
        PluginError: the options have no names.
    """
    if isinstance(item, Configured):
        return item
    if not (isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str) and isinstance(item[1], dict)):
        return None
    name, options = item
    if name.startswith("no:") or not all(isinstance(key, str) for key in options):
        raise PluginError(f"a plugin with options is (name, {{option: value}}), not {item!r:.80}")
    return Configured(name, options)


def from_text(text: str) -> str | Configured:
    """What `-p` names: a name as it is, or one with options, `budget:model_calls=3,usd=2`.

    Raises:
        PluginError: an option is given twice.
    """
    found = _GIVEN.fullmatch(text)
    if found is None:
        return text
    options: dict[str, Text] = {}
    for part in _BETWEEN.split(found["options"]):
        name, _, value = part.partition("=")
        give(options, found["name"], {name: Text(value)})
    return Configured(found["name"], options)


def give(options: dict[str, Any], plugin: str, more: Mapping[str, Any]) -> None:
    """Add options to those that the command line has given a plugin so far.

    Raises:
        PluginError: one of them is given already.
    """
    for name in more:
        if name in options:
            raise PluginError(f"option {name!r} of plugin {plugin} is given twice, and takes one value")
    options.update(more)


def as_option(text: str, parameter: inspect.Parameter | None) -> Any:
    """The value of an option on the command line: of the parameter's type, else JSON, else the text.

    Raises:
        ValueError: it is not of that type, or is JSON that has a key twice.
    """
    wanted = _wanted(parameter)
    if wanted is str:
        return str(text)
    twice: list[str] = []

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        twice.extend(name for name in found if [key for key, _ in pairs].count(name) > 1)
        return found

    try:
        value = json.loads(text, object_pairs_hook=mapping)
    except ValueError:
        value = str(text)
    if twice:
        raise ValueError(f"{twice[0]!r} is given twice in {str(text)!r}")
    if wanted is float and type(value) is int:
        return float(value)
    if wanted is not None and type(value) is not wanted:
        raise ValueError(f"{str(text)!r} is not of the type {wanted.__name__}")
    return value


def _wanted(parameter: inspect.Parameter | None) -> type | None:
    """The plain type that a parameter is annotated with, or else its default has; None for any other."""
    if parameter is None:
        return None
    annotation = parameter.annotation
    if annotation is not parameter.empty:
        return _PLAIN.get(annotation if isinstance(annotation, str) else getattr(annotation, "__name__", ""))
    kind = type(parameter.default)
    return kind if kind in _PLAIN.values() else None


def is_flag(parameter: inspect.Parameter) -> bool:
    """Whether an option is on or off."""
    return _wanted(parameter) is bool


def made_with(thing: object) -> dict[str, Any]:
    """The arguments with which a plugin's object was made, as far as it keeps them and they are not the defaults."""
    if inspect.isroutine(thing) or inspect.ismodule(thing) or type(thing).__init__ is object.__init__:
        return {}
    found = {}
    with contextlib.suppress(Exception):  # a plugin's class may have any signature, or none
        kept = vars(thing)
        for name, parameter in inspect.signature(type(thing)).parameters.items():
            value = kept.get(name, kept.get(f"_{name}", parameter.default))
            if type(value) in _PLAIN.values() and value != parameter.default:
                found[name] = value
    return found


def read_options(plugin: str, factory: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Options that were given in code or on the command line, checked against the signature of their factory.

    Raises:
        PluginError: one is unknown, or not of its type.
    """
    parameters = inspect.signature(factory).parameters
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    known = [one.name for one in parameters.values() if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    found = {}
    for name, value in given.items():
        if name not in known and not takes_any:
            listed, hint = ", ".join(known) or "none", did_you_mean(name, known, 0.5)
            raise PluginError(f"plugin {plugin} has no option {name!r}.{hint} It takes: {listed}")
        try:
            found[name] = as_option(value, parameters.get(name)) if isinstance(value, Text) else value
        except ValueError as error:
            raise PluginError(f"option {name!r} of plugin {plugin}: {error}") from None
    return found
