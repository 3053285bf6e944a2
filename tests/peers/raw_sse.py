"""The raw server over the old HTTP+SSE transport: a stream at /sse, messages to /messages, new modes at /control.

Everything a server says goes down the stream; a POST is answered with 202 and nothing else. The modes that are about
the `endpoint` event, with which a stream begins, are this module's own.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from urllib.parse import parse_qs, urlsplit

from tests.peers.raw_calls import Caller
from tests.peers.raw_connection import GARBAGE, STREAM_HEAD, Connection, Request, response
from tests.peers.raw_duplex import Duplex
from tests.peers.raw_modes import Modes
from tests.peers.raw_protocol import Json, RawProtocol


class SseExchange:
    """One request of a stream's caller; everything it writes goes down that stream."""

    def __init__(self, connection: Connection, headers: dict[str, str]) -> None:
        self.cancelled = asyncio.Event()
        self.headers = headers
        self._connection = connection

    def stream(self) -> None:
        """There is a stream already."""

    def frame(self, message: Json) -> bytes:
        """One event."""
        return event("message", json.dumps(message))

    async def write(self, data: bytes) -> None:
        """Send it."""
        await self._connection.write(data)

    def unended(self, size: int) -> bytes:
        """An event whose line goes on and on."""
        return chunk(b"data: " + b"x" * size)

    def garbage(self) -> bytes:
        """Events and comments that are not messages."""
        return chunk(GARBAGE)

    def drop(self) -> None:
        """End the stream without a word."""
        self._connection.abort()

    async def close(self, *, is_answered: bool) -> None:
        """Nothing ends with a request; a cancelled call gets no answer at all."""


class SseServer:
    """Answers streams and messages."""

    def __init__(self, protocol: RawProtocol) -> None:
        self._protocol = protocol
        self.caller = Caller(protocol)
        self._sessions: dict[str, Duplex] = {}

    async def serve(self, port: int) -> None:
        """Listen on loopback for ever; the first line on stdout is `PORT n`."""
        server = await asyncio.get_running_loop().create_server(lambda: Connection(self.respond), "127.0.0.1", port)
        print("PORT", server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    async def respond(self, request: Request, connection: Connection) -> None:
        """Answer one request of a connection; a stream lasts until its connection is lost."""
        match (request.method, urlsplit(request.path).path):
            case ("POST", "/control"):
                self._protocol.modes = Modes.parse(request.body.decode())
                await connection.write(response(200, b"{}"))
            case ("GET", "/sse"):
                await self._open_stream(request, connection)
            case ("POST", "/messages"):
                await self._take(request, connection)
            case (_, "/sse" | "/messages"):
                await connection.write(response(405, b""))
            case _:
                await connection.write(response(404, b""))

    async def _open_stream(self, request: Request, connection: Connection) -> None:
        name = secrets.token_hex(8)
        async with asyncio.TaskGroup() as group:
            duplex = Duplex(self.caller, lambda: SseExchange(connection, request.headers), group)
            self._sessions[name] = duplex
            await connection.write(STREAM_HEAD + b"\r\n" + chunk(b": open\n\n"))
            if "no_endpoint" not in self._protocol.modes:
                await connection.write(event("endpoint", self._endpoint(request, name)))
            await connection.lost.wait()
            del self._sessions[name]
            duplex.leave()

    def _endpoint(self, request: Request, name: str) -> str:
        modes, path = self._protocol.modes, f"/messages?session={name}"
        if "foreign_endpoint" in modes:
            return f"{modes.given['foreign_endpoint']}{path}"
        return f"http://{request.headers['host']}{path}" if "absolute_endpoint" in modes else path

    async def _take(self, request: Request, connection: Connection) -> None:
        self._protocol.ledger.record(posted=request.path.partition("?")[0])
        (name,) = parse_qs(urlsplit(request.path).query).get("session", [""])
        duplex = self._sessions.get(name)
        if duplex is None:
            await connection.write(response(404, b""))
            return
        await connection.write(response(202, b"Accepted", b"content-type: text/plain\r\n"))
        await duplex.take(json.loads(request.body))


def event(kind: str, data: str) -> bytes:
    """One event, as a chunk of a stream."""
    return chunk(f"event: {kind}\ndata: {data}\n\n".encode())


def chunk(data: bytes) -> bytes:
    """A piece of a body of unknown length."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"
