"""A conversation goes over from each model to each other and back, and no provider refuses it.

Each pair of models is taken in two of the eight states; `CONNECTAGENT_MATRIX=all` takes it in every one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from published_rules import Publisher
from pydantic import create_model
from wire_server import Answer, WireServer, message, tool_use

from connectagent import (
    Agent,
    LLMResponse,
    ProviderError,
    Retry,
    ToolCall,
    after_llm,
    after_tools,
    before_each_tool,
    before_llm,
    on_error,
)
from connectagent.models.anthropic import AnthropicLLM
from connectagent.models.notes import THINKING_IS_OFF
from connectagent.models.openai import OpenAILLM
from connectagent.models.openai_messages import to_wire
from connectagent.models.origin import Origin
from connectagent.models.responses import ResponsesLLM
from connectagent.models.sdk import WireLLM
from connectagent.session.messages import assistant_message

THINKS: dict[str, Any] = {"thinking": {"type": "enabled", "budget_tokens": 2000}}
ADAPTERS: dict[str, type[WireLLM]] = {"anthropic": AnthropicLLM, "openai-responses": ResponsesLLM}


@dataclass(frozen=True)
class Party:
    """A model in a mode.

    Args:
        server: the one that is asked.
        provider: by the name of which it is asked.
        model: its name there.
        options: parameters of each request.
    """

    server: str
    provider: str
    model: str
    options: dict[str, Any] = field(default_factory=dict)

    def llm(self, servers: dict[str, Publisher]) -> WireLLM:
        server = servers[self.server]
        address = server.url if self.provider == "anthropic" else server.openai_url
        adapter = ADAPTERS.get(self.provider, OpenAILLM)
        options = {"max_retries": 0, **self.options}
        return adapter(self.model, provider=self.provider, api_key="k", base_url=address, options=options)


# The servers, each with the rules that it goes by. Two are by the same rules, as a gateway and the provider itself are.
SERVERS = {
    "openai": "openai", "responses": "openai-responses", "gateway": "openai-responses", "anthropic": "anthropic",
    "like": "anthropic", "gemini": "gemini", "deepseek": "deepseek", "mistral": "mistral", "openrouter": "openrouter",
    "vllm": "vllm", "deepseek by messages": "anthropic",
}  # fmt: skip
PARTIES = {
    "gpt-4o": Party("openai", "openai", "gpt-4o"),
    "gpt-5": Party("responses", "openai-responses", "gpt-5"),
    "gpt-5-mini": Party("responses", "openai-responses", "gpt-5-mini"),
    "gpt-5 elsewhere": Party("gateway", "openai-responses", "gpt-5"),
    "sonnet": Party("anthropic", "anthropic", "claude-sonnet-4-5"),
    "sonnet thinks": Party("anthropic", "anthropic", "claude-sonnet-4-5", THINKS),
    "opus thinks": Party("anthropic", "anthropic", "claude-opus-4-5", THINKS),
    "fable": Party("anthropic", "anthropic", "claude-fable-5-1"),
    "sonnet thinks elsewhere": Party("like", "anthropic", "claude-sonnet-4-5", THINKS),
    "gemini-3-pro": Party("gemini", "gemini", "gemini-3-pro-preview"),
    "gemini-3-flash": Party("gemini", "gemini", "gemini-3-flash-preview"),
    "deepseek": Party("deepseek", "deepseek", "deepseek-v4-flash"),
    "deepseek by messages": Party("deepseek by messages", "anthropic", "deepseek-v4-flash"),
    "deepseek-chat": Party("deepseek", "deepseek", "deepseek-chat"),
    "mistral": Party("mistral", "mistral", "mistral-large-latest"),
    "mistral on vllm": Party("vllm", "openai", "mistralai/Mistral-Small-3.2-24B-Instruct-2506"),
    "router's claude": Party("openrouter", "openrouter", "anthropic/claude-opus-4.5", {"reasoning": {"effort": "low"}}),
    "router's gpt": Party("openrouter", "openrouter", "openai/gpt-5"),
    "router's gemini": Party("openrouter", "openrouter", "google/gemini-3-pro-preview"),
    "router's mistral": Party("openrouter", "openrouter", "mistralai/mistral-medium-3"),
}


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Publisher]]:
    running = {name: Publisher(rules) for name, rules in SERVERS.items()}
    for server in running.values():
        server.__enter__()
    yield running
    for server in running.values():
        server.__exit__()


def look(n: int = 0) -> str:
    """Look."""
    return f"saw {n}"


class Run:
    """One conversation that begins with one model and goes over to another."""

    def __init__(self, servers: dict[str, Publisher], one: Party, other: Party, stream: bool = False) -> None:
        self.servers, self.stream = servers, stream
        self.one, self.other = one.llm(servers), other.llm(servers)
        self._first = servers[one.server]

    def agent(self, *handlers: Any, log: Any = False) -> Agent:
        return Agent("a", [look], llm=self.one, on_events=list(handlers), stream=self.stream, log=log, quiet=True)

    def asks(self, agent: Agent, llm: WireLLM, prompt: str) -> None:
        agent.llm = llm
        assert agent.input(prompt) == "Seen."


# -- the states in which a conversation goes over ------------------------------------------------


def between_turns_of_text(run: Run) -> None:
    agent = run.agent()
    for llm in (run.one, run.other, run.one, run.other):
        run.asks(agent, llm, "hi")


def between_turns_with_tools(run: Run) -> None:
    agent = run.agent()
    for llm in (run.one, run.other, run.one, run.other):
        run.asks(agent, llm, "calls=2")


def in_mid_turn(run: Run) -> None:
    next_llm = iter([run.other, run.one, run.other, run.one] * 2)

    @after_tools
    def changes(agent: Any) -> None:
        agent.llm = next(next_llm)

    agent = run.agent(changes)
    run.asks(agent, run.one, "calls=3")
    run.asks(agent, run.one, "calls=1")


def behind_a_note(run: Run) -> None:
    """The user's message stands directly behind results."""

    @after_tools
    def notes(agent: Any) -> None:
        agent.current_session["messages"].append({"role": "user", "content": "Note the time."})
        agent.llm = run.other if agent.llm is run.one else run.one

    agent = run.agent(notes)
    run.asks(agent, run.one, "calls=3")
    run.asks(agent, run.other, "calls=1")


