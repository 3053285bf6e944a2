"""A WebSocket opened by a client, with a peer that the test scripts byte by byte."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import tracemalloc
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from websockets.frames import Frame, Opcode
from websockets.protocol import CLIENT, SERVER, Side
from websockets.protocol import Protocol as Framing

from isthmus.transport import accepted_socket as module
from isthmus.transport.accepted_socket import (
    LAG_FACTOR,
    LAGGING,
    LATE_FACTOR,
    NO_ROOM,
    SLOW,
    AcceptedSocket,
    fitting,
    text_frame,
)
from isthmus.transport.flow_control import AT_ONCE, AgentBandwidth, WriteBatch
from isthmus.transport.websocket import CLOSE_SECONDS, MessageReceiver

PATIENCE_SECONDS = 30.0
LIMIT_BYTES = 100_000
PROTOCOL_ERROR, TOO_BIG, POLICY = 1002, 1009, 1008


@dataclass
class SocketReceiver:
    """Hears what a WebSocket says, and answers it if the test wants that."""

    messages: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)
    reasons: list[str] = field(default_factory=list)
    drained: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    on_read: Callable[[bytes], None] | None = None

    def read(self, text: bytes | memoryview) -> None:
        self.messages.put_nowait(bytes(text))
        if self.on_read is not None:
            self.on_read(bytes(text))

    def flush(self) -> None:
        self.drained.set()

    def connection_ended(self, reason: str) -> None:
        self.reasons.append(reason)
        self.over.set()

    async def message(self) -> bytes:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.messages.get()

    async def reason(self) -> str:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self.over.wait()
        (reason,) = self.reasons
        return reason


@dataclass
class Peer:
    """The client's end of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def say(self, data: bytes | str, opcode: Opcode = Opcode.TEXT, *, fin: bool = True, mask: bool = True) -> None:
        payload = data.encode() if isinstance(data, str) else data
        self.writer.write(Frame(opcode, payload, fin=fin).serialize(mask=mask))

    def say_goodbye(self, code: int, reason: str = "") -> None:
        self.say(struct.pack("!H", code) + reason.encode(), Opcode.CLOSE)

    async def frame(self) -> tuple[Opcode, bytes]:
        """The next frame that it is sent."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            first, size = await self.reader.readexactly(2)
            assert not size & 0x80, "a server does not mask"
            if size == 126:
                (size,) = struct.unpack("!H", await self.reader.readexactly(2))
            elif size == 127:
                (size,) = struct.unpack("!Q", await self.reader.readexactly(8))
            return Opcode(first & 0x0F), await self.reader.readexactly(size)

    async def goodbye(self) -> tuple[int, str]:
        """The close frame, whatever came before it."""
        opcode, data = await self.frame()
        while opcode is not Opcode.CLOSE:
            opcode, data = await self.frame()
        return struct.unpack("!H", data[:2])[0], data[2:].decode()

    async def rest(self) -> bytes:
        """What comes until the connection ends, however it ends."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""


@dataclass
class Pair:
    socket: AcceptedSocket
    ear: SocketReceiver
    peer: Peer
    closed: asyncio.Event

    async def gone(self) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self.closed.wait()


@asynccontextmanager
async def accepted(
    first: bytes = b"",
    *,
    take: Callable[[AcceptedSocket], MessageReceiver] | None = None,
    receive_bytes: int | None = None,
    **more: Any,
) -> AsyncIterator[Pair]:
    """A WebSocket that is open on both ends; with `receive_bytes` the peer's kernel takes about so much unread."""
    ear, closed = SocketReceiver(), asyncio.Event()
    sockets: asyncio.Queue[AcceptedSocket] = asyncio.Queue()

    class Acceptor(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            if receive_bytes is not None:
                sock = transport.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, receive_bytes)
            made = AcceptedSocket(client="192.0.2.1", write_batch=WriteBatch(), **{"limit_bytes": LIMIT_BYTES, **more})
            made.on_closed = closed.set
            made.begin(transport, take or (lambda _: ear), first)  # type: ignore[arg-type]
            sockets.put_nowait(made)

    listener = await asyncio.get_running_loop().create_server(Acceptor, "127.0.0.1", 0)
    sock = socket.socket()
    if receive_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, listener.sockets[0].getsockname())
    reader, writer = await asyncio.open_connection(sock=sock, limit=4096 if receive_bytes else 2**20)
    try:
        channel = await sockets.get()
        yield Pair(channel, ear, Peer(reader, writer), closed)
        channel.kill()
        writer.transport.abort()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await closed.wait()
    finally:
        listener.close()


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# -- messages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536, 90_000])
async def test_messages_of_every_size_go_both_ways(size: int) -> None:
    text = b"x" * size
    async with accepted() as pair:
        pair.peer.say(text)
        assert await pair.ear.message() == text
        pair.socket.send(text)
        assert await pair.peer.frame() == (Opcode.TEXT, text)
        pair.socket.write(pair.socket.frame(text))
        assert await pair.peer.frame() == (Opcode.TEXT, text)


