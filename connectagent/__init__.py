"""An agent framework that is a host for plugins, as pytest is: see `Agent` and the markers.

Names are loaded when they are first used, so that importing this package costs next to nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers take it for True; importing `typing` would cost more than this whole package
if TYPE_CHECKING:
    from typing import Any

    from connectagent.agents.agent import Agent
    from connectagent.agents.batch import BatchLimits
    from connectagent.agents.keyed_session import KeyedSession
    from connectagent.agents.workflows import Loop, Parallel, Sequential
    from connectagent.builtin.xray import xray
    from connectagent.data import (
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
    from connectagent.errors import (
        BatchStopped,
        ConfigError,
        ConnectAgentDeprecationWarning,
        ConnectAgentError,
        DivergenceError,
        HandlerError,
        HookResultError,
        OutputError,
        Pause,
        Paused,
        PluginError,
        PluginWarning,
        ProviderError,
        ResourceError,
        SessionBusy,
        ToolArgumentsError,
        ToolDefinitionError,
        ToolNotFound,
        ToolRejected,
        TurnEndedError,
        Waiting,
    )
    from connectagent.hooks.discovery import shadow, use
    from connectagent.hooks.markers import (
        after_each_tool,
        after_llm,
        after_tools,
        after_user_input,
        around_llm,
        around_tool,
        around_turn,
        before_each_tool,
        before_llm,
        before_tools,
        on_agent_closed,
        on_agent_ready,
        on_complete,
        on_error,
        on_session,
        on_text,
        on_trace,
        register_chat_commands,
        register_commands,
        register_models,
    )
    from connectagent.hooks.own import hookspec
    from connectagent.hooks.resource import resource
    from connectagent.loop.ask import llm_do
    from connectagent.models.info import ModelInfo, model_info
    from connectagent.models.json_text import repeated_key
    from connectagent.output.masking import add_secret, mask
    from connectagent.output.text import arguments_text
    from connectagent.records.paths import data_folder
    from connectagent.records.sqlite import SqliteStore
    from connectagent.records.store import Store
    from connectagent.tools.loops import run_async
    from connectagent.tools.signature import tool
    from connectagent.tools.tool import Tool

__version__ = "0.1.0"

_HOME = {
    "agents.agent": "Agent",
    "agents.batch": "BatchLimits",
    "agents.keyed_session": "KeyedSession",
    "builtin.xray": "xray",
    "errors": "BatchStopped ConfigError ConnectAgentDeprecationWarning ConnectAgentError DivergenceError HandlerError "
    "HookResultError OutputError "
    "Pause Paused PluginError PluginWarning ProviderError ResourceError SessionBusy ToolArgumentsError "
    "ToolDefinitionError ToolNotFound ToolRejected TurnEndedError Waiting",
    "hooks": "after_each_tool after_llm after_tools after_user_input around_llm around_tool around_turn "
    "before_each_tool before_llm before_tools on_agent_closed on_agent_ready on_complete on_error on_session on_text "
    "on_trace register_chat_commands register_commands register_models",
    "hooks.discovery": "shadow use",
    "hooks.own": "hookspec",
    "hooks.resource": "resource",
    "loop.ask": "llm_do",
    "models.info": "ModelInfo model_info",
    "models.json_text": "repeated_key",
    "output.masking": "add_secret mask",
    "output.text": "arguments_text",
    "records.paths": "data_folder",
    "records.sqlite": "SqliteStore",
    "records.store": "Store",
    "data": "Continue File Image LLMRequest LLMResponse Message Retry Session TokenUsage ToolCall TraceEntry",
    "tools": "Tool tool",
    "tools.loops": "run_async",
    "agents.workflows": "Loop Parallel Sequential",
}
_MODULES = {name: module for module, names in _HOME.items() for name in names.split()}

__all__ = [
    "Agent",
    "BatchLimits",
    "BatchStopped",
    "ConfigError",
    "ConnectAgentDeprecationWarning",
    "ConnectAgentError",
    "Continue",
    "DivergenceError",
    "File",
    "HandlerError",
    "HookResultError",
    "Image",
    "KeyedSession",
    "LLMRequest",
    "LLMResponse",
    "Loop",
    "Message",
    "ModelInfo",
    "OutputError",
    "Parallel",
    "Pause",
    "Paused",
    "PluginError",
    "PluginWarning",
    "ProviderError",
    "ResourceError",
    "Retry",
    "Sequential",
    "Session",
    "SessionBusy",
    "SqliteStore",
    "Store",
    "TokenUsage",
    "Tool",
    "ToolArgumentsError",
    "ToolCall",
    "ToolDefinitionError",
    "ToolNotFound",
    "ToolRejected",
    "TraceEntry",
    "TurnEndedError",
    "Waiting",
    "add_secret",
    "after_each_tool",
    "after_llm",
    "after_tools",
    "after_user_input",
    "arguments_text",
    "around_llm",
    "around_tool",
    "around_turn",
    "before_each_tool",
    "before_llm",
    "before_tools",
    "data_folder",
    "hookspec",
    "llm_do",
    "mask",
    "model_info",
    "on_agent_closed",
    "on_agent_ready",
    "on_complete",
    "on_error",
    "on_session",
    "on_text",
    "on_trace",
    "register_chat_commands",
    "register_commands",
    "register_models",
    "repeated_key",
    "resource",
    "run_async",
    "shadow",
    "tool",
    "use",
    "xray",
]


_RENAMED = {
    "around_tools": "around_tool",
    "before_tool": "before_each_tool",
    "after_tool": "after_each_tool",
}
"""Names that plugins may still use, and what they are called now."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        from importlib import import_module

        try:
            value = getattr(import_module(f"connectagent.{_MODULES[name]}"), name)
        except ImportError as error:
            from connectagent.errors import library_problem

            if problem := library_problem(error):
                raise ImportError(problem, name=error.name) from error
            raise
        globals()[name] = value
        return value
    from importlib.util import find_spec

    if name.startswith("_") or find_spec(f"connectagent.{name}"):  # a module is imported when this has no such name
        raise AttributeError(f"module 'connectagent' has no attribute {name!r}")
    from connectagent.errors import did_you_mean

    known = f" It is called {_RENAMED[name]!r} now." if name in _RENAMED else did_you_mean(name, __all__, 0.8)
    if known and _is_imported():
        # An ImportError: `from connectagent import ...` would hide the text of an AttributeError.
        raise ImportError(f"connectagent has no {name!r}.{known}", name=name)
    raise AttributeError(f"module 'connectagent' has no attribute {name!r}.{known}")


def _is_imported() -> bool:
    """Whether `from connectagent import ...` asks for a name, in place of `hasattr()` or `connectagent.name`."""
    import sys

    return sys._getframe(2).f_code.co_name == "_handle_fromlist"


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
