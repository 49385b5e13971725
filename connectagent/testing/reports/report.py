"""Makes a report of a record: finds the failure, plays it, and shrinks the session to what still shows it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from connectagent.errors import ConfigError, PluginError
from connectagent.records.read import ODD
from connectagent.replay.recording import RecordedTurn
from connectagent.testing.ddmin import ddmin
from connectagent.testing.reports import session
from connectagent.testing.reports.environment import environment
from connectagent.testing.reports.failure import is_same, last_failure, turns_that_show
from connectagent.testing.reports.plugins import Source, listed
from connectagent.testing.reports.private import Private
from connectagent.testing.reports.session import Tree, outline
from connectagent.testing.reports.shrink import Shrinking
from connectagent.testing.reports.trying import CannotTell, Setup, Shown, look
from connectagent.testing.symptoms import Symptom, symptom

REPORT = 1
"""The number of the format of a report: `report` in its head."""

_SHOWN = ("type", "tool_name", "status", "error_type", "error")
_STREAMED = (
    "the plugin failed while an answer streamed, and a record does not have the text of an answer that was stopped"
)
_TITLE = "# The failure of an agent, as data. Play it without a key, tools or a network: connectagent replay FILE\n"


PluginsOf = Callable[[str], tuple[list[Source], dict[str, Any]]]
"""The plugins of the agent of a name, and what else it was given."""


class NotShown(Exception):
    """The failure does not happen again when the record is played."""


@dataclass(slots=True)
class Made:
    """A report, and how it came about.

    Attributes:
        text: the report.
        wanted: the failure.
        shown: the trace entry that shows it, in the session that is left.
        turn: the number of the turn of the record that shows it.
        before, after: how many turns, model calls and tool calls the session had, and has, and how many characters.
        tries: how often it was played.
        needed: the plugins without which the failure does not show.
        is_over: whether there was no time to shrink it further.
        inside: whose session it is, where it is not the record's own.
    """

    text: str
    wanted: Symptom
    shown: Shown
    turn: int
    before: dict[str, int]
    after: dict[str, int] = field(default_factory=dict)
    tries: int = 0
    needed: list[Source] = field(default_factory=list)
    is_over: bool = False
    inside: str = ""


def make(recording: session.Outline, plugins_of: PluginsOf, private: Private, bad: str | None) -> Made:
    """A report of a record.

    Args:
        recording: the record.
        plugins_of: gives the plugins of the agent of a name, and what else it was given, as for `Setup`.
        private: what is taken out.
        bad: the failure, as a person writes it; None for what failed last.

    Raises:
        ConfigError: it is no record, it does not show the failure, or nothing failed.
        NotShown: the failure does not show when the record is played.
        PluginError: a plugin cannot be loaded.
    """
    problems: list[str] = []
    for wanted, tree, turns in _wanted(recording, bad):
        sources, options = plugins_of(str(tree["head"].get("agent")))
        for clean, setup in product(_cleaned(tree, private), _setups(sources, options)):
            found = _first(wanted, clean, turns, setup, problems)
            if found is not None:
                made = _shrunk(_Work(wanted, tree, setup, sources, private, recording.head), *found)
                if tree["head"].get("agent") != recording.head.get("agent"):
                    made.inside = f" of {tree['head'].get('agent')}, an agent inside"
                return made
    raise NotShown(problems[0] if problems else "it cannot be played")


def _wanted(
    recording: session.Outline, bad: str | None
) -> Iterator[tuple[Symptom, Tree, list[RecordedTurn]]]:
    """The failure and the sessions that show it: the record's own, and those of agents inside.

    Raises:
        ConfigError: none does.
    """
    named, any_shown = None if bad is None else symptom(bad), False
    for tree, turns in session.sessions_in(recording):
        wanted = named or last_failure(turns)
        if wanted is not None and next(turns_that_show(wanted, turns), None):
            any_shown = True
            yield wanted, tree, turns
    if not any_shown and named is not None:
        raise ConfigError(named.why_not([entry for turn in recording.turns for entry in turn.entries]))
    if not any_shown:
        raise ConfigError(
            f"nothing failed in {recording.path.name}: no turn ended with an error, no plugin raised, and no call was "
            "rejected. Say what is wrong: --bad 'calls NAME', --bad 'says /regex/', --bad 'result /regex/' ..."
        )


def _setups(sources: Sequence[Source], options: dict[str, Any]) -> Iterator[Setup]:
    """How the agent may have been made, what is known of it first."""
    plugins = partial(listed, sources)
    yield Setup(plugins, dict(options))
    streams = any("on_text" in source.hooks for source in sources)
    if "stream" not in options and streams:
        yield Setup(plugins, {**options, "stream": True})
    if "plugin_errors" not in options:
        yield Setup(plugins, {**options, "plugin_errors": "warn"})


class _Clean:
    """A tree without what is private; only the turns that are played are looked through, since a record may be long."""

    def __init__(self, tree: Tree, private: Private) -> None:
        self._tree, self._private = tree, private
        self._turns: dict[int, Any] = {}

    def part(self, start: int, end: int) -> Tree:
        """Some turns in a row. What the session began with belongs to its first."""
        for at in range(start, end):
            if at not in self._turns:
                self._turns[at] = self._private.value(self._tree["turns"][at])
                session.share_arguments(self._turns[at]["entries"])
        head = {key: value for key, value in self._tree["head"].items() if not start or key != "begins_with"}
        return {"head": self._private.value(head), "turns": [self._turns[at] for at in range(start, end)]}


def _cleaned(tree: Tree, private: Private) -> Iterator[_Clean]:
    """A tree with the schemas of its tools, and without: they check the arguments of calls, as the tools did."""
    yield _Clean(tree, private)
    if "tools" in tree["head"]:
        head = {key: value for key, value in tree["head"].items() if key != "tools"}
        yield _Clean({**tree, "head": head}, private)


def _first(
    wanted: Symptom, clean: _Clean, turns: Sequence[RecordedTurn], setup: Setup, problems: list[str]
) -> tuple[Tree, Shown, int] | None:
    """The last turn that shows the failure, with as few turns before it as that takes."""
    for at, then in list(turns_that_show(wanted, turns))[:3]:
        back, other = 1, None
        while True:
            start = max(0, at + 1 - back)
            kept = clean.part(start, at + 1)
            shown, problem = _looked(kept, setup, wanted)
            if shown is not None and is_same(wanted, then, shown):
                if shown.text == then.text or wanted.kind not in ("error", "rejected"):
                    return kept, shown, turns[at].number
                other = kept, shown, turns[at].number
            if problem and not start:
                problems.append(_STREAMED if (then.entry.get("by") or {}).get("hook") == "on_text" else problem)
            if not start:
                break
            back = back * 4
        if other is not None:  # its text has a time, or what is masked
            return other
    return None


def _looked(tree: Tree, setup: Setup, wanted: Symptom) -> tuple[Shown | None, str]:
    try:
        return look(outline(tree), setup, wanted)
    except CannotTell as error:
        return None, str(error)


@dataclass(slots=True)
class _Work:
    wanted: Symptom
    tree: Tree
    setup: Setup
    sources: Sequence[Source]
    private: Private
    head: dict[str, Any]

    def shows(self, like: Shown, tree: Tree, setup: Setup | None = None) -> Shown | None:
        """Whether a tree shows the same failure."""
        try:
            shown, _ = look(outline(tree), setup or self.setup, self.wanted)
        except (*ODD, PluginError, CannotTell):
            return None
        return shown if shown is not None and is_same(self.wanted, like, shown) else None


def _shrunk(work: _Work, tree: Tree, shown: Shown, turn: int) -> Made:
    shrinking = Shrinking(tree, lambda smaller: work.shows(shown, smaller) is not None)
    small = shrinking.run()

    def with_only(kept: list[Source]) -> Setup:
        return replace(work.setup, plugins=partial(listed, kept))

    needed = ddmin(work.sources, lambda kept: work.shows(shown, small, with_only(kept)) is not None)
    work.setup = with_only(needed)
    last = work.shows(shown, small)
    if last is None:
        raise NotShown("it does not show each time that the same is played: a plugin keeps something between agents")
    text = _TITLE + session.text_of(_head(work, needed, last), small)
    _check(work, last, text)
    counts = (_counts(work.tree), _counts(small))
    return Made(text, work.wanted, last, turn, *counts, shrinking.tries, list(needed), shrinking.is_over)


def _head(work: _Work, needed: Sequence[Source], shown: Shown) -> dict[str, Any]:
    """What a report says above its turns."""
    facts = [_masked(fact, work.private) for source in work.sources for fact in source.facts]
    names = {name for source in needed for name in source.names}
    here, then = environment(), work.head.get("connectagent")
    others = {
        "recorded_with": None if then == here["connectagent"] else then,
        "agent_options": {key: value for key, value in work.setup.options.items() if value},
    }
    return {
        "report": REPORT,
        "bad": work.wanted.text,
        "shows": work.private.value(_shows(shown)),
        **here,
        "plugins": {fact["name"]: fact.get("version") for fact in facts},
        "needs": [fact for fact in facts if fact["name"] in names],
        "others": [fact for fact in facts if fact["name"] not in names],
        **{key: value for key, value in others.items() if value},
    }


def _masked(fact: dict[str, Any], private: Private) -> dict[str, Any]:
    return {**fact, "options": private.value(fact["options"])} if "options" in fact else fact


def _shows(shown: Shown) -> dict[str, Any]:
    """The entry that shows the failure, in short."""
    by = shown.entry.get("by") or {}
    found = {key: value[:200] for key in _SHOWN if isinstance(value := shown.entry.get(key), str)}
    named = {key: by[key] for key in ("plugin", "hook", "handler") if by.get(key)}
    more = {"by": named, "raised_in": os.path.basename(shown.raised_in)}
    return {**found, **{key: value for key, value in more.items() if value}}


def _counts(tree: Tree) -> dict[str, int]:
    kinds = [entry.get("type") for turn in tree["turns"] for entry in turn["entries"]]
    calls = {"model calls": kinds.count("llm_call"), "tool calls": kinds.count("tool_execution")}
    return {"turns": len(tree["turns"]), **calls, "characters": session.size(tree)}


def _check(work: _Work, like: Shown, text: str) -> None:
    """Play the report as the file that it will be.

    Raises:
        NotShown: it does not show the failure.
    """
    with tempfile.TemporaryDirectory(prefix="connectagent-report-") as folder:
        file = Path(folder) / "report.yaml"
        file.write_text(text, "utf-8")
        _, recording = session.from_report(file)
        shown, problem = look(recording, work.setup, work.wanted)
    if shown is None or not is_same(work.wanted, like, shown):
        raise NotShown(f"the report itself does not show it: {problem}")
