"""Approval: a person is asked before a tool changes anything.

`ToolRejected` refuses the call; the model reads the reason as the tool's result, and the turn goes on.
"""

import sys

from connectagent import Agent, ToolCall, ToolRejected, before_each_tool


def read_file(path: str) -> str:
    """Read a file."""
    return f"(the text of {path})"


def delete_file(path: str) -> str:
    """Delete a file."""
    return f"{path} is gone"


@before_each_tool
def approve(tool_call: ToolCall) -> None:
    if tool_call.name == "read_file":
        return
    question = f"Run {tool_call.name}({tool_call.arguments})? [y/N] "
    # Where nobody can be asked, the answer is no.
    if not sys.stdin.isatty() or input(question).strip().lower() != "y":
        raise ToolRejected(f"The user does not allow {tool_call.name}. Say what you would have done.")


if __name__ == "__main__":
    agent = Agent("janitor", tools=[read_file, delete_file], on_events=[approve])
    agent.input("Read the file old.log, then delete the file old.log")
    for entry in agent.session["trace"]:
        if entry["type"] == "tool_execution":
            print(f"{entry['tool_name']} -> {entry['result']}")
