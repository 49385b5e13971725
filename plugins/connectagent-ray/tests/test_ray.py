"""Prompts and sessions over a Ray cluster, whose workers are killed."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

ray = pytest.importorskip("ray", reason="ray is not installed")
from connectagent_ray import Cluster  # noqa: E402

from connectagent import (  # noqa: E402
    Agent,
    BatchStopped,
    ConfigError,
    DivergenceError,
    LLMResponse,
    Pause,
    Paused,
    ProviderError,
    ToolCall,
    ToolRejected,
    before_each_tool,
    before_llm,
)

ITEMS, KILLS = int(os.environ.get("RAY_ITEMS", "30")), int(os.environ.get("RAY_KILLS", "1"))
CHATS, TURNS = int(os.environ.get("RAY_CHATS", "3")), 5
pytestmark = pytest.mark.filterwarnings("ignore")  # of ray itself


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    root = Path(__file__).parents[3]
    paths = [root, root / "plugins/connectagent-ray", os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


def helper(folder: Path, takes_s: float = 0.02, **options: Any) -> Agent:
    ran = str(folder / "ran")

    def search(query: str) -> str:
        """Search the docs."""
        import os
        import time

        file = os.open(ran, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{query}\n".encode())
        os.close(file)
        time.sleep(takes_s)
        return "found"

    model = {} if "llm" in options else {"model": "offline"}
    return Agent("helper", tools=[search], quiet=True, **model, **options)


def ran(folder: Path) -> Counter[str]:
    file = folder / "ran"
    return Counter(file.read_text().splitlines() if file.exists() else [])


def test_items_are_taken_once_though_workers_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    prompts = [f"Search for page {number}" for number in range(ITEMS)]
    when = {(number + 1) * ITEMS // (KILLS + 2) for number in range(KILLS)}
    killed, items = 0, []
    with Cluster(helper(tmp_path), actors=2, concurrency=4) as cluster:
        for done, item in enumerate(cluster.map(prompts, run="nightly")):
            items.append(item)
            if done in when:
                actor = random.Random(done).choice(cluster.actors)
                os.kill(ray.get(actor.process.remote()), signal.SIGKILL)
                killed += 1
        assert killed == KILLS
        assert Counter(item.status for item in items) == {"answered": ITEMS}, [i.error for i in items if i.error]
        assert sorted(item.number for item in items) == list(range(ITEMS))
        before = ran(tmp_path)
        assert set(before.values()) == {1} and len(before) >= ITEMS - 4 * KILLS  # the rest was in doubt
        assert all(item.known for item in cluster.map(prompts, run="nightly"))
    here = list(helper(tmp_path).map(prompts, run="nightly"))
    assert all(item.known for item in here) and ran(tmp_path) == before


def test_chats_go_on_though_workers_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def chat(number: int) -> None:
        for turn in range(TURNS):
            cluster.turn(f"c{number}", f"Search for c{number}.{turn}", turn + 1)

    with Cluster(helper(tmp_path), actors=2, concurrency=4) as cluster, ThreadPoolExecutor(8) as threads:
        chats = [threads.submit(chat, number) for number in range(CHATS)]
        for kill in range(KILLS):
            while len(ran(tmp_path)) < (kill + 1) * CHATS * TURNS // (KILLS + 1):
                time.sleep(0.005)
            os.kill(ray.get(cluster.actors[kill % 2].process.remote()), signal.SIGKILL)
        for one in chats:
            one.result()
    assert all(helper(tmp_path).for_session(f"c{number}").turns == TURNS for number in range(CHATS))
    assert set(ran(tmp_path).values()) == {1}
    assert len(ran(tmp_path)) >= CHATS * TURNS - 4 * KILLS  # the rest was in doubt


def test_items_are_in_order_on_request_and_limits_end_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    @before_each_tool
    def fail(tool_call: Any) -> None:
        if "fail" in str(tool_call.arguments):
            raise RuntimeError("no")

    prompts = [f"Search for {'fail' if number % 2 else 'page'} {number}" for number in range(40)]
    with Cluster(helper(tmp_path, plugins=[fail]), actors=2, concurrency=4) as cluster:
        items = list(cluster.map(prompts[:12], run="ordered", ordered=True))
        assert [item.number for item in items] == list(range(12))
        assert [item.status for item in items] == ["answered", "error"] * 6
        assert {type(item.error) for item in items[1::2]} == {RuntimeError}
        found = []
        with pytest.raises(BatchStopped, match="prompts have failed"):
            for item in cluster.map(prompts, run="limited", max_failures=2):
                found.append(item)
        assert 5 <= len(found) < 40
        with pytest.raises(BatchStopped, match="s are over"):
            list(cluster.map(prompts, run="timed", timeout_s=0))
        with pytest.raises(ConfigError, match="from 0 on"):
            next(cluster.map(prompts, run="wrong", budget_usd=-1))


def test_ctrl_c_stops_all_turns_before_their_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    prompts = [f"Search for page {number}" for number in range(40)]
    with Cluster(helper(tmp_path, takes_s=1.0), actors=2, concurrency=4) as cluster:
        list(cluster.map(prompts[:2], run="first"))  # both actors are there
        began = time.monotonic()
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            list(cluster.map(prompts, run="nightly"))
        assert time.monotonic() - began < 0.5 + 1.0 + 1.0 + 2.0  # a tool takes a second; the machine is busy
        before = ran(tmp_path)
        time.sleep(1.2)
        assert ran(tmp_path) == before  # nothing goes on behind the program's back
        rest = list(cluster.map(prompts, run="nightly"))
    assert Counter(item.status for item in rest) == {"answered": 40} and not any(item.known for item in rest)
    assert ran(tmp_path)["page 0"] == 2 and set((ran(tmp_path) - Counter(["page 0", "page 1"])).values()) == {1}


def test_ctrl_c_stops_the_turns_of_an_actor_too_that_dies_right_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray restarts it, and calls its turns again."""
    monkeypatch.chdir(tmp_path)

    class Rounds:
        model = "rounds"

        def complete(self, messages: list[Any], tools: Any = None) -> LLMResponse:
            done = sum(message["role"] == "tool" for message in messages)
            ask = ToolCall(f"c{done}", "search", {"query": f"{messages[0]['content']}.{done}"})
            return LLMResponse("Done.") if done == 4 else LLMResponse("", [ask])

    prompts, begun = [f"page {number}" for number in range(8)], Counter[str]()
    with Cluster(helper(tmp_path, takes_s=2.0, llm=Rounds()), actors=2, concurrency=4) as cluster:
        processes = [ray.get(actor.process.remote()) for actor in cluster.actors]

        def end_and_kill() -> None:
            while len(ran(tmp_path)) < len(prompts) or ran(tmp_path) != begun:
                begun.clear()
                begun.update(ran(tmp_path))
                time.sleep(0.5)  # no tool begins just now
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)
            os.kill(processes[0], signal.SIGKILL)

        ending = threading.Thread(target=end_and_kill)
        ending.start()
        with pytest.raises(KeyboardInterrupt):
            list(cluster.map(prompts, run="nightly"))
        ending.join()
        before = ran(tmp_path)
        time.sleep(2.5)
        assert ran(tmp_path) == before and (before - begun).total() <= 2  # which began just then
        rest = list(cluster.map(prompts, run="nightly", ordered=True))
    assert [item.status for item in rest] == ["answered"] * 8 and not any(item.known for item in rest)
    assert ran(tmp_path) == Counter(f"{prompt}.{number}" for prompt in prompts for number in range(4))