async def test_bytes_behind_the_handshake_are_read_first() -> None:
    first = Frame(Opcode.TEXT, b"early").serialize(mask=True)
    async with accepted(first + first[:3]) as pair:
        pair.peer.writer.write(first[3:])
        assert [await pair.ear.message(), await pair.ear.message()] == [b"early", b"early"]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
async def test_messages_are_received_however_their_bytes_are_cut(size: int) -> None:
    texts = [b"", b"a", b"b" * 126, "新".encode() * 50]
    frames = b"".join(Frame(Opcode.TEXT, text).serialize(mask=True) for text in texts)
    frames += Frame(Opcode.TEXT, b"c", fin=False).serialize(mask=True)
    frames += Frame(Opcode.PING, b"").serialize(mask=True) + Frame(Opcode.CONT, b"d").serialize(mask=True)
    async with accepted() as pair:
        for start in range(0, len(frames), size):
            pair.socket.data_received(frames[start : start + size])
        assert [await pair.ear.message() for _ in range(5)] == [*texts, b"cd"]
        assert pair.ear.messages.empty()


async def test_messages_of_one_turn_are_one_write_and_keep_their_order() -> None:
    async with accepted() as pair:
        for text in (b"1", b"2"):
            pair.socket.send(text)
        assert pair.socket.buffered_bytes() == 2
        pair.socket.write(pair.socket.frame(b"3"))
        pair.socket.send(b"4")
        assert [(await pair.peer.frame())[1] for _ in range(4)] == [b"1", b"2", b"3", b"4"]


async def test_a_message_in_pieces_is_received_whole_with_pings_in_between() -> None:
    async with accepted() as pair:
        pair.peer.say("a", fin=False)
        pair.peer.say("are you there", Opcode.PING)
        pair.peer.say("b", Opcode.CONT, fin=False)
        pair.peer.say("", Opcode.PONG)
        pair.peer.say("c", Opcode.CONT)
        assert await pair.peer.frame() == (Opcode.PONG, b"are you there")
        assert await pair.ear.message() == b"abc"
        pair.peer.say("d")
        assert await pair.ear.message() == b"d"


async def test_binary_messages_are_received_like_text_unless_another_receiver_takes_them() -> None:
    async with accepted() as pair:
        pair.peer.say("1", Opcode.BINARY)
        assert await pair.ear.message() == b"1"
        taken: list[bytes] = []
        pair.socket.on_binary = taken.append
        pair.peer.say("2", Opcode.BINARY)
        pair.peer.say("3", Opcode.BINARY, fin=False)
        pair.peer.say("4", Opcode.CONT)
        pair.peer.say("5")
        assert await pair.ear.message() == b"5"
        assert taken == [b"2", b"34"]


async def test_text_that_is_not_utf_8_is_passed_on_unchanged() -> None:
    async with accepted() as pair:
        pair.peer.say(b"\xff\xfe")
        assert await pair.ear.message() == b"\xff\xfe"


async def test_a_flood_is_read_a_little_a_turn_and_a_large_message_is_not_delayed() -> None:
    small = Frame(Opcode.TEXT, b"x" * 10).serialize(mask=True)
    async with accepted() as pair:
        pair.socket.data_received(small * 10_000)
        heard_at_once = pair.ear.messages.qsize()
        assert heard_at_once <= module.SMALL_PORTION_BYTES // len(small)
        await turns(1)
        assert heard_at_once < pair.ear.messages.qsize() <= 2 * heard_at_once + 2
        for _ in range(10_000):
            await pair.ear.message()
        pair.socket.data_received(Frame(Opcode.TEXT, b"y" * 90_000).serialize(mask=True))
        await turns(12)
        assert pair.ear.messages.qsize() == 1


