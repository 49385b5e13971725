"""Chains of processes, stopped at random, that take the turns of a keyed session with agents inside, or map prompts."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from connectagent import (
    Agent,
    LLMResponse,
    Parallel,
    Pause,
    Paused,
    Sequential,
    TokenUsage,
    ToolCall,
    before_each_tool,
    on_complete,
)
from connectagent.records.history import joined_turns
from connectagent.records.read import read_record
from connectagent.records.summary import summarise

KINDS = ("asked", "sequential", "parallel", "handoff")
TURNS = 3
MOST = 40  # processes of a chain


def note(text: str) -> None:
    """Write to what no kill takes back."""
    fd = os.open("ledger", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, f"{text}\n".encode())
    os.close(fd)


class Model:
    """A model that calls the tools of its agent once a turn, then answers."""

    model = "test/keyed"

    def complete(self, messages: list[Any], tools: Any = None) -> LLMResponse:
        time.sleep(random.uniform(0, 0.003))
        asked = max(at for at, one in enumerate(messages) if one["role"] == "user")
        prompt, usage = str(messages[asked]["content"]), TokenUsage(1, 1, cost=1 / 64)
        if any(one["role"] == "assistant" for one in messages[asked:]):
            return LLMResponse("done " + prompt.rpartition(":")[2], [], usage)
        calls = []
        for tool in tools or ():
            name = tool["function"]["name"]
            given = {"what": prompt} if name in ("ship", "pay") else {"prompt": prompt}
            if name == "transfer_to_agent":
                if "'last'" not in str(tool):
                    continue
                given = {"agent_name": "last"}
            calls.append(ToolCall(f"{name}{len(messages)}", name, given))
        return LLMResponse(None, calls[:3], usage)


def ship(agent: Agent, what: str) -> str:
    """Ship."""
    note(f"ran ship {agent.name} {what}")
    time.sleep(random.uniform(0, 0.003))
    agent.state[f"shipped:{agent.name}"] = agent.state.get(f"shipped:{agent.name}", 0) + 1
    return "shipped"


def pay(agent: Agent, what: str) -> str:
    """Pay."""
    note(f"ran pay {agent.name} {what}")
    return "paid"


@before_each_tool
def ask(agent: Agent, tool_call: ToolCall) -> None:
    if tool_call.name == "pay":
        raise Pause(f"pay for {agent.name}?")


@on_complete
def completed(agent: Agent) -> None:
    assert agent.current_session is not None
    note(f"completed {agent.name} in {agent.current_session['user_prompt']}")


def tree(kind: str, waits: bool) -> Agent:
    """A tree of agents, whose plugins the agents inside inherit."""

    def made(name: str, *tools: Any, **options: Any) -> Agent:
        return Agent(name, list(tools), llm=Model(), quiet=True, **options)

    plugins = [completed, *([ask] if waits else [])]
    if kind == "asked":
        tools = [ship, made("a", ship, pay), made("b", ship)]
        return made("root", *tools, parallel_tools=random.choice([1, 3]), plugins=plugins)
    if kind == "handoff":
        return made("root", sub_agents=[made("last", ship, pay)], plugins=plugins)
    work = Sequential if kind == "sequential" else Parallel
    return work("root", [made("a", ship, pay), made("b", ship)], quiet=True, plugins=plugins)


def take_turns(kind: str, waits: bool, prompts: list[str]) -> None:
    """One process of a chain: it takes the turns, decides what waits, and notes their results."""
    session = tree(kind, waits).for_session("k")
    for number, prompt in enumerate(prompts, 1):
        take: Callable[[], Any] = partial(session.turn, prompt, number)
        while True:
            try:
                note(f"result {number} {take()}")
                break
            except Paused:
                if random.random() < 0.3:
                    return
                take = partial(session.resume, approve=session.waiting[0].id)
    note("over")


def map_prompts(kind: str, waits: bool, prompts: list[str]) -> None:
    """One process of a chain: it maps the prompts, decides what waits, and notes the results."""
    open_ones = 0
    for item in tree(kind, waits).map(prompts, run="m", concurrency=2):
        if item.status == "paused":
            _decide(kind, item.record)
            open_ones += 1
        elif item.error is None:
            note(f"result {item.number} {item.result}")
        else:
            raise RuntimeError(f"{item.status}: {item.error}")
    if not open_ones:
        note("over")


def _decide(kind: str, record: Any) -> None:
    decided: dict[str, Any] = {"approve": True}
    for _ in range(3):
        try:
            tree(kind, True).resume(record, **decided)
            return
        except Paused as paused:
            decided = {"approve": paused.waiting[0].id}


def process(work: Callable[[], None], stop: int, after_s: float) -> int:
    """Run a process, and stop it after a time by a signal (0: not at all); its exit code, -9 where it was killed."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # but while the child works
    pid = os.fork()
    if not pid:
        code = 0
        try:
            signal.alarm(30)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            random.seed()
            try:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
                work()
            finally:
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        except KeyboardInterrupt:
            code = 2
        except BaseException:
            Path("error").write_text(traceback.format_exc())
            code = 1
        os._exit(code)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if stop:
        time.sleep(after_s)
        os.kill(pid, stop)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def chained(seed: int) -> list[str]:
    """What is wrong after a chain of processes that were stopped at random."""
    rest = random.Random(seed)
    kind, waits, kills = rest.choice(KINDS), rest.random() < 0.4, rest.random() < 0.5
    work = rest.choice([take_turns, map_prompts])
    before, folder = Path.cwd(), Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    os.chdir(folder)
    try:
        prompts, killed = [f"Turn {number}:{number}" for number in range(1, TURNS + 1)], 0
        for number in range(MOST):
            stop = rest.choice([signal.SIGINT, signal.SIGKILL if kills else signal.SIGINT]) if number < 8 else 0
            code = process(partial(work, kind, waits, prompts), stop, rest.uniform(0, 0.15))
            killed += code == -signal.SIGKILL
            if code in (1, -signal.SIGALRM):
                error = Path("error").read_text() if code == 1 else "it does not end"
                return [f"{work.__name__} {kind} {waits}: {error}"]
            if Path("ledger").exists() and "over" in Path("ledger").read_text().splitlines():
                break
        else:
            return [f"{work.__name__} {kind} {waits}: not over"]
        what = f"{work.__name__} {kind} waits={waits} kills={kills}"
        return [f"{what}: {text}" for text in judged(killed, TURNS if work is take_turns else 1)]
    finally:
        os.chdir(before)
        shutil.rmtree(folder)


