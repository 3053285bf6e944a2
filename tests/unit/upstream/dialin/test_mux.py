"""The hub's end of a socket that several servers share: channels do not meet, and a bad client harms only itself."""

from __future__ import annotations

import pytest

from isthmus.model.relay import Claim
from isthmus.upstream.dialin.mux import MuxChannel, MuxHost
from isthmus.wire.relay import mux
from isthmus.wire.relay.mux import ChannelClosed, ChannelOpened, Frame, OpenChannel

CLAIM = Claim("robot")


class Socket:
    """A socket that keeps what is written."""

    client = "192.0.2.7"

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.written = 0
        self.left = 0
        self.closing: tuple[int, str] | None = None

    def frame(self, message: bytes) -> bytes:
        return message + b"\n"

    def kill(self) -> None: ...

    async def aclose(self, code: int = 1000, reason: str = "") -> None: ...

    def write(self, data: bytes) -> int:
        self.frames += data.splitlines()
        self.written += len(data)
        return self.written

    def has_left(self, offset: int) -> bool:
        return offset <= self.left

    def buffered_bytes(self) -> int:
        return self.written - self.left

    async def is_alive(self, within: float) -> bool:
        return self.closing is None

    def close(self, code: int, reason: str) -> None:
        self.closing = (code, reason)

    def said(self) -> list[Frame]:
        """What was written so far, read as the client reads it."""
        frames, self.frames = self.frames, []
        return [mux.read(frame) for frame in frames]


class Server:
    """Hears one channel."""

    def __init__(self, channel: MuxChannel, server_id: str | None) -> None:
        self.channel = channel
        self.server_id = server_id
        self.received: list[bytes] = []
        self.flushes = 0
        self.reason: str | None = None

    def read(self, text: bytes | memoryview) -> None:
        self.received.append(bytes(text))

    def flush(self) -> None:
        self.flushes += 1

    def connection_ended(self, reason: str) -> None:
        assert self.reason is None
        self.reason = reason


class Book:
    """Takes every channel, but for those that it is to refuse."""

    def __init__(self) -> None:
        self.servers: list[Server] = []
        self.refuses = False

    def accept_channel(self, channel: MuxChannel, claim: Claim, server_id: str | None, *, is_muxed: bool) -> Server:
        assert claim is CLAIM
        assert is_muxed
        if self.refuses:
            channel.close(1008, "no room")
        self.servers.append(Server(channel, server_id))
        return self.servers[-1]


class Scene:
    def __init__(self) -> None:
        self.socket = Socket()
        self.book = Book()
        self.endings = 0
        self.host = MuxHost(self.socket, CLAIM, self.book, lambda _host: self._ended())

    def _ended(self) -> None:
        self.endings += 1

    def open(self, number: int, server_id: str | None = None) -> Server:
        self.host.read(mux.write_open(OpenChannel(number, server_id)))
        return self.book.servers[-1]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_each_channel_receives_and_sends_its_own_messages(scene: Scene) -> None:
    one, two = scene.open(1, "one"), scene.open(7, "two")
    assert (one.server_id, two.server_id) == ("one", "two")
    assert scene.socket.said() == [ChannelOpened(1), ChannelOpened(7)]

    scene.host.read(mux.write_message(7, b'{"id": 1}'))
    scene.host.read(mux.write_message(1, b'{"id": 2}'))
    one.channel.write(one.channel.frame(b'{"id": 1, "of": "one"}'))
    two.channel.named("robot_two", 5.0)

    assert (one.received, two.received) == ([b'{"id": 2}'], [b'{"id": 1}'])
    assert scene.socket.said() == [
        mux.ChannelMessage(1, b'{"id": 1, "of": "one"}'),
        ChannelOpened(7, "robot_two", grace=5.0),
    ]
    assert one.channel.client == "192.0.2.7"


def test_sent_bytes_are_counted_by_the_socket(scene: Scene) -> None:
    one, two = scene.open(1), scene.open(2)
    scene.socket.left = scene.socket.written
    first = one.channel.write(one.channel.frame(b"a"))
    second = two.channel.write(two.channel.frame(b"b"))
    scene.socket.left = first
    assert one.channel.has_left(first)
    assert not two.channel.has_left(second)
    assert one.channel.buffered_bytes() == two.channel.buffered_bytes() == second - first


