"""HTTP/1.1 for the raw server, on bare asyncio transports: connections and the answers on them.

It knows bytes and event streams, and nothing of MCP beyond the framing; `raw_http` says what to answer.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.peers.raw_modes import Modes
from tests.peers.raw_protocol import METHOD_NOT_FOUND, Json

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-store\r\ntransfer-encoding: chunked\r\n"
)
GARBAGE = (
    b": a comment\n\nevent: mystery\ndata: {}\n\ndata: this is not JSON\n\nid: 7\nretry: 10\n\ndata: []\n\ndata:\n\n"
)
REASONS = {200: "OK", 202: "Accepted", 307: "Temporary Redirect", 400: "Bad Request", 404: "Not Found"}


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request, read whole."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Connection(asyncio.Protocol):
    """One TCP connection: its requests are handed to `respond` one after the other."""

    def __init__(self, respond: Callable[[Request, Connection], Awaitable[None]]) -> None:
        self._respond = respond
        self._buffer = bytearray()
        self._arrived = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self.lost = asyncio.Event()
        self._transport: asyncio.Transport
        self._task: asyncio.Task[None]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start answering."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._task = asyncio.get_running_loop().create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        """Keep the bytes for the reader."""
        self._buffer += data
        self._arrived.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the request under way, and stop waiting for the next one."""
        self.lost.set()
        self._arrived.set()
        self._writable.set()

    def pause_writing(self) -> None:
        """The peer reads slower than we write."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """The peer has caught up."""
        self._writable.set()

    async def write(self, data: bytes) -> None:
        """Send, and wait while the peer lags; what goes to a lost peer is dropped."""
        if not self.lost.is_set():
            self._transport.write(data)
        await self._writable.wait()

    def abort(self) -> None:
        """Break the connection without a word."""
        self._transport.abort()

    async def _serve(self) -> None:
        try:
            while not self.lost.is_set():
                await self._respond(await self._next_request(), self)
        except ConnectionResetError:
            pass  # the peer left between two requests, as it may
        finally:
            self._transport.close()

    async def _next_request(self) -> Request:
        head = await self._take(lambda: at + 4 if (at := self._buffer.find(b"\r\n\r\n")) >= 0 else 0)
        first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
        method, path, _ = first.split(" ")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        size = int(headers.get("content-length", "0"))
        body = await self._take(lambda: size if len(self._buffer) >= size else 0) if size else b""
        return Request(method, path, headers, body)

    async def _take(self, ready: Callable[[], int]) -> bytes:
        """Wait until `ready` gives a number of bytes, and take so many."""
        while not (size := ready()):
            if self.lost.is_set():
                raise ConnectionResetError
            self._arrived.clear()
            await self._arrived.wait()
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken


class HttpExchange:
    """One request's answer: a JSON body, or a chunked event stream if more than one message is to go out."""

    def __init__(self, connection: Connection, headers: dict[str, str], *, modes: Modes, is_modern: bool) -> None:
        self.cancelled = asyncio.Event()
        self.headers = headers
        self.extra = b""
        """Header lines to add, such as a new session's."""
        self._connection = connection
        self._modes = modes
        self._is_modern = is_modern
        self._is_stream = False
        self._has_head = False

    def stream(self) -> None:
        """Answer by events from now on."""
        self._is_stream = True

    def frame(self, message: Json) -> bytes:
        """A whole JSON response, or the next event, with the stream's head if it is the first."""
        body = json.dumps(message).encode()
        if not self._is_stream:
            return self._whole(body, message)
        return self._chunk(b"event: message\ndata: " + body + b"\n\n")

    def _whole(self, body: bytes, message: Json) -> bytes:
        status = status_of(message["error"]) if self._is_modern and "error" in message else 200
        encoding = b""
        if "gzip" in self._modes:
            body, encoding = gzip.compress(body, compresslevel=1), b"content-encoding: gzip\r\n"
        return response(status, body, b"content-type: application/json\r\n" + encoding + self.extra)

    def _chunk(self, data: bytes) -> bytes:
        head = b"" if self._has_head else STREAM_HEAD + self.extra + b"\r\n"
        self._has_head = True
        return head + f"{len(data):x}\r\n".encode() + data + b"\r\n"

    async def write(self, data: bytes) -> None:
        """Send it."""
        await self._connection.write(data)

    def unended(self, size: int) -> bytes:
        """An event whose line goes on and on."""
        return self._chunk(b"data: " + b"x" * size)

    def garbage(self) -> bytes:
        """Events and comments that are not messages."""
        return self._chunk(GARBAGE)

    def comment(self) -> bytes:
        """What opens a stream on which there is nothing to say yet."""
        return self._chunk(b": open\n\n")

    async def close(self, *, is_answered: bool) -> None:
        """End the stream; a call without an answer gets an error, since an HTTP request must end somehow."""
        if not is_answered and not self._has_head:
            await self.write(
                response(200, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32800,"message":"Cancelled"}}')
            )
        if self._has_head:
            await self.write(b"0\r\n\r\n")

    def drop(self) -> None:
        """Break the connection."""
        self._connection.abort()

    async def lose(self) -> None:
        """Wait until the peer is gone, and count that as a cancellation."""
        await self._connection.lost.wait()
        self.cancelled.set()


def response(status: int, body: bytes, headers: bytes = b"content-type: application/json\r\n") -> bytes:
    """A response of known length."""
    line = f"HTTP/1.1 {status} {REASONS.get(status, 'No')}\r\ncontent-length: {len(body)}\r\n".encode()
    return line + headers + b"\r\n" + body


def status_of(error: Json) -> int:
    """The HTTP status of a JSON-RPC error in the modern era: an unknown method is 404, the rest 400."""
    return 404 if error["code"] == METHOD_NOT_FOUND else 400
