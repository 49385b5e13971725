"""Loads a user's script."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from connectagent.commands.failure import script_is
from connectagent.commands.plugin_options import plugin_option
from connectagent.errors import ConfigError, did_you_mean
from connectagent.hooks.entry_points import MODELS, installed, normalized
from connectagent.hooks.left_out import for_all, leaves_out
from connectagent.hooks.options import from_text
from connectagent.records.own import why_not_run
from connectagent.records.read import refuse_odd
from connectagent.settings import overrides, plugin_file

if TYPE_CHECKING:
    from connectagent.agents.agent import Agent

NAME = "connectagent_script"  # no name that the script or its imports use

Command = Callable[..., Any]


def agent_options(function: Command) -> Command:
    """Add the options that apply to every agent of the process."""
    for option in (
        click.option("--traceback", is_flag=True, help="Show the whole traceback of an error."),
        click.option("--quiet", is_flag=True, help="Show nothing on the terminal but results."),
        click.option("--model", metavar="NAME", help="The model of all agents, in place of the script's."),
        plugin_option(
            "Add an installed plugin (NAME, or NAME:OPTION=VALUE,...) or a file (./plugin.py), shadow one "
            "(shadow:NAME), or leave one out (no:NAME). Repeatable."
        ),
    ):
        function = option(function)
    return function


def apply_options(
    model: str | None = None,
    quiet: bool = False,
    plugins: Iterable[Any] = (),
    own_plugins: dict[str, Any] | None = None,
    trust: str | None = None,
) -> None:
    """Apply options of the command line to every agent that is made from now on, in this process.

    Args:
        model: the model of all agents; None for their own.
        quiet: whether nothing is shown on the terminal but results.
        plugins: what `-p` named.
        own_plugins: the command's own plugins, by name.
        trust: the policy for tool calls of agents that have none.
    """
    importlib.invalidate_caches()
    if own_plugins:
        overrides["own_plugins"] = own_plugins
    if model is not None:
        overrides["model"] = model
    if trust:
        overrides["trust"] = trust
    if quiet:
        overrides["quiet"] = "1"
    if plugins:
        # Relative to the current folder, which the script may change.
        overrides["plugins"] = [*overrides.get("plugins", []), *map(plugin_from_text, plugins)]


def has_plugins_of(agent: Agent, head: dict[str, Any]) -> None:
    """Refuse to go on with a session without an installed plugin that it had: it may be a guard.

    What the script names is there again; what the command line named is only if it is named again.

    Args:
        agent: the agent that goes on.
        head: the head of the session's record.

    Raises:
        click.UsageError: a plugin is missing, and no `-p no:NAME` leaves it out.
    """
    from connectagent.agents.plugin_changes import changed_plugins

    left_out = {normalized(item[3:]) for item in overrides.get("plugins", []) if leaves_out(item)}
    left_out |= {normalized(plugin.name) for plugin in installed(MODELS)}  # for another model they are not needed
    removed = changed_plugins(agent, head).get("removed", [])
    missing = [name for name in removed if head["plugins"][name] is not None and normalized(name) not in left_out]
    if missing:
        again, without = (" ".join(f"-p {prefix}{name}" for name in missing) for prefix in ("", "no:"))
        raise _usage(
            f"the session had the plugin {', '.join(missing)}, which does not act here: add {again}, with its options, "
            f"or go on without it by {without}"
        )


def plugin_from_text(name: object) -> Any:
    """What `-p` names, as `plugins=` takes it: a name with its options, or a file by its whole path."""
    name = from_text(name) if isinstance(name, str) else name
    file = plugin_file(name) if isinstance(name, str) else None
    return name if file is None else file[0] + os.path.abspath(file[1])


def load(path: str, whole_traceback: bool = False) -> ModuleType:
    """Run a script's top level, as `python SCRIPT` would, but not its `if __name__ == "__main__"` part.

    Raises:
        click.UsageError: the file cannot be read, or is not Python.
    """
    script_is(path, whole_traceback)
    if whole_traceback:
        overrides["traceback"] = "full"
    module, code = _compiled(path, NAME)
    sys.argv = [path]
    overrides["program"] = module.__file__
    with for_all():
        exec(code, module.__dict__)
    return module


def load_beside(path: str, name: str) -> ModuleType:
    """Run the top level of a file that belongs to the script, as a module of this name.

    Raises:
        click.UsageError: the file cannot be read, or is not Python.
    """
    module, code = _compiled(path, name)
    exec(code, module.__dict__)
    return module


def _compiled(path: str, name: str) -> tuple[ModuleType, Any]:
    """A file as a module whose code is not run yet; it finds the modules beside it.

    Raises:
        click.UsageError: the file cannot be read, or is not Python.
    """
    file = Path(path)
    try:
        code = compile(file.read_bytes(), str(file.absolute()), "exec", dont_inherit=True)
    except OSError as error:
        reason = "no such file." if isinstance(error, FileNotFoundError) else error.strerror
        near = did_you_mean(path, map(str, file.parent.glob("*.py")))
        raise _usage(f"{path!r} cannot be read: {reason}{near}") from error
    except SyntaxError as error:
        place = f"line {error.lineno}: {error.msg}" if error.lineno else error.msg
        raise _usage(f"{path!r} is not Python: {place}") from error
    except ValueError as error:  # null bytes, a text in no encoding
        raise _usage(f"{path!r} is not Python: {error}") from error
    module = ModuleType(name)
    module.__file__ = str(file.absolute())
    sys.modules[name] = module  # dataclasses and type hints look up their module by name
    sys.path.insert(0, str(file.absolute().parent))
    return module, code


def recorded(record: Path, head: dict[str, Any], command: str) -> str:
    """The script that a record names, if it may be run without the person naming it.

    A record may come from a stranger. Its script is run if the record is among this project's records and has the
    user's mark, and the script is a Python file of the project, outside of the records.

    Args:
        record: the record.
        head: its head, with the script that it names.
        command: the command with which the person can name the script, for the error.

    Raises:
        ConfigError: the script may not be run.
    """
    script = str(head["script"])
    with refuse_odd(record):  # a path with a null byte
        why = why_not_run(record, head)
    if why is None:
        return str(Path(script).resolve())
    raise ConfigError(
        f"{record.name} names the script {script!r}, which is not run by itself: {why}.\n"
        f"If you trust that script: {command}"
    )


def agent_called(module: ModuleType, name: str) -> Any | None:
    """The agent of this name that a script makes at its top level; None where there is none."""
    return next((agent for agent in agents_in(module) if agent.name == name), None)


def agents_in(module: ModuleType) -> list[Any]:
    """The agents that a script makes at its top level."""
    from connectagent.agents.agent import Agent

    return [value for value in vars(module).values() if isinstance(value, Agent)]


def agent_of(module: ModuleType) -> Any | None:
    """The agent of a script: its `agent`, else the only one that is inside no other; None where there is none.

    Raises:
        click.UsageError: there are several such and none is called `agent`, or `agent` is no agent.
    """
    from connectagent.agents.agent import Agent

    agents = {name: value for name, value in vars(module).items() if isinstance(value, Agent)}
    if "agent" in agents:
        return agents["agent"]
    named = vars(module).get("agent")
    if named is not None and not inspect.ismodule(named):
        raise _usage(f"{shown(module)}: 'agent' is not an Agent but {type(named).__name__} {named!r:.60}")
    outer = {name: one for name, one in agents.items() if all(one.parent is not other for other in agents.values())}
    if len({id(agent) for agent in outer.values()}) > 1:
        raise _usage(f"{shown(module)} has several agents: {', '.join(outer)}; call the one to run 'agent'")
    return next(iter(outer.values()), None)


def shown(module: ModuleType) -> str:
    """The script's name for errors."""
    try:
        return repr(os.path.relpath(str(module.__file__)))
    except ValueError:  # on another drive
        return repr(module.__file__)


def _usage(text: str) -> click.UsageError:
    return click.UsageError(text, click.get_current_context(silent=True))
