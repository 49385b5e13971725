"""Long conversations are sent with summaries, by ADK's rules; beside google-adk where it is installed."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import random
from typing import Any

import pytest
from connectagent_adk import (
    Event,
    EventActions,
    EventCompaction,
    EventsCompactionConfig,
    LlmEventSummarizer,
    adk_callbacks,
    adk_compaction,
    types,
)
from connectagent_adk.translation import contents_of
from pytest_connectagent import AgentTester

from connectagent import Agent, ConfigError, LLMResponse, TokenUsage, ToolCall
from connectagent.testing import ScriptedLLM, call

RUNS = int(os.environ.get("CONNECTAGENT_ADK_RUNS", "8"))
SUMMARY = "The user looked at things."


def look(at: str) -> str:
    """Look at something."""
    return f"{at}: nothing"


def text_of(content: Any) -> list[Any]:
    """What a content says, whoever's class it is of."""
    said: list[Any] = [content.role]
    for part in content.parts or ():
        if part.function_call:
            said.append(("call", part.function_call.name, dict(part.function_call.args or {})))
        elif part.function_response:
            said.append(("result", part.function_response.name, dict(part.function_response.response or {})))
        else:
            said.append(part.text)
    return said


def sent(agent: Agent) -> list[list[Any]]:
    """What each request said, without what keeps it valid for providers."""
    requests: Any = agent.llm.requests  # type: ignore[attr-defined]
    found = [[text_of(content) for content, _ in contents_of(request.messages, types)] for request in requests]
    return [one[:-1] if one[-1] == ["user", "Go on with what was asked for."] else one for one in found]


def summary_of(given: list[Any]) -> str:
    return f"summary of {len(given)} events, the last of {given[-1][0]}"


class Noting:
    """A summarizer that notes what it is given."""

    def __init__(self) -> None:
        self.given: list[list[Any]] = []

    async def maybe_summarize_events(self, *, events: list[Event]) -> Event:
        self.given.append([[event.author, *text_of(event.content)] for event in events])
        content = types.Content(role="model", parts=[types.Part(text=summary_of(self.given[-1]))])
        compaction = EventCompaction(events[0].timestamp, events[-1].timestamp, content)
        return Event("user", actions=EventActions(compaction=compaction))


def made(config: Any, *responses: Any, **given: Any) -> Agent:
    plugin, more = adk_compaction(config), given.pop("plugins", [])
    llm = ScriptedLLM(*responses)
    return Agent("guide", [look], llm=llm, plugins=[plugin, *more], **{"log": False, "quiet": True, **given})


# -- alone -----------------------------------------------------------------------------------------


def test_turns_are_summed_up_by_the_agents_model_and_the_conversation_keeps_them() -> None:
    config = EventsCompactionConfig(compaction_interval=2, overlap_size=0)
    agent = made(config, "One.", "Two.", SUMMARY, "Three.")
    for prompt in ("a" * 300, "b" * 300, "c"):
        agent.input(prompt)
    asked, last = (request.messages for request in agent.llm.requests[2:])  # type: ignore[attr-defined]
    assert [message["role"] for message in asked] == ["user"] and "guide: Two." in asked[0]["content"]
    assert [message["content"] for message in last] == [SUMMARY, "c"]
    assert len(agent.session["messages"]) == 6
    (entry,) = [entry for entry in agent.session["trace"] if entry["type"] == "adk_compacted"]
    assert (entry["status"], entry["start"], entry["end"], entry["text"]) == ("success", 0, 4, SUMMARY)


def test_callbacks_are_given_what_is_sent() -> None:
    seen: list[Any] = []
    guard = adk_callbacks(before_model_callback=lambda callback_context, llm_request: seen.append(llm_request.contents))
    config = EventsCompactionConfig(compaction_interval=1, overlap_size=0)
    agent = made(config, "One.", SUMMARY, "Two.", SUMMARY, plugins=[guard])
    agent.input("a" * 300)
    agent.input("b")
    assert [text_of(content) for content in seen[1]] == [["model", SUMMARY], ["user", "b"]]


def test_a_summary_that_fails_or_that_would_not_be_shorter_leaves_the_conversation_as_it_is() -> None:
    config = EventsCompactionConfig(compaction_interval=1, overlap_size=0)
    agent = made(config, "One.", ConnectionError("down"), "Two.", "x" * 500, "Three.", "Four.")
    for prompt in ("a" * 300, "b", "c", "d"):
        agent.input(prompt)
    assert [len(request) for request in sent(agent)] == [1, 1, 3, 1, 2, 4]
    told = [entry for entry in agent.session["trace"] if entry["type"] == "adk_compacted"]
    assert [entry["status"] for entry in told] == ["error", "success"] and "down" in told[0]["error"]


