"""A WebSocket that a client opened. The listener creates it from a connection and hands it to its new owner.

There may be ten thousand of them, most of them idle: no task, one timer, few bytes each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Final

import structlog
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import OPEN, SERVER
from websockets.protocol import Protocol as Framing
from websockets.streams import StreamReader

from isthmus.transport.flow_control import AgentBandwidth, AgentShare, SharedReadQuota, WriteBatch
from isthmus.transport.websocket import (
    CLOSE_SECONDS,
    PING,
    PING_SECONDS,
    SILENT,
    FrameReader,
    MessageReceiver,
    SocketChannel,
    in_words,
    lost,
)

log = structlog.get_logger(__name__)

LAG_BYTES: Final = 1024 * 1024
"""Unit for unread bytes: a peer with several times this much unread gets no more, however fast it reads."""

LAG_FACTOR: Final = 8
"""That many units; as many again for short messages, so that a cancellation of a long one still fits."""

SHORT_BYTES: Final = 1024
"""The size of a short message: a ping, a cancellation, an error."""

LAG_SECONDS: Final = 10.0
"""How long a peer that has fallen behind may take to read the next piece."""

LAG_PROGRESS_BYTES: Final = 64 * 1024
"""The size of that piece. A peer that reads a byte now and then only wants to hold our memory."""

LAGGING: Final = "it does not read its messages"

FAILED: Final = "the hub failed"

JOINED_BYTES: Final = 64 * 1024
"""Messages of one turn are joined up to here; beyond it copying costs more than writing twice."""

WHOLE_SECONDS: Final = 120.0
"""How long a message may take to arrive: sixteen megabytes at one megabit a second. Checked whenever a ping is sent."""

SLOW: Final = f"a message must be whole within {WHOLE_SECONDS:g} s"

NO_ROOM: Final = "the hub has no room for so long a message now"

GOODBYE_BYTES: Final = 4 * 1024
"""How many bytes after our close frame are searched for the peer's."""

LATE_FACTOR: Final = 64
"""How many of the longest messages are discarded after that; then the connection is cut."""

REASON_BYTES: Final = 123
"""The longest reason in a close frame."""

SMALL_PORTION_BYTES: Final = 1024
LARGE_PORTION_BYTES: Final = 64 * 1024
"""Bytes handled per turn of the loop: few of a flood of small messages, many of a large one."""

FEW_FRAMES: Final = 4
"""If a portion had at most this many messages, the next portion may be larger."""

PING_FRAME: Final = Frame(Opcode.PING, PING).serialize(mask=False)

_SHORT, _MEDIUM = 126, 65536


def text_frame(message: bytes) -> bytes:
    """One text message as a server sends it."""
    length = len(message)
    if length < _SHORT:
        return b"\x81%c%b" % (length, message)
    if length < _MEDIUM:
        return b"\x81\x7e%b%b" % (length.to_bytes(2, "big"), message)
    return b"\x81\x7f%b%b" % (length.to_bytes(8, "big"), message)


def fitting(reason: str) -> str:
    """The part of a reason that fits into a close frame."""
    return reason.encode()[:REASON_BYTES].decode(errors="ignore")


class _Framing(Framing):
    """The protocol of a server, once it is open."""

    def parse(self) -> Generator[None]:
        self.reader = FrameReader(self)
        return super().parse()


class _NoReceiver:
    """Drops what a socket without an owner receives."""

    def read(self, text: bytes | memoryview) -> None:
        pass

    def flush(self) -> None:
        pass

    def connection_ended(self, reason: str) -> None:
        pass


_NO_RECEIVER: Final = _NoReceiver()


