"""`connectagent demo`: an agent with three tools does a small task, and each hook is shown as it fires.

It needs no key and no network. It reads the current folder, and writes nothing outside of `.co`.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from connectagent.commands import failure
from connectagent.commands.demo_agent import MISSING, demo_agent, list_files

if TYPE_CHECKING:
    from connectagent.agents.agent import Agent


@click.command(short_help="Watch an agent do a small task: no key, no network.")
def demo() -> None:
    """Watch an agent do a small task in this folder: no key, no network, every hook shown."""
    agent, task = demo_agent(), _task()
    click.echo("An agent with three tools and the offline model (rules, no network) is asked:")
    click.echo(f"  {task}\n({MISSING} does not exist, so that on_error fires too.)\n")
    result = agent.input(task)
    click.echo(f"\nIts answer:\n\n{failure.plain(result)}\n")
    click.echo(_where(agent))
    click.echo(_next())


def _task() -> str:
    """The task, about the largest file of this folder whose name needs no quoting."""
    sizes = {}
    with contextlib.suppress(OSError):  # a folder that cannot be read; the tool reports it
        for line in list_files():
            name, size = line.rsplit(" ", 2)[0], line.rsplit(" ", 2)[1]
            if line.endswith(" bytes") and re.fullmatch(r"[\w .-]+", name):
                sizes[name] = int(size)
    count = f'count the lines of "{max(sizes, key=lambda name: sizes[name])}", ' if sizes else ""
    return f'List the files here, {count}count the lines of "{MISSING}".'


def _where(agent: Agent) -> str:
    path = agent.record
    if path is None or not path.exists():
        return "The record could not be written here: the folder takes no files."
    return f"What happened, every step of it: {path}"


def _next() -> str:
    command = "python -m connectagent"
    if Path(sys.argv[0]).stem == "connectagent":  # as it was called, where the shell would not find it by name
        command = "connectagent" if shutil.which("connectagent") else sys.argv[0]
    return (
        f"\nTry next:\n"
        f"  {command} bisect demo --bad 'calls write_note'\n"
        f"      nobody asked for a note: which plugin made the model write one?\n"
        f"  {command} hooks on_error\n      what a handler of this hook is given and may answer\n"
        f"  {command} chat\n      talk to a model: set ANTHROPIC_API_KEY or OPENAI_API_KEY first\n"
        f'  {command} run my_agent.py "do this"\n      an agent of your own: the README begins with one'
    )