@pytest.mark.parametrize("reason", ["length", "MAX_TOKENS", "refusal", "one_of_next_year"])
def test_a_cut_or_refused_answer_is_no_summary(reason: str) -> None:
    config = EventsCompactionConfig(compaction_interval=1, overlap_size=0)
    bad = LLMResponse("I cannot.", finish_reason=reason)
    agent = made(config, "One.", bad, "Two.", SUMMARY)
    for prompt in ("a" * 300, "b"):
        agent.input(prompt)
    assert [message["content"] for message in agent.llm.requests[2].messages] == ["a" * 300, "One.", "b"]  # type: ignore[attr-defined]
    told = [entry for entry in agent.session["trace"] if entry["type"] == "adk_compacted"]
    assert [entry["status"] for entry in told] == ["error", "success"] and reason in told[0]["error"]


def test_a_result_stays_with_its_call_and_of_a_turn_that_is_gone_the_model_is_told_to_go_on() -> None:
    long = [call("look", at="x" * 400), call("look", at="y" * 400)]
    agent = made(EventsCompactionConfig(Noting(), token_threshold=10, event_retention_size=1), long, "Done.")
    agent.input("Look" * 100)
    assert sent(agent)[1][0] == ["model", "summary of 1 events, the last of user"]
    assert [one[0] for one in sent(agent)[1]] == ["model", "model", "user"]
    gone = made(EventsCompactionConfig(Noting(), token_threshold=10, event_retention_size=0), long, "Done.")
    gone.input("Look")
    assert sent(gone)[1] == [["model", "summary of 3 events, the last of guide"]]
    assert gone.llm.requests[1].messages[-1]["role"] == "user"  # type: ignore[attr-defined]


