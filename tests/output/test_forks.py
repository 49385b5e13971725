"""Forks beside threads that print: none waits for a thread that it does not have."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectagent.output.terminal import Terminal

FORKS = int(os.environ.get("FORKS", "40"))

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here"),
    pytest.mark.posix("has no fork"),
]


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """A terminal to which three threads write all the time."""
    stopped = threading.Event()
    with open(tmp_path / "shown", "w") as file:
        terminal = Terminal(file)

        def show() -> None:
            while not stopped.is_set():
                terminal.show(["a line\n"])
                time.sleep(0.0005)

        threads = [threading.Thread(target=show) for _ in range(3)]
        for thread in threads:
            thread.start()
        yield terminal
        stopped.set()
        for thread in threads:
            thread.join()


def test_a_fork_shows_lines_too(terminal: Terminal) -> None:
    for _ in range(FORKS):
        child = os.fork()
        if not child:
            terminal.show(["of the fork\n"])
            os._exit(0)
        assert _ends(child), "the fork hangs"


def _ends(child: int) -> bool:
    for _ in range(1000):
        if os.waitpid(child, os.WNOHANG)[0]:
            return True
        time.sleep(0.005)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return False
