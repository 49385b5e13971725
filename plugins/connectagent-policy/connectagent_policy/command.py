"""`connectagent policy test`: what a policy would have said of the calls in records."""

from __future__ import annotations

from typing import Any

import click

from connectagent_policy.rules import judge, load, shown


@click.group("policy")
def group() -> None:
    """Rules for tool calls."""


@group.command("test")
@click.argument("policy", type=click.Path(exists=True, dir_okay=False))
@click.argument("records", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False))
def check(policy: str, records: tuple[str, ...]) -> None:
    """Apply a POLICY to the calls in RECORDS, and print what it says of each. Nothing is run."""
    from connectagent.records import read_record

    rules, counts = load(policy), {"allow": 0, "ask": 0, "deny": 0}
    for record in records:
        data = read_record(record)
        for entry in (line for turn in data["turns"] for line in turn["lines"]):
            if entry.get("type") != "tool_execution":
                continue
            agent, tool, arguments = _call(entry, data)
            verdict = judge(rules, agent, tool, arguments)
            counts[verdict.effect] += 1
            click.echo(f"{verdict.effect:5}  {agent}.{tool} {shown(arguments)}  ({verdict.reason})")
    click.echo(", ".join(f"{count} {effect}" for effect, count in counts.items()))


def _call(entry: dict[str, Any], data: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """The agent, tool and arguments of a call; in a tree each entry names the agent that it is of."""
    agent = entry.get("author") or data.get("agent") or ""
    arguments = entry.get("arguments")
    return str(agent), str(entry.get("tool_name") or ""), arguments if isinstance(arguments, dict) else {}