def for_one_call_after_a_failure(run: Run) -> None:
    @after_tools
    def breaks(agent: Any) -> None:
        run._first.failing = int(agent.current_session["iteration"] == 1)

    @on_error
    def asks_another(agent: Any) -> Retry:
        return Retry(model=run.other)

    agent = run.agent(breaks, asks_another)
    run.asks(agent, run.one, "calls=3")
    run.asks(agent, run.one, "calls=2")
    run.asks(agent, run.other, "calls=1")


def a_call(id: str) -> LLMResponse:
    return LLMResponse(None, [ToolCall(id, "look", {"n": 2})])


def after_a_stand_in(run: Run) -> None:
    @before_llm
    def stands_in(agent: Any) -> LLMResponse | None:
        session = agent.current_session
        if session["iteration"] != session["turn"]:  # the first request of the first turn, the second of the second
            return None
        agent.llm = run.other
        return a_call(f"made-up-{session['turn']}")

    agent = run.agent(stands_in)
    for _ in range(2):
        run.asks(agent, run.one, "calls=3")
    run.asks(agent, run.one, "calls=1")


def after_a_replacement(run: Run) -> None:
    @after_llm
    def replaces(agent: Any, response: LLMResponse) -> LLMResponse | None:
        session = agent.current_session
        if session["iteration"] != session["turn"] or not response.tool_calls:
            return None
        agent.llm = run.other
        return a_call(f"made up {session['turn']}")

    agent = run.agent(replaces)
    for _ in range(2):
        run.asks(agent, run.one, "calls=3")
    run.asks(agent, run.one, "calls=1")


def from_its_record(run: Run) -> None:
    @before_each_tool
    def is_killed(agent: Any) -> None:
        if agent.current_session["iteration"] == 2:
            raise KeyboardInterrupt

    agent = run.agent(is_killed, log=None)
    with pytest.raises(KeyboardInterrupt):
        agent.input("calls=3")
    agent.close()
    again = run.agent(log=None)
    again.llm = run.other
    assert again.resume(agent.record) == "Seen."
    run.asks(again, run.one, "calls=1")
    again.close()


STATES = (
    between_turns_of_text, between_turns_with_tools, in_mid_turn, behind_a_note, for_one_call_after_a_failure,
    after_a_stand_in, after_a_replacement, from_its_record,
)  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path))


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
@pytest.mark.parametrize("one", PARTIES)
def test_no_provider_refuses_a_conversation_of_another(one: str, state: Any, servers: dict[str, Publisher]) -> None:
    names = list(PARTIES)
    begin = (names.index(one) + STATES.index(state)) % 4
    others = names if os.environ.get("CONNECTAGENT_MATRIX") == "all" else names[begin::4]
    assert_taken(one, others, state, servers)