def judged(killed: int, turns: int) -> list[str]:
    """What is wrong with what a chain has left."""
    lines, found = Counter(Path("ledger").read_text().splitlines()), list[str]()
    found += [f"{line!r} {times} times" for line, times in lines.items() if line.startswith("ran ") and times > 1]
    for line, times in lines.items():
        if line.startswith("completed ") and times > 1 + killed:
            found.append(f"{line!r} {times} times, {killed} killed")
    results: dict[str, set[str]] = {}
    for line in lines:
        if line.startswith("result "):
            results.setdefault(line.split()[1], set()).add(line)
    found += [f"several results: {texts}" for texts in results.values() if len(texts) > 1]
    records = [path for path in Path(".co").rglob("*.yaml") if path.is_file()]
    if len(records) * turns != TURNS:
        found.append(f"records {records}")
    return found + [text for record in records for text in recorded(record, turns)]


def recorded(record: Path, turns: int) -> list[str]:
    """What is wrong with a record."""
    told, totals = [turn for turn in joined_turns(read_record(record))], summarise(record).totals
    found = [] if [turn["turn"] for turn in told] == list(range(1, turns + 1)) else [f"{[one['turn'] for one in told]}"]
    calls = {line["id"].rpartition("/")[0] for turn in told for line in turn["lines"] if line["type"] == "llm_call"}
    if totals is None or (totals.turns, totals.iterations) != (turns, len(calls)):
        found.append(f"sums {totals}, {len(calls)} iterations")
    return found


def main(seeds: range) -> None:
    """Print what is wrong after each chain."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:  # what a process loads first, Ctrl-C should not cut off
        os.chdir(folder)
        for kind in KINDS:
            take_turns(kind, False, ["Warm:up"])
            shutil.rmtree(".co")
        os.chdir(before)
    for seed in seeds:
        for text in chained(seed):
            print(f"chain {seed}: {text}", flush=True)


if __name__ == "__main__":
    main(range(int(sys.argv[1]), int(sys.argv[2])))
