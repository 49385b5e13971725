"""ADK's callbacks unchanged: `Agent(..., plugins=[adk_callbacks(before_tool_callback=check)])`.

What ADK's callbacks import is here too, as stand-ins: `from connectagent_adk import CallbackContext, types`.
"""

from connectagent_adk import content as types
from connectagent_adk.artifacts import InMemoryArtifactService
from connectagent_adk.compaction import (
    AdkCompaction,
    EventsCompactionConfig,
    LlmEventSummarizer,
    adk_compaction,
)
from connectagent_adk.contexts import (
    CallbackContext,
    Context,
    Event,
    EventActions,
    EventCompaction,
    Session,
    State,
    ToolContext,
)
from connectagent_adk.models import BasePlugin, BaseTool, LlmRequest, LlmResponse
from connectagent_adk.output import AdkOutput, adk_output
from connectagent_adk.plugin import AdkCallbacks, adk_callbacks
from connectagent_adk.runner_plugins import AdkPlugin, adk_plugin

__all__ = [
    "AdkCallbacks",
    "AdkCompaction",
    "AdkOutput",
    "AdkPlugin",
    "BasePlugin",
    "BaseTool",
    "CallbackContext",
    "Context",
    "Event",
    "EventActions",
    "EventCompaction",
    "EventsCompactionConfig",
    "InMemoryArtifactService",
    "LlmEventSummarizer",
    "LlmRequest",
    "LlmResponse",
    "Session",
    "State",
    "ToolContext",
    "adk_callbacks",
    "adk_compaction",
    "adk_output",
    "adk_plugin",
    "types",
]
