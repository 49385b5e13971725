"""Random writes to the state, in sessions of several users: what callbacks find is what they find in google-adk."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import random
from typing import Any

import pytest
from connectagent_adk import adk_callbacks

from connectagent import Agent
from connectagent.testing import ScriptedLLM, call

RUNS = int(os.environ.get("CONNECTAGENT_ADK_RUNS", "8"))
KEYS = ("a", "b", "user:a", "user:b", "app:a", "temp:a", "temp:b")
MOMENTS = ("before_agent", "after_agent", "before_model", "after_model", "before_tool", "after_tool")
Turn = tuple[bool, dict[str, list[tuple[str, Any]]]]
"""Whether the model calls a tool, and what the callback of each moment writes."""


def has_adk() -> bool:
    try:
        return importlib.util.find_spec("google.adk") is not None
    except ModuleNotFoundError:
        return False


def look(at: str) -> dict[str, str]:
    """Look at something."""
    return {"at": at}


def random_sessions(seed: int) -> list[tuple[str, list[Turn]]]:
    """Sessions one after the other, each of a user; None as a value deletes."""
    dice = random.Random(seed)

    def writes() -> list[tuple[str, Any]]:
        return [(dice.choice(KEYS), dice.choice([1, "x", None, [1]])) for _ in range(dice.randrange(3))]

    def turn() -> Turn:
        return dice.random() < 0.5, {moment: writes() for moment in MOMENTS if dice.random() < 0.6}

    return [(user, [turn() for _ in range(dice.randrange(1, 4))]) for user in dice.choices(["ada", "bob", "b"], k=3)]


def there(state: Any) -> dict[str, Any]:
    return {key: value for key, value in state.items() if value is not None}


def writing(now: dict[str, Any], seen: list[Any]) -> dict[str, Any]:
    """Callbacks that note the state, and write what is to be written now."""

    def one(moment: str) -> Any:
        def callback(**given: Any) -> None:
            context = given.get("callback_context") or given["tool_context"]
            seen.append((moment, there(context.state.to_dict())))
            for key, value in now.get(moment, ()):
                context.state[key] = value

        return callback

    return {f"{moment}_callback": one(moment) for moment in MOMENTS}


def in_adk(sessions: list[tuple[str, list[Turn]]]) -> list[Any]:
    from google.adk.agents import LlmAgent
    from google.adk.models import BaseLlm, LlmResponse
    from google.adk.runners import InMemoryRunner
    from google.genai import types as of

    seen: list[Any] = []
    now: dict[str, Any] = {}
    answers: list[Any] = []

    class Scripted(BaseLlm):  # type: ignore[misc, unused-ignore]
        async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
            yield LlmResponse(content=of.Content(role="model", parts=[answers.pop(0)]))

    async def run() -> None:
        for number, (user, turns) in enumerate(sessions):
            whose = {"user_id": user, "session_id": str(number)}
            await runner.session_service.create_session(app_name="a", **whose)
            for calls, writes in turns:
                called = of.Part.from_function_call(name="look", args={"at": "it"})
                answers[:] = [called] * calls + [of.Part(text="Done.")]
                now.clear()
                now.update(writes)
                message = of.Content(role="user", parts=[of.Part(text="Hi")])
                async for _ in runner.run_async(**whose, new_message=message):
                    pass

    agent = LlmAgent(name="guide", model=Scripted(model="scripted"), tools=[look], **writing(now, seen))
    runner = InMemoryRunner(agent=agent, app_name="a")
    asyncio.run(run())
    return seen


def in_connectagent(sessions: list[tuple[str, list[Turn]]]) -> list[Any]:
    seen: list[Any] = []
    now: dict[str, Any] = {}
    shared: dict[str, Any] = {}
    for user, turns in sessions:
        answers = [answer for calls, _ in turns for answer in [[call("look", at="it")]] * calls + ["Done."]]
        plugin = adk_callbacks(shared_state=shared, user_id=user, **writing(now, seen))
        agent = Agent("guide", [look], llm=ScriptedLLM(*answers), plugins=[plugin], log=False, quiet=True)
        for _, writes in turns:
            now.clear()
            now.update(writes)
            agent.input("Hi")
    return seen


@pytest.mark.filterwarnings("default")  # Google's packages warn of their own deprecations
@pytest.mark.skipif(not has_adk(), reason="no google-adk: pip install google-adk")
@pytest.mark.parametrize("seed", range(RUNS))
def test_callbacks_find_the_state_that_they_find_in_adk(seed: int) -> None:
    sessions = random_sessions(seed)
    assert in_connectagent(sessions) == in_adk(sessions)
