"""Notices an agent that goes round in circles: tells the model, and ends the turn where that does not help.

A circle is a cycle of one to four tool rounds that is repeated with the same calls and the same results, or one call
whose result never changes. What is known of a turn is in the session, `state["loopguard"]`, of an agent below
`state["loopguard:NAME"]`. The options are on `LoopGuard`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, ClassVar

from connectagent import ConfigError, TraceEntry, after_tools

if TYPE_CHECKING:
    from connectagent import Agent

_LONGEST = 4  # rounds of a cycle
_KEPT = 100  # the last so many rounds are compared


@dataclass(frozen=True)
class LoopGuard:
    """The plugin: `Agent(plugins=["loopguard"])`, or with options `Agent(plugins=[LoopGuard(repeats=2)])`.

    Args:
        repeats: how often a cycle is seen before the model gets a warning.
        unchanged: how often one call with one result is seen in a turn, whatever is between, before a warning.
        patience: how often in a turn the model gets a warning; the next time, the turn ends with the outcome `loop`.

    Raises:
        ConfigError: an option is no whole number, or too small.
    """

    changes = ("state?", "messages?", "turn?")

    repeats: int = 3
    unchanged: int = 5
    patience: int = 1
    name: ClassVar[str] = "loopguard"

    def __post_init__(self) -> None:
        for option, least in (("repeats", 2), ("unchanged", 2), ("patience", 0)):
            value = getattr(self, option)
            if type(value) is not int or value < least:
                raise ConfigError(f"loopguard: {option} is a whole number from {least} up, not {value!r}")

    @after_tools
    def look(self, agent: Agent, entries: list[TraceEntry]) -> None:
        """Compare a tool round with those before it."""
        session = agent.session
        notes = session["state"].get(_key(agent)) or {}
        if notes.get("turn") != session["turn"]:
            notes = {"turn": session["turn"], "rounds": [], "warnings": 0}
        calls = [_digest([entry["tool_name"], entry["arguments"], str(entry.get("result"))]) for entry in entries]
        rounds = [*notes["rounds"], calls][-_KEPT:]
        what = self._circle(rounds, entries)
        warnings = notes["warnings"] + (what is not None)
        if what is not None:
            rounds = []  # it has another chance
        session["state"][_key(agent)] = {"turn": session["turn"], "rounds": rounds, "warnings": warnings}
        if what is None:
            return
        if warnings > self.patience:
            agent.end_turn(f"Stopped: {what}", outcome="loop")
            return
        advice = "Do something else, or answer with what you have, and say what is missing."
        session["messages"].append({"role": "user", "content": f"{what} {advice}"})

    def _circle(self, rounds: list[list[str]], entries: list[TraceEntry]) -> str | None:
        """What is repeated, in a sentence; None where nothing is."""
        for length in range(1, _LONGEST + 1):
            last = rounds[-length:]
            if len(rounds) >= length * self.repeats and rounds[-length * self.repeats :] == last * self.repeats:
                calls = "The same tool calls" if length == 1 else f"The same {length} rounds of tool calls"
                return f"{calls} gave the same results {self.repeats} times in a row."
        seen = [call for calls in rounds for call in calls]
        for entry, call in zip(entries, rounds[-1], strict=True):
            if seen.count(call) >= self.unchanged:
                return f"{entry['tool_name']} was called {seen.count(call)} times with the same arguments and result."
        return None


def _key(agent: Agent) -> str:
    """Where the state has an agent's own: agents below share the state, and what they set at once is merged by key."""
    return LoopGuard.name if agent.parent is None else f"{LoopGuard.name}:{agent.name}"


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=repr)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
