"""One turn of an agent. Its operations are looked up in the log before they run, and written into it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any

from connectagent import frame
from connectagent.data import Log, TokenUsage, ToolCall, TraceEntry, Wait
from connectagent.errors import Paused, Waiting
from connectagent.frame import Frame
from connectagent.hooks.executor import HandlerValue
from connectagent.loop.between_steps import BetweenSteps
from connectagent.loop.ending import STOPPED, Ending, Given, resumptions
from connectagent.loop.hook_run import HookRun
from connectagent.loop.operations import Operations, id_of
from connectagent.output.text import describe
from connectagent.session.journal import TURN_ENDED, Journal, is_inside, place_of
from connectagent.session.messages import text_of, user_message
from connectagent.session.observers import is_by_observer
from connectagent.session.snapshot import as_data
from connectagent.session.state import clone
from connectagent.session.usage import Spent, spent_in, time_in
from connectagent.tools.awaiting import interrupt


class Turn(Operations):
    """One turn of an agent. `parent` is the turn of the agent that asked for it, or None.

    Args:
        agent: the agent.
        given: the user's message, and the limit of iterations.
        id: the place of the turn.
        log: where its lines go; an inner turn uses the log of the root turn.
        asked: the frame in which the turn was asked for; None for a root turn.
        past: the lines of the turn so far, if it is resumed.

    Attributes:
        ended: set if the turn is to end before its next call of a model or tool.
        inner: the turns that run inside it.
        waiting: the waits of a paused root turn, until it is resumed or given up.
        spent: the sum of its model calls and those of inner turns, since it began or was resumed.
    """

    waiting: Sequence[Wait] = ()
    ended: Ending | None = None
    over = stopped = abandoned = False
    left: Ending | None = None  # set where nobody wants the results of turns that it asks for
    handoff: Any = None  # what the leading agent hands over: see `agents.handoff`
    request: Any = None  # the handoff that the agent's own model asks for
    hops = handoffs = misfits = 0
    outward: tuple[Ending, str] | None = None
    own_tools: list[dict[str, Any]] | None = None  # the schemas that handlers may edit: see `loop.stored`
    pool: Any = None  # of a root turn: the resources that were made for it

    def __init__(
        self, agent: Any, given: Given, id: str, log: Log, asked: Frame | None = None, past: Journal | None = None
    ) -> None:
        self.agent, self.conversation, self.host, self.boundary = agent, agent.conversation, agent.hooks, agent.boundary
        self.id, self.log, self.past = id, log, past
        self.message, self.prompt, self.limit, self.output = given
        self.asked = asked
        self.parent: Turn | None = None if asked is None else asked.turn
        self.root: Turn = self if self.parent is None else self.parent.root
        self.frame = Frame(self, id, account=None if asked is None else asked.account)
        self.inner: list[Turn] = []
        self.spent = Spent()
        self.started = time.time()
        self.thread, self.ident = threading.current_thread(), threading.get_ident()
        self.innermost = self.frame  # of the turn's own thread
        self.heard: set[str] = set()  # the agents that have seen the user's message
        self.line: TraceEntry = {}  # the closing entry of an inner turn
        self.touched: set[str] = set()  # the places at which something in the conversation was changed
        self.runs: dict[str, HookRun] = {}
        if self.parent is None:
            self._ordinals: dict[str, int] = {}
            self._errors: dict[int, tuple[BaseException, list[str]]] = {}
            self._locks: dict[str, threading.RLock] = {}
            self._guard = threading.Lock()
        own = agent.listener
        self.listeners: list[Any] = [] if self.parent is None else list(self.parent.listeners)  # see `loop.stream`
        if own is not None and own.is_own_thread() and not any(own is one for one in self.listeners):
            self.listeners.append(own)

    @property
    def iteration(self) -> int:
        """The number of the iteration, from 1; 0 before the first."""
        return int(self.conversation.session["iteration"])

    @property
    def place(self) -> str:
        """The place of the iteration."""
        return f"{self.id}/{self.iteration}"

    @property
    def state(self) -> dict[str, Any]:
        """The state for the code that runs here: of the session, or the copy of a parallel body."""
        body = self._body()
        return self.conversation.session["state"] if body is None else body.state  # type: ignore[no-any-return]

    def _body(self) -> Any:
        here = frame.current()
        return here.body if here is not None and here.turn is self else None

    @property
    def exhausted(self) -> bool:
        """Whether the turn may take no further iteration."""
        return self.stopped or self.iteration >= self.limit

    def callers(self) -> Iterator[Turn]:
        """The turns around this one, the nearest first."""
        turn = self.parent
        while turn is not None:
            yield turn
            turn = turn.parent

    # -- its beginning and its end -------------------------------------------------------------

    def on_stop(self, error: BaseException) -> BaseException:
        """Trace what stopped the turn; the exception to raise."""
        if isinstance(error, Waiting):
            return self._paused(error)
        by = self.boundary.owner_of(error)
        entry = {"type": "error", "by": by, "error": describe(str, error), "error_type": type(error).__name__}
        self.conversation.trace_quietly(entry)
        return error

    def _paused(self, waiting: Waiting) -> Paused:
        first, by = waiting.waits[0], waiting.by
        hook = by.get("hook", "tool")
        shown = first.call  # the innermost call, which is to be decided
        call = None if shown is None else ToolCall(shown["id"], shown["name"], clone(shown["arguments"]))
        entry = {"type": "paused", "by": by, "hook": hook, "reason": first.reason, "call": call and as_data(call)}
        entry["waits"] = [wait.id for wait in waiting.waits]
        if first.agent != self.agent.name:
            entry["inner"] = {"agent": first.agent}
        self.conversation.trace_quietly(entry)
        return Paused(waiting.waits, self.log.path, call)

    def prepare(self) -> None:
        """Prepare the conversation for the turn, before anything of it is written.

        Raises:
            ConfigError: the system prompt needs state that is missing.
        """
        self.conversation = self.agent.conversation  # a new one, if the agent was reset
        if self.past is not None:
            self._expect(self.past)
        self.conversation.begin_turn(self.prompt)

    def _expect(self, past: Journal) -> None:
        """Apply what the program changed before the turn, and expect what the loop changes in it again."""
        lines = past.own(self.id, self.branch)
        before = takewhile(lambda line: line["type"] != "user_input", lines)
        # The session may have its first state already: so lists are set, not added to.
        self.conversation.reapply({**line, "added": {}} for line in before if is_by_observer(line))
        self.between = BetweenSteps(past, self.id, self.branch, self.conversation)
        self.conversation.repeat((line for line in lines if not is_by_observer(line)), self.between.behind_line)

    def begin(self) -> None:
        """Take the user's message into the conversation."""
        conversation = self.conversation
        if self.agent.fresh or conversation.session["turn"] == 1 or self.has_begun(f"{self.id}/on_session"):
            self.agent.fresh = False
            self.notify("on_session", reason="begun")
        if self.past is not None:
            self._go_on(resumptions(self.past, self.id))
        if self.handoff is not None:
            self.handoff.begin(self)
        conversation.append(self.message)
        entry: TraceEntry = {"type": "user_input", "turn": conversation.session["turn"], "prompt": self.prompt}
        if self.limit != self.agent.max_iterations:
            entry["max_iterations"] = self.limit
        if self.message["content"] != self.prompt:
            entry["content"] = clone(self.message["content"])
        if self.output is not None:
            entry["output"] = self.output.name
        conversation.trace(entry)

    def _go_on(self, lines: list[TraceEntry]) -> None:
        """Run the handlers of `on_session` of a resumed turn; what they changed when it was resumed before is kept."""
        for line in lines:
            id: str = line["id"]
            if line is lines[-1]:
                self.notify("on_session", id[len(self.id) + 1 :].removesuffix("on_session"), reason=line["reason"])
            elif self.is_known(id):
                self.reapply(id)

    def complete(self, ending: Ending) -> HandlerValue | None:
        """Let handlers see and replace the result; the `Continue` of one of them, or None."""
        session = self.conversation.session
        session.update(result=ending.result, outcome=ending.outcome)
        result, more = self.chain(
            "on_complete", f"{session['iteration']}/", result=ending.result, outcome=ending.outcome
        )
        if self.boundary.pending:
            self.boundary.announce_pending()
        session["result"] = result
        return more

    def prompt_again(self, more: HandlerValue) -> None:
        """Go on with another message of the user."""
        self.ended, self.prompt = None, more.value.prompt
        self.message = user_message(self.prompt)
        self.request = None
        self.heard.clear()
        self.conversation.append(self.message, by=more.by)

    def out_of_iterations(self) -> Ending:
        """The ending of a turn that has reached its limit."""
        result = f"Task incomplete: Maximum iterations ({self.limit}) reached."
        return Ending(result, "max_iterations", {"plugin": "connectagent"})

    def last_words(self) -> Ending:
        """The ending of a turn that was ended; its result is in the conversation too.

        Raises:
            KeyboardInterrupt, Cancelled: it was stopped, so whoever asked for it gets no result of half a turn.
        """
        ended = self.ended
        assert ended is not None
        if ended is STOPPED:
            raise interrupt()
        messages = self.conversation.session["messages"]
        last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
        if ended.result is None:
            return ended._replace(result=text_of(last.get("content")) if last else "")
        if last is None:
            self.conversation.append({"role": "assistant", "content": ended.result}, by=ended.by)
        return ended

    def keep(self) -> str:
        """The turn's result; stores it in the state under the agent's `output_key`."""
        session, key = self.conversation.session, self.agent.output_key
        if key is not None and session["outcome"] != "transferred":
            self.conversation.set_key(key, session["result"], self.agent.by)
        return str(session["result"])

    # -- usage and streamed text ---------------------------------------------------------------

    def count(self, usage: TokenUsage | None) -> None:
        """Count an attempt at a model, here and in the turns around this one, which agents at the same time share."""
        asked = frame.current()
        sums, accounts = list[Spent](), dict[int, Spent]()
        turn: Turn | None = self
        while turn is not None:
            sums += [turn.spent, turn.agent.spent]
            if asked is not None and asked.account is not None:  # of the handler that asked
                accounts[id_of(asked.account)] = asked.account.spent
            asked, turn = turn.asked, turn.parent
        with self.root._guard:
            for one in [*sums, *accounts.values()]:
                one.add(usage)

    def count_lost(self) -> None:
        """Count the attempts that Ctrl-C kept from their ends, as whoever goes on with the turn will."""
        lines = self.log.lines()
        for _ in range(spent_in(lines).calls - spent_in(lines, running=True).calls):
            self.count(None)

    def emit_text(self, text: str) -> None:
        """Pass a piece of the model's text to handlers, and to the consumer of a streamed turn."""
        for listener in self.listeners:
            listener.listen(self.agent, {"type": "text", "text": text, **self.conversation.labels})
        self.host.observe("on_text", agent=self.agent, text=text)

    def sums(self) -> tuple[float, Spent]:
        """How long the turn took so far, in ms, and what it spent, including the time before it was resumed."""
        ms = (time.time() - self.started) * 1000
        if self.past is None:
            return ms, self.spent
        before = spent_in(line for line in self.past.lines if is_inside(place_of(line), self.id))
        before.include(self.spent)
        return ms + time_in(self.past.lines, self.id), before

    def retrying(self, retry: dict[str, Any]) -> None:
        """Trace that a provider's SDK waits before it repeats a failed request."""
        self.conversation.trace({"type": "retrying", **{key: retry[key] for key in retry if retry[key] is not None}})

    # -- turns inside this one -----------------------------------------------------------------

    def take_closing(self, line: TraceEntry, change: dict[str, Any], known: bool = False) -> None:
        """Merge the changes and the ending of an inner turn; in a parallel body, keep them for the order of the calls.

        Args:
            line: the closing entry of the inner turn.
            change: its changes of the state.
            known: whether the log has its end already.
        """
        if (body := self._body()) is not None:
            if not known:
                for label, value in self.conversation.labels.items():
                    line.setdefault(label, value)
                self.log.append({**clone(line), "type": TURN_ENDED})
            body.add_turn(line, change, known and line["type"] == "agent_turn")
            return
        self.conversation.merge(change)
        if not known:
            self.conversation.trace({**line, "type": "agent_turn"})
        self.between.behind(line["id"])
        self._end_with(line)

    def bring_home(self, changes: Iterable[dict[str, Any]], place: str) -> None:
        """Apply the changes of a parallel body, from its own list or from a line."""
        with self.inside(place):
            for change in changes:
                if "turn" not in change:
                    self.boundary.change_state(change["by"], change)
                elif "line" in change:
                    self.take_closing(change["line"], change["change"], change["known"])
                elif self.past is not None and change["turn"] in self.past.closed:
                    line = self.past.lines[self.past.closed[change["turn"]]]
                    self.take_closing(line, line, line["type"] == "agent_turn")

    def is_known(self, id: str) -> bool:
        """Whether the log has the end of an operation."""
        return self.past is not None and id in self.past.closed and not self.past.is_open(id)

    def emit(self, entry: TraceEntry) -> None:
        """Write an entry of the trace into the log, and pass it to the consumer of a streamed turn."""
        if (at := entry.get("at")) is not None:
            self.touched.add(at)
            if run := self.runs.get(at):
                self._begin(run)
        self.log.append(self.conversation.snapshot.traced.copied(entry))
        for listener in self.listeners:
            listener.listen(self.agent, entry)

    def is_consumer(self) -> bool:
        """Whether this is the thread of the consumer of a streamed turn."""
        return any(listener.is_consumer() for listener in self.listeners)

    def is_own_thread(self) -> bool:
        """Whether this is the thread in which the turn ran."""
        return threading.current_thread() is self.thread

    def _end_with(self, line: TraceEntry) -> None:
        """End this turn too, if the inner one was ended with a wider scope."""
        if (outward := line.get("outward")) is None:
            return
        ending = Ending(outward["result"], outward["outcome"], outward["by"])
        repeats = bool(getattr(getattr(self.agent.body, "function", None), "repeats", False))
        self.end(ending, "agent" if outward["scope"] == "loop" and repeats else outward["scope"])

    def end(self, ending: Ending, scope: str = "agent") -> None:
        """End the turn. Parallel bodies finish first, and the first of them that ended it, in order, decides how."""
        if (body := self._body()) is not None:
            body.ending = (ending, scope)
        super().end(ending, scope)

    def leave(self, ending: Ending) -> None:
        """End this turn, the turns inside it, and those that its code still asks for: nobody wants their results."""
        self.left = ending  # before `inner` is read: a turn that begins now looks at it after it was added
        self.end(ending)
        for turn in list(self.inner):
            turn.leave(ending)

    def stop_inner(self) -> None:
        """Interrupt the turns inside this one at their next step."""
        for turn in list(self.inner):
            turn.stop()

    def failed_together(self, errors: list[BaseException]) -> None:
        """Note that operations failed at the same time, so that each error counts for all of them."""
        whose = [one for error in errors for one in self.root._errors.get(id_of(error), (None, []))[1]]
        for error in errors:
            self.root._errors[id_of(error)] = (error, whose)

    def stop(self) -> None:
        """Interrupt this turn and its inner turns at their next step, after Ctrl-C in a turn around them."""
        self.stopped = True
        self.ended = self.ended or STOPPED
        for turn in list(self.inner):
            turn.stop()
