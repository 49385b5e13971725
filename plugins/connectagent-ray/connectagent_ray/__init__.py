"""Prompts and sessions of an agent over a Ray cluster. A key always goes to the same one of a few actors."""

from __future__ import annotations

import logging
import os
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any

import ray  # type: ignore[import-not-found, import-untyped, unused-ignore]

from connectagent import Agent, before_llm, on_trace


class Throttle:
    """After "too many requests", all agents of an actor wait as long as the provider asks."""

    def __init__(self) -> None:
        self._until = 0.0

    @before_llm(tryfirst=True)
    def wait(self) -> None:
        while (left_s := self._until - time.monotonic()) > 0:
            time.sleep(left_s)

    @on_trace
    def note(self, entry: Any) -> None:
        if entry["type"] == "retrying" and entry["status"] == 429:
            self._until = max(self._until, time.monotonic() + (entry.get("retry_after_s") or 1.0))


class Shard:
    """The actor: it takes the turns of its share of the keys."""

    def __init__(self, agent: list[Any], folder: str, store: Callable[[], Any] | None) -> None:
        os.chdir(folder)
        definition: Agent = ray.get(agent[0])  # in a list: Ray keeps no argument of an actor for its restart
        self._agent = definition.again(plugins=["no:console", Throttle()])
        self._store = None if store is None else store()

    def take(self, run: str, id: str, prompt: Any) -> Any:
        """One prompt of `map`, as its item."""
        item = next(self._agent.map([(id, prompt)], 1, run=run))
        item.error = _that_travels(item.error)
        return item

    def turn(self, key: str, prompt: Any, number: int | None) -> Any:
        """A turn of the session with this key."""
        try:
            with self._agent.for_session(key, self._store) as session:
                return session.turn(prompt, number)
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
    """

    def __init__(
        self,
        agent: Agent,
        actors: int | None = None,
        concurrency: int = 16,
        store: Callable[[], Any] | None = None,
        folder: str | None = None,
    ) -> None:
        if not ray.is_initialized():
            ray.init(log_to_driver=False, include_dashboard=False, logging_level=logging.ERROR)
        there: Any = ray
        count = actors or max(1, int(there.cluster_resources().get("CPU", 1)))
        remote: Any = ray.remote  # its types know no options of actors
        kind = remote(max_restarts=-1, max_task_retries=-1, max_concurrency=concurrency)(Shard)
        self._definition = ray.put(agent)  # kept here: an actor that is restarted reads it again
        where = os.path.abspath(folder or ".")
        self._room = count * concurrency
        self.actors = [kind.remote([self._definition], where, store) for _ in range(count)]

    def actor(self, key: str) -> Any:
        """The actor that has this key."""
        return self.actors[int(sha256(key.encode()).hexdigest(), 16) % len(self.actors)]

    def map(self, prompts: Iterable[Any] | Mapping[str, Any], run: str) -> Iterator[Any]:
        """Take a turn for each prompt; items as those of `agent.map()`, as they end.

        The records of `run` are its state: the same call again takes what is missing, and reads the rest.

        Args:
            prompts: texts, pairs of id and prompt, or a dict of prompts by id.
            run: the name of the run.
        """
        waiting: dict[Any, int] = {}
        try:
            for number, (id, prompt) in enumerate(_named(prompts)):
                waiting[self.actor(f"{run}.{id}").take.remote(run, id, prompt)] = number
                if len(waiting) >= self._room:
                    yield _one(waiting)
            while waiting:
                yield _one(waiting)
        finally:
            for call in waiting:
                ray.cancel(call)

    def turn(self, key: str, prompt: Any, number: int | None = None) -> Any:
        """Take a turn of the session with this key, as `agent.for_session(key).turn(prompt, number)`.

        With a number it is taken once, however often it is asked for.
        """
        return ray.get(self.actor(key).turn.remote(key, prompt, number))

    def close(self) -> None:
        """End the actors; the records stay."""
        for actor in self.actors:
            ray.kill(actor)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def _one(waiting: dict[Any, int]) -> Any:
    (call, *_), _ = ray.wait(list(waiting), num_returns=1)
    item = ray.get(call)
    item.number = waiting.pop(call)
    return item


def _named(prompts: Any) -> Iterator[tuple[str, Any]]:
    """Pairs of id and prompt, with the ids that `agent.map()` gives."""
    seen: Counter[str] = Counter()
    for one in prompts.items() if isinstance(prompts, Mapping) else prompts:
        id, prompt = one if isinstance(one, tuple) else (sha256(one.encode()).hexdigest()[:12], one)
        seen[id] += 1
        yield (id if seen[id] == 1 else f"{id}-{seen[id]}"), prompt


def _that_travels(error: BaseException | None) -> BaseException | None:
    """The error, or one that says the same where it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
