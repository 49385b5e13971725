"""The session as a body sees it that runs beside others: its state may be changed, nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

WHY = "this call runs beside others of its round, so it may change the session's state only; see @tool(alone=True)"


def _refuse(self: Any, *given: Any, **named: Any) -> NoReturn:
    """Raise in place of a change."""
    raise RuntimeError(WHY)


def read_only(value: Any) -> Any:
    """A list or dict that cannot be changed, nor what it holds; any other value as it is."""
    if type(value) is list:
        return ReadOnlyList(value)
    return ReadOnlyDict(value) if type(value) is dict else value


class ReadOnlyList(list[Any]):
    """A copy of a list that refuses changes; what is taken out of it refuses them too."""

    append = extend = insert = remove = pop = clear = sort = reverse = _refuse
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse

    def __getitem__(self, index: Any) -> Any:
        return read_only(super().__getitem__(index))

    def __iter__(self) -> Iterator[Any]:
        return map(read_only, super().__iter__())

    def __reversed__(self) -> Iterator[Any]:
        return map(read_only, super().__reversed__())


class ReadOnlyDict(dict[Any, Any]):
    """A copy of a dict that refuses changes; what is taken out of it refuses them too."""

    update = pop = popitem = clear = setdefault = _refuse
    __setitem__ = __delitem__ = __ior__ = _refuse

    def __getitem__(self, key: Any) -> Any:
        return read_only(super().__getitem__(key))

    def get(self, key: Any, default: Any = None) -> Any:
        return read_only(super().get(key, default))

    def values(self) -> Any:
        return [read_only(value) for value in super().values()]

    def items(self) -> Any:
        return [(key, read_only(value)) for key, value in super().items()]


class BodySession(ReadOnlyDict):
    """`current_session` in a body that runs beside others.

    Args:
        session: the session itself.
        pending: the call that the body runs.
        state: gives the body's copy of the state.
        replace: takes another dict in its place.
    """

    def __init__(
        self,
        session: dict[str, Any],
        pending: Any,
        state: Callable[[], dict[str, Any]],
        replace: Callable[[dict[str, Any]], None],
    ) -> None:
        super().__init__({**session, "pending_tool": pending, "state": state()})
        self._state, self._replace = state, replace

    def __getitem__(self, key: Any) -> Any:
        return self._state() if key == "state" else super().__getitem__(key)

    def get(self, key: Any, default: Any = None) -> Any:
        return self._state() if key == "state" else super().get(key, default)

    def values(self) -> Any:
        return [self[key] for key in self]

    def items(self) -> Any:
        return [(key, self[key]) for key in self]

    def __setitem__(self, key: Any, value: Any) -> None:  # type: ignore[override]
        if key != "state" or not isinstance(value, dict):
            raise RuntimeError(WHY)
        self._replace(value)
