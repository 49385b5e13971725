"""`connectagent replay`: plays recorded sessions through the current handlers."""

from __future__ import annotations

import contextlib
import io
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from connectagent.cli.replay_report import is_report, replay_reports
from connectagent.commands import script
from connectagent.commands.failure import usage_error, usage_errors
from connectagent.commands.plugin_options import plugin_option
from connectagent.commands.recorded_agent import agent_in, is_demo, script_of
from connectagent.commands.tables import Column, echo, echo_json, show_table
from connectagent.errors import HandlerError, PluginError
from connectagent.output.rows import call_text, many
from connectagent.output.text import actor, actor_with_place, visible
from connectagent.records.find import find_records
from connectagent.records.read import ODD

if TYPE_CHECKING:
    from connectagent.replay.outcome import Replay
    from connectagent.replay.recording import Recording

MOST = 20  # lines of a list


@click.command(short_help="Play records through the current handlers: what would change?")
@click.argument("records", nargs=-1, metavar="RECORD... [SCRIPT]")
@plugin_option("./plugin.py or an installed plugin to add; no:NAME leaves one out. Repeatable.")
@click.option("--all", "every", is_flag=True, help="All records.")
@click.option("--agent", metavar="NAME", help="All records of this agent.")
@click.option("--live-tools", is_flag=True, help="Run the tools, and let them use the network.")
@click.option("--bad", metavar="WHAT", help="Of a report: look for this failure in place of the report's own.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--traceback", is_flag=True, help="Show the whole traceback of an error.")
def replay(
    records: tuple[str, ...],
    plugins: tuple[str, ...],
    every: bool,
    agent: str | None,
    live_tools: bool,
    bad: str | None,
    as_json: bool,
    traceback: bool,
) -> None:
    """Play the recorded answers of model and tools through the current handlers, offline.

    Prints the first request that would differ and the handler behind it, and the tool calls that would now be
    rejected. SCRIPT (*.py) makes the agent, by default the script that a record of this project names; else it is
    made from the record. RECORD is a path, a session's id, an agent's name for its newest record, a name in
    .co/evals, the beginning of an id or a name, or `last`. Nothing is written, no tool runs, and there is no network.

    Of a report (connectagent report), the command says whether the failure is reproduced. It plays it with your own
    plugins of the names that the report needs, and runs no script.

    Exit code: 0 nothing differs, 1 something differs, 2 wrong usage, or a plugin cannot be loaded. Of a report: 0 not
    reproduced, 1 reproduced.
    """
    program = records[-1] if records and records[-1].endswith(".py") else None
    named = records[:-1] if program else records
    with usage_errors():
        paths = find_records(named, agent=agent, every=every)
    if program is not None and not Path(program).is_file():
        raise usage_error(f"{program!r}: no such script")
    reports = [path for path in paths if is_report(path)]
    if reports or bad is not None:
        script_options = {"SCRIPT": program, "--live-tools": live_tools}
        raise click.exceptions.Exit(replay_reports(paths, reports, plugins, bad, as_json, script_options))
    script.apply_options(None, True, plugins)
    _replay(paths, program, every or agent is not None or len(paths) > 1, live_tools, as_json, traceback)


def _replay(
    paths: list[Path], program: str | None, several: bool, live_tools: bool, as_json: bool, traceback: bool
) -> None:
    """Play records, and show what differs."""
    rows = [_row(path, program, live_tools, traceback, several) for path in paths]
    if several:
        echo_json([_data(*row) for row in rows]) if as_json else _table(rows)
    else:
        echo_json(_data(*rows[0])) if as_json else _show(*rows[0])
    if not all(_is_same(row[1]) for row in rows):
        raise click.exceptions.Exit(1)


# -- one record ----------------------------------------------------------------------------------


def _row(path: Path, program: str | None, live_tools: bool, traceback: bool, several: bool) -> tuple[Path, Any]:
    """A record with its comparison; where several are replayed, an error is its outcome."""
    from connectagent.replay.recording import Recording
    from connectagent.replay.sandbox import offline

    try:
        recording = Recording(path)
    except (OSError, *ODD) as error:
        if several:
            return path, error
        raise usage_error(f"{path} cannot be replayed: {type(error).__name__}: {error}") from error
    try:
        program = program or script_of(path, recording.head, "replay")
        with offline(live_tools), contextlib.redirect_stdout(sys.stderr):
            return path, _played(recording, program, live_tools, traceback, several)
    except (PluginError, HandlerError) as error:  # it is the same for each record
        raise usage_error(str(error)) from error
    except (Exception, SystemExit) as error:
        if several:
            return path, error
        raise


def _played(recording: Recording, program: str | None, live_tools: bool, traceback: bool, several: bool) -> Any:
    from connectagent.agents.plugin_changes import differences
    from connectagent.replay.playing import agent_from_record
    from connectagent.replay.replaying import replay as play

    if program is None and is_demo(recording.head):
        return _played_demo(recording, live_tools)
    if program is None:
        return play(recording, live_tools=live_tools)
    agent = agent_in(program, str(recording.head.get("agent")), traceback)
    if agent is None:
        click.echo(f"{visible(program)} makes no agent at its top level; the agent is made from the record", err=True)
        agent = agent_from_record(recording)
    elif not several and (how := differences(agent, recording.head)):
        click.echo(f"the plugins are not the record's: {visible(how)}", err=True)
    return play(recording, agent, live_tools=live_tools)


