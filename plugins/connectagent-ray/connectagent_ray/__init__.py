"""Prompts and sessions of an agent over a Ray cluster. A key always goes to the same one of a few actors."""

from __future__ import annotations

import logging
import os
import pickle
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from hashlib import sha256
from typing import Any

import ray  # type: ignore[import-not-found, import-untyped, unused-ignore]

from connectagent import Agent, BatchLimits, BatchStopped, ConfigError, before_each_tool, before_llm, on_trace
from connectagent.agents.batch import batch_items, in_order
from connectagent.output import unattended

STOP_S = 60.0  # for turns to end after Ctrl-C: they are within a model call, or a tool
_AGAIN_S = 0.5  # until they are stopped once more
_CALL: ContextVar[str] = ContextVar("call", default="")  # of `map`, whose item a thread takes


class Gate:
    """Stops the turns of calls of `map`, and lets all turns of an actor wait after "too many requests"."""

    def __init__(self) -> None:
        self.stopped: set[str] = set()
        self._until = 0.0

    @before_llm(tryfirst=True)
    def before_model(self) -> None:
        while (left_s := self._until - time.monotonic()) > 0 and _CALL.get() not in self.stopped:
            time.sleep(min(left_s, 0.1))
        self.before_tool()

    @before_each_tool(tryfirst=True)
    def before_tool(self) -> None:
        if _CALL.get() in self.stopped:
            raise KeyboardInterrupt

    @on_trace
    def note(self, entry: Any) -> None:
        if entry["type"] == "retrying" and entry["status"] == 429:
            self._until = max(self._until, time.monotonic() + (entry.get("retry_after_s") or 1.0))


class Shard:
    """The actor: it takes the turns of its share of the keys."""

    def __init__(self, agent: list[Any], folder: str, store: Callable[[], Any] | None) -> None:
        os.chdir(folder)
        definition: Agent = ray.get(agent[0])  # in a list: Ray keeps no argument of an actor for its restart
        self._gate = Gate()
        self._agent = definition.again(plugins=[self._gate], quiet=True)
        self._store = None if store is None else store()

    def take(self, call: str, run: str, id: str, prompt: Any, options: dict[str, Any]) -> Any:
        """One prompt of a call of `map`, as its item."""
        _CALL.set(call)
        with unattended():
            item = next(self._agent.map([(id, prompt)], 1, run=run, **options))
        item.error = _that_travels(item.error)
        return item

    def stop(self, call: str) -> None:
        """Stop the items of a call of `map` before their next step."""
        self._gate.stopped.add(call)

    def turn(self, key: str, prompt: Any, number: int | None) -> Any:
        """A turn of the session with this key."""
        return self._of_session(key, lambda session: session.turn(prompt, number))

    def waiting(self, key: str) -> Any:
        """What waits in the session with this key."""
        return self._of_session(key, lambda session: session.waiting if session.turns >= 0 else [])

    def resume(self, key: str, wait: str, decision: dict[str, Any]) -> Any:
        """The rest of a turn that waits. An actor that died had perhaps decided it: then it goes on, or is read."""

        def take(session: Any) -> Any:
            waits = session.turns >= 0 and any(one.id == wait for one in session.waiting)
            return session.resume(**decision, wait=wait) if waits else session.resume()

        return self._of_session(key, take)

    def _of_session(self, key: str, take: Callable[[Any], Any]) -> Any:
        try:
            with unattended(), self._agent.for_session(key, self._store) as session:
                return take(session)
        except Exception as error:
            raise _that_travels(error) or error from None

    def process(self) -> int:
        """The id of the actor's process."""
        return os.getpid()


