"""A record tells each request whole: rebuilt from the record, it has the digest of what the LLM was handed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from test_conversation_property import TURNS, Session, Turn
from told import assert_told, requests_of

from connectagent import (
    Agent,
    LLMRequest,
    LLMResponse,
    Pause,
    Paused,
    PluginWarning,
    ProviderError,
    Retry,
    ToolCall,
    after_llm,
    after_tools,
    before_llm,
    on_error,
)
from connectagent.agents.plugin_changes import changed_plugins
from connectagent.cli.group import cli
from connectagent.records.read import read_record
from connectagent.records.sent import digest
from connectagent.records.watched import watched_agents
from connectagent.replay.replaying import replay
from connectagent.testing import ScriptedLLM
from connectagent.testing.recorded_sessions import keep_record

PLANS = int(os.environ.get("SENT_PLANS", "25"))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path / ".co"))


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


# -- what is recorded of it ----------------------------------------------------------------------


def look(x: int) -> str:
    """Look at something."""
    return f"seen {x}"


def hide(x: int) -> str:
    """Hide something."""
    return "hidden"


def agent_of(*plugins: Any, rounds: int = 3, **options: Any) -> Agent:
    given = {"system_prompt": "Be good.", "quiet": True, "max_iterations": rounds + 1, **options}
    script = [LLMResponse(None, [ToolCall(f"c{number}", "look", {"x": number})]) for number in range(rounds - 1)]
    return Agent("sent", [look, hide], llm=ScriptedLLM(*script, "Done."), plugins=list(plugins), **given)


def recorded(agent: Agent, prompt: str = "Go.") -> Path:
    agent.input(prompt)
    assert agent.record is not None
    return agent.record


def digests(path: Path) -> list[str]:
    return [request.entry["digest"] for request in requests_of(path)]


@before_llm
def adds_to_one_call(request: LLMRequest) -> None:
    request.messages = [*deepcopy(request.messages), {"role": "user", "content": f"{len(request.messages)} so far."}]


@before_llm
def leaves_out_the_middle(request: LLMRequest) -> None:
    request.messages = [*request.messages[:2], *request.messages[2:][-2:]]


@pytest.mark.parametrize("edit", [adds_to_one_call, leaves_out_the_middle])
def test_messages_of_one_call_are_recorded_as_a_difference(edit: Any) -> None:
    agent = agent_of(edit, rounds=30)
    path = recorded(agent)
    sent = [one.messages for one in agent.llm.requests]  # type: ignore[attr-defined]
    assert [[one.message for one in request.messages] for request in requests_of(path)] == sent
    assert assert_told(path) == 30
    lines = [line for turn in read_record(path)["turns"] for line in turn["lines"] if "edited" in str(line)]
    assert len(lines) >= 58 and all(len(str(line["request"])) < 700 for line in lines)
    assert replay(path, agent_of(edit, rounds=30)).same
    other = replay(path, agent_of(rounds=30)).divergence
    assert other is not None and other.what in ("messages", "request")


def test_a_schema_is_recorded_once_however_often_tools_come_and_go() -> None:
    @before_llm
    def changes_tools(agent: Any, request: LLMRequest) -> None:
        if agent.current_session["iteration"] % 2:
            request.tools = request.tools[:1]

    path = recorded(agent_of(changes_tools, rounds=8))
    assert assert_told(path) == 8
    calls = [line for line in path.read_text("utf-8").splitlines() if '"llm_call"' in line]
    assert sum(line.count("Hide something.") for line in calls) == 1
    names = [[tool["function"]["name"] for tool in request.tools] for request in requests_of(path)]
    assert names == [["look"], ["look", "hide"]] * 4
    assert replay(path, agent_of(changes_tools, rounds=8)).same


def test_what_handlers_take_from_the_tools_between_attempts_is_told() -> None:
    received: list[list[str]] = []

    class Failing:
        model = "failing"

        def complete(self, messages: list[Any], tools: Any = None) -> LLMResponse:
            received.append([tool["function"]["name"] for tool in tools or ()])
            if len(received) < 3:
                raise ProviderError("down", kind="server", provider="failing")
            return LLMResponse("Done.")

    @on_error
    def with_less(request: LLMRequest) -> Retry:
        request.tools.pop()  # the same list each time
        return Retry()

    agent = Agent("sent", [look, hide], llm=Failing(), plugins=[with_less], quiet=True)
    record = recorded(agent)
    assert received == [["look", "hide"], ["look"], []]
    assert_told(record)
    told = [[tool["function"]["name"] for tool in request.tools] for request in requests_of(record)]
    assert told == received


def test_a_turn_that_goes_on_has_the_messages_of_the_one_call() -> None:
    @before_llm(trylast=True)
    def wait(agent: Any) -> None:
        if not agent.current_session["state"].get("asked"):
            agent.current_session["state"]["asked"] = True
            raise Pause("May it?")

    def made() -> Agent:
        return agent_of(adds_to_one_call, wait, rounds=1)

    first = made()
    with pytest.raises(Paused) as paused:
        first.input("Go.")
    second = made()
    second.resume(paused.value.record, approve=True)
    (request,) = second.llm.requests  # type: ignore[attr-defined]
    assert request.messages[-1]["content"] == "2 so far."


def test_the_digest_tells_requests_apart() -> None:
    @before_llm
    def describes_otherwise(request: LLMRequest) -> None:
        request.tools[0]["function"]["description"] = "Look twice."

    @before_llm
    def says_more(request: LLMRequest) -> None:
        request.messages = [*request.messages, {"role": "user", "content": "Now."}]

    def first(*plugins: Any, **options: Any) -> str:
        return digests(recorded(agent_of(*plugins, rounds=1, **options)))[0]

    seen = [first(), first(describes_otherwise), first(says_more), first(system_prompt="Be bad.")]
    assert len(set(seen)) == 4 and first() == seen[0]
    one = [{"role": "user", "content": "Go."}]
    parts = [("a", one, [], None), ("b", one, [], None), ("a", one, [], {"temperature": 0}), ("a", one * 2, [], None)]
    assert len({digest(*part) for part in parts}) == 4
    assert digest("a", one, [], {}) == digest("a", one, [], None)


def test_the_digest_knows_a_secret_by_its_mask_only(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for value in ("first-value-81f3a", "other-value-99c2b"):
        monkeypatch.setenv("SHOP_API_KEY", value)
        path = recorded(agent_of(rounds=1), f"The key is {value}.")
        assert value not in path.read_text("utf-8") and assert_told(path) == 1
        assert replay(path, agent_of(rounds=1)).same
        found.append(digests(path))
    assert found[0] == found[1]


def test_the_digest_knows_nothing_of_what_lives_for_one_turn() -> None:
    @before_llm
    def copies(request: LLMRequest) -> None:
        request.messages = [*deepcopy(request.messages), {"role": "user", "content": "Now."}]

    found = []
    for pin, edits in (("pin-a", ()), ("pin-b", ()), ("pin-a", (copies,)), ("pin-b", (copies,))):
        agent = agent_of(*edits, rounds=1, system_prompt="The pin is {temp:pin}.", state={"temp:pin": pin})
        path = recorded(agent)
        assert agent.llm.requests[0].messages[0]["content"] == f"The pin is {pin}."  # type: ignore[attr-defined]
        assert assert_told(path) == 1 and pin not in path.read_text("utf-8").partition("turns:")[2]
        found.append(digests(path))
    assert found[0] == found[1] != found[2] == found[3]


def test_the_digest_is_the_same_in_a_replay_and_after_a_resume() -> None:
    path = recorded(agent_of(rounds=3))
    played = replay(path, agent_of(rounds=3))
    assert [digest("scripted", *request, None) for request in played.requests] == digests(path)
    straight, again = agent_of(rounds=3), agent_of(rounds=1)
    straight.input("Go.")
    straight.llm.responses.append("Done.")  # type: ignore[attr-defined]
    straight.input("And now?")
    again.resume(path)
    again.input("And now?")
    assert straight.record is not None and again.record == path
    assert digests(path) == digests(straight.record) and assert_told(path) == 4


def test_options_that_are_masked_are_not_told_again_after_a_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_API_KEY", "first-value-81f3a")

    class Configured(ScriptedLLM):
        options: ClassVar = {"user": "first-value-81f3a"}

        def with_options(self, options: dict[str, Any]) -> Any:
            return self

    def stop() -> None:
        raise KeyboardInterrupt

    script = [LLMResponse(None, [ToolCall("c1", "look", {"x": 1})])]
    first = Agent("sent", [look], llm=Configured(*script), on_events=[after_tools(stop)], quiet=True)
    with pytest.raises(KeyboardInterrupt):
        first.input("Go.")
    assert first.record is not None
    assert Agent("sent", [look], llm=Configured("Done."), quiet=True).resume(first.record) == "Done."
    lines = [line for turn in read_record(first.record)["turns"] for line in turn["lines"]]
    told = [line.get("request") for line in lines if line.get("type") == "llm_call"]
    assert told[0]["options"] == {"user": "[masked: SHOP_API_KEY]"} and "options" not in (told[1] or {})


def test_an_agent_that_is_asked_in_another_record_is_told_whole_there() -> None:
    child = agent_of(rounds=1)
    own = recorded(child)

    def ask(prompt: str) -> str:
        """Ask."""
        child.llm.responses.append("Done.")  # type: ignore[attr-defined]
        return str(child.input(prompt))

    script = [LLMResponse(None, [ToolCall("c1", "ask", {"prompt": "And now?"})]), "Done."]
    root = Agent("root", [ask], llm=ScriptedLLM(*script), quiet=True)
    assert assert_told(recorded(root)) == 3 and assert_told(own) == 1


def test_a_plain_session_grows_by_at_most_a_twentieth() -> None:
    path = recorded(agent_of(rounds=20))
    text = path.read_text("utf-8")
    added = sum(len(found) for found in re.findall(r', "digest": "\w+"|"model": "scripted", (?="tools": \[\{)', text))
    assert 20 * 20 < added < (len(text) - added) / 20


# -- the plugins in the head ---------------------------------------------------------------------

FILE = "from connectagent import before_each_tool\n\n@before_each_tool\ndef check(tool_call):\n    {}\n"


@pytest.fixture
def limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed plugin with options."""
    text = "from connectagent import before_llm\nclass Limits:\n    def __init__(self, most=3, api_key='', on=0):\n"
    (tmp_path / "limits_plugin.py").write_text(f"{text}        pass\n    @before_llm\n    def look(self): pass\n")
    info = tmp_path / "connectagent_limits-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: connectagent-limits\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[connectagent]\nlimits = limits_plugin:Limits\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("limits_plugin", None)


