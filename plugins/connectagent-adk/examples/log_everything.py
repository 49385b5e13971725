"""A log of each step: callbacks that return None only watch. The model is the built-in one that needs no key."""

from typing import Any

from connectagent_adk import BaseTool, CallbackContext, LlmRequest, LlmResponse, ToolContext, adk_callbacks

from connectagent import Agent


def begins(callback_context: CallbackContext) -> None:
    print(f"{callback_context.agent_name} begins: {callback_context.user_content.parts[0].text}")


def asks(callback_context: CallbackContext, llm_request: LlmRequest) -> None:
    print(f"asks {llm_request.model} with {len(llm_request.contents)} contents")


def answers(callback_context: CallbackContext, llm_response: LlmResponse) -> None:
    print(f"answers with {len(llm_response.get_function_calls())} calls")


def calls(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext) -> None:
    print(f"calls {tool.name}({args})")


def returns(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, tool_response: dict[str, Any]) -> None:
    print(f"{tool.name} returns {tool_response}")


def ends(callback_context: CallbackContext) -> None:
    print("ends")


def search(query: str) -> str:
    """Search the docs."""
    return f"Two pages about {query}"


def main() -> None:
    plugin = adk_callbacks(
        before_agent_callback=begins,
        before_model_callback=asks,
        after_model_callback=answers,
        before_tool_callback=calls,
        after_tool_callback=returns,
        after_agent_callback=ends,
    )
    Agent("helper", [search], model="offline", plugins=[plugin], log=False, quiet=True).input("Search for retries")


if __name__ == "__main__":
    main()
