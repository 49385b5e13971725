"""One run of a hook's handlers: its progress, its result, and its lines in the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from connectagent.data import Continue, ToolCall, TraceEntry, Wait
from connectagent.errors import ConfigError, Pause, ToolRejected, Waiting
from connectagent.hooks.executor import HandlerValue, HookCall
from connectagent.hooks.specs import CONTRACTS
from connectagent.loop.call_arguments import show_pending
from connectagent.loop.divergence import finish
from connectagent.loop.ending import RESUMED, STOPPED, Ending
from connectagent.loop.stored import (
    as_stored,
    change_request,
    changed_request,
    edit_again,
    from_stored,
    hides_values,
    input_digest,
    no_values,
    wait_id,
)
from connectagent.session.edits import as_data, peek_one
from connectagent.session.journal import CLOSED, HANDLERS, WAIT, Journal
from connectagent.session.snapshot import By, copy_of
from connectagent.session.state import alike

DECIDING = ("before_tools", "before_each_tool")
"""The hooks whose handlers decide about calls: whoever let a call pass decides again if it changes."""


class HookRun:
    """One run of a hook's handlers.

    Attributes:
        over: the handlers to skip, as `[plugin, handler]`.
        passed: the handlers that have run; `last` is the newest, and the first `known` ran before the turn stopped.
        value, by: the decision, and the handler that made it; of a chain, the value so far.
        calls: the calls that the handlers of the hook decide about.
        found: these calls before the handlers: see `calls_of`.
        decided: these calls as the last handler left them; the same object as `found` as long as none changed them.
        again: if a tool call was changed after handlers allowed it, the handlers that need not decide about the
            changed call, as `[plugin, handler, whether it changed the call]`; else None.
    """

    id = ""
    begun = False  # whether the log says that the handlers begin
    known = 0
    last: By | None = None
    written: By | None = None
    value: Any = None
    by: By | None = None
    again: list[list[Any]] | None = None
    turn: Any = None  # the turn whose operation it is

    def __init__(
        self,
        hook: str,
        place: str,
        given: HookCall,
        convert: Callable[[Any], Any] | None = None,
        found: tuple[Any, ...] | None = None,
    ) -> None:
        self.hook, self.place, self.given, self.convert = hook, place, given, convert or _unchanged
        contract = CONTRACTS[hook]
        self.chained, self.kind = contract.chained, contract.kind
        self.asked = False  # whether a plugin fired it, so that its end is always written
        self.original = given[self.chained] if self.chained else None
        self.over: list[list[Any]] = []
        self.passed: list[list[Any]] = []
        self.calls = calls_in(given) if hook in DECIDING else []
        self.found = calls_of(given["agent"], self.calls) if found is None and self.calls else found
        self.decided = self.found
        self._left: list[tuple[By, Any, bool]] = []  # by handler: the call afterwards, and whether it changed it

    def run(self, turn: Any) -> HookRun:
        """Run the handlers as one operation of a turn, or look up its result.

        Raises:
            ToolRejected, Waiting, Exception: as the handlers did.
        """
        self.turn = turn
        if self.hook not in turn.host.others:  # only the package's own, which change nothing
            return self.call(turn.host, turn.agent)
        self.id = id = f"{turn.id}/{self.place}"
        if turn.resumed:
            if self._looked_up():
                return self
            turn.between.everything()
            self._begin_again(turn.past)
        turn.runs[id] = self
        ended = turn.ended
        try:
            with turn.frame.inside(id):
                self.call(turn.host, turn.agent)
        except ToolRejected as rejection:
            self._close(ended, rejected=str(rejection), by=turn.boundary.owner_of(rejection))
            raise
        except Pause as pause:
            raise self._wait(pause) from None
        except Waiting as waiting:
            waiting.by = turn.boundary.owner_of(waiting) or {}
            waiting.call = only_call(self.given)
            raise
        except Exception as error:
            self._fail(error)
            raise
        finally:
            del turn.runs[id]
        self._close(ended)
        return self

    def ran(self, by: By, builtin: bool = False, edited: bool = False) -> None:
        """Note that a handler has run; `edited`: whether it edited a call that its hook is about."""
        if not builtin and self.kind != "around":  # those run again as long as the run has not ended
            self.last = by
            self.passed.append([by.get("plugin"), by.get("handler")])
        if self.decided is not None and by.get("hook") == self.hook:
            changed = edited or not are_tools(self.given["agent"], self.calls, self.decided)
            if changed:
                self.decided = calls_of(self.given["agent"], self.calls)
            self._left.append((by, self.decided, changed))

    def leave_out(self, over: Iterable[list[Any]]) -> None:
        """Skip handlers: `[plugin, handler]`, and optionally whether it changed a call that others had allowed."""
        for plugin, handler, *changed in over:
            self.over.append([plugin, handler])
            if changed:
                self._left.append(({"plugin": plugin, "handler": handler}, self.decided, changed[0]))

    def edit_again(self, changes: list[TraceEntry]) -> None:
        """Repeat the edits of the handlers that ran before the turn stopped."""
        if changes:
            calls = calls_in(self.given)
            then = list(map(peek_one, calls))
            edit_again(self.given, changes)
            show_pending(self.turn.conversation.snapshot, calls, then)
            self.decided = calls_of(self.given["agent"], self.calls) if self.calls else None
        edits = [_key(change.get("by") or {}) for change in changes if change.get("of") in ("tool_call", "tool_calls")]
        last = max((at for at, key in enumerate(self.passed) if key in edits), default=-1)
        for at, (plugin, handler) in enumerate(self.passed or edits):
            by, left = {"plugin": plugin, "handler": handler}, self.decided if at >= last else None
            self._left.append((by, left, [plugin, handler] in edits))

    def call(self, host: Any, agent: Any) -> HookRun:
        """Call the handlers of the agent's host, and take what they decide."""
        value = host.call(self.hook, self.given, self.over)
        if self.kind == "collect" or self.kind == "around":
            self.value, self.by = value, agent.by
        elif self.kind == "first" and self.given.decided is not None:
            self.value, self.by = self.convert(self.given.decided.value), self.given.decided.by
        elif self.decided is not self.found:
            self.again = self._outdated(host)
        return self

    def editors(self, host: Any) -> list[list[Any]]:
        """The handlers that changed the call. They do not run again, since they would change it twice.

        A handler that runs last is not among them: it decided about the call as it left it.
        """
        return [[*_key(by), True] for by, _, edited in self._left if edited and not host.is_last(self.hook, by)]

    def _outdated(self, host: Any) -> list[list[Any]] | None:
        """The value of `again`."""
        last, agent = self.decided, self.given["agent"]  # most handlers leave the calls as the last one does
        outdated = [by for by, left, _ in self._left if left is not last and not are_calls(agent, self.calls, left)]
        if not outdated:
            return None
        done = self.editors(host)
        stale = [_key(by) for by in outdated if [*_key(by), True] not in done]
        if not stale:
            return None
        agreed = [[*_key(by), False] for by, _, _ in self._left if _key(by) not in stale]
        return [*done, *[key for key in agreed if [*key[:2], True] not in done]]

    def as_data(self, has_changes: bool = True) -> dict[str, Any]:
        """The result of the handlers so far, in the form of a line; `has_changes`: whether they may have changed it."""
        line: dict[str, Any] = {}
        if self.hook == "before_llm" and has_changes and (changed := changed_request(**self.given)):
            line["request"] = changed
        if self.chained:
            value = self.given[self.chained]
            if value is not self.original:
                line["value"] = as_stored(value)
        elif self.by is not None:
            line |= {"value": as_stored(self.value), "by": self.by}
        if self.again is not None:
            line["again"] = self.again
        if self.chained and (more := self.given.decided) is not None:  # a `Continue`
            line["more"] = {"prompt": as_stored(more.value.prompt), "by": more.by}
        return line

    def take(self, line: TraceEntry) -> None:
        """Take the result, and the ending of the turn, from a line."""
        self.again = line.get("again")
        if "request" in line:
            change_request(self.given["request"], line["request"])
        if "value" in line:
            self.value, self.by = from_stored(line["value"]), line.get("by")
            if self.chained:
                self.given[self.chained] = self.value
        if (more := line.get("more")) is not None:
            self.given.decided = HandlerValue(Continue(from_stored(more["prompt"])), more["by"])
        if (ended := line.get("ended")) is not None:
            self.turn.end_as(ended)

    # -- its lines in the log --------------------------------------------------------------------

    def _close(self, ended: Ending | None, **line: Any) -> None:
        """Write what the handlers decided, or that they changed something; nothing if they only observed."""
        turn = self.turn
        if turn.resumed and not line:
            finish(turn, self.id, None if self.kind == "around" else self.passed[self.known :])
        if self.kind != "observe" or self.again is not None:
            line = {**self.as_data(self.hook != "before_llm" or turn.has_changes(self.id)), **line}
        if turn.ended is not ended:
            line |= self._ending()
        if line or self.asked or self.id in turn.touched:
            self.begin()
            turn.log.append({"type": CLOSED, "id": self.id, **line})
        else:
            turn.silent.append(self.id)

    def _ending(self) -> dict[str, Any]:
        """The ending of the turn in the form of a line; nothing where it goes on, or Ctrl-C has stopped it."""
        turn = self.turn
        return {} if turn.ended in (None, STOPPED) else {"ended": turn.ending_as_data()}

    def begin(self) -> None:
        """Write that the handlers begin, before the first line that one of them causes."""
        if not self.begun:
            self.begun = True
            self.turn.began(self.id)

    def _begin_again(self, past: Journal) -> None:
        """Begin the handlers, or the rest of them, in a resumed turn."""
        self.turn.opens(self.id)
        if self.id in past.began:  # from here on the changes are void that handlers made which run again
            self.begin()

    def _fail(self, error: Exception) -> None:
        """Write the error that ended the handlers, so that a resumed turn runs them again."""
        self.begin()
        line = {"error_type": type(error).__name__, "from": self.turn.failed(self.id, error), "open": True}
        self.turn.log.append({"type": CLOSED, "id": self.id, **line})

    def close_passed(self) -> None:
        """Before a handler's first operation: write that the handlers before it need not run again."""
        self.begin()
        if self.last is None or self.written is self.last:
            return
        self.written = self.last
        line = {**self.as_data(), **self._ending()}
        self.turn.log.append({"type": HANDLERS, "id": self.id, "over": list(self.passed), **line})

    def _wait(self, pause: Pause) -> Waiting:
        """Write that a handler waits for a person."""
        self.begin()
        turn = self.turn
        by = turn.boundary.owner_of(pause) or {}
        call = only_call(self.given)
        shown = None if call is None else as_data(call)
        calls = [as_data(one) for one in calls_in(self.given)]
        id = wait_id(self.id, by.get("handler"), calls, pause.reason)
        line: TraceEntry = {"type": WAIT, "id": id, "hook": self.id, "of": self.hook}
        line |= {"agent": turn.agent.name, "call": shown, "reason": pause.reason, "by": by}
        if call is None and calls:
            line["calls"] = calls
        line |= {"digest": input_digest(shown and shown["arguments"])}
        over = [*self.passed, [by.get("plugin"), by.get("handler")]]
        turn.log.append({**line, "over": over, **self.as_data(), **self._ending()})
        wait = Wait(id, line["agent"], shown, pause.reason, line["digest"], by, calls=line.get("calls", []))
        return Waiting([wait], call, by)

    # -- what the log has of it ------------------------------------------------------------------

    def _looked_up(self) -> bool:
        """Take the result from the log; False if the handlers, or the rest of them, must run.

        Raises:
            ToolRejected, Waiting: as the handlers did.
        """
        turn, past, id = self.turn, self.turn.past, self.id
        turn.between.before(id)
        if (line := past.closing(id, turn.id)) is not None:
            if self._is_lost(line):
                return False
            changes = turn.reapply(id)
            self._require_shown(changes)
            self.edit_again(changes)
            self.take(line)
            if "rejected" in line:
                raise turn.rejection(line["rejected"], line.get("by") or RESUMED)
            return True
        part = past.lines[past.parts[id]] if id in past.parts else None
        if past.is_over(id, turn.id):
            self.edit_again(turn.reapply(id))
            if part is not None and part["type"] == WAIT:  # the line of the decided call may come later
                self.take(part)
                self._decided(part)
            return True
        if part is None:
            return False
        self._require_values(part)
        turn.opens(id)
        self.passed = [list(one) for one in part.get("over") or ()]
        self.over = [*self.over, *self.passed]
        self.known = len(self.passed)
        self.edit_again(turn.reapply(id, self.passed))
        self.take(part)
        return part["type"] == WAIT and self._decided(part)

    def _require_shown(self, changes: list[TraceEntry]) -> None:
        """Raises `ToolRejected` if a person approved other calls than these, as they were when a handler waited."""
        past = self.turn.past
        number = past.wait_in(self.id) if past.waits else None
        if number is None or not past.is_approved(past.lines[number]["id"]):
            return
        before = past.lines[:number]
        edit_again(self.given, [change for change in changes if any(change is line for line in before)])
        self.turn.require_shown(past.lines[number], self.id, calls_in(self.given))

    def _is_lost(self, line: TraceEntry) -> bool:
        """Whether handlers gave what a call that is to be made needs and no record has: a model, values of headers."""
        value, place, past = line.get("value"), self.id.rpartition("/")[0], self.turn.past
        if self.hook == "before_llm":
            return hides_values(line) and past.needs_model(place, 1)
        if self.hook != "on_error" or not isinstance(value, dict) or not value.get("given"):
            return False
        if not past.needs_model(place, self.given["attempt"] + 1):
            return False
        try:
            self.turn.agent.create_llm(value["retry"]["model"])
        except ConfigError:
            return True
        return False

    def _require_values(self, part: TraceEntry) -> None:
        """Raises `ConfigError` if handlers that do not run again gave what a call needs and no record has."""
        approved = part["type"] != WAIT or self.turn.past.is_approved(part["id"])
        if approved and self._is_lost(part):
            raise ConfigError(no_values(self.id))

    def _decided(self, part: TraceEntry) -> bool:
        """Apply a person's decision in place of the waiting handler; whether it ends the hook."""
        turn, past = self.turn, self.turn.past
        if part["id"] not in past.decided:
            waits = [one for one in past.pending() if one.id == part["id"]]
            raise Waiting(waits, only_call(self.given), part.get("by"))
        turn.require_shown(part, self.id, calls_in(self.given))
        decision = past.lines[past.decided[part["id"]]]
        if "reject" in decision:
            if self.hook == "before_llm":
                self.value, self.by = self.convert(f"rejected: {decision['reject']}"), RESUMED
                return True
            raise turn.rejection(str(decision["reject"]))
        if "answer" in decision:
            self.value, self.by = self.convert(from_stored(decision["answer"])), RESUMED
            return True
        for call in calls_in(self.given):
            call.approved = True
        return False


