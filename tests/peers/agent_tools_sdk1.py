"""A server on the official SDK, mcp 1.x, with one tool for everything that an agent's task can come to.

It runs in an environment of its own (`launch.mcp1_python`), over every carrier that this SDK has.
"""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

from mcp.server.fastmcp import Context, FastMCP
from mcp.server.fastmcp.exceptions import ToolError
from mcp.types import CallToolResult
from pydantic import BaseModel

from tests.peers.serving import note, parse_options
from tests.peers.serving_sdk1 import TRANSPORTS, serve_sdk1

server = FastMCP("agent-tools", log_level="CRITICAL")

LOOK_SECONDS = 0.01
"""How often a file that a tool waits for is looked for."""

PIXEL = base64.b64encode(b"\x89PNG a pixel").decode()
TUNE = base64.b64encode(b"RIFF a tune").decode()
SHEET = base64.b64encode(bytes(range(256))).decode()
GALLERY = [
    {"type": "text", "text": "three things"},
    {"type": "image", "data": PIXEL, "mimeType": "image/png"},
    {"type": "audio", "data": TUNE, "mimeType": "audio/wav"},
    {
        "type": "resource",
        "resource": {"uri": "file:///shelf/sheet.bin", "mimeType": "application/x-sheet", "blob": SHEET},
    },
    {
        "type": "resource_link",
        "uri": "https://shelf.example/book.pdf",
        "name": "book.pdf",
        "mimeType": "application/pdf",
    },
]


async def until_there(path: str) -> None:
    """Wait for a file, if one is named."""
    while path and not _is_there(path):  # noqa: ASYNC110 (another process makes it, and cannot wake us)
        await asyncio.sleep(LOOK_SECONDS)


def _is_there(path: str) -> bool:
    return Path(path).exists()


class Person(BaseModel):
    """What `ask` asks for."""

    name: str


@server.tool()
async def tell(value: Any) -> CallToolResult:
    """Give a value back, whatever it is: as structured content, and as a text."""
    text = {"type": "text", "text": json.dumps(value, ensure_ascii=False)}
    return CallToolResult.model_validate({"content": [text], "structuredContent": {"value": value}})


@server.tool(name="readFile")
async def read_file(path: str) -> str:
    """Give back a text that names the path."""
    return f"the text of {path}"


@server.tool()
async def count(steps: int, ctx: Context, after: str = "") -> str:
    """Report progress at each step."""
    await until_there(after)
    for step in range(1, steps + 1):
        await ctx.report_progress(step, steps, f"step {step}")
    return f"{steps} steps"


@server.tool()
async def hold(token: str, ctx: Context, after: str = "") -> str:
    """Wait for ever; note in the ledger when it is cancelled."""
    await until_there(after)
    await ctx.report_progress(0, 1, "holding")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        note(f"cancelled {token}")
        raise
    return "never"


@server.tool()
async def ask(ctx: Context) -> str:
    """Ask for a name and greet."""
    answer = await ctx.elicit("What is your name?", Person)
    return f"Hello, {answer.data.name}!" if answer.action == "accept" else f"Nobody: {answer.action}"


@server.tool()
async def gallery() -> CallToolResult:
    """Give one block of every kind."""
    return CallToolResult.model_validate({"content": GALLERY})


@server.tool()
async def fail() -> str:
    """Fail as a tool does: a result that is an error."""
    raise ToolError("this call always fails")


if __name__ == "__main__":
    asyncio.run(serve_sdk1(server, parse_options(("legacy",), TRANSPORTS)))
