"""The agent of a record, for the commands that play it: `replay`, `bisect` and `report`."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from connectagent.commands import script
from connectagent.commands.failure import usage_error
from connectagent.errors import ConfigError, short_path
from connectagent.output.text import visible

if TYPE_CHECKING:
    from connectagent.agents.agent import Agent


def script_of(record: Path, head: dict[str, Any], command: str) -> str | None:
    """The script that a record names, if it may be run without being named; None without one, or where it is gone.

    Args:
        record: the record.
        head: its head: see `read_head`.
        command: the command's name, for the error that says how to name the script.

    Raises:
        click.UsageError: it may only be run if the person names it.
    """
    named = head.get("script")
    if not named or not isinstance(named, str):
        return None
    if not os.path.isfile(named):
        click.echo(f"{visible(named)} is not there any more; the agent is made from the record", err=True)
        return None
    by_hand = f"connectagent {command} {shlex.quote(short_path(record))} {shlex.quote(short_path(Path(named)))}"
    try:
        return script.recorded(record, head, by_hand)
    except ConfigError as error:
        raise usage_error(str(error)) from error


def is_demo(head: dict[str, Any]) -> bool:
    """Whether a record is of `connectagent demo`, whose agent no script makes."""
    return head.get("agent") == "demo" and not head.get("script")


def agent_in(program: str, name: str, traceback: bool = False) -> Agent | None:
    """The script's agent with the record's name, else the agent that `run` would take; None where it makes none.

    The script's top level runs, up to where it would run an agent.

    Args:
        program: the script.
        name: the agent's name in the record.
        traceback: whether errors of the script show their whole traceback.

    Raises:
        click.UsageError: the file cannot be read, or is not Python.
        Exception: the script raised it.
    """
    from connectagent.agents.agent import Agent
    from connectagent.replay.sandbox import WouldRun, only_made

    found = None
    try:
        with only_made():
            module = script.load(program, traceback)
    except WouldRun as stopped:
        module, found = sys.modules[script.NAME], stopped.agent
    agents = [value for value in [found, *vars(module).values()] if isinstance(value, Agent)]
    same_name = [agent for agent in agents if agent.name == name]
    return same_name[0] if same_name else found or script.agent_of(module)


def agent_maker(record: Path, program: str | None, command: str, traceback: bool = False) -> Callable[[], Agent]:
    """What makes a fresh agent for a record, as often as it is called.

    It is the agent of the script that is given, else of the one that the record names if that may be run by itself,
    else that of `connectagent demo` if the record is of it, else one that is made from the record alone.

    Args:
        record: the record.
        program: the script that the person has named, or None.
        command: the command's name, for the error that says how to name the script.
        traceback: whether errors of the script show their whole traceback.

    Raises:
        OSError, ConfigError: the record cannot be read.
        click.UsageError: there is no such script, or that of the record may not be run unless the person names it.
    """
    from connectagent.replay.playing import agent_from_record
    from connectagent.replay.recording import Recording

    recording = Recording(record)
    head = recording.head
    if program is not None and not Path(program).is_file():
        raise usage_error(f"{program!r}: no such script")
    program = program or script_of(record, head, command)
    if program is None and is_demo(head):
        from connectagent.commands.demo_agent import demo_agent

        return demo_agent

    def make() -> Agent:
        agent = None if program is None else agent_in(program, str(head.get("agent")), traceback)
        return agent_from_record(recording) if agent is None else agent

    return make
