"""Long random conversations that are compacted, over the real SDKs: the provider refuses nothing."""

from __future__ import annotations

import importlib.util
import json
import os
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from connectagent_adk import EventsCompactionConfig, adk_compaction
from connectagent_compact import Compact
from test_error_bodies import ROWS
from wire_driver import WIRE
from wire_server import Answer, WireServer, chat, message, reasoning, response, tool_use

from connectagent import Agent, Image, Tool
from connectagent.replay.recording import Recording
from connectagent.testing import replayed

COUNT = int(os.environ.get("COMPACT_CONVERSATIONS", "1"))  # for each wire
WORDS = ("retry", "timeout", "größe", "設定", "0x7f3a", "/etc/hosts", '{"a": 1}', "🙂", "lorem ipsum dolor sit amet")
PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 3000
OVERFLOWS = [row.body for row in ROWS.values() if row.kind == "context_length" and row.status == 400]
MODELS = {"chat": "openai/m", "messages": "anthropic/m", "responses": "openai-responses/m"}


def rules(wire: str) -> Callable[[Any], list[Any]]:
    """What checks a request's body: the recordings' server, or nothing where it is not here."""
    if not WIRE.is_dir():
        return lambda body: []
    spec = importlib.util.spec_from_file_location("wire_rules", WIRE / "replay_server.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    check = {
        "chat": module.check_openai_chat,
        "messages": module.check_anthropic,
        "responses": module.check_responses,
    }[wire]
    return lambda body: [found for found in check(body) if found.level == "error"]


class Provider(WireServer):
    """A model with a small window, which calls tools at random and counts tokens at a rate of its own."""

    def __init__(self, wire: str, dice: random.Random, window: int) -> None:
        super().__init__(Answer())
        self.wire, self.dice, self.window = wire, dice, window
        self.check, self.rate = rules(wire), dice.uniform(0.2, 0.45)
        self.refused: list[Any] = []
        self.summaries = self.calls = 0

    def tokens(self, body: Any) -> int:
        """What the provider counts: a picture takes 1500 tokens."""
        said = [body.get("messages"), body.get("input"), body.get("system"), body.get("tools")]
        text, pictures = without_pictures(said)
        return round(self.rate * len(json.dumps(text, ensure_ascii=False).encode())) + 1500 * pictures

    def _reply(self, handler: Any, answer: Answer) -> None:
        body = self.requests[-1]
        wrong, tokens = self.check(body), self.tokens(body)
        if wrong or tokens > self.window:
            self.refused.append([found.message for found in wrong] or f"{tokens} tokens")
            body = {"error": {"type": "invalid_request_error", "message": wrong[0].message}} if wrong else None
            super()._reply(handler, Answer(body or self.dice.choice(OVERFLOWS), 400))
            return
        super()._reply(handler, self.answer(body, tokens))

    def answer(self, body: Any, tokens: int) -> Answer:
        text = " ".join(self.dice.choices(WORDS, k=self.dice.randrange(3, 60)))
        if "Sum up this conversation" in json.dumps(body):
            self.summaries += 1
            return self.said(text, [], tokens)
        size = 0 if not body.get("tools") or self.dice.random() < 0.3 else self.dice.randrange(1, 4)
        calls = []
        for _ in range(size):
            self.calls += 1
            calls.append((f"call_{self.calls}", "look", {"size": self.dice.choice([3, 30, 300, 3000])}))
        return self.said(text, calls, tokens)

    def said(self, text: str, calls: list[Any], tokens: int) -> Answer:
        """An answer in the wire's form, with the tokens counted."""
        if self.wire == "chat":
            usage = {"prompt_tokens": tokens, "completion_tokens": 50, "total_tokens": tokens + 50}
            made = chat(text, calls=[(id, name, json.dumps(given)) for id, name, given in calls])
        elif self.wire == "messages":
            usage = {"input_tokens": tokens, "output_tokens": 50}
            thought = {"type": "thinking", "thinking": "Hm.", "signature": "c2lnbmVk"}
            blocks = [tool_use(id, name, **given) for id, name, given in calls]
            made = message(thought, text, *blocks, stop="tool_use" if calls else "end_turn")
        else:
            usage = {"input_tokens": tokens, "output_tokens": 50, "total_tokens": tokens + 50}
            asked = [(id, name, json.dumps(given)) for id, name, given in calls]
            made = response(reasoning(f"rs_{len(self.requests)}"), text, *asked)
        made.body["usage"] = usage
        return made


