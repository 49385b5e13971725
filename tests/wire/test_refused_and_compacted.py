"""What a provider refused stays out of a session that is compacted and goes on elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import refusing_provider
from connectagent_compact import Compact
from refusing_provider import POISON, WIRES, RefusingProvider
from test_refused_content import ELEMENTS, agent_at, messages_of, owners_of

from connectagent import Agent
from connectagent.testing import conversation_problems, replayed

FILLER = "nothing of interest " * 600  # about 4,000 tokens: more than the share of the window
SUMMARY = "They looked at something."


def compact(summary: bool = True) -> Compact:
    return Compact(window=6000, share=0.5, to=0.2, summary=summary)


@pytest.fixture(params=WIRES)
def provider(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[RefusingProvider]:
    real = refusing_provider.said

    def said(wire: str, body: Any, streamed: bool) -> Any:
        asked = json.dumps((body.get("messages") or body.get("input"))[-1])
        answer = refusing_provider._text(wire, SUMMARY, streamed)
        return answer if "Sum up this" in asked else real(wire, body, streamed)

    monkeypatch.setattr(refusing_provider, "said", said)
    server = RefusingProvider(request.param)
    with server:
        yield server


def compactions(agent: Agent) -> list[Any]:
    return [entry for entry in agent.session["trace"] if entry["type"] == "compacted"]


def check(agent: Agent, provider: RefusingProvider, refused: int) -> None:
    """The session goes on, and nothing of what was refused is sent again."""
    before = len(provider.taken)
    assert agent.input("And now?") == "Seen."
    assert len(provider.refused) == refused
    assert POISON.decode() not in json.dumps(provider.taken[before:])
    assert not conversation_problems(messages_of(agent))


def written(prompt: Any, more: str) -> Any:
    """A prompt with more text before its own."""
    return f"{more} {prompt}" if isinstance(prompt, str) else [more, *prompt]


@pytest.mark.parametrize("summary", [True, False])
@pytest.mark.parametrize("element", ELEMENTS)
def test_what_was_refused_stays_out_after_a_compaction_and_a_resume(
    provider: RefusingProvider, element: str, summary: bool, co_dir: Path
) -> None:
    prompt, tools, handlers, owner = ELEMENTS[element]
    plugins = [compact(summary)]
    agent = agent_at(provider, tools, handlers, plugins=plugins, log=None)
    agent.input(prompt)
    refused = len(provider.refused)
    assert refused == 1 and owner.items() <= owners_of(agent)[0].items() and not compactions(agent)
    agent.hooks.unregister(handlers[0]) if handlers else None

    assert agent.input(FILLER) == "Seen." and compactions(agent)
    assert (SUMMARY in json.dumps(messages_of(agent))) == summary
    check(agent, provider, refused)
    other = agent_at(provider, tools, plugins=plugins, log=None)
    other.resume(agent.record)
    assert messages_of(other) == messages_of(agent)
    check(other, provider, refused)
    last = agent_at(provider, tools, log=None)  # without the plugin
    last.resume(other.record)
    check(last, provider, refused)


@pytest.mark.parametrize("element", ELEMENTS)
def test_what_is_refused_in_a_request_that_was_just_compacted_is_replaced(
    provider: RefusingProvider, element: str, co_dir: Path
) -> None:
    prompt, tools, handlers, owner = ELEMENTS[element]
    agent = agent_at(provider, tools, handlers, plugins=[compact()], log=None)
    agent.input(FILLER[:3000])
    agent.input(written(prompt, FILLER))  # its first request is compacted
    assert compactions(agent)
    (found, *_) = owners_of(agent)
    assert owner.items() <= found.items()
    refused = len(provider.refused)
    agent.hooks.unregister(handlers[0]) if handlers else None
    check(agent, provider, refused)
    other = agent_at(provider, tools, log=None)
    other.resume(agent.record)
    check(other, provider, refused)


ELSEWHERE = """
import sys
from test_refused_and_compacted import compact
from test_refused_content import ELEMENTS
from connectagent import Agent

element, record, model, address = sys.argv[1:]
_, tools, _, _ = ELEMENTS[element]
plugins = [compact()]
agent = Agent("eye", tools, model=model, base_url=address, api_key="k", plugins=plugins, quiet=True)
agent.resume(record)
print(agent.input("And now?"))
"""


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("provider", ["anthropic"], indirect=True)
def test_another_process_goes_on_with_the_compacted_session(
    provider: RefusingProvider, element: str, co_dir: Path
) -> None:
    prompt, tools, handlers, _ = ELEMENTS[element]
    agent = agent_at(provider, tools, handlers, plugins=[compact()], log=None)
    agent.input(prompt)
    agent.hooks.unregister(handlers[0]) if handlers else None
    agent.input(FILLER)
    refused, before = len(provider.refused), len(provider.taken)
    options = provider.options
    command = [sys.executable, "-c", ELSEWHERE, element, str(agent.record), options["model"], options["base_url"]]
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    ended = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    assert ended.stdout == "Seen.\n", ended.stderr
    assert len(provider.refused) == refused and POISON.decode() not in json.dumps(provider.taken[before:])


def test_the_record_plays_again_without_a_difference(provider: RefusingProvider, co_dir: Path) -> None:
    prompt, tools, _, _ = ELEMENTS["image of a tool"]
    agent = agent_at(provider, tools, plugins=[compact()], log=None)
    for text in (prompt, FILLER, "And now?"):
        agent.input(text)
    assert agent.record is not None and compactions(agent)
    again = agent_at(provider, tools, plugins=[compact()], log=None)
    played = replayed(agent.record, agent=again)
    assert played.same, played.divergence
