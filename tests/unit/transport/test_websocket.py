"""A dialled WebSocket, with `websockets`' own server and with one that the test scripts byte by byte."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import ssl
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import trustme
from websockets.asyncio.server import ServerConnection, serve
from websockets.frames import Frame, Opcode
from websockets.typing import Subprotocol

from isthmus.transport import websocket as module
from isthmus.transport.egress import SOCKET_SCHEMES, DialFailed, Egress, EgressRefused, HttpOrigin, parse_url
from isthmus.transport.websocket import DialledSocket, HandshakeFailed, WebSocketAddress
from tests.unit.transport.doubles import Peer, Server

LIMIT_BYTES = 100_000


class SocketRecorder:
    """Hears what a WebSocket says."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[bytes] = asyncio.Queue()
        self.drained = asyncio.Event()
        self.reasons: list[str] = []
        self.channel: DialledSocket | None = None
        self.left: dict[int, bool] = {}
        self.offsets: list[int] = []
        self._over = asyncio.Event()

    def read(self, text: bytes | memoryview) -> None:
        self.messages.put_nowait(bytes(text))

    def flush(self) -> None:
        self.drained.set()

    def connection_ended(self, reason: str) -> None:
        self.reasons.append(reason)
        if self.channel is not None:
            self.left = {offset: self.channel.has_left(offset) for offset in self.offsets}
        self._over.set()

    async def message(self) -> bytes:
        async with asyncio.timeout(10):
            return await self.messages.get()

    async def reason(self) -> str:
        async with asyncio.timeout(10):
            await self._over.wait()
        (reason,) = self.reasons
        return reason


async def connect(
    origin: HttpOrigin, ear: SocketRecorder, *, tls: ssl.SSLContext | None = None, **more: Any
) -> DialledSocket:
    endpoint = WebSocketAddress(origin, "/mcp?a=1", ("mcp",), LIMIT_BYTES, **more)
    ear.channel = await DialledSocket.connect(Egress(tls), endpoint, ear, is_configured=True, within=5.0)
    return ear.channel


def socket_origin(server: Server) -> HttpOrigin:
    return HttpOrigin("wss" if server.origin.is_secure else "ws", server.origin.host, server.origin.port)


def accepting(request: bytes, *lines: str) -> bytes:
    """The answer that opens a WebSocket."""
    key = request.partition(b"Sec-WebSocket-Key: ")[2].partition(b"\r\n")[0]
    digest = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()).decode()
    more = "".join(f"{line}\r\n" for line in lines)
    return (
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {digest}\r\n{more}\r\n"
    ).encode()


def server_frame(data: bytes, opcode: Opcode = Opcode.TEXT, *, fin: bool = True) -> bytes:
    """A frame of a server."""
    return Frame(opcode, data, fin=fin).serialize(mask=False)


async def opened(server: Server, ear: SocketRecorder, first: bytes = b"", **more: Any) -> tuple[DialledSocket, Peer]:
    """A WebSocket to a server in the test's hands."""
    dialling = asyncio.ensure_future(connect(socket_origin(server), ear, **more))
    peer = await server.accept()
    await peer.say(accepting(await peer.request()) + first)
    async with asyncio.timeout(10):
        return await dialling, peer


async def read_frame(peer: Peer) -> tuple[int, bytes]:
    """The next frame that the hub wrote, unmasked."""
    async with asyncio.timeout(10):
        first, length = await peer.reader.readexactly(2)
        assert length & 0x80, "a client masks"
        size = length & 0x7F
        if size == 126:
            (size,) = struct.unpack("!H", await peer.reader.readexactly(2))
        elif size == 127:
            (size,) = struct.unpack("!Q", await peer.reader.readexactly(8))
        mask = await peer.reader.readexactly(4)
        data = await peer.reader.readexactly(size)
    return first & 0x0F, bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))


