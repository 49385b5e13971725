"""The tables of SECURITY.md, which tests hold cell by cell."""

from __future__ import annotations

from pathlib import Path

TEXT = (Path(__file__).parents[2] / "SECURITY.md").read_text(encoding="utf-8")


def table(name: str) -> dict[str, dict[str, str]]:
    """The cells of a table by row and column; the first column names the row."""
    lines = TEXT.split(f"<!-- {name} -->\n")[1].split(f"<!-- end of {name} -->")[0].splitlines()
    rows = [[cell.replace("`", "").strip() for cell in line.strip("|").split("|")] for line in lines]
    head, _, *body = rows
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in body}
