"""Which plugins are left out by `"no:name"`, and who may leave out which."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from connectagent.errors import PluginError, nearest
from connectagent.hooks.entry_points import named, normalized

# The places that name plugins. Any other place is the path of a project's file.
CODE, USE, PERSON, BY_DEFAULT = "code", "connectagent.use()", "command line", "default"
ENVIRONMENT = "CONNECTAGENT_PLUGINS"
IN_CODE = (CODE, USE)
_met: set[str] = set()  # the names behind "no:" that an agent of this process knew
_waiting: list[dict[str, PluginError]] = []  # of the agents that are made together: the names that none knew so far


def leaves_out(item: object) -> bool:
    """Whether an item of a list of plugins is `"no:name"`."""
    return isinstance(item, str) and item.startswith("no:")


class LeftOut:
    """The plugins that are left out by `"no:name"`.

    `"no:name"` in a project's file leaves out plugins of that file and defaults, in the environment those of the
    environment too. A plugin that code or the command line names is left out only by code or the command line.

    Args:
        items: everything that is named, each with its place.
        built_in: the names of the built-in plugins, for which no entry point is read.
    """

    def __init__(self, items: list[tuple[Any, str]], built_in: Iterable[str]) -> None:
        self.items: dict[str, tuple[str, str]] = {}  # by normalized name: as written, and its place
        self.by_project: set[str] = set()
        self.by_environment: set[str] = set()
        self.by_person: set[str] = set()
        self.by_code: set[str] = set()
        for item, place in items:
            if not leaves_out(item):
                continue
            names = {normalized(item[3:])}
            self.items[normalized(item[3:])] = (item, place)
            if normalized(item[3:]) not in built_in:
                names |= {normalized(plugin.name) for plugin in named(item[3:])}
            self._by(place).update(names)

    def __call__(self, name: str, place: str) -> bool:
        """Whether a plugin named in a place is left out."""
        by = [self.by_code, self.by_person]
        if place not in (*IN_CODE, PERSON):
            by += [self.by_environment] if place == ENVIRONMENT else [self.by_environment, self.by_project]
        known_as = normalized(name)
        return any(known_as in names for names in by)

    def _by(self, place: str) -> set[str]:
        known = {CODE: self.by_code, USE: self.by_code, PERSON: self.by_person, ENVIRONMENT: self.by_environment}
        return known.get(place, self.by_project)

    def built_in(self, name: str, in_code: Collection[str] = ()) -> bool:
        """Whether a built-in plugin is left out; `in_code`: the names that code asked for."""
        return self(name, CODE if name in in_code else BY_DEFAULT)

    def check(self, known: set[str]) -> None:
        """Refuse unknown names.

        Raises:
            PluginError: a name is unknown; the message quotes it with its place and suggests another. What the person
                leaves out need be known to one of the agents made `for_all()` only.
        """
        for name, (item, place) in self.items.items():
            if name in known or named(name):
                _met.add(name)
            elif place != PERSON or name not in _met:
                near = nearest(name, known)
                hint = f" Did you mean 'no:{near}'?" if near else ""
                where, listed = describe_place(place), ", ".join(sorted(known))
                error = PluginError(f"{item!r} ({where}): there is no plugin {name!r}.{hint} Known: {listed}")
                if place != PERSON or not _waiting:
                    raise error
                _waiting[-1].setdefault(name, error)


@contextmanager
def for_all() -> Iterator[None]:
    """Make several agents, as a script does: what the person leaves out may be a plugin of one of them only.

    Raises:
        PluginError: none of the agents has a plugin that the person leaves out.
    """
    _waiting.append({})
    try:
        yield
    except BaseException:
        _waiting.pop()
        raise
    for name, error in _waiting.pop().items():
        if name not in _met:
            raise error


def describe_place(place: str) -> str:
    """The place that names a plugin, for errors."""
    if place == ENVIRONMENT:
        return f"named by the environment variable {place}"
    return {CODE: "named in code", PERSON: "named on the command line"}.get(place, f"named by {place}")
