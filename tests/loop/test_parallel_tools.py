"""Bodies of a round's tool calls that run at the same time: the same as one after the other, but for the time."""

from __future__ import annotations

import asyncio
import contextvars
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from awaiting import go_on, take

from connectagent import (
    Agent,
    ConfigError,
    LLMResponse,
    Pause,
    Paused,
    Retry,
    ToolCall,
    ToolDefinitionError,
    ToolRejected,
    after_each_tool,
    after_tools,
    around_llm,
    around_tool,
    before_each_tool,
    on_error,
    tool,
    xray,
)
from connectagent.output.rows import UNICODE, rows_of
from connectagent.records.history import history_of
from connectagent.testing import ScriptedLLM, call, conversation_problems

ROUNDS = int(os.environ.get("CONNECTAGENT_ROUNDS", "60"))


def session(agent: Agent) -> dict[str, Any]:
    assert agent.current_session is not None
    return agent.current_session  # type: ignore[return-value]


def results(agent: Agent) -> list[Any]:
    return [message["content"] for message in session(agent)["messages"] if message["role"] == "tool"]


def entries(agent: Agent, kind: str = "tool_execution") -> list[Any]:
    return [entry for entry in session(agent)["trace"] if entry["type"] == kind]


def made(tools: list[Any], *script: Any, n: int = 8, **options: Any) -> Agent:
    options = {"log": False, "quiet": True, "parallel_tools": n, **options}
    return Agent("root", tools, llm=ScriptedLLM(*script), **options)


def nap(n: int) -> str:
    """Take a nap."""
    time.sleep(0.05)
    return f"nap {n}"


async def async_nap(n: int) -> str:
    """Take a nap."""
    await asyncio.sleep(0.05)
    return f"nap {n}"


# -- at the same time ------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [nap, async_nap])
def test_sixteen_tools_take_clearly_less_time_than_one_after_the_other(function: Any) -> None:
    took = {}
    for n in (1, 16):
        agent = made([function], [call(function.__name__, n=i) for i in range(16)], "Done.", n=n)
        since = time.perf_counter()
        assert agent.input("Go") == "Done."
        took[n] = time.perf_counter() - since
        assert results(agent) == [f"nap {i}" for i in range(16)]
        assert all(entry["timing"] >= 45 for entry in entries(agent))
    assert took[1] >= 0.8 and took[16] < took[1] / 2


def test_no_more_run_at_the_same_time_than_may() -> None:
    running, most, lock = [0], [0], threading.Lock()

    def count() -> str:
        """Count."""
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.02)
        with lock:
            running[0] -= 1
        return "ok"

    agent = made([count], [call("count")] * 9, "Done.", n=3)
    agent.input("Go")
    assert most == [3] and results(agent) == ["ok"] * 9


@pytest.mark.parametrize("n", [0, -1, 1.5, True, "2"])
def test_what_is_no_number_of_calls_is_refused(n: Any) -> None:
    with pytest.raises(ConfigError, match="parallel_tools is a whole number"):
        made([nap], n=n)


@pytest.mark.parametrize("timeout_s", [0, -1, "30", True, float("inf"), float("nan")])
def test_what_is_no_time_limit_is_refused(timeout_s: Any) -> None:
    with pytest.raises(ToolDefinitionError, match="timeout_s is a positive number of seconds"):
        tool(timeout_s=timeout_s)


def test_handlers_run_on_the_turns_own_thread_each_in_its_calls_context() -> None:
    span: contextvars.ContextVar[str] = contextvars.ContextVar("span", default="none")
    seen: list[Any] = []

    @before_each_tool
    def name(tool_call: Any) -> None:
        span.set(f"guard {tool_call.id}")
        seen.append(threading.get_ident())

    @around_tool
    def around(agent: Agent, tool_call: Any) -> Any:
        assert span.get() == f"guard {tool_call.id}" and session(agent)["pending_tool"]["id"] == tool_call.id
        token = span.set(f"span {tool_call.id}")
        seen.append(threading.get_ident())
        yield
        seen.append(threading.get_ident())
        span.reset(token)

    @after_each_tool
    def after(tool_call: Any) -> None:
        assert span.get() == f"guard {tool_call.id}"
        seen.append(threading.get_ident())

    def look(agent: Agent) -> str:
        """Look."""
        mine = session(agent)["pending_tool"]["id"]
        assert xray.agent is agent and xray.user_prompt == "Go" and span.get() == f"span {mine}"
        assert threading.get_ident() != here
        span.set("lost")
        return mine

    here = threading.get_ident()
    agent = made([look], [call("look")] * 4, "Done.", plugins=[name, around, after])
    agent.input("Go")
    assert results(agent) == [entry["call_id"] for entry in entries(agent)]
    assert set(seen) == {here} and len(seen) == 16 and span.get() == "none"


