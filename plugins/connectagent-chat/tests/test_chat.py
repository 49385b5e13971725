"""A chat at a terminal: one that the tests draw themselves, and tmux where it is installed."""

from __future__ import annotations

import base64
import json
import re
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from terminals import KINDS, Terminal, terminal

from connectagent.records.read import read_record

SCRIPT = '''
import time
from pathlib import Path
from connectagent import Agent, LLMResponse, Pause, TokenUsage, ToolRejected, after_llm, before_each_tool
from connectagent import register_chat_commands
from connectagent.testing import call

def until(name):
    """Wait for the test."""
    while not Path(name).exists():
        time.sleep(0.01)

def note(text: str) -> str:
    """Note a text."""
    with open("noted", "a") as file:
        file.write(text + "\\n")
    return "noted\\nin a file"

def pay(amount: int) -> str:
    """Pay an amount."""
    until("paid")
    return f"paid {amount}"

def forbidden() -> str:
    """Never runs."""
    return "ran"

ANSWERS = {
    "slow": [("It is **sun", "one"), ("ny** today.\\n\\n- first\\n- sec", "two"), ("ond\\n", "")],
    "stuck": [("I am think", "never")],
}

class Model:
    model = "model"

    def stream(self, messages, tools=None, *, on_text):
        last = messages[-1]
        said = str(last["content"])
        usage = TokenUsage(1000, 200, cost=0.0123)
        if last["role"] == "user" and said in ("note", "pay", "forbidden"):
            arguments = {"note": {"text": "milk"}, "pay": {"amount": 7}, "forbidden": {}}[said]
            on_text("Let me see.")
            return LLMResponse("Let me see.", [call(said, **arguments)], usage)
        users = [message for message in messages if message["role"] == "user"]
        pieces = ANSWERS.get(said, [(f"{len(users)}: {last['content']!r}", "")])
        for piece, file in pieces:
            on_text(piece)
            if file:
                until(file)
        return LLMResponse("".join(piece for piece, _ in pieces), [], usage)

    def complete(self, messages, tools=None):
        return self.stream(messages, tools, on_text=lambda text: None)

@before_each_tool
def guard(tool_call):
    if tool_call.name == "forbidden":
        raise ToolRejected("not in this house")
    if tool_call.name == "pay" and Path("pauses").exists():
        raise Pause("needs a manager")

@after_llm
def hint(agent):
    if Path("hints").exists():
        agent.session["messages"].append({"role": "user", "content": "a hint"})

@register_chat_commands
def commands(agent):
    def wave(text):
        """Wave to somebody."""
        if agent.current_session:
            agent.state["waved"] = text
        return f"waves to {text}"

    def broken(text):
        raise ValueError("it is broken")

    return {"wave": wave, "broken": broken, "reset": wave}

agent = Agent("helper", [note, pay, forbidden], llm=Model(), plugins=[guard, hint, commands])
'''


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


Chat = Callable[..., Terminal]


@pytest.fixture
def chat(kind: str, tmp_path: Path, ctrl_c: None) -> Iterator[Chat]:
    """Begins a chat, and waits for its prompt."""
    opened = []
    (tmp_path / "agent.py").write_text(SCRIPT)

    def begin(*arguments: str, waits: bool = True, **variables: Any) -> Terminal:
        shown = terminal(kind, tmp_path, "chat", *(arguments or ("agent.py",)), **variables)
        opened.append(shown)
        if waits:
            shown.until_prompt()
        return shown

    yield begin
    for each in opened:
        each.close()


def said(folder: Path) -> list[str]:
    """What was said to the agent, as the newest record has it."""
    record = max((folder / ".co" / "evals").glob("helper_*.yaml"))
    return [str(turn.get("input")) for turn in read_record(record)["turns"] if "input" in turn]


def test_an_answer_is_drawn_as_markdown_while_it_arrives(chat: Chat, tmp_path: Path) -> None:
    at = chat()
    at.press("slow", "Enter")
    assert "It is **sun" in at.until("It is **sun")
    (tmp_path / "one").touch()
    shown = at.until("sec")
    assert "It is sunny today." in shown and "**" not in shown
    (tmp_path / "two").touch()
    shown = "\n".join(at.until_prompt())
    answer = r"> slow\n\nIt is sunny today\.\n\n • first\n • second\n\n"
    assert re.search(answer + r"  \S+ · 1\.2k tok · \$0\.0123\n\n>$", shown)


