"""Goes on with turns of another process, and prints what each guard saw of their calls and what the functions got."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import connectagent_approve
import pytest
from argument_types import KINDS
from connectagent_approve import Approve
from test_canonical_arguments import plain, text
from test_guards_see_one_form import Seen

from connectagent import Agent, Pause, Paused, Tool, ToolCall, before_each_tool, before_tools
from connectagent.testing import ScriptedLLM


@before_tools
def round_waits(tool_calls: list[ToolCall]) -> None:
    """Every guard decides after the decision of a person."""
    if not all(one.approved for one in tool_calls):
        raise Pause("all of them?")


@before_each_tool(trylast=True)
def call_waits(tool_call: ToolCall) -> None:
    """A person decides after every guard."""
    if not tool_call.approved:
        raise Pause("this one?")


WAITS = {"before the guards": round_waits, "after the guards": call_waits}


class Guarded:
    """An agent with four guards whose tool takes a value of a type.

    Attributes:
        tool: the tool.
        got: what its function got, as text.
        seen: what the guards were shown: see `Seen`.
        agent: the agent.
    """

    def __init__(self, name: str, waits: str, parallel: int, folder: Path, *responses: Any) -> None:
        self.got: list[str] = []

        def take(value: Any) -> str:
            self.got.append(str(plain(value)))
            return "taken"

        take.__annotations__ = {"value": KINDS[name].type, "return": str}
        patch = pytest.MonkeyPatch()
        self.seen = Seen(folder, patch)
        self.seen.by_guard["approve"] = []
        patch.setattr(connectagent_approve, "can_ask", lambda: True)
        patch.setattr(connectagent_approve, "_read", lambda question: "y")
        patch.setattr(connectagent_approve, "_say", lambda *lines, end="": None)
        patch.setattr(Approve, "_decide", self._decided(Approve._decide))
        self.tool = Tool.from_function(take)
        plugins = [*self.seen.plugins, Approve(), WAITS[waits]]
        self.undo = patch.undo
        llm = ScriptedLLM(*responses)
        self.agent = Agent("a", [self.tool], llm=llm, plugins=plugins, parallel_tools=parallel, quiet=True)

    def _decided(self, real: Any) -> Any:
        def decide(own: Approve, agent: Agent, tool_call: ToolCall, memory: str | None) -> None:
            self.seen.by_guard["approve"].append(text(tool_call.arguments))
            real(own, agent, tool_call, memory)

        return decide


def go_on(name: str, waits: str, parallel: int, record: str, ids: list[str]) -> dict[str, Any]:
    """Approve everything that waits in a record, one after the other; what was seen meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        one = Guarded(name, waits, parallel, Path(folder), "Done.")
        shown: list[str] = []
        while ids:
            try:
                one.agent.resume(record, approve=ids[0])
                ids = []
            except Paused as paused:
                shown += [text(wait.call["arguments"]) for wait in paused.waiting if wait.call is not None]
                ids = [wait.id for wait in paused.waiting]
        one.undo()
    entries = [entry for entry in one.agent.session["trace"] if entry["type"] == "tool_execution"]
    arguments = [text(entry["arguments"]) for entry in entries if entry["status"] == "success"]
    return {"got": one.got, "guards": one.seen.by_guard, "entries": arguments, "waits": shown}


if __name__ == "__main__":
    done = {key: go_on(*given) for key, given in json.loads(sys.stdin.read()).items()}
    print(json.dumps(done))