def test_a_round_whose_calls_of_hooks_are_monitored_comes_to_its_end() -> None:
    before: list[str] = []
    agent = made([nap], [call("nap", n=n) for n in range(3)], "Done.", plugins=[before_each_tool(lambda: None)])
    undo = agent.hooks.add_hookcall_monitoring(
        lambda hook, implementations, given: before.append(hook), lambda outcome, hook, implementations, given: None
    )
    agent.input("Go")
    undo()
    assert results(agent) == ["nap 0", "nap 1", "nap 2"] and before.count("around_tool") == 3


# -- what a body may change ------------------------------------------------------------------------------


def test_the_copies_of_the_state_are_merged_in_the_calls_order() -> None:
    order = [threading.Event() for _ in range(4)]
    order[3].set()

    def write(agent: Agent, n: int) -> str:
        """Write."""
        order[n].wait(5)
        state = session(agent)["state"]
        assert state["seen"] == [] and "last" not in state
        state["last"], state[f"by {n}"], state["temp:x"] = n, n, n
        state["seen"].append(n)
        state.setdefault("new", []).append(n)
        state.pop("gone", None)
        if n:
            order[n - 1].set()  # the last call is over first
        return "ok"

    agent = made([write], [call("write", n=n) for n in range(4)], "Done.", state={"seen": [], "gone": 1})
    seen: list[Any] = []
    agent.hooks.register(after_tools(lambda agent: seen.append(session(agent)["state"]["temp:x"])), "temp")
    agent.input("Go")
    state = session(agent)["state"]
    assert state == {"seen": [0, 1, 2, 3], "new": [0, 1, 2, 3], "last": 3, **{f"by {n}": n for n in range(4)}}
    deltas = [entry for entry in entries(agent, "state_delta") if "tool" in entry["by"]]
    assert [entry["delta"]["last"] for entry in deltas] == [0, 1, 2, 3] and seen == [3]


def append(agent: Any) -> None:
    agent.current_session["messages"].append({"role": "user", "content": "x"})


def edit(agent: Any) -> None:
    agent.current_session["messages"][0]["content"] = "x"


def set_key(agent: Any) -> None:
    agent.current_session["mine"] = 1


def add_entry(agent: Any) -> None:
    for entry in agent.current_session["trace"]:
        entry.update(x=1)


@pytest.mark.parametrize("change", [append, edit, set_key, add_entry])
def test_other_changes_of_the_session_by_a_body_are_errors_of_it(change: Any) -> None:
    def meddle(agent: Agent) -> str:
        """Meddle."""
        change(agent)
        return "changed"

    agent = made([meddle], [call("meddle")] * 2, "Done.")
    agent.input("Go")
    assert all("may change the session's state only" in text for text in results(agent))
    assert not [entry for entry in entries(agent, "session_delta")] and "mine" not in session(agent)
    assert session(agent)["messages"][0] == {"role": "user", "content": "Go"}
    one = made([meddle], call("meddle"), "Done.")  # alone it may, as ever
    one.input("Go")
    assert results(one) == ["changed"]


def test_a_body_may_put_another_dict_in_the_place_of_its_state() -> None:
    def replace(agent: Agent) -> str:
        """Replace."""
        agent.current_session["state"] = {"new": 1}  # type: ignore[index]
        return str(session(agent)["state"])

    agent = made([replace, nap], [call("replace"), call("nap", n=1)], "Done.", state={"old": 1})
    agent.input("Go")
    assert session(agent)["state"] == {"new": 1} and results(agent)[0] == '{\'new\': 1}'


# -- what stays in order ----------------------------------------------------------------------------------


def test_what_stands_before_a_tool_that_runs_alone_is_settled_before_it_runs() -> None:
    seen: list[str] = []
    running: list[str] = []

    def read(n: int) -> str:
        """Read."""
        running.append("read")
        time.sleep(0.01)
        running.remove("read")
        return "read"

    @tool(alone=True)
    def write(agent: Agent) -> str:
        """Write."""
        assert not running
        session(agent)["messages"][-1]["content"] = "settled"  # the whole session is its own
        seen.append("write")
        return "written"

    @after_each_tool
    def after(tool_call: Any) -> None:
        seen.append(tool_call.name)

    script = [call("read", n=1), call("read", n=2), call("write"), call("read", n=3), call("read", n=4)]
    agent = made([read, write], script, "Done.", plugins=[after])
    agent.input("Go")
    assert seen == ["read", "read", "write", "write", "read", "read"]
    assert results(agent) == ["read", "settled", "written", "read", "read"]


