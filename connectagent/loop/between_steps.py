"""What was changed between the steps of a turn, by the consumer of its events or a handler of `on_trace` for example.

No step repeats these changes when the turn is resumed, so they are applied when it has come to the same place. What is
changed inside a step is a change of that step, as those of its handlers and tools are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice, takewhile
from threading import get_ident
from typing import Any

from connectagent.data import BEHIND_ANSWER, Message, TraceEntry
from connectagent.frame import handler_in_id
from connectagent.session.changes import take_messages
from connectagent.session.journal import BEGAN, Journal, is_inside, only_says_stopped, place_of, turns_in
from connectagent.session.messages import place_of_result
from connectagent.session.observers import is_by_observer
from connectagent.session.snapshot import clone, copy_of


class BetweenSteps:
    """What was changed between the steps of a resumed turn, in order.

    An index counts the messages as they were then. Some of those are gone in a resumed turn: the results of calls that
    say that the turn stopped, and what handlers added that begin again. So the lines that made them are applied as
    well, and undone behind the changes.

    Args:
        past: the lines of the turn.
        turn: the place of the turn.
        branch: of its agent.
        conversation: of its agent, to which the changes are applied.

    Attributes:
        placed: the attempts at tools whose results were put into the conversation as the turn stopped, and now again.
    """

    def __init__(self, past: Journal, turn: str, branch: str | None, conversation: Any) -> None:
        self._past, self._branch, self._conversation, self._thread = past, branch, conversation, get_ident()
        self._turn = turn
        self.placed: set[str] = set()
        # Each with the number of the line behind which it belongs, and whether it stays.
        self._waiting: list[tuple[int, TraceEntry, bool]] = []
        self._find(turn)
        if conversation is not None and "/" not in turn:
            self._begin_again()

    def _find(self, turn: str) -> None:
        last = -1
        leg: list[tuple[int, TraceEntry, bool]] = []  # since the turn was resumed
        void = _void_if_resumed(self._past) if any(map(_is_placed, self._past.lines)) else None
        for number, line in enumerate(self._past.lines):
            what = self._what(line, turn)
            if last < 0 and line.get("type") != "user_input":  # the turn had not begun
                continue
            if what == "resumed":
                self._wait_for(leg)
                leg = [(last, line, False)]
            elif what == "between" and number not in self._past.void:
                leg.append((last, line, True))
            elif what == "inside":
                last = number
                if line.get("type") == BEGAN:  # the turn had not stopped
                    leg = [one for one in leg if not _is_result(one[1])]
                if void is not None and self._is_gone(line, number in void):
                    leg.append((last, line, False))
        self._wait_for(leg)

    def _what(self, line: TraceEntry, turn: str) -> str:
        """What a line is for a turn; "" for nothing."""
        places = (turn,) if "/" in turn else (turn, None)  # None: when a root turn was resumed
        if line.get("type") == "resumed":
            return "resumed"
        if line.get("at") in places and self._is_own(line) and is_by_observer(line):
            return "between"
        return "inside" if is_inside(place_of(line), turn) else ""

    def _is_gone(self, line: TraceEntry, void: bool) -> bool:
        """Whether a line changed messages in a way that a resumed turn does not have."""
        return self._is_own(line) and (_is_result(line) or (void and line.get("type") in _MOVES))

    def _is_own(self, line: TraceEntry) -> bool:
        return line.get("branch") == self._branch

    def _wait_for(self, leg: list[tuple[int, TraceEntry, bool]]) -> None:
        """Take over what was found; all that came after what is gone now belongs to one place."""
        stopped: int | None = None
        for behind, line, stays in leg:
            if not stays and line["type"] != "resumed" and stopped is None:
                stopped = behind
            self._waiting.append((behind if stopped is None else stopped, line, stays))

    def _begin_again(self) -> None:
        """Undo what was changed just now, as the root turn was resumed: it is applied when the turn has come there."""
        lines = takewhile(lambda line: line.get("type") != "resumed", reversed(self._past.lines))
        if any(map(is_by_observer, lines)):
            snapshot, (_, messages, state, _) = self._conversation.snapshot, self._conversation.begun
            snapshot.messages[:] = clone(messages)
            take_messages(snapshot)
            self._conversation.session["state"].clear()
            self._conversation.session["state"].update(copy_of(state))
            snapshot.copy["state"] = copy_of(state)

    def has_failed(self, id: str) -> bool:
        """Whether a handler failed behind a model's answer and before its message, which the record may not have."""
        lines, turn = self._past.lines, self._turn
        iteration = f"{turn}/{id[len(turn) + 1 :].partition('/')[0]}"
        for line in islice(lines, self._past.closed.get(id, len(lines)) + 1, None):
            place, kind = place_of(line), line.get("type")
            if place == turn and kind == "error":
                return (line.get("by") or {}).get("hook") in BEHIND_ANSWER
            goes_on = kind == "tool_execution" if place == turn else is_inside(place, turn)
            if goes_on and not is_inside(place, f"{iteration}/after_llm"):
                return False  # a later step: the message was there
        return False

    def everything(self) -> None:
        """Apply all of it, as code of others runs now; not in the thread of a parallel body."""
        if self._waiting and get_ident() == self._thread:
            self._up_to(len(self._past.lines))

    def before(self, id: str) -> None:
        """Apply what was changed before an operation that is looked up."""
        if self._waiting:
            past, at = self._past, self._past.began.get(id, self._past.closed.get(id, 0))
            if id in past.parts:  # a hook that waited: what the handlers before the wait changed is looked up too
                at = next(number for number, line in enumerate(past.lines) if line.get("id") == id)
            elif past.lines[at].keys() == {"type", "id"}:  # a hook that only observed, closed as the turn stopped
                return
            self._up_to(at - 1)

    def before_bodies(self, ids: list[str]) -> None:
        """Apply what was changed before bodies of parallel calls began, on the thread of the turn."""
        if self._waiting and not all(id in self._past.closed for id in ids):
            self.everything()
        elif self._waiting and (begun := [self._past.began[id] for id in ids if id in self._past.began]):
            self._up_to(max(begun) - 1)

    def until(self, id: str) -> None:
        """Apply what was changed until an operation had ended."""
        if self._waiting:
            self._up_to(self._past.closed.get(id, 0) - 1)

    def behind(self, id: str) -> None:
        """Apply what was changed until an operation had ended, and right behind that."""
        if self._waiting:
            self._up_to(self._past.closed.get(id, -1))

    def behind_line(self, line: TraceEntry) -> None:
        """Apply what was changed until a line was written, and right behind it."""
        if self._waiting:
            self._up_to(self._number(line))

    def among(self, changes: Iterable[TraceEntry]) -> Iterator[TraceEntry]:
        """The changes in a step, each as soon as what was changed before it between steps is applied."""
        for change in changes:
            if self._waiting:
                self._up_to(self._number(change) - 1)
            yield change

    def _number(self, line: TraceEntry) -> int:
        return next(number for number, one in enumerate(self._past.lines) if one is line)

    def _up_to(self, number: int) -> None:
        due = sum(behind <= number for behind, _, _ in self._waiting)
        lines, self._waiting = self._waiting[:due], self._waiting[due:]
        undo: list[Callable[[], None]] = []
        for _, line, stays in lines:
            if stays:
                self._conversation.reapply([line])
            elif line["type"] == "resumed":
                _undo(undo)
            else:
                undo += self._place(line)
        _undo(undo)

    def _place(self, line: TraceEntry) -> list[Callable[[], None]]:
        """Apply a line whose message is gone in the resumed turn; what undoes it."""
        snapshot, messages = self._conversation.snapshot, self._conversation.session["messages"]
        index: int | None = line.get("index")
        if line["type"] == "mended":
            return self._mend(list(messages), messages)
        if line["type"] == "message_removed" and index is not None and index < len(messages):
            message = messages[index]
            snapshot.remove(index)
            return [partial(self._put_back, message, messages[:index])]
        if line["type"] != "message":
            return self._place_result(line, snapshot, messages)
        if index is None:
            return []
        message = clone(line["message"])
        snapshot.insert(message, index)
        return [partial(snapshot.remove_one, message)]

    def _place_result(self, line: TraceEntry, snapshot: Any, messages: list[Message]) -> list[Callable[[], None]]:
        """Put what a call was answered with, as the turn stopped, into the conversation; what undoes it."""
        id, content, stays = str(line.get("call_id")), line.get("result") or "", line.get("unsettled")
        index, there = place_of_result(messages, id)
        if index is None:
            return []
        if stays:  # it is the result of the call
            self.placed.add(line["id"])
        if there is None:
            message: Message = {"role": "tool", "tool_call_id": id, "content": content}
            snapshot.insert(message, index)
            return [] if stays else [partial(snapshot.remove_one, message)]
        if stays:
            snapshot.set_content(there, content)
        return []

    def _mend(self, then: list[Message], messages: list[Message]) -> list[Callable[[], None]]:
        """Mend the messages, which are those of `then`; what takes the step back, as the loop mends them again."""
        snapshot = self._conversation.snapshot
        self._conversation.mend(silently=True)
        before, now = ({id(message) for message in some} for some in (then, messages))
        added = (partial(snapshot.remove_one, message) for message in messages if id(message) not in before)
        gone = ((message, then[:index]) for index, message in enumerate(then) if id(message) not in now)
        return [*added, *(partial(self._put_back, *one) for one in gone)]

    def _put_back(self, message: Message, before: list[Message]) -> None:
        """Put a message back behind those that were before it."""
        self._conversation.snapshot.insert(message, _behind(before, self._conversation.session["messages"]))


_MOVES = ("message", "message_removed", "mended")  # the types of lines that change what an index means


def _is_placed(line: TraceEntry) -> bool:
    """Whether an observer changed messages."""
    return "index" in line and is_by_observer(line)


def _is_result(line: TraceEntry) -> bool:
    """Whether an entry put a result into the conversation because the turn stopped."""
    return only_says_stopped(line) or (line.get("type") == "tool_execution" and line.get("unsettled") is True)


def _void_if_resumed(past: Journal) -> set[int]:
    """The numbers of the lines that no longer count once all that did not end has begun again."""
    again = [id for id in past.began if id not in turns_in(id) and (id not in past.closed or past.is_open(id))]
    return Journal([*past.lines, *({"type": BEGAN, "id": id} for id in again)]).void


def _undo(steps: list[Callable[[], None]]) -> None:
    while steps:
        steps.pop()()


def _behind(before: list[Message], messages: list[Message]) -> int:
    """The index behind the last of some messages that is still there."""
    known = {id(message) for message in before}
    return max((index + 1 for index, message in enumerate(messages) if id(message) in known), default=0)


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


NO_CHANGES = BetweenSteps(Journal(), "", None, None)  # of a turn that is not resumed
