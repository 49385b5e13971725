"""Why an answer of a model stopped: one table for all wires, and what may be done with such an answer.

An answer is good only if its reason is known to be good. Each row names the document or report that it comes from.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

End = Literal["whole", "truncated", "refused", "filtered", "failed", "unknown"]


class StopReason(NamedTuple):
    """A reason of the table.

    Attributes:
        end: what it says of the answer.
        source: the document or report that it comes from.
        kind: of the `ProviderError` for such an answer; `""` for a whole one.
        text: of that error.
    """

    end: End
    source: str
    kind: str = ""
    text: str = ""


class Problem(NamedTuple):
    """Why an answer cannot be used: the `kind` and the `text` of a `ProviderError`."""

    kind: str
    text: str


_CHAT = "[chat completions](https://platform.openai.com/docs/api-reference/chat/object)"
_RESPONSES = "[Responses](https://platform.openai.com/docs/api-reference/responses/object)"
_MESSAGES = "[stop reasons](https://platform.claude.com/docs/en/build-with-claude/handling-stop-reasons)"
_SDK = "https://github.com/anthropics/anthropic-sdk-python/blob/main/src/anthropic/types/beta/beta_stop_reason.py"
_BETA = f"[the SDK's `BetaStopReason`]({_SDK})"
_MISTRAL = "[Mistral](https://docs.rs/crate/mistral-openapi-client/latest/source/src/models/chat_completion_choice.rs)"
_OPENROUTER = "[OpenRouter](https://openrouter.ai/docs/api-reference/overview)"
_DEEPSEEK = "[DeepSeek](https://api-docs.deepseek.com/api/create-chat-completion)"
_ZAI = "[z.ai](https://docs.z.ai/api-reference/llm/chat-completion)"
_GEMINI = "[report llmgateway 2218](https://github.com/theopenco/llmgateway/pull/2218)"
_BEDROCK = "[Bedrock](https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html)"
_ORACLE = "https://docs.oracle.com/en-us/iaas/tools/dotnet/latest/api/Oci.GenerativeaiinferenceService.Models"
_COHERE = f"[Cohere at Oracle]({_ORACLE}.CohereChatResponseV2.FinishReasonEnum.html)"
_COHERE_1 = f"[Cohere at Oracle]({_ORACLE}.CohereChatResponse.FinishReasonEnum.html)"
_TOGETHER = "[Together](https://github.com/Portkey-AI/gateway/blob/main/src/providers/together-ai/types.ts)"
_IBM = "https://ibm.github.io/watsonx-ai-node-sdk/enums"
_WATSONX = f"[watsonx]({_IBM}/0_1_x.WatsonXAI.TextGenResult.Constants.StopReason.html)"
_VLLM = "[report vllm 57082](https://github.com/vllm-project/vllm/issues/57082)"
_MALFORMED = "[report python-genai 1836](https://github.com/googleapis/python-genai/issues/1836)"

_LIMIT = "the answer reached the token limit"
_CUT = f"{_LIMIT}: allow more tokens (max_tokens)"
_FILTERED = "the provider's filter held the answer back"
_MALFORMED_CALL = "the provider refused the model's own call of a tool as malformed"


def _of(end: End, source: str, words: str, kind: str = "", text: str = "") -> dict[str, StopReason]:
    return dict.fromkeys(words.split(), StopReason(end, source, kind, text))


# By the provider's word, in lower case.
REASONS: dict[str, StopReason] = {
    **_of("whole", _CHAT, "stop tool_calls function_call"),
    **_of("whole", _RESPONSES, "completed"),
    **_of("whole", _MESSAGES, "end_turn stop_sequence tool_use"),
    **_of("whole", _TOGETHER, "eos"),
    **_of("whole", _WATSONX, "eos_token"),
    **_of("whole", _COHERE, "complete tool_call"),
    **_of("truncated", _CHAT, "length", "length", _CUT),
    **_of("truncated", _MISTRAL, "model_length", "length", _CUT),
    **_of("truncated", _MESSAGES, "max_tokens", "length", _CUT),
    **_of("truncated", _WATSONX, "token_limit", "length", _CUT),
    **_of("truncated", _RESPONSES, "max_output_tokens", "length", f"{_LIMIT}: allow more tokens (max_output_tokens)"),
    **_of(
        "truncated", _MESSAGES, "model_context_window_exceeded",
        "context_length", "the conversation fills the model's context window",
    ),
    **_of("refused", _MESSAGES, "refusal", "refusal", "the model refused to answer"),
    **_of("filtered", _CHAT, "content_filter", "content_filter", _FILTERED),
    **_of("filtered", _ZAI, "sensitive", "content_filter", _FILTERED),
    **_of(
        "filtered", _GEMINI,
        "safety recitation blocklist prohibited_content spii model_armor image_safety image_prohibited_content"
        " image_recitation",
        "content_filter", _FILTERED,
    ),
    **_of("filtered", _BEDROCK, "guardrail_intervened content_filtered", "content_filter", _FILTERED),
    **_of("filtered", _COHERE_1, "error_toxic", "content_filter", _FILTERED),
    **_of("failed", _OPENROUTER, "error", "server", "the provider failed inside the answer"),
    **_of("failed", _RESPONSES, "failed cancelled", "server", "the provider did not finish the answer"),
    **_of("failed", _ZAI, "network_error", "server", "the provider lost its own connection to the model"),
    **_of("failed", _DEEPSEEK, "insufficient_system_resource", "overloaded", "the provider had no resources left"),
    **_of("failed", _WATSONX, "time_limit", "timeout", "the provider's time for the answer was over"),
    **_of("failed", _VLLM, "abort", "server", "the server gave the answer up"),
    **_of("failed", _MALFORMED, "malformed_function_call function_call_filter", "tool_use_failed", _MALFORMED_CALL),
    **_of("failed", _GEMINI, "unexpected_tool_call", "tool_use_failed", _MALFORMED_CALL),
    **_of("failed", _MESSAGES, "pause_turn", "server", "the provider's own tools paused again and again"),
    **_of("failed", _BETA, "compaction", "server", "the provider compacted the conversation again and again"),
}  # fmt: skip

PAUSES = frozenset(("pause_turn", "compaction"))
"""Anthropic's words for an answer that goes on when it is sent back."""

