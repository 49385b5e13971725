"""One finished turn to assert on, and a crash at any point of it."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from connectagent import hooks
from connectagent.agents.agent import Agent
from connectagent.agents.awaitable import Prompt
from connectagent.data import LLM, Message, TraceEntry
from connectagent.errors import did_you_mean
from connectagent.hooks.specs import AROUND, EVENTS, OBSERVING
from connectagent.testing.recorder import HookRecorder
from connectagent.testing.script import ScriptedLLM, ScriptEnded


@dataclass
class Turn:
    """What became of one `agent.input()`.

    Attributes:
        result: what `input()` returned; None where it raised.
        error: what it raised, Ctrl-C included; None where it returned.
        agent: the agent, to go on with.
        llm: the model; `llm.requests` holds what it was asked.
        hooks: a `HookRecorder` that was listed first: `hooks.names`, `hooks.of("after_tools")`, `hooks.calls`.
    """

    result: str | None
    error: BaseException | None
    agent: Agent = field(repr=False)
    llm: Any = field(repr=False)
    hooks: HookRecorder = field(repr=False)

    @property
    def trace(self) -> list[TraceEntry]:
        """The entries of the session's trace; [] where there is no session."""
        return self.agent.current_session["trace"] if self.agent.current_session else []

    @property
    def messages(self) -> list[Message]:
        """The conversation; [] where there is no session."""
        return self.agent.current_session["messages"] if self.agent.current_session else []


def run_agent(
    *responses: Any, prompt: Prompt = "Go.", tools: object = None, plugins: object = None, **agent_options: Any
) -> Turn:
    """Run one turn of an agent whose model follows a script; nothing is shown and no file is written.

    Args:
        responses: what the model answers, as `ScriptedLLM` takes it.
        prompt: what the user says.
        tools: the agent's tools.
        plugins: the agent's plugins; a `HookRecorder` is listed before them.
        agent_options: the rest goes to `Agent`: `log=None` for a `.co`, `quiet=False` for the terminal, `llm=` for
            another model, `name=`, `max_iterations=` and so on.

    Raises:
        ScriptEnded: the model was called more often than there are responses.
    """
    options = {"name": "tested", "log": False, "quiet": True, **agent_options}
    if responses and options.get("llm") is not None:
        raise TypeError("run_agent() takes responses for a ScriptedLLM, or llm=, not both")
    llm = options.setdefault("llm", None) or ScriptedLLM(*responses)
    recorder = HookRecorder()
    agent = Agent(**{**options, "llm": llm}, tools=tools, plugins=[recorder, plugins])
    turn = Turn(None, None, agent, llm, recorder)
    try:
        turn.result = agent.input(prompt)
    except ScriptEnded:
        raise  # a mistake of the test, not an outcome
    except BaseException as error:
        turn.error = error
    return turn


# -- crashes -------------------------------------------------------------------------------------

POINTS = (
    *EVENTS,
    *(f"{hook}:{half}" for hook in AROUND for half in ("enter", "exit")),
    *OBSERVING,
    "model",
    "tool",
)


class crash_at:
    """A plugin that raises when a hook fires for the nth time.

    Args:
        hook: an event or observing hook; `"around_tool:enter"` or `"around_tool:exit"`, for the half of an around
            hook before or behind the operation (`"around_tool"` is the first); `"model"` or `"tool"`: inside the
            model's call or inside a tool that the agent was made with.
        nth: which time, counted from 1.
        error: what is raised, a class or an instance.

    Attributes:
        seen: how often the hook fired.
        fired: whether the error was raised.

    Raises:
        ValueError: there is no such hook, or `nth` is not a number from 1 up.
        TypeError: `error` cannot be raised.
    """

    name = "crash_at"

    def __init__(self, hook: str, nth: int = 1, error: BaseException | type[BaseException] = KeyboardInterrupt) -> None:
        point = f"{hook}:enter" if hook in AROUND else hook
        if point not in POINTS:
            hint = did_you_mean(str(hook), POINTS, 0.5)
            raise ValueError(f"crash_at() knows no hook {hook!r}.{hint} Known: {', '.join(POINTS)}")
        if type(nth) is not int or nth < 1:
            raise ValueError(f"crash_at() counts from 1: nth={nth!r} is never reached")
        if not isinstance(error, BaseException) and not (isinstance(error, type) and issubclass(error, BaseException)):
            raise TypeError(f"crash_at() raises an exception, a class or an instance, not {error!r}")
        self.hook, self.nth, self.error = point, nth, error
        self.seen, self.fired = 0, False
        name, _, half = point.partition(":")
        handlers = {"model": self._in_model, "tool": self._in_tools, "enter": self._enter, "exit": self._exit}
        marker = getattr(hooks, name, hooks.on_agent_ready(trylast=True))  # behind the plugins that add tools
        self.handler = marker(_function(handlers.get(half or name, self._tick)))

    def __repr__(self) -> str:
        return f"crash_at({self.hook!r}, nth={self.nth}, error={self.error!r})"

    def _tick(self) -> None:
        self.seen += 1
        if self.seen == self.nth:
            self.fired = True
            raise self.error

    def _enter(self) -> Generator[None, Any, None]:
        self._tick()
        yield

    def _exit(self) -> Generator[None, Any, None]:
        try:
            yield
        finally:
            self._tick()

    def _in_model(self, agent: Agent) -> None:
        agent.llm = _Ticking(agent.llm, self._tick)

    def _in_tools(self, agent: Agent) -> None:
        for tool in agent.tools:
            mine = copy.copy(agent.tools.remove(tool.name))  # a `Tool` may be of other agents as well
            mine.function = mine.function and _before(mine.function, self._tick)
            agent.add_tool(mine)


def _function(method: Any) -> Any:
    """A function of its own for each crash, since a marker marks the function, not the bound method."""
    if method.__func__ in (crash_at._enter, crash_at._exit):

        def around() -> Generator[None, Any, None]:
            yield from method()

        return around
    if method.__func__ is crash_at._tick:
        return lambda: method()
    return lambda agent: method(agent)


def _before(function: Callable[..., Any], tick: Callable[[], None]) -> Callable[..., Any]:
    @functools.wraps(function)
    def ticking(*args: Any, **kwargs: Any) -> Any:
        tick()
        return function(*args, **kwargs)

    return ticking


class _Ticking:
    """A model that counts its calls."""

    def __init__(self, llm: LLM, tick: Callable[[], None]) -> None:
        self._llm, self._tick = llm, tick

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._llm, name)
        return _before(value, self._tick) if name in ("complete", "stream") else value
