"""`connectagent plugins`: lists, inspects, installs, writes and checks plugins."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import click

from connectagent.cli import installer
from connectagent.cli.core_check import core_problems
from connectagent.cli.new import new
from connectagent.cli.plan import handler_text, plan_of, text_of
from connectagent.cli.plugin_check import LIMIT_S, check
from connectagent.cli.plugin_commands import OpenGroup
from connectagent.cli.plugin_lock import lock
from connectagent.cli.plugin_status import Status, declared, everything, project_problems, shared_names, status_of
from connectagent.commands import script
from connectagent.commands.failure import plain, usage_error
from connectagent.commands.plugin_options import AgentCommand
from connectagent.errors import PluginError
from connectagent.hooks.entry_points import Installed, normalized, unknown
from connectagent.hooks.own import hooks_of
from connectagent.output.rows import many

if TYPE_CHECKING:
    from connectagent.hooks.entry_points import Installed


class _Group(OpenGroup):
    path = "plugins "


@click.group(cls=_Group, short_help="List, inspect, install, write and repair plugins.")
def plugins() -> None:
    """List, inspect, install, write and repair plugins."""


@plugins.command(name="list", short_help="Every installed plugin, without loading it.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def list_(as_json: bool) -> None:
    """Print every installed plugin: name, version and source. No plugin is loaded: `doctor` loads them."""
    listed = everything()
    found = [declared(plugin) for plugin in listed]
    if as_json:
        click.echo(json.dumps([status.data() for status in found], indent=2))
    elif not found:
        click.echo("no plugin is installed; write one: connectagent plugins new NAME")
    for plugin, status in zip(listed, found, strict=True) if not as_json else ():
        click.echo(plain(f"{status.name} {status.version}  {status.status}"))
        click.echo(plain(f"    from {status.distribution}, {status.source}"))
        if own := hooks_of(plugin):
            click.echo(plain(f"    defines the hooks {', '.join(own)}"))
        if status.named_by:
            click.echo(plain(f"    named by {', '.join(status.named_by)}"))
        if status.error:
            click.echo(plain(f"    error: {status.error}\n    way out: {status.way_out}"))


def _line(status: Status) -> str:
    return f"{status.name} {status.version}  {status.status}  {', '.join(status.hooks) or 'no hooks'}"


@plugins.command(short_help="One plugin: handlers, order, options, load time.")
@click.argument("name")
def inspect(name: str) -> None:
    """Print a plugin's handlers with file, line and place in the order, its options and its load time."""
    from connectagent.hooks.entry_points import find, options_of

    plugin = find(name)
    status = status_of(plugin)
    click.echo(_line(status))
    click.echo(f"from: {status.distribution}, {status.source}\nload time: {status.load_ms} ms")
    if status.error:
        raise SystemExit(f"error: {status.error}\nway out: {status.way_out}")
    for handler, place in _placed(status):
        click.echo(f"{handler.hook}: {handler_text(handler)}, {place}")
    if own := hooks_of(plugin):
        click.echo(plain(f"defines the hooks: {', '.join(own)}"))
    given = options_of(plugin)
    known = {name: f"set to {given[name]!r}" if name in given else how for name, how in _options(plugin)}
    click.echo(f"options: {', '.join(f'{name} ({how})' for name, how in known.items()) or 'none'}")


def _placed(status: Status) -> list[tuple[Any, str]]:
    """Each handler with its place in an agent that has the built-in plugins and this one."""
    from connectagent.builtin import built_in
    from connectagent.hooks.discovery import handlers_of
    from connectagent.hooks.host import Host
    from connectagent.loop.boundary import Boundary

    host = Host(Boundary(None, lambda entry: None))
    own = built_in(trust=None, log=None, quiet=False)
    host.load([*(one for name, thing in own.items() for one in handlers_of(thing, name)), *status.handlers])
    orders = {handler.hook: host.handlers(handler.hook) for handler in status.handlers}
    return [
        (handler, f"{orders[handler.hook].index(handler) + 1} of {len(orders[handler.hook])}")
        for handler in status.handlers
    ]


def _options(plugin: Installed) -> list[tuple[str, str]]:
    import inspect as python_inspect

    from connectagent.hooks.entry_points import is_factory

    thing = plugin.entry.load()  # `status_of` has loaded it
    if not is_factory(thing):
        return []
    parameters = python_inspect.signature(thing).parameters.values()
    return [(p.name, "needed" if p.default is p.empty else f"default {p.default!r}") for p in parameters]