def without_pictures(value: Any) -> tuple[Any, int]:
    """A body whose pictures are left out, and how many there were."""
    if isinstance(value, list):
        found = [without_pictures(one) for one in value]
        return [one for one, _ in found], sum(count for _, count in found)
    if isinstance(value, dict):
        if value.get("type") in ("image", "image_url", "input_image"):
            return None, 1
        found = [(key, *without_pictures(one)) for key, one in value.items()]
        return {key: one for key, one, _ in found}, sum(count for _, _, count in found)
    return value, 0


def look(dice: random.Random, size: int) -> Any:
    if size == 300 and dice.random() < 0.1:
        return Image(PNG)
    return " ".join(dice.choices(WORDS, k=max(1, size // 6)))


def agent_for(wire: str, url: str, dice: random.Random, plugin: Any) -> Agent:
    parameters = {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]}
    return Agent(
        "long",
        [Tool("look", "Look at a place.", parameters, partial(look, dice))],
        "You look at places.",
        model=MODELS[wire],
        api_key="test-key-1",
        base_url=url,
        options={"max_retries": 0},
        plugins=[plugin],
        max_iterations=30,
        quiet=True,
    )


def check(wire: str, window: int, turns: int, dice: random.Random, make: Callable[[], Any], entry: str) -> None:
    """A conversation of which no request is refused, and whose replay sends the same."""
    with Provider(wire, dice, window) as provider:
        url = provider.url if wire == "messages" else provider.openai_url
        agent = agent_for(wire, url, dice, make())
        for turn in range(turns):
            agent.input(f"Question {turn}: " + " ".join(dice.choices(WORDS, k=dice.randrange(1, 30))))
    assert provider.refused == []
    assert any(one["type"] == entry for one in agent.session["trace"])
    assert agent.record is not None
    played = replayed(agent.record, agent=agent_for(wire, "http://127.0.0.1:9", dice, make()))
    assert played.same, (str(played.divergence), played.not_recorded)
    sent = [one.messages for turn in Recording(agent.record).turns for one in turn.sent]
    assert [json.dumps(one) for one, _ in played.requests] == [json.dumps(one) for one in sent]


@pytest.mark.parametrize("wire", MODELS)
def test_no_request_of_a_long_conversation_is_refused_and_a_replay_sends_the_same(wire: str, co_dir: Any) -> None:
    for seed in range(COUNT):
        dice = random.Random(f"{wire}{seed}")
        window = dice.choice([5000, 8000, 12_000])
        turns = dice.randrange(15, 30) if COUNT > 1 else 15
        check(wire, window, turns, dice, partial(Compact, window=window), "compacted")


@pytest.mark.parametrize("wire", MODELS)
@pytest.mark.parametrize(
    "config",
    [{"compaction_interval": 2, "overlap_size": 1}, {"token_threshold": 1500, "event_retention_size": 3},
     {"token_threshold": 1500, "event_retention_size": 0}],
    ids=["turns", "tokens", "all"],
)  # fmt: skip
def test_nor_one_of_a_conversation_that_is_compacted_as_in_adk(config: Any, wire: str, co_dir: Any) -> None:
    for seed in range(COUNT):
        dice = random.Random(f"{wire}{seed}")
        check(wire, 1_000_000, 8, dice, lambda: adk_compaction(EventsCompactionConfig(**config)), "adk_compacted")
