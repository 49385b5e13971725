"""Key, address and options reach the provider for which they were given, and no other one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from wire_server import Answer, WireServer, chat, message

from connectagent import Agent, LLMRequest, Retry, after_user_input, before_llm, on_error, register_models
from connectagent.errors import ConfigError
from connectagent.loop.ask import llm_do
from connectagent.models.create import create_llm
from connectagent.models.names import PROVIDERS
from connectagent.models.sdk import WireLLM
from connectagent.settings import overrides
from connectagent.testing import ScriptedLLM

GIVEN = "given-in-code-7781"
SECRET = "header-of-code-4410"
OPTIONS = {"temperature": 0.25, "extra_headers": {"x-own": SECRET}, "max_retries": 0}
MODELS = {
    "openai": "openai/gpt-4o",
    "anthropic": "anthropic/claude-x",
    "groq": "groq/llama",
    "openrouter": "openrouter/a/b",
    "co": "co/gpt-4o",
}
VARIABLES = {
    "openai": "OPENAI_API_KEY",
    "anthropic": "ANTHROPIC_API_KEY",
    "groq": "GROQ_API_KEY",
    "openrouter": "OPENROUTER_API_KEY",
    "co": "CONNECTAGENT_GATEWAY_KEY",
}
HELLO: list[Any] = [{"role": "user", "content": "Hi"}]
VERDICT = '{"allowed": true, "reason": "It is harmless."}'

Servers = dict[str, WireServer]


def good(provider: str) -> Answer:
    return message("Done.") if provider == "anthropic" else chat("Done.")


@pytest.fixture(scope="module")
def running() -> Iterator[Servers]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(WireServer(good(name))) for name in MODELS}


@pytest.fixture
def servers(running: Servers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Servers:
    """A server at each provider's own address, with each provider's own key in its variable."""
    monkeypatch.chdir(tmp_path)
    for name in ("CONNECTAGENT_MODEL", "ANTHROPIC_AUTH_TOKEN", "GEMINI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name, variable in VARIABLES.items():
        monkeypatch.setenv(variable, f"own-key-of-{name}")
        server = running[name]
        server.answers[:], server.requests[:], server.headers[:], server.paths[:] = [good(name)], [], [], []
    monkeypatch.setenv("OPENAI_BASE_URL", running["openai"].openai_url)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", running["anthropic"].url)
    monkeypatch.setenv("CONNECTAGENT_GATEWAY_URL", running["co"].openai_url)
    for name in ("groq", "openrouter"):
        monkeypatch.setitem(PROVIDERS, name, replace(PROVIDERS[name], base_url=running[name].openai_url))
    return running


def sent(server: WireServer) -> str:
    """Everything that a server received."""
    return json.dumps([server.headers, server.requests, server.paths])


def keys_at(server: WireServer) -> list[str]:
    return [one.get("x-api-key") or one["authorization"].removeprefix("Bearer ") for one in server.headers]


@dataclass
class Case:
    """An agent of one provider, and the model of another one that is asked too."""

    model: str
    server: WireServer
    other: str
    other_server: WireServer
    base_url: str | None = None

    def agent(self, **more: Any) -> Agent:
        given: dict[str, Any] = {"model": self.model, "api_key": GIVEN, "base_url": self.base_url, "options": OPTIONS}
        return Agent("a", log=False, quiet=True, **{**given, **more})


# -- the paths by which another model is asked ---------------------------------------------------


def by_retry(case: Case) -> None:
    case.server.answers[:] = [Answer({"error": {"message": "no", "type": "invalid_request_error"}}, 400)]

    @on_error
    def elsewhere() -> Retry:
        return Retry(model=case.other)

    assert case.agent(on_events=[elsewhere]).input("Hi") == "Done."


def by_plugin(case: Case) -> None:
    @after_user_input
    def ask(agent: Agent) -> None:
        agent.create_llm(case.other).complete(HELLO)

    case.agent(plugins=[ask]).input("Hi")


def by_request(case: Case) -> None:
    @before_llm
    def choose(agent: Agent, request: LLMRequest) -> None:
        if agent.current_session["turn"] == 2:  # type: ignore[index]
            request.model = case.other
            request.options["top_p"] = 0.5
            request.options["extra_headers"]["x-mine"] = "of the handler"

    agent = case.agent(plugins=[choose])
    agent.input("Hi")
    assert agent.input("Again") == "Done."
    assert case.other_server.requests[-1]["top_p"] == 0.5
    assert case.other_server.headers[-1]["x-mine"] == "of the handler"


def by_command_line(case: Case) -> None:
    case.agent().input("Hi")
    overrides["model"] = case.other
    try:
        case.agent().input("Hi")
        case.agent(model=None, llm=ScriptedLLM(model=case.model)).input("Hi")
    finally:
        del overrides["model"]


def by_environment(case: Case) -> None:
    os.environ["CONNECTAGENT_MODEL"] = case.other
    try:
        case.agent(sub_agents=[child := Agent("child", log=False, quiet=True)]).input("Hi")
        child.input("Hi")
        with pytest.raises(ConfigError, match="api_key= needs a model"):
            case.agent(model=None, base_url=None)
    finally:
        del os.environ["CONNECTAGENT_MODEL"]


def by_sub_agent(case: Case) -> None:
    child = Agent("child", model=case.other, log=False, quiet=True)
    case.agent(sub_agents=[child]).input("Hi")
    child.input("Hi")


def by_judge(case: Case) -> None:
    def work(x: int) -> int:
        """Work."""
        return x

    anthropic = case.other.startswith("anthropic/")
    case.other_server.answers[:] = [message(VERDICT) if anthropic else chat(VERDICT)]
    agent = case.agent(tools=[work], trust=Agent("judge", model=case.other, log=False, quiet=True))
    assert agent.execute_tool("work", {"x": 3})["status"] == "success"
    agent.input("Hi")


PATHS = [by_retry, by_plugin, by_request, by_command_line, by_environment, by_sub_agent, by_judge]
PAIRS = [(one, other) for one in MODELS for other in MODELS if one != other]
every_path = pytest.mark.parametrize("path", PATHS)


def check(case: Case, path: Callable[[Case], None], servers: Servers) -> None:
    """The agent's own provider gets what was given, and every other one only what is its own."""
    path(case)
    assert set(keys_at(case.server)) == {GIVEN}
    assert case.server.requests[0]["temperature"] == 0.25 and case.server.headers[0]["x-own"] == SECRET
    assert case.other_server.requests
    for name, server in servers.items():
        if server is not case.server:
            assert GIVEN not in sent(server) and SECRET not in sent(server)
            assert all("temperature" not in body for body in server.requests)
            assert set(keys_at(server)) <= {f"own-key-of-{name}"}


