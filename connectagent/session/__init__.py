"""A session: its conversation and state, their changes, and their cost.

The names of `connectagent.data` are exported again for plugins.
"""

from connectagent.data import (
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
