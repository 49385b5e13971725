"""From what users write to handlers: marked functions, lists, modules, objects, files, installed names."""

from __future__ import annotations

import difflib
import functools
import importlib.util
import inspect
import re
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from connectagent.errors import PluginError
from connectagent.hooks import Handler, marked_members, marks_of, name_of, where
from connectagent.hookspecs import HOOKS, PROJECT

BUILT_IN = ("record", "textlog", "console", "xray", "trust")


def find_handlers(own: dict[str, Any], sources: Any) -> list[Handler]:
    """All handlers of an agent, in the order in which they are to run.

    Args:
        own: the package's own plugins by name.
        sources: what users gave as `plugins` and `on_events`; `"no:name"` leaves a plugin out.

    Raises:
        PluginError: a plugin cannot be found or loaded, or a `"no:name"` names none.
    """
    wanted, left_out = [], {}
    for item in _flat(sources):
        if isinstance(item, str) and item.startswith("no:"):
            left_out[normalized(item[3:])] = item
        else:
            wanted.append(item)
    handlers = [handler for name, thing in own.items() for handler in handlers_of(thing, name, trusted=True)]
    handlers += [handler for item in wanted for handler in handlers_of(item)]
    known = {normalized(handler.plugin) for handler in handlers} | set(map(normalized, BUILT_IN))
    for name, item in left_out.items():
        if name not in known and name not in installed():
            raise PluginError(f"{item!r}: there is no plugin {name!r}; known: {', '.join(sorted(known))}")
    return [handler for handler in handlers if normalized(handler.plugin) not in left_out]


def _flat(things: Any) -> Iterator[Any]:
    if isinstance(things, (list, tuple)):
        for thing in things:
            yield from _flat(thing)
    elif things is not None:
        yield things


def handlers_of(thing: Any, plugin: str | None = None, *, trusted: bool = False) -> Iterator[Handler]:
    """The handlers that a plugin brings: a marked function, a list of them, a module, or an object.

    Raises:
        PluginError: the thing brings no handler.
    """
    version = None
    if isinstance(thing, (list, tuple)):
        for item in thing:
            yield from handlers_of(item, plugin, trusted=trusted)
        return
    if isinstance(thing, str):
        plugin, version, thing = installed_plugin(thing)
    functions: list[Any] = [thing] if marks_of(thing) else list(_members(thing))
    for function in functions:
        called = function if _is_function(function) else function.__call__
        for hook, opts in marks_of(function).items():
            yield Handler(hook, called, opts, plugin or plugin_name(thing), version, trusted)


def _is_function(function: Any) -> bool:
    return inspect.isroutine(function) or isinstance(function, functools.partial)


def _members(thing: Any) -> Iterator[Callable[..., Any]]:
    if isinstance(thing, type):
        raise PluginError(f"{thing.__qualname__} is a class; a plugin is an object: write {thing.__qualname__}()")
    members = [] if _is_function(thing) else list(marked_members(thing))
    if not members:
        what = f"function {name_of(thing)!r}" if _is_function(thing) else f"{type(thing).__name__} {thing!r:.80}"
        place = "{}:{}".format(*where(thing)) if callable(thing) else "?"
        raise PluginError(
            f"{what} ({place}) is not marked for a hook.{_meant(thing)}\n"
            "A plugin is a marked function (@after_tools), a list of them, a module, an object or an installed name."
        )
    yield from members


def _meant(thing: Any) -> str:
    names = [getattr(thing, "__name__", ""), *(() if _is_function(thing) else dir(thing))]
    for name in names:
        near = difflib.get_close_matches(str(name), HOOKS, 1, 0.7)
        if near:
            return f" Did you mean to decorate {name!r} with @{near[0]}?"
    return ""


def plugin_name(thing: Any) -> str:
    """The name by which a plugin that was not installed is known."""
    if isinstance(thing, ModuleType):
        return thing.__name__.rpartition(".")[2]
    if _is_function(thing):
        return name_of(thing)
    return str(getattr(thing, "name", None) or type(thing).__name__)


def normalized(name: str) -> str:
    """A name in the one spelling that PEP 503 gives to all that are equal."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed_plugin(name: str) -> tuple[str, str | None, Any]:
    """Find and load an installed plugin: its name, its distribution's version, and what it brings.

    Args:
        name: the name of an entry point in the group `connectagent`, or of its distribution.

    Raises:
        PluginError: there is no such plugin, or it cannot be loaded.
    """
    if name.endswith(".py"):
        module = module_from_path(name)
        return plugin_name(module), None, module
    found = installed()
    entry = found.get(normalized(name))
    if entry is None:
        near = difflib.get_close_matches(normalized(name), found, 1, 0.6)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise PluginError(
            f"no plugin {name!r} is installed.{hint} Installed: {', '.join(sorted(found)) or 'none'}.\n"
            f"Install it: pip install connectagent-{normalized(name)}"
        )
    try:
        thing = entry.load()
    except (Exception, SystemExit) as error:
        dist = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
        raise PluginError(f"plugin {name!r} ({dist}) cannot be loaded: {type(error).__name__}: {error}") from error
    return entry.name, entry.dist.version if entry.dist else None, thing


def installed() -> dict[str, EntryPoint]:
    """The installed plugins, by the normalized names of their entry points and distributions."""
    found = {}
    for entry in entry_points(group=PROJECT):
        for name in (entry.name, entry.dist.name if entry.dist else entry.name):
            found[normalized(name)] = entry
    return found


def module_from_path(path: str) -> ModuleType:
    """Load a one-file plugin.

    Raises:
        PluginError: the file cannot be loaded.
    """
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise PluginError(f"{path!r} is not a Python file; a one-file plugin is a .py with marked functions")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise PluginError(f"plugin {path!r} cannot be loaded: {type(error).__name__}: {error}") from error
    return module