def test_a_line_goes_on_in_the_next_and_a_paste_of_several_lines_is_one_message(chat: Chat, tmp_path: Path) -> None:
    at = chat()
    at.press("one", "M-Enter", "two", "Escape")
    at.press("Enter", "three", "Enter")
    at.until_prompt()
    at.paste("first\nsecond\n\nlast")
    at.until("last")
    assert len(said(tmp_path)) == 1
    at.press("Enter")
    at.until_prompt()
    assert said(tmp_path) == ["one\ntwo\nthree", "first\nsecond\n\nlast"]


@pytest.mark.posix("shows nothing of what is typed while nothing reads it")
def test_ctrl_c_ends_the_turn_and_twice_within_a_second_the_chat(chat: Chat, tmp_path: Path) -> None:
    at = chat()
    at.press("stuck", "Enter")
    at.until("I am think")
    at.press("C-c")
    assert "I am think\n\n  interrupted\n\n>" in "\n".join(at.until_prompt())
    at.press("and now", "Enter")
    at.until("2: 'and now'")
    at.until_prompt()
    for number in range(2, 5):  # on a slow machine, until two keys are pressed within a second
        at.press("stuck", "Enter")
        at.until("I am think", times=number)
        before = time.monotonic()
        at.press("C-c")
        time.sleep(0.1)  # two signals at once are one
        at.press("C-c")
        if time.monotonic() - before < 0.9:
            break
        at.until_prompt()
    assert at.ended() == 130


def test_ctrl_c_at_the_prompt_gives_up_the_line_and_says_how_to_leave(chat: Chat, tmp_path: Path) -> None:
    at = chat()
    at.press("never sent")
    at.until("never sent")
    at.press("C-c")
    assert "once more" not in "\n".join(at.until_prompt())
    at.press("sent", "Enter")
    at.until("1: 'sent'")
    at.until_prompt()
    at.press("C-c")
    at.until("Ctrl-C once more leaves")
    at.until_prompt()
    time.sleep(1.1)  # whoever reads it first may take their time
    at.press("C-c")
    assert at.ended() == 130


@pytest.mark.parametrize("way", ["exit", "quit", "/quit", "/exit", "/q", "C-d"])
def test_there_are_ways_to_leave(way: str, chat: Chat, tmp_path: Path) -> None:
    at = chat("--model", "offline")
    at.press(*([way] if way == "C-d" else [way, "Enter"]))
    assert at.ended() == 0
    assert not list(tmp_path.glob(".co/evals/*"))


def test_an_unknown_command_never_goes_to_the_model(chat: Chat, tmp_path: Path) -> None:
    at = chat()
    at.press("/modle gpt-5", "Enter")
    shown = at.until("/help lists them")
    assert "there is no command /modle. Did you mean '/model'?" in shown
    assert not list(tmp_path.glob(".co/evals/*"))
    at.press(" /etc/hosts is a file", "Enter")
    at.until("1: '/etc/hosts is a file'")


def test_commands_are_completed_and_so_is_what_they_take(chat: Chat, tmp_path: Path) -> None:
    at = chat()
    at.press("/")
    assert "/undo" in (shown := at.until("take the last turn back")) and "/help" in shown
    at.press("wa")
    at.until("Wave to somebody. (of commands)")
    at.press("Tab")
    at.until("> /wave")
    at.press(" you", "Enter")
    at.until("> /wave you\n  waves to you")
    at.press("/model offl")
    at.until("   offline")
    at.press("Tab")
    at.until("> /model offline")
    at.press("Enter")
    at.until("from now on offline")


def test_tool_calls_are_shown_with_result_and_reason_and_so_is_what_plugins_change(chat: Chat, tmp_path: Path) -> None:
    at = chat()
    at.press("note", "Enter")
    shown = "\n".join(at.until_prompt())
    assert re.search(r"Let me see\.\n\n  ✓ note\(text=\"milk\"\) +\d+ms\n    noted +… 1 more line\n\n1: 'noted", shown)
    assert "2.4k tok · $0.0246" in shown
    at.press("forbidden", "Enter")
    shown = "\n".join(at.until_prompt())
    assert re.search(r"  ✗ forbidden\(\) +rejected\n    not in this house \(by guard\)\n", shown)
    (tmp_path / "hints").touch()
    at.press("hello", "Enter")
    assert "  + hint added a message: a hint" in "\n".join(at.until_prompt())


