"""A server on the official SDK, mcp 2.x, with the tools that every official peer has.

It serves both eras, or one if told so. Tests start it through `launch`; it imports nothing of the hub.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from mcp.server.lowlevel.server import NotificationOptions
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.models import InitializationOptions
from mcp_types import CallToolResult, Icon, TextContent, ToolAnnotations
from pydantic import BaseModel

from tests.peers.serving import MODERN_VERSION, EraGate, Options, note, parse_options, serve_http
from tests.peers.stdio_gate import serve_stdio

server: MCPServer[Any] = MCPServer("sdk2", version="2.0", log_level="ERROR")


class Sum(BaseModel):
    """What `add` returns; gives the tool its output schema."""

    sum: int


@server.tool()
async def echo(text: str) -> CallToolResult:
    """Give the text back, as content and as structured content."""
    return CallToolResult(content=[TextContent(text=text)], structured_content={"text": text})


@server.tool()
async def add(a: int, b: int) -> Sum:
    """Add two numbers."""
    return Sum(sum=a + b)


@server.tool()
async def slow(seconds: float, steps: int, ctx: Context[Any, Any]) -> str:
    """Take a while, and report progress after each step."""
    for step in range(1, steps + 1):
        await asyncio.sleep(seconds / steps)
        await ctx.report_progress(step, steps, f"step {step}")
    return f"{steps} steps"


@server.tool()
async def cancellable(token: str, ctx: Context[Any, Any]) -> str:
    """Wait for ever; note in the ledger when it starts and when it is cancelled."""
    note(f"started {token}")
    await ctx.report_progress(0, 1, "started")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        note(f"cancelled {token}")
        raise
    return "never"


@server.tool()
async def fail() -> str:
    """Fail as a tool does: a result that is an error."""
    raise ToolError("this tool always fails")


@server.tool()
async def boom() -> str:
    """Raise what no tool should."""
    raise RuntimeError("boom")


@server.tool()
async def meta(ctx: Context[Any, Any]) -> str:
    """Give back the request's _meta as JSON."""
    return json.dumps(ctx.request_context.meta or {}, default=str)


@server.tool(
    title="A decorated tool",
    annotations=ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False),
    icons=[Icon(src="data:image/png;base64,AA==", mime_type="image/png", sizes=["16x16"])],
    meta={"example.org/colour": "blue"},
)
async def decorated() -> str:
    """Carry everything a listing can say about a tool."""
    return "decorated"


@server.tool()
async def grow(name: str, ctx: Context[Any, Any]) -> str:
    """Add a tool called `name` and say that the list has changed, in the way of the caller's era."""
    server.add_tool(echo, name=name, description="A tool that was not there before.")
    if ctx.protocol_version == MODERN_VERSION:
        await ctx.notify_tools_changed()
    else:
        await ctx.session.send_tool_list_changed()
    return name


def announce_list_changes() -> None:
    """Make the handshake say that the list can change; by itself the SDK says so in the modern era only."""
    lowlevel = server._lowlevel_server  # the SDK has no public way to this option
    plain = lowlevel.create_initialization_options

    def with_changes(*_: Any, **__: Any) -> InitializationOptions:
        return plain(NotificationOptions(tools_changed=True))

    lowlevel.create_initialization_options = with_changes  # type: ignore[method-assign]


async def run(options: Options) -> None:
    """Serve until the pipe closes or a signal comes."""
    announce_list_changes()
    if options.transport == "http":
        app = server.streamable_http_app(json_response=options.json, stateless_http=options.stateless)
        await serve_http(EraGate(app, options.era), options.port)
        return
    lowlevel = server._lowlevel_server
    start = lowlevel.create_initialization_options()
    await serve_stdio(lambda read, write: lowlevel.run(read, write, start), options.era)


if __name__ == "__main__":
    asyncio.run(run(parse_options(("both", "legacy", "modern"))))
