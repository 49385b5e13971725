"""Threads that tools and handlers leave behind change the messages at any moment: each request is valid all the same.

`CONNECTAGENT_STORMS` says how many conversations are tried.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from told import assert_told

from connectagent import (
    Agent,
    HookResultError,
    LLMResponse,
    ToolCall,
    after_each_tool,
    after_tools,
    before_each_tool,
    before_llm,
)
from connectagent.session.messages import message_problem
from connectagent.testing import conversation_problems as problems

STORMS = int(os.environ.get("CONNECTAGENT_STORMS", "60"))


@pytest.fixture(autouse=True)
def threads_take_turns_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


class Storm:
    """Threads that change the messages of a session, each a few times, at moments that chance chooses."""

    def __init__(self, chance: random.Random, changes: list[Change]) -> None:
        self.chance, self.changes = chance, changes
        self.threads: list[threading.Thread] = []
        self.over = False

    def begin(self, agent: Agent) -> None:
        if len(self.threads) < 6:
            seed = self.chance.random()
            thread = threading.Thread(target=self._work, args=(agent.session["messages"], random.Random(seed)))
            thread.daemon = True
            self.threads.append(thread)
            thread.start()

    def end(self) -> None:
        self.over = True
        for thread in self.threads:
            thread.join(10)

    def _work(self, messages: list[Any], chance: random.Random) -> None:
        for _ in range(chance.randrange(1, 30)):
            if self.over:
                return
            with contextlib.suppress(LookupError, ValueError, AttributeError, TypeError, RuntimeError):
                chance.choice(self.changes)(messages, chance)
            if chance.random() < 0.5:
                time.sleep(chance.random() * 0.0006)


def _append(messages: list[Any], chance: random.Random) -> None:
    messages.append({"role": "user", "content": "(from a thread)"})


def _insert(messages: list[Any], chance: random.Random) -> None:
    messages.insert(chance.randrange(len(messages) + 1), {"role": "user", "content": "(from a thread)"})


def _delete(messages: list[Any], chance: random.Random) -> None:
    del messages[chance.randrange(len(messages))]


def _take_calls(messages: list[Any], chance: random.Random) -> None:
    del messages[chance.randrange(len(messages))]["tool_calls"]


def _take_one_call(messages: list[Any], chance: random.Random) -> None:
    messages[chance.randrange(len(messages))]["tool_calls"].pop()


def _rename(messages: list[Any], chance: random.Random) -> None:
    messages[chance.randrange(len(messages))]["tool_call_id"] += "x"


def _swap(messages: list[Any], chance: random.Random) -> None:
    one = messages.pop()
    messages.insert(chance.randrange(len(messages) + 1), one)


def _edit(messages: list[Any], chance: random.Random) -> None:
    messages[chance.randrange(len(messages))]["content"] = "(edited by a thread)"


def _spoil(messages: list[Any], chance: random.Random) -> None:
    messages[chance.randrange(len(messages))]["content"] = 7


def _unroll(messages: list[Any], chance: random.Random) -> None:
    messages[chance.randrange(len(messages))].pop("role")


def _no_message(messages: list[Any], chance: random.Random) -> None:
    messages.append(7)


Change = Callable[[list[Any], random.Random], None]
CHANGES: list[Change] = [_append, _insert, _delete, _rename, _swap, _edit]
SPOILING: list[Change] = [_take_calls, _take_one_call, _spoil, _unroll, _no_message]
"""What leaves no message: a handler that does so ends its turn, and so does a thread while a handler runs."""


class Model:
    """Reads a request slowly, message by message, as an adapter does, and looks whether a provider would take it."""

    model, provider = "storm", None

    def __init__(self, chance: random.Random, rounds: int) -> None:
        self.chance, self.rounds = chance, rounds
        self.found: list[str] = []

    def complete(self, messages: list[Any], tools: Any = None, **more: Any) -> LLMResponse:
        read: list[Any] = []
        for message in messages:
            if self.chance.random() < 0.2:
                time.sleep(0.0002)
            read.append(dict(message) if isinstance(message, dict) else message)
        self.found += [problem for one in read if (problem := message_problem(one))]
        if not self.found:
            self.found += problems(read)
        if not read:
            self.found.append("it is empty")
        self.rounds -= 1
        if self.rounds < 0:
            return LLMResponse("Done.")
        calls = [ToolCall(f"call_{self.rounds}_{n}", "work", {"x": n}) for n in range(self.chance.randrange(1, 4))]
        return LLMResponse(None, calls)


def _copy(function: Any) -> Any:
    """The same function anew, since one function is for one hook."""
    return type(function)(function.__code__, globals(), function.__name__, None, function.__closure__)


def awaited(agent: Agent, prompt: str) -> None:
    asyncio.run(agent.ainput(prompt))


def streamed(agent: Agent, prompt: str) -> None:
    for _ in agent.stream(prompt):
        pass


def storm(seed: int, spoiling: bool = False, way: str = "input", **more: Any) -> list[str]:
    """One conversation of three turns; what was wrong with its requests."""
    chance = random.Random(seed)
    weather = Storm(chance, [*CHANGES, *CHANGES, *SPOILING] if spoiling else CHANGES)
    model = Model(chance, chance.randrange(1, 4))

    def work(agent: Agent, x: int) -> str:
        """Work."""
        if chance.random() < 0.6:
            weather.begin(agent)
        return "worked"

    def begins(agent: Agent) -> None:
        if chance.random() < 0.3:
            weather.begin(agent)

    hooks: list[Any] = [before_llm, before_each_tool, after_each_tool, after_tools]
    handlers = [hook(_copy(begins)) for hook in hooks]
    agent = Agent("stormy", [work], llm=model, on_events=handlers, quiet=True, **{"log": False, **more})
    ways: dict[str, Any] = {
        "input": agent.input,
        "awaited": partial(awaited, agent),
        "streamed": partial(streamed, agent),
    }
    take = ways[way]
    try:
        for _ in range(2):
            with contextlib.suppress(*[HookResultError] if spoiling else []):
                take("Go")
            model.rounds = chance.randrange(0, 3)
    finally:
        weather.end()
    with contextlib.suppress(*[HookResultError] if spoiling else []):
        agent.input("And now in peace.")
    agent.input("And once more.")
    return model.found


@pytest.mark.parametrize("spoiling", [False, True])
def test_each_request_is_one_that_a_provider_takes(spoiling: bool) -> None:
    for seed in range(STORMS):
        assert storm(seed, spoiling) == [], f"storm {seed}"


@pytest.mark.parametrize("parallel", [1, 3])
@pytest.mark.parametrize("way", ["input", "awaited", "streamed"])
def test_so_it_is_however_a_turn_is_taken(way: str, parallel: Any) -> None:
    for seed in range(STORMS, STORMS + STORMS // 5):
        assert storm(seed, way=way, parallel_tools=parallel) == [], f"storm {seed}"


def test_the_record_tells_what_was_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(2 * STORMS, 2 * STORMS + STORMS // 20):
        monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path / str(seed)))
        assert storm(seed, log=None) == [], f"storm {seed}"
        (path,) = (tmp_path / str(seed) / "evals").glob("*.yaml")
        assert assert_told(path) >= 3, f"storm {seed}"
