"""`@resource`: what tools and handlers share, made when one of them first takes it, and torn down in order."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any, Literal, overload

from connectagent.errors import HandlerError, ResourceError, did_you_mean
from connectagent.hooks.connectonion import UNORDERED
from connectagent.hooks.handler import MARKS, RESOURCE, F, Handler, check_handler, known_resources, place_of
from connectagent.tools.waits import holding

Scope = Literal["turn", "agent", "process"]
SCOPES: tuple[Scope, ...] = ("turn", "agent", "process")  # the narrowest first


@overload
def resource(function: F, /) -> F: ...
@overload
def resource(*, scope: Scope = "turn", name: str | None = None) -> Callable[[F], F]: ...
def resource(function: Callable[..., Any] | None = None, /, *, scope: Scope = "turn", name: str | None = None) -> Any:
    """Mark a function that makes a resource: tools and handlers with a parameter of its name are given what it makes.

    The function returns the resource, or yields it once: what is behind the yield tears it down. It may take other
    resources, and `agent`. It belongs to a plugin: list it, or its module, in `plugins=`.

    Args:
        scope: for how long one is kept: for a root `turn`, for the outermost `agent` of a tree, or for the `process`.
        name: the resource's name, if not the function's.

    Raises:
        HandlerError: the scope is unknown, or the function cannot make a resource.
    """

    def mark(function: Any) -> Any:
        target = getattr(function, "__func__", function)
        if not callable(target) or isinstance(target, type):
            raise HandlerError(f"@resource marks functions, not {function!r:.80}")
        place = f"@resource {target.__name__!r} ({place_of(target)})"
        if scope not in SCOPES:
            hint = did_you_mean(str(scope), SCOPES)
            raise HandlerError(f"{place}: scope is one of {', '.join(SCOPES)}, not {scope!r}.{hint}")
        own = name or target.__name__
        if own == "agent" or not own.isidentifier():
            raise HandlerError(f"{place}: a resource is a parameter, and cannot be named {own!r}")
        parameters = inspect.signature(target).parameters
        if scope == "process" and "agent" in parameters:
            raise HandlerError(f"{place}: a resource of the process outlives agents, and cannot take one")
        check_handler(target, RESOURCE, unbound=target is function or not inspect.ismethod(function))
        known_resources.add(own)
        marks = dict(getattr(target, MARKS, {}))
        marks[RESOURCE] = {**UNORDERED, "specname": RESOURCE, "scope": scope, "name": own}
        setattr(target, MARKS, marks)
        return function

    return mark if function is None else mark(function)


class Pool:
    """The resources of one turn, agent or process: each is made once, and all are torn down in reverse order.

    Attributes:
        over: whether they were torn down.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._made: dict[Any, Any] = {}
        self._open: list[tuple[Handler, Any]] = []
        self.over = False

    def get(self, handler: Handler, make: Callable[[], tuple[Any, Any]]) -> Any:
        """A resource; `make` gives the value, and the generator that tears it down or None."""
        with holding(self._lock):
            if self.over:
                raise ResourceError(f"{described(handler)} comes too late: what it belongs to was torn down")
            if handler.function not in self._made:
                self._made[handler.function], generator = make()
                if generator is not None:
                    self._open.append((handler, generator))
                    _kept.add(self)
            return self._made[handler.function]

    def close(self) -> list[Exception]:
        """Tear all resources down, also if some of them fail; their errors.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed meanwhile; all are torn down.
        """
        errors: list[Exception] = []
        interrupt: BaseException | None = None
        with holding(self._lock):
            self.over = True
            self._made.clear()
            _kept.discard(self)
            while self._open:
                handler, generator = self._open.pop()
                try:
                    next(generator)
                    generator.close()
                    errors.append(ResourceError(f"{described(handler)} yields more than once"))
                except StopIteration:
                    pass
                except Exception as error:
                    failed = ResourceError(
                        f"{described(handler)} could not be torn down: {type(error).__name__}: {error}"
                    )
                    failed.__cause__ = error
                    errors.append(failed)
                except BaseException as error:
                    interrupt = error
        if interrupt is not None:
            raise interrupt
        return errors


_kept: set[Pool] = set()  # those with something open: of a lost agent, generators must not be collected with it


def described(handler: Handler) -> str:
    """A resource for errors: name, file and line, plugin."""
    name, by = handler.opts["name"], handler.by
    return f"resource {name!r} ({by['file']}:{by['line']}, of plugin {handler.plugin!r})"