# -- what breaks the protocol ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "code", "words"),
    [
        (Frame(Opcode.TEXT, b"x").serialize(mask=False), PROTOCOL_ERROR, "incorrect masking"),
        (b"\xc1" + Frame(Opcode.TEXT, b"x").serialize(mask=True)[1:], PROTOCOL_ERROR, "reserved bits"),
        (b"\x83" + Frame(Opcode.TEXT, b"x").serialize(mask=True)[1:], PROTOCOL_ERROR, "opcode"),
        (Frame(Opcode.CONT, b"x").serialize(mask=True), PROTOCOL_ERROR, "continuation"),
        (b"\x09" + Frame(Opcode.PING, b"x").serialize(mask=True)[1:], PROTOCOL_ERROR, "fragmented control"),
        (Frame(Opcode.CLOSE, b"\x00").serialize(mask=True), PROTOCOL_ERROR, "too short"),
        (Frame(Opcode.TEXT, b"x" * (LIMIT_BYTES + 1)).serialize(mask=True), TOO_BIG, str(LIMIT_BYTES)),
        (b"\x81\xff" + (5 << 60).to_bytes(8, "big"), TOO_BIG, str(LIMIT_BYTES)),
    ],
    # A mask is drawn by lot, and a test must be called the same in every process.
    ids=["mask", "reserved", "opcode", "continuation", "fragment", "short", "long", "endless"],
)
async def test_a_protocol_violation_ends_the_connection_with_a_reason(bad: bytes, code: int, words: str) -> None:
    async with accepted() as pair:
        pair.peer.say("good")
        pair.peer.writer.write(bad + Frame(Opcode.TEXT, b"behind").serialize(mask=True) * 1000)
        said, reason = await pair.peer.goodbye()
        assert (said, words in reason) == (code, True), reason
        assert await pair.peer.rest() == b""
        assert words in await pair.ear.reason()
        pair.peer.writer.close()
        await pair.gone()
        assert [pair.ear.messages.get_nowait(), pair.ear.messages.empty()] == [b"good", True]


async def test_pieces_of_a_message_are_counted_together() -> None:
    async with accepted() as pair:
        pair.peer.say(b"x" * LIMIT_BYTES, fin=False)
        pair.peer.say(b"x", Opcode.CONT)
        code, reason = await pair.peer.goodbye()
        assert code == TOO_BIG
        assert reason
        assert await pair.ear.reason() == f"it sent a message of over {LIMIT_BYTES} bytes"


async def test_a_peer_that_sends_on_after_an_error_is_disconnected_after_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CLOSE_SECONDS", 0.05)
    async with accepted() as pair:
        pair.peer.say("x", mask=False)
        assert (await pair.peer.goodbye())[0] == PROTOCOL_ERROR
        await pair.gone()  # though this peer never closes its side


# -- what is not whole yet -------------------------------------------------------------------------------------------


async def test_a_message_that_is_not_whole_in_time_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WHOLE_SECONDS", 0.1)
    async with accepted(ping_seconds=0.05) as pair:
        for number in range(4):
            pair.peer.say(str(number), fin=False)
            assert await pair.peer.frame() == (Opcode.PING, b"isthmus")
            pair.peer.say("", Opcode.CONT)
            assert await pair.ear.message() == str(number).encode()
        pair.peer.say("never", fin=False)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (said := await pair.peer.frame())[0] is Opcode.PING:
                pair.peer.say("isthmus", Opcode.PONG)
                pair.peer.say("", Opcode.CONT, fin=False)
        assert said == (Opcode.CLOSE, struct.pack("!H", POLICY) + SLOW.encode())
        assert await pair.ear.reason() == SLOW


