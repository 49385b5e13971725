"""An async tool of an agent inside is cancelled as the turn around it is stopped: no model reads that as an error."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from connectagent import Agent, LLMResponse, Parallel, ToolCall, around_tool
from connectagent.records.read import load_record


class Model:
    """A model that calls all tools, then answers; it notes what it reads of them."""

    model = "test"

    def __init__(self, read: list[str]) -> None:
        self.read = read

    def complete(self, messages: list[Any], tools: Any = None) -> LLMResponse:
        results = [str(message["content"]) for message in messages if message["role"] == "tool"]
        self.read += results
        if results:
            return LLMResponse("Done.")
        names = [tool["function"]["name"] for tool in tools]
        calls = [(name, {"prompt": "Go"} if name in ("x", "y") else {}) for name in names]
        return LLMResponse(None, [ToolCall(name, name, given) for name, given in calls])


@around_tool
def around() -> Any:
    yield


def _tree(kind: str, read: list[str], slow: Any) -> Agent:
    def made(name: str, *tools: Any, **options: Any) -> Agent:
        plugins = [around] if "around" in kind else []
        return Agent(name, list(tools), llm=Model(read), quiet=True, plugins=plugins, **options)

    inner = [made("x", slow, parallel_tools=4), made("y", slow)]
    if kind.startswith("asked"):
        return made("root", *inner, slow, parallel_tools=4)
    return Parallel("root", inner, quiet=True)


def _stopped(kind: str, how: str, read: list[str]) -> Agent:
    """A tree whose turn is stopped while an async tool runs in each of its agents."""
    running: list[Any] = []

    async def slow() -> str:
        """Work for long; the last that begins stops the turn."""
        running.append(None)
        if len(running) == (3 if kind.startswith("asked") else 2):
            os.kill(os.getpid(), signal.SIGINT) if how == "ctrl-c" else turn[0].cancel()
        await asyncio.sleep(30)
        return "never"

    root, turn = _tree(kind, read, slow), list[Any]()

    async def awaited() -> None:
        turn.append(asyncio.create_task(root.ainput("Go.")))
        await turn[0]

    with pytest.raises(KeyboardInterrupt if how == "ctrl-c" else asyncio.CancelledError):
        root.input("Go.") if how == "ctrl-c" else asyncio.run(awaited())
    return root


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("how", ["ctrl-c", "cancelled"])
@pytest.mark.parametrize("kind", ["asked", "asked around", "parallel", "parallel around"])
def test_what_is_cancelled_in_an_agent_inside_is_left_open(kind: str, how: str, co_dir: Path) -> None:
    read: list[str] = []
    root = _stopped(kind, how, read)
    assert read == []
    lines = [line for turn in load_record(str(root.record))["turns"] for line in turn["trace"]]
    ended = [line for line in lines if line.get("tool_name") == "slow"]
    assert {line["status"] for line in ended if line["type"] == "tool_execution"} == {"interrupted"}

    async def slow() -> str:
        """Work for long."""
        return "never"

    _tree(kind, read, slow).resume(root.record)
    assert [text for text in read if "in doubt" in text] and not [text for text in read if "cancelled" in text], read
