"""The plugins of a report: what it says of each, and how those of this machine take their places."""

from __future__ import annotations

import copy
import json
import shlex
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from connectagent.agents.copies import definition_of
from connectagent.errors import PluginError, did_you_mean
from connectagent.hooks.discovery import handlers_of, process_wide, shadow
from connectagent.hooks.entry_points import named, normalized
from connectagent.hooks.handler import Handler
from connectagent.hooks.left_out import PERSON
from connectagent.hooks.options import Configured, configured
from connectagent.hooks.sources import all_options, source_hash
from connectagent.records.own import why_not_run
from connectagent.records.read import refuse_odd
from connectagent.settings import SHADOW, check_file, named_plugins


@dataclass(slots=True)
class Source:
    """A plugin as it is named: what `plugins=` takes, and what of it a report says.

    Args:
        item: what `plugins=` takes.
        names: the names of the plugins that it brings; most often one.
        facts: of each of them `name`, `version`, `from`, `options`, `sha256`.
        hooks: the hooks of its handlers.
    """

    item: Any
    names: list[str]
    facts: list[dict[str, Any]] = field(default_factory=list)
    hooks: set[str] = field(default_factory=set)

    def fresh(self) -> Any:
        """The plugin for another agent; an object is copied, so that one agent's turns leave no trace in the next's."""
        if isinstance(self.item, (str, Configured)) or callable(self.item):
            return self.item
        try:
            return copy.deepcopy(self.item)
        except Exception:  # a lock, a module, a connection
            return self.item


def source_of(item: Any) -> Source:
    """A plugin as it is named in code, in settings or on the command line.

    Raises:
        PluginError, HandlerError: it cannot be loaded.
    """
    handlers = list(handlers_of(item))
    by_name: dict[str, list[Handler]] = {}
    for handler in handlers:
        by_name.setdefault(handler.plugin, []).append(handler)
    facts = [_facts(item, name, listed) for name, listed in by_name.items()]
    return Source(item, list(by_name), facts, {handler.hook for handler in handlers})


def _facts(item: Any, name: str, handlers: list[Handler]) -> dict[str, Any]:
    bare = item.plugin if isinstance(item, shadow) else item
    called = bare.name if isinstance(bare, Configured) else bare
    found: dict[str, Any] = {"name": name, "version": handlers[0].version, "from": "code"}
    if isinstance(called, str) and called.endswith(".py"):
        found["from"] = "file"
    elif isinstance(called, str) and (installed := named(called)):
        found["from"] = installed[0].distribution
        found["options"] = all_options(installed[0], bare.options if isinstance(bare, Configured) else {}) or None
    found["sha256"] = source_hash({str(handler.by["file"]) for handler in handlers})
    return {key: value for key, value in found.items() if value is not None}


# -- the reporter's ------------------------------------------------------------------------------


def of_agent(agent: Any, named: list[Any]) -> list[Source]:
    """The plugins of an agent that a script made, with those that it inherits and those named for every agent."""
    there = {handler.plugin for handler in agent.hooks.loaded if not handler.builtin}
    listed = list(named)
    above = agent
    while above is not None:
        arguments = definition_of(above).arguments()
        own = [arguments.get("plugins"), *above.added, arguments.get("on_events") if above is agent else None]
        listed += flat(own)
        above = above.parent if above.inherit_plugins else None
    return [source for source in _sources(listed) if there.intersection(source.names)]


def of_record(record: Path, head: dict[str, Any], left_out: Iterable[str]) -> tuple[list[Source], list[str]]:
    """The plugins that a record names, as far as they are installed here, and those of every agent.

    What only the record names is loaded where `why_not_run` allows it, and never a file.

    Args:
        record: the record.
        head: the record's head.
        left_out: the names of those that the person leaves out.

    Returns:
        The plugins, and the names of those that are not here, or that only a record of others names.
    """
    out = set(map(normalized, left_out))
    plugins = head.get("plugins")
    recorded = [name for name in plugins if isinstance(name, str)] if isinstance(plugins, dict | list) else []
    names = set(map(normalized, recorded))
    sources = [source for source in _sources(everywhere(names)) if not out.issuperset(map(normalized, source.names))]
    known = {normalized(name) for source in sources for name in source.names}
    missing = []
    with refuse_odd(record):
        is_trusted = why_not_run(record, head) is None
    for name in recorded:
        if normalized(name) in known | out:
            continue
        if not is_trusted or not _is_installed(name):
            missing.append(name)
            continue
        try:
            sources.append(source_of(name))
        except PluginError:
            missing.append(name)
    order = {normalized(name): at for at, name in enumerate(recorded)}
    sources.sort(key=lambda source: min((order.get(normalized(name), len(order)) for name in source.names), default=0))
    return sources, missing


def _is_installed(name: str) -> bool:
    """Whether a name of a record is an installed plugin's; a file is none."""
    return not name.endswith(".py") and bool(named(name))


def everywhere(only: Collection[str] | None = None) -> list[Any]:
    """The plugins of every agent: of the project, the environment and the command line.

    Args:
        only: the normalized names of those that a record has; of others, only those of the command line.

    Raises:
        ConfigError: the project's file names code that the person has not allowed.
    """
    items = [(item, place) for item, place in process_wide() if only is None or place == PERSON or _name(item) in only]
    for item, place in items:
        bare = item.plugin if isinstance(item, shadow) else item
        if isinstance(bare, str) and bare.endswith(".py"):
            check_file(bare, place)
    return [item for item, _ in items]


