"""Tools: what the model may call, made from functions, methods, callables or a given JSON Schema."""

from connectagent.tools.registry import ToolRegistry, collect_tools
from connectagent.tools.results import error_content, error_message, result_content
from connectagent.tools.signature import tool
from connectagent.tools.tool import Tool

__all__ = ["Tool", "ToolRegistry", "collect_tools", "error_content", "error_message", "result_content", "tool"]
