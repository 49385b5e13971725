"""`connectagent bill`: who fills the context of a record's model calls, and who breaks the provider's prompt cache."""

from __future__ import annotations

import contextlib
import io
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from connectagent.commands import recorded_agent, script
from connectagent.commands.failure import usage_error
from connectagent.commands.plugin_options import plugin_option
from connectagent.commands.tables import (
    Column,
    cost_text,
    echo,
    echo_json,
    json_option,
    show_table,
    tokens_text,
)
from connectagent.commands.usage import WholeNumber
from connectagent.data import TokenUsage
from connectagent.errors import ConfigError, HandlerError, PluginError, did_you_mean
from connectagent.hooks.entry_points import normalized
from connectagent.output.rows import many
from connectagent.output.text import visible
from connectagent.records.bill import Bill, Break, Item, bill_of, resized
from connectagent.records.blobs import blob_folder
from connectagent.records.find import find_record
from connectagent.records.read import read_lazily, refuse_odd
from connectagent.records.summary import summarise
from connectagent.records.tally import Share

DIVIDED = "tokens: the provider's own counts, divided in proportion to the size of the text"


@click.command(short_help="Who fills the context, and who breaks the prompt cache, in tokens and USD.")
@click.argument("records", nargs=-1, metavar="[RECORD] [SCRIPT]")
@plugin_option("Show what it would have been without this plugin, by replay, without a model. Repeatable.", "no:NAME")
@click.option("-n", "most", type=WholeNumber(min=0), default=10, metavar="N", help="The N largest parts; 0: all. [10]")
@json_option
@click.option("--traceback", is_flag=True, help="Show the whole traceback of an error.")
def bill(records: tuple[str, ...], plugins: tuple[str, ...], most: int, as_json: bool, traceback: bool) -> None:
    """Print who fills the context of a record's model calls, and who breaks the provider's prompt cache.

    The provider counts the tokens of a call; they are divided over its parts in proportion to the size of their text.
    A request that does not begin with the whole request before it breaks the cache: the first byte that differs is
    shown, and whose it is. `?` stands for what the record or the price list does not tell.

    With -p no:NAME, SCRIPT (*.py) makes the agent, by default the script that the record names. Nothing is written.

    Exit code: 0, or 2 wrong usage.
    """
    program = records[-1] if records and records[-1].endswith(".py") else None
    named = records[:-1] if program else records
    if len(named) > 1 or (program and not plugins):
        raise usage_error("give one RECORD; SCRIPT only with -p no:NAME")
    try:
        path = find_record(named[0] if named else None).absolute()
        with refuse_odd(path):
            found = _bill(path)
            without = _without(path, program, plugins, found, traceback) if plugins else None
    except (ConfigError, PluginError, HandlerError, OSError) as error:
        raise usage_error(str(error)) from error
    if as_json:
        return echo_json(_data(found) | ({"without": without} if without else {}))
    _show(path, found, most, without)


def _bill(path: Path) -> Bill:
    return bill_of(read_lazily(path), price_of, blob_folder(path), summarise(path).status == "running")


def price_of(entry: dict[str, Any], usage: TokenUsage) -> float | None:
    """What a call of an `llm_call` entry would cost with these tokens, by the table of prices."""
    from connectagent.models.names import parse_model
    from connectagent.models.prices import price

    provider, model = entry.get("provider"), str(entry.get("model"))
    with contextlib.suppress(ConfigError):
        known, model = parse_model(model)
        provider = provider or known.name
    return None if not isinstance(provider, str) else price(provider, model, usage)


# -- without a plugin ----------------------------------------------------------------------------


def _without(path: Path, program: str | None, plugins: tuple[str, ...], found: Bill, traceback: bool) -> dict[str, Any]:
    """What the calls would have been without plugins, as far as replay can tell."""
    from connectagent.replay.recording import Recording
    from connectagent.replay.sandbox import offline
    from connectagent.replay.without import Resent, key_of

    recording = Recording(path)
    for one in plugins:
        if not one.startswith("no:"):
            raise usage_error(f"-p {one!r}: bill takes no:NAME, and shows what it would have been without that plugin")
    program = program or recorded_agent.script_of(path, recording.head, "bill")
    if program is None or not Path(program).is_file():
        what = f"{program!r}: no such script" if program else "the record names no script that is here: name it"
        raise usage_error(f"{what}; what it would have been without a plugin needs the agent")
    script.apply_options(None, True, ())
    with offline(), contextlib.redirect_stdout(io.StringIO()):
        resent = Resent(recording, _agent(program, str(recording.head.get("agent")), plugins, traceback))
        resent.play()
    sent = {number: resent.sent.get(key_of(call.entry)) for number, call in enumerate(found.calls)}
    return {"plugins": list(plugins), **resized(found, sent, price_of), "until": resent.until}


def _agent(program: str, name: str, plugins: tuple[str, ...], traceback: bool) -> Any:
    """The script's agent, and those below it, without the handlers of plugins."""
    from connectagent.agents.runtime import default, for_new_agents

    out, met = {normalized(one[3:]) for one in plugins}, set()

    def takes(handler: Any) -> bool:
        met.add(normalized(handler.plugin))
        return handler.builtin or normalized(handler.plugin) not in out

    with for_new_agents(replace(default(), takes=takes)):
        agent = recorded_agent.agent_in(program, name, traceback)
    if agent is None:
        raise usage_error(f"{program} makes no agent at its top level")
    for one in sorted(out - met):
        near = did_you_mean(one, met)
        raise usage_error(f"-p no:{one}: there is no such plugin.{near} The agent has: {', '.join(sorted(met))}")
    return agent


