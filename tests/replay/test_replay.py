"""Replay: a record's answers through today's handlers give the same requests, or tell what is other and whose doing."""

from __future__ import annotations

import copy
import json
import os
import re
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_conversation_property import CASES, FAULTS, MEAN, RESPONSES, Fault, Session, Turn, good
from test_wire_agent import agent_for
from wire_driver import MODES, WIRE, Recording, load, recordings, replay_server

from connectagent import (
    Agent,
    Continue,
    LLMResponse,
    ProviderError,
    Retry,
    ToolCall,
    ToolRejected,
    after_llm,
    after_tools,
    after_user_input,
    around_llm,
    around_tool,
    before_each_tool,
    before_llm,
    before_tools,
    on_complete,
    on_error,
    tool,
)
from connectagent.cli import main
from connectagent.data import LLMRequest
from connectagent.errors import ConfigError, Pause, Paused
from connectagent.replay.replaying import Replay, replay
from connectagent.settings import co_folder, overrides
from connectagent.testing import NetworkRefused, ScriptedLLM, call, replayed


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
    with replay_server(path, mode) as server:
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
            record = agent.record
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
        super().__init__(**options)

    def perform(self, place: str, given: dict[str, Any]) -> Any:
        if place == "around_turn:before":
            self.faults = next(self.plans)
            self.seen.clear()
            if not self.faults and self.agent.tools.names().count("good") == 0:
                self.agent.add_tool(good)
        try:
            return super().perform(place, given)
        finally:
            if place in ("around_turn:after", "around_turn:caught"):
                self.faults = []  # what the program does between two turns belongs to no plan

    def check_error(self, error: BaseException) -> None:
        """It need not be one that a session may raise: that is tested elsewhere."""


