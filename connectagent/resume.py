"""Going on with a session from its record: in the next turn, or in the middle of the one that was stopped.

What had been done is not done again: a result that is in the record is taken from there, and the hooks of a
step that was finished do not fire a second time. The step that was running begins again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from connectagent.attribution import By, shown
from connectagent.blobs import blob_folder
from connectagent.errors import ConfigError, Paused, ToolRejected
from connectagent.history import NO_ANSWER, History, history_of, read_history
from connectagent.host import Decision
from connectagent.messages import NOT_RUN, text_of
from connectagent.pausing import Origin, Point
from connectagent.records import is_running, read_record
from connectagent.session import LLMResponse, TokenUsage, ToolCall, TraceEntry

if TYPE_CHECKING:
    from connectagent.agent import Agent

BY: By = {"plugin": "(resume)"}
IN_DOUBT = "in doubt: the process ended while this tool ran, so it may have taken effect; it was not run again"
ENDED = ("answered", "ended", "max_iterations", "transferred")
_LOOPS = ("turn", "iteration", "user_prompt", "pending_tool", "pending_tools", "result", "outcome")  # its own keys
_NOT_RUN = ("skipped", "interrupted")
_AFTER_CALLS = ("before_each_tool", "around_tool", "after_tools", "before_llm", "around_llm")


class Opened(NamedTuple):
    """A session that goes on.

    Args:
        prompt: what the open turn was asked; a user's message where the turn is to begin, text where it is
            to go on; None where no turn is open.
        point: where the open turn goes on; None where it begins.
        result: the result of the last turn, where none is open.
    """

    prompt: Any = None
    point: Point | None = None
    result: str | None = None


class Decided(NamedTuple):
    """What was decided about a turn that was paused: one of them, or none."""

    approve: bool
    reject: str | None
    answer: Any

    def check(self) -> Decided:
        """Refuse more than one decision.

        Raises:
            ConfigError: there are several.
        """
        if bool(self.approve) + (self.reject is not None) + (self.answer is not None) > 1:
            raise ConfigError("give one of approve=True, reject='why' and answer=...")
        return self

    def told(self) -> dict[str, Any]:
        """The decision as the trace has it; {} for none."""
        given = {"reject": self.reject, "answer": shown(self.answer)}
        return {"approve": True} if self.approve else {key: value for key, value in given.items() if value is not None}

    def __bool__(self) -> bool:
        return bool(self.approve) or self.reject is not None or self.answer is not None


def parse_place(place: str | int | None) -> tuple[int, int] | None:
    """`"3"` or `"3.2"` as turn and iteration; the iteration is 0 for the turn's beginning.

    Raises:
        ConfigError: it is neither.
    """
    if place is None:
        return None
    turn, _, iteration = str(place).partition(".")
    if not turn.isdecimal() or not (iteration or "0").isdecimal() or int(turn) < 1:
        raise ConfigError(f"a place is TURN or TURN.ITERATION, for example '3' or '3.2', not {place!r}")
    return int(turn), int(iteration or 0)


def restored_session(history: History, last: dict[str, Any]) -> dict[str, Any]:
    """`current_session` as it was at the end of a history; `last` is its last turn in the record."""
    trace = _live_trace(history.entries)
    prompt = next((entry.get("prompt") for entry in reversed(trace) if entry.get("type") == "user_input"), "")
    session = {key: value for key, value in history.session.items() if key not in _LOOPS}
    session.update(messages=history.messages, trace=trace, state=history.state, user_prompt=prompt)
    session.update(turn=history.turn, iteration=history.iteration)
    if last.get("status") in ENDED:
        session.update(result=last.get("result"), outcome=last["status"])
    return session


def _live_trace(entries: list[TraceEntry]) -> list[TraceEntry]:
    """The trace as it was in the session, where a call's entry has what became of its result in the end."""
    trace: list[TraceEntry] = []
    calls: dict[Any, TraceEntry] = {}
    for entry in entries:
        usage, kind, value = entry.get("usage"), entry.get("type"), entry.get("value")
        if kind == "tool_started":
            continue
        trace.append({**entry, "usage": TokenUsage(**usage)} if isinstance(usage, dict) else dict(entry))
        if kind == "tool_execution":
            calls[entry.get("call_id")] = trace[-1]
        elif kind == "change" and entry.get("call_id") in calls:
            changed = value if entry.get("of") == "tool_execution" else {"result": value}
            if isinstance(value, dict) and value.get("status") == "recovered":
                changed = {**value, "by": entry.get("by")}
            if entry.get("of") in ("tool_execution", "result") and isinstance(changed, dict):
                calls[entry.get("call_id")].update(changed)
    return trace


