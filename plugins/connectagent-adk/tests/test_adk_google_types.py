"""Callbacks that keep their imports from Google's packages are given Google's own classes.

They run where google-adk is installed: `pip install google-adk`, about 110 MB.
"""

from __future__ import annotations

import asyncio
import copy
import importlib.util
import inspect
from typing import Any

import pytest
from connectagent_adk import adk_callbacks

from connectagent import Agent, Image, LLMResponse
from connectagent.testing import ScriptedLLM, call

# Google's packages warn of their own deprecations when they are imported.
pytestmark = pytest.mark.filterwarnings("default")


def has_adk() -> bool:
    try:
        return importlib.util.find_spec("google.adk") is not None
    except ModuleNotFoundError:
        return False


needs_adk = pytest.mark.skipif(not has_adk(), reason="no google-adk: pip install google-adk")


def look(at: str) -> str:
    """Look at something."""
    return f"{at}: nothing"


PNG = b"\x89PNG\r\n"


@needs_adk
def test_model_callbacks_are_given_googles_classes_and_return_them() -> None:
    from google.adk.agents.callback_context import CallbackContext
    from google.adk.models import LlmRequest, LlmResponse
    from google.adk.tools.base_tool import BaseTool
    from google.genai import types

    def guard(callback_context: CallbackContext, llm_request: LlmRequest) -> LlmResponse | None:
        from google.adk.models import LlmRequest

        assert type(llm_request) is LlmRequest
        assert all(type(content) is types.Content for content in llm_request.contents)
        assert type(llm_request.config.tools[0].function_declarations[0]) is types.FunctionDeclaration
        assert isinstance(llm_request.tools_dict["look"], BaseTool)
        if llm_request.contents[-1].parts[0].text == "BLOCK":
            return LlmResponse(content=types.Content(role="model", parts=[types.Part(text="Blocked.")]))
        llm_request.append_instructions(["Be brief."])
        llm_request.contents.insert(0, types.Content(role="user", parts=[types.Part.from_text(text="(an example)")]))
        return None

    def shout(callback_context: CallbackContext, llm_response: LlmResponse) -> LlmResponse | None:
        parts = [copy.deepcopy(part) for part in llm_response.content.parts]
        if not parts[0].text:
            return None
        parts[0].text = parts[0].text.upper()
        return LlmResponse(content=types.Content(role="model", parts=parts))

    llm = ScriptedLLM([call("look", at="it")], "done")
    plugin = adk_callbacks(before_model_callback=guard, after_model_callback=shout)
    agent = Agent("guide", [look], "Sys.", llm=llm, plugins=[plugin], log=False, quiet=True)
    assert [agent.input(["Look", Image(PNG)]), agent.input("BLOCK")] == ["DONE", "Blocked."]
    sent = llm.requests[1].messages
    assert [message["content"] for message in sent[:2]] == ["Sys.\n\nBe brief.", "(an example)"]
    assert agent.current_session is not None
    assert sent[2:] == agent.current_session["messages"][1:4]  # what was not touched is what it was


@needs_adk
def test_contents_of_googles_are_edited_in_place() -> None:
    from google.genai import types

    def edit(callback_context: Any, llm_request: Any) -> None:
        from google.genai import types

        assert isinstance(llm_request.contents[0], types.Content)
        llm_request.contents[0].parts[0].text = "[redacted]"

    llm = ScriptedLLM("ok")
    agent = Agent("a", llm=llm, plugins=[adk_callbacks(before_model_callback=edit)], log=False, quiet=True)
    agent.input("secret")
    assert llm.requests[0].messages == [{"role": "user", "content": "[redacted]"}]
    assert types.Content.__module__ == "google.genai.types"


@needs_adk
def test_stand_ins_are_given_where_the_module_imports_them_too() -> None:
    seen: list[str] = []
    module = {"seen": seen}
    source = """
    from google.genai import types as google_types
    from connectagent_adk import types

    def look(callback_context, llm_request):
        seen.append(isinstance(llm_request.contents[0], types.Content))
    """
    exec(inspect.cleandoc(source), module)
    plugin = adk_callbacks(before_model_callback=module["look"])
    Agent("a", llm=ScriptedLLM("ok"), plugins=[plugin], log=False, quiet=True).input("Hi")
    assert seen == [True]


