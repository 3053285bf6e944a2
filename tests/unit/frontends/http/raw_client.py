"""Both sides of a listener for its tests: an open listener, and a client that sends exact bytes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from isthmus.frontends.http.connection import HttpServerConnection
from isthmus.frontends.http.listener import PEER, App, HttpListener, HttpListenerSettings
from isthmus.frontends.http.request_cycle import DrainAwarePeer, Message, Receive, Send

PATIENCE_SECONDS = 30.0
"""How long what must come may take; only a machine that stands still is slower."""

LONG = 60.0
"""A limit that passes in no test by itself, however slow the machine: `look_later` lets it pass."""

_UNHURRIED = {"header_seconds": LONG, "body_seconds": LONG, "stall_seconds": LONG}


@asynccontextmanager
async def opened(app: App, **limits: Any) -> AsyncIterator[tuple[HttpListener, int]]:
    """A listener around `app` on a port of the system's choice, in no hurry unless `limits` say so."""
    http_listener = HttpListener(app, HttpListenerSettings(port=0, **{**_UNHURRIED, **limits}))
    port = await http_listener.open()
    try:
        yield http_listener, port
    finally:
        await http_listener.close()


def inside(http_listener: HttpListener) -> list[HttpServerConnection]:
    """The listener's own ends of its connections."""
    return [
        connection for connection in http_listener._state.connections if isinstance(connection, HttpServerConnection)
    ]


def look_later(http_listener: HttpListener, seconds: float) -> None:
    """Have the listener look at its connections as if it were so much later; its own timer is off."""
    assert http_listener._timer is not None
    http_listener._timer.cancel()
    later = asyncio.get_running_loop().time() + seconds
    for connection in inside(http_listener):
        connection.inspect(later)


@dataclass(frozen=True)
class Answer:
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes

    def header(self, name: bytes) -> bytes | None:
        return dict(self.headers).get(name)


class RawClient:
    """One raw connection to a listener."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def say(self, data: bytes) -> None:
        self._writer.write(data)

    async def receive(self) -> Answer:
        """The next answer, whole."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            status, headers = await self.receive_head()
            return Answer(status, headers, await self._hear_body(status, dict(headers)))

    async def receive_head(self) -> tuple[int, list[tuple[bytes, bytes]]]:
        async with asyncio.timeout(PATIENCE_SECONDS):
            head = await self._reader.readuntil(b"\r\n\r\n")
        status_line, *lines = head[:-4].split(b"\r\n")
        headers = [(line.partition(b": ")[0], line.partition(b": ")[2]) for line in lines]
        return int(status_line.split(b" ")[1]), headers

    async def _hear_body(self, status: int, headers: dict[bytes, bytes]) -> bytes:
        if status in (100, 204, 304):
            return b""
        if b"content-length" in headers:
            return await self._reader.readexactly(int(headers[b"content-length"]))
        if headers.get(b"transfer-encoding") != b"chunked":
            return await self._reader.read()
        return b"".join([chunk async for chunk in self.hear_chunks()])

    async def hear_chunks(self) -> AsyncIterator[bytes]:
        while size := int(await self._reader.readline(), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readline()

    async def hear_chunk(self) -> bytes:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await anext(self.hear_chunks())

    async def receive_exactly(self, size: int) -> bytes:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self._reader.readexactly(size)

    async def hear_rest(self) -> bytes:
        """Whatever comes until the listener closes the connection; a reset counts as that."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            try:
                return await self._reader.read()
            except ConnectionError:
                return b""

    def leave(self) -> None:
        self._writer.transport.abort()

    def stop_sending(self) -> None:
        self._writer.write_eof()


@asynccontextmanager
async def connect_raw(port: int, *, receive_bytes: int | None = None) -> AsyncIterator[RawClient]:
    """A connection to the listener; with `receive_bytes` its kernel takes no more than about that unread."""
    sock = socket.socket()
    if receive_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    except OSError:
        sock.close()
        raise
    reader, writer = await asyncio.open_connection(sock=sock, limit=4096 if receive_bytes else 2**16)
    try:
        yield RawClient(reader, writer)
    finally:
        writer.transport.abort()
        # An aborted transport tells its protocol on the loop's next round; not waiting would leak the socket.
        await asyncio.sleep(0)
        await asyncio.sleep(0)


def request(path: str = "/", body: bytes = b"", *lines: str, method: str = "POST") -> bytes:
    """A well-formed request, with `lines` added to its head."""
    head = [f"{method} {path} HTTP/1.1", "Host: localhost", *lines]
    if body or method == "POST":
        head.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*head, "", ""]).encode() + body


@dataclass
class Echo:
    """An application that answers with path and body, and remembers what reached it."""

    paths: list[str] = field(default_factory=list)
    headers: list[list[tuple[bytes, bytes]]] = field(default_factory=list)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        self.paths.append(scope["path"])
        body = await read_body(receive)
        self.headers.append(list(scope["headers"]))
        await reply(send, scope["path"].encode() + b" " + body)


@dataclass
class Held:
    """An application whose every request waits in the open until the test lets it go on."""

    arrived: asyncio.Queue[AsgiRequest] = field(default_factory=asyncio.Queue)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        asgi_request = AsgiRequest(scope, receive, send, scope["extensions"][PEER])
        self.arrived.put_nowait(asgi_request)
        await asgi_request.released.wait()

    async def next_request(self) -> AsgiRequest:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.arrived.get()


@dataclass
class AsgiRequest:
    scope: Message
    receive: Receive
    send: Send
    peer: DrainAwarePeer
    released: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, body: bytes) -> None:
        await reply(self.send, body)
        self.released.set()

    async def start_stream(self) -> None:
        await self.send({"type": "http.response.start", "status": 200, "headers": []})
        await self.send({"type": "http.response.body", "body": b"", "more_body": True})

    async def end_stream(self) -> None:
        await self.send({"type": "http.response.body", "body": b""})
        self.released.set()


@dataclass
class Bell:
    """A callback that counts, and lets the test wait for its first ring."""

    rings: int = 0
    rung: asyncio.Event = field(default_factory=asyncio.Event)

    def __call__(self) -> None:
        self.rings += 1
        self.rung.set()

    async def wait(self) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self.rung.wait()


async def read_body(receive: Receive) -> bytes:
    pieces: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b"".join(pieces)
        pieces.append(message["body"])
        if not message["more_body"]:
            return b"".join(pieces)


async def reply(send: Send, body: bytes, status: int = 200) -> None:
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
