"""Upgrades to WebSocket: the listener's answers, byte for byte, and its state afterwards."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from websockets.frames import Frame, Opcode

from isthmus.frontends.http.auth import Denied
from isthmus.frontends.http.listener import HttpListener
from isthmus.frontends.http.request_cycle import Message
from isthmus.frontends.http.websocket_upgrade import WebSocketOffer
from isthmus.transport.accepted_socket import AcceptedSocket
from isthmus.transport.websocket import MessageReceiver
from tests.unit.frontends.http.raw_client import PATIENCE_SECONDS, Echo, Held, connect_raw, inside, opened, request

FIELDS = {
    "Connection": "keep-alive, Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Extensions": "permessage-deflate; client_max_window_bits",
}
ACCEPT = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
"""RFC 6455's own answer to its own key."""


def handshake(path: str = "/ws", *, method: str = "GET", **fields: str | None) -> bytes:
    """A request for a WebSocket, in which `fields` (with `_` for `-`) are set, or left out if None."""
    lines = {name: value for name, value in FIELDS.items() if name.lower() not in _named(fields)}
    lines |= {name: value for name, value in _named(fields).items() if value is not None}
    return request(path, b"", *(f"{name}: {value}" for name, value in lines.items()), method=method)


def _named(fields: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "-").lower(): value for name, value in fields.items()}


def text(data: bytes) -> bytes:
    return Frame(Opcode.TEXT, data).serialize(mask=True)


@dataclass
class Parlour:
    """Takes WebSockets and sends back what it hears."""

    scopes: list[Message] = field(default_factory=list)
    sockets: list[AcceptedSocket] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    subprotocol: str | None = None

    def decide(self, scope: Message) -> WebSocketOffer | Denied:
        self.scopes.append(scope)
        return WebSocketOffer(self.take, 100_000, self.subprotocol)

    def take(self, socket: AcceptedSocket) -> MessageReceiver:
        self.sockets.append(socket)
        return _Echo(socket, self.reasons)


@dataclass
class _Echo:
    socket: AcceptedSocket
    reasons: list[str]

    def read(self, text: bytes | memoryview) -> None:
        self.socket.send(bytes(text))

    def flush(self) -> None:
        pass

    def connection_ended(self, reason: str) -> None:
        self.reasons.append(reason)


@asynccontextmanager
async def parlour(
    decide: Callable[[Message], WebSocketOffer | Denied] | None = None, **limits: Any
) -> AsyncIterator[tuple[Parlour, HttpListener, int]]:
    made = Parlour()
    async with opened(Echo(), **limits) as (http_listener, port):
        http_listener.offer_sockets(decide or made.decide)
        try:
            yield made, http_listener, port
        finally:
            for socket in made.sockets:
                socket.kill()


async def test_a_handshake_opens_a_websocket_without_compression() -> None:
    async with parlour() as (made, _, port), connect_raw(port) as raw_client:
        raw_client.say(handshake("/ws/?a=%20b"))
        status, headers = await raw_client.receive_head()
        said = {name.lower(): value for name, value in headers}
        assert (status, said[b"sec-websocket-accept"]) == (101, ACCEPT)
        assert not {b"sec-websocket-extensions", b"sec-websocket-protocol", b"server"} & set(said)
        raw_client.say(text(b"hello"))
        assert await raw_client.receive_exactly(7) == b"\x81\x05hello"
        (scope,) = made.scopes
        assert (scope["path"], scope["query_string"]) == ("/ws/", b"a=%20b")
        assert (b"upgrade", b"websocket") in scope["headers"]
        assert (made.sockets[0].client, scope["client"][0]) == ("127.0.0.1", "127.0.0.1")


async def test_bytes_behind_the_head_are_not_lost_however_they_are_cut() -> None:
    whole = handshake() + text(b"early")
    for cut in (len(whole), len(whole) - 1, len(whole) - 6, len(whole) - 11, len(whole) - 13, 40):
        async with parlour() as (_, _, port), connect_raw(port) as raw_client:
            raw_client.say(whole[:cut])
            await asyncio.sleep(0)
            raw_client.say(whole[cut:])
            assert (await raw_client.receive_head())[0] == 101
            assert await raw_client.receive_exactly(7) == b"\x81\x05early"


@pytest.mark.parametrize(
    ("offered", "chosen", "answered"),
    [
        ("a, b", "b", b"b"),
        ("a, b", None, None),
        ("a", "b", None),
        (None, "b", None),
    ],
)
async def test_a_subprotocol_is_chosen_of_those_that_are_offered(
    offered: str | None, chosen: str | None, answered: bytes | None
) -> None:
    async with parlour() as (made, _, port), connect_raw(port) as raw_client:
        made.subprotocol = chosen
        raw_client.say(handshake(Sec_WebSocket_Protocol=offered))
        status, headers = await raw_client.receive_head()
        said = {name.lower(): value for name, value in headers}
        assert (status, said.get(b"sec-websocket-protocol")) == (101, answered)
        assert made.sockets[0].chosen == (answered.decode() if answered else None)


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"Sec_WebSocket_Version": "8"}, 426),
        ({"Sec_WebSocket_Version": None}, 400),
        ({"Sec_WebSocket_Key": "short"}, 400),
        ({"Sec_WebSocket_Key": None}, 400),
        ({"Sec_WebSocket_Protocol": "secret token"}, 400),
        ({"method": "POST"}, 405),
        ({"Content_Length": "5"}, 400),
        ({"Transfer_Encoding": "chunked"}, 400),
    ],
)
async def test_a_bad_handshake_is_answered_as_any_bad_request(fields: dict[str, Any], status: int) -> None:
    async with parlour() as (made, _, port), connect_raw(port) as raw_client:
        raw_client.say(handshake(**fields))
        answer = await raw_client.receive()
        assert (answer.status, answer.header(b"connection")) == (status, b"close")
        problem = msgspec.json.decode(answer.body)
        assert (problem["status"], problem["executed"]) == (status, "no")
        assert "secret" not in problem["detail"]
        assert answer.header(b"sec-websocket-version") == (b"13" if status == 426 else None)
        assert await raw_client.hear_rest() == b""
        assert made.sockets == []