def test_a_rejected_call_never_runs_and_an_end_lets_the_others_finish_and_skips_the_rest() -> None:
    ran: list[int] = []
    both = threading.Barrier(2, timeout=5)

    def work(agent: Agent, n: int) -> str:
        """Work."""
        if n < 2:
            both.wait()
        ran.append(n)
        if n == 1:
            agent.end_turn("enough")
            both.wait()
        if n == 0:
            both.wait()
            time.sleep(0.02)
        return f"did {n}"

    @before_each_tool
    def guard(tool_call: Any) -> None:
        if tool_call.arguments["n"] == 9:
            raise ToolRejected("not nine")

    agent = made([work], [call("work", n=n) for n in (9, 0, 1, 2)], "never", n=2, plugins=[guard])
    assert agent.input("Go") == "enough"
    assert sorted(ran) == [0, 1]
    assert [entry["status"] for entry in entries(agent)] == ["rejected", "success", "success", "skipped"]
    assert [entry.get("ended_turn") for entry in entries(agent)] == [None, None, "enough", None]


# -- the same as one after the other -----------------------------------------------------------------------


class Plan:
    """A round by chance: what becomes of each call, the same for every number of calls at the same time."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        kinds = ("ok", "ok", "state", "error", "reject", "stand_in", "retry", "timeout", "pause", "left")
        weights = (5, 3, 5, 3, 2, 2, 3, 1, 2, 1)
        self.kinds = chance.choices(kinds, weights, k=chance.randint(2, 7))
        self.naps = [chance.random() * 0.004 for _ in self.kinds]
        self.around = chance.random() < 0.6
        self.log: dict[str, list[Any]] = {}
        self.tries: Counter[int] = Counter()
        self.released = threading.Event()

    def note(self, call_id: str, *what: Any) -> None:
        self.log.setdefault(call_id, []).append(what)

    def plugin(self) -> list[Any]:
        @before_each_tool
        def guard(agent: Agent, tool_call: Any) -> Any:
            self.note(tool_call.id, "before")
            session(agent)["state"][f"guard {tool_call.id}"] = True
            kind = self.kinds[tool_call.arguments["n"]]
            if kind == "reject":
                raise ToolRejected("no")
            if kind == "pause" and not tool_call.approved:
                raise Pause("may it?")
            return "stood in" if kind == "stand_in" else None

        @around_tool
        def around(agent: Agent, tool_call: Any) -> Any:
            self.note(tool_call.id, "enter")
            session(agent)["state"][f"in {tool_call.id}"] = True
            try:
                value = yield
            except Exception as error:
                self.note(tool_call.id, "failed", type(error).__name__)
                raise
            session(agent)["state"][f"out {tool_call.id}"] = str(value)
            self.note(tool_call.id, "leave", value)
            return f"<{value}>"

        @on_error
        def error(tool_call: Any, attempt: int) -> Any:
            self.note(tool_call.id, "error", attempt)
            return Retry() if attempt < 3 else None

        @after_each_tool
        def after(agent: Agent, tool_call: Any, result: Any, entry: Any) -> None:
            self.note(tool_call.id, "after", result, entry["status"])
            session(agent)["state"][f"after {tool_call.id}"] = result

        return [guard, error, after, *([around] if self.around else [])]

    def tools(self) -> list[Any]:
        def work(agent: Agent, n: int) -> str:
            """Work."""
            return self._work(agent, n)

        @tool(timeout_s=0.02)
        async def short(agent: Agent, n: int) -> str:
            """Work, and take too long."""
            await asyncio.sleep(30)
            return "late"

        @tool(timeout_s=0.02)
        def left(agent: Agent, n: int) -> str:
            """Take too long, and run on."""
            session(agent)["state"][f"left {n}"] = n
            self.released.wait(5)
            return "late"

        return [work, short, left]

    def _work(self, agent: Agent, n: int) -> str:
        kind, state = self.kinds[n], session(agent)["state"]
        time.sleep(self.naps[n])
        self.tries[n] += 1
        if kind == "state":
            state[f"key {n}"], state["last"] = n, n
            state.setdefault("list", []).append(n)
        if kind == "error" or (kind == "retry" and self.tries[n] < 2):
            state.setdefault(f"failed {n}", []).append(self.tries[n])
            raise ValueError(f"{n} failed")
        return f"did {n}"

    def run(self, n: int, awaited: bool = False) -> Any:
        names = {"timeout": "short", "left": "left"}
        calls = [ToolCall(f"c{at}", names.get(kind, "work"), {"n": at}) for at, kind in enumerate(self.kinds)]
        agent = made(self.tools(), LLMResponse(None, calls), "Done.", n=n, plugins=self.plugin())
        try:
            result: Any = take(agent, "Go", awaited)
            waits = 0
        except Paused as paused:
            waits = len(paused.waiting)
            while True:
                try:
                    result = go_on(agent, awaited=awaited, approve=paused.waiting[0].id)
                    break
                except Paused as again:
                    paused = again
        self.released.set()
        statuses = {one["call_id"]: (one["status"], one.get("error"), one["result"]) for one in entries(agent)}
        log = {id: [what for what in told if what[0] != "before"] for id, told in self.log.items()}
        return waits, [result, session(agent)["messages"], session(agent)["state"], statuses, log]


@pytest.mark.parametrize("awaited", [False, True], ids=["plain", "awaited"])
def test_random_rounds_are_the_same_as_with_one_call_after_the_other(awaited: bool) -> None:
    pauses = 0
    for seed in range(ROUNDS):
        one, several = Plan(seed), Plan(seed)
        _, expected = one.run(1)
        waits, told = several.run(2 + seed % 7, awaited)
        assert told == expected, f"seed {seed}: {one.kinds}"
        assert waits == one.kinds.count("pause"), "all waits are shown together"
        assert conversation_problems(told[1]) == []
        pauses += waits
    assert pauses > ROUNDS / 10


# -- records: killed, paused, replayed ----------------------------------------------------------------------


class Shop:
    """Tools that note each run; `pay` waits for a person where `asks`."""

    def __init__(self, asks: tuple[str, ...] = (), around: bool = False, n: int = 8) -> None:
        self.ran: Counter[str] = Counter()
        self.asks, self.around, self.n = asks, around, n

    def agent(self) -> Agent:
        def pay(agent: Agent, what: str) -> str:
            """Pay."""
            self.ran[what] += 1
            state = session(agent)["state"]
            state.setdefault("paid", []).append(what)
            state[f"paid {what}"] = True
            return f"paid {what}"

        @before_each_tool
        def guard(tool_call: Any) -> None:
            if tool_call.arguments.get("what") in self.asks:
                raise Pause(f"pay {tool_call.arguments['what']}?")

        @around_tool
        def redact(agent: Agent, tool_call: Any) -> Any:
            value = yield
            return f"<{value}>"

        child = Agent("child", [pay], llm=Scripted(call("pay", what="c"), "child is done"), quiet=True)
        script = [call("pay", what="a"), call("child", prompt="x"), call("pay", what="b"), call("pay", what="d")]
        plugins = [guard, *([redact] if self.around else [])]
        llm = Scripted(script, "Done.")
        return Agent("root", [pay, child], llm=llm, quiet=True, on_events=plugins, parallel_tools=self.n)


class Scripted:
    """A model that answers by what there is of the turn, so that another process goes on with it."""

    model = "scripted"

    def __init__(self, first: Any, second: Any) -> None:
        self.first, self.second = first, second

    def complete(self, messages: Any, tools: Any = None) -> Any:
        answered = any(message["role"] == "tool" for message in messages)
        return ScriptedLLM(self.second if answered else self.first).complete(messages, tools)


def began(lines: list[str]) -> Counter[str]:
    """What was begun according to a record, by what is paid."""
    told = [json.loads(line[4:]) for line in lines if line.startswith("  - {")]
    return Counter(
        line["arguments"]["what"] for line in told if line["type"] == "began" and line.get("tool_name") == "pay"
    )


def ended(lines: list[str]) -> set[str]:
    """What is certain to have ended according to a record."""
    found = set()
    told = [json.loads(line[4:]) for line in lines if line.startswith("  - {")]
    ids = {line["id"]: line["arguments"]["what"] for line in told if line["type"] == "began" and "arguments" in line
           and "what" in line["arguments"]}  # fmt: skip
    for line in told:
        success = line["type"] == "tool_execution" and line["status"] == "success"
        if (success or line["type"] == "tool_ended") and line.get("id") in ids:
            found.add(ids[line["id"]])
    return found


def entry_ends(lines: list[str], start: int) -> list[int]:
    """Behind which lines a process may have died: the lines of an item's head and summary are one write."""
    return [end for end in range(start, len(lines)) if lines[end - 1].startswith("  - {")]


