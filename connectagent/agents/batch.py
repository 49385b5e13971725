"""Many prompts at once: `agent.map()`. Each has an agent of its own, in one of a few threads."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sized
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from itertools import chain, islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from connectagent.agents.keyed_session import KeyedSession
from connectagent.data import TraceEntry
from connectagent.errors import BatchStopped, Cancelled, ConfigError, DivergenceError, Paused
from connectagent.hooks.markers import on_trace
from connectagent.hooks.options import OwnPlugin
from connectagent.loop import threads
from connectagent.loop.caller import Worker
from connectagent.records.store import Store
from connectagent.session.messages import text_of, user_message
from connectagent.tools.awaiting import CALLER
from connectagent.tools.waits import end_of, next_of

TOO_MANY = 429  # too many requests, as a provider answers
_WAIT_S = 1.0  # after such an answer that does not say how long
FAILED = ("error",)
_Sums = tuple[str, float | None, int | None]


@dataclass
class Item:
    """One prompt of `agent.map()`, and what became of it.

    Args:
        id: its id.
        number: its place among the prompts, from 0.
        prompt: the prompt.
        status: how the turn ended: `answered`, `max_iterations` and so on, as the record says; `paused`, `error`,
            `cancelled`.
        result: what `input()` returns; None where the turn did not end.
        error: why it did not end, or None.
        record: the session's file, or None.
        cost: USD; None where a price is not known.
        spent: what of it this call has spent: less than `cost` where the turn went on, 0 where it was only read.
        tokens: input and output; None where they are not known.
        duration_ms: how long it took here; 0 where it had ended before.
        known: whether the turn had ended before, and was only read.
    """

    id: str
    number: int
    prompt: Any
    status: str = ""
    result: Any = None
    error: BaseException | None = None
    record: Path | None = None
    cost: float | None = None
    spent: float = 0.0
    tokens: int | None = None
    duration_ms: float = 0.0
    known: bool = False


class Gate:
    """Stops all agents of a batch before their next step, and lets them wait together after "too many requests"."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self._until = 0.0
        self._loaded: set[type] = set()  # the kinds of models whose SDK is

    def before_model(self, agent: Any) -> None:
        """Let a model be asked, as `pass_through()` does; its SDK is loaded first."""
        if (kind := type(agent.llm)) not in self._loaded:
            _load_sdk(agent)  # what is stopped meanwhile asks no model
            self._loaded.add(kind)
        self.pass_through()

    def pass_through(self) -> None:
        """Wait until a model may be asked.

        Raises:
            Cancelled: none may be asked any more.
        """
        while not self.stopped.is_set() and (left_s := self.wait_s) > 0:
            self.stopped.wait(left_s)
        self.before_tool()

    @property
    def wait_s(self) -> float:
        """How long no model is asked, as a provider has too many requests; 0 where one may be asked."""
        return max(0.0, self._until - time.monotonic())

    def before_tool(self) -> None:
        """Let a tool be called; raises `Cancelled` where none may be any more."""
        if self.stopped.is_set():
            raise Cancelled

    @on_trace
    def note(self, entry: TraceEntry) -> None:
        # Where the provider asks for more than its SDK waits, the call fails, and the other agents wait.
        status = {"retrying": entry.get("status"), "llm_call": entry.get("error_status")}.get(entry["type"])
        if status == TOO_MANY:
            wait_s = entry.get("retry_after_s")
            self._until = max(self._until, time.monotonic() + (_WAIT_S if wait_s is None else wait_s))


