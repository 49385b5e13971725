"""The arguments of a call in the one form that handlers decide on and the tool gets, wherever the call is edited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from connectagent.data import ToolCall
from connectagent.errors import HookResultError, ToolArgumentsError
from connectagent.hooks.handler import Handler, who
from connectagent.session.messages import shown_call
from connectagent.session.snapshot import By, Snapshot, clone, same
from connectagent.session.state import alike
from connectagent.tools.registry import ToolRegistry
from connectagent.tools.tool import Tool

CALLS_OF = {"before_tools": "tool_calls", "before_each_tool": "tool_call", "around_tool": "tool_call"} | {
    "on_error": "tool_call"
}
"""The hooks whose handlers may edit pending calls, each with the parameter that has them."""
_PENDING = ("pending_tool", "pending_tools")


def check_arguments(tools: ToolRegistry, call: ToolCall, edited: bool = True) -> None:
    """Bring the arguments of a call into the form of its tool, and note in `misfit` why they do not fit.

    Args:
        tools: the tools of the agent.
        call: the call; one that could not be read, or whose tool is not there, stays as it is.
        edited: whether somebody wrote the arguments since the last check. If not, for example if the call was only
            renamed, the form is made from what was written then.
    """
    if call.error is not None:
        return
    tool = tools.by_name.get(call.name) if isinstance(call.name, str) else None
    written = call.arguments if edited or call.sent is None else call.sent
    form, call.misfit = _form(tool, written)
    if form is not written:
        call.sent = written
    elif call.sent is not None and not (edited and alike(_form(tool, call.sent)[0], written)):
        call.sent = None
    call.arguments = form


def refuse_unfit(call: ToolCall) -> None:
    """Refuse to run a call whose arguments could not be read, or do not fit its tool.

    Raises:
        ToolArgumentsError: the model reads what it would have to send.
    """
    if call.error:
        raise ToolArgumentsError(f"the arguments could not be read: {call.error}; send one JSON object")
    if call.misfit is not None:
        raise ToolArgumentsError(call.misfit)


def _form(tool: Tool | None, written: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """The form of arguments for a tool, and why they do not fit; they themselves if they do not, or are in it."""
    if tool is None:
        return written, None
    try:
        return tool.canonical(written), None
    except ToolArgumentsError as error:
        return written, str(error)


def repeat_edit(tools: ToolRegistry, call: ToolCall, name: Any, arguments: Any) -> None:
    """Make a call what a handler had made of it before the turn stopped.

    A call that the handler only renamed still knows what was sent, from which the next renaming starts.
    """
    call.name = name
    check_arguments(tools, call, edited=False)
    if not alike(call.arguments, arguments):
        call.arguments = clone(arguments)
        check_arguments(tools, call)


# -- the pending calls in the session ----------------------------------------------------------------


def take_pending(handler: Handler, given: dict[str, Any], before: dict[str, Any], snapshot: Snapshot) -> None:
    """Apply what a handler changed in the session's pending calls to the calls of its hook, which are the same calls.

    Args:
        handler: the handler that has run.
        given: the arguments of its hook.
        before: `peek` of them before it ran.
        snapshot: of the session.

    Raises:
        HookResultError: the change cannot be applied.
    """
    session, copy = snapshot.session, snapshot.copy
    earlier = snapshot.pending_changed  # then the copy has the change already
    snapshot.pending_changed = False
    _check_form(who(handler), session, copy)
    name = CALLS_OF.get(handler.hook, "")
    calls, then = calls_with(name, given, before)
    shown: list[tuple[str, Any, Any]] = []  # where a pending call stands, as it is now, and as it was
    for key in _PENDING:
        now, was = _listed(session.get(key)), _listed(copy.get(key))
        shown += [(key, one, other) for one, other in zip(now, was, strict=True)]
    for key, now, was in shown:
        place = _place_of(was, calls, then)
        if place is None and _differ(now, was):
            raise HookResultError(_misplaced(who(handler), key))
        if place is not None and (earlier or _differ(now, was)):
            _take_one(handler, key, calls[place], now, then[place])


def calls_with(name: str, given: dict[str, Any], before: dict[str, Any]) -> tuple[list[ToolCall], list[Any]]:
    """The calls that handlers of a hook may edit, and `peek` of each; `name`: the parameter that has them, or ""."""
    if not name or not given.get(name):
        return [], []
    if name == "tool_calls":
        return list(given[name]), list(before[name])
    return [given[name]], [before[name]]


def _check_form(whose: str, session: dict[str, Any], copy: dict[str, Any]) -> None:
    """Refuse pending calls that are no calls, or other ones than before.

    Raises:
        HookResultError: they cannot be used.
    """
    for key in _PENDING:
        was = copy.get(key)
        now = session.get(key)
        if was is None and now is not None:
            raise HookResultError(_misplaced(whose, key))
        ids = [one.get("id") if isinstance(one, dict) else None for one in _listed(now)]
        whole = all(isinstance(one, dict) and isinstance(one.get("arguments"), dict) for one in _listed(now))
        if type(now) is not type(was) or not whole or ids != [one["id"] for one in _listed(was)]:
            raise HookResultError(_unusable(whose, key))


def _listed(pending: Any) -> list[Any]:
    """One pending call, or several, as a list."""
    if pending is None:
        return []
    return pending if isinstance(pending, list) else [pending]


def _place_of(shown: dict[str, Any], calls: list[ToolCall], then: list[Any]) -> int | None:
    """Which of the calls a pending call is. Some models repeat ids, so the one that looks the same comes first."""
    same_id = [number for number, call in enumerate(calls) if call.id == shown.get("id")]
    for number in same_id:
        _, name, arguments, *_ = then[number]
        if alike(shown.get("name"), name) and alike(shown.get("arguments"), arguments):
            return number
    return same_id[0] if same_id else None


def _take_one(handler: Handler, key: str, call: ToolCall, shown: dict[str, Any], then: tuple[Any, ...]) -> None:
    """Apply one pending call to the call; `then`: the call before the handler ran."""
    if alike(shown.get("name"), call.name) and alike(shown["arguments"], call.arguments):
        return
    _, name, arguments, *_ = then
    if alike(shown.get("name"), name) and alike(shown["arguments"], arguments):
        return  # the handler edited the call itself
    if not (alike(call.name, name) and alike(call.arguments, arguments)):
        raise HookResultError(f"{who(handler)} edited a call and current_session[{key!r}] in different ways")
    call.name = shown["name"]
    call.arguments = clone(shown["arguments"])


def check_edited(calls: Sequence[ToolCall], then: Sequence[tuple[Any, ...]], tools: ToolRegistry) -> None:
    """Check the calls that a handler edited; `then`: the calls before it ran."""
    for call, (_, name, arguments, *_) in zip(calls, then, strict=True):
        edited = not alike(call.arguments, arguments)
        if edited or not alike(call.name, name):
            check_arguments(tools, call, edited)


def show_pending(snapshot: Snapshot, calls: Sequence[ToolCall], then: Sequence[tuple[Any, ...]]) -> None:
    """Write edited calls into the session's pending ones; `then`: the calls before they were edited."""
    session, pending = snapshot.session, snapshot.pending
    if isinstance(pending, dict):
        place = _place_of(snapshot.copy.get("pending_tool") or {}, list(calls), list(then))
        if place is not None:
            pending.clear()
            pending.update(shown_call(calls[place]))
            session["pending_tool"] = pending
            snapshot.copy["pending_tool"] = clone(pending)
    listed: Any = session.get("pending_tools")
    for number, was in enumerate(_listed(snapshot.copy.get("pending_tools"))):
        place = _place_of(was, list(calls), list(then))
        if place is not None:
            listed[number] = shown_call(calls[place])
    if listed is not None:
        snapshot.copy["pending_tools"] = clone(listed)


