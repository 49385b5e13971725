"""Random lists of callbacks and two plugins of the runner, beside google-adk: they edit, stand in and raise."""

from __future__ import annotations

import asyncio
import copy
import importlib.util
import os
import random
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from connectagent_adk import BasePlugin, LlmResponse, adk_callbacks, adk_plugin, types

from connectagent import Agent, before_each_tool
from connectagent.testing import ScriptedLLM, call

pytestmark = [
    pytest.mark.filterwarnings("default"),  # Google's packages warn of their own deprecations
    pytest.mark.filterwarnings("ignore:agent.input:RuntimeWarning"),
]
RUNS = int(os.environ.get("CONNECTAGENT_ADK_RUNS", "8"))
MODEL = ("before_model", "after_model", "on_model_error")
TOOL = ("before_tool", "after_tool", "on_tool_error")
SLOTS = ("before_agent", "after_agent", *MODEL, *TOOL)
ACTS = ["watch", "watch", "edit", "edit", "edit", "value"]


def look(at: str) -> dict[str, str]:
    """Look at something."""
    return {"seen": at}


def fail(at: str) -> dict[str, str]:
    """Fail."""
    raise ValueError("no")


class One(NamedTuple):
    """A callback: its name, its slot, what it does, whether it is async, and the role of its content."""

    name: str
    slot: str
    act: str
    is_async: bool
    role: str


class Case(NamedTuple):
    """The model's answers of two turns, and the callbacks of the plugins and of the agent."""

    script: list[Any]
    plugins: list[list[One]]
    agent: dict[str, list[One]]


class Outcome(NamedTuple):
    """What two turns did: the calls, what the model was sent, the results, the state, and the label of an error."""

    seen: list[Any]
    requests: list[Any]
    results: list[str]
    state: dict[str, Any] | None
    error: str | None


def random_case(seed: int) -> Case:
    dice = random.Random(seed)

    def one(name: str, slot: str, is_async: bool) -> One:
        act = "raise" if dice.random() < 0.03 else dice.choice(ACTS)
        return One(name, slot, act, is_async, dice.choice(["model", "model", "user"]))

    def rounds() -> list[Any]:
        last = dice.choice(["end", "end", "end", ConnectionError("down")])
        return [*dice.choices(["look", "look", "fail"], k=dice.randrange(3)), last]

    plugins = []
    for number in (1, 2):
        slots = [slot for slot in SLOTS if dice.random() < 0.35]
        plugins.append([one(f"p{number}.{slot}", slot, True) for slot in slots])
    agent: dict[str, list[One]] = {}
    for slot in SLOTS:
        count = dice.choice([0, 1, 2, 3, 3]) if "tool" in slot else dice.choice([0, 0, 1, 2, 3])
        names = [f"a{number}.{slot}" for number in range(count)]
        agent[slot] = [one(name, slot, dice.random() < 0.5) for name in names]
    # Where nobody takes a tool's error, ADK's run ends.
    agent["on_tool_error"].append(One("last.on_tool_error", "on_tool_error", "value", False, "model"))
    return Case([*rounds(), *rounds()], plugins, {slot: ones for slot, ones in agent.items() if ones})


# -- the callbacks, of either kind -------------------------------------------------------------------


def act(one: One, seen: list[Any], of: Any, response: Any, given: dict[str, Any]) -> Any:
    """What a callback does."""
    args = given.get("args", given.get("tool_args"))
    result = given.get("tool_response", given.get("result"))
    seen.append(copy.deepcopy([one.name, args, result]))
    context = given.get("callback_context", given.get("tool_context"))
    if one.act == "raise":
        raise RuntimeError(f"<{one.name}>")
    if one.act == "edit":
        edit(one, context, args, result, given)
    if one.act != "value":
        return None
    if "tool" in one.slot:
        return {} if one.role == "user" else {"of": one.name}
    content = of.Content(role=one.role, parts=[of.Part(text=f"said by {one.name}")])
    return response(content=content) if "model" in one.slot else content


