"""WebSockets at the listener with a real client: handshake, messages, and closing from either side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Opcode
from websockets.typing import Subprotocol

from isthmus.frontends.http.auth import Denied
from isthmus.frontends.http.listener import HttpListener, HttpListenerSettings
from isthmus.frontends.http.request_cycle import Message, Receive, Send
from isthmus.frontends.http.websocket_upgrade import WebSocketOffer
from isthmus.transport.accepted_socket import AcceptedSocket
from isthmus.transport.websocket import MessageReceiver

PATIENCE_SECONDS = 30.0
LIMIT_BYTES = 1 << 20


@dataclass
class Guest:
    """Who came, what it said, and how it went. It is sent back what it says."""

    socket: AcceptedSocket
    received: list[bytes] = field(default_factory=list)
    reason: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    def read(self, text: bytes | memoryview) -> None:
        self.received.append(bytes(text))
        self.socket.send(bytes(text))

    def flush(self) -> None:
        pass

    def connection_ended(self, reason: str) -> None:
        self.reason.set_result(reason)

    async def gone(self) -> str:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self.closed.wait()
            return await self.reason


@dataclass
class House:
    """A listener that accepts every WebSocket at `/socket`."""

    port: int
    guests: list[Guest] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)

    def decide(self, scope: Message) -> WebSocketOffer | Denied:
        if scope["path"] != "/socket":
            return Denied(403, "Not here.")
        return WebSocketOffer(self.take, LIMIT_BYTES, **self.more)

    def take(self, socket: AcceptedSocket) -> MessageReceiver:
        guest = Guest(socket)
        socket.on_closed = guest.closed.set
        self.guests.append(guest)
        return guest

    def dial(self, path: str = "/socket", **options: Any) -> connect:
        return connect(f"ws://127.0.0.1:{self.port}{path}", proxy=None, **options)


async def nothing(scope: Message, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def house(**more: Any) -> AsyncIterator[tuple[House, HttpListener]]:
    http_listener = HttpListener(nothing, HttpListenerSettings(port=0))
    made = House(await http_listener.open(), more=more)
    http_listener.offer_sockets(made.decide)
    try:
        yield made, http_listener
    finally:
        await http_listener.close()
        for guest in made.guests:
            guest.socket.kill()
        async with asyncio.timeout(PATIENCE_SECONDS):
            for guest in made.guests:
                await guest.closed.wait()


async def hear(client: ClientConnection) -> str | bytes:
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await client.recv()


async def test_every_request_of_a_client_is_read_and_answered() -> None:
    async with house(subprotocol="two") as (made, _):
        offered = [Subprotocol("one"), Subprotocol("two")]
        async with made.dial(subprotocols=offered, ping_interval=0.05) as client:
            assert (client.subprotocol, client.protocol.extensions) == ("two", [])
            for message in ("hello", "新", "x" * 200_000, ""):
                await client.send(message)
                assert await hear(client) == message
            await client.send(iter(["in ", "three ", "pieces"]))
            assert await hear(client) == "in three pieces"
            async with asyncio.timeout(PATIENCE_SECONDS):
                await (await client.ping())
            await client.close(4001, "bye")
        assert await made.guests[0].gone() == "it closed the WebSocket with code 4001: 'bye'"


async def test_a_client_that_may_not_connect_gets_the_reason() -> None:
    async with house() as (made, _):
        with pytest.raises(InvalidStatus) as refused:
            await made.dial("/elsewhere")
        assert refused.value.response.status_code == 403
        assert b"Not here." in (refused.value.response.body or b"")


@pytest.mark.parametrize("size", [LIMIT_BYTES + 1, 5 << 20])
async def test_a_client_that_says_too_much_learns_the_limit(size: int) -> None:
    async with house() as (made, _), made.dial() as neighbour:
        client = await made.dial()
        with suppress(ConnectionClosed):
            await client.send("x" * size)
        with pytest.raises(ConnectionClosed) as closed:
            await hear(client)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009
        assert str(LIMIT_BYTES) in closed.value.rcvd.reason
        assert await made.guests[1].gone() == f"it sent a message of over {LIMIT_BYTES} bytes"
        await neighbour.send("still here")
        assert await hear(neighbour) == "still here"


async def test_a_client_learns_why_it_is_closed() -> None:
    async with house() as (made, _), made.dial() as client:
        made.guests[0].socket.send(b"last words")
        made.guests[0].socket.close(1012, "restart")
        assert await hear(client) == "last words"
        with pytest.raises(ConnectionClosed) as closed:
            await hear(client)
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1012, "restart")
        async with asyncio.timeout(PATIENCE_SECONDS):
            await made.guests[0].closed.wait()
        assert not made.guests[0].reason.done()


async def test_a_endpoint_that_drains_leaves_open_websockets_to_their_owners() -> None:
    async with house() as (made, http_listener), made.dial() as client:
        assert await http_listener.drain(within=PATIENCE_SECONDS)
        with pytest.raises(OSError, match=r"Connect call failed"):
            await made.dial()
        await client.send("still here")
        assert await hear(client) == "still here"


class Hole:
    """A way to the house that swallows everything, in both directions, once `is_dark`."""

    def __init__(self, port: int) -> None:
        self.is_dark = False
        self._port = port
        self._ends: list[asyncio.WriteTransport] = []

    def swallow(self) -> None:
        self.is_dark = True

    async def lead(self, near: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        far, far_out = await asyncio.open_connection("127.0.0.1", self._port)
        self._ends += [near_out.transport, far_out.transport]
        async with asyncio.TaskGroup() as group:
            group.create_task(self._carry(near, far_out))
            group.create_task(self._carry(far, near_out))

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await source.read(65536):
                if not self.is_dark:
                    sink.write(data)

    def cut(self) -> None:
        for end in self._ends:
            end.abort()


@asynccontextmanager
async def holed(port: int) -> AsyncIterator[tuple[Hole, int]]:
    hole = Hole(port)
    listener = await asyncio.start_server(hole.lead, "127.0.0.1", 0)
    try:
        yield hole, listener.sockets[0].getsockname()[1]
    finally:
        hole.cut()
        listener.close()


async def test_a_client_that_is_no_longer_there_is_found_out() -> None:
    async with house(ping_seconds=0.1) as (made, _), holed(made.port) as (hole, port):
        client = await connect(f"ws://127.0.0.1:{port}/socket", proxy=None, ping_interval=None, close_timeout=0.1)
        await client.send("hello")
        assert await hear(client) == "hello"
        hole.swallow()
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await made.guests[0].reason == "it did not answer a ping within 0.1 s"
        hole.cut()
        await client.close()


async def test_a_client_that_answers_pings_stays() -> None:
    async with house(ping_seconds=0.02) as (made, _), made.dial(ping_interval=None) as client:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await pinged(client, times=5)
        await client.send("still here")
        assert await hear(client) == "still here"


async def pinged(client: ClientConnection, times: int) -> None:
    """Wait for so many pings."""
    come = asyncio.Semaphore(0)
    inner = client.process_event

    def process(event: Any) -> None:
        if getattr(event, "opcode", None) is Opcode.PING:
            come.release()
        inner(event)

    client.process_event = process  # type: ignore[method-assign]
    for _ in range(times):
        await come.acquire()
