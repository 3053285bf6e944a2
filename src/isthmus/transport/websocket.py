"""WebSockets: what both sides share (`SocketChannel`), and the one that the hub dials (`DialledSocket`).

Whole messages in, frames out, and a count of the bytes that left. The protocol comes from `websockets`, without its
I/O; limits and timers are here. A socket does not know what it carries and never dials again. `upstream.websocket` and
`app.dial` dial; `transport.accepted_socket` has the sockets that clients open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, Protocol, cast

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus, PayloadTooBig
from websockets.frames import CloseCode, Frame, Opcode
from websockets.frames import apply_mask as unmask  # type: ignore[attr-defined]  # in C, if the wheel has that
from websockets.http11 import Response
from websockets.protocol import OPEN, SERVER, Event
from websockets.protocol import Protocol as Framing
from websockets.streams import StreamReader
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI

from isthmus.core.event_loop import LONG_BYTES
from isthmus.transport.egress import Egress, HttpOrigin
from isthmus.transport.flow_control import ReadQuota, cut
from isthmus.transport.http_client import header_lines

PING_SECONDS: Final = 20.0
"""The interval of pings, and the time for a pong."""

CLOSE_SECONDS: Final = 2.0
"""How long the peer may take to answer a close frame."""

DRAINED_BYTES: Final = 32 * 1024
"""A peer with more than this unread has fallen behind; `flush` reports when it has caught up. It must be smaller than
every sender's own threshold, or a sender could wait forever."""

PONGS_BYTES: Final = 64 * 1024
"""Pongs that may wait for a peer to read them."""

REASON_LENGTH: Final = 200

PING: Final = b"isthmus"

SILENT: Final = logging.getLogger(f"{__name__}.protocol")
"""The library would log headers, which may be secret."""
SILENT.setLevel(logging.CRITICAL + 1)


class MessageReceiver(Protocol):
    """The owner of a WebSocket. `ended` is the last call."""

    def read(self, text: bytes | memoryview) -> None:
        """A whole message, a long one perhaps as a view."""

    def flush(self) -> None:
        """The peer had fallen behind and reads again."""

    def connection_ended(self, reason: str) -> None:
        """The connection has ended; the reason in words."""


LONG_FRAME_BYTES: Final = 64 * 1024
"""A frame of this size or more may be passed on without a copy: copying megabytes takes milliseconds, mostly for fresh
memory. Its length has eight bytes in the header."""

WHOLE_TEXT: Final = 0x81
"""The first byte of a text message in a single frame."""


class FrameReader(StreamReader):
    """Cuts short whole messages out of the received bytes, and leaves all other frames to the library.

    The library reads a frame with nested generators, which takes three times the steps.
    """

    def __init__(self, framing: Framing) -> None:
        super().__init__()
        self._framing = framing
        self._limit_bytes = framing.max_message_size or 0
        self._mask_bit, self._head_bytes = (0x80, 6) if framing.side is SERVER else (0, 2)

    def at_eof(self) -> Generator[None, None, bool]:
        """The library asks this before each frame."""
        while True:
            if self.buffer:
                self._cut_messages()
            if self.buffer or self.eof:
                return not self.buffer
            yield

    def _cut_messages(self) -> None:
        framing, buffer = self._framing, self.buffer
        if framing.state is not OPEN or framing.current_size is not None:
            return  # a handshake, a goodbye, or a message in pieces
        mask_bit, head_bytes = self._mask_bit, self._head_bytes
        while len(buffer) > 3 and buffer[0] == WHOLE_TEXT:
            length, start = buffer[1] ^ mask_bit, head_bytes
            if length >= 126:
                if length > 126:
                    return  # a long one, or one whose mask is wrong
                length, start = buffer[2] << 8 | buffer[3], start + 2
            end = start + length
            if len(buffer) < end or length > self._limit_bytes:
                return
            data = unmask(buffer[start:end], buffer[start - 4 : start]) if mask_bit else buffer[start:end]
            del buffer[:end]
            framing.events.append(Frame(Opcode.TEXT, data))

    def read_exact(self, n: int) -> Generator[None, None, bytearray]:
        """Pass on a long frame without copying it."""
        if n >= LONG_FRAME_BYTES:
            while len(self.buffer) < n and not self.eof:
                yield
            if len(self.buffer) == n:
                whole, self.buffer = self.buffer, bytearray()
                return whole
        return (yield from super().read_exact(n))


