"""An agent's side, with the official SDK: list what the hub has, keep a note and read it back.

Run `isthmus serve --config examples/mcp.json`, and then this with the address of the hub's /mcp.
"""

import asyncio
import sys

from mcp import Client


async def main(url: str) -> None:
    """Say what there is, keep a note, and read it back."""
    async with Client(url) as client:
        for tool in (await client.list_tools()).tools:
            print(f"{tool.name}: {tool.description}")
        await client.call_tool("notes.add", {"text": "hello from an agent"})
        notes = await client.call_tool("notes.list", {})
        print(notes.content[0].text)


url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8765/mcp"
if not url.startswith(("http://", "https://")):
    raise SystemExit(f"usage: python3 {sys.argv[0]} [http://HOST:PORT/mcp]")
asyncio.run(main(url))
