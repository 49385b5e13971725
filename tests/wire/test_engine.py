"""A real model server, llama.cpp's, with a tiny model that calls four tools: `pip install -e '.[engine]'`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from connectagent import Agent, LLMResponse, ProviderError, after_llm, after_user_input
from connectagent.models.openai import OpenAILLM
from connectagent.models.output_forms import OutputForm
from connectagent.models.responses import ResponsesLLM
from connectagent.testing import bisect

ENGINE = Path(__file__).resolve().parents[3] / "shared" / "engine"
PROMPTS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "add 17 and 25": [("add", {"a": 17, "b": 25})],
    "multiply 12 by 9": [("multiply", {"a": 12, "b": 9})],
    "add 3 and 4, then multiply by 5": [("add", {"a": 3, "b": 4}), ("multiply", {"a": 7, "b": 5})],
    "add 10 and 20; add 30 and 45": [("add", {"a": 10, "b": 20}), ("add", {"a": 30, "b": 45})],
    "weather in Zürich": [("get_weather", {"city": "Zürich"})],
    "what time is it": [("now", {})],
    "hello": [],
}

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not ENGINE.is_dir(), reason=f"the model server is not here: {ENGINE}"),
    pytest.mark.skipif(find_spec("xllamacpp") is None, reason="not installed: pip install -e '.[engine]'"),
]


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


def get_weather(city: str) -> str:
    """Tell the weather in a city."""
    return f"sunny in {city}"


def now() -> str:
    """Tell the time."""
    return "12:30"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    command = [sys.executable, str(ENGINE / "serve.py"), str(ENGINE / "tiny-tools.gguf"), port]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            lines = (line.strip() for line in server.stdout or ())
            yield next(line for line in lines if line.startswith("http"))
        finally:
            server.kill()


WAYS = [(provider, stream) for provider in ("openai", "anthropic") for stream in (False, True)]
ASKED = [  # each prompt in two ways; CONNECTAGENT_ENGINE=all: in all four
    pytest.param(prompt, *way, id=f"{number}-{way[0]}-{'stream' if way[1] else 'plain'}")
    for number, prompt in enumerate(PROMPTS)
    for turn, way in enumerate(WAYS)
    if os.environ.get("CONNECTAGENT_ENGINE") == "all" or (turn - number) % 4 in (0, 3)
]


@pytest.mark.parametrize(("prompt", "provider", "stream"), ASKED)
def test_the_model_server_gets_the_right_calls(address: str, prompt: str, provider: str, stream: bool) -> None:
    agent = Agent(
        "engine",
        [add, multiply, get_weather, now],
        model=f"{provider}/tiny-tools",
        api_key="k",
        base_url=f"{address}/v1" if provider == "openai" else address,
        stream=stream,
        quiet=True,
        log=False,
    )
    assert agent.input(prompt)
    entries = [entry for entry in agent.current_session["trace"] if entry["type"] == "tool_execution"]
    assert [(entry["tool_name"], entry["arguments"]) for entry in entries] == PROMPTS[prompt]
    assert agent.current_session["outcome"] == "answered"
    assert all(entry["status"] == "success" for entry in entries)


class Sum(BaseModel):
    """Two numbers."""

    a: int = Field(ge=0, le=99)
    b: int = Field(ge=0, le=99)


@pytest.mark.parametrize("output", [Sum, bool, Literal["red", "green"]], ids=["model", "bool", "choice"])
def test_the_model_server_fills_a_form(address: str, output: Any) -> None:
    where: Any = {"api_key": "k", "base_url": f"{address}/v1", "options": {"max_tokens": 60}}
    agent = Agent("engine", model="openai/tiny-tools", quiet=True, log=False, **where)
    value = agent.input("add 17 and 25", output=output)
    assert isinstance(value, output) if isinstance(output, type) else value in ("red", "green")


class Node(BaseModel):
    """A tree."""

    value: int = Field(ge=0, le=9)
    children: list[Node] = Field([], max_length=2)


@pytest.mark.parametrize("kind", [OpenAILLM, ResponsesLLM])
def test_the_model_server_takes_the_schema_of_a_recursive_model(address: str, kind: Any) -> None:
    """It answers 400 to a reference without its definition; whether the model ends its tree is another question."""
    limit = {"max_tokens": 40} if kind is OpenAILLM else {"max_output_tokens": 40}
    llm = kind("tiny-tools", api_key="k", base_url=f"{address}/v1", options=limit)
    with suppress(ProviderError):  # of kind `length`
        answer = llm.complete([{"role": "user", "content": "add 17 and 25"}], output=Node)
        assert kind is ResponsesLLM or str(answer.content).startswith("{")  # it heeds no form there
    assert llm._open_ways(OutputForm.of(Node)) == ["strict", "schema"]  # nothing was refused


CAUSES = {
    "now": "what time is it",
    "get_weather": "weather in Zürich",
    "add": "add 17 and 25",
    "multiply": "multiply 12 by 9",
}
MOST = int(os.environ.get("CONNECTAGENT_BISECT", "1"))


def adds(number: int, text: str) -> Any:
    """A plugin that writes something into the conversation, or only watches."""

    class Adds:
        name = f"plugin{number}"

        @after_user_input
        def add(self, agent: Agent) -> None:
            messages = agent.session["messages"]
            if number % 3 == 0:
                messages[0] = {**messages[0], "content": f"{messages[0]['content']}\nRule {number}."}
            if text:
                messages.append({"role": "user", "content": text})

        @after_llm
        def watch(self, response: LLMResponse) -> None: ...

    return Adds()


@pytest.mark.parametrize("tool", list(CAUSES)[:MOST])
def test_bisect_finds_the_plugin_the_handler_and_the_text(address: str, tool: str) -> None:
    where: Any = {"api_key": "k", "base_url": f"{address}/v1", "options": {"max_tokens": 60}}
    count, guilty = (14, 8) if MOST > 1 else (4, 2)
    plugins = [adds(number, CAUSES[tool] if number == guilty else "") for number in range(count)]

    def make(log: Any = False) -> Agent:
        tools = [add, multiply, get_weather, now]
        return Agent("engine", tools, "Be kind.", "openai/tiny-tools", plugins=plugins, quiet=True, log=log, **where)

    agent = make(None)
    agent.input("hello")
    assert agent.record is not None
    finding = bisect(agent.record, make, f"calls {tool}", samples=5)
    assert finding.is_confirmed and finding.needed == [f"plugin{guilty}"], finding
    assert finding.cause is not None and finding.cause.names == [f"plugin{guilty}"]
    assert finding.line == CAUSES[tool] and finding.maker["plugin"] == f"plugin{guilty}", finding
    if MOST == 1:
        return
    handlers = bisect(agent.record, make, f"calls {tool}", by=["handlers"], samples=5)
    assert handlers.is_confirmed and handlers.needed == ["plugin8: Adds.add (after_user_input)"], handlers
