"""Sessions that the program knows by a key, and their turns by number: the same turn is never taken twice."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from connectagent.agents.decisions import Decision
from connectagent.agents.links import start
from connectagent.agents.resume import reopen
from connectagent.agents.rewind import give_up, may_be_left
from connectagent.data import TokenUsage, Wait
from connectagent.errors import ConfigError, DivergenceError, SessionBusy, cut
from connectagent.loop.stream import Events, streamed
from connectagent.output.masking import current
from connectagent.records.blobs import blob_folder, restored
from connectagent.records.file import Held, hold
from connectagent.records.history import UNRECORDED, Part, parts_of, read_session
from connectagent.records.incomplete import take_incomplete
from connectagent.records.paths import create_empty, keyed_record, size_of, tell
from connectagent.records.read import read_record, refuse_odd
from connectagent.records.sent import without_halves
from connectagent.records.store import Kept, Store
from connectagent.records.summary import summarise
from connectagent.session.journal import Journal
from connectagent.session.messages import text_of, user_message
from connectagent.session.snapshot import copy_of
from connectagent.session.usage import Totals, spent_in
from connectagent.settings.tracebacks import with_short_tracebacks

if TYPE_CHECKING:
    from connectagent.agents.awaited import AsyncEvents
    from connectagent.records.write import RecordLog


class _Recorded(NamedTuple):
    """What the record has of the turns: those that ended, and the one that may go on."""

    ended: list[Part]
    open: Part | None


class KeyedSession:
    """The session with a key, of one agent.

    The record is its state: any process with the same folder goes on where another one stopped, and asking again for a
    turn that has ended gives its result without a model call. One turn of it runs at a time, over all processes.

    Args:
        agent: whose definition takes the turns.
        key: names the session among those of agents with this name.
        store: keeps the session too, for other machines: see `SqliteStore`.

    Attributes:
        key: the key.
        record: the session's file; it is there once a turn has begun.

    Raises:
        ConfigError: the agent is not recorded, the key is empty or not a str, or the store lacks a method.
    """

    def __init__(self, agent: Any, key: str, store: Store | None = None) -> None:
        if not isinstance(key, str) or not key:
            raise ConfigError(f"a session's key is a str that is not empty, not {key!r:.80}")
        if not agent.log.recording:
            raise ConfigError(f"agent {agent.name!r} is not recorded (log=False); a session with a key is its record")
        self._definition, self._agent, self.key = agent, None, key
        self.record: Path = keyed_record(agent.name, key).absolute()  # the program may change its folder
        lacks = [name for name in ("size", "read", "append") if not callable(getattr(store, name, None))]
        if store is not None and lacks:
            raise ConfigError(f"a store has the methods size, read and append; {store!r:.80} lacks {', '.join(lacks)}")
        self._store = None if store is None else Kept(store, self.record)
        self._lock = threading.Lock()
        self._ended: int | None = None  # how many turns, where this process was the last to write
        self._last: tuple[int, str] | None = None  # the turn that was taken or read here last, and how it has ended

    @property
    def agent(self) -> Any:
        """The agent that takes the turns; its `current_session` is the session, once a turn was taken here."""
        if self._agent is None:
            self._agent = self._definition.again()
        return self._agent

    # -- turns ---------------------------------------------------------------------------------

    @with_short_tracebacks
    def turn(
        self, prompt: Any, number: int | None = None, *, max_iterations: int | None = None, output: Any = None
    ) -> Any:
        """Take a turn once: begin it, go on with it where it was stopped, or return its result where it ended.

        Args:
            prompt: as for `Agent.input()`.
            number: which turn of the session, from 1. None for the first that has not ended; if that failed, was
                interrupted or waits only for calls that are carried out elsewhere, and the prompt is another one, it is
                given up, and the next turn begins.
            max_iterations, output: as for `Agent.input()`.

        Raises:
            SessionBusy: the session is in a turn, here or in another process.
            DivergenceError: that turn was begun with another prompt, or was given up; it says what is accepted.
            ConfigError: the turns before that number have not ended.
            Paused: a call in it waits for a person; `resume()` decides.
            OSError: its record cannot be written; the same call goes on with it once that is over.
            Exception: what `Agent.input()` raises.
        """
        message, agent = user_message(prompt), self._agent or self._definition
        form = agent.form if output is None else agent.form_for(output)
        limit = agent.max_iterations if max_iterations is None else max_iterations
        take = partial(self._turn, message["content"], number, limit, form)
        text = start(agent, "input", take)
        return text if form is None else form.result(agent, text)

    async def aturn(
        self, prompt: Any, number: int | None = None, *, max_iterations: int | None = None, output: Any = None
    ) -> Any:
        """Take a turn as `turn()` does, without blocking the event loop; cancelled as `Agent.ainput()` is."""
        from connectagent.agents.awaited import awaited  # loads asyncio

        take = partial(self.turn, prompt, number, max_iterations=max_iterations, output=output)
        return await awaited(self.agent, take)

    def stream(self, prompt: Any, number: int | None = None, **options: Any) -> Events:
        """Take a turn as `turn()` does, as an iterator of what happens in it: see `Agent.stream()`."""
        return streamed(self.agent, partial(self.turn, prompt, number, **options), self._outcome_of(number))

    def astream(self, prompt: Any, number: int | None = None, **options: Any) -> AsyncEvents:
        """Take a turn as `turn()` does, for `async for`: see `Agent.astream()`."""
        from connectagent.agents.awaited import AsyncEvents

        return AsyncEvents(self.agent, partial(self.turn, prompt, number, **options), self._outcome_of(number))

    @with_short_tracebacks
    def resume(
        self,
        *,
        approve: bool | str = False,
        reject: str | tuple[str, str] | None = None,
        answer: Any = None,
        wait: str | None = None,
        output: Any = None,
    ) -> Any:
        """Decide what waits, and finish the turn; as `Agent.resume()`."""
        agent = self.agent
        form = agent.form if output is None else agent.form_for(output)
        decision = Decision.of(approve, reject, answer, wait)._replace(form=form)
        text = start(agent, "resume", partial(self._resume, decision))
        return text if form is None or text is None else form.result(agent, text)

    async def aresume(self, **decision: Any) -> Any:
        """Decide what waits as `resume()` does, without blocking the event loop."""
        from connectagent.agents.awaited import awaited

        return await awaited(self.agent, partial(self.resume, **decision))

    def resume_stream(self, **decision: Any) -> Events:
        """Decide what waits as `resume()` does, as an iterator of what happens: see `Agent.stream()`."""
        return streamed(self.agent, partial(self.resume, **decision))

    def aresume_stream(self, **decision: Any) -> AsyncEvents:
        """Decide what waits as `resume()` does, for `async for`: see `Agent.astream()`."""
        from connectagent.agents.awaited import AsyncEvents

        return AsyncEvents(self.agent, partial(self.resume, **decision))

    @property
    def turns(self) -> int:
        """How many turns have ended."""
        if self._store is None and self._ended is not None:
            return self._ended
        return len(self._latest().ended)

    def number_for(self, prompt: Any) -> int:
        """The number of the turn that `turn(prompt)` takes; where it gives up a turn, the one after it.

        Raises:
            ConfigError: the record cannot be used.
        """
        recorded = self._latest()
        given_up = recorded.open is not None and self._is_given_up(recorded.open, user_message(prompt)["content"])
        return len(recorded.ended) + given_up + 1

    @property
    def begun(self) -> bool:
        """Whether a turn of it has begun, on any machine with its folder or its store."""
        self._take_incomplete()
        return size_of(self.record) > 0 or (self._store is not None and self._store.size() > 0)

    @property
    def waiting(self) -> list[Wait]:
        """What waits for a decision, read from the record: nothing goes on."""
        opened = self._latest().open
        return Journal(opened.lines).pending() if opened is not None and opened.last.get("status") == "paused" else []

    @property
    def state(self) -> dict[str, Any]:
        """A copy of the session's state, read from the record: of an open turn as far as it came; nothing goes on.

        Raises:
            ConfigError: the record cannot be used.
        """
        self._refresh()
        if not size_of(self.record):
            return {**copy_of(self._definition._state or {})}
        with refuse_odd(self.record):
            return read_session(self.record, goes_on=False).own.history.state

    @property
    def taken_by(self) -> Any:
        """The agent that has taken turns here; None where all were read."""
        return self._agent

    def sums(self) -> tuple[str, float | None, int | None]:
        """Status, cost (USD) and tokens of the session, from its record."""
        self._refresh()
        summary = summarise(self.record)
        totals = summary.totals or Totals(tokens=None, cost=None)
        return summary.status, totals.cost, totals.tokens

    def usage(self, number: int) -> TokenUsage:
        """What the model calls of a turn took, of all agents in it, from the record: its `cost` is the turn's.

        Raises:
            ConfigError: there is no such turn.
        """
        return spent_in(self._part(number).lines).data()

    def outcome(self, number: int) -> str | None:
        """How a turn has ended, as `on_complete` is told; None where it has not. See also `status` of a record.

        Raises:
            ConfigError: there is no such turn.
        """
        if self._last is not None and self._last[0] == number:
            return self._last[1]
        part = self._part(number)
        return None if part.is_open or part.last.get(UNRECORDED) else str(part.last.get("status"))

    def _part(self, number: int) -> Part:
        recorded = self._latest()
        part = next((part for part in [*recorded.ended, recorded.open] if part and part.number == number), None)
        if part is None:
            raise ConfigError(f"{self!r} has no turn {number!r}; {len(recorded.ended)} have ended")
        return part

    def _outcome_of(self, number: int | None) -> Callable[[], str | None] | None:
        """What says how a turn has ended that may be read from the record: one without a number is taken."""
        return None if number is None else partial(self.outcome, number)

    def close(self) -> None:
        """Close the agent; the session stays, and others may go on with it."""
        if self._agent is not None:
            self._agent.close()

    def __enter__(self) -> KeyedSession:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"KeyedSession({self._definition.name!r}, {cut(repr(self.key), 80)})"

    # -- the record ----------------------------------------------------------------------------

    def _turn(self, content: Any, number: int | None, limit: int, form: Any) -> str:
        with self._held() as held:
            recorded = self._recorded() if self._ended is None else _Recorded([], None)
            ended, opened = self._ended or len(recorded.ended), recorded.open
            given_up = number is None and opened is not None and self._is_given_up(opened, content)
            ended += given_up
            number = ended + 1 if number is None else number
            if type(number) is not int or not 1 <= number <= ended + 1:
                then = f"turn {ended + 1}{_way_on(opened)}"
                raise ConfigError(
                    f"turn {number!r} of {self!r} cannot be taken: {ended} of its turns have ended; {then}"
                )
            if number <= ended:
                part = (recorded.ended or self._recorded().ended)[number - 1]
                recorded_result = self._result(part, content)
                self._last = number, str(part.last["status"])
                return recorded_result
            known, self._ended = self._ended, None  # until it has ended
            result: str | None = None
            if given_up:
                give_up(self.agent, self.record, held)
                opened, known = None, ended
            if opened is not None:
                self._check_prompt(opened, content)
            if known is None:
                result = self._load(held, Decision({}, None, form), opened)
            if result is None:  # none was open, or it was cut off in its first lines
                result = self.agent.answer(content, limit, form=form)
            self._ended = number
            self._note_end()
            return str(result)

    def _resume(self, decision: Decision) -> str | None:
        with self._held() as held:
            self._ended = None
            if not held.file.has_turns:
                raise ConfigError(f"nothing waits in {self!r}: it has no turn")
            result = reopen(self.agent, self.record, None, False, decision, held)
            self._note_end()
            return result

    def _note_end(self) -> None:
        session = self.agent.current_session
        self._last = session["turn"], str(session["outcome"] or "ended")

    @contextmanager
    def _held(self) -> Iterator[Held]:
        """Lock the session: no other thread and no other process takes a turn of it meanwhile."""
        if not self._lock.acquire(blocking=False):
            raise SessionBusy(f"{self!r} is in a turn; one runs at a time")
        try:
            held = self._lock_record()
            try:
                yield held
            finally:
                held.close()
        finally:
            self._lock.release()

    def _lock_record(self) -> Held:
        if self._agent is not None:
            held = self._lock_own(self._agent.log)
            if held is not None:
                return held
            self._agent.log.leave()  # what this process knows of the open turn is not all
        self._ended = None
        try:
            self._take_incomplete()
            create_empty(self.record)
            return hold(self.record, self._store)
        except SessionBusy:
            raise SessionBusy(f"{self!r} is in a turn elsewhere; once that is over, the same call reads it") from None
        except OSError as error:
            if error.filename is None:  # of a store
                raise
            why = f"{error.strerror}; CONNECTAGENT_DIR can name another folder"
            raise OSError(error.errno, why, error.filename) from None

    def _take_incomplete(self) -> None:
        """Go on with what an earlier version has left when the disk was full, and say once what was lost."""
        if (told := take_incomplete(self.record)) is not None:
            tell(f"{self!r} {told}")

    def _lock_own(self, log: RecordLog) -> Held | None:
        """Lock the record as this process has left it; None where it has not, or another process has gone on with it.

        Raises:
            OSError: lines of the last turn wait, and cannot be written yet.
        """
        had_waiting = log.has_waiting
        try:
            held = log.hold()
        except OSError as error:  # another process has gone on with it, or it was removed
            if had_waiting and error.errno not in (errno.ESTALE, errno.ENOENT):
                raise
            return None
        if had_waiting:
            self._ended = None
        return held

    def _latest(self) -> _Recorded:
        """What the record has; a store may be ahead of the file."""
        self._refresh()
        return self._recorded()

    def _refresh(self) -> None:
        """Bring the file up to date with the store. Who is in a turn here does so with each line.

        Raises:
            SessionBusy: whoever has the file has not done so yet.
        """
        self._take_incomplete()
        if self._store is not None and self._store.is_ahead():
            try:
                with self._held():
                    pass
            except SessionBusy:
                if self._store.is_ahead():
                    raise

    def _recorded(self) -> _Recorded:
        if not size_of(self.record):
            return _Recorded([], None)
        with refuse_odd(self.record):
            record = read_record(self.record)
            if record.get("key", self.key) != without_halves(current().text(self.key)):
                raise ConfigError(f"{self.record} is the session {record.get('key')!r}, not {self.key!r}")
            # One that was killed before its first line is begun anew, in an item of its own.
            turns = list({part.number: part for part in parts_of(record) if part.is_turn}.values())
        opened = turns[-1] if turns and turns[-1].is_open else None
        return _Recorded([part for part in turns if part is not opened], opened)

    def _load(self, held: Held, nothing: Decision, opened: Part | None) -> str | None:
        """Give the agent the session of the record, or a new one; the result of `opened`, if it went on."""
        if held.file.has_turns:
            result = reopen(self.agent, self.record, None, False, nothing, held)
            return result if opened is not None else None
        self.agent.reset_conversation()
        self.agent.log.write_to(held.file, self.key)
        return None

    def _result(self, part: Part, content: Any) -> str:
        if part.last.get(UNRECORDED):
            raise DivergenceError(f"turn {part.number} of {self!r} was given up: it {part.last.get('error')}")
        self._check_prompt(part, content)
        if part.is_open:
            raise DivergenceError(f"turn {part.number} of {self!r} was given up: its status is {part.last['status']!r}")
        return str(restored(part.last.get("result"), blob_folder(self.record)))

    def _is_given_up(self, part: Part, content: Any) -> bool:
        """Whether another prompt gives up the turn that is open."""
        return may_be_left(part) and self._other_prompt(part, content) is not None

    def _check_prompt(self, part: Part, content: Any) -> None:
        """Refuse another prompt than the one with which a turn was begun."""
        if (begun := self._other_prompt(part, content)) is not None:
            then = _way_on(part)[2:] if part.is_open else "it has ended; its own prompt reads its result"
            if may_be_left(part):
                then += "; another prompt without a number gives it up"
            raise DivergenceError(
                f"turn {part.number} of {self!r} was begun with the prompt {begun!r:.80}, "
                f"not {current().text(text_of(content))!r:.80}; {then}"
            )

    def _other_prompt(self, part: Part, content: Any) -> str | None:
        """The prompt with which a turn was begun, if it is another one."""
        entry = next((line for line in part.lines if line.get("type") == "user_input"), {})
        begun: str | None = restored(entry.get("prompt", part.items[0].get("input")), blob_folder(self.record))
        return None if without_halves(begun or "") == without_halves(current().text(text_of(content))) else begun


def _way_on(part: Part | None) -> str:
    """What goes on with the turn that is open, or begins the next one; follows its number."""
    if part is None:
        return " is the next"
    waits = part.last.get("status") == "paused"
    return ": decide it with resume()" if waits else ": its own prompt or resume() goes on with it"
