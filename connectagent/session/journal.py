"""What a log has of each operation, by its place, so that finished operations are looked up and never repeated.

An operation is a turn, an attempt at a model or a tool, a run of a hook's handlers, or a wait. Its id is its place:
`T3` is the third turn, `T3/2/model1` the first attempt at the model in its second iteration, `T3/2/c1/tool1` the first
attempt at the first call of the round, and `T3/2/c1/tool1/turn:billing~5f0c#1` the turn of another agent that this tool
asked for. It writes one line when it begins and one when it ends. A resumed turn runs again, and looks each of them up.

Trace entries of other changes carry the place of the change as `at`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from connectagent.data import CORE_TYPES, TraceEntry, Wait
from connectagent.session.observers import is_by_observer
from connectagent.session.places import Places

BEGAN, CLOSED, HANDLERS, LEFT, WAIT, DECIDED = "began", "closed", "handlers", "left", "wait", "decided"
TOOL_ENDED, TURN_ENDED = "tool_ended", "turn_ended"
LINES = frozenset((BEGAN, CLOSED, HANDLERS, LEFT, WAIT, DECIDED, TOOL_ENDED, TURN_ENDED))
"""The types of lines that only the log has: they are not in `current_session["trace"]`."""

MASKED = "masked"  # in a line: the places at which something was masked; also the digest of a masked input
LOST_UPDATE = "lost_update"  # an entry: a change of the state overwrote what it had not seen

_ATTEMPT = re.compile(r"(.*)/(?:model|tool)(\d+)", re.DOTALL)


def digest_of(value: object) -> str:
    """Twelve hex digits to distinguish inputs; a value that is not JSON counts by the name of its type."""
    from hashlib import blake2b  # loading OpenSSL takes 3 ms, which not every program needs to spend

    text = json.dumps(value, sort_keys=True, default=lambda item: type(item).__name__, skipkeys=True)
    return blake2b(text.encode(), digest_size=6).hexdigest()


WAIT_OF = "/wait:"  # in the id of a wait: between the place that waits and who asked

WITHHELD = "withheld"  # in a line: it has no texts and arguments, and is not looked up
ABANDONED = "abandoned"  # the outcome of a turn that is not asked for again

_ASKED = re.compile(r"/(turn|exec|ask|hook):[^/]*~[^/]*#\d+(?=/|$)")  # an operation that a handler or tool asked for
LOOSE = ("ask", "hook")  # these may differ when a turn is resumed: by the time, or by the installed plugins
_MARK = re.compile(r"\[masked(?:: [^\]]*)?\]")
_OF_WAIT = ("id", "agent", "call", "reason", "digest", "by")


def marks_in(value: object) -> set[str]:
    """The marks in a value that replace secrets: `[masked: NAME]`."""
    if isinstance(value, str):
        return set(_MARK.findall(value))
    if isinstance(value, dict | list | tuple):
        items = [*value.values(), *value] if isinstance(value, dict) else value
        return {mark for item in items for mark in marks_in(item)}
    return set()


def is_inside(id: str, outer: str) -> bool:
    """Whether a place is the outer one or inside it."""
    return id == outer or id.startswith(f"{outer}/")


def _body_of(hook: str, turn: str) -> str:
    """The body that made the call of a hook, such as a tool's; the turn, where the model made it.

    What goes on beside the body says nothing of the hook: calls of a round work at the same time.
    """
    asked = list(_ASKED.finditer(hook))
    body = hook[: asked[-1].start()] if asked else turn
    return body if is_inside(body, turn) else turn


def turns_in(id: str) -> list[str]:
    """The inner turns among the operations around a place, the outermost first."""
    return [id[: found.end()] for found in _ASKED.finditer(id) if found[1] == "turn"]


def calls_of(wait: TraceEntry) -> list[dict[str, Any]]:
    """The calls that a wait is about, as its line shows them; none where a model call waits."""
    call = wait.get("call")
    calls = wait.get("calls") if call is None else [call]
    return [one for one in calls or () if isinstance(one, dict)]


def waits_for_person(line: TraceEntry) -> bool:
    """Whether an inner turn paused: its changes are merged when it ends, or is given up."""
    return line.get("outcome") == "paused" and line.get("open") is True


def is_aside(line: TraceEntry) -> bool:
    """Whether a line is about a model call of a handler or tool, outside the conversation."""
    return "/ask:" in str(line.get("id") or line.get("at")).rpartition("/turn:")[2]  # in the turn itself


def only_says_stopped(line: TraceEntry) -> bool:
    """Whether an entry only says that a call was not run or not finished because its turn stopped."""
    if line.get("type") != "tool_execution":
        return False
    return line.get("status") == "interrupted" or (line.get("status") == "skipped" and "id" not in line)


class Journal:
    """The lines of a turn and of its inner agents, by place.

    Args:
        lines: the lines of the log in order, including entries of the trace; none of a turn that is not resumed.

    Attributes:
        void: the numbers of the lines that no longer count, as their operation began again later.
    """

    def __init__(self, lines: Iterable[TraceEntry] = ()) -> None:
        self.lines = list(lines)
        self.void: set[int] = set()
        self.began: dict[str, int] = {}
        self.closed: dict[str, int] = {}
        self.bodies: dict[str, int] = {}  # by call: the line that its parallel body ended
        self.left: dict[str, list[str]] = {}
        self.parts: dict[str, int] = {}  # by hook: the line that says which handlers have run, or that one waits
        self.waits: dict[str, int] = {}
        self.decided: dict[str, int] = {}
        self._ended: dict[str, int] = {}
        self._ends: dict[str, tuple[int, list[str]]] = {}  # frames that ended with an error: whose error it was
        self.seen: dict[str, int] = {}  # by turn: the last of its lines that was looked up
        self._opened: dict[str, set[str]] = {}  # by turn: its operations that continue or begin again
        for number, line in enumerate(self.lines):
            if line.get("type") == "resumed":
                self._goes_on_from(number)
            self._take(number, line)
        if self.lines:
            self._goes_on_from(len(self.lines))

    def with_lines(self, *lines: TraceEntry) -> Journal:
        """The journal with more lines."""
        return Journal([*self.lines, *lines])

    def _take(self, number: int, line: TraceEntry) -> None:
        kind, id = line.get("type"), line.get("id")
        if not isinstance(id, str) or kind not in CORE_TYPES or (line.get(WITHHELD) and kind != "agent_turn"):
            return
        if kind == BEGAN:
            if id in self.began:
                self.void.add(self.began[id])
                self._begin_again(id, number)
            self.began[id] = number
        elif kind == WAIT:
            self.waits[id] = number
            if hook := line.get("hook"):
                self.parts[hook] = number
        elif kind == HANDLERS:
            self.parts[id] = number
        elif kind == LEFT:
            self.left[id] = [wait for wait in line.get("waits") or () if wait in self.waits]
        elif kind == DECIDED:
            self.decided.setdefault(id, number)
        else:
            self._end(id, number, line)

    def _end(self, id: str, number: int, line: TraceEntry) -> None:
        if line.get("type") not in LINES:
            if id in self._ended:  # it had stopped there, and was resumed
                self.void.add(self._ended[id])
            self._ended[id] = number
        if line.get("type") == TOOL_ENDED:
            self.bodies.setdefault(id, number)
            if "status" not in line.get("entry", ()):  # the result of the handlers around it is not known
                return
        if line.get(WITHHELD):
            return
        if line.get("from") is not None:
            self._ends[id] = (number, list(line["from"]))
        if line.get("status") != "interrupted" and not line.get("open"):
            self.closed[id] = number

    def _begin_again(self, id: str, number: int) -> None:
        """Void what an operation and open hooks in it changed, but for finished handlers, and its error's handling."""
        for known in (self.closed, self.bodies, self.left):
            known.pop(id, None)
        inside = (one for one in self.began if is_inside(one, id) and one not in self.closed and _is_hook(one))
        begins = {id, *inside}
        for at, line in enumerate(self.lines[:number]):
            if (place := str(line.get("at"))) in begins:
                part, by = self.parts.get(place, -1), line.get("by") or {}
                over = self.lines[part].get("over", []) if part >= 0 else []
                if [by.get("plugin"), by.get("handler")] not in over and not (at < part and is_by_observer(line)):
                    self.void.add(at)
        self.forget_error(id, number)

    def forget_error(self, id: str, number: int) -> None:
        """Void how the error of an attempt was handled before a line: it is made again."""
        if found := _ATTEMPT.fullmatch(id):
            outer = f"{found[1]}/on_error{found[2]}"
            for table in (self.began, self.closed, self.left, self.parts):
                for place in [place for place in table if is_inside(place, outer)]:
                    del table[place]
            self.void |= {at for at, line in enumerate(self.lines[:number]) if is_inside(place_of(line), outer)}

    def _goes_on_from(self, number: int) -> None:
        """What bodies of calls that are not settled had changed is void: their lines tell it, in the calls' order."""
        for place, over in self.bodies.items():
            if self.lines[self.closed.get(place, over)].get("type") == TOOL_ENDED:
                for at, line in enumerate(self.lines[over + 1 : number], over + 1):
                    kind, where = line.get("type"), str(line.get("at"))
                    loses = kind == LOST_UPDATE and where == place  # else it is of an agent's turn, which is closed
                    if loses or (kind == "state_delta" and is_inside(where, place)):
                        self.void.add(at)

    # -- looking up ----------------------------------------------------------------------------

    def closing(self, id: str, turn: str) -> TraceEntry | None:
        """The line that ended an operation of a turn; None if it has not ended or must be repeated."""
        number = self.closed.get(id)
        if number is None or self.is_open(id):
            return None
        self.saw(turn, number)
        return self.lines[number]

    def saw(self, turn: str, number: int) -> None:
        """Note how far in its lines a turn has come."""
        self.seen[turn] = max(number, self.seen.get(turn, -1))

    def opened(self, id: str, turn: str) -> None:
        """Note that an operation of a turn continues or begins again: its lines do not prove that the turn went on."""
        self._opened.setdefault(turn, set()).add(id)

    def is_over(self, hook: str, turn: str) -> bool:
        """Whether a hook without an end is over: its turn went on after it, so its handlers only observed."""
        since = self.began.get(hook)
        part = self.lines[self.parts[hook]] if hook in self.parts else {}
        if since is None:
            return self._goes_on(turn, hook, self.seen.get(turn, -1))
        if part.get("type") == WAIT:
            if part["id"] not in self.decided:
                return False
            since = max(since, self.decided[part["id"]])
        if not self._goes_on(turn, hook, since):
            return False
        self.saw(turn, since)
        return True

    def _goes_on(self, turn: str, hook: str, since: int) -> bool:
        open_ones, resumed = self._opened.get(turn, ()), f"{turn}/resumed"  # `on_session` runs before the turn goes on
        body = _body_of(hook, turn)
        for number in range(len(self.lines) - 1, since, -1):
            line = self.lines[number]
            place = place_of(line)
            if place == turn or not is_inside(place, body) or is_inside(place, hook) or line.get("type") == DECIDED:
                continue
            if place.startswith(resumed):
                continue
            if number not in self.void and not any(is_inside(place, one) for one in open_ones):
                return True
        return False

    def is_open(self, id: str) -> bool:
        """Whether the error of an operation ended everything around it, up to the resumed turn: it is done again."""
        line = self.lines[self.closed[id]] if id in self.closed else None
        if line is None or not (line.get("error") is not None or line.get("error_type")):
            return False
        while "/" in id:
            frame = id.rpartition("/")[0]
            # A function in place of a model begins and has no end of its own: its error is its turn's.
            while frame not in self._ends and (frame not in self.began or frame.endswith("/run")) and "/" in frame:
                frame = frame.rpartition("/")[0]
            number, whose = self._ends.get(frame, (-1, []))
            if number < self.closed.get(id, number) or id not in whose:
                return False
            id = frame
        return True

    def unfinished(self, branch: str) -> list[str]:
        """The turns of an inner agent that began and did not end, in order."""
        begun = (id for id, number in self.began.items() if self.lines[number].get("branch") == branch)
        return [id for id in begun if not self.is_ended(id)]

    def is_lost(self, id: str) -> bool:
        """Whether an attempt at a model began and its usage is not known."""
        return id not in self.closed and "/model" in id[id.rfind("/") :]

    def needs_model(self, call: str, attempt: int) -> bool:
        """Whether an attempt at a model is to be made, or a later one with the same model."""
        while (number := self.closed.get(f"{call}/model{attempt}")) is not None:
            if self.is_open(f"{call}/model{attempt}"):
                return True
            answer = self.closed.get(f"{call}/on_error{attempt}")
            if self.lines[number].get("status") != "error" or answer is None:
                return self.lines[number].get("status") == "error"
            retry = (self.lines[answer].get("value") or {}).get("retry")
            if retry is None or retry["model"] is not None:
                return False
            attempt += 1
        return True

    def open_turns(self) -> list[str]:
        """The outermost inner turns that began and did not end."""
        turns = [id for id in self.began if "/" in id and _kind(id) == "turn" and not self.is_ended(id)]
        return [id for id in turns if not any(id != one and is_inside(id, one) for one in turns)]

    def is_ended(self, turn: str) -> bool:
        """Whether an inner turn ended."""
        return turn in self.closed and not self.is_open(turn) and not self.is_abandoned(turn)

    def is_abandoned(self, turn: str) -> bool:
        """Whether the code that asked for an inner turn went on without it."""
        return turn in self.closed and self.lines[self.closed[turn]].get("outcome") == ABANDONED

    def has(self, kind: str, place: str) -> bool:
        """Whether there is an entry of a type at a place that counts."""
        found = (at for at, line in enumerate(self.lines) if line.get("type") == kind and line.get("at") == place)
        return any(at not in self.void for at in found)

    def own(self, place: str, branch: str | None) -> list[TraceEntry]:
        """The changes made at a place itself in one agent's conversation, in order, without void ones."""
        own = ((at, line) for at, line in enumerate(self.lines) if line.get("at") == place and at not in self.void)
        return [line for _, line in own if line.get("branch") == branch]

    def changes(self, place: str, turn: str, branch: str | None) -> list[TraceEntry]:
        """The changes made at a place or inside it, and those of inner agents that were asked there."""
        ended = self.closed.get(place, self.bodies.get(place))
        closing = {} if ended is None else self.lines[ended]  # a body has its own list of them
        found, of_body = [], [change.get("turn") for change in closing.get("changes") or ()]
        for line in (self.lines[number] for number in self._changed.inside(place) if number not in self.void):
            own = line.get("branch") == branch
            if line.get("type") == "agent_turn":
                id = str(line.get("id"))
                own = "/turn:" not in id[len(turn) : id.rindex("/turn:")] and not line.get("open") and id not in of_body
            found += [line] if own else []
        return found

    @cached_property
    def _changed(self) -> Places:
        return Places(str(one.get("id" if one.get("type") == "agent_turn" else "at", "")) for one in self.lines)

    # -- what handlers and tools asked for -------------------------------------------------------

    @cached_property
    def asked(self) -> Asked:
        """What handlers and tools asked for before the turn stopped, by frame, and what they ask for now."""
        return Asked(self)

    def lacks(self, value: object) -> bool:
        """Whether a value contains what was masked in a line, so that the log does not have all of it."""
        marks = marks_in(value)
        return bool(marks) and any(marks & marks_in(line) for line in self.lines if line.get(MASKED))

    def wait_in(self, hook: str) -> int | None:
        """The number of the line that says that a handler of a hook waits; None where none does."""
        return next((number for number in self.waits.values() if self.lines[number].get("hook") == hook), None)

    def wait_of_tool(self, attempt: str) -> str | None:
        """The id of the wait of a tool's own function; None where it has not paused."""
        return next((id for id in reversed(self.waits) if id.startswith(f"{attempt}{WAIT_OF}")), None)

    def is_approved(self, wait: str) -> bool:
        """Whether a person has approved a wait."""
        return wait in self.decided and bool(self.lines[self.decided[wait]].get("approve"))

    def pending(self) -> list[Wait]:
        """The undecided waits, in order."""
        open_ones = [self.lines[number] for id, number in self.waits.items() if id not in self.decided]
        return [Wait(*map(one.get, _OF_WAIT), "elsewhere" in one, one.get("calls") or []) for one in open_ones]  # type: ignore


