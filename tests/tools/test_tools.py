"""Tools are made from anything that can be called, found in anything that holds them, and run to their end."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import signal
import subprocess
import sys
import threading
import timeit
import weakref
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic
import pytest

from connectagent import Agent, LLMResponse, ToolCall
from connectagent.data import AgentBase
from connectagent.errors import ToolDefinitionError
from connectagent.testing import ScriptedLLM
from connectagent.tools import Tool, ToolRegistry, collect_tools, tool


def search(query: str, limit: int = 3) -> str:
    """Search the docs."""
    return f"{query}:{limit}"


async def fetch(url: str) -> str:
    """Fetch a page."""
    await asyncio.sleep(0)
    return f"<{url}>"


class Files:
    """Files of a project."""

    root = "."

    def read(self, path: str) -> str:
        """Read a file."""
        return f"read {path}"

    @tool(read_only=True)
    def list_all(self) -> list[str]:
        return []

    @staticmethod
    def join(a: str, b: str) -> str:
        return a + b

    @classmethod
    def kind(cls, name: str) -> str:
        return f"{cls.__name__} {name}"

    @property
    def size(self) -> int:
        raise AssertionError("a property must not be read")

    def helper(self, anything):  # type: ignore[no-untyped-def]
        return anything

    def _private(self, x: int) -> int:
        return x


class WebSearch:
    def __call__(self, query: str) -> str:
        """Search the web."""
        return query


@dataclass
class FakeAgent(AgentBase):
    name: str

    def input(self, prompt: str) -> str:
        return f"{self.name}: {prompt}"


def names(source: object) -> list[str]:
    return [one.name for one in collect_tools(source)]


# -- the decorator -------------------------------------------------------------------------------


def test_tool_leaves_the_function_as_it_is() -> None:
    assert tool(search) is search
    assert tool(read_only=True)(search) is search
    assert search("a") == "a:3"


def test_marks_are_read_from_functions_methods_statics_and_partials() -> None:
    class Box:
        @tool(name="plus", idempotent=True)
        @staticmethod
        def add(a: int, b: int) -> int:
            return a + b

        @staticmethod
        @tool(name="times")
        def mul(a: int, b: int) -> int:
            return a * b

        @tool(description="Say it.", read_only=True)
        async def say(self, text: str) -> str:
            return text

    assert names(Box()) == ["plus", "times", "say"]
    plus, _, say = collect_tools(Box())
    assert plus.idempotent and not plus.read_only and Box.add(1, 2) == 3
    assert say.read_only and say.description == "Say it."
    half = tool(name="half")(functools.partial(Box.add, 1))
    assert Tool.from_function(half).name == "half" and half(2) == 3
    assert Tool.from_function(functools.partial(Box().say, text="x")).read_only


@pytest.mark.parametrize("bad", ["a.b", "with space", "x" * 65, "", "größe"])
def test_a_name_that_providers_refuse_is_refused_with_one_that_they_take(bad: str) -> None:
    with pytest.raises(ToolDefinitionError, match=r"Use for example '[a-zA-Z0-9_-]{1,64}'"):
        tool(name=bad)(search)
    with pytest.raises(ToolDefinitionError, match="letters, digits"):
        Tool(bad, "", {}, search)


def test_tool_refuses_what_it_cannot_mark() -> None:
    for thing in (Files, 5, len, Files().read):
        with pytest.raises(ToolDefinitionError, match="@tool"):
            tool(thing)  # type: ignore[call-overload]


# -- making --------------------------------------------------------------------------------------


def test_a_tool_from_a_function_tells_name_description_and_place() -> None:
    made = Tool.from_function(search)
    assert (made.name, made.description) == ("search", "Search the docs.")
    assert made.origin == f"{__file__}:{search.__code__.co_firstlineno}"
    assert made.schema["function"]["name"] == "search"
    assert made.schema is made.schema


def test_callables_and_partials_are_tools() -> None:
    assert names([WebSearch(), functools.partial(search, limit=1), Files().read]) == ["web_search", "search", "read"]
    part = Tool.from_function(functools.partial(search, "bound"))
    assert list(part.parameters["properties"]) == ["limit"]
    assert part.run(part.bind({"limit": "2"})) == "bound:2"
    wrapped = functools.update_wrapper(functools.partial(search, "bound"), search)
    assert list(Tool.from_function(wrapped).parameters["properties"]) == ["limit"]
    cached = Tool.from_function(functools.lru_cache(search))
    assert cached.name == "search" and cached.run(cached.bind({"query": "x"})) == "x:3"


def test_a_decorated_function_keeps_its_signature() -> None:
    @functools.wraps(search)
    def outer(*args: Any, **kwargs: Any) -> str:
        return search(*args, **kwargs).upper()

    made = Tool.from_function(outer)
    assert list(made.parameters["properties"]) == ["query", "limit"]
    assert made.run(made.bind({"query": "a"})) == "A:3"


def test_a_long_description_is_cut_on_the_wire_only() -> None:
    made = Tool("x", "word " * 1_000, {}, search)
    assert len(made.description) == 5_000
    assert len(made.schema["function"]["description"]) <= 1_024


def test_a_lambda_and_a_builtin_are_refused_with_a_way_out() -> None:
    with pytest.raises(ToolDefinitionError, match=r"lambda cannot be a tool .*test_tools.py"):
        collect_tools(lambda x: x)
    assert Tool.from_function(tool(name="now")(lambda: 1)).run({}) == 1
    with pytest.raises(ToolDefinitionError, match="positional-only"):
        collect_tools(len)


def test_the_second_tool_of_a_function_is_cheap_and_shares_the_schema() -> None:
    assert Tool.from_function(search).parameters is Tool.from_function(search).parameters
    files = Files()
    assert Tool.from_function(files.read).parameters is Tool.from_function(Files().read).parameters
    seconds = min(timeit.repeat(lambda: Tool.from_function(search), number=1_000, repeat=3)) / 1_000
    assert seconds < 50e-6


def test_what_is_remembered_of_a_function_goes_with_it() -> None:
    def use() -> weakref.ref[Any]:
        def gone(x: int) -> int:
            return x

        Tool.from_function(gone)
        return weakref.ref(gone)

    alive = use()
    gc.collect()
    assert alive() is None


def test_importing_the_module_loads_neither_pydantic_nor_the_docstring_parser() -> None:
    heavy = "pydantic", "docstring_parser", "asyncio"
    code = f"import sys, connectagent.tools; print([name for name in {heavy} if name in sys.modules])"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True)
    assert done.stdout.strip() == "[]"


# -- running -------------------------------------------------------------------------------------


def test_async_functions_run_to_completion() -> None:
    made = Tool.from_function(fetch)
    assert made.run(made.bind({"url": "x"})) == "<x>"


def test_async_functions_run_where_a_loop_runs_already_with_the_caller_s_context() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")

    async def read() -> str:
        await asyncio.sleep(0)
        return f"{variable.get()} {threading.current_thread() is threading.main_thread()}"

    async def caller() -> Any:
        variable.set("mine")
        return Tool.from_function(read).run({})

    assert asyncio.run(caller()) == "mine False"


def test_generators_are_read_to_their_end() -> None:
    def count(n: int) -> Iterator[int]:
        yield from range(n)

    async def acount(n: int) -> AsyncIterator[int]:
        for i in range(n):
            yield i

    async def inner(n: int) -> Any:
        return count(n)

    for function in (count, acount, inner):
        assert Tool.from_function(function).run({"n": 3}) == [0, 1, 2]
    assert Tool("m", "", {}, lambda: map(str, [1])).run({}) == ["1"]


def test_an_exception_of_an_async_tool_is_its_own() -> None:
    async def fail() -> None:
        raise KeyError("x")

    async def caller() -> None:
        Tool.from_function(fail).run({})

    with pytest.raises(KeyError):
        Tool.from_function(fail).run({})
    with pytest.raises(KeyError):
        asyncio.run(caller())


def test_sys_exit_in_a_tool_is_an_error_of_the_tool() -> None:
    def leave() -> None:
        sys.exit(1)

    async def leave_later() -> None:
        sys.exit("bye")

    async def cancelled() -> None:
        raise asyncio.CancelledError

    def cancelled_inside() -> None:
        asyncio.run(cancelled())

    def cancelled_at_once() -> None:
        raise asyncio.CancelledError

    with pytest.raises(RuntimeError, match=r"sys.exit\(1\)"):
        Tool.from_function(leave).run({})
    with pytest.raises(RuntimeError, match=r"sys.exit\('bye'\)"):
        Tool.from_function(leave_later).run({})
    for function in (cancelled, cancelled_inside, cancelled_at_once):
        with pytest.raises(RuntimeError, match="cancelled"):
            Tool.from_function(function).run({})


@pytest.mark.parametrize("parallel", [None, 4])
def test_a_tool_that_was_cancelled_inside_is_an_error_of_its_call(parallel: int | None) -> None:
    def load() -> None:
        raise asyncio.CancelledError("of a task of its own")

    calls = [ToolCall("c1", "load"), ToolCall("c2", "load")]
    llm = ScriptedLLM(LLMResponse(None, calls), "Done.")
    more = {} if parallel is None else {"parallel_tools": parallel}
    agent = Agent("a", [load], llm=llm, log=False, quiet=True, **more)
    assert agent.input("go") == "Done."
    entries = [entry for entry in agent.session["trace"] if entry["type"] == "tool_execution"]
    assert [entry["status"] for entry in entries] == ["error", "error"]
    assert "the tool was cancelled" in entries[0]["result"]


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_passes_through() -> None:
    stopped = []

    def press() -> None:
        signal.raise_signal(signal.SIGINT)

    async def wait() -> None:
        asyncio.get_running_loop().call_later(0.05, signal.raise_signal, signal.SIGINT)
        try:
            await asyncio.sleep(10)
        finally:
            stopped.append(True)

    for function in (press, wait):
        with pytest.raises(KeyboardInterrupt):
            Tool.from_function(function).run({})
    assert stopped == [True]


# -- collecting ----------------------------------------------------------------------------------


def test_tools_come_from_one_thing_or_from_nested_lists() -> None:
    made = Tool("given", "Given.", {}, search)
    assert names(None) == [] and names(search) == ["search"]
    assert names([search, (fetch, [made]), None]) == ["search", "fetch", "given"]
    assert names(ToolRegistry([search])) == ["search"]


def test_an_instance_brings_its_public_annotated_methods() -> None:
    assert names(Files()) == ["read", "list_all", "join", "kind"]
    read, list_all, join, kind = collect_tools(Files())
    assert list(read.parameters["properties"]) == ["path"] and list_all.read_only
    assert join.run(join.bind({"a": "x", "b": "y"})) == "xy"
    assert kind.run({"name": "n"}) == "Files n"


def test_methods_of_base_classes_come_too_but_not_pydantic_s_own() -> None:
    class Notes(pydantic.BaseModel):
        items: list[str] = []

        def add(self, text: str) -> str:
            self.items.append(text)
            return text

    class MoreFiles(Files):
        def read(self, path: str, lines: int = 1) -> str:
            return path * lines

        def write(self, path: str) -> str:
            return path

    assert names(Notes()) == ["add"]
    assert names(MoreFiles()) == ["read", "list_all", "join", "kind", "write"]


def test_an_instance_without_a_usable_method_is_an_error() -> None:
    class Empty:
        def go(self, x):  # type: ignore[no-untyped-def]
            return x

    with pytest.raises(ToolDefinitionError, match="'Empty' has no public method with annotations"):
        collect_tools(Empty())


def test_a_half_annotated_method_is_named_with_a_way_out() -> None:
    class Half:
        def go(self, x: int, y=1):  # type: ignore[no-untyped-def]
            return x

    with pytest.raises(ToolDefinitionError, match=r"(?s)parameter 'y' has no type annotation.*Half.*x\.go"):
        collect_tools(Half())


def test_two_tools_of_one_name_are_both_located() -> None:
    def other() -> None: ...

    other.__name__ = "search"
    for source in ([search, other], [search, [search]]):
        with pytest.raises(ToolDefinitionError) as caught:
            collect_tools(source)
        assert str(caught.value).count("test_tools.py:") == 2 and "'search'" in str(caught.value)


def test_agents_become_tools_through_the_hook() -> None:
    def wrap(agent: Any) -> Tool:
        return Tool(agent.name, "", {"properties": {"prompt": {"type": "string"}}}, agent.input)

    made = collect_tools([FakeAgent("billing")], agent_tool=wrap)[0]
    assert made.run(made.bind({"prompt": "hi"})) == "billing: hi"
    with pytest.raises(ToolDefinitionError, match="agent 'billing'"):
        collect_tools(FakeAgent("billing"))


def test_what_cannot_be_a_tool_is_told_what_can() -> None:
    for thing, text in (
        (Files, "make an instance, Files"),
        ("search", "Accepted are functions"),
        (5, "Accepted are functions"),
        ({"type": "function"}, "Accepted are functions"),
        (sys, "module 'sys'"),
        (fetch("x"), "pass the function: fetch"),
    ):
        with pytest.raises(ToolDefinitionError, match=text):
            collect_tools([thing])
