"""One turn taken in several ways: with a plugin that keeps the rules, each gives the same."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path as File
from typing import Any, NamedTuple

from connectagent import Pause, Paused, hooks
from connectagent.plugins import canonical
from connectagent.settings import co_folder, override
from connectagent.testing import replayed
from pytest_connectagent.faults import By
from pytest_connectagent.paths import FAIL, WORK, Path
from pytest_connectagent.turns import Check, Run

_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")
_A_DAY_APART = ("XXX+12", "XXX-12")  # in one of these time zones it is another day than here
_TURN = Path("a turn", lambda: [WORK[0], [WORK[1], FAIL, ("do_work", {"x": 13})], "Done."])


class Outcome(NamedTuple):
    """What a turn leaves: its result, the messages and the state, with ids and addresses made the same."""

    result: str
    messages: list[str]
    state: dict[str, str]


class Ways:
    """One turn, taken in several ways by a plugin as it is in a new process.

    Args:
        check: whose turns they are; meanwhile its plugin is the one that `make` makes.
        make: makes the plugin.
    """

    def __init__(self, check: Check, make: Callable[[], Any]) -> None:
        self.check = check
        check.make, self._make = make, check.make
        self.once = self.again = Outcome("", [], {})

    def every_way(self, own: list[Path]) -> None:
        """Take the turn in each way, and compare."""
        self.check.effects.auditing = False  # the record is written while handlers run
        try:
            for path in [_TURN, *own]:
                with _folder():
                    straight = self._taken(path, "in one go")
                    self.once = outcome(straight)
                    with _folder():
                        self.again = outcome(self._taken(path, "once more"))
                    self._replayed(path, straight)
                self._streamed(path)
                for number in (1, 2):
                    self._paused(path, number)
                for number in range(1, len(path.script())):
                    self._killed(path, number)
        finally:
            self.check.effects.auditing = True
            self.check.make = self._make

    def _run(self, path: Path, way: str, **options: Any) -> Run:
        return Run(self.check, path, way=way, **{"log": None, **options})

    def _taken(self, path: Path, way: str, **options: Any) -> Run:
        run = self._run(path, way, **options)
        run.turn()
        self.check.take(run)
        return run

    def _streamed(self, path: Path) -> None:
        for way, options in (("streamed", {"stream": True}), ("with its calls at once", {"parallel_tools": 4})):
            with _folder():
                self._compare(self._taken(path, way, **options))

    def _paused(self, path: Path, number: int) -> None:
        """Pause the turn at a tool call, and approve it in an agent of its own."""
        with _folder():
            first, driver = self._run(path, "paused"), _pausing(number)
            first.plugins.append(driver)
            prompt = path.prompt or self.check.prompt
            first.do(lambda: first.make().input(prompt))
            error = first.error
            if not isinstance(error, Paused) or not driver.done:
                return  # it has no such call, or the plugin itself pauses it
            used = len(first.llm.requests)
            self._resumed(path, first, used, "paused and resumed", driver, error.record, approve=True)

    def _killed(self, path: Path, number: int) -> None:
        """Kill the process at a call of the model; what it leaves is what is in its files."""
        with _folder(), tempfile.TemporaryDirectory() as place:
            left, first = File(place) / "co", self._run(path, "killed")
            response = first.llm.responses[number]
            asked: list[int] = []

            def answer(*_: Any) -> Any:
                asked.append(first.llm.asked)
                shutil.copytree(co_folder(), left)
                return response

            first.llm.responses[number] = answer
            first.turn()
            self.check.take(first)
            if not asked or first.agent is None or first.agent.record is None:
                return
            record = left / first.agent.record.relative_to(co_folder())
            first.llm.asked = asked[0]
            with _folder(left):
                self._resumed(path, first, number, f"killed at model call {number + 1} and resumed", None, record)

    def _resumed(self, path: Path, first: Run, used: int, way: str, driver: Any, record: Any, **decided: Any) -> None:
        run = self._run(path._replace(script=lambda: path.script()[used:]), way)
        run.llm.asked = first.llm.asked
        run.plugins += [driver] if driver is not None else []
        run.do(lambda: run.make().resume(record, **decided))
        run.approve()
        self.check.take(run)
        self._compare(run)

    def _replayed(self, path: Path, straight: Run) -> None:
        """Replay the record, on another day."""
        record = straight.agent.record if straight.agent is not None else None
        if record is None or not record.is_file():
            return
        run = self._run(path, "replayed", log=False)
        with _folder(), _another_day():
            run.do(lambda: replayed(record, run.make()))
        found = None if run.result is None else _divergence(run.result, straight)
        if found is not None:
            by, what = found
            problem = f"is not replayed as it was, at {what}. What it asks must not depend on the time or on chance"
            run.watch.fault("replay", by if by and "handler" in by else _maker_of(run), problem)
        self.check.take(run)

    def _compare(self, run: Run) -> None:
        """Compare a turn with the one that was taken in one go; what differs from one go to the next does not count."""
        now = outcome(run)
        problem = self._difference(now)
        if problem is not None:
            run.watch.fault("differs", _maker_of(run), f"{problem}; keep what it knows in state, under its own name")
            self.check.take(run)

    def _difference(self, now: Outcome) -> str | None:
        once, again = self.once, self.again
        if once.result == again.result != now.result:
            return f"the result is {now.result:.100}, and in one go {once.result:.100}"
        if len(once.messages) == len(again.messages):
            if len(now.messages) != len(once.messages):
                there = [text for text in now.messages if text not in once.messages]
                gone = [text for text in once.messages if text not in now.messages]
                more = f", for example {(there or gone)[0]:.200}" if there or gone else ""
                return f"there are {len(now.messages)} messages, and in one go {len(once.messages)}{more}"
            for then, same, text in zip(once.messages, again.messages, now.messages, strict=True):
                if then == same != text:
                    return f"a message is {text:.200}, and in one go {then:.200}"
        for key in {**once.state, **now.state}:
            if once.state.get(key) == again.state.get(key) != now.state.get(key):
                return f"state[{key!r}] is {now.state.get(key)!s:.100}, and in one go {once.state.get(key)!s:.100}"
        return None


class _Pausing:
    """A handler that pauses the turn at its nth tool call, once."""

    name = "pausing"

    def __init__(self, number: int) -> None:
        self.left, self.done = number, False

    @hooks.before_each_tool
    def pause(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.done = True
            raise Pause("may it?")


_pausing = _Pausing


def _divergence(played: Any, straight: Run) -> tuple[By | None, str] | None:
    """Who makes a replay differ, and where; None where it is the same, the requests included."""
    if not played.same:
        lists = ("rejected", "stand_ins", "errors", "changed", "not_recorded", "hook_errors")
        first = played.divergence or next(one for name in lists for one in getattr(played, name))
        by = getattr(first, "now_by", None) or getattr(first, "then_by", None)
        return by, "; ".join(str(first).splitlines())
    for request, (messages, _) in zip(straight.llm.requests, played.requests, strict=False):
        for then, now in zip(request.messages, messages, strict=False):
            if canonical(then) != canonical(now):
                return None, f"the request with {canonical(now):.200}, which was {canonical(then):.200}"
    return None


def outcome(run: Run) -> Outcome:
    """What a run has left."""
    session: Any = (run.agent.current_session if run.agent is not None else None) or {"messages": [], "state": {}}
    calls = [one["id"] for message in session["messages"] for one in message.get("tool_calls") or ()]
    ids = {id: f"call {number}" for number, id in enumerate(dict.fromkeys(calls), start=1)}
    result = run.result if run.error is None else type(run.error).__name__
    state = {str(key): _text(value, ids) for key, value in session["state"].items() if not str(key).startswith("temp:")}
    return Outcome(str(result), [_text(message, ids) for message in session["messages"]], state)


def _text(value: Any, ids: dict[str, str]) -> str:
    text = _ADDRESS.sub("0x", json.dumps(value, default=repr, sort_keys=True))
    for id, name in ids.items():
        text = text.replace(id, name)
    return text


def _maker_of(run: Run) -> By | None:
    """The handler of the plugin that changed the conversation or the state last; else the first one."""
    session: Any = (run.agent.current_session if run.agent is not None else None) or {"trace": []}
    kinds = ("message", "message_edited", "message_removed", "state_delta", "change")
    for entry in reversed(session["trace"]):
        if entry["type"] in kinds and entry.get("by") in run.watch.handlers:
            return entry["by"]  # type: ignore[no-any-return]
    return run.watch.handlers[0] if run.watch.handlers else None


@contextlib.contextmanager
def _folder(folder: File | None = None) -> Iterator[None]:
    """A `.co` of this turn's own."""
    temporary = tempfile.TemporaryDirectory(prefix="connectagent-way-", ignore_cleanup_errors=True)
    with temporary as made, override("dir", str(folder or made)):
        yield


@contextlib.contextmanager
def _another_day() -> Iterator[None]:
    """Another date by the local clock, where the system has time zones that a process can set."""
    if not hasattr(time, "tzset"):
        yield
        return
    today = time.localtime().tm_mday
    with same_time_zone():
        for zone in _A_DAY_APART:
            os.environ["TZ"] = zone
            time.tzset()
            if time.localtime().tm_mday != today:
                break
        yield


@contextlib.contextmanager
def same_time_zone() -> Iterator[None]:
    """The process has the same time zone afterwards, unless somebody has reset it meanwhile."""
    before = os.environ.get("TZ")
    try:
        yield
    finally:
        if os.environ.get("TZ") in (*_A_DAY_APART, before):
            os.environ.pop("TZ", None) if before is None else os.environ.update(TZ=before)
            if hasattr(time, "tzset"):
                time.tzset()