@settings(MEAN, max_examples=CASES // 2)
@given(turns=PLANS)
def test_a_session_with_the_same_handlers_is_replayed_byte_for_byte(turns: list[Turn], tmp_path_factory: Any) -> None:
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setenv("CONNECTAGENT_DIR", str(tmp_path_factory.mktemp("co")))
        session = Planned(turns, log=None)
        session.agent.llm = listening = Listening(session.llm)  # type: ignore[assignment]
        for turn in turns:
            session.turn(copy.deepcopy(turn))
        record = session.agent.record
        assert record is not None
        played = replay(record, Planned(turns).agent)
    assert requests_of(played) == listening.requests
    assert played.divergence is None, str(played.divergence)
    assert played.same


def test_a_tool_of_the_provider_that_a_handler_offers_for_one_call_is_no_difference(folder: Path) -> None:
    @before_llm
    def search(request: LLMRequest) -> None:
        request.tools.append({"type": "web_search_20250305", "name": "web_search"})
        request.tools.append({"type": "code_interpreter"})

    agent = shop("Done.", plugins=[search])
    agent.input("Go.")
    assert agent.record is not None
    played = replayed(agent.record, shop(plugins=[search]))
    assert played.same, str(played.divergence)
    less = replayed(agent.record, shop())
    assert less.divergence is not None and less.divergence.what == "tools"


# -- what is other --------------------------------------------------------------------------------


def find(order: int) -> dict[str, int]:
    """Find an order."""
    return {"order": order, "total": 12}


def refund(order: int, amount: int) -> str:
    """Pay an amount back."""
    assert not REPLAYING, "a tool ran in a replay"
    return f"refunded {amount}"


REPLAYING: list[bool] = []


def shop(*responses: Any, **options: Any) -> Agent:
    given = {"tools": [find, refund], "quiet": True, "system_prompt": "You are a shop.", **options}
    return Agent("shop", llm=ScriptedLLM(*responses), **given)


@before_each_tool
def small_refunds(tool_call: ToolCall) -> None:
    if tool_call.name == "refund" and tool_call.arguments["amount"] > 50:
        raise ToolRejected("Ask a human.")


@pytest.fixture
def record(folder: Path) -> Path:
    """A session of two turns."""
    calls = [call("refund", order=7, amount=12), call("refund", order=8, amount=99)]
    agent = shop(call("find", order=7), calls, "Done.", "Bye.")
    assert agent.input("Refund order 7.") == "Done."
    assert agent.input("Thanks.") == "Bye."
    path = agent.record
    assert path is not None
    return path


@pytest.fixture(autouse=True)
def replaying() -> Iterator[None]:
    yield
    REPLAYING.clear()


def test_what_handlers_added_before_a_call_that_was_taken_back_is_not_replayed(folder: Path) -> None:
    @before_llm
    def remind(agent: Any) -> None:
        agent.session["messages"].append({"role": "user", "content": "Be brief."})

    def look() -> str:
        """Look."""
        return "seen"

    def looker(*script: Any) -> Agent:
        return Agent("looker", [look], llm=ScriptedLLM(*script), plugins=[remind], quiet=True)

    agent = looker(call("look"), "Done.")
    agent.input("Go")
    path, other = agent.record, looker("Other.")
    assert path is not None and other.resume(path, place="1.2") == "Other."
    played = replayed(path, looker())
    assert played.same and played.result == "Other."
    contents = [message["content"] for message in played.requests[-1][0]]
    assert contents == ["Go", "Be brief.", None, "seen", "Be brief."]


def test_no_tool_runs_and_nothing_is_written(record: Path, folder: Path) -> None:
    REPLAYING.append(True)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    played = replayed(record, shop(log=None))
    assert played.same and played.results == ["Done.", "Bye."] and played.result == "Bye."
    assert played.hooks.names.count("before_each_tool") == 3
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_handler_that_writes_and_sends_changes_nothing(record: Path, folder: Path) -> None:
    co = co_folder()
    (folder / "mine").write_text("mine")
    (co / "kept").symlink_to(folder / "mine")
    (co / "loop").symlink_to("loop")
    (co / "all").symlink_to("/")
    os.mkfifo(co / "pipe")
    sent: list[Any] = [
        lambda plug: plug.sendto(b"x", ("192.0.2.1", 9)),
        lambda plug: plug.sendto(b"x", 0, ("192.0.2.1", 9)),
        lambda plug: socket.gethostbyname("example.org"),
        lambda plug: socket.gethostbyname_ex("example.org"),
    ]
    refused = []

    @after_llm
    def writes(agent: Agent) -> None:
        for name in ("kept", "new"):
            (co_folder() / name).write_text("written")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plug:
            for send in sent:
                try:
                    send(plug)
                except NetworkRefused:
                    refused.append(send)

    assert replayed(record, shop(plugins=[writes])).results == ["Done.", "Bye."]
    assert refused == sent * 4
    assert (folder / "mine").read_text() == "mine" and not (co / "new").exists()


def test_tools_run_where_they_are_to(record: Path) -> None:
    REPLAYING.append(True)
    assert [call.now for call in replayed(record, shop(), live_tools=True).errors] == ["error", "error"]


def test_an_agent_is_made_from_the_record_alone(record: Path) -> None:
    played = replayed(record)
    assert played.same
    assert played.agent.name == "shop" and played.agent.list_tools() == ["find", "refund"]


def test_a_new_guard_is_told_by_what_it_would_reject(record: Path) -> None:
    played = replayed(record, plugins=[small_refunds])
    (rejected,) = played.rejected
    assert rejected.had_succeeded and rejected.arguments == {"order": 8, "amount": 99}
    assert rejected.by["handler"] == "small_refunds"
    divergence = played.divergence
    assert divergence is not None and (divergence.place, divergence.what) == ("1.3", "messages")
    assert divergence.then_by["tool"] == "refund" and divergence.now_by["handler"] == "small_refunds"
    assert "- tool: refunded 99" in divergence.lines and "+ tool: rejected: Ask a human." in divergence.lines
    assert not played.same and played.results == ["Done.", "Bye."]


def test_the_prompt_the_model_and_the_tools_are_compared(record: Path) -> None:
    def what(**options: Any) -> str:
        divergence = replayed(record, shop(**options)).divergence
        assert divergence is not None and divergence.place == "1.1"
        return divergence.what

    assert what(system_prompt="You are a bank.") == "messages"
    assert what(tools=[refund]) == "tools"
    agent = shop()
    agent.llm.model = "another"
    divergence = replayed(record, agent).divergence
    assert divergence is not None and divergence.what == "model"


def test_a_change_of_one_request_is_told_with_its_handler(record: Path) -> None:
    @before_llm
    def shorten(request: LLMRequest) -> None:
        request.messages = request.messages[-1:]

    divergence = replayed(record, plugins=[shorten]).divergence
    assert divergence is not None and divergence.what == "request" and divergence.now_by["handler"] == "shorten"


def test_what_did_not_run_then_has_no_answer(folder: Path) -> None:
    agent = shop(call("refund", order=8, amount=99), "Done.", plugins=[small_refunds])
    agent.input("Refund.")
    path = agent.record
    assert path is not None
    assert replayed(path, shop(plugins=[small_refunds])).same
    played = replayed(path, shop())
    assert [(one["tool_name"], one["reason"]) for one in played.not_recorded] == [("refund", "it did not run then")]
    assert played.divergence is not None and not played.same


def test_a_call_with_other_arguments_has_no_answer(record: Path) -> None:
    @before_each_tool
    def less(tool_call: ToolCall) -> None:
        if tool_call.arguments.get("amount") == 99:
            tool_call.arguments["amount"] = 50

    (lacking,) = replayed(record, plugins=[less]).not_recorded
    assert lacking["reason"] == "it ran with other arguments then"


def test_the_record_tells_where_its_answers_ran_out(record: Path) -> None:
    @on_complete
    def more(agent: Agent, outcome: str) -> Continue | None:
        return Continue("More?") if agent.current_session["turn"] == 2 else None  # type: ignore[index]

    played = replayed(record, plugins=[more])
    assert played.ran_out == "2.2"
    assert played.divergence is not None and played.divergence.what == "calls"


def test_errors_come_again_as_what_they_were(folder: Path) -> None:
    seen: list[Any] = []

    def fail() -> str:
        """Fail."""
        raise TimeoutError("too slow")

    @on_error
    def note(error: Exception) -> Retry | None:
        seen.append((type(error), str(error), getattr(error, "kind", None), getattr(error, "retry_after_s", None)))
        return Retry(after_s=0.01) if isinstance(error, ProviderError) else None

    limited = ProviderError("slow down", kind="rate_limit", provider="openai", status=429, retry_after_s=30)
    agent = Agent("a", [fail], llm=ScriptedLLM(limited, ("fail", {}), "Done."), plugins=[note], quiet=True)
    agent.input("Go.")
    path, then = agent.record, list(seen)
    seen.clear()
    assert path is not None
    assert replayed(path, plugins=[note]).same
    assert seen == then == [
        (ProviderError, "slow down", "rate_limit", 30), (TimeoutError, "too slow", None, None)
    ]  # fmt: skip


def test_what_around_handlers_hide_is_not_recorded_and_the_rest_is_as_it_was(folder: Path) -> None:
    seen: list[Any] = []

    @around_tool
    def hide(tool_call: ToolCall) -> Iterator[Any]:
        value = yield
        seen.append(value)
        return {**value, "total": "hidden"}

    @around_llm
    def louder() -> Iterator[Any]:
        response = yield
        seen.append(response.content)
        response.content = response.content.replace("secret", "[hidden]")

    agent = shop(LLMResponse("A secret", [call("find", order=7)]), "Done", plugins=[[hide, louder]])
    assert agent.input("Go.") == "Done"
    assert seen == ["A secret", {"order": 7, "total": 12}, "Done"]
    path = agent.record
    seen.clear()
    assert path is not None and "secret" not in path.read_text("utf-8")
    assert replayed(path, shop(plugins=[[hide, louder]])).same
    assert seen == ["A [hidden]", {"order": 7, "total": "hidden"}, "Done"]


def test_a_turn_that_was_paused_goes_on_with_its_decision(folder: Path) -> None:
    @before_each_tool
    def ask(tool_call: ToolCall) -> None:
        if tool_call.name == "refund" and not tool_call.approved:
            raise Pause("a refund")

    decisions: list[dict[str, Any]] = [{"approve": True}, {"reject": "Too much."}, {"answer": "done by hand"}]
    for decided in decisions:
        agent = shop([call("find", order=7), call("refund", order=7, amount=12)], plugins=[ask])
        with pytest.raises(Paused) as paused:
            agent.input("Refund.")
        path = paused.value.record
        assert replayed(path, shop(plugins=[ask])).same
        assert shop("Done.", plugins=[ask]).resume(path, **decided) == "Done."
        played = replayed(path, shop(plugins=[ask]))
        assert played.same, str(played.divergence)
        assert played.results == ["Done."]


def test_what_the_program_and_the_tools_did_is_done_again(folder: Path) -> None:
    def remember(agent: Agent) -> str:
        """Remember."""
        assert agent.current_session is not None and not REPLAYING
        agent.current_session["state"]["seen"] = 1
        agent.end_turn("Enough.")
        return "ok"

    @after_user_input
    def tell(agent: Agent) -> None:
        assert agent.current_session is not None
        agent.current_session["messages"].append({"role": "user", "content": str(agent.current_session["state"])})

    def made(*responses: Any) -> Agent:
        return shop(*responses, tools=[find, remember], plugins=[tell])

    agent = made(("remember", {}), "Done.")
    agent.execute_tool("find", {"order": 7})
    assert agent.input("Go.", max_iterations=3) == "Enough."
    assert agent.current_session is not None
    agent.current_session["state"]["mine"] = 2
    agent.current_session["messages"].append({"role": "user", "content": "By the way"})
    assert agent.input("And?") == "Done."
    path = agent.record
    assert path is not None
    REPLAYING.append(True)
    played = replayed(path, made())
    assert played.same, str(played.divergence)
    assert played.requests == [(one.messages, one.tools) for one in agent.llm.requests]  # type: ignore[attr-defined]


def test_a_session_that_was_cut_off_is_played_as_far_as_it_goes(record: Path) -> None:
    lines = record.read_text("utf-8").splitlines(keepends=True)
    whole = next(number for number, line in enumerate(lines) if '"tool_name": "refund"' in line)
    for number in range(8, whole + 1):
        record.write_text("".join(lines[:number]), "utf-8")
        played = replayed(record, shop())
        assert played.same, (number, played.divergence, played.changed, played.not_recorded)
        assert played.ran_out is not None or not played.results


# -- the command ----------------------------------------------------------------------------------


GUARD = '''from connectagent import ToolRejected, before_each_tool
@before_each_tool
def small_refunds(tool_call):
    if tool_call.name == "refund" and tool_call.arguments["amount"] > 50:
        raise ToolRejected("Ask a human.")
'''
SCRIPT = '''from connectagent import Agent
def find(order: int) -> dict:
    """Find an order."""
def refund(order: int, amount: int) -> str:
    """Pay an amount back."""
agent = Agent("shop", [find, refund], "You are a shop.", model="gpt-5")
agent.llm.model = "scripted"
print(agent.input("This would ask the network."))
'''


def command(capfd: Any, *arguments: str) -> tuple[int, str, str]:
    code = main(["replay", *arguments])
    told = capfd.readouterr()
    return code, told.out, told.err


@pytest.fixture
def cleared() -> Iterator[None]:
    before, path, modules = dict(overrides), list(sys.path), sys.argv
    yield
    overrides.clear()
    overrides.update(before)
    sys.path[:], sys.argv = path, modules
    sys.modules.pop("connectagent_script", None)


@pytest.mark.usefixtures("cleared")
def test_the_command_plays_a_script_that_would_run_its_agent(record: Path, folder: Path, capfd: Any) -> None:
    (folder / "shop.py").write_text(SCRIPT)
    code, out, err = command(capfd, str(record), str(folder / "shop.py"))
    assert (code, err) == (0, "")
    assert out == f"{record.name}: 2 turns, 4 model calls\nsame: the same requests, the same results\n"


@pytest.mark.usefixtures("cleared")
def test_the_command_backtests_a_guard(record: Path, folder: Path, capfd: Any) -> None:
    (folder / "shop.py").write_text(SCRIPT)
    (folder / "guard.py").write_text(GUARD)
    code, out, _ = command(capfd, "last", str(folder / "shop.py"), "-p", str(folder / "guard.py"))
    assert code == 1
    assert "first divergence at 1.3: other messages\n" in out
    assert "now rejected, had succeeded: 1\n  1.2 refund(order=8, amount=99)" in out
    assert out.endswith("result: same\n")
    code, out, _ = command(capfd, "last", str(folder / "shop.py"), "-p", str(folder / "guard.py"), "--json")
    data = json.loads(out)
    assert code == 1 and data["rejected"][0]["had_succeeded"] and data["divergence"]["iteration"] == 3


@pytest.mark.usefixtures("cleared")
def test_one_broken_record_does_not_stop_a_backtest(record: Path, folder: Path, capfd: Any) -> None:
    (folder / "shop.py").write_text(SCRIPT)
    for number, text in enumerate(["agent: [", "agent: shop\nturns: 5\n", "agent: shop\nturns:\n- trace: [1]\n", "\0"]):
        record.with_name(f"shop_2020-01-0{number + 1}T00-00-00.yaml").write_text(text)
    code, out, _ = command(capfd, "--agent", "shop", str(folder / "shop.py"))
    assert code == 1
    assert "5 records: 1 same, 0 diverged, 4 errors; 0 calls now rejected, of which 0 had succeeded\n" in out


@pytest.mark.usefixtures("cleared")
def test_wrong_usage_is_exit_code_2(record: Path, capfd: Any) -> None:
    for arguments in (["no such record"], ["last", "missing.py"], ["--agent", "nobody"]):
        assert command(capfd, *arguments)[0] == 2


# -- the fixture ----------------------------------------------------------------------------------


TEST = '''from connectagent import Agent
from connectagent.testing import ScriptedLLM, call

def find(order: int) -> str:
    """Find an order."""
    raise_or = open("live.txt").read()
    return "x" * 40_000 + raise_or

def make_agent():
    return Agent("shop", [find], PROMPT, llm=ScriptedLLM(call("find", order=7), "Done."), log=False, quiet=True)

PROMPT = "You are a shop."

def test_refund(recorded):
    agent = recorded("refund.yaml", make_agent)
    assert agent.input("Go.") == "Done."
'''


def test_a_record_of_a_test_is_written_with_one_flag_and_then_played(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["connectagent.testing"]\n')
    (tmp_path / "test_shop.py").write_text(TEST)
    (tmp_path / "live.txt").write_text("live")
    run = partial(subprocess.run, cwd=tmp_path, capture_output=True, text=True)
    pytest_in = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]

    missing = run(pytest_in)
    assert missing.returncode == 1 and "pytest --record" in missing.stdout
    assert run([*pytest_in, "--record"]).returncode == 0
    kept = tmp_path / "records" / "refund.yaml"
    first = re.sub("call_find_[0-9]+", "id", kept.read_text("utf-8"))
    assert run([*pytest_in, "--record"]).returncode == 0
    assert re.sub("call_find_[0-9]+", "id", kept.read_text("utf-8")) == first
    assert str(tmp_path) not in first and "x" * 40_000 in first

    (tmp_path / "test_shop.py").write_text(TEST.replace('"Done."\n', '"Other."\n'))
    assert run([*pytest_in, "--record"]).returncode == 1
    assert re.sub("call_find_[0-9]+", "id", kept.read_text("utf-8")) == first
    (tmp_path / "test_shop.py").write_text(TEST)
    (tmp_path / "live.txt").unlink()
    assert run(pytest_in).returncode == 0
    (tmp_path / "test_shop.py").write_text(TEST.replace("You are a shop.", "You are a bank."))
    other = run(pytest_in)
    assert other.returncode == 1 and "refund.yaml is not replayed as it was" in other.stdout
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "__pycache__") == [
        "conftest.py", "records", "test_shop.py"
    ]  # fmt: skip


