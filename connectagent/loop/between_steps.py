"""What was changed between the steps of a turn, by the consumer of its events or a handler of `on_trace` for example.

No step repeats these changes when the turn is resumed, so they are applied when it has come to the same place. What is
changed inside a step is a change of that step, as those of its handlers and tools are.
"""

from __future__ import annotations

from itertools import islice
from threading import get_ident
from typing import Any

from connectagent.data import BEHIND_ANSWER, TraceEntry
from connectagent.frame import handler_in_id
from connectagent.session.journal import Journal, is_inside, only_says_stopped, place_of
from connectagent.session.messages import end_of_round
from connectagent.session.observers import is_by_observer
from connectagent.session.state import copy_of


class BetweenSteps:
    """What was changed between the steps of a resumed turn, in order.

    Args:
        past: the lines of the turn.
        turn: the place of the turn.
        branch: of its agent.
        conversation: of its agent, to which the changes are applied.
    """

    def __init__(self, past: Journal, turn: str, branch: str | None, conversation: Any) -> None:
        self._past, self._branch, self._conversation, self._thread = past, branch, conversation, get_ident()
        self._turn = turn
        self._waiting: list[tuple[int, int, TraceEntry]] = []  # behind which line, and with how many results as below
        self._find(turn)
        if conversation is not None and "/" not in turn:
            self._defer_state()

    def _find(self, turn: str) -> None:
        last: int | None = None
        not_run = 0  # how many calls of the round had a result that says so, since the turn had stopped
        places = (turn,) if "/" in turn else (turn, None)  # None: when a root turn was resumed
        for number, line in enumerate(self._past.lines):
            if line.get("at") in places and line.get("branch") == self._branch and is_by_observer(line):
                if last is not None and number not in self._past.void:
                    self._waiting.append((last, not_run, line))
            elif is_inside(place_of(line), turn) and (last is not None or line.get("type") == "user_input"):
                last = number
                stops = line.get("type") in ("paused", "error")
                not_run = not_run + 1 if only_says_stopped(line) else not_run if stops else 0

    def _defer_state(self) -> None:
        """Defer what was changed in the state just now, as the root turn was resumed, until it has come to its end."""
        session, changes = self._conversation.session, list[TraceEntry]()
        for entry in reversed(session["trace"]):
            if entry.get("type") == "resumed" or "at" in entry:
                break
            changes += [entry] if entry.get("type") == "state_delta" and is_by_observer(entry) else []
        if changes:
            before = self._conversation.state_before
            session["state"].clear()
            session["state"].update(copy_of(before))
            self._conversation.snapshot.copy["state"] = copy_of(before)
            self._waiting += [(len(self._past.lines), 0, entry) for entry in reversed(changes)]

    def has_failed(self, id: str) -> bool:
        """Whether a handler failed behind a model's answer and before its message, which the record may not have."""
        lines = self._past.lines
        for line in islice(lines, self._past.closed.get(id, len(lines)) + 1, None):
            if line.get("type") == "llm_call" and str(line.get("id")).rsplit("/", 2)[0] == self._turn:
                return False
            if line.get("type") == "error" and line.get("at") == self._turn:
                return (line.get("by") or {}).get("hook") in BEHIND_ANSWER
        return False

    def everything(self) -> None:
        """Apply all of it, as code of others runs now; not in the thread of a parallel body."""
        if self._waiting and get_ident() == self._thread:
            self._up_to(len(self._past.lines))

    def before(self, id: str) -> None:
        """Apply what was changed before an operation that is looked up."""
        if self._waiting:
            past, began = self._past, self._past.began.get(id)
            if id in past.parts:  # a hook that waited: what the handlers before the wait changed is looked up too
                began = next(at for at, line in enumerate(past.lines) if line.get("id") == id)
            self._up_to((past.closed.get(id, 0) if began is None else began) - 1)

    def before_bodies(self, ids: list[str]) -> None:
        """Apply what was changed before bodies of parallel calls began, on the thread of the turn."""
        if self._waiting and not all(id in self._past.closed for id in ids):
            self.everything()
        elif self._waiting and (begun := [self._past.began[id] for id in ids if id in self._past.began]):
            self._up_to(max(begun) - 1)

    def behind(self, id: str) -> None:
        """Apply what was changed until an operation had ended, and right behind that."""
        if self._waiting:
            self._up_to(self._past.closed.get(id, -1))

    def behind_line(self, line: TraceEntry) -> None:
        """Apply what was changed until a line was written, and right behind it."""
        if self._waiting:
            self._up_to(next(number for number, one in enumerate(self._past.lines) if one is line))

    def _up_to(self, number: int) -> None:
        while self._waiting and self._waiting[0][0] <= number:
            _, not_run, change = self._waiting.pop(0)
            self._apply(change, not_run)

    def _apply(self, change: TraceEntry, not_run: int) -> None:
        """Apply a change; `not_run`: how many results stood behind those that are there now."""
        if not_run and "index" in change:
            messages, index = self._conversation.session["messages"], change["index"]
            behind = end_of_round(messages)
            if behind <= index < behind + not_run and change["type"] != "message":
                return
            change = {**change, "index": index - not_run if index >= behind + not_run else min(index, behind)}
        self._conversation.reapply([change])


def until_passed(past: Journal, hook: str, passed: list[list[Any]], changes: list[TraceEntry]) -> list[TraceEntry]:
    """Of the changes in a hook, those of the handlers that need not run again, and of others until these had run."""
    before = {id(line) for line in past.lines[: past.parts[hook]]}
    return [one for one in changes if _is_of(one, hook, passed) or (id(one) in before and is_by_observer(one))]


def _is_of(entry: TraceEntry, hook: str, handlers: list[list[Any]]) -> bool:
    """Whether one of the handlers of a hook made a change, itself or in an operation that it asked for."""
    place, by = str(entry.get("at") or entry.get("id")), entry.get("by") or {}
    if place == hook:
        return [by.get("plugin"), by.get("handler")] in handlers
    return any(place.startswith(f"{hook}/{handler_in_id(*handler)}/") for handler in handlers)


NO_CHANGES = BetweenSteps(Journal(()), "", None, None)  # of a turn that is not resumed
