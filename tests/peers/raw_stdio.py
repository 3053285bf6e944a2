"""The raw server over stdin and stdout. Writes are plain and blocking, so that a byte count is exact."""

from __future__ import annotations

import asyncio
import json
import os
import select
import sys

from tests.peers.raw_calls import Caller
from tests.peers.raw_duplex import Duplex
from tests.peers.raw_protocol import Json, RawProtocol

LINE_BYTES = 64 << 20
GARBAGE = (
    b'this is not JSON\n\xff\xfe\x00\n{"half": \n\n[]\nnull\n{"jsonrpc":"2.0"}\n{"jsonrpc":"2.0","id":{},"result":{}}\n'
)


class StdioExchange:
    """One request from stdin; everything it writes goes to stdout."""

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()
        self.headers: dict[str, str] = {}

    def stream(self) -> None:
        """A pipe is a stream already."""

    def frame(self, message: Json) -> bytes:
        """One line."""
        return json.dumps(message).encode() + b"\n"

    async def write(self, data: bytes) -> None:
        """Write all of it, waiting for the reader if need be."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(1, rest) :]
            except BlockingIOError:  # one socket may serve as both stdin and stdout, and asyncio made it so
                select.select([], [1], [])
        await asyncio.sleep(0)

    def unended(self, size: int) -> bytes:
        """A line that goes on and on."""
        return b'{"jsonrpc":"2.0","id":1,"result":"' + b"x" * size

    def garbage(self) -> bytes:
        """Lines that are not messages."""
        return GARBAGE

    def drop(self) -> None:
        """Close stdout."""
        os.close(1)

    async def close(self, *, is_answered: bool) -> None:
        """Nothing ends with a request on a pipe; a cancelled call gets no answer at all."""


TURNS_LEFT = 10
"""Of the loop, once stdin has ended: a call that was cancelled by the last words is still noted as such."""


class StdioServer:
    """Reads lines and starts what they ask for."""

    def __init__(self, protocol: RawProtocol) -> None:
        self._protocol = protocol
        self.caller = Caller(protocol)

    async def serve(self) -> None:
        """Serve until stdin ends; then stop at once, unless told to outlive it."""
        reader = asyncio.StreamReader(limit=LINE_BYTES)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        async with asyncio.TaskGroup() as group:
            duplex = Duplex(self.caller, StdioExchange, group)
            while line := await reader.readline():
                await duplex.take(json.loads(line))
            if "ignore_sigterm" in self._protocol.modes:
                await asyncio.Event().wait()
            for _ in range(TURNS_LEFT):
                await asyncio.sleep(0)
            os._exit(0)  # calls that still run must not hold a server that has lost its caller
