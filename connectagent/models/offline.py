"""The model that is built in: no key, no network, no randomness.

It knows no language. It calls the agent's own tools, in the order in which the prompt mentions them,
with arguments that it finds in the prompt and in earlier results by rule, and says `[offline]` in what
it writes.
"""

from __future__ import annotations

from typing import Any

from connectagent.data import LLMResponse, Message, ToolCall, WordByWord
from connectagent.models.content import as_json, sent_arguments, text_of
from connectagent.models.offline_rules import Result, arguments_for, plan


class OfflineLLM(WordByWord):
    """A deterministic model that follows rules; see the module."""

    model = "offline"
    provider = "offline"

    def __repr__(self) -> str:
        return "OfflineLLM()"

    def complete(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None = None,
        *,
        output: type[Any] | None = None,
    ) -> LLMResponse:
        """The next call of the agent's tools that the prompt asks for, or an answer that sums up their results.

        Args:
            messages: the conversation, in OpenAI's chat format.
            tools: schemas, `{"type": "function", "function": {...}}`.
            output: a pydantic model; its fields are then filled from the prompt by rule.
        """
        begin = _turn_begin(messages)
        prompt = text_of(messages[begin].get("content")) if begin < len(messages) else ""
        if output is not None:
            filled = arguments_for(output.model_json_schema(), prompt, prompt, [])
            return LLMResponse(as_json(filled), finish_reason="stop", model=self.model)
        results = _results(messages[begin:])
        steps = plan(prompt, tools or [])
        rounds = sum(1 for message in messages[begin:] if _calls(message))
        if rounds < len(steps):
            function, clause = steps[rounds]
            arguments = arguments_for(function.get("parameters"), clause, prompt, results)
            number = sum(len(_calls(message)) for message in messages) + 1
            call = ToolCall(f"offline_{number}", str(function["name"]), arguments)
            return LLMResponse(None, [call], finish_reason="tool_calls", model=self.model)
        return LLMResponse(_answer(results, tools or []), finish_reason="stop", model=self.model)


def _turn_begin(messages: list[Message]) -> int:
    """The index of the prompt: the last user message that does not follow results, where handlers add theirs."""
    begin = len(messages)
    for index, message in enumerate(messages):
        before = messages[index - 1].get("role") if index else None
        if message.get("role") == "user" and (before != "tool" or begin == len(messages)):
            begin = index
    return begin


def _calls(message: Message) -> list[dict[str, Any]]:
    calls = message.get("tool_calls")
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


def _results(messages: list[Message]) -> list[Result]:
    """The calls of this turn and what came of them, in order."""
    calls: dict[str, tuple[str, dict[str, Any]]] = {}
    results = []
    for message in messages:
        for call in _calls(message):
            function = call["function"] if isinstance(call.get("function"), dict) else {}
            name = str(function.get("name") or "")
            calls[str(call.get("id"))] = (name, sent_arguments(function.get("arguments")))
        if message.get("role") == "tool":
            name, arguments = calls.get(str(message.get("tool_call_id")), ("a tool", {}))
            results.append(Result(name, arguments, text_of(message.get("content"))))
    return results


def _answer(results: list[Result], tools: list[dict[str, Any]]) -> str:
    if results:
        lines = [result.line(160) for result in results]
        return "\n".join([f"[offline] Done, {len(results)} tool call{'s' * (len(results) > 1)}:", *lines])
    functions = [tool.get("function") for tool in tools if isinstance(tool, dict)]
    names = [str(function.get("name")) for function in functions if isinstance(function, dict)]
    known = f"The prompt names none of mine: {', '.join(names)}." if names else "I have no tools here."
    return (
        f"[offline] I am the built-in model: I call tools whose words are in the prompt, and know no more. {known} "
        "For a model that does, set ANTHROPIC_API_KEY or OPENAI_API_KEY, or name one: model='ollama/<model>'."
    )