@pytest.mark.posix("shows nothing of what is typed while nothing reads it")
def test_what_runs_is_shown_and_what_is_typed_meanwhile_is_the_next_message(chat: Chat, tmp_path: Path) -> None:
    at = chat()
    at.press("pay", "Enter")
    shown = at.until("pay(amount=7)  ")
    assert re.search(r"^  [⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏] pay\(amount=7\) +\S+  1\.2k tok  \$0\.0123$", shown.split("\n")[-1])
    at.press("ahead", "Enter")
    (tmp_path / "paid").touch()
    at.until("2: 'ahead'")
    shown = "\n".join(at.until_prompt())
    assert "\n> ahead\n\n2: 'ahead'\n" in shown
    assert not re.search("[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏]", shown)


def test_sixty_columns_are_enough(chat: Chat, tmp_path: Path) -> None:
    at = chat(width=60)
    at.press("note", "Enter")
    at.until_prompt()
    at.press("a message that is longer than one line of this terminal, which is narrow", "Enter")
    at.until_prompt()
    at.press("/help", "Enter")
    at.until("Ctrl-C ends a turn, twice leaves")
    lines = at.until_prompt()
    assert max(map(len, lines)) <= 60
    assert all(line == line.rstrip() for line in lines)
    assert said(tmp_path)[-1] == "a message that is longer than one line of this terminal, which is narrow"


# -- decisions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "result"),
    [("approve", "'paid 7'"), ("reject too much", "'rejected: too much'"), ("answer I did it", "'I did it'")],
)
def test_what_waits_is_decided_right_there(answer: str, result: str, chat: Chat, tmp_path: Path) -> None:
    (tmp_path / "pauses").touch()
    (tmp_path / "paid").touch()
    at = chat()
    at.press("pay", "Enter")
    shown = at.until("to decide later:")
    assert "helper waits: needs a manager\n  pay\n  amount: 7\n" in shown and "skipped" not in shown
    at.press("perhaps", "Enter")
    at.until("that is none of them")
    at.until("to decide later:", times=2)
    at.press(answer, "Enter")
    shown = "\n".join(at.until_prompt())
    assert f"1: {result}" in shown
    assert len(said(tmp_path)) == 1
    at.press("go on", "Enter")
    at.until("2: 'go on'")


def test_a_decision_may_come_later_and_the_chat_goes_on_with_it(chat: Chat, tmp_path: Path) -> None:
    (tmp_path / "pauses").touch()
    (tmp_path / "paid").touch()
    at = chat()
    at.press("pay", "Enter")
    at.until("to decide later:")
    at.press("Enter")
    at.until("connectagent resume")
    at.until_prompt()
    at.press("C-d")
    assert at.ended() == 75
    again = chat("agent.py", "--continue", waits=False)
    again.until("to decide later:")
    again.press("y", "Enter")
    again.until("1: 'paid 7'")
    again.until_prompt()
    again.press("next", "Enter")
    again.until("2: 'next'")


def test_lines_typed_before_a_question_answer_nothing(chat: Chat, tmp_path: Path) -> None:
    (tmp_path / "careful.py").write_text(SCRIPT.replace("plugins=", "trust='careful', plugins=").replace(
        'on_text("Let me see.")', 'on_text("Let me see."); until("typed"); time.sleep(0.3)'
    ))  # fmt: skip
    at = chat("careful.py")
    at.press("note", "Enter")
    at.until("Let me see.")
    at.press("y", "Enter", "y", "Enter")
    (tmp_path / "typed").touch()
    at.until("[a]lways in this session:")
    assert not (tmp_path / "noted").exists()
    at.press("y", "Enter")
    shown = "\n".join(at.until_prompt())
    assert "in this session: y\n" in shown and "  ✓ note(" in shown
    assert (tmp_path / "noted").read_text() == "milk\n"


# -- history and sessions ------------------------------------------------------------------------


def test_history_lasts_over_runs_and_has_no_secrets(chat: Chat, tmp_path: Path) -> None:
    at = chat()
    secret = "sk-" + "proj-AbCdEfGhIjKlMnOpQrStUvWx0123456789abcd"
    at.press(f"my key is {secret}", "Enter")
    at.until_prompt()
    at.press(" secretly", "Enter")
    at.until_prompt()
    at.press("one", "M-Enter", "two", "Enter")
    at.until_prompt()
    at.press("C-d")
    assert at.ended() == 0
    file = tmp_path / ".local" / "state" / "connectagent" / "chat_history"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert secret not in file.read_text() and "secretly" not in file.read_text()
    again = chat()
    again.press("Up")
    again.until("> one\n  two")
    again.press("Up", "Up")
    assert "my key is [masked" in again.until("my key is [masked")
    again.press("C-c")
    again.until_prompt()
    again.press("Up", "Enter")
    again.until("1: 'one\\ntwo'")


