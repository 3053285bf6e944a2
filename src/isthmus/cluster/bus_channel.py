"""One end of a channel between two nodes: order, chunks, credit, and what has left. It implements `bus.BusChannel`.

A channel lives in a session (`cluster.sessions`), which carries its frames and tells it when the peer is gone. A DATA
frame has a number. A frame that is lost, repeated or reordered breaks the channel on both sides; SYNC reports the last
number, so that the loss of the last frame is noticed, too.

The reader grants credit as it reads. A frame costs its length and `FRAME_COST`, so that a window bounds the number of
frames as well as their bytes. A message may be longer than the window: chunks of an incomplete message count as read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import structlog

from isthmus.cluster.bus import ChannelClosed, ChannelEnd, ChannelFull, ChannelReceiver, NodeId
from isthmus.cluster.frames import MORE, Kind
from isthmus.cluster.settings import BusSettings

if TYPE_CHECKING:
    from isthmus.cluster.sessions import PeerSession

FRAME_COST: Final = 64
"""What a frame costs beside its bytes: roughly the memory of its objects."""

DELIVERIES_PER_TURN: Final = 64
"""Messages that a resumed channel delivers in one turn of the event loop."""

_END = (b"", -1)
"""Stands in the inbox for the peer's CLOSE."""

logger = structlog.get_logger(__name__)


