"""The shortest way to call tools: `isthmus.connect`, awaited and without a loop.

    python examples/library/connect.py

Give it an `mcp.json` of your own: `python examples/library/connect.py mcp.json`.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import isthmus

EXAMPLES = Path(__file__).resolve().parents[1]
SERVERS = {
    "notes": {"command": sys.executable, "args": [str(EXAMPLES / "notes_server.py")]},
    "workshop": {"command": sys.executable, "args": [str(EXAMPLES / "workshop_server.py")]},
}


async def awaited() -> None:
    """Call a tool, follow a slow one, and see what a failure says."""
    async with isthmus.connect(SERVERS) as hub:
        print([tool.name for tool in await hub.tools()])
        result = await hub.call("notes.add", text="Buy bread.")
        print(result.text)

        async for chunk in hub.stream("workshop.survey", topic="tides"):
            print(chunk.chunk_type, chunk.content)

        try:
            await hub.call("notes.add", txt="Buy bread.")
        except isthmus.ToolError as error:
            print(f"executed: {error.executed}. {error}")


def blocking() -> None:
    """The same hub for code without a loop."""
    with isthmus.connect(sys.argv[1] if sys.argv[1:] else SERVERS) as hub:
        for tool in hub.tools():
            print(f"{tool.name}: {tool.description}")
        for server, reason in hub.failures.items():
            print(f"{server} is not connected: {reason}")


if __name__ == "__main__":
    if sys.argv[1:] and not Path(sys.argv[1]).is_file():
        raise SystemExit(f"usage: python {sys.argv[0]} [mcp.json]")
    if not sys.argv[1:]:
        asyncio.run(awaited())
    blocking()
