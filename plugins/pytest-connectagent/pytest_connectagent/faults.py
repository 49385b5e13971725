"""What a plugin may do wrong, and the report of it."""

from __future__ import annotations

from typing import Any, NamedTuple

By = dict[str, Any]
"""Who did something, as in the entries of a trace: plugin, version, hook, handler, file and line."""

CHANGES = {
    "messages": "adds, edits or removes messages",
    "state": "changes `state`",
    "session": "changes other keys of the session",
    "trace": "adds entries to the trace",
    "request": "changes what one model call is given",
    "response": "changes the model's answer, or stands in for it",
    "arguments": "edits the arguments of tool calls",
    "result": "changes the result of a tool call or of the turn, or stands in for it",
    "rejection": "rejects tool calls",
    "retry": "has a failed call made again",
    "pause": "pauses the turn until a person decides",
    "turn": "ends the turn, or lets it go on",
    "tools": "adds or removes tools of the agent",
    "agent": "changes the agent: its model, system prompt or limit",
    "terminal": "writes to standard output",
    "outside": "writes files, runs programs or opens connections; a dry run does not prevent it",
    "interrupts": "deals with Ctrl-C itself",
}
RULES = {
    "order": "leaves messages that no provider takes, or drops what a provider needs back with its answer",
    "changes": "changes what it did not declare with `changes={...}`",
    "declared": "declares a change that it never makes, and does not declare it as optional: `changes={'pause?'}`",
    "raises": "raises what it did not declare with `raises=[...]`",
    "shares state": "keeps something that other agents see, without `shares_state=True`",
    "foreign state": "changes or deletes a key of `state` that is another plugin's",
    "interrupts": "swallows Ctrl-C",
    "rejections": "raises `ToolRejected` and catches it itself, or runs a call that was rejected",
    "hangs": "runs longer than `limit_s`, or lets a turn do so",
    "leaks": "leaves threads or open files behind with each agent",
    "secrets": "prints a secret, or writes it to a file",
    "differs": "gives another result where the turn is streamed, paused, killed and resumed, or its calls run at once",
    "replay": "asks the model something else when the turn is replayed from its record, on another day",
}


class Fault(NamedTuple):
    """One thing that a plugin does wrong.

    Attributes:
        rule: what it breaks, of `RULES`.
        by: the handler, with `plugin`, `hook`, `handler`, `file` and `line`; None where it is not known.
        path: the path on which it was seen.
        problem: what is wrong, and what to do.
    """

    rule: str
    by: By | None
    path: str
    problem: str


def report(faults: list[Fault], turns: int, paths: int) -> str:
    """The faults, each once with its first path and the number of others."""
    groups: dict[tuple[Any, ...], list[Fault]] = {}
    for fault in faults:
        by = fault.by or {}
        problem = fault.problem if fault.rule == "changes" else fault.problem.partition(":")[0]
        # Of undeclared changes the kind counts, and not each value.
        what = problem.rpartition("If it is meant")[2] if fault.rule == "changes" else problem
        groups.setdefault((fault.rule, by.get("file"), by.get("line"), by.get("hook"), what), []).append(fault)
    plugin = next((fault.by["plugin"] for fault in faults if fault.by), "?")
    number = f"{len(groups)} faults" if len(groups) > 1 else "1 fault"
    lines = [f"plugin {plugin!r} has {number}, in {turns} turns along {paths} paths"]
    for number_of, group in enumerate(groups.values(), start=1):
        lines += ["", f"{number_of}. {_fault_text(group[0])}"]
        if others := sorted({fault.path.partition(",")[0].partition(" (")[0] for fault in group[1:]} - {group[0].path}):
            more = f" and {len(others) - 3} others" if len(others) > 3 else ""
            lines.append(f"   as well on: {'; '.join(others[:3])}{more}")
    return "\n".join(lines)


def _fault_text(fault: Fault) -> str:
    by = fault.by
    whose = f"{by['hook']} handler {by['handler']!r} ({by['file']}:{by['line']})" if by else "no handler of it"
    return f"{fault.rule}: {whose}\n   on the path: {fault.path}\n   {fault.problem}"