def test_a_session_that_goes_on_elsewhere_has_its_summaries(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = EventsCompactionConfig(compaction_interval=1, overlap_size=0, summarizer=LlmEventSummarizer())
    agent = made(config, "One.", SUMMARY, log=None)
    agent.input("a" * 300)
    again = made(config, "Two.", log=None)
    again.resume(agent.record)
    again.input("b")
    assert sent(again)[0] == [["model", SUMMARY], ["user", "b"]]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "give token_threshold"),
        ({"token_threshold": 5}, "set together"),
        ({"compaction_interval": 0, "overlap_size": 0}, "at least 1"),
        ({"compaction_interval": 2, "overlap_size": -1}, "at least 0"),
    ],
)
def test_a_config_that_adk_refuses_is_refused(given: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        EventsCompactionConfig(**given)


def test_what_is_no_config_or_no_summarizer_is_refused() -> None:
    with pytest.raises(ConfigError, match="takes an EventsCompactionConfig, not 3"):
        adk_compaction(3)
    with pytest.raises(ConfigError, match="maybe_summarize_events"):
        adk_compaction(EventsCompactionConfig(summarizer=3, compaction_interval=1, overlap_size=0))


def test_it_keeps_the_rules_on_every_path(agenttester: AgentTester) -> None:
    for config in ({"compaction_interval": 1, "overlap_size": 1}, {"token_threshold": 1, "event_retention_size": 1}):
        plugin = adk_compaction(EventsCompactionConfig(Noting(), **config))
        agenttester.check(plugin, changes={"state", "request"})


# -- beside google-adk -----------------------------------------------------------------------------


def has_adk() -> bool:
    try:
        return importlib.util.find_spec("google.adk") is not None
    except ModuleNotFoundError:
        return False


def random_case(seed: int) -> tuple[dict[str, int], list[tuple[str, list[Any]]]]:
    """A config, and for each turn the prompt and what the model answers: texts and rounds of calls, with tokens."""
    dice = random.Random(seed)
    config: dict[str, int] = {}
    if dice.random() < 0.7:
        config |= {"compaction_interval": dice.randrange(1, 4), "overlap_size": dice.randrange(0, 3)}
    if not config or dice.random() < 0.5:
        config |= {"token_threshold": dice.choice([1, 40, 90]), "event_retention_size": dice.randrange(0, 5)}
    # Where nobody counts tokens, ADK's estimate at the end of a turn takes the agent's own answers for another agent's.
    counted, number, turns = "token_threshold" in config or dice.random() < 0.5, 0, []
    for turn in range(dice.randrange(3, 9)):
        steps: list[Any] = []
        for _ in range(dice.randrange(3)):
            number += 1
            ats = [f"at {number} {n}" * dice.choice([1, 9]) for n in range(dice.choice([1, 2]))]
            steps.append([(f"c{number}-{n}", at) for n, at in enumerate(ats)])
        steps.append(f"answer {turn} " * dice.choice([1, 20]))
        prompt = f"prompt {turn} " * dice.choice([1, 20])
        turns.append((prompt, [(step, dice.randrange(1, 130) if counted else None) for step in steps]))
    return config, turns


def in_adk(config: dict[str, int], turns: list[tuple[str, list[Any]]]) -> tuple[list[Any], list[Any]]:
    """What ADK's own runner sends, and what its summarizer is given."""
    from google.adk.agents import LlmAgent
    from google.adk.apps import App
    from google.adk.apps.app import EventsCompactionConfig as Config
    from google.adk.apps.base_events_summarizer import BaseEventsSummarizer
    from google.adk.events.event import Event as Theirs
    from google.adk.events.event_actions import EventActions as Actions
    from google.adk.events.event_actions import EventCompaction as Compaction
    from google.adk.models import BaseLlm, LlmResponse
    from google.adk.runners import InMemoryRunner
    from google.genai import types as of

    requests: list[Any] = []
    given: list[Any] = []

    class Scripted(BaseLlm):  # type: ignore[misc, unused-ignore]
        async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
            requests.append([text_of(content) for content in llm_request.contents])
            step, tokens = answers.pop(0)
            parts = [of.Part(text=step)] if isinstance(step, str) else []
            for id, at in step if isinstance(step, list) else ():
                parts.append(of.Part(function_call=of.FunctionCall(id=id, name="look", args={"at": at})))
            usage = tokens and of.GenerateContentResponseUsageMetadata(prompt_token_count=tokens)
            yield LlmResponse(content=of.Content(role="model", parts=parts), usage_metadata=usage)

    class Summarizer(BaseEventsSummarizer):  # type: ignore[misc, unused-ignore]
        async def maybe_summarize_events(self, *, events: Any) -> Any:
            given.append([[event.author, *text_of(event.content)] for event in events])
            content = of.Content(role="model", parts=[of.Part(text=summary_of(given[-1]))])
            times = {"start_timestamp": events[0].timestamp, "end_timestamp": events[-1].timestamp}
            compaction = Compaction(compacted_content=content, **times)
            return Theirs(author="user", actions=Actions(compaction=compaction), invocation_id=Theirs.new_id())

    answers = [step for _, steps in turns for step in steps]
    agent = LlmAgent(name="guide", model=Scripted(model="scripted"), tools=[look])
    app = App(name="a", root_agent=agent, events_compaction_config=Config(summarizer=Summarizer(), **config))
    runner = InMemoryRunner(app=app)

    async def run() -> None:
        await runner.session_service.create_session(app_name="a", user_id="u", session_id="s")
        for prompt, _ in turns:
            message = of.Content(role="user", parts=[of.Part(text=prompt)])
            async for _ in runner.run_async(user_id="u", session_id="s", new_message=message):
                pass

    asyncio.run(run())
    return requests, given


def in_connectagent(config: dict[str, int], turns: list[tuple[str, list[Any]]]) -> tuple[list[Any], list[Any]]:
    responses = []
    for step, tokens in (step for _, steps in turns for step in steps):
        usage = TokenUsage(tokens, 1) if tokens else None
        calls = [ToolCall(id, "look", {"at": at}) for id, at in step] if isinstance(step, list) else None
        responses.append(LLMResponse(None if calls else step, calls, usage=usage))
    summarizer = Noting()
    agent = made(EventsCompactionConfig(summarizer=summarizer, **config), *responses)
    for prompt, _ in turns:
        agent.input(prompt)
    return sent(agent), summarizer.given


@pytest.mark.filterwarnings("default")  # Google's packages warn of their own deprecations
@pytest.mark.skipif(not has_adk(), reason="no google-adk: pip install google-adk")
@pytest.mark.parametrize("seed", range(RUNS))
def test_random_conversations_are_compacted_as_adks_runner_does_it(seed: int) -> None:
    case = random_case(seed)
    assert in_connectagent(*case) == in_adk(*case)
