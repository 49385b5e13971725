"""The parts of a chat: Markdown that arrives, history, decisions, turns taken back, and chats without a terminal."""

from __future__ import annotations

import contextlib
import io
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from terminals import Pty, environment

from connectagent import Agent, ConfigError, on_session
from connectagent.agents.rewind import take_again, take_back
from connectagent.cli.chat import history
from connectagent.cli.chat.commands import parse
from connectagent.cli.chat.markdown import Arriving, lines_of
from connectagent.cli.chat.talk import decision
from connectagent.output.terminal import Terminal
from connectagent.records.history import history_of
from connectagent.testing import ScriptedLLM, call

ANSWER = """# A title

A **bold** word, and a paragraph that is so long that it needs more than one line of the terminal, `code` too.
A title again
---
1. one
2. two
   - inner

   and its second paragraph
10. ten

```python
def f():
    return "**not bold**"

```

| a | b |
| --- | --- |
| 1 | 2 |

<b>html</b> and [a link](https://example.com)

> a quote
> of two lines
"""


class Screen(Pty):
    """A terminal without a program."""

    def __init__(self, width: int) -> None:
        self.width, self.row, self.column, self.cells = width, 0, 0, [[]]

    def lines(self) -> list[str]:
        shown = ["".join(row).rstrip() for row in self.cells]
        while shown and not shown[-1]:
            shown.pop()
        return shown

    def write(self, text: str) -> None:
        self._draw(text.replace("\n", "\r\n"))

    def flush(self) -> None:
        pass


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> tuple[Screen, Terminal]:
    monkeypatch.setattr("connectagent.cli.chat.markdown._SHARE", 0)
    monkeypatch.setenv("NO_COLOR", "1")
    return Screen(60), Terminal(io.StringIO(), 60)


@pytest.mark.parametrize("seed", range(8))
def test_what_arrived_in_pieces_is_drawn_as_the_whole_answer_is(seed: int, drawn: tuple[Screen, Terminal]) -> None:
    screen, terminal = drawn
    pieces, at = random.Random(seed), 0
    arriving = Arriving(terminal)
    with contextlib.redirect_stdout(screen):  # type: ignore[type-var]
        while at < len(ANSWER):
            size = pieces.choice((1, 3, 7, 40))
            arriving.feed(ANSWER[at : at + size])
            at += size
        arriving.end()
    blocks = [line for line in lines_of(ANSWER, terminal) if line.strip()]
    assert [line for line in screen.lines() if line.strip()] == blocks
    assert "\n\n\n" not in screen.text()
    for kept in ("A title", "<b>html</b>", "https://example.com", '"**not bold**"', "ten", "of two lines"):
        assert kept in screen.text()


def test_no_line_ends_with_spaces_which_a_narrower_terminal_would_break(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    lines = lines_of(ANSWER, Terminal(io.StringIO(), 80))
    plain = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in lines]
    assert plain != lines and all(line == line.rstrip() for line in plain)


@pytest.mark.parametrize("length", range(1, len(ANSWER), 13))
def test_an_answer_that_is_cut_is_readable(length: int, drawn: tuple[Screen, Terminal]) -> None:
    screen, terminal = drawn
    arriving = Arriving(terminal)
    with contextlib.redirect_stdout(screen):  # type: ignore[type-var]
        for character in ANSWER[:length]:
            arriving.feed(character)
        arriving.end()
    screen.write("next")
    assert [line for line in screen.lines() if line][-1] == "next"
    words = [word for word in ("title", "paragraph", "inner", "second", "ten", "return") if word in ANSWER[:length]]
    assert all(word in screen.text() for word in words)


@pytest.mark.parametrize(
    ("line", "parsed"),
    [
        ("exit", ("quit", "")),
        (" quit ", ("quit", "")),
        ("/model gpt-5 ", ("model", "gpt-5")),
        ("/etc/hosts", ("etc/hosts", "")),
        ("/save\nnow", ("save", "now")),
        (" /model", None),
        ("quit smoking", None),
        ("1 / 2", None),
    ],
)
def test_what_is_a_command(line: str, parsed: Any) -> None:
    assert parse(line) == parsed


