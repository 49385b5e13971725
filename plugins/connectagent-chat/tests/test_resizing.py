"""A terminal that is made wider and narrower while a chat draws on it."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from terminals import Tmux, terminal

TEXT = """# A title

A paragraph that is much longer than the narrowest terminal here, with **bold words** and `code` in the middle of it,
and which goes on until it needs a second line in the widest one too, since there lines are no longer than 100 cells.

- an item that is also too long for sixty columns, with *emphasis* near its end
- a short one
  1. an inner one that is as long as the others, so that it is broken somewhere

```python
def answer(question: str) -> str:
    return "a line of code that is wider than sixty columns: " + question
```

> a quotation of a sentence that goes on for some more words than sixty columns can have

The end of it.
"""
SCRIPT = f'''
import os, time
from pathlib import Path
from connectagent import Agent, LLMResponse
from connectagent_chat import markdown
from connectagent.testing import call

markdown._SHARE = 0  # each piece is drawn at once
TEXT = {TEXT!r}

def until(name):
    """Wait for the test, and tell it how wide the terminal is."""
    while not Path(name).exists():
        Path("width.new").write_text(str(os.get_terminal_size(2).columns))
        os.replace("width.new", "width")
        time.sleep(0.01)

def look(there: str) -> str:
    """Look for something."""
    until("seen")
    return "nothing"

class Model:
    model = "model"

    def stream(self, messages, tools=None, *, on_text):
        if messages[-1]["content"] == "look":
            return LLMResponse("", [call("look", there="x" * 40)])
        if messages[-1]["role"] == "tool":
            return LLMResponse("Nothing is there.")
        for number, start in enumerate(range(0, len(TEXT), 90)):
            on_text(TEXT[start : start + 90])
            Path(f"drawn{{number}}").touch()
            until(f"step{{number}}")
        return LLMResponse(TEXT)

    def complete(self, messages, tools=None):
        return self.stream(messages, tools, on_text=lambda text: None)

agent = Agent("helper", [look], llm=Model())
'''
STEPS = -(-len(TEXT) // 90)
SEEDS = range(1, 1 + int(os.environ.get("CONNECTAGENT_RESIZES", "1")))


@pytest.fixture
def chat(tmp_path: Path, ctrl_c: None) -> Iterator[Tmux]:
    (tmp_path / "agent.py").write_text(SCRIPT)
    with terminal("tmux", tmp_path, "chat", "agent.py", width=120, NO_COLOR="1") as shown:
        assert isinstance(shown, Tmux)
        shown.until_prompt()
        yield shown


def until(is_so: Callable[[], bool]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < end, "it does not come to be so"
        time.sleep(0.02)


def resize(at: Tmux, folder: Path, width: int) -> None:
    """Resize the terminal, and wait until the program knows: what it draws before is for the old width."""
    at.resize(width)
    until(lambda: (folder / "width").exists() and (folder / "width").read_text() == str(width))


def answer(lines: list[str]) -> str:
    """What is shown between the message and the sums of the turn, without spaces: lines are broken differently."""
    text = "\n".join(lines)
    return "".join(text[text.index("> ") + 2 : text.rindex(">")].rsplit("\n\n  ", 1)[0].split())


@pytest.mark.parametrize("seed", SEEDS)
def test_an_answer_is_there_once_and_whole_however_the_terminal_is_resized(
    seed: int, chat: Tmux, tmp_path: Path
) -> None:
    sizes = random.Random(seed)
    chat.press("go", "Enter")
    for number in range(STEPS):
        until((tmp_path / f"drawn{number}").exists)
        resize(chat, tmp_path, sizes.choice((60, 61, 70, 80, 100, 130, 200)))
        (tmp_path / f"step{number}").touch()
    shown = chat.until_prompt()
    plain = TEXT.replace("**", "").replace("`", "").replace("*", "").replace("- ", "•").replace("> a", "▌ a")
    plain = plain.replace("# ", "").replace("1. ", "1 ").replace("python", "")
    assert answer(shown).replace("▌", "") == "go" + "".join(plain.replace("▌", "").split())


def test_the_line_of_what_runs_is_taken_off_a_terminal_that_was_made_narrower(chat: Tmux, tmp_path: Path) -> None:
    chat.press("look", "Enter")
    chat.until("xxxx")
    for width in (100, 60, 90, 60):
        resize(chat, tmp_path, width)
        time.sleep(0.3)  # the line is drawn again
        assert chat.text().count('look(there="') == 1
    (tmp_path / "seen").touch()
    shown = "\n".join(chat.until_prompt())
    assert shown.count('look(there="') == 1 and "Nothing is there." in shown
