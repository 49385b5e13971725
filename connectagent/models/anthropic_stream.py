"""Anthropic's streams: the blocks of an answer, put together from their events."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

from connectagent.models.content import read_arguments, repaired_arguments
from connectagent.models.event_stream import read_whole_answers

Block = dict[str, Any]

OWN_KEYS = ("broken", "problem")
"""What `StreamedBlocks` adds to a block: an input that is no JSON, and why the call must not run."""
_UNCERTAIN = "pieces of arguments came that may belong to this call or to another one"


@cache
def stream_class() -> Any:
    """The SDK's stream, which also reads an answer that is no stream."""
    import anthropic

    class WholeStream(anthropic.Stream[object]):
        def __init__(self, **given: Any) -> None:
            super().__init__(**given)
            read_whole_answers(self)

    return WholeStream


class StreamedBlocks:
    """The blocks of one streamed answer. Servers that speak Anthropic's format may give two of them one index."""

    def __init__(self) -> None:
        self._blocks: list[_StreamedBlock] = []
        self._open: dict[Any, _StreamedBlock] = {}

    def read(self, event: dict[str, Any], on_text: Callable[[str], None]) -> None:
        """An event comes; new text is passed on."""
        match event.get("type"):
            case "content_block_start":
                self._start(event.get("index"), event.get("content_block") or {})
            case "content_block_delta":
                self._add(event.get("index"), event.get("delta") or {}, on_text)
            case "content_block_stop":
                self._stop(event.get("index"))

    def _start(self, index: object, block: Block) -> None:
        """A block begins; one that is open at the same index ends, unless it is the same one."""
        new = _StreamedBlock(dict(block))
        before = self._open.get(index)
        if before is not None and before.is_call and new.is_call:
            if before.block.get("id") and before.block.get("id") == new.block.get("id"):
                return
            if not before.has_whole_input:  # what comes next may be either's
                before.block["problem"] = _UNCERTAIN
                new.block["problem"] = _UNCERTAIN
        self._blocks.append(new)
        self._open[index] = new

    def _stop(self, index: object) -> None:
        """The block at an index ends; what comes for it later is added all the same."""
        if index in self._open:
            self._open[index].stopped = True

    def _add(self, index: object, delta: dict[str, Any], on_text: Callable[[str], None]) -> None:
        """A delta of the block at an index comes; new text is passed on."""
        if index not in self._open:
            self._start(index, _begun(delta))
        streamed = self._open[index]
        kind = delta.get("type")
        block = streamed.block
        if kind == "input_json_delta":
            streamed.input = (streamed.input or "") + (delta.get("partial_json") or "")
        elif kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or []), delta.get("citation")]
        else:  # text_delta, thinking_delta, signature_delta, and others of that form
            for key, value in delta.items():
                if key != "type" and isinstance(value, str):
                    block[key] = (block.get(key) or "") + value
                    if kind == "text_delta" and value:
                        on_text(value)

    def finished(self) -> list[Block]:
        """The blocks, in the order in which they began."""
        return [streamed.finished() for streamed in self._blocks]


def whole_blocks(content: list[Any] | None, on_text: Callable[[str], None]) -> list[Block]:
    """The blocks of an answer that is no stream; its text is passed on."""
    blocks = [block for block in content or [] if isinstance(block, dict)]
    for block in blocks:
        if block.get("type") == "text" and block.get("text"):
            on_text(block["text"])
    return blocks


def _begun(delta: dict[str, Any]) -> Block:
    """The block of a delta whose beginning never came: servers that speak this wire leave it out."""
    kind = str(delta.get("type") or "text_delta").removesuffix("_delta")
    return {"type": {"input_json": "tool_use", "signature": "thinking", "citations": "text"}.get(kind, kind)}


class _StreamedBlock:
    def __init__(self, block: Block) -> None:
        self.block = block
        self.input: str | None = None
        self.stopped = False

    @property
    def is_call(self) -> bool:
        return self.block.get("type") == "tool_use"

    @property
    def has_whole_input(self) -> bool:
        """Whether the input has come to its end, so that nothing more can belong to it."""
        if self.stopped or self.block.get("input"):
            return True
        try:
            return isinstance(json.loads(self.input or ""), dict)
        except ValueError:
            return False

    def finished(self) -> Block:
        """The block with its input read; no-arg tools send `""`, or nothing. What is no JSON is left in `broken`."""
        if self.input is None:
            return self.block
        arguments, error = read_arguments(self.input)
        if error is not None:
            arguments, error = repaired_arguments(self.input, error)
        if not self.input.strip() and self.block.get("input"):
            arguments = self.block["input"]  # it came with the start of the block, as Kimi sends it
        return {**self.block, "input": arguments, **({"broken": self.input} if error else {})}
