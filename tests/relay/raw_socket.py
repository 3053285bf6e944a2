"""A WebSocket by hand, for frames that no library would send, and a peer that does not read."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

from tests.relay.peers import PATIENCE

TEXT, BINARY, CLOSE, PING, PONG = 0x1, 0x2, 0x8, 0x9, 0xA
SMALL_BYTES = 4096


def frame(opcode: int, payload: bytes, *, is_final: bool = True, is_masked: bool = True, reserved: int = 0) -> bytes:
    """One frame, right or wrong."""
    head = bytes([(0x80 if is_final else 0) | reserved << 4 | opcode])
    mask_bit = 0x80 if is_masked else 0
    if len(payload) < 126:
        head += bytes([mask_bit | len(payload)])
    elif len(payload) < 1 << 16:
        head += bytes([mask_bit | 126]) + struct.pack("!H", len(payload))
    else:
        head += bytes([mask_bit | 127]) + struct.pack("!Q", len(payload))
    # A mask of zeros is a mask, and leaves what it masks as it is.
    return head + (b"\0\0\0\0" if is_masked else b"") + payload


class RawSocket:
    """An open WebSocket that sends bytes as they are given, and reads only when asked to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        """Send bytes; to a peer that has gone, nothing."""
        with suppress(ConnectionError):
            self._writer.write(data)
            await self._writer.drain()

    async def read_frame(self) -> tuple[int, bytes] | None:
        """The next frame's opcode and payload; None at the end."""
        try:
            async with asyncio.timeout(PATIENCE):
                first, second = await self._reader.readexactly(2)
                size = second & 0x7F
                if size == 126:
                    (size,) = struct.unpack("!H", await self._reader.readexactly(2))
                elif size == 127:
                    (size,) = struct.unpack("!Q", await self._reader.readexactly(8))
                return first & 0x0F, await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def closing(self) -> tuple[int, str] | None:
        """Read on to the closing frame: its code and reason; None if the connection ended without one."""
        while (got := await self.read_frame()) is not None:
            opcode, payload = got
            if opcode == CLOSE:
                code = struct.unpack("!H", payload[:2])[0] if payload else 1005
                return code, payload[2:].decode()
        return None


@asynccontextmanager
async def raw_socket(url: str, *, is_small: bool = False) -> AsyncIterator[RawSocket]:
    """Shake hands; with `is_small` the system keeps little of what is not read."""
    parts = urlsplit(url)
    assert parts.hostname
    assert parts.port
    plain = socket.socket()
    plain.setblocking(False)
    if is_small:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BYTES)
    await asyncio.get_running_loop().sock_connect(plain, (parts.hostname, parts.port))
    reader, writer = await asyncio.open_connection(sock=plain, limit=SMALL_BYTES if is_small else 1 << 20)
    try:
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        lines = [f"GET {target} HTTP/1.1", f"Host: {parts.netloc}", "Upgrade: websocket", "Connection: Upgrade"]
        lines += [f"Sec-WebSocket-Key: {'A' * 21}Q==", "Sec-WebSocket-Version: 13", "", ""]
        writer.write("\r\n".join(lines).encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 "), head
        yield RawSocket(reader, writer)
    finally:
        writer.transport.abort()