def refuse_pending(snapshot: Snapshot, by: By) -> None:
    """Undo what a tool changed in the session's pending calls, which are under way.

    Raises:
        HookResultError: it changed them.
    """
    changed = [key for key in _PENDING if _differ(snapshot.session.get(key), snapshot.copy.get(key))]
    for key in changed:
        snapshot.session[key] = clone(snapshot.copy[key])
    if changed:
        raise HookResultError(
            _misplaced(f"the tool {by.get('tool')!r} ({by.get('file')}:{by.get('line')})", changed[0])
        )


def _differ(now: Any, then: Any) -> bool:
    """Whether pending calls are others than they were: keys of others may be added to them."""
    if isinstance(now, list) and isinstance(then, list):
        return len(now) != len(then) or any(map(_differ, now, then))
    if isinstance(now, dict) and isinstance(then, dict):
        return any(not same(now.get(key), then.get(key)) for key in ("id", "name", "arguments"))
    return not same(now, then)


def _misplaced(whose: str, key: str) -> str:
    hook = "before_tools" if key == "pending_tools" else "before_each_tool"
    return f"{whose} changed current_session[{key!r}], which has no effect there: edit calls in {hook}, before they run"


def _unusable(whose: str, key: str) -> str:
    what = "a dict with the call's 'id', a 'name' and 'arguments', which are a dict"
    form = f"a list with {what}, for each call of the round" if key == "pending_tools" else what
    return (
        f"{whose} left current_session[{key!r}] in a form that cannot be used: it must stay {form}; "
        "raise ToolRejected to refuse a call"
    )