NOT_GIVEN = "not_given"
"""Stands for a reason that is missing where the provider's documents say that there always is one."""

_NONE_GIVEN = StopReason("whole", "no reason")
_UNKNOWN = StopReason("unknown", "no document", "bad_response")


def stop_reason(word: str | None) -> StopReason:
    """What the provider's word says of an answer.

    Gemini writes two reasons in one, as in `function_call_filter: MALFORMED_FUNCTION_CALL`: the first counts. Without
    a word an answer is whole: some servers never send one (a stream must have come to its end then). A word that is
    not in the table is `unknown`, which is not whole.
    """
    if not word:
        return _NONE_GIVEN
    known = str(word).strip().lower()
    return REASONS.get(known) or REASONS.get(known.partition(":")[0].strip()) or _UNKNOWN


def is_whole(word: str | None) -> bool:
    """Whether an answer that stopped for this reason is known to have come to its end."""
    return stop_reason(word).end == "whole"


def problem_of(word: str | None, *, has_text: bool, has_calls: bool, must_be_whole: bool = False) -> Problem | None:
    """Why an answer that stopped for this reason cannot be used, or None.

    Of one that a limit has cut, the text is returned, and the calls that are complete run. Of one that was refused,
    or whose reason is unknown, the text is returned, and no call runs. Of one that was filtered or that failed, nothing
    is used.

    Args:
        word: the provider's word.
        has_text: whether it has a text; that of a refused one says so.
        has_calls: whether it has calls of tools.
        must_be_whole: whether nothing but a whole text will do: a typed answer, say.
    """
    reason = stop_reason(word)
    has_use = has_text and not must_be_whole
    if reason.end == "truncated":
        has_use = has_use or has_calls
    elif reason.end in ("unknown", "refused"):
        has_use = has_use and not has_calls
    else:
        has_use = reason.end == "whole"
    if has_use:
        return None
    return Problem(reason.kind, reason.text or f"the answer stopped for a reason that is not known to be good: {word}")
