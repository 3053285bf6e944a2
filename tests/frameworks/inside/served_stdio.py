"""The server of `adk_server` over standard streams, which start sooner than a socket is found."""

from __future__ import annotations

import asyncio

from mcp.server.lowlevel.server import NotificationOptions

from tests.frameworks.inside.adk_server import server


async def run() -> None:
    """Serve until the pipe closes."""
    lowlevel = server._lowlevel_server
    plain = lowlevel.create_initialization_options
    lowlevel.create_initialization_options = lambda *_, **__: plain(NotificationOptions(tools_changed=True))  # type: ignore[method-assign]
    await server.run_stdio_async()


if __name__ == "__main__":
    asyncio.run(run())
