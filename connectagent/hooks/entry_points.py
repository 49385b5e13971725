"""Installed plugins: the entry points of distributions, and how they are loaded.

    [project.entry-points.connectagent]              the plugin under its name: a module, or "module:object"
    [project.entry-points."connectagent.models"]     the same, under the prefix of each of its models
    [project.entry-points."connectagent.commands"]   the same, under the name of each of its commands and, behind a
                                                     colon, its line for `--help`; "connectagent.commands.records"
                                                     lists it among those of records
    [project.entry-points."connectagent.hooks"]      each hook that it defines, under its name: "module:hook"

The first only makes a plugin available: it acts where it is named. The other two are for `register_models` and
`register_commands`, which work without naming the plugin: the entry point's name says what the plugin brings, so
that it is loaded only where that is needed. The last one lists hooks without loading the plugins that define them.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from connectagent.errors import ConfigError, PluginError, did_you_mean, nearest
from connectagent.hooks.contract import PROJECT
from connectagent.hooks.markers import marks_of
from connectagent.hooks.options import read_options
from connectagent.settings import check_allowed, project_file, project_settings
from connectagent.tools.waits import holding

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

MODELS = f"{PROJECT}.models"
COMMANDS = f"{PROJECT}.commands"
OWN_HOOKS = f"{PROJECT}.hooks"
PREFIX = f"{PROJECT}-"
GET = "Install it from a clone of connectagent's repository: pip install ./plugins/"

# The plugins that this project publishes.
OFFICIAL = (
    *("adk", "approve", "artifacts", "budget", "checkpoint", "compact", "dbos", "local", "loopguard", "mcp", "memory"),
    *("notify", "otel", "policy", "ray", "redact", "reflect", "retry", "sandbox", "serve", "shellhooks", "verify"),
)


def how_to_get(distribution: str) -> str:
    """How to install one of the distributions of this project."""
    return f"{GET}{distribution}"


@lru_cache(maxsize=1024)
def normalized(name: str) -> str:
    """A name in its normalized spelling (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


@dataclass(frozen=True, slots=True)
class Installed:
    """One entry point of an installed distribution.

    Args:
        entry: the entry point.
        distribution: the distribution's name, as written.
        version: the distribution's version.
        problem: why it cannot be loaded, if known without loading it.
        rivals: other distributions that declare the same name; then the name loads none of them.
    """

    entry: EntryPoint
    distribution: str
    version: str | None = None
    problem: str | None = None
    rivals: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The entry point's name; of a command, without its line."""
        if self.group == COMMANDS:
            return " ".join(self.entry.name.partition(":")[0].split())
        return self.entry.name

    @property
    def group(self) -> str:
        """The entry point's group; of a command, without its section."""
        return COMMANDS if self.entry.group.startswith(f"{COMMANDS}.") else self.entry.group

    @property
    def section(self) -> str:
        """The section of `--help` that a command is listed in; "" where none is declared."""
        return self.entry.group.removeprefix(COMMANDS).removeprefix(".").replace("_", " ")

    @property
    def line(self) -> str:
        """What `--help` says of a command; "" where the distribution says nothing."""
        return self.entry.name.partition(":")[2].strip()

    def __str__(self) -> str:
        return f"{self.distribution} {self.version or ''}".rstrip()


def installed(group: str = PROJECT) -> tuple[Installed, ...]:
    """The entry points of a group, by name; read once for each `sys.path`."""
    return _read(group, tuple(sys.path))


@lru_cache(maxsize=16)
def _read(group: str, path: tuple[str, ...]) -> tuple[Installed, ...]:
    by_name: dict[str, list[Installed]] = {}
    for plugin in _declared(path):
        if plugin.group == group:
            by_name.setdefault(normalized(plugin.name), []).append(plugin)
    found = []
    for _, plugins in sorted(by_name.items()):
        for plugin in plugins:
            rivals = [str(other) for other in plugins if other is not plugin]
            found.append(replace(plugin, rivals=tuple(rivals)))
    return tuple(found)


@lru_cache(maxsize=4)
def _declared(path: tuple[str, ...]) -> list[Installed]:
    from connectagent.hooks.distributions import declared  # a third of the import time of this package

    return [Installed(*found) for found in declared((PROJECT, MODELS, COMMANDS, f"{COMMANDS}.", OWN_HOOKS))]


def undeclared(group: str) -> list[Installed]:
    """The plugins whose distributions declare nothing in a group; they may still bring models or commands."""
    declared = {plugin.distribution for plugin in installed(group)}
    return [plugin for plugin in installed() if plugin.distribution not in declared and not plugin.rivals]


def own_name(plugin: Installed) -> str:
    """The plugin's own name, for an entry that is named after a model or command."""
    names = [other.name for other in installed() if other.distribution == plugin.distribution]
    return names[0] if len(names) == 1 else plugin.name


def named(name: str) -> list[Installed]:
    """The installed plugins with a name: the entry point's, else the distribution's."""
    wanted = normalized(name)
    by_entry = [plugin for plugin in installed() if normalized(plugin.name) == wanted]
    return by_entry or [
        plugin for plugin in installed() if wanted in (own := normalized(plugin.distribution), own.removeprefix(PREFIX))
    ]


def find(name: str, place: str = "") -> Installed:
    """The installed plugin with a name.

    Args:
        name: the entry point's or the distribution's name.
        place: where it is named, for the error.

    Raises:
        PluginError: there is none, or there are several.
    """
    found = named(name)
    if not found:
        raise PluginError(unknown(name, place))
    if len(found) > 1 and not found[0].rivals:
        names = ", ".join(repr(plugin.name) for plugin in found)
        raise PluginError(f"{found[0]} brings several plugins: {names}; name one of them, not {name!r}")
    if len(found) > 1:
        raise PluginError(clash(found[0]))
    return found[0]


def unknown(name: str, place: str = "") -> str:
    """The error message for a name that no installed plugin has.

    It suggests installing this project's own plugins only: a mistyped name may be a stranger's package.
    """
    known = sorted({normalized(plugin.name) for plugin in installed()})
    bare = normalized(name).removeprefix(PREFIX)
    meant = nearest(bare, [*known, *OFFICIAL], 0.7)
    hint = f" Did you mean {meant!r}?" if meant and meant != bare else ""
    get = f"\n{how_to_get(PREFIX + meant)}" if meant in OFFICIAL and meant not in known else ""
    named_by = f" ({place})" if place else ""
    return f"no plugin {name!r} is installed{named_by}.{hint} Installed: {', '.join(known) or 'none'}.{get}"


def clash(plugin: Installed) -> str:
    """The error message for a name that several distributions declare."""
    return (
        f"plugin {plugin.name!r} is declared by several distributions: {', '.join([str(plugin), *plugin.rivals])}.\n"
        f"Uninstall all but one (pip uninstall {plugin.distribution}), or name the distribution instead"
    )


def guarded(plugin: Installed, step: Callable[[], Any]) -> Any:
    """Run one step of loading a plugin; any error becomes a `PluginError` that names the plugin.

    Raises:
        PluginError: the step failed. Ctrl-C is raised as it is.
    """
    try:
        return step()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        from connectagent.hooks.distributions import way_out

        if isinstance(error, ConfigError):  # it works, and was given an option that it does not take
            raise PluginError(f"plugin {plugin.name!r} ({plugin}): {error}; without it: -p no:{plugin.name}") from error
        message = str(error) if isinstance(error, PluginError) else f"{type(error).__name__}: {error}"
        raise PluginError(
            f"plugin {plugin.name!r} ({plugin}) cannot be loaded: {message}\n{way_out(plugin, error)}"
        ) from error


def load(plugin: Installed, given: Mapping[str, Any]) -> Any:
    """Load a plugin: a module or an object; a class or a factory is called with the options.

    With `scope = "process"` it is called once for the same options, and all agents of the process share the result.

    Args:
        plugin: the plugin.
        given: options from code or the command line, which come before those of the project.

    Raises:
        PluginError: it cannot be loaded, or its options or its scope do not fit.
    """
    thing = guarded(plugin, lambda: imported(plugin))
    options = options_of(plugin)
    if not is_factory(thing):
        if options or given:
            place = options_place(plugin) if options else "options"
            raise PluginError(
                f"{place}: plugin {plugin.name!r} ({plugin}) takes no options: it is a "
                f"{type(thing).__name__}, and only a class or a factory has some\n"
                f"Remove them, or leave the plugin out: -p no:{plugin.name}"
            )
        return thing
    check_options(plugin, thing, options, given)
    options = {**options, **read_options(f"{plugin.name!r} ({plugin})", thing, given)}
    make = partial(thing, **options)
    scope = getattr(thing, "scope", "agent")
    if scope not in ("agent", "process"):
        raise PluginError(f"plugin {plugin.name!r} ({plugin}): scope is 'agent' or 'process', not {scope!r}")
    if scope == "agent":
        return guarded(plugin, make)
    key = (os.getpid(), thing, repr(sorted(options.items())))  # connections and threads do not survive a fork
    with holding(_process_wide_lock):
        if key not in _process_wide:
            _process_wide[key] = guarded(plugin, make)
        return _process_wide[key]


_process_wide: dict[Any, Any] = {}  # plugins with scope "process", by options
_process_wide_lock = threading.RLock()


def imported(plugin: Installed) -> Any:
    """The module or object that a plugin's entry point names.

    Raises:
        PluginError: the entry point has a known problem.
        BaseException: whatever its code raises.
    """
    if problem := problem_of(plugin):
        raise PluginError(problem)
    return plugin.entry.load()


def problem_of(plugin: Installed) -> str | None:
    """Why a plugin cannot be loaded, as far as its distribution tells without being imported."""
    from connectagent.hooks.distributions import unfit

    return plugin.problem or unfit(plugin, str(vars(sys.modules[PROJECT])["__version__"]))


def is_factory(thing: object) -> bool:
    """Whether an entry point names a class, or a function that makes the plugin."""
    return isinstance(thing, type) or (inspect.isroutine(thing) and not marks_of(thing))


def options_of(plugin: Installed) -> dict[str, Any]:
    """`[tool.connectagent.<plugin>]` of the project; {} without one.

    Raises:
        ConfigError: they contain an address, code or a path that the person has not allowed.
    """
    names, found = table_names(plugin), {}
    for key, table in project_settings().items():
        if isinstance(table, dict) and normalized(key) in names:
            check_allowed(key)
            found.update(table)
    return found


def table_names(plugin: Installed) -> tuple[str, str, str]:
    """The normalized names that a plugin's table of options may have."""
    own = normalized(plugin.distribution)
    return normalized(plugin.name), own, own.removeprefix(PREFIX)


def refuse_options_of_settings(plugin: Installed, named: str) -> None:
    """Refuse options of the project for a guard that code, the command line or the environment names.

    They could widen it.

    Args:
        plugin: the guard.
        named: where it is named.

    Raises:
        PluginError: there are some.
    """
    if options_of(plugin):
        there = f"plugins=[({plugin.name!r}, {{...}})]" if named == "code" else f"-p {plugin.name}:OPTION=VALUE"
        place = named if named == "code" else f"the {'' if named == 'command line' else 'variable '}{named}"
        raise PluginError(
            f"{options_place(plugin)} gives options to plugin {plugin.name!r}, which {place} names and which may guard "
            f"tools. Give them in code or on the command line, {there}, or name the plugin in that file only"
        )


def options_place(plugin: Installed) -> str:
    """The place of a plugin's options, for errors."""
    return f"{project_file() or 'pyproject.toml'}: [tool.connectagent.{plugin.name}]"


def check_options(
    plugin: Installed, factory: Callable[..., Any], options: dict[str, Any], given: Mapping[str, Any]
) -> None:
    """Check a plugin's options in the project's file against its signature; `given` are the others.

    Raises:
        PluginError: an option is unknown, or a required one is missing.
    """
    parameters = guarded(plugin, lambda: inspect.signature(factory)).parameters.values()
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for name in options:
        if name not in known and not takes_any:
            hint = did_you_mean(name, known, 0.5)
            raise PluginError(
                f"{options_place(plugin)} has an unknown option {name!r}.{hint} Plugin {plugin.name!r} ({plugin}) "
                f"takes: {', '.join(known) or 'none'}\nCorrect it there, or leave the plugin out: -p no:{plugin.name}"
            )
    missing = missing_options(factory, {**options, **given})
    if missing:
        raise PluginError(
            f"plugin {plugin.name!r} ({plugin}) needs the option {missing[0]!r}: set it in {options_place(plugin)}, "
            f"in code, plugins=[({plugin.name!r}, {{{missing[0]!r}: ...}})], or give the object itself, plugins=[...]; "
            "a handler needs its marker"
        )


def missing_options(factory: Callable[..., Any], options: dict[str, Any]) -> list[str]:
    """The required options of a factory that were not given."""
    return [
        parameter.name
        for parameter in inspect.signature(factory).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and parameter.name not in options
    ]


def check_required(handlers: Iterable[Any]) -> None:
    """Check that the plugins that others require are installed: `requires = ("otel",)` in a module, class or object.

    Raises:
        PluginError: one is missing; the message says how to get it.
    """
    listed = list(handlers)
    there = {normalized(handler.plugin) for handler in listed}
    for handler in listed:
        required = getattr(handler.thing, "requires", ())
        required = (required,) if isinstance(required, str) else required
        for name in required if isinstance(required, tuple | list) else ():
            if normalized(str(name)) not in there:
                get = f" {how_to_get(f'{PREFIX}{name}')}." if name in OFFICIAL and not named(str(name)) else ""
                raise PluginError(
                    f"plugin {handler.plugin!r} requires plugin {name!r}, which this agent does not have.{get} Name it "
                    f"too: plugins=[{name!r}, {handler.plugin!r}]"
                )
