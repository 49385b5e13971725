"""ADK's runner plugins as objects: each of their methods, in which order, for which agents."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import random
from typing import Any

import pytest
from connectagent_adk import BasePlugin, LlmResponse, adk_callbacks, adk_plugin, types
from connectagent_adk.callback import PLUGIN_PARAMETERS
from pytest_connectagent import AgentTester

from connectagent import Agent, HandlerError, HookResultError
from connectagent.testing import ScriptedLLM, call

pytestmark = pytest.mark.filterwarnings("default")  # Google's packages warn of their own deprecations
SLOTS = [slot for slot in PLUGIN_PARAMETERS if slot != "close"]
LOOK = [call("look", at="it")]
RUNS = int(os.environ.get("CONNECTAGENT_ADK_RUNS", "8"))


def look(at: str) -> str:
    """Look at something."""
    return f"{at}: nothing"


def fail() -> str:
    """Fail."""
    raise ValueError("no")


def text(said: str, of: Any = types) -> Any:
    return of.Content(role="model", parts=[of.Part(text=said)])


def noting(seen: list[str], values: dict[str, Any], base: type[Any] = BasePlugin) -> Any:
    """A plugin with all methods of ADK's."""

    def method(slot: str) -> Any:
        async def noted(self: Any, **given: Any) -> Any:
            assert set(given) == set(PLUGIN_PARAMETERS[slot])
            await asyncio.sleep(0)
            seen.append(f"plugin {slot}")
            return values.get(f"plugin {slot}")

        return noted

    return type("Noting", (base,), {slot: method(slot) for slot in PLUGIN_PARAMETERS})("noting")


def callbacks(seen: list[str], values: dict[str, Any]) -> dict[str, Any]:
    def one(slot: str) -> Any:
        return lambda **given: seen.append(f"agent {slot}") or values.get(f"agent {slot}")

    moments = [f"{when}_{what}_callback" for when in ("before", "after") for what in ("agent", "model", "tool")]
    return {slot: one(slot) for slot in (*moments, "on_model_error_callback", "on_tool_error_callback")}


def agent_with(plugin: Any, *responses: Any, plugins: Any = (), name: str = "guide", **options: Any) -> Agent:
    llm, given = ScriptedLLM(*responses), [adk_plugin(plugin), *plugins]
    return Agent(name, [look, fail], llm=llm, plugins=given, log=False, quiet=True, **options)


def test_each_method_is_called_at_its_moment_and_before_the_callbacks_of_the_agent() -> None:
    seen: list[str] = []
    agent = agent_with(noting(seen, {}), LOOK, "Done.", plugins=[adk_callbacks(**callbacks(seen, {}))])
    assert agent.input("Look") == "Done."
    agent.close()
    model = ["before_model", "after_model"]
    both = ["before_agent", *model, "before_tool", "after_tool", *model, "after_agent"]
    order = [f"{who} {slot}_callback" for slot in both for who in ("plugin", "agent")]
    events = [place for place, one in enumerate(order) if one == "agent after_model_callback"]
    for place in reversed([events[0] + 1, order.index("agent after_tool_callback") + 1, events[1] + 1]):
        order.insert(place, "plugin on_event_callback")
    first = ["plugin on_user_message_callback", "plugin before_run_callback"]
    assert seen == [*first, *order, "plugin after_run_callback", "plugin close"]


def test_a_plugin_is_for_the_whole_tree_and_its_run_is_the_outer_turn() -> None:
    seen: list[Any] = []

    class Names(BasePlugin):
        async def before_run_callback(self, *, invocation_context: Any) -> None:
            seen.append(("run", invocation_context.agent.name, invocation_context.app_name))

        async def before_agent_callback(self, *, agent: Any, callback_context: Any) -> None:
            seen.append((agent.name, callback_context.branch))

    inner = Agent("inner", llm=ScriptedLLM("Inner."), log=False, quiet=True)
    llm = ScriptedLLM([call("inner", prompt="Go")], "Done.")
    plugin = adk_plugin(Names("names"))
    assert plugin.name == "names"
    Agent("outer", [inner], llm=llm, plugins=[plugin], log=False, quiet=True).input("Hi")
    assert seen == [("run", "outer", "outer"), ("outer", None), ("inner", "outer.inner")]


