"""Many prompts at once: `agent.map()`."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from connectagent import (
    Agent,
    BatchLimits,
    BatchStopped,
    Pause,
    Sequential,
    SqliteStore,
    ToolRejected,
    before_each_tool,
    on_agent_closed,
)
from connectagent.agents import keyed_session
from connectagent.data import LLMResponse, Message, TokenUsage, ToolCall
from connectagent.errors import ConfigError, ProviderError
from connectagent.loop import threads
from connectagent.records.read import read_record
from connectagent.testing import ScriptedLLM, call

ITEMS, KILLS = int(os.environ.get("MAP_ITEMS", "80")), int(os.environ.get("MAP_KILLS", "4"))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Model:
    """Answers with the prompt in capitals; a prompt that says so fails, waits or calls a tool."""

    model = "capitals"

    def __init__(self) -> None:
        self.calls = 0
        self.at_once = self.most = 0
        self._lock = threading.Lock()

    def complete(self, messages: list[Message], tools: Any = None) -> LLMResponse:
        with self._lock:
            self.calls += 1
            self.at_once += 1
            self.most = max(self.most, self.at_once)
        try:
            return self._answer(str(messages[-1]["content"]), messages)
        finally:
            with self._lock:
                self.at_once -= 1

    def _answer(self, text: str, messages: list[Message]) -> LLMResponse:
        if "wait" in text:
            time.sleep(0.05)
        if "note" in text and messages[-1]["role"] == "user":
            return LLMResponse(None, [ToolCall("c1", "note", {"text": text.split()[1]})])
        if "fail" in text:
            raise ValueError(text)
        return LLMResponse(text.upper(), usage=TokenUsage(10, 5, cost=0.01))


def note(text: str) -> str:
    """Write a line."""
    with open("notes", "a") as file:
        file.write(text + "\n")
    return f"noted {text}"


def notes() -> list[str]:
    return Path("notes").read_text().split() if Path("notes").exists() else []


def agent_of(model: Model | None = None, **options: Any) -> Agent:
    return Agent("caps", **{"tools": [note], "llm": model or Model(), **options})


def test_each_prompt_has_an_item(capfd: pytest.CaptureFixture[str]) -> None:
    model = Model()
    items = {item.id: item for item in agent_of(model).map({"a": "one wait", "b": "two wait", "c": "three wait"}, 2)}
    assert {id: item.result for id, item in items.items()} == {"a": "ONE WAIT", "b": "TWO WAIT", "c": "THREE WAIT"}
    first = items["a"]
    assert (first.status, first.error, first.cost, first.tokens) == ("answered", None, 0.01, 15)
    assert first.record is not None and first.record.exists() and model.most == 2
    assert len({item.record for item in items.values()}) == 3
    assert capfd.readouterr() == ("", "")


def test_agents_below_show_nothing_either(capfd: pytest.CaptureFixture[str]) -> None:
    tool, handed = Agent("below", tools=[note], llm=Model()), Agent("next", llm=Model())
    list(Agent("a", tools=[tool], llm=ScriptedLLM(call("below", prompt="note a"), "Done.")).map(["Go"]))
    transfer = call("transfer_to_agent", agent_name="next")
    list(Agent("b", sub_agents=[handed], llm=ScriptedLLM(transfer)).map(["Go"]))
    list(Sequential("both", [Agent("first", llm=Model()), Agent("second", llm=Model())]).map(["Go"]))
    assert capfd.readouterr() == ("", "") and notes() == ["a"]


def test_the_order_of_the_prompts_is_kept_on_request() -> None:
    prompts = ["one wait", "two", "three wait", "four"]
    assert [item.prompt for item in agent_of().map(prompts, 4, ordered=True)] == prompts


def test_an_error_or_a_bad_prompt_does_not_stop_the_others() -> None:
    items = list(agent_of().map(["a", "fail", None, 3, "b"], ordered=True))
    assert [item.status for item in items] == ["answered", "error", "error", "error", "answered"]
    assert isinstance(items[1].error, ValueError) and "a prompt is a str" in str(items[2].error)


def test_an_iterator_is_read_as_far_as_it_is_needed() -> None:
    read: list[int] = []

    def prompts() -> Iterator[str]:
        for number in range(10_000):
            read.append(number)
            yield f"prompt {number}"

    for item in agent_of().map(prompts(), 2):
        if item.number >= 5:
            break
    assert len(read) < 50
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("map-")]


def test_an_error_of_the_iterator_comes_after_the_items() -> None:
    def prompts() -> Iterator[str]:
        yield "one"
        raise OSError("the file is gone")

    found = []
    with pytest.raises(OSError, match="the file is gone"):
        for item in agent_of().map(prompts(), 1):
            found.append(item.result)
    assert found == ["ONE"]


def test_the_same_run_again_makes_no_request() -> None:
    prompts = ["a", "b", "b", "c"]
    first = list(agent_of().map(prompts, run="nightly", ordered=True))
    model = Model()
    again = list(agent_of(model).map([*prompts, "d"], run="nightly", ordered=True))
    assert [item.result for item in again] == ["A", "B", "B", "C", "D"] and model.calls == 1
    assert [item.known for item in again] == [True] * 4 + [False]
    assert [(i.id, i.record, i.cost, i.tokens, i.status) for i in first] == [
        (i.id, i.record, i.cost, i.tokens, i.status) for i in again[:4]
    ]


def test_an_item_that_is_done_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    list(agent_of().map(["a", "b"], run="r"))
    reads: list[Path] = []
    monkeypatch.setattr(keyed_session, "read_record", lambda path: reads.append(path) or read_record(path))
    items = list(agent_of().map(["a", "b"], run="r"))
    assert [item.known for item in items] == [True, True]
    assert sorted(reads) == sorted(item.record for item in items if item.record is not None)


def test_what_an_item_has_cost_is_all_of_it_and_a_budget_is_for_what_this_call_spends() -> None:
    class Fails(Model):
        def _answer(self, text: str, messages: list[Message]) -> LLMResponse:
            if self.calls == 2:
                raise ValueError("down")
            usage = TokenUsage(10, 5, cost=0.01)
            if messages[-1]["role"] == "tool":
                return LLMResponse("done", usage=usage)
            return LLMResponse(None, [ToolCall("c1", "note", {"text": "a"})], usage=usage)

    agent = agent_of(Fails())
    figures = []
    for _ in range(4):  # fails, goes on, is read
        (item,) = agent.map({"x": "go"}, run="r", budget_usd=0.015)
        figures.append((item.status, item.cost, item.spent, item.tokens))
    assert figures == [("error", 0.01, 0.01, 15), ("answered", 0.02, 0.01, 30), *[("answered", 0.02, 0.0, 30)] * 2]


def test_a_run_takes_what_failed_again_and_other_runs_are_others() -> None:
    model = Model()
    assert [i.status for i in agent_of(model).map({"x": "note fail"}, run="r")] == ["error"]
    list(agent_of(model).map({"x": "note a"}, run="other"))
    assert notes() == ["fail", "a"]
    again = next(iter(agent_of(model).map({"x": "note fail"}, run="r")))
    assert again.status == "error" and notes() == ["fail", "a"]  # the tool does not run again


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"max_failures": 1}, "2 prompts have failed"),
        ({"budget_usd": 0.025}, "are spent"),
        ({"timeout_s": 0.0}, "0 s are over"),
    ],
)
def test_a_limit_ends_it_and_says_so(limits: dict[str, Any], words: str) -> None:
    prompts = [("fail" if "max_failures" in limits else "ok") + f" {number}" for number in range(20)]
    found = []
    with pytest.raises(BatchStopped, match=words):
        for item in agent_of().map(prompts, 1, **limits):
            found.append(item)
    assert len(found) == {"max_failures": 2, "budget_usd": 3, "timeout_s": 0}[next(iter(limits))]


def test_what_a_run_has_already_comes_after_a_limit_too_but_an_iterator_is_left() -> None:
    prompts = ["fail", "a", "b", "c", "d"]
    list(agent_of().map(["c", "a"], run="r"))
    model, found = Model(), []
    with pytest.raises(BatchStopped, match="1 prompt has failed; prompts that had not begun were not taken"):
        for item in agent_of(model).map(prompts, 1, run="r", max_failures=0):
            found.append((item.prompt, item.status, item.known))
    assert found == [("fail", "error", False), ("a", "answered", True), ("c", "answered", True)] and model.calls == 1
    found.clear()
    with pytest.raises(BatchStopped):
        for item in agent_of(model).map(prompts, 1, run="r", max_failures=0, ordered=True):
            found.append(item.prompt)
    assert found == ["fail", "a", "c"]
    with pytest.raises(BatchStopped):
        for item in agent_of(model).map(iter(prompts), 1, run="r", max_failures=0):
            assert item.prompt == "fail"


def test_ids_that_are_given_twice_are_told_apart_from_all_others() -> None:
    pairs = [("a", "1"), ("a", "2"), ("a-2", "3"), ("a", "4"), ("a-2", "5")]
    items = list(agent_of().map(pairs, run="r", ordered=True))
    assert [item.result for item in items] == ["1", "2", "3", "4", "5"]
    assert [item.id for item in items] == ["a", "a-2", "a-2-2", "a-3", "a-2-3"]


def test_a_plugin_keeps_the_limits_of_map_with_items_that_it_took_itself() -> None:
    items = list(agent_of().map(["ok", "fail"], 1))
    failures, money, time_s = BatchLimits(max_failures=0), BatchLimits(budget_usd=0.01), BatchLimits(timeout_s=60)
    assert [one.reached() for one in (failures, money, time_s)] == [None] * 3
    for item in items:
        for limits in (failures, money, time_s):
            limits.count(item)
    assert failures.reached() == "1 prompt has failed" and "are spent" in str(money.reached())
    assert time_s.reached() is None and time_s.failures == 1
    with pytest.raises(ConfigError, match="max_failures is a number from 0 on"):
        BatchLimits(max_failures=True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"prompts": "one"}, "several prompts"),
        ({"prompts": None}, "several prompts: a list, a dict of them by id, or an iterator, not one NoneType"),
        ({"prompts": [], "concurrency": 0}, "at least 1"),
        ({"prompts": [], "run": ""}, "run is a name"),
        ({"prompts": [], "budget_usd": -1}, "from 0 on"),
        ({"prompts": [], "budget_usd": float("nan")}, "from 0 on"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        agent_of().map(**arguments)


def test_a_run_of_an_agent_without_records_is_refused_before_anything_begins() -> None:
    model = Model()
    with pytest.raises(ConfigError, match="is not recorded; the records of a run are its state"):
        agent_of(model, log=False).map(["a"], run="r")
    assert [item.status for item in agent_of(model, log=False).map(["a"])] == ["answered"] and model.calls == 1


def test_what_fails_before_its_session_is_there_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Once(Agent):
        def __init__(self) -> None:
            if len(made) == 2:  # this agent, and that of the map
                raise OSError("no more connections")
            made.append(1)
            super().__init__("once", llm=Model(), quiet=True)

    made: list[int] = []
    found = []
    with pytest.raises(BatchStopped, match="1 prompt has failed"):
        for item in Once().map(["a", "b", "c"], 1, max_failures=0):
            found.append((item.status, str(item.error)))
    assert found == [("error", "no more connections")]


def test_an_id_may_be_a_number() -> None:
    assert [(i.id, i.result) for i in agent_of().map([(1, "a"), (2, "b")], ordered=True)] == [("1", "A"), ("2", "B")]


def test_guards_and_closing_act_for_each_item() -> None:
    closed: list[str] = []

    @before_each_tool
    def guard(agent: Agent) -> None:
        raise ToolRejected("never")

    @on_agent_closed
    def bye(agent: Agent) -> None:
        closed.append(agent.name)

    agent = agent_of(plugins=[guard, bye])  # kept: it is closed too, once nobody has it
    items = list(agent.map(["note a", "note b"]))
    assert [item.status for item in items] == ["answered"] * 2 and notes() == [] and len(closed) == 2


def test_a_pause_waits_in_the_record() -> None:
    @before_each_tool
    def ask(agent: Agent) -> None:
        raise Pause("may it?")

    agent = agent_of(plugins=[ask])
    item = next(iter(agent.map({"x": "note a"}, run="r")))
    assert (item.status, notes()) == ("paused", [])
    assert agent.for_session("r.x").resume(approve=True) == "NOTED A"
    assert [i.result for i in agent.map({"x": "note a"}, run="r")] == ["NOTED A"] and notes() == ["a"]


def test_all_wait_together_after_too_many_requests() -> None:
    from connectagent.agents.batch import Gate

    gate, began = Gate(), time.monotonic()
    gate.note({"type": "retrying", "status": 429, "retry_after_s": 0.2})
    gate.note({"type": "retrying", "status": 500, "retry_after_s": 9})
    gate.pass_through()
    assert 0.19 <= time.monotonic() - began < 2


def test_the_others_wait_where_a_provider_asks_for_more_than_a_call_can_wait() -> None:
    class Busy(Model):
        def _answer(self, text: str, messages: list[Message]) -> LLMResponse:
            asked.append(time.monotonic())
            if len(asked) == 1:
                raise ProviderError("slow down", kind="rate_limit", provider="x", status=429, retry_after_s=0.4)
            return super()._answer(text, messages)

    asked: list[float] = []
    items = list(agent_of(Busy()).map(["a", "b", "c"], 1, ordered=True))
    assert [item.status for item in items] == ["error", "answered", "answered"]
    assert asked[1] - asked[0] >= 0.4 > asked[2] - asked[1]


def test_the_gate_of_a_batch_is_no_plugin_of_its_records() -> None:
    @before_each_tool
    def guard() -> None:
        """Let all pass."""

    item = next(iter(agent_of(plugins=[guard]).map(["note a"])))
    assert item.record is not None and '\nplugins: {"guard": null}\n' in item.record.read_text()


def test_agents_below_stop_before_their_next_step_too() -> None:
    begun = threading.Event()

    class Top(Model):
        def _answer(self, text: str, messages: list[Message]) -> LLMResponse:
            if text == "ask":
                return LLMResponse(None, [ToolCall("c1", "below", {"prompt": "note late"})])
            begun.wait(10)
            return LLMResponse(text)

    class Below(Model):
        def _answer(self, text: str, messages: list[Message]) -> LLMResponse:
            begun.set()
            time.sleep(0.3)  # the loop is left meanwhile
            return super()._answer(text, messages)

    below = Agent("below", tools=[note], llm=(model := Below()), description="Takes notes.")
    for item in Agent("top", tools=[below], llm=Top()).map(["ask", "other"], 2):
        assert item.result == "other"
        break
    assert (model.calls, notes()) == (1, [])


def test_more_prompts_than_the_limit_of_records_leave_all_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTAGENT_MAX_RECORDS", "10")
    Agent("other", llm=Model(), quiet=True).input("mine")
    list(agent_of().map([f"p{number}" for number in range(30)]))
    assert len(list(Path(".co/evals").glob("*.yaml"))) == 31


SCRIPT = """
import sys, time
from connectagent import Agent
from connectagent.data import LLMResponse, ToolCall


