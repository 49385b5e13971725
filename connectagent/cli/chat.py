"""`connectagent chat`: a conversation at the terminal, with streamed answers."""

from __future__ import annotations

import contextlib
import inspect
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from connectagent.cli import failure, script
from connectagent.cli.plugin_options import AgentCommand
from connectagent.errors import ConfigError, cut, short_path
from connectagent.hooks.markers import marks_of, on_text, on_trace
from connectagent.output.masking import current
from connectagent.output.masking.stream import Stream
from connectagent.output.rows import call_text
from connectagent.output.text import clean
from connectagent.records.find import find_record, last_record_of
from connectagent.records.read import read_record

LEAVE = ("/quit", "/exit", "/q")
HELP = "/reset forgets the conversation, /quit or Ctrl-D ends, Ctrl-C interrupts an answer"
MOST_SHOWN = 70  # characters of a call, so that a line fits a narrow terminal


class View:
    """Shows a turn: answers on stdout as they arrive, tool calls on stderr.

    Args:
        quiet: whether tool calls are hidden.
    """

    name = "chat"

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
            call = cut(call_text(entry["tool_name"], current().value(entry["arguments"])), MOST_SHOWN)
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

    def finish(self, result: str) -> None:
        """Show what has not been shown of the result: all of it, if it was not streamed."""
        if self.text.strip() != result.strip():
            self.end_line()
            click.echo(clean(failure.answer(result)))
        else:
            self.end_line()
        self.text = ""


@click.command(cls=AgentCommand, short_help="Talk to an agent.")
@click.argument("path", metavar="[SCRIPT]", required=False)
@click.option("--system", metavar="TEXT", help="The system prompt: text, or a path to a text file.")
@click.option("--continue", "go_on", is_flag=True, help="Go on with the last session of SCRIPT's agent, or of all.")
@click.option("--resume", "record", metavar="RECORD", help="Go on with this session: an id, an agent's name, a path.")
@click.option("--stream/--no-stream", default=True, help="Whether answers appear as they arrive. [default: stream]")
@script.agent_options
def chat(
    path: str | None,
    system: str | None,
    go_on: bool,
    record: str | None,
    stream: bool,
    plugins: tuple[str, ...],
    model: str | None,
    quiet: bool,
    traceback: bool,
) -> None:
    """Talk to an agent.

    With SCRIPT it is the script's `agent`. A script without one supplies tools (its list `tools`, else its public
    functions) and handlers (its marked functions). A session that is resumed needs no SCRIPT if its record names one;
    a turn that was cut off is finished first.
    """
    before = _Before.named(record, go_on, path, system)
    view = View(quiet)
    script.apply(model, quiet, (*plugins, "no:console", view))
    path = path or before.script()
    agent = view.agent = before.agent_in(script.load(path, traceback) if path else None, system)
    if stream:
        agent.streaming = True
    if sys.stdin.isatty():
        with contextlib.suppress(ImportError):  # gives input() line editing and a history
            import readline  # noqa: F401
        click.secho(f"{agent.name}, model {agent.llm.model}. {HELP}.", err=True, dim=True)
    code = before.resume(view)
    raise SystemExit(code or _converse(agent, view))


class _Before:
    """The session with which a chat goes on.

    Args:
        record: its record; None for a new session, and where the script's agent is to name it.
        go_on: whether it is the last session of the script's agent.
    """

    def __init__(self, record: Path | None = None, go_on: bool = False) -> None:
        self.record, self.go_on = record, go_on
        self.head = {} if record is None else read_record(record)

    @classmethod
    def named(cls, record: str | None, go_on: bool, path: str | None, system: str | None) -> _Before:
        """The session that the options name.

        Raises:
            ConfigError: there is no such record.
            click.UsageError: the options do not fit together.
        """
        if record is None and not go_on:
            return cls()
        if record is not None and go_on:
            raise failure.usage_error("give one of --continue and --resume RECORD")
        if system is not None:
            raise failure.usage_error("--system is for a new session; the one that goes on has its system prompt")
        return cls(go_on=True) if go_on and path else cls(find_record(record).absolute())

    def script(self) -> str | None:
        """The script that the record names.

        Raises:
            ConfigError: it may only be run if the person names it.
        """
        named = self.head.get("script")
        if self.record is None or not isinstance(named, str):
            return None
        files = shlex.quote(short_path(Path(named))), shlex.quote(short_path(self.record))
        return script.recorded(self.record, self.head, "connectagent chat {} --resume {}".format(*files))

    def agent_in(self, module: ModuleType | None, system: str | None) -> Any:
        """The agent of the chat.

        Raises:
            ConfigError: the record is another agent's.
        """
        name = self.head.get("agent")
        named = script.agent_called(module, str(name)) if module is not None and name is not None else None
        agent = named or _agent(module, system)
        if self.record is not None and agent.name != name:
            shown = f"{script.shown(module)} makes agent {agent.name!r}" if module else "it names no script"
            raise ConfigError(f"{self.record.name} is a session of agent {name!r}, and {shown}; name SCRIPT")
        if self.go_on:
            self.record = last_record_of(agent.name)
        return agent

    def resume(self, view: View) -> int:
        """Go on with the session, and show its last answer; 0, or the exit code if that failed."""
        agent, record = view.agent, self.record
        return 0 if record is None else _show(view, lambda: agent.resume(record))


def _agent(module: ModuleType | None, system: str | None) -> Any:
    from connectagent.agents.agent import Agent

    if module is None:
        return Agent("chat", system_prompt=system)
    agent = script.agent_of(module)
    if agent is None:
        functions = [value for value in vars(module).values() if inspect.isfunction(value)]
        own = [function for function in functions if function.__module__ == script.NAME]
        handlers = [function for function in own if marks_of(function)]
        tools = getattr(module, "tools", None)
        if tools is None:
            tools = [f for f in own if not marks_of(f) and not f.__name__.startswith("_") and f.__name__ != "main"]
        return Agent("chat", tools=tools, system_prompt=system, on_events=handlers)
    if system is not None:
        raise failure.usage_error(f"{script.shown(module)} brings its own agent; --system is for a chat without one")
    return agent


def _converse(agent: Any, view: View) -> int:
    """Take turns until the person leaves; the exit code is 1 where the last turn failed."""
    code, pressed = 0, False
    while True:
        try:
            line = _line()
            pressed = False
        except EOFError:
            if sys.stdin.isatty():
                click.echo(err=True)
            return code
        except KeyboardInterrupt:
            if pressed:
                click.echo(err=True)
                return 130
            pressed = True
            click.echo("\nCtrl-C once more ends; so does /quit.", err=True)
            continue
        if line in LEAVE:
            return code
        if line:
            code = _take(agent, view, line)


def _line() -> str:
    """The person's next line, stripped.

    Raises:
        EOFError: there is no more input.
    """
    if sys.stdin.isatty():
        return input("> ").strip()
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.strip()


def _take(agent: Any, view: View, line: str) -> int:
    """Take one turn, or run a command of the chat; a failed turn does not end the conversation."""
    if line == "/help":
        click.echo(HELP, err=True)
        return 0
    if line == "/reset":
        agent.reset_conversation()
        return 0
    return _show(view, lambda: agent.input(line))


def _show(view: View, action: Callable[[], Any]) -> int:
    """Show what a turn returns, or why it failed; the exit code."""
    try:
        result = action()
        view.finish("" if result is None else str(result))
    except KeyboardInterrupt:
        view.end_line()
        click.echo("interrupted; the conversation goes on", err=True)
        return 130
    except BrokenPipeError:
        raise
    except Exception as error:
        view.end_line()
        return failure.show(error)
    return 0
