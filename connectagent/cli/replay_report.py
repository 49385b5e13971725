"""`connectagent replay bug.yaml`: whether the failure of a report is reproduced."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from connectagent.commands.failure import usage_error
from connectagent.commands.tables import echo, echo_json
from connectagent.errors import ConfigError, HandlerError, PluginError, short_path
from connectagent.hooks.options import from_text
from connectagent.output.text import visible
from connectagent.records.read import ODD

_MARK = b"\nreport: "
_HEAD = 1 << 16  # bytes in which the head says that it is a report
_OPTIONS = {"stream": bool, "plugin_errors": str, "parallel_tools": int}


def is_report(path: Path) -> bool:
    """Whether a file is a report, by its head."""
    try:
        with path.open("rb") as file:
            return _MARK in file.read(_HEAD).partition(b"\nturns:")[0]
    except OSError:
        return False


def replay_reports(
    paths: Sequence[Path],
    reports: Sequence[Path],
    plugins: Sequence[str],
    bad: str | None,
    as_json: bool,
    others: dict[str, Any],
) -> int:
    """Play reports, and say of each whether its failure is reproduced.

    Args:
        paths: the files.
        reports: those of them that are reports.
        plugins: what the person gives with `-p`.
        bad: the failure to look for, in place of the report's.
        as_json: whether JSON is printed.
        others: options that are for records, by name; those that were given are refused.

    Returns:
        1 where one is reproduced, else 0.

    Raises:
        click.UsageError: a file cannot be played, or a plugin cannot be loaded.
    """
    _check(paths, reports, others)
    read = [(path, *_read(path)) for path in reports]
    known = {name for _, head, _ in read for name in _names(head)}
    rows = [_played(*one, known, plugins, bad) for one in read]
    if as_json:
        echo_json(rows if len(rows) > 1 else rows[0])
    else:
        echo("\n".join(line for row in rows for line in _lines(row)))
    return int(any(row["reproduced"] for row in rows))


def check_apart(made: Any) -> None:
    """Play a new report in a process of its own, where it needs installed plugins: their modules may keep something.

    Plugins in files are loaded anew for each agent, and those in code are nowhere else.

    Raises:
        NotShown: the failure does not show there.
    """
    from connectagent.testing.reports.report import NotShown

    items = [source.item for source in made.needed]
    if not items or not all(isinstance(item, str) and not item.endswith(".py") for item in items):
        return
    with tempfile.TemporaryDirectory(prefix="connectagent-report-") as folder:
        file = Path(folder) / "report.yaml"
        file.write_text(made.text, "utf-8")
        named = [part for item in items for part in ("-p", item)]
        command = [sys.executable, "-P", "-m", "connectagent", "replay", str(file), *named]
        silent = subprocess.DEVNULL
        done = subprocess.run(command, stdin=silent, stdout=silent, stderr=silent, check=False)
    if done.returncode == 0:
        raise NotShown("it shows here, but not in a process of its own: a plugin keeps something between agents")


def _check(paths: Sequence[Path], reports: Sequence[Path], others: dict[str, Any]) -> None:
    if given := [name for name, value in others.items() if value]:
        raise usage_error(f"a report is played without {given[0]}: it is data, and runs no script and no tool")
    if len(reports) < len(paths):
        other = short_path(next(path for path in paths if path not in reports))
        why = "other files are reports: replay them one by one" if reports else "--bad is for reports"
        raise usage_error(f"{other} is a record, and {why}")


def _names(head: dict[str, Any]) -> list[str]:
    plugins = head.get("plugins")
    return list(map(str, plugins)) if isinstance(plugins, dict) else []


def _read(path: Path) -> tuple[dict[str, Any], Any]:
    """The head of a report, and its session.

    Raises:
        click.UsageError: it cannot be read.
    """
    from connectagent.testing.reports.session import from_report

    try:
        return from_report(path)
    except (OSError, *ODD) as error:
        raise usage_error(f"{short_path(path)} cannot be read: {error}") from error


def _played(
    path: Path, head: dict[str, Any], recording: Any, known: set[str], plugins: Sequence[str], bad: str | None
) -> dict[str, Any]:
    """Play one report; `known` are the plugins of all of them.

    Raises:
        click.UsageError: it cannot be played.
    """
    from connectagent.testing.reports.trying import CannotTell

    try:
        return _looked(path, head, recording, known, [_given(text) for text in plugins], bad)
    except (PluginError, HandlerError, ConfigError, CannotTell) as error:
        raise usage_error(str(error)) from error
    except ODD as error:
        raise usage_error(f"{short_path(path)} cannot be played: {type(error).__name__}: {error}") from error


def _looked(
    path: Path, head: dict[str, Any], recording: Any, known: set[str], given: list[Any], bad: str | None
) -> dict[str, Any]:
    from connectagent.replay.sandbox import offline
    from connectagent.testing.reports.plugins import for_report, listed
    from connectagent.testing.reports.report import REPORT
    from connectagent.testing.reports.trying import Setup, look

    if head.get("report") != REPORT:
        raise ConfigError(f"{short_path(path)}: report {head.get('report')!r} is not known here, but {REPORT}: update")
    wanted = _wanted(path, str(head.get("bad") or ""), bad)
    asked: Any = head.get("agent_options")
    items = asked.items() if isinstance(asked, dict) else ()
    options = {key: value for key, value in items if isinstance(value, _OPTIONS.get(key, ()))}
    with offline(), redirect_stdout(sys.stderr):
        sources, differing = for_report(_needed(head), known, given)
        shown, problem = look(recording, Setup(lambda: listed(sources), options), wanted)
    differing += _versions(head)
    by = shown.entry.get("by") if shown is not None else None
    facts = [fact for source in sources for fact in source.facts]
    return {
        "report": str(path), "bad": wanted.text, "reproduced": shown is not None, "by": by or None,
        "error": shown.text if shown else None, "raised_in": shown.raised_in if shown else None,
        "problem": problem or None, "plugins": facts, "differs": differing,
        "reported": head.get("shows"), "python": head.get("python"), "connectagent": head.get("connectagent"),
    }  # fmt: skip


def _versions(head: dict[str, Any]) -> list[str]:
    """What of this machine is not as the report says."""
    from connectagent.testing.reports.environment import environment

    here = environment()
    pairs = ((key, here[key], head.get(key)) for key in ("connectagent", "python", "platform"))
    return [f"{key}: {mine} here, {theirs} in the report" for key, mine, theirs in pairs if theirs not in (mine, None)]


def _given(text: str) -> Any:
    """What `-p` names; a file by its whole path."""
    return os.path.abspath(text) if text.endswith(".py") and not text.startswith("no:") else from_text(text)


def _needed(head: dict[str, Any]) -> list[dict[str, Any]]:
    listed = head.get("needs")
    return [one for one in listed if isinstance(one, dict) and "name" in one] if isinstance(listed, list) else []


def _wanted(path: Path, reported: str, bad: str | None) -> Any:
    """The failure to look for. A function of the reporter is not run unless the person names it.

    Raises:
        ConfigError: it cannot be looked for.
    """
    from connectagent.testing.symptoms import is_function, symptom

    if bad is None and is_function(reported):
        raise ConfigError(
            f"{short_path(path)}: {visible(reported, 200)} of the reporter decides whether it failed, which is not run "
            f"by itself.\nName your own: connectagent replay {shlex.quote(short_path(path))} --bad ./FILE.py:FUNCTION"
        )
    return symptom(reported if bad is None else bad)


def _lines(row: dict[str, Any]) -> Iterable[str]:
    from connectagent.output.text import actor_with_place

    answer = "reproduced" if row["reproduced"] else "not reproduced"
    yield f"{Path(row['report']).name}: {answer}: {visible(row['bad'], 200)}"
    if row["reproduced"]:
        if row["error"]:
            yield f"  {visible(row['error'], 200)}"
        if row["by"]:
            yield f"  by {actor_with_place(row['by'])}"
        if row["raised_in"]:
            yield f"  raised in {visible(short_path(Path(row['raised_in'])), 200)}"
    elif row["problem"]:
        yield f"  {visible(row['problem'], 400)}"
    for fact in row["plugins"]:
        version = f" {fact['version']}" if fact.get("version") else ""
        yield f"  with {visible(fact['name'])}{visible(version)}"
    if not row["plugins"]:
        yield "  with no plugin"
    yield from (f"  {visible(line)}" for line in row["differs"])
