"""A person's decision on the command line: which call it is about, which is shown where it was not named."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TypedDict

import click

from connectagent.agents.decisions import waiting_in
from connectagent.commands.failure import call_line, usage_error
from connectagent.commands.plugin_options import AgentCommand
from connectagent.data import Wait
from connectagent.errors import ConfigError
from connectagent.output.typed import can_ask, forget_typed
from connectagent.session.journal import WAIT_OF

UNNAMED = ""  # in place of an id: none was given
_TEXTS = {"--approve": 0, "--reject": 1, "--answer": 1}  # how many texts come behind the id


class Decided(TypedDict, total=False):
    """A decision, as `agent.resume()` takes it."""

    approve: str
    reject: str
    answer: str
    wait: str


class DecidingCommand(AgentCommand):
    """A command whose options of decisions have an id, which may be left out."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        filled: list[str] = []
        left = list(args)
        while left:
            option = left.pop(0)
            filled.append(option)
            if option == "--":
                break
            if option in _TEXTS and not _has_id(left, _TEXTS[option]):
                filled.append(UNNAMED)
                filled += left[: _TEXTS[option]]
                left = left[_TEXTS[option] :]
        return super().parse_args(ctx, filled + left)


def _has_id(following: list[str], texts: int) -> bool:
    """Whether an id follows an option: where too little follows, it was left out."""
    if following and WAIT_OF in following[0]:
        return True
    values = following[: texts + 1]
    return len(values) > texts and not any(value.startswith("-") for value in values)


def decision_of(
    record: Path, approve: str | None, reject: tuple[str, str] | None, answer: tuple[str, str] | None
) -> Decided:
    """The decision in the options, about a call that was named, or that the person was shown and has confirmed.

    Raises:
        click.UsageError: no call was named, and nobody can be asked.
        ConfigError: no call was named, and none waits or none was chosen.
    """
    if approve is not None:
        return {"approve": approve or _chosen(record, "--approve ID", "Approve it?")}
    if reject is not None:
        return {"reject": reject[1], "wait": reject[0] or _chosen(record, "--reject ID WHY", "Reject it?")}
    if answer is not None:
        return {"answer": answer[1], "wait": answer[0] or _chosen(record, "--answer ID TEXT", "Answer it?")}
    return {}


def _chosen(record: Path, grammar: str, question: str) -> str:
    """The id of the call that the person chooses."""
    waits = waiting_in(record)
    if not can_ask():
        for wait in waits:
            click.echo(f"{wait.id}\n  {call_line(wait)}", err=True)
        raise usage_error(f"name the call that you decide, {grammar}: what you decide is what you were shown")
    for wait in waits:
        if _confirms(wait, question):
            return wait.id
    raise ConfigError("nothing was decided")


def _confirms(wait: Wait, question: str) -> bool:
    """Show a call whole, and ask about it."""
    click.echo(f"{call_line(wait)}\n  {wait.id}", err=True)
    forget_typed()
    click.echo(f"{question} [y/N] ", err=True, nl=False)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
