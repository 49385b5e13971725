"""Each limit of a turn holds over pauses, kills and errors, in the same process and in another one.

A limit is met by an agent that never ends by itself. How many model calls it takes without a stop is what it may take
with stops. `CONNECTAGENT_MATRIX=all` stops before each model call, otherwise before every third one.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from connectagent import (
    Agent,
    Continue,
    Loop,
    Message,
    OutputError,
    Pause,
    Paused,
    ProviderError,
    Retry,
    Sequential,
    ToolCall,
    before_llm,
    on_complete,
    on_error,
    register_models,
)
from connectagent.cli import main
from connectagent.data import LLMResponse

EVERY = 1 if os.environ.get("CONNECTAGENT_MATRIX") == "all" else 3
MOST_RESUMES = 60
KILLED = 9
COUNTED, STOPPED = Path("counted"), Path("stopped")

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="another process is a fork")


class Stubborn:
    """A model whose answer depends on what it is asked only, so that any process can go on with it.

    Args:
        answer: what it answers, by the messages; an exception is raised.
    """

    model: str = "test/stubborn"

    def __init__(self, answer: Callable[[list[Message]], Any]) -> None:
        self._answer = answer

    def complete(self, messages: list[Message], tools: Any = None) -> LLMResponse:
        """Count the call, and answer."""
        with COUNTED.open("a") as file:
            file.write(".\n")
        answer = self._answer(messages)
        if isinstance(answer, Exception):
            raise answer
        return LLMResponse(None, [answer]) if isinstance(answer, ToolCall) else LLMResponse(answer)


def counted() -> int:
    """How many model calls there were, in all processes."""
    return len(COUNTED.read_text().splitlines()) if COUNTED.exists() else 0


def asks(name: str, **arguments: Any) -> Callable[[list[Message]], ToolCall]:
    """A model that always calls a tool."""
    return lambda messages: ToolCall(f"c{len(messages)}", name, arguments)


def look() -> str:
    """Look."""
    return "nothing"


def agent_of(name: str, answer: Callable[[list[Message]], Any], **options: Any) -> Agent:
    return Agent(name, llm=Stubborn(answer), quiet=True, **options)


def iterations(stops: Any) -> Agent:
    return agent_of("lone", asks("look"), tools=[look], max_iterations=7, plugins=[stops])


def inner_iterations(stops: Any) -> Agent:
    inner = agent_of("inner", asks("look"), tools=[look], max_iterations=4)
    return agent_of("outer", asks("inner", prompt="Go."), tools=[inner], max_iterations=2, plugins=[stops])


def _hands_to(name: str) -> Callable[[list[Message]], Any]:
    def answer(messages: list[Message]) -> Any:
        if "which is the limit" in str(messages[-1].get("content")):
            return "I answer."
        return ToolCall(f"c{len(messages)}", "transfer_to_agent", {"agent_name": name})

    return answer


def handoffs(stops: Any) -> Agent:
    other = agent_of("other", _hands_to("front"), max_iterations=40)
    return agent_of("front", _hands_to("other"), sub_agents=[other], max_iterations=40, plugins=[stops])


def handoffs_in_a_workflow(stops: Any) -> Agent:
    second = agent_of("second", _hands_to("first"), max_iterations=40)
    first = agent_of("first", _hands_to("second"), sub_agents=[second], max_iterations=40)
    return Sequential("line", [first], plugins=[stops], quiet=True)


def output_retries(stops: Any) -> Agent:
    retries: dict[str, Any] = {"output": int, "output_retries": 4, "max_iterations": 40}
    return agent_of("typed", lambda messages: "no number", plugins=[stops], **retries)


def inner_output_retries(stops: Any) -> Agent:
    inner = agent_of("inner", lambda messages: "no number", output=int, output_retries=3)
    return Sequential("line", [inner], plugins=[stops], quiet=True)


def rounds(stops: Any) -> Agent:
    return Loop("loop", [agent_of("step", lambda messages: "again")], max_rounds=7, plugins=[stops], quiet=True)


def continues(stops: Any) -> Agent:
    @on_complete
    def more(result: str) -> Continue:
        return Continue("More.")

    return agent_of("lone", lambda messages: "done", max_iterations=7, plugins=[stops, more])


def loopguard(stops: Any) -> Agent:
    guard = pytest.importorskip("connectagent_loopguard").LoopGuard(repeats=3, patience=1)
    return agent_of("lone", asks("look"), tools=[look], max_iterations=30, plugins=[stops, guard])


def reflect(stops: Any) -> Agent:
    plugin = pytest.importorskip("connectagent_reflect").Reflect(max_continues=4, plan=False)

    def answer(messages: list[Message]) -> str:
        return json.dumps({"done": False, "missing": "all"}) if "Judge whether" in str(messages[0]) else "done"

    return agent_of("lone", answer, max_iterations=30, plugins=[stops, plugin])


def verify(stops: Any) -> Agent:
    plugin = pytest.importorskip("connectagent_verify").Verify(lambda answer: False, attempts=5)
    return agent_of("lone", lambda messages: "done", max_iterations=30, plugins=[stops, plugin])


def budget_of_calls(stops: Any) -> Agent:
    plugin = pytest.importorskip("connectagent_budget").Budget(model_calls=5)
    return agent_of("lone", asks("look"), tools=[look], max_iterations=30, plugins=[stops, plugin])


def budget_of_tools(stops: Any) -> Agent:
    plugin = pytest.importorskip("connectagent_budget").Budget(tool_calls=5)
    return agent_of("lone", asks("look"), tools=[look], max_iterations=30, plugins=[stops, plugin])


STOP_HOOK = """
import json, sys
if not json.load(sys.stdin)["stop_hook_active"]:
    print("go on", file=sys.stderr)
    sys.exit(2)
