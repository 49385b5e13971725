"""What plugins changed in a session: each change with who made it, and the texts before and after it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from connectagent.data import TraceEntry
from connectagent.output.rows import UNICODE, change_text, first_line, rows_of
from connectagent.records.texts import data_text, text_of_value
from connectagent.records.watched import WatchedAgent
from connectagent.session.journal import is_aside, place_of, turns_in

_NOT_PLUGINS = ("connectagent", "(resume)", "(program)")  # that `by` names as plugins, and nobody wrote
_MESSAGES = {"message": "added", "message_edited": "edited", "message_removed": "removed"}
_OF_ITSELF = ("type", "by", "timestamp", "status", "call_id", "iteration", "turn", "index", "hook", "of")


@dataclass(frozen=True)
class PluginChange:
    """One change that a plugin made.

    Args:
        entry: the trace entry that tells it.
        did: what the plugin did, in the past tense: "edited a system message", "raised".
        inside: the turn of an inner agent in which it happened; "" in the root's own.
        before: the text before the change; "" for none.
        after: the text after it, or what the entry says where nothing was replaced.
    """

    entry: TraceEntry
    did: str
    inside: str
    before: str
    after: str

    @property
    def by(self) -> dict[str, Any]:
        """Who made it: `plugin`, `version`, `hook`, `file` and `line`, as far as they are known."""
        return dict(self.entry["by"])

    @property
    def place(self) -> str:
        """The file and the line of the handler; "" where they are not known."""
        if self.by.get("file") in (None, "", "?"):
            return ""
        return f"{self.by['file']}:{self.by.get('line')}"

    @property
    def plugin(self) -> str:
        """The plugin's name."""
        return str(self.by["plugin"])

    @property
    def maker(self) -> str:
        """The plugin's name with its version, if it has one."""
        version = self.by.get("version")
        return f"{self.plugin} {version}" if version else self.plugin

    @property
    def number(self) -> int | None:
        """The number of the entry in the record; None where the entries have none."""
        return self.entry.get("number")


def plugin_changes(agents: Iterable[WatchedAgent], number: int | None = None) -> list[PluginChange]:
    """The changes that plugins made, in the order of the record.

    Args:
        agents: of `watched_agents`.
        number: only the changes of the entry with this number.
    """
    found = [change for agent in agents for change in _changes_in(agent, number)]
    return sorted(found, key=lambda change: change.number or 0)


def _changes_in(agent: WatchedAgent, number: int | None) -> Iterator[PluginChange]:
    for entry in agent.entries:
        by = entry.get("by")
        if number is not None and entry.get("number") != number:
            continue
        if not isinstance(by, dict) or by.get("plugin") is None or by["plugin"] in _NOT_PLUGINS:
            continue
        before, after = _replaced(agent, entry)
        if before is None and after is None:
            after = said(entry)
        yield PluginChange(entry, what_was_done(entry), inner_turn(entry), text_of_value(before), text_of_value(after))


def _replaced(agent: WatchedAgent, entry: TraceEntry) -> tuple[Any, Any]:
    """The value before a change and after it; None and None where nothing was replaced."""
    if id(entry) in agent.history.replaced:
        return agent.history.replaced[id(entry)]
    if entry.get("type") == "tool_execution":
        return None, entry.get("result")
    if entry.get("type") == "llm_call" and entry.get("status") == "stand_in":
        return None, {"content": entry.get("content"), "tool_calls": entry.get("tool_calls") or []}
    return None, None


def inner_turn(entry: TraceEntry) -> str:
    """The turn of an inner agent in which something happened; "" in the root's own."""
    turns = turns_in(place_of(entry))
    if turns and turns[-1] == entry.get("id") and entry.get("type") in ("began", "agent_turn"):
        turns.pop()  # the turn itself is in the one around it
    return turns[-1] if turns else ""


def what_was_done(entry: TraceEntry) -> str:
    """What a handler did by an entry, in the past tense."""
    kind = str(entry.get("type"))
    if kind == "llm_call":
        return _did_with_model(entry)
    if kind in _MESSAGES:
        message = entry.get("message")
        role = message.get("role") if isinstance(message, dict) else None
        return f"{_MESSAGES[kind]} a {role} message" if role else f"{_MESSAGES[kind]} a message"
    if kind == "change":
        return change_text(entry)[0]
    if kind in ("state_delta", "session_delta"):
        return f"changed the {kind.partition('_')[0]}"
    if kind == "paused":
        return "paused the turn"
    if kind == "error":
        return "raised"
    return "held" if "held" in entry else str(entry.get("status") or kind)


def _did_with_model(entry: TraceEntry) -> str:
    if is_aside(entry):
        return "asked a model"
    return "had the model asked again" if entry.get("attempt") else "answered"


def said(entry: TraceEntry) -> str:
    """What an entry says: an error, an answer, its rows on the console, or its values."""
    if entry.get("error"):
        text = first_line(entry["error"])
        return text.removeprefix("Error: ").removeprefix(f"{entry.get('error_type')}: ")
    if entry.get("type") == "llm_call":
        return first_line(entry.get("content") or "")
    try:
        rows = rows_of(entry, UNICODE)
    except Exception:  # a handler may have put anything into the trace
        return data_text(entry)
    if rows:
        return "; ".join("".join(part for part, _ in row.parts) for row in rows)
    rest = {key: value for key, value in entry.items() if key not in _OF_ITSELF}
    return data_text(rest) if rest else ""
