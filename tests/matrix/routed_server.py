"""An official modern server with a tool that wants one of its arguments repeated in a header."""

from __future__ import annotations

import sys
from typing import Annotated

from mcp.server.mcpserver import MCPServer
from pydantic import Field

server = MCPServer("routed")


@server.tool()
def where(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]) -> str:
    """Say where."""
    return region


server.run(transport="streamable-http", port=int(sys.argv[1]), stateless_http=True)
