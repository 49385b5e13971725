"""A session: its conversation and state, what changed in them, and what they cost.

The names of `connectagent.data` are handed on for plugins.
"""

from connectagent.data import (
    CHANGES_MESSAGES,
    LLM,
    Continue,
    File,
    Image,
    LLMRequest,
    LLMResponse,
    Message,
    Retry,
    Session,
    TokenUsage,
    ToolCall,
    TraceEntry,
)

__all__ = [
    "CHANGES_MESSAGES",
    "LLM",
    "Continue",
    "File",
    "Image",
    "LLMRequest",
    "LLMResponse",
    "Message",
    "Retry",
    "Session",
    "TokenUsage",
    "ToolCall",
    "TraceEntry",
]
