"""How much memory commands take for long records."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from connectagent import Agent
from connectagent.cli import main
from connectagent.testing import ScriptedLLM, call

MEGABYTES = 8


def fetch(page: int) -> list[Any]:
    """Fetch a page."""
    return [{"page": page, "row": row, "text": "the quick brown fox"} for row in range(60)]


@pytest.fixture
def long_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A record whose one turn of 20 model calls is written again and again, with numbers of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)
    llm = ScriptedLLM(*([call("fetch", page=page)] for page in range(20)), "Done.")
    with Agent("long", tools=[fetch], llm=llm, max_iterations=50, quiet=True) as agent:
        agent.input("Read all pages.")
    path = agent.record
    assert path is not None
    head, item = path.read_text("utf-8").split("- turn: 1\n")
    turns = MEGABYTES * 1_000_000 // len(item)
    items = (f"- turn: {turn}\n" + item.replace("T1/", f"T{turn}/") for turn in range(1, turns + 1))
    path.write_text(head + "".join(items), "utf-8")
    return path


@pytest.mark.parametrize(
    ("command", "share"),
    [
        *(("log summary", 0.3), ("log tail", 0.3), ("log stats", 1.2), ("log grep nothing", 1.2)),
        *(("log export", 1.2), ("log export --to html", 2.0), ("log show --full", 1.2), ("log request", 1.6)),
        ("log export --to jsonl", 1.4),
    ],
)
def test_a_command_takes_less_memory_than_the_record_is_long(command: str, share: float, long_record: Path) -> None:
    name, *more = command.split(" ", 1)[1].split()
    of_all = name in ("stats", "grep")
    arguments = ["log", name, *more, *([] if of_all else [str(long_record)])]
    if name == "export":
        arguments += ["-o", str(long_record.with_suffix(".out"))]
    main(["log", "list"])  # imports what commands need
    tracemalloc.start()
    code = main(arguments)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert code == (1 if name == "grep" else 0)
    assert peak < share * long_record.stat().st_size
