"""Installed plugins: what distributions declare as entry points, and what becomes of it when it is loaded.

    [project.entry-points.connectagent]              the plugin by its name: a module, or "module:object"
    [project.entry-points."connectagent.models"]     the same, by the prefix of each model that it brings
    [project.entry-points."connectagent.commands"]   the same, by the name of each command that it brings

The first makes a plugin available and no more: it acts where it is named. The other two are for
`register_models` and `register_commands`, which need no naming; an entry point cannot tell what it brings
without being loaded, so its name does.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from connectagent.errors import PluginError, did_you_mean, nearest
from connectagent.hooks.markers import marks_of
from connectagent.hooks.specs import PROJECT
from connectagent.settings import project_file, project_settings

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

MODELS = f"{PROJECT}.models"
COMMANDS = f"{PROJECT}.commands"
PREFIX = f"{PROJECT}-"
# Where plugins are named. All other places are settings: a file's path, or an environment variable.
CODE, USE, PERSON, BY_DEFAULT = "code", "connectagent.use()", "command line", "default"
IN_CODE = (CODE, USE)

OFFICIAL = ("adk", "approve", "artifacts", "memory", "reflect")  # the plugins that this project publishes


def normalized(name: str) -> str:
    """A name in the one spelling that PEP 503 gives to all that are equal."""
    return re.sub(r"[-_.]+", "-", name).lower()


@dataclass(frozen=True, slots=True)
class Installed:
    """One entry point of an installed distribution.

    Args:
        entry: the entry point.
        rivals: the other distributions that declare the same name, which is then nobody's.
    """

    entry: EntryPoint
    rivals: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The entry point's name."""
        return self.entry.name

    @property
    def distribution(self) -> str:
        """The distribution's name, as it writes it."""
        return self.entry.dist.name if self.entry.dist else self.entry.value

    @property
    def version(self) -> str | None:
        """The distribution's version."""
        return self.entry.dist.version if self.entry.dist else None

    def __str__(self) -> str:
        return f"{self.distribution} {self.version or ''}".rstrip()


def installed(group: str = PROJECT) -> tuple[Installed, ...]:
    """What is declared in a group of entry points, in the order of names; read once for each `sys.path`."""
    return _read(group, tuple(sys.path))


@lru_cache(maxsize=16)
def _read(group: str, path: tuple[str, ...]) -> tuple[Installed, ...]:
    from importlib.metadata import entry_points  # it takes a third of the time of importing all of this package

    by_name: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=group):
        by_name.setdefault(normalized(entry.name), []).append(entry)
    found = []
    for _, entries in sorted(by_name.items()):
        for entry in entries:
            rivals = [str(Installed(other)) for other in entries if other is not entry]
            found.append(Installed(entry, tuple(rivals)))
    return tuple(found)


def undeclared(group: str) -> list[Installed]:
    """The plugins whose distributions declare nothing in a group, and that may bring something all the same."""
    declared = {plugin.distribution for plugin in installed(group)}
    return [plugin for plugin in installed() if plugin.distribution not in declared and not plugin.rivals]


def own_name(plugin: Installed) -> str:
    """The plugin's own name, where an entry is named after a model or command that it brings."""
    names = [other.name for other in installed() if other.distribution == plugin.distribution]
    return names[0] if len(names) == 1 else plugin.name


def named(name: str) -> list[Installed]:
    """The installed plugins that a name means: by the entry point's name, else by the distribution's."""
    wanted = normalized(name)
    by_entry = [plugin for plugin in installed() if normalized(plugin.name) == wanted]
    return by_entry or [
        plugin for plugin in installed() if wanted in (own := normalized(plugin.distribution), own.removeprefix(PREFIX))
    ]


