"""Messages over a channel of the bus, in whatever pieces they come."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as some

from isthmus.app.jsonrpc_over_bus import PIECE_BYTES, MessageChannel, MessageDecoder, frame
from isthmus.cluster.bus import ChannelClosed, ChannelEnd, ChannelReceiver, NodeId
from isthmus.core.background import BackgroundTasks

LIMIT = 10 * 1024 * 1024


@given(some.lists(some.binary(max_size=40), max_size=8), some.lists(some.integers(1, 9), min_size=1))
def test_messages_are_the_same_however_they_are_cut(messages: list[bytes], sizes: list[int]) -> None:
    data, decoder, found = b"".join(map(frame, messages)), MessageDecoder(LIMIT), []
    at = turn = 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        found += [bytes(each) for each in decoder.feed(data[at : at + size])]
        at, turn = at + size, turn + 1
    assert found == messages


def test_a_message_that_is_too_long_is_refused_by_its_length() -> None:
    with pytest.raises(ValueError, match="a message of 11 bytes, where 10 are allowed"):
        MessageDecoder(10).feed(frame(b"x" * 11)[:4])


class Pipe:
    """A channel of the bus whose reader takes what it is given when the test says so."""

    def __init__(self) -> None:
        self.peer = NodeId("b")
        self.is_open = True
        self.sent: list[bytes] = []
        self.left = 0
        self.closed_with: str | None = None
        self._drained: asyncio.Event = asyncio.Event()

    @property
    def accepted(self) -> int:
        return sum(map(len, self.sent))

    def start(self, receiver: ChannelReceiver) -> None:
        self.receiver = receiver

    def is_confirmed(self) -> bool:
        return True

    def pause(self) -> None:
        raise AssertionError

    resume = pause

    def send(self, message: bytes) -> int:
        if not self.is_open:
            raise ChannelClosed("closed")
        self.sent.append(message)
        return self.accepted

    def has_left(self, offset: int) -> bool:
        return offset <= self.left

    def buffered_bytes(self) -> int:
        return self.accepted - self.left

    async def drain(self) -> None:
        while self.buffered_bytes() > PIECE_BYTES:
            self._drained.clear()
            await self._drained.wait()
        if not self.is_open:
            raise ChannelClosed("closed")

    def read(self) -> None:
        """The other node reads everything."""
        self.left = self.accepted
        self._drained.set()

    def close(self, reason: str = "") -> None:
        self.is_open = False
        self.closed_with = reason

    abort = close


class ReceivedMessages:
    """Records received messages."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.flushed = 0
        self.end: str | None = None

    def read(self, text: bytes | memoryview) -> None:
        self.messages.append(bytes(text))

    def flush(self) -> None:
        self.flushed += 1

    def silent(self, confirmed: int) -> None: ...

    def connection_ended(self, reason: str) -> None:
        self.end = reason


def opened(background: BackgroundTasks) -> tuple[Pipe, MessageChannel, ReceivedMessages]:
    pipe, ear = Pipe(), ReceivedMessages()
    channel = MessageChannel(pipe, background, LIMIT)
    channel.receiver = ear
    channel.start()
    return pipe, channel, ear


async def test_a_long_message_waits_for_its_reader_and_others_behind_it() -> None:
    background = BackgroundTasks()
    pipe, channel, ear = opened(background)
    long, short = channel.frame(b"x" * (4 * PIECE_BYTES)), channel.frame(b"y")
    first = channel.write(long)
    last = channel.write(short)
    assert (first, last) == (len(long), len(long) + len(short))
    while not ear.flushed:
        await asyncio.sleep(0)
        assert pipe.buffered_bytes() <= 2 * PIECE_BYTES
        pipe.read()
    assert b"".join(pipe.sent) == long + short
    assert (channel.buffered_bytes(), channel.has_left(last)) == (0, True)
    await background.aclose()


async def test_bytes_that_wait_when_the_channel_breaks_were_not_sent() -> None:
    background = BackgroundTasks()
    pipe, channel, ear = opened(background)
    sent = channel.write(channel.frame(b"here"))
    pipe.read()
    held = channel.write(channel.frame(b"x" * (4 * PIECE_BYTES)))
    pipe.is_open = False
    channel.closed(ChannelEnd("broken", "the node is gone"))
    assert ear.end == "the node is gone"
    assert (channel.has_left(sent), channel.has_left(held)) == (True, False)
    assert not channel.has_left(channel.write(channel.frame(b"late")))
    assert not await channel.is_alive(1.0)
    await background.aclose()


async def test_closing_delivers_earlier_writes() -> None:
    background = BackgroundTasks()
    pipe, channel, _ = opened(background)
    long = channel.frame(b"x" * (4 * PIECE_BYTES))
    channel.write(long)
    channel.close(1000, "done")
    while pipe.closed_with is None:
        await asyncio.sleep(0)
        pipe.read()
    assert (pipe.closed_with, pipe.sent and b"".join(pipe.sent)) == ("done [0 bytes received]", long)
    await background.aclose()


async def test_messages_after_the_other_end_closed_were_not_received_there() -> None:
    background = BackgroundTasks()
    theirs, there, _ = opened(background)
    _, here, ear = opened(background)
    received = here.write(here.frame(b"in time"))
    late = here.write(here.frame(b"late"))
    there.message(frame(b"in time"))
    there.close(1000, "the server is gone")
    there.message(frame(b"late"))
    here._channel.left = late  # type: ignore[attr-defined]  # all of it has left
    here.closed(ChannelEnd("peer", theirs.closed_with or ""))
    assert ear.end == "the server is gone"
    assert (here.has_left(received), here.has_left(late)) == (True, False)
    await background.aclose()


async def test_a_peer_that_sends_too_much_at_once_loses_its_channel() -> None:
    background = BackgroundTasks()
    pipe, channel, ear = opened(background)
    channel.message(frame(b"well"))
    channel.message(b"\xff" * 8)
    assert ear.messages == [b"well"]
    assert not pipe.is_open
    assert ear.end is not None
    await background.aclose()