def test_a_call_that_waited_and_was_approved_counts_as_the_success_that_it_became(co_dir: Path) -> None:
    def refund(amount: int) -> str:
        """Refund an amount."""
        return f"refunded {amount}"

    @before_each_tool
    def manager() -> None:
        raise Pause("needs a manager")

    @before_each_tool
    def guard() -> None:
        raise ToolRejected("no refunds")

    def agent(*responses: Any, handlers: Any) -> Agent:
        return Agent("shop", tools=[refund], llm=ScriptedLLM(*responses), on_events=handlers, quiet=True)

    with pytest.raises(Paused) as paused:
        agent([call("refund", amount=5)], handlers=[manager]).input("Refund me")
    agent("Done.", handlers=[manager]).resume(paused.value.record, approve=True)
    (rejected,) = replayed(paused.value.record, agent=agent(handlers=[guard])).rejected
    assert (rejected.then, rejected.now) == ("success", "rejected")


def test_a_session_with_a_handoff_is_refused_without_its_agents() -> None:
    billing = Agent("billing", llm=ScriptedLLM("Billed."), description="Bills.", quiet=True)
    llm = ScriptedLLM(call("transfer_to_agent", agent_name="billing"))
    agent = Agent("front", llm=llm, sub_agents=[billing], quiet=True)
    assert agent.input("Bill me.") == "Billed."
    with pytest.raises(ConfigError, match="front handed over to billing, which cannot be played"):
        replay(agent.record)


