"""An MCP server for the tests; with a port it serves streamable HTTP."""

import asyncio
import base64
import os
import sys

from mcp.server import MCPServer
from mcp.server.mcpserver import Context, Image

server = MCPServer("probe")
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def process() -> int:
    """Which process this is."""
    return os.getpid()


@server.tool()
def die() -> str:
    """End in the middle of a call."""
    os._exit(3)


@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("not today")


@server.tool()
def picture() -> Image:
    """A picture."""
    return Image(data=base64.b64decode(PIXEL), format="png")


@server.tool()
async def slow(ctx: Context, seconds: float, steps: int = 0) -> str:
    """Sleep, and report steps."""
    for step in range(steps or 1):
        await asyncio.sleep(seconds / (steps or 1))
        if steps:
            await ctx.report_progress(step + 1, steps)
    return "slept"


@server.tool()
async def grow(ctx: Context) -> str:
    """Offer one more tool."""

    def late() -> str:
        return "late"

    server.add_tool(late)
    await ctx.session.send_tool_list_changed()
    await asyncio.sleep(0.1)
    return "grown"


@server.resource("note://a")
def note() -> str:
    return "the note"


@server.prompt()
def greet(name: str) -> str:
    return f"Greet {name}"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run("stdio")
