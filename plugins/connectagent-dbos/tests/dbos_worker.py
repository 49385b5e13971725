"""A worker of the tests: `python dbos_worker.py URL NAME FOLDER EFFECTS [LIMITS]`, as JSON, until it is killed."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from connectagent_dbos import worker

from connectagent import Agent, Pause, before_each_tool, tool
from connectagent.data import LLMResponse, TokenUsage, ToolCall

EFFECTS = sys.argv[4]


@tool
def note(text: str) -> str:
    """Note a text."""
    began = time.time()
    with open(EFFECTS, "a") as file:
        file.write(f"{text}\n")
    time.sleep(0.02)
    with open(f"{EFFECTS}.times", "a") as file:
        file.write(f"{text} {began} {time.time()}\n")
    return f"noted {text}"


@before_each_tool
def ask(tool_call: Any) -> None:
    if tool_call.arguments["text"].startswith("ask"):
        raise Pause("may it?")


class Model:
    """Notes twice, then answers."""

    model = "notes"

    def complete(self, messages: list[Any], tools: Any = None) -> LLMResponse:
        time.sleep(0.02)
        since = max(at for at, message in enumerate(messages) if message["role"] == "user")
        prompt, done = str(messages[since]["content"]), len([m for m in messages[since:] if m["role"] == "tool"])
        if done < 2:
            return LLMResponse(None, [ToolCall(f"{prompt}.{done}", "note", {"text": f"{prompt}.{done}"})])
        return LLMResponse(f"done {prompt}", usage=TokenUsage(10, 5, cost=0.01))


if __name__ == "__main__":
    os.makedirs(sys.argv[3], exist_ok=True)
    os.chdir(sys.argv[3])
    limits: dict[str, Any] = json.loads(sys.argv[5]) if len(sys.argv) > 5 else {"worker_concurrency": 4}
    agent = Agent("notes", tools=[note], llm=Model(), plugins=[ask], quiet=True)
    with worker(agent, sys.argv[1], sys.argv[2], **limits):
        print("ready", flush=True)
        time.sleep(600)
