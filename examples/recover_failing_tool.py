"""Recovery from a failing tool: what may pass is tried again, for the rest there is a second source.

`Retry` makes the call once more; any other value is the tool's result, and the model never learns of the error.
"""

from connectagent import Agent, Retry, ToolCall, on_error

attempts: list[str] = []


def fetch_price(symbol: str) -> str:
    """Fetch the price of a share."""
    attempts.append(symbol)
    raise ConnectionError("the exchange does not answer")


@on_error
def try_again(error: Exception, tool_call: ToolCall | None) -> Retry | None:
    if tool_call is not None and isinstance(error, ConnectionError) and len(attempts) < 3:
        return Retry(after_s=0.1)
    return None


@on_error
def yesterday(tool_call: ToolCall | None) -> str | None:
    if tool_call is not None and tool_call.name == "fetch_price":
        return "EUR 12.50 (yesterday's price; the exchange cannot be reached)"
    return None


if __name__ == "__main__":
    agent = Agent("trader", tools=[fetch_price], on_events=[try_again, yesterday])
    print(agent.input('Fetch the price of "ACME"'))
    print(f"{len(attempts)} attempts")
