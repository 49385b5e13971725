"""Failures that the user does not see: on_tool_error_callback gives a result, on_model_error_callback an answer."""

from typing import Any

from connectagent_adk import BaseTool, CallbackContext, LlmRequest, LlmResponse, ToolContext, adk_callbacks, types

from connectagent import Agent, ProviderError
from connectagent.testing import ScriptedLLM, call


def last_known(
    tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, error: Exception
) -> dict[str, Any] | None:
    return {"price": 12, "note": f"yesterday's, as {error}"}


def apologise(callback_context: CallbackContext, llm_request: LlmRequest, error: Exception) -> LlmResponse | None:
    text = f"Sorry, I cannot answer after {len(llm_request.contents)} messages."
    return LlmResponse(content=types.Content(role="model", parts=[types.Part(text=text)]))


def price(item: str) -> int:
    """The price of a thing."""
    raise ConnectionError("the shop is closed")


def main() -> None:
    down = ProviderError("down", kind="server", provider="test")
    llm = ScriptedLLM([call("price", item="tea")], down)
    plugin = adk_callbacks(on_tool_error_callback=last_known, on_model_error_callback=apologise)
    agent = Agent("clerk", [price], llm=llm, plugins=[plugin], log=False, quiet=True)
    print(agent.input("What does tea cost?"))
    print(agent.session["messages"][-2]["content"])


if __name__ == "__main__":
    main()
