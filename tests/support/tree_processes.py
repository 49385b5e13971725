"""Runs a case of `tree_cases` as a chain of processes, each of which may die by SIGKILL at a point of its own.

As a program, it forks a new process for each start of a case: it has loaded everything, has one thread, and has never
run a case itself. Each line of its input is a chain, each line of its output what became of it.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tree_cases import Diary, World, decision_about
from tree_features import SECRET, tree_of

from connectagent import Agent, LLMResponse, Parallel, Pause, Paused, Sequential, Tool, ToolCall
from connectagent.agents.tree import walk
from connectagent.records.history import read_session
from connectagent.records.summary import summarise
from connectagent.testing import conversation_problems

MAX_STARTS = 40  # of one chain, and decisions in one process; more is no end
HANGS_AFTER_S = 30
DIRECT = "direct"  # in place of a mode: the guard decides by itself, nothing waits

# -- one process of a chain ----------------------------------------------------------------------------------


def waits_of(paused: Paused) -> list[tuple[Any, str]]:
    """What waits: its id, or None where a pause has no list of what waits, and what the person is asked."""
    waiting = getattr(paused, "waiting", None)
    return [(None, paused.reason)] if waiting is None else [(wait.id, wait.reason) for wait in waiting]


def decision_arguments(id: Any, decision: str, alone: bool) -> dict[str, Any]:
    """A decision as `resume()` takes it; where several calls wait, it names the one that it is about."""
    if decision == "approve":
        return {"approve": True if id is None else id}
    value = "no" if decision == "reject" else "by hand"
    return {decision: value if alone or id is None else {id: value}}


class Start(NamedTuple):
    """What a process of a chain does.

    Args:
        case: whose tree it runs, with features: see `tree_of`.
        kind: what is decided: one of `DECISIONS`, or `mixed`.
        mode: `same`: it decides and goes on itself; `other`: it ends where the turn waits; `DIRECT`.
        number: which process of the chain it is.
        kill: the point at which it dies, or 0; a float is the seconds after which it is killed from outside.
        wait: what it decides, `[id, reason, whether nothing else waits]`, or None.
        changed: whether its code is another one.
    """

    case: str
    kind: str
    mode: str
    number: int
    kill: int | float = 0
    wait: list[Any] | None = None
    changed: bool = False


def run(start: Start) -> dict[str, Any]:
    """Take the turns of a case, or go on with them; what became of them."""
    diary = Diary(start.number, 0 if isinstance(start.kill, float) else start.kill)
    case, features = tree_of(start.case)
    world = World(diary, start.kind, start.mode == DIRECT, features, start.changed)
    prompts, streamed = case.prompts, any(feature.streamed for feature in features)
    agent = case.build(world)
    diary.watch_records()
    wait, record, result = start.wait, newest_record(), None
    for _ in range(MAX_STARTS):
        try:
            if record is not None:
                result = agent.resume(record, **_decided(diary, start.kind, wait))
            record = None
            while (taken := (agent.current_session or {"turn": 0})["turn"]) < len(prompts):
                result = _streamed(agent, prompts[taken]) if streamed else agent.input(prompts[taken])
            return _end(agent, result, case.at_once)
        except Paused as paused:
            waits = waits_of(paused)
            chosen = waits[-1 if start.kind == "mixed" else 0]
            record, wait = paused.record, [*chosen, len(waits) == 1]
            if start.mode != "same":
                return {"wait": wait}
    return {"error": f"it still waits after {MAX_STARTS} decisions"}


def _streamed(agent: Agent, prompt: str) -> str:
    events = list(agent.stream(prompt))
    return str(events[-1]["result"])


def _decided(diary: Diary, kind: str, wait: list[Any] | None) -> dict[str, Any]:
    if wait is None:
        return {}
    id, reason, alone = wait
    decision = decision_about(kind, reason)
    diary.note(decision, reason)
    return decision_arguments(id, decision, alone)


def _end(agent: Agent, result: str | None, at_once: bool) -> dict[str, Any]:
    session: Any = agent.current_session
    told = {"result": result, "state": session["state"], "outcome": session.get("outcome")}
    read = {one.name: [*map(_as_read, (one.current_session or {"messages": []})["messages"])] for one in walk(agent)}
    told["conversations"] = read
    problems = conversation_problems(session["messages"]) + _record_problems(agent, at_once)
    return {**told, "spent": [agent.spent.tokens, agent.spent.cost], "problems": problems}


def _as_read(message: Any) -> str:
    """A message, as it is compared."""
    content = re.sub(rf"{SECRET}|\[masked[^\]]*\]", "(masked)", str(message.get("content")))
    return f"{message['role']} ({message.get('author')}): {content}"


def _record_problems(agent: Agent, at_once: bool) -> list[str]:
    """What the record tells otherwise than the session, and what it should not tell.

    Args:
        at_once: whether agents worked at the same time: their entries stand in the record as they came.
    """
    path, session = Path(str(agent.record)), agent.current_session
    assert session is not None
    recorded, text = read_session(path), path.read_text()
    found = ["the record has a secret"] if SECRET in text else []
    traces = [_comparable(trace) for trace in (recorded.own.trace, session["trace"])]
    traces = [sorted(trace, key=_plain) for trace in traces] if at_once else traces
    sides: list[Any] = [(recorded.own.history.messages, session["messages"]), traces]
    for name, (is_, should_be) in zip(("messages", "trace"), sides, strict=True):
        found += [] if _plain(is_) == _plain(should_be) else [f"the record has other {name}: {_first(is_, should_be)}"]
    totals = summarise(path).totals
    told, spent = (totals and (totals.tokens, totals.cost)), (agent.spent.tokens, agent.spent.cost)
    return found if told == spent else [*found, f"the record has the sums {told}, the agent {spent}"]


def _comparable(trace: list[Any]) -> list[Any]:
    """Entries without the places of masks, and without what the next turn would write."""
    entries = [{key: value for key, value in one.items() if key != "masked"} for one in trace]
    while entries[-1]["type"] == "resumed":
        entries.pop()
    return entries


def _plain(value: Any) -> Any:
    text = json.dumps(value, default=lambda one: dataclasses.asdict(one), sort_keys=True)
    return re.sub(rf"{SECRET}|\[masked[^\]]*\]", "(masked)", text)


def _first(is_: Any, should_be: Any) -> str:
    pairs = itertools.zip_longest(is_, should_be)
    one, other = next((one, other) for one, other in pairs if _plain(one) != _plain(other))
    if one and other:
        keys = [key for key in {**one, **other} if _plain(one.get(key)) != _plain(other.get(key))]
        one, other = ({"type": side.get("type"), **{key: side.get(key) for key in keys}} for side in (one, other))
    return f"{one} in place of {other}"[:600]


def newest_record() -> Path | None:
    """The root's record, once it has a turn; before that there is nothing to go on with."""
    found = sorted(Path(".co/evals").glob("root_*.yaml"), key=lambda path: path.stat().st_mtime_ns)
    return found[-1] if found and b"\n- turn: " in found[-1].read_bytes() else None


