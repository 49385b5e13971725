"""`connectagent plugins test`: takes plugins through the tester, alone and in ordered pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import click

from connectagent import HandlerError, PluginError, ToolDefinitionError, mask
from connectagent.plugins import find, installed, load, normalized, options_of

ALL = "all"


class Outcome(NamedTuple):
    """What the tester said of some plugins in an order.

    Attributes:
        names: the plugins, as they were listed.
        turns: how many turns they went through; None where they broke a rule or could not be used.
        problem: the faults; "" without any.
    """

    names: tuple[str, ...]
    turns: int | None
    problem: str


def orders(name: str, others: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The plugin alone, or in both orders with each of the others."""
    if ALL in others:
        others = tuple(plugin.name for plugin in installed())
    beside = [other for other in dict.fromkeys(others) if normalized(other) != normalized(name)]
    return [pair for other in beside for pair in ((name, other), (other, name))] or [(name,)]


def outcomes(names: list[tuple[str, ...]], maker: Callable[[str], Any] | None = None) -> Iterator[Outcome]:
    """Take plugins through the tester, each order in turn.

    Args:
        names: the orders.
        maker: makes what `check()` takes of a name; None takes installed plugins and files.
    """
    make = maker or maker_of
    for order in names:
        yield _outcome(order, [make(name) for name in order])


def maker_of(name: str) -> Any:
    """What makes an installed plugin with its options, anew for each agent; a file's path stays.

    Raises:
        PluginError: there is no such plugin.
    """
    if name.endswith(".py"):
        return name
    plugin = find(name)
    given = options_of(plugin)
    return lambda: load(plugin, given)


def _outcome(order: tuple[str, ...], plugins: list[Any]) -> Outcome:
    from pytest_connectagent.tester import AgentTester, PluginFaults

    try:
        checked = AgentTester().check(plugins if len(plugins) > 1 else plugins[0])
    except PluginFaults as faults:
        return Outcome(order, None, str(faults))
    except (PluginError, HandlerError, ToolDefinitionError, ValueError) as error:
        return Outcome(order, None, f"{type(error).__name__}: {error}")
    return Outcome(order, checked.turns, "")


@click.command(short_help="Take a plugin along every path of a turn.")
@click.argument("name")
@click.option("--with", "others", multiple=True, metavar="NAME",
              help="Test it in both orders beside this plugin; `all`: beside each installed one.")  # fmt: skip
def test(name: str, others: tuple[str, ...]) -> None:
    """Take the plugin NAME, or a file, along every path of a turn; the exit code is 1 where it breaks a rule.

    A plugin says what it may change: `changes = {"messages"}` in its class, module or object.
    """
    failed = 0
    order = orders(name, others)
    for outcome in outcomes(order):
        said = f"{outcome.turns} turns" if outcome.turns is not None else "FAULTS"
        click.echo(_plain(f"{', '.join(outcome.names)}: {said}"))
        if outcome.problem:
            failed += 1
            click.echo(_plain("    " + outcome.problem.replace("\n", "\n    ")))
    click.echo(f"{len(order) - failed} of {len(order)} kept the rules")
    raise SystemExit(1 if failed else 0)


def _plain(text: str) -> str:
    """A text without secrets and without control characters for the terminal."""
    return "".join(one if one.isprintable() or one == "\n" else ascii(one)[1:-1] for one in mask(text))
