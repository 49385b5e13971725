"""The registry holds an agent's tools by name, and answers a wrong name with the right one."""

from __future__ import annotations

import copy

import pytest

from connectagent.errors import ToolDefinitionError, ToolNotFound
from connectagent.tools import Tool, ToolRegistry


def search(query: str, limit: int = 3) -> str:
    """Search the docs."""
    return f"{query}:{limit}"


async def fetch(url: str) -> str:
    """Fetch a page."""
    return f"<{url}>"


def test_the_registry_is_read_like_a_mapping() -> None:
    tools = ToolRegistry([search, fetch])
    assert "search" in tools and tools["search"] in tools and "nope" not in tools and 5 not in tools
    assert Tool.from_function(search) not in tools
    assert len(tools) == 2 and [one.name for one in tools] == tools.names() == ["search", "fetch"]
    assert tools.get("nope") is None and tools.get("search") is tools["search"]
    assert tools.search("x", limit=1) == "x:1"
    assert copy.copy(tools).names() == ["search", "fetch"]


def test_an_unknown_tool_is_answered_with_the_one_that_was_meant() -> None:
    tools = ToolRegistry([search, fetch])
    with pytest.raises(AttributeError, match="Did you mean 'search'"):
        tools.serch("x")
    with pytest.raises(ToolNotFound, match="Tools: search, fetch"):
        tools.remove("zzz")
    with pytest.raises(ToolNotFound):
        tools["zzz"]
    assert [tools.closest(name) for name in ("Search", "functions.search", "zzz")] == ["search", "search", None]


def test_schemas_are_one_list_until_tools_change() -> None:
    tools = ToolRegistry(search)
    first = tools.schemas()
    assert tools.schemas() is first and [one["function"]["name"] for one in first] == ["search"]
    tools.add(fetch)
    assert tools.schemas() is not first and len(tools.schemas()) == 2
    assert tools.remove("fetch").name == "fetch" and len(tools.schemas()) == 1


def test_adding_is_all_or_nothing() -> None:
    tools = ToolRegistry(search)
    with pytest.raises(ToolDefinitionError, match="two tools are named 'search'"):
        tools.add([fetch, search])
    assert tools.names() == ["search"]
