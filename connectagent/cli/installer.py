"""`connectagent plugins install` and `uninstall`, with the environment's own installer."""

from __future__ import annotations

import importlib.util
import json
import shlex
import shutil
import subprocess
import sys
from typing import Any

import click

from connectagent.commands.failure import plain, usage_error
from connectagent.errors import PluginError


@click.command(short_help="Install distributions, and check that their plugins load.")
@click.argument("requirements", nargs=-1)
@click.option("-e", "--editable", metavar="PATH", multiple=True, help="Install a folder in place: edits act at once.")
def install(requirements: tuple[str, ...], editable: tuple[str, ...]) -> None:
    """Install REQUIREMENTS (whatever pip takes), and check in a fresh process that their plugins load."""
    if not requirements and not editable:
        raise usage_error("name what to install: a distribution, a path, or -e and a folder")
    before = {(row["distribution"], row["version"], row["name"]) for row in _listed()}
    _call("install", *requirements, editable=editable)
    fresh = [row for row in _listed() if (row["distribution"], row["version"], row["name"]) not in before]
    if fresh:
        fresh = _tried(fresh)
    else:
        names = " ".join((*requirements, *editable))
        click.echo(f"installed: {names}; no new plugin. See: connectagent plugins list")
    for row in fresh:
        click.echo(plain(f"{row['name']} {row['version']}  {row['status']}  {', '.join(row['hooks'])}"))
    broken = [row for row in fresh if row["status"] == "broken"]
    if broken:
        raise PluginError(f"{broken[0]['error']}\n{broken[0]['way_out']}")


@click.command(short_help="Uninstall a plugin's distribution.")
@click.argument("name")
def uninstall(name: str) -> None:
    """Uninstall the distribution of the plugin NAME, which may be broken."""
    distribution = _distribution(name)
    _call("uninstall", distribution)
    if any(row["distribution"] == distribution for row in _listed()):
        raise PluginError(f"{distribution} is still there: it is installed in another place too; uninstall it again")
    click.echo(f"uninstalled: {distribution}")


def _distribution(name: str) -> str:
    """The distribution of a name. A distribution's own name wins, so that one of two rivals can be named.

    Raises:
        PluginError: there is none, or there are several.
    """
    from connectagent.cli.plugin_status import everything
    from connectagent.hooks.entry_points import clash, named, normalized, unknown

    wanted = normalized(name)
    found = {plugin.distribution for plugin in everything() if normalized(plugin.distribution) == wanted}
    plugins = named(name)
    found = found or {plugin.distribution for plugin in plugins}
    if not found:
        raise PluginError(unknown(name))
    if len(found) > 1:
        raise PluginError(clash(plugins[0]))
    return found.pop()


def _call(action: str, *names: str, editable: tuple[str, ...] = ()) -> None:
    """Run the environment's installer.

    Raises:
        PluginError: it failed, or there is none.
    """
    yes = ["--yes"] if action == "uninstall" else []
    shown = [f"--editable={path}" for path in editable] + list(names)
    names = (*[f"--editable={path}" for path in editable], *(["--"] if names else []), *names)
    uv = shutil.which("uv")
    if importlib.util.find_spec("pip"):
        command = [sys.executable, "-m", "pip", action, "--quiet", "--disable-pip-version-check", *yes, *names]
    elif uv:
        command = [uv, "pip", action, "--quiet", "--python", sys.executable, *names]
    else:
        raise PluginError(
            f"neither pip nor uv can be called from {sys.executable}; with the tool that made this environment, run:\n"
            + shlex.join(["pip", "--python", sys.executable, action, *shown])
        )
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise PluginError(f"{command[0]} cannot be started: {error.strerror}; repair it or take it off PATH") from error
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise PluginError(f"{' '.join(command)} failed with exit code {done.returncode}:\n" + "\n".join(said[-3:]))


def _listed() -> list[dict[str, Any]]:
    """The status of the plugins, not loaded, from a fresh process: this one has cached the old files."""
    rows: list[dict[str, Any]] = _told(0, "list", "--json")
    return rows


def _tried(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The status of some plugins after they were loaded, each in a process of its own."""
    told = _told(1, "doctor", "--json", "--", *sorted({row["distribution"] for row in rows}))
    wanted = [(row["distribution"], row["name"]) for row in rows]
    return [row for row in told["plugins"] if (row["distribution"], row["name"]) in wanted]


def _told(most: int, *arguments: str) -> Any:
    """What `connectagent plugins` prints as JSON in a process of its own.

    Raises:
        PluginError: it ended with an exit code above `most`, or printed something else.
    """
    command = [sys.executable, "-m", "connectagent", "plugins", *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if not 0 <= done.returncode <= most or done.stdout[:1] not in ("[", "{"):
        raise PluginError(f"{' '.join(command)} failed with exit code {done.returncode}:\n{done.stderr.strip()}")
    return json.loads(done.stdout)