def _unchanged(value: Any) -> Any:
    return value


def _key(by: By) -> list[Any]:
    return [by.get("plugin"), by.get("handler")]


def calls_of(agent: Any, calls: Sequence[ToolCall]) -> tuple[Any, ...]:
    """What is decided about calls of tools of an agent: of each its tool, and what it is called with.

    A call with an `error` is let pass since it is not run, and so is one of a tool that is not there.
    """
    tools: Mapping[str, Any] = agent.tools.by_name
    return tuple([(_tool_of(tools, call), call.name, call.error, copy_of(call.arguments)) for call in calls])


def are_calls(agent: Any, calls: Sequence[ToolCall], others: tuple[Any, ...] | None) -> bool:
    """Whether calls are still what `calls_of` returned; None stands for other ones."""
    if others is None or len(calls) != len(others):
        return False
    tools: Mapping[str, Any] = agent.tools.by_name
    for call, (tool, name, error, arguments) in zip(calls, others, strict=True):
        if call.name != name or _tool_of(tools, call) is not tool or type(call.name) is not type(name):
            return False
        if call.error is not error and not alike(call.error, error):
            return False
        if not alike(call.arguments, arguments):
            return False
    return True


def are_tools(agent: Any, calls: Sequence[ToolCall], others: tuple[Any, ...]) -> bool:
    """Whether the tools of calls are still the ones that `calls_of` returned: a handler may have exchanged them."""
    tools: Mapping[str, Any] = agent.tools.by_name
    return all([_tool_of(tools, call) is other[0] for call, other in zip(calls, others, strict=False)])


def only_call(given: dict[str, Any]) -> ToolCall | None:
    """The tool call among the arguments of a hook; None where there is none, or where a round has several."""
    calls = calls_in(given)
    return calls[0] if len(calls) == 1 else None


def calls_in(given: dict[str, Any]) -> list[ToolCall]:
    """The tool calls among the arguments of a hook."""
    if "tool_calls" in given:
        return [call for call in given["tool_calls"] if isinstance(call, ToolCall)]
    call = given.get("tool_call")
    return [call] if isinstance(call, ToolCall) else []


def _tool_of(tools: Mapping[str, Any], call: ToolCall) -> Any:
    return tools.get(call.name) if isinstance(call.name, str) else None
