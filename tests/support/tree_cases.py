"""Small trees of agents that wait for decisions; `tree_processes` runs, kills and resumes them.

Nothing here knows how a turn goes on: a case is a program of the public interface, and what it leaves behind is judged.
Models answer by what they read, never by a counter, so that another process answers as the first one would have done.
What agents do besides, in any tree, stands in `tree_features`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from connectagent import (
    Agent,
    LLMResponse,
    Loop,
    Parallel,
    Pause,
    Sequential,
    TokenUsage,
    Tool,
    ToolCall,
    ToolRejected,
    after_tools,
    before_each_tool,
)

PROMPT, MORE, MORE_TO_DO = "Do it.", "Do more.", "What else?"
DECISIONS = ("approve", "reject", "answer")
TOOLS = ("pay", "ship", "pack", "enough")  # `enough` may run twice; no model calls `pack`
PRICE = TokenUsage(10, 5, cost=1 / 64)  # of each answer of a model

# -- what a process notes: in files, which no kill takes back ------------------------------------------------


class Diary:
    """The points that a process passes, and the one at which it dies.

    Args:
        number: which process of the chain it is.
        kill: the point at which it dies, counted from 1; 0 for none.
    """

    def __init__(self, number: int, kill: int) -> None:
        self.number, self.kill, self.passed = number, kill, 0
        self.points = os.open("points", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.ledger = os.open("ledger", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.lock = threading.Lock()
        self.write = os.write

    def pass_point(self, label: str, dying: Callable[[], object] = lambda: None) -> None:
        """Pass a point, or die there; `dying` is done before."""
        with self.lock:
            self.passed += 1
            self.write(self.points, f"{self.number}\t{label}\n".encode())
            if self.passed == self.kill:
                dying()
                os.kill(os.getpid(), signal.SIGKILL)

    def note(self, what: str, label: str) -> None:
        self.write(self.ledger, f"{self.number}\t{what}\t{label}\n".encode())

    def has_noted(self, what: str, label: str) -> bool:
        """Whether a process of the chain has noted it."""
        return f"\t{what}\t{label}\n" in Path("ledger").read_text()

    def watch_records(self) -> None:
        """Make a point before, inside and after each write to a record."""

        def write(fd: int, data: Any) -> int:
            if not os.readlink(f"/proc/self/fd/{fd}").endswith(".yaml"):
                return self.write(fd, data)
            self.pass_point("line before")
            self.pass_point("line torn", lambda: self.write(fd, bytes(data)[: len(data) // 2]))
            written = self.write(fd, data)
            self.pass_point("line after")
            return written

        os.write = write


# -- agents ------------------------------------------------------------------------------------------------


def decision_about(kind: str, reason: str) -> str:
    """What is decided about a call: the same for all, or one of the three for each."""
    return DECISIONS[sum(reason.encode()) % 3] if kind == "mixed" else kind


class Model:
    """A model whose n-th answer in a turn is the n-th step: names of tools that it calls, or None for its text."""

    def __init__(self, world: World, name: str, steps: tuple[Any, ...]) -> None:
        self.world, self.name, self.steps, self.model = world, name, steps, f"test/{name}"

    def stream(self, messages: list[Any], tools: Any = None, *, on_text: Callable[[str], None]) -> LLMResponse:
        response = self.complete(messages, tools)
        for piece in re.findall(r"\S+\s*", response.content or ""):
            on_text(piece)
        return response

    def complete(self, messages: list[Any], tools: Any = None) -> LLMResponse:
        asked = str(messages[-1]["content"])
        if asked.startswith("Well, "):  # by a handler or a tool
            self.world.diary.pass_point("inside model" if asked.startswith("Well, in ") else f"ask {self.name}")
            return self._answer(f"yes to {asked}")
        self.world.diary.pass_point(f"model {self.name}")
        start = max(n for n, message in enumerate(messages) if _is_prompt(message))
        turn = messages[start:]
        self._note_results(messages)
        steps = (["ship"], None) if turn[0]["content"] == MORE_TO_DO else self.steps
        step = steps[min(sum(message["role"] == "assistant" for message in turn), len(steps) - 1)]
        if step is None:
            results = [str(message["content"]) for message in turn if message["role"] == "tool"]
            return self._answer(f"{self.name}({' | '.join(results)})")
        return self._answer(None, self.calls(messages, step))

    def _answer(self, content: str | None, calls: list[ToolCall] | None = None) -> LLMResponse:
        self.world.diary.note("answered", self.name)
        return LLMResponse(content, calls or [], PRICE)

    def calls(self, messages: list[Any], names: list[str]) -> list[ToolCall]:
        """Calls of what is named."""
        before = [call["function"]["name"] for message in messages for call in message.get("tool_calls") or ()]
        calls = []
        for name in names:
            calls.append(self._call(name, len(before), before.count(name) + 1))
            before.append(name)
        return calls

    def _call(self, name: str, place: int, ordinal: int) -> ToolCall:
        arguments: dict[str, Any] = {"what": str(ordinal), **self.world.arguments(name)}
        if name.startswith("to "):
            name, arguments = "transfer_to_agent", {"agent_name": name[3:]}
        elif name not in TOOLS:
            arguments = {"prompt": f"Do part {ordinal}."}
        return ToolCall(f"{self.name}{place}", name, arguments)

    def _note_results(self, messages: list[Any]) -> None:
        """Note what is read about calls of this agent's own tools."""
        calls = {call["id"]: call["function"] for one in messages for call in one.get("tool_calls") or ()}
        for message in messages:
            if message["role"] != "tool":
                continue
            function, text = calls[message["tool_call_id"]], " ".join(str(message["content"]).split())
            label = f"{function['name']} {self.name} {json.loads(function['arguments']).get('what', '')}"
            self.world.note_result(label, text)


