"""A tool that needs a login: without a token in the state the call is not made, and the turn ends with a question.

ADK's `request_credential` starts a login of its own; here the callback says what is missing, and ends the turn with
it by `actions.skip_summarization`.
"""

from typing import Any

from connectagent_adk import BaseTool, ToolContext, adk_callbacks

from connectagent import Agent
from connectagent.testing import ScriptedLLM, call


def need_token(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext) -> dict[str, Any] | None:
    if tool_context.state.get("user:token"):
        return None
    tool_context.actions.skip_summarization = True
    return {"login": "https://login.example/start"}


def read_mail(folder: str) -> str:
    """Read the mails in a folder."""
    return f"one mail in {folder}"


def main() -> None:
    read = [call("read_mail", folder="inbox")]
    llm = ScriptedLLM(read, [call("read_mail", folder="inbox")], "You have one mail.")
    plugin = adk_callbacks(before_tool_callback=need_token)
    agent = Agent("secretary", [read_mail], llm=llm, plugins=[plugin], log=False, quiet=True)
    print(agent.input("Any mail?"))
    agent.session["state"]["user:token"] = "secret"
    print(agent.input("And now?"))


if __name__ == "__main__":
    main()