def test_handlers_know_that_a_record_is_played(co_dir: Path) -> None:
    told: list[bool] = []

    @after_llm
    def tell(agent: Agent) -> None:
        told.append(agent.replaying)

    def made() -> Agent:
        child = Agent("child", llm=ScriptedLLM("Hi."))
        return Agent("main", [child], llm=ScriptedLLM(call("child", prompt="Go."), "Done."), plugins=[tell], quiet=True)

    agent = made()
    agent.input("Go.")
    assert told == [False, False, False]
    told.clear()
    assert agent.record is not None
    assert replay(agent.record, made()).same
    assert told and all(told)


@pytest.mark.parametrize("behind", [1, 2, 3, 5])
def test_a_stream_that_was_left_ends_where_it_did(behind: int, folder: Path) -> None:
    agent = shop(("find", {"order": 7}), ("find", {"order": 8}), "Done.")
    events = agent.stream("Go.")
    for _ in range(behind):
        next(events)
    events.close()
    assert agent.record is not None
    played = replayed(agent.record, shop())
    assert played.same and played.ran_out is None, str(played.divergence)
    assert len(played.requests) == len(agent.llm.requests)  # type: ignore[attr-defined]

    @before_llm
    def stop(agent: Agent) -> None:
        agent.end_turn("Enough.")

    other = replayed(agent.record, shop(plugins=[stop]))
    assert behind == 1 or other.divergence is not None


