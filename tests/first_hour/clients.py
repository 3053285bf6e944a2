"""Real MCP clients that call `builtin.echo` at an address: `clients.py mcp|fastmcp URL [KEY]`."""

from __future__ import annotations

import asyncio
import sys

import httpx2
from fastmcp import Client as FastMcpClient
from mcp import Client
from mcp.client.streamable_http import streamable_http_client


async def by_mcp(url: str, key: str | None) -> str:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with (
        httpx2.AsyncClient(headers=headers) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        result = await client.call_tool("builtin.echo", {"text": "hello"})
        return str(getattr(result.content[0], "text", ""))


async def by_fastmcp(url: str, key: str | None) -> str:
    async with FastMcpClient(url, auth=key) as client:
        result = await client.call_tool("builtin.echo", {"text": "hello"})
        return str(getattr(result.content[0], "text", ""))


if __name__ == "__main__":
    kind, address, *keys = sys.argv[1:]
    said = asyncio.run((by_mcp if kind == "mcp" else by_fastmcp)(address, keys[0] if keys else None))
    assert said == "hello", said
    print(f"{kind}: {said}")