def test_a_message_is_replaced_and_a_run_is_stopped_before_it_begins() -> None:
    plugin = noting([], {"plugin on_user_message_callback": text("Another question")})
    agent = agent_with(plugin, "Answer.")
    assert agent.input("A question") == "Answer."
    assert agent.llm.requests[0].messages[-1]["content"] == "Another question"  # type: ignore[attr-defined]
    stopped = agent_with(noting([], {"plugin before_run_callback": text("Closed.")}))
    assert stopped.input("Hi") == "Closed."


def test_an_event_of_the_model_is_replaced_and_one_of_tools_is_not() -> None:
    class Signing(BasePlugin):
        def on_event_callback(self, *, invocation_context: Any, event: Any) -> Any:
            assert event.author == "guide" and event.invocation_id == invocation_context.invocation_id
            if event.is_final_response():
                event.content.parts[0].text += " Signed."
                return event
            return text("x") if refused and event.get_function_responses() else None if refused else event

    refused: list[int] = []
    event = Signing("signing")
    assert agent_with(event, LOOK, "Done.").input("Hi") == "Done. Signed."
    refused.append(1)
    with pytest.raises(HookResultError, match=r"Signing.on_event_callback.*in place of a model's answer"):
        agent_with(event, LOOK, "Done.").input("Hi")


def test_what_is_no_plugin_is_refused() -> None:
    for value in (BasePlugin("empty"), BasePlugin, 3, print):
        with pytest.raises(HandlerError, match="no plugin of ADK's; give an object with methods"):
            adk_plugin(value)


def test_it_keeps_the_rules_on_every_path(agenttester: AgentTester) -> None:
    class Watching(BasePlugin):
        def on_user_message_callback(self, *, invocation_context: Any, user_message: Any) -> None: ...
        def after_run_callback(self, *, invocation_context: Any) -> None: ...
        def on_event_callback(self, *, invocation_context: Any, event: Any) -> None: ...

    agenttester.check(adk_plugin(Watching("watching")))


# -- beside google-adk -----------------------------------------------------------------------------

CASES: list[tuple[list[Any], dict[str, Any]]] = [
    (["look", "end"], {}),
    (["fail", "end"], {"plugin on_tool_error_callback": {"e": 1}}),
    (["fail", "end"], {"agent on_tool_error_callback": {"e": 1}}),
    ([ConnectionError("x")], {"plugin on_model_error_callback": "R"}),
    ([ConnectionError("x")], {}),
    (["end"], {"plugin before_model_callback": "R"}),
    (["end"], {"agent before_model_callback": "R"}),
    (["look", "end"], {"plugin after_model_callback": "R"}),
    (["look", "end"], {"plugin before_tool_callback": {"r": 1}}),
    (["look", "end"], {"plugin after_tool_callback": {"r": 1}}),
    (["look", "end"], {"agent after_tool_callback": {"r": 1}}),
    (["look", "end"], {"agent after_agent_callback": text}),
    (["end"], {"plugin before_run_callback": text}),
    (["end"], {"plugin before_agent_callback": text}),
    (["end"], {"plugin on_user_message_callback": text}),
]


def has_adk() -> bool:
    try:
        return importlib.util.find_spec("google.adk") is not None
    except ModuleNotFoundError:
        return False


needs_adk = pytest.mark.skipif(not has_adk(), reason="no google-adk: pip install google-adk")


def with_values(values: dict[str, Any], response: Any, of: Any) -> dict[str, Any]:
    made = {"R": lambda: response(content=text("R", of)), text: lambda: text("stopped", of)}
    return {slot: value if isinstance(value, dict) else made[value]() for slot, value in values.items()}


