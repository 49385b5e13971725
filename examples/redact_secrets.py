"""Redaction: secrets reach neither the model nor the user; with `around_tool` not even the record.

`after_each_tool` replaces a result that the trace has already told (the record keeps both); `around_tool` and
`around_llm` replace it before anybody else has seen it. `after_llm` is the place for what the model says.
"""

import re
from collections.abc import Generator
from typing import Any

from connectagent import Agent, LLMResponse, after_each_tool, after_llm, around_tool

KEY = re.compile(r"sk-\w+")
PHONE = re.compile(r"\+\d[\d ]{6,}\d")


def read_config() -> str:
    """Read the config."""
    return "api_key = sk-abc123, support = +49 30 1234567"


@around_tool
def hide_keys() -> Generator[None, Any, str | None]:
    result = yield
    return KEY.sub("[key]", result) if isinstance(result, str) else None


@after_each_tool
def hide_phones(result: Any) -> str | None:
    return PHONE.sub("[phone]", result) if isinstance(result, str) else None


@after_llm
def hide_in_answers(response: LLMResponse) -> None:
    if response.content:
        response.content = PHONE.sub("[phone]", KEY.sub("[key]", response.content))


if __name__ == "__main__":
    agent = Agent("support", tools=[read_config], on_events=[hide_keys, hide_phones, hide_in_answers])
    print(agent.input("Read the config"))
    print("The key is in the session:", "sk-abc123" in str(agent.current_session))
