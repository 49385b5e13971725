"""The item of one turn in a record: what of it is summed up while it runs, and the lines that end it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from connectagent.data import TraceEntry
from connectagent.errors import Cancelled, Paused
from connectagent.output.text import describe
from connectagent.records.encode import Encoder
from connectagent.records.log import LoggedAgent, LoggedTurn
from connectagent.session.journal import is_aside
from connectagent.session.observers import PROGRAM
from connectagent.session.snapshot import Snapshot
from connectagent.session.state import lasting, state_change
from connectagent.session.usage import Spent, Totals, own_tools, tool_calls


class TurnItem:
    """Collects the summary of one turn while it runs."""

    def __init__(self, first_message: int) -> None:
        self.started = time.perf_counter()
        self.first_message = first_message
        self.begun = False  # whether it has the user's message: else it is begun anew
        self.resumed = False  # whether it began in another process
        self.anchor: Any = None  # the message at that place, to find the place again
        self.calls: list[TraceEntry] = []  # of tools, by all agents
        self.lines_before: list[TraceEntry] = []  # of earlier items of the turn
        self.iterations: set[str] = set()
        self.iterations_before: set[str] = set()  # counted already

    def resume(self, lines: list[TraceEntry]) -> None:
        """Go on with a turn that has these lines already."""
        self.resumed = True
        self.iterations_before = iterations_in(lines)
        last = max((number for number, line in enumerate(lines) if line.get("type") == "resumed"), default=len(lines))
        self.lines_before = lines[:last]

    def count(self, agent: LoggedAgent, entry: TraceEntry) -> None:
        """Count an entry; `agent` is the root."""
        kind, own = entry.get("type"), entry.get("branch") in (None, agent.name)
        if kind == "tool_execution":
            self.calls.append(entry)
        elif kind == "llm_call":
            self.iterations |= iterations_in([entry])
        elif kind == "user_input" and own:
            self.begun = True
            messages = agent.conversation.snapshot.originals
            self.anchor = messages[self.first_message] if self.first_message < len(messages) else None

    def add_to(self, totals: Totals, calls: int, spent: Spent | None) -> None:
        """Add the turn to the session's sums: once, however often it was resumed.

        Args:
            totals: the sums.
            calls: the turn's tool calls so far, with those of earlier items.
            spent: what this item spent; None where that is in the sums.
        """
        iterations = len(self.iterations - self.iterations_before)
        tools = calls - len(tool_calls(self.lines_before))
        totals.add(self.begun and not self.resumed, iterations, tools, spent)

    def _tool_calls(self, lines: Sequence[TraceEntry]) -> list[TraceEntry]:
        """The turn's tool calls. A turn that was not resumed seldom has void lines: then no look-up is made."""
        ids = [str(call.get("id") or number) for number, call in enumerate(self.calls)]
        if not self.resumed and len(set(ids)) == len(ids) and not any("/on_error" in id for id in ids):
            return self.calls
        return tool_calls(lines)

    def summary(
        self,
        turn: LoggedTurn,
        lines: Sequence[TraceEntry],
        totals: Totals,
        result: object,
        error: BaseException | None,
        encoder: Encoder,
    ) -> str:
        """The lines that end the turn's item; `lines`: those of the turn, earlier items included."""
        agent, spent = turn.agent, turn.spent
        session = agent.current_session or agent.conversation.session
        status = session.get("outcome") or "ended"
        tokens = spent.tokens
        long = [
            [plugin, hook, round(at, 3), round(took * 1000, 3)] for plugin, hook, at, took in agent.boundary.slow_calls
        ]
        calls = self._tool_calls(lines)
        self.add_to(totals, len(calls), spent)
        pairs = {
            "model": encoder.scalar(agent.llm.model),
            "duration_ms": str(round((time.perf_counter() - self.started) * 1000)),
            "tokens": encoder.line(tokens),
            "cost": encoder.line(spent.cost),
            **({"known_cost": encoder.line(spent.known_cost)} if spent.cost is None else {}),
            "tools_called": encoder.line(own_tools(calls, agent.name)),
            "result": encoder.line(result),
            "state": encoder.line(lasting(state_change(agent.conversation.state_before, session["state"]))),
            "messages": encoder.messages(self._own(agent.conversation.snapshot)),
            **({"handlers": encoder.line(long)} if long else {}),
            **({"stream_left": "true"} if _is_left(turn) else {}),
            "session": encoder.line(totals.data()),  # after everything long: listing records reads the tail only
        }
        if error is not None:
            status = "cancelled" if isinstance(error, Cancelled) else "interrupted"
            status = "error" if isinstance(error, Exception) else status
            status = "paused" if isinstance(error, Paused) else status
            pairs["error"] = encoder.line(f"{type(error).__name__}: {describe(str, error)}".removeprefix("Paused: "))
        pairs["status"] = encoder.scalar(status)
        return "".join(f"  {key}: {value}\n" for key, value in pairs.items())

    def _own(self, snapshot: Snapshot) -> list[Any]:
        """The turn's messages, as its entries tell them; handlers may have changed how many come before them.

        What a thread has changed since then is told by entries of the next turn.
        """
        messages = snapshot.originals
        first = min(self.first_message, len(messages))
        if self.anchor is not None and (first == len(messages) or messages[first] is not self.anchor):
            found = (index for index in range(len(messages) - 1, -1, -1) if messages[index] is self.anchor)
            first = next(found, first)
        own: list[Any] = snapshot.copy["messages"][first:]
        return own


def _is_left(turn: LoggedTurn) -> bool:
    """Whether the program ended the turn: it left the stream."""
    return turn.ended is not None and turn.ended.by.get("plugin") == PROGRAM["plugin"]


def iterations_in(lines: list[TraceEntry]) -> set[str]:
    """The iterations of all agents in the lines of a turn."""
    calls = (line for line in lines if line.get("type") == "llm_call" and not is_aside(line))
    return {str(line.get("id", "")).rpartition("/")[0] for line in calls}
