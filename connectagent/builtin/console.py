"""A turn on the terminal: one line for each thing that happens, on stderr.

It shows the rows of `output/rows.py` on a `Terminal`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO
from weakref import WeakKeyDictionary

from connectagent.data import LLMRequest, ToolCall, TraceEntry
from connectagent.hooks.markers import around_llm, around_tool, around_turn, on_text, on_trace
from connectagent.output import masking
from connectagent.output.live import live, running
from connectagent.output.masking.stream import Stream
from connectagent.output.rows import FAILED, Row, Span, call_text, duration, many, rows_of, spent_texts, stopped
from connectagent.output.terminal import Terminal

if TYPE_CHECKING:
    from connectagent.agents.agent import Agent

_INDENT = 4  # of an agent that another one calls, below the line of the model call that asked for it


@dataclass(slots=True, eq=False)
class _Turn:
    """What one turn has come to so far.

    Args:
        indent: cells before its lines.
        root: the turn that it runs in, if it is of an agent that another one calls.
    """

    indent: int = 0
    root: _Turn | None = None
    named: bool = False  # whether each line names the agent, as another one's turn runs beside it
    inner: list[_Turn] = field(default_factory=list)  # the turns that run in it, side by side
    tools: dict[str, bool] = field(default_factory=dict)  # by call: whether it failed
    streamed: bool = False
    held: str = ""  # text that waits for another agent's to end
    arriving: Stream = field(default_factory=Stream)
    error: str = ""


_shown: WeakKeyDictionary[Any, _Turn] = WeakKeyDictionary()  # by the turn, of any agent
_roots: list[_Turn] = []  # the turns that run side by side


class Console:
    """The built-in plugin that shows each turn on the terminal.

    Args:
        file: where to write; None for stderr.
        width: cells in a line; None for the terminal's own.
        follows: whether it shows nothing of a turn that an agent asks for which shows nothing itself.
    """

    def __init__(self, file: TextIO | None = None, width: int | None = None, follows: bool = False) -> None:
        self._terminal, self._follows = Terminal(file, width), follows
        self._hidden: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()  # by turn
        self._turns: WeakKeyDictionary[Any, _Turn] = WeakKeyDictionary()

    @around_turn
    def show_turn(self, agent: Agent, prompt: str) -> Generator[None, Any, None]:
        """Show the prompt, and what came of it."""
        if self._hides(agent):
            yield
            return
        outer = next((_shown[one] for one in agent.turn.callers() if one in _shown), None)
        turn = self._turns[agent] = _shown[agent.turn] = _begin(outer)
        masking.refresh()
        if outer is None:
            live.begin()
        raised: BaseException | None = None
        try:
            self._show(agent, [Row(0, ((agent.name, "bold"), (f" {self._terminal.glyphs.dot} {prompt}", "")))])
            yield
        except BaseException as error:
            raised = error
            raise
        finally:
            if outer is None:
                live.end()
            self._end(agent, turn, raised)
            (outer.inner if outer else _roots).remove(turn)

    @around_llm
    def show_model(self, agent: Agent, request: LLMRequest) -> Generator[None, Any, None]:
        """Show that the model is asked, while it takes its time."""
        yield from self._running(agent, lambda: (str(request.model), "cyan"))

    @around_tool
    def show_tool(self, agent: Agent, tool_call: ToolCall) -> Generator[None, Any, None]:
        """Show that a tool runs, while it takes its time."""
        arguments = masking.current().value
        yield from self._running(agent, lambda: (call_text(tool_call.name, arguments(tool_call.arguments)), ""))

    def _hides(self, agent: Agent) -> bool:
        """Whether an agent's turn is not shown, as one around it is not."""
        if not self._follows or agent.turn is None:
            return False
        if agent.turn not in self._hidden:
            self._hidden[agent.turn] = not all(_has_console(turn.agent) for turn in agent.turn.callers())
        return self._hidden[agent.turn]

    def _running(self, agent: Agent, what: Callable[[], Span]) -> Generator[None, Any, None]:
        if self._hides(agent):
            yield
            return
        turn = self._turns.setdefault(agent, _Turn())

        def row(mark: str, seconds: float) -> Row:
            of = agent.turn
            spent = spent_texts(of.spent) if of is not None and turn.root is None else []
            waits = ["Ctrl-C again leaves it"] if of is not None and of.stopped else []
            dot = f" {self._terminal.glyphs.dot} "
            parts = ((mark, "cyan"), (agent.name + dot, "dim"), what())
            return Row(turn.indent + 2, parts, "  ".join([*waits, duration(seconds * 1000), *spent]))

        with running(row):
            yield

    @on_text
    def show_text(self, agent: Agent, text: str) -> None:
        """Show a piece of an answer as it arrives."""
        if self._hides(agent):
            return
        turn = self._turns.setdefault(agent, _Turn())
        turn.streamed, turn.held = True, turn.held + turn.arriving.feed(text)
        if turn.held and self._terminal.stream(turn, turn.held, turn.indent + 2):
            turn.held = ""

    @on_trace
    def show_entry(self, agent: Agent, entry: TraceEntry) -> None:
        """Show what happened."""
        if self._hides(agent):
            return
        turn = self._turns.setdefault(agent, _Turn())
        turn.held += turn.arriving.flush()
        if turn.held:
            self._terminal.stream(turn, turn.held, turn.indent + 2, force=True)
            turn.held = ""
        # Handlers may put entries of their own into the trace, with anything in them.
        with suppress(Exception):
            rows = rows_of(masking.current().value(entry), self._terminal.glyphs, streamed=turn.streamed)
            if self._count(turn, entry) and rows:
                self._show(agent, rows)

    def _count(self, turn: _Turn, entry: TraceEntry) -> bool:
        """Add an entry to the turn's sums. Returns whether it is news."""
        kind, error = entry.get("type"), str(entry.get("error") or "")
        if kind == "user_input" or (kind == "error" and not entry.get("by") and (not error or error == turn.error)):
            return False
        turn.error = error or turn.error
        if kind == "tool_execution":
            turn.tools[str(entry.get("call_id"))] = entry.get("status") in FAILED
        elif kind == "change" and entry.get("of") == "tool_execution" and isinstance(entry.get("value"), dict):
            turn.tools[str(entry.get("call_id"))] = entry["value"].get("status") in FAILED
        elif kind == "llm_call":
            turn.streamed = False
        return True

    def _end(self, agent: Agent, turn: _Turn, error: BaseException | None) -> None:
        session: Mapping[str, Any] = agent.current_session or {}
        dot = f" {self._terminal.glyphs.dot} "
        outcome, style = str(session.get("outcome") or "answered"), "dim"
        if error is not None:
            outcome, style = stopped(error)
        elif outcome in ("max_iterations", "truncated", "refused"):
            style = "yellow"
        parts = [many(session.get("iteration") or 0, "iteration"), _tools(turn)]
        ms, spent = agent.turn.sums()
        right = [duration(ms), *spent_texts(spent)]
        left = ((outcome, style), (dot + dot.join(filter(None, parts)), "dim"))
        self._show(agent, [Row(2, left, "  ".join(filter(None, right)), stack=True)])

    def _show(self, agent: Agent, rows: list[Row]) -> None:
        turn = self._turns[agent]
        for row in rows:
            row.indent += turn.indent
            named = turn.named or (turn.root or turn).named
            if named and row.indent > turn.indent:  # the first line has the name in it
                row.parts = ((f"{agent.name} ", "magenta"), *row.parts)
        self._terminal.show(rows, turn)


def _has_console(agent: Agent) -> bool:
    return any(isinstance(handler.thing, Console) for handler in agent.hooks.loaded)


def _tools(turn: _Turn) -> str:
    """How many tools a turn ran, and how many of them failed in the end."""
    if not turn.tools:
        return ""
    failed = sum(turn.tools.values())
    return many(len(turn.tools), "tool") + (f", {failed} failed" if failed else "")


def _begin(outer: _Turn | None) -> _Turn:
    turn, beside = _Turn(), _roots
    if outer is not None:
        indent = min(16, outer.indent + _INDENT)
        turn, beside = _Turn(indent=indent, root=outer.root or outer, named=outer.named), outer.inner
    beside.append(turn)
    if len(beside) > 1:
        for each in list(beside):
            each.named = True
    return turn
