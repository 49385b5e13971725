"""One turn of an agent. Its operations are looked up in the log before they run, and written into it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from connectagent.data import TraceEntry, Wait
from connectagent.frame import Frame
from connectagent.hooks.executor import HandlerValue, HookCall
from connectagent.hooks.specs import CONTRACTS
from connectagent.loop.between_steps import NO_CHANGES
from connectagent.loop.ending import STOPPED, Ending, Given, resumptions
from connectagent.loop.hook_run import HookRun
from connectagent.loop.operations import Operations
from connectagent.records.log import Log
from connectagent.session.journal import BEGAN, CLOSED, LOST_UPDATE, TURN_ENDED, Journal, waits_for_person
from connectagent.session.lost_updates import Copy, LostWrite, lost_update
from connectagent.session.messages import text_of, user_message
from connectagent.session.observers import by_agent
from connectagent.session.snapshot import clone
from connectagent.session.state import StateChange
from connectagent.session.usage import Spent
from connectagent.tools.awaiting import interrupt


class Turn(Operations):
    """One turn of an agent. `parent` is the turn of the agent that asked for it, or None.

    Args:
        agent: the agent.
        given: the user's message, and the limit of iterations.
        id: the place of the turn.
        log: where its lines go; an inner turn uses the log of the root turn.
        asked: the frame in which the turn was asked for; None for a root turn.
        past: the lines of the turn so far; None or empty if it is not resumed.

    Attributes:
        ended: set if the turn is to end before its next call of a model or tool.
        resumed: whether it goes on from its log.
        inner: the turns that run inside it.
        silent: the hooks whose handlers only observed, as long as nothing began after them in the turn.
        waiting: the waits of a paused root turn, until it is resumed or given up.
        spent: the sum of its model calls and those of inner turns, since it began or was resumed.
    """

    waiting: Sequence[Wait] = ()
    over = abandoned = False
    handoff: Any = None  # what the leading agent hands over: see `agents.handoff`
    request: Any = None  # the handoff that the agent's own model asks for
    hops = handoffs = misfits = 0
    copy: Copy | None = None  # of the caller's state, on which an inner turn works
    own_tools: list[dict[str, Any]] | None = None  # the schemas that handlers may edit: see `loop.stored`
    pool: Any = None  # of a root turn: the resources that were made for it

    def __init__(
        self, agent: Any, given: Given, id: str, log: Log, asked: Frame | None = None, past: Journal | None = None
    ) -> None:
        self.agent, self.conversation, self.host, self.boundary = agent, agent.conversation, agent.hooks, agent.boundary
        self.id, self.log = id, log
        self.message, self.prompt, self.limit, self.output = given
        self.asked = asked
        self.parent: Turn | None = None if asked is None else asked.turn
        self.root: Turn = self if self.parent is None else self.parent.root
        self.past = past or Journal()
        self.resumed = bool(self.past.lines)
        self.frame = Frame(self, id, account=None if asked is None else asked.account)
        self.inner: list[Turn] = []
        self.silent: list[str] = []
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
            self.guard = threading.Lock()
        own = agent.listener
        self.listeners: list[Any] = [] if self.parent is None else list(self.parent.listeners)  # see `loop.stream`
        if own is not None and own.is_own_thread() and not any(own is one for one in self.listeners):
            self.listeners.append(own)

    @property
    def place(self) -> str:
        """The place of the iteration."""
        return f"{self.id}/{self.conversation.session['iteration']}"

    @property
    def state(self) -> dict[str, Any]:
        """The state for the code that runs here: of the session, or the copy of a parallel body."""
        body = self._body()
        return self.conversation.session["state"] if body is None else body.state  # type: ignore[no-any-return]

    def callers(self) -> Iterator[Turn]:
        """The turns around this one, the nearest first."""
        turn = self.parent
        while turn is not None:
            yield turn
            turn = turn.parent

    # -- its operations ------------------------------------------------------------------------

    def began(self, id: str, **more: Any) -> None:
        """Write that an operation begins, before anything of it happens."""
        if self.resumed:
            self.opens(id)
            self.between.everything()
            if id in self.past.began:
                self.past.forget_error(id, len(self.past.lines))
        self.silent.clear()
        self.log.append({"type": BEGAN, "id": id, **more, "timestamp": time.time()})

    def has_changes(self, id: str) -> bool:
        """Whether handlers of a hook changed anything, as far as this process knows: before a resume they may have."""
        return id in self.touched or self.resumed

    # -- hooks ---------------------------------------------------------------------------------

    def decide(
        self,
        hook: str,
        place: str = "",
        convert: Callable[[Any], Any] | None = None,
        suffix: int | str = "",
        over: Sequence[list[Any]] = (),
        **given: Any,
    ) -> HandlerValue | None:
        """Let the handlers of a hook decide, except those in `over`; the first value wins.

        Raises:
            ToolRejected: a handler rejected the call or calls.
            Waiting: a handler waits for a person.
        """
        if hook not in self.host.active:
            return None
        run = self.first(hook, place, convert, suffix, over, **given)
        return None if run.by is None else HandlerValue(run.value, run.by)

    def first(
        self, hook: str, place: str, convert: Any, suffix: Any, over: Any, found: Any = None, **given: Any
    ) -> HookRun:
        """Like `decide`, but returns the run of the handlers; `found`: `calls_of` its calls, where they are known."""
        run = HookRun(hook, f"{place}{hook}{suffix}", HookCall({"agent": self.agent, **given}), convert, found)
        if over:
            run.leave_out(over)
        return run.run(self)

    def chain(
        self,
        hook: str,
        place: str = "",
        convert: Callable[[Any], Any] | None = None,
        last: TraceEntry | None = None,
        **given: Any,
    ) -> tuple[Any, HandlerValue | None]:
        """Let each handler of a hook see and replace a value; the value, and the last `Continue`."""
        if hook not in self.host.active:
            return given[CONTRACTS[hook].chained], None
        call = HookCall({"agent": self.agent, **given})
        call.convert = convert
        self.notify(hook, place, last, call)
        return call[CONTRACTS[hook].chained], call.decided

    def notify(
        self,
        hook: str,
        place: str = "",
        last: TraceEntry | None = None,
        call: HookCall | None = None,
        **given: Any,
    ) -> None:
        """Run the handlers of a hook.

        Args:
            hook: the hook.
            place: its place in the turn, with a `/` at the end.
            last: an entry that stays the last of the trace for each of the handlers.
            call: the arguments of the hook, in place of `given`.
            given: the arguments without the agent.
        """
        if hook not in self.host.active:
            return
        run = HookRun(hook, place + hook, HookCall({"agent": self.agent, **given}) if call is None else call)
        if last is None:
            run.run(self)
            return
        self.conversation.snapshot.traced.keeping_last(last, run.given, partial(run.run, self))

    # -- its beginning and its end -------------------------------------------------------------

    def prepare(self) -> None:
        """Prepare the conversation for the turn, before anything of it is written.

        Raises:
            ConfigError: the system prompt needs state that is missing.
        """
        self.conversation = self.agent.conversation  # a new one, if the agent was reset
        if self.resumed:
            self._expect(self.past)
        self.conversation.begin_turn(self.prompt)

    def begin(self) -> None:
        """Take the user's message into the conversation."""
        conversation = self.conversation
        if self.resumed and "around_turn" in self.host.others:  # later changes of theirs are in the turn
            self.log.append({"type": CLOSED, "id": f"{self.id}/resumed/around_turn"})
        if self.agent.fresh or conversation.session["turn"] == 1 or self.has_begun(f"{self.id}/on_session"):
            self.agent.fresh = False
            self.notify("on_session", reason="begun")
        if self.resumed:
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
        conversation.trace(entry, self.id)

    def _go_on(self, lines: list[TraceEntry]) -> None:
        """Run the handlers of `on_session` of a resumed turn; what they changed when it was resumed before is kept."""
        between, self.between = self.between, NO_CHANGES  # the turn is at its beginning, not where it had stopped
        try:
            for line in lines:
                id: str = line["id"]
                if line is lines[-1]:
                    self.notify("on_session", id[len(self.id) + 1 :].removesuffix("on_session"), reason=line["reason"])
                elif self.is_known(id):
                    self.reapply(id)
        finally:
            self.between = between

    def complete(self, ending: Ending) -> HandlerValue | None:
        """Let handlers see and replace the result, and store it in the state under the agent's `output_key`.

        Returns:
            The `Continue` of a handler, if the turn is to go on and may.
        """
        session = self.conversation.session
        session.update(result=ending.result, outcome=ending.outcome)
        result, more = self.chain(
            "on_complete", f"{session['iteration']}/", result=ending.result, outcome=ending.outcome
        )
        if self.boundary.pending:
            self.boundary.announce_pending()
        session["result"] = result
        if more is not None and not self.stopped and session["iteration"] < self.limit:
            return more
        if self.agent.output_key is not None and session["outcome"] != "transferred":
            self.conversation.set_key(self.agent.output_key, result, self.agent.by)
        return None

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
        messages = self.conversation.snapshot.copy["messages"]
        last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
        if ended.result is None:
            return ended._replace(result=text_of(last.get("content")) if last else "")
        if last is None:
            self.conversation.append({"role": "assistant", "content": ended.result}, by=ended.by)
        return ended

    # -- streamed text -------------------------------------------------------------------------

    @property
    def is_heard(self) -> bool:
        """Whether somebody wants the text of an answer as it arrives."""
        return bool(self.agent.streaming or self.listeners)

    def emit_text(self, text: str, attempt: int = 1) -> None:
        """Pass a piece of an answer to handlers, and to the consumer of a streamed turn.

        Args:
            text: the piece.
            attempt: at the model call, from 1; with the next one the text begins anew.
        """
        anew = {"attempt": attempt} if attempt > 1 else {}
        for listener in self.listeners:
            listener.listen(self.agent, {"type": "text", "text": text, **anew, **self.conversation.labels})
        self.host.observe("on_text", agent=self.agent, text=text, attempt=attempt)

    def retrying(self, retry: dict[str, Any]) -> None:
        """Trace that a provider's SDK waits before it repeats a failed request."""
        self.conversation.trace({"type": "retrying", **{key: retry[key] for key in retry if retry[key] is not None}})

    # -- turns inside this one -----------------------------------------------------------------

    def take_closing(
        self,
        line: TraceEntry,
        change: StateChange,
        known: bool = False,
        copy: Copy | None = None,
        lost: Sequence[LostWrite] = (),
    ) -> None:
        """Merge the changes and the ending of an inner turn; in a parallel body, keep them for the order of the calls.

        Args:
            line: the closing entry of the inner turn.
            change: its changes of the state.
            known: whether the log has its end already.
            copy: the copy of the state on which it worked, if others may have changed the state meanwhile.
            lost: what its changes overwrote in the body that asked for it.
        """
        if (body := self._body()) is not None:
            if not known:
                for label, value in self.conversation.labels.items():
                    line.setdefault(label, value)
                self.log.append({**clone(line), "type": TURN_ENDED})
            body.add_turn(line, change, known and line["type"] == "agent_turn", copy)
            return
        by, id = by_agent(line), str(line["id"])
        if waits_for_person(line):
            self.conversation.unmerged.append((by, change))
        else:
            lost = [*lost, *self.conversation.merge(change, by, copy)]
        if not known:
            self.conversation.trace({**line, "type": "agent_turn"})
        if lost and not self.past.has(LOST_UPDATE, id):
            self.conversation.trace(lost_update(by, lost), id)
        self.between.behind(line["id"])
        self._end_with(line)

    def bring_home(self, changes: Iterable[dict[str, Any]], place: str, copy: Copy | None = None) -> None:
        """Apply the changes of a parallel body, from its own list or from a line.

        Args:
            changes: the changes.
            place: where they are made.
            copy: the copy of the state on which the body worked; None where only its line is known.
        """
        copy = copy or self.conversation.writes.oldest()
        with self.frame.inside(place):
            for change in changes:
                if "turn" not in change:
                    if lost := self.conversation.merge_traced(change, change["by"], copy):
                        self.conversation.trace(lost_update(change["by"], lost))
                elif "line" in change:
                    lost = change.get("lost", ())
                    self.take_closing(change["line"], change["change"], change["known"], copy, lost)
                elif change["turn"] in self.past.closed:
                    line = self.past.lines[self.past.closed[change["turn"]]]
                    self.take_closing(line, line, line["type"] == "agent_turn", copy, change.get("lost", ()))

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