def take_totals(agent: Agent, trace: list[TraceEntry]) -> None:
    """Give an agent the costs and the last usage of a trace."""
    usages = [entry["usage"] for entry in trace if isinstance(entry.get("usage"), TokenUsage)]
    agent.total_cost = sum(usage.cost or 0.0 for usage in usages)
    agent.last_usage = usages[-1] if usages else None


def changed_plugins(agent: Agent, record: dict[str, Any]) -> dict[str, Any]:
    """How the agent's plugins differ from those of the record: `added`, `removed`, `changed`; {} if they do not."""
    before, now = record.get("plugins") or {}, plugin_versions(agent)
    told = {
        "added": sorted(now.keys() - before.keys()),
        "removed": sorted(before.keys() - now.keys()),
        "changed": sorted(name for name in now.keys() & before.keys() if now[name] != before[name]),
    }
    return {key: names for key, names in told.items() if names}


def plugin_versions(agent: Agent) -> dict[str, str | None]:
    """The plugins of an agent that are not its own, with their versions."""
    handlers = [handler for group in agent.hooks.handlers.values() for handler in group if not handler.trusted]
    return {handler.plugin: handler.version for handler in handlers}


def open_point(agent: Agent, path: Path, history: History, last: dict[str, Any], decided: Decided) -> Point:
    """Where to go on in a turn that has not come to its end; `last` is what the record has of it.

    Raises:
        Paused: it waits for a decision, and none was given.
        ConfigError: a decision was given, and nothing waits for one.
    """
    paused = next((entry for entry in reversed(history.entries) if entry.get("type") == "paused"), {})
    if last.get("status") == "paused":
        if not decided:
            call = paused.get("call")
            raise Paused(str(paused.get("reason") or ""), path, ToolCall(**call) if call else None)
        return _decide(agent, paused, decided, _point(agent, history, last))
    return _point(agent, history, last)


def _point(agent: Agent, history: History, last: dict[str, Any]) -> Point:
    """How far the newest turn got."""
    # It was taken back to before a model call: what stands before that is over.
    taken_back = "from" in last and not any(entry.get("type") == "llm_call" for entry in last["trace"])
    begun = [number for number, entry in enumerate(history.entries) if entry.get("type") == "user_input"]
    entries = history.entries[begun[-1] :]
    last_call = next((entry for entry in reversed(entries) if entry.get("type") == "llm_call"), None)
    if last_call is not None or taken_back:
        agent.hooks.has_run("after_user_input")
    elif any(entry.get("type") == "paused" and entry.get("hook") != "after_user_input" for entry in entries):
        agent.hooks.has_run("after_user_input")  # what waited stands behind it
    if history.answer is not None:
        history.iteration -= 1  # its iteration begins again, with the answer that is there
        return Point(answer=history.answer)
    round = history.round
    if round is None:
        return _after_answer(history, last_call)
    if round.started or round.done:
        agent.hooks.has_run("before_tools")
    if any(entry.get("result") == NOT_RUN.format(reason="the turn was ended") for entry in round.done.values()):
        agent.ended = Decision(None, BY)
    done = {id: entry for id, entry in round.done.items() if entry.get("status") not in _NOT_RUN}
    after = _hooks_after(entries)
    if taken_back or after & {"before_llm", "around_llm"}:
        agent.hooks.has_run("after_tools")
    for call in round.calls:
        # What was skipped behind a start was paused: its tool is not in doubt.
        if call.id in round.started and round.done.get(call.id, {}).get("status") in (None, "interrupted"):
            _in_doubt(agent, call)
    unended = next(reversed(done), "") if not (taken_back or after & {*_AFTER_CALLS, "tool_started", "paused"}) else ""
    return Point(response=LLMResponse(None, round.calls), done=done, unended=unended)


