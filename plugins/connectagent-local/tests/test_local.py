"""Models from files, in the process: tool calls, forms, streams, many threads, and what is wrong with a file.

The tests with a model take a small one: `CONNECTAGENT_TINY_MODEL`, or the one beside the repository.
`CONNECTAGENT_LOCAL_RUNS` says how often a form is filled.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from connectagent_local import Local, LocalLLM
from pydantic import BaseModel, Field
from pytest_connectagent import AgentTester

from connectagent import Agent, ConfigError, LLMResponse, ProviderError
from connectagent.testing import ScriptedLLM

RUNS = int(os.environ.get("CONNECTAGENT_LOCAL_RUNS", "50"))
TINY = Path(os.environ.get("CONNECTAGENT_TINY_MODEL", Path(__file__).parents[4] / "shared/engine/tiny-tools.gguf"))
needs_model = [
    pytest.mark.skipif(not TINY.is_file(), reason=f"no small model: {TINY}"),
    pytest.mark.skipif(find_spec("xllamacpp") is None, reason="not installed: pip install xllamacpp"),
]
MODEL = f"local/{TINY}"
PROMPTS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "add 17 and 25": [("add", {"a": 17, "b": 25})],
    "multiply 12 by 9": [("multiply", {"a": 12, "b": 9})],
    "add 3 and 4, then multiply by 5": [("add", {"a": 3, "b": 4}), ("multiply", {"a": 7, "b": 5})],
    "add 10 and 20; add 30 and 45": [("add", {"a": 10, "b": 20}), ("add", {"a": 30, "b": 45})],
    "weather in Zürich": [("get_weather", {"city": "Zürich"})],
    "what time is it": [("now", {})],
    "hello": [],
}
WAYS = [(stream, system) for stream in (True, False) for system in ("", "You are a helper.")]


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


def agent_with(tools: Any = (), *, tokens: int = 200, plugins: Any = (), **options: Any) -> Agent:
    given = {"temperature": 0, "max_tokens": tokens}
    plugins = [Local(threads=1), *plugins]
    return Agent("a", tools, model=MODEL, options=given, plugins=plugins, log=False, quiet=True, **options)


def local(**options: Any) -> LocalLLM:
    return Local(threads=1).make(MODEL).with_options(options)


class Sum(BaseModel):
    """A form whose parts have an end: a model of this size would fill a text up to the token limit."""

    a: int = Field(ge=0, le=99)
    words: list[Annotated[str, Field(max_length=20)]] = Field(max_length=2)
    colour: Literal["red", "green"]
    sure: bool


class TestWithAModel:
    pytestmark = needs_model

    @pytest.mark.parametrize("prompt", PROMPTS)
    @pytest.mark.parametrize(("stream", "system"), WAYS)
    def test_it_makes_the_right_calls(self, prompt: str, stream: bool, system: str) -> None:
        agent = agent_with([add, multiply, get_weather, now], system_prompt=system, stream=stream)
        assert agent.input(prompt)
        entries = [entry for entry in agent.session["trace"] if entry["type"] == "tool_execution"]
        assert [(entry["tool_name"], entry["arguments"]) for entry in entries] == PROMPTS[prompt]
        assert all(entry["status"] == "success" for entry in entries) and agent.session["outcome"] == "answered"
        assert agent.last_usage is not None and agent.last_usage.output_tokens > 0 and agent.total_cost == 0

    @pytest.mark.parametrize("seed", range(RUNS))
    def test_a_form_is_always_filled(self, seed: int) -> None:
        llm = local(seed=seed, temperature=1.5, max_tokens=200)
        response = llm.complete([{"role": "user", "content": "add 17 and 25"}], output=Sum)
        assert Sum.model_validate_json(response.content or "")

    def test_tools_can_be_called_before_a_form_is_filled(self) -> None:
        agent = agent_with([add], stream=True)
        assert isinstance(agent.input("add 17 and 25", output=Sum), Sum)
        types = [entry["type"] for entry in agent.session["trace"] if entry["type"] in ("llm_call", "tool_execution")]
        assert types == ["llm_call", "tool_execution", "llm_call"]

    def test_text_comes_in_pieces_and_says_the_same(self) -> None:
        pieces: list[str] = []
        llm = local(temperature=0, max_tokens=20)
        streamed = llm.stream([{"role": "user", "content": "hello"}], on_text=pieces.append)
        assert len(pieces) > 1 and "".join(pieces) == streamed.content
        assert llm.complete([{"role": "user", "content": "hello"}]).content == streamed.content

    def test_20_threads_share_a_model(self) -> None:
        answers: list[LLMResponse] = []
        llm = local(temperature=0, max_tokens=6)

        def ask() -> None:
            answers.append(llm.complete([{"role": "user", "content": "hello"}]))

        threads = [threading.Thread(target=ask) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(answers) == 20 and len({answer.content for answer in answers}) == 1

    def test_a_limit_and_a_conversation_that_is_too_long_have_their_own_words(self) -> None:
        messages: Any = [{"role": "user", "content": "hello " * 4000}]
        with pytest.raises(ProviderError, match="exceeds the available context") as caught:
            local().complete(messages)
        assert (caught.value.kind, caught.value.provider) == ("context_length", "local")
        assert local(max_tokens=1).complete([{"role": "user", "content": "hello"}]).truncated

    def test_what_the_model_cannot_take_is_refused(self) -> None:
        picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aaaa"}}
        with pytest.raises(ProviderError, match="image input is not supported") as caught:
            local().complete([{"role": "user", "content": [picture]}])
        assert caught.value.kind == "bad_request"

    def test_messages_of_connectagents_own_keys_go_without_them(self) -> None:
        messages: Any = [
            {"role": "user", "content": "hello", "author": "a"},
            {"role": "assistant", "content": "hello", "provider_data": {"provider": "x"}},
            {"role": "user", "content": "hello"},
        ]
        assert local(max_tokens=3).complete(messages).content

    def test_what_on_text_raises_stops_the_call(self) -> None:
        def stop(text: str) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            local(max_tokens=500, ignore_eos=True).stream([{"role": "user", "content": "hello"}], on_text=stop)
        began = time.monotonic()
        while any(thread.name == "connectagent-local" for thread in threading.enumerate()):
            assert time.monotonic() - began < 5
            time.sleep(0.01)

    def test_ctrl_c_ends_a_program_at_once_and_without_a_crash(self) -> None:
        program = (
            "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "from connectagent_local import Local\n"
            f"llm = Local(threads=1).make({MODEL!r}).with_options({{'max_tokens': 1500, 'ignore_eos': True}})\n"
            "llm.stream([{'role': 'user', 'content': 'hello'}], on_text=lambda text: print('x', flush=True))"
        )
        path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
        command = [sys.executable, "-c", program]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
        ) as process:
            assert process.stdout is not None and process.stderr is not None
            assert process.stdout.readline() == "x\n"
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=20)
        assert process.returncode == -signal.SIGINT and errors.rstrip().endswith("KeyboardInterrupt")

    def test_a_file_that_is_broken_fails_the_call(self, tmp_path: Path) -> None:
        path = tmp_path / "cut.gguf"
        path.write_bytes(TINY.read_bytes()[:2000])
        with pytest.raises(ProviderError, match=r"cut\.gguf cannot be loaded") as caught:
            Local().make(f"local/{path}").complete([{"role": "user", "content": "hello"}])
        assert caught.value.kind == "not_found"


# -- without a model -------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.delenv("CONNECTAGENT_LOCAL_MODEL", raising=False)
    path = tmp_path / "a.gguf"
    path.write_bytes(b"GGUF")
    yield path


def test_a_model_is_named_by_its_path_the_options_or_the_environment(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = [Local().make(f"local/{file}"), Local(path=str(file)).make("local")]
    monkeypatch.setenv("CONNECTAGENT_LOCAL_MODEL", str(file))
    named.append(Local().make("local"))
    assert [llm.engine.path for llm in named] == [file.resolve()] * 3
    assert [llm.model for llm in named] == [f"local/{file}", "local", "local"]


def test_what_is_no_model_is_refused_with_the_way_out(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"model='local/PATH.gguf', or set CONNECTAGENT_LOCAL_MODEL"):
        Local().make("local")
    with pytest.raises(ConfigError, match=r"none\.gguf cannot be read: No such file"):
        Local().make("local/none.gguf")
    file.write_bytes(b"PK..")
    with pytest.raises(ConfigError, match="is no GGUF file"):
        Agent("a", model=f"local/{file}", plugins=[Local()], quiet=True, log=False)


@pytest.mark.parametrize("option", [{"context": 0}, {"parallel": "2"}, {"threads": -1}, {"context": True}])
def test_options_that_cannot_be_used_are_refused(option: Any) -> None:
    with pytest.raises(ConfigError, match="is a whole number from"):
        Local(**option)


def test_arguments_that_are_cut_are_an_error_for_the_model(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    piece = {"index": 0, "id": "c1", "function": {"name": "add", "arguments": '{"a": 1'}}
    chunks: list[Any] = [{"choices": [{"delta": {"tool_calls": [piece]}}]}]
    chunks.append({"choices": [{"finish_reason": "length", "delta": {}}]})
    monkeypatch.setattr("connectagent_local.engine.Engine.chunks", lambda self, body: iter(chunks))
    (made,) = Local().make(f"local/{file}").complete([]).tool_calls or ()
    assert (made.name, made.arguments, made.raw) == ("add", {}, '{"a": 1') and "no JSON" in str(made.error)
    piece["function"]["arguments"] = ""  # type: ignore[index]
    (made,) = Local().make(f"local/{file}").complete([]).tool_calls or ()
    assert (made.name, made.arguments) == ("add", {}) and "cut" in str(made.error)
    monkeypatch.setattr("connectagent_local.engine.Engine.chunks", lambda self, body: iter(chunks[:1]))
    with pytest.raises(ProviderError, match="ended before it was complete"):
        Local().make(f"local/{file}").complete([])


def test_named_as_a_plugin_it_changes_nothing(agenttester: AgentTester) -> None:
    agenttester.check(Local())
    assert Agent("a", llm=ScriptedLLM("Hi."), plugins=[Local()], quiet=True, log=False).input("Hi") == "Hi."
