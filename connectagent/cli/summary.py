"""The end of `connectagent run`, on stderr: what failed, what took long, what it cost, and where to look closer."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from connectagent.errors import short_path
from connectagent.hooks.markers import on_agent_ready, on_trace
from connectagent.output import masking
from connectagent.output.rows import FAILED, Row, call_text, duration, first_line, spent_texts
from connectagent.output.terminal import Terminal
from connectagent.session.journal import is_aside
from connectagent.session.usage import Spent, spent_in

if TYPE_CHECKING:
    from connectagent.agents.agent import Agent

MOST_FAILURES = 20
SLOW_MS = 1000  # what takes longer is listed without being asked for
MOST_SLOW = 3

_MOST_TEXT = 600  # characters of an error
_KEPT = frozenset(("type", "status", "error_type", "raised_at", "by", "tool_name", "arguments"))
_KEPT |= {"model", "iteration", "duration_ms", "timing"}


class Summary:
    """A plugin that collects what happens in all agents, and shows it at the end.

    Args:
        most: how many of the slowest calls and handlers to show; None for the few that took long, 0 for all.
    """

    name = "summary"

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self.agents: list[Any] = []
        self.calls: dict[tuple[Any, ...], tuple[str, dict[str, Any]]] = {}  # with the agent's name
        self.spent: dict[str, Spent] = {}
        self._last: dict[int | str, dict[str, Any]] = {}  # the last model call of each agent

    @on_agent_ready
    def note(self, agent: Agent) -> None:
        """Add an agent."""
        self.agents.append(agent)

    @on_trace
    def seen(self, agent: Agent, entry: dict[str, Any]) -> None:
        """Collect a call, or what became of it."""
        self.add(id(agent), agent.name, entry)

    def add(self, who: int | str, name: str, entry: dict[str, Any]) -> None:
        """Collect an entry of the agent `who`, which is called `name`."""
        kind, key = entry["type"], (who, entry.get("call_id"))
        if kind == "llm_call":
            spent_in([entry], spent=self.spent.setdefault(_payer(name, entry), Spent()))
            self._last[who] = _kept(entry)
            self.calls[who, entry.get("id")] = name, self._last[who]
        elif kind == "tool_execution":
            self.calls[key] = name, _kept(entry)
        elif kind == "change" and isinstance(entry.get("value"), dict):
            if entry.get("of") == "tool_execution" and key in self.calls:
                self.calls[key][1].update(_kept(entry["value"]))
            elif entry.get("of") == "llm_call" and who in self._last:
                self._last[who].update(_kept(entry["value"]))
        elif kind == "error" and entry.get("by"):
            self.calls[who, len(self.calls), "error"] = name, {**_kept(entry), "status": "error"}

    def show(self) -> None:
        """Print it."""
        terminal = Terminal()
        terminal.show([*self.rows(terminal), *self._closer()])
        if self.most is not None:
            terminal.show(self._handlers())

    def rows(self, terminal: Terminal, fewest_payers: int = 2) -> list[Row]:
        """What failed, what took long, and what it cost where there are so many to pay."""
        return [*self._failures(terminal), *self._slowest(), *self._costs(fewest_payers)]

    def _failures(self, terminal: Terminal) -> list[Row]:
        failed = [(name, call) for name, call in self.calls.values() if call.get("status") in FAILED]
        rows = [Row(0, (("failures", "bold red"),))] if failed else []
        for name, call in failed[:MOST_FAILURES]:
            where = str(call.get("raised_at") or "")
            by = call.get("by") or {}
            where = where or (f"{by['file']}:{by['line']} in {by['handler']}" if by.get("handler") else "")
            parts = ((f"{terminal.glyphs.bad} ", "red"), (f"{name}: {_name(call)}", ""))
            rows.append(Row(2, parts))
            said = call.get("error") or call.get("result", "None")
            text = f"{call.get('error_type') or call.get('status')}: {said}"
            rows.append(Row(4, ((text[:_MOST_TEXT], "red"),), wrap=True))
            if where:
                file, _, rest = where.partition(":")
                rows.append(Row(4, ((f"{short_path(file)}:{rest}", "dim"),), wrap=True))
        if len(failed) > MOST_FAILURES:
            rows.append(Row(2, ((f"and {len(failed) - MOST_FAILURES} more", "dim"),)))
        return rows

    def _slowest(self) -> list[Row]:
        timed = [(ms, name, call) for name, call in self.calls.values() if (ms := _ms(call)) is not None]
        if self.most is None:
            timed, most = [one for one in timed if one[0] > SLOW_MS], MOST_SLOW
        else:
            most = self.most or len(timed)
        timed = sorted(timed, key=lambda one: -one[0])[:most]
        rows = [Row(0, (("slowest calls", "bold"),))] if timed else []
        return rows + [Row(2, ((f"{name}: {_name(call)}", ""),), duration(ms)) for ms, name, call in timed]

    def _costs(self, fewest: int) -> list[Row]:
        paid = {name: spent for name, spent in self.spent.items() if spent.tokens}
        if len(paid) < fewest:
            return []
        rows = [Row(0, (("cost", "bold"),))]
        for name, spent in sorted(paid.items(), key=lambda one: -(one[1].usage.cost or 0)):
            rows.append(Row(2, ((name, ""),), "  ".join(filter(None, spent_texts(spent)))))
        return rows

    def _closer(self) -> list[Row]:
        record = next((agent.log.path for agent in self.agents if agent.parent is None and agent.log.path), None)
        if record is None:
            return []
        return [Row(0, ((f"look closer: connectagent view {shlex.quote(record.stem)}", "dim"),), wrap=True)]

    def _handlers(self) -> list[Any]:
        """One table for each agent, the costliest handler first."""
        from rich.table import Table
        from rich.text import Text

        tables = []
        for agent in self.agents:
            table = Table("plugin", "hook", title=Text(f"handlers of {agent.name}"), box=None, title_justify="left")
            for column in ("calls", "ms", "tokens", "USD"):
                table.add_column(column, justify="right")
            own = [row for row in agent.ledger if row["plugin"] != self.name]
            for row in own[: self.most or None]:
                tokens = row["input_tokens"] + row["output_tokens"]
                cells = (row["plugin"], row["hook"], row["calls"], f"{row['duration_ms']:.1f}", tokens or "")
                table.add_row(*(Text(str(cell)) for cell in (*cells, f"{row['cost']:.4f}" if row["cost"] else "")))
            tables.append(table)
        return tables


def _kept(entry: dict[str, Any]) -> dict[str, Any]:
    """What the rows of a call need of its entry; the results of a long session are too much to keep."""
    kept = {key: value for key, value in entry.items() if key in _KEPT}
    if "error" in entry:
        kept["error"] = entry["error"] and str(entry["error"])[:_MOST_TEXT]
    if "result" in entry:
        kept["result"] = first_line(entry["result"])[:_MOST_TEXT]
    return kept


def _name(call: dict[str, Any]) -> str:
    """A call as one reads it."""
    if call["type"] == "tool_execution":
        return call_text(call.get("tool_name"), masking.current().value(call.get("arguments")))
    if call["type"] == "llm_call":
        return f"{call.get('model')}, iteration {call.get('iteration')}"
    return f"plugin {(call.get('by') or {}).get('plugin')}"


def _ms(call: dict[str, Any]) -> float | None:
    """How long a call took; None for one that has not ended, and for an error that is none."""
    ms = call.get("duration_ms", call.get("timing"))
    return None if ms is None else float(ms)


def _payer(name: str, entry: dict[str, Any]) -> str:
    """Who pays for a model call: a plugin for those that it makes itself, or stands in with; else the agent."""
    plugin = (entry.get("by") or {}).get("plugin")
    own = is_aside(entry) or (entry.get("status") == "stand_in" and entry.get("usage"))
    return f"{plugin} (plugin)" if plugin and own else name
