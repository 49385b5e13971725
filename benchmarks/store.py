"""A turn whose session is in an SQLite store too, beside one with its file alone.

    python benchmarks/store.py [turns] [rounds]

The model answers at once: three calls, and two tool calls. The ways take turns, so that each meets the same disk; with
`fsync=1` the file is on the disk as surely as the store. Prints ms of a turn and of CPU, medians of the rounds, and the
ratio to the file alone: one turn after the other, and 16 at once by `agent.map()`.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from connectagent import Agent, LLMResponse, SqliteStore, ToolCall

WAYS = ("file", "file, fsync=1", "file and store")


def lookup(what: str) -> str:
    """Look up a fact."""
    return "a fact about " + what


class Model:
    """Asks for two tool calls, one after the other, and answers."""

    model = "at-once"

    def complete(self, messages: list[Any], tools: Any = None) -> LLMResponse:
        done = sum(message["role"] == "tool" for message in messages)
        if done < 2:
            return LLMResponse(None, [ToolCall(f"c{done}", "lookup", {"what": f"kettle {done}"})])
        return LLMResponse("done")


def taken(way: str, turns: int, at_once: int) -> tuple[float, float]:
    """Ms of a turn, and of its CPU."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        os.environ["CONNECTAGENT_DIR"] = str(Path(folder, "co").absolute())
        os.environ["CONNECTAGENT_FSYNC"] = "1" if "fsync" in way else "0"
        store = SqliteStore(Path(folder, "sessions.db")) if "store" in way else None
        agent = Agent("bench", [lookup], llm=Model(), quiet=True)
        since, cpu = time.perf_counter(), time.process_time()
        items = list(agent.map([f"prompt {number}" for number in range(turns)], at_once, run="r", store=store))
        took = (time.perf_counter() - since) / turns * 1000, (time.process_time() - cpu) / turns * 1000
        assert {item.result for item in items} == {"done"}
        if store is not None:
            store.close()
    return took


def main() -> None:
    turns, rounds = (int(value) for value in (*sys.argv[1:], *("200", "5")[len(sys.argv) - 1 :]))
    for at_once in (1, 16):
        found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
        taken("file", 20, at_once)  # imports
        for _ in range(rounds):
            for way in WAYS:
                found[way].append(taken(way, turns, at_once))
        for way, all_ in found.items():
            ratios = [one[0] / plain[0] for one, plain in zip(all_, found["file"], strict=True)]
            ms, cpu = (statistics.median(one[which] for one in all_) for which in (0, 1))
            print(f"{at_once:>3} at once  {way:16} {ms:7.2f} ms  {cpu:6.2f} ms CPU  x{statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
