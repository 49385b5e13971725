"""ADK's `output_schema` and `output_key`; beside google-adk where it is installed."""

from __future__ import annotations

import asyncio
import importlib.util
from typing import Any

import pytest
from connectagent_adk import adk_output
from pydantic import BaseModel
from pytest_connectagent import AgentTester

from connectagent import Agent, ConfigError, OutputError, on_complete
from connectagent.testing import ScriptedLLM, call


class City(BaseModel):
    name: str
    people: int = 0
    river: str | None = None


SCHEMA = {"type": "OBJECT", "properties": {"name": {"type": "STRING"}}, "required": ["name"]}
PARIS = '{"name": "Paris"}'
CASES = [
    (City, PARIS, City(name="Paris"), {"name": "Paris", "people": 0}),
    (City, f"```json\n{PARIS}\n```", City(name="Paris"), {"name": "Paris", "people": 0}),
    (list[City], f'{{"value": [{PARIS}]}}', [City(name="Paris")], [{"name": "Paris", "people": 0}]),
    (list[int], '{"value": [1, 2]}', [1, 2], [1, 2]),
    (SCHEMA, f'{{"value": {PARIS}}}', {"name": "Paris"}, {"name": "Paris"}),
]


def look(at: str) -> str:
    """Look at something."""
    return f"{at}: nothing"


def made(schema: Any, *responses: Any, plugins: Any = ()) -> Agent:
    answer = adk_output(schema, "city")
    llm, given = ScriptedLLM(*responses), [answer, *plugins]
    return Agent("guide", [look], llm=llm, output=answer.type, plugins=given, log=False, quiet=True)


@pytest.mark.parametrize(("schema", "text", "result", "data"), CASES)
def test_the_answer_is_of_the_schema_and_the_state_has_its_data(schema: Any, text: str, result: Any, data: Any) -> None:
    agent = made(schema, [call("look", at="it")], text)
    assert agent.input("Which?") == result
    assert agent.session["state"] == {"city": data}


def test_a_json_schema_is_what_the_model_is_asked_for() -> None:
    agent = made(SCHEMA, f'{{"value": {PARIS}}}')
    agent.input("Which?")
    asked = agent.llm.requests[0].messages[-1]["content"]  # type: ignore[attr-defined]
    assert '{"properties": {"name": {"type": "string"}}, "required": ["name"], ' in asked and "OBJECT" not in asked


def test_what_is_no_answer_is_not_stored() -> None:
    @on_complete
    def shout(result: str) -> str:
        return "PARIS!"

    agent = made(City, PARIS, plugins=[shout])
    with pytest.raises(OutputError):
        agent.input("Which?")
    assert agent.session["state"] == {}


def test_what_is_no_schema_is_refused() -> None:
    with pytest.raises(ConfigError, match="output_schema is a type, a JSON Schema or Google's Schema, not 3"):
        adk_output(3)


def test_it_keeps_the_rules_on_every_path(agenttester: AgentTester) -> None:
    agenttester.check(adk_output(City, "city"), changes={"state?"})


# -- beside google-adk -----------------------------------------------------------------------------


def has_adk() -> bool:
    try:
        return importlib.util.find_spec("google.adk") is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.filterwarnings("default")  # Google's packages warn of their own deprecations
@pytest.mark.skipif(not has_adk(), reason="no google-adk: pip install google-adk")
@pytest.mark.parametrize(("schema", "text", "result", "data"), CASES)
def test_the_state_has_what_adk_stores(schema: Any, text: str, result: Any, data: Any) -> None:
    from google.adk.agents import LlmAgent
    from google.adk.models import BaseLlm, LlmResponse
    from google.adk.runners import InMemoryRunner
    from google.genai import types as of

    class Scripted(BaseLlm):  # type: ignore[misc, unused-ignore]
        async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
            yield LlmResponse(content=of.Content(role="model", parts=[of.Part(text=said)]))

    said = text.removeprefix('{"value": ').removesuffix("}") if text.startswith('{"value"') else text
    agent = LlmAgent(name="guide", model=Scripted(model="scripted"), output_schema=schema, output_key="city")
    runner = InMemoryRunner(agent=agent, app_name="a")

    async def run() -> Any:
        await runner.session_service.create_session(app_name="a", user_id="u", session_id="s")
        message = of.Content(role="user", parts=[of.Part(text="Which?")])
        async for _ in runner.run_async(user_id="u", session_id="s", new_message=message):
            pass
        return await runner.session_service.get_session(app_name="a", user_id="u", session_id="s")

    assert asyncio.run(run()).state == {"city": data}


@pytest.mark.skipif(not has_adk(), reason="no google-adk: pip install google-adk")
def test_googles_schema_is_a_schema() -> None:
    from google.genai import types as of

    schema = of.Schema(type="OBJECT", properties={"name": of.Schema(type="STRING")}, required=["name"])
    agent = made(schema, f'{{"value": {PARIS}}}')
    assert agent.input("Which?") == {"name": "Paris"} == agent.session["state"]["city"]