def find(name: str, place: str = "") -> Installed:
    """The installed plugin that a name means.

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
        raise PluginError(f"{found[0]} brings several plugins: {names}; name the one that is meant, not {name!r}")
    if len(found) > 1:
        raise PluginError(clash(found[0]))
    return found[0]


def unknown(name: str, place: str = "") -> str:
    """What is said of a name that no installed plugin has.

    Only this project's own plugins are advised to be installed: a mistyped name may be a stranger's package.
    """
    known = sorted({normalized(plugin.name) for plugin in installed()})
    bare = normalized(name).removeprefix(PREFIX)
    meant = nearest(bare, [*known, *OFFICIAL])
    hint = f" Did you mean {meant!r}?" if meant and meant != bare else ""
    get = f"\nInstall it: pip install {PREFIX}{meant}" if meant in OFFICIAL and meant not in known else ""
    named_by = f" ({place})" if place else ""
    return f"no plugin {name!r} is installed{named_by}.{hint} Installed: {', '.join(known) or 'none'}.{get}"


def clash(plugin: Installed) -> str:
    """What is said of a name that several distributions declare."""
    return (
        f"plugin {plugin.name!r} is declared by several distributions: {', '.join([str(plugin), *plugin.rivals])}.\n"
        f"Uninstall all but one (pip uninstall {plugin.distribution}), or name the distribution that is meant"
    )


def guarded(plugin: Installed, step: Callable[[], Any]) -> Any:
    """Run one step of a plugin's loading; whatever it raises is told as that plugin's error.

    Raises:
        PluginError: the step failed, or called `sys.exit`.
    """
    try:
        return step()
    except (Exception, SystemExit) as error:
        said = str(error) if isinstance(error, PluginError) else f"{type(error).__name__}: {error}"
        raise PluginError(
            f"plugin {plugin.name!r} ({plugin}) cannot be loaded: {said}\n{way_out(plugin, error)}"
        ) from error


def load(plugin: Installed) -> Any:
    """What a plugin's entry point means: a module or an object; a class or a factory is called with the options.

    With `scope = "process"` it is called once, and all agents of the process that have the same options share what it
    made.

    Raises:
        PluginError: it cannot be loaded, or its options or its scope do not fit.
    """
    thing = guarded(plugin, plugin.entry.load)
    options = options_of(plugin)
    if not is_factory(thing):
        if options:
            raise PluginError(
                f"{options_place(plugin)}: plugin {plugin.name!r} ({plugin}) takes no options: it is a "
                f"{type(thing).__name__}, and only a class or a factory has some; remove the table"
            )
        return thing
    check_options(plugin, thing, options)
    make = partial(thing, **options)
    scope = getattr(thing, "scope", "agent")
    if scope not in ("agent", "process"):
        raise PluginError(f"plugin {plugin.name!r} ({plugin}): scope is 'agent' or 'process', not {scope!r}")
    if scope == "agent":
        return guarded(plugin, make)
    key = (os.getpid(), thing, repr(sorted(options.items())))  # connections and threads do not survive a fork
    with _process_wide_lock:
        if key not in _process_wide:
            _process_wide[key] = guarded(plugin, make)
        return _process_wide[key]


_process_wide: dict[Any, Any] = {}  # plugins of which all agents of the process share one, by options
_process_wide_lock = threading.RLock()


def is_factory(thing: Any) -> bool:
    """Whether a plugin is a class, or a function that makes one, rather than the plugin itself."""
    return isinstance(thing, type) or (inspect.isroutine(thing) and not marks_of(thing))


def options_of(plugin: Installed) -> dict[str, Any]:
    """`[tool.connectagent.<plugin>]` of the project; {} without one."""
    names = table_names(plugin)
    tables = {key: value for key, value in project_settings().items() if isinstance(value, dict)}
    return {name: value for key, table in tables.items() if normalized(key) in names for name, value in table.items()}


def table_names(plugin: Installed) -> tuple[str, str, str]:
    """The normalized names that a plugin's table of options may have."""
    own = normalized(plugin.distribution)
    return normalized(plugin.name), own, own.removeprefix(PREFIX)


def options_place(plugin: Installed) -> str:
    """Where a plugin's options stand, for errors."""
    return f"{project_file() or 'pyproject.toml'}: [tool.connectagent.{plugin.name}]"


