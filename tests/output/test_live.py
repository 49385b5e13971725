"""What runs is shown at the bottom of the terminal, and nothing that others write is lost or overwritten by it."""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from connectagent import Agent, LLMResponse, TokenUsage
from connectagent.output import live as module
from connectagent.output.live import live
from connectagent.testing import ScriptedLLM, call


class Tty(io.StringIO):
    """A terminal in memory."""

    def isatty(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def screen(self) -> list[str]:
        """The lines that somebody would see now."""
        lines, row, column = [""], 0, 0
        for piece in re.findall(r"\x1b\[[\d;]*[A-Za-z]|\n|\r|[^\x1b\n\r]+", self.getvalue()):
            if piece == "\n":
                row, column = row + 1, 0
                lines += [""] * (row + 1 - len(lines))
            elif piece == "\r":
                column = 0
            elif piece == "\x1b[2K":
                lines[row] = ""
            elif piece == "\x1b[1A":
                row -= 1
            elif not piece.startswith("\x1b"):
                lines[row] = lines[row][:column].ljust(column) + piece + lines[row][column + len(piece) :]
                column += len(piece)
        return [line.rstrip() for line in lines]


@pytest.fixture
def tty(monkeypatch: pytest.MonkeyPatch) -> Tty:
    for name in ("CI", "NO_COLOR", "CONNECTAGENT_STILL", "CONNECTAGENT_QUIET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(module, "TICK_S", 0.01)
    monkeypatch.setattr(module, "SHOWN_AFTER_S", 0.02)
    return Tty()


@contextlib.contextmanager
def at(tty: Tty) -> Iterator[None]:
    """Run something at a terminal, and check that it is as before afterwards. No fixture: pytest owns the streams."""
    with contextlib.redirect_stdout(tty), contextlib.redirect_stderr(tty):
        yield
        assert (sys.stdout, sys.stderr) == (tty, tty)
        assert not live.jobs and not any(thread.name == "connectagent-live" for thread in threading.enumerate())


def until(tty: Tty, text: str) -> list[str]:
    """The screen as soon as it has a text."""
    for _ in range(500):
        screen = tty.screen()
        if any(text in line for line in screen):
            return screen
        time.sleep(0.01)
    raise AssertionError(f"{text!r} is not on {tty.screen()}")


def made(*tools: Any, responses: list[Any], name: str = "helper", **options: Any) -> Agent:
    return Agent(name, tools=list(tools), llm=ScriptedLLM(*responses), log=False, **options)


def test_a_tool_that_runs_has_a_line_with_time_and_cost_that_is_gone_when_it_is_over(tty: Tty) -> None:
    seen: list[list[str]] = []

    def build(n: int) -> str:
        """Build."""
        seen.append(until(tty, "build(n=8)"))
        return "built"

    usage = TokenUsage(1200, 40, cost=0.0123)
    with at(tty):
        made(build, responses=[LLMResponse(None, [call("build", n=8)], usage), "Done."]).input("Go")
    assert re.fullmatch(r"  [⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏] helper · build\(n=8\) +\d+ms  1\.2k tok  \$0\.0123", seen[0][-1])
    assert not re.search("[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏]", "\n".join(tty.screen()))
    assert any(line.startswith("    ✓ build(n=8)") for line in tty.screen())


def test_a_model_call_and_the_agents_below_have_lines_of_their_own(tty: Tty) -> None:
    seen: list[list[str]] = []

    class Slow(ScriptedLLM):
        def complete(self, messages: Any, tools: Any = None) -> LLMResponse:
            seen.append(until(tty, "billing · scripted"))
            return super().complete(messages, tools)

    billing = Agent("billing", llm=Slow("Paid."), description="Pays.", log=False)
    with at(tty):
        made(billing, responses=[call("billing", prompt="pay"), "Done."]).input("Go")
    assert [line.split("  ")[1 if at == 0 else 3].split(" ", 1)[1] for at, line in enumerate(seen[0][-2:])] == [
        'helper · billing(prompt="pay")',
        "billing · scripted",
    ]


def test_what_a_tool_prints_stands_above_and_an_open_line_is_left_alone(tty: Tty) -> None:
    seen: list[list[str]] = []

    def build() -> str:
        """Build."""
        until(tty, "build()")
        print("one")
        print("half", end="")
        time.sleep(0.1)
        seen.append(tty.screen())
        print(" a line")
        seen.append(until(tty, "⠋"))
        return "built"

    with at(tty):
        made(build, responses=[call("build"), "Done."]).input("Go")
    assert seen[0][-2:] == ["one", "half"]
    assert seen[1][-3:-1] == ["one", "half a line"] and "build()" in seen[1][-1]


def test_nothing_is_drawn_while_a_tool_asks_with_input(tty: Tty, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def typed(prompt: str = "") -> str:
        sys.stdout.real.write(prompt)  # type: ignore[attr-defined]  # as C code does, past Python's streams
        time.sleep(0.1)
        seen.append(tty.screen())
        sys.stdout.real.write("yes\n")  # type: ignore[attr-defined]  # the terminal's own echo
        return "yes"

    monkeypatch.setattr(builtins, "input", typed)

    def build() -> str:
        """Build."""
        until(tty, "build()")
        answer = input("Sure? ")
        until(tty, "build()")
        return answer

    with at(tty):
        made(build, responses=[call("build"), "Done."]).input("Go")
    assert seen[0][-1] == "Sure?"
    assert builtins.input is typed


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_or_ctrl_c_leaves_nothing_behind(tty: Tty, error: type[BaseException]) -> None:
    class Broken(ScriptedLLM):
        def complete(self, messages: Any, tools: Any = None) -> LLMResponse:
            until(tty, "helper · scripted")
            raise error

    agent = Agent("helper", llm=Broken("x"), log=False)
    with at(tty), pytest.raises(error):
        agent.input("Go")
    assert tty.screen()[-2].startswith("  failed: V" if error is ValueError else "  interrupted: K")


def test_what_ctrl_c_waits_for_says_that_another_one_leaves_it(tty: Tty) -> None:
    def build() -> str:
        """Build; Ctrl-C cannot stop it."""
        until(tty, "worker · build()")
        os.kill(os.getpid(), signal.SIGINT)
        seen.append(next(line for line in until(tty, "leaves it") if "leaves it" in line))
        return "built"

    def look() -> str:
        """Look."""
        return "seen"

    seen: list[str] = []
    worker = Agent("worker", [build], llm=ScriptedLLM(call("build"), "Done."), log=False)
    asked = [call("worker", prompt="Build."), call("look")]
    with at(tty), pytest.raises(KeyboardInterrupt):
        made(worker, look, responses=[asked, "Done."], parallel_tools=2).input("Go")
    assert re.fullmatch(r" +. worker · build\(\) +Ctrl-C again leaves it  \d+(ms|\.\d+s)", seen[0])


def test_where_nobody_watches_a_long_call_is_one_line_and_nothing_moves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "TICK_S", 0.01)
    monkeypatch.setattr(module, "STARTED_AFTER_S", 0.05)

    def build(n: int) -> str:
        """Build."""
        time.sleep(0.3 if n else 0)
        return "built"

    made(build, responses=[[call("build", n=0), call("build", n=8)], "Done."]).input("Go")
    text = capsys.readouterr().err
    started = [line for line in text.splitlines() if line.endswith("started")]
    assert len(started) == 1 and started[0].startswith("  • helper · build(n=8)")
    assert "\x1b" not in text and "\r" not in text


@pytest.mark.parametrize("name", ["CI", "CONNECTAGENT_STILL"])
def test_nothing_moves_in_ci_or_where_the_setting_says_so(tty: Tty, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "1")

    def build() -> str:
        """Build."""
        time.sleep(0.2)
        return "built"

    with at(tty):
        made(build, responses=[call("build"), "Done."]).input("Go")
    assert "\r" not in tty.getvalue() and "\x1b[2K" not in tty.getvalue()


def test_agents_in_threads_share_the_lines(tty: Tty) -> None:
    both = threading.Barrier(2)

    def build(n: int) -> str:
        """Build."""
        both.wait(5)
        until(tty, "build(n=1)")
        until(tty, "build(n=2)")
        both.wait(5)
        return "built"

    agents = [made(build, responses=[call("build", n=n), "Done."], name=f"agent{n}") for n in (1, 2)]
    threads = [threading.Thread(target=agent.input, args=("Go",)) for agent in agents]
    with at(tty):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert sum("answered" in line for line in tty.screen()) == 2
