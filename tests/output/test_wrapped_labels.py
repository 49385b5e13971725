"""Text that needs no styles is laid out without Rich, exactly as Rich does it."""

from __future__ import annotations

import io
import os
import random
from typing import Any

import pytest

from connectagent.cli.log import tree
from connectagent.output import terminal
from connectagent.output.rows import Row
from connectagent.output.terminal import Terminal

CASES = int(os.environ.get("PROPERTY_CASES", 10_000)) // 50
LABELS = ("a", "bb", " ", "  ", "word", "x" * 7, "x" * 40, "\n", ",", "(", "      ", "-")
ROWS = ("a", "bb ", "  ", "\t", "\n", "é", "世", "😀", "\x07", "\x1b[1m", "two words", "x" * 70, "[red]", "e\u0301")


def some(pieces: tuple[str, ...], chance: random.Random, most: int) -> str:
    return "".join(chance.choices(pieces, k=chance.randrange(most)))


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")


def shown(things: list[Any], width: int) -> str:
    out = io.StringIO()
    Terminal(out, width).show(things)
    return out.getvalue()


@pytest.mark.parametrize("width", [20, 33, 80])
def test_a_label_of_several_lines_is_wrapped_as_rich_wraps_it(width: int) -> None:
    chance = random.Random(width)
    for _ in range(CASES):
        text = some(LABELS, chance, 100) + "\n" + some(LABELS, chance, 100)
        first, ahead = chance.choice([("", ""), ("|-- ", "|   "), ("|   |   `-- ", "|   |       ")])
        laid = tree._laid(tree.Node(((text, ""),), is_whole=True), first, ahead, Terminal(io.StringIO(), width))
        rich = [tree._Label([(text, "")], first, ahead)]
        assert shown([*laid], width) == shown(rich, width), repr(text)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_row_is_what_rich_prints(encoding: str) -> None:
    chance = random.Random(encoding)
    screen = Terminal(io.TextIOWrapper(io.BytesIO(), encoding=encoding), 60)
    console = terminal._rich(False, screen._encoding)
    for _ in range(CASES):
        parts = tuple((some(ROWS, chance, 20), chance.choice(["", "bold"])) for _ in range(chance.randrange(1, 4)))
        row = Row(chance.choice([0, 4]), parts, some(ROWS, chance, 5), wrap=chance.random() < 0.5)
        with console.capture() as capture:
            for line in screen._laid(row, 60):
                console.print(line, width=60, soft_wrap=True)
        wanted = "".join(f"{line.rstrip(' ')}\n" for line in capture.get().split("\n")[:-1])
        assert screen.drawn([row]) == screen._encodable(wanted), row
