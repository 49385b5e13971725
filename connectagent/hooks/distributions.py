"""The entry points of installed distributions, read one distribution at a time.

`importlib.metadata.entry_points()` fails as a whole where one distribution has no METADATA, or entry points that are
not UTF-8. No plugin is imported here.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from importlib.metadata import Distribution, EntryPoint, distributions
from typing import Protocol

from connectagent.hooks.contract import PROJECT

Declared = tuple[EntryPoint, str, str | None, str | None]
"""An entry point, its distribution's name and version, and why it cannot be loaded, if known."""


def declared(groups: Collection[str]) -> list[Declared]:
    """The entry points of all distributions on `sys.path` in these groups.

    Args:
        groups: the groups; one that ends with a dot stands for those below it. Entry points that cannot be read are one
            broken entry of the first group, if their text names it.
    """
    found: list[Declared] = []
    seen: set[str] = set()
    for distribution in distributions():
        name = str(getattr(distribution, "_normalized_name", "") or _named(distribution)[0])
        if name not in seen:  # of two in different folders, Python imports the first
            seen.add(name)
            found += _declared_by(distribution, groups)
    return found


def _declared_by(distribution: Distribution, groups: Collection[str]) -> list[Declared]:
    try:
        entries = [entry for entry in distribution.entry_points if _is_of(entry.group, groups)]
    except Exception as error:
        return _unreadable(distribution, next(iter(groups)), error)
    if not entries:
        return []
    name, version, problem = _named(distribution)
    return [(entry, name, version, problem or _wrong_value(entry)) for entry in entries]


def _is_of(group: str, groups: Collection[str]) -> bool:
    """Whether a group of entry points is one of these, or below one that ends with a dot."""
    return group in groups or group[: group.rfind(".") + 1] in groups


def _unreadable(distribution: Distribution, group: str, error: Exception) -> list[Declared]:
    try:
        raw = distribution._path.joinpath("entry_points.txt").read_bytes()  # type: ignore[attr-defined]
    except Exception:
        raw = b""
    name, version, _ = _named(distribution)
    if group.encode() not in raw:
        return []
    bare = re.sub(r"[-_.]+", "-", name).lower().removeprefix(f"{group}-")
    problem = f"its entry_points.txt cannot be read: {type(error).__name__}: {error}"
    return [(EntryPoint(bare, "?", group), name, version, problem)]


def _named(distribution: Distribution) -> tuple[str, str | None, str | None]:
    """The distribution's name, version and problem. Without a name in METADATA, they come from the folder's name."""
    with suppress(Exception):  # there is no METADATA, or it cannot be read
        if name := distribution.metadata["Name"]:
            return str(name), distribution.metadata["Version"], None
    folder = str(getattr(getattr(distribution, "_path", None), "name", "") or "a distribution without a name")
    bare, _, version = folder.rpartition(".")[0].partition("-")
    return bare or folder, version or None, f"{folder} has no METADATA that names it"


def _wrong_value(entry: EntryPoint) -> str | None:
    with suppress(Exception):  # no `module:object`
        if entry.module:
            return None
    return f"its entry point {entry.name} = {entry.value!r:.80} names no module"


class InstalledPlugin(Protocol):
    """A plugin of an installed distribution: `entry_points.Installed`."""

    @property
    def name(self) -> str: ...
    @property
    def entry(self) -> EntryPoint: ...
    @property
    def distribution(self) -> str: ...


def way_out(plugin: InstalledPlugin, error: BaseException) -> str:
    """How to fix or remove a plugin that cannot be loaded, for errors; `plugin` is an `Installed`."""
    remove = f"leave it out: -p no:{plugin.name}; or remove it: connectagent plugins uninstall {plugin.name}"
    own = re.split(r"[.:]", plugin.entry.value)[0].strip()
    missing = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if missing and missing not in (own, PROJECT):
        return f"{_how_to_get(missing, plugin)}; or {remove}"
    return f"Install a version that works: pip install -U {plugin.distribution}; or {remove}"


def _how_to_get(module: str, plugin: InstalledPlugin) -> str:
    """How to get a library that a plugin imports.

    Only what its distribution requires is named to be installed: under any other name, a stranger may have registered
    another package.
    """
    for one in (plugin.entry.dist.requires if plugin.entry.dist else None) or []:
        requirement = one.partition(";")[0].strip()
        if re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement)[0]).lower() == module.replace("_", "-").lower():
            return f"Install what it needs: pip install '{requirement}'"
    return f"{plugin.distribution} requires nothing named {module}: its documentation may say what to install"


_CLAUSE = re.compile(r"\s*(===|~=|==|!=|<=|>=|<|>)\s*v?(\d+(?:\.\d+)*)(\.\*)?((?:a|b|rc|\.?dev|\.?post)\d*)?\s*")


def unfit(plugin: InstalledPlugin, version: str) -> str | None:
    """Why a plugin's distribution does not go with this version of connectagent, or None.

    Args:
        plugin: an `Installed`.
        version: of connectagent.
    """
    requires = (plugin.entry.dist.requires if plugin.entry.dist else None) or []
    for one in requires:
        requirement = one.partition(";")[0].strip()
        match = re.fullmatch(rf"{PROJECT}\s*(?:\[[^\]]*\])?\s*\(?([^)]*)\)?", requirement)
        wanted = match[1].strip() if match else ""
        if wanted and not all(_fits(version, clause) for clause in wanted.split(",")):
            return f"{plugin.distribution} needs {PROJECT} {wanted}, and this is {version}"
    return None


def _fits(version: str, clause: str) -> bool:
    """Whether a version is one that a clause of a requirement names; True where the clause is none of the usual ones.

    Of the rules of https://packaging.python.org/specifications/version-specifiers/ these are the ones for releases.
    """
    match = _CLAUSE.fullmatch(clause)
    if match is None:
        return True
    operator, written, any_below, _ = match.groups()
    own, other = (tuple(map(int, re.findall(r"\d+", text.split("+")[0])[:3])) for text in (version, written))
    width = max(len(own), len(other))
    left, right = (tuple([*one, *[0] * (width - len(one))]) for one in (own, other))
    begins = own[: len(other)] == other
    if operator == "~=":
        return left >= right and own[: len(other) - 1] == other[:-1]
    if operator in ("==", "===", "!="):
        return (begins if any_below else left == right) is not (operator == "!=")
    compared = {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}
    return compared[operator]
