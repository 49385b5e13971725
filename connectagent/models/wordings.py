"""What providers say in an error body, as data: the wording, the kind of error that it means, and who reported it.

A pattern is looked for in `type`, `code`, `status` and the text of a body. The first row that fits wins, before the
HTTP status: an overflow, a filter, a wrong key and an empty account come as a plain 400 from one provider or another.
`docs/models.md` shows the rows for the length of a conversation.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Wording(NamedTuple):
    """One wording.

    Args:
        kind: of `ProviderError`.
        pattern: a regular expression; case does not count.
        providers: who says so.
        source: a document or a public report with the body.
    """

    kind: str
    pattern: str
    providers: str
    source: str


_ANTHROPIC_ERRORS = "https://platform.claude.com/docs/en/api/errors"
_OPENAI_ERRORS = "https://platform.openai.com/docs/guides/error-codes"

WORDINGS: tuple[Wording, ...] = (
    # -- the conversation is longer than the model takes
    Wording(
        "context_length",
        r"context (window|length|limit)|max(imum)? context|available context",
        "OpenAI, Mistral, OpenRouter, vLLM, llama.cpp, LM Studio, Ollama, MiniMax; Anthropic: 'exceed context limit'",
        "https://github.com/docker/docker-agent/issues/569",
    ),
    Wording(
        "context_length",
        r"context_length_exceeded|exceed_context_size",
        "OpenAI, Groq, llama.cpp",
        "https://github.com/langchain-ai/langchain/issues/37533",
    ),
    Wording(
        "context_length",
        r"prompt( is)? too long",
        "Anthropic, Ollama",
        "https://github.com/stackblitz/bolt.new/issues/1748",
    ),
    Wording("context_length", r"request_too_large", "Anthropic", _ANTHROPIC_ERRORS),
    Wording(
        "context_length",
        r"input token count\b.{0,40}\bexceeds",
        "Gemini",
        "https://github.com/google-gemini/gemini-cli/issues/4231",
    ),
    Wording("context_length", r"maximum prompt length", "xAI", "https://github.com/cline/cline/issues/3120"),
    Wording(
        "context_length",
        r"`?inputs`? tokens \+ `?max_new_tokens`? must be",
        "Together, Hugging Face",
        "https://github.com/BerriAI/litellm/issues/4934",
    ),
    Wording(
        "context_length",
        r"exceeded model token limit",
        "Moonshot",
        "https://github.com/MoonshotAI/kimi-cli/issues/2011",
    ),
    Wording(
        "context_length",
        r"range of input length should be",
        "Qwen",
        "https://github.com/QwenLM/qwen-code/issues/98",
    ),
    Wording(
        "context_length",
        r"prompt exceeds max length",
        "z.ai",
        "https://github.com/zeroclaw-labs/zeroclaw/issues/4124",
    ),
    Wording(
        "context_length",
        r"maximum allowed input length",
        "Poolside",
        "https://github.com/earendil-works/pi/issues/4943",
    ),
    Wording(
        "context_length",
        r"length of all messages is too long",
        "Perplexity",
        "https://github.com/BerriAI/litellm/pull/21647",
    ),
    Wording(
        "context_length",
        r"input is too long|too_many_prompt_tokens",
        "Bedrock, Azure",
        "https://github.com/BerriAI/litellm/pull/21647",
    ),
    # More than a minute's tokens in one request: waiting does not help, a shorter request does.
    Wording(
        "context_length",
        r"request too large for .*tokens per min",
        "Groq, OpenAI",
        "https://github.com/continuedev/continue/issues/10218",
    ),
    # -- others
    Wording(
        "tool_use_failed",
        r"tool_use_failed|does not match the expected .*format|failed to parse tool call",
        "Groq, llama.cpp",
        "https://console.groq.com/docs/tool-use",
    ),
    Wording(
        "content_filter",
        r"content_filter|content_policy_violation|responsibleaipolicy|content management policy",
        "OpenAI, Azure, Moonshot",
        "https://learn.microsoft.com/azure/ai-foundry/openai/concepts/content-filter",
    ),
    Wording(
        "content_filter",
        r"data_?inspection_?failed",
        "Qwen",
        "https://github.com/camel-ai/owl/issues/432",
    ),
    Wording(
        "content_filter",
        r"violates usage guidelines",
        "xAI",
        "https://github.com/UKGovernmentBEIS/inspect_ai/pull/2267",
    ),
    Wording("auth", r"authentication_error|invalid x-api-key", "Anthropic", _ANTHROPIC_ERRORS),
    Wording("auth", r"invalid_api_key", "OpenAI", _OPENAI_ERRORS),
    Wording(
        "auth",
        r"api_key_invalid|api key not valid",
        "Gemini",
        "https://github.com/continuedev/continue/issues/10290",
    ),
    Wording(
        "auth",
        r"incorrect(%20| )api(%20| )key",
        "xAI",
        "https://github.com/continuedev/continue/issues/10778",
    ),
    Wording("permission", r"permission_error|billing_error", "Anthropic", _ANTHROPIC_ERRORS),
    Wording(
        "permission",
        r"credit balance is too low",
        "Anthropic",
        "https://github.com/anthropics/claude-code/issues/66314",
    ),
    Wording("permission", r"insufficient_quota", "OpenAI", _OPENAI_ERRORS),
    Wording(
        "permission",
        r"insufficient balance|余额不足",
        "z.ai, DeepSeek",
        "https://github.com/zai-org/GLM-5/issues/148",
    ),
    Wording(
        "permission",
        r"user location is not supported",
        "Gemini",
        "https://github.com/gemini-api-php/client/issues/32",
    ),
    Wording(
        "overloaded", r"overloaded_error|engine_overloaded|\boverloaded\b", "Anthropic, Moonshot", _ANTHROPIC_ERRORS
    ),
    Wording("rate_limit", r"rate_limit_error|rate_limit_exceeded", "OpenAI, Anthropic", _OPENAI_ERRORS),
    Wording("not_found", r"not_found_error|model_not_found", "OpenAI, Anthropic", _OPENAI_ERRORS),
    Wording("timeout", r"timeout_error", "Anthropic", _ANTHROPIC_ERRORS),
)


def wording_of(said: str) -> Wording | None:
    """The first wording that an error body has."""
    return next((one for one in WORDINGS if re.search(one.pattern, said, re.IGNORECASE)), None)
