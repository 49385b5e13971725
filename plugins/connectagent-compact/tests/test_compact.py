"""A conversation stays below a share of the window; calls keep their results; the record keeps everything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from connectagent_compact import Compact, before_compact
from pytest_connectagent import AgentTester

from connectagent import (
    Agent,
    ConfigError,
    Image,
    LLMResponse,
    Message,
    ProviderError,
    TokenUsage,
    ToolCall,
    around_llm,
    on_complete,
    shadow,
)
from connectagent.records import read_record
from connectagent.testing import ScriptedLLM, call, conversation_problems, replayed


class Counting:
    """A model with a small window: it calls `look` once a turn, counts tokens, and sums up where it is asked to."""

    model = "counting"

    def __init__(self, window: int = 4096, rate: float = 0.25, breaks: bool = False, refuses: bool = False) -> None:
        self.context_window, self.rate, self.breaks = window, rate, breaks
        self.refuses = refuses
        self.peak = 0
        self.summaries: list[str] = []
        self.refused = 0

    def complete(self, messages: list[Message], tools: Any = None) -> LLMResponse:
        assert conversation_problems(messages) == []
        tokens = round(self.rate * len(json.dumps([messages, tools])))
        if tokens > self.context_window:
            self.refused += 1
            raise ProviderError("the prompt is too long", kind="context_length", provider="test")
        self.peak = max(self.peak, tokens)
        usage, last = TokenUsage(tokens, 20), messages[-1]
        if str(last["content"]).startswith("Sum up this conversation"):
            if self.breaks:
                raise ProviderError("no", kind="overloaded", provider="test")
            if self.refuses:
                return LLMResponse("I cannot sum that up.", usage=usage, finish_reason="refusal")
            self.summaries.append(str(last["content"]))
            return LLMResponse(f"Summary {len(self.summaries)}.", usage=usage)
        if last["role"] == "user" and tools:
            return LLMResponse("I look.", [ToolCall(f"c{len(messages)}_{tokens}", "look", {"size": 1500})], usage=usage)
        return LLMResponse("Seen.", usage=usage)


def look(size: int) -> str:
    """Look."""
    return "shelf " * (size // 6)


def agent_with(llm: Any, plugins: Any, **more: Any) -> Agent:
    given = {"tools": [look], "system_prompt": "You look.", "quiet": True, "log": False, **more}
    return Agent("helper", llm=llm, plugins=plugins if isinstance(plugins, list) else [plugins], **given)


def compactions(agent: Agent) -> list[dict[str, Any]]:
    return [entry for entry in agent.session["trace"] if entry["type"] == "compacted"]


def test_it_keeps_the_rules_on_every_path_where_it_compacts_each_time(agenttester: AgentTester) -> None:
    plugin = Compact(window=1000, share=0.05, to=0.04)
    # Agents share the sizes of texts.
    checked = agenttester.check(plugin, changes={"messages", "trace?"}, answers="Summary.", shares_state=True)
    assert checked.hooks == {"before_llm", "on_error"}


def test_a_window_of_4096_tokens_survives_a_hundred_turns(co_dir: Path) -> None:
    llm = Counting()
    agent = agent_with(llm, Compact(), log=None)
    for turn in range(100):
        assert agent.input(f"Question {turn}?") == "Seen."
    assert llm.refused == 0 and 2000 < llm.peak < 4096
    assert len(llm.summaries) < 30
    assert agent.session["messages"][0] == {"role": "system", "content": "You look."}
    assert str(agent.session["messages"][1]["content"]).startswith("(Summary of the conversation so far")
    assert agent.record is not None
    played = replayed(agent.record, agent=agent_with(Counting(), Compact()))
    assert played.same, played.divergence


def test_results_of_tools_go_first_the_oldest_first_and_the_record_keeps_them(co_dir: Path) -> None:
    llm = Counting()
    agent = agent_with(llm, Compact(), log=None)
    while not (agent.current_session and compactions(agent)):
        agent.input("Look")
    assert llm.summaries == []
    results = [str(message["content"]) for message in agent.session["messages"] if message["role"] == "tool"]
    gone = [text.startswith("(The result had") for text in results]
    assert gone[0] and not gone[-1] and gone == sorted(gone, reverse=True)
    assert agent.record is not None
    lines = [line for turn in read_record(agent.record)["turns"] for line in turn["lines"]]
    kept = [line["result"] for line in lines if line.get("type") == "tool_execution"]
    assert kept == ["shelf " * 250] * len(results)
    (entry,) = compactions(agent)
    assert entry["tokens_before"] > 0.8 * 4096 and entry["tokens"] <= 0.5 * 4096
    assert (entry["results"], entry["messages"]) == (sum(gone), 0)


def test_the_summary_has_what_was_said_and_the_turns_own_prompt_stays() -> None:
    def reads(messages: Any, tools: Any) -> Any:
        return [call("look", size=900) for _ in range(3)] if len(reader.requests) < 24 else "Done."

    reader = ScriptedLLM(*[reads] * 60)
    asked: list[str] = []

    @around_llm
    def sums_up(request: Any) -> Any:
        summing = str(request.messages[-1]["content"]).startswith("Sum up this")
        asked.extend([str(request.messages[-1]["content"])] if summing else [])
        yield
        return LLMResponse("It looked at shelves.") if summing else None

    agent = agent_with(reader, [Compact(window=4000), sums_up], max_iterations=50)
    assert agent.input("My question, about a blue shelf") == "Done."
    users = [message["content"] for message in agent.session["messages"] if message["role"] == "user"]
    assert users[0].endswith("It looked at shelves.") and users[1:] == ["My question, about a blue shelf"]
    assert "assistant: look({" in asked[0] and "result: (The result had" in asked[0]
    assert asked[1].count("It looked at shelves.") == 1


def test_a_conversation_that_the_provider_refuses_is_shortened_and_asked_again() -> None:
    llm = Counting(window=4096)
    agent = agent_with(llm, Compact(window=100_000))  # the number is wrong
    for _ in range(20):
        assert agent.input("Look") == "Seen."
    assert llm.refused > 0 and compactions(agent)


def test_where_nothing_is_left_to_remove_the_refusal_is_raised() -> None:
    agent = agent_with(Counting(), Compact(), tools=[])
    with pytest.raises(ProviderError, match="too long"):
        agent.input("x" * 50_000)


def test_a_single_long_result_is_cut_in_the_middle() -> None:
    llm = ScriptedLLM(call("look", size=60_000), "Seen.")
    agent = agent_with(llm, Compact(window=4096))
    assert agent.input("Look") == "Seen."
    text = str(agent.session["messages"][-2]["content"])
    assert text.startswith("shelf shelf") and text.endswith("shelf ") and "characters were removed here" in text
    assert len(text) < 4096


def test_without_a_summary_or_where_it_fails_messages_are_just_removed() -> None:
    without = Counting(), Compact(summary=False)
    for llm, plugin in (without, (Counting(breaks=True), Compact()), (Counting(refuses=True), Compact())):
        agent = agent_with(llm, plugin)
        for turn in range(40):
            assert agent.input(f"{turn} " * 40) == "Seen."
        assert llm.summaries == [] and llm.refused == 0
        assert "earlier messages were removed" in str(agent.session["messages"][1]["content"])


def test_another_model_sums_up() -> None:
    asked = []

    @around_llm
    def watch(request: Any) -> Any:
        asked.append(request.model)
        yield

    agent = agent_with(Counting(), [Compact(model="offline"), watch])
    for turn in range(40):
        agent.input(f"{turn} " * 40)
    assert set(asked) == {"counting", "offline"}


def test_other_plugins_say_what_a_summary_must_keep() -> None:
    @before_compact
    def keep(messages: list[Message]) -> str:
        return f"Keep all colours of the {len(messages)} messages."

    llm = Counting()
    agent = agent_with(llm, [Compact(), keep])
    for turn in range(40):
        agent.input(f"{turn} " * 40)
    assert "\nKeep all colours of the " in llm.summaries[0]


def test_pictures_and_provider_data_count_and_may_be_removed() -> None:
    def photograph(size: int) -> Image:
        """Take a picture."""
        return Image(b"\x89PNG\r\n\x1a\n" + b"0" * 100_000)

    llm = ScriptedLLM(*[call("photograph", size=1), "Seen."] * 6)
    agent = agent_with(llm, Compact(window=8000, summary=False), tools=[photograph])
    for _ in range(6):
        agent.input("Look")
    assert max(str(request.messages).count("image_url'") for request in llm.requests) <= 8
    assert all(conversation_problems(request.messages) == [] for request in llm.requests)


def test_a_resumed_session_goes_on_with_the_summary_and_does_not_ask_again(co_dir: Path) -> None:
    llm, stops = Counting(), [False]

    @on_complete
    def stop() -> None:
        if stops[0]:
            raise KeyboardInterrupt

    agent = agent_with(llm, [Compact(), stop], log=None)
    while not llm.summaries:
        agent.input("Look at the shelf " * 20)
    messages, stops[0] = agent.session["messages"], True
    with pytest.raises(KeyboardInterrupt):
        agent.input("Look at the shelf " * 20)
    other = Counting()
    again = agent_with(other, [Compact()], log=None)
    assert again.resume(agent.record) == "Seen."
    assert other.summaries == []
    assert again.session["messages"][: len(messages)] == messages
    for _ in range(30):
        again.input("Look at the shelf " * 20)
    assert other.summaries and other.refused == 0


def test_a_secret_that_the_record_masks_changes_no_replay_and_no_part_of_it_is_left(co_dir: Path) -> None:
    secret = "sk-proj-" + "a1B2c3D4" * 8

    def look(size: int) -> str:
        """Look."""
        return f"{secret} " * 100

    agent = agent_with(Counting(), Compact(), log=None, tools=[look])
    for _ in range(20):
        agent.input("Look")
    assert agent.record is not None and compactions(agent)
    assert "a1B2c3D4a1B2" not in agent.record.read_text("utf-8")
    played = replayed(agent.record, agent=agent_with(Counting(), Compact(), tools=[look]))
    assert played.same, played.divergence


def test_children_compact_their_own_conversations() -> None:
    child_llm = ScriptedLLM(*[call("look", size=9000)] * 6, "From below.")
    child = Agent("child", [look], llm=child_llm, quiet=True, log=False)
    agent = agent_with(ScriptedLLM(call("child", prompt="go"), "Done."), Compact(window=6000), tools=[child])
    assert agent.input("Work") == "Done."
    assert compactions(child) and not compactions(agent)


def test_a_streamed_turn_is_compacted_too_and_a_dry_run_changes_nothing() -> None:
    agent = agent_with(Counting(), Compact())
    for _ in range(20):
        list(agent.stream("Look"))
    assert compactions(agent)
    agent = agent_with(Counting(window=10**6), shadow(Compact(window=4096, summary=False)))
    for _ in range(20):
        agent.input("Look")
    assert len([one for one in agent.session["messages"] if one["content"] == "shelf " * 250]) == 20
    assert [entry for entry in agent.session["trace"] if entry["type"] == "shadow"]


@pytest.mark.parametrize("wrong", [{"share": 2}, {"to": 0.9}, {"to": 0}, {"window": 10}, {"share": "1"}])
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="compact: "):
        Compact(**wrong)


def test_the_example_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
    exec(text.split("```python\n")[1].split("```")[0], {})
    assert capsys.readouterr().out.endswith("True\n")