@pytest.mark.parametrize(
    ("typed", "means"),
    [
        ("y", {"approve": True}),
        ("Approve", {"approve": True}),
        ("reject: too much", {"reject": "too much"}),
        ("n", {"reject": "the user said no"}),
        ("answer 42", {"answer": "42"}),
        ("answer", {}),
        ("yes but not all of it", {}),
        ("what is it", {}),
        ("", None),
        ("later", None),
    ],
)
def test_what_a_person_decides(typed: str, means: Any) -> None:
    assert decision(typed) == means
    assert decision(typed, elsewhere=True) == ({} if means == {"approve": True} else means)


# -- history -------------------------------------------------------------------------------------


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "connectagent" / "chat_history"


@pytest.mark.posix("has no modes: a user's folder is the user's alone")
def test_history_is_read_from_no_file_that_others_may_write(state: Path) -> None:
    history.remember("one\ntwo")
    assert history.typed_before() == ["one\ntwo"]
    state.chmod(0o644)
    history.remember("three")
    assert history.typed_before() == [] and "three" not in state.read_text()
    state.unlink()
    (state.parent / "elsewhere").touch(0o600)
    state.symlink_to(state.parent / "elsewhere")
    history.remember("four")
    assert (state.parent / "elsewhere").read_text() == ""