def place_of(line: TraceEntry) -> str:
    """The place of a line."""
    id = line.get("id") if line.get("type") in CORE_TYPES else None  # entries of plugins may have an id of their own
    return str(id or line.get("at") or "")


class Asked:
    """What handlers and tools had asked for when a turn stopped, by frame, and what they ask for now.

    Args:
        past: the turn's lines.

    Attributes:
        at_once: the frames that had several operations open at the same time: their order means nothing.
    """

    def __init__(self, past: Journal) -> None:
        self._past = past
        self._now: set[str] = set()
        self._kinds: dict[str, dict[str, str]] = {}  # by frame: its operations, each with its kind
        self.at_once: set[str] = set()
        running: dict[str, set[str]] = {}
        for line in past.lines:
            if line.get("type") == "resumed":  # nothing runs on from the process that ended
                running.clear()
            place = place_of(line)
            for found in _ASKED.finditer(place):
                frame, id = place[: found.start()], place[: found.end()]
                self._kinds.setdefault(frame, {})[id] = found[1]
                open_ones = running.setdefault(frame, set())
                ends = "id" in line and (line.get("type") not in LINES or line.get("type") == TURN_ENDED)
                if ends and place in (id, f"{id}/tool1"):
                    open_ones.discard(id)
                elif line.get("type") == BEGAN and id not in open_ones and found[1] not in LOOSE:
                    if open_ones:
                        self.at_once.add(frame)
                    open_ones.add(id)

    def ask(self, frame: str, id: str) -> str | None:
        """Note that a frame asks for an operation; the finished one that it should have asked for instead, or None."""
        self._now.add(id)
        operations = self._kinds.get(frame, {})
        if id in operations or _kind(id) in LOOSE or frame in self.at_once:
            return None
        return self.forgotten(frame)

    def forgotten(self, frame: str) -> str | None:
        """A finished operation that a frame has not asked for, or None. Asks may differ, for example by the time."""
        for id, kind in self._kinds.get(frame, {}).items():
            if id not in self._now and kind not in LOOSE and self._is_finished(id, kind):
                return id
        return None

    def frames(self, id: str, names: Iterable[str]) -> list[str]:
        """Those frames of an operation and of its handlers that had asked for something."""
        return [frame for frame in (id, *(f"{id}/{name}" for name in names)) if frame in self._kinds]

    def left(self, frame: str) -> list[str]:
        """The inner turns that a frame began and did not end, and has not asked for now."""
        operations = self._kinds.get(frame, {}).items()
        left = [id for id, kind in operations if kind == "turn" and id not in self._now]
        return [id for id in left if id in self._past.began and not self._is_finished(id, "turn")]

    def _is_finished(self, id: str, kind: str) -> bool:
        id = f"{id}/tool1" if kind == "exec" else id
        return id in self._past.closed and not self._past.is_open(id)


def _is_hook(id: str) -> bool:
    return id.rpartition("/")[2].startswith(("before_", "after_", "on_", "hook:"))


def _kind(id: str) -> str:
    return id[id.rindex("/") + 1 :].partition(":")[0]
