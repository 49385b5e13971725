"""What is masked in a record cannot be run from it: another process asks for it again, and finds what was done."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from connectagent import Agent, Pause, Paused, add_secret, around_turn, xray
from connectagent.data import TraceEntry
from connectagent.testing import ScriptedLLM, call, conversation_problems

KEY = "q7w8e9r0t1y2u3"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)
    monkeypatch.setenv("SHOP_API_KEY", KEY)
    return tmp_path


class Shop:
    """An agent whose tool waits, and takes a secret."""

    def __init__(self, *script: Any, **options: Any) -> None:
        self.logins: list[str] = []
        self.agent = Agent("shop", [self.login], llm=ScriptedLLM(*script), quiet=True, **options)

    def login(self, user: str, key: str) -> str:
        """Log in."""
        if not xray.approved:
            raise Pause("may it?")
        self.logins.append(key)
        return f"{user} is in"

    @property
    def results(self) -> list[Any]:
        session: Any = self.agent.current_session
        assert conversation_problems(session["messages"]) == []
        return [message["content"] for message in session["messages"] if message["role"] == "tool"]


ASK = [call("login", user="ann", key=KEY)]


def lines_of(record: Path) -> list[TraceEntry]:
    return [json.loads(line[4:]) for line in record.read_text().splitlines() if line.startswith("  - {")]


def paused(shop: Shop) -> Path:
    with pytest.raises(Paused) as caught:
        shop.agent.input("Log in.")
    record: Path = caught.value.record
    return record


def test_a_line_tells_the_places_at_which_it_was_masked() -> None:
    shop = Shop(ASK, "In.")
    record = paused(shop)
    assert shop.agent.resume(record, approve=True) == "In."
    assert KEY not in record.read_text()
    masked = {line["type"]: line["masked"] for line in lines_of(record) if "masked" in line}
    assert masked["llm_call"] == ["tool_calls.0.arguments.key"]
    assert masked["began"] == masked["tool_execution"] == ["arguments.key"]
    assert masked["wait"] == ["call.arguments.key"]


def test_the_process_that_has_the_value_uses_it() -> None:
    shop = Shop(ASK, "In.")
    assert shop.agent.resume(paused(shop), approve=True) == "In."
    assert shop.logins == [KEY] and shop.results == ["ann is in"]


def test_another_process_does_not_run_the_call_and_the_model_reads_that_it_is_to_be_given_again() -> None:
    record = paused(Shop(ASK))
    other = Shop("I need the key.")
    assert other.agent.resume(record, approve=True) == "I need the key."
    assert other.logins == []
    assert other.results == [
        "rejected: 'key' is masked in the record, with which this turn goes on; the call was not run: "
        "give it again, unmasked"
    ]


@pytest.mark.parametrize("prompt", ["Log in.", f"Log in with {KEY}."])
def test_a_mark_that_the_model_wrote_itself_is_no_masked_value(prompt: str) -> None:
    written, shops = "[masked: OTHER_KEY]", (Shop([call("login", user="ann", key="[masked: OTHER_KEY]")]), Shop("In."))
    with pytest.raises(Paused) as caught:
        shops[0].agent.input(prompt)
    assert shops[1].agent.resume(caught.value.record, approve=True) == "In."
    assert shops[1].logins == [written] and shops[1].results == ["ann is in"]


def test_an_answer_stands_in_for_it_all_the_same() -> None:
    record = paused(Shop(ASK))
    other = Shop("Good.")
    assert other.agent.resume(record, answer="by hand") == "Good."
    assert other.results == ["by hand"]


def test_the_digest_of_a_wait_tells_nothing_of_a_secret() -> None:
    shop = Shop(ASK)
    with pytest.raises(Paused) as caught:
        shop.agent.input("Log in.")
    assert caught.value.waiting[0].digest == "masked"
    assert [line["digest"] for line in lines_of(caught.value.record) if line["type"] == "wait"] == ["masked"]


class Asked:
    """A body that asks two agents with the secret of its process, of which the second one waits."""

    def __init__(self, key: str, *script: Any) -> None:
        self.key = key
        first, second = (Agent(name, [self.wait], llm=ScriptedLLM(*script), quiet=True) for name in ("one", "two"))
        self.first, self.second = first, second
        self.boss = Agent("boss", run=self.run, sub_agents=[first, second], quiet=True)

    def wait(self) -> str:
        """Wait."""
        if not xray.approved:
            raise Pause("may it?")
        return "done"

    def run(self) -> str:
        self.first.input(f"Say {self.key}")
        self.first.input(f"Repeat {self.key}")
        return self.second.input(f"Use {self.key}")


def test_what_was_asked_with_a_secret_is_found_by_a_process_that_has_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = Asked(KEY)
    before.first.llm.responses[:] = ["first", "again"]
    before.second.llm.responses[:] = [[call("wait")]]
    with pytest.raises(Paused) as caught:
        before.boss.input("Go.")
    assert "/turn:one~masked#2" in caught.value.record.read_text()
    monkeypatch.setenv("SHOP_API_KEY", "z9x8c7v6b5n4m3")
    later = Asked("z9x8c7v6b5n4m3")
    later.second.llm.responses[:] = ["All done."]
    assert later.boss.resume(caught.value.record, approve=True) == "All done."
    assert later.first.llm.requests == []


def test_a_secret_of_the_prompt_that_an_around_turn_handler_adds_is_nowhere_in_the_record() -> None:
    @around_turn
    def find(prompt: str) -> Iterator[None]:
        add_secret(prompt.split()[-1], "badge", at_least=4)
        yield

    agent = Agent("guard", llm=ScriptedLLM("Welcome."), on_events=[find], quiet=True)
    agent.input("My badge is qz81")
    assert agent.record is not None
    text = agent.record.read_text("utf-8")
    assert "qz81" not in text and 'input: "My badge is [masked: badge]"' in text
