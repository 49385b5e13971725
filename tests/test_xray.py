"""`xray` lets a tool see the agent that runs it, and shows calls and histories on the terminal."""

from __future__ import annotations

import asyncio
import inspect
import re
import threading
from typing import Any

import pytest

from connectagent import Agent, ToolRejected, before_each_tool, tool, xray
from connectagent.testing import ScriptedLLM, call
from connectagent.tools import Tool

HOSTILE = "[red]x[/red] \x1b[31m \x9b2J \u202e \ud800 \x00"


def make(*responses: Any, tools: Any, name: str = "helper", **options: Any) -> Agent:
    return Agent(name, tools=tools, llm=ScriptedLLM(*responses), log=False, quiet=True, **options)


def test_a_tool_sees_the_agent_that_runs_it() -> None:
    seen: dict[str, Any] = {}

    def look(query: str) -> str:
        """Look."""
        seen.update(
            agent=xray.agent,
            task=xray.task,
            user_prompt=xray.user_prompt,
            messages=xray.messages,
            iteration=xray.iteration,
            previous_tools=xray.previous_tools,
        )
        return "seen"

    agent = make([call("look", query="a")], [call("look", query="b"), call("look", query="c")], "done", tools=look)
    agent.input("Find it")
    assert seen["agent"] is agent
    assert agent.current_session is not None
    assert seen["messages"] is agent.current_session["messages"]
    assert (seen["task"], seen["user_prompt"], seen["iteration"]) == ("Find it", "Find it", 2)
    assert seen["previous_tools"] == ["look", "look"]


def test_previous_tools_are_those_that_ran_in_this_turn() -> None:
    seen: list[list[str]] = []

    def look() -> str:
        """Look."""
        seen.append(xray.previous_tools)
        return "seen"

    def fail() -> str:
        """Fail."""
        raise ValueError("no")

    def secret() -> str:
        """Be rejected."""
        return "never"

    @before_each_tool
    def gate(tool_call: Any) -> None:
        if tool_call.name == "secret":
            raise ToolRejected("no")

    calls = [call("fail"), call("secret"), call("unknown"), call("look")]
    agent = make(calls, "one", [call("look")], "two", tools=[look, fail, secret], plugins=[gate])
    agent.input("first")
    agent.input("second")
    assert seen == [["fail"], []]


def test_outside_a_tool_there_is_nothing_to_see(capsys: pytest.CaptureFixture[str]) -> None:
    assert xray.agent is None
    assert (xray.task, xray.user_prompt, xray.messages, xray.iteration, xray.previous_tools) == ("", "", [], 0, [])
    xray.trace()
    assert "no tool is running here" in capsys.readouterr().err
    assert "no tool runs" in repr(xray)


def test_the_context_is_gone_after_a_tool_that_raises_or_is_interrupted() -> None:
    def fail() -> str:
        """Fail."""
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make([call("fail")], tools=fail).input("x")
    assert xray.agent is None


def test_a_nested_agent_has_its_own_context_and_the_outer_one_is_back_afterwards() -> None:
    seen: list[str] = []

    def look() -> str:
        """Look."""
        seen.append(f"{xray.agent.name}: {xray.task}")
        return "seen"

    inner = make([call("look")], "done", tools=look, name="inner")

    def delegate() -> str:
        """Delegate."""
        seen.append(f"{xray.agent.name}: {xray.task}")
        result = inner.input("inner task")
        seen.append(f"{xray.agent.name}: {xray.task}")
        return result

    make([call("delegate")], "done", tools=delegate, name="outer").input("outer task")
    assert seen == ["outer: outer task", "inner: inner task", "outer: outer task"]


