"""The other side of the wire: a listener whose connections a test holds, and a sink that records."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from isthmus.transport.egress import HttpOrigin
from isthmus.transport.http_client import ConnectionLost

PATIENCE_SECONDS = 30.0
"""How long what must come may take; only a machine that stands still is slower."""

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Peer:
    """One accepted connection, spoken to in bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def request(self) -> bytes:
        """Read one request: its head, and as much body as the head announces."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            return head + await self.reader.readexactly(int(length or 0))

    async def receive(self) -> bytes:
        """Wait for the beginning of what is sent."""
        return await self.reader.read(1024)

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def rest(self) -> bytes:
        """Read until the other side has closed, however it did that."""
        received = bytearray()
        async with asyncio.timeout(PATIENCE_SECONDS):
            try:
                while chunk := await self.reader.read(65536):
                    received += chunk
            except ConnectionError:
                pass
        return bytes(received)

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        """Close so that the other side's next system call fails."""
        sock = self.writer.get_extra_info("socket")
        with socket.fromfd(sock.fileno(), sock.family, sock.type) as twin:
            twin.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.writer.transport.abort()


class Server:
    """A listener on loopback; `accept` hands out its connections in their order."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._accepted: asyncio.Queue[Peer] = asyncio.Queue()
        self._peers: list[Peer] = []
        self.origin = HttpOrigin("http", "127.0.0.1", 1)

    @property
    def accepted(self) -> int:
        return len(self._peers)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._tls)
        port = self._server.sockets[0].getsockname()[1]
        self.origin = HttpOrigin("https", "localhost", port) if self._tls else HttpOrigin("http", "127.0.0.1", port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for peer in self._peers:
            peer.writer.transport.abort()
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        self._peers.append(peer)
        self._accepted.put_nowait(peer)

    def waiting(self) -> int:
        """How many connections nobody has taken yet."""
        return self._accepted.qsize()

    async def accept(self) -> Peer:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self._accepted.get()


class Recorder:
    """A sink that remembers what it heard, and in which order."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.body = b""
        self.lost: ConnectionLost | None = None
        self._is_done = asyncio.Event()

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        self.events.append("head")
        self.status, self.headers = status, headers

    def on_body(self, chunk: bytes) -> None:
        self.events.append("body")
        self.body += chunk

    def on_end(self) -> None:
        self.events.append("end")
        self._is_done.set()

    def on_lost(self, lost: ConnectionLost) -> None:
        self.events.append("lost")
        self.lost = lost
        self._is_done.set()

    async def over(self) -> Self:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._is_done.wait()
        return self

    async def loss(self) -> ConnectionLost:
        await self.over()
        assert self.lost is not None, f"heard {self.events} with status {self.status}"
        return self.lost
