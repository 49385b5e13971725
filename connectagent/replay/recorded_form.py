"""The form of a typed turn that is played: the record has its schema, and which answers fitted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from connectagent.agents.agent import Agent
from connectagent.data import LLM, LLMResponse, Message
from connectagent.errors import OutputError
from connectagent.loop.output import Asked, Form
from connectagent.models.json_schema import class_of
from connectagent.replay.recording import RecordedTurn
from connectagent.session.observers import OWN


class RecordedForm(Form):
    """The form of the results of a recorded turn; its results stay text.

    Args:
        turn: the turn.
        agent: the agent that plays it.

    Attributes:
        sent_back: the messages about answers that did not fit, by iteration.
    """

    def __init__(self, turn: RecordedTurn, agent: Agent) -> None:
        self.name, self._agent = str(turn.input.get("output")), agent
        asked = next((sent.output for sent in turn.sent if sent.output), None)
        self._is_known = asked is not None
        Asked.__init__(self, class_of(self.name, {}) if asked is None else class_of(asked["name"], asked["schema"]))
        self.sent_back: dict[int, str] = {}
        iteration = 0
        for entry in turn.entries:
            if entry.get("type") == "llm_call":
                iteration = int(entry.get("iteration") or 0)
            elif entry.get("type") == "message" and entry.get("by") == OWN:
                self.sent_back[iteration] = str(entry["message"].get("content"))
        error = str(turn.end.get("error") or "")
        self._error = error.partition(": ")[2] if error.startswith(f"{OutputError.__name__}: ") else None
        self._last = iteration

    def send(
        self, llm: LLM, ask: Callable[..., Any], messages: list[Message], tools: list[dict[str, Any]] | None
    ) -> Any:
        if self._is_known:
            return super().send(llm, ask, messages, tools)
        return ask(messages, *([tools] if tools else []))

    def problem(self, response: LLMResponse, llm: LLM) -> str | None:
        if response.finish_reason == "refusal":
            return super().problem(response, llm)
        iteration = int(self._agent.session["iteration"])
        return self.sent_back.get(iteration) or (self._error if iteration == self._last else None)

    def again(self, wrong: str) -> Message:
        return {"role": "user", "content": wrong}

    def misfit(self, llm: LLM, wrong: str, text: str) -> OutputError:
        return OutputError(self._error or wrong)

    def result(self, agent: object, text: str) -> Any:
        return text
