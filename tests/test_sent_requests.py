"""A record tells each request whole: rebuilt from the record, it has the digest of what the LLM was handed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from test_conversation_property import TURNS, Session, Turn
from test_wire_agent import agent_for
from wire_driver import MODES, WIRE, Recording, load, recordings, replay_server

from connectagent import ProviderError
from connectagent.records.blobs import blob_folder
from connectagent.records.read import read_record
from connectagent.records.sent import digest, recorded_digest
from connectagent.records.watched import Request, watched_agents

PLANS = int(os.environ.get("SENT_PLANS", "25"))


def requests_of(path: Path) -> list[Request]:
    """The requests of a record that have a digest, rebuilt."""
    found = [made for agent in watched_agents(read_record(path), blob_folder(path)) for made in agent.requests()]
    return [made for made in found if "digest" in made.entry]


def rebuilt_digest(request: Request) -> str:
    messages = [sent.message for sent in request.messages]
    return recorded_digest(request.model, messages, request.tools, request.options)


def assert_told(path: Path) -> int:
    """Check all requests of a record; how many there are."""
    found = requests_of(path)
    for request in found:
        assert rebuilt_digest(request) == request.entry["digest"], request
    return len(found)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path / ".co"))


@pytest.mark.skipif(not WIRE.is_dir(), reason=f"the recordings are not here: {WIRE}")
@pytest.mark.parametrize("path", recordings(), ids=lambda path: path.stem)
def test_each_recorded_conversation_is_told_whole(path: Path) -> None:
    recording = Recording(load(path))
    with replay_server(path, MODES[0]) as server:
        agent = agent_for(recording, server.base_url, MODES[0], [], log=None)
        records = []
        for turn in recording.data["drive"]["turns"]:
            if turn.get("new_conversation"):
                agent.reset_conversation()
            try:
                agent.input(recording.prompt(turn), max_iterations=len(turn["exchanges"]))
            except ProviderError:
                pass
            records.append(agent.record)
    assert sum(assert_told(record) for record in dict.fromkeys(records) if record is not None)


@settings(max_examples=PLANS, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(turn=TURNS)
def test_whatever_handlers_do_each_request_is_told_whole(turn: Turn) -> None:
    session, received = Session(log=None), []
    complete = session.llm.complete

    def listen(messages: list[Any], tools: Any = None) -> Any:
        received.append(digest("checking", messages, tools or [], None))
        return complete(messages, tools)

    session.llm.complete = listen  # type: ignore[method-assign]
    session.turn(turn)
    assert session.agent.record is not None
    assert assert_told(session.agent.record) >= 2
    told = [request.entry["digest"] for request in requests_of(session.agent.record)]
    assert told == received
