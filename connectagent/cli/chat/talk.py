"""The course of a chat: lines, turns, decisions, and how it ends."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import click

from connectagent.cli.chat.commands import Commands, parse
from connectagent.cli.chat.lines import Lines, is_terminal
from connectagent.cli.chat.showing import View
from connectagent.commands import failure
from connectagent.data import Image, Wait
from connectagent.errors import Paused
from connectagent.output.masking import current
from connectagent.output.rows import Row, argument_rows, many
from connectagent.output.typed import hide_typed, show_typed

TWICE_S = 1.0  # Ctrl-C twice within so long leaves the chat
_ONE_PRESS_S = 0.05
INTERRUPTED = 130
_ASK = "approve, reject WHY, answer TEXT, or Enter to decide later: "


class _Left(Exception):
    """The person leaves."""


class Chat:
    """One chat with an agent.

    Args:
        agent: the agent.
        view: what shows its turns.

    Attributes:
        images: what goes with the next message.
        interactive: whether a person sits at the terminal.
        ending: what is done when the chat ends.
        page: the address of the page, if it is served.
    """

    def __init__(self, agent: Any, view: View) -> None:
        self.agent, self.view = agent, view
        self.images: list[Image] = []
        self.interactive = is_terminal()
        self.ending = contextlib.ExitStack()
        self.page: str | None = None
        self._pressed: list[float] = []  # when Ctrl-C was pressed
        self._at_prompt = 0  # how often it was pressed at an empty prompt, in a row
        self.commands = Commands(self)
        self._lines: Lines = lines_for(self.commands)

    def run(self, first: Callable[[], int] = int) -> int:
        """Take turns until the person leaves; the exit code is 1 where the last turn failed.

        Args:
            first: what comes first; where its exit code is not 0, nothing else does.
        """
        with self.ending:
            if self.interactive:
                self.ending.callback(show_typed)
                hide_typed()
            return first() or self._until_left()

    def _until_left(self) -> int:
        code = 0
        while True:
            try:
                code = self._next()
            except EOFError:
                if sys.stdin.isatty():
                    click.echo(err=True)
                return code
            except _Left:
                return code
            except KeyboardInterrupt:  # while a turn was ending
                if not self._pressed or time.monotonic() - self._pressed[-1] > _ONE_PRESS_S:
                    self._press()
            if self._twice():
                click.echo(err=True)
                return INTERRUPTED

    def _next(self) -> int:
        """Take what is said next; the exit code."""
        before = f"[{many(len(self.images), 'image')}]" if self.images else ""
        try:
            line = self._lines.read(before)
        except KeyboardInterrupt:
            self._press()
            self._at_prompt = 0 if self._lines.abandoned else self._at_prompt + 1
            if not self._lines.abandoned and not self._twice():
                click.secho("Ctrl-C once more leaves, as Ctrl-D does", err=True, dim=True)
            return 0
        self._pressed.clear()
        self._at_prompt = 0
        self.view.heard()
        command = parse(line)
        if command is not None:
            return self._command(*command)
        return self.say(line.strip()) if line.strip() else 0

    def _command(self, name: str, rest: str) -> int:
        try:
            return self.commands.run(name, rest)
        except _Left:
            raise
        except Exception as error:
            return self.view.error(error)
        finally:
            self.view.gap()

    def leave(self) -> None:
        """End the chat."""
        raise _Left

    # -- turns ---------------------------------------------------------------------------------

    def say(self, text: str) -> int:
        """Take a turn with a message; the exit code."""
        images, self.images = self.images, []
        return self.turn(lambda: self.agent.input([text, *images] if images else text))

    def turn(self, action: Callable[[], Any]) -> int:
        """Show what a turn returns, or why it failed; the exit code. A failed turn does not end the chat."""
        while True:
            code, paused = self._take(action)
            decided = None if paused is None or not self.interactive else self._decide(paused)
            if decided is None:
                return code
            action = decided

    def _take(self, action: Callable[[], Any]) -> tuple[int, Paused | None]:
        """One turn, up to its end or a pause."""
        with self._noticing():
            return self._shown(action)

    def _shown(self, action: Callable[[], Any]) -> tuple[int, Paused | None]:
        view = self.view
        view.begin()
        try:
            result = action()
            view.finish("" if result is None else str(result))
        except BrokenPipeError:
            raise
        except Paused as paused:
            if not self.interactive:
                return view.fail(paused), paused
            view.end_line()
            return 75, paused
        except (Exception, KeyboardInterrupt) as error:
            return view.fail(error), None
        finally:
            view.end()
        return 0, None

    # -- decisions -----------------------------------------------------------------------------

    def _decide(self, paused: Paused) -> Callable[[], Any] | None:
        """Ask the person about what waits first; what goes on with the decision, None for later."""
        wait: Wait = paused.waiting[0]
        rows = [Row(0, ((f"{wait.agent} waits: {wait.reason or 'no reason was given'}", "bold yellow"),), wrap=True)]
        for call in wait.calls if wait.call is None else [wait.call]:
            rows += [Row(2, ((str(call.get("name")), "bold"),))]
            rows += argument_rows(current().value(call.get("arguments") or {}))
        if len(paused.waiting) > 1:
            rows.append(Row(2, ((f"{len(paused.waiting) - 1} more wait behind it", "dim"),)))
        self.view.tell(*rows)
        decided: dict[str, Any] | None = {}
        while decided == {}:
            try:
                decided = decision(self._lines.ask(_ASK), wait.elsewhere)
            except (EOFError, KeyboardInterrupt):
                decided = None
                click.echo(err=True)
            if decided == {}:
                none = "it is carried out elsewhere: answer or reject it" if wait.elsewhere else "that is none of them"
                self.view.tell(Row(2, ((none, "yellow"),)))
        if decided is None:
            failure.show_error(paused)
            return None
        record = paused.record if paused.record is not None and os.path.isfile(paused.record) else None
        return lambda: self.agent.resume(record, wait=wait.id, **decided)

    # -- Ctrl-C --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _noticing(self) -> Iterator[None]:
        """Notice when Ctrl-C is pressed, also while the turn already ends."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.getsignal(signal.SIGINT)
        if before is not signal.default_int_handler:  # it is ignored, or somebody else's
            yield
            return

        def pressed(number: int, frame: Any) -> None:
            self._press()
            raise KeyboardInterrupt

        signal.signal(signal.SIGINT, pressed)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _press(self) -> None:
        self._pressed.append(time.monotonic())

    def _twice(self) -> bool:
        """Whether Ctrl-C was pressed twice within a second, or again after the prompt said what that does."""
        times = self._pressed
        return self._at_prompt > 1 or any(after - before < TWICE_S for before, after in itertools.pairwise(times))


def decision(text: str, elsewhere: bool = False) -> dict[str, Any] | None:
    """The decision that a person typed, as `agent.resume()` takes it; {} for none of them, None for later.

    Args:
        text: what the person typed.
        elsewhere: whether it is about a call that is carried out elsewhere, which is not approved.
    """
    word, _, rest = text.strip().partition(" ")
    word, rest = word.lower().rstrip(":,"), rest.strip()
    if not word or (word == "later" and not rest):
        return None
    if word in ("approve", "a", "y", "yes") and not rest and not elsewhere:
        return {"approve": True}
    if word in ("reject", "r", "n", "no"):
        return {"reject": rest or "the user said no"}
    if word == "answer" and rest:
        return {"answer": rest}
    return {}


def lines_for(commands: Commands) -> Lines:
    """What reads the lines: with editing at a terminal that can do it."""
    if not is_terminal() or os.environ.get("TERM") == "dumb":
        return Lines()
    from connectagent.cli.chat.prompt import Prompt

    return Prompt(commands)