class Model:
    model = "capitals"

    def complete(self, messages, tools=None):
        with open("calls", "a") as file:
            file.write("x\\n")
        time.sleep(0.02)
        if messages[-1]["role"] == "user":
            return LLMResponse(None, [ToolCall("c1", "note", {"text": messages[-1]["content"]})])
        return LLMResponse("done")


def note(text: str) -> str:
    "Write a line."
    with open("notes", "a") as file:
        file.write(text + "\\n")
    return "noted"


agent = Agent("caps", tools=[note], llm=Model())
try:
    for item in agent.map([f"p{n}" for n in range(int(sys.argv[1]))], 4, run="r"):
        print(item.status, flush=True)
except KeyboardInterrupt:
    print("interrupted")
    sys.exit(130)
"""


def test_killed_again_and_again_it_finishes_and_no_tool_runs_twice(folder: Path) -> None:
    (folder / "script.py").write_text(SCRIPT)
    chance = random.Random(3)
    asked, hits = Path("calls"), 0
    asked.touch()
    for _ in range(KILLS):
        before = asked.stat().st_size
        process = subprocess.Popen([sys.executable, "script.py", str(ITEMS)], stdout=subprocess.DEVNULL)
        while process.poll() is None and asked.stat().st_size == before:
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.12))
        hits += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert hits
    done = subprocess.run([sys.executable, "script.py", str(ITEMS)], capture_output=True, text=True, timeout=300)
    assert done.stdout.split().count("answered") == ITEMS, done.stderr
    assert len(notes()) == len(set(notes())) and ITEMS - KILLS * 4 <= len(notes()) <= ITEMS
    calls = Path("calls").read_text().count("x")
    assert calls <= 2 * ITEMS + KILLS * 4
    Path("calls").unlink()
    again = subprocess.run([sys.executable, "script.py", str(ITEMS)], capture_output=True, text=True, timeout=60)
    assert again.stdout.split().count("answered") == ITEMS and not Path("calls").exists()


def test_ctrl_c_ends_it_before_the_next_step(folder: Path) -> None:
    (folder / "script.py").write_text(SCRIPT)

    def reset() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)

    process = subprocess.Popen(
        [sys.executable, "script.py", "1000"], stdout=subprocess.PIPE, text=True, preexec_fn=reset
    )
    assert process.stdout is not None and process.stdout.readline().strip() == "answered"
    process.send_signal(signal.SIGINT)
    sent = time.monotonic()
    out = process.communicate(timeout=30)[0]
    assert out.split()[-1] == "interrupted" and process.returncode == 130
    assert time.monotonic() - sent < 10  # 1,000 prompts would take longer; the benchmark measures it


def test_there_are_no_more_threads_than_prompts_and_than_the_system_has(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, start, most = [], threading.Thread.start, 100

    def counted(thread: threading.Thread) -> None:
        if thread.name.startswith("map-"):
            if len(begun) >= most:
                raise RuntimeError("can't start new thread")
            begun.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", counted)
    assert len(list(agent_of().map(["a", "b", "c"], 50))) == 3 == len(begun)
    most = 5
    assert len(list(agent_of().map([f"p{number}" for number in range(10)], 50))) == 10 and len(begun) == 5
    with pytest.raises(RuntimeError, match="can't start new thread"):
        list(agent_of().map(["a"]))


def test_ctrl_c_while_threads_begin_stops_those_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, answer, start = threading.Event(), threading.Event(), threading.Thread.start

    class Slow(Model):
        def _answer(self, text: str, messages: list[Message]) -> LLMResponse:
            begun.set()
            answer.wait(20)
            return super()._answer(text, messages)

    def interrupted(thread: threading.Thread) -> None:
        if thread.name == "map-2":
            assert begun.wait(20)
            threading.Timer(0.2, answer.set).start()
            raise KeyboardInterrupt
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(agent_of(Slow()).map(["note a", "note b", "note c"], 3))
    assert answer.is_set() and notes() == []
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("map-")]


def test_ctrl_c_while_the_sdk_is_loaded_ends_it_at_once(folder: Path) -> None:
    (folder / "openai.py").write_text("import time\nprint('loading', flush=True)\ntime.sleep(20)\n")
    (folder / "script.py").write_text(
        "from connectagent import Agent\nagent = Agent('caps', model='openai/gpt-5', api_key='sk-1')\n"
        "list(agent.map(['a', 'b', 'c']))\n"
    )

    def reset() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)

    command = [sys.executable, "script.py"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=reset
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGINT)
        sent = time.monotonic()
        assert "KeyboardInterrupt" in process.communicate(timeout=40)[1]
    assert time.monotonic() - sent < 10


class Loading(Model):
    """A model whose SDK is loaded before its first call."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.begun, self.go_on = threading.Event(), threading.Event()

    def load_sdk(self) -> None:
        self.loads.append(threading.current_thread().name)
        self.begun.set()
        if self.loads[-1] != "MainThread":
            assert self.go_on.wait(20)