def check_resumed(path: Path, lines: list[str], around: bool) -> None:
    """Go on with a record in another process: nothing that was begun is begun again, and no state is lost."""
    before, sure = began(lines), ended(lines)
    shop = Shop(around=around)
    agent = shop.agent()
    if not any(line.startswith("- turn") for line in lines):
        return
    agent.resume(path)
    for what in "abcd":
        assert before[what] + shop.ran[what] == 1, (what, lines[-1])
    paid = session(agent)["state"].get("paid", [])
    certain = {what for what in "abcd" if what in sure or shop.ran[what]}
    assert certain <= set(paid) and len(paid) == len(set(paid)), lines[-1]
    assert [what for what in "acbd" if what in paid] == paid, "in the calls' order"
    assert all(session(agent)["state"].get(f"paid {what}") for what in certain)
    assert conversation_problems(session(agent)["messages"]) == []
    assert session(agent)["outcome"] == "answered"


@pytest.mark.parametrize("around", [False, True], ids=["plain", "around"])
def test_a_round_that_is_killed_after_any_line_goes_on_and_does_nothing_twice(
    around: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shop = Shop(around=around)
    agent = shop.agent()
    assert agent.input("Go") == "Done." and session(agent)["state"]["paid"] == ["a", "c", "b", "d"]
    assert agent.record is not None
    lines = agent.record.read_text("utf-8").splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines) if line.startswith("  trace:"))
    chance = random.Random(1)
    for end in entry_ends(lines, first + 2):
        path = agent.record.with_name(f"root_cut{end}.yaml")
        path.write_text("".join(lines[:end]), "utf-8")
        check_resumed(path, lines[:end], around)
        again = path.read_text("utf-8").splitlines(keepends=True)
        ends = entry_ends(again, end + 1)
        for second in chance.sample(ends, min(3, len(ends))):
            twice = path.with_name(f"root_twice{end}_{second}.yaml")
            twice.write_text("".join(again[:second]), "utf-8")
            check_resumed(twice, again[:second], around)


