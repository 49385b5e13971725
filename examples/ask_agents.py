"""Agents as tools: a planner asks two agents in one round, and they work at the same time, in threads.

What they change in the state comes home in the order of the calls, and each turn is linked in the trace.
The models are scripted, so that the example runs without a key; leave `llm=` out for real ones.
"""

import threading

from connectagent import Agent
from connectagent.testing import ScriptedLLM, call

together = threading.Barrier(2, timeout=10)


def look_up(agent: Agent, place: str) -> str:
    """Look up what is known about a place."""
    together.wait()  # neither goes on before the other has come here too
    agent.session["state"][agent.name] = place
    return f"all well in {place}"


def reporter(name: str) -> Agent:
    script = ScriptedLLM(call("look_up", place="Paris"), f"The {name} in Paris is fine.")
    return Agent(name, tools=[look_up], llm=script)


if __name__ == "__main__":
    planner = Agent(
        "planner",
        tools=[reporter("weather"), reporter("traffic")],
        llm=ScriptedLLM([call("weather", prompt="Paris?"), call("traffic", prompt="Paris?")], "Go on Sunday."),
    )
    print(planner.input("When shall I go to Paris?"))
    print(planner.session["state"])
    for entry in planner.session["trace"]:
        if entry["type"] == "agent_turn":
            print(entry["branch"], entry["outcome"])