def test_an_sdk_is_loaded_before_the_threads_begin_and_only_where_a_model_is_asked() -> None:
    model = Loading()
    model.go_on.set()
    below = Loading()
    below.go_on.set()
    child = Agent("child", llm=below, log=False, quiet=True)
    agent = agent_of(model, sub_agents=[child])
    assert [item.result for item in agent.map(["a"], run="r")] == ["A"]
    assert model.loads[0] == "MainThread" and below.loads == ["MainThread"]  # the child was not asked
    model.loads.clear()
    assert [item.known for item in agent.map(["a"], run="r")] == [True] and model.loads == []


def test_what_is_stopped_while_a_thread_loads_an_sdk_asks_no_model() -> None:
    model = Loading()
    model.go_on.set()
    assert len(list(agent_of(model).map(["a"], run="r"))) == 1
    model.go_on.clear()
    model.begun.clear()
    model.loads.clear()
    asked = model.calls
    items = agent_of(model).map(["a", "b", "c"], 3, run="r")
    assert next(items).known  # so this thread has loaded nothing
    assert model.begun.wait(20)
    threading.Timer(0.2, model.go_on.set).start()
    items.close()  # as Ctrl-C does
    assert model.calls == asked and "MainThread" not in model.loads


def test_a_function_that_asks_the_agent_of_another_tree_is_told_which_one_is_its_own(folder: Path) -> None:
    both = threading.Barrier(2, timeout=20)

    def meet(messages: list[Message], tools: Any) -> str:
        both.wait()
        return "met"

    child = Agent("child", llm=ScriptedLLM(*[meet] * 4))

    def shared(prompt: str) -> str:
        return child.input(prompt)  # always this one, though each tree has a fresh `child`

    def own(agent: Agent, prompt: str) -> str:
        found = agent.find("child")
        assert found is not None and found is not child
        return found.input(prompt)

    with child.turning:
        (item,) = Agent("boss", run=shared, sub_agents=[child]).map(["x"])
    assert "the tree that asks has an agent of that name of its own: agent.root.find('child')" in str(item.error)
    child = Agent("child", llm=ScriptedLLM(*[meet] * 4))
    items = Agent("boss", run=own, sub_agents=[child]).map(["x", "y"], concurrency=2)
    assert [item.result for item in items] == ["met", "met"]