def _after_answer(history: History, last_call: TraceEntry | None) -> Point:
    """Where to go on behind an answer without calls, or before any."""
    last = history.lines[-1].message if history.lines else {}
    if last_call is None or last_call.get("status") in NO_ANSWER or last.get("role") != "assistant":
        if last_call is not None and last_call.get("status") in NO_ANSWER:
            history.iteration -= 1  # the same call is made again
        return Point()
    return Point(response=LLMResponse(text_of(last.get("content"))))


def _hooks_after(entries: list[TraceEntry]) -> set[str]:
    """What happened after the last tool that was run: types of entries, and hooks whose handlers left something."""
    ran = [n for n, e in enumerate(entries) if e.get("type") == "tool_execution" and e.get("status") not in _NOT_RUN]
    rest = entries[ran[-1] + 1 :] if ran else []
    return {str(entry.get("type")) for entry in rest} | {str((entry.get("by") or {}).get("hook")) for entry in rest}


def _in_doubt(agent: Agent, call: ToolCall) -> None:
    """Say what becomes of a call whose tool was started and did not finish."""
    tool = agent.tools.get(call.name)
    again = (tool is not None and tool.idempotent) or _asked(agent, call)
    outcome = None if again else Decision(ToolRejected(IN_DOUBT), BY)
    agent.hooks.has_run("before_each_tool", call_id=call.id, outcome=outcome)


def _asked(agent: Agent, call: ToolCall) -> bool:
    """Whether a person at the terminal says that a call is to be run again; no where there is none."""
    from connectagent.builtin.lines import call_text

    files = (sys.stdin, sys.stderr)
    if not all(file is not None and not file.closed and file.isatty() for file in files):
        return False
    print(f"{agent.name}: the process ended while {call_text(call.name, call.arguments)} ran.", file=sys.stderr)
    print("It may have taken effect. Run it again? [y]es, [N]o: ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _decide(agent: Agent, paused: TraceEntry, decided: Decided, point: Point) -> Point:
    """Put a decision into the place of the handler or tool that asked for it, or hand it on to the agent that did."""
    inner = paused.get("inner")
    if inner:
        _child(agent, inner["agent"]).waiting = (inner["record"], decided)
        if call := paused.get("call"):
            agent.hooks.has_run("before_each_tool", call_id=call["id"])
        return point
    hook, by, call = str(paused.get("hook")), paused.get("by"), paused.get("call") or {}
    calls = (point.response.tool_calls if point.response else None) or []
    if call:
        calls = [one for one in calls if one.id == call["id"]]
        by, hook = (None, "before_each_tool") if hook == "tool" else (by, hook)
    outcome = None
    if decided.reject is not None:
        outcome = Decision(f"rejected: {decided.reject}", BY)
        outcome = outcome if hook == "before_llm" else Decision(ToolRejected(decided.reject), BY)
    elif decided.answer is not None:
        if hook == "before_tools":
            raise ConfigError("a round that was paused by before_tools takes approve=True or reject='why'")
        if hook == "before_llm" and not isinstance(decided.answer, (str, LLMResponse)):
            raise ConfigError(f"the answer stands in for the model's: a str or an LLMResponse, not {decided.answer!r}")
        outcome = Decision(decided.answer, BY)
    else:
        for one in calls:
            one.approved = True
    agent.hooks.has_run(hook, by, call_id=call.get("id", ""), outcome=outcome)
    return point


def _child(agent: Agent, name: str) -> Agent:
    child = agent.find(name)
    if child is None:
        raise ConfigError(f"agent {name!r} waits for the decision, and {agent.name!r} has none of that name below it")
    return child


def is_record(path: str | os.PathLike[str]) -> Path:
    """The path of a record that can be read.

    Raises:
        ConfigError: there is no such file.
    """
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"there is no record {str(path)!r}; records are in .co/evals/, and end in .yaml")
    return file


