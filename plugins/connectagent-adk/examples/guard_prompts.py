"""A guardrail: before_model_callback looks at what the user wrote, and changes the system instruction.

A response that it returns stands in for the model's; its edits of the request hold for this one call.
"""

from connectagent_adk import CallbackContext, LlmRequest, LlmResponse, adk_callbacks, types

from connectagent import Agent
from connectagent.testing import ScriptedLLM


def guard(callback_context: CallbackContext, llm_request: LlmRequest) -> LlmResponse | None:
    last = llm_request.contents[-1]
    asked = last.parts[0].text if last.role == "user" and last.parts else ""
    if "password" in (asked or "").lower():
        callback_context.state["refused"] = callback_context.state.get("refused", 0) + 1
        return LlmResponse(content=types.Content(role="model", parts=[types.Part(text="I do not talk about that.")]))
    instruction = llm_request.config.system_instruction or types.Content(role="system", parts=[])
    if not isinstance(instruction, types.Content):
        instruction = types.Content(role="system", parts=[types.Part(text=str(instruction))])
    for part in (instruction.parts or [])[:1]:
        part.text = "[Be brief.] " + (part.text or "")
    llm_request.config.system_instruction = instruction
    return None


def main() -> None:
    llm = ScriptedLLM("Why did the pancake blush?")
    plugin = adk_callbacks(before_model_callback=guard)
    agent = Agent("joker", system_prompt="You tell jokes.", llm=llm, plugins=[plugin], log=False, quiet=True)
    print(agent.input("A joke, please"))
    print(llm.requests[0].messages[0]["content"])
    print(agent.input("A joke about my password, please"))
    print("refused:", agent.session["state"]["refused"], "calls:", len(llm.requests))


if __name__ == "__main__":
    main()