def in_adk(script: list[Any], values: dict[str, Any]) -> tuple[list[str], str]:
    """What ADK's own runner calls, and its last answer or error."""
    from google.adk.agents import LlmAgent
    from google.adk.models import BaseLlm
    from google.adk.models import LlmResponse as Response
    from google.adk.plugins.base_plugin import BasePlugin as Base
    from google.adk.runners import InMemoryRunner
    from google.genai import types as of

    class Scripted(BaseLlm):  # type: ignore[misc, unused-ignore]
        async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
            one = answers.pop(0)
            if isinstance(one, Exception):
                raise one
            called = of.Part.from_function_call(name=one, args={"at": "it"} if one == "look" else {})
            part = called if one in ("look", "fail") else of.Part(text=one)
            yield Response(content=of.Content(role="model", parts=[part]))

    async def run() -> Any:
        await runner.session_service.create_session(app_name="a", user_id="u", session_id="s")
        message = of.Content(role="user", parts=[of.Part(text="Hi")])
        return [event async for event in runner.run_async(user_id="u", session_id="s", new_message=message)]

    seen: list[str] = []
    answers, values = list(script), with_values(values, Response, of)
    model = Scripted(model="scripted")
    agent = LlmAgent(name="guide", model=model, tools=[look, fail], **callbacks(seen, values))
    runner = InMemoryRunner(agent=agent, app_name="a", plugins=[noting(seen, values, Base)])
    try:
        return seen, asyncio.run(run())[-1].content.parts[0].text
    except ConnectionError as error:
        return seen, repr(error)


def in_connectagent(script: list[Any], values: dict[str, Any]) -> tuple[list[str], str]:
    seen: list[str] = []
    values = with_values(values, LlmResponse, types)
    calls = {"look": LOOK, "fail": [call("fail")]}
    responses = [one if isinstance(one, Exception) else calls.get(one, one) for one in script]
    agent = agent_with(noting(seen, values), *responses, plugins=[adk_callbacks(**callbacks(seen, values))])
    try:
        return seen, agent.input("Hi")
    except ConnectionError as error:
        return seen, repr(error)


def random_case(seed: int) -> tuple[list[Any], dict[str, Any]]:
    """A model's answers, and which of all callbacks decide. Where nobody takes a tool's error, ADK's run ends."""
    dice = random.Random(seed)
    script = [*dice.choices(["look", "look", "fail"], k=dice.randrange(3)), dice.choice(["end", ConnectionError("x")])]
    dicts: dict[str, list[Any]] = {"before_tool": [{"r": 1}, {}], "after_tool": [{"r": 2}], "on_tool_error": [{"e": 1}]}
    moments = dicts | {moment: ["R"] for moment in ("before_model", "after_model", "on_model_error")}
    moments |= {moment: [text] for moment in ("before_agent", "after_agent", "before_run", "on_user_message")}
    values = {"agent on_tool_error_callback": {"e": 2}} if "fail" in script else {}
    for who in ("plugin", "agent"):
        for moment, those in moments.items():
            if f"{moment}_callback" in (SLOTS if who == "plugin" else callbacks([], {})) and dice.random() < 0.13:
                values[f"{who} {moment}_callback"] = dice.choice(those)
    return script, values


@needs_adk
@pytest.mark.parametrize("seed", range(RUNS))
def test_random_callbacks_decide_as_in_adks_runner(seed: int) -> None:
    test_order_and_results_are_those_of_adks_runner(random_case(seed))


@needs_adk
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join([*map(str, case[0]), *case[1]]))
def test_order_and_results_are_those_of_adks_runner(case: tuple[list[Any], dict[str, Any]]) -> None:
    # Of events, ADK also reports those that hold a callback's content or an error.
    theirs, ours = (
        ([one for one in seen if "on_event" not in one], last) for seen, last in (in_adk(*case), in_connectagent(*case))
    )
    assert ours == theirs


@needs_adk
def test_adks_own_plugins_run_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    from google.adk.plugins.logging_plugin import LoggingPlugin

    agent = agent_with(LoggingPlugin(), LOOK, "Done.")
    assert agent.input("Look") == "Done."
    shown = capsys.readouterr().out
    for line in ("USER MESSAGE RECEIVED", "TOOL STARTING", "Function Responses: ['look']", "INVOCATION COMPLETED"):
        assert line in shown
