"""The agent of `connectagent demo`: its tools read the current folder, and its plugins show each hook as it fires."""

from __future__ import annotations

import itertools
import os
import shutil
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from connectagent import hooks
from connectagent.commands import failure
from connectagent.data import LLMRequest, LLMResponse, ToolCall, TraceEntry
from connectagent.errors import cut
from connectagent.output.rows import call_text, many
from connectagent.settings import setting

if TYPE_CHECKING:
    from connectagent.agents.agent import Agent

MOST_FILES = 20  # of a folder that may hold a million
MOST_BYTES = 5_000_000  # of a file that may be a disk image

MISSING = "no-such-file.txt"


def list_files(folder: str = ".") -> list[str]:
    """List the files of a folder with their sizes.

    Args:
        folder: the folder to look into.
    """
    with os.scandir(folder) as entries:
        plain = (entry for entry in entries if not entry.name.startswith(".") and entry.is_file())
        found = [f"{entry.name} {entry.stat().st_size} bytes" for entry in itertools.islice(plain, MOST_FILES + 1)]
    more = [f"(and more than these {MOST_FILES})"] if len(found) > MOST_FILES else []
    return [*sorted(found[:MOST_FILES]), *more]


def count_lines(path: str) -> str:
    """Count the lines of a file.

    Args:
        path: the file.
    """
    # A pipe or a device would be read for ever.
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError(f"{path!r} is not a file")
    with open(path, "rb") as file:
        data = file.read(MOST_BYTES)
        rest = "at least " if file.read(1) else ""
    lines = data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
    return f"{path} has {rest}{lines} lines"


def write_note(text: str) -> str:
    """Write a note into a new file and return its path.

    Args:
        text: what the note says.
    """
    folder = _home() / "notes"
    folder.mkdir(parents=True, exist_ok=True)
    started = time.strftime("%Y-%m-%dT%H-%M-%S")
    for number in itertools.count(1):
        path = folder / f"demo_{started}{f'_{number}' if number > 1 else ''}.md"
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            continue
        break
    return str(path)


class ShowHooks:
    """A plugin with a method for each of the nine events, which prints what happens."""

    name = "show-hooks"

    @hooks.after_user_input
    def asked(self, prompt: str) -> None:
        _say("after_user_input", prompt)

    @hooks.before_llm
    def asking(self, request: LLMRequest) -> None:
        messages, tools = many(len(request.messages), "message"), many(len(request.tools), "tool")
        _say("before_llm", f"{messages} and {tools} go to {request.model}")

    @hooks.after_llm
    def answered(self, response: LLMResponse) -> None:
        calls = response.tool_calls or []
        _say("after_llm", f"it asks for {', '.join(call.name for call in calls)}" if calls else "it has its answer")

    @hooks.before_tools
    def round_begins(self, tool_calls: list[ToolCall]) -> None:
        _say("before_tools", f"a round of {len(tool_calls)} begins")

    @hooks.before_each_tool
    def tool_begins(self, tool_call: ToolCall) -> None:
        _say("before_each_tool", call_text(tool_call.name, tool_call.arguments))

    @hooks.on_error
    def failed(self, error: Exception) -> None:
        _say("on_error", f"{type(error).__name__}: {error}; the model reads that, and goes on")

    @hooks.after_each_tool
    def tool_ended(self, tool_call: ToolCall, result: object, entry: TraceEntry) -> None:
        _say("after_each_tool", f"{entry['status']} in {entry.get('timing', 0):.1f} ms: {result}")

    @hooks.after_tools
    def round_ends(self, entries: list[TraceEntry]) -> None:
        _say("after_tools", f"the round is over: {', '.join(entry['status'] for entry in entries)}")

    @hooks.on_complete
    def completed(self, outcome: str) -> None:
        _say("on_complete", outcome)


class Reminder:
    """A plugin that adds to what the user asks for: `connectagent bisect` finds it."""

    name = "reminder"

    @hooks.after_user_input
    def remind(self, agent: Agent) -> None:
        message = agent.session["messages"][-1]
        message["content"] = f"{message['content']}\nWrite a note."


def demo_agent() -> Any:
    """The agent of the demo."""
    from connectagent.agents.agent import Agent

    # Always this model: the demo costs nothing and sends nothing, whatever keys are set.
    tools, plugins = [list_files, count_lines, write_note], [Reminder(), ShowHooks()]
    return Agent("demo", tools, model="offline", quiet=True, plugins=plugins)


def _say(hook: str, what: str) -> None:
    """One line for one hook, as wide as the terminal."""
    width = max(60, shutil.get_terminal_size((118, 24)).columns)
    line = failure.plain(f"{hook}: {' '.join(what.split())}")
    click.echo(cut(line, width))


def _home() -> Path:
    return Path(str(setting("dir") or ".co"))
