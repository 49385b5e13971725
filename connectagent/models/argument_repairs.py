"""Arguments that are no JSON object as they came, but hold one: what models and servers are known to write around it.

Nothing here is tried on a text that is a JSON object. What follows the object must be known as noise, so that a call
that was cut, or is mixed with another one, stays unreadable.

| what comes | reported |
| --- | --- |
| the object once more encoded as a JSON string | Granite on vLLM (vllm-project/vllm#54964), quarkus-langchain4j#2642 |
| raw line breaks in strings | llama.cpp, Ollama (NousResearch/hermes-agent#15356), Gemini (rhesis-ai/rhesis#2488) |
| a code fence, `</tool_call>` or a token of a chat template | local models (NousResearch/hermes-agent#79333) |
| `{}` in front, or the object twice | proxies (BerriAI/litellm#4537), Qianfan (NousResearch/hermes-agent#35718) |
"""

from __future__ import annotations

import json
import re
from typing import Any

_NOISE = re.compile(r"(?:\s|```\w*|</?(?:tool_call|function_call|function|arguments)>|<\|\w+\|>)*")
_MOST_ENCODINGS = 3


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


_lenient = json.JSONDecoder(strict=False, parse_constant=_no_constant).raw_decode


def repaired(text: str) -> dict[str, Any] | None:
    """The object in a text that is none; None where there is none, or where it is not certain."""
    text = text.removeprefix("\ufeff")  # a byte order mark
    for _ in range(_MOST_ENCODINGS):
        value = _value_in(text)
        if not isinstance(value, str):
            return value
        text = value
    return None


def _value_in(text: str) -> dict[str, Any] | str | None:
    """The one object or string in a text; of several objects the last, if those before it are empty or the same."""
    found: Any = None
    at = 0
    while True:
        noise = _NOISE.match(text, at)
        at = noise.end() if noise else at
        if at == len(text):
            return found if isinstance(found, dict | str) else None
        try:
            value, at = _lenient(text, at)
        except (ValueError, RecursionError):
            return None
        if found not in (None, {}) and value != found:
            return None
        found = value
