"""One era only over stdio, for servers on mcp 2.x; `server_sdk2` and `server_fastmcp` use it.

The SDK serves either era on a pipe and lets the first request choose, so refusing inside the server comes too
late: a refused probe would already have locked the connection. This gate sits between the pipe and the server
instead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectSendStream
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp_types import ErrorData, JSONRPCError, JSONRPCRequest

from tests.peers.serving import Era, admits, refusal

PROTOCOL_VERSION_KEY = "io.modelcontextprotocol/protocolVersion"

Serve = Callable[[Any, Any], Awaitable[None]]
"""What runs a server over a pair of message streams; the SDK's stream types are its own affair."""


async def serve_stdio(serve: Serve, era: Era) -> None:
    """Run `serve` over this process's pipes, with requests of the other era refused before it sees them."""
    forward, admitted = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    async with stdio_server() as (incoming, outgoing), anyio.create_task_group() as group:
        group.start_soon(_sift, incoming, forward, outgoing, era)
        await serve(admitted, outgoing)
        group.cancel_scope.cancel()


async def _sift(
    incoming: Any, forward: MemoryObjectSendStream[SessionMessage | Exception], outgoing: Any, era: Era
) -> None:
    async with forward:
        async for item in incoming:
            request = _refusable(item, era)
            if request is None:
                await forward.send(item)
            else:
                error = JSONRPCError(jsonrpc="2.0", id=request.id, error=ErrorData(**refusal(era)))
                await outgoing.send(SessionMessage(error))


def _refusable(item: SessionMessage | Exception, era: Era) -> JSONRPCRequest | None:
    if isinstance(item, Exception) or not isinstance(item.message, JSONRPCRequest):
        return None
    meta = (item.message.params or {}).get("_meta") or {}
    return None if admits(era, meta.get(PROTOCOL_VERSION_KEY)) else item.message