# -- in a database ---------------------------------------------------------------------------------------


def mapped(model: Any, store: Any, prompts: Any) -> dict[str, Any]:
    agent = Agent("mapped", tools=[note], llm=model, quiet=True)
    return {item.id: item for item in agent.map(prompts, concurrency=4, run="nightly", store=store)}


def test_a_run_in_a_database_goes_on_with_an_empty_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = {"a": "note a", "b": "fail", "c": "note c"}
    first = mapped(Model(), SqliteStore("sessions.db"), prompts)
    assert [first[id].status for id in "abc"] == ["answered", "error", "answered"]
    (folder / "other").mkdir()
    monkeypatch.chdir(folder / "other")
    model = Model()
    again = mapped(model, SqliteStore("../sessions.db"), {**prompts, "d": "note d"})
    assert [again[id].known for id in "abcd"] == [True, False, True, False] and model.calls == 1 + 2
    assert [again[id].cost for id in "ac"] == [first[id].cost for id in "ac"] and again["a"].spent == 0
    assert notes() == ["d"] and sorted((folder / "notes").read_text().split()) == ["a", "c"]
    with pytest.raises(ConfigError, match="run= names it"):
        Agent("mapped", llm=Model(), quiet=True).map(["a"], store=SqliteStore("sessions.db"))


