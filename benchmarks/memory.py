"""What the plugin memory costs: searching 10,000 sessions, and a turn of a session that grows.

    PYTHONPATH=plugins/connectagent-memory python benchmarks/memory.py [sessions]

Each session has three turns of six messages about made-up subjects, drawn so that some words are in most messages and
most words in few, as in languages. The project holds itself to 50 ms for one search.
"""

from __future__ import annotations

import itertools
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from connectagent_memory import Memory, Remembered, SqliteStore

from connectagent import Agent, LLMResponse

MESSAGES, WORDS, VOCABULARY, BATCH = 6, 40, 50_000, 500


def filled(path: Path, sessions: int) -> tuple[SqliteStore, list[str]]:
    """A store of so many sessions, and its words, the frequent ones first."""
    chance = random.Random(7)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = list({"".join(chance.choices(letters, k=chance.randint(4, 10))) for _ in range(VOCABULARY)})
    weights = list(itertools.accumulate(1 / (rank + 10) for rank in range(len(words))))
    store = SqliteStore(path)
    for first in range(0, sessions, BATCH):
        batch = []
        for number in range(first, min(first + BATCH, sessions)):
            texts = [" ".join(chance.choices(words, cum_weights=weights, k=WORDS)) for _ in range(MESSAGES)]
            batch += [Remembered(f"s{number}", n, "user", text, 0.0) for n, text in enumerate(texts)]
        store.add("u", "a", batch)
    return store, words


def median_ms(function: Callable[[], Any], times: int = 20) -> str:
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        function()
        taken.append((time.perf_counter() - started) * 1000)
    return f"median {statistics.median(taken):.2f} ms, longest {max(taken):.2f} ms"


class Instant:
    model = "instant"

    def complete(self, messages: Any, tools: Any = None) -> LLMResponse:
        return LLMResponse("the answer to " + messages[-1]["content"])


def main(sessions: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        store, words = filled(Path(folder, "memory.sqlite"), sessions)
        seconds = time.perf_counter() - started
        size = Path(folder, "memory.sqlite").stat().st_size / 1e6
        print(f"{sessions} sessions of {MESSAGES} messages: added in {seconds:.1f} s, {size:.0f} MB")
        queries = {
            "one rare word": words[30_000],
            "three rare words": " ".join(words[20_000:20_003]),
            "the most frequent word": words[0],
            "a sentence: 4 frequent and 8 rare words": " ".join(words[:4] + words[9_000:9_008]),
            "the 40 most frequent words": " ".join(words[:40]),
            "no word that is there": "zzzzzzzzzzzz",
        }
        for what, query in queries.items():
            print(f"search, {what}: {median_ms(lambda query=query: store.search('u', 'a', query, 5))}")
        agent = Agent("a", llm=Instant(), plugins=[Memory(store, "u")], log=False, quiet=True)
        for turn in (1, 500):
            while agent.current_session is None or agent.current_session["turn"] < turn:
                agent.input(words[turn])
            print(f"a turn that is remembered, from turn {turn} on: {median_ms(lambda: agent.input(words[7]))}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