def test_what_ran_beside_a_call_that_is_interrupted_twice_is_in_the_trace_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    @tool(idempotent=True)
    def stop() -> str:
        """Stop."""
        raise KeyboardInterrupt

    def napper(*script: Any) -> Agent:
        return made([nap, stop], *script, log=None)

    agent = napper([call("nap", n=1), call("stop")])
    with pytest.raises(KeyboardInterrupt):
        agent.input("Go")
    other = napper()
    with pytest.raises(KeyboardInterrupt):
        other.resume(agent.record)
    assert [entry["tool_name"] for entry in entries(other) if entry["status"] == "success"] == ["nap"]


@pytest.mark.parametrize("n", [1, 2])
def test_the_handlers_behind_a_call_run_where_a_kill_came_between_it_and_them(
    n: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    seen: list[str] = []

    def look(what: str) -> str:
        """Look."""
        return f"seen {what}"

    @after_each_tool
    def note(tool_call: ToolCall) -> None:
        seen.append(tool_call.arguments["what"])

    def looker(*script: Any) -> Agent:
        return made([look], *script, n=n, on_events=[note], log=None)

    agent = looker([call("look", what=what) for what in "abc"], "Done.")
    assert agent.input("Go") == "Done." and seen == ["a", "b", "c"]
    assert agent.record is not None
    lines = agent.record.read_text("utf-8").splitlines(keepends=True)
    ends = [number for number, line in enumerate(lines) if line.startswith('  - {"type": "tool_execution"')]
    for number, end in enumerate(ends):
        path = agent.record.with_name(f"root_cut{end}.yaml")
        path.write_text("".join(lines[: end + 1]), "utf-8")
        seen.clear()
        assert looker("Done.").resume(path) == "Done."
        assert seen == ["a", "b", "c"][number:]


@pytest.mark.parametrize("around", [False, True], ids=["plain", "around"])
@pytest.mark.parametrize("same", [True, False], ids=["same process", "another"])
@pytest.mark.parametrize("asks", [("a",), ("d",), ("a", "b")])
def test_a_pause_holds_its_own_call_and_the_others_run(
    asks: tuple[str, ...], same: bool, around: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shop = Shop(asks, around)
    agent = shop.agent()
    with pytest.raises(Paused) as paused:
        agent.input("Go")
    assert [wait.reason for wait in paused.value.waiting] == [f"pay {what}?" for what in asks]
    assert set(shop.ran) == set("abcd") - set(asks)
    record, waiting = agent.record, list(paused.value.waiting)
    while waiting:
        wait = waiting.pop()  # the last one first
        agent = agent if same else shop.agent()
        decision: dict[str, Any] = {"approve": wait.id}
        if waiting:
            with pytest.raises(Paused) as again:
                agent.resume(record, **decision)
            assert [one.id for one in again.value.waiting] == [one.id for one in waiting]
        else:
            assert agent.resume(record, **decision) == "Done."
    assert shop.ran == Counter("abcd")
    assert session(agent)["state"]["paid"] == ["a", "c", "b", "d"]
    mark = "<paid {}>" if around else "paid {}"
    told = ["<child is done>" if around else "child is done", *(mark.format(what) for what in "bd")]
    assert results(agent) == [mark.format("a"), *told]


def test_where_a_handler_around_one_call_fails_the_others_run_at_the_same_time_and_end_first() -> None:
    together = threading.Barrier(2)

    @around_tool
    def broken(tool_call: Any) -> Any:
        if tool_call.arguments["n"] == 1:
            raise OSError("no disk")
        yield

    def meet(n: int) -> str:
        """Meet."""
        together.wait(30)
        return f"met {n}"

    agent = made([meet], [call("meet", n=n) for n in (1, 2, 3)], plugins=[broken])
    with pytest.raises(OSError, match="no disk"):
        agent.input("Go")
    assert [entry["status"] for entry in entries(agent)] == ["success", "success", "skipped"]


def test_a_result_that_handlers_hide_is_not_written_before_they_have_seen_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    @around_tool
    def hide(tool_call: Any) -> Any:
        yield
        return "hidden"

    def tell(n: int) -> str:
        """Tell."""
        return "the-secret"

    agent = made([tell], [call("tell", n=1), call("tell", n=2)], "Done.", log=None, plugins=[hide])
    agent.input("Go")
    assert agent.record is not None and results(agent) == ["hidden"] * 2
    assert "the-secret" not in agent.record.read_text("utf-8")


def test_a_parallel_round_is_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from connectagent.replay.recording import Recording
    from connectagent.replay.replaying import replay

    monkeypatch.chdir(tmp_path)
    agent = Shop().agent()
    agent.input("Go")
    assert agent.record is not None
    played = replay(Recording(agent.record))
    assert played.same, (played.divergence, played.changed)
    played = replay(Recording(agent.record), Shop().agent())
    assert played.same, (played.divergence, played.changed)


def test_a_parallel_round_is_streamed_in_the_calls_order() -> None:
    agent = made([nap], [call("nap", n=n) for n in range(3)], "Done.")
    told = list(agent.stream("Go"))
    assert [entry["result"] for entry in told if entry["type"] == "tool_execution"] == ["nap 0", "nap 1", "nap 2"]
    assert told[-1] == {"type": "result", "result": "Done.", "outcome": "answered"}


# -- too long ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 4])
def test_a_tool_that_takes_too_long_is_an_error_and_the_turn_goes_on(n: int) -> None:
    release, late = threading.Event(), threading.Event()

    @tool(timeout_s=0.05)
    def slow(agent: Agent) -> str:
        """Be slow."""
        session(agent)["state"]["slow"] = True
        release.wait(5)
        try:
            agent.execute_tool("nap", {"n": 1})
        except BaseException as error:
            seen.append(error)
        late.set()
        return "late"

    seen: list[BaseException] = []
    retries: list[int] = []

    @on_error
    def again(attempt: int) -> Retry:
        retries.append(attempt)
        return Retry()

    agent = made([slow, nap], [call("slow"), call("nap", n=2)], "Done.", n=n, plugins=[again])
    since = time.perf_counter()
    assert agent.input("Go") == "Done." and time.perf_counter() - since < 4
    first, second = entries(agent)
    assert (first["status"], first["error_type"]) == ("error", "TimeoutError")
    assert "slow took longer than 0.05 s" in first["error"] and "runs on" in first["error"]
    assert second["result"] == "nap 2" and "slow" not in session(agent)["state"]
    assert retries == [1], "it is not made again while it may still take effect"
    release.set()
    assert late.wait(5) and len(seen) == 1
    assert len(entries(agent)) == 2


def test_one_that_is_idempotent_is_made_again_and_an_async_one_is_cancelled() -> None:
    tries, cancelled = [0], threading.Event()

    @tool(timeout_s=0.1, idempotent=True)
    def second() -> str:
        """Be quick the second time."""
        tries[0] += 1
        if tries[0] == 1:
            time.sleep(0.4)
        return "at last"

    @tool(timeout_s=0.1)
    async def waits() -> str:
        """Wait."""
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return "never"

    @on_error
    def again(tool_call: Any) -> Any:
        return Retry() if tool_call.name == "second" else None

    agent = made([second, waits], [call("second"), call("waits")], "Done.", plugins=[again])
    agent.input("Go")
    assert results(agent)[0] == "at last" and cancelled.is_set()
    assert results(agent)[1] == "Error: TimeoutError: waits took longer than 0.1 s"


def test_a_tool_that_is_quick_enough_keeps_what_it_changed() -> None:
    @tool(timeout_s=5)
    def quick(agent: Agent) -> str:
        """Be quick."""
        session(agent)["state"]["quick"] = True
        return "quick"

    agent = made([quick], call("quick"), "Done.", n=1)
    agent.input("Go")
    assert results(agent) == ["quick"] and session(agent)["state"] == {"quick": True}
    assert [entry["by"]["tool"] for entry in entries(agent, "state_delta")] == ["quick"]
    assert agent.execute_tool("quick")["result"] == "quick"


# -- what a body asks for ------------------------------------------------------------------------------------


def test_bodies_run_tools_and_ask_models_with_handlers_on_the_turns_own_thread() -> None:
    here, seen = threading.get_ident(), []
    together = threading.Barrier(2, timeout=5)

    def inner(agent: Agent, n: int) -> str:
        """Work inside."""
        together.wait()  # bodies inside run at the same time too
        assert session(agent)["state"]["mine"] == n
        session(agent)["state"][f"inner {n}"] = True
        return f"inner {n}"

    def outer(agent: Agent, n: int) -> str:
        """Work."""
        session(agent)["state"]["mine"] = n
        found = agent.execute_tool("inner", {"n": n})["result"]
        assert session(agent)["state"][f"inner {n}"] and session(agent)["state"]["mine"] == n
        assert session(agent)["state"][f"guard {n}"]
        with ThreadPoolExecutor(2) as pool:
            contexts = [contextvars.copy_context() for _ in range(2)]
            asked = list(pool.map(lambda context: context.run(agent.ask, f"ask {n}").content, contexts))
        return f"{found} {asked}"

    @before_each_tool
    def guard(agent: Agent, tool_call: Any) -> None:
        seen.append(threading.get_ident())
        if tool_call.name == "inner":
            session(agent)["state"][f"guard {tool_call.arguments['n']}"] = True

    @around_llm
    def around(request: Any) -> Any:
        seen.append(threading.get_ident())
        yield
        seen.append(threading.get_ident())

    class Model:
        model = "test"

        def complete(self, messages: Any, tools: Any = None) -> Any:
            text = str(messages[-1]["content"])
            if text.startswith("ask"):
                return ScriptedLLM(text.upper()).complete(messages, tools)
            script = [call("outer", n=1), call("outer", n=2)] if text == "Go" else "Done."
            return ScriptedLLM(script).complete(messages, tools)

    agent = Agent(
        "root", [inner, outer], llm=Model(), plugins=[guard, around], parallel_tools=4, log=False, quiet=True
    )
    assert agent.input("Go") == "Done."
    assert results(agent) == [f"inner {n} ['ASK {n}', 'ASK {n}']" for n in (1, 2)]
    assert set(seen) == {here} and len(entries(agent, "llm_call")) == 6
    state = session(agent)["state"]
    assert all(state[f"inner {n}"] and state[f"guard {n}"] for n in (1, 2))
    assert agent.total_cost == 0 and conversation_problems(session(agent)["messages"]) == []


def test_what_a_pool_without_a_context_asks_for_belongs_to_the_handler_that_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def look(agent: Agent, n: int) -> str:
        """Look."""
        session(agent)["state"].setdefault("looked", []).append(n)
        return f"saw {n}"

    @after_tools
    def handler(agent: Agent) -> None:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda n: agent.execute_tool("look", {"n": n}), range(2)))
        session(agent)["state"]["handled"] = True

    agent = made([look], call("look", n=9), "Done.", n=1, log=None, plugins=[handler])
    agent.input("Go")
    assert agent.record is not None
    text = agent.record.read_text("utf-8")
    lines = [json.loads(line[4:]) for line in text.splitlines() if line.startswith("  - {")]
    asked = [line["id"] for line in lines if line["type"] == "began" and "/exec:" in line["id"]]
    places = {id.partition("/exec:")[0] for id in asked if id.endswith("/tool1")}
    assert len(places) == 1 and places.pop().startswith("T1/1/after_tools/")
    assert sorted(session(agent)["state"]["looked"]) == [0, 1, 9]
    end = next(number for number, line in enumerate(text.splitlines()) if "/exec:" in line and "tool_execution" in line)
    cut = agent.record.with_name("root_cut.yaml")
    cut.write_text("\n".join(text.splitlines()[: end + 1]) + "\n", "utf-8")
    other = made([look], "Done.", n=1, log=None, plugins=[handler])
    assert other.resume(cut) == "Done."
    assert sorted(session(other)["state"]["looked"]) == [0, 1, 9] and session(other)["state"]["handled"]