@pytest.mark.parametrize("one", PARTIES)
def test_no_provider_refuses_a_streamed_conversation_of_another(one: str, servers: dict[str, Publisher]) -> None:
    names = [*PARTIES, *PARTIES]
    others = names[names.index(one) + 1 :][:3]
    for state in (in_mid_turn, from_its_record):
        assert_taken(one, others, state, servers, stream=True)


def assert_taken(one: str, others: Any, state: Any, servers: dict[str, Publisher], stream: bool = False) -> None:
    problems = []
    for name in others:
        for server in servers.values():
            server.refused.clear()
            server.failing = 0
        try:
            state(Run(servers, PARTIES[one], PARTIES[name], stream))
        except Exception as error:
            problems.append(f"to {name}: {error!r:.200}")
        problems += [f"to {name}: {text}" for server in servers.values() for text in server.refused]
    assert not problems, "\n".join(problems)


# -- what is a model's own comes back to it ------------------------------------------------------

SIGNING = [name for name in PARTIES if name not in {"gpt-4o", "sonnet", "deepseek-chat"} and "mistral" not in name]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("name", SIGNING)
def test_a_model_gets_its_own_back_and_after_another_one_too(
    name: str, stream: bool, servers: dict[str, Publisher]
) -> None:
    party = PARTIES[name]
    run, server = Run(servers, party, PARTIES["gpt-4o"], stream), servers[party.server]
    agent, begin = run.agent(), len(server.own)
    run.asks(agent, run.one, "calls=2")
    run.asks(agent, run.other, "calls=1")
    run.asks(agent, run.one, "calls=0")
    own = server.own[begin:]
    # Gemini's texts have no signature, and DeepSeek does not think here behind calls of others
    last = {"gemini-3-pro": 2, "gemini-3-flash": 2, "deepseek by messages": 0}.get(name, 3)
    assert own == [0, 1, 2, last]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("name", [name for name in SIGNING if not name.startswith("deepseek")])
def test_a_model_that_refuses_its_own_gets_the_conversation_without_it(
    name: str, stream: bool, servers: dict[str, Publisher]
) -> None:
    party = PARTIES[name]
    run, server = Run(servers, party, party, stream), servers[party.server]

    @after_tools
    def changes_the_account(agent: Any) -> None:
        if (agent.current_session["turn"], agent.current_session["iteration"]) == (1, 2):
            server.forget()

    agent = run.agent(changes_the_account)
    server.refused.clear()
    run.asks(agent, run.one, "calls=4")
    assert len(server.refused) == 1, server.refused
    notes = [text for texts in adapted(agent) for text in texts or ()]
    assert len([text for text in notes if text.startswith("thinking of earlier answers is left out, which ")]) == 1
    begin = len(server.own)
    run.asks(agent, run.one, "calls=2")
    assert len(server.refused) == 1
    assert server.own[begin:][-1] > server.own[begin:][0]  # what it wrote since comes back to it


def test_a_changed_conversation_goes_on_where_thinking_is_bound_to_what_stands_before_it(
    servers: dict[str, Publisher],
) -> None:
    server = servers["anthropic"]

    @after_tools
    def edits(agent: Any) -> None:
        if agent.current_session["iteration"] == 2:
            agent.current_session["messages"][0]["content"] = "calls=3, if you please"

    agent = Agent("a", [look], llm=claude(server, "claude-fable-5-1"), on_events=[edits], log=False, quiet=True)
    server.refused.clear()
    assert agent.input("calls=3") == "Seen."
    assert len(server.refused) == 1 and "different conversation" in server.refused[0]
    agent.tools.add(forget_it)
    assert agent.input("calls=1") == "Seen."
    assert len(server.refused) == 2


def forget_it() -> str:
    """Forget it."""
    return "forgotten"


def test_another_error_about_a_signature_is_raised() -> None:
    text = "InvalidSignature: the signature in the request headers is not valid"
    error = Answer({"error": {"message": text}}, 400)
    history: list[Any] = [
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": "Hello.", "provider_data": None},
        {"role": "user", "content": "And?"},
    ]
    for status in (400, 403):
        error.status = status
        with WireServer(error) as server:
            llm = OpenAILLM("m", provider="vllm", api_key="k", base_url=server.openai_url, options={"max_retries": 0})
            history[1]["provider_data"] = llm.origin.kept(message={"reasoning": "Hm."})
            with pytest.raises(ProviderError, match="InvalidSignature"):
                llm.complete(history)
            assert len(server.requests) == 1


