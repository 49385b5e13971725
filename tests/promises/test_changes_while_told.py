"""A thread changes the messages at each moment at which the loop looks for changes: the record tells each request.

What chance finds in thousands of storms (test_thread_storms) is tried here at one moment after the other.
`CONNECTAGENT_MOMENTS=all` takes each change at each of them.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from message_changes import CHANGES, SPOILING, Change, append, delete, edit, swap
from recorded_requests import assert_told

from connectagent import (
    Agent,
    Continue,
    HookResultError,
    LLMRequest,
    LLMResponse,
    Pause,
    Paused,
    Retry,
    ToolCall,
    after_tools,
    before_each_tool,
    before_llm,
    on_complete,
    on_error,
)
from connectagent.records.read import read_record
from connectagent.session.messages import message_problem
from connectagent.session.snapshot import Snapshot

MOMENTS = os.environ.get("CONNECTAGENT_MOMENTS", "4")
ALL = [*CHANGES, *SPOILING]
STOPPED = (HookResultError, RuntimeError, KeyboardInterrupt, Paused)
"""What ends some of the turns below."""


@pytest.fixture(autouse=True)
def another_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The loop looks for changes only while there are others who could make them."""
    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path))
    over = threading.Event()
    thread = threading.Thread(target=over.wait, daemon=True)
    thread.start()
    yield
    over.set()
    thread.join(10)


class Changer:
    """Changes an agent's messages when the loop looks for changes, as a thread may have done just before.

    Args:
        agent: the agent.
        change: what is done.
        first: the number of the look before which it is done first.
        times: before how many looks in a row it is done.

    Attributes:
        looks: how often the loop has looked.
    """

    def __init__(self, agent: Agent, change: Change, first: int, times: int) -> None:
        self.looks = 0
        self._change, self._moments = change, range(first, first + times)
        self._agent, self._boundary = agent, agent.boundary
        self._look = agent.boundary.settle
        agent.boundary.settle = self.look  # type: ignore[method-assign]

    def look(self) -> None:
        if not self._boundary._straying:
            if self.looks in self._moments:
                with contextlib.suppress(LookupError, ValueError, AttributeError, TypeError):
                    self._change(self._agent.session["messages"], random.Random(self.looks))
            self.looks += 1
        self._look()


class Model:
    """Asks for two calls and answers, by turns."""

    model, provider = "script", None
    asked = 0

    def complete(self, messages: list[Any], tools: Any = None, **more: Any) -> LLMResponse:
        self.asked += 1
        if self.asked % 2 == 0:
            return LLMResponse("Done.")
        return LLMResponse(None, [ToolCall(f"call_{self.asked}_{n}", "work", {"x": n}) for n in (1, 2)])


def worker(*errors: type[BaseException]) -> Callable[[int], str]:
    """A tool that fails once with each of these errors."""
    left = list(errors)

    def work(x: int) -> str:
        """Work."""
        if left:
            raise left.pop()
        return "worked"

    return work


@on_error
def tries_again(attempt: int) -> Retry:
    return Retry()


@on_error
def recovers(attempt: int) -> str:
    return "recovered"


@before_llm
def adds_one(request: LLMRequest) -> None:
    request.messages = [*request.messages, {"role": "user", "content": "Be brief."}]


@on_complete
def goes_on(agent: Agent) -> Continue | None:
    return Continue("Once more.") if agent.session["iteration"] < 4 else None


@after_tools
def raises(agent: Agent) -> None:
    raise RuntimeError("no")


@before_each_tool
def raises_at_the_second(tool_call: ToolCall) -> None:
    if tool_call.arguments["x"] == 2:
        raise RuntimeError("no")


@before_each_tool
def waits_at_the_second(tool_call: ToolCall) -> None:
    if tool_call.arguments["x"] == 2:
        raise Pause("May it?")


CONVERSATIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": lambda: {"tools": [worker()]},
    "a system prompt that is filled": lambda: {"tools": [worker()], "system_prompt": "Turn {n}", "state": {"n": 0}},
    "retried": lambda: {"tools": [worker(OSError, OSError)], "on_events": [tries_again]},
    "recovered": lambda: {"tools": [worker(OSError)], "on_events": [recovers]},
    "continued": lambda: {"tools": [worker()], "on_events": [goes_on]},
    "asked with other messages": lambda: {"tools": [worker()], "on_events": [adds_one]},
    "failed behind its tools": lambda: {"tools": [worker()], "on_events": [raises]},
    "failed before a tool": lambda: {"tools": [worker()], "on_events": [raises_at_the_second]},
    "interrupted": lambda: {"tools": [worker(KeyboardInterrupt)]},
    "interrupted together": lambda: {"tools": [worker(KeyboardInterrupt)], "parallel_tools": 2},
    "waiting": lambda: {"tools": [worker()], "on_events": [waits_at_the_second]},
    "waiting together": lambda: {"tools": [worker()], "on_events": [waits_at_the_second], "parallel_tools": 2},
}


def converse(conversation: str, change: Change, first: int, times: int) -> tuple[Path, bool]:
    """Take three turns; the record, and whether there was such a moment."""
    agent = Agent("changed", llm=Model(), quiet=True, **CONVERSATIONS[conversation]())
    changer = Changer(agent, change, first, times)
    for number in range(3):
        if number:
            agent.session["state"]["n"] = number
        with contextlib.suppress(*STOPPED):
            agent.input("Go")
    assert agent.record is not None
    return Path(agent.record), changer.looks > first


def assert_messages(path: Path) -> None:
    """Check that each message in a record is one."""
    for turn in read_record(path)["turns"]:
        for entry in turn["lines"]:
            if entry["type"] == "user_input":
                assert entry.get("content", entry["prompt"]) in ("Go", "Once more."), entry
            elif "message" in entry:
                assert message_problem(entry["message"]) is None, entry


def assert_all_told(conversation: str, change: Change, first: int, times: int) -> bool:
    """Check the record of a conversation; whether there was such a moment."""
    path, there_was = converse(conversation, change, first, times)
    assert_told(path)
    assert_messages(path)
    return there_was


def moments(conversation: str) -> Iterator[tuple[Change, int, int]]:
    """Changes, each with the number of a moment and how often in a row it is made."""
    chance = random.Random(conversation)
    if MOMENTS != "all":
        for _ in range(int(MOMENTS)):
            yield chance.choice(ALL), chance.randrange(30), chance.choice((1, 6))
        return
    for change, times in product(ALL, (1, 6)):
        yield from ((change, first, times) for first in range(90))


@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_the_record_tells_what_was_sent_at_whatever_moment_threads_change_it(conversation: str) -> None:
    last: dict[tuple[str, int], int] = {}
    for change, first, times in moments(conversation):
        if first > last.get((change.__name__, times), first):
            continue
        if not assert_all_told(conversation, change, first, times):
            last[change.__name__, times] = first


@pytest.mark.parametrize(
    ("conversation", "change", "first", "times"),
    [
        ("plain", edit, 1, 1),  # behind the user's message, before its entry
        ("plain", append, 0, 6),  # in the mending of messages that goes on
        ("a system prompt that is filled", append, 28, 1),
        ("retried", swap, 16, 1),  # behind the result of another attempt, before its entry
        ("recovered", delete, 10, 1),
        ("failed behind its tools", append, 12, 1),
        ("failed before a tool", delete, 6, 6),  # behind the result of a call that was not run
        ("interrupted", append, 12, 1),
        ("interrupted together", append, 16, 1),
        ("waiting together", append, 8, 6),
    ],
)
def test_so_it_does_where_it_did_not(conversation: str, change: Change, first: int, times: int) -> None:
    assert assert_all_told(conversation, change, first, times), "there is no such moment any more"


def test_the_entry_of_a_users_message_has_it_as_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    insert = Snapshot.insert

    def insert_and_spoil(self: Snapshot, message: Any, index: int | None = None) -> None:
        insert(self, message, index)
        if message["role"] == "user":
            message["content"] = 7

    monkeypatch.setattr(Snapshot, "insert", insert_and_spoil)
    agent = Agent("spoilt", llm=Model(), tools=[worker()], quiet=True)
    agent.input("Go")
    assert agent.session["messages"][0] == {"role": "user", "content": "Go"}
    assert agent.record is not None
    assert assert_told(Path(agent.record)) == 2
    assert_messages(Path(agent.record))