def test_a_store_that_fails_is_an_error_of_the_items_that_it_lost(folder: Path) -> None:
    class Failing(SqliteStore):
        away, at = False, b"noted"

        def size(self, name: str) -> int:
            if self.away:
                raise ConnectionError("it is away")
            return super().size(name)

        def append(self, name: str, position: int, data: bytes) -> None:
            if "b.yaml" in name and self.at in data:
                self.away = True
            if self.away:
                raise ConnectionError("it is away")
            super().append(name, position, data)

    store = Failing("sessions.db")
    agent = Agent("mapped", tools=[note], llm=Model(), quiet=True)
    items = {item.id: item for item in agent.map({"a": "note a", "b": "note b"}, 1, run="nightly", store=store)}
    assert items["a"].status == "answered" and isinstance(items["b"].error, ConnectionError)
    for away in (True, False):  # from the beginning, and later in a turn that goes on
        store.away, store.at = away, b'"llm_call"'
        assert [type(item.error) for item in mapped(Model(), store, {"b": "note b"}).values()] == [ConnectionError]
    again = mapped(Model(), SqliteStore("sessions.db"), {"a": "note a", "b": "note b"})
    assert [again[id].status for id in "ab"] == ["answered"] * 2 and notes() == ["a", "b"]  # once


def test_other_turns_compute_while_one_waits_for_its_store(folder: Path) -> None:
    had: list[bool] = []

    class Slow(SqliteStore):
        def append(self, name: str, position: int, data: bytes) -> None:
            had.append(threads.slot._holder == threading.get_ident())
            super().append(name, position, data)

    assert mapped(Model(), Slow("sessions.db"), {"a": "note a"})["a"].status == "answered"
    assert len(had) > 5 and not any(had)


def test_the_command_takes_a_database(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "agent.py").write_text("from connectagent import Agent\nagent = Agent('shop', model='offline')\n")
    (folder / "prompts.txt").write_text("one\ntwo\n")

    def run(name: str, store: str) -> subprocess.CompletedProcess[str]:
        (folder / name).mkdir()
        command = [sys.executable, "-m", "connectagent", "map", "../agent.py", "../prompts.txt", "--store", store]
        return subprocess.run(command, cwd=folder / name, capture_output=True, text=True)

    first, again = run("one", "../sessions.db"), run("two", "../sessions.db")
    assert first.returncode == again.returncode == 0, first.stderr
    assert "2/2 done" in first.stderr and "2 of them before" in again.stderr
    missing = run("three", "none/sessions.db")
    assert missing.returncode == 2 and "there is no folder" in missing.stderr and "Traceback" not in missing.stderr
