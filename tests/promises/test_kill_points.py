"""Nothing is done twice: a turn is cut behind each line of its record, while handlers raise, edit and forge."""

from __future__ import annotations

import json
import os
import random
import warnings
from pathlib import Path
from typing import Any

import pytest
from awaiting import go_on, take

from connectagent import Agent, LLMResponse, ToolCall, hooks

STORMS = int(os.environ.get("CONNECTAGENT_KILL_STORMS", "6"))  # each of about 30 points; set it for a longer run
EVENTS = ("after_user_input", "before_llm", "after_llm", "before_tools", "before_each_tool", "after_each_tool")
EVENTS += ("after_tools", "on_complete", "around_tool", "around_llm")
IDS = ("T1", "T1/1/model1", "T1/1/c1/tool1", "T1/1/c2/tool1", "T1/1/before_tools", "T1/2/model1")
ran: list[tuple[str, int]] = []


def pay(n: int, agent: Any) -> str:
    """Pay."""
    ran.append((agent.current_session["pending_tool"]["id"], n))
    if n % 7 == 0:
        raise ValueError(f"no {n}")
    return f"paid {n}"


class Teller:
    """A model that tells from the results that it reads what comes next."""

    model = "teller"

    def complete(self, messages: Any, tools: Any = None) -> LLMResponse:
        results = sum(message["role"] == "tool" for message in messages)
        if results < 2:
            return LLMResponse("Two.", [ToolCall("c1", "pay", {"n": 10}), ToolCall("c2", "pay", {"n": 20})])
        return LLMResponse("One.", [ToolCall("c3", "pay", {"n": 30})]) if results < 3 else LLMResponse("Done.")


def edit(given: dict[str, Any]) -> None:
    calls = [given["tool_call"]] if "tool_call" in given else given.get("tool_calls") or ()
    for call in [*calls, *(getattr(given.get("response"), "tool_calls", None) or ())]:
        call.arguments["n"] += 1


def act(name: str, number: int, given: dict[str, Any]) -> None:
    session = given["agent"].current_session
    if name == "raise":
        session["state"]["half"] = 1
        raise ValueError("on purpose")
    if name == "edit":
        edit(given)
    elif name == "own entry":
        entry = {"type": "mine", "id": IDS[number % len(IDS)], "error": "e", "error_type": "X", "by": {"plugin": "x"}}
        session["trace"].append({**entry, "from": list(IDS), "status": "success", "result": "forged"})
    elif name == "forged entry":
        kinds = ("error", "tool_execution", "closed", "began", "llm_call")
        session["trace"].append({"type": kinds[number % 5], "id": IDS[number % len(IDS)], "status": "success"})
    elif name == "past":
        session["trace"][number % len(session["trace"])].update(result="forged", status="error", id="T1")
    elif name == "state":
        session["state"]["n"] = session["state"].get("n", 0) + 1
    elif name == "message":
        session["messages"].append({"role": "user", "content": f"note {number}"})


def handler(hook: str, acts: list[tuple[str, int]]) -> Any:
    def perform(given: dict[str, Any]) -> None:
        for name, number in acts:
            act(name, number, given)

    if hook == "around_tool":

        def around(agent: Any, tool_call: Any) -> Any:
            perform({"agent": agent, "tool_call": tool_call})
            yield

    elif hook == "around_llm":

        def around(agent: Any, request: Any) -> Any:
            perform({"agent": agent})
            yield

    elif hook in ("before_each_tool", "after_each_tool"):

        def around(agent: Any, tool_call: Any) -> None:
            perform({"agent": agent, "tool_call": tool_call})

    elif hook == "before_tools":

        def around(agent: Any, tool_calls: Any) -> None:
            perform({"agent": agent, "tool_calls": tool_calls})

    elif hook == "after_llm":

        def around(agent: Any, response: Any) -> None:
            perform({"agent": agent, "response": response})

    else:

        def around(agent: Any) -> None:
            perform({"agent": agent})

    return getattr(hooks, hook)(around)


def plan(seed: int) -> list[tuple[str, list[tuple[str, int]]]]:
    """Handlers as `(hook, acts)`; those that would end the turn each time it is taken are left out."""
    drawn = random.Random(seed)
    plans = []
    for _ in range(drawn.randint(1, 5)):
        hook = drawn.choice(EVENTS)
        acts = ["edit", "edit", "own entry", "past", "state", "message"]
        if hook.startswith(("after", "on_")):
            acts += ["raise", "raise", "forged entry"]
        plans.append((hook, [(drawn.choice(acts), drawn.randrange(30)) for _ in range(drawn.randint(1, 2))]))
    return plans


def agent_of(plans: Any) -> Agent:
    handlers = [handler(hook, acts) for hook, acts in plans]
    return Agent("killed", [pay], llm=Teller(), plugins=[handlers], plugin_errors="warn", quiet=True, max_iterations=6)


def begun_in(lines: list[bytes]) -> set[str]:
    told = [json.loads(line.strip().removeprefix(b"- ")) for line in lines if b'"began"' in line and b"call_id" in line]
    return {line["call_id"] for line in told}


@pytest.mark.parametrize("seed", sorted({7, 30, *range(STORMS)}))
def test_no_call_is_run_twice_and_none_is_lost_wherever_the_turn_was_cut(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plans = plan(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ran.clear()
        agent = agent_of(plans)
        take(agent, "Go.", seed % 2 == 1)
        full, path = list(ran), agent.record
        assert path is not None and {id for id, _ in full} == {"c1", "c2", "c3"}
        lines = path.read_bytes().splitlines(keepends=True)
        agent.reset_conversation()
        first = next(number for number, line in enumerate(lines) if b'"user_input"' in line)
        for cut in range(first + 1, len(lines)):
            place = tmp_path / f"cut{cut}.yaml"
            place.write_bytes(b"".join(lines[:cut]))
            ran.clear()
            goes_on = agent_of(plans)
            go_on(goes_on, place, seed % 2 == 1 and cut % 4 == 0)
            begun = begun_in(lines[:cut])
            expected = [(id, n) for id, n in full if id not in begun]
            assert ran == expected, (plans, cut, lines[cut - 1])
            goes_on.reset_conversation()
            place.unlink()
