"""A streamable HTTP server on the official SDK with tools that report progress.

`python -m tests.library.programs.streaming` says `PORT n` once it listens.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from tests.peers.serving import serve_http

LOOK_SECONDS = 0.01
"""How often a file is looked for."""

server: MCPServer[Any] = MCPServer("streaming", log_level="ERROR")


@server.tool()
async def long_computation(ctx: Context[Any, Any], steps: int = 5, seen: str | None = None) -> str:
    """Compute in steps; go on to the next one when a file in the folder `seen` says that this one was heard of."""
    for step in range(1, steps + 1):
        await ctx.report_progress(step, steps, f"step {step}")
        while seen is not None and not (Path(seen) / str(step)).exists():  # noqa: ASYNC110 (who hears of it is another process)
            await asyncio.sleep(LOOK_SECONDS)
    return f"{steps} steps"


@server.tool()
async def search(query: str) -> str:
    """Find something."""
    return f"found {query}"


@server.tool()
async def weather(city: str = "here") -> str:
    """Look out of the window."""
    if city == "nowhere":
        raise ToolError("there is no weather nowhere")
    return f"sunny in {city}"


if __name__ == "__main__":
    asyncio.run(serve_http(server.streamable_http_app(), 0))
