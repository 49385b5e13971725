"""What a chat shows of a turn."""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import Any

import click

from connectagent.commands import failure
from connectagent.errors import Paused, cut
from connectagent.hooks.markers import around_llm, around_tool, around_turn, on_text, on_trace
from connectagent.output import masking
from connectagent.output.live import live, running
from connectagent.output.masking.stream import Stream
from connectagent.output.rows import Row, Span, call_text, duration, rows_of, spent_texts
from connectagent.output.terminal import Terminal
from connectagent.output.text import clean

MOST_SHOWN = 70  # characters of a call, so that a line fits a narrow terminal
_SILENT = ("user_input", "paused", "resumed")  # entries that the chat tells in its own way
_WAITS = "not run: the turn was paused"
_NOT_WHOLE = {"max_iterations": "stopped at max_iterations", "truncated": "the answer is cut", "refused": "refused"}


class View:
    """Shows a turn where no terminal is: answers on stdout, tool calls on stderr.

    Args:
        quiet: whether only answers are shown.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.agent: Any = None  # the agent of the chat: text of its sub-agents is not the answer
        self.text = ""
        self.arriving = Stream()  # holds back what may be the beginning of a secret

    @on_text
    def arrived(self, agent: Any, text: str) -> None:
        """Show a piece of the answer."""
        if agent is self.agent:
            self.text += text
            self.show(self.arriving.feed(text) if sys.stdout.isatty() else text)

    @on_trace
    def happened(self, agent: Any, entry: dict[str, Any]) -> None:
        """End the current line of text, and show a tool call."""
        if entry["type"] == "llm_call":
            self.show(self.arriving.flush())
            if entry.get("tool_calls_count") or entry.get("status") == "error":
                self.end_line()
        elif entry["type"] == "tool_execution" and not self.quiet:
            arguments = masking.current().value(entry["arguments"])
            call = cut(call_text(entry["tool_name"], arguments), MOST_SHOWN)
            click.secho(failure.plain(f"  {call}: {entry['status']}").replace("\n", " "), err=True, dim=True)

    def show(self, text: str) -> None:
        """Show text on standard output at once."""
        if text:
            click.echo(clean(text), nl=False)
            sys.stdout.flush()

    def end_line(self) -> None:
        """Begin a new line for what arrives next."""
        self.show(self.arriving.flush())
        if self.text and not self.text.endswith("\n"):
            click.echo()
        self.text = ""

    # -- for the chat --------------------------------------------------------------------------

    def begin(self) -> None:
        """A turn begins."""

    def finish(self, result: str) -> None:
        """Show what has not been shown of the result: all of it, if it was not streamed."""
        if self.text.strip() != result.strip():
            self.end_line()
            click.echo(clean(failure.answer(result)))
        else:
            self.end_line()
        self.text = ""

    def fail(self, error: BaseException) -> int:
        """Show why a turn failed; the exit code."""
        self.end_line()
        if isinstance(error, KeyboardInterrupt):
            click.echo("interrupted; the conversation goes on", err=True)
            return 130
        return self.error(error)

    def error(self, error: BaseException) -> int:
        """Show an error; the exit code."""
        return failure.show_error(error)

    def end(self) -> None:
        """The turn is over."""

    def tell(self, *rows: Row) -> None:
        """Show the answer of a command."""
        Terminal().show(rows)

    def heard(self) -> None:
        """The person has said something."""

    def gap(self) -> None:
        """A command is over."""


class Screen(View):
    """Shows a turn at a terminal: answers as Markdown, what plugins and tools did, and what runs.

    Args:
        quiet: whether only answers are shown.
    """

    def __init__(self, quiet: bool = False) -> None:
        super().__init__(quiet)
        from connectagent.cli.chat.markdown import Arriving  # rich, which the first answer needs

        self.terminal = Terminal()
        self.answer = Arriving(Terminal(sys.stdout))
        self._open = False  # whether text is arriving
        self._block = ""  # what was shown last: text or rows
        self._closing: list[Span] = []
        self._troubles: list[Row] = []  # errors, which the turn may end with

    # -- while the turn runs -------------------------------------------------------------------

    @around_turn
    def turn(self, agent: Any, prompt: str) -> Generator[None, Any, None]:
        """Sum up the turn."""
        try:
            yield
        finally:
            if agent is self.agent:
                ms, spent = agent.turn.sums()
                outcome = _NOT_WHOLE.get(str((agent.current_session or {}).get("outcome")), "")
                dot = f" {self.terminal.glyphs.dot} "
                parts = [(outcome, "yellow"), (dot.join(filter(None, [duration(ms), *spent_texts(spent)])), "dim")]
                self._closing = [part for part in parts if part[0]]

    @around_llm
    def asking(self, agent: Any, request: Any) -> Generator[None, Any, None]:
        """Show that the model is asked, while it takes its time."""
        yield from self._running(agent, (str(request.model), "cyan"))

    @around_tool
    def using(self, agent: Any, tool_call: Any) -> Generator[None, Any, None]:
        """Show that a tool runs, while it takes its time."""
        arguments = masking.current().value(tool_call.arguments)
        yield from self._running(agent, (call_text(tool_call.name, arguments), ""))

    def _running(self, agent: Any, what: Span) -> Generator[None, Any, None]:
        inner = agent is not self.agent
        name = f"{agent.name} {self.terminal.glyphs.dot} " if inner else ""

        def row(mark: str, seconds: float) -> Row:
            spent = spent_texts(agent.turn.spent) if agent.turn is not None and not inner else []
            right = "  ".join([duration(seconds * 1000), *spent])
            return Row(4 if inner else 2, ((mark, "cyan"), (name, "dim"), what), right)

        with running(row):
            yield

    @on_text
    def arrived(self, agent: Any, text: str) -> None:
        """Show a piece of the answer."""
        if agent is self.agent:
            self.text += text
            self._write(self.arriving.feed(text))

    def _write(self, text: str) -> None:
        if not text or not (self._open or text.strip()):
            return
        if not self._open:
            self._space("text")
            self._open = True
        self.answer.feed(clean(text))

    @on_trace
    def happened(self, agent: Any, entry: dict[str, Any]) -> None:
        """Show what tools and plugins did."""
        if entry["type"] == "llm_call" and agent is self.agent:
            self._end_text()
            if entry.get("tool_calls_count"):  # a guard may ask before there are rows
                self.gap()
        if not self.quiet:
            self._rows(self._rows_of(agent, masking.current().value(entry)), entry)

    def _rows_of(self, agent: Any, entry: Any) -> list[Row]:
        kind = entry.get("type")
        if kind in _SILENT:
            return []
        if kind == "tool_execution" and entry.get("result") == _WAITS:
            return []  # the person is asked about it
        inner = agent is not self.agent
        rows = rows_of(entry, self.terminal.glyphs, streamed=not inner)
        if kind == "llm_call":
            if entry.get("status") == "error":  # the turn's own error, or what recovered it, comes next
                return []
            rows = rows if entry.get("status") in ("stand_in", "recovered") else rows[1:]
        for row in rows:
            row.indent = max(2, row.indent - 2) + 2 * inner
            row.parts = ((f"{agent.name} ", "magenta"), *row.parts) if inner and row.indent == 4 else row.parts
        return rows

    def _rows(self, rows: list[Row], entry: Any) -> None:
        if entry.get("type") == "error":
            self._troubles += rows if entry.get("by") else []
            return
        rows, self._troubles = [*self._troubles, *rows], []
        if rows:
            self._end_text()
            self._space("rows")
            self.terminal.show(rows)

    def _space(self, block: str) -> None:
        """Leave a line before what is of another kind than what was shown last."""
        if self._block not in ("", "gap", block):
            self.terminal.show([Row(0, ())])
        self._block = block

    def _end_text(self) -> None:
        self._write(self.arriving.flush())
        if self._open:
            self.answer.end()
        self._open = False

    def end_line(self) -> None:
        self._end_text()
        self.text = ""

    # -- for the chat --------------------------------------------------------------------------

    def begin(self) -> None:
        self.gap()
        self.text, self._closing, self._troubles = "", [], []
        if not self.quiet:
            live.begin()
            live.ticking.append(self.answer.catch_up)

    def finish(self, result: str) -> None:
        streamed = self.text
        self._rows([], {})
        self.end_line()
        if streamed.strip() != result.strip() and not streamed.rstrip().endswith(result.strip() or "\0"):
            self._write(masking.current().text(result))
            self.end_line()
        if self._closing and not self.quiet:
            self._space("end")
            self.terminal.show([Row(2, tuple(self._spaced(self._closing)))])

    def fail(self, error: BaseException) -> int:
        self.end_line()
        self._space("error")
        if isinstance(error, KeyboardInterrupt):
            self.terminal.show([Row(2, (("interrupted", "yellow"),))])
            return 130
        return self.error(error)

    def error(self, error: BaseException) -> int:
        if failure.is_whole() or isinstance(error, Paused):
            return failure.show_error(error)
        self.tell(*(Row(2, ((line, "red"),), wrap=True) for line in failure.lines_of(error)))
        return 1

    def end(self) -> None:
        if not self.quiet:
            live.ticking.clear()
            live.end()
        self.gap()

    def tell(self, *rows: Row) -> None:
        self.terminal.show(rows)
        self._block = "rows"

    def heard(self) -> None:
        self._block = ""

    def gap(self) -> None:
        if self._block != "gap":
            self.terminal.show([Row(0, ())])
        self._block = "gap"

    def _spaced(self, spans: list[Span]) -> list[Span]:
        dot = (f" {self.terminal.glyphs.dot} ", "dim")
        return [one for span in spans for one in (dot, span)][1:]
