"""The agent of a record, for the commands that play it: `replay`, `bisect` and `report`."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from connectagent.commands import script
from connectagent.commands.failure import usage_error
from connectagent.errors import ConfigError, short_path
from connectagent.output.text import visible


@contextlib.contextmanager
def offline(live_tools: bool = False) -> Iterator[None]:
    """Meanwhile there is no network, unless tools run, and plugins write into a copy of `.co`."""
    from connectagent.replay.sandbox import sandboxed
    from connectagent.testing import no_network

    with sandboxed(), contextlib.nullcontext() if live_tools else no_network():
        yield


def script_of(record: Path, head: dict[str, Any], command: str) -> str | None:
    """The script that a record names; None without one, or where it is gone.

    Raises:
        ConfigError: it may only be run if the person names it.
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


def agent_in(program: str, name: str, traceback: bool) -> Any:
    """The script's agent with the record's name, else the agent that `run` would take; None where it makes none."""
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
