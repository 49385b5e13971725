"""`connectagent resume`: goes on with a session from its record."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from connectagent.cli.decide import DecidingCommand, decision_of
from connectagent.commands import script
from connectagent.commands.failure import usage_error
from connectagent.errors import ConfigError, short_path
from connectagent.records.find import find_record
from connectagent.records.read import read_ends
from connectagent.settings import overrides


@click.command(cls=DecidingCommand, short_help="Go on with a session that was stopped, paused or ended.")
@click.argument("record", required=False, metavar="[RECORD]")
@click.argument("prompt", required=False)
@click.option("--script", "path", metavar="FILE", help="The script that makes the agent; else the one in the record.")
@click.option("--from", "place", metavar="TURN[.ITERATION]", help="Go back to before this turn or iteration.")
@click.option("--fork", is_flag=True, help="Write to a copy with an id of its own.")
@click.option("--approve", metavar="ID", help="Approve the waiting call with this id, which the pause printed.")
@click.option("--reject", metavar="ID WHY", nargs=2, help="Reject this call; the model reads WHY.")
@click.option("--answer", metavar="ID TEXT", nargs=2, help="Use TEXT in place of this call.")
@click.option("--trust", metavar="POLICY", help="The policy for tool calls of agents that have none in the script.")
@script.agent_options
def resume(
    record: str | None,
    prompt: str | None,
    path: str | None,
    place: str | None,
    fork: bool,
    approve: str | None,
    reject: tuple[str, str] | None,
    answer: tuple[str, str] | None,
    trust: str | None,
    plugins: tuple[str, ...],
    model: str | None,
    quiet: bool,
    traceback: bool,
) -> None:
    """Go on with the session of RECORD as if it had not stopped, and print the result.

    A turn that was cut off or paused is finished first; then PROMPT, if given, is the next turn. RECORD is a path, a
    session's id, an agent's name for its newest record, a name in .co/evals, or the beginning of an id or a name; by
    default the newest record. A decision without an ID shows what waits, and asks; this needs a terminal.
    """
    if sum(given is not None for given in (approve, reject, answer)) > 1:
        raise usage_error("give one of --approve ID, --reject ID WHY and --answer ID TEXT")
    file = find_record(record).absolute()
    decision = decision_of(file, approve, reject, answer)
    data = read_ends(file, None, 1)
    program = path or _script_of(file, data)
    overrides.update({"trust": trust} if trust else {})
    script.apply_options(model, quiet, plugins)
    module = script.load(program, traceback)
    agent = script.agent_called(module, str(data.get("agent"))) or _no_agent(module, str(data.get("agent")))
    script.has_plugins_of(agent, data)
    result = agent.resume(file, place=place, fork=fork, **decision)
    if prompt is not None:
        result = agent.input(prompt)
    click.echo(result if result is not None else f"{file.name} has no turn yet; give a prompt to begin one")


def _script_of(record: Path, head: dict[str, Any]) -> str:
    """The script that a record names; see `script.recorded`.

    Raises:
        ConfigError: it names none, or one that may only be run if the person names it.
    """
    named = head.get("script")
    if not named or not isinstance(named, str):
        raise ConfigError(f"{record.name} names no script that made its agent; name it with --script FILE")
    command = f"connectagent resume {shlex.quote(short_path(record))} --script {shlex.quote(short_path(Path(named)))}"
    return script.recorded(record, head, command)


def _no_agent(module: ModuleType, name: str) -> Any:
    """Refuse a script without the record's agent."""
    known = ", ".join(sorted({repr(agent.name) for agent in script.agents_in(module)})) or "none"
    raise ConfigError(
        f"{script.shown(module)} makes no agent {name!r} at its top level (it makes {known}); a script that makes it "
        "elsewhere goes on by itself: agent.resume(record)"
    )
