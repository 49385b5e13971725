"""Whether a request was refused for its length, though the provider does not say so in words that are known.

A 400 or 413 for a request that is near the model's window is taken for that, unless it names another cause. The count
is an estimate: it is made for failed requests only, and a tokenizer of each provider is not at hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from connectagent.models.refusals import names_another_cause

_STATUSES = (400, 413)
_NEAR = 0.8  # of the window
_BYTES_PER_TOKEN = 3.5  # between English prose (4.2) and code (3)
_TOKENS_PER_ATTACHMENT = 1500
_ANSWER_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_ENCODED = ("data", "file_data")
_LONGEST_TEXT = 1000  # of what stands in the keys of attachments: longer ones are base64


def near_window(kind: str, status: int | None, said: str, request: dict[str, Any], model: str) -> str | None:
    """The size of a request that was refused for its length, in words; None if that is not known.

    Args:
        kind: of the error, by what the provider says and its status.
        status: the HTTP status.
        said: what the provider says.
        request: the body that was sent.
        model: `provider/model`.
    """
    is_open = (kind == "bad_request" and status in _STATUSES) or status == 413
    if not is_open or names_another_cause(said):
        return None
    from connectagent.models.prices import context_window  # the table takes a moment to load

    window = context_window(model)
    tokens = estimated_tokens(request)
    if window is None or tokens < _NEAR * window:
        return None
    return f"the request has about {tokens:,} tokens with its answer, and the model takes {window:,}"


def estimated_tokens(request: dict[str, Any]) -> int:
    """About how many tokens a request takes, with the longest answer that it allows."""
    sizes = list(_attached(request))
    written = json.dumps(request, ensure_ascii=False, default=str).encode("utf-8", "replace")
    text = len(written) - sum(sizes)
    answer = next((request[key] for key in _ANSWER_LIMITS if isinstance(request.get(key), int)), 0)
    return round(text / _BYTES_PER_TOKEN) + _TOKENS_PER_ATTACHMENT * len(sizes) + int(answer)


def _attached(value: object, key: str = "") -> Iterator[int]:
    """The sizes of the images and files in a request, in letters of base64."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield from _attached(one, name)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _attached(one, key)
    elif isinstance(value, str) and (value[:5] == "data:" or (key in _ENCODED and len(value) > _LONGEST_TEXT)):
        yield len(value)