def test_the_client_learns_how_long_a_message_may_be() -> None:
    socket = Socket()
    MuxHost(socket, CLAIM, Book(), limit_bytes=1000).read(mux.write_open(OpenChannel(1)))
    (opened,) = socket.said()
    assert isinstance(opened, ChannelOpened)
    assert opened.limit is not None
    assert len(mux.write_message(mux.NUMBER_MAX, b"x" * opened.limit)) == 1000


def test_closing_a_channel_closes_no_other(scene: Scene) -> None:
    one, two = scene.open(1), scene.open(2)
    scene.host.read(mux.write_closed(ChannelClosed(1, 1001, "its program ended")))
    assert one.reason == "it closed its channel with code 1001: 'its program ended'"
    assert two.reason is None
    assert scene.host.channels == 1

    offset = one.channel.write(one.channel.frame(b"too late"))
    assert not one.channel.has_left(offset)
    scene.host.read(mux.write_message(1, b"too late"))
    scene.host.read(mux.write_closed(ChannelClosed(1)))
    assert (one.received, two.received) == ([], [])
    assert scene.socket.closing is None


def test_a_channel_that_the_hub_gives_up_is_closed_at_the_client_and_receives_nothing_more(scene: Scene) -> None:
    one = scene.open(1)
    scene.socket.said()
    one.channel.close(1011, "it wrote garbage")
    one.channel.close(1011, "twice")
    assert scene.socket.said() == [ChannelClosed(1, 1011, "it wrote garbage")]
    scene.host.read(mux.write_message(1, b"x"))
    assert one.received == []
    assert one.reason is None
    assert scene.open(1).channel.is_open, "its number is free again"


async def test_a_channel_is_alive_as_long_as_its_client_is(scene: Scene) -> None:
    one, two = scene.open(1), scene.open(2)
    assert await one.channel.is_alive(1.0)
    await two.channel.aclose()
    assert not await two.channel.is_alive(1.0)
    assert await one.channel.is_alive(1.0)


def test_a_refused_channel_is_closed_and_receives_nothing(scene: Scene) -> None:
    scene.book.refuses = True
    server = scene.open(1)
    assert scene.socket.said() == [ChannelOpened(1), ChannelClosed(1, 1008, "no room")]
    scene.host.read(mux.write_message(1, b"x"))
    assert server.received == []


def test_the_sockets_end_is_every_channels(scene: Scene) -> None:
    one, two = scene.open(1), scene.open(2)
    scene.host.connection_ended("the connection to it broke")
    scene.host.connection_ended("again")
    assert one.reason == two.reason == "the connection to it broke"
    assert scene.endings == 1
    assert not one.channel.is_open
    one.channel.close(1000, "")
    two.channel.named("x", 0.0)
    assert scene.socket.said() == [ChannelOpened(1), ChannelOpened(2)]


@pytest.mark.parametrize("frame", [b"hello", b'0 {"open": "x"}', b'0 {"open": 1}'])
def test_a_client_that_does_not_keep_to_the_frames_is_closed_with_a_reason(scene: Scene, frame: bytes) -> None:
    one = scene.open(1)
    scene.host.read(frame)
    assert scene.socket.closing is not None
    code, reason = scene.socket.closing
    assert code == 1008
    assert one.reason == f"its connection was closed: {reason}"
    assert scene.endings == 1


def test_a_channel_over_the_limit_is_refused(scene: Scene) -> None:
    for number in range(1, mux.CHANNELS_MAX + 1):
        scene.open(number)
    scene.socket.said()
    scene.host.read(mux.write_open(OpenChannel(1000)))
    assert scene.socket.said() == [
        ChannelClosed(1000, 1013, f"a connection may have {mux.CHANNELS_MAX} channels at most")
    ]
    assert scene.socket.closing is None
    assert len(scene.book.servers) == mux.CHANNELS_MAX


def test_when_the_client_reads_again_another_channel_writes_first_each_time(scene: Scene) -> None:
    order: list[int] = []
    servers = [scene.open(number) for number in (1, 2, 3)]
    for server in servers:
        server.flush = lambda number=server.channel.number: order.append(number)  # type: ignore[method-assign, misc]
    for _ in range(3):
        scene.host.flush()
    assert order == [1, 2, 3, 2, 3, 1, 3, 1, 2]


def test_words_of_a_later_client_are_passed_over(scene: Scene) -> None:
    one = scene.open(1)
    scene.host.read(b'0 {"hurry": 1}')
    scene.host.read(mux.write_opened(ChannelOpened(1)))
    scene.host.read(mux.write_message(99, b"nobody's"))
    assert scene.socket.closing is None
    assert one.reason is None
