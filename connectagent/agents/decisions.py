"""A person's decision about what waits: which wait it is for, whether it fits, and its line in the record."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

from connectagent.data import TraceEntry, Wait
from connectagent.errors import ConfigError, Paused
from connectagent.loop.ending import RESUMED
from connectagent.loop.stored import as_stored
from connectagent.records.history import read_session
from connectagent.records.own import journal_of, shown_digest
from connectagent.records.read import refuse_odd
from connectagent.session.journal import DECIDED, WAIT_OF, Journal


class Decision(NamedTuple):
    """A person's decision about one wait.

    Args:
        value: `{"approve": True}`, `{"reject": why}` or `{"answer": value}`; {} for nothing.
        wait: the id of the wait; None where only one waits.
        form: of the turn's result; None for text.
    """

    value: dict[str, Any]
    wait: str | None
    form: Any = None

    @classmethod
    def of(cls, approve: Any, reject: Any, answer: Any, wait: str | None) -> Decision:
        """The decision in the arguments of `agent.resume()`.

        Raises:
            ConfigError: there are several, or one is nothing that decides.
        """
        if not isinstance(approve, bool | str | None):
            raise ConfigError(f"approve is True, or the id of what waits, not {approve!r:.80}")
        if not isinstance(wait, str | None):
            raise ConfigError(f"wait is the id of what waits, a str, not {wait!r:.80}")
        if not isinstance(reject, str | tuple | dict | None):
            raise ConfigError(f"reject is why, a str, not {reject!r:.80}")
        if bool(approve) + (reject is not None) + (answer is not None) > 1:
            raise ConfigError("give one of approve=True, reject='why' and answer=...")
        if approve:
            return cls({"approve": True}, approve if isinstance(approve, str) else wait)
        name, given = ("reject", reject) if reject is not None else ("answer", answer)
        if given is None:
            return cls({}, wait)
        named = None if wait is not None else _named(given)
        return cls({name: given}, wait) if named is None else cls({name: named[1]}, named[0])


def _named(given: Any) -> tuple[str, Any] | None:
    """The id of what waits and the decision, if they are given together, as a dict of one item or a pair."""
    pair = next(iter(given.items())) if isinstance(given, dict) and len(given) == 1 else given
    if isinstance(pair, tuple) and len(pair) == 2 and WAIT_OF in str(pair[0]):
        return pair
    return None


def decided(journal: Journal, decision: Decision, status: str | None, fork: bool) -> TraceEntry | None:
    """The line of a decision; None for no new decision.

    Raises:
        ConfigError: nothing waits, several wait and none is named, or the decision does not fit.
    """
    if not decision.value:
        return None
    if status != "paused":
        raise ConfigError(_nothing_waits(journal, status))
    if fork:
        raise ConfigError("a fork cannot decide what waits in the original; resume the record itself")
    waits = {id: journal.lines[number] for id, number in journal.waits.items()}
    id = _only_one(journal) if decision.wait is None else decision.wait
    if id not in waits:
        raise ConfigError(f"nothing waits with the id {id!r}; what waits:{_listed(journal) or ' nothing'}")
    _fits(waits[id], decision)
    if _is_known(journal, id, decision):
        _refuse_late(journal, id)
        return None
    line: TraceEntry = {"type": DECIDED, "id": id, **_as_data(decision)}
    line["digest"] = shown_digest(waits[id])
    return {**line, "by": RESUMED, "timestamp": time.time()}


def _refuse_late(journal: Journal, id: str) -> None:
    """Refuse the decision of a second person, where the turn has gone on with the first one's and waits again.

    Raises:
        ConfigError: what waits now is something else.
    """
    pause = _last_pause(journal)
    if pause and id not in (pause.get("waits") or ()):
        raise ConfigError(f"{id} was decided already, and the turn has gone on; what waits now:{_listed(journal)}")


def _listed(journal: Journal) -> str:
    return "".join(f"\n  {wait.id}: {_text(wait)}" for wait in _shown(journal))


def is_given_again(journal: Journal, decision: Decision) -> bool:
    """Whether a decision is given again, by its id or as the only one of the last pause, in a turn that had gone on.

    Raises:
        ConfigError: it was decided otherwise.
    """
    shown = _last_pause(journal).get("waits") or []
    id = shown[0] if decision.wait is None and len(shown) == 1 else decision.wait
    return bool(decision.value) and id is not None and _is_known(journal, id, decision)


def _is_known(journal: Journal, id: str, decision: Decision) -> bool:
    """Whether what waits was decided already.

    Raises:
        ConfigError: it was decided otherwise.
    """
    if id not in journal.decided:
        return False
    before = journal.lines[journal.decided[id]]
    if any(before.get(key) != item for key, item in _as_data(decision).items()):
        raise ConfigError(f"{id} was decided already, otherwise")
    return True


def _as_data(decision: Decision) -> dict[str, Any]:
    """A decision in the form of a line."""
    value = {"reject": decision.value.get("reject")} if "reject" in decision.value else dict(decision.value)
    return {**value, "answer": as_stored(value["answer"])} if "answer" in value else value


def _last_pause(journal: Journal) -> TraceEntry:
    return next((line for line in reversed(journal.lines) if line.get("type") == "paused"), {})


def _shown(journal: Journal) -> list[Wait]:
    """The waits that the last pause listed, where they are still open; else all open ones."""
    pending, listed = journal.pending(), _last_pause(journal).get("waits") or ()
    return [wait for wait in pending if wait.id in listed] or pending


def _only_one(journal: Journal) -> str:
    """The id of the only wait.

    Raises:
        ConfigError: there is none that is recorded, or several.
    """
    if not journal.waits:
        raise ConfigError("what waits is of an agent that is not recorded (log=False): first resume it undecided")
    shown = _shown(journal)
    if len(shown) != 1:
        raise ConfigError(f"{len(shown)} calls wait; name the one that you decide, by its id:{_listed(journal)}")
    return shown[0].id


def _text(wait: Wait) -> str:
    calls = [wait.call] if wait.call is not None else wait.calls
    shown = ", ".join(f"{call.get('name')} {call.get('arguments') or ''}".rstrip() for call in calls)
    return f"{wait.agent}: {shown or 'the model'} ({wait.reason})"


def _fits(wait: TraceEntry, decision: Decision) -> None:
    from connectagent.data import LLMResponse

    answer = decision.value.get("answer")
    if wait.get("elsewhere") and "approve" in decision.value:
        raise ConfigError("a call that is carried out elsewhere takes answer=... or reject='why'")
    if wait.get("of") == "before_tools" and answer is not None:
        raise ConfigError("a round that was paused by before_tools takes approve=True or reject='why'")
    if wait.get("of") == "before_llm" and answer is not None and not isinstance(answer, (str, LLMResponse)):
        raise ConfigError(f"the answer stands in for the model's: a str or an LLMResponse, not {answer!r}")


def waiting_in(record: Path) -> list[Wait]:
    """What waits for a person in a record, as far as the record is believed.

    Raises:
        ConfigError: nothing does, or the record cannot be used.
    """
    with refuse_odd(record):
        session = read_session(record)
        status = session.last.get("status")
        journal = journal_of([] if session.open is None else session.open.lines, session.head)
    if status != "paused":
        raise ConfigError(_nothing_waits(journal, status))
    return _shown(journal)


def _nothing_waits(journal: Journal, status: str | None) -> str:
    then = "; resume() without a decision goes on with it" if journal.lines else ""
    return f"nothing waits for a decision: the last turn's status is {status or 'cut off'!r}{then}"


def still_paused(journal: Journal, path: Path) -> Paused:
    from connectagent.data import ToolCall

    waits = _shown(journal)
    call = _last_pause(journal).get("call")
    return Paused(waits, path, ToolCall(call["id"], call["name"], call["arguments"]) if call else None)
