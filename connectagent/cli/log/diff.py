"""`connectagent log diff`: compares two sessions step by step."""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from connectagent.cli.log.inside import PLACES, Inside, kind_of
from connectagent.output.text import actor, clean
from connectagent.records.file import BETWEEN_TURNS
from connectagent.records.find import find_record
from connectagent.records.history import joined_turns
from connectagent.records.lines import MAX_VALUES
from connectagent.records.read import read_record, refuse_odd
from connectagent.records.texts import data_text

_MOST_PAIRED = 2_000  # steps, or lines of a text, between equal ones; more are compared place by place
_as_text = json.JSONEncoder(sort_keys=True, default=str).encode  # made once: `json.dumps` makes one each time
_OTHER_EACH_TIME = {"id", "call_id", "tool_call_id", "timestamp", "started", "duration_ms", "timing", "index", "usage"}
_OTHER_EACH_TIME |= {"retries"}


@dataclass(slots=True)
class _Step:
    """One step of a session.

    Args:
        place: where, for example `turn 1, iteration 2`.
        what: the model, tool or kind of entry; steps of two records are paired by it.
        values: the values to compare, by name.
    """

    place: str
    what: str
    values: dict[str, Any]

    @property
    def text(self) -> str:
        """The step as text, equal for equal steps."""
        return _as_text([self.what, self.values])


