"""Logging: one line around each tool call, with its time, whatever becomes of the call.

What is before the `yield` runs before the tool, what is behind it afterwards; a failure arrives as an exception.
"""

import logging
import sys
import time
from collections.abc import Generator
from typing import Any

from connectagent import Agent, ToolCall, around_tool

log = logging.getLogger("tools")


def divide(a: int, b: int) -> float:
    """Divide a by b."""
    return a / b


@around_tool
def timed(tool_call: ToolCall) -> Generator[None, Any, None]:
    started = time.perf_counter()
    try:
        result = yield
    except Exception as error:
        log.error("%s(%s) failed: %s", tool_call.name, tool_call.arguments, error)
        raise
    duration_ms = 1000 * (time.perf_counter() - started)
    log.info("%s(%s) = %s (%.0f ms)", tool_call.name, tool_call.arguments, result, duration_ms)


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")
    log.setLevel(logging.INFO)
    agent = Agent("calculator", tools=[divide], on_events=[timed])
    agent.input("Divide 10 by 4, then divide 1 by 0")
