"""The commands of a chat: lines that begin with a slash.

Plugins add commands with the hook `register_chat_commands`.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import threading
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click

from connectagent.agents.rewind import recorded_at, take_again, take_back
from connectagent.cli.log.export import EXPORTERS
from connectagent.cli.view.command import has_desktop, in_browser
from connectagent.data import Image
from connectagent.errors import ConfigError, did_you_mean, short_path
from connectagent.models.names import PROVIDERS
from connectagent.output.masking import current
from connectagent.output.rows import Row, first_line, many, spent_texts
from connectagent.output.text import clean
from connectagent.records.blobs import blob_folder, restored
from connectagent.records.findings import findings_of
from connectagent.records.read import read_record

HOOK = "register_chat_commands"
LEAVE = ("quit", "exit", "q")
_NAME = re.compile(r"[a-z][a-z0-9_-]*")


class Command(NamedTuple):
    """One command.

    Args:
        run: takes the text behind the name.
        help: what it does, in one line.
        takes: the text that it takes, for the help.
        words: what it may take, for completion.
        paths: whether it takes a path.
    """

    run: Callable[[str], Any]
    help: str
    takes: str = ""
    words: Callable[[], Iterable[str]] = tuple
    paths: bool = False


def parse(line: str) -> tuple[str, str] | None:
    """A line as a command's name and the text behind it; None for a line that is for the agent."""
    if line.strip() in ("exit", "quit"):
        return "quit", ""
    if not line.startswith("/") or line == "/":
        return None
    name, _, rest = line[1:].partition(" ")
    if "\n" in name:
        name, _, rest = line[1:].partition("\n")
    return name.strip(), rest.strip()