# -- Ctrl-C ------------------------------------------------------------------------------------------------


CTRL_C = """
import os, signal, threading, time
from connectagent import Agent, around_tool
from connectagent.testing import ScriptedLLM, call

started = threading.Barrier(4)
hang = threading.Event()
left = []

def quick(agent) -> str:
    "Be quick."
    agent.current_session["state"]["quick"] = True
    return "quick"

def stuck(agent) -> str:
    "Never end."
    agent.current_session["state"]["stuck"] = True
    started.wait()
    hang.wait(30)
    return "late"

async def waits() -> str:
    "Wait."
    import asyncio
    started.wait()
    await asyncio.sleep(30)
    return "late"

@around_tool
def around(tool_call):
    try:
        yield
    finally:
        left.append((tool_call.name, threading.current_thread() is threading.main_thread()))

def press():
    started.wait()
    time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=press, daemon=True).start()
script = [call("quick"), call("stuck"), call("waits"), call("stuck")]
agent = Agent("root", [quick, stuck, waits], llm=ScriptedLLM(script), plugins=[around], parallel_tools=8, quiet=True)
since = time.perf_counter()
try:
    agent.input("Go")
except KeyboardInterrupt:
    print("interrupted", time.perf_counter() - since < 5)
hang.set()
time.sleep(0.05)
print([m["content"] for m in agent.current_session["messages"] if m["role"] == "tool"])
print(left)
print(agent.current_session["state"], agent.current_session["pending_tool"])
agent.llm = ScriptedLLM([call("quick"), call("quick")], "It goes on.")
print(agent.input("Go on."))
"""