class Cluster:
    """An agent on a Ray cluster.

    Args:
        agent: whose definition takes the turns; it travels by pickling, with its children, plugins and guards.
        actors: how many processes take turns; None for one per CPU. Keep the number while sessions are in use.
        concurrency: how many turns an actor takes at the same time.
        store: makes the `connectagent.Store` in which sessions are kept, in each actor. `map` keeps its items in files.
        folder: where `.co` lies, shared by all workers; None for the working folder.

    Raises:
        ConfigError: an argument cannot be used.
    """

    def __init__(
        self,
        agent: Agent,
        actors: int | None = None,
        concurrency: int = 16,
        store: Callable[[], Any] | None = None,
        folder: str | None = None,
    ) -> None:
        if not isinstance(agent, Agent):
            raise ConfigError(f"a cluster takes an Agent, not {agent!r:.80}")
        if not agent.log.recording:
            raise ConfigError(f"agent {agent.name!r} is not recorded (log=False); its sessions are their records")
        for name, value in (("actors", 1 if actors is None else actors), ("concurrency", concurrency)):
            if type(value) is not int or value < 1:
                raise ConfigError(f"{name} is a whole number of at least 1, not {value!r:.80}")
        if not ray.is_initialized():
            ray.init(log_to_driver=False, include_dashboard=False, logging_level=logging.ERROR)
        there: Any = ray
        count = actors or max(1, int(there.cluster_resources().get("CPU", 1)))
        remote: Any = ray.remote  # its types know no options of actors
        groups = {"turns": concurrency}  # what stops turns does not wait for one of them
        kind = remote(max_restarts=-1, max_task_retries=-1, concurrency_groups=groups)(Shard)
        self._definition = ray.put(agent)  # kept here: an actor that is restarted reads it again
        where = os.path.abspath(folder or ".")
        self._room = count * concurrency
        self.actors = [kind.remote([self._definition], where, store) for _ in range(count)]

    def actor(self, key: str) -> Any:
        """The actor that has this key.

        Raises:
            ConfigError: it is no key.
        """
        if not isinstance(key, str) or not key:
            raise ConfigError(f"a session's key is a str that is not empty, not {key!r:.80}")
        return self.actors[int(sha256(key.encode()).hexdigest(), 16) % len(self.actors)]

    def map(
        self,
        prompts: Iterable[Any] | Mapping[str, Any],
        run: str,
        *,
        ordered: bool = False,
        max_failures: int | None = None,
        budget_usd: float | None = None,
        timeout_s: float | None = None,
        max_iterations: int | None = None,
        output: Any = None,
    ) -> Iterator[Any]:
        """Take a turn for each prompt; items as those of `agent.map()`, as they end.

        The records of `run` are its state: the same call again takes what is missing, and reads the rest. Leaving the
        loop, also by Ctrl-C, stops all turns before their next step.

        Args:
            prompts, run, ordered, max_failures, budget_usd, timeout_s, max_iterations, output: as for `agent.map()`.

        Raises:
            BatchStopped: a limit was reached, after the items that ran.
            ConfigError: an argument cannot be used.
        """
        limits = BatchLimits(max_failures, budget_usd, timeout_s)
        items = self._items(batch_items(prompts), run, limits, {"max_iterations": max_iterations, "output": output})
        return in_order(items) if ordered else items

    def _items(self, prompts: Iterator[Any], run: str, limits: BatchLimits, options: dict[str, Any]) -> Iterator[Any]:
        waiting: dict[Any, int] = {}
        call, why = uuid.uuid4().hex, None
        try:
            for item in prompts:
                if why := limits.reached():
                    break
                take = self.actor(f"{run}.{item.id}").take.options(concurrency_group="turns")
                waiting[take.remote(call, run, item.id, item.prompt, options)] = item.number
                if len(waiting) >= self._room:
                    yield _one(waiting, limits)
            while waiting:
                yield _one(waiting, limits)
        finally:
            self._stop(call, list(waiting))
        if why is not None:
            raise BatchStopped(f"stopped: {why}; prompts that had not begun were not taken")

    def _stop(self, call: str, waiting: list[Any]) -> None:
        """Stop what still runs of a call of `map`, and wait until it has."""
        until = time.monotonic() + STOP_S
        while waiting and time.monotonic() < until:
            for actor in self.actors:  # and again: one that died meanwhile takes its turns anew, and knows of no end
                actor.stop.remote(call)
            _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=_AGAIN_S)

    def turn(self, key: str, prompt: Any, number: int | None = None) -> Any:
        """Take a turn of the session with this key, as `agent.for_session(key).turn(prompt, number)`.

        With a number it is taken once, however often it is asked for.

        Raises:
            Exception: what that raises; `Paused` where a person decides, with `resume()`.
        """
        take = self.actor(key).turn.options(concurrency_group="turns")
        return _got(take.remote(key, prompt, number))

    def resume(self, key: str, **decision: Any) -> Any:
        """Decide what waits in the session with this key, as `agent.for_session(key).resume(approve=True)`.

        Raises:
            ConfigError: nothing waits, or several wait and `wait=` names none of them.
        """
        waiting = [one.id for one in _got(self.actor(key).waiting.remote(key))]
        named = approve if isinstance(approve := decision.get("approve"), str) else None
        wait = decision.pop("wait", None) or named or (waiting[0] if len(waiting) == 1 else None)
        if wait not in waiting:
            known = ", ".join(waiting) or "nothing"
            raise ConfigError(f"name with wait= what is to be decided in session {key!r}; what waits: {known}")
        take = self.actor(key).resume.options(concurrency_group="turns")
        return _got(take.remote(key, wait, decision))

    def close(self) -> None:
        """End the actors; the records stay."""
        for actor in self.actors:
            ray.kill(actor)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def _one(waiting: dict[Any, int], limits: BatchLimits) -> Any:
    """The next item that has ended."""
    (done, *_), _ = ray.wait(list(waiting), num_returns=1)
    item = _got(done)
    item.number = waiting.pop(done)
    limits.count(item)
    return item


def _got(reference: Any) -> Any:
    """A result of an actor; its error without the actor's traceback, which Ray adds to the message."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None


def _that_travels(error: BaseException | None) -> BaseException | None:
    """The error, or one that says the same where it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
