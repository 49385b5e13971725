"""Change what the model said: after_model_callback returns a new response, and leaves tool calls alone."""

import copy

from connectagent_adk import CallbackContext, LlmResponse, adk_callbacks, types

from connectagent import Agent
from connectagent.testing import ScriptedLLM, call


def reword(callback_context: CallbackContext, llm_response: LlmResponse) -> LlmResponse | None:
    parts = (llm_response.content and llm_response.content.parts) or []
    if not parts or parts[0].function_call or not parts[0].text:
        return None
    new_parts = [copy.deepcopy(part) for part in parts]
    new_parts[0].text = parts[0].text.replace("problem", "challenge")
    return LlmResponse(
        content=types.Content(role="model", parts=new_parts), grounding_metadata=llm_response.grounding_metadata
    )


def look(where: str) -> str:
    """Look somewhere."""
    return f"Nothing in the {where}."


def main() -> None:
    llm = ScriptedLLM([call("look", where="log")], "There is a problem: the log has no problem in it.")
    plugin = adk_callbacks(after_model_callback=reword)
    print(Agent("optimist", [look], llm=llm, plugins=[plugin], log=False, quiet=True).input("What is wrong?"))


if __name__ == "__main__":
    main()
