"""`xray`: what a tool sees of the agent that runs it."""

from __future__ import annotations

import functools
import inspect
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

from connectagent import frame
from connectagent.data import Message, ToolCall, TraceEntry
from connectagent.output.masking import current
from connectagent.output.text import describe
from connectagent.settings import enabled

if TYPE_CHECKING:
    from rich.table import Table

    from connectagent.output.terminal import Terminal

F = TypeVar("F", bound=Callable[..., Any])

_NOT_RUN = ("not_found", "rejected", "stand_in", "skipped")
_HIDDEN = ("self", "cls", "agent")


class _Running(NamedTuple):
    """The tool call that runs here."""

    agent: Any
    tool_call: ToolCall


def _current() -> _Running | None:
    """The innermost tool call that runs here, of this agent or of one that asked it."""
    here = frame.current()
    while here is not None and here.call is None:
        here = here.turn.asked
    if here is None or here.call is None or not here.turn.agent.shows_calls:
        return None
    return _Running(here.turn.agent.face, here.call)


class Xray:
    """What runs this tool, seen from inside it; each thread and each nested agent has its own.

    Outside a tool, `agent` is None, `task` and `user_prompt` are "", `messages` and `previous_tools` are empty
    and `iteration` is 0. As a decorator, `@xray` shows each call of a tool on the terminal.
    """

    @property
    def agent(self) -> Any:
        """The agent that runs the tool, or None."""
        running = _current()
        return running.agent if running else None

    @property
    def task(self) -> str:
        """The prompt of this turn."""
        return str(self._session.get("user_prompt", ""))

    @property
    def user_prompt(self) -> str:
        """The prompt of this turn, as it is named in the session."""
        return self.task

    @property
    def messages(self) -> list[Message]:
        """The conversation, the session's own list: what a tool changes in it stays, and is traced as its doing."""
        messages: list[Message] = self._session.get("messages", [])
        return messages

    @property
    def iteration(self) -> int:
        """Which model call of this turn asked for the tool, from 1."""
        return int(self._session.get("iteration", 0))

    @property
    def approved(self) -> bool:
        """Whether the turn was paused at this call, and somebody has approved it since."""
        running = _current()
        return running is not None and running.tool_call.approved

    @property
    def previous_tools(self) -> list[str]:
        """The names of the tools that have run in this turn before, in order; those that failed too."""
        return [
            str(entry.get("tool_name"))
            for entry in _this_turn(self._session.get("trace", []))
            if entry.get("type") == "tool_execution" and entry.get("held", entry.get("status")) not in _NOT_RUN
        ]

    @property
    def _session(self) -> dict[str, Any]:
        return getattr(self.agent, "current_session", None) or {}

    def trace(self) -> None:
        """Print the history of the session on stderr, the call that is running at its end."""
        from connectagent.output.rows import Row, call_text, rows_of
        from connectagent.output.terminal import Terminal

        terminal, running = Terminal(), _current()
        if running is None:
            hint = "xray.trace(): no tool is running here; call it inside a tool of an agent."
            terminal.show([Row(0, ((hint, ""),), wrap=True)])
            return
        rows = [Row(0, ((f"xray {terminal.glyphs.dot} {running.agent.name}", "bold"),))]
        for entry in self._session.get("trace", []):
            try:
                rows += rows_of(current().value(entry), terminal.glyphs)
            except Exception:  # an entry that a handler made, in a form of its own
                rows.append(Row(4, ((f"? {current().text(repr(entry)):.200}", "dim"),)))
        call = call_text(running.tool_call.name, current().value(running.tool_call.arguments))
        rows.append(Row(4, ((f"{terminal.glyphs.more} ", "cyan"), (call, "")), "running"))
        terminal.show(rows)

    @overload
    def __call__(self, function: F, /) -> F: ...
    @overload
    def __call__(self, /) -> Xray: ...
    def __call__(self, function: Any = None, /) -> Any:
        """Show each call of a function on the terminal when it is over: arguments, result and time.

        Goes above or below `@tool`, on functions, methods and async functions.

        Raises:
            TypeError: what is decorated is not a function.
        """
        if function is None:
            return self
        if isinstance(function, staticmethod | classmethod):
            return type(function)(self(function.__func__))
        if isinstance(function, type) or not callable(function):
            raise TypeError(f"@xray goes on a function or method, not on {function!r}")
        return _watched(function)

    def __repr__(self) -> str:
        running = _current()
        return f"<xray: {running.agent.name!r} runs {running.tool_call.name!r}>" if running else "<xray: no tool runs>"


def _this_turn(trace: list[TraceEntry]) -> list[TraceEntry]:
    for index in range(len(trace) - 1, -1, -1):
        if trace[index].get("type") == "user_input":
            return trace[index:]
    return trace


# -- the table of a call -------------------------------------------------------------------------


def _watched(function: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def watched_async(*args: Any, **kwargs: Any) -> Any:
            with _showing(function, args, kwargs) as returned:
                return returned(await function(*args, **kwargs))

        return watched_async

    @functools.wraps(function)
    def watched(*args: Any, **kwargs: Any) -> Any:
        with _showing(function, args, kwargs) as returned:
            return returned(function(*args, **kwargs))

    return watched


@contextmanager
def _showing(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
    """Show a call when it is over: with what it gives to `returned`, or what it raises."""
    started, results = time.perf_counter(), []

    def returned(result: Any) -> Any:
        results.append(result)
        return result

    try:
        yield returned
    except BaseException as error:
        _show_call(function, args, kwargs, started, error=error)
        raise
    _show_call(function, args, kwargs, started, results[0])


def _show_call(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    started: float,
    result: Any = None,
    error: BaseException | None = None,
) -> None:
    took = (time.perf_counter() - started) * 1000
    if enabled("quiet"):
        return
    from connectagent.output.rows import Row, duration
    from connectagent.output.terminal import Terminal

    terminal, running = Terminal(), _current()
    name = str(getattr(function, "__qualname__", function)).rpartition("<locals>.")[2]
    parts = [(f"xray {terminal.glyphs.dot} {name}", "bold")]
    if running is not None:
        parts.append((f"  {running.agent.name}, iteration {xray.iteration}", "dim"))
    arguments = current().value(_arguments(function, args, kwargs))
    cells = [(key, _as_json(value), "cyan") for key, value in arguments.items()]
    if error is None:
        cells.append(("result", _as_json(current().value(result)), "green"))
    else:
        cells.append(("raised", f"{type(error).__name__}: {error}", "red"))
    terminal.show([Row(0, tuple(parts), duration(took)), _table(terminal, cells)])


def _table(terminal: Terminal, cells: list[tuple[str, str, str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2), pad_edge=False)
    table.add_column(no_wrap=True, max_width=20)
    table.add_column(overflow="fold", max_width=max(20, min(terminal.width, 100) - 8))
    for name, value, style in cells:
        table.add_row(Text(f"  {terminal.text(name, 40)}", style), Text(terminal.text(value, 1000)))
    return table


def _arguments(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, defaults included, without the object and the agent."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return {**{str(index): value for index, value in enumerate(args)}, **kwargs}
    bound.apply_defaults()
    return {name: value for name, value in bound.arguments.items() if name not in _HIDDEN}


def _as_json(value: Any) -> str:
    """A value as JSON where it is one, else as Python writes it."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except Exception:
        return describe(repr, value)


xray = Xray()
"""Inside a tool, the turn that called it.

It has `agent`, `task`, `user_prompt`, `messages`, `iteration`, `previous_tools` and `approved`. `xray.trace()` prints
what has happened so far. As a decorator, `@xray` shows each call of a tool on the terminal.
"""
