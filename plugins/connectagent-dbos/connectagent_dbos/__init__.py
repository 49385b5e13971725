"""Turns of an agent's sessions as workflows of DBOS: queue, limits and recovery are its own, in SQLite or PostgreSQL.

The records are in the same database, piece by piece, so that a worker with an empty disk goes on with a turn that
another one began. A workflow may run several times; the record makes that exact.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa  # type: ignore[import-not-found, unused-ignore]
from dbos import DBOS, DBOSClient, Serializer  # type: ignore[import-not-found, unused-ignore]
from pydantic_core import to_jsonable_python

from connectagent import Agent, ConfigError, DivergenceError, Paused, SessionBusy, mask
from connectagent.output import unattended

VERSION = "connectagent-1"  # of the workflows: what a script changes does not strand those that wait
POLL_S = 0.1  # between looks at the database
ATTEMPTS, WAIT_S = 5, 1.0  # at a turn, and before the second one; each further wait is twice as long
_DECISIONS = {"approve", "reject", "answer"}
_ONE = threading.Lock()  # held while this process has a worker
_FOR_GOOD = (ConfigError, DivergenceError, TypeError, ValueError)


class Records:
    """Sessions in a table, as a `connectagent.Store`.

    Args:
        database: a URL, as `sqlite:///agents.db` or `postgresql://user@host/name`.
    """

    def __init__(self, database: str) -> None:
        self._engine = _engine(_url(database))
        name, data = sa.Column("name", sa.String, primary_key=True), sa.Column("data", sa.LargeBinary, nullable=False)
        position = sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False)
        self._table = sa.Table("connectagent_records", sa.MetaData(), name, position, data)
        self._table.create(self._engine, checkfirst=True)

    def size(self, name: str) -> int:
        """How many bytes a record has."""
        table = self._table
        length = sa.func.sum(sa.func.length(table.c.data))
        return int(self._ask(sa.select(length).where(table.c.name == name))[0][0] or 0)

    def read(self, name: str) -> bytes:
        """All pieces of a record."""
        table = self._table
        rows = self._ask(sa.select(table.c.data).where(table.c.name == name).order_by(table.c.position))
        return b"".join(row[0] for row in rows)

    def append(self, name: str, position: int, data: bytes) -> None:
        """Keep a piece of a record.

        Raises:
            SessionBusy: another worker has gone on with it.
        """
        try:
            with self._engine.begin() as connection:
                connection.execute(self._table.insert().values(name=name, position=position, data=data))
        except sa.exc.IntegrityError:
            here = (self._table.c.name == name) & (self._table.c.position == position)
            if [bytes(row[0]) for row in self._ask(sa.select(self._table.c.data).where(here))] != [data]:
                raise SessionBusy(f"another worker has gone on with {name}") from None

    def _ask(self, statement: Any) -> Any:
        with self._engine.connect() as connection:
            return connection.execute(statement).fetchall()

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()


class Turns:
    """Asks workers for turns and decides what waits, from any process that reaches the database.

    Args:
        database: its URL. A worker must have used it before.
        agent: the agent's name.

    Raises:
        ConfigError: no worker has used the database, or it is no URL of one.
    """

    def __init__(self, database: str, agent: str) -> None:
        _used_by_a_worker(_url(database))
        self._agent, self._lock, self._last = agent, threading.Lock(), 0
        self._client = DBOSClient(system_database_url=database, serializer=_Json(), application_name=agent)

    def enqueue(self, key: str, prompt: str, number: int | None = None) -> str:
        """Ask for a turn of the session with a key. Turns of one session are taken one by one, in this order.

        Args:
            key: names the session.
            prompt: what the user says.
            number: which turn it is, from 1: then it is taken once, however often it is asked for.

        Returns:
            an id, for `result()`.

        Raises:
            ConfigError: an argument cannot be used.
        """
        if not isinstance(key, str) or not key or not isinstance(prompt, str):
            raise ConfigError(f"key and prompt are texts, and the key is not empty; not {key!r:.80} and {prompt!r:.80}")
        if number is not None and (type(number) is not int or number < 1):
            raise ConfigError(f"number is an integer of at least 1, not {number!r:.80}")
        return self._ask("turn", key, [key, prompt, number])

    def decide(self, key: str, **decision: Any) -> str:
        """Decide what waits in a session: `approve=`, `reject=` or `answer=`, and `wait=`, as for `agent.resume()`.

        Returns:
            an id, for `result()`, which has the result of the turn.

        Raises:
            ConfigError: it is no decision.
        """
        if len(decision.keys() & _DECISIONS) != 1 or decision.keys() - _DECISIONS - {"wait"}:
            raise ConfigError("a decision has approve, reject or answer, and perhaps wait")
        if any(value is None or (name == "approve" and value is False) for name, value in decision.items()):
            raise ConfigError("a decision is approve=True, or reject='why', or answer=..., which is not None")
        return self._ask("decide", key, [key, decision])

    def result(self, id: str) -> dict[str, Any]:
        """What came of a turn, once there is something: waits for it.

        Returns:
            `status` is `done`, with `result` and `number`; `paused`, with `waiting`; or `error`, with `error`.
        """
        found: dict[str, Any] = self._client.retrieve_workflow(id).get_result(polling_interval_sec=POLL_S)
        return found

    def _ask(self, kind: str, key: str, given: list[Any]) -> str:
        options: Any = {"workflow_name": f"connectagent_{kind}", "queue_name": _queue(self._agent)}
        with self._lock:
            self._last = max(time.time_ns(), self._last + 1)  # DBOS orders by the id what came in one second
            id = f"{self._last:020}-{uuid.uuid4().hex[:12]}"
            options |= {"queue_partition_key": key, "app_version": VERSION, "workflow_id": id}
            self._client.enqueue(options, *given)
            time.sleep(0.002)  # with limits it orders by milliseconds only
        return id

    def close(self) -> None:
        """Close the connections."""
        self._client.destroy()


@contextmanager
def worker(
    agent: Agent,
    database: str,
    name: str = "local",
    *,
    concurrency: int | None = None,
    worker_concurrency: int = 16,
    rate: tuple[int, float] | None = None,
    attempts: int = ATTEMPTS,
) -> Iterator[Turns]:
    """Take the turns that are asked for, in threads of this process, while the block runs.

    A process has one worker at a time, as it has one DBOS.

    Args:
        agent: whose definition takes the turns; `plugins=` and guards act in each.
        database: its URL; `sqlite:///agents.db` for workers on one machine, without `concurrency` and `rate`.
        name: of this worker, other than that of all that run. One that starts with the name of a dead one goes on
            with what that one had begun.
        concurrency: how many turns run at the same time, over all workers; None for any number.
        worker_concurrency: how many of them in this process.
        rate: how many turns begin in how many seconds, over all workers.
        attempts: how often a turn is tried, with a wait between, before its error is the outcome.

    Yields:
        `Turns` of this agent.

    Raises:
        ConfigError: the agent is not recorded, this process has a worker, an argument cannot be used, or limits over
            all workers are given for SQLite, where DBOS counts without a lock.
    """
    if not isinstance(agent, Agent):
        raise ConfigError(f"a worker takes an Agent, not {agent!r:.80}")
    if not agent.log.recording:
        raise ConfigError(f"agent {agent.name!r} is not recorded (log=False); its turns go on from its records")
    if not isinstance(name, str) or not name:
        raise ConfigError(f"name is a text that is not empty, and of this worker alone, not {name!r:.80}")
    limits = _limits(database, concurrency, worker_concurrency, rate)
    _whole("attempts", attempts)
    if not _ONE.acquire(blocking=False):
        raise ConfigError("this process has a worker already, and DBOS has one in a process: begin another process")
    try:
        with _worker(agent, database, name, limits, attempts) as turns:
            yield turns
    finally:
        _ONE.release()


@contextmanager
def _worker(agent: Agent, database: str, name: str, limits: dict[str, Any], attempts: int) -> Iterator[Turns]:
    config: Any = {"name": agent.name, "system_database_url": database, "executor_id": name, "serializer": _Json()}
    config |= {"application_version": VERSION, "log_level": "WARNING"}
    records = Records(database)
    DBOS(config=config)
    try:
        _Workflows(agent, records, attempts).register()
        DBOS.launch()
        DBOS.register_queue(_queue(agent.name), partition_concurrency=1, polling_interval_sec=POLL_S, **limits)
        turns = Turns(database, agent.name)
        try:
            yield turns
        finally:
            turns.close()
    finally:
        DBOS.destroy(destroy_registry=True, workflow_completion_timeout_sec=30)
        records.close()


def _limits(database: str, concurrency: int | None, in_process: int, rate: tuple[int, float] | None) -> dict[str, Any]:
    """The limits of a queue, as DBOS takes them."""
    if _url(database).get_backend_name() == "sqlite" and (concurrency is not None or rate is not None):
        raise ConfigError("concurrency= and rate= need PostgreSQL; for SQLite there is worker_concurrency=")
    _whole("worker_concurrency", in_process)
    if concurrency is not None:
        _whole("concurrency", concurrency)
    if rate is not None and not (len(rate) == 2 and min(rate) > 0):
        raise ConfigError(f"rate is how many turns begin in how many seconds, as (10, 1.0), not {rate!r:.80}")
    return {
        "global_concurrency": concurrency,
        "worker_concurrency": in_process if concurrency is None else min(in_process, concurrency),
        "limiter": None if rate is None else {"limit": rate[0], "period": rate[1]},
    }


class _Workflows:
    """The two workflows of a worker."""

    def __init__(self, agent: Agent, records: Records, attempts: int) -> None:
        self._agent = agent.again(quiet=True)  # lines of many sessions would stand between each other
        self._records, self._attempts = records, attempts

    def register(self) -> None:
        def turn(key: str, prompt: str, number: int | None) -> dict[str, Any]:
            begins = {"number": number} if number else step(self._next, key, prompt)
            return begins if "error" in begins else step(self._take, key, prompt, begins["number"], bool(number))

        def decide(key: str, decision: dict[str, Any]) -> dict[str, Any]:
            decided = step(self._wait, key, decision.get("wait"))
            return decided if "error" in decided else step(self._resume, key, decision, decided["wait"])

        options: Any = {"retries_allowed": True, "max_attempts": self._attempts, "interval_seconds": WAIT_S}

        def step(take: Callable[..., dict[str, Any]], *given: Any) -> dict[str, Any]:
            outcome: dict[str, Any] = DBOS.run_step(options | {"name": take.__name__}, _outcome, take, *given)
            return outcome

        DBOS.workflow(name="connectagent_turn")(turn)
        DBOS.workflow(name="connectagent_decide")(decide)

    # The steps. What one returns is kept, so that the next has the same arguments each time.

    def _next(self, key: str, prompt: str) -> dict[str, Any]:
        """The number of the next turn; another prompt gives one up that failed."""
        with self._session(key) as session:
            number = session.number_for(prompt)
            if session.waiting:
                raise ConfigError(f"session {key!r} waits for a decision: decide that first")
            return {"number": number}

    def _wait(self, key: str, given: str | None) -> dict[str, Any]:
        """What is decided: the only wait, or the one that was named."""
        with self._session(key) as session:
            waits = [one.id for one in session.waiting]
            if given is None and len(waits) == 1:
                return {"wait": waits[0]}
            if given is None or given not in waits:
                known = ", ".join(waits) or "none"
                raise ConfigError(f"name with wait= what is to be decided in session {key!r}; there is: {known}")
            return {"wait": given}

    def _take(self, key: str, prompt: str, number: int, is_given: bool) -> dict[str, Any]:
        with self._session(key) as session:
            gives_up = not is_given and session.turns == number - 2  # as `_next` has found
            return _paused_or(lambda: _done(session.turn(prompt, None if gives_up else number), number))

    def _resume(self, key: str, decision: dict[str, Any], wait: str) -> dict[str, Any]:
        with self._session(key) as session:
            ended = session.turns
            waits = any(one.id == wait for one in session.waiting)
            decided = {**decision, "wait": wait} if waits else {}  # a worker that died had decided it: it goes on
            return _paused_or(lambda: _done(session.resume(**decided), ended + waits))

    def _session(self, key: str) -> Any:
        return self._agent.for_session(key, store=self._records)


def _done(result: Any, number: int) -> dict[str, Any]:
    return {"status": "done", "result": to_jsonable_python(result, fallback=str), "number": number}


def _paused_or(take: Any) -> dict[str, Any]:
    try:
        outcome: dict[str, Any] = take()
        return outcome
    except Paused as paused:
        waiting = [{"id": one.id, "agent": one.agent, "call": one.call, "reason": one.reason} for one in paused.waiting]
        return {"status": "paused", "waiting": mask(waiting)}


def _outcome(take: Callable[..., dict[str, Any]], *given: Any) -> dict[str, Any]:
    """What a step came to. Its last error is an outcome too: DBOS would keep its text only, with what is secret.

    Raises:
        _Failed: DBOS tries the step again.
    """
    try:
        with unattended():
            return take(*given)
    except Exception as error:
        failed = {"type": type(error).__name__, "message": mask(str(error))}
        status: Any = DBOS.step_status
        for_good = isinstance(error, _FOR_GOOD) and not isinstance(error, SessionBusy)
        if for_good or status.current_attempt + 1 >= status.max_attempts:
            return {"status": "error", "error": failed}
    raise _Failed(f"{failed['type']}: {failed['message']}")  # DBOS shows it, and nothing of where it comes from


class _Failed(Exception):
    """An attempt at a step failed; the next one follows."""


def _url(database: str) -> Any:
    try:
        url = sa.make_url(database)
    except sa.exc.ArgumentError:
        url = None
    if url is None or url.get_backend_name() not in ("sqlite", "postgresql"):
        raise ConfigError("the database is a URL as sqlite:///agents.db or postgresql://user@host/name")
    return url


def _engine(url: Any) -> Any:
    driver = "postgresql+psycopg" if url.get_backend_name() == "postgresql" else url.drivername
    # An error would show what was to be written, a piece of a record.
    return sa.create_engine(url.set(drivername=driver), pool_pre_ping=True, hide_parameters=True)


def _used_by_a_worker(url: Any) -> None:
    """Refuse a database in which DBOS has no tables yet."""
    is_file = url.get_backend_name() == "sqlite"
    there = not is_file or not url.database or os.path.exists(url.database)
    if there:
        engine = _engine(url)
        there = sa.inspect(engine).has_table("workflow_status", None if is_file else "dbos")
        engine.dispose()
    if not there:
        raise ConfigError(f"no worker has used {url.render_as_string()} yet: start one, as with worker(agent, ...)")


def _whole(name: str, value: Any) -> None:
    if type(value) is not int or value < 1:
        raise ConfigError(f"{name} is a whole number of at least 1, not {value!r:.80}")


def _queue(agent: str) -> str:
    return f"connectagent:{agent}"


class _Json(Serializer):  # type: ignore[misc, unused-ignore]
    """What is in the database is data: reading it runs no code, as unpickling would."""

    def serialize(self, data: Any) -> str:
        return json.dumps(data, default=str)

    def deserialize(cls, serialized_data: str) -> Any:
        return json.loads(serialized_data)

    def name(self) -> str:
        return "connectagent_json"