def _is_prompt(message: Any) -> bool:
    return message["role"] == "user" and str(message["content"]).startswith(("Do ", "What was said", MORE_TO_DO))


class World(NamedTuple):
    """What the agents of a case have in common.

    Args:
        diary: what they note.
        kind: what is decided.
        direct: whether guards decide by themselves.
        features: what each agent does besides, of `tree_features`.
        changed: whether the code is another one than that which began.
    """

    diary: Diary
    kind: str
    direct: bool
    features: tuple[Any, ...] = ()
    changed: bool = False

    def agent(self, name: str, *steps: Any, guarded: bool = False, **options: Any) -> Agent:
        """An agent that does the steps, then says what it read; `guarded`: a person is asked about its payments."""
        tools = [made_tool(self, name) for name in TOOLS] + list(options.pop("asks", ()))
        steps = (*steps, None)
        llm: Any = Model(self, name, steps)
        events = [handler for feature in self.features for handler in feature.handlers(self, name, steps)]
        events += [self.guard()] if guarded else []
        for feature in self.features:
            llm, options = feature.llm(llm), {**options, **feature.options}
        options.setdefault("output_key", f"out:{name}")
        return Agent(name, tools, llm=llm, quiet=True, on_events=events, **options)

    def arguments(self, tool: str = "") -> dict[str, Any]:
        """What each tool call is given besides; not `enough`, as a loop goes on where a masked one is not run."""
        given = {name: value for feature in self.features for name, value in feature.arguments.items()}
        return {} if tool == "enough" else given

    def note_result(self, label: str, text: str) -> None:
        """Note what came of a call: in doubt, not run since it is masked, or anything else."""
        if re.match(r"(rejected: )?in doubt", text):
            self.diary.note("doubt", label)
        elif text.startswith("rejected: ") and "is masked in the record" in text:
            self.diary.note("masked", label)
        elif label.split()[0] in TOOLS:
            self.diary.note("read", f"{label}: {text}")

    def guard(self) -> Any:
        @before_each_tool
        def ask_a_person(agent: Agent, tool_call: ToolCall) -> str | None:
            if tool_call.name != "pay":
                return None
            reason = f"pay {agent.name} {tool_call.arguments['what']}"
            if not self.direct:
                raise Pause(reason)
            decision = decision_about(self.kind, reason)
            self.diary.note(decision, reason)
            if decision == "reject":
                raise ToolRejected("no")
            return "by hand" if decision == "answer" else None

        return ask_a_person


def inner(label: str) -> str:
    """The label of what a tool does with another tool."""
    name, agent, what = label.split()
    return f"pack {agent} {name}-{what}"


def _effect(world: World, agent: Agent, name: str, what: str) -> str:
    """What must not happen twice, and its trace in the state."""
    label, diary = f"{name} {agent.name} {what}", world.diary
    of_model = name != "pack"
    begin, end = ("inside begin", "inside end") if "-" in what and not of_model else ("begin", "end")
    diary.pass_point(f"{begin} {label}")
    for feature in world.features if of_model else ():
        feature.before(world, agent, label)
    diary.note("ran", label)
    state: dict[str, Any] = agent.current_session["state"]  # type: ignore[index]
    state["count"] = state.get("count", 0) + 1
    state["log"] = [*state.get("log", ()), label]
    state.setdefault(f"log:{agent.name}", []).append(label)
    for feature in world.features if of_model else ():
        feature.after(world, agent, label)
    diary.pass_point(f"{end} {label}")
    return f"did {label}"


