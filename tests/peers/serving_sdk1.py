"""How a server on mcp 1.x listens, over whichever carrier it was asked for; used by the `*_sdk1` servers.

WebSocket is a transport of this SDK alone. It is served as its documentation says: an application for each connection,
which is a session of its own.
"""

from __future__ import annotations

from typing import Any

from mcp.server.fastmcp import FastMCP
from mcp.server.lowlevel import Server
from mcp.server.websocket import websocket_server
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute

from tests.peers.serving import Options, serve_http

TRANSPORTS = ("stdio", "http", "sse", "websocket")


class Sockets:
    """An ASGI application that runs a server on every connection."""

    def __init__(self, server: Server[Any, Any]) -> None:
        self._server = server

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve until the connection goes."""
        async with websocket_server(scope, receive, send) as (read, write):
            await self._server.run(read, write, self._server.create_initialization_options())


async def serve_sdk1(server: FastMCP, options: Options) -> None:
    """Serve until the pipe closes or a signal comes."""
    match options.transport:
        case "stdio":
            await server.run_stdio_async()
        case "sse":
            await serve_http(server.sse_app(), options.port)
        case "websocket":
            app = Starlette(routes=[WebSocketRoute("/mcp", Sockets(server._mcp_server))])
            await serve_http(app, options.port, ws="websockets-sansio")
        case "http":
            server.settings.json_response = options.json
            server.settings.stateless_http = options.stateless
            await serve_http(server.streamable_http_app(), options.port)