@dataclass
class BatchLimits:
    """When a batch of prompts begins no more of them: `reached()` says why. Each item that has ended is counted.

    Args:
        max_failures: how many prompts may fail; None for any number.
        budget_usd: what those that this call takes may cost; the ones that run are finished.
        timeout_s: how long it may take, from now on.

    Raises:
        ConfigError: a limit is no number from 0 on.
    """

    max_failures: int | None = None
    budget_usd: float | None = None
    timeout_s: float | None = None
    failures: int = field(default=0, init=False)
    cost: float = field(default=0.0, init=False)
    _began: float = field(default_factory=time.monotonic, init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("max_failures", "budget_usd", "timeout_s"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0):
                raise ConfigError(f"{name} is a number from 0 on, or None for no limit, not {value!r:.80}")

    def count(self, item: Item, more: float = 0.0) -> None:
        """Count an item that has ended, and what was spent on it afterwards."""
        self.failures += item.status in FAILED
        self.cost += more + item.spent

    def reached(self) -> str | None:
        """Why no more prompts begin; None while they do."""
        if self.max_failures is not None and self.failures > self.max_failures:
            return f"{self.failures} prompt{' has' if self.failures == 1 else 's have'} failed"
        if self.budget_usd is not None and self.cost >= self.budget_usd:
            return f"${self.cost:.4f} of ${self.budget_usd:g} are spent"
        if self.timeout_s is not None and time.monotonic() - self._began >= self.timeout_s:
            return f"{self.timeout_s:g} s are over"
        return None


class Batch:
    """The prompts of one `agent.map()`, and the threads that take them.

    Args:
        agent: whose definition takes the prompts.
        prompts: see `Agent.map`.
        concurrency: how many run at the same time.
        run: the name under which the items are sessions with keys; None for new sessions.
        limits: when to begin no more.
        options: of each turn.
        then: what is done with each item before it counts, in its thread; it returns what that has cost (USD).
        store: keeps the run's sessions too.
    """

    def __init__(
        self,
        agent: Any,
        prompts: Any,
        concurrency: int,
        run: str | None,
        limits: BatchLimits,
        options: dict[str, Any],
        then: Callable[[Item], float] | None = None,
        store: Store | None = None,
    ) -> None:
        if type(concurrency) is not int or concurrency < 1:
            raise ConfigError(f"concurrency is a whole number of prompts, at least 1, not {concurrency!r:.80}")
        if run is not None and (not isinstance(run, str) or not run):
            raise ConfigError(f"run is a name, a str that is not empty, not {run!r:.80}")
        if run is not None and not agent.log.recording:
            raise ConfigError(f"agent {agent.name!r} is not recorded; the records of a run are its state")
        if run is None and store is not None:
            raise ConfigError("a store keeps the sessions of a run, so run= names it")
        self.gate, self.limits, self._store = Gate(), limits, store
        self._agent = agent.again(plugins=[OwnPlugin("gate", self.gate)], quiet=True)
        self._prompts, self._run, self._options, self._then = batch_items(prompts), run, options, then
        self._concurrency = min(concurrency, len(prompts) or 1) if isinstance(prompts, Sized) else concurrency
        # Once a limit is reached, what had ended is read still; who scores items may spend more on them.
        self._reads_on = run is not None and then is None and isinstance(prompts, Sized)
        self._lock = threading.Lock()  # of the prompts
        self._done: SimpleQueue[Item | BaseException | None] = SimpleQueue()
        self._why: str | None = None
        self.running = 0

    def items(self) -> Generator[Item]:
        """Take the prompts; each item as it ends.

        Raises:
            BatchStopped: a limit was reached, after the items that ran.
        """
        threads: list[threading.Thread] = []
        raised = None
        try:
            self._load()
            left = self._begin(threads)  # Ctrl-C may come meanwhile
            while left:
                item = next_of(self._done)
                if isinstance(item, Item):
                    yield item
                else:
                    left, raised = left - 1, raised or item
            if raised is not None:
                raise raised
            if self._why is not None:
                raise BatchStopped(f"stopped: {self._why}; prompts that had not begun were not taken")
        finally:
            self.gate.stopped.set()
            for thread in filter(threading.Thread.is_alive, threads):
                end_of(thread)

    def _load(self) -> None:
        """Load the SDKs where the first prompt is new: Ctrl-C ends that at once here, and threads do not hear it."""
        first = list(islice(self._prompts, 1))
        self._prompts = chain(first, self._prompts)
        with contextlib.suppress(OSError, ConfigError):  # as the item says
            if first and not (self._run and self._session_of(first[0]).record.exists()):
                for agent in (self._agent, *self._agent.below):
                    _load_sdk(agent)

    def _begin(self, threads: list[threading.Thread]) -> int:
        """Begin the threads, as many as the system has; how many."""
        for number in range(self._concurrency):
            threads.append(self._thread(number))
            try:
                threads[-1].start()
            except RuntimeError:
                if not number:
                    raise
                return number
        return self._concurrency

    def _thread(self, number: int) -> threading.Thread:
        context = copy_context()
        context.run(CALLER.set, Worker(self.gate))
        work = partial(context.run, self._work)
        return threading.Thread(target=work, name=f"map-{number}", daemon=True)

    def _work(self) -> None:
        ended: BaseException | None = None
        try:
            while (item := self._next()) is not None:
                with threads.slot:
                    self._take(item)
                more = 0.0 if self._then is None else self._then(item)
                with self._lock:
                    self.running -= 1
                    self.limits.count(item, more)
                self._done.put(item)
        except BaseException as error:  # of whoever yields the prompts
            ended = error
        self._done.put(ended)

    def _next(self) -> Item | None:
        with self._lock:
            while not self.gate.stopped.is_set() and (self._why is None or self._reads_on):
                why = self.limits.reached()
                if (item := next(self._prompts, None)) is None:
                    break
                if why is None or (self._reads_on and self._has_ended(item)):
                    self.running += 1
                    return item
                self._why = why
            return None

    def _has_ended(self, item: Item) -> bool:
        """Whether an item is only to be read."""
        with contextlib.suppress(OSError, ConfigError):
            return self._session_of(item).turns > 0
        return False

    def _session_of(self, item: Item) -> KeyedSession:
        return KeyedSession(self._agent, f"{self._run}.{item.id}", self._store)

    def _take(self, item: Item) -> None:
        began, session, before = time.perf_counter(), None, None
        try:
            if self._run is None:
                session = self._agent.again()
                item.result = session.input(item.prompt, **self._options)
            else:
                session = self._session_of(item)
                before = _sums(session)
                item.result = session.turn(item.prompt, number=1, **self._options)
                item.known = session.taken_by is None
        except DivergenceError as error:
            item.error = DivergenceError(f"{error}; with another id, or in another run (run=, --name), it begins anew")
        except BaseException as error:
            item.error = error
        item.duration_ms = 0.0 if item.known else round((time.perf_counter() - began) * 1000, 1)
        if session is not None:
            self._note(item, session, before)
        if item.error is not None:
            item.status = _status_of(item.error)

    def _note(self, item: Item, session: Any, before: _Sums | None) -> None:
        """What the session says of its turn; `before`: what it said before this call, None where it is new."""
        keyed = isinstance(session, KeyedSession)
        agent = session.taken_by if keyed else session
        item.record = session.record if session.record is not None and session.record.exists() else None
        if agent is not None:
            spent, now = agent.spent, agent.current_session or {}
            item.cost, item.tokens, item.status = spent.cost, spent.tokens, str(now.get("outcome") or "ended")
        try:
            if before is not None:
                item.status, item.cost, item.tokens = before if item.known else session.sums()
            session.close()
        except Exception as error:
            item.error = item.error or error
        item.spent = max(0.0, (item.cost or 0.0) - ((before and before[1]) or 0.0))


def _load_sdk(agent: Any) -> None:
    getattr(agent.llm, "load_sdk", bool)()


def _sums(session: KeyedSession) -> _Sums | None:
    """Status, cost and tokens of a session; None where its record has nothing."""
    with contextlib.suppress(OSError, ConfigError):  # it is not there, or a kill has torn its head
        return session.sums() if session.begun else None
    return None


def _status_of(error: BaseException) -> str:
    if isinstance(error, Paused):
        return "paused"
    return "error" if isinstance(error, Exception) else "cancelled"


def batch_items(prompts: Any) -> Iterator[Item]:
    """The prompts of a batch as items, with their ids, which do not change where other prompts are added.

    Args:
        prompts: as for `agent.map()`.

    Raises:
        ConfigError: it is one prompt.
    """
    if isinstance(prompts, str) or not isinstance(prompts, Iterable):
        kind = type(prompts).__name__
        raise ConfigError(f"map() takes several prompts: a list, a dict of them by id, or an iterator, not one {kind}")
    given: Iterable[Any] = prompts.items() if isinstance(prompts, Mapping) else prompts
    return _items(given, isinstance(prompts, Mapping))


def _items(given: Iterable[Any], named: bool) -> Iterator[Item]:
    seen: Counter[str] = Counter()
    for number, prompt in enumerate(given):
        id, prompt = prompt if named or _is_named(prompt) else (None, prompt)
        own = id = _digest(prompt) if id is None else str(id)
        while seen[id]:
            seen[own] += 1
            id = f"{own}-{seen[own]}"
        seen[id] += 1
        yield Item(id, number, prompt)


def _is_named(prompt: Any) -> bool:
    return isinstance(prompt, tuple) and len(prompt) == 2 and isinstance(prompt[0], str | int)


def _digest(prompt: Any) -> str:
    try:
        text = text_of(user_message(prompt)["content"])
    except Exception:
        text = repr(prompt)
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def in_order(items: Iterator[Item]) -> Iterator[Item]:
    """The items of a batch, which come as they end, in the order of their prompts."""
    waiting: dict[int, Item] = {}
    following, stopped = 0, None
    try:
        for item in items:
            waiting[item.number] = item
            while following in waiting:
                yield waiting.pop(following)
                following += 1
    except BatchStopped as error:
        stopped = error
    for number in sorted(waiting):  # behind one that was not taken
        yield waiting[number]
    if stopped is not None:
        raise stopped
