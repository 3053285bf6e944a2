"""A server on the official SDK, mcp 1.x, with the tools that every official peer has.

It runs in an environment of its own (`launch.mcp1_python`) and knows the legacy era only.
"""

from __future__ import annotations

import asyncio
import json

from mcp.server.fastmcp import Context, FastMCP
from mcp.server.fastmcp.exceptions import ToolError
from mcp.server.lowlevel.server import NotificationOptions
from mcp.types import CallToolResult, Icon, ToolAnnotations
from pydantic import BaseModel

from tests.peers.serving import Options, note, parse_options
from tests.peers.serving_sdk1 import TRANSPORTS, serve_sdk1

server = FastMCP("sdk1", log_level="CRITICAL")


class Sum(BaseModel):
    """What `add` returns; gives the tool its output schema."""

    sum: int


@server.tool()
async def echo(text: str) -> CallToolResult:
    """Give the text back, as content and as structured content."""
    return CallToolResult.model_validate(
        {"content": [{"type": "text", "text": text}], "structuredContent": {"text": text}}
    )


@server.tool()
async def add(a: int, b: int) -> Sum:
    """Add two numbers."""
    return Sum(sum=a + b)


@server.tool()
async def slow(seconds: float, steps: int, ctx: Context) -> str:
    """Take a while, and report progress after each step."""
    for step in range(1, steps + 1):
        await asyncio.sleep(seconds / steps)
        await ctx.report_progress(step, steps, f"step {step}")
    return f"{steps} steps"


@server.tool()
async def cancellable(token: str, ctx: Context) -> str:
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
async def meta(ctx: Context) -> str:
    """Give back the request's _meta as JSON."""
    given = ctx.request_context.meta
    return given.model_dump_json(exclude_none=True) if given else json.dumps({})


@server.tool(
    title="A decorated tool",
    annotations=ToolAnnotations.model_validate({"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False}),
    icons=[Icon.model_validate({"src": "data:image/png;base64,AA==", "mimeType": "image/png", "sizes": ["16x16"]})],
    meta={"example.org/colour": "blue"},
)
async def decorated() -> str:
    """Carry everything a listing can say about a tool."""
    return "decorated"


@server.tool()
async def grow(name: str, ctx: Context) -> str:
    """Add a tool called `name` and say that the list has changed."""
    server.add_tool(echo, name=name, description="A tool that was not there before.")
    await ctx.session.send_tool_list_changed()
    return name


def announce_list_changes() -> None:
    """Make the handshake say that the tool list can change."""
    lowlevel = server._mcp_server  # the SDK has no public way to this option
    plain = lowlevel.create_initialization_options
    lowlevel.create_initialization_options = lambda *_, **__: plain(NotificationOptions(tools_changed=True))


async def run(options: Options) -> None:
    """Serve until the pipe closes or a signal comes."""
    announce_list_changes()
    await serve_sdk1(server, options)


if __name__ == "__main__":
    asyncio.run(run(parse_options(("legacy",), TRANSPORTS)))
