"""Say the last word: after_agent_callback returns content when the agent has finished.

ADK adds it behind the agent's own answer. Here it is what `input()` returns; both are in the conversation.
"""

from connectagent_adk import CallbackContext, adk_callbacks, types

from connectagent import Agent
from connectagent.testing import ScriptedLLM


def closing_note(callback_context: CallbackContext) -> types.Content | None:
    if not callback_context.state.to_dict().get("wants_note"):
        return None
    said = callback_context.session.events[-1].content.parts[0].text
    return types.Content(role="model", parts=[types.Part(text=f"{said} (Checked by nobody.)")])


def main() -> None:
    plugin = adk_callbacks(after_agent_callback=closing_note)
    llm = ScriptedLLM("It is done.", "It is done again.")
    agent = Agent("worker", llm=llm, plugins=[plugin], log=False, quiet=True)
    print(agent.input("Do it"))
    agent.session["state"]["wants_note"] = True
    print(agent.input("Do it again"))
    print([message["content"] for message in agent.session["messages"][-2:]])


if __name__ == "__main__":
    main()