async def test_the_largest_holder_is_disconnected_when_too_much_is_incomplete() -> None:
    shares = AgentBandwidth(unfinished_bytes_max=100_000)
    long = Frame(Opcode.TEXT, b"x" * 60_000).serialize(mask=True)
    async with (
        accepted(share=shares.share_of("greedy")) as less,
        accepted(share=shares.share_of("greedy")) as most,
        accepted(share=shares.share_of("modest")) as modest,
    ):
        for pair, size in ((modest, 45_000), (less, 20_000), (most, 30_000)):
            pair.socket.data_received(long[:size])
            await turns(20)
        less.socket.data_received(long[20_000:30_000])
        assert await most.peer.goodbye() == (1013, NO_ROOM)
        assert await most.ear.reason() == NO_ROOM
        for pair, size in ((modest, 45_000), (less, 30_000)):
            pair.socket.data_received(long[size:])
            assert await pair.ear.message() == b"x" * 60_000
        assert (shares.share_of("greedy").held_bytes, shares.share_of("modest").held_bytes) == (0, 0)


async def test_an_unfinished_message_frees_its_bytes_when_the_peer_leaves() -> None:
    share = AgentBandwidth().share_of(None)
    async with accepted(share=share) as pair:
        pair.socket.data_received(Frame(Opcode.TEXT, b"x" * 60_000).serialize(mask=True)[:50_000])
        await turns(20)
        assert share.held_bytes > 40_000
        pair.peer.writer.transport.abort()
        await pair.gone()
        await turns()
        assert share.held_bytes == 0


# -- goodbyes --------------------------------------------------------------------------------------------------------


async def test_a_close_frame_is_answered_and_reported_with_its_reason() -> None:
    async with accepted() as pair:
        pair.peer.say_goodbye(1001, "leaving")
        assert await pair.peer.goodbye() == (1001, "leaving")
        assert await pair.peer.rest() == b""
        assert await pair.ear.reason() == "it closed the WebSocket with code 1001: 'leaving'"
        await pair.gone()


@pytest.mark.parametrize("is_reset", [False, True])
async def test_a_connection_that_ends_is_reported_once(*, is_reset: bool) -> None:
    async with accepted() as pair:
        pair.peer.say("last")
        if is_reset:
            sock = pair.peer.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            assert await pair.ear.message() == b"last"
        pair.peer.writer.close()
        assert "connection" in await pair.ear.reason()
        await pair.gone()


async def test_closing_sends_the_code_after_all_messages_and_receives_nothing_more() -> None:
    async with accepted() as pair:
        pair.socket.send(b"first")
        pair.socket.close(1000, "新连接替换")
        pair.socket.send(b"never")
        pair.peer.say("too late")
        assert await pair.peer.frame() == (Opcode.TEXT, b"first")
        assert await pair.peer.goodbye() == (1000, "新连接替换")
        pair.peer.say_goodbye(1000)
        assert await pair.peer.rest() == b""
        await pair.gone()
        assert pair.ear.messages.empty()
        assert pair.ear.reasons == []


async def test_a_peer_that_does_not_answer_a_goodbye_is_cut_after_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLOSE_SECONDS", 0.05)
    monkeypatch.setattr("isthmus.transport.websocket.CLOSE_SECONDS", 0.05)
    async with accepted() as pair:
        pair.socket.close(1012, "restart")
        await pair.gone()
        assert await pair.peer.goodbye() == (1012, "restart")
    async with accepted() as pair:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await pair.socket.aclose(1012)
        await pair.gone()
        assert await pair.peer.goodbye() == (1012, "")


async def test_closing_waits_for_the_peers_goodbye() -> None:
    async with accepted() as pair:
        closing = asyncio.ensure_future(pair.socket.aclose(1012, "restart"))
        assert await pair.peer.goodbye() == (1012, "restart")
        assert not closing.done()
        pair.peer.say_goodbye(1012)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await closing
        assert pair.ear.reasons == []


async def test_a_flood_that_is_closed_is_read_no_faster_than_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLOSE_SECONDS", 0.05)
    async with accepted() as pair:
        pair.ear.on_read = lambda _: pair.socket.close(POLICY, "enough")
        pair.socket.data_received(Frame(Opcode.TEXT, b"x" * 10).serialize(mask=True) * 2000)
        assert not pair.socket._transport.is_reading()
        assert await pair.peer.goodbye() == (POLICY, "enough")
        pair.peer.say_goodbye(POLICY)
        await pair.gone()
        assert pair.ear.messages.qsize() == 1


