"""Replay: a record's answers through today's handlers give the same requests, or tell what is other and whose doing."""

from __future__ import annotations

import copy
import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_conversation_property import FAULTS, MEAN, RESPONSES, Fault, Session, Turn, good
from test_wire_agent import agent_for
from wire_driver import MODES, WIRE, Recording, load, recordings, replay_server

from connectagent import ProviderError
from connectagent.builtin.record import record_path
from connectagent.replay import Replay, replay


class Listening:
    """A model that notes what it is given, and asks another one."""

    def __init__(self, llm: Any) -> None:
        self.llm, self.model = llm, llm.model
        self.requests: list[str] = []

    def complete(self, messages: Any, tools: Any = None) -> Any:
        self.requests.append(canonical(messages, tools))
        return self.llm.complete(messages, tools)

    def stream(self, messages: Any, tools: Any = None, *, on_text: Any) -> Any:
        self.requests.append(canonical(messages, tools))
        return self.llm.stream(messages, tools, on_text=on_text)


def canonical(messages: Any, tools: Any) -> str:
    text = json.dumps([messages, tools or []], sort_keys=True, default=lambda value: type(value).__name__)
    return re.sub("0x[0-9a-f]{6,}", "0x", text)  # of objects that handlers return, which are others each time


def requests_of(played: Replay) -> list[str]:
    return [canonical(messages, tools) for messages, tools in played.requests]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path / "co"))
    return tmp_path


# -- the same plugins: the same requests ----------------------------------------------------------


@pytest.mark.skipif(not WIRE.is_dir(), reason=f"the recordings are not here: {WIRE}")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("path", recordings(), ids=lambda path: path.stem)
def test_a_recorded_exchange_is_replayed_byte_for_byte(
    path: Path, mode: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = Recording(load(path))
    monkeypatch.setenv("CONNECTAGENT_MASK", "off")  # what is masked in a record is masked in a replay
    sent: list[tuple[Path, list[str], list[str]]] = []
    with replay_server(path) as server:
        agent = agent_for(recording, server.base_url, mode, [], log=None)
        for turn in recording.data["drive"]["turns"]:
            if turn.get("new_conversation"):
                agent.reset_conversation()
            if agent.current_session is None:
                agent.llm = listening = Listening(getattr(agent.llm, "llm", agent.llm))
                results: list[str] = []
            answered = [n for n in turn["exchanges"] if recording.data["exchanges"][n]["response"]["status"] == 200]
            try:
                results.append(agent.input(recording.prompt(turn), max_iterations=len(answered) or 1))
            except ProviderError as error:
                results.append(f"ProviderError: {error}")
            record = record_path(agent)
            assert record is not None
            if (record, listening.requests, results) not in sent:
                sent.append((record, listening.requests, results))
    files = sorted((folder / "co").rglob("*"))
    for record, requests, results in sent:
        played = replay(record, agent_for(recording, "http://127.0.0.1:9", mode, [], log=None))
        assert requests_of(played) == requests
        assert played.results == results
        assert played.divergence is None
        assert played.same
    assert sorted((folder / "co").rglob("*")) == files


# Tools answer from the record and do not act: what they do to the agent besides is out of a replay's reach.
STEERING = ("use_agent", "misuse_agent", "break_session", "replace_list")
PLANS = st.lists(
    st.builds(
        Turn,
        st.lists(RESPONSES, min_size=1, max_size=4),
        st.lists(
            FAULTS.filter(lambda fault: fault.place not in ("bad", "agent_tool") or fault.act not in STEERING),
            min_size=1,
            max_size=8,
        ),
        st.lists(st.tuples(st.sampled_from(("delete_message", "append_message")), st.just(0)), max_size=1),
    ),
    min_size=1,
    max_size=2,
)


class Planned(Session):
    """A session whose handlers know by themselves which turn it is, so that it can be replayed."""

    def __init__(self, turns: list[Turn], **options: Any) -> None:
        self.plans: Iterator[list[Fault]] = iter([plan for turn in turns for plan in (turn.faults, [])])
        self.good_next = False
        super().__init__(**options)

    def perform(self, place: str, given: dict[str, Any]) -> Any:
        if place == "around_turn:before":
            self.faults = next(self.plans)
            self.seen.clear()
            if not self.faults and self.agent.tools.names().count("good") == 0:
                self.agent.add_tool(good)
        return super().perform(place, given)

    def check_error(self, error: BaseException) -> None:
        """It need not be one that a session may raise: that is tested elsewhere."""


@settings(MEAN, max_examples=500)
@given(turns=PLANS)
def test_a_session_with_the_same_handlers_is_replayed_byte_for_byte(turns: list[Turn], tmp_path_factory: Any) -> None:
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setenv("CONNECTAGENT_DIR", str(tmp_path_factory.mktemp("co")))
        session = Planned(turns, log=None)
        session.agent.llm = listening = Listening(session.llm)  # type: ignore[assignment]
        for turn in turns:
            session.turn(copy.deepcopy(turn))
        record = record_path(session.agent)
        assert record is not None
        played = replay(record, Planned(turns).agent)
    assert requests_of(played) == listening.requests
    assert played.divergence is None, str(played.divergence)
    assert played.same
