"""Waits of the main thread hear Ctrl-C: on Windows too, where a lock is deaf to it until its time is over."""

from __future__ import annotations

import ast
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from connectagent.hooks.resource import Pool
from connectagent.tools import waits

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path
    for folder in (ROOT / "connectagent", *(ROOT / "plugins").glob("*/connectagent_*"))
    for path in folder.rglob("*.py")
)
WAITS = {"wait", "get", "join", "acquire", "result"}
# No wait for a lock, or none of the main thread, by what is called.
OTHERS = {
    "_registry.acquire": "before a fork, which Windows has not",
    "one.lock.acquire": "before a fork, which Windows has not",
    "future.result": "done",
    "job.result": "in a tool's own thread",
    "libraries.result": "processes, which get Ctrl-C too",
    "process.wait": "a process, which gets Ctrl-C too",
    "queue.get": "in an idle thread",
    "running.result": "over",
    "self._asked.get": "in the turn's thread",
    "self._items.get": "there is one",
    "self._waiting.get": "in the thread that sends, or there is one",
    "self.queue.get": "in the engine's thread",
    "self.wanted.get": "in the starter's thread",
    "stack.join": "limited in it",
    "body.join": "limited in it",
    "task.result": "done",
    "turn.result": "over",
}


def endless(path: Path) -> Iterator[str]:
    """The calls of a file that may wait for ever."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    awaited = {node.value for node in ast.walk(tree) if isinstance(node, ast.Await)}
    awaited |= {one for node in ast.walk(tree) if isinstance(node, ast.Call) for one in node.args}  # by the loop
    variables = set(variables_of(tree))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or node in awaited or not isinstance(node.func, ast.Attribute):
            continue
        called = ast.unparse(node.func)
        if node.func.attr not in WAITS or node.args or node.keywords or called in OTHERS:
            continue
        if node.func.attr != "get" or not is_variable(node.func.value, variables):
            yield f"{path.relative_to(ROOT)}:{node.lineno}: {called}()"


# Locks that are held while code of others runs: whoever waits for one may wait long.
LONG = {
    "connectagent/hooks/entry_points.py": "_process_wide_lock",
    "connectagent/hooks/resource.py": "self._lock",
    "connectagent/loop/ask.py": "lock",
}


def long(path: Path) -> Iterator[str]:
    """The places of a file that wait for long in one piece."""
    name = path.relative_to(ROOT).as_posix()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.With):
            for item in node.items:
                if ast.unparse(item.context_expr) == LONG.get(name):
                    yield f"{name}:{node.lineno}: with {LONG[name]}"
            continue
        called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        if called.endswith(".acquire") and any(one.arg == "timeout" for one in node.keywords):  # type: ignore[attr-defined]
            yield f"{name}:{node.lineno}: {called}(timeout=...)"


def variables_of(tree: ast.AST) -> Iterator[str]:
    """The names of context variables, whose `get` waits for nothing; those of other modules are written large."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and "ContextVar(" in ast.unparse(node.value or node.target):
            yield from map(ast.unparse, node.targets if isinstance(node, ast.Assign) else [node.target])


def is_variable(node: ast.expr, variables: set[str]) -> bool:
    name = ast.unparse(node)
    return name in variables or name.rpartition(".")[2].isupper() or name == "stops"


def test_no_wait_of_the_main_thread_is_endless() -> None:
    assert [one for path in SOURCES for one in endless(path)] == []


def test_an_endless_wait_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    file = tmp_path / "bad.py"
    file.write_text("v = ContextVar('v')\nv.get()\nqueue_.get()\nover.wait()\nover.wait(1)\nawait over.wait()\n")
    assert list(endless(file)) == ["bad.py:3: queue_.get()", "bad.py:4: over.wait()"]


def test_no_wait_for_a_lock_is_long() -> None:
    assert [one for path in SOURCES for one in long(path) if path.stem != "waits"] == []


def test_a_long_wait_for_a_lock_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    monkeypatch.setitem(LONG, "bad.py", "self._lock")
    file = tmp_path / "bad.py"
    file.write_text("with self._lock:\n    pass\nwith holding(self._lock):\n    lock.acquire(timeout=300)\n")
    assert sorted(long(file)) == ["bad.py:1: with self._lock", "bad.py:4: lock.acquire(timeout=...)"]


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "_DEAF", True)
    monkeypatch.setattr(waits, "_STEP_S", 0.02)


class Deaf:
    """A lock that notes how long it was waited for at once."""

    def __init__(self) -> None:
        self.event, self.asked = threading.Event(), [0.0]

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None, "for ever"
        self.asked.append(timeout)
        return self.event.wait(timeout)


@pytest.mark.usefixtures("deaf")
def test_long_waits_are_made_of_short_ones() -> None:
    lock = Deaf()
    started = time.monotonic()
    assert waits.hearing(lock.wait, 0.07) is False
    assert time.monotonic() - started >= 0.07 and max(lock.asked) <= 0.02 and len(lock.asked) >= 4
    lock = Deaf()
    threading.Timer(0.05, lock.event.set).start()
    assert waits.hearing(lock.wait) is True and len(lock.asked) >= 2


@pytest.mark.usefixtures("deaf")
def test_ctrl_c_ends_a_wait(ctrl_c: Any) -> None:
    threading.Timer(0.05, signal.raise_signal, [signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        waits.next_of(SimpleQueue())


@pytest.mark.usefixtures("deaf")
def test_queues_threads_and_locks_are_waited_for() -> None:
    queue: SimpleQueue[Any] = SimpleQueue()
    threading.Timer(0.05, queue.put, [None]).start()
    assert waits.next_of(queue) is None
    with pytest.raises(Empty):
        waits.next_of(queue, 0.05)
    thread = threading.Timer(0.05, lambda: None)
    thread.start()
    waits.end_of(thread)
    assert not thread.is_alive()
    lock = threading.Lock()
    lock.acquire()
    threading.Timer(0.05, lock.release).start()
    assert waits.take(lock) is True and lock.locked()
    assert waits.take(lock, 0.05) is False


@pytest.mark.usefixtures("deaf")
def test_ctrl_c_ends_a_wait_for_a_resource_that_another_thread_makes(ctrl_c: Any) -> None:
    making, made = threading.Event(), threading.Event()

    def slow() -> tuple[str, None]:
        making.set()
        made.wait(10)
        return "made", None

    def shared() -> None: ...

    pool, handler = Pool(), SimpleNamespace(function=shared)
    other = threading.Thread(target=pool.get, args=(handler, slow))
    other.start()
    making.wait(10)
    threading.Timer(0.05, signal.raise_signal, [signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        pool.get(handler, slow)
    made.set()
    other.join(10)
    assert pool.get(handler, slow) == "made"


def test_ctrl_c_that_comes_in_another_thread_is_heard(ctrl_c: Any) -> None:
    """As where it comes just before the wait begins, nothing wakes the main thread then."""
    if not hasattr(signal, "pthread_kill"):
        pytest.skip("signals of one thread are POSIX's")

    def strike() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    queue: SimpleQueue[Any] = SimpleQueue()
    threading.Timer(0.1, strike).start()
    late = threading.Timer(10, queue.put, [None])
    late.start()
    with pytest.raises(KeyboardInterrupt):
        waits.next_of(queue)
    assert late.is_alive()
    late.cancel()


def test_other_threads_do_not_wait_in_steps() -> None:
    asked: list[float | None] = []
    thread = threading.Thread(target=waits.hearing, args=(lambda step_s: asked.append(step_s) or True,))
    thread.start()
    thread.join(10)
    assert asked == [None]