@pytest.mark.parametrize("is_unfinished", [False, True])
async def test_messages_after_our_close_are_dropped_and_bounded(*, is_unfinished: bool) -> None:
    whole = Frame(Opcode.TEXT, b"x" * 90_000).serialize(mask=True)
    async with accepted() as pair:
        if is_unfinished:
            pair.socket.data_received(whole[:80_000])
            await turns(20)
        pair.socket.close(POLICY, "enough")
        pair.socket.data_received(whole[80_000:] if is_unfinished else whole[:5000])
        await turns()
        assert pair.socket._transport.is_reading()
        for _ in range(LATE_FACTOR * LIMIT_BYTES // len(whole) + 1):
            pair.socket.data_received(whole)
            assert (pair.socket._unfinished_bytes(), pair.socket._read_quota.has_rest()) == (0, False)
        assert not pair.socket._transport.is_reading()
        assert await pair.peer.goodbye() == (POLICY, "enough")
        assert await pair.peer.rest() == b"", "it need not wait for what is not read"
        assert pair.ear.messages.empty()


def test_a_reason_is_cut_at_a_character() -> None:
    assert fitting("short") == "short"
    assert fitting("换" * 100) == "换" * 41
    assert len(fitting("x" * 200)) == 123


async def test_the_receiver_may_close_it_at_once() -> None:
    ear = SocketReceiver()

    def take(socket: AcceptedSocket) -> MessageReceiver:
        socket.close(POLICY, "token解密失败")
        return ear

    async with accepted(Frame(Opcode.TEXT, b"x").serialize(mask=True), take=take) as pair:
        assert await pair.peer.goodbye() == (POLICY, "token解密失败")
        pair.peer.say_goodbye(POLICY)
        await pair.gone()
        assert ear.messages.empty()


async def test_one_that_cannot_be_taken_is_closed() -> None:
    def take(socket: AcceptedSocket) -> MessageReceiver:
        raise RuntimeError("secret")

    async with accepted(take=take) as pair:
        assert await pair.peer.goodbye() == (1011, "the hub failed")


async def test_bytes_that_a_peer_sent_before_it_was_lost_are_read_in_portions_and_then_its_end() -> None:
    small = Frame(Opcode.TEXT, b"x" * 10).serialize(mask=True)
    async with accepted() as pair:
        pair.socket.data_received(small * 2000)
        pair.socket._transport.abort()
        await turns(3)
        assert pair.ear.reasons == []
        assert pair.ear.messages.qsize() < 2000
        assert "connection" in await pair.ear.reason()
        assert pair.ear.messages.qsize() == 2000
        await pair.gone()


async def test_a_socket_that_is_killed_while_its_last_bytes_are_read_is_gone() -> None:
    small = Frame(Opcode.TEXT, b"x" * 10).serialize(mask=True)
    async with accepted() as pair:
        pair.socket.data_received(small * 2000)
        pair.socket._transport.abort()
        pair.socket.kill()
        await pair.gone()
        assert pair.ear.reasons == []


# -- signs of life ---------------------------------------------------------------------------------------------------


async def test_a_silent_peer_is_given_up_and_one_that_answers_pings_is_not() -> None:
    async with accepted(ping_seconds=0.05) as pair:
        for _ in range(3):
            assert await pair.peer.frame() == (Opcode.PING, b"isthmus")
            pair.peer.say("isthmus", Opcode.PONG)
        assert pair.ear.reasons == []
        assert await pair.ear.reason() == "it did not answer a ping within 0.05 s"


async def test_a_peer_that_reads_slowly_is_not_taken_for_silent() -> None:
    async with accepted(receive_bytes=4096, ping_seconds=30.0) as pair:
        pair.socket.send(b"x" * 900_000)
        await turns()
        for _ in range(3):
            await pair.peer.reader.readexactly(20_000)
            pair.socket._tick()  # its ping is behind what has yet to be read
        assert pair.ear.reasons == []


async def test_a_peer_that_pings_and_does_not_read_is_given_up() -> None:
    async with accepted(receive_bytes=4096) as pair:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not pair.ear.over.is_set():
                pair.peer.say(b"x" * 125, Opcode.PING)
                await asyncio.sleep(0)
        assert await pair.ear.reason() == "it sends pings and does not read the pongs"


async def test_a_peer_is_asked_whether_it_is_alive() -> None:
    async with accepted() as pair:
        asking = [asyncio.ensure_future(pair.socket.is_alive(PATIENCE_SECONDS)) for _ in range(2)]
        assert await pair.peer.frame() == (Opcode.PING, b"isthmus")
        pair.peer.say("isthmus", Opcode.PONG)
        assert await asyncio.gather(*asking) == [True, True]
        assert not await pair.socket.is_alive(0.01)
        asked = asyncio.ensure_future(pair.socket.is_alive(PATIENCE_SECONDS))
        await turns(2)
        pair.socket.close(1000)
        assert [await asked, await pair.socket.is_alive(PATIENCE_SECONDS)] == [False, False]


async def test_a_message_that_is_not_dealt_with_costs_its_own_connection() -> None:
    def fail(text: bytes) -> None:
        raise RuntimeError("secret")

    async with accepted() as pair, accepted() as neighbour:
        pair.ear.on_read = fail
        pair.peer.say("x")
        assert await pair.peer.goodbye() == (1011, "the hub failed")
        assert await pair.ear.reason() == "the hub failed"
        neighbour.peer.say("y")
        assert await neighbour.ear.message() == b"y"


# -- lagging ---------------------------------------------------------------------------------------------------------


async def test_a_peer_that_has_too_much_unread_is_cut_with_the_reason() -> None:
    lag_bytes = 16 * 1024
    async with accepted(receive_bytes=4096, lag_bytes=lag_bytes) as pair:
        with capture_logs() as logs:
            while pair.socket.buffered_bytes() <= LAG_FACTOR * lag_bytes:
                pair.socket.send(b"x" * 50_000)
                pair.socket.flush()
            pair.socket.send(b"a short word is none too many")
            pair.socket._ping()
            assert not pair.socket._is_done
            pair.socket.send(b"x" * 5000)
            pair.socket.send(b"and another")
            assert pair.ear.reasons == []  # a writer to many sockets does not find one removed in between
            assert await pair.ear.reason() == LAGGING
        assert [(entry["client"], entry["reason"], entry["log_level"]) for entry in logs] == [
            ("192.0.2.1", LAGGING, "info")
        ]
        assert await pair.peer.goodbye() == (POLICY, LAGGING)


async def test_short_words_without_end_are_too_many() -> None:
    async with accepted(receive_bytes=4096, lag_bytes=16 * 1024) as pair:
        for _ in range(1000):
            pair.socket.write(pair.socket.frame(b"x" * 1000))
        assert pair.socket.buffered_bytes() <= 2 * LAG_FACTOR * 16 * 1024 + 2000
        assert await pair.ear.reason() == LAGGING


def look_after_lag(socket: AcceptedSocket) -> None:
    """Have it look after a peer that has fallen behind, as if its time had passed."""
    assert socket._lag_timer is not None
    socket._lag_timer.cancel()
    socket._look_at_lag()


async def test_a_peer_that_takes_nothing_for_too_long_is_cut_and_one_that_takes_some_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CLOSE_SECONDS", 0.05)
    async with accepted(receive_bytes=4096) as pair:
        pair.socket.send(b"x" * 900_000)
        await turns()
        async with asyncio.timeout(PATIENCE_SECONDS):
            for _ in range(3):
                await pair.peer.reader.readexactly(80_000)
                look_after_lag(pair.socket)
        assert not pair.socket._is_done
        look_after_lag(pair.socket)
        assert await pair.ear.reason() == LAGGING
        await pair.gone()


async def test_the_clock_of_a_peer_that_has_fallen_behind_runs_by_itself() -> None:
    async with accepted(receive_bytes=4096, lag_seconds=0.05) as pair:
        pair.socket.send(b"x" * 900_000)
        assert await pair.ear.reason() == LAGGING


async def test_a_peer_that_reads_again_is_reported_and_not_disconnected() -> None:
    async with accepted(receive_bytes=4096) as pair:
        pair.socket.send(b"x" * 600_000)
        await turns()
        assert not pair.ear.drained.is_set()
        assert len((await pair.peer.frame())[1]) == 600_000
        async with asyncio.timeout(PATIENCE_SECONDS):
            await pair.ear.drained.wait()
        assert pair.socket._lag_timer is None


async def test_killing_a_socket_drops_unread_bytes() -> None:
    async with accepted(receive_bytes=4096) as pair:
        start = pair.socket.write(b"")
        end = pair.socket.write(pair.socket.frame(b"x" * 900_000))
        await turns()
        assert not pair.socket.has_left(end)
        assert pair.socket.has_left(start + 1)
        pair.socket.kill()
        await pair.gone()
        assert not pair.socket.has_left(end)
        assert len(await pair.peer.rest()) < 900_000
        assert pair.ear.reasons == []


async def test_bytes_written_to_a_closed_socket_are_not_sent() -> None:
    async with accepted() as pair:
        pair.socket.close(1000)
        assert not pair.socket.has_left(pair.socket.write(pair.socket.frame(b"x")))


async def test_a_neighbour_is_served_while_a_peer_does_not_read() -> None:
    async with accepted(receive_bytes=4096) as stuck, accepted() as pair:
        pair.ear.on_read = pair.socket.send
        stuck.socket.send(b"x" * 900_000)
        for number in range(100):
            pair.peer.say(str(number))
            assert await pair.peer.frame() == (Opcode.TEXT, str(number).encode())
        assert stuck.socket.buffered_bytes() > 0


# -- cost ------------------------------------------------------------------------------------------------------------


async def test_an_idle_one_costs_little_memory() -> None:
    pong = Frame(Opcode.PONG, b"isthmus").serialize(mask=True)
    sockets: list[AcceptedSocket] = []
    transports = [_Transport() for _ in range(200)]
    ear = SocketReceiver()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for transport in transports:
            made = AcceptedSocket(client="192.0.2.1", write_batch=WriteBatch(), limit_bytes=LIMIT_BYTES)
            made.begin(transport, partial(_give, ear))
            made.data_received(pong)
            sockets.append(made)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        for made in sockets:
            made.kill()
    assert (after - before) / len(sockets) < 6 * 1024


def _give(ear: SocketReceiver, _: AcceptedSocket) -> MessageReceiver:
    return ear


class _Transport(asyncio.Transport):
    """A connection on which nothing happens."""

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        pass

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def resume_reading(self) -> None:
        pass

    def abort(self) -> None:
        pass


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
def test_frames_match_those_of_the_library(size: int) -> None:
    assert text_frame(b"x" * size) == Frame(Opcode.TEXT, b"x" * size).serialize(mask=False)


@pytest.mark.parametrize("how", ["goodbye", "eof", "reset", "closed"])
async def test_closed_sockets_are_freed_without_the_cycle_collector(how: str) -> None:
    gc.collect()
    gc.disable()
    try:
        async with accepted() as pair:
            framing = weakref.ref(pair.socket._framing)
            if how == "goodbye":
                pair.peer.say_goodbye(1000)
            elif how == "eof":
                pair.peer.writer.write_eof()
            elif how == "reset":
                pair.peer.writer.transport.abort()
            else:
                pair.socket.close(1000)
                pair.peer.say_goodbye(1000)
            await pair.gone()
        del pair
        await turns()
        assert framing() is None, "which nothing else has"
    finally:
        gc.enable()


async def test_many_that_end_together_leave_turns_of_the_loop_to_others() -> None:
    share, lost = AgentBandwidth().share_of(None), list[int]()
    sockets = [
        AcceptedSocket(client=None, write_batch=WriteBatch(), limit_bytes=LIMIT_BYTES, share=share) for _ in range(100)
    ]
    for number, made in enumerate(sockets):
        made.begin(_Transport(), partial(_give, SocketReceiver()))
        made.on_closed = partial(lost.append, number)
    for made in sockets:
        made.connection_lost(None)
    passed = 0
    while len(lost) < len(sockets):
        assert len(lost) <= (passed + 1) * AT_ONCE
        await asyncio.sleep(0)
        passed += 1
    assert lost == sorted(lost)


async def test_a_peer_that_goes_while_it_is_seen_off_is_let_go_at_once() -> None:
    async with accepted() as pair:
        pair.socket.close(1000)
        pair.peer.writer.write_eof()
        async with asyncio.timeout(CLOSE_SECONDS / 2):
            await pair.closed.wait()


async def test_a_peer_that_has_gone_is_released_though_the_hub_closes_before_all_is_read() -> None:
    closed = asyncio.Event()
    made = AcceptedSocket(
        client=None, write_batch=WriteBatch(), limit_bytes=LIMIT_BYTES, share=AgentBandwidth().share_of(None)
    )
    made.begin(_Leaving(), partial(_give, SocketReceiver()))
    made.on_closed = closed.set
    made.data_received(Frame(Opcode.TEXT, b"x" * 200).serialize(mask=True) * 200)
    made.connection_lost(None)
    made.close(1000, "another connection took its place")
    async with asyncio.timeout(CLOSE_SECONDS / 2):
        await closed.wait()


class _Leaving(_Transport):
    """A connection whose peer has gone."""

    def is_closing(self) -> bool:
        return True

    def pause_reading(self) -> None:
        pass

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize("extra", [b"", b"\x81\x01x"])
def test_a_long_frame_is_passed_on_without_a_copy(extra: bytes) -> None:
    # The socket replaces an internal part of websockets: a release in which that has no effect fails here.
    framing = module._Framing(CLIENT, max_size=1024 * 1024)
    buffer = framing.reader.buffer
    long = b"x" * module.LARGE_PORTION_BYTES
    framing.receive_data(module.text_frame(long) + extra)
    first, *more = framing.events_received()
    assert isinstance(first, Frame)
    assert (first.data is buffer, first.data) == (not extra, long)
    assert len(more) == bool(extra)
    assert not framing.reader.buffer


def frames(*pieces: Frame) -> Callable[[bool], bytes]:
    """What these frames are on the wire, with or without a mask."""
    return lambda mask: b"".join(piece.serialize(mask=mask) for piece in pieces)


WIRE = (
    *(frames(Frame(Opcode.TEXT, b"x" * size)) for size in (0, 1, 125, 126, 300, 65_535, 65_536)),
    frames(Frame(Opcode.BINARY, b"binary")),
    frames(Frame(Opcode.PING, b"ping")),
    frames(Frame(Opcode.PONG, b"")),
    frames(Frame(Opcode.TEXT, b"in ", fin=False), Frame(Opcode.PING, b""), Frame(Opcode.CONT, b"pieces")),
)
"""Frames that a peer may send."""

BAD_WIRE = (
    frames(Frame(Opcode.TEXT, b"too long".ljust(LIMIT_BYTES + 1))),
    frames(Frame(Opcode.TEXT, b"in "), Frame(Opcode.CONT, b"pieces")),
    frames(Frame(Opcode.TEXT, b"in ", fin=False), Frame(Opcode.TEXT, b"whole")),
    lambda mask: b"\xc1\x80mask" if mask else b"\xc1\x00",  # a reserved bit
    frames(Frame(Opcode.CLOSE, b"\x03\xe8bye"), Frame(Opcode.TEXT, b"late")),
    lambda mask: Frame(Opcode.TEXT, b"masked wrongly").serialize(mask=not mask),
    lambda _: b"\x83\x80unknown",
)
"""Frames that end the connection."""


@pytest.mark.parametrize("side", [SERVER, CLIENT])
@given(st.lists(st.sampled_from(WIRE), max_size=6), st.sampled_from((*BAD_WIRE, None)), st.data())
def test_frames_are_read_as_the_library_reads_them(
    side: Side, good: list[Callable[[bool], bytes]], bad: Callable[[bool], bytes] | None, data: st.DataObject
) -> None:
    wire = b"".join(make(side is SERVER) for make in (*good, *([] if bad is None else [bad])))
    cuts = sorted({0, *data.draw(st.lists(st.integers(0, len(wire)), max_size=8)), len(wire)})
    ours = module._Framing(side, max_size=LIMIT_BYTES)
    theirs = Framing(side, max_size=LIMIT_BYTES)
    for start, end in pairwise(cuts):
        seen = []
        for framing in (ours, theirs):
            framing.receive_data(wire[start:end])
            received = [(event, bytes(event.data)) for event in framing.events_received() if isinstance(event, Frame)]
            events = [(event.opcode, event.fin, data) for event, data in received]
            sent = framing.data_to_send()
            answers = sent if side is SERVER else len(sent)  # a client's frames have random masks
            seen.append((events, framing.state, framing.close_rcvd, str(framing.parser_exc), answers))
        assert seen[0] == seen[1]
