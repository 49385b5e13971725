"""Which model a call asks, and what answers in its place: a handler, another attempt, or the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from connectagent.data import LLM, ConfigurableLLM, LLMRequest, LLMResponse, Retry, TraceEntry
from connectagent.frame import Frame
from connectagent.hooks.executor import HandlerValue
from connectagent.loop.described import handling
from connectagent.loop.refused import ask_without_refused
from connectagent.loop.stored import sent_before, stored_response, with_changes
from connectagent.loop.turn import Turn
from connectagent.session.edits import shown_options
from connectagent.session.messages import as_response, describe_answer
from connectagent.session.raised import model_error
from connectagent.session.requests import names_of
from connectagent.session.snapshot import By, clone
from connectagent.session.state import alike

MAX_RETRIES = 10  # of one call: a handler that always returns Retry must not hang the agent


def without_forced_call(options: dict[str, Any]) -> dict[str, Any]:
    """Options in which `tool_choice` leaves the model free; the same object where it does.

    A choice that forces a call is for the first model call of a turn: with it the model can never give the turn's
    answer. OpenAI's Agents SDK resets it for that reason too (`reset_tool_choice`).
    """
    choice = options.get("tool_choice")
    kind = choice.get("mode") or choice.get("type") if isinstance(choice, dict) else choice
    if kind in (None, "auto", "none"):
        return options
    free = {key: value for key, value in options.items() if key != "tool_choice"}
    if isinstance(choice, dict) and "disable_parallel_tool_use" in choice:  # Anthropic's, which says more
        free["tool_choice"] = {"type": "auto", "disable_parallel_tool_use": choice["disable_parallel_tool_use"]}
    return free


class Choice:
    """What handlers and the log make of a model call; see `Call`."""

    turn: Turn
    request: LLMRequest
    place: str
    id: str
    number: int
    conversation: Any
    asked: Frame | None
    llm: Any
    name: str | None
    model: str
    options: dict[str, Any]
    error: Exception | None
    entry: TraceEntry
    noted: dict[str, Any]
    ended: Any
    extra: int
    unsent: Sequence[str]
    others: bool
    tried: list[tuple[str, str, int, str | None]]
    attempt: Callable[..., LLMResponse | None]
    close: Callable[..., None]

    # -- which model ---------------------------------------------------------------------------

    def use(self, model: LLM | str) -> None:
        """Ask another model from now on; a name becomes a model when it is asked."""
        self.llm, self.name = model, None
        self.model = self.request.model = getattr(model, "model", str(model))

    def make_named(self, name: str) -> None:
        """Make the model that a handler named."""
        self.use(self.turn.agent.create_llm(name))
        self.name = name

    def choose(self) -> tuple[Any, str | None, dict[str, Any] | None]:
        """The model to ask now, the name by which a handler chose it, and its options; None if it has none."""
        agent, llm, name = self.turn.agent, self.llm or self.turn.agent.llm, self.name
        if self.request.model != self.model:
            name, llm = self.request.model, agent.create_llm(self.request.model)
        elif self.asked is not None and agent.runtime.asked_model is not None:
            llm = agent.runtime.asked_model(self.request.model)
        if self.request.options == self.options or not isinstance(llm, ConfigurableLLM):
            return llm, name, getattr(llm, "options", None)
        options = with_changes(llm.options, self.options, self.request.options)
        self.noted["options"] = shown_options(options)
        return llm.with_options(options), name, options

    def choosing_freely(self, llm: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The model and its options, which force no call behind the first of a turn, unless a handler said so."""
        is_first = self.conversation is None or self.conversation.session["iteration"] < 2
        if is_first or "tool_choice" in self.request.options or not isinstance(llm, ConfigurableLLM):
            return llm, options
        free = without_forced_call(options)
        return (llm, options) if free is options else (llm.with_options(free), free)

    def edited_tools(self) -> tuple[list[str], list[dict[str, Any]]]:
        """The names of the tools that handlers left, and a copy of their schemas: that of the call before, if equal."""
        before = [] if self.conversation is None else self.conversation.sent.get("tools")
        tools = before if alike(before, self.request.tools) else clone(self.request.tools)
        return names_of(tools), tools

    # -- another attempt, or another answer ----------------------------------------------------

    def running(self, hook: str) -> list[list[Any]]:
        """The running handlers of a hook that made this call, as `[plugin, handler]`: they do not run for it."""
        if self.asked is None:
            return []
        running = [self.asked.by, *self.turn.boundary.running]
        return [[by.get("plugin"), by.get("handler")] for by in running if by is not None and by.get("hook") == hook]

    def retried(self) -> LLMResponse | None:
        """What comes of a call whose attempt failed; None if the turn ended, or no attempt failed.

        A handler gives an answer, or asks for more attempts, of which one may get an answer.

        Raises:
            Exception: the error of the last attempt.
        """
        turn = self.turn
        while self.error is not None:
            response = ask_without_refused(self)
            if response is not None or self.error is None:
                return response
            answer = self._on_error(self.error)
            if answer is not None and not isinstance(answer.value, Retry):
                return self._recover(as_response(answer.value), answer.by)
            if turn.ended is not self.ended:
                return None
            if answer is None or self.number - self.extra > MAX_RETRIES:
                raise self.error
            retry: Retry = answer.value
            if not turn.has_begun(f"{self.place}/model{self.number + 1}"):
                turn.agent.runtime.sleep(retry.after_s)
            if (model := retry.model) is not None:
                stand_in = turn.agent.runtime.stand_in
                self.use(model if isinstance(model, str) or stand_in is None else stand_in(model))
            if (response := self.attempt(self.number + 1, answer.by)) is not None:
                return response
        return None

    def _on_error(self, error: Exception) -> HandlerValue | None:
        """The value of an `on_error` handler for a failed attempt, or None."""
        place = self.place.removeprefix(f"{self.turn.id}/")
        attempt = self.number - self.extra  # those without what was refused are not the handlers' own
        given: dict[str, Any] = {"error": error, "tool_call": None, "request": self.request, "attempt": attempt}
        over = self.running("on_error")
        with handling(error, self.turn.boundary.originals):
            answer = self.turn.decide("on_error", f"{place}/", suffix=self.number, over=over, **given)
            if answer is not None:
                self.turn.host.require(answer, LLMResponse, str, Retry)
        return answer

    def _recover(self, response: LLMResponse, by: By) -> LLMResponse:
        """Replace the error by a handler's answer."""
        turn, own = self.turn, self.conversation is not None
        value = {**describe_answer(response), "status": "recovered", "tool_calls_count": len(response.tool_calls or ())}
        change: TraceEntry = {"type": "change", "by": by, "of": "llm_call", "value": value}
        change["iteration"] = self.entry.get("iteration")
        turn.conversation.amend_entry(self.entry, **value, by=by)
        if own:
            self.conversation.changed = turn.between.has_failed(f"{self.id}/recovered")
        if turn.closing(id := f"{self.id}/recovered") is None:
            turn.conversation.trace({**change, "id": id})
        elif own:
            turn.between.behind(id)
        return response

    def stand_in(self, answer: HandlerValue) -> LLMResponse:
        """Take the answer of a `before_llm` handler in place of the model's."""
        turn, response, self.id = self.turn, answer.value, f"{self.place}/model1"
        self.conversation.changed = turn.between.has_failed(self.id)
        if turn.closing(self.id) is None:
            self.noted = {"by": answer.by, **self.conversation.changed_by(answer.by)}
            self.close(response, "stand_in", describe_answer(response))
        else:
            turn.between.behind(self.id)
        return response  # type: ignore[no-any-return]

    # -- a resumed turn ------------------------------------------------------------------------

    def taken(self, line: TraceEntry) -> LLMResponse | None:
        """The answer of an attempt that the log has; None if that failed with `error`."""
        self.entry = line
        if self.conversation is not None:
            self.conversation.changed = self.turn.between.has_failed(self.id)
            self.conversation.sent.update(sent_before(line, self.request))
            self.turn.between.behind(self.id)
        if "ended" in line:
            self.turn.end_as(line["ended"])
        if line.get("status") in ("error", "recovered"):
            error = model_error({**line, "error": line.get("error")}, line)
            self.turn.failed(self.id, error)
            self.error = error if isinstance(error, Exception) else Exception(str(error))
            return None
        if self.conversation is not None:
            self.turn.agent.last_usage = line.get("usage")
        return stored_response(line)