class Commands:
    """The commands of one chat, by name.

    Args:
        chat: the `Chat` that they act on.
    """

    def __init__(self, chat: Any) -> None:
        self.chat = chat
        self.all: dict[str, Command] = {
            "help": Command(self._help, "list the commands", "[COMMAND]", lambda: self.all),
            "model": Command(self._model, "show the model, or use another one", "[NAME]", _models),
            "tools": Command(self._tools, "list the agent's tools"),
            "plugins": Command(self._plugins, "list the agent's plugins"),
            "cost": Command(self._cost, "show what the session has cost so far"),
            "undo": Command(self._undo, "take the last turn back"),
            "retry": Command(self._retry, "take the last turn again"),
            "image": Command(self._image, "add an image to the next message", "PATH [TEXT]", paths=True),
            "save": Command(self._save, "save the session as .md, .html, .jsonl", "PATH", paths=True),
            "view": Command(self._view, "open the session as a page"),
            "reset": Command(self._reset, "begin a new conversation"),
            "quit": Command(lambda rest: self.chat.leave(), "leave, as exit and Ctrl-D do"),
        }
        self._add_of_plugins()

    def run(self, name: str, rest: str) -> int:
        """Run a command; its exit code.

        Raises:
            ConfigError: there is no such command, or it cannot do this.
        """
        command = self.all.get("quit" if name in LEAVE else name)
        if command is None:
            near = did_you_mean(f"/{name}", [f"/{known}" for known in self.all])
            known = "/help lists them; for a message, type a space before the slash"
            raise ConfigError(f"there is no command /{name}.{near} {known}")
        if rest and not command.takes:
            raise ConfigError(f"/{name} takes nothing behind it, not {rest!r}")
        if not rest and command.takes and not command.takes.startswith("["):
            raise ConfigError(f"/{name} needs {command.takes}")
        code = command.run(rest)
        return code if isinstance(code, int) else 0

    # -- of plugins ----------------------------------------------------------------------------

    def _add_of_plugins(self) -> None:
        agent = self.chat.agent
        for handler in agent.hooks.handlers(HOOK):
            for name, function in (agent.boundary.call(handler, {"agent": agent}) or {}).items():
                if name in self.all or name in LEAVE or not _NAME.fullmatch(str(name)) or not callable(function):
                    why = "there is one already" if name in self.all else "a command is a function with a short name"
                    self._tell((f"plugin {handler.plugin} brings no command /{name}: {why}", "yellow"))
                    self.chat.view.gap()
                    continue
                text = f"{first_line(inspect.getdoc(function) or '')} (of {handler.plugin})".strip()
                self.all[str(name)] = Command(partial(self._of_plugin, handler, function), text, "[TEXT]")

    def _of_plugin(self, handler: Any, function: Callable[[str], Any], rest: str) -> None:
        """Run a plugin's command; what it changes is the plugin's."""
        value = self.chat.agent.boundary.watched(handler, {}, function, rest)
        if value is not None:
            self._tell(*((line, "") for line in clean(current().text(str(value))).split("\n")))

    # -- showing -------------------------------------------------------------------------------

    def _tell(self, *spans: tuple[str, str]) -> None:
        """Show lines."""
        self.chat.view.tell(*(Row(2, (span,), wrap=True) for span in spans))

    def _table(self, rows: Iterable[tuple[str, str]]) -> None:
        """Show names with their descriptions."""
        listed = list(rows)
        wide = min(30, max((len(name) for name, _ in listed), default=0))
        self.chat.view.tell(*(Row(2, ((name.ljust(wide), "cyan"), (f"  {text}", "dim"))) for name, text in listed))

    def _help(self, rest: str) -> None:
        names = [rest.lstrip("/")] if rest else list(self.all)
        if rest and names[0] not in self.all:
            raise ConfigError(f"there is no command /{names[0]}.{did_you_mean(names[0], self.all)}")
        self._table((f"/{name} {self.all[name].takes}".rstrip(), self.all[name].help) for name in names)
        if not rest:
            self._tell(("", ""), ("Alt-Enter adds a line; Ctrl-C ends a turn, twice leaves", "dim"))

    def _tools(self, rest: str) -> None:
        self._table((tool.name, first_line(tool.description)) for tool in self.chat.agent.tools)
        if not self.chat.agent.list_tools():
            self._tell(("the agent has no tools", "dim"))

    def _plugins(self, rest: str) -> None:
        hooks: dict[str, list[str]] = {}
        for handler in self.chat.agent.hooks.loaded:
            if not handler.builtin:
                name = f"{handler.plugin} {handler.version or ''}".strip()
                hooks.setdefault(f"{name}{' (shadowed)' if handler.shadowed else ''}", []).append(handler.hook)
        self._table((name, ", ".join(dict.fromkeys(found))) for name, found in hooks.items())
        if not hooks:
            self._tell(("the agent has no plugins", "dim"))

    def _cost(self, rest: str) -> None:
        agent = self.chat.agent
        spent, turns = agent.spent, (agent.current_session or {}).get("turn") or 0
        calls = [many(turns, "turn"), many(spent.calls, "model call"), *spent_texts(spent)]
        rows = [("this session", ", ".join(filter(None, calls)))]
        if agent.last_usage is not None:
            rows.append(("context", f"{agent.context_percent:.0f} % of the model's window"))
        for row in agent.ledger:
            if row["model_calls"]:
                cost = f"${row['cost']:.4f}" if row["cost"] is not None else "cost ?"
                made = many(row["model_calls"], "model call")
                rows.append((f"{row['plugin']}, {row['handler']}", f"{made}, {cost}, in the sum above"))
        self._table(rows)

    # -- what changes the session --------------------------------------------------------------

    def _model(self, rest: str) -> None:
        agent = self.chat.agent
        if rest:
            agent.llm = agent.create_llm(rest)
        self._tell((f"{'from now on ' if rest else ''}{agent.llm.model}", ""))

    def _undo(self, rest: str) -> None:
        self._tell((f"turn {take_back(self.chat.agent)} was taken back", "dim"))

    def _retry(self, rest: str) -> int:
        return int(self.chat.turn(partial(take_again, self.chat.agent)))

    def _reset(self, rest: str) -> None:
        self.chat.agent.reset_conversation()
        self.chat.images.clear()
        if self.chat.interactive:
            self._tell(("a new conversation", "dim"))

    def _image(self, rest: str) -> int:
        path, text = _path_and_text(rest)
        image = Image(path)
        try:
            image.part()  # now, not when the message is sent
        except (OSError, ValueError) as error:
            raise ConfigError(f"{short_path(path)} is no image: {getattr(error, 'strerror', None) or error}") from error
        self.chat.images.append(image)
        if text:
            return int(self.chat.say(text))
        self._tell((f"{path.name} goes with the next message", "dim"))
        return 0

    # -- the record ----------------------------------------------------------------------------

    def _save(self, rest: str) -> None:
        path, more = _path_and_text(rest)
        form = path.suffix.lstrip(".") or "md"
        if more or form not in EXPORTERS:
            raise ConfigError(f"/save takes a path that ends in {', '.join(f'.{form}' for form in EXPORTERS)}")
        if path.exists():
            raise ConfigError(f"{short_path(path)} is there already; name another file")
        record = self._record("save")
        whole = restored(read_record(record), blob_folder(record))
        path.write_text("".join(EXPORTERS[form](whole, findings_of(record))), "utf-8")
        self._tell((f"saved as {short_path(path)}", "dim"))

    def _view(self, rest: str) -> None:
        from connectagent.cli.view.server import Server

        if self.chat.page is None:
            server = Server(self._record("view"))
            self.chat.ending.callback(server.close)
            threading.Thread(target=server.serve, name="connectagent-view", daemon=True).start()
            self.chat.page = server.url
        click.echo(f"  {self.chat.page}", err=True)  # whole, so that it can be clicked
        if has_desktop():
            self.chat.ending.enter_context(in_browser(self.chat.page))

    def _record(self, what: str) -> Path:
        if not (self.chat.agent.current_session or {}).get("turn"):
            raise ConfigError(f"there is nothing to {what} before the first turn")
        with contextlib.suppress(ConfigError):
            return recorded_at(self.chat.agent)
        raise ConfigError(f"there is nothing to {what}: agent {self.chat.agent.name!r} has no record (log=False)")


def _path_and_text(rest: str) -> tuple[Path, str]:
    """The path at the beginning of a text, which may be quoted, and what follows."""
    quote = rest[:1] if rest[:1] in ("'", '"') else ""
    path, found, text = rest[len(quote) :].partition(quote or " ")
    if quote and not found:
        raise ConfigError(f"a quotation mark is missing behind {rest}")
    return Path(os.path.expanduser(path.replace("\\ ", " "))), text.strip()


def _models() -> list[str]:
    return ["offline", *(f"{name}/" for name in PROVIDERS)]