def test_ctrl_c_waits_for_nothing_that_cannot_be_stopped_and_says_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(CTRL_C)
    started = subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    out, error = started.communicate(timeout=60)
    assert (started.returncode, error) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "interrupted True"
    texts = eval(lines[1])
    runs_on = "interrupted before it finished: KeyboardInterrupt; it could not be stopped and runs on"
    assert texts[0] == "quick" and texts[1].startswith(runs_on) and texts[3].startswith(runs_on)
    assert texts[2].startswith("interrupted")
    assert eval(lines[2]) == [(name, True) for name in ("quick", "stuck", "waits", "stuck")]
    assert lines[3] == "{'quick': True} None" and lines[4] == "It goes on."


def test_waits_are_listed_in_the_calls_order_whoever_waits() -> None:
    def pay(what: str) -> str:
        """Pay."""
        raise Pause(f"pay {what}?")

    @before_each_tool
    def guard(tool_call: Any) -> None:
        if tool_call.arguments["what"] in ("b", "d"):
            raise Pause(f"may it {tool_call.arguments['what']}?")

    agent = made([pay], [call("pay", what=what) for what in "abcd"], plugins=[guard])
    with pytest.raises(Paused) as paused:
        agent.input("Go")
    assert [wait.reason for wait in paused.value.waiting] == ["pay a?", "may it b?", "pay c?", "may it d?"]