def _enough(diary: Diary, agent: Agent, what: str) -> str:
    """End the loop in its second round."""
    diary.pass_point("begin enough")
    if int(what) >= 2:
        agent.end_turn("enough", scope="loop")
    diary.pass_point("end enough")
    return "looked"


def made_tool(world: World, name: str) -> Tool:
    """A tool with its schema given: to read signatures would take longer than all the rest."""
    more = world.arguments(name)

    def function(what: str, agent: Agent, **given: Any) -> str:
        if given != more:
            world.diary.note("ran", f"{name} {agent.name} {what} with {given}")
        return _enough(world.diary, agent, what) if name == "enough" else _effect(world, agent, name, what)

    texts = {one: {"type": "string"} for one in ("what", *more)}
    parameters = {"type": "object", "properties": texts, "required": list(texts)}
    return Tool(name, "", parameters, function, idempotent=name == "enough")


# -- cases: the root is always called `root` -----------------------------------------------------------------


def lone(w: World) -> Agent:
    return w.agent("root", ["ship", "pay", "ship"], ["pay"], guarded=True)


def handoff(w: World) -> Agent:
    b = w.agent("b", ["pay"], ["to c"], guarded=True)
    c = w.agent("c", ["ship"], ["to root"])
    return w.agent("root", ["to b"], ["ship"], sub_agents=[b, c])


def handoff_stays(w: World) -> Agent:
    return w.agent("root", ["ship"], ["to b"], sub_agents=[w.agent("b", ["pay", "ship"], guarded=True)])


def asked(w: World) -> Agent:
    return w.agent("root", ["ship", "b"], ["b"], asks=[w.agent("b", ["pay"], ["ship"], guarded=True)])


def three_levels(w: World) -> Agent:
    c = w.agent("c", ["ship", "pay"], guarded=True)
    return w.agent("root", ["b"], ["ship"], asks=[w.agent("b", ["c"], ["ship"], ["c"], asks=[c])])


def _sequence(w: World, name: str, guarded: int, **options: Any) -> Agent:
    agents = [w.agent(name, ["ship"], ["pay"], guarded=n == guarded) for n, name in enumerate("pqr")]
    return Sequential(name, agents[::-1] if w.changed else agents, quiet=True, output_key=f"out:{name}", **options)


def sequential_first(w: World) -> Agent:
    return _sequence(w, "root", 0)


def sequential_middle(w: World) -> Agent:
    return _sequence(w, "root", 1)


def sequential_last(w: World) -> Agent:
    return _sequence(w, "root", 2)


def loop(w: World) -> Agent:
    agents = [w.agent("p", ["ship"], ["pay"]), w.agent("q", ["pay"], ["enough"], guarded=True)]
    return Loop("root", agents, max_rounds=4, quiet=True)


def parallel_one(w: World) -> Agent:
    agents = [w.agent("x", ["ship"], ["pay"], guarded=True), w.agent("y", ["ship"], ["pay"])]
    return Parallel("root", agents, quiet=True, output_key="out:root")


def parallel_both(w: World) -> Agent:
    agents = [w.agent(name, ["ship"], ["pay"], guarded=name != "z") for name in "xyz"]
    return Parallel("root", agents, quiet=True, output_key="out:root")


def two_in_a_round(w: World) -> Agent:
    asks = [w.agent(name, ["ship", "pay"], guarded=True) for name in "xy"]
    return w.agent("root", ["x", "ship", "y"], ["ship"], asks=asks)


def _body(w: World, name: str) -> Agent:
    first, second = w.agent("v", ["ship", "pay"], guarded=True), w.agent("w", ["pay"])

    def run(agent: Agent) -> str:
        state: dict[str, Any] = agent.current_session["state"]  # type: ignore[index]
        told = []
        while state.get("turns", 0) < 2:  # as often as what it changes itself says
            state["turns"] = state.get("turns", 0) + 1
            piece = "piece" if w.changed else "part"
            told.append(first.input(f"Do {piece} {state['turns']} after {state.get('count', 0)}."))
            told.append(second.input(f"Do the rest of {state['turns']}."))
        return f"{name}({' | '.join(told)})"

    return Agent(name, run=run, sub_agents=[first, second], quiet=True, output_key=f"out:{name}")


def body(w: World) -> Agent:
    return _body(w, "root")


def sequential_in_tool(w: World) -> Agent:
    return w.agent("root", ["s", "ship"], asks=[_sequence(w, "s", 1, description="Works.")])


def tool_in_sequential(w: World) -> Agent:
    asking = w.agent("p", ["ship", "b"], ["ship"], asks=[w.agent("b", ["pay"], guarded=True)])
    return Sequential("root", [asking, w.agent("q", ["pay"], guarded=True)], quiet=True)


