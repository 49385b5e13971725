"""Cached model answers: the same request is answered from memory, and costs nothing.

`before_llm` stands in for the call where the answer is known; `after_llm` remembers the ones that are not.
A plugin with a memory is an object: its marked methods are its handlers.
"""

import hashlib
import json

from connectagent import Agent, LLMRequest, LLMResponse, after_llm, before_llm


class Cache:
    def __init__(self) -> None:
        self.answers: dict[str, LLMResponse] = {}
        self.hits = 0

    @before_llm
    def look_up(self, request: LLMRequest) -> LLMResponse | None:
        answer = self.answers.get(key(request))
        self.hits += answer is not None
        return answer  # None: the model is called

    @after_llm
    def remember(self, request: LLMRequest, response: LLMResponse) -> None:
        self.answers[key(request)] = response


def key(request: LLMRequest) -> str:
    said = json.dumps([request.model, request.messages, request.tools], sort_keys=True, default=str)
    return hashlib.sha256(said.encode()).hexdigest()


if __name__ == "__main__":
    cache = Cache()
    for _ in range(2):
        agent = Agent("oracle", on_events=[cache])
        agent.input("What is an event hook?")
        call = next(entry for entry in agent.session["trace"] if entry["type"] == "llm_call")
        print(f"{call['status']}, {cache.hits} from the cache")
