"""Plays a session that may have been cut down, and looks for the failure in it."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from connectagent.agents.agent import Agent
from connectagent.data import TraceEntry
from connectagent.errors import ConfigError, HandlerError, PluginError
from connectagent.output.text import describe
from connectagent.replay.player import Player, RecordEnds
from connectagent.replay.playing import Playing, agent_from_record
from connectagent.replay.recording import Recording
from connectagent.testing.symptoms import Symptom
from connectagent.tools.tool import Tool

_PACKAGE = str(Path(__file__).parents[2]) + os.sep


class CannotTell(Exception):
    """A session cannot be played, so that nobody knows whether it shows the failure."""


@dataclass(slots=True)
class Shown:
    """A failure that a session shows.

    Attributes:
        entry: the trace entry that shows it.
        raised_in: where the exception that ended the turn was raised, `file.py:12`, outside this package; "" where
            none did.
    """

    entry: TraceEntry
    raised_in: str = ""

    @property
    def text(self) -> str:
        """What the error says, or why the call was rejected."""
        return str(self.entry.get("error") or self.entry.get("result") or "")

    @property
    def who(self) -> tuple[Any, ...]:
        """Which handler did it, for errors and rejections; a plugin may have got another name since."""
        by = self.entry.get("by") or {}
        return self.entry.get("type"), self.entry.get("error_type"), by.get("hook"), by.get("handler")


@dataclass(slots=True)
class Setup:
    """How the agent is made that plays a report.

    Attributes:
        plugins: makes its plugins, fresh ones for each agent.
        options: what else `Agent` takes: `stream`, `plugin_errors`.
    """

    plugins: Callable[[], list[Any]]
    options: dict[str, Any] = field(default_factory=dict)


class Trying(Playing):
    """A session on its way through an agent until it shows a failure; its requests are not compared.

    Attributes:
        seen: the entries of all turns so far.
    """

    def __init__(self, recording: Recording, setup: Setup, symptom: Symptom) -> None:
        super().__init__(recording, agent_from_record(recording, setup.plugins(), **setup.options), Player)
        self._symptom = symptom
        self.player.on_request = lambda player, sent: player.requests.clear()
        self.seen: list[TraceEntry] = []
        self._offer([schema["function"] for schema in recording.head.get("tools") or () if "function" in schema])

    def look(self) -> Shown | None:
        """Play until the failure shows."""
        self.begin_session()
        for turn in self.recording.turns:
            self.before(turn)
            self.player.begin(turn, self.made)
            _, error = self.outcome(turn, lambda: self.input(turn))  # noqa: B023
            entries = [one for one in self.player.entries if one.get("error_type") != RecordEnds.__name__]
            self.seen += entries
            entry = self._symptom.found(entries)
            if entry is not None:
                return Shown(entry, _raised_in(error))
        return None

    def _offer(self, tools: list[dict[str, Any]]) -> None:
        """Offer the model the tools of the session, which answer from it."""
        for one in tools:
            if one["name"] not in self.agent.tools:
                given = str(one.get("description") or ""), one.get("parameters") or {"type": "object", "properties": {}}
                self.agent.tools.add(Tool(one["name"], *given, _gone))

    def _meet(self, agent: Agent, branch: str) -> None:
        """Let an agent that a plugin asks have no answers: it is not in the session."""
        for one in (agent, *agent.below):
            Player(one)


def _gone(**arguments: Any) -> None:
    """In place of a tool's function, which does not run."""


def look(recording: Recording, setup: Setup, symptom: Symptom) -> tuple[Shown | None, str]:
    """Whether a session shows a failure, and else what it shows in its place.

    Raises:
        CannotTell: it cannot be played: there is a handoff in it, for example.
        PluginError: a plugin cannot be loaded.
    """
    try:
        trying = Trying(recording, setup, symptom)
        shown = trying.look()
    except (PluginError, HandlerError):
        raise
    except ConfigError as error:
        raise CannotTell(str(error)) from error
    except (Exception, RecordEnds) as error:  # before a turn, where a program called a tool
        raise CannotTell(f"it cannot be played: {type(error).__name__}: {describe(str, error)}") from error
    return shown, "" if shown else symptom.why_not(trying.seen)


def _raised_in(error: BaseException | None) -> str:
    """The last place outside this package where an exception passed."""
    frames = [] if error is None else traceback.extract_tb(error.__traceback__)
    places = [f"{frame.filename}:{frame.lineno}" for frame in frames if not frame.filename.startswith(_PACKAGE)]
    return places[-1] if places else ""
