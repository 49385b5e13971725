"""The text log, `.co/logs/<agent>.log`: what happened, for readers of plain text."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from connectagent.agents.agent_tool import core_of
from connectagent.data import TokenUsage, TraceEntry
from connectagent.hooks.markers import around_turn, on_trace
from connectagent.output.masking import current, refresh
from connectagent.output.rows import call_text, duration
from connectagent.output.text import actor_with_place, clean, shortened
from connectagent.records.file import open_to_append
from connectagent.records.paths import data_folder, is_given_up, safe_name, warn

if TYPE_CHECKING:
    from connectagent.agents.agent import Agent

PROMPT = 500  # characters of a prompt, a result or an error that are shown
_ID = 6  # characters of the session's id: lines of several sessions stand in one file
SHORT = 200  # of an argument list or a tool's result


class TextLog:
    """Appends what happens to a plain text file, one entry a line; lines that go on are indented.

    Args:
        path: the file, or None for `.co/logs/<agent>.log`. Several agents and processes may share it.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = None if path is None else Path(os.path.abspath(os.path.expanduser(path)))
        self._given = path is not None
        self._session: Any = None
        self._named: tuple[Any, str, str] = (None, "", "")  # the mask, the agent's name, and what is shown of it
        self._failed = False
        self._fd: int | None = None
        self._turning = False
        self._lock = threading.RLock()  # tools may run `execute_tool` in threads of their own

    @around_turn
    def turn(self, agent: Agent, prompt: str) -> Generator[None, str, None]:
        """Log a turn's beginning and end; the file is open in between only."""
        started = time.perf_counter()
        session: Any = agent.current_session
        head = f"turn {session['turn']}"
        if not core_of(agent).turn.log.recording:  # a record does so when it begins
            refresh()
        self._turning = True
        self._log(agent, f"{head} > {shortened(prompt, PROMPT)}")
        try:
            result = yield
            took = duration((time.perf_counter() - started) * 1000)
            self._log(agent, f"{head} < {session.get('outcome')}, {took}: {shortened(result, PROMPT)}")
        finally:
            self._turning = False
            self._close()

    @on_trace
    def entry(self, agent: Agent, entry: TraceEntry) -> None:
        """Log a model call, a tool call or an error."""
        line = _LINES.get(entry["type"])
        if line is None:
            return
        try:
            text = line(entry)
        except Exception as error:  # an entry that a handler made up
            text = f"{shortened(entry['type'], SHORT)} entry that cannot be read: {type(error).__name__}"
        self._log(agent, "  " + text)

    def _log(self, agent: Agent, text: str) -> None:
        if self._session is not agent.current_session:
            self._session, self._failed = agent.current_session, False
            if not self._given:
                self.path = None
        if self._failed or (not self._given and is_given_up(core_of(agent))):
            return
        now = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z"
        lines = f"{stamp} {self._who(agent)} {text}".replace("\n", "\n        ") + "\n"
        with self._lock:
            try:
                self._write(agent, lines.encode("utf-8", "replace"))
            except (OSError, ValueError) as error:  # ValueError: a setting that cannot be read
                self._failed = True
                warn(core_of(agent), "text log", error)
            if self._failed or not self._turning:
                self._close()

    def _who(self, agent: Agent) -> str:
        """The agent and its session, as each line begins; the name is masked anew where something else is masked."""
        mask, name = current(), agent.name
        if self._named[:2] != (mask, name):
            self._named = mask, name, clean(mask.text(name))
        return f"{self._named[2]} {(self._session or {}).get('id', '')[:_ID]}"

    def _write(self, agent: Agent, data: bytes) -> None:
        if self._fd is None:
            if self.path is None:  # it stays where it was when the program goes elsewhere
                self.path = data_folder("logs") / f"{safe_name(agent.name)}.log"
            else:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = open_to_append(self.path, os.O_WRONLY | os.O_CREAT)
        while data:
            data = data[os.write(self._fd, data) :]

    def _close(self) -> None:
        with self._lock:
            fd, self._fd = self._fd, None
            if fd is not None:
                with contextlib.suppress(OSError):
                    os.close(fd)


def _llm_call(entry: TraceEntry) -> str:
    parts = [f"model {shortened(entry['model'], SHORT)}: {entry['status']}", duration(entry["duration_ms"])]
    usage = entry.get("usage")
    if isinstance(usage, TokenUsage):
        parts.append(f"{usage.input_tokens} + {usage.output_tokens} tokens")
        if usage.cost is not None:
            parts.append(f"${usage.cost:.6f}")
    if entry.get("tool_calls"):
        parts.append("calls " + ", ".join(shortened(call["name"], SHORT) for call in entry["tool_calls"]))
    return ", ".join(parts) + _error(entry)


def _tool_execution(entry: TraceEntry) -> str:
    # Masked before they are shortened: what is left of a secret would not be found.
    call = call_text(current().text(entry["tool_name"]), current().value(entry["arguments"]))
    result = shortened(entry.get("result"), SHORT)
    status = f"held, {entry['held']}" if "held" in entry else entry["status"]
    return f"tool {shortened(call, 2 * SHORT)}: {status}, {duration(entry['timing'])}: {result}"


def _error(entry: TraceEntry) -> str:
    if "error" not in entry:
        return ""
    whose = f" (by {actor_with_place(entry['by'])})" if entry.get("by") else ""
    return f"; {shortened(entry.get('error_type'), SHORT)}: {shortened(entry['error'], PROMPT)}{whose}"


_LINES: dict[str, Callable[[TraceEntry], str]] = {
    "llm_call": _llm_call,
    "tool_execution": _tool_execution,
    "error": lambda entry: "error" + _error(entry),
    "retrying": lambda entry: f"{entry['model']}: HTTP {entry['status']}, tries again",
    "log": lambda entry: f"log: {shortened(entry.get('text'), PROMPT)}",
    "paused": lambda entry: f"paused: {shortened(entry.get('reason') or 'no reason was given', PROMPT)}",
    "resumed": lambda entry: f"resumed from {shortened(entry['record'], PROMPT)}",
}
