"""What the agents of a tree do besides: each feature is added to any tree of `tree_cases`, alone or with others.

A cell is written `tree+feature+feature`; `tree_of` finds it. Like models, handlers here decide by what they read, so
that another process decides as the first one would have done.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from tree_cases import CASES, MORE_TO_DO, Case, Model, World, inner
from tree_random import random_case

from connectagent import (
    Agent,
    Continue,
    LLMResponse,
    Retry,
    ToolCall,
    ToolRejected,
    after_each_tool,
    after_llm,
    after_tools,
    after_user_input,
    before_each_tool,
    before_llm,
    before_tools,
    llm_do,
    on_complete,
    on_error,
    on_session,
    shadow,
)

SECRET = "q7w8e9r0t1y2u3"  # the environment of each process has it


class Feature(NamedTuple):
    """What is added to each agent.

    Args:
        handlers: makes its handlers, of the agent's name and the steps of its model.
        llm: makes its LLM of what would be it.
        before: what each tool does before it takes effect.
        after: what each tool does when it has taken effect.
        arguments: what each call is given besides.
        options: of `Agent`.
        streamed: whether the root's turns are streamed.
        at_once: whether it does the same however the steps of agents that work at once mix.
    """

    handlers: Callable[[World, str, tuple[Any, ...]], list[Any]] = lambda world, name, steps: []
    llm: Callable[[Any], Any] = lambda llm: llm
    before: Callable[[World, Agent, str], None] = lambda world, agent, label: None
    after: Callable[[World, Agent, str], None] = lambda world, agent, label: None
    arguments: Mapping[str, Any] = MappingProxyType({})
    options: Mapping[str, Any] = MappingProxyType({})
    streamed: bool = False
    at_once: bool = True


class Down(Exception):
    """What models and tools raise."""


def _state(agent: Agent) -> dict[str, Any]:
    return agent.current_session["state"]  # type: ignore[index]


# -- model calls and tools of handlers and tools ----------------------------------------------------------------


def _asks(world: World, name: str, steps: Any) -> list[Any]:
    @after_tools
    def ask(agent: Agent) -> None:
        said = agent.ask(f"Well, {agent.name}?").content
        _state(agent).setdefault(f"said:{name}", []).append(said)

    return [ask]


def _does(world: World, name: str, steps: Any) -> list[Any]:
    @before_each_tool
    def judge(agent: Agent, tool_call: ToolCall) -> None:
        said = llm_do(f"Well, {tool_call.name}?", llm=Model(world, name, ()))
        _state(agent).setdefault(f"judged:{name}", []).append(said)

    return [judge]


def _ask_inside(world: World, agent: Agent, label: str) -> None:
    agent.ask(f"Well, in {label}?")


def _do_inside(world: World, agent: Agent, label: str) -> None:
    llm_do(f"Well, in {label}?", llm=Model(world, agent.name, ()))


def _executes(world: World, name: str, steps: Any) -> list[Any]:
    @after_tools
    def pack(agent: Agent) -> None:
        session: Any = agent.current_session
        what = f"r{session['turn']}.{session['iteration']}{'-changed' if world.changed else ''}"
        entry = agent.execute_tool("pack", {"what": what, **world.arguments()})
        world.note_result(f"pack {name} {what}", str(entry["result"]))
        _state(agent).setdefault(f"packed:{name}", []).append(entry["result"])

    return [pack]


def _execute_inside(world: World, agent: Agent, label: str) -> None:
    what = inner(label).split()[2]
    agent.execute_tool("pack", {"what": what, **world.arguments()})


# -- errors -----------------------------------------------------------------------------------------------------


class Failing:
    """A model that is down."""

    def __init__(self, llm: Any) -> None:
        self.model = f"{llm.model}-down"

    def complete(self, messages: list[Any], tools: Any = None) -> LLMResponse:
        raise Down("down")


def _another_model(world: World, name: str, steps: tuple[Any, ...]) -> list[Any]:
    @on_error
    def fall_back(agent: Agent, error: Exception, tool_call: Any) -> Any:
        return Retry(model=Model(world, name, steps)) if tool_call is None else None

    return [fall_back]


def _fail_once(world: World, agent: Agent, label: str) -> None:
    if not world.diary.has_noted("tried", label):
        world.diary.note("tried", label)
        raise Down("once")


def _fail(world: World, agent: Agent, label: str) -> None:
    raise Down("broken")


def _tries_again(world: World, name: str, steps: Any) -> list[Any]:
    @on_error
    def again(error: Exception, tool_call: Any) -> Retry | None:
        return Retry() if tool_call is not None and str(error) == "once" else None

    return [again]


def _recovers(world: World, name: str, steps: Any) -> list[Any]:
    @on_error
    def recover(error: Exception, tool_call: Any) -> str | None:
        return f"recovered {_label(name, tool_call)}" if tool_call is not None and str(error) == "broken" else None

    return [recover]


def _label(name: str, call: ToolCall) -> str:
    return f"{call.name} {name} {call.arguments['what']}"


# -- what handlers decide ---------------------------------------------------------------------------------------


def _turn_of(agent: Agent) -> list[Any]:
    messages: Any = agent.current_session["messages"]  # type: ignore[index]
    start = max(n for n, one in enumerate(messages) if re.match(r"Do |What was said", _user_text(one)))
    return messages[start:]  # type: ignore[no-any-return]


def _user_text(message: Any) -> str:
    return str(message["content"]) if message["role"] == "user" else ""


def _continues(world: World, name: str, steps: Any) -> list[Any]:
    @on_complete
    def more(agent: Agent) -> Continue | None:
        return None if MORE_TO_DO in map(_user_text, _turn_of(agent)) else Continue(MORE_TO_DO)

    return [more]


def _ends(scope: str) -> Callable[..., list[Any]]:
    def made(world: World, name: str, steps: Any) -> list[Any]:
        @after_tools
        def end(agent: Agent, entries: list[Any]) -> None:
            for entry in entries:  # which no model may read
                if "what" in entry["arguments"]:
                    label = f"{entry['tool_name']} {name} {entry['arguments']['what']}"
                    world.note_result(label, str(entry["result"]))
            if any(entry["tool_name"] == "pay" for entry in entries):
                agent.end_turn(f"{name} ended", scope=scope)

        return [end]

    return made


def _stands_in(world: World, name: str, steps: tuple[Any, ...]) -> list[Any]:
    """One more round in place of the model, and a value in place of every other shipment."""

    @before_llm
    def stand_in_for_model(agent: Agent, request: Any) -> LLMResponse | None:
        rounds = sum(message["role"] == "assistant" for message in _turn_of(agent))
        if rounds != len(steps) - 1:
            return None
        return LLMResponse(None, Model(world, name, ()).calls(request.messages, ["ship", "ship"]))

    @before_each_tool
    def stand_in_for_tool(tool_call: ToolCall) -> str | None:
        stands_in = tool_call.name == "ship" and int(tool_call.arguments["what"]) % 2 == 0
        return f"stood in {_label(name, tool_call)}" if stands_in else None

    return [stand_in_for_model, stand_in_for_tool]


def _shadowed(world: World, name: str, steps: Any) -> list[Any]:
    """What would spoil everything, if it counted."""

    @before_each_tool
    def refuse(agent: Agent) -> None:
        _state(agent)["refused"] = True
        raise ToolRejected("shadow")

    @after_llm
    def reword(agent: Agent, response: LLMResponse) -> str:
        agent.current_session["messages"].append({"role": "user", "content": "shadow"})  # type: ignore[index]
        return "shadow"

    @after_tools
    def stop(agent: Agent) -> None:
        _state(agent).clear()
        agent.end_turn("shadow")

    return [shadow(one) for one in (refuse, reword, stop)]


# -- all hooks --------------------------------------------------------------------------------------------------


def _observes(world: World, name: str, steps: Any, observer: str = "observed") -> list[Any]:
    """Note each of the nine events and who observed it, and change nothing."""

    def note(hook: str, agent: Agent, about: Any = "") -> None:
        session: Any = agent.current_session
        call = "" if not isinstance(about, ToolCall) else f"{about.name} {about.arguments.get('what', '')}"
        moment = f"{hook} {name} {session['turn']}.{session['iteration']} {call or about}".strip()
        world.diary.note("hook", f"{observer}: {moment}")

    @after_user_input
    def after_user_input_(agent: Agent) -> None:
        note("after_user_input", agent)

    @before_llm
    def before_llm_(agent: Agent) -> None:
        note("before_llm", agent)

    @after_llm
    def after_llm_(agent: Agent) -> None:
        note("after_llm", agent)

    @before_tools
    def before_tools_(agent: Agent) -> None:
        note("before_tools", agent)

    @before_each_tool
    def before_each_tool_(agent: Agent, tool_call: ToolCall) -> None:
        note("before_each_tool", agent, tool_call)

    @after_each_tool
    def after_each_tool_(agent: Agent, tool_call: ToolCall) -> None:
        note("after_each_tool", agent, tool_call)

    @after_tools
    def after_tools_(agent: Agent) -> None:
        note("after_tools", agent)

    @on_error
    def on_error_(agent: Agent, tool_call: Any, request: Any) -> None:
        note("on_error", agent, tool_call or str(request.messages[-1]["content"])[:20])

    @on_complete
    def on_complete_(agent: Agent) -> None:
        note("on_complete", agent)

    return [
        after_user_input_,
        before_llm_,
        after_llm_,
        before_tools_,
        before_each_tool_,
        after_each_tool_,
        after_tools_,
        on_error_,
        on_complete_,
    ]


def _meets(world: World, name: str, steps: Any) -> list[Any]:
    """What runs each time that a session begins or is resumed, before its turn goes on."""

    @on_session
    def meet(agent: Agent) -> None:
        _state(agent)[f"met:{agent.name}"] = True

    return [meet, *_observes(world, name, steps, "session")]


FEATURES = {
    "observed": Feature(_observes),
    "session": Feature(_meets),
    "retry": Feature(_tries_again, before=_fail_once),  # before others: each attempt does anew what they do
    "ask": Feature(_asks),
    "ask_in_tool": Feature(before=_ask_inside),
    "llm_do": Feature(_does),
    "llm_do_in_tool": Feature(after=_do_inside),
    "execute": Feature(_executes),
    "execute_in_tool": Feature(before=_execute_inside),
    "masked": Feature(arguments={"token": SECRET}),
    "another_model": Feature(_another_model, Failing),
    "recover": Feature(_recovers, after=_fail),
    "continue": Feature(_continues),
    "end_agent": Feature(_ends("agent")),
    "end_turn": Feature(_ends("turn"), at_once=False),
    "stand_in": Feature(_stands_in),
    "stream": Feature(options={"stream": True}, streamed=True),
    "shadow": Feature(_shadowed),
}


class Tree(NamedTuple):
    """A tree with features."""

    case: Case
    features: tuple[Feature, ...]


def tree_of(cell: str) -> Tree:
    """The tree of a cell: `tree+feature+feature`, or `random:NUMBER` in the place of the tree's name."""
    case, *features = cell.split("+")
    kind, _, number = case.partition(":")
    tree = random_case(int(number)) if kind == "random" else CASES[case]
    return Tree(tree, tuple(FEATURES[name] for name in features))
