"""Context watch: when the window fills up, old tool results are taken out of what the model reads.

Assigning a new list to `request.messages` changes this one call; the conversation itself stays whole.
"""

from typing import Any

from connectagent import Agent, LLMRequest, LLMResponse, Message, TokenUsage, ToolCall, before_llm

LIMIT_PERCENT = 60


def read_page(number: int) -> str:
    """Read one page of the book."""
    return f"Page {number}: " + "lorem ipsum " * 500


@before_llm
def forget_old_results(agent: Agent, request: LLMRequest) -> None:
    print(f"the context is {agent.context_percent:.0f} % full")
    if agent.context_percent > LIMIT_PERCENT:
        old = [message for message in request.messages if message["role"] == "tool"][:-1]
        print(f"{len(old)} old results are left out of this call")
        request.messages = [
            {**message, "content": "(left out)"} if any(message is one for one in old) else message
            for message in request.messages
        ]


class SmallModel:
    """A stand-in with a small window, which reads three pages and counts a token for four characters."""

    model = "small"
    context_window = 4_000

    def complete(self, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> LLMResponse:
        page = sum(message["role"] == "tool" for message in messages) + 1
        usage = TokenUsage(input_tokens=sum(len(str(message)) for message in messages) // 4)
        if page > 3:
            return LLMResponse("I have read three pages.", usage=usage)
        return LLMResponse(None, [ToolCall(f"call_{page}", "read_page", {"number": page})], usage)


if __name__ == "__main__":
    agent = Agent("reader", tools=[read_page], llm=SmallModel(), on_events=[forget_old_results])
    print(agent.input("Read the book"))
