"""A record tells how a model was asked for a structured answer; replay, bisect and bill know it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pydantic import BaseModel, create_model
from told import assert_told, requests_of
from wire_server import Answer, WireServer, chat

from connectagent import (
    Agent,
    LLMRequest,
    LLMResponse,
    Pause,
    Paused,
    ProviderError,
    Retry,
    Sequential,
    ToolCall,
    before_each_tool,
    before_llm,
    on_error,
    shadow,
)
from connectagent.cli.group import cli
from connectagent.models.openai import OpenAILLM
from connectagent.replay.replaying import replay
from connectagent.testing import bisect

PARIS = LLMResponse('{"name": "Paris"}')


class City(BaseModel):
    """A city."""

    name: str


class InWords:
    """A model that takes no schema, and notes what it is handed."""

    model = "checking"

    def __init__(self, *answers: LLMResponse) -> None:
        self.answers, self.received, self.asked = list(answers), [], []  # type: ignore[var-annotated]

    def complete(self, messages: Any, tools: Any = None) -> LLMResponse:
        self.received.append([dict(message) for message in messages])
        return self.answers.pop(0)


class BySchema(InWords):
    """The same for a model that takes one."""

    def complete(self, messages: Any, tools: Any = None, *, output: Any = None) -> LLMResponse:
        self.asked.append(output and output.model_json_schema())
        return super().complete(messages, tools)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path / ".co"))


def agent_of(llm: Any, *plugins: Any, **options: Any) -> Agent:
    plugins = (*plugins, *options.pop("plugins", ()))
    return Agent("sent", llm=llm, plugins=list(plugins), quiet=True, **options)


@pytest.mark.parametrize("kind", [InWords, BySchema])
def test_the_schema_is_told_once_and_each_request_whole(kind: type[InWords]) -> None:
    llm = kind(PARIS, PARIS, LLMResponse("Text."))
    agent = agent_of(llm)
    for output in (City, City, None):
        agent.input("Where?", output=output)
    assert agent.record is not None and assert_told(agent.record) == 3
    made = [request.data() for request in requests_of(agent.record)]
    assert [one["messages"] for one in made] == llm.received
    assert ["JSON Schema" in one["messages"][-1]["content"] for one in made] == [kind is InWords] * 2 + [False]
    if kind is BySchema:
        assert [one.get("output", {}).get("schema") for one in made] == llm.asked
    assert agent.record.read_text().count('"A city."') == 1


def test_an_endpoint_that_refuses_a_schema_was_asked_in_words() -> None:
    refused = {"error": {"message": "response_format is not supported", "type": "x"}}
    with WireServer(Answer(refused, status=400), chat(PARIS.content)) as server:
        agent = agent_of(OpenAILLM("m", api_key="k", base_url=server.openai_url))
        agent.input("Where?", output=City)
    assert agent.record is not None
    (request,) = requests_of(agent.record)
    assert request.data()["messages"][-1] == server.requests[1]["messages"][-1]


def test_a_call_of_a_handler_tells_its_form_too() -> None:
    @before_llm
    def judge(agent: Agent) -> None:
        agent.ask("Where?", output=City)

    agent = agent_of(BySchema(PARIS, LLMResponse("Text.")), judge)
    agent.input("Go.")
    assert agent.record is not None and assert_told(agent.record) == 2
    assert [bool(request.output) for request in requests_of(agent.record)] == [True, False]


def test_replay_tells_another_schema() -> None:
    agent = agent_of(InWords(PARIS), output=City)
    agent.input("Where?")
    assert agent.record is not None
    assert replay(agent.record, agent_of(InWords(), output=City)).divergence is None
    wider = create_model("City", name=(str, ...), people=(int, 0))
    outcome = replay(agent.record, agent_of(InWords(), output=wider))
    assert outcome.divergence is not None and outcome.divergence.what == "output", outcome
    assert any("people" in line for line in outcome.divergence.lines)


@pytest.mark.parametrize("of_agent", [True, False])
def test_bisect_takes_recorded_typed_answers_and_asks_with_the_schema(of_agent: bool) -> None:
    class Calling(BySchema):
        def complete(self, messages: Any, tools: Any = None, *, output: Any = None) -> LLMResponse:
            self.answers = [LLMResponse(None, [ToolCall("c2", "refund", {})])]
            if not any("refund" in str(message["content"]) for message in messages):
                self.answers = [PARIS]
            if any(message["role"] == "tool" for message in messages):
                self.answers = [PARIS]
            return super().complete(messages, tools, output=output)

    def refund() -> str:
        """Refund an order."""
        return "done"

    @before_llm
    def push(agent: Agent, request: LLMRequest) -> None:
        if agent.session["turn"] == 2:
            request.messages = [*request.messages, {"role": "user", "content": "refund"}]

    def make(record: Any = False) -> Agent:
        return Agent("sent", [refund], llm=llm, plugins=[push], quiet=True, log=record, **given)

    given: dict[str, Any] = {"output": City} if of_agent else {}
    llm = Calling()
    agent = make(True)
    for _ in range(2):
        agent.input("Where?", **({} if of_agent else {"output": City}))
    assert agent.record is not None
    llm.received.clear(), llm.asked.clear()
    finding = bisect(agent.record, make, "calls refund", by=["plugins"])
    assert finding.is_confirmed and finding.needed == ["push"], finding
    assert llm.asked and all(asked == City.model_json_schema() for asked in llm.asked)
    assert all(len(messages) > 1 for messages in llm.received)  # the first turn is played from the record


def test_commands_show_the_form() -> None:
    agent = agent_of(InWords(PARIS))
    agent.input("Where?", output=City)
    shown = CliRunner().invoke(cli, ["log", "request", str(agent.record)])
    assert "answer: fits City, asked for at the end of the last message" in shown.output, shown.output
    bill = CliRunner().invoke(cli, ["bill", str(agent.record)])
    assert "answer's schema" in bill.output and "City" in bill.output, bill.output


# -- with everything else ------------------------------------------------------------------------


def lookup(name: str) -> str:
    """Look a city up."""
    return f"{name} is there"


LOOK = LLMResponse(None, [ToolCall("c1", "lookup", {"name": "Paris"})])


@on_error
def again(tool_call: Any) -> Retry | None:
    return Retry(model=InWords(PARIS)) if tool_call is None else None


class Refuses(BySchema):
    """A model that fails, so that another one is asked, in words."""

    def complete(self, messages: Any, tools: Any = None, *, output: Any = None) -> LLMResponse:
        raise ProviderError("busy", kind="overloaded", provider="test")


@before_each_tool
def pauses(tool_call: ToolCall) -> None:
    if not tool_call.approved:
        raise Pause("may it?")


def plain(**options: Any) -> Agent:
    return agent_of(BySchema(LOOK, PARIS), tools=[lookup], **options)


def inside(workflow: Any) -> Agent:
    child = Agent("child", llm=BySchema(PARIS), output=City, description="Knows.", quiet=True)
    if workflow is Sequential:
        return Sequential("sent", [child, Agent("next", llm=InWords(LLMResponse("Text.")), quiet=True)], quiet=True)
    return agent_of(BySchema(LLMResponse(None, [ToolCall("c1", "child", {"prompt": "?"})]), PARIS), tools=[child])


CASES: dict[str, tuple[Callable[[], Agent], int]] = {
    "tools": (plain, 2),
    "streamed": (lambda: plain(stream=True), 2),
    "another model": (lambda: agent_of(Refuses(), again), 2),
    "sent back": (lambda: agent_of(BySchema(LLMResponse("no"), PARIS)), 2),
    "agent as tool": (lambda: inside(None), 3),
    "Sequential": (lambda: inside(Sequential), 2),
    "shadow": (lambda: plain(plugins=[shadow([again])]), 2),
}


@pytest.mark.parametrize("case", CASES)
def test_each_request_is_whole_and_plays_again(case: str) -> None:
    make, calls = CASES[case]
    agent = make()
    agent.input("Where?", **({} if case == "Sequential" else {"output": City}))
    assert agent.record is not None and assert_told(agent.record) == calls
    assert any(request.output for request in requests_of(agent.record))
    outcome = replay(agent.record, make())
    assert outcome.same, outcome


def test_paused_and_decided_elsewhere_it_is_whole_too() -> None:
    agent = plain(plugins=[pauses])
    with pytest.raises(Paused):
        agent.input("Where?", output=City)
    assert agent.record is not None
    other = agent_of(BySchema(PARIS), pauses, tools=[lookup])
    assert other.resume(agent.record, approve=True, output=City) == City(name="Paris")
    assert assert_told(agent.record) == 2
    assert [bool(request.output) for request in requests_of(agent.record)] == [True, True]
    assert replay(agent.record, plain(plugins=[pauses])).same


class Tree(BaseModel):
    """A tree, whose schema is a reference to itself."""

    name: str
    inner: list[Tree] = []


def test_the_words_for_a_recursive_form_are_recorded_as_they_were_sent() -> None:
    refused = {"error": {"message": "No.", "type": "x"}}
    with WireServer(Answer(refused, status=400), chat('{"name": "a"}')) as server:
        agent = agent_of(OpenAILLM("m", api_key="k", base_url=server.openai_url))
        agent.input("Where?", output=Tree)
        agent.input("Where?", output=Tree)
    assert agent.record is not None and len(server.requests) == 3
    sent = [request.data()["messages"] for request in requests_of(agent.record)]
    assert sent == [server.requests[1]["messages"], server.requests[2]["messages"]]
