"""Options of plugins on the command line: `--budget-usd 2` is `-p budget:usd=2`."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import click

from connectagent.errors import PluginError, did_you_mean, nearest
from connectagent.hooks.entry_points import (
    OFFICIAL,
    PREFIX,
    Installed,
    find,
    guarded,
    how_to_get,
    imported,
    installed,
    is_factory,
    normalized,
)
from connectagent.hooks.options import Configured, Text, from_text, is_flag
from connectagent.settings import overrides

_GIVEN = "connectagent.plugin_options"

Command = TypeVar("Command", bound=Callable[..., Any])


class AgentCommand(click.Command):
    """A command that takes options of installed plugins. Such an option names its plugin too, which is loaded then."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = {name: one for one in self.get_params(ctx) for name in (*one.opts, *one.secondary_opts)}
        rest, left = [], list(args)
        while left:
            name, equals, value = left.pop(0).partition("=")
            if name in own or name == "--" or not name.startswith("--"):
                rest.append(f"{name}{equals}{value}")
                count = len(left) if name == "--" else _values(own.get(name)) - bool(equals)
                count = max(count, 0)
                rest, left = [*rest, *left[:count]], left[count:]
            else:
                ctx.meta.setdefault(_GIVEN, []).append(_read(ctx, name, value if equals else None, left, own))
        return super().parse_args(ctx, rest)

    def invoke(self, ctx: click.Context) -> Any:
        overrides["agent_options"] = options_of(ctx.params)  # for the command that goes on with a session
        return super().invoke(ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Say how options of plugins are given; listing them would load the plugins."""
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text("--PLUGIN-OPTION VALUE adds an installed plugin, as -p PLUGIN:OPTION=VALUE does.")


def _values(option: click.Parameter | None) -> int:
    """How many of the arguments that follow are the value of an option."""
    return 0 if option is None or getattr(option, "is_flag", True) else option.nargs


def plugin_option(help: str, metavar: str = "PLUGIN") -> Callable[[Command], Command]:
    """The option `-p` of a command."""
    return click.option("-p", "plugins", metavar=metavar, multiple=True, callback=with_given, help=help)


def with_given(ctx: click.Context, parameter: click.Parameter, value: tuple[Any, ...]) -> tuple[Any, ...]:
    """The callback of `-p`: its values, and the plugins whose own options were given.

    Raises:
        click.UsageError: an option of a plugin is given twice.
    """
    from connectagent.hooks.discovery import options_given

    plugins = (*value, *ctx.meta.get(_GIVEN, ()))
    try:
        options_given(from_text(one) if isinstance(one, str) else one for one in plugins)
    except PluginError as error:
        raise click.UsageError(str(error), ctx) from None
    return plugins


def options_of(given: Mapping[str, Any]) -> str:
    """The options of a command line that make an agent what it is, to be typed again."""
    return " ".join(_typed(given))


def _typed(given: Mapping[str, Any]) -> Iterator[str]:
    """The options that make an agent what it is, quoted: without them it may lack a guard."""
    for name in ("model", "trust"):
        if given.get(name) is not None:
            yield f"--{name} {shlex.quote(given[name])}"
    for plugin in given.get("plugins") or ():
        if not isinstance(plugin, Configured):
            yield f"-p {shlex.quote(plugin)}"
            continue
        for option, value in plugin.options.items():
            yield f"--{normalized(plugin.name)}-{option.replace('_', '-')}={shlex.quote(str(value))}"  # fits flags too


def _read(ctx: click.Context, name: str, value: str | None, left: list[str], own: Iterable[str]) -> Configured:
    """The plugin and the value of an option; a value that follows is taken from `left`. `own` are the command's own.

    Raises:
        click.UsageError: there is no such plugin or option, or it has no value.
    """
    plugin = _plugin_of(ctx, name, own)
    prefix = f"--{normalized(plugin.name)}-"
    parameters = _parameters(plugin)
    option = name.removeprefix(prefix).replace("-", "_")
    if option not in parameters:
        known = [prefix + one.replace("_", "-") for one in parameters]
        listed = ", ".join(known) or "none"
        raise click.UsageError(f"no option {name!r}.{did_you_mean(name, known)} Those of {plugin}: {listed}", ctx)
    if value is None and is_flag(parameters[option]):
        value = "true"
    elif value is None:
        if not left:
            raise click.UsageError(f"option {name!r} needs a value", ctx)
        value = left.pop(0)
    return Configured(plugin.name, {option: Text(value)})


def _plugin_of(ctx: click.Context, name: str, own: Iterable[str]) -> Installed:
    names = [normalized(plugin.name) for plugin in installed()]
    found = max((one for one in names if name.startswith(f"--{one}-")), key=len, default=None)
    first = name[2:].partition("-")[0]
    if found is None and first in OFFICIAL:
        get = how_to_get(PREFIX + first)
        raise click.UsageError(f"no option {name!r}: the plugin {first} is not installed.\n{get}", ctx)
    if found is None:
        near = nearest(first, names, 0.7)
        plugins = [f"--{near}-{name[2:].partition('-')[2]}"] if near else []
        raise click.UsageError(f"no option {name!r}.{did_you_mean(name, [*own, *plugins])}", ctx)
    return find(found)


def _parameters(plugin: Installed) -> dict[str, inspect.Parameter]:
    factory = guarded(plugin, lambda: imported(plugin))
    if not is_factory(factory):
        return {}
    parameters = guarded(plugin, lambda: inspect.signature(factory)).parameters.values()
    return {one.name: one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