def test_handlers_see_what_a_parallel_body_has_changed_before_it_runs_a_tool() -> None:
    seen: list[Any] = []

    def work(n: int, agent: Agent) -> str:
        """Work, by running another tool."""
        agent.state[f"begun {n}"] = n
        agent.execute_tool("other", {})
        agent.state[f"done {n}"] = n
        return "ok"

    def other() -> str:
        """Do something else."""
        return "ok"

    @before_each_tool
    def look(agent: Agent, tool_call: Any) -> None:
        if tool_call.name == "other":
            seen.append(sorted(key for key in agent.state if key.startswith("begun")))

    agent = made([work, other], [call("work", n=n) for n in (1, 2)], "Done.", plugins=[look])
    agent.input("Go")
    assert len(seen) == 2 and all(seen) and {key for keys in seen for key in keys} == {"begun 1", "begun 2"}
    assert session(agent)["state"] == {f"{what} {n}": n for n in (1, 2) for what in ("begun", "done")}


def test_a_call_that_was_made_is_not_shown_as_skipped_while_its_round_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    def fail() -> str:
        """Fail."""
        raise ValueError("no money")

    def waits() -> str:
        """Wait."""
        raise Pause("a manager decides")

    agent = made([pay, fail, waits], [("pay", {"amount": 5}), ("fail", {}), ("waits", {}), ("waits", {})], log=None)
    with pytest.raises(Paused) as caught:
        agent.input("Go.")
    paid, failed, waiting, _ = entries(agent)
    assert (paid["status"], paid["held"], paid["result"]) == ("skipped", "success", "paid 5")
    assert (failed["held"], failed["error"]) == ("error", "no money") and "held" not in waiting
    rows = [row for entry in (paid, failed) for row in rows_of(entry, UNICODE)]
    shown = ["".join(text for text, _ in row.parts) + f"  {row.right}" for row in rows]
    assert [re.sub(r"\d+ms", "1ms", line.strip()) for line in shown] == [
        "✓ pay(amount=5)  held  1ms", "paid 5", "✗ fail()  held  error  1ms", "ValueError: no money"
    ]  # fmt: skip
    (entry,) = entries(agent, "paused")
    assert [row.parts[0][0] for row in rows_of(entry, UNICODE)][1] == "waits() waits, and 1 other"
    text = (tmp_path / ".co/logs/root.log").read_text("utf-8")
    assert "tool pay(amount=5): held, success, " in text and "tool waits(): skipped, " in text
    made_by = {line.message.get("content"): line.changes[0].by for line in history_of(caught.value.record).lines}
    assert made_by["paid 5"] == {"tool": "pay"}
    assert made_by["not run: the turn was paused"] == {"plugin": "connectagent"}