# -- turns that were interrupted -----------------------------------------------------------------------


class Interrupted(ScriptedLLM):
    """Is interrupted at the call that `at` names, counted from 1."""

    at = 0
    asked = 0

    def complete(self, messages: Any, tools: Any = None) -> LLMResponse:
        self.asked += 1
        if self.asked == self.at:
            raise KeyboardInterrupt
        return super().complete(messages, tools)


@tool(idempotent=True)
def once_stopped(n: int, agent: Agent) -> str:
    """Be stopped in the first turn."""
    if STOPS.pop("tool", False):
        raise KeyboardInterrupt
    return "done"


STOPS: dict[str, bool] = {}


def interruptible(at: int, *script: Any, plugins: Any = ()) -> Agent:
    llm = Interrupted(*script)
    llm.at = at
    return Agent("a", [once_stopped], llm=llm, plugins=list(plugins), quiet=True)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_an_interrupted_turn_is_played_before_and_after_it_was_resumed(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = [call("once_stopped", n=1), "Done."]
    STOPS["tool"] = at == 0
    agent = interruptible(at, *script)
    with pytest.raises(KeyboardInterrupt):
        agent.input("Hi")
    assert agent.record is not None and replayed(agent.record, interruptible(0)).same
    assert interruptible(0, *script[max(at, 2) - 1 if at != 1 else 0 :]).resume(agent.record) == "Done."
    played = replayed(agent.record, interruptible(0))
    assert played.same and played.results == ["Done."], str(played.divergence)


@pytest.mark.parametrize("hook", [after_user_input, before_llm, after_llm, before_tools, before_each_tool, after_tools])
def test_what_an_interrupted_handler_would_have_led_to_is_no_difference(
    hook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    @hook
    def stopped() -> None:
        if STOPS.pop("handler", False):
            raise KeyboardInterrupt

    STOPS["handler"] = True
    agent = interruptible(0, call("once_stopped", n=1), "Done.", plugins=[stopped])
    with pytest.raises(KeyboardInterrupt):
        agent.input("Hi")
    assert agent.record is not None
    played = replayed(agent.record, interruptible(0, plugins=[stopped]))
    assert played.same and played.ran_out is not None, str(played.divergence)


# -- what was sent, exactly --------------------------------------------------------------------------


class WithOptions(ScriptedLLM):
    """A scripted model that takes parameters of its provider's API."""

    options: dict[str, Any]

    def with_options(self, options: dict[str, Any]) -> WithOptions:
        made = copy.copy(self)
        made.options = options
        return made


def described(text: str) -> Any:
    """A tool with this description."""

    def look_up(word: str) -> str:
        return "found"

    look_up.__doc__ = text
    return look_up


@pytest.mark.parametrize("what", ["messages", "schemas", "options", "options of one call"])
def test_a_request_that_says_something_else_is_no_same_replay(what: str) -> None:
    said = {"now": "as then"}

    @before_llm
    def rewrites(request: LLMRequest) -> None:
        request.messages = [*request.messages[:-1], {"role": "user", "content": f"Say it {said['now']}"}]
        if said["now"] != "as then" and what == "options of one call":
            request.options = {"temperature": 1.0}

    def agent(temperature: float = 0.0, text: str = "Look up a word.") -> Agent:
        llm = WithOptions("Done.")
        llm.options = {"temperature": temperature}
        return Agent("shop", tools=[described(text)], llm=llm, plugins=[rewrites], quiet=True)

    live = agent()
    live.input("Hi")
    assert live.record is not None
    assert replayed(live.record, agent=agent()).same
    changed = {"options": agent(1.0), "schemas": agent(text="Look up two words.")}.get(what) or agent()
    said["now"] = "otherwise" if what in ("messages", "options of one call") else "as then"
    played = replayed(live.record, agent=changed)
    assert played.divergence is not None and not played.same
    assert played.divergence.what == what.split()[0]
