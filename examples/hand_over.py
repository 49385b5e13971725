"""Agents that hand over: a desk passes the user on to whom it concerns, and that agent answers from then on.

The models are scripted, so that the example runs without a key; leave `llm=` out for real ones. A plugin of
the desk is inherited: it acts in every agent of the tree.
"""

from connectagent import Agent, ToolCall, before_each_tool
from connectagent.testing import ScriptedLLM, call


def find_invoice(customer: str) -> str:
    """Find the open invoice of a customer."""
    return f"{customer} owes 30 USD"


@before_each_tool
def tell(agent: Agent, tool_call: ToolCall) -> None:
    print(f"  {agent.branch} calls {tool_call.name}")


if __name__ == "__main__":
    billing = Agent(
        "billing",
        tools=[find_invoice],
        description="Knows what customers owe.",
        llm=ScriptedLLM(
            call("find_invoice", customer="Ada"),
            "You owe 30 USD.",
            call("transfer_to_agent", agent_name="refunds", message="Ada wants the 30 USD back."),
        ),
    )
    refunds = Agent("refunds", description="Pays money back.", llm=ScriptedLLM("The 30 USD are on their way."))
    desk = Agent(
        "desk",
        sub_agents=[billing, refunds],
        plugins=[tell],
        llm=ScriptedLLM(call("transfer_to_agent", agent_name="billing")),
    )
    print(desk.input("I am Ada. What do I owe?"))
    print(desk.input("I paid already. Send it back!"))
    print("Now answers:", desk.session.get("active_agent"))
    print("refunds was told:", str(refunds.session["messages"][0]["content"]).splitlines()[-1])
