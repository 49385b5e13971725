"""What the tutorial for plugin authors does, step by step."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

TUTORIAL = Path(__file__).parents[2] / "plugins" / "README.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"[Ii]n\s+`([^`]+\.(?:py|toml))`:\s*\Z")


class Step(NamedTuple):
    """A file to be written, or a command and what it prints."""

    line: int
    path: str
    text: str


def steps() -> list[Step]:
    """What the tutorial does, in its order: `sh` blocks are shown only."""
    text, found = TUTORIAL.read_text("utf-8"), []
    for block in BLOCK.finditer(text):
        line, kind, body = text[: block.start()].count("\n") + 1, block[1], block[2]
        if kind in ("python", "toml"):
            named = NAMED.search(text[: block.start()])
            assert named, f"line {line}: which file is this block? End the text before it with: In `name.py`:"
            found.append(Step(line, named[1], body))
        elif kind == "console":
            for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
                found.append(Step(line, "", part))
    return found