def with_limits(file: Path, **options: Any) -> Agent:
    return agent_of(str(file), ("limits", options), adds_to_one_call, rounds=1)


def test_the_head_names_plugins_in_their_order_with_options_and_hashes(tmp_path: Path, limits: None) -> None:
    file = tmp_path / "guard.py"
    file.write_text(FILE.format("pass"))
    path = recorded(with_limits(file, most=4, api_key="very-secret-81f3a", on=print))
    head, own = read_record(path), sha256(Path(__file__).read_bytes()).hexdigest()[:16]
    assert list(head["plugins"].items()) == [("guard", None), ("limits", "1.0"), ("adds_to_one_call", None)]
    assert list(head["plugin_sources"].items()) == [
        ("guard", {"sha256": sha256(file.read_bytes()).hexdigest()[:16]}),
        ("limits", {"options": {"api_key": "[masked: api_key]", "most": 4, "on": "builtin_function_or_method"}}),
        ("adds_to_one_call", {"sha256": own}),
    ]
    assert "very-secret" not in path.read_text("utf-8")
    shown = CliRunner().invoke(cli, ["log", "show", str(path), "--full"]).output
    assert "limits 1.0 (api_key='[masked: api_key]', most=4" in shown and f"adds_to_one_call {own[:8]}" in shown