@needs_adk
def test_agent_and_tool_callbacks_work_with_googles_classes() -> None:
    from google.adk.agents.callback_context import CallbackContext
    from google.adk.artifacts import InMemoryArtifactService
    from google.adk.tools.base_tool import BaseTool
    from google.adk.tools.tool_context import ToolContext
    from google.genai import types

    async def keep(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, tool_response: Any) -> None:
        from google.adk.tools.base_tool import BaseTool

        assert isinstance(tool, BaseTool)
        part = types.Part.from_bytes(data=str(tool_response).encode(), mime_type="text/plain")
        await tool_context.save_artifact("a.txt", part)

    async def last(callback_context: CallbackContext) -> types.Content:
        part = await callback_context.load_artifact("a.txt")
        return types.Content(role="model", parts=[types.Part(text=part.inline_data.data.decode())])

    def first(callback_context: CallbackContext) -> types.Content | None:
        asked = callback_context.user_content.parts[0].text
        return types.Content(parts=[types.Part(text="Closed.")]) if asked == "Open?" else None

    plugin = adk_callbacks(
        before_agent_callback=first,
        after_tool_callback=keep,
        after_agent_callback=last,
        artifact_service=InMemoryArtifactService(),
    )
    agent = Agent(
        "guide", [look], llm=ScriptedLLM([call("look", at="it")], "ok"), plugins=[plugin], log=False, quiet=True
    )
    assert agent.input("Look") == "{'result': 'it: nothing'}"
    assert agent.input("Open?") == "Closed."


@needs_adk
def test_the_order_and_the_stopping_rules_are_those_of_adk() -> None:
    """The same callbacks in ADK's own runner and here: the same calls, in the same order, and the same last answer."""
    from google.adk.agents import LlmAgent
    from google.adk.models import BaseLlm, LlmResponse
    from google.adk.runners import InMemoryRunner
    from google.genai import types

    class Scripted(BaseLlm):  # type: ignore[misc, unused-ignore]
        answers: list[Any]

        async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
            yield LlmResponse(content=types.Content(role="model", parts=[self.answers.pop(0)]))

    def callbacks(seen: list[str]) -> dict[str, Any]:
        def noting(slot: str, values: dict[int, Any]) -> list[Any]:
            def one(number: int) -> Any:
                return lambda **given: seen.append(f"{slot} {number}") or values.get(number)

            return [one(number) for number in range(3)]

        text = types.Content(role="model", parts=[types.Part(text="last word")])
        return {
            "before_agent_callback": noting("before_agent", {}),
            "before_model_callback": noting("before_model", {}),
            "after_model_callback": noting("after_model", {1: None}),
            "before_tool_callback": noting("before_tool", {}),
            "after_tool_callback": noting("after_tool", {1: {}}),
            "on_tool_error_callback": noting("on_tool_error", {0: {"error": "known"}}),
            "after_agent_callback": noting("after_agent", {1: text}),
        }

    def fail() -> str:
        """Fail."""
        raise ValueError("no")

    parts = [types.Part.from_function_call(name="fail", args={}), types.Part(text="the model's")]
    theirs: list[str] = []
    model = Scripted(model="scripted", answers=parts)
    runner = InMemoryRunner(agent=LlmAgent(name="guide", model=model, tools=[fail], **callbacks(theirs)), app_name="a")

    async def run() -> Any:
        await runner.session_service.create_session(app_name="a", user_id="u", session_id="s")
        message = types.Content(role="user", parts=[types.Part(text="Hi")])
        return [event async for event in runner.run_async(user_id="u", session_id="s", new_message=message)]

    last = asyncio.run(run())[-1].content.parts[0].text
    ours: list[str] = []
    llm = ScriptedLLM([call("fail")], "the model's")
    plugin = adk_callbacks(**callbacks(ours))
    result = Agent("guide", [fail], llm=llm, plugins=[plugin], log=False, quiet=True).input("Hi")
    assert ours == theirs
    assert result == last == "last word"
    assert llm.requests[1].messages[-1]["content"] == "{}"


@needs_adk
@pytest.mark.parametrize(("given", "reason"), [("stop", "STOP"), ("length", "MAX_TOKENS"), ("too_many_tool_calls", "")])
def test_why_an_answer_stopped_is_googles_word(given: str, reason: str) -> None:
    from google.genai import types

    seen: list[Any] = []

    def look_at(callback_context: Any, llm_response: Any) -> None:
        from google.genai import types

        assert isinstance(llm_response.content, types.Content)
        seen.append(llm_response.finish_reason)

    llm = ScriptedLLM(LLMResponse("Half", finish_reason=given))
    plugin = adk_callbacks(after_model_callback=look_at)
    assert Agent("guide", llm=llm, plugins=[plugin], log=False, quiet=True).input("Hi") == "Half"
    assert seen == [types.FinishReason[reason or given.upper()]]
