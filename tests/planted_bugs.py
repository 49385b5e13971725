"""Plugins with a bug each, as a developer might write them, and how the failure is named."""

from __future__ import annotations

BUGS: dict[str, tuple[str, str | None]] = {
    "key of the arguments": (
        """
@before_each_tool
def check(tool_call):
    if tool_call.arguments["user_id"] == "admin":
        raise ToolRejected("not this one")
""",
        None,
    ),
    "no text": (
        """
@after_llm
def upper(response):
    response.content.strip()
""",
        None,
    ),
    "wrong type": (
        """
@after_llm
def count(response):
    if len(response.tool_calls) > 0:
        return len(response.tool_calls)
""",
        None,
    ),
    "two rounds": (
        """
@after_tools
def rounds(agent, entries):
    agent.state["rounds"] = agent.state.get("rounds", 0) + 1
    if agent.state["rounds"] > 1:
        raise RuntimeError("more than one round")
""",
        None,
    ),
    "first message": (
        """
@before_llm
def last(request):
    if request.messages[-1]["role"] == "tool":
        int(request.messages[-1]["content"])
""",
        None,
    ),
    "rejects all": (
        """
@before_each_tool
def guard(tool_call):
    raise ToolRejected(f"no {tool_call.name} today")
""",
        None,
    ),
    "loses results": (
        """
@after_each_tool
def redact(result):
    return "[redacted]"
""",
        "result /^.redacted.$/",
    ),
    "talks too much": (
        """
@on_complete
def sign(result):
    return f"{result} -- sent from my agent"
""",
        "says /sent from my agent/",
    ),
    "ends badly": (
        """
@on_complete
def measure(result):
    raise ZeroDivisionError("0 of 0 words")
""",
        None,
    ),
    "reads schemas": (
        """
@before_llm
def describe(request):
    for tool in request.tools:
        if request.messages[-1]["role"] == "tool" and tool["function"]["parameters"].get("required"):
            raise OSError("it has required parameters")
""",
        None,
    ),
    "a class": (
        """
class Counting:
    name = "planted"
    calls = 0

    @after_llm
    def count(self, response):
        self.calls += 1
        if self.calls == 2:
            raise IndexError("the second answer")

plugin = Counting()
""",
        None,
    ),
}


def source(bug: str) -> str:
    """The file of a plugin that has the bug."""
    text = BUGS[bug][0]
    return f"import connectagent\nfrom connectagent import *\n{text}" if "class " not in text else _of_class(text)


def _of_class(text: str) -> str:
    """A module whose handlers share an object."""
    return (
        f"from connectagent import *\n{text}\n"
        "@after_llm\ndef count(response):\n    plugin.count(response)\n"
    )