@plugins.command(cls=AgentCommand, short_help="The handlers of each hook, their order, and why.")
@click.argument("path", metavar="[SCRIPT]", required=False)
@script.agent_options
def plan(path: str | None, plugins: tuple[str, ...], model: str | None, quiet: bool, traceback: bool) -> None:
    """Print the handlers of each hook, their order and its reasons, for the agent of SCRIPT or a plain agent."""
    script.apply_options(model, quiet, plugins)
    module = script.load(path, traceback) if path else None
    if module is None:
        from connectagent.agents.agent import Agent

        agent: Any = Agent("plan")
    else:
        agent = script.agent_of(module)
        if agent is None:
            raise usage_error(f"{script.shown(module)} has no agent")
    click.echo(text_of(plan_of(agent)))


@plugins.command(short_help="Take a plugin along every path of a turn.")
@click.argument("name")
@click.option("--with", "others", multiple=True, metavar="NAME",
              help="Test it in both orders beside this plugin; `all`: beside each installed one.")  # fmt: skip
def test(name: str, others: tuple[str, ...]) -> None:
    """Take the plugin NAME, or a file, along every path of a turn; the exit code is 1 where it breaks a rule.

    A plugin says what it may change: `changes = {"messages"}` in its class, module or object.
    """
    from connectagent.cli.plugin_pairs import orders, outcomes

    failed = 0
    order = orders(name, others)
    for outcome in outcomes(order):
        said = f"{outcome.turns} turns" if outcome.turns is not None else "FAULTS"
        click.echo(plain(f"{', '.join(outcome.names)}: {said}"))
        if outcome.problem:
            failed += 1
            click.echo(plain("    " + outcome.problem.replace("\n", "\n    ")))
    click.echo(f"{len(order) - failed} of {len(order)} kept the rules")
    raise SystemExit(1 if failed else 0)


@plugins.command(short_help="Check the installation.")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print {plugins, problems} as JSON.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), default=LIMIT_S, show_default=True,
              metavar="SECONDS", help="How long one plugin may take to load.")  # fmt: skip
def doctor(names: tuple[str, ...], as_json: bool, timeout: float) -> None:
    """Check the installation, or the plugins NAME alone; the last line and the exit code are the summary.

    The libraries of connectagent must be installed, new enough and importable. Each plugin
    is loaded in a process of its own, so that a plugin that hangs or crashes is reported like any other.
    """
    checked = _with_names(names)
    with ThreadPoolExecutor(max_workers=1) as thread:  # both wait for other processes
        libraries = None if names else thread.submit(core_problems)
        found = check(checked, timeout)
    broken = [f"{status.name} ({status.distribution})" for status in found if status.status == "broken"]
    problems = [] if libraries is None else [*libraries.result(), *project_problems(), *shared_names()]
    if as_json:
        click.echo(json.dumps({"plugins": [status.data() for status in found], "problems": problems}, indent=2))
        raise SystemExit(1 if broken or problems else 0)
    _tell(found, problems)
    count = many(len(found), "plugin")
    if broken or problems:
        what = [f"{len(broken)} broken: {', '.join(broken)}"] if broken else []
        what += [f"{len(problems)} wrong in the setup"] if problems else []
        click.echo(plain(f"not well: {count}, {'; '.join(what)}"))
        raise SystemExit(1)
    click.echo(f"all well: {count}")


def _tell(found: list[Status], problems: list[str]) -> None:
    for status in found:
        click.echo(plain(f"{status.name} ({status.distribution} {status.version}): {status.status}"))
        if status.error:
            click.echo(plain(f"    {status.error}\n    {status.way_out}"))
    for problem in problems:
        click.echo(plain(problem))


def _with_names(names: tuple[str, ...]) -> list[Installed]:
    """The installed plugins with one of the names, a plugin's or its distribution's; all where there are no names.

    Raises:
        PluginError: there is none with a name.
    """
    if not names:
        return everything()
    found = {name: [one for one in everything() if normalized(name) in _names(one)] for name in names}
    if lacking := [name for name in names if not found[name]]:
        raise PluginError(unknown(lacking[0]))
    meant = {(one.entry.group, one.name, one.distribution): one for ones in found.values() for one in ones}
    return list(meant.values())


def _names(plugin: Installed) -> tuple[str, str]:
    return normalized(plugin.name), normalized(plugin.distribution)


plugins.add_command(installer.install)
plugins.add_command(installer.uninstall)
plugins.add_command(new)
plugins.add_command(lock)
