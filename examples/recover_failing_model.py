"""Recovery from a failing model: another model takes over, and if that fails too, a plain answer.

`tool_call` is None where a model call failed. Every attempt is in the trace.
"""

from connectagent import Agent, ProviderError, Retry, on_error


class Overloaded:
    """A stand-in for a provider that has a bad day."""

    model = "busy-model"

    def complete(self, messages, tools=None):
        raise ProviderError("try again later", kind="overloaded", provider="busy", status=529)


@on_error
def another_model(agent, error, tool_call):
    tried = [entry["model"] for entry in agent.current_session["trace"] if entry["type"] == "llm_call"]
    if tool_call is None and "offline" not in tried:
        return Retry(model="offline")  # with a key: Retry(model="claude-sonnet-4-5")


@on_error
def say_sorry(error, tool_call):
    if tool_call is None:
        return "All models are busy. Please ask again in a minute."


if __name__ == "__main__":
    agent = Agent("helper", llm=Overloaded(), on_events=[another_model, say_sorry])
    print(agent.input("Hello"))

    alone = Agent("lonely", llm=Overloaded(), on_events=[say_sorry])
    print(alone.input("Hello"))
    print([entry["status"] for entry in alone.current_session["trace"] if entry["type"] == "llm_call"])