@every_path
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_key_and_options_go_to_no_other_provider(
    path: Callable[[Case], None], one: str, other: str, servers: Servers
) -> None:
    check(Case(MODELS[one], servers[one], MODELS[other], servers[other]), path, servers)


@every_path
@pytest.mark.parametrize("other", MODELS)
@pytest.mark.parametrize("model", ["my-model", "me/my-model", "openai/my-model", "anthropic/my-model", "co/my-model"])
def test_what_is_given_with_an_address_goes_to_that_address_only(
    path: Callable[[Case], None], other: str, model: str, servers: Servers
) -> None:
    if model.startswith(f"{other}/"):
        other = "groq"
    wire = "anthropic" if model.startswith("anthropic/") else "openai"
    with WireServer(good(wire)) as own:
        check(Case(model, own, MODELS[other], servers[other], own.openai_url), path, servers)


@every_path
@pytest.mark.parametrize("one", [name for name in MODELS if name != "openai"])
def test_a_server_that_the_environment_names_gets_no_key_of_another(
    path: Callable[[Case], None], one: str, servers: Servers
) -> None:
    check(Case(MODELS[one], servers[one], "local-model", servers["openai"]), path, servers)


# -- for whom they were given --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "asked", "kept"),
    [
        ("gpt-4o", "gpt-4o-mini", True),
        ("gpt-4o", "openai/o4-mini", True),
        ("gpt-4o", "openai-responses/gpt-5", True),
        ("openai-responses/gpt-5", "openai/gpt-4o", True),
        ("openai-responses/gpt-5", "groq/x", False),
        ("co/gpt-4o", "openai-responses/gpt-5", False),
        ("my-model", "openai-responses/gpt-5", False),
        ("ollama/x", "lmstudio/x", False),
        ("openai/my-model", "my-other-model", True),
        ("my-model", "my-other-model", True),
        ("me/my-model", "you/my-model", True),
        ("my-model", "gpt-4o", False),
        ("my-model", "openai/my-model", False),
        ("claude-x", "my-model", True),
        ("claude-x", "gpt-4o", False),
        ("co/gpt-4o", "co/claude-x", True),
        ("co/gpt-4o", "gpt-4o", False),
        ("offline", "gpt-4o", False),
    ],
)
def test_another_model_of_the_same_provider_keeps_what_was_given(
    given: str, asked: str, kept: bool, servers: Servers
) -> None:
    """With an address given too, where a name that tells no provider is asked."""
    more = {} if given == "offline" else {"base_url": "http://127.0.0.1:9/v1"}
    llm = Agent("a", model=given, api_key=GIVEN, options=OPTIONS, log=False, quiet=True, **more).create_llm(asked)
    assert isinstance(llm, WireLLM)
    assert (llm._key() == GIVEN, llm.base_url.startswith("http://127.0.0.1:9"), llm.options == OPTIONS) == (kept,) * 3


