"""The raw server over stdin and stdout. Writes are plain and blocking, so that a byte count is exact."""

from __future__ import annotations

import asyncio
import json
import os
import select
import sys

from tests.peers.raw_calls import Caller, acknowledged
from tests.peers.raw_desk import Desk, Json, method_of, params_of, version_of

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
        """Lines that are no messages."""
        return GARBAGE

    async def close(self, *, is_answered: bool) -> None:
        """Nothing ends with a request on a pipe; a cancelled call gets no answer at all."""


class StdioServer:
    """Reads lines and starts what they ask for."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._caller = Caller(desk)
        self._running: dict[str, StdioExchange] = {}
        self._group: asyncio.TaskGroup

    async def serve(self) -> None:
        """Serve until stdin ends; then stop at once, unless told to outlive it."""
        reader = asyncio.StreamReader(limit=LINE_BYTES)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        async with asyncio.TaskGroup() as self._group:
            while line := await reader.readline():
                await self._take(json.loads(line))
            if "ignore_sigterm" in self._desk.modes:
                await asyncio.Event().wait()
            os._exit(0)  # calls that still run must not hold a server that has lost its caller

    async def _take(self, message: Json) -> None:
        if method_of(message) == "notifications/cancelled":
            if exchange := self._running.get(_key(params_of(message).get("requestId"))):
                exchange.cancelled.set()
        elif method_of(message) == "notifications/initialized":
            self._caller.listeners[StdioExchange()] = None
        elif "id" in message:
            self._group.create_task(self._serve_one(message))
            await asyncio.sleep(0)

    async def _serve_one(self, request: Json) -> None:
        exchange = self._running[_key(request["id"])] = StdioExchange()
        try:
            await self._respond(request, exchange)
        finally:
            self._running.pop(_key(request["id"]), None)

    async def _respond(self, request: Json, exchange: StdioExchange) -> None:
        envelope = {"jsonrpc": "2.0", "id": request["id"]}
        if refused := self._desk.refuse(request, None):
            await exchange.write(exchange.frame({**envelope, "error": refused}))
            return
        match method_of(request):
            case "tools/call":
                await self._caller.perform(request, exchange)
                return
            case "initialize" | "server/discover" if "hang_init" in self._desk.modes:
                await asyncio.Event().wait()
            case "subscriptions/listen" if version_of(request) is not None:
                await self._listen(request, exchange)
                return
        if "garbage" in self._desk.modes:
            await exchange.write(exchange.garbage())
        await exchange.write(exchange.frame({**envelope, **self._desk.answer(request)}))

    async def _listen(self, request: Json, exchange: StdioExchange) -> None:
        await exchange.write(exchange.frame(acknowledged(request)))
        self._caller.listeners[exchange] = request["id"]
        await exchange.cancelled.wait()
        del self._caller.listeners[exchange]


def _key(request_id: object) -> str:
    # 1 and "1" are different ids, and 1 and 1.0 the same one to Python but not to a caller.
    return json.dumps(request_id)
