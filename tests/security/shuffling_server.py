"""A server that answers calls late and out of order, each with its own word.

`stdio` speaks on standard streams; `listen` on a WebSocket, whose port it prints; `dial URL` goes to a hub and is its
server from there. Most answers come at once but behind those of later calls; some take up to half a second.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterable, Callable
from typing import Any

import msgspec
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve
from websockets.typing import Subprotocol

DELAYS = (0.0,) * 60 + (0.001, 0.002, 0.004, 0.008, 0.016, 0.03) * 6 + (0.1, 0.5)
TOOL = {"name": "echo", "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}}}


class Shuffling:
    """One conversation. What is to be answered at once is kept to the end of the turn, and then answered backwards."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._chance = random.Random(5)
        self._due: list[bytes] = []
        self._loop = asyncio.get_running_loop()

    def take(self, text: bytes | str) -> None:
        """Answer a message, some time."""
        message = msgspec.json.decode(text)
        method = message.get("method")
        if method is None or "id" not in message:
            return
        if method != "tools/call":
            self._write(_encoded(message["id"], _result_for(method, message.get("params") or {})))
            return
        said = message["params"]["arguments"]["text"]
        answer = _encoded(message["id"], {"content": [{"type": "text", "text": said}]})
        delay = self._chance.choice(DELAYS)
        if delay:
            self._loop.call_later(delay, self._write, answer)
        else:
            if not self._due:
                self._loop.call_soon(self._flush)
            self._due.append(answer)

    def _flush(self) -> None:
        due, self._due = self._due, []
        for answer in reversed(due):
            self._write(answer)


def _encoded(id: Any, result: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "id": id, "result": result})


def _result_for(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        me = {"name": "shuffling", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": me}
    return {"tools": [TOOL]} if method == "tools/list" else {}


async def on_socket(socket: AsyncIterable[str | bytes], send: Callable[[str], Any]) -> None:
    """Talk on a WebSocket until it ends; a queue keeps what is written in order."""
    waiting: asyncio.Queue[bytes] = asyncio.Queue()
    talk = Shuffling(waiting.put_nowait)

    async def write() -> None:
        while True:
            await send((await waiting.get()).decode())

    writing = asyncio.ensure_future(write())
    try:
        async for message in socket:
            talk.take(message)
    finally:
        writing.cancel()


async def listen() -> None:
    """Be a server by WebSocket."""
    async with serve(lambda s: on_socket(s, s.send), "127.0.0.1", 0, subprotocols=[Subprotocol("mcp")]) as server:
        print("PORT", next(iter(server.sockets)).getsockname()[1], flush=True)
        await server.serve_forever()


async def dial(url: str) -> None:
    """Be a server that comes by itself."""
    async with connect(url, proxy=None) as socket:
        print("PORT 0", flush=True)
        await on_socket(socket, socket.send)


async def speak() -> None:
    """Be a server on standard streams."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    talk = Shuffling(lambda answer: (sys.stdout.buffer.write(answer + b"\n"), sys.stdout.buffer.flush(), None)[2])
    while line := await reader.readline():
        talk.take(line)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["listen"]:
            asyncio.run(listen())
        case ["dial", url]:
            asyncio.run(dial(url))
        case _:
            asyncio.run(speak())