def test_an_llm_given_tells_the_provider_by_the_name_of_its_model(servers: Servers) -> None:
    def keys(llm: Any) -> list[str]:
        agent = Agent("a", llm=llm, api_key=GIVEN, log=False, quiet=True)
        for name in MODELS:
            agent.create_llm(MODELS[name]).complete(HELLO)
        return [name for name in MODELS if keys_at(servers[name])[-1] == GIVEN]

    assert keys(create_llm("groq/x")) == ["groq"]
    assert keys(ScriptedLLM()) == []


def test_options_given_with_an_llm_of_a_server_of_its_own_go_to_no_provider(servers: Servers) -> None:
    own = create_llm("local-model", base_url=servers["groq"].openai_url)  # which is known as openai/local-model
    agent = Agent("a", llm=own, options=OPTIONS, log=False, quiet=True)
    agent.create_llm("openai/gpt-4o").complete(HELLO)
    assert SECRET not in sent(servers["openai"])


def test_a_plugins_model_is_not_the_provider_that_its_name_resembles(servers: Servers) -> None:
    @register_models
    def bring() -> dict[str, Any]:
        return {"gpt-": lambda name: ScriptedLLM("Echo.", model=name)}

    agent = Agent("a", model="gpt-echo", api_key=GIVEN, plugins=[bring], log=False, quiet=True)
    assert agent.input("Hi") == "Echo."
    other: Any = agent.create_llm("openai-responses/gpt-5")
    assert other._key() != GIVEN
    agent.create_llm("openai/gpt-4o").complete(HELLO)
    assert keys_at(servers["openai"]) == ["own-key-of-openai"]


def test_the_variable_of_openai_is_not_for_servers_that_are_not_openai(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org-of-openai")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "project-of-openai")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "x-custom: header-of-openai")
    with WireServer(chat("ok")) as own:
        create_llm("my-model", base_url=own.openai_url).complete(HELLO)
        create_llm("openai/my-model", base_url=own.openai_url).complete(HELLO)
    create_llm("groq/x").complete(HELLO)
    create_llm("openai/x").complete(HELLO)
    assert keys_at(own) == ["none", "own-key-of-openai"]
    assert "of-openai" not in sent(servers["groq"])
    assert servers["openai"].headers[0]["openai-organization"] == "org-of-openai"


def test_without_a_model_nobody_can_tell_whose_key_it_is(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    for make in (lambda: Agent("a", api_key=GIVEN), lambda: create_llm(api_key=GIVEN), lambda: llm_do("", api_key="k")):
        with pytest.raises(ConfigError, match="api_key= needs a model") as caught:
            make()
        assert GIVEN not in str(caught.value)
    with pytest.raises(ConfigError, match="base_url='http://x' needs a model"):
        Agent("a", base_url="http://x")
    with WireServer(chat("ok")) as own:  # key and address go together, whatever the model
        monkeypatch.setenv("CONNECTAGENT_MODEL", "my-model")
        Agent("a", api_key=GIVEN, base_url=own.openai_url, log=False, quiet=True).input("Hi")
    assert keys_at(own) == [GIVEN]


def test_options_without_a_model_are_for_the_model_of_the_settings(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONNECTAGENT_MODEL", "groq/x")
    Agent("a", options=OPTIONS, log=False, quiet=True).input("Hi")
    assert servers["groq"].requests[0]["temperature"] == 0.25
    monkeypatch.setitem(overrides, "model", "openrouter/x")
    Agent("a", options=OPTIONS, log=False, quiet=True).input("Hi")
    assert "temperature" not in servers["openrouter"].requests[0]


def test_a_fallback_to_the_offline_model_needs_no_address(servers: Servers) -> None:
    agent = Agent("a", model="my-model", base_url="http://127.0.0.1:9", log=False, quiet=True)
    assert agent.create_llm("offline").model == "offline"
