"""Whether a provider refused what a request holds, and of which kind that is, by the words of its error.

Only the text, the kind and the status of an error count: they are in the record, so that a resumed or replayed turn
comes to the same. The wordings are those of public reports:

- "messages.2.content.0.image.source.base64: image exceeds 5 MB": github.com/anthropics/claude-code/issues/19631
- "messages.6.content.5.image.source.base64.data: Image does not match": github.com/anthropics/claude-code/issues/15746
- "messages.38.content.0.pdf.source.base64.data: A maximum of 100 PDF": github.com/anthropics/claude-code/issues/6231
- "tools.14.custom.input_schema.properties: Property keys ...": github.com/beautyfree/appstore-connect-mcp/issues/2
- "tools.N.custom.input_schema: JSON schema is invalid.": github.com/Dokploy/mcp/issues/74
- "You uploaded an unsupported image. ...": github.com/STranslate/STranslate/issues/277
"""

from __future__ import annotations

import re
from typing import NamedTuple

from connectagent.errors import ProviderError

_STATUSES = (400, 413, 422)
_LONGEST = 300
_ENDING = re.compile(r" \([a-z_]+(?:, HTTP \d+)?(?:, after \d+ attempts)?\)$")  # of the messages of `ProviderError`
_TOO_LONG = re.compile(r"\btokens?\b|context (length|window)|maximum context|prompt is too long", re.IGNORECASE)
_CONTENT_ROOTS = ("messages", "input", "tools", "functions", "content", "contents")
_PARAMETERS = frozenset(
    (
        *("max_tokens", "max_completion_tokens", "max_output_tokens", "temperature", "top_p", "top_k", "thinking"),
        *("system", "metadata", "stop", "stop_sequences", "tool_choice", "parallel_tool_calls", "model", "stream"),
        *("stream_options", "betas", "output_config", "output_format", "response_format", "reasoning", "store"),
        *("reasoning_effort", "include", "seed", "logprobs", "verbosity", "service_tier", "cache_control"),
        *("truncation", "presence_penalty", "frequency_penalty", "logit_bias", "modalities", "context_management"),
        *("container",),
        *("mcp_servers", "prediction", "audio", "web_search_options", "safety_settings", "generation_config"),
    )
)
_FORM_PARAMETERS = frozenset(("response_format", "output_config", "output_format", "tool_choice", "strict"))
_NAMED = re.compile(r"(?:^|: )([a-z_]+)(?:\.[\w.-]+)?: ")  # Anthropic: "max_tokens: 9000 > 8192"
_QUOTED = re.compile(r"['\"`]([a-z_]+)")  # OpenAI: "Unsupported value: 'temperature' does not support 0.2"
_UNKNOWN = re.compile(
    r"(?:unknown|unsupported|unrecognized|missing|unexpected)\b.{0,30}"
    r"\b(?:parameter|argument)s?\b[^'\"`\w]*['\"`]?([a-z_]+)",
    re.IGNORECASE,
)
_TOOL_AT = re.compile(r"\b(?:tools|functions)[.\[](\d+)")
_TOOL_NAMED = re.compile(r"(?:schema for|function|tool)\s+['\"`]([^'\"`]+)['\"`]", re.IGNORECASE)
_WORDS = {
    "tool": re.compile(
        r"\btools?[.\[]\d|input_schema|json schema|schema for function|property keys|function\.param", re.IGNORECASE
    ),
    "image": re.compile(r"image|picture|pixel|vision", re.IGNORECASE),
    "file": re.compile(r"\bpdf|document|\bfile|mime|media[_ ]?type|attachment", re.IGNORECASE),
    "text": re.compile(
        r"\b(messages?|input|contents?)\b\s*[.\[]|\btext\b|\bcontent|utf-?8|character|surrogate|base64|payload"
        r"|too large|tool_result|tool message",
        re.IGNORECASE,
    ),
}
_OPAQUE = re.compile(
    r"^\W*(error code: \d+|bad request|invalid request|invalid_request_error|provider returned error"
    r"|request contains an invalid argument|invalid argument)?\W*$",
    re.IGNORECASE,
)


class Refusal(NamedTuple):
    """What a provider refused.

    Attributes:
        kind: `image`, `file`, `tool`, `text`, or `""` where the error does not tell.
        tool: the name of the tool, or its place in the list of tools.
        why: what the provider said.
    """

    kind: str
    tool: str | int | None
    why: str


def refusal_of(error: BaseException | None) -> Refusal | None:
    """What a provider refused of a request; None for every other error.

    Keys, rates, the length of the conversation and parameters of the API are other errors.
    """
    if not isinstance(error, ProviderError) or error.status not in _STATUSES:
        return None
    said = _ENDING.sub("", str(error).partition("\n")[0])
    if error.status == 413:
        return None if _TOO_LONG.search(said) else Refusal(_kind_of(said), None, said[:_LONGEST])
    if error.kind != "bad_request" or _is_about_parameter(said):
        return None
    kind = _kind_of(said)
    if not kind and not _OPAQUE.match(said.rpartition(": ")[2]):
        return None
    return Refusal(kind, _tool_of(said) if kind == "tool" else None, said[:_LONGEST])


def names_another_cause(said: str) -> bool:
    """Whether an error names a parameter, a tool, an image or a file, and so not the length of the conversation."""
    return _is_about_parameter(said) or _kind_of(said) in ("image", "file", "tool")


def may_be_the_form(error: ProviderError) -> bool:
    """Whether a provider may have refused the form of a structured answer.

    It is taken for that unless it names something else: endpoints say it in too many words.
    """
    if error.status == 501:  # "not implemented", of servers of one's own
        return True
    if error.kind != "bad_request" or error.status not in _STATUSES:
        return False
    said = _ENDING.sub("", str(error).partition("\n")[0])
    parameters = _parameters_in(said)
    names_another = bool(parameters) and not _FORM_PARAMETERS.intersection(parameters)
    return not names_another and _kind_of(said) not in ("image", "file")


def _is_about_parameter(said: str) -> bool:
    """Whether an error names a parameter of the API, and not a part of the content."""
    return bool(_parameters_in(said))


def _parameters_in(said: str) -> set[str]:
    """The parameters of the API that an error names; none where it names a part of the content."""
    if (unknown := _UNKNOWN.search(said)) is not None and unknown[1] not in _CONTENT_ROOTS:
        return {unknown[1]}
    named = {*_NAMED.findall(said), *_QUOTED.findall(said)}
    return set[str]() if named.intersection(_CONTENT_ROOTS) else named & _PARAMETERS


def _kind_of(said: str) -> str:
    return next((kind for kind, words in _WORDS.items() if words.search(said)), "")


def _tool_of(said: str) -> str | int | None:
    if found := _TOOL_NAMED.search(said):
        return found[1]
    return int(found[1]) if (found := _TOOL_AT.search(said)) else None
