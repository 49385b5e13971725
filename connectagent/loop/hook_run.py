"""One run of a hook's handlers: its progress and its result."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from connectagent.data import Continue, ToolCall, TraceEntry
from connectagent.hooks.executor import HandlerValue, HookCall
from connectagent.hooks.specs import CONTRACTS
from connectagent.loop.stored import as_stored, change_request, changed_request, edit_again, from_stored
from connectagent.session.snapshot import By
from connectagent.session.state import alike, copy_of


class HookRun:
    """One run of a hook's handlers.

    Attributes:
        over: the handlers to skip, as `[plugin, handler]`.
        passed: the handlers that have run; `last` is the newest, and the first `known` ran before the turn stopped.
        value, by: the decision, and the handler that made it; of a chain, the value so far.
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

    def __init__(
        self, hook: str, place: str, given: HookCall, convert: Callable[[Any], Any] = lambda value: value
    ) -> None:
        self.hook, self.place, self.given, self.convert = hook, place, given, convert
        contract = CONTRACTS[hook]
        self.chained, self.kind = contract.chained, contract.kind
        self.asked = False  # whether a plugin fired it, so that its end is always written
        self.original = given[self.chained] if self.chained else None
        self.over: list[list[Any]] = []
        self.passed: list[list[Any]] = []
        self._call = call_of(given) if hook == "before_each_tool" else None
        self._left: list[tuple[By, Any, bool]] = []  # by handler: the call afterwards, and whether it changed it

    def ran(self, by: By, builtin: bool = False) -> None:
        """Note that a handler has run."""
        if not builtin and self.kind != "around":  # those run again as long as the run has not ended
            self.last = by
            self.passed.append([by.get("plugin"), by.get("handler")])
        if self._call is not None and by.get("hook") == self.hook:
            changed = not is_call(self.given, self._call)
            self._call = call_of(self.given) if changed else self._call
            self._left.append((by, self._call, changed))

    def leave_out(self, over: Iterable[list[Any]]) -> None:
        """Skip handlers: `[plugin, handler]`, and optionally whether it changed a call that others had allowed."""
        for plugin, handler, *changed in over:
            self.over.append([plugin, handler])
            if changed:
                self._left.append(({"plugin": plugin, "handler": handler}, self._call, changed[0]))

    def edit_again(self, changes: list[TraceEntry]) -> None:
        """Repeat the edits of the handlers that ran before the turn stopped."""
        edit_again(self.given, changes)
        self._call = call_of(self.given) if self.hook == "before_each_tool" else None
        edits = [_key(change.get("by") or {}) for change in changes if change.get("of") == "tool_call"]
        last = max((at for at, key in enumerate(self.passed) if key in edits), default=-1)
        for at, (plugin, handler) in enumerate(self.passed or edits):
            by, left = {"plugin": plugin, "handler": handler}, self._call if at >= last else None
            self._left.append((by, left, [plugin, handler] in edits))

    def call(self, host: Any, agent: Any) -> HookRun:
        """Call the handlers of the agent's host, and take what they decide."""
        value = host.call(self.hook, self.given, self.over)
        if self.kind == "collect" or self.kind == "around":
            self.value, self.by = value, agent.by
        elif self.kind == "first" and self.given.decided is not None:
            self.value, self.by = self.convert(self.given.decided.value), self.given.decided.by
        elif self.hook == "before_each_tool":
            self.again = self._outdated(partial(host.is_last, self.hook))
        return self

    def editors(self, is_last: Callable[[By], bool]) -> list[list[Any]]:
        """The handlers that changed the call. They do not run again, since they would change it twice.

        A handler that runs last is not among them: it decided about the call as it left it.
        """
        return [[*_key(by), True] for by, _, edited in self._left if edited and not is_last(by)]

    def _outdated(self, is_last: Callable[[By], bool]) -> list[list[Any]] | None:
        """The value of `again`."""
        if not self._left:
            return None
        last, kept = self._call, is_call(self.given, self._call)  # most handlers leave the call as the last one does
        outdated = [by for by, left, _ in self._left if not (kept if left is last else is_call(self.given, left))]
        if not outdated:
            return None
        done = self.editors(is_last)
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
        """Take the result from a line of `as_data`."""
        self.again = line.get("again")
        if "request" in line:
            change_request(self.given["request"], line["request"])
        if "value" in line:
            self.value, self.by = from_stored(line["value"]), line.get("by")
            if self.chained:
                self.given[self.chained] = self.value
        if (more := line.get("more")) is not None:
            self.given.decided = HandlerValue(Continue(from_stored(more["prompt"])), more["by"])


def _key(by: By) -> list[Any]:
    return [by.get("plugin"), by.get("handler")]


def call_of(given: dict[str, Any]) -> tuple[Any, ...] | None:
    """What is decided about the tool call among the arguments of a hook: the tool, and what it is called with; or None.

    A call with an `error` is let pass since it is not run, and so is one of a tool that is not there.
    """
    call = given.get("tool_call")
    return (_tool_of(given), call.name, call.error, copy_of(call.arguments)) if isinstance(call, ToolCall) else None


def is_call(given: dict[str, Any], other: Any) -> bool:
    """Whether the tool call among the arguments of a hook is still what `call_of` returned."""
    call = given["tool_call"]
    if not isinstance(call, ToolCall) or other is None or _tool_of(given) is not other[0]:
        return False
    return alike((call.name, call.error, call.arguments), other[1:])


def _tool_of(given: dict[str, Any]) -> Any:
    name = given["tool_call"].name
    return given["agent"].tools.get(name) if isinstance(name, str) else None
