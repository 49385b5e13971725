"""What a model on the chat wire asks for beyond the wire's form, by the model and its mode, wherever it is served.

| model | asks for | source |
| --- | --- | --- |
| Mistral's | ids of nine alphanumerics | "Tool call id was ... but must be a-z, A-Z, 0-9, with a length of 9" |
| | | (docs.mistral.ai; vLLM: github.com/vllm-project/vllm/issues/9019) |
| Mistral's | an assistant message between results and the user | "Unexpected role 'user' after role 'tool'" |
| | | (github.com/BerriAI/litellm/issues/6323; the same rule through OpenRouter: |
| | | github.com/charmbracelet/crush/issues/279) |
| Gemini 3 | a signature in the first call of a round; a dummy where the model did not write it | |
| | | ai.google.dev/gemini-api/docs/thought-signatures (questions); its place in OpenAI's form: the same page |
| Gemini 3 at OpenRouter | the same as a `reasoning.encrypted` detail | github.com/RooCodeInc/Roo-Code/pull/10759 |
| Claude at OpenRouter | no `reasoning` in a turn that it did not begin by thinking | the same rule of Anthropic's |
| | | (github.com/OpenRouterTeam/ai-sdk-provider/issues/162) |
| DeepSeek, thinking | `reasoning_content` in each message of a turn with calls, "" where it has none | |
| | | api-docs.deepseek.com/guides/thinking_mode; "" and not left out: github.com/anomalyco/opencode/issues/17523, |
| | | github.com/continuedev/continue/issues/11285 |
| Kimi, thinking | the same | "thinking is enabled but reasoning_content is missing in assistant tool call message" |
| | | (github.com/continuedev/continue/pull/11806) |
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from connectagent.data import Message
from connectagent.models.content import open_turn
from connectagent.models.origin import Origin

Item = dict[str, Any]

# OpenAI takes ids of up to 40 characters. Others take what is not empty.
_OPENAI_ID = re.compile(r".{1,40}", re.DOTALL)
_MISTRAL_ID = re.compile(r"[a-zA-Z0-9]{9}")
_MISTRAL = re.compile(r"(mi|magi|mini|code|dev|math|lean)stral|(mi|pi|vo)xtral", re.IGNORECASE)
_GEMINI_3 = re.compile(r"(^|/)gemini-(?![12]([.-]|$))", re.IGNORECASE)
_REASONING = re.compile(r"deepseek|kimi", re.IGNORECASE)
_NOT_THINKING = ("deepseek-chat", "deepseek-coder")  # by default; every other model of these is
# Servers of any kind are reached by these names, so that only the model's name tells what it is.
_ANY_SERVER = ("openai", "co")

_DUMMY = "skip_thought_signature_validator"


@dataclass(frozen=True, slots=True)
class ChatMode:
    """What is asked for in one request.

    Args:
        ids: what the id of a call looks like; None where any does.
        bridged: whether an assistant message stands between the results of tools and the user's next message.
        signs: where the first call of a round has its signature: in the `call` or in `details`; None where it has none.
        reasons: whether each assistant message has `reasoning_content`.
    """

    ids: re.Pattern[str] | None = None
    bridged: bool = False
    signs: str | None = None
    reasons: bool = False


def chat_mode(origin: Origin, options: Mapping[str, Any]) -> ChatMode:
    """What a model asks for.

    Args:
        origin: the model.
        options: the parameters of the request.
    """
    if origin.provider == "mistral" or _MISTRAL.search(origin.model):
        return ChatMode(_MISTRAL_ID, bridged=True)
    ids = _OPENAI_ID if origin.provider == "openai" else None
    if _GEMINI_3.search(origin.model) and origin.provider in ("gemini", "openrouter", *_ANY_SERVER):
        return ChatMode(ids, signs="details" if origin.provider == "openrouter" else "call")
    named = origin.provider in _ANY_SERVER and _REASONING.search(origin.model) is not None
    return ChatMode(ids, reasons=(named or origin.provider == "deepseek") and _thinks(origin.model, options))


def _thinks(model: str, options: Mapping[str, Any]) -> bool:
    """Whether a model of DeepSeek's or Moonshot's thinks, which it does by default."""
    thinking = options.get("thinking")
    if isinstance(thinking, Mapping) and "type" in thinking:
        return bool(thinking["type"] != "disabled")
    return not model.endswith(_NOT_THINKING)


def may_reason(messages: Sequence[Message], origin: Origin) -> bool:
    """Whether a request may ask for `reasoning`, which a Claude model refuses in a turn that it did not begin by it."""
    answers = open_turn(messages)
    if origin.provider != "openrouter" or "claude" not in origin.model or not answers:
        return True
    kept = answers[-1].get("provider_data")
    message = kept.get("message") if kept is not None and origin.gave(kept) else None
    return isinstance(message, dict) and bool(message.get("reasoning_details"))


def signed(message: Item, mode: ChatMode) -> Item:
    """A message with calls whose first one has a signature, of the model that wrote it or the dummy."""
    calls = message["tool_calls"]
    if mode.signs == "call" and not any(_has_signature(call) for call in calls):
        first = {**calls[0], "extra_content": {"google": {"thought_signature": _DUMMY}}}
        return {**message, "tool_calls": [first, *calls[1:]]}
    if mode.signs == "details":
        details = message.get("reasoning_details")
        details = details if isinstance(details, list) else []
        if not any(isinstance(one, dict) and one.get("type") == "reasoning.encrypted" for one in details):
            dummy = {"type": "reasoning.encrypted", "data": _DUMMY, "id": calls[0]["id"]}
            dummy |= {"format": "google-gemini-v1", "index": len(details)}
            return {**message, "reasoning_details": [*details, dummy]}
    return message


def _has_signature(call: Item) -> bool:
    extra = call.get("extra_content")
    google = extra.get("google") if isinstance(extra, dict) else None
    return isinstance(google, dict) and bool(google.get("thought_signature"))