def check_options(plugin: Installed, factory: Callable[..., Any], options: dict[str, Any]) -> None:
    """Hold a plugin's options against its own signature.

    Raises:
        PluginError: an option is unknown, or one that is needed is missing.
    """
    parameters = guarded(plugin, lambda: inspect.signature(factory)).parameters.values()
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for name in options:
        if name not in known and not takes_any:
            hint = did_you_mean(name, known, 0.5)
            raise PluginError(
                f"{options_place(plugin)} has an unknown option {name!r}.{hint} Plugin {plugin.name!r} ({plugin}) "
                f"takes: {', '.join(known) or 'none'}"
            )
    missing = missing_options(factory, options)
    if missing:
        raise PluginError(
            f"plugin {plugin.name!r} ({plugin}) needs the option {missing[0]!r}: set it in {options_place(plugin)}, "
            "or give the object itself, plugins=[...]; a handler needs its marker"
        )


def missing_options(factory: Callable[..., Any], options: dict[str, Any]) -> list[str]:
    """The options without which a factory cannot be called, and that were not given."""
    return [
        parameter.name
        for parameter in inspect.signature(factory).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and parameter.name not in options
    ]


def way_out(plugin: Installed, error: BaseException) -> str:
    """What somebody can do about a plugin that cannot be loaded."""
    remove = f"leave it out: -p no:{plugin.name}; or remove it: connectagent plugins uninstall {plugin.name}"
    own = plugin.entry.module.partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and error.name and error.name.partition(".")[0] not in (own, PROJECT):
        return f"Install what it needs: pip install {error.name.partition('.')[0]}; or {remove}"
    return f"Install a version that works: pip install -U {plugin.distribution}; or {remove}"


def leaves_out(item: Any) -> bool:
    """Whether an item of a list of plugins is `"no:name"`."""
    return isinstance(item, str) and item.startswith("no:")


class LeftOut:
    """Which plugins are left out, by `"no:name"`.

    Settings and environment take away what they brought, and what is there by default. What code or the command
    line names stays, unless one of these leaves it out.

    Args:
        items: everything that is named, each with its place.
        built_in: the names of the package's own plugins, for which no entry point is read.
    """

    def __init__(self, items: list[tuple[Any, str]], built_in: Iterable[str]) -> None:
        self.items: dict[str, tuple[str, str]] = {}  # by normalized name: as it was written, and where
        self.by_settings: set[str] = set()
        self.by_person: set[str] = set()
        self.by_code: set[str] = set()
        for item, place in items:
            if not leaves_out(item):
                continue
            names = {normalized(item[3:])}
            self.items[normalized(item[3:])] = (item, place)
            if normalized(item[3:]) not in built_in:
                names |= {normalized(plugin.name) for plugin in named(item[3:])}
            by = self.by_code if place in IN_CODE else self.by_person if place == PERSON else self.by_settings
            by |= names

    def __call__(self, name: str, place: str) -> bool:
        """Whether a plugin that was named in a place is left out."""
        stays = place in (*IN_CODE, PERSON)
        by = [self.by_code, self.by_person] if stays else [self.by_code, self.by_person, self.by_settings]
        return any(normalized(name) in names for names in by)

    def check(self, known: set[str]) -> None:
        """Refuse a name that there is none of.

        Raises:
            PluginError: what was written, where, and what was meant perhaps.
        """
        for name, (item, place) in self.items.items():
            if name not in known and not named(name):
                near = nearest(name, known)
                hint = f" Did you mean 'no:{near}'?" if near else ""
                there = ", ".join(sorted(known))
                raise PluginError(f"{item!r} ({told_place(place)}): there is no plugin {name!r}.{hint} Known: {there}")


def told_place(place: str) -> str:
    """Where a plugin is named, for errors."""
    if place.startswith("CONNECTAGENT_"):
        return f"named by the environment variable {place}"
    return {CODE: "named in code", PERSON: "named on the command line"}.get(place, f"named by {place}")
