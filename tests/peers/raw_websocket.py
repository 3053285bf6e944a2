"""The raw server over WebSocket, subprotocol `mcp`: one message of JSON is one message of MCP."""

from __future__ import annotations

import asyncio
import json

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from tests.peers.raw_calls import Caller
from tests.peers.raw_duplex import Duplex
from tests.peers.raw_protocol import Json, RawProtocol

MESSAGE_BYTES = 64 << 20
GARBAGE = "this is not JSON"


class SocketExchange:
    """One request of a socket's caller."""

    def __init__(self, socket: ServerConnection) -> None:
        self.cancelled = asyncio.Event()
        self.headers: dict[str, str] = {}
        self._socket = socket

    def stream(self) -> None:
        """A socket is a stream already."""

    def frame(self, message: Json) -> bytes:
        """One message; the socket frames it."""
        return json.dumps(message).encode()

    async def write(self, data: bytes) -> None:
        """Send it as text; to a caller who has left, nothing."""
        try:
            await self._socket.send(data.decode())
        except ConnectionClosed:
            self.cancelled.set()

    def unended(self, size: int) -> bytes:
        """A huge message, since one that never ends cannot be framed."""
        return b"x" * size

    def garbage(self) -> bytes:
        """A message that is no JSON."""
        return GARBAGE.encode()

    def drop(self) -> None:
        """Break the connection without a closing handshake."""
        self._socket.transport.abort()

    async def close(self, *, is_answered: bool) -> None:
        """Nothing ends with a request; a cancelled call gets no answer at all."""


class WebSocketServer:
    """Answers sockets, at any path."""

    def __init__(self, protocol: RawProtocol) -> None:
        self.caller = Caller(protocol)

    async def serve(self, port: int) -> None:
        """Listen on loopback for ever; the first line on stdout is `PORT n`."""
        mcp = [Subprotocol("mcp")]
        async with serve(self._talk, "127.0.0.1", port, subprotocols=mcp, max_size=MESSAGE_BYTES) as server:
            print("PORT", next(iter(server.sockets)).getsockname()[1], flush=True)
            await server.serve_forever()

    async def _talk(self, socket: ServerConnection) -> None:
        async with asyncio.TaskGroup() as group:
            duplex = Duplex(self.caller, lambda: SocketExchange(socket), group)
            try:
                async for message in socket:
                    await duplex.take(json.loads(message))
            except ConnectionClosed:
                pass  # broken rather than closed, which a test may well want
            duplex.leave()