def test_history_is_kept_short_and_survives_odd_lines(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST", 3)
    for number in range(7):
        history.remember(f"line {number}")
    with state.open("a") as file:
        file.write('{"no": "text"}\nnot json\n"half')
    assert history.typed_before() == []
    history.remember("after")
    assert history.typed_before() == ["after"]
    assert state.stat().st_mode & 0o777 == 0o600
    assert len(state.read_text().splitlines()) < 10


def test_without_a_home_nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(history, "state_folder", none)
    history.remember("one")
    assert history.typed_before() == []


# -- turns that are taken back -------------------------------------------------------------------


def contents(agent: Agent) -> list[Any]:
    return [message["content"] for message in agent.session["messages"]]


def test_a_turn_that_was_taken_back_is_gone_also_for_the_next_process(tmp_path: Path) -> None:
    agent = Agent("shop", llm=ScriptedLLM("one", "two", "again", "new"), quiet=True, state={"n": 0})
    agent.input("1")
    agent.state["n"] = 1
    agent.input("2")
    assert agent.record is not None
    assert (take_back(agent), contents(agent)) == (2, ["1", "one"])
    assert [message["content"] for message in history_of(agent.record).messages] == ["1", "one"]
    assert '"two"' in agent.record.read_text()
    assert (take_again(agent), contents(agent)) == ("again", ["1", "again"])
    assert take_back(agent) == 1
    with pytest.raises(ConfigError, match="no turn to take back"):
        take_back(agent)
    with pytest.raises(ConfigError, match="no turn to take again"):
        take_again(agent)
    assert agent.input("3") == "new"
    other = Agent("shop", llm=ScriptedLLM(), quiet=True)
    other.resume(agent.record, fork=True)
    assert contents(other) == ["3", "new"]


def test_what_a_turn_that_was_taken_back_cost_stays_in_the_sum() -> None:
    from connectagent import LLMResponse, TokenUsage

    usage = TokenUsage(10, 5, cost=0.5)
    agent = Agent("shop", llm=ScriptedLLM(LLMResponse("one", [], usage), LLMResponse("two", [], usage)), quiet=True)
    agent.input("1")
    take_back(agent)
    agent.input("2")
    assert agent.total_cost == 1.0


def test_the_agents_below_forget_the_turn_too() -> None:
    child = Agent("child", llm=ScriptedLLM("first", "second"), quiet=True)
    agent = Agent("root", [child], llm=ScriptedLLM([call("child", prompt="a")], "A", [call("child", prompt="b")], "B"))
    agent.input("1")
    assert contents(child) == ["a", "first"]
    take_back(agent)
    agent.input("2")
    assert contents(child) == ["b", "second"]


def test_a_turn_that_failed_or_waits_can_be_taken_back_and_taken_again() -> None:
    from connectagent import Pause, Paused, before_llm

    @before_llm
    def ask(agent: Any) -> None:
        if agent.current_session["user_prompt"] == "wait":
            raise Pause("sure?")

    agent = Agent("shop", llm=ScriptedLLM("one", ValueError("broken"), "two", "three"), on_events=[ask], quiet=True)
    agent.input("1")
    with pytest.raises(ValueError, match="broken"):
        agent.input("2")
    assert take_again(agent) == "two"
    with pytest.raises(Paused):
        agent.input("wait")
    with pytest.raises(Paused):
        take_again(agent)
    assert take_back(agent) == 3
    assert contents(agent) == ["1", "one", "2", "two"]
    assert agent.input("3") == "three"


def test_plugins_learn_that_the_session_is_another_one() -> None:
    reasons: list[tuple[str, int]] = []

    @on_session
    def session(agent: Any, reason: str) -> None:
        reasons.append((reason, agent.session["turn"]))

    agent = Agent("shop", llm=ScriptedLLM("one", "two"), on_events=[session], quiet=True)
    agent.input("1")
    agent.input("2")
    take_back(agent)
    assert reasons[1:] == [("resumed", 1)] and reasons[0][0] == "begun"


def test_going_back_needs_a_record() -> None:
    agent = Agent("shop", llm=ScriptedLLM("one"), quiet=True, log=False)
    agent.input("1")
    with pytest.raises(ConfigError, match=r"needs a record, and agent 'shop' has none \(log=False\)"):
        take_back(agent)
    assert contents(agent) == ["1", "one"]


# -- without a terminal --------------------------------------------------------------------------


def piped(folder: Path, text: str, *script: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "connectagent", "chat", *script, "--model", "offline"]
    env = environment(folder)
    return subprocess.run(command, input=text, env=env, cwd=folder, capture_output=True, text=True, timeout=60)


def test_commands_work_in_a_pipe_and_an_unknown_one_goes_to_no_model(tmp_path: Path) -> None:
    done = piped(tmp_path, "hello\n/undo\n/retyr\n/cost\nexit\nnever\n")
    assert (done.returncode, done.stdout.count("[offline]")) == (0, 1)
    assert "turn 1 was taken back" in done.stderr and "0 turns" in done.stderr
    assert "error: there is no command /retyr. Did you mean '/retry'?" in done.stderr
    assert piped(tmp_path, "/nothing\n").returncode == 1
    assert not list(tmp_path.glob(".local/**/chat_history"))


PAUSING = """
from connectagent import Agent, Pause, before_each_tool

def refund() -> str:
    return "refunded"

@before_each_tool
def ask(tool_call):
    raise Pause("needs a manager")

agent = Agent("payer", [refund], on_events=[ask])
"""


@pytest.mark.parametrize(("lines", "code", "said"), [("refund\n", 75, ""), ("refund\nHello\n", 0, "[offline]")])
def test_the_last_line_of_a_pipe_gives_the_exit_code_and_a_later_one_gives_a_paused_turn_up(
    tmp_path: Path, lines: str, code: int, said: str
) -> None:
    (tmp_path / "payer.py").write_text(PAUSING)
    done = piped(tmp_path, lines, "payer.py")
    assert done.returncode == code and "paused: needs a manager" in done.stderr
    assert done.stdout.startswith(said) and bool(done.stdout) == bool(said)


def test_a_pipe_loads_no_prompt(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom connectagent.cli.group import invoke\n"
        "invoke(['chat', '--model', 'offline'])\nassert 'prompt_toolkit' not in sys.modules\nprint('lean')"
    )
    env = environment(tmp_path)
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, input="hi\n", env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.endswith("lean\n"), done.stderr