def test_a_pause_is_decided_over_the_cluster_and_errors_are_those_of_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    class Model:
        model = "m"

        def complete(self, messages: list[Any], tools: Any = None) -> LLMResponse:
            last = messages[-1]
            if last["content"] == "fail":
                raise ProviderError("down", kind="server", provider="x")
            if last["role"] == "user":
                return LLMResponse(None, [ToolCall("c", "search", {"query": last["content"]})])
            return LLMResponse(f"It says {last['content']}")

    @before_each_tool
    def ask() -> None:
        raise Pause("may it?")

    with Cluster(helper(tmp_path, llm=Model(), plugins=[ask]), actors=2, concurrency=4) as cluster:
        with pytest.raises(Paused, match="may it") as caught:
            cluster.turn("a", "x", 1)
        (wait,) = caught.value.waiting
        assert wait.call["arguments"] == {"query": "x"} and not ran(tmp_path)
        with pytest.raises(ConfigError, match="what waits: T1"):
            cluster.resume("a", approve=True, wait="T9")
        assert cluster.resume("a", approve=True, wait=wait.id) == "It says found"
        again = ray.get(cluster.actor("a").resume.remote("a", wait.id, {"approve": True}))  # as Ray does after a death
        assert again == "It says found"
        with pytest.raises(ConfigError, match="what waits: nothing"):
            cluster.resume("a", approve=True)
        assert cluster.turn("a", "x", 1) == "It says found" and ran(tmp_path) == Counter(["x"])
        with pytest.raises(DivergenceError) as diverged:
            cluster.turn("a", "y", 1)
        assert "Traceback" not in str(diverged.value) and "ray::" not in str(diverged.value)
        with pytest.raises(Paused):
            cluster.turn("b", "z", 1)
        assert cluster.resume("b", approve=wait.id) == "It says found"  # the id is the place, as in each session
        waits, failed = cluster.map(["y", "fail"], run="two", ordered=True)
        assert (waits.status, failed.status) == ("paused", "error")
        assert isinstance(waits.error, Paused) and waits.error.waiting[0].reason == "may it?"
        assert isinstance(failed.error, ProviderError) and failed.error.kind == "server"
        for mistake in (
            lambda: cluster.turn(5, "x"),
            lambda: cluster.turn("", "x"),
            lambda: list(cluster.map(["x"], run="")),
        ):
            with pytest.raises(ConfigError):
                mistake()
    agent = helper(tmp_path)
    for given in ({"actors": 0}, {"actors": "2"}, {"concurrency": 0}):
        with pytest.raises(ConfigError, match="a whole number of at least 1"):
            Cluster(agent, **given)
    for wrong, words in (("helper", "takes an Agent"), (helper(tmp_path, log=False), "not recorded")):
        with pytest.raises(ConfigError, match=words):
            Cluster(wrong, actors=1)


