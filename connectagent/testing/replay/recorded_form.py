"""The form of a typed turn that is played: its type is not in the record, so the record says which answers fitted."""

from __future__ import annotations

from typing import Any

from connectagent.data import LLMResponse, Message
from connectagent.errors import OutputError
from connectagent.loop.output import Form
from connectagent.session.trace import OWN
from connectagent.testing.replay.recording import RecordedTurn


class RecordedForm(Form):
    """The form of the results of a recorded turn; its results stay text.

    Args:
        turn: the turn.
        agent: the agent that plays it.

    Attributes:
        sent_back: the messages about answers that did not fit, by iteration.
    """

    def __init__(self, turn: RecordedTurn, agent: Any) -> None:
        self.name, self._agent = str(turn.input.get("output")), agent
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

    def send(self, llm: Any, ask: Any, messages: list[Message], tools: Any) -> Any:
        return ask(messages, *([tools] if tools else []))

    def problem(self, response: LLMResponse, llm: Any) -> str | None:
        if response.finish_reason == "refusal":
            return super().problem(response, llm)
        iteration = int(self._agent.session["iteration"])
        return self.sent_back.get(iteration) or (self._error if iteration == self._last else None)

    def again(self, wrong: str) -> Message:
        return {"role": "user", "content": wrong}

    def misfit(self, llm: Any, wrong: str, text: str) -> OutputError:
        return OutputError(self._error or wrong)

    def result(self, agent: Any, text: str) -> Any:
        return text
