"""Going on with a session from its record: in the next turn, or in the middle of the one that was stopped.

What had been done is not done again: a result that is in the record is taken from there, and the hooks of a
step that was finished do not fire a second time. The step that was running begins again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from connectagent.attribution import By, clone
from connectagent.blobs import blob_folder
from connectagent.errors import ConfigError, Pause, Paused, ToolRejected
from connectagent.history import History, read_history
from connectagent.host import Decision
from connectagent.messages import text_of
from connectagent.records import is_running, read_record
from connectagent.session import LLMResponse, TokenUsage, ToolCall, TraceEntry

if TYPE_CHECKING:
    from connectagent.agent import Agent

BY: By = {"plugin": "(resume)"}
IN_DOUBT = "in doubt: the process ended while this tool ran, so it may have taken effect; it was not run again"
ENDED = ("answered", "ended", "max_iterations", "transferred")


class Origin(NamedTuple):
    """Where a session comes from that goes on here.

    Args:
        session: `agent.current_session`, by which it is told from others.
        record: the record that it was read from.
        fork: whether what follows goes into a record of its own.
        place: the turn and iteration before which it goes on; None for the end.
    """

    session: Any
    record: Path
    fork: bool
    place: tuple[int, int] | None


class Point(NamedTuple):
    """Where in a turn to go on; the default is its beginning.

    Args:
        answer: the model's answer that is not in the conversation yet.
        response: the newest answer in the conversation, whose calls are to be run or whose text is the result.
        done: the trace entries of its calls that are not run again, by the call's id.
    """

    answer: LLMResponse | None = None
    response: LLMResponse | None = None
    done: dict[str, TraceEntry] = {}  # noqa: RUF012  nothing writes to it


BEGINNING = Point()


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


def restored_session(history: History) -> dict[str, Any]:
    """`current_session` as it was at the end of a history."""
    trace = [_live(entry) for entry in history.entries if entry.get("type") != "tool_started"]
    prompt = next((entry["prompt"] for entry in reversed(trace) if entry.get("type") == "user_input"), "")
    session = {"messages": history.messages, "trace": trace, "turn": history.turn, "iteration": history.iteration}
    return {**session, "user_prompt": prompt, "state": history.state, **history.session}


def _live(entry: TraceEntry) -> TraceEntry:
    usage = entry.get("usage")
    return {**entry, "usage": TokenUsage(**usage)} if isinstance(usage, dict) else dict(entry)


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


def open_point(agent: Agent, path: Path, history: History, status: str | None, decided: Decided) -> Point:
    """Where to go on in a turn that has not come to its end.

    Raises:
        Paused: it waits for a decision, and none was given.
        ConfigError: a decision was given, and nothing waits for one.
    """
    paused = next((entry for entry in reversed(history.entries) if entry.get("type") == "paused"), {})
    if status == "paused" and not decided:
        raise Paused(str(paused.get("reason") or ""), path, paused.get("call"))
    point = _point(agent, history)
    return _decide(agent, paused, decided, point) if status == "paused" else point


def _point(agent: Agent, history: History) -> Point:
    """How far the newest turn got."""
    begun = [number for number, entry in enumerate(history.entries) if entry.get("type") == "user_input"]
    entries = history.entries[begun[-1] :]
    last_call = next((entry for entry in reversed(entries) if entry.get("type") == "llm_call"), None)
    if last_call is not None:
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
    not_run = ("skipped", "interrupted")
    done = {id: entry for id, entry in round.done.items() if entry.get("status") not in not_run}
    if len(done) == len(round.calls) and _hooks_after(entries, "tool_execution") & {"before_llm", "around_llm"}:
        agent.hooks.has_run("after_tools")
    for call in round.calls:
        # What was skipped behind a start was paused: its tool is not in doubt.
        if call.id in round.started and round.done.get(call.id, {}).get("status") in (None, "interrupted"):
            _in_doubt(agent, call)
    return Point(response=LLMResponse(None, round.calls), done=done)


def _after_answer(history: History, last_call: TraceEntry | None) -> Point:
    """Where to go on behind an answer without calls, or before any."""
    last = history.lines[-1].message if history.lines else {}
    if last_call is None or last_call.get("status") == "error" or last.get("role") != "assistant":
        if last_call is not None and last_call.get("status") == "error":
            history.iteration -= 1  # the same call is made again
        return Point()
    return Point(response=LLMResponse(text_of(last.get("content"))))


def _hooks_after(entries: list[TraceEntry], kind: str) -> set[str]:
    """The hooks whose handlers left something behind the last entry of a type."""
    last = max(number for number, entry in enumerate(entries) if entry.get("type") == kind)
    return {str((entry.get("by") or {}).get("hook")) for entry in entries[last + 1 :]}


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
    """Put a decision into the place of the handler or tool that asked for it."""
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
        outcome = Decision(decided.answer, BY)
    else:
        for one in calls:
            one.approved = True
    agent.hooks.has_run(hook, by, call_id=call.get("id", ""), outcome=outcome)
    return point


def paused(agent: Agent, pause: Pause) -> Paused:
    """Trace a pause, with what waits and who asked, and make the error that `input()` raises."""
    from connectagent.builtin.record import record_path

    call = pause.call
    shown = None if call is None else {"id": call.id, "name": call.name, "arguments": clone(call.arguments)}
    by = agent.hooks.owner_of(pause) or ({} if call is None else {"tool": call.name})
    entry = {"type": "paused", "by": by, "hook": by.get("hook", "tool"), "reason": pause.reason, "call": shown}
    agent.conversation.trace_quietly(entry)
    return Paused(pause.reason, record_path(agent), call)


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
    history = read_history(data, blob_folder(path))
    if at is not None:
        history = history.before(*at)
    last: dict[str, Any] = next((t for t in reversed(data["turns"]) if t.get("status") != "between_turns"), {})
    status = last.get("status") if at is None else None
    if decided and status != "paused":
        raise ConfigError(f"nothing waits for a decision: the last turn's status is {status or 'cut off'!r}")
    opened = _opened(agent, path, history, last, at, decided)
    session = restored_session(history)
    agent.take_session(session, Origin(session, path, fork, at))
    take_totals(agent, session["trace"])
    changed = changed_plugins(agent, data)
    entry = {"type": "resumed", "by": BY, "record": str(path), "turn": history.turn, "iteration": history.iteration}
    agent.conversation.trace({**entry, "plugins": changed} if changed else entry)
    return opened


def _opened(agent: Agent, path: Path, history: History, last: dict[str, Any], at: Any, decided: Decided) -> Opened:
    if at is not None and at[1] == 0:
        return Opened(prompt=history.prompt_of(at[0]))
    if at is None and last.get("status") in ENDED:
        return Opened(result=last.get("result"))
    if not last:
        return Opened()
    if at is None and history.turn != last.get("turn"):  # it was cut off before its message was there
        return Opened(prompt=last.get("input"))
    point = open_point(agent, path, history, last.get("status") if at is None else None, decided)
    return Opened(str(history.prompt_of(history.turn)), point)