def edit(one: One, context: Any, args: Any, result: Any, given: dict[str, Any]) -> None:
    if args is not None:
        args["at"] = f"{args['at']}+{one.name}"
    if result is not None:
        result[one.name] = 1
    if one.slot == "before_model":
        request = given["llm_request"]
        request.config.system_instruction = f"{request.config.system_instruction} <{one.name}>"
        part = request.contents[-1].parts[0]
        if part.text:
            part.text += f"+{one.name}"
    elif one.slot == "after_model":
        part = given["llm_response"].content.parts[0]
        if part.text:
            part.text += f"+{one.name}"
        else:
            part.function_call.args["at"] += f"+{one.name}"
    context.state[one.name] = context.state.get(one.name, 0) + 1


def made(one: One, *how: Any) -> Callable[..., Any]:
    def callback(**given: Any) -> Any:
        return act(one, *how, given)

    async def awaited(**given: Any) -> Any:
        await asyncio.sleep(0)
        return act(one, *how, given)

    return awaited if one.is_async else callback


def plugin_of(ones: list[One], base: type[Any], name: str, *how: Any) -> Any:
    def method(one: One) -> Any:
        async def callback(self: Any, **given: Any) -> Any:
            return act(one, *how, given)

        return callback

    return type("Plugin", (base,), {f"{one.slot}_callback": method(one) for one in ones})(name)


def lists_of(case: Case, *how: Any) -> dict[str, Any]:
    return {f"{slot}_callback": [made(one, *how) for one in ones] for slot, ones in case.agent.items()}


def label(error: BaseException) -> str:
    found = re.search(r"<([\w.]+)>", str(error))
    return found[1] if found else str(error)


def parts(content: Any) -> list[Any]:
    shown: list[Any] = []
    for part in content.parts:
        if part.function_call:
            shown.append(["call", part.function_call.name, part.function_call.args])
        elif part.function_response:
            shown.append(["result", part.function_response.response])
        else:
            shown.append(part.text)
    return [content.role, shown]


# -- both runs ---------------------------------------------------------------------------------------


def in_adk(case: Case) -> Outcome:
    from google.adk.agents import LlmAgent
    from google.adk.models import BaseLlm
    from google.adk.models import LlmResponse as Response
    from google.adk.plugins.base_plugin import BasePlugin as Base
    from google.adk.runners import InMemoryRunner
    from google.genai import types as of

    class Scripted(BaseLlm):  # type: ignore[misc, unused-ignore]
        async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
            instruction = re.findall(r"<([\w.]+)>", llm_request.config.system_instruction)
            requests.append(copy.deepcopy([instruction, [parts(one) for one in llm_request.contents]]))
            next_one = answers.pop(0)
            if isinstance(next_one, Exception):
                raise next_one
            if next_one in ("look", "fail"):
                part = of.Part.from_function_call(name=next_one, args={"at": "it"})
            else:
                part = of.Part(text=next_one)
            yield Response(content=of.Content(role="model", parts=[part]))

    async def run() -> None:
        nonlocal state
        await runner.session_service.create_session(app_name="a", user_id="u", session_id="s")
        for prompt in ("Hi", "Again"):
            message = of.Content(role="user", parts=[of.Part(text=prompt)])
            events = [event async for event in runner.run_async(user_id="u", session_id="s", new_message=message)]
            results.append([event for event in events if event.content][-1].content.parts[0].text)
        session = await runner.session_service.get_session(app_name="a", user_id="u", session_id="s")
        state = dict(session.state)

    seen: list[Any] = []
    requests: list[Any] = []
    results: list[str] = []
    state: dict[str, Any] | None = None
    answers, how = list(case.script), (seen, of, Response)
    model = Scripted(model="scripted")
    agent = LlmAgent(name="guide", model=model, instruction="Be kind.", tools=[look, fail], **lists_of(case, *how))
    plugins = [plugin_of(ones, Base, f"p{number}", *how) for number, ones in enumerate(case.plugins)]
    runner = InMemoryRunner(agent=agent, app_name="a", plugins=plugins)
    try:
        asyncio.run(run())
    except Exception as error:
        return Outcome(seen, requests, results, None, label(error))
    return Outcome(seen, requests, results, state, None)