class Channel:
    """See `bus.BusChannel`."""

    __slots__ = (
        "_accepted",
        "_chunk_bytes",
        "_consumed",
        "_drained",
        "_end",
        "_end_offset",
        "_expected",
        "_granted",
        "_handed",
        "_inbox",
        "_is_delivering",
        "_is_full",
        "_is_paused",
        "_is_peer_done",
        "_marks",
        "_offset_left",
        "_out",
        "_out_at",
        "_partial_bytes",
        "_parts",
        "_peer_reason",
        "_received",
        "_receiver",
        "_session",
        "_settings",
        "close_deadline",
        "close_reason",
        "credit",
        "has_news",
        "id",
        "is_ready",
        "opened",
        "seq",
        "service",
        "spent",
        "state",
    )

    def __init__(self, session: PeerSession, id: int, service: str, settings: BusSettings) -> None:
        self.id = id
        self.service = service
        self.state = "open"
        """`opening`, `open`, `closing` (CLOSE is sent, or waits behind messages) or `ended`."""
        self.opened: asyncio.Future[None] | None = None
        """The wait of `connect`."""
        self.seq = 0
        """Frames handed to the session."""
        self.credit = 0
        """Bytes that the peer has granted, from the beginning."""
        self.spent = 0
        self.is_ready = False
        """It stands in the session's line of channels that may write."""
        self.has_news = False
        """SYNC must report it."""
        self.close_reason = ""
        self.close_deadline = 0.0
        self._session = session
        self._settings = settings
        self._chunk_bytes = min(session.pipe.chunk_bytes, settings.window_bytes // 2 - FRAME_COST)
        # A deque without entries takes 760 bytes, and there may be a million channels: the one for messages that wait
        # is made when one waits. The two lists have few entries, 4,096 at most in a window.
        # out
        self._out: deque[bytes | memoryview] | None = None
        self._out_at = 0
        self._accepted = self._handed = 0
        self._marks: list[tuple[int, int]] = []
        self._offset_left = 0
        self._end: ChannelEnd | None = None
        self._end_offset: int | None = None
        self._is_full = False
        self._drained: asyncio.Future[None] | None = None
        # in
        self._receiver: ChannelReceiver | None = None
        self._is_paused = False
        self._is_delivering = False
        self._is_peer_done = False
        self._inbox: list[tuple[bytes, int]] = []
        self._parts: list[bytes] = []
        self._partial_bytes = 0
        self._expected = 0
        self._received = self._consumed = 0
        self._granted = settings.window_bytes
        self._peer_reason = ""

    # -- for its owner -----------------------------------------------------------------------------------------------

    @property
    def peer(self) -> NodeId:
        """See `bus.BusChannel`."""
        return self._session.node

    @property
    def is_open(self) -> bool:
        """See `bus.BusChannel`."""
        return self.state == "open" and not self._session.is_ended

    @property
    def handed(self) -> int:
        """The offset up to which messages were handed to the session."""
        return self._handed

    @property
    def granted(self) -> int:
        """The bytes that this side has granted, from the beginning."""
        return self._granted

    @property
    def is_flushed(self) -> bool:
        """Whether everything was handed to the session."""
        return self._accepted == self._handed

    def is_confirmed(self) -> bool:
        """See `bus.BusChannel`."""
        return self._session.is_confirmed(self)

    def start(self, receiver: ChannelReceiver) -> None:
        """See `bus.BusChannel`."""
        self._receiver = receiver
        if self._end is None:
            self._deliver_later()
        else:
            asyncio.get_running_loop().call_soon(self._report_end)

    def pause(self) -> None:
        """See `bus.BusChannel`."""
        self._is_paused = True

    def resume(self) -> None:
        """See `bus.BusChannel`."""
        self._is_paused = False
        self._deliver_later()

    def send(self, message: bytes) -> int:
        """See `bus.BusChannel`."""
        size = len(message)
        session = self._session
        if self.state != "open" or session.is_ended:
            raise ChannelClosed(f"the channel to {session.node!r} is closed")
        if not 0 < size <= self._settings.message_bytes_max:
            raise ValueError(f"a message must have 1 to {self._settings.message_bytes_max} bytes, not {size}")
        unsent = self._accepted - self._handed
        if unsent > self._settings.window_bytes and unsent + size > self._settings.unsent_bytes_max:
            raise ChannelFull(f"{unsent} bytes wait for {session.node!r}, which does not read them")
        self._accepted += size
        if not unsent and size <= self._chunk_bytes and session.can_write(self, size + FRAME_COST):
            self._write(message, 0)
            self._handed = self._accepted
            self._mark()
            return self._accepted
        if self._out is None:
            self._out = deque()
        self._out.append(message if size <= self._chunk_bytes else memoryview(message))
        if unsent + size > self._settings.window_bytes:
            self._is_full = True
        self.line_up()
        return self._accepted

    def has_left(self, offset: int) -> bool:
        """See `bus.BusChannel`."""
        return offset <= self._left_offset()

    def buffered_bytes(self) -> int:
        """See `bus.BusChannel`."""
        return self._accepted - self._left_offset()

    async def drain(self) -> None:
        """See `bus.BusChannel`."""
        while self._accepted - self._handed > self._settings.window_bytes and self.is_open:
            if self._drained is None:
                self._drained = asyncio.get_running_loop().create_future()
            self._is_full = True
            await asyncio.shield(self._drained)
        if not self.is_open:
            raise ChannelClosed(f"the channel to {self._session.node!r} is closed")

    def close(self, reason: str = "") -> None:
        """See `bus.BusChannel`."""
        if self.state != "open" or self._session.is_ended:
            return
        self.state = "closing"
        self.close_reason = reason
        self.close_deadline = asyncio.get_running_loop().time() + self._settings.close_seconds
        self._parts.clear()
        self._session.closing[self.id] = self
        self._discard_inbox()
        if self._is_peer_done:  # the peer's CLOSE was waiting to be delivered
            self._finish_for_peer()
        elif self.is_flushed:
            self._session.send_close(self)

    def abort(self, reason: str = "") -> None:
        """See `bus.BusChannel`."""
        self._receiver = None
        self.break_both(reason)

    # -- out ---------------------------------------------------------------------------------------------------------

    def line_up(self) -> None:
        """Stand in line for writing, if there is something to write and credit for it."""
        if not self.is_ready and self._out and self.spent + self._next_cost() <= self.credit:
            self.is_ready = True
            self._session.line_up(self)

    def write_chunk(self) -> None:
        """Write one chunk; the session asks for it. Then stand in line again."""
        self.is_ready = False
        if not self._out or self.state == "ended":
            return
        message = self._out[0]
        if isinstance(message, memoryview):
            chunk: bytes | memoryview = message[self._out_at : self._out_at + self._chunk_bytes]
            self._out_at += len(chunk)
            is_last = self._out_at >= len(message)
        else:
            chunk, is_last = message, True
        self._write(chunk, 0 if is_last else MORE)
        if is_last:
            self._out.popleft()
            self._out = self._out or None
            self._out_at = 0
        self._handed += len(chunk)
        self._mark()
        self.line_up()
        if self._is_full and self._accepted - self._handed < self._settings.window_bytes // 2:
            self._report_writable()
        if not self._out and self.state == "closing":
            self._session.send_close(self)

    def _write(self, chunk: bytes | memoryview, flags: int) -> None:
        self.spent += len(chunk) + FRAME_COST
        self._session.write(Kind.DATA, self.id, self.seq, chunk, flags)
        self.seq += 1
        if not self.has_news:
            self._session.report(self)
        if self.opened is not None and self not in self._session.unconfirmed:
            self._session.unconfirmed[self] = self._handed

    def _next_cost(self) -> int:
        assert self._out, "it is asked only when a message waits"
        return min(len(self._out[0]) - self._out_at, self._chunk_bytes) + FRAME_COST

    def _mark(self) -> None:
        """Note where in the session's stream the last chunk ends, and forget what has left."""
        pipe = self._session.pipe
        marks = self._marks
        left = pipe.left_bytes()
        while marks and marks[0][1] <= left:
            self._offset_left = marks.pop(0)[0]
        marks.append((self._handed, pipe.written_bytes))

    def _left_offset(self) -> int:
        if self._end_offset is not None:
            return self._end_offset
        left = self._session.left_bytes()
        marks = self._marks
        while marks and marks[0][1] <= left:
            self._offset_left = marks.pop(0)[0]
        return self._offset_left

    def _report_writable(self) -> None:
        self._is_full = False
        if self._drained is not None:
            self._drained.set_result(None)
            self._drained = None
        self.report_life()

    def report_life(self) -> None:
        """Tell the owner that it may write."""
        if self._receiver is not None:
            self._notify_receiver(self._receiver.writable)

    def report_silence(self, confirmed: int) -> None:
        """Tell the owner that the peer answers no ping, and has confirmed nothing after this offset."""
        if self.state == "opening":
            self.break_both("it answers no ping")
        elif self._receiver is not None:
            self._notify_receiver(self._receiver.silent, confirmed)

    def _notify_receiver(self, report: Callable[..., None], *arguments: object) -> None:
        if self.state == "open":
            try:
                report(*arguments)
            except Exception:  # the owner's defect must not reach the session, which belongs to all channels
                logger.exception("channel receiver failed", peer=self.peer, service=self.service)
                self.break_both("its owner failed")

    def grant(self, total: int) -> None:
        """The peer has granted so many bytes from the beginning."""
        if total > self.credit:
            self.credit = total
            self.line_up()

    # -- in ----------------------------------------------------------------------------------------------------------

    def receive(self, seq: int, flags: int, payload: bytes) -> None:
        """A DATA frame."""
        cost = len(payload) + FRAME_COST
        if seq != self._expected:
            self.break_both(_gap(self._expected, seq))
            return
        self._expected += 1
        self._received += cost
        if self._received > self._granted:
            self.break_both("it sent more than it was granted")
        elif self.state != "open":  # closed here: read on, so that the peer's CLOSE can arrive
            self._consume(cost)
        elif self._receiver is None or self._is_paused or self._inbox:
            self._inbox.append((payload, flags))
        else:
            self._deliver(payload, flags)

    def _deliver(self, payload: bytes, flags: int) -> None:
        self._consume(len(payload) + FRAME_COST)
        if flags & MORE or self._parts:
            self._partial_bytes += len(payload)
            if self._partial_bytes > self._settings.message_bytes_max:
                self.break_both(f"it sent a message of over {self._settings.message_bytes_max} bytes")
                return
            self._parts.append(payload)
            if flags & MORE:
                return
            payload = b"".join(self._parts)
            self._parts.clear()
            self._partial_bytes = 0
        receiver = self._receiver
        assert receiver is not None
        try:
            receiver.message(payload)
        except Exception:  # the owner's defect must not reach the session, which belongs to all channels
            logger.exception("channel receiver failed", peer=self.peer, service=self.service)
            self.break_both("its owner failed")

    def _consume(self, cost: int) -> None:
        self._consumed += cost
        window = self._settings.window_bytes
        if self._consumed + window - self._granted >= window // 2 and self.state != "ended":
            self._granted = self._consumed + window
            self._session.write(Kind.CREDIT, self.id, self._granted)
            if not self.has_news:
                self._session.report(self)

    def _deliver_later(self) -> None:
        if self._inbox and not self._is_delivering and self._receiver is not None:
            self._is_delivering = True
            asyncio.get_running_loop().call_soon(self._deliver_inbox)

    def _deliver_inbox(self) -> None:
        self._is_delivering = False
        for _ in range(DELIVERIES_PER_TURN):
            if not self._inbox or self._is_paused or self.state == "ended":
                return
            payload, flags = self._inbox.pop(0)
            if flags == -1:
                self._finish_for_peer()
            else:
                self._deliver(payload, flags)
        self._deliver_later()

    def _discard_inbox(self) -> None:
        waiting, self._inbox = self._inbox, []
        for payload, flags in waiting:
            if flags != -1:
                self._consume(len(payload) + FRAME_COST)

    def check(self, sent: int, granted: int) -> None:
        """A SYNC reports what the peer has sent and granted."""
        if sent != self._expected:
            self.break_both(_gap(self._expected, sent))
        else:
            self.grant(granted)

    # -- the end -----------------------------------------------------------------------------------------------------

    def peer_closed(self, sent: int, reason: str) -> None:
        """A CLOSE frame: the peer has sent so many frames, and will send no more."""
        if sent != self._expected:
            self.break_both(_gap(self._expected, sent))
            return
        self._peer_reason = reason
        if self.state == "closing":  # both at once
            self._session.write(Kind.CLOSED, self.id)
            if self._out:
                self._finish(ChannelEnd("broken", "it was closed before everything was received"))
            return
        if self._is_peer_done:  # a repetition
            return
        self._is_peer_done = True
        self._inbox.append(_END)
        if self._receiver is not None and not self._is_paused:
            self._deliver_inbox()

    def _finish_for_peer(self) -> None:
        self._session.write(Kind.CLOSED, self.id)
        self._finish(ChannelEnd("peer", self._peer_reason))

    def confirmed(self) -> None:
        """A CLOSED frame: the peer has received everything."""
        if self.state == "closing":
            self._finish(ChannelEnd("here", self.close_reason))

    def broken(self, reason: str) -> None:
        """A BREAK frame, or the peer is gone."""
        self._finish(ChannelEnd("broken", reason))

    def break_both(self, reason: str) -> None:
        """Break it here, and tell the peer until it confirms."""
        if self.state != "ended":
            self._session.send_break(self.id, reason)
            self._finish(ChannelEnd("broken", reason))

    def _finish(self, end: ChannelEnd) -> None:
        if self.state == "ended":
            return
        self._end_offset = self._left_offset() if self._session.is_ended else self._handed
        self.state = "ended"
        self._session.forget(self)
        self._out = None
        self._inbox.clear()
        self._parts.clear()
        self._marks.clear()
        if self._drained is not None:
            self._drained.set_result(None)
            self._drained = None
        if self.opened is not None and not self.opened.done():
            self.opened.set_exception(ChannelClosed(end.reason))
        self._end = end
        self._report_end()

    def _report_end(self) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None and self._end is not None:
            try:
                receiver.closed(self._end)
            except Exception:  # the owner's defect must not reach the session, which belongs to all channels
                logger.exception("channel receiver failed", peer=self.peer, service=self.service)


def _gap(expected: int, found: int) -> str:
    how = "lost" if found > expected else "repeated or reordered"
    return f"frames were {how}: number {expected} was expected, not {found}"