def test_resuming_says_which_plugins_have_another_source_or_other_options(tmp_path: Path, limits: None) -> None:
    file = tmp_path / "guard.py"
    file.write_text(FILE.format("pass"))
    path = recorded(with_limits(file, most=4))

    def changed(agent: Agent) -> Any:
        agent.resume(path, fork=True)
        (entry,) = [one for one in agent.session["trace"] if one["type"] == "resumed"]
        return entry.get("plugins")

    assert changed(with_limits(file, most=4)) is None
    assert changed(with_limits(file, most=5)) == {"changed": ["limits"]}
    file.write_text(FILE.format("return None"))
    assert changed(with_limits(file, most=4)) == {"changed": ["guard"]}
    older = path.with_name("sent_older.yaml")
    older.write_text(re.sub(r"(?m)^plugin_sources: .*\n", "", path.read_text("utf-8")))
    assert replay(older, with_limits(file, most=9)).same
    assert changed_plugins(with_limits(file, most=9), read_record(older)) == {}


def test_replay_says_so_in_a_line_and_a_kept_record_has_no_sources(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CONNECTAGENT_DIR", str(tmp_path / "co"))
    text = (
        "from connectagent import Agent, before_llm\nfrom connectagent.testing import ScriptedLLM\n"
        "@before_llm\ndef note(request): pass\n"
        "agent = Agent('sent', llm=ScriptedLLM('Done.'), plugins=[note], quiet=True)\n"
        "if __name__ == '__main__':\n    agent.input('Go.')\n"
    )
    (tmp_path / "made.py").write_text(text)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "made.py"], check=True, env=environment)
    (path,) = (tmp_path / "co" / "evals").glob("*.yaml")
    line = "the plugins are not the record's: changed note"
    command = ["replay", str(path), "made.py"]
    assert line not in CliRunner().invoke(cli, command).output
    (tmp_path / "made.py").write_text(f"{text}# edited\n")
    done = CliRunner().invoke(cli, command)
    assert line in done.output and "same: the same requests" in done.output and done.exit_code == 0
    agent = agent_of(adds_to_one_call, rounds=1)
    agent.input("Go.")
    keep_record(agent, tmp_path / "kept.yaml")
    assert "plugin_sources" not in (tmp_path / "kept.yaml").read_text("utf-8")
    assert replay(tmp_path / "kept.yaml", agent_of(adds_to_one_call, rounds=1)).same