@click.command("diff", short_help="How two sessions differ; exit code 1 if they do.")
@click.argument("one", metavar="A")
@click.argument("two", metavar="B")
def command(one: str, two: str) -> None:
    """Compare two sessions by turn, iteration and tool: prompts, models, calls, arguments, results, texts.

    Ids, times, tokens and costs are not compared. The exit code is 0 where nothing differs, and 1 where something does.
    """
    paths = [find_record(one), find_record(two)]
    records = [read_record(path, MAX_VALUES // 2, conversation=False) for path in paths]
    with refuse_odd(*paths):
        lines = list(differences(records[0], records[1]))
    if not lines:
        return
    for sign, path in zip(("---", "+++"), paths, strict=True):
        click.echo(clean(f"{sign} {path}"))
    for line in lines:
        colour = {"-": "red", "+": "green"}.get(line[2:3]) if line.startswith("  ") else None
        click.secho(clean(line), fg=colour, bold=not line.startswith("  "))
    raise SystemExit(1)


def differences(one: dict[str, Any], two: dict[str, Any]) -> Iterator[str]:
    """The differences of two records as lines: the place, below it `-` for the first and `+` for the second."""
    head = [_Step("session", "head", {key: record.get(key) for key in _HEAD}) for record in (one, two)]
    yield from _compared(head[:1], head[1:])
    turns = [_by_place(joined_turns(record)) for record in (one, two)]
    for place in dict.fromkeys([*turns[0], *turns[1]]):
        yield from _compared(_steps(place, turns[0].get(place)), _steps(place, turns[1].get(place)))


_HEAD = ("agent", "model", "plugins", "plugin_sources", "system_prompt")


def _by_place(turns: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    known: Counter[str] = Counter()
    for turn in turns:
        between = turn.get("status") == BETWEEN_TURNS
        place = f"{'after ' if between else ''}turn {turn.get('turn')}"
        known[place] += 1
        again = known[place] - 1
        found[f"{place}, again{f' ({again})' if again > 1 else ''}" if again else place] = turn
    return found


def _steps(place: str, turn: dict[str, Any] | None) -> list[_Step]:
    if turn is None:
        return []
    prompt = _Step(place, "prompt", {"prompt": turn.get("input")})
    end = {"status": turn.get("status"), "error": turn.get("error"), "result": turn.get("result")}
    steps = _steps_in(place, turn["trace"], Inside(turn["lines"]))
    return [prompt, *steps, _Step(f"{place}, end", "end", end)]


def _steps_in(place: str, trace: list[Any], inside: Inside) -> Iterator[_Step]:
    """The steps of a turn, with those of the agents inside."""
    here, iteration = place, None
    for entry in trace:
        if kind_of(entry) in (None, "user_input", "began"):
            continue
        if entry["type"] == "llm_call" and entry.get("iteration") != iteration:
            iteration = entry.get("iteration")
            here = f"{place}, iteration {iteration}"
        if entry["type"] == "agent_turn":
            yield from _steps_in(f"{here}, agent {entry.get('agent')}", inside.of(entry), inside)
        else:
            yield _step(here, entry)


def _step(place: str, entry: dict[str, Any]) -> _Step:
    kind, by = str(entry.get("type")), entry.get("by")
    values: dict[str, Any] = {"by": actor(by)} if by else {}
    if kind == "llm_call":
        calls = entry.get("tool_calls") or []
        called = [call.get("name") if isinstance(call, dict) else call for call in calls]
        values |= {"model": entry.get("model"), "text": entry.get("content"), "tools called": called}
        values |= {"status": entry.get("status"), "error": entry.get("error")}
        return _Step(f"{place}, model", "model", values)
    if kind == "tool_execution":
        name = str(entry.get("tool_name"))
        values |= {"arguments": entry.get("arguments"), "status": entry.get("status"), "result": entry.get("result")}
        return _Step(f"{place}, tool {name}", f"tool {name}", values)
    rest = {key: value for key, value in entry.items() if key not in PLACES}
    return _Step(f"{place}, {kind}", kind, values | _same_each_time(rest))


def _same_each_time(value: object) -> Any:
    if isinstance(value, dict):
        return {key: _same_each_time(item) for key, item in value.items() if key not in _OTHER_EACH_TIME}
    return [_same_each_time(item) for item in value] if isinstance(value, list) else value


def _compared(one: list[_Step], two: list[_Step]) -> Iterator[str]:
    """Pair the steps of the same kind between equal steps, which are left out."""
    texts = ([step.text for step in one], [step.text for step in two])
    if texts[0] == texts[1]:
        return
    for tag, a, b, c, d in _opcodes(*texts):
        if tag == "equal":
            continue
        left, right = one[a:b], two[c:d]
        kinds = ([step.what for step in left], [step.what for step in right])
        for inner, e, f, g, h in _opcodes(*kinds):
            if inner == "equal":
                for first, second in zip(left[e:f], right[g:h], strict=True):
                    yield from _changed(first, second)
                continue
            for step in left[e:f]:
                yield from _only_in("first", "-", step)
            for step in right[g:h]:
                yield from _only_in("second", "+", step)


def _opcodes(one: list[str], two: list[str]) -> Iterator[tuple[str, int, int, int, int]]:
    """What turns one list into the other, as `difflib` says it, in a time that does not grow with the square."""
    start, stop_one, stop_two = _other_part(one, two)
    yield ("equal", 0, start, 0, start)
    left, right = one[start:stop_one], two[start:stop_two]
    if max(len(left), len(right)) <= _MOST_PAIRED:
        for tag, a, b, c, d in difflib.SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
            yield tag, start + a, start + b, start + c, start + d
    else:
        for at in range(start, max(stop_one, stop_two)):
            a, b, c, d = min(at, stop_one), min(at + 1, stop_one), min(at, stop_two), min(at + 1, stop_two)
            yield "equal" if one[a:b] == two[c:d] else "replace", a, b, c, d
    yield "equal", stop_one, len(one), stop_two, len(two)


def _other_part(one: list[str], two: list[str]) -> tuple[int, int, int]:
    """Where the equal beginning of two lists ends, and where in each the equal end begins."""
    start, stop_one, stop_two = 0, len(one), len(two)
    while start < min(stop_one, stop_two) and one[start] == two[start]:
        start += 1
    while min(stop_one, stop_two) > start and one[stop_one - 1] == two[stop_two - 1]:
        stop_one, stop_two = stop_one - 1, stop_two - 1
    return start, stop_one, stop_two


def _only_in(which: str, sign: str, step: _Step) -> Iterator[str]:
    yield f"{step.place}: only in the {which}"
    for key, value in step.values.items():
        if value not in (None, "", [], {}):
            yield from (f"  {sign} {line}" for line in f"{key}: {data_text(value)}".splitlines())


def _changed(one: _Step, two: _Step) -> Iterator[str]:
    place = one.place if one.place == two.place else f"{one.place} and {two.place}"
    keys = [key for key in {**one.values, **two.values} if one.values.get(key) != two.values.get(key)]
    if keys:
        yield place
    for key in keys:
        yield f"  {key}"
        first, second = (data_text(step.values.get(key)).split("\n") for step in (one, two))
        if first == second:  # a number and its text
            first, second = ([repr(step.values.get(key))] for step in (one, two))
        yield from _changed_lines(first, second)


def _changed_lines(one: list[str], two: list[str]) -> Iterator[str]:
    """The lines of a text that differ, with one equal line before and after."""
    start, stop_one, stop_two = _other_part(one, two)
    if max(stop_one, stop_two) - start <= _MOST_PAIRED:
        start = max(start - 1, 0)
        parts = one[start : stop_one + 1], two[start : stop_two + 1]
        found = list(difflib.unified_diff(*parts, n=1, lineterm=""))[2:]
        yield from (f"  {line[0]} {line[1:]}" for line in found if not line.startswith("@@"))
        return
    yield from (f"  - {line}" for line in one[start:stop_one])
    yield from (f"  + {line}" for line in two[start:stop_two])