# -- showing -------------------------------------------------------------------------------------


def _data(found: Bill) -> dict[str, Any]:
    usage, items = found.spent.usage, sorted(found.items.values(), key=_size)
    totals: dict[str, Any] = {"calls": found.spent.calls, "tokens": found.spent.tokens}
    totals |= {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
    totals |= {"cached_tokens": usage.cached_tokens, "cost": found.spent.cost, "known_cost": found.spent.known_cost}
    notes = {"unknown_prices": found.unpriced, "divided_evenly": found.even, "with_files": found.images}
    breaks = [asdict(one) for one in found.breaks]
    return {**totals, "parts": [asdict(item) for item in items], "breaks": breaks, **notes, "divided": DIVIDED}


def _show(path: Path, found: Bill, most: int, without: dict[str, Any] | None) -> None:
    spent = found.spent
    cost = cost_text(spent.cost, spent.known_cost)
    head = f"{many(spent.calls, 'model call')}, {tokens_text(spent.tokens)} tokens, {cost}"
    echo(f"{visible(path.name)}: {head}")
    if not found.items:
        return
    items = list(found.items.values())
    click.echo()
    _table(_sums(items), found, ("who",))
    click.echo()
    parts = sorted(items, key=_size)
    shown = parts[: most or None]
    _table(shown, found, ("who", "kind", "name"))
    if len(parts) > len(shown):
        echo(f"... {many(len(parts) - len(shown), 'more part')}: -n 0")
    click.echo()
    _show_breaks(found)
    echo("\n".join(_notes(found)))
    if without is not None:
        _show_without(found, without)


def _size(item: Item) -> tuple[int, int]:
    """The largest first."""
    return -item.tokens, -item.bytes


def _sums(items: list[Item]) -> list[Item]:
    """One item for each who."""
    sums: dict[str, Item] = {}
    for item in items:
        one = sums.setdefault(item.who, Item("", item.who, "", ""))
        one.add(Share(item.tokens, item.cached, item.cost, 1), item.bytes)
    return sorted(sums.values(), key=_size)


def _table(items: list[Item], found: Bill, keys: tuple[str, ...]) -> None:
    of = "tokens" if any(item.tokens for item in found.items.values()) else "bytes"  # where no usage is known
    whole = sum(getattr(item, of) for item in found.items.values()) or 1
    several = len({item.agent for item in items}) > 1
    names = [*(["agent"] if several else []), *keys]
    columns = [Column(name, 30) for name in names[:-1]]
    columns += [Column(name, right=True) for name in (of, "share", "cached", "cost")]
    cells = [
        [
            *(visible(getattr(item, name), 60) for name in names[:-1]),
            tokens_text(getattr(item, of)),
            f"{100 * getattr(item, of) / whole:.1f}%",
            tokens_text(item.cached),
            cost_text(item.cost),
            visible(getattr(item, names[-1]), 60),
        ]
        for item in items
    ]
    show_table([*columns, Column(names[-1])], cells)


def _show_breaks(found: Bill) -> None:
    if not found.breaks:
        echo("prompt cache: each request begins with the whole request before it")
        return
    by_who: dict[str, list[Break]] = {}
    for one in found.breaks:
        by_who.setdefault(one.who, []).append(one)
    cells = []
    for who, breaks in by_who.items():
        first = breaks[0]
        tokens = None if any(one.tokens is None for one in breaks) else sum(one.tokens or 0 for one in breaks)
        cost = None if any(one.cost is None for one in breaks) else sum(one.cost or 0.0 for one in breaks)
        where = f"{first.turn}.{first.iteration} byte {first.byte}, {first.kind} {first.name}".strip()
        cells.append([who, str(len(breaks)), tokens_text(tokens), cost_text(cost), visible(where, 120)])
    columns = [Column("breaks the prompt cache", 30)]
    columns += [Column(name, right=True) for name in ("calls", "tokens", "cost")]
    show_table([*columns, Column("first at")], cells)


def _notes(found: Bill) -> list[str]:
    notes = [DIVIDED]
    if found.unpriced:
        notes.append(f"?: the price or the usage of {many(found.unpriced, 'call')} is not known")
    if found.even:
        notes.append(f"{many(found.even, 'call')} without a price in the table: their cost is divided evenly")
    if found.images:
        notes.append(f"{many(found.images, 'call')} had images or files: these have no size as text, and count as none")
    return notes


def _show_without(found: Bill, without: dict[str, Any]) -> None:
    known, then, now = without["calls"], without["then"], without["now"]
    echo(f"\nwithout {', '.join(one[3:] for one in without['plugins'])}, if the model answers the same:")
    rows = [["as it was", then], ["without", now]]
    columns = [Column("", 10)]
    columns += [Column(name, right=True) for name in ("tokens", "cost", "broken caches", "lost by these")]
    cells = [
        [name, tokens_text(one["tokens"]), cost_text(one["cost"]), str(one["breaks"]), cost_text(one["lost"])]
        for name, one in rows
    ]
    show_table([*columns, Column("of")], [[*cell, f"{known} of {many(len(found.calls), 'call')}"] for cell in cells])
    if without["until"]:
        echo(f"cannot be told from {visible(without['until'], 300)}")
