"""`connectagent plugins lock`: the plugins of an agent as a file for review; `--check` shows what differs."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from connectagent.commands import script
from connectagent.commands.failure import plain, usage_error
from connectagent.commands.plugin_options import AgentCommand
from connectagent.errors import ConfigError, HandlerError, PluginError
from connectagent.hooks import sources
from connectagent.output.masking import mask
from connectagent.output.rows import many
from connectagent.session.journal import LINES
from connectagent.settings import leads_out

if TYPE_CHECKING:
    from connectagent.agents.agent import Agent

FILE = "connectagent.lock"
_HEAD = "# The plugins of this agent, in order, written by `connectagent plugins lock`.\n"
_OWN = ("connectagent", "(program)", "(outside)", "(resume)", "(interrupt)")


@click.command(cls=AgentCommand, short_help="Write the plugins of an agent into a file for review, or check it.")
@click.argument("path", metavar="[SCRIPT]", required=False)
@click.option("-o", "file", metavar="FILE", default=FILE, show_default=True, help="The file.")
@click.option("--check", is_flag=True, help="Compare the file, and show what differs; nothing is written.")
@script.agent_options
def lock(
    path: str | None,
    file: str,
    check: bool,
    plugins: tuple[str, ...],
    model: str | None,
    quiet: bool,
    traceback: bool,
) -> None:
    """Write the plugins of the agent of SCRIPT, or of a plain agent, into a file: versions, options, hooks, order.

    Each has its version, a hash of its source, its options with secrets masked, its hooks, and what it was seen to
    change, in the project's records of that agent or by what the file says already.

    Exit code: 0, 1 with --check where something differs, 2 wrong usage.
    """
    script.apply_options(model, quiet, plugins)
    before = _read(file, check)
    try:
        agent = _agent(path, traceback)
        text = locked(agent, _united(_seen(agent), _noted(before, file)))
    except (PluginError, HandlerError) as error:
        raise usage_error(str(error)) from error
    if not check:
        return _write(file, text, agent)
    changed = list(difflib.unified_diff(before.splitlines(), text.splitlines(), file, "now", lineterm="", n=2))
    for line in changed:
        click.echo(plain(line))
    if changed:
        raise click.exceptions.Exit(1)
    click.echo(f"{plain(file)}: the same")


def _read(file: str, check: bool) -> str:
    """The file as it is; "" where there is none yet."""
    try:
        return Path(file).read_text("utf-8-sig")
    except FileNotFoundError as error:
        if not check:
            return ""
        raise usage_error(f"{file!r}: no such file; write it: connectagent plugins lock") from error
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise usage_error(f"{file!r} cannot be read: {reason}") from error


def _agent(path: str | None, traceback: bool) -> Any:
    from connectagent.agents.agent import Agent

    if path is None:
        return Agent("plan")
    module = script.load(path, traceback)
    agent = script.agent_of(module)
    if agent is None:
        raise usage_error(f"{script.shown(module)} has no agent")
    return agent


def _write(file: str, text: str, agent: Agent) -> None:
    if leads_out(Path(file)):
        raise usage_error(f"{file!r} is a link that leads out of the project; name the file itself: -o FILE")
    try:
        Path(file).write_text(text, "utf-8")
    except OSError as error:
        raise usage_error(f"{file!r} cannot be written: {error.strerror}") from error
    click.echo(f"{plain(file)}: {many(len({one.plugin for one in agent.hooks.loaded if not one.builtin}), 'plugin')}")


def locked(agent: Agent, seen: dict[str, list[str]]) -> str:
    """The plugins of an agent, and of those below it, as YAML: the same plugins give the same text.

    Args:
        agent: the agent.
        seen: by plugin: what it was seen to change.
    """
    import yaml

    data = {one.branch: [_entry(fact, one, seen) for fact in _facts(one)] for one in (agent, *agent.below)}
    return _HEAD + yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=110)


def _facts(agent: Agent) -> list[dict[str, Any]]:
    """What is known of each plugin of an agent, in the order of the list."""
    from connectagent.testing.reports.plugins import everywhere, of_agent

    loaded = list(dict.fromkeys(handler.plugin for handler in agent.hooks.loaded if not handler.builtin))
    known = {fact["name"]: fact for source in of_agent(agent, everywhere()) for fact in source.facts}
    order = [name for name in known if name in loaded]
    return [known.get(name, {"name": name}) for name in [*order, *(name for name in loaded if name not in known)]]


def _entry(fact: dict[str, Any], agent: Agent, seen: dict[str, list[str]]) -> dict[str, Any]:
    name = fact["name"]
    hooks = [one for hook in _hooks(agent) if (one := _placed(agent, hook, name)) is not None]
    options = sources.plain(fact.get("options") or {})
    entry = {key: fact[key] for key in ("name", "version", "from", "sha256") if fact.get(key) is not None}
    entry |= {"options": mask(options)} if options else {}
    return entry | {"hooks": hooks, "seen_to_change": list(seen.get(name, ()))}


def _hooks(agent: Agent) -> list[str]:
    return list(dict.fromkeys(handler.hook for handler in agent.hooks.loaded))


def _placed(agent: Agent, hook: str, plugin: str) -> str | None:
    """A hook with the places of a plugin's handlers in its order; None where it has none."""
    try:
        handlers = [one for one in agent.hooks.handlers(hook) if not one.builtin]
    except (KeyError, ConfigError):  # a resource is in no order
        handlers = []
    places = [str(at) for at, one in enumerate(handlers, 1) if one.plugin == plugin]
    shadowed = ", shadowed" if any(one.shadowed for one in handlers if one.plugin == plugin) else ""
    return f"{hook} {' '.join(places)} of {len(handlers)}{shadowed}" if places else None


