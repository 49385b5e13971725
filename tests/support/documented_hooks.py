"""The hooks as the page on hooks lists them: who writes a handler knows no others."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "hooks.md").read_text("utf-8")


def hooks_under(heading: str) -> tuple[str, ...]:
    """The hooks of one part of the page, in its order."""
    part = re.split(rf"^## {heading}.*$", PAGE, maxsplit=1, flags=re.MULTILINE)[1]
    part = re.split(r"^## ", part, maxsplit=1, flags=re.MULTILINE)[0]
    return tuple(re.findall(r"^### `(\w+)\(", part, re.MULTILINE))


EVENTS = hooks_under("The nine events")
AROUND = hooks_under("Around an operation")
PARAMETERS = {
    name: tuple(re.findall(r"\w+", given)) for name, given in re.findall(r"^### `(\w+)\((.*)\)`$", PAGE, re.MULTILINE)
}
