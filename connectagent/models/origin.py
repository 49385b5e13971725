"""Who gave the parts of an answer that only their giver takes back: thinking, signatures, encrypted reasoning.

What providers say about parts that another model, or another server, has given:

| provider | parts | source |
| --- | --- | --- |
| Anthropic | `thinking`, `redacted_thinking` | bound to the model: "Invalid `signature` in `thinking` block" |
| | | (github.com/vybestack/llxprt-code/issues/2335), or dropped by newer models |
| | | (platform.claude.com/docs/en/build-with-claude/preserved-thinking) |
| OpenAI | `encrypted_content` of Responses | "could not be verified" (github.com/lidge-jun/opencodex/pull/2248), |
| | | "created for a different account or model" (github.com/openai/codex/issues/46474) |
| OpenRouter | `reasoning_details` | refused by other models (github.com/open-webui/open-webui/issues/28240) |
| Google | `thought_signature` | "Corrupted thought signature"; histories of other models get a dummy |
| | | (ai.google.dev/gemini-api/docs/thought-signatures, questions) |
| DeepSeek | `reasoning_content` | its own is asked for (api-docs.deepseek.com/guides/thinking_mode) |

What a model gave itself may be refused too: for another account, or since what stands before it was changed
(platform.claude.com/docs/en/build-with-claude/preserved-thinking). The request is then made again without it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeGuard
from urllib.parse import urlsplit

from connectagent.data import Message
from connectagent.errors import ProviderError

# In the words of the sources above, and of github.com/google-gemini/gemini-cli/issues/13467 ("Corrupted thought
# signature.") and github.com/RooCodeInc/Roo-Code/pull/10759 ("Thought signature is not valid").
_REFUSED = re.compile(
    r"invalid `?signature`? in `?thinking|blocks in the latest assistant message cannot be modified"
    r"|(corrupted|invalid) thought.?signature|thought.?signature is not valid"
    r"|invalid_encrypted_content|encrypted.content\b.{0,200}\b(could not be verified|not issued to)"
    r"|encrypted reasoning was created for",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Origin:
    """A model at an address.

    Two names are two models, even if one is an alias of the other (`claude-sonnet-4-5` and
    `claude-sonnet-4-5-20250929`): no provider promises what an alias stands for tomorrow, and a part that is left out
    is never refused.

    Args:
        provider: its name.
        address: the host that is asked, with its port; without path, key and password, since records hold it.
        model: the name by which the model is asked for.
    """

    provider: str
    address: str
    model: str

    def kept(self, **parts: Any) -> dict[str, Any]:
        """`provider_data` of this model."""
        return {"provider": self.provider, "address": self.address, "model": self.model, **parts}

    def gave(self, kept: dict[str, Any] | None) -> TypeGuard[dict[str, Any]]:
        """Whether this very model gave `provider_data`; no model did if that tells no address, as in old records."""
        return kept is not None and self.shares(kept) and kept.get("model") == self.model

    def shares(self, kept: dict[str, Any] | None) -> TypeGuard[dict[str, Any]]:
        """Whether the same provider at the same address gave `provider_data`, by this model or another."""
        return kept is not None and kept.get("provider") == self.provider and kept.get("address") == self.address


class RefusedParts:
    """The parts of a model's answers that it has refused to take back, as long as the process lives."""

    def __init__(self) -> None:
        self._refused: set[int] = set()

    def add(self, messages: Sequence[Message], error: ProviderError, origin: Origin) -> bool:
        """Note the parts that an error is about, which may be any of a request's; False if it is about none."""
        if error.status != 400 or not _REFUSED.search(f"{error} {error.body}"):
            return False
        kept = (message.get("provider_data") for message in messages)
        found = {_mark(one) for one in kept if one and origin.shares(one)} - self._refused
        self._refused |= found
        return bool(found)

    def left_out(self, messages: list[Message]) -> list[Message]:
        """The messages without these parts."""
        if not self._refused:
            return messages
        return [
            {**message, "provider_data": None} if kept and _mark(kept) in self._refused else message  # type: ignore[typeddict-item]
            for message in messages
            for kept in (message.get("provider_data"),)
        ]


def _mark(kept: dict[str, Any]) -> int:
    return hash(repr(kept))


@lru_cache(maxsize=256)
def address_of(url: str) -> str:
    """The host of a URL, with its port; "" where it has none."""
    try:
        return urlsplit(url).netloc.rpartition("@")[2].lower()
    except ValueError:  # which the SDK refuses
        return ""