def _name(item: Any) -> str:
    """The normalized name of a plugin that settings name."""
    item = item.plugin if isinstance(item, shadow) else item
    name = item.name if isinstance(item, Configured) else item
    return normalized(Path(name).stem if name.endswith(".py") else name) if isinstance(name, str) else ""


def _sources(listed: Iterable[Any]) -> list[Source]:
    found: list[Source] = []
    seen: set[Any] = set()
    for item in flat(listed):
        key = item if isinstance(item, str) else item.name if isinstance(item, Configured) else id(item)
        if key not in seen and not (isinstance(item, str) and item.startswith("no:")):
            seen.add(key)
            found.append(source_of(item))
    return found


def flat(things: Any) -> Iterator[Any]:
    """The plugins in lists of lists."""
    if (one := configured(things)) is not None:
        yield one
    elif isinstance(things, (list, tuple)):
        for thing in things:
            yield from flat(thing)
    elif things is not None:
        yield things


def listed(sources: Iterable[Source]) -> list[Any]:
    """Fresh plugins for an agent that has these and no others, whatever settings name for every agent."""
    sources = list(sources)
    names = {normalized(name) for source in sources for name in source.names}
    items = [source.item for source in sources]
    others = [name for name, _ in named_plugins() if name not in items and not name.startswith("no:")]
    left_out = {_name(name.removeprefix(SHADOW)) for name in others} - names
    return [*(source.fresh() for source in sources), *(f"no:{one}" for one in sorted(left_out))]


# -- the maintainer's ----------------------------------------------------------------------------


def for_report(
    needed: list[dict[str, Any]], others: Iterable[str], given: Iterable[Any]
) -> tuple[list[Source], list[str]]:
    """The plugins of this machine for a report.

    Args:
        needed: what the report says of each plugin that it needs, in their order.
        others: the names of the other plugins that the reporter had.
        given: what the person names: a file, an installed plugin with or without options, or `no:NAME`.

    Returns:
        The plugins in the report's order, and lines about those that differ from the report's.

    Raises:
        PluginError: one is not here; the message has its version.
    """
    items = list(given)
    out, own = _left_out(items), _sources(items)
    by_name = {normalized(name): source for source in own for name in source.names}
    _check_left_out(out, [*(normalized(str(one["name"])) for one in needed), *map(normalized, others), *by_name])
    wanted = [one for one in needed if normalized(str(one["name"])) not in out]
    found = [by_name.get(normalized(str(one["name"]))) or _unnamed(one) for one in wanted]
    found += [source for source in own if not out.issuperset(map(normalized, source.names))]
    found = list({id(source): source for source in found}.values())
    return found, [line for one in needed for line in _differs(one, found)]


def _left_out(items: list[Any]) -> set[str]:
    return {normalized(item[3:]) for item in items if isinstance(item, str) and item.startswith("no:")}


def _check_left_out(out: set[str], known: list[str]) -> None:
    """Refuse `no:NAME` for a plugin that nobody names.

    Raises:
        PluginError: there is one.
    """
    for name in sorted(out.difference(known)):
        near = did_you_mean(name, known)
        raise PluginError(f"no:{name}: the report has no such plugin.{near} It has: {', '.join(known) or 'none'}")


def _unnamed(one: dict[str, Any]) -> NoReturn:
    """Refuse to load a plugin that only a report names: it is data, as a record is.

    Raises:
        PluginError: always; the message says what the person can name.
    """
    name, version, kind = str(one["name"]), one.get("version"), str(one.get("from") or "")
    called = f"{name} {version}" if version else name
    if not named(name):
        where = {"file": "a file of the reporter", "code": "code of the reporter"}.get(kind, "")
        way = f"-p ./{name}.py" if where else f"install {kind or name}{f'=={version}' if version else ''}"
        raise PluginError(
            f"the report needs plugin {called}{f', {where}' if where else ''}, which is not here: {way}, "
            f"or leave it out: -p no:{name}"
        )
    pairs = ",".join(f"{key}={value}" for key, value in _harmless(called, name, one.get("options")).items())
    raise PluginError(
        f"the report needs plugin {called}, which is installed, but only the report names it. "
        f"Name it: -p {shlex.quote(f'{name}:{pairs}' if pairs else name)}, or leave it out: -p no:{name}"
    )


def _harmless(called: str, name: str, options: Any) -> dict[str, Any]:
    """The options that a stranger's file may give a plugin: numbers and switches, but no texts.

    Raises:
        PluginError: there are others, which may name commands, files and addresses.
    """
    options = options if isinstance(options, dict) else {}
    texts = {key: value for key, value in options.items() if not isinstance(value, (int, float, type(None)))}
    if texts:
        pairs = ",".join(f"{key}={one if isinstance(one, str) else json.dumps(one)}" for key, one in texts.items())
        raise PluginError(
            f"plugin {called} had options that are not taken from a file, since they may name commands or addresses. "
            f"Look at them, and give them yourself: -p {shlex.quote(f'{name}:{pairs}')}"
        )
    return {key: value for key, value in options.items() if value is not None}


def _differs(one: dict[str, Any], found: list[Source]) -> Iterator[str]:
    """How a plugin of this machine differs from the report's."""
    mine = next((fact for source in found for fact in source.facts if _same(fact, one)), None)
    if mine is None:
        yield f"{one['name']}: left out"
    elif mine.get("version") != one.get("version"):
        yield f"{one['name']}: {mine.get('version') or 'no version'} here, {one.get('version') or 'none'} in the report"
    elif None not in (mine.get("sha256"), one.get("sha256")) and mine["sha256"] != one["sha256"]:
        yield f"{one['name']}: its source is not the report's"


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return normalized(str(one["name"])) == normalized(str(other["name"]))