class AcceptedSocket(SocketChannel):
    """A WebSocket that a client opened.

    `on_closed` is called when the connection is gone; `on_binary` receives binary messages apart from text.
    """

    __slots__ = (
        "_goal_bytes",
        "_held_bytes",
        "_is_deaf",
        "_lag_bytes",
        "_lag_seconds",
        "_lag_timer",
        "_last_reason",
        "_late_bytes",
        "_share",
        "_sign",
        "_unfinished_since",
        "_unsent",
        "_unsent_bytes",
        "_write_batch",
        "client",
        "on_binary",
        "on_closed",
    )

    is_masking = False

    def __init__(
        self,
        *,
        client: str | None,
        write_batch: WriteBatch,
        limit_bytes: int,
        share: AgentShare | None = None,
        chosen: str | None = None,
        ping_seconds: float = PING_SECONDS,
        lag_bytes: int = LAG_BYTES,
        lag_seconds: float = LAG_SECONDS,
    ) -> None:
        """Created after the handshake; call `begin` next. `share` is the bandwidth share of its agent."""
        framing = _Framing(SERVER, max_size=limit_bytes, logger=SILENT)
        super().__init__(framing, limit_bytes=limit_bytes, ping_seconds=ping_seconds)
        self.chosen = chosen
        self.client = client
        """The client's address."""
        self.on_binary: Callable[[bytes], None] | None = None
        """Receives binary messages; without it they are handled like text."""
        self.on_closed: Callable[[], None] | None = None
        """Called once, when the connection is gone for any reason."""
        self._write_batch = write_batch
        self._share = share or AgentBandwidth().share_of(None)
        self._held_bytes = 0
        self._unfinished_since = 0.0
        """When the incomplete message began; 0 without one."""
        self._is_deaf = False
        self._late_bytes = 0
        """Bytes received since it ended."""
        self._unsent: list[bytes] | None = None
        self._unsent_bytes = 0
        self._lag_bytes = lag_bytes
        self._lag_seconds = lag_seconds
        self._lag_timer: asyncio.TimerHandle | None = None
        self._goal_bytes = 0
        self._last_reason: str | None = None
        self._sign: asyncio.Future[None] | None = None
        """Set when the peer answers a liveness check."""

    def begin(
        self, transport: asyncio.Transport, take: Callable[[AcceptedSocket], MessageReceiver], first: bytes = b""
    ) -> None:
        """Take over a connection after the handshake; `first` is what arrived behind the handshake."""
        transport.set_protocol(self)
        self.connection_made(transport)
        self._begin_pinging()
        try:
            self._receiver = take(self)
        except Exception:  # an error of this socket's owner must not reach the listener and its other clients
            log.exception("an accepted WebSocket could not be set up", client=self.client)
            self._receiver = _NO_RECEIVER
            self.close(CloseCode.INTERNAL_ERROR, FAILED)
        self._read_on()
        if first:
            self.data_received(first)

    # -- for its owner -----------------------------------------------------------------------------------------------

    def frame(self, message: bytes) -> bytes:
        """One text message, ready to be written."""
        return text_frame(message)

    def send(self, message: bytes) -> None:
        """Send a text message, together with others at the end of this turn of the loop."""
        self._cut_if_flooded(len(message))
        if self._is_done:
            return
        if self._unsent is None:
            self._unsent = []
            self._write_batch.add(self)
        self._unsent.append(text_frame(message))
        self._unsent_bytes += len(message)
        if self._unsent_bytes > JOINED_BYTES:
            self._write_unsent()

    def flush(self) -> None:
        """Write what waits for the end of this turn of the loop."""
        self._write_unsent()
        self._unsent = None

    def _write_unsent(self) -> None:
        if self._unsent:
            pieces, self._unsent, self._unsent_bytes = self._unsent, [], 0
            super().write(b"".join(pieces))

    def write(self, data: bytes) -> int:
        """Send frames; return the offset of their end in all that was ever written, for `has_left`."""
        self._write_unsent()
        self._cut_if_flooded(len(data))
        return super().write(data)

    def buffered_bytes(self) -> int:
        """How much has not been handed to the system yet."""
        return self._unsent_bytes + self._transport.get_write_buffer_size()

    async def is_alive(self, within: float) -> bool:
        """Whether the peer answers a ping."""
        if self._is_done:
            return False
        sign = self._sign = self._sign or self._loop.create_future()
        self._ping()
        await asyncio.wait({sign}, timeout=within)
        return sign.done() and not self._is_done

    def _report_alive(self) -> None:
        if self._sign is not None:
            self._sign.set_result(None)
            self._sign = None

    def close(self, code: int, reason: str = "") -> None:
        """Close it. Nothing more is received and `ended` is not called; the connection ends within seconds."""
        if not self._is_done:
            self._write_unsent()
            self._part(code, reason)

    async def aclose(self, code: int = CloseCode.NORMAL_CLOSURE, reason: str = "") -> None:
        """Send a close frame and wait briefly for the peer's."""
        self.close(code, reason)
        await self._wait_for_end()

    # -- callbacks of the event loop ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._is_secure = transport.get_extra_info("sslcontext") is not None
        pause = self._transport.pause_reading
        self._read_quota = SharedReadQuota(self._read, self._share, pause=pause, resume=self._read_on)

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            self._late_bytes += len(data)
            if self._late_bytes > LATE_FACTOR * self._limit_bytes and not self._transport.is_closing():
                self._transport.pause_reading()
        else:
            self._read_quota.portion_bytes = min(self._read_quota.portion_bytes, SMALL_PORTION_BYTES)
            self._read_quota.feed(data)

    def pause_writing(self) -> None:
        if not self._is_done:
            self._watch_lag()

    def resume_writing(self) -> None:
        self._forget_lag()
        super().resume_writing()

    def eof_received(self) -> bool | None:
        end = super().eof_received
        if self._is_secure:  # such a socket closes before deferred messages are handled
            return end()

        def end_and_close() -> None:
            end()
            self._transport.close()

        self._share.turns.do(end_and_close)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        def end() -> None:
            self._last_reason = lost(exc)
            self._forget_lag()
            if not self._read_quota.has_rest():
                self._depart()
            # Otherwise what the peer sent before it left is handled first, in portions.

        self._share.turns.do(end)

    def _read_on(self) -> None:
        if self._last_reason is None:
            super()._read_on()
        else:
            self._depart()

    def _depart(self) -> None:
        """Release everything."""
        if self._last_reason is None:
            return
        reason, self._last_reason = self._last_reason, None
        self._end(reason)
        self._mark_closed()
        if self.on_closed is not None:
            self.on_closed()
        self._loop.call_soon(self._untie)  # after what `_break_off` may still report

    def _untie(self) -> None:
        """Drop all references, so that it is freed at once: the cycle collector takes long with thousands of sockets.

        The parser is a generator that refers to its protocol.
        """
        self._receiver = _NO_RECEIVER
        self.on_binary = self.on_closed = None
        self._read_quota.let_go()
        self._drop_unfinished()

    # -- messages ----------------------------------------------------------------------------------------------------

    def _read(self, data: bytes) -> None:
        is_ending = self._is_done
        if is_ending:  # only a close frame is looked for
            self._late_bytes += len(data)
            if self._late_bytes > GOODBYE_BYTES:
                self._turn_deaf()
            else:
                self._framing.receive_data(data)
                self._framing.events_received()
                self._see_off()
            return
        self._is_silent = False
        if self._sign is not None:
            self._report_alive()
        self._framing.receive_data(data)
        events = self._framing.events_received()
        for event in events:
            self._receive(event)
        portions = self._read_quota
        if len(events) > FEW_FRAMES:
            portions.portion_bytes = min(portions.portion_bytes, SMALL_PORTION_BYTES)
        elif portions.portion_bytes < LARGE_PORTION_BYTES:
            portions.portion_bytes *= 2
        if self._is_done:
            self._see_off()
            return
        self._answer()
        if (error := self._framing.parser_exc) is not None:
            self._end(in_words(error, self._limit_bytes))
        elif self._framing.reader.buffer or self._parts is not None or self._held_bytes:
            self._hold(self._unfinished_bytes())

    def _receive_message(self, message: bytes | memoryview, kind: Opcode) -> None:
        self._unfinished_since = 0.0
        receive = self._receiver.read if kind is not Opcode.BINARY or self.on_binary is None else self.on_binary
        try:
            receive(bytes(message))
        except Exception:  # a message that the hub cannot handle costs only the peer that sent it
            log.exception("a message on a WebSocket could not be handled", client=self.client)
            self._break_off(CloseCode.INTERNAL_ERROR, FAILED)

    def _ping(self) -> None:
        self.write(PING_FRAME)

    # -- incomplete messages -----------------------------------------------------------------------------------------

    def _unfinished_bytes(self) -> int:
        return len(self._framing.reader.buffer) + (0 if self._parts is None else len(self._parts))

    def _hold(self, held_bytes: int) -> None:
        """Count the bytes of an incomplete message."""
        if not held_bytes:
            self._unfinished_since = 0.0
        elif not self._unfinished_since:
            self._unfinished_since = self._loop.time()
        self._held_bytes = held_bytes
        self._share.hold(self, held_bytes)

    def give_up(self) -> None:
        """See `transport.flow_control.Holder`."""
        if not self._is_done:
            log.info("a WebSocket was aborted", client=self.client, reason=NO_ROOM)
            self._break_off(CloseCode.TRY_AGAIN_LATER, NO_ROOM)

    def _tick(self) -> None:
        if self._unfinished_since and self._loop.time() - self._unfinished_since > WHOLE_SECONDS:
            self._break_off(CloseCode.POLICY_VIOLATION, SLOW)
        else:
            if self._lag_timer is not None:
                self._is_silent = False  # the ping waits behind unread data; the lag timer checks that
            super()._tick()

    def _drop_unfinished(self) -> None:
        self._parts = None
        self._framing.parser.close()
        self._framing.reader = StreamReader()  # the old one refers to the protocol
        if self._held_bytes:
            self._hold(0)

    # -- lagging -----------------------------------------------------------------------------------------------------

    def _cut_if_flooded(self, added_bytes: int) -> None:
        unread_bytes = self.buffered_bytes()
        if unread_bytes > self._lag_bytes and not self._is_done:  # seldom
            factor = LAG_FACTOR if added_bytes > SHORT_BYTES else 2 * LAG_FACTOR
            if unread_bytes > factor * self._lag_bytes:
                self._cut_off()

    def _watch_lag(self) -> None:
        unread_bytes = self._transport.get_write_buffer_size()
        self._goal_bytes = self._written - unread_bytes + min(unread_bytes, LAG_PROGRESS_BYTES)
        self._lag_timer = self._loop.call_later(self._lag_seconds, self._look_at_lag)

    def _look_at_lag(self) -> None:
        if self._written - self._transport.get_write_buffer_size() >= self._goal_bytes:
            self._watch_lag()
        else:
            self._cut_off()

    def _forget_lag(self) -> None:
        if self._lag_timer is not None:
            self._lag_timer.cancel()
            self._lag_timer = None

    def _cut_off(self) -> None:
        log.info("a WebSocket was aborted", client=self.client, reason=LAGGING)
        self._break_off(CloseCode.POLICY_VIOLATION, LAGGING)

    # -- ending ------------------------------------------------------------------------------------------------------

    def _break_off(self, code: int, reason: str) -> None:
        """Close it and notify the owner in the next turn: a loop over many sockets must not lose one midway."""
        if not self._is_done:
            self._part(code, reason)
            self._loop.call_soon(self._report_end, reason)

    def _part(self, code: int, reason: str) -> None:
        """Send a close frame after everything that was written, and wait for the peer's."""
        self._is_done = True
        self._left = self._accepted
        self._forget_lag()
        self._report_alive()
        self._stop_clock()
        if self._framing.state is OPEN:
            self._framing.send_close(code, fitting(reason))
        self._say_goodbye()

    def _say_goodbye(self) -> None:
        """Keep the connection briefly: closing it with unread bytes would reset it before the peer reads our reason."""
        if not self._transport.is_closing():
            if data := b"".join(self._framing.data_to_send()):
                self._transport.write(data)
            if self._framing.parser_exc is not None or self._unfinished_bytes() > GOODBYE_BYTES:
                self._turn_deaf()
            elif not self._read_quota.has_rest():  # otherwise it continues once those bytes were searched
                self._transport.resume_reading()
        self._see_off()
        self._timer = self._loop.call_later(CLOSE_SECONDS, self._transport.abort)

    def _turn_deaf(self) -> None:
        """Discard everything that still arrives until the peer has left."""
        self._is_deaf = True
        self._read_quota.stop()
        self._drop_unfinished()
        if not self._transport.is_closing():
            if self._transport.can_write_eof():
                self._transport.write_eof()  # its close frame would go unnoticed, so it must not wait for ours
            self._transport.resume_reading()
        if self._last_reason is not None:
            self._loop.call_soon(self._depart)  # deferred messages are dropped

    def _see_off(self) -> None:
        """Close the connection once the peer has closed its side."""
        self._framing.data_to_send()  # nothing is sent after a close frame
        if self._framing.close_rcvd is not None:
            self._transport.close()

    def _retire(self) -> None:
        super()._retire()
        self._forget_lag()
        self._report_alive()
        if self._last_reason is not None:
            self._loop.call_soon(self._depart)  # what it sent is ignored
