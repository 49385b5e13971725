"""For tests of agents and plugins: nothing here needs a key or a network.

Opt in with `pytest_plugins = ["connectagent.testing"]` in conftest.py, which brings the fixtures `agenttester`,
`no_network`, `co_dir` and `recorded`; or import the names.

    turn = run_agent(call("search", query="retry"), "It is in retry.md.", tools=[search], plugins=[my_plugin])
    assert turn.result == "It is in retry.md."
    assert turn.llm.requests[1].messages[-1]["content"] == "retry.md"

    def test_it_keeps_the_rules_on_every_path(agenttester):
        agenttester.check(my_plugin, changes={"messages"})
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

from connectagent.replay.network import NetworkRefused, no_network
from connectagent.testing.bisection import Cause, Finding, bisect
from connectagent.testing.plugin_tester.faults import Fault
from connectagent.testing.plugin_tester.tester import AgentTester, Checked, PluginFaults
from connectagent.testing.recorded_sessions import Recorded, Replayed, recording, replayed
from connectagent.testing.recorder import HookCall, HookRecorder
from connectagent.testing.rules import conversation_problems
from connectagent.testing.script import Request, ScriptedLLM, ScriptEnded, call
from connectagent.testing.turn import Turn, crash_at, run_agent

try:
    import pytest
except ImportError:  # the rest is of use in scripts too
    pytest = None  # type: ignore[assignment]

__all__ = [
    "AgentTester",
    "Cause",
    "Checked",
    "Fault",
    "Finding",
    "HookCall",
    "HookRecorder",
    "NetworkRefused",
    "PluginFaults",
    "Recorded",
    "Replayed",
    "Request",
    "ScriptEnded",
    "ScriptedLLM",
    "Turn",
    "bisect",
    "call",
    "conversation_problems",
    "crash_at",
    "no_network",
    "replayed",
    "run_agent",
]

if pytest is not None:

    @pytest.fixture
    def agenttester() -> AgentTester:
        """Drives a plugin along every path of a turn: `agenttester.check(plugin, changes={...})`."""
        return AgentTester()

    @pytest.fixture(name="no_network")
    def _no_network() -> Iterator[no_network]:
        """During this test no connection leaves this machine; what was refused is in `no_network.refused`."""
        with no_network() as guard:
            yield guard

    @pytest.fixture
    def co_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A `.co` folder of this test's own, in a current folder of its own: records and logs go there."""
        monkeypatch.chdir(tmp_path)
        folder = tmp_path / ".co"
        monkeypatch.setenv("CONNECTAGENT_DIR", str(folder))
        return folder

    _failed = pytest.StashKey[bool]()

    def pytest_addoption(parser: pytest.Parser) -> None:
        group = parser.getgroup("connectagent")
        text = "run the agents of the fixture `recorded` live, and write their records"
        group.addoption("--record", action="store_true", help=text)
        text = "say of a failed test with `recorded` without which plugins the record plays as it was"
        group.addoption("--bisect", action="store_true", help=text)

    @pytest.fixture
    def recorded(request: pytest.FixtureRequest) -> Iterator[Recorded]:
        """Agents that answer from `records/` beside the test: `agent = recorded(make_agent)`."""
        folder, live = request.path.parent / "records", bool(request.config.getoption("--record"))
        with recording(folder, live, f"{request.path.stem}.{request.node.name}") as made:
            yield made
            made.failed = request.node.stash.get(_failed, False)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        item.stash[_failed] = item.stash.get(_failed, False) or report.failed
        used = getattr(item, "funcargs", {}).get("recorded")
        if report.failed and isinstance(used, Recorded) and item.config.getoption("--bisect", False):
            report.sections += [("bisect", text) for text in used.blamed()]
        return report
