"""The state of a session: how its values are compared, its changes, and the keys that live for one turn."""

from __future__ import annotations

from operator import is_
from typing import Any

from connectagent.errors import ConfigError
from connectagent.session.snapshot import ATOMS, copy_of, same

_ABSENT = object()


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
    plain = next((one for one in (str, int, float, bytes) if isinstance(left, one)), None)
    return same(left, right) if plain is None or kind is plain else bool(plain.__eq__(left, right))


def initial_state(state: Any) -> dict[str, Any] | None:
    """A copy of the state with which sessions begin.

    Raises:
        ConfigError: it is neither a dict nor None.
    """
    if state is not None and not isinstance(state, dict):
        raise ConfigError(f"state is a dict with which sessions begin, not {type(state).__name__} {state!r:.80}")
    return None if state is None else {**copy_of(state)}


def is_temporary(key: Any) -> bool:
    """Whether a key of the state lives for one turn and is never recorded."""
    return isinstance(key, str) and key.startswith("temp:")


def lasting(value: Any) -> Any:
    """A value of the state without the keys that live for one turn."""
    if isinstance(value, dict):
        return {key: lasting(item) for key, item in value.items() if not is_temporary(key)}
    return type(value)(map(lasting, value)) if type(value) in (list, tuple) else value


def drop_temporary(value: Any) -> bool:
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


def _grown(before: Any, value: Any) -> int | None:
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


def mergeable(change: dict[str, Any]) -> dict[str, Any]:
    """A `state_delta` in the form of `state_change`, to repeat it where others have changed the state too."""
    added, removed, delta = change.get("added") or {}, change.get("removed") or (), change.get("delta") or {}
    appended = {key: delta[key][len(delta[key]) - count :] for key, count in added.items()}
    delta = {key: value for key, value in delta.items() if key not in added and key not in removed}
    return {"delta": delta, "appended": appended, "removed": removed}


def state_change(old: dict[Any, Any], new: dict[Any, Any]) -> dict[str, Any]:
    """What an inner agent changed, in a form to merge; includes keys that live for one turn.

    Returns:
        `delta`: the keys that were set; `appended`: what was added to lists, since other agents may add to them too;
        `removed`: the removed keys. {} for no change.
    """
    delta: dict[Any, Any] = {}
    appended: dict[Any, Any] = {}
    for key, value in new.items():
        before = old.get(key)
        if key in old and same(before, value):
            continue
        grown = _grown(before if key in old else [], value)  # a parallel agent may begin the same list
        if grown is not None:
            appended[key] = copy_of(value[len(value) - grown :])
        else:
            delta[key] = copy_of(value)
    removed = [key for key in old if key not in new]
    change = {"delta": delta, "appended": appended, "removed": removed}
    return {name: value for name, value in change.items() if value}


def merge_change(state: dict[Any, Any], change: dict[str, Any]) -> None:
    """Merge a change in the form of `state_change`."""
    state.update(copy_of(change.get("delta") or {}))
    for key, items in (change.get("appended") or {}).items():
        state[key] = [*state[key], *copy_of(items)] if type(state.get(key)) is list else list(copy_of(items))
    for key in change.get("removed") or ():
        state.pop(key, None)
