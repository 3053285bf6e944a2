"""An official modern server with a tool that wants one of its arguments repeated in a header."""

from __future__ import annotations

import socket
from typing import Annotated

import uvicorn
from mcp.server.mcpserver import MCPServer
from pydantic import Field

server = MCPServer("routed")


@server.tool()
def where(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]) -> str:
    """Say where."""
    return region


# The port is held from the moment that it is known.
listener = socket.create_server(("127.0.0.1", 0))
print("PORT", listener.getsockname()[1], flush=True)
config = uvicorn.Config(server.streamable_http_app(stateless_http=True), log_level="warning")
uvicorn.Server(config).run(sockets=[listener])
