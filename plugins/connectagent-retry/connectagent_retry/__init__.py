"""Makes failed calls again after a while, and asks other models in the end.

The waits are tenacity's: exponential, with jitter, and what a provider asks for. The loop itself waits and makes the
calls, so each attempt is traced, counted and recorded. The options are on `Retries`.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tenacity import RetryCallState, wait_exponential, wait_random

from connectagent import (
    ConfigError,
    LLMRequest,
    LLMResponse,
    ProviderError,
    Retry,
    ToolArgumentsError,
    ToolCall,
    TraceEntry,
    around_llm,
    on_agent_ready,
    on_error,
)

if TYPE_CHECKING:
    from connectagent import Agent

# The kinds of `ProviderError` that may be gone in a moment.
PASSING = {"rate_limit", "overloaded", "connection", "timeout", "stream", "server", "bad_response", "empty"}
PASSING |= {"tool_use_failed"}  # a model seldom writes a malformed call twice
# Kinds that only another model, or another provider, can help with.
ELSEWHERE = {"auth", "permission", "not_found", "context_length", "length", "refusal", "content_filter"}
_KEPT = 1000  # calls whose course is remembered, in case that interrupted ones leave theirs behind


@dataclass
class _Course:
    """How far a model call has come.

    Attributes:
        place: of its model in the list.
        made: the attempts at this model.
        seen: the attempts at all models in this process; another one may have made more before.
    """

    request: LLMRequest
    first: str
    place: int = 0
    made: int = 0
    seen: int = 0


class Retries:
    """The plugin: `Agent(plugins=["retry"])`, or with options `Agent(plugins=[("retry", {"attempts": 2})])`.

    Args:
        attempts: how often one model is asked, or one idempotent tool is run, for one call.
        wait_s: the wait before the second attempt; it doubles, and up to as much is added at random.
        max_wait_s: the longest wait. A provider that asks for more is not waited for.
        fallback: the names of models to ask afterwards, in this order.
        breaker: how many failures of a model in a row open its breaker; 0: there is none.
        breaker_s: how long it stays open: the model is passed over, or asked only once where no other is left.

    Raises:
        ConfigError: an option cannot be used.
    """

    changes = ("retry", "request?")
    shares_state = True

    name: ClassVar[str] = "retry"
    scope: ClassVar[str] = "process"  # what one agent learns about a model, others need not

    def __init__(
        self,
        attempts: int = 4,
        wait_s: float = 1,
        max_wait_s: float = 60,
        fallback: str | Sequence[str] = (),
        breaker: int = 5,
        breaker_s: float = 60,
    ) -> None:
        numbers = {"wait_s": wait_s, "max_wait_s": max_wait_s, "breaker": breaker, "breaker_s": breaker_s}
        for option, value in {"attempts": attempts, **numbers}.items():
            least = 1 if option == "attempts" else 0
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
                raise ConfigError(f"retry: {option} is a number from {least} up, not {value!r}")
        names = [fallback] if isinstance(fallback, str) else list(fallback)
        if not all(isinstance(name, str) and name for name in names):
            raise ConfigError(f"retry: fallback is the names of models, not {fallback!r}")
        self.attempts, self.fallback = attempts, names
        self.wait_s, self.max_wait_s = wait_s, min(max_wait_s, 86_399)  # `Retry` takes less than a day
        self.breaker, self.breaker_s = breaker, breaker_s
        self._wait = wait_exponential(multiplier=wait_s, max=self.max_wait_s) + wait_random(0, wait_s)
        self._courses: dict[int, _Course] = {}  # by request
        self._failures: dict[str, tuple[int, float]] = {}  # by model: how many in a row, and when the last one was
        self._lock = threading.Lock()

    @on_agent_ready
    def check(self, agent: Agent) -> None:
        """Find a misspelt fallback now, not when a model has failed.

        Raises:
            ConfigError: no provider has a model of that name.
        """
        for name in self.fallback:
            agent.create_llm(name)

    @around_llm
    def watch(self, agent: Agent, request: LLMRequest) -> Generator[None, LLMResponse, None]:
        """Ask without retries of the SDK, pass over a model with an open breaker, and note how it went."""
        request.options["max_retries"] = 0
        course = self._course(agent, request)
        if self._is_open(self._model(course)) and (place := self._next(course)) is not None:
            course.place, course.made = place, 0
            request.model = self._model(course)
        course.made += 1
        course.seen += 1
        try:
            yield
        except ProviderError as error:
            if error.kind in PASSING:
                self._note(self._model(course), failed=True)
            raise
        self._note(self._model(course), failed=False)
        self._courses.pop(id(request), None)

    @on_error
    def decide(
        self, agent: Agent, error: Exception, tool_call: ToolCall | None, request: LLMRequest | None, attempt: int
    ) -> Retry | None:
        """Make a failed call again, ask the next model, or give up."""
        if tool_call is not None:
            return self._decide_tool(agent, error, tool_call, attempt)
        if request is None or not isinstance(error, ProviderError) or error.kind not in PASSING | ELSEWHERE:
            return None
        course = self._course(agent, request)
        if attempt > course.seen:  # the turn was resumed in this call
            course.made = max(course.made, _failures_in(agent.session["trace"]))
        wait_s = self._wait_s(error, course.made)
        may_pass = error.kind in PASSING and not self._is_open(self._model(course))
        if may_pass and course.made < self.attempts and wait_s <= self.max_wait_s:
            return Retry(wait_s)
        if (place := self._next(course)) is not None:
            course.place, course.made = place, 0
            return Retry(model=self._model(course))
        self._courses.pop(id(request), None)
        return None

    def _decide_tool(self, agent: Agent, error: Exception, tool_call: ToolCall, attempt: int) -> Retry | None:
        tool = agent.tools.get(tool_call.name)
        if tool is None or not tool.idempotent or tool_call.error or isinstance(error, ToolArgumentsError):
            return None
        wait_s = self._wait_s(error, attempt)
        return Retry(wait_s) if attempt < self.attempts and wait_s <= self.max_wait_s else None

    def _wait_s(self, error: Exception, made: int) -> float:
        """How long to wait before the next attempt: what the provider asks for, or tenacity's wait."""
        state: Any = RetryCallState(None, None, (), {})  # type: ignore[arg-type]
        state.attempt_number = max(made, 1)
        wait_s, asked_s = min(float(self._wait(state)), self.max_wait_s), getattr(error, "retry_after_s", None)
        if asked_s is None or asked_s > self.max_wait_s:
            return wait_s if asked_s is None else float(asked_s)
        spread_s = float(asked_s) + random.uniform(0, self.wait_s)  # not all at one moment
        return min(max(wait_s, spread_s), self.max_wait_s)

    # -- the models ----------------------------------------------------------------------------

    def _course(self, agent: Agent, request: LLMRequest) -> _Course:
        """The course of a call; one that another process began is known by the model that it has come to."""
        with self._lock:
            if (course := self._courses.get(id(request))) is None:
                names = [name for name in self.fallback if request.model in (name, name.partition("/")[2])]
                known = request.model != agent.llm.model and bool(names)
                place = self.fallback.index(names[0]) + 1 if known else 0
                course = _Course(request, request.model, place)
                while len(self._courses) >= _KEPT:
                    del self._courses[next(iter(self._courses))]
                self._courses[id(request)] = course
            return course

    def _model(self, course: _Course) -> str:
        return self.fallback[course.place - 1] if course.place else course.first

    def _next(self, course: _Course) -> int | None:
        """The place of the next model whose breaker is not open; None where there is none."""
        places = range(course.place + 1, len(self.fallback) + 1)
        return next((place for place in places if not self._is_open(self.fallback[place - 1])), None)

    def _is_open(self, model: str) -> bool:
        failures, last = self._failures.get(model, (0, 0.0))
        return bool(self.breaker) and failures >= self.breaker and time.monotonic() - last < self.breaker_s

    def _note(self, model: str, failed: bool) -> None:
        with self._lock:
            failures = self._failures.get(model, (0, 0.0))[0]
            self._failures[model] = (failures + 1 if failed else 0, time.monotonic())


def _failures_in(trace: list[TraceEntry]) -> int:
    """How many attempts at the newest model call have failed at its last model, in all processes."""
    calls = [entry for entry in trace if entry["type"] == "llm_call" and entry.get("status") != "interrupted"]
    last = calls[-1] if calls else {}
    count = 0
    for entry in reversed(calls):
        if entry.get("status") != "error" or _call_of(entry) != _call_of(last) or entry["model"] != last["model"]:
            break
        count += 1
    return count


def _call_of(entry: TraceEntry) -> str:
    """The place of a model call, which its attempts have in common."""
    return str(entry.get("id")).rpartition("/model")[0] or str(entry.get("id"))
