"""The prompt of a chat at a terminal: editing, history, several lines, completion of commands."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import History
from prompt_toolkit.input.typeahead import clear_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output, create_output
from prompt_toolkit.patch_stdout import patch_stdout
from prompt_toolkit.styles import Style

from connectagent_chat.commands import Commands
from connectagent_chat.history import remember, typed_before
from connectagent_chat.lines import Lines

_STYLE = Style.from_dict(
    {
        "prompt": "bold ansicyan",
        "before": "ansibrightblack",
        "completion-menu": "noinherit",
        "completion-menu.completion": "noinherit",
        "completion-menu.completion.current": "noinherit reverse",
        "completion-menu.meta.completion": "noinherit ansibrightblack",
        "completion-menu.meta.completion.current": "noinherit reverse",
        "scrollbar.background": "noinherit",
        "scrollbar.button": "noinherit reverse",
    }
)


class Prompt(Lines):
    """Messages that a person types at a terminal.

    Args:
        commands: the commands, for completion.
    """

    def __init__(self, commands: Commands) -> None:
        self._session: PromptSession[str] = PromptSession(
            history=_History(),
            multiline=True,
            completer=_Completer(commands),
            complete_while_typing=Condition(_begins_with_slash),
            reserve_space_for_menu=min(8, len(commands.all)),
            key_bindings=_keys(),
            style=_STYLE,
            output=_output(),
            prompt_continuation=lambda width, line, wrapped: "" if wrapped else "  ",
        )

    def read(self, before: str = "") -> str:
        prompt: StyleAndTextTuples = [("class:before", f"{before} ")] if before else []
        self.abandoned = False
        try:
            with patch_stdout(raw=True):  # what threads print comes above the prompt
                return self._session.prompt([*prompt, ("class:prompt", "> ")])
        except KeyboardInterrupt:
            self.abandoned = bool(self._session.default_buffer.text)
            raise

    def forget(self) -> None:
        clear_typeahead(self._session.input)
        super().forget()


def _output() -> Output:
    output = create_output(sys.stdout)
    if hasattr(output, "enable_cpr"):  # an answer of the terminal that comes late would be read as typed
        output.enable_cpr = False
    return output


def _begins_with_slash() -> bool:
    text = get_app().current_buffer.text
    return text.startswith("/") and "\n" not in text


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def new_line(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    return keys


class _History(History):
    """What was typed in all chats of the user."""

    def load_history_strings(self) -> Iterable[str]:
        return reversed(typed_before())

    def store_string(self, string: str) -> None:
        remember(string)


class _Completer(Completer):
    """Completes the names of commands, and what they take."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        text = document.text_before_cursor
        if not text.startswith("/") or "\n" in text:
            return
        name, space, rest = text[1:].partition(" ")
        if not space:
            for known, each in self._commands.all.items():
                if known.startswith(name):
                    yield Completion(f"/{known}", -len(text), display_meta=each.help)
            return
        command = self._commands.all.get(name)
        if command is None:
            return
        if command.paths:
            yield from self._paths.get_completions(Document(rest, len(rest)), complete_event)
        for word in command.words():
            if word.startswith(rest):
                yield Completion(word, -len(rest))