def forked(start: Start) -> dict[str, Any]:
    """Run a process of a chain; `{"killed": True}` where it died, `error` where it failed or did not end."""
    pid = os.fork()
    if not pid:
        signal.alarm(HANGS_AFTER_S)
        try:
            told = run(start)
        except BaseException as error:
            told = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
        Path("told").write_text(json.dumps(told))
        os._exit(0)
    if isinstance(start.kill, float):
        time.sleep(start.kill)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        signals = {signal.SIGKILL: {"killed": True}, signal.SIGALRM: {"error": "it does not end"}}
        return signals.get(signal.Signals(os.WTERMSIG(status)), {"error": f"signal {os.WTERMSIG(status)}"})
    told = json.loads(Path("told").read_text())
    Path("told").unlink()
    return told


# -- a chain -------------------------------------------------------------------------------------------------


class Chain(NamedTuple):
    """Processes one after the other, until the turns are over.

    Args:
        kills: the n-th process dies at the point `kills[n]`, or after so many seconds where it is a float; 0 and what
            is missing are none.
    """

    case: str
    kind: str
    mode: str
    kills: tuple[int | float, ...] = ()


def chained(chain: Chain) -> dict[str, Any]:
    """Run a chain in a folder of its own.

    Returns:
        `end`: what the last process told. `ledger`, `points`: `[process, what, label]` and `[process, label]`,
        in order. `killed`: which processes died. `seconds`: how long the first process took.
    """
    killed, seconds = list[int](), 0.0
    with _folder():
        wait = None
        for number in range(MAX_STARTS):
            kill = chain.kills[number] if number < len(chain.kills) else 0
            started = time.perf_counter()
            end = forked(Start(chain.case, chain.kind, chain.mode, number, kill, wait))
            seconds = seconds or time.perf_counter() - started
            wait = end.get("wait")
            if "killed" in end:
                killed.append(number)
            elif wait is None:
                break
        else:
            end = {"error": f"still not over after {MAX_STARTS} processes"}
        told = {"end": end, "ledger": _lines("ledger"), "points": _lines("points"), "killed": killed}
        told["seconds"] = seconds
    return told


def _lines(name: str) -> list[list[Any]]:
    rows = [line.split("\t") for line in Path(name).read_text().splitlines()]
    return [[int(row[0]), *row[1:]] for row in rows]


@contextmanager
def _folder() -> Iterator[None]:
    memory = Path("/dev/shm")
    folder = tempfile.mkdtemp(dir=memory if memory.is_dir() else None)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir("/")
        shutil.rmtree(folder)


def warm_up() -> None:
    """Load and make once what each process would, with agents that are none of the cases'."""
    with _folder():
        answers = iter([LLMResponse(None, [ToolCall("1", "wave", {"what": "hand"})]), *[LLMResponse("Warm.")] * 9])
        llm = type("Warm", (), {"model": "test/warm", "complete": lambda *_, **__: next(answers)})()

        def wave(what: str) -> str:
            raise Pause("may I?")

        tool = Tool("wave", "", {"type": "object", "properties": {"what": {"type": "string"}}}, wave)
        agent = Agent("warm", [tool, Agent("below", llm=llm, quiet=True)], llm=llm, quiet=True)
        try:
            agent.input("Hi")
        except Paused as paused:
            agent.resume(paused.record, reject="no")
        beside = Parallel("side", [Agent("beside", llm=llm, quiet=True)], quiet=True)
        Sequential("row", [beside], quiet=True).input("Hi")
    assert threading.active_count() == 1, threading.enumerate()
    gc.collect()
    gc.freeze()


def main() -> None:
    for name in [name for name in os.environ if name.startswith("CONNECTAGENT_")]:
        del os.environ[name]
    os.environ["SHOP_API_KEY"] = SECRET
    warm_up()
    for line in sys.stdin:
        case, kind, mode, kills = json.loads(line)
        print(json.dumps(chained(Chain(case, kind, mode, tuple(kills)))), flush=True)


if __name__ == "__main__":
    main()
