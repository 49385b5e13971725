"""Reflection: after each round of tools the model is asked to think before it goes on.

The message that the handler appends comes after the results, so every provider takes it.
"""

from connectagent import Agent, TraceEntry, after_tools


def search(query: str) -> str:
    """Search the docs."""
    return f"Two pages about {query}: 'Retries' and 'Timeouts'."


@after_tools
def reflect(agent: Agent, entries: list[TraceEntry]) -> None:
    names = ", ".join(entry["tool_name"] for entry in entries)
    thought = f"Before you go on: what did {names} tell you, and what is still missing?"
    agent.session["messages"].append({"role": "user", "content": thought})


if __name__ == "__main__":
    agent = Agent("researcher", tools=[search], on_events=[reflect])
    print(agent.input("Search for retry settings"))
    print("The model was asked:", agent.session["messages"][3]["content"])
