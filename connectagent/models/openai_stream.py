"""OpenAI's streams: what the SDK hides of them, and answers in parts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from connectagent.models.content import parts_of, text_of
from connectagent.models.event_stream import read_whole_answers


@cache
def stream_class() -> Any:
    """The SDK's stream, which notes `[DONE]`, skips events without data and reads an answer that is no stream.

    The SDK hides `[DONE]`, but it alone tells a complete stream that names no finish_reason (Kimi) from one
    that was cut. Should `_iter_events` be renamed, such streams count as cut: the safe side.

    Events without data (`retry: 3000`, `event: ping`, a comment behind an id) are allowed by the format, and
    gateways send them. The SDK reads their data as JSON, 3.57 too: openai/openai-python#2722, #3833. Anthropic's
    SDK skips them.
    """
    import openai

    class NotingStream(openai.Stream[object]):
        done = False

        def __init__(self, **given: Any) -> None:
            super().__init__(**given)
            read_whole_answers(self)

        def _iter_events(self) -> Iterator[Any]:
            for event in super()._iter_events():
                if not event.data.strip():
                    continue
                if event.data.startswith("[DONE]"):
                    self.done = True
                yield event

    return NotingStream


def joined_content(before: object, more: object) -> str | list[dict[str, Any]]:
    """The content of a message with a piece more: a text, until a piece comes as a list of parts (as Mistral's do)."""
    text = before or ""
    if isinstance(text, str) and isinstance(more, str):
        return text + more
    joined = list(before) if isinstance(before, list) else parts_of(before)
    for part in parts_of(more):
        last = joined[-1] if joined and joined[-1]["type"] == part["type"] else None
        if last is not None and part["type"] == "text":
            joined[-1] = {**last, **part, "text": last["text"] + part["text"]}
        elif last is not None and part["type"] == "thinking":
            thought = joined_content(last.get("thinking"), part.get("thinking"))
            joined[-1] = {**last, **part, "thinking": thought}
        else:
            joined.append(part)
    return joined


def thinks(content: object) -> bool:
    """Whether a message's content has parts that are not its text, and that the provider may need back."""
    return isinstance(content, list) and any(part["type"] != "text" for part in parts_of(content))


def own_content(own: dict[str, Any], text: str) -> Any:
    """The content as the model gave it, with its thinking; None where there is none, or the text was changed."""
    content = own.get("content")
    fits = isinstance(content, list) and content and all(isinstance(part, dict) and "type" in part for part in content)
    return content if fits and text_of(content) == text else None