def test_threads_have_their_own_contexts() -> None:
    together, seen = threading.Barrier(3), set()

    def look() -> str:
        """Look."""
        together.wait(10)
        seen.add((xray.agent.name, xray.task))
        together.wait(10)
        return "seen"

    agents = [make([call("look")], "done", tools=look, name=f"agent{number}") for number in range(3)]
    threads = [threading.Thread(target=agent.input, args=(f"task of {agent.name}",)) for agent in agents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {(f"agent{number}", f"task of agent{number}") for number in range(3)}


@pytest.mark.filterwarnings("ignore:.*blocks the event loop:RuntimeWarning")
def test_async_tools_see_it_too_also_while_an_event_loop_runs() -> None:
    seen: list[str] = []

    async def look() -> str:
        """Look."""
        await asyncio.sleep(0)
        seen.append(xray.agent.name)
        return "seen"

    async def main() -> None:
        make([call("look")], "done", tools=look).input("x")

    make([call("look")], "done", tools=look).input("x")
    asyncio.run(main())
    assert seen == ["helper", "helper"]


def test_trace_prints_the_history_and_the_call_that_runs(capsys: pytest.CaptureFixture[str]) -> None:
    def search(query: str) -> str:
        """Search."""
        return f"found {HOSTILE}"

    def look() -> str:
        """Look."""
        xray.trace()
        return "seen"

    agent = make([call("search", query=HOSTILE)], [call("look")], "done", tools=[search, look])
    agent.input(f"Find {HOSTILE}")
    text = capsys.readouterr().err
    wanted = [
        "xray · helper",
        "1 · Find [red]x[/red]",
        "1 scripted",
        "✓ search(",
        "found [red]",
        "2 scripted",
        "… look()",
    ]
    assert [line for line, part in zip(text.splitlines(), wanted, strict=True) if part not in line] == []
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]", text)


def test_the_decorator_shows_the_call_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    @xray
    def search(query: str, limit: int = 3) -> list[str]:
        """Search the docs."""
        return [query] * limit

    make([call("search", query="retry")], "done", tools=search).input("x")
    lines = capsys.readouterr().err.splitlines()
    assert re.match(r"xray · search  helper, iteration 1 +\d+ms$", lines[0])
    assert [line.split(maxsplit=1) for line in lines[1:]] == [
        ["query", "retry"],
        ["limit", "3"],
        ["result", '["retry", "retry", "retry"]'],
    ]


def test_the_decorator_shows_what_was_raised_and_raises_it(capsys: pytest.CaptureFixture[str]) -> None:
    @xray()
    def fail(path: str) -> str:
        raise FileNotFoundError(path)

    with pytest.raises(FileNotFoundError):
        fail("x.md")
    assert re.search(r"raised +FileNotFoundError: x.md", capsys.readouterr().err)


def test_the_decorated_function_is_the_same_tool() -> None:
    def search(query: str, limit: int = 3) -> str:
        """Search the docs.

        Args:
            query: what to look for.
        """
        return query

    above, below = xray(tool(name="find", read_only=True)(search)), tool(name="find", read_only=True)(xray(search))
    assert Tool.from_function(xray(search)).schema == Tool.from_function(search).schema
    assert inspect.signature(xray(search)) == inspect.signature(search)
    for marked in (above, below):
        made = Tool.from_function(marked)
        assert (made.name, made.read_only) == ("find", True)


def test_methods_and_async_functions_can_be_decorated(capsys: pytest.CaptureFixture[str]) -> None:
    class Files:
        root = "/srv"

        @tool(read_only=True)
        @xray
        def read(self, path: str) -> str:
            """Read a file."""
            return f"{self.root}/{path}"

        @xray
        @staticmethod
        def join(a: str, b: str) -> str:
            """Join."""
            return a + b

        @xray
        async def fetch(self, url: str, agent: Any) -> str:
            """Fetch."""
            await asyncio.sleep(0)
            return f"{url} for {agent.name}"

    calls = [call("read", path="x"), call("join", a="1", b="2"), call("fetch", url="u")]
    agent = make(calls, "done", tools=Files())
    agent.input("x")
    assert agent.current_session is not None
    assert [m["content"] for m in agent.current_session["messages"] if m["role"] == "tool"] == [
        "/srv/x",
        "12",
        "u for helper",
    ]
    text = capsys.readouterr().err
    assert "self" not in text and "agent " not in text
    assert re.search(r"result +u for helper", text)


def test_hostile_values_are_harmless_in_the_table(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "60")

    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError("no repr")

    @xray
    def echo(value: str, odd: Any = None) -> Any:
        """Echo."""
        return {"value": value, "odd": odd}

    echo(HOSTILE * 20, Odd())
    text = capsys.readouterr().err
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]", text)
    assert "[red]x[/red]" in text
    assert max(map(len, text.splitlines())) <= 60


def test_only_functions_can_be_decorated() -> None:
    with pytest.raises(TypeError, match="@xray goes on a function"):
        xray(int)
    with pytest.raises(TypeError, match="@xray goes on a function"):
        xray(3)  # type: ignore[call-overload]
