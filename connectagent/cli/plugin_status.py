"""The status of installed plugins, as declared or after loading them."""

from __future__ import annotations

import contextlib
import io
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from connectagent.errors import ConfigError, ConnectAgentError, PluginError
from connectagent.hooks.contract import PROJECT
from connectagent.hooks.discovery import handlers_of
from connectagent.hooks.distributions import way_out
from connectagent.hooks.entry_points import (
    COMMANDS,
    MODELS,
    Installed,
    clash,
    guarded,
    imported,
    installed,
    is_factory,
    missing_options,
    named,
    normalized,
    options_of,
    options_place,
    problem_of,
    table_names,
)
from connectagent.hooks.handler import RESOURCE, Handler
from connectagent.hooks.markers import marks_of
from connectagent.hooks.specs import CONTRACTS
from connectagent.settings import named_plugins, project_file, project_settings, refusal


@dataclass
class Status:
    """The status of one plugin for `plugins list` and `plugins doctor`.

    Args:
        status: `installed` (it was not loaded), `ok`, `broken`, `needs options` (it loads, and cannot be made
            without them), or `not checked` (the project's settings cannot be read).
        hooks: the hooks that it has handlers for.
        source: the entry point's value and the folder of the distribution.
        named_by: where it is named for every agent.
        error: what is wrong; `way_out` says how to fix it.
        load_ms: how long it took to load.
    """

    name: str
    distribution: str
    version: str | None
    status: str
    hooks: list[str]
    source: str
    named_by: list[str]
    error: str | None = None
    way_out: str | None = None
    load_ms: float = 0.0
    handlers: list[Handler] = field(default_factory=list, repr=False)

    def data(self) -> dict[str, Any]:
        """The status as data, for `--json`."""
        return {key: value for key, value in vars(self).items() if key != "handlers"}


def everything() -> list[Installed]:
    """The installed plugins, and further entry points for models and commands."""
    found: dict[tuple[str, str], Installed] = {}
    for group in (PROJECT, MODELS, COMMANDS):
        for plugin in installed(group):
            found.setdefault((plugin.distribution, plugin.entry.value), plugin)
    return list(found.values())


def declared(plugin: Installed) -> Status:
    """The status of a plugin as declared, without loading it."""
    try:
        folder: Any = plugin.entry.dist.locate_file("") if plugin.entry.dist else "?"
    except Exception:
        folder = "?"
    source, named_by = f"{plugin.entry.value} in {folder}", _named_by(plugin)
    status = Status(plugin.name, plugin.distribution, plugin.version, "installed", [], source, named_by)
    if problem := problem_of(plugin):
        _break(status, PluginError(f"{problem}\n{way_out(plugin, PluginError())}"), plugin)
    elif plugin.rivals:
        _break(status, PluginError(clash(plugin)), plugin)
    return status


def status_of(plugin: Installed) -> Status:
    """Load a plugin with its output hidden, and return its status."""
    status = declared(plugin)
    started = time.perf_counter()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            _look(plugin, status)
    except ConfigError as error:  # of the project's file, not of the plugin
        status.status, status.error, status.way_out = "not checked", str(error), "repair that file"
    except ConnectAgentError as error:
        _break(status, error, plugin)
    status.load_ms = round(1000 * (time.perf_counter() - started), 2)
    return status


def _break(status: Status, error: ConnectAgentError, plugin: Installed) -> None:
    problem, _, hint = str(error).rpartition("\n")
    status.status, status.error = "broken", problem or hint
    status.way_out = hint if problem else way_out(plugin, error)


def _look(plugin: Installed, status: Status) -> None:
    options, thing = options_of(plugin), guarded(plugin, lambda: imported(plugin))
    if is_factory(thing) and guarded(plugin, lambda: missing_options(thing, options)) and _needs_options(status, thing):
        return
    try:
        status.handlers = list(handlers_of(plugin))
    except PluginError as error:  # of a plugin that has no options yet, and says that it cannot do without
        if options or not isinstance(error.__cause__, ConfigError) or not _needs_options(status, thing):
            raise
        status.error, status.way_out = str(error.__cause__), f"set them in {options_place(plugin)}, or in code"
        return
    if status.status == "installed":
        status.status = "ok"
    hooks = {handler.hook for handler in status.handlers}
    status.hooks = [hook for hook in (*CONTRACTS, RESOURCE) if hook in hooks]


def _needs_options(status: Status, thing: object) -> bool:
    """Note that a plugin needs options, if it is a class with handlers; whether it is."""
    members = [member for cls in getattr(thing, "__mro__", ()) for member in vars(cls).values()]
    hooks = {hook for member in members for hook in marks_of(member)}
    if not isinstance(thing, type) or not hooks:
        return False
    status.status, status.hooks = "needs options", [hook for hook in (*CONTRACTS, RESOURCE) if hook in hooks]
    return True


def _named_by(plugin: Installed) -> list[str]:
    try:
        listed = [(name.removeprefix("shadow:"), place) for name, place in named_plugins()]
        return [place for name, place in listed if not name.endswith(".py") and plugin in named(name)]
    except ConnectAgentError:  # of the project's file, which `doctor` reports
        return []


def project_problems() -> list[str]:
    """What is wrong with how the project and the environment name plugins and their options."""
    try:
        listed, tables = named_plugins(), project_settings()
    except ConnectAgentError as error:
        return [str(error)]
    not_allowed = refusal()
    problems = [not_allowed] if not_allowed else []
    for name, place in listed:
        bare = name.removeprefix("no:").removeprefix("shadow:")
        if bare.endswith(".py"):
            if not Path(bare).is_file():
                problems.append(f"{place} names {bare!r}, and there is no such file")
        elif not named(bare) and not name.startswith("no:"):
            problems.append(f"{place} names {bare!r}, and no such plugin is installed")
    known = {name for plugin in everything() for name in table_names(plugin)}
    for key, value in tables.items():
        if isinstance(value, dict) and normalized(key) not in known:
            problems.append(f"{project_file()}: [tool.connectagent.{key}] holds options of no plugin that is installed")
    return problems


def shared_names() -> list[str]:
    """The model prefixes and commands that several distributions declare, or that are built in."""
    from connectagent.cli.commands import COMMANDS as OWN

    problems = []
    for group, what in ((MODELS, "model prefix"), (COMMANDS, "command")):
        for plugin in installed(group):
            if plugin.rivals:
                others = ", ".join(plugin.rivals)
                problems.append(f"{what} {plugin.name!r} of {plugin} is brought by {others} too: uninstall one")
            elif group == COMMANDS and plugin.name in OWN:
                problems.append(f"command {plugin.name!r} of {plugin} is an own one of connectagent and never runs")
    return problems
