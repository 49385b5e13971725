"""Workflows: two agents research side by side, then a writer and a critic take turns until the critic is content.

`Sequential`, `Parallel` and `Loop` are agents whose body is a function; `Agent(run=...)` makes your own. The
models are scripted, so that the example runs without a key; leave `llm=` out for real ones.
"""

from connectagent import Agent, Loop, Parallel, Sequential
from connectagent.testing import ScriptedLLM, call


def accept(agent: Agent) -> str:
    """Accept the draft."""
    agent.end_turn(agent.session["state"]["draft"], scope="loop")
    return "accepted"


def publish(agent: Agent, prompt: str) -> str:
    return f"Published: {agent.session['state']['draft']}"


if __name__ == "__main__":
    facts = Agent("facts", llm=ScriptedLLM("Herons eat fish."))
    names = Agent("names", llm=ScriptedLLM("Ardea cinerea."))
    writer = Agent("writer", output_key="draft", llm=ScriptedLLM("Herons.", "Herons, Ardea cinerea, eat fish."))
    critic = Agent("critic", tools=[accept], llm=ScriptedLLM("Say what they eat.", call("accept")))
    pipeline = Sequential(
        "pipeline",
        [
            Parallel("research", [facts, names]),
            Loop("refine", [writer, critic], max_rounds=4),
            Agent("publisher", run=publish),
        ],
    )
    print(pipeline.input("Write about herons"))
    print("The writer was told:", str(writer.session["messages"][-2]["content"]).splitlines()[-1])