def in_connectagent(case: Case, order: str) -> Outcome:
    from connectagent_adk.translation import contents_of, system_text

    seen: list[Any] = []
    how = (seen, types, LlmResponse)
    answers = [[call(one, at="it")] if one in ("look", "fail") else one for one in case.script]
    plugins = [
        adk_plugin(plugin_of(ones, BasePlugin, f"p{number}", *how)) for number, ones in enumerate(case.plugins) if ones
    ]
    mine = adk_callbacks(**lists_of(case, *how))
    given = [mine, *plugins] if order == "callbacks first" else [*plugins, mine]
    llm = ScriptedLLM(*answers)
    agent = Agent("guide", [look, fail], "Be kind.", llm=llm, plugins=given, log=False, quiet=True)
    results: list[str] = []
    error = None
    try:
        for prompt in ("Hi", "Again"):
            results.append(agent.input(prompt))
    except Exception as raised:
        error = label(raised)
    requests = []
    for request in llm.requests:
        text, count = system_text(request.messages)  # type: ignore[arg-type]
        contents = contents_of(request.messages[count:], types)  # type: ignore[arg-type]
        requests.append([re.findall(r"<([\w.]+)>", text), [parts(content) for content, _ in contents]])
    state = dict(agent.session["state"]) if error is None else None
    return Outcome(seen, requests, results, state, error)


def has_adk() -> bool:
    try:
        return importlib.util.find_spec("google.adk") is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.skipif(not has_adk(), reason="no google-adk: pip install google-adk")
@pytest.mark.parametrize("seed", range(RUNS))
def test_random_lists_do_what_they_do_in_adks_runner(seed: int) -> None:
    case = random_case(seed)
    order = "callbacks first" if seed % 2 else "plugins first"
    assert in_connectagent(case, order) == in_adk(case)


# -- without google-adk ------------------------------------------------------------------------------


def quota(calls: list[Any], as_plugin: bool = False) -> Any:
    def check(tool: Any, args: dict[str, Any], tool_context: Any) -> Any:
        calls.append(dict(args))
        return {"error": "quota used up"} if len(calls) > 1 else None

    async def method(self: Any, tool: Any, tool_args: dict[str, Any], tool_context: Any) -> Any:
        return check(tool, tool_args, tool_context)

    return type("Quota", (BasePlugin,), {"before_tool_callback": method})("quota") if as_plugin else check


def clamp(tool: Any, args: dict[str, Any], tool_context: Any) -> None:
    args["at"] = "here"


@pytest.mark.parametrize("as_plugin", [False, True])
def test_a_callback_is_asked_once_about_a_call_that_a_later_one_edits(as_plugin: bool) -> None:
    calls: list[Any] = []
    first = quota(calls, as_plugin)
    mine = adk_callbacks(before_tool_callback=[clamp] if as_plugin else [first, clamp])
    plugins = [mine, adk_plugin(first)] if as_plugin else [mine]
    llm = ScriptedLLM([call("look", at="it")], "Done.")
    agent = Agent("guide", [look], llm=llm, plugins=plugins, log=False, quiet=True)
    assert agent.input("Hi") == "Done."
    assert calls == [{"at": "it"}]
    assert llm.requests[1].messages[-1]["content"] == '{"seen": "here"}'


def test_callbacks_decide_again_where_another_plugin_changes_the_call() -> None:
    calls: list[Any] = []

    @before_each_tool
    def moves(tool_call: Any) -> None:
        tool_call.arguments["at"] = "there"

    mine = adk_callbacks(before_tool_callback=quota(calls))
    llm = ScriptedLLM([call("look", at="it")], "Done.")
    Agent("guide", [look], llm=llm, plugins=[mine, moves], log=False, quiet=True).input("Hi")
    assert calls == [{"at": "it"}, {"at": "there"}]
    assert llm.requests[1].messages[-1]["content"] == '{"error": "quota used up"}'


def test_a_tool_that_returns_none_is_none_for_callbacks() -> None:
    def nothing() -> None:
        """Do nothing."""

    seen: list[Any] = []
    note = adk_callbacks(after_tool_callback=lambda tool, args, tool_context, tool_response: seen.append(tool_response))
    llm = ScriptedLLM([call("nothing")], "Done.")
    Agent("guide", [nothing], llm=llm, plugins=[note], log=False, quiet=True).input("Hi")
    assert seen == [{"result": None}]
