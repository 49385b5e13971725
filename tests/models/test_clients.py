"""The SDK clients of a process: who has one, and how many there are."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from wire_server import Answer, WireServer, chat, chat_stream, finish, message

from connectagent.models import clients
from connectagent.models.anthropic import AnthropicLLM
from connectagent.models.openai import OpenAILLM

KEY = "a-key-of-ten-letters"
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The clients that are made, in a process that has none yet."""
    monkeypatch.setattr(clients, "_idle", {})
    found: list[Any] = []
    make = OpenAILLM._make_client

    def noted(self: OpenAILLM, key: str | None, base_url: str) -> Any:
        found.append(make(self, key, base_url))
        return found[-1]

    monkeypatch.setattr(OpenAILLM, "_make_client", noted)
    yield found


def model(server: WireServer, key: str = KEY) -> OpenAILLM:
    return OpenAILLM("gpt-4o", api_key=key, base_url=server.openai_url)


def slow(text: str, wait_s: float) -> Answer:
    return dataclasses.replace(chat(text), wait_s=wait_s)


def test_calls_that_follow_each_other_have_one_client_and_one_connection(made: list[Any]) -> None:
    with WireServer(chat("ok")) as server:
        for _ in range(3):
            model(server).complete(HELLO)
        assert len(made) == 1
        model(server, "another-key-of-somebody").complete(HELLO)
    assert [client.api_key for client in made] == [KEY, "another-key-of-somebody"]


def test_calls_at_once_have_a_client_each_which_serve_again(made: list[Any]) -> None:
    with WireServer(slow("ok", 0.3)) as server, ThreadPoolExecutor(4) as pool:
        for _ in range(2):
            answers = list(pool.map(lambda _: model(server).complete(HELLO).content, range(4)))
            assert answers == ["ok"] * 4
    assert len(made) == 4


def test_a_stream_keeps_its_client_to_its_end(made: list[Any]) -> None:
    heard: list[str] = []

    def hear(text: str) -> None:
        heard.append(text)
        model(server).complete(HELLO)  # while the stream is open

    with WireServer(chat_stream({"content": "one"}, finish()), chat("ok")) as server:
        model(server).stream(HELLO, on_text=hear)
    assert heard == ["one"] and len(made) == 2


def test_a_client_serves_again_after_a_call_that_failed(made: list[Any]) -> None:
    with WireServer(Answer({"error": {"message": "no"}}, 400), chat("ok")) as server:
        with pytest.raises(Exception, match="no"):
            model(server).complete(HELLO)
        assert model(server).complete(HELLO).content == "ok"
    assert len(made) == 1


def test_clients_that_nobody_needed_for_long_are_forgotten_with_their_connections(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with WireServer(slow("ok", 0.2)) as server:
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda _: model(server).complete(HELLO), range(3)))
        connections = [client._client for client in made]
        made.clear()
        monkeypatch.setattr(clients, "_KEEP_S", 0.0)
        for _ in range(3):
            model(server).complete(HELLO)
    assert sum(one.is_closed for one in connections) >= 2
    assert not made


def test_a_process_that_sees_many_keys_keeps_a_bounded_number_of_clients() -> None:
    with WireServer(chat("ok")) as server:
        for number in range(clients._MAX_KEYS + 6):
            with model(server, f"key-of-user-{number}")._client():
                pass
    assert len(clients._idle) == clients._MAX_KEYS


def test_a_client_that_signs_in_by_itself_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "a-token-of-somebody")
    both = threading.Barrier(2, timeout=30)
    held: list[Any] = []

    def hold(_: int) -> None:
        with AnthropicLLM("claude-sonnet-4-5")._client() as client:
            held.append(client)
            both.wait()

    with AnthropicLLM("claude-sonnet-4-5")._client():
        pass
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(hold, range(2)))
    assert held[0] is held[1]


def test_a_call_whose_client_is_taken_as_soon_as_it_is_back_has_not_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wanted(deque[Any]):
        def append(self, item: Any) -> None:
            super().append(item)
            self.pop()  # by another thread

    monkeypatch.setattr(clients, "deque", Wanted)
    with WireServer(chat("ok")) as server:
        assert model(server).complete(HELLO).content == "ok"


def test_threads_that_share_a_client_make_it_once(made: list[Any]) -> None:
    def make() -> object:
        time.sleep(0.05)
        made.append(object())
        return made[-1]

    def use(_: int) -> object:
        with clients.idle_client(("somebody",), make, shared=True) as client:
            return client

    with ThreadPoolExecutor(8) as pool:
        assert len(set(map(id, pool.map(use, range(8))))) == 1
    assert len(made) == 1


@pytest.mark.parametrize("provider", ["openai", "mistral", "anthropic"])
def test_a_request_says_nothing_of_the_machine(provider: str) -> None:
    with WireServer(message("ok") if provider == "anthropic" else chat("ok")) as server:
        if provider == "anthropic":
            AnthropicLLM("claude-sonnet-4-5", api_key=KEY, base_url=server.url).complete(HELLO)
        else:
            OpenAILLM("a-model", provider=provider, api_key=KEY, base_url=server.openai_url).complete(HELLO)
    (headers,) = server.headers
    machine = ("lang", "package-version", "os", "arch", "runtime", "runtime-version", "async")
    assert not [name for name in machine if f"x-stainless-{name}" in headers]
    assert KEY in headers.get("authorization", headers.get("x-api-key", "")) and "user-agent" in headers