class SocketChannel(asyncio.Protocol):
    """What both sides of a WebSocket share, from its opening to its end. It sends nothing twice."""

    __slots__ = (
        "_accepted",
        "_closed",
        "_framing",
        "_is_done",
        "_is_gone",
        "_is_secure",
        "_is_silent",
        "_left",
        "_limit_bytes",
        "_loop",
        "_parts",
        "_ping_seconds",
        "_pong_bytes",
        "_read_quota",
        "_receiver",
        "_timer",
        "_transport",
        "_written",
        "chosen",
    )

    is_masking: ClassVar[bool]
    """Whether what it sends is masked: a client's frames are, a server's are not."""

    def __init__(self, framing: Framing, *, limit_bytes: int, ping_seconds: float) -> None:
        """Messages in have at most `limit_bytes`."""
        self.chosen: str | None = None
        """The subprotocol that was agreed on."""
        self._framing = framing
        self._limit_bytes = limit_bytes
        self._ping_seconds = ping_seconds
        self._is_secure = False
        self._receiver: MessageReceiver
        self._transport: asyncio.Transport
        self._read_quota: ReadQuota
        self._parts: bytearray | None = None
        self._written = self._accepted = 0
        self._left: int | None = None
        self._pong_bytes = 0
        self._is_silent = False
        self._is_done = self._is_gone = False
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._closed: asyncio.Future[None] | None = None

    # -- for its owner -----------------------------------------------------------------------------------------------

    def frame(self, message: bytes) -> bytes:
        """One text message, ready to be written."""
        return Frame(Opcode.TEXT, message).serialize(mask=self.is_masking)

    def write(self, data: bytes) -> int:
        """Send frames; return the offset of their end in all that was ever written, for `has_left`."""
        self._written += len(data)
        if not self._is_done and not self._transport.is_closing():
            self._transport.write(data)
            # Both loops try the system call inside write(); if it fails there, not one byte has left.
            if self._is_secure or not self._transport.is_closing():
                self._accepted = self._written
        return self._written

    def has_left(self, offset: int) -> bool:
        """Whether the byte before `offset` may have reached the peer; final once `ended` was called."""
        return offset <= (self._left_bytes() if self._left is None else self._left)

    def _left_bytes(self) -> int:
        # TLS has a buffer of its own, whose size is unknown.
        return self._accepted - (0 if self._is_secure else self._transport.get_write_buffer_size())

    def buffered_bytes(self) -> int:
        """How much has not been handed to the system yet."""
        return self._transport.get_write_buffer_size()

    @property
    def goodbye(self) -> tuple[int, str] | None:
        """The code and reason of the peer's close frame; None without one."""
        said = self._framing.close_rcvd
        return None if said is None else (int(said.code), said.reason)

    def kill(self) -> None:
        """End it at once: nothing more is written, and `ended` is not called."""
        self._retire()
        cut(self._transport)

    async def _wait_for_end(self) -> None:
        """Wait briefly for the peer's close frame, then disconnect."""
        try:
            if not self._is_gone:
                self._closed = self._closed or self._loop.create_future()
                await asyncio.wait({self._closed}, timeout=CLOSE_SECONDS)
        finally:
            # Also when cancelled: closing always ends the channel.
            self.kill()

    # -- callbacks of the event loop ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, because uvloop's transports are not asyncio's by class.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=DRAINED_BYTES)
        self._read_quota = ReadQuota(self._read, pause=self._transport.pause_reading, resume=self._read_on)

    def _read_on(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        self._read_quota.feed(data)

    def resume_writing(self) -> None:
        if not self._is_done:
            self._receiver.flush()

    def eof_received(self) -> bool | None:
        self._read_quota.finish()
        self._end("it closed the connection")
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self._read_quota.finish()
        self._end(lost(exc))
        self._mark_closed()

    def _mark_closed(self) -> None:
        self._is_gone = True
        self._stop_clock()
        if self._closed is not None and not self._closed.done():
            self._closed.set_result(None)

    # -- messages, pings, ending -------------------------------------------------------------------------------------

    def _read(self, data: bytes) -> None:
        self._is_silent = False
        self._framing.receive_data(data)
        for event in self._framing.events_received():
            self._receive(event)
        self._answer()
        if (error := self._framing.handshake_exc or self._framing.parser_exc) is not None:
            self._end(in_words(error, self._limit_bytes))

    def _receive(self, event: Event) -> None:
        if not isinstance(event, Frame) or self._is_done:
            return
        match event.opcode:
            case Opcode.TEXT | Opcode.BINARY if event.fin:
                data = event.data  # a copy of megabytes takes a millisecond
                whole = bytes(data) if len(data) <= LONG_BYTES else memoryview(data).toreadonly()
                self._receive_message(whole, event.opcode)
            case Opcode.TEXT | Opcode.BINARY | Opcode.CONT:
                # A fragment. The first byte of the buffer is the opcode, so an idle channel stores nothing.
                if self._parts is None:
                    self._parts = bytearray((event.opcode,))
                self._parts += event.data
                if event.fin:
                    parts, self._parts = self._parts, None
                    self._receive_message(bytes(memoryview(parts)[1:]), Opcode(parts[0]))
            case Opcode.CLOSE:
                self._end(close_reason(self._framing))
            case _:
                pass  # a ping, which was answered, or a pong

    def _receive_message(self, message: bytes | memoryview, kind: Opcode) -> None:
        """Handle a whole message of this kind."""
        self._receiver.read(message)

    def _answer(self) -> None:
        """Write the protocol's own frames: the handshake, pongs, close frames."""
        if not self._framing.writes or self._is_done:
            return
        data = b"".join(self._framing.data_to_send())
        self._pong_bytes = len(data) + (self._pong_bytes if self.buffered_bytes() else 0)
        if self._pong_bytes > PONGS_BYTES:
            self._end("it sends pings and does not read the pongs")
        else:
            self.write(data)

    def _begin_pinging(self) -> None:
        self._timer = self._loop.call_later(self._ping_seconds, self._tick)

    def _tick(self) -> None:
        if self._is_silent:
            self._end(f"it did not answer a ping within {self._ping_seconds:g} s")
            return
        self._is_silent = True
        self._framing.send_ping(PING)
        self._answer()
        if not self._is_done:
            self._begin_pinging()

    def _end(self, reason: str) -> None:
        """End it: bytes that have not left must not leave later."""
        if self._is_done:
            return
        self._retire()
        if self._transport.get_write_buffer_size():
            cut(self._transport)
        else:
            self._say_goodbye()
        self._report_end(reason)

    def _report_end(self, reason: str) -> None:
        self._receiver.connection_ended(reason)

    def _say_goodbye(self) -> None:
        if data := b"".join(self._framing.data_to_send()):
            self._transport.write(data)
        self._transport.close()
        self._timer = self._loop.call_later(CLOSE_SECONDS, self._transport.abort)

    def _retire(self) -> None:
        if not self._is_done:
            self._is_done = True
            self._left = self._left_bytes()
        self._read_quota.stop()
        self._stop_clock()

    def _stop_clock(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def lost(exc: Exception | None) -> str:
    """How a connection was lost."""
    return "the connection to it was closed" if exc is None else f"the connection to it broke ({exc})"


def in_words(error: Exception, limit_bytes: int) -> str:
    """What is wrong with the peer's data."""
    if isinstance(error, PayloadTooBig):
        return f"it sent a message of over {limit_bytes} bytes"
    return f"it violates the WebSocket protocol: {str(error)[:REASON_LENGTH]}"


def close_reason(framing: Framing) -> str:
    """How the peer closed the connection."""
    said = framing.close_rcvd
    if said is None or said.code == CloseCode.NO_STATUS_RCVD:
        return "it closed the WebSocket"
    words = f": {said.reason[:REASON_LENGTH]!r}" if said.reason else ""
    return f"it closed the WebSocket with code {int(said.code)}{words}"


class HandshakeFailed(Exception):
    """The peer did not open a WebSocket; no message was sent.

    `status` and `headers` are those of its HTTP response, if there was one; header names in lower case.
    """

    def __init__(self, reason: str, status: int | None = None, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = headers or {}


@dataclass(frozen=True, slots=True)
class WebSocketAddress:
    """Where and how a WebSocket is opened. `headers` may be secret; incoming messages have at most `limit_bytes`."""

    origin: HttpOrigin
    target: str
    subprotocols: tuple[str, ...]
    """Offered to the server, the best first."""
    limit_bytes: int
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    ping_seconds: float = PING_SECONDS


class _ClientFraming(ClientProtocol):
    """The protocol of a client."""

    def parse(self) -> Generator[None]:
        self.reader = FrameReader(self)
        return super().parse()


class DialledSocket(SocketChannel):
    """A WebSocket that the hub dials, from its handshake to its end."""

    __slots__ = ("_client", "_endpoint", "_opened")

    is_masking = True

    def __init__(self, endpoint: WebSocketAddress, receiver: MessageReceiver) -> None:
        """For `connect`."""
        origin = endpoint.origin
        self._client = _ClientFraming(
            WebSocketURI(origin.is_secure, origin.host, origin.port, endpoint.target, ""),
            subprotocols=[Subprotocol(name) for name in endpoint.subprotocols] or None,
            max_size=endpoint.limit_bytes,
            logger=SILENT,
        )
        super().__init__(self._client, limit_bytes=endpoint.limit_bytes, ping_seconds=endpoint.ping_seconds)
        self._endpoint = endpoint
        self._receiver = receiver
        self._is_secure = origin.is_secure
        self._opened: asyncio.Future[None] = self._loop.create_future()

    @classmethod
    async def connect(
        cls,
        egress: Egress,
        endpoint: WebSocketAddress,
        receiver: MessageReceiver,
        *,
        is_configured: bool,
        within: float,
    ) -> DialledSocket:
        """Dial and shake hands, `within` seconds each; a server that does not choose a subprotocol is accepted.

        Messages that the server sends at once are received before this returns.

        Raises:
            EgressRefused: it may not be dialled.
            DialFailed: it cannot be reached.
            HandshakeFailed: it did not open a WebSocket.
            ValueError: a header cannot be sent.
        """
        header_lines(endpoint.headers)
        _, channel = await egress.dial(
            endpoint.origin, lambda: cls(endpoint, receiver), is_configured=is_configured, within=within
        )
        try:
            async with asyncio.timeout(within):
                await channel._opened
        except TimeoutError:
            channel.kill()
            raise HandshakeFailed(f"no answer to the WebSocket handshake within {within:g} s") from None
        except BaseException:
            channel.kill()
            raise
        return channel

    async def aclose(self) -> None:
        """Send a close frame and wait briefly for the server's."""
        if self._is_done or self._client.state is not OPEN:
            self.kill()
            return
        self._client.send_close(CloseCode.NORMAL_CLOSURE)
        self._answer()
        self._retire()
        await self._wait_for_end()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        request = self._client.connect()
        for name, value in self._endpoint.headers.items():
            if not name.lower().startswith("sec-websocket-"):  # the handshake's own
                request.headers[name] = value
        self._client.send_request(request)
        self._answer()

    def _receive(self, event: Event) -> None:
        if not isinstance(event, Response):
            super()._receive(event)
        elif self._client.handshake_exc is None and not self._opened.done():
            self.chosen = self._client.subprotocol
            self._opened.set_result(None)
            self._begin_pinging()

    def _report_end(self, reason: str) -> None:
        if self._opened.done():
            super()._report_end(reason)
            return
        failed = HandshakeFailed(reason)
        error = self._client.handshake_exc
        if isinstance(error, InvalidStatus):
            status = error.response.status_code
            headers = {name.lower(): value for name, value in error.response.headers.raw_items()}
            failed = HandshakeFailed(f"it answered HTTP {status} instead of opening a WebSocket", status, headers)
        self._opened.set_exception(failed)