def test_an_address_tells_no_password() -> None:
    llm = OpenAILLM("m", api_key="k", base_url="https://me:secret@Example.com:8443/v1/key/abc?token=xyz")
    assert llm.origin == Origin("openai", "example.com:8443", "m")


def claude(server: Any, model: str = "claude-sonnet-4-5", **options: Any) -> AnthropicLLM:
    return AnthropicLLM(model, api_key="k", base_url=server.url, options={"max_retries": 0, **options})


def test_what_a_record_of_an_older_version_keeps_is_nobodys(servers: dict[str, Publisher]) -> None:
    server = servers["anthropic"]

    @before_each_tool
    def is_killed(agent: Any) -> None:
        if agent.current_session["iteration"] == 2:
            raise KeyboardInterrupt

    agent = Agent("a", [look], llm=claude(server, **THINKS), on_events=[is_killed], quiet=True)
    with pytest.raises(KeyboardInterrupt):
        agent.input("calls=3")
    agent.close()
    record = Path(str(agent.record))
    text = record.read_text()
    old = re.sub(r', \\*"(address|mode|model)\\*": \\*"(127[^"]*|enabled|claude-sonnet-4-5)\\*"', "", text)
    assert text.count("127.0.0.1") > old.count("127.0.0.1") and '"signature"' in old
    record.write_text(old)
    again = Agent("a", [look], llm=claude(server, **THINKS), quiet=True)
    begin = len(server.own)
    assert again.resume(record) == "Seen."
    assert server.own[begin:] == [0, 0] and "thinking" not in server.requests[-1]
    assert again.input("calls=1") == "Seen."
    assert server.own[begin:] == [0, 0, 0, 1] and "thinking" in server.requests[-1]


def test_another_model_at_the_address_gets_everything_but_the_thinking() -> None:
    searched = [
        {"type": "thinking", "thinking": "Hm.", "signature": "sig"},
        {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []},
    ]
    with WireServer(message(*searched, "Found."), message("Yes.")) as server:
        agent = Agent("a", llm=claude(server), log=False, quiet=True)
        agent.input("Search.")
        agent.llm = claude(server, "claude-opus-4-5")
        agent.input("And?")
        kinds = [block["type"] for block in server.requests[1]["messages"][1]["content"]]
    assert kinds == ["server_tool_use", "web_search_tool_result", "text"]


# -- the mode of a request -----------------------------------------------------------------------


def adapted(agent: Any) -> list[Any]:
    """For each model call of the session: what was adapted in its request."""
    entries = agent.current_session["trace"]
    return [entry.get("request", {}).get("adapted") for entry in entries if entry["type"] == "llm_call"]


def test_thinking_that_is_switched_on_in_mid_turn_begins_with_the_next_turn(servers: dict[str, Publisher]) -> None:
    @before_llm
    def switches(agent: Any, request: Any) -> None:
        if agent.current_session["iteration"] > 1 or agent.current_session["turn"] == 2:
            request.options.update(THINKS)

    server = servers["anthropic"]
    agent = Agent("a", [look], llm=claude(server), on_events=[switches], log=False, quiet=True)
    begin = len(server.requests)
    for calls in (2, 1, 1):
        agent.input(f"calls={calls}")
    off = [THINKING_IS_OFF]
    assert adapted(agent) == [None, off, None, None, None, None, off]  # told where it begins
    assert ["thinking" in one for one in server.requests[begin:]] == [False] * 3 + [True] * 2 + [False] * 2
    assert [one["max_tokens"] for one in server.requests[begin:]] == [8192] * 3 + [10192] * 2 + [8192] * 2


def test_a_typed_answer_is_asked_for_by_its_schema_where_its_model_may_not_think(servers: dict[str, Publisher]) -> None:
    call = ToolCall("c1", "look", {"n": 2})
    history: list[Any] = [
        {"role": "user", "content": "Look."},
        assistant_message(LLMResponse(None, [call])),
        {"role": "tool", "tool_call_id": "c1", "content": "saw 2"},
    ]
    with WireServer(message("{}")) as server:
        claude(server, **THINKS).complete(history, output=create_model("Seen"))
    assert "thinking" not in server.requests[0]
    assert server.requests[0]["tool_choice"] == {"type": "none"}  # as where it thinks: no tool of the form is forced
    assert server.requests[0]["output_config"]["format"]["type"] == "json_schema"


