"""The session as a parallel tool body sees it: only its state may be changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn, SupportsIndex

WHY = "this call runs in parallel with others, so it may change the session's state only; see @tool(alone=True)"


def _refuse(self: object, *given: Any, **named: Any) -> NoReturn:
    """Refuse a change."""
    raise RuntimeError(WHY)


def read_only(value: object) -> Any:
    """A deeply read-only copy of a list or dict; any other value unchanged."""
    if type(value) is list:
        return ReadOnlyList(value)
    return ReadOnlyDict(value) if type(value) is dict else value


class ReadOnlyList(list[Any]):
    """A copy of a list that refuses changes, at every depth."""

    append = extend = insert = remove = pop = clear = sort = reverse = _refuse
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        return read_only(super().__getitem__(index))

    def __iter__(self) -> Iterator[Any]:
        return map(read_only, super().__iter__())

    def __reversed__(self) -> Iterator[Any]:
        return map(read_only, super().__reversed__())


class ReadOnlyDict(dict[Any, Any]):
    """A copy of a dict that refuses changes, at every depth."""

    update = pop = popitem = clear = setdefault = _refuse
    __setitem__ = __delitem__ = __ior__ = _refuse

    def __getitem__(self, key: object) -> Any:
        return read_only(super().__getitem__(key))

    def get(self, key: object, default: object = None) -> Any:
        return read_only(super().get(key, default))

    def values(self) -> Any:
        return [read_only(value) for value in super().values()]

    def items(self) -> Any:
        return [(key, read_only(value)) for key, value in super().items()]


class BodySession(ReadOnlyDict):
    """`current_session` in a parallel body.

    Args:
        session: the session itself.
        pending: the call that the body runs.
        state: returns the body's copy of the state.
        replace: replaces that copy by another dict.
    """

    def __init__(
        self,
        session: dict[str, Any],
        pending: dict[str, Any] | None,
        state: Callable[[], dict[str, Any]],
        replace: Callable[[dict[str, Any]], None],
    ) -> None:
        super().__init__({**session, "pending_tool": pending, "state": state()})
        self._state, self._replace = state, replace

    def __getitem__(self, key: object) -> Any:
        return self._state() if key == "state" else super().__getitem__(key)

    def get(self, key: object, default: object = None) -> Any:
        return self._state() if key == "state" else super().get(key, default)

    def values(self) -> Any:
        return [self[key] for key in self]

    def items(self) -> Any:
        return [(key, self[key]) for key in self]

    def __setitem__(self, key: object, value: object) -> None:  # type: ignore[override]
        if key != "state" or not isinstance(value, dict):
            raise RuntimeError(WHY)
        self._replace(value)
