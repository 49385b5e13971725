"""The state that a front end of AG-UI shares with a session: the keys that the operator names, and no others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from ag_ui.core import BaseEvent, StateDeltaEvent, StateSnapshotEvent

from connectagent import Agent, ConfigError, TraceEntry, on_trace
from connectagent_serve.frontend import MAX_DEPTH, is_flat
from connectagent_serve.refusals import Refused
from connectagent_serve.told import told, whole

MASK = "[masked"  # in a value that is not whole, so that it is not written back


class SharedState:
    """Writes what a front end has changed into the session, where its turn begins or goes on.

    Args:
        keys: those that front ends may read and write.

    Raises:
        ConfigError: one is no key, or lives for one turn.
    """

    name: ClassVar[str] = "front_end"  # who made the change, in the record

    def __init__(self, keys: Iterable[str]) -> None:
        self.keys = () if isinstance(keys, str) else tuple(keys)
        if isinstance(keys, str) or not all(isinstance(key, str) and key for key in self.keys):
            raise ConfigError(f"shared_state is a list of keys of the state, not {keys!r:.80}")
        if temporary := [key for key in self.keys if key.startswith("temp:")]:
            raise ConfigError(f"shared_state: {temporary[0]!r} lives for one turn and is never shared")
        self._given: WeakKeyDictionary[Agent, tuple[dict[str, Any], int | None]] = WeakKeyDictionary()

    def give(self, agent: Agent, values: dict[str, Any], turn: int | None) -> None:
        """Let values be written where that turn of an agent begins, or for None where one goes on; once."""
        self._given[agent] = (values, turn)

    @on_trace(tryfirst=True)
    def make_way(self, agent: Agent, entry: TraceEntry) -> None:
        """Remove values that are as they were before the turn: where it goes on they may be others."""
        values, turn = self._given.get(agent, ({}, None))
        if turn is None and entry["type"] == "resumed":
            for key in values.keys() & agent.state.keys():
                if told(agent.state[key]) == values[key]:
                    del agent.state[key]

    @on_trace
    def write(self, agent: Agent, entry: TraceEntry) -> None:
        """Write before a turn, as its system prompt has values, at the latest where it begins; or where it goes on."""
        values, turn = self._given.get(agent, ({}, None))
        kind, before = entry["type"], turn is not None and agent.session["turn"] == turn - 1
        begins = (before and entry.get("turn") != turn) or (kind == "user_input" and entry.get("at") == f"T{turn}")
        if values and (begins or (turn is None and kind == "resumed")):
            del self._given[agent]
            agent.state.update(values)
            values.clear()


class Share:
    """What one run shares.

    Args:
        shared: the keys, and who writes them.
        session: the run's session.
        given: the front end's state, of any form.
    """

    def __init__(self, shared: SharedState, session: Any, given: Any) -> None:
        self._shared, self._session = shared, session
        self._own = whole(given) if isinstance(given, dict) else {}
        brought = {key: value for key, value in self._own.items() if key in shared.keys}
        self._values = {key: value for key, value in brought.items() if MASK not in str(value)}
        self._coming: dict[str, Any] = {}  # what is written when the turn has begun, or come to where it had stopped
        self._begins = False
        self._sent: dict[str, Any] | None = None

    def begins(self, turn: int) -> None:
        """Let the front end's values be written where a turn begins; not where it goes on, or is only read."""
        self._give(turn)
        self._begins = True

    def goes_on(self) -> None:
        """Let the front end's values be written where a turn goes on, once in the run."""
        self._give(None)
        self._begins = False

    def _give(self, turn: int | None) -> None:
        """Let what the front end has changed be written, unless it was already."""
        if self._values:
            now = self._session.state
            for key in [key for key in self._values if key in now and told(now[key]) == self._values[key]]:
                del self._values[key]
            self._coming = {**self._values}
            self._shared.give(self._session.agent, self._values, turn)

    def events(self, kind: str = "") -> list[BaseEvent]:
        """The state, the first time, and then what has changed in it, as events; none for no change.

        The front end's own keys stay as it has them.

        Args:
            kind: the type of the entry that has come; "" at the end.
        """
        if not self._shared.keys or kind == "resumed" or (self._sent is None and kind == "state_delta"):
            return []  # it is as it was before the turn, or not yet what the front end has written
        before, self._sent = self._sent, self._seen()
        if before is None:
            self._sent |= self._coming if kind == "user_input" or not self._begins else {}
            return self._snapshot(self._sent)
        return _delta(before, self._sent)

    def _snapshot(self, now: dict[str, Any]) -> list[BaseEvent]:
        others = {key: value for key, value in self._own.items() if key not in self._shared.keys}
        return [StateSnapshotEvent(snapshot={**others, **now})] if now or len(others) < len(self._own) else []

    def _seen(self) -> dict[str, Any]:
        """What front ends may see of the state now: the agent's, or the record's where no turn was taken."""
        agent = self._session.taken_by
        session = None if agent is None else agent.current_session
        state = self._session.state if session is None else session["state"]
        return {key: told(state[key]) for key in self._shared.keys if key in state}


def check_state(shared: SharedState, given: Any) -> None:
    """Refuse a state that no session takes.

    Raises:
        Refused: it is nested too deep.
    """
    if shared.keys and not is_flat(given, MAX_DEPTH):
        raise Refused(400, f"state is nested too deep: at most {MAX_DEPTH} objects and lists")


def _delta(before: dict[str, Any], now: dict[str, Any]) -> list[BaseEvent]:
    new = [key for key in now if key not in before or now[key] != before[key]]
    delta: list[Any] = [{"op": "add", "path": _path(key), "value": now[key]} for key in new]
    delta += [{"op": "remove", "path": _path(key)} for key in before if key not in now]
    return [StateDeltaEvent.model_validate({"delta": delta})] if delta else []


def _path(key: str) -> str:
    """A key as a JSON pointer."""
    return "/" + key.replace("~", "~0").replace("/", "~1")