"""


def stop_hooks(stops: Any) -> Agent:
    """A hook that lets the agent go on, unless it goes on because of a hook already."""
    plugin = pytest.importorskip("connectagent_shellhooks").ShellHooks(user=False, folder=".")
    settings = Path(".claude/settings.json")
    Path(".claude").mkdir(exist_ok=True)
    Path("stop.py").write_text(STOP_HOOK)
    hook = {"type": "command", "command": f"{sys.executable} stop.py"}
    settings.write_text(json.dumps({"hooks": {"Stop": [{"hooks": [hook]}]}}))
    assert main(["allow", str(settings)]) == 0

    def answer(messages: list[Message]) -> Any:
        looked = sum(message["role"] == "tool" for message in messages)
        return "done" if looked > 1 else ToolCall(f"c{looked}", "look", {})

    return agent_of("lone", answer, tools=[look], max_iterations=30, plugins=[stops, plugin])


LIMITS = [
    iterations, inner_iterations, handoffs, handoffs_in_a_workflow, output_retries, inner_output_retries, rounds,
    continues, loopguard, reflect, verify, stop_hooks, budget_of_calls, budget_of_tools,
]  # fmt: skip


class Stops:
    """Stops the turn before a model call, once for each number of calls.

    Args:
        how: `pause`, `error`, `kill`, or None to stop nothing.
    """

    name = "stops"

    def __init__(self, how: str | None) -> None:
        self._how = how

    @before_llm
    def stop(self) -> None:
        """Stop the turn here, unless it was stopped here before."""
        number = counted()
        before = STOPPED.read_text().split() if STOPPED.exists() else []
        if self._how is None or number % EVERY or str(number) in before:
            return
        with STOPPED.open("a") as file:
            file.write(f"{number}\n")
        if self._how == "pause":
            raise Pause("Go on?")
        if self._how == "error":
            raise OSError("no network")
        os._exit(KILLED)


def step(agent: Agent, record: Path | None) -> str:
    """Begin the turn or go on with it: `paused`, `stopped`, or how it ended."""
    try:
        if record is None:
            return f"ended: {agent.input('Go.')}"
        decision: dict[str, Any] = {"approve": True} if _is_paused(agent, record) else {}
        return f"ended: {agent.resume(record, **decision)}"
    except Paused:
        return "paused"
    except OutputError as error:
        return f"ended: {type(error).__name__}"
    except (OSError, ProviderError, KeyboardInterrupt):
        return "stopped"


def _is_paused(agent: Agent, record: Path) -> bool:
    from connectagent.records import read_record

    return read_record(record)["turns"][-1].get("status") == "paused"


def in_a_fork(make: Callable[[], Agent], record: Path | None) -> str:
    """A step in a process of its own."""
    process = os.fork()
    if process == 0:
        code = 1
        try:
            Path("said").write_text(step(make(), record))
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(process, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, KILLED)
    return "stopped" if code == KILLED else Path("said").read_text()


def taken(make: Callable[[Any], Agent], how: str | None, other: bool) -> tuple[str, int]:
    """Take a turn to its end: how it ended, and how many model calls that took."""
    COUNTED.unlink(missing_ok=True)
    STOPPED.unlink(missing_ok=True)
    stops, agent = Stops(how), None if other else make(Stops(how))
    record: Path | None = None
    for _ in range(MOST_RESUMES):
        said = in_a_fork(lambda: make(stops), record) if agent is None else step(agent, record)
        if said.startswith("ended: "):
            return said, counted()
        [record] = Path(".co/evals").glob("*.yaml")
    return "it never ended", counted()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONNECTAGENT_DIR", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


WAYS = [("pause", False), ("error", False), ("pause", True), ("error", True), ("kill", True)]


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.__name__)
@pytest.mark.parametrize(("how", "other"), WAYS, ids=lambda value: {True: "other", False: "same"}.get(value, value))
def test_a_limit_does_not_start_anew_where_a_turn_goes_on(
    limit: Callable[[Any], Agent], how: str, other: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "whole").mkdir()
    monkeypatch.chdir(tmp_path / "whole")
    whole = taken(limit, None, False)
    assert whole[1] > EVERY
    (tmp_path / "stopped").mkdir()
    monkeypatch.chdir(tmp_path / "stopped")
    said, number = taken(limit, how, other)
    if limit is inner_iterations and how == "error":  # the outer model reads the inner turn's error, and goes on
        assert number <= whole[1]
    else:
        assert (said, number) == whole
    assert STOPPED.exists()


# -- attempts at one model call --------------------------------------------------------------------


class Failing(Stubborn):
    """A model that always fails, and in one attempt stops the turn instead.

    Args:
        how: `interrupt`, `kill`, or None to stop nothing.
        at: after how many attempts it stops the turn.
        model: its name.
    """

    def __init__(self, how: str | None, at: int, model: str = "test/stubborn") -> None:
        super().__init__(lambda messages: ProviderError("busy", kind="overloaded", provider="test", model=self.model))
        self.how = how
        self.at = at
        self.model = model

    def complete(self, messages: list[Message], tools: Any = None) -> LLMResponse:
        """Stop once, else fail."""
        if self.how is not None and counted() == self.at and not STOPPED.exists():
            STOPPED.touch()
            if self.how == "kill":
                os._exit(KILLED)
            raise KeyboardInterrupt
        return super().complete(messages, tools)


def retry_values(llm: Failing) -> Agent:
    @on_error
    def again(error: Exception) -> Retry:
        return Retry(0)

    return Agent("lone", llm=llm, plugins=[again], quiet=True)


def retry_plugin(llm: Failing) -> Agent:
    plugin = pytest.importorskip("connectagent_retry").Retries(attempts=6, wait_s=0, breaker=0)
    return Agent("lone", llm=llm, plugins=[plugin], quiet=True)


def retry_plugin_with_another_model(llm: Failing) -> Agent:
    @register_models
    def bring() -> dict[str, Any]:
        return {"other": lambda name: Failing(llm.how, llm.at, name)}

    plugin = pytest.importorskip("connectagent_retry").Retries(attempts=3, wait_s=0, breaker=0, fallback="other/model")
    return Agent("lone", llm=llm, plugins=[bring, plugin], quiet=True)


def attempts(make: Callable[[Failing], Agent], how: str | None, at: int, other: bool) -> int:
    """How many attempts there were at a model call that was stopped once, and gone on with."""
    COUNTED.unlink(missing_ok=True)
    STOPPED.unlink(missing_ok=True)
    agent = None if other else make(Failing(how, at))
    record: Path | None = None
    for _ in range(1 if how is None else 2):
        said = in_a_fork(lambda: make(Failing(how, at)), record) if agent is None else step(agent, record)
        assert said == "stopped"
        [record] = Path(".co/evals").glob("*.yaml")
    return counted()


ATTEMPTS = [retry_values, retry_plugin, retry_plugin_with_another_model]


@pytest.mark.parametrize("make", ATTEMPTS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("at", [1, 2, 4])
@pytest.mark.parametrize(("how", "other"), [("interrupt", False), ("interrupt", True), ("kill", True)])
def test_attempts_at_a_call_do_not_start_anew_where_it_was_stopped(
    make: Callable[[Failing], Agent], at: int, how: str, other: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "whole").mkdir()
    monkeypatch.chdir(tmp_path / "whole")
    whole = attempts(make, None, 0, False)
    (tmp_path / "stopped").mkdir()
    monkeypatch.chdir(tmp_path / "stopped")
    assert attempts(make, how, at, other) == whole
    assert STOPPED.exists()


def test_resuming_a_turn_that_ended_with_an_output_error_grants_the_retries_again() -> None:
    agent = output_retries(Stops(None))
    with pytest.raises(OutputError):
        agent.input("Go.")
    assert counted() == 5
    for number in (10, 15):
        with pytest.raises(OutputError):
            output_retries(Stops(None)).resume(agent.record)
        assert counted() == number