def test_rounds_without_thinking_behind_the_first_leave_thinking_on() -> None:
    """Without interleaved thinking, a Claude model thinks once in a turn."""
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "sig"}
    answers = (
        message(thought, tool_use("t1", "look"), stop="tool_use"),
        message(tool_use("t2", "look"), stop="tool_use"),
        message("Seen."),
    )
    with WireServer(*answers) as server:
        agent = Agent("a", [look], llm=claude(server, **THINKS), log=False, quiet=True)
        assert agent.input("Look.") == "Seen."
    assert [one["thinking"]["type"] for one in server.requests] == ["enabled"] * 3
    kinds = [[block["type"] for block in one["content"]] for one in server.requests[2]["messages"]]
    assert kinds == [["text"], ["thinking", "tool_use"], ["tool_result"], ["tool_use"], ["tool_result"]]


CALLS = [{"id": f"c{n}", "type": "function", "function": {"name": "look", "arguments": "{}"}} for n in range(2)]
HISTORY: list[Any] = [
    {"role": "user", "content": "Look."},
    {"role": "assistant", "content": None, "tool_calls": CALLS},
    *({"role": "tool", "tool_call_id": call["id"], "content": "saw"} for call in CALLS),
    {"role": "assistant", "content": "Seen."},
    {"role": "user", "content": "And?"},
]


def sent_to(provider: str, model: str, **options: Any) -> list[Any]:
    return to_wire(HISTORY, Origin(provider, "example.com", model), options)


@pytest.mark.parametrize(
    ("provider", "model", "signed"),
    [
        ("gemini", "gemini-3-pro-preview", True),
        ("gemini", "gemini-3.5-flash", True),
        ("gemini", "gemini-4-pro", True),
        ("gemini", "gemini-flash-latest", True),
        ("openai", "google/gemini-3-flash-preview", True),
        ("gemini", "gemini-2.5-flash", False),
        ("openai", "gpt-4o", False),
        ("groq", "gemini-3-like", False),
    ],
)
def test_the_first_call_of_a_round_has_the_dummy_signature_for_gemini_3(
    provider: str, model: str, signed: bool
) -> None:
    calls = sent_to(provider, model)[1]["tool_calls"]
    dummy = {"google": {"thought_signature": "skip_thought_signature_validator"}}
    assert [call.get("extra_content") for call in calls] == [dummy if signed else None, None]
    assert "extra_content" not in CALLS[0]


@pytest.mark.parametrize(
    ("provider", "model", "options", "reasons"),
    [
        ("deepseek", "deepseek-v4-pro", {}, True),
        ("deepseek", "deepseek-reasoner", {}, True),
        ("deepseek", "deepseek-chat", {"thinking": {"type": "enabled"}}, True),
        ("openai", "deepseek-v4-flash", {}, True),
        ("openai", "kimi-k2.5", {}, True),
        ("openai", "kimi-k2.6", {"thinking": {"type": "disabled"}}, False),
        ("deepseek", "deepseek-v4-pro", {"thinking": {"type": "disabled"}}, False),
        ("deepseek", "deepseek-chat", {}, False),
        ("groq", "deepseek-r1-distill-llama-70b", {}, False),
        ("openrouter", "deepseek/deepseek-v3.2", {}, False),
    ],
)
def test_each_message_has_reasoning_content_where_deepseek_or_kimi_thinks(
    provider: str, model: str, options: Any, reasons: bool
) -> None:
    sent = [one for one in sent_to(provider, model, **options) if one["role"] == "assistant"]
    assert [one.get("reasoning_content") for one in sent] == ["" if reasons else None] * 2


@pytest.mark.parametrize("model", ["devstral-small", "mistralai/Magistral-Small-2509", "mixtral:8x7b", "Pixtral-12B"])
def test_mistrals_models_are_known_by_name_on_any_server(model: str) -> None:
    history = [*HISTORY[:4], HISTORY[5]]
    wire = to_wire(history, Origin("ollama", "localhost:11434", model))
    assert [one["role"] for one in wire] == ["user", "assistant", "tool", "tool", "assistant", "user"]
    assert all(re.fullmatch("[a-zA-Z0-9]{9}", call["id"]) for call in wire[1]["tool_calls"])
    assert len(to_wire(history, Origin("ollama", "localhost:11434", "llama3.2"))) == 5