@pytest.mark.parametrize("prompts", [[["Search for", " page 1"], ("a", "Search for page 2"), "Search for \ud800"]])
def test_items_have_the_ids_of_the_agents_own_map(
    prompts: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Cluster(helper(tmp_path), actors=1) as cluster:
        there = [item.id for item in cluster.map(prompts, run="ids", ordered=True)]
    assert there == [item.id for item in helper(tmp_path).map(prompts, run="ids", ordered=True)]


def test_a_guard_acts_in_every_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    @before_each_tool
    def guard() -> None:
        raise ToolRejected("never")

    with Cluster(helper(tmp_path, plugins=[guard]), actors=2) as cluster:
        items = list(cluster.map([f"Search for {n}" for n in range(8)], run="guarded"))
        cluster.turn("a", "Search for x", 1)
    assert len(items) == 8 and all("never" in item.result for item in items) and not ran(tmp_path)


def test_nobody_is_asked_at_a_terminal_of_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    @before_llm
    def sit_there() -> None:
        import io
        import sys

        for name in ("stdin", "stderr"):
            setattr(sys, name, io.StringIO("y\n" * 9))
            getattr(sys, name).isatty = lambda: True

    with Cluster(helper(tmp_path, plugins=[sit_there], trust="careful"), actors=1) as cluster:
        assert "no terminal to ask at" in cluster.turn("a", "Search for x", 1)
        (item,) = cluster.map(["Search for y"], run="careful")
        assert "no terminal to ask at" in item.result
    assert not ran(tmp_path)
