"""Anthropic's prompt caching: where the marks stand, and what the cached tokens cost."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from wire_server import WireServer, message, tool_use

from connectagent import Agent
from connectagent.models.anthropic import AnthropicLLM

MARK = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("a", "b")]


def text(words: str, mark: Any = None) -> dict[str, Any]:
    return {"type": "text", "text": words, **({"cache_control": mark} if mark else {})}


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(content) if content[0:1] != ("",) else ""}


def sent(messages: list[Any], schemas: Any = None, **options: Any) -> Any:
    before = copy.deepcopy(messages)
    with WireServer(message("ok")) as server:
        AnthropicLLM("claude-sonnet-4-5", api_key="k", base_url=server.url, options=options).complete(messages, schemas)
    assert messages == before
    return server.requests[0]


def marks(body: Any) -> list[tuple[Any, ...]]:
    """Where a request is marked, in the order in which the API reads it, and the lifetime."""
    found: list[tuple[Any, ...]] = []

    def look(value: Any, *place: Any) -> None:
        if isinstance(value, dict):
            if "cache_control" in value:
                found.append((*place, value["cache_control"].get("ttl", "5m")))
            for key, inner in value.items():
                if key == "content":
                    look(inner, *place)
        elif isinstance(value, list):
            for index, inner in enumerate(value):
                look(inner, *place, index)

    for key in ("tools", "system", "messages"):
        look(body.get(key), key)
    return found


CONVERSATION: list[Any] = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": "three"},
]


def test_tools_system_and_the_last_two_user_messages_are_marked() -> None:
    body = sent(CONVERSATION, TOOLS)
    assert marks(body) == [("tools", 1, "5m"), ("system", 0, "5m"), ("messages", 0, 0, "5m"), ("messages", 2, 0, "5m")]
    assert body["system"] == [text("Be kind.", MARK)]
    assert "cache_control" not in body


def test_one_message_alone_is_marked() -> None:
    assert marks(sent([user("hello")])) == [("messages", 0, 0, "5m")]


def test_the_end_of_one_request_is_marked_in_the_next() -> None:
    """So that what the first has written is read, however many blocks came since."""
    with WireServer(message(*(tool_use(f"t{n}", "look") for n in range(16))), message("Done.")) as server:
        llm = AnthropicLLM("claude-sonnet-4-5", api_key="k", base_url=server.url)

        def look() -> str:
            """Look."""
            return "seen"

        assert Agent("a", [look], llm=llm, log=False, quiet=True).input("Look around.") == "Done."
    first, second = map(marks, server.requests)
    assert first[-1] == ("messages", 0, 0, "5m")
    assert second[-2:] == [("messages", 0, 0, "5m"), ("messages", 2, 15, "5m")]


@pytest.mark.parametrize("off", [False, None, {}])
def test_an_option_turns_it_off(off: Any) -> None:
    body = sent(CONVERSATION, TOOLS, cache_control=off)
    assert marks(body) == [] and body["system"] == "Be kind." and "cache_control" not in body


def test_an_option_sets_the_lifetime() -> None:
    assert {place[-1] for place in marks(sent(CONVERSATION, TOOLS, cache_control=HOUR))} == {"1h"}


def test_there_are_never_more_than_four_and_the_users_own_count() -> None:
    own = [user(text("one", MARK), text("two", MARK), text("three")), {"role": "assistant", "content": "yes"}]
    body = sent([CONVERSATION[0], *own, user("four")], TOOLS)
    assert marks(body) == [
        ("system", 0, "5m"), ("messages", 0, 0, "5m"), ("messages", 0, 1, "5m"), ("messages", 2, 0, "5m")
    ]  # fmt: skip


def test_of_more_than_four_of_the_users_own_the_latest_stay() -> None:
    own = [one for n in range(6) for one in (user(text(f"{n}", MARK)), {"role": "assistant", "content": "yes"})]
    assert marks(sent(own[:-1], TOOLS)) == [("messages", 2 * n, 0, "5m") for n in (2, 3, 4, 5)]


def test_marks_inside_of_results_count() -> None:
    calls = [{"id": "c1", "type": "function", "function": {"name": "a", "arguments": "{}"}}]
    parts = [text(f"{n}", MARK) for n in range(5)]
    history = [user("hi"), {"role": "assistant", "tool_calls": calls}]
    body = sent([*history, {"role": "tool", "tool_call_id": "c1", "content": parts}], TOOLS)
    assert marks(body) == [("messages", 2, 0, n, "5m") for n in (1, 2, 3, 4)]


def test_longer_lifetimes_come_first() -> None:
    history = [CONVERSATION[0], user(text("one", HOUR)), {"role": "assistant", "content": "two"}, user("three")]
    assert marks(sent(history, TOOLS)) == [
        ("tools", 1, "1h"), ("system", 0, "1h"), ("messages", 0, 0, "1h"), ("messages", 2, 0, "5m")
    ]  # fmt: skip
    history[1] = user(text("one", MARK))
    assert [place[-1] for place in marks(sent(history, TOOLS, cache_control=HOUR))] == ["1h", "1h", "5m", "5m"]


def test_a_users_own_system_blocks_and_tools_are_marked_on_copies() -> None:
    system, tools = [text("Mine.")], [{"type": "web_search_20250305", "name": "web_search"}]
    body = sent([user("hello")], None, system=system, tools=tools)
    assert marks(body) == [("tools", 0, "5m"), ("system", 0, "5m"), ("messages", 0, 0, "5m")]
    assert "cache_control" not in system[0] and "cache_control" not in tools[0]


def test_thinking_and_deferred_tools_are_not_marked() -> None:
    deferred = {"name": "later", "input_schema": {"type": "object"}, "defer_loading": True}
    assert marks(sent([user("hello")], TOOLS, tools=[deferred]))[0] == ("tools", 1, "5m")


def test_cached_tokens_are_told_and_priced() -> None:
    usage = {"input_tokens": 500, "output_tokens": 10, "cache_read_input_tokens": 500}
    usage["cache_creation_input_tokens"] = 1000
    by_lifetime = {"ephemeral_5m_input_tokens": 400, "ephemeral_1h_input_tokens": 600}
    for more, dollars in (({}, 5550), ({"cache_creation": by_lifetime}, 6900)):
        with WireServer(message("ok", usage={**usage, **more})) as server:
            llm = AnthropicLLM("claude-sonnet-4-5", api_key="k", base_url=server.url)
            agent = Agent("a", llm=llm, log=False, quiet=True)
            agent.input("hello")
        found = agent.last_usage
        assert found is not None
        assert (found.input_tokens, found.cached_tokens, found.cache_write_tokens) == (2000, 500, 1000)
        assert found.cost == agent.total_cost == pytest.approx(dollars / 1e6)
