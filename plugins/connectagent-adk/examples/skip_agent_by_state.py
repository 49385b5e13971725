"""Skip a whole turn: before_agent_callback answers by itself where the session's state says so.

What it returns is the turn's result; the model is not called, and after_agent_callback does not run.
"""

from connectagent_adk import CallbackContext, adk_callbacks, types

from connectagent import Agent
from connectagent.testing import ScriptedLLM


def closed_for_the_night(callback_context: CallbackContext) -> types.Content | None:
    if not callback_context.state.get("closed", False):
        return None
    text = f"{callback_context.agent_name} is closed until eight."
    return types.Content(role="model", parts=[types.Part(text=text)])


def main() -> None:
    plugin = adk_callbacks(before_agent_callback=closed_for_the_night)
    agent = Agent("desk", llm=ScriptedLLM("Good evening!"), plugins=[plugin], log=False, quiet=True)
    print(agent.input("Hello"))
    agent.session["state"]["closed"] = True
    print(agent.input("Still there?"))


if __name__ == "__main__":
    main()
