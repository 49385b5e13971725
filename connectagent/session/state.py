"""The state of a session: how its values are compared, its changes, and the keys that live for one turn."""

from __future__ import annotations

from operator import is_
from typing import Any

from connectagent.errors import ConfigError
from connectagent.session.snapshot import ATOMS, copy_of, same

_ABSENT = object()
StateChange = dict[str, Any]  # in the form of `state_change`


def alike(left: Any, right: Any) -> bool:
    """Whether two values are equal and of the same types, in all that they hold.

    `same` takes True for 1, and believes what an `__eq__` says of a text.
    """
    kind = type(left)
    if kind is not type(right):
        return False
    if kind in ATOMS:
        return left is right or bool(left == right)
    try:
        if kind is dict:
            if len(left) != len(right):
                return False
            for key, value in left.items():
                other = right.get(key, _ABSENT)
                if value is not other and not alike(value, other):  # most are the same objects, which needs no call
                    return False
            return True
        if kind in (list, tuple):
            return len(left) == len(right) and (all(map(is_, left, right)) or all(map(alike, left, right)))
    except Exception:
        return False
    return _alike_by_eq(left, right)


def _alike_by_eq(left: Any, right: Any) -> bool:
    """Whether two values of one type are equal; a text is compared as a text, whatever its own `__eq__` says."""
    plain = next((one for one in (str, int, float, bytes) if isinstance(left, one)), None)
    return same(left, right) if plain is None or type(left) is plain else bool(plain.__eq__(left, right))


def initial_state(state: object) -> dict[str, Any] | None:
    """A copy of the state with which sessions begin.

    Raises:
        ConfigError: it is neither a dict nor None.
    """
    if state is not None and not isinstance(state, dict):
        raise ConfigError(f"state is a dict with which sessions begin, not {type(state).__name__} {state!r:.80}")
    return None if state is None else {**copy_of(state)}


def is_temporary(key: object) -> bool:
    """Whether a key of the state lives for one turn and is never recorded."""
    return isinstance(key, str) and key.startswith("temp:")


def lasting(value: Any) -> Any:
    """A value of the state without the keys that live for one turn."""
    if isinstance(value, dict):
        return {key: lasting(item) for key, item in value.items() if not is_temporary(key)}
    return type(value)(map(lasting, value)) if type(value) in (list, tuple) else value


def drop_temporary(value: object) -> bool:
    """Remove the keys that live for one turn, and return whether there was one."""
    dropped = False
    if isinstance(value, dict):
        for key in tuple(value):
            if is_temporary(key):
                del value[key]
                dropped = True
    if isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            dropped |= drop_temporary(item)
    return dropped


def state_delta(old: dict[Any, Any], new: dict[Any, Any]) -> dict[str, Any]:
    """A change of the state for a trace entry, without keys that live for one turn; {} for no change.

    Returns:
        `delta`: the top-level keys that changed, with their new values; None for a removed key.
        `added`: for lists that only grew, the number of new items at their end, if any.
        `removed`: the removed keys, if any.
    """
    delta: dict[Any, Any] = {}
    added: dict[Any, int] = {}
    removed = []
    for key in {**old, **new}:
        if is_temporary(key) or (key in old and key in new and same(old[key], new[key])):
            continue
        value = lasting(new.get(key))
        if key not in new:
            removed.append(key)
        if key not in old or key not in new or not same(lasting(old[key]), value):
            delta[key] = copy_of(value)
            if key in new and (grown := _grown(old.get(key, []), new[key])) is not None:
                added[key] = grown
    change = {"delta": delta, "added": added, "removed": removed}
    return {name: value for name, value in change.items() if value} if delta else {}


def _grown(before: object, value: object) -> int | None:
    """How many items a list has behind those that it had; None where it is another one."""
    if type(value) is not list or type(before) is not list or not same(value[: len(before)], before):
        return None
    return len(value) - len(before)


def joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Two successive changes of the state as one, in the form of `state_delta` without `added`."""
    later = second.get("delta", {})
    removed = [key for key in first.get("removed", ()) if key not in later] + second.get("removed", [])
    delta = {**first.get("delta", {}), **later}
    return ({"delta": delta} | ({"removed": removed} if removed else {})) if delta else {}


def mergeable(change: dict[str, Any]) -> StateChange:
    """A `state_delta` in the form of `state_change`, to repeat it where others have changed the state too."""
    added, removed, delta = change.get("added") or {}, change.get("removed") or (), change.get("delta") or {}
    appended = {key: delta[key][len(delta[key]) - count :] for key, count in added.items()}
    delta = {key: value for key, value in delta.items() if key not in added and key not in removed}
    return {"delta": delta, "appended": appended, "removed": removed}


def state_change(old: dict[Any, Any], new: dict[Any, Any]) -> StateChange:
    """What turns one state into another, in a form to merge; includes keys that live for one turn.

    A value of `inside` is a change of the dict at that key, in the same form. So two agents that set different keys of
    one dict both keep theirs, at every depth.

    Returns:
        `delta`: the keys that were set; `appended`: what was added to lists, and dicts that were begun, since other
        agents may add to them too; `inside`: the changes of dicts; `removed`: the removed keys. {} for no change.
    """
    delta: dict[Any, Any] = {}
    appended: dict[Any, Any] = {}
    inside: dict[Any, StateChange] = {}
    for key, value in new.items():
        before = old.get(key, _ABSENT)
        if before is not _ABSENT and same(before, value):
            continue
        if type(value) is dict and type(before) is dict and _is_by_key(before, value):
            inside[key] = state_change(before, value)
        elif type(value) is dict and before is _ABSENT:  # a parallel agent may begin the same dict, or the same list
            appended[key] = copy_of(value)
        elif (grown := _grown([] if before is _ABSENT else before, value)) is not None:
            appended[key] = copy_of(value[len(value) - grown :])
        else:
            delta[key] = copy_of(value)
    removed = [key for key in old if key not in new]
    change = {"delta": delta, "appended": appended, "inside": inside, "removed": removed}
    return {name: value for name, value in change.items() if value}


def _is_by_key(before: dict[Any, Any], value: dict[Any, Any]) -> bool:
    """Whether a change of a dict can be told key by key: of removed keys that are no texts, the record cannot tell."""
    return all(isinstance(key, str) for key in before.keys() - value.keys())


def merge_change(state: dict[Any, Any], change: StateChange) -> None:
    """Merge a change in the form of `state_change`; a dict or list inside is replaced, never changed in place."""
    state.update(copy_of(change.get("delta") or {}))
    for key, items in (change.get("appended") or {}).items():
        state[key] = _with_added(state.get(key), copy_of(items))
    for key, inner in (change.get("inside") or {}).items():
        there = state.get(key)
        state[key] = dict(there) if type(there) is dict else {}
        merge_change(state[key], inner)
    for key in change.get("removed") or ():
        state.pop(key, None)


def _with_added(there: object, items: object) -> Any:
    """A list with more items, or a dict with more keys; the items themselves where there is neither."""
    if type(there) is list and type(items) is list:
        return [*there, *items]
    if type(there) is not dict or type(items) is not dict:
        return items
    both = {key: _with_added(there[key], item) if key in there else item for key, item in items.items()}
    return {**there, **both}