async def test_an_empty_body_does_not_prevent_an_upgrade() -> None:
    async with parlour() as (_, _, port), connect_raw(port) as raw_client:
        raw_client.say(handshake(Content_Length="0") + text(b"early"))
        assert (await raw_client.receive_head())[0] == 101
        assert await raw_client.receive_exactly(7) == b"\x81\x05early"


async def test_a_websocket_needs_http_1_1() -> None:
    async with parlour() as (made, _, port), connect_raw(port) as raw_client:
        raw_client.say(handshake().replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert (await raw_client.receive()).status == 505
        assert made.sockets == []


async def test_a_rejected_client_gets_status_words_and_headers() -> None:
    denied = Denied(401, "Show a token.", ((b"www-authenticate", b"Bearer"),))
    async with parlour(lambda _: denied) as (_, _, port), connect_raw(port) as raw_client:
        raw_client.say(handshake())
        answer = await raw_client.receive()
        assert (answer.status, answer.header(b"www-authenticate")) == (401, b"Bearer")
        assert msgspec.json.decode(answer.body)["detail"] == "Show a token."
        assert await raw_client.hear_rest() == b""


async def test_where_no_websocket_is_offered_it_is_not_found() -> None:
    async with opened(Echo()) as (_, port), connect_raw(port) as raw_client:
        raw_client.say(handshake())
        assert (await raw_client.receive()).status == 404
        assert await raw_client.hear_rest() == b""


async def test_a_frontend_that_fails_is_one_clients_trouble() -> None:
    def fail(scope: Message) -> WebSocketOffer:
        raise RuntimeError("secret")

    async with parlour(fail) as (_, _, port), connect_raw(port) as raw_client:
        raw_client.say(handshake())
        answer = await raw_client.receive()
        assert (answer.status, b"secret" in answer.body) == (500, False)
        async with connect_raw(port) as other:
            other.say(request("/next"))
            assert (await other.receive()).status == 200


async def test_a_websocket_comes_after_the_answers_before_it() -> None:
    async with parlour() as (_, _, port), connect_raw(port) as raw_client:
        raw_client.say(request("/1", b"x"))
        assert (await raw_client.receive()).body == b"/1 x"
        raw_client.say(handshake() + text(b"hello"))
        assert (await raw_client.receive_head())[0] == 101
        assert await raw_client.receive_exactly(7) == b"\x81\x05hello"


async def test_open_websockets_are_not_counted_nor_cut_with_the_listeners_own() -> None:
    async with parlour(max_connections=1) as (made, http_listener, port):
        async with AsyncExitStack() as stack:
            raw_clients = []
            for _ in range(3):
                raw_clients.append(await stack.enter_async_context(connect_raw(port)))
                raw_clients[-1].say(handshake())
                assert (await raw_clients[-1].receive_head())[0] == 101
            assert inside(http_listener) == []
            assert await http_listener.drain(within=PATIENCE_SECONDS)
            await http_listener.close()
            for raw_client in raw_clients:
                raw_client.say(text(b"hello"))
                assert await raw_client.receive_exactly(7) == b"\x81\x05hello"
        assert len(made.sockets) == 3


async def test_nothing_of_the_http_connection_is_kept_for_a_websocket() -> None:
    async with parlour() as (_, http_listener, port), connect_raw(port) as raw_client:
        raw_client.say(request("/1"))
        await raw_client.receive()
        gone = weakref.ref(inside(http_listener)[0])
        gc.disable()
        try:
            raw_client.say(handshake())
            assert (await raw_client.receive_head())[0] == 101
            assert gone() is None
        finally:
            gc.enable()


async def test_while_the_listener_drains_no_websocket_is_opened() -> None:
    app = Held()
    async with opened(app) as (http_listener, port), connect_raw(port) as raw_client, connect_raw(port) as busy:
        made = Parlour()
        http_listener.offer_sockets(made.decide)
        busy.say(request("/long"))
        asgi_request = await app.next_request()
        raw_client.say(handshake()[:-2])
        draining = asyncio.ensure_future(http_listener.drain(within=PATIENCE_SECONDS))
        await asyncio.sleep(0)
        raw_client.say(b"\r\n")
        assert (await raw_client.receive()).status == 503
        raw_client.leave()
        assert made.scopes == []
        await asgi_request.answer(b"done")
        assert await draining


async def test_a_head_that_is_too_long_or_too_slow_is_refused_as_any() -> None:
    async with parlour(max_head_bytes=1000) as (made, _, port), connect_raw(port) as raw_client:
        raw_client.say(handshake(X_Long="x" * 2000))
        assert (await raw_client.receive()).status == 431
    async with parlour(header_seconds=0.1) as (made, _, port), connect_raw(port) as raw_client:
        raw_client.say(handshake()[:-2])
        assert (await raw_client.receive()).status == 408
        assert made.scopes == []
