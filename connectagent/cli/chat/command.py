"""`connectagent chat`: a conversation at the terminal, with streamed answers."""

from __future__ import annotations

import inspect
import shlex
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from connectagent.cli.chat.lines import is_terminal
from connectagent.cli.chat.showing import Screen, View
from connectagent.cli.chat.talk import Chat
from connectagent.commands import failure, script
from connectagent.commands.plugin_options import AgentCommand
from connectagent.errors import ConfigError, short_path
from connectagent.hooks.markers import marks_of
from connectagent.output.rows import Row, first_line, many
from connectagent.output.terminal import Terminal
from connectagent.records.find import find_record, last_record_of
from connectagent.records.history import parts_of
from connectagent.records.read import read_ends, read_record


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
    view = Screen(quiet) if is_terminal() else View(quiet)
    script.apply_options(model, quiet, (*plugins, "no:console"), {"chat": view})
    path = path or before.script()
    agent = view.agent = before.agent_in(script.load(path, traceback) if path else None, system)
    if stream:
        agent.streaming = True
    if is_terminal() and not quiet:
        _greet(agent, view)
    talk = Chat(agent, view)
    raise SystemExit(talk.run(lambda: before.resume(talk)))


def _greet(agent: Any, view: View) -> None:
    dot = f" {Terminal().glyphs.dot} "
    number = len(agent.list_tools())
    parts = [agent.llm.model, many(number, "tool") if number else "", "/help lists the commands"]
    view.tell(Row(0, ((agent.name, "bold"), (dot + dot.join(filter(None, parts)), "dim"))))
    view.gap()


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

    def resume(self, talk: Chat) -> int:
        """Go on with the session, and show its last answer; 0, or the exit code if that failed."""
        record = self.record
        if record is None:
            return 0
        script.has_plugins_of(talk.agent, read_ends(record, None, 1))
        if talk.interactive:
            turns = [part.items[0] for part in parts_of(read_record(record)) if part.is_turn]
            said = first_line(turns[-1].get("input") or "") if turns else ""
            talk.view.tell(Row(0, ((f"> {said}", "dim"),)))
        return talk.turn(lambda: talk.agent.resume(record))


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