class Echo:
    """A server of the `websockets` library that sends back what it gets."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.codes: list[int | None] = []

    async def talk(self, socket: ServerConnection) -> None:
        self.requests.append(socket.request)
        async for text in socket:
            await socket.send(text)
        self.codes.append(socket.close_code)


@pytest_asyncio.fixture
async def echo() -> AsyncIterator[tuple[Echo, HttpOrigin]]:
    received = Echo()
    async with serve(received.talk, "127.0.0.1", 0, subprotocols=[Subprotocol("mcp")], max_size=None) as server:
        yield received, HttpOrigin("ws", "127.0.0.1", next(iter(server.sockets)).getsockname()[1])


# -- opening ---------------------------------------------------------------------------------------------------------


async def test_messages_go_and_come_and_the_goodbye_is_said(echo: tuple[Echo, HttpOrigin]) -> None:
    received, origin = echo
    ear = SocketRecorder()
    channel = await connect(origin, ear, headers={"Authorization": "Bearer secret"})
    assert channel.chosen == "mcp"
    for text in (b"{}", "é".encode() * 10_000):
        channel.write(channel.frame(text))
        assert await ear.message() == text
    await channel.aclose()
    (request,) = received.requests
    assert request.path == "/mcp?a=1"
    assert request.headers["Authorization"] == "Bearer secret"
    assert request.headers["Sec-WebSocket-Protocol"] == "mcp"
    assert "Sec-WebSocket-Extensions" not in request.headers
    async with asyncio.timeout(10):
        while not received.codes:  # noqa: ASYNC110 - the server ends by itself
            await asyncio.sleep(0.001)
    assert received.codes == [1000]
    assert ear.reasons == []


async def test_tls_is_the_guards(server: Server) -> None:
    authority = trustme.CA()
    at_server, at_client = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("localhost").configure_cert(at_server)
    authority.configure_trust(at_client)
    async with Server(at_server) as secure:
        ear = SocketRecorder()
        channel, peer = await opened(secure, ear, tls=at_client)
        end = channel.write(channel.frame(b"{}"))
        assert await read_frame(peer) == (Opcode.TEXT, b"{}")
        assert channel.has_left(end)
        channel.kill()
        with pytest.raises(DialFailed, match="certificate verify failed"):
            await connect(socket_origin(secure), ear)


async def test_an_address_that_may_not_be_dialled_is_not(server: Server) -> None:
    endpoint = WebSocketAddress(socket_origin(server), "/", ("mcp",), LIMIT_BYTES)
    with pytest.raises(EgressRefused, match="loopback"):
        await DialledSocket.connect(Egress(), endpoint, SocketRecorder(), is_configured=False, within=5.0)
    assert server.accepted == 0


@pytest.mark.parametrize(
    ("answered", "status", "words"),
    [
        (b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n", 401, "HTTP 401 instead of opening"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", 200, "HTTP 200 instead of opening"),
        (b"nonsense\r\n\r\n", None, "valid HTTP response"),
        (b"HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", None, "Sec-WebSocket-Accept"),
    ],
)
async def test_a_failed_handshake_reports_the_answer(
    server: Server, answered: bytes, status: int | None, words: str
) -> None:
    dialling = asyncio.ensure_future(connect(socket_origin(server), ear := SocketRecorder()))
    peer = await server.accept()
    await peer.request()
    await peer.say(answered)
    with pytest.raises(HandshakeFailed, match=words) as failed:
        await dialling
    assert failed.value.status == status
    assert ear.reasons == []
    await peer.rest()


async def test_another_subprotocol_is_refused_and_none_is_not(server: Server) -> None:
    await opened(server, SocketRecorder())
    dialling = asyncio.ensure_future(connect(socket_origin(server), SocketRecorder()))
    peer = await server.accept()
    await peer.say(accepting(await peer.request(), "Sec-WebSocket-Protocol: other"))
    with pytest.raises(HandshakeFailed, match="unsupported subprotocol"):
        await dialling


async def test_the_server_may_choose_one_of_several_subprotocols(echo: tuple[Echo, HttpOrigin], server: Server) -> None:
    received, origin = echo
    endpoint = WebSocketAddress(origin, "/", ("other", "mcp"), LIMIT_BYTES)
    channel = await DialledSocket.connect(Egress(), endpoint, SocketRecorder(), is_configured=True, within=5.0)
    assert (channel.chosen, received.requests[0].headers["Sec-WebSocket-Protocol"]) == ("mcp", "other, mcp")
    await channel.aclose()
    channel, _ = await opened(server, SocketRecorder())
    assert channel.chosen is None
    channel.kill()


async def test_a_handshake_that_takes_too_long_is_given_up(server: Server) -> None:
    endpoint = WebSocketAddress(socket_origin(server), "/", ("mcp",), LIMIT_BYTES)
    with pytest.raises(HandshakeFailed, match=r"within 0\.3 s"):
        await DialledSocket.connect(Egress(), endpoint, SocketRecorder(), is_configured=True, within=0.3)
    await (await server.accept()).rest()


async def test_a_handshake_that_is_cancelled_leaves_nothing(server: Server) -> None:
    dialling = asyncio.ensure_future(connect(socket_origin(server), SocketRecorder()))
    peer = await server.accept()
    await peer.request()
    dialling.cancel()
    await asyncio.wait({dialling})
    await peer.rest()
    assert dialling.cancelled()


async def test_a_header_that_breaks_out_of_its_line_is_not_sent(server: Server) -> None:
    with pytest.raises(ValueError, match="'x-key' contains"):
        await connect(socket_origin(server), SocketRecorder(), headers={"x-key": "a\r\nb: c"})
    assert server.accepted == 0


async def test_the_handshakes_own_headers_are_not_the_operators(server: Server) -> None:
    ear, headers = SocketRecorder(), {"Sec-WebSocket-Key": "mine", "X-A": "b"}
    dialling = asyncio.ensure_future(connect(socket_origin(server), ear, headers=headers))
    request = await (await server.accept()).request()
    dialling.cancel()
    assert b"mine" not in request
    assert b"X-A: b\r\n" in request


async def test_secrets_are_not_logged_at_any_level(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    await opened(server, SocketRecorder(), headers={"Authorization": "Bearer hunter22"})
    assert "hunter22" not in caplog.text


def test_websocket_addresses_are_distinguished_from_others() -> None:
    assert parse_url("wss://h/x", SOCKET_SCHEMES) == (HttpOrigin("wss", "h", 443), "/x")
    assert str(HttpOrigin("ws", "h", 80)) == "ws://h"
    with pytest.raises(ValueError, match="must start with ws:// or wss://"):
        parse_url("http://h/x", SOCKET_SCHEMES)
    with pytest.raises(ValueError, match="must start with http:// or https://"):
        parse_url("ws://h/x")


# -- hearing ---------------------------------------------------------------------------------------------------------


async def test_bytes_behind_the_handshake_are_received(server: Server) -> None:
    ear = SocketRecorder()
    await opened(server, ear, server_frame(b"at once"))
    assert await ear.message() == b"at once"


async def test_a_message_in_pieces_is_received_whole_with_pings_in_between(server: Server) -> None:
    ear = SocketRecorder()
    _, peer = await opened(server, ear)
    pieces = [
        server_frame(b"one ", fin=False),
        server_frame(b"hello", Opcode.PING),
        server_frame(b"", Opcode.CONT, fin=False),
        server_frame(b"two", Opcode.CONT),
        server_frame(b"\xff\xfe", Opcode.BINARY),
    ]
    for at in range(len(stream := b"".join(pieces))):
        await peer.say(stream[at : at + 1])
        await asyncio.sleep(0)
    assert await ear.message() == b"one two"
    assert await ear.message() == b"\xff\xfe"
    assert await read_frame(peer) == (Opcode.PONG, b"hello")


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (server_frame(b"x" * (LIMIT_BYTES + 1)), f"over {LIMIT_BYTES} bytes"),
        (server_frame(b"x" * LIMIT_BYTES, fin=False) + server_frame(b"x", Opcode.CONT), f"over {LIMIT_BYTES} bytes"),
        (b"\x83\x00", "opcode"),
        (b"\xf1\x00", "reserved bits"),
        (server_frame(b"x", Opcode.CONT), "continuation"),
    ],
)
async def test_a_protocol_violation_ends_the_connection(server: Server, bad: bytes, words: str) -> None:
    ear = SocketRecorder()
    _, peer = await opened(server, ear)
    await peer.say(server_frame(b"good") + bad + server_frame(b"not heard"))
    assert words in await ear.reason()
    assert await ear.message() == b"good"
    assert ear.messages.empty()
    assert (await read_frame(peer))[0] == Opcode.CLOSE
    await peer.rest()


# -- ending ----------------------------------------------------------------------------------------------------------


async def test_a_close_frame_is_reported_with_its_reason(server: Server) -> None:
    ear = SocketRecorder()
    _, peer = await opened(server, ear)
    await peer.say(server_frame(struct.pack("!H", 1013) + b"come back", Opcode.CLOSE))
    assert await ear.reason() == "it closed the WebSocket with code 1013: 'come back'"
    assert (await read_frame(peer))[0] == Opcode.CLOSE
    await peer.rest()


@pytest.mark.parametrize("is_reset", [False, True])
async def test_a_connection_that_ends_is_reported_once(server: Server, *, is_reset: bool) -> None:
    ear = SocketRecorder()
    channel, peer = await opened(server, ear)
    end = channel.write(channel.frame(b"{}"))
    await read_frame(peer)
    ear.offsets = [end]
    if is_reset:
        peer.reset()
    else:
        peer.close()
    assert "connection" in await ear.reason()
    assert ear.left == {end: True}


async def test_bytes_in_the_buffer_when_it_is_cut_are_not_sent(server: Server) -> None:
    ear = SocketRecorder()
    channel, peer = await opened(server, ear)
    small = channel.write(channel.frame(b"{}"))
    await read_frame(peer)
    large = channel.write(channel.frame(b"x" * 20_000_000))
    ear.offsets = [small, large]
    assert channel.buffered_bytes() > 0
    await peer.say(server_frame(b"", Opcode.CLOSE))
    await ear.reason()
    assert ear.left == {small: True, large: False}
    assert channel.write(b"more") == large + 4
    assert not channel.has_left(large + 4)
    assert len(await peer.rest()) < 20_000_000


async def test_a_server_that_reads_again_is_reported(server: Server) -> None:
    ear = SocketRecorder()
    channel, peer = await opened(server, ear)
    channel.write(channel.frame(b"x" * 20_000_000))
    assert channel.buffered_bytes() > 64 * 1024
    reading = asyncio.ensure_future(read_frame(peer))
    async with asyncio.timeout(20):
        await ear.drained.wait()
    assert channel.buffered_bytes() <= 64 * 1024
    reading.cancel()


async def test_a_silent_server_is_given_up_and_one_that_answers_pings_is_not(server: Server) -> None:
    ear = SocketRecorder()
    channel, peer = await opened(server, ear, ping_seconds=600)
    channel._tick()  # what the clock would do; waiting for a real one would race with it
    opcode, data = await read_frame(peer)
    assert opcode == Opcode.PING
    await peer.say(server_frame(data, Opcode.PONG) + server_frame(b"and so on"))
    assert await ear.message() == b"and so on"
    channel._tick()
    assert (await read_frame(peer))[0] == Opcode.PING
    assert ear.reasons == []
    channel._tick()
    assert await ear.reason() == "it did not answer a ping within 600 s"
    await peer.rest()


async def test_pings_go_by_the_clock(server: Server) -> None:
    ear = SocketRecorder()
    _, peer = await opened(server, ear, ping_seconds=0.05)
    assert (await read_frame(peer))[0] == Opcode.PING
    assert "did not answer a ping" in await ear.reason()


async def test_a_server_that_pings_and_does_not_read_is_given_up(server: Server) -> None:
    ear = SocketRecorder()
    channel, peer = await opened(server, ear)
    channel.write(channel.frame(b"x" * 20_000_000))
    await peer.say(server_frame(b"p" * 125, Opcode.PING) * 2000)
    assert "sends pings and does not read the pongs" in await ear.reason()


async def test_closing_waits_for_a_server_that_never_answers_no_longer_than_a_moment(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLOSE_SECONDS", 0.05)
    ear = SocketRecorder()
    channel, peer = await opened(server, ear)
    async with asyncio.timeout(10):
        await channel.aclose()
    assert (await read_frame(peer))[0] == Opcode.CLOSE
    await peer.rest()
    assert ear.reasons == []
