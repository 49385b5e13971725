"""Reading what a person, or another program, says to a chat."""

from __future__ import annotations

import sys

from connectagent.output.typed import forget_typed, one_question, shown


def is_terminal() -> bool:
    """Whether a person sits in front of it, and sees what is shown."""
    return sys.stdin.isatty() and sys.stdout.isatty()


class Lines:
    """Lines of standard input, one message each.

    Attributes:
        abandoned: whether the last Ctrl-C gave up a message that was begun.
    """

    abandoned = False

    def read(self, before: str = "") -> str:
        """The next message.

        Args:
            before: what the next message goes with, for the prompt.

        Raises:
            EOFError: there is no more input.
            KeyboardInterrupt: Ctrl-C.
        """
        if sys.stdin.isatty():
            with shown():
                return input("> ")
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.rstrip("\n")

    def forget(self) -> None:
        """Forget what was typed so far: it is no answer to a question."""
        forget_typed()

    def ask(self, question: str) -> str:
        """What a person answers to a question.

        Raises:
            EOFError: Ctrl-D.
            KeyboardInterrupt: Ctrl-C.
        """
        with one_question(), shown():
            self.forget()
            sys.stderr.write(question)
            sys.stderr.flush()
            line = sys.stdin.readline()
        if not line:
            sys.stderr.write("\n")
            raise EOFError
        return line.strip()