def _seen(agent: Agent) -> dict[str, list[str]]:
    """By plugin: what it was seen to change in the project's records of the agent, those inside it included."""
    from connectagent.records.find import agent_in_name, all_records
    from connectagent.records.paths import safe_name
    from connectagent.records.read import ODD, read_record

    seen: dict[str, set[str]] = {}
    for path in all_records():
        if agent_in_name(path) != safe_name(agent.name):
            continue
        try:
            turns = read_record(path, conversation=False)["turns"]
            for entry in (line for turn in turns for line in turn["lines"] if line.get("type") not in LINES):
                by = entry.get("by")
                if isinstance(by, dict) and isinstance(by.get("plugin"), str) and by["plugin"] not in _OWN:
                    seen.setdefault(by["plugin"], set()).add(_did(entry))
        except (OSError, ConfigError, *ODD) as error:
            click.echo(plain(f"skipped {path.name}: {error}"), err=True)
    return {plugin: sorted(did) for plugin, did in seen.items()}


def _did(entry: dict[str, Any]) -> str:
    """What an entry changed, in a few words that do not depend on the session."""
    kind = str(entry.get("type"))
    if kind == "change":
        return f"change of {entry.get('of')}"
    return f"{kind} {entry.get('status')}" if kind in ("llm_call", "tool_execution") else kind


def _noted(text: str, file: str) -> dict[str, list[str]]:
    """By plugin: what a lock file says that it was seen to change. A machine without the records keeps it."""
    import yaml

    try:
        agents = yaml.safe_load(text) or {}
        plugins = [plugin for listed in agents.values() for plugin in listed]
        return {str(plugin["name"]): list(map(str, plugin["seen_to_change"])) for plugin in plugins}
    except (yaml.YAMLError, AttributeError, LookupError, TypeError) as error:
        raise usage_error(f"{file!r} is no lock file; write it again: remove it, connectagent plugins lock") from error


def _united(*seen: dict[str, list[str]]) -> dict[str, list[str]]:
    names = {name for one in seen for name in one}
    return {name: sorted({did for one in seen for did in one.get(name, ())}) for name in names}
