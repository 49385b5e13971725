"""Which model a name means, and how it is reached."""

from __future__ import annotations

from typing import Any

import pytest
from wire_server import WireServer, chat, message

from connectagent.data import LLMResponse
from connectagent.errors import ConfigError
from connectagent.models.anthropic import AnthropicLLM
from connectagent.models.create import create_llm
from connectagent.models.offline import OfflineLLM
from connectagent.models.openai import OpenAILLM
from connectagent.models.prices import context_window
from connectagent.testing import ScriptedLLM

VARIABLES = (
    "CONNECTAGENT_MODEL", "CONNECTAGENT_GATEWAY_URL", "CONNECTAGENT_GATEWAY_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL",
    "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "GEMINI_API_KEY", "GROQ_API_KEY",
)  # fmt: skip
HELLO: list[Any] = [{"role": "user", "content": "hello"}]


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("name", "adapter", "model", "url"),
    [
        ("gpt-4o", OpenAILLM, "openai/gpt-4o", "https://api.openai.com/v1"),
        ("o4-mini", OpenAILLM, "openai/o4-mini", "https://api.openai.com/v1"),
        ("claude-x", AnthropicLLM, "anthropic/claude-x", "https://api.anthropic.com"),
        ("groq/llama-3.3", OpenAILLM, "groq/llama-3.3", "https://api.groq.com/openai/v1"),
        ("openrouter/a/b", OpenAILLM, "openrouter/a/b", "https://openrouter.ai/api/v1"),
        ("ollama/qwen3", OpenAILLM, "ollama/qwen3", "http://localhost:11434/v1"),
    ],
)
def test_a_name_means_a_provider(name: str, adapter: type[Any], model: str, url: str) -> None:
    llm = create_llm(name)
    assert type(llm) is adapter
    assert (llm.model, llm.base_url) == (model, url)


def test_without_a_name_the_first_key_decides_and_without_a_key_it_is_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(create_llm(), OfflineLLM)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    assert isinstance(create_llm(), AnthropicLLM)
    monkeypatch.setenv("CONNECTAGENT_MODEL", "offline")
    assert isinstance(create_llm(), OfflineLLM)


@pytest.mark.parametrize("name", ["qwen3", "Qwen/Qwen3-8B"])
def test_an_unknown_name_with_a_base_url_is_asked_there_without_a_key(name: str) -> None:
    with WireServer(chat("ok")) as server:
        assert create_llm(name, base_url=server.openai_url).complete(HELLO).content == "ok"
    assert server.requests[0]["model"] == name
    assert server.headers[0]["authorization"] == "Bearer none"


def test_an_unknown_name_is_an_error_that_says_what_to_write() -> None:
    with pytest.raises(ConfigError, match="provider/model"):
        create_llm("qwen3")
    with pytest.raises(ConfigError, match="Did you mean 'anthropic/x'"):
        create_llm("antropic/x")
    with pytest.raises(ConfigError, match="base_url"):
        create_llm(base_url="http://localhost:1")


def test_the_sdks_variables_work(monkeypatch: pytest.MonkeyPatch) -> None:
    with WireServer(chat("ok")) as openai, WireServer(message("ok")) as anthropic:
        monkeypatch.setenv("OPENAI_BASE_URL", openai.openai_url)
        monkeypatch.setenv("OPENAI_API_KEY", "key-o")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", f"{anthropic.url}/v1/")
        monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "token-a")
        create_llm("gpt-4o").complete(HELLO)
        create_llm("local-model").complete(HELLO)
        create_llm("claude-x").complete(HELLO)
        monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "token-b")
        create_llm("claude-x").complete(HELLO)
    assert [headers["authorization"] for headers in openai.headers] == ["Bearer key-o"] * 2
    assert [headers["authorization"] for headers in anthropic.headers] == ["Bearer token-a", "Bearer token-b"]
    assert anthropic.paths == ["/v1/messages"] * 2


def test_the_gateway_is_asked_at_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="CONNECTAGENT_GATEWAY_URL"):
        create_llm("co/gpt-4o")
    with WireServer(chat("ok")) as server:
        monkeypatch.setenv("CONNECTAGENT_GATEWAY_URL", server.openai_url)
        monkeypatch.setenv("CONNECTAGENT_GATEWAY_KEY", "gate")
        response = create_llm("co/gpt-4o").complete(HELLO)
    assert server.requests[0]["model"] == "gpt-4o"
    assert server.headers[0]["authorization"] == "Bearer gate"
    assert response.usage is not None and response.usage.cost is None


def test_factories_of_plugins_are_asked_first() -> None:
    class Echo:
        def __init__(self, model: str) -> None:
            self.model = model

        def complete(self, messages: list[Any], tools: Any = None) -> LLMResponse:
            return LLMResponse(messages[-1]["content"])

    factories = {"echo": Echo, "gpt-": Echo, "echo/loud-": lambda name: Echo(name.upper())}
    assert create_llm("echo", factories=factories).model == "echo"
    assert create_llm("echo/a", factories=factories).model == "echo/a"
    assert create_llm("echo/loud-a", factories=factories).model == "ECHO/LOUD-A"
    assert isinstance(create_llm("gpt-4o", factories=factories), Echo)
    assert isinstance(create_llm("claude-x", factories=factories), AnthropicLLM)


def test_models_of_plugins_get_the_options_that_code_gives_for_them() -> None:
    class Echo:
        def __init__(self, model: str, options: dict[str, Any]) -> None:
            self.model, self.options = model, options

        def complete(self, messages: list[Any], tools: Any = None) -> LLMResponse:
            return LLMResponse(str(self.options))

        def with_options(self, options: dict[str, Any]) -> Any:
            return Echo(self.model, options)

    factories: Any = {"echo": lambda name: Echo(name, {"seed": 1}), "plain": lambda name: ScriptedLLM(model=name)}
    given = create_llm("echo/a", options={"top_k": 2}, factories=factories)
    assert given.complete([]).content == "{'seed': 1, 'top_k': 2}"
    assert create_llm("echo/a", factories=factories).complete([]).content == "{'seed': 1}"
    assert create_llm("plain/a", options={"top_k": 2}, factories=factories).model == "plain/a"


def test_a_context_window_is_known_or_none() -> None:
    assert context_window("gpt-4o") == 128_000
    assert context_window("claude-sonnet-4-5") is not None
    assert context_window("gpt-99") is None
    assert context_window("ollama/qwen3") is None
    assert context_window("no such model") is None
