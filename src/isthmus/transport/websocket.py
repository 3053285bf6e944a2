"""One WebSocket that the hub dials: whole messages in, frames out, an account of what left.

The protocol is `websockets`' own, without its I/O; here are the socket, the bounds and the clock. It does not know
what it carries, never dials again and sends nothing twice. `upstream.websocket` calls it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, cast

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus, PayloadTooBig
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import OPEN
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI

from isthmus.transport.cut import cut
from isthmus.transport.egress import Egress, Origin
from isthmus.transport.http import header_lines
from isthmus.transport.portions import Portions

PING_SECONDS: Final = 20.0
"""How often the server is asked for a sign of life, and how long it has to give one."""

CLOSE_SECONDS: Final = 2.0
"""How long the server may take to say goodbye."""

DRAINED_BYTES: Final = 32 * 1024
"""A server with more than this unread has fallen behind; `flush` tells when it has caught up. Smaller than what
any sender waits for, or one could wait for a word that never comes."""

PONGS_BYTES: Final = 64 * 1024
"""Answers to pings that may wait for a server to read them."""

REASON_LENGTH: Final = 200

_SILENT: Final = logging.getLogger(f"{__name__}.protocol")
_SILENT.setLevel(logging.CRITICAL + 1)  # the library would log headers, which may be secret


class HandshakeFailed(Exception):
    """Whoever is there did not open a WebSocket; nothing was sent on it. `status` is the answer's, if it was one."""

    def __init__(self, reason: str, status: int | None = None) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a WebSocket is opened and how: `headers` may be secret, messages in have at most `limit_bytes`."""

    origin: Origin
    target: str
    subprotocol: str
    limit_bytes: int
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    ping_seconds: float = PING_SECONDS


class Hearer(Protocol):
    """Who a WebSocket belongs to. Nothing comes after `ended`."""

    def read(self, text: bytes) -> None:
        """A whole message."""

    def flush(self) -> None:
        """The server had fallen behind and reads again."""

    def ended(self, reason: str) -> None:
        """It carries nothing more; the reason in words."""


class SocketChannel(asyncio.Protocol):
    """An open WebSocket, from its handshake to its end."""

    def __init__(self, endpoint: Endpoint, hearer: Hearer) -> None:
        """For `connect`."""
        origin = endpoint.origin
        self._client = ClientProtocol(
            WebSocketURI(origin.is_secure, origin.host, origin.port, endpoint.target, ""),
            subprotocols=[Subprotocol(endpoint.subprotocol)],
            max_size=endpoint.limit_bytes,
            logger=_SILENT,
        )
        self._endpoint = endpoint
        self._hearer = hearer
        self._is_secure = origin.is_secure
        self._transport: asyncio.Transport
        self._portions: Portions
        self._parts = bytearray()
        self._written = self._accepted = 0
        self._left: int | None = None
        self._pong_bytes = 0
        self._is_silent = False
        self._is_over = False
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._closed: asyncio.Future[None] = self._loop.create_future()

    @classmethod
    async def connect(
        cls, egress: Egress, endpoint: Endpoint, hearer: Hearer, *, is_configured: bool, within: float
    ) -> SocketChannel:
        """Dial and shake hands, `within` seconds each; a server that does not choose the subprotocol is accepted.

        What the server says at once is heard before this returns.

        Raises:
            EgressRefused: it may not be dialled.
            DialFailed: it cannot be reached.
            HandshakeFailed: it is no WebSocket.
            ValueError: a header cannot be sent.
        """
        header_lines(endpoint.headers)
        _, channel = await egress.dial(
            endpoint.origin, lambda: cls(endpoint, hearer), is_configured=is_configured, within=within
        )
        try:
            await channel._shake_hands(within)
        except BaseException:
            channel.kill()
            raise
        return channel

    async def _shake_hands(self, within: float) -> None:
        try:
            async with asyncio.timeout(within):
                await self._opened
        except TimeoutError:
            raise HandshakeFailed(f"no answer to the WebSocket handshake within {within:g} s") from None

    # -- what its owner asks of it -----------------------------------------------------------------------------------

    def frame(self, message: bytes) -> bytes:
        """One text message, ready to be written."""
        return Frame(Opcode.TEXT, message).serialize(mask=True)

    def write(self, data: bytes) -> int:
        """Send frames; return the offset of their end in all that was ever written, for `has_left`."""
        self._written += len(data)
        if not self._is_over and not self._transport.is_closing():
            self._transport.write(data)
            # Both loops try the system call inside write(); if it fails there, not one byte has left.
            if self._is_secure or not self._transport.is_closing():
                self._accepted = self._written
        return self._written

    def has_left(self, offset: int) -> bool:
        """Whether the byte before `offset` may have reached the server; final once `ended` was called."""
        return offset <= (self._left_bytes() if self._left is None else self._left)

    def _left_bytes(self) -> int:
        # TLS keeps a buffer of its own, which cannot be asked.
        return self._accepted - (0 if self._is_secure else self.buffered_bytes())

    def buffered_bytes(self) -> int:
        """How much has not been handed to the system yet."""
        return self._transport.get_write_buffer_size()

    def kill(self) -> None:
        """End it at once; nothing more is written, and nobody is told."""
        self._retire()
        cut(self._transport)

    async def aclose(self) -> None:
        """Say goodbye and wait a moment for the server's."""
        try:
            if not self._is_over and self._client.state is OPEN:
                self._client.send_close(CloseCode.NORMAL_CLOSURE)
                self._answer()
                self._retire()
                await asyncio.wait({self._closed}, timeout=CLOSE_SECONDS)
        finally:
            # Also when cancelled: a channel that somebody closes does not stay.
            self.kill()

    # -- what the event loop tells it --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, because uvloop's transports are not asyncio's by class.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=DRAINED_BYTES)
        self._portions = Portions(self._read, pause=self._transport.pause_reading, resume=self._read_on)
        request = self._client.connect()
        for name, value in self._endpoint.headers.items():
            if not name.lower().startswith("sec-websocket-"):  # the handshake's own
                request.headers[name] = value
        self._client.send_request(request)
        self._answer()

    def _read_on(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        self._portions.feed(data)

    def resume_writing(self) -> None:
        if not self._is_over:
            self._hearer.flush()

    def eof_received(self) -> None:
        self._portions.finish()
        self._end("it closed the connection")

    def connection_lost(self, exc: Exception | None) -> None:
        self._portions.finish()
        self._end("the connection to it was closed" if exc is None else f"the connection to it broke ({exc})")
        if self._timer is not None:
            self._timer.cancel()
        if not self._closed.done():
            self._closed.set_result(None)

    # -- what it makes of that ---------------------------------------------------------------------------------------

    def _read(self, data: bytes) -> None:
        self._is_silent = False
        self._client.receive_data(data)
        for event in self._client.events_received():
            if isinstance(event, Response):
                self._open()
            elif isinstance(event, Frame) and not self._is_over:
                self._take(event)
        self._answer()
        if (error := self._client.handshake_exc or self._client.parser_exc) is not None:
            self._end(_in_words(error, self._endpoint.limit_bytes))

    def _open(self) -> None:
        if self._client.handshake_exc is None and not self._opened.done():
            self._opened.set_result(None)
            self._timer = self._loop.call_later(self._endpoint.ping_seconds, self._tick)

    def _take(self, frame: Frame) -> None:
        match frame.opcode:
            case Opcode.TEXT | Opcode.BINARY if frame.fin:
                self._hearer.read(bytes(frame.data))
            case Opcode.TEXT | Opcode.BINARY | Opcode.CONT:
                self._parts += frame.data
                if frame.fin:
                    whole, self._parts = bytes(self._parts), bytearray()
                    self._hearer.read(whole)
            case Opcode.CLOSE:
                self._end(_farewell(self._client))
            case _:
                pass  # a ping, which was answered, or a pong

    def _answer(self) -> None:
        """Write what the protocol itself has to say: the handshake, pongs, a goodbye."""
        data = b"".join(self._client.data_to_send())
        if not data or self._is_over:
            return
        self._pong_bytes = len(data) + (self._pong_bytes if self.buffered_bytes() else 0)
        if self._pong_bytes > PONGS_BYTES:
            self._end("it pings without end and does not read the answers")
        else:
            self.write(data)

    def _tick(self) -> None:
        if self._is_silent:
            self._end(f"it did not answer a ping within {self._endpoint.ping_seconds:g} s")
            return
        self._is_silent = True
        self._client.send_ping(b"isthmus")
        self._answer()
        self._timer = self._loop.call_later(self._endpoint.ping_seconds, self._tick)

    def _end(self, reason: str) -> None:
        """It carries nothing more: what has not left by now must not leave any more."""
        if self._is_over:
            return
        self._retire()
        if self.buffered_bytes():
            cut(self._transport)
        else:
            self._say_goodbye()
        if self._opened.done():
            self._hearer.ended(reason)
        else:
            self._fail_to_open(reason)

    def _say_goodbye(self) -> None:
        if data := b"".join(self._client.data_to_send()):
            self._transport.write(data)
        self._transport.close()
        self._timer = self._loop.call_later(CLOSE_SECONDS, self._transport.abort)

    def _fail_to_open(self, reason: str) -> None:
        error = self._client.handshake_exc
        status = error.response.status_code if isinstance(error, InvalidStatus) else None
        self._opened.set_exception(HandshakeFailed(reason, status))

    def _retire(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._left = self._left_bytes()
        self._portions.stop()
        if self._timer is not None:
            self._timer.cancel()


def _in_words(error: Exception, limit_bytes: int) -> str:
    if isinstance(error, PayloadTooBig):
        return f"it sent a message of over {limit_bytes} bytes"
    if isinstance(error, InvalidStatus):
        return f"it answered HTTP {error.response.status_code} instead of opening a WebSocket"
    return f"it does not speak WebSocket as it should: {str(error)[:REASON_LENGTH]}"


def _farewell(client: ClientProtocol) -> str:
    said = client.close_rcvd
    if said is None or said.code == CloseCode.NO_STATUS_RCVD:
        return "it closed the WebSocket"
    words = f": {said.reason[:REASON_LENGTH]!r}" if said.reason else ""
    return f"it closed the WebSocket with code {int(said.code)}{words}"