def body_in_parallel(w: World) -> Agent:
    return Parallel("root", [_body(w, "r"), w.agent("y", ["ship"], ["pay"], guarded=True)], quiet=True)


def handoff_in_tool(w: World) -> Agent:
    c = w.agent("c", ["pay"], ["ship"], guarded=True)
    return w.agent("root", ["b"], ["ship"], asks=[w.agent("b", ["ship"], ["to c"], sub_agents=[c])])


def same_twice(w: World) -> Agent:
    return w.agent("root", ["b", "ship", "b"], ["ship"], asks=[w.agent("b", ["ship", "pay"], guarded=True)])


def via_in_round(w: World) -> Agent:
    """A tool asks an agent beside two that wait."""
    inside = w.agent("z", ["ship"])
    asks: list[Any] = [w.agent(name, ["pay"], guarded=True) for name in "xy"]
    parameters = {"type": "object", "properties": {"prompt": {"type": "string"}}}
    asks.append(Tool("via", "", parameters, lambda prompt: inside.input(prompt + "!" * w.changed), idempotent=True))
    return w.agent("root", ["x", "via", "y"], ["ship"], asks=asks, sub_agents=[inside], transfer_to=())


def critic(w: World) -> Agent:
    """Two handlers of one name ask an agent that is in no tree, with the same words."""
    outside = w.agent("c", ["ship", "pay"], guarded=True)
    return w.agent("root", ["ship"], ["ship"], plugins=[_asking(w, outside, "first"), _asking(w, outside, "second")])


def _state(agent: Agent) -> dict[str, Any]:
    return agent.current_session["state"]  # type: ignore[index]


def _asking(w: World, outside: Agent, key: str) -> Any:
    @after_tools
    def ask(agent: Agent) -> None:
        if _state(agent).get("turns", 0) < 3:
            _state(agent)["turns"] = _state(agent).get("turns", 0) + 1
            _state(agent)[f"out:{key}"] = outside.input("Do judge it." if w.changed else "Do judge.")
            _state(agent)["log:c"] = list(_state(outside).get("log:c", ()))

    return ask


class Case(NamedTuple):
    """A tree, how many of its calls wait, and what it does where all of them are approved.

    Args:
        build: makes the root.
        waits: how many calls a person is asked about.
        effects: of which agents tools run, with how many runs.
        prompts: what the root is given, one turn each.
        at_once: whether agents work at the same time.
    """

    build: Callable[[World], Agent]
    waits: int
    effects: dict[str, int]
    prompts: tuple[str, ...] = (PROMPT,)
    at_once: bool = False


CASES = {
    "lone": Case(lone, 2, {"root": 4}),
    "handoff": Case(handoff, 1, {"b": 1, "c": 1, "root": 1}),
    "handoff_stays": Case(handoff_stays, 2, {"root": 1, "b": 4}, (PROMPT, MORE)),
    "asked": Case(asked, 2, {"root": 1, "b": 4}),
    "three_levels": Case(three_levels, 2, {"root": 1, "b": 1, "c": 4}),
    "sequential_first": Case(sequential_first, 1, {"p": 2, "q": 2, "r": 2}),
    "sequential_middle": Case(sequential_middle, 1, {"p": 2, "q": 2, "r": 2}),
    "sequential_last": Case(sequential_last, 1, {"p": 2, "q": 2, "r": 2}),
    "loop": Case(loop, 2, {"p": 4, "q": 2}),
    "parallel_one": Case(parallel_one, 1, {"x": 2, "y": 2}, at_once=True),
    "parallel_both": Case(parallel_both, 2, {"x": 2, "y": 2, "z": 2}, at_once=True),
    "two_in_a_round": Case(two_in_a_round, 2, {"root": 2, "x": 2, "y": 2}, at_once=True),
    "body": Case(body, 2, {"v": 4, "w": 2}),
    "sequential_in_tool": Case(sequential_in_tool, 1, {"p": 2, "q": 2, "r": 2, "root": 1}),
    "tool_in_sequential": Case(tool_in_sequential, 2, {"p": 2, "b": 1, "q": 1}),
    "body_in_parallel": Case(body_in_parallel, 3, {"v": 4, "w": 2, "y": 2}, at_once=True),
    "same_twice": Case(same_twice, 2, {"root": 2, "b": 4}),
    "via_in_round": Case(via_in_round, 2, {"root": 1, "x": 1, "y": 1, "z": 1}, at_once=True),
    "critic": Case(critic, 3, {"root": 2, "c": 6}),
    "handoff_in_tool": Case(handoff_in_tool, 1, {"root": 1, "b": 1, "c": 2}),
}