# -- handlers that fail, and are let be ----------------------------------------------------------


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("rounds", [1, 2])
def test_an_answer_counts_though_a_handler_failed_behind_it(first: bool, rounds: int) -> None:
    @after_llm
    def fails() -> None:
        raise ValueError("no")

    @after_llm
    def notes(agent: Agent) -> None:
        agent.state["noted"] = True

    plugins = [fails, notes] if first else [notes, fails]
    with pytest.warns(PluginWarning, match="ValueError: no"):
        agent = agent_of(*plugins, rounds=rounds, plugin_errors="warn", max_iterations=5)
        agent.input("Go.")
        agent.llm = ScriptedLLM("Again.")
        agent.input("More.")
        assert agent.record is not None
        assert assert_told(agent.record) == rounds + 1
        assert replay(agent.record, agent_of(*plugins, plugin_errors="warn")).same
        again = agent_of(*plugins, plugin_errors="warn")
        again.resume(agent.record)
    assert again.session["messages"] == agent.session["messages"]


KILLED = """
import os, sys, warnings
from connectagent import Agent, after_llm
from connectagent.testing import ScriptedLLM
warnings.simplefilter("ignore")
DIES = sys.argv[1] == "die"

@after_llm
def fails():
    raise ValueError("no")

@after_llm
def dies():
    if DIES:
        os._exit(9)

def look(x: int) -> str:
    "Look."
    return f"seen {x}"

script = [("look", {"x": 1}), "Done."] if DIES else ["Done."]
agent = Agent("sent", [look], llm=ScriptedLLM(*script), plugins=[fails, dies], plugin_errors="warn", quiet=True)
if DIES:
    agent.input("Go.")
agent.resume(sys.argv[2])
print([message["role"] for message in agent.session["messages"]])
"""


def test_so_it_does_if_the_process_is_killed_behind_the_failure(tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", KILLED, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)

    assert run("die").returncode == 9
    (path,) = (tmp_path / ".co" / "evals").glob("*.yaml")
    done = run("live", str(path))
    assert done.stdout.strip() == "['user', 'assistant', 'tool', 'assistant']", done.stderr
    assert assert_told(path) == 2
    history = watched_agents(read_record(path))[0].history
    assert [message["role"] for message in history.messages] == ["user", "assistant", "tool", "assistant"]


# -- options of plugins --------------------------------------------------------------------------


class Limited:
    name = "limited"

    def __init__(self, calls: int = 5, *, api_key: str = "", folder: Path = Path(), **more: Any) -> None:
        self.calls, self._api_key, self.folder = calls, api_key, folder

    @before_llm
    def count(self) -> None:
        self.calls -= 1


def test_the_head_has_what_a_plugins_object_was_made_with() -> None:
    path = recorded(agent_of(Limited(3, api_key="sk-" + "a1B2" * 12)))
    options = read_record(path)["plugin_sources"]["limited"]["options"]
    assert options["calls"] == 3 and "a1B2" not in str(options) and "folder" not in options
    assert "options" not in read_record(recorded(agent_of(Limited())))["plugin_sources"]["limited"]