def _played_demo(recording: Recording, live_tools: bool) -> Any:
    """The demo again, with its plugins, without what they print: each run shows every hook."""
    from connectagent.commands.demo_agent import demo_agent
    from connectagent.replay.replaying import replay as play

    with contextlib.redirect_stdout(io.StringIO()):
        return play(recording, demo_agent(), live_tools=live_tools)


# -- showing -------------------------------------------------------------------------------------


def _is_same(played: object) -> bool:
    return bool(getattr(played, "same", False))


def _data(path: Path, played: Replay | BaseException) -> dict[str, Any]:
    if isinstance(played, BaseException):
        return {"record": str(path), "same": False, "error": f"{type(played).__name__}: {played}"}
    divergence = played.divergence and asdict(played.divergence)
    data: dict[str, Any] = {"record": str(path), "same": played.same, "divergence": divergence}
    for key in ("rejected", "stand_ins", "errors", "changed"):
        data[key] = [{**asdict(call), "had_succeeded": call.had_succeeded} for call in getattr(played, key)]
    keys = ("not_recorded", "hook_errors", "ran_out", "results", "recorded_results")
    return {**data, **{key: getattr(played, key) for key in keys}, "requests": len(played.requests)}


def _show(path: Path, played: Replay) -> None:
    head = f"{path.name}: {many(len(played.results), 'turn')}, {many(len(played.requests), 'model call')}"
    ending = f"; the record ends at {played.ran_out}" if played.ran_out else ""
    if played.same:
        echo(f"{head}\nsame: the same requests, the same results{ending}")
        return
    lines = [head]
    if played.divergence is not None:
        first, *more = str(played.divergence).split("\n")
        lines += [f"first divergence at {first}", *(f"  {line}" for line in more)]
    succeeded = [call for call in played.rejected if call.had_succeeded]
    lines += _listed("now rejected, had succeeded", succeeded)
    lines += _listed("now rejected", [call for call in played.rejected if not call.had_succeeded])
    lines += _listed("now stood in for", played.stand_ins)
    lines += _listed("now failing", played.errors)
    lines += _listed("other results", played.changed)
    lines += _listed("not recorded", [_lacking(one) for one in played.not_recorded])
    lines += _listed("errors of handlers", [_error(entry) for entry in played.hook_errors])
    if played.ran_out:
        lines.append(f"the recorded answers ran out at {played.ran_out}")
    lines.append(f"result: {'same' if played.results == played.recorded_results else 'different'}")
    echo("\n".join(lines))


def _listed(title: str, things: list[Any]) -> list[str]:
    if not things:
        return []
    more = [f"  ... {len(things) - MOST} more"] if len(things) > MOST else []
    return [f"{title}: {len(things)}", *(f"  {visible(thing)}" for thing in things[:MOST]), *more]


def _lacking(one: dict[str, Any]) -> str:
    what = call_text(one["tool_name"], one["arguments"]) if one["what"] == "tool" else "the model"
    return f"{one['turn']}.{one['iteration']} {what}: {one['reason']}"


def _error(entry: dict[str, Any]) -> str:
    return f"{actor_with_place(entry['by'])}: {entry.get('error_type')}: {entry.get('error')}"


def _table(rows: list[tuple[Path, Any]]) -> None:
    cells, counts = [], {"same": 0, "diverged": 0, "errors": 0}
    rejected = succeeded = 0
    for path, played in rows:
        if isinstance(played, BaseException):
            counts["errors"] += 1
            reason = visible(f"error: {type(played).__name__}: {played}".replace(f"{path}: ", ""), 200)
            cells.append([path.stem, "-", "-", "-", reason])
            continue
        counts["same" if played.same else "diverged"] += 1
        mine = sum(call.had_succeeded for call in played.rejected)
        rejected, succeeded = rejected + len(played.rejected), succeeded + mine
        count = f"{len(played.rejected)} ({mine} had succeeded)" if played.rejected else "0"
        cells.append([path.stem, str(len(played.results)), str(len(played.requests)), count, _outcome(played)])
    columns = [Column("record", 60), Column("turns", right=True), Column("calls", right=True), Column("now rejected")]
    show_table([*columns, Column("outcome")], cells)
    outcomes = ", ".join(f"{count} {name}" for name, count in counts.items())
    echo(f"{len(rows)} records: {outcomes}; {rejected} calls now rejected, of which {succeeded} had succeeded")


def _outcome(played: Replay) -> str:
    if played.same:
        return "same"
    if played.divergence is not None:
        whose = f", by {actor(played.divergence.now_by)}" if played.divergence.now_by else ""
        return f"diverged at {played.divergence.place}: other {played.divergence.what}{whose}"
    return "other tool calls"
