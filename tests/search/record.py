"""Record the tools of the servers from npm that the tests use: `python -m tests.search.record` prints JSON lines.

`tools.jsonl` begins with these lines. The others are tools in the style of other well-known servers, written by hand.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path

from mcp import Client

from tests.peers.client_sdk2 import client_over_stdio
from tests.peers.npm_servers import NpmServer, npm_command

MEMBERS = ("title", "description", "inputSchema")


async def record(server: NpmServer, folder: Path) -> None:
    """Print the tools of one server."""
    words = npm_command(server, *([str(folder)] if server == "filesystem" else []))
    client: Client
    async with client_over_stdio(words, mode="legacy") as client:
        for tool in (await client.list_tools()).tools:
            found = tool.model_dump(by_alias=True, exclude_none=True)
            kept = {key: found[key] for key in MEMBERS if key in found}
            sys.stdout.write(json.dumps({"server": server, "name": tool.name, **kept}, ensure_ascii=False) + "\n")


async def main() -> None:
    """Print the tools of every server."""
    with tempfile.TemporaryDirectory() as folder:
        for server in ("everything", "filesystem", "memory"):
            await record(server, Path(folder))


if __name__ == "__main__":
    asyncio.run(main())
