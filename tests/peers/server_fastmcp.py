"""A server on FastMCP 4, with the tools that every official peer has.

It serves both eras, or one if told so. FastMCP answers no `subscriptions/listen`, so in the modern era its
list changes reach only the stream of the request that made them.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.tools.base import ToolResult
from mcp_types import Icon, ToolAnnotations, ToolListChangedNotification
from pydantic import BaseModel

from tests.peers.serving import EraGate, Options, note, parse_options, serve_http
from tests.peers.stdio_gate import serve_stdio

server: FastMCP[Any] = FastMCP("fastmcp", version="4.0")


class Sum(BaseModel):
    """What `add` returns; gives the tool its output schema."""

    sum: int


@server.tool
async def echo(text: str) -> ToolResult:
    """Give the text back, as content and as structured content."""
    return ToolResult(content=text, structured_content={"text": text})


@server.tool
async def add(a: int, b: int) -> Sum:
    """Add two numbers."""
    return Sum(sum=a + b)


@server.tool
async def slow(seconds: float, steps: int, ctx: Context) -> str:
    """Take a while, and report progress after each step."""
    for step in range(1, steps + 1):
        await asyncio.sleep(seconds / steps)
        await ctx.report_progress(step, steps, f"step {step}")
    return f"{steps} steps"


@server.tool
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


@server.tool
async def fail() -> str:
    """Fail as a tool does: a result that is an error."""
    raise ToolError("this tool always fails")


@server.tool
async def boom() -> str:
    """Raise what no tool should."""
    raise RuntimeError("boom")


@server.tool
async def meta(ctx: Context) -> str:
    """Give back the request's _meta as JSON."""
    request = ctx.request_context
    return json.dumps((request.meta if request else None) or {}, default=str)


@server.tool(
    title="A decorated tool",
    annotations=ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False),
    icons=[Icon(src="data:image/png;base64,AA==", mime_type="image/png", sizes=["16x16"])],
    meta={"example.org/colour": "blue"},
)
async def decorated() -> str:
    """Carry everything a listing can say about a tool."""
    return "decorated"


async def late_echo(text: str) -> ToolResult:
    """A tool that was not there before."""
    return ToolResult(content=text, structured_content={"text": text})


@server.tool
async def grow(name: str, ctx: Context) -> str:
    """Add a tool called `name` and say that the list has changed."""
    server.tool(late_echo, name=name)
    await ctx.send_notification(ToolListChangedNotification())
    return name


async def run(options: Options) -> None:
    """Serve until the pipe closes or a signal comes."""
    if options.transport == "http":
        app = server.http_app(path="/mcp", json_response=options.json, stateless_http=options.stateless)
        await serve_http(EraGate(app, options.era), options.port)
        return
    lowlevel = server._mcp_server  # FastMCP runs stdio only on streams of its own
    start = lowlevel.create_initialization_options()
    async with server._lifespan_manager():  # as its own stdio runner does
        await serve_stdio(lambda read, write: lowlevel.run(read, write, start), options.era)


if __name__ == "__main__":
    asyncio.run(run(parse_options(("both", "legacy", "modern"))))