def test_a_session_is_continued_and_its_end_is_shown(chat: Chat, tmp_path: Path) -> None:
    at = chat()
    at.press("hello", "Enter")
    at.until_prompt()
    at.press("C-d")
    assert at.ended() == 0
    again = chat("agent.py", "--continue")
    assert "\n> hello\n\n1: 'hello'\n\n" in again.text()
    again.press("and", "Enter")
    again.until("2: 'and'")


def test_a_turn_is_taken_back_and_taken_again(chat: Chat, tmp_path: Path) -> None:
    at = chat()
    at.press("/undo", "Enter")
    at.until("there is no turn to take back")
    for number, text in enumerate(("one", "two"), 1):
        at.press(text, "Enter")
        at.until(f"{number}: '{text}'")
        at.until_prompt()
    at.press("/undo", "Enter")
    at.until("turn 2 was taken back")
    at.until_prompt()
    at.press("C-d")
    assert at.ended() == 0
    again = chat("agent.py", "--continue")
    assert "> one" in again.text() and "two" not in again.text()
    again.press("three", "Enter")
    again.until("2: 'three'")
    again.until_prompt()
    again.press("/retry", "Enter")
    again.until("2: 'three'", times=2)
    again.until_prompt()
    assert said(tmp_path) == ["one", "two", "three", "three"]


def test_an_image_goes_with_the_next_message(chat: Chat, tmp_path: Path) -> None:
    data = b"\x89PNG\r\n\x1a\n" + b"\0" * 20
    (tmp_path / "a b.png").write_bytes(data)
    at = chat()
    at.press("/image nothing.png", "Enter")
    at.until("nothing.png is no image")
    at.until_prompt()
    at.press('/image "a b.png"', "Enter")
    at.until("a b.png goes with the next message")
    at.until("[1 image] >")
    at.press("what is it", "Enter")
    at.until_prompt()
    record = next(tmp_path.glob(".co/evals/*"))
    assert base64.b64encode(data).decode() in record.read_text()
    at.press("without", "Enter")
    at.until("2: 'without'")


def test_commands_tell_about_the_session(chat: Chat, tmp_path: Path) -> None:
    at = chat()
    at.press("/save out.md", "Enter")
    at.until("there is nothing to save before the first turn")
    at.press("hello", "Enter")
    at.until_prompt()
    at.press("/tools", "Enter", "/plugins", "Enter", "/cost", "Enter", "/model", "Enter", "/save out.md", "Enter")
    shown = at.until("saved as out.md")
    assert "  note       Note a text.\n" in shown
    assert re.search(r"  commands +register_chat_commands\n", shown)
    assert "  this session  1 turn, 1 model call, 1.2k tok, $0.0123\n" in shown
    assert "hello" in (tmp_path / "out.md").read_text()
    at.press("/save out.md", "Enter")
    at.until("out.md is there already")
    at.press("/view", "Enter")
    at.until("http://127.0.0.1:")
    at.until_prompt()
    at.press("/reset", "Enter", "again", "Enter")
    at.until("1: 'again'")
    at.until_prompt()
    assert len(list(tmp_path.glob(".co/evals/*"))) == 2


def test_what_a_command_of_a_plugin_does_is_the_plugins(chat: Chat, tmp_path: Path) -> None:
    at = chat()
    assert "plugin commands brings no command /reset: there is one already" in at.text()
    at.press("/broken", "Enter")
    at.until("ValueError: it is broken")
    at.press("hello", "Enter")
    at.until("1: 'hello'")
    at.press("/wave you", "Enter")
    at.until("waves to you")
    at.press("hello", "Enter")
    at.until("2: 'hello'")
    at.until_prompt()
    (record,) = (read_record(path) for path in tmp_path.glob(".co/evals/*"))
    (change,) = (entry for entry in record["turns"][1]["trace"] if entry["type"] == "state_delta")
    assert (change["by"]["plugin"], json.dumps(change["delta"])) == ("commands", '{"waved": "you"}')
