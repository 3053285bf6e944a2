"""A TCP proxy that breaks on demand, inside the test process and its event loop.

It stands between the hub and a server over HTTP: `async with ChaosProxy(server_port) as proxy`. Bytes pass
unchanged until a fault is armed. `up` is towards the server, `down` towards the caller.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

Direction = Literal["up", "down"]
Ending = Literal["reset", "close"]

CHUNK_BYTES = 64 * 1024
CLOSE_SECONDS = 20.0
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER with no time to linger: closing sends RST and not FIN."""


@dataclass(slots=True)
class Cut:
    """A fault that is armed: so many bytes may still pass in one direction."""

    after: int
    direction: Direction
    ending: Ending
    every: bool
    """Whether each connection is cut after so many bytes of its own, or one is, after so many in all."""


class Link:
    """One proxied connection."""

    def __init__(self, proxy: ChaosProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._reader = reader
        self._writer = writer
        self._server: asyncio.StreamWriter | None = None
        self.ended = asyncio.Event()
        self.passed: dict[Direction, int] = {"up": 0, "down": 0}
        """Bytes since a per-connection cut was armed, or since the beginning."""

    async def run(self) -> None:
        """Pump both ways until one side ends; then end the other in the same way."""
        try:
            await self._proxy.wait_until_open()
            if self._writer.transport.is_closing():
                return
            server_reader, self._server = await self._proxy.connect()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(self._reader, self._server, "up"))
                group.create_task(self._pump(server_reader, self._writer, "down"))
        except* (OSError, asyncio.IncompleteReadError):
            self.end("reset")  # whatever one side suffered, the other is to see as well
        finally:
            self.end("close")
            self.ended.set()

    def end(self, ending: Ending) -> None:
        """End both sides; a link that has ended stays so."""
        for writer in (self._writer, self._server):
            if writer is not None and not writer.transport.is_closing():
                _end(writer, ending)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Direction) -> None:
        while data := await reader.read(CHUNK_BYTES):
            await self._proxy.delay()
            await self._proxy.wait_until_open()
            allowed, ending = self._proxy.allow(self, way, len(data))
            if allowed:
                writer.write(data[:allowed])
                await writer.drain()
            if ending is not None:
                self.end(ending)
                return
        if not writer.transport.is_closing():
            writer.write_eof()


class ChaosProxy:
    """Listens on `port` and passes everything to `target`, a local port or Unix socket, as far as its faults let it."""

    def __init__(self, target: int | Path) -> None:
        self.target = target
        self.port = 0
        self.connections = 0
        """How many were accepted so far."""
        self.passed: dict[Direction, int] = {"up": 0, "down": 0}
        """Bytes since the last fault was armed or cleared; a clean call tells how far to sweep."""
        self.cuts = 0
        """How many connections `reset_after` and `close_after` have ended."""
        self._cut: Cut | None = None
        self._open = asyncio.Event()
        self._open.set()
        self._latency = 0.0
        self._links: set[Link] = set()
        self._server: asyncio.Server | None = None
        self._held: socket.socket | None = None
        """The port's socket while connections are refused: bound, so that no process takes it, but not listening."""

    async def __aenter__(self) -> Self:
        await self._listen(_bound_socket(0))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._cut, self._latency = None, 0.0
        self._open.set()
        self._stop_listening()
        if self._held is not None:
            self._held.close()
        self.reset_all()
        async with asyncio.timeout(CLOSE_SECONDS):
            for link in list(self._links):
                await link.ended.wait()

    @property
    def url(self) -> str:
        """The MCP endpoint of the server behind."""
        return f"http://127.0.0.1:{self.port}/mcp"

    def reset_after(self, count: int, direction: Direction = "down", *, every: bool = False) -> None:
        """Let `count` more bytes pass in that direction, then reset the connection they are on.

        This happens once, so that a retry gets through; with `every`, each connection suffers it.
        """
        self._arm(Cut(count, direction, "reset", every))

    def close_after(self, count: int, direction: Direction = "down", *, every: bool = False) -> None:
        """As `reset_after`, with a proper end of the stream instead of a reset."""
        self._arm(Cut(count, direction, "close", every))

    def blackhole(self) -> None:
        """Keep and accept connections and pass nothing; what arrives is held and passes after `clear`."""
        self._open.clear()

    def latency(self, seconds: float) -> None:
        """Delay every piece of data by so much."""
        self._latency = seconds

    def refuse(self, *, is_gentle: bool = False) -> None:
        """Reset all connections, unless `is_gentle`, and have new ones refused by the kernel, until `clear`."""
        if self._held is None:
            self._stop_listening()
            self._held = _bound_socket(self.port)
        if not is_gentle:
            self.reset_all()

    def reset_all(self) -> None:
        """Reset the connections there are; new ones are welcome."""
        for link in self._links:
            link.end("reset")

    async def clear(self) -> None:
        """Forget every fault; connections that still stand go on."""
        self._cut, self._latency = None, 0.0
        self.passed = {"up": 0, "down": 0}
        self._open.set()
        if self._held is not None:
            held, self._held = self._held, None
            await self._listen(held)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the server behind."""
        if isinstance(self.target, Path):
            return await asyncio.open_unix_connection(self.target)
        return await asyncio.open_connection("127.0.0.1", self.target)

    async def delay(self) -> None:
        """Wait out the latency."""
        if self._latency:
            await asyncio.sleep(self._latency)

    async def wait_until_open(self) -> None:
        """Wait while there is a black hole."""
        await self._open.wait()

    def allow(self, link: Link, way: Direction, size: int) -> tuple[int, Ending | None]:
        """How many of the next `size` bytes pass, and how the connection ends after them, if it does."""
        cut = self._cut
        allowed, ending = size, None
        if cut is not None and cut.direction == way:
            room = cut.after - (link.passed if cut.every else self.passed)[way]
            if room <= size:
                allowed, ending = max(room, 0), cut.ending
                self.cuts += 1
                self._cut = cut if cut.every else None
        link.passed[way] += allowed
        self.passed[way] += allowed
        return allowed, ending

    def _arm(self, cut: Cut) -> None:
        self._cut = cut
        self.passed = {"up": 0, "down": 0}
        for link in self._links:
            link.passed = {"up": 0, "down": 0}

    async def _listen(self, listener: socket.socket) -> None:
        self._server = await asyncio.start_server(self._accept, sock=listener)
        self.port = listener.getsockname()[1]

    def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        link = Link(self, reader, writer)
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)


def _bound_socket(port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    return bound


def _end(writer: asyncio.StreamWriter, ending: Ending) -> None:
    if ending == "close":
        writer.close()
        return
    # What was written is in the peer's kernel by now, and a reset does not take it back on loopback.
    raw: socket.socket = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    writer.transport.abort()