def reopen(agent: Agent, record: Any, place: Any, fork: bool, decided: Decided) -> Opened:
    """Give an agent the session of a record, and say where its turn goes on.

    Raises:
        ConfigError: there is no such record or place, another process writes it, or a decision does not fit.
        Paused: it waits for a decision, and none was given.
    """
    path, decided, at = is_record(record), decided.check(), parse_place(place)
    if not fork and is_running(path):
        raise ConfigError(f"{path} is being written by a running agent; wait for it, or resume with fork=True")
    data = read_record(path)
    if "agent" not in data:
        raise ConfigError(f"{path}: not a record: it does not begin with 'agent:'")
    history = read_history(data, blob_folder(path))
    if at is not None:
        history = history.before(*at)
    last: dict[str, Any] = next((t for t in reversed(data["turns"]) if t.get("status") != "between_turns"), {})
    status = last.get("status") if at is None else None
    if decided and status != "paused":
        raise ConfigError(f"nothing waits for a decision: the last turn's status is {status or 'cut off'!r}")
    if at is not None:
        last = {"turn": at[0], "from": list(at), "trace": []}
    opened = _opened(agent, path, history, last, at, decided)
    session = restored_session(history, last)
    agent.take_session(session, Origin(session, path, fork, at))
    if opened.point is not None:
        live = {entry.get("call_id"): entry for entry in session["trace"] if entry.get("type") == "tool_execution"}
        done = {id: live[id] for id in opened.point.done}
        opened = opened._replace(point=opened.point._replace(done=done))
    take_totals(agent, session["trace"])
    changed = changed_plugins(agent, data)
    entry = {"type": "resumed", "by": BY, "record": str(path), "turn": history.turn, "iteration": history.iteration}
    more = {"decided": decided.told(), "plugins": changed}
    agent.conversation.trace({**entry, **{key: value for key, value in more.items() if value}})
    _reopen_children(agent, history, fork)
    return opened


def _reopen_children(agent: Agent, history: History, fork: bool) -> None:
    """Give the agents below the sessions that they had; one that waits takes its own when it is asked."""
    turns = {entry["agent"]: entry for entry in history.entries if entry.get("type") == "agent_turn"}
    for name, entry in turns.items():
        child, path = agent.find(name), Path(entry.get("record") or "")
        if child is None or child is agent or child.waiting is not None or not path.is_file():
            continue
        own = history_of(path)
        later = [
            told["turn"] for told in own.entries if told.get("type") == "user_input" and told["turn"] > entry["turn"]
        ]
        place = (min(later), 0) if later else None
        own = own.before(*place) if place is not None else own
        session = restored_session(own, {})
        child.take_session(session, Origin(session, path, fork, place))
        take_totals(child, session["trace"])
        _reopen_children(child, own, fork)


def _opened(agent: Agent, path: Path, history: History, last: dict[str, Any], at: Any, decided: Decided) -> Opened:
    if at is not None and at[1] == 0:
        return Opened(prompt=history.prompt_of(at[0]))
    if last.get("status") in ENDED:
        return Opened(result=last.get("result"))
    if not last:
        return Opened()
    if history.turn != last.get("turn"):  # it was cut off before its message was there
        return Opened(prompt=last.get("input"))
    point = open_point(agent, path, history, last, decided)
    return Opened(text_of(history.prompt_of(history.turn)), point)
