"""Plugins of ConnectOnion: its events as hooks, its handlers as handlers, and the agent in its form.

Where this distribution is installed, they are listed like other plugins: `plugins=[think_and_act]`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator
from typing import Any

from connectagent import HandlerError, ToolRejected
from connectagent.plugins import EVENTS, ForeignMarks, name_of, place_of, register_marks

# ConnectOnion's events and the hooks that fire at the same moments.
CONNECTONION = {name: name for name in (*EVENTS, "on_agent_ready")} | {"before_iteration": "before_llm"}


def adapted(function: Any, hook: str) -> Any:
    """A ConnectOnion handler as a handler of a hook.

    Its only argument is a `ConnectOnionAgent`. As in ConnectOnion, its value is ignored, an exception before a tool
    cancels that call, and `on_error` is for tools only.

    Raises:
        HandlerError: it cannot be called with the agent alone.
    """
    if (made := getattr(function, "_connectagent_handler", None)) is not None:
        return made  # the same one each time, so that a handler listed twice is refused
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        place = f"@{hook} handler {name_of(function)!r} ({place_of(function)})"
        raise HandlerError(f"{place} is ConnectOnion's and must take one parameter, the agent: {error}") from None

    @functools.wraps(function)
    def handler(agent: Any, tool_call: Any = None) -> None:
        if hook == "on_error" and tool_call is None:
            return
        try:
            function(ConnectOnionAgent(agent))
        except Exception as error:
            if hook != "before_each_tool" or isinstance(error, ToolRejected):
                raise
            raise ToolRejected(str(error) or type(error).__name__) from error

    taken = ["agent", "tool_call"] if hook == "on_error" else ["agent"]
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in taken]
    vars(handler)["__signature__"] = inspect.Signature(parameters)  # else `wraps` shows the function's own
    with contextlib.suppress(AttributeError):  # a bound method takes no attributes
        function._connectagent_handler = handler
    return handler


class ConnectOnionAgent:
    """What a handler in ConnectOnion's form receives as `agent`.

    Attributes are the agent's, so a `logger` or `connection` that a program has set on it is used.

    Args:
        agent: the agent.
    """

    def __init__(self, agent: Any) -> None:
        vars(self)["_agent"] = agent

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # isinstance(agent, Agent) holds
        return vars(self)["_agent"].__class__

    @property
    def logger(self) -> Any:
        """The agent's `logger`, else one that traces."""
        return getattr(vars(self)["_agent"], "logger", None) or Logger(vars(self)["_agent"])

    @property
    def connection(self) -> Any:
        """The client of a hosted agent; None for other agents."""
        return getattr(vars(self)["_agent"], "connection", None)

    @property
    def tools(self) -> Any:
        """The agent's tools."""
        return Tools(vars(self)["_agent"].tools)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_agent"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(vars(self)["_agent"], name, value)

    def __eq__(self, other: object) -> bool:
        return vars(self)["_agent"] is (vars(other)["_agent"] if type(other) is ConnectOnionAgent else other)

    def __hash__(self) -> int:
        return hash(vars(self)["_agent"])

    def __repr__(self) -> str:
        return repr(vars(self)["_agent"])


class Logger:
    """Traces what a plugin prints, as entries of type `log`."""

    def __init__(self, agent: Any) -> None:
        self._agent = agent

    def print(self, message: Any = "", style: str | None = None) -> None:
        """Trace a message.

        Args:
            message: the text. Markup of rich, such as `[dim]`, is left out.
            style: ignored: the entry is shown in its own style.
        """
        self._agent.current_session["trace"].append({"type": "log", "text": _plain(str(message))})


class Tools:
    """The agent's tools, and by the name of their class the objects whose methods are tools: `agent.tools.gmail`."""

    def __init__(self, registry: Any) -> None:
        self._registry = registry

    def get_instance(self, name: str, default: Any = None) -> Any:
        """The object whose methods are tools and whose class has this name in lower case; else `default`."""
        owners = (getattr(tool.function, "__self__", None) for tool in self._registry)
        return next((one for one in owners if type(one).__name__.lower() == name), default)

    def __getattr__(self, name: str) -> Any:
        owner = None if name.startswith("__") else self.get_instance(name)
        return getattr(self._registry, name) if owner is None else owner

    def __getitem__(self, name: str) -> Any:
        return self._registry[name]

    def __contains__(self, name: object) -> bool:
        return name in self._registry

    def __iter__(self) -> Iterator[Any]:
        return iter(self._registry)

    def __len__(self) -> int:
        return len(self._registry)


def _plain(text: str) -> str:
    """A text without rich's markup; unchanged where the markup is broken."""
    if "[" not in text:
        return text
    from rich.errors import MarkupError
    from rich.text import Text

    try:
        return Text.from_markup(text).plain
    except MarkupError:
        return text


MARKS = ForeignMarks("ConnectOnion", "_event_type", CONNECTONION, adapted)
"""What connectagent takes from the entry point: its markers set `_event_type` on a function."""

register_marks(MARKS)  # for a program that imports this package without having it installed
