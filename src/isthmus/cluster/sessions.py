"""What the two implementations of the bus share: sessions with peers, and the bus above them.

A `PeerSession` is everything between this node and one life (epoch) of another: requests, channels and heartbeats over
one ordered pipe of frames. It ends with that life, or with the pipe. `BaseBus` has the registrations, the sessions and
the clock. An implementation finds peers, moves frames and says what has left.

Bounds: a peer has at most `channels_max` channels and as many unanswered requests; incomplete one-shot messages of a
peer take at most `PARTIAL_BYTES_MAX`; a pipe that holds more than `PIPE_BYTES_HIGH` takes no more frames of channels,
and above `PIPE_BYTES_MAX` requests are refused and published messages dropped.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

import msgspec
import structlog

from isthmus.cluster.bus import (
    ONE_SHOT_BYTES_MAX,
    Acceptor,
    BusChannel,
    BusFault,
    BusState,
    ChannelClosed,
    NodeAway,
    NodeId,
    NoResponse,
    PeerNode,
    Responder,
    Subscriber,
    Unsubscribe,
    check_name,
)
from isthmus.cluster.bus_channel import Channel
from isthmus.cluster.frames import (
    HEADER,
    HEADER_BYTES,
    MORE,
    SYNC_ENTRY,
    Hello,
    Kind,
    decode_reason,
    encode_reason,
    one_shot_head,
    split_one_shot,
)
from isthmus.cluster.settings import BusSettings
from isthmus.core.background import BackgroundTasks

PIPE_BYTES_HIGH: Final = 512 * 1024
"""With more than this unsent, channels wait in line: a frame behind it waits for some milliseconds at most."""

PIPE_BYTES_MAX: Final = 8 * 1024 * 1024

PARTIAL_BYTES_MAX: Final = 8 * 1024 * 1024

ATTRIBUTES_BYTES_MAX: Final = 8 * 1024

SYNC_ENTRIES_MAX: Final = 512
"""The channels of one SYNC frame."""

ENDINGS_PER_TURN: Final = 64
"""Channels and requests that end in one turn of the event loop when a peer is lost: each calls its owner."""

TICKS_PER_BEAT: Final = 4

PING_ID: Final = 0
"""A CLOSE of this channel, which never exists, is a ping: every node confirms it at once."""

PING_STEPS: Final = 7
"""The parts of a ping's time. While this process stands still, at most one of them passes."""

PEERS_MAX: Final = 1024
"""Further nodes are ignored."""

logger = structlog.get_logger(__name__)


class FramePipe(Protocol):
    """Carries frames to one peer, in order."""

    @property
    def chunk_bytes(self) -> int:
        """The longest payload of a frame."""

    @property
    def written_bytes(self) -> int:
        """Bytes of all frames ever written."""

    def write(self, header: bytes, payload: bytes | memoryview) -> None:
        """Send a frame. It never waits."""

    def left_bytes(self) -> int:
        """Of the written bytes, those that may have left."""

    def buffered_bytes(self) -> int:
        """What waits in front of the next frame."""

    def call_when_writable(self, session: PeerSession) -> None:
        """Call `session.pump` once less is buffered."""


class _Pending:
    """A request of this node that waits for its response."""

    __slots__ = ("end", "future", "parts", "size")

    def __init__(self, future: asyncio.Future[bytes], end: int) -> None:
        self.future = future
        self.end = end
        """Where it ends in the pipe's stream."""
        self.parts: list[bytes] = []
        self.size = 0


class PeerSession:
    """The conversation with one life of another node."""

    def __init__(self, bus: BaseBus, peer: PeerNode, pipe: FramePipe) -> None:
        self.node = peer.node
        self.peer = peer
        self.pipe = pipe
        self.is_ended = False
        self.received_at = bus.now()
        self.closing: dict[int, Channel] = {}
        """Closed here; the peer has not confirmed it."""
        self._bus = bus
        self._channels: dict[int, Channel] = {}
        # Both sides open channels: one counts in even numbers, the other in odd ones.
        self._parity = 0 if bus.node < peer.node else 1
        self._last_opened = 0
        self._line: deque[Channel] = deque()
        self._is_waiting = False
        self._news: list[Channel] = []
        self._breaks: dict[int, bytes] = {}
        """BREAK frames that the peer has not confirmed."""
        self._last_request = 0
        self._pending: dict[int, _Pending] = {}
        self._serving: dict[int, tuple[asyncio.Task[Any], float]] = {}
        """Tasks that answer requests of the peer, and until when it waits."""
        self._partials: dict[tuple[int, int], tuple[list[bytes], float]] = {}
        self._partial_bytes = 0
        self._final_left: int | None = None
        self.unconfirmed: dict[Channel, int] = {}
        """Channels that were opened here and have sent something since the last ping, or want to, and the offset
        before that."""
        self._asked: dict[Channel, int] = {}
        """The same, from before that ping; it is not answered yet."""
        self._held: dict[Channel, None] = {}
        """Channels that wait until the peer sends something."""
        self._confirmed_end = 0
        """Requests up to this place in the pipe's stream have arrived."""
        self._asked_end: int | None = None
        """What `_confirmed_end` will be when the ping is answered; None if none is under way."""
        self._has_asked = False
        """There are requests since the last ping."""
        self._silent_steps = 0
        """For how many steps of a ping's time nothing has come."""
        self._ping_timer: asyncio.TimerHandle | None = None
        self._syncs_sent = self._syncs_received = 0

    # -- frames out --------------------------------------------------------------------------------------------------

    def write(self, kind: int, id: int = 0, number: int = 0, payload: bytes | memoryview = b"", flags: int = 0) -> None:
        """Send a frame."""
        if not self.is_ended:
            self.pipe.write(HEADER.pack(kind, flags, id, number), payload)

    def left_bytes(self) -> int:
        """Of the bytes written to the pipe, those that may have left; final once the session has ended."""
        return self.pipe.left_bytes() if self._final_left is None else self._final_left

    def can_write(self, channel: Channel, cost: int) -> bool:
        """Whether a channel may write a frame at once, ahead of nobody."""
        if channel.spent + cost > channel.credit or self._line:
            return False
        return self.pipe.buffered_bytes() <= PIPE_BYTES_HIGH

    def line_up(self, channel: Channel) -> None:
        """Let a channel write when it is its turn."""
        self._line.append(channel)
        if not self._is_waiting:
            self.pump()

    def pump(self) -> None:
        """Let channels write in turn, one chunk each, while the pipe takes it."""
        self._is_waiting = True  # a channel that stands in line again must not pump in here
        while self._line and not self.is_ended:
            if self.pipe.buffered_bytes() > PIPE_BYTES_HIGH:
                self.pipe.call_when_writable(self)
                return
            self._line.popleft().write_chunk()
        self._is_waiting = False

    def report(self, channel: Channel) -> None:
        """Have the next SYNC report a channel."""
        channel.has_news = True
        self._news.append(channel)

    def send_close(self, channel: Channel) -> None:
        """Tell the peer that a channel is closed."""
        self.write(Kind.CLOSE, channel.id, channel.seq, encode_reason(channel.close_reason))

    def send_break(self, id: int, reason: str) -> None:
        """Tell the peer that a channel is broken, until it confirms."""
        if not self.is_ended:
            if len(self._breaks) >= self._bus.settings.channels_max:  # the peer confirms nothing
                del self._breaks[next(iter(self._breaks))]
            self._breaks[id] = encode_reason(reason)
            self.write(Kind.BREAK, id, 0, self._breaks[id])

    def forget(self, channel: Channel) -> None:
        """A channel has ended."""
        self._channels.pop(channel.id, None)
        self.closing.pop(channel.id, None)

    def beat(self, now: float, *, must_write: bool) -> None:
        """Send a heartbeat with the news of channels, and repeat what the peer has not confirmed."""
        news, self._news = self._news, []
        entries = []
        for channel in news:
            channel.has_news = False
            # After CLOSE the peer may have forgotten the channel; CLOSE itself has the number of frames.
            if channel.state != "ended" and not (channel.state == "closing" and channel.is_flushed):
                entries.append(SYNC_ENTRY.pack(channel.id, channel.seq, channel.granted))
        # With channels it is sent in any case: its number shows that one was lost.
        for at in range(0, len(entries) or (must_write or bool(self._channels)), SYNC_ENTRIES_MAX):
            self._syncs_sent += 1
            self.write(Kind.SYNC, 0, self._syncs_sent, b"".join(entries[at : at + SYNC_ENTRIES_MAX]))
        for channel in list(self.closing.values()):
            if now >= channel.close_deadline:
                channel.break_both("what was sent before it was closed could not be delivered in time")
            elif channel.is_flushed:
                self.send_close(channel)
        for id, reason in self._breaks.items():
            self.write(Kind.BREAK, id, 0, reason)
        for task, deadline in self._serving.values():
            if now >= deadline:
                task.cancel()  # its CANCEL was lost
        for key, (_, begun) in list(self._partials.items()):
            if now - begun > self._bus.settings.silence_seconds:
                self._drop_partial(key)
        if self._asked_end is not None:  # the ping or its answer may be lost
            self.write(Kind.CLOSE, PING_ID)

    # -- signs of life -----------------------------------------------------------------------------------------------

    @property
    def is_silent(self) -> bool:
        """Whether the peer has not answered a ping in time, and sent nothing else since."""
        return self._silent_steps >= PING_STEPS

    def note_received(self) -> None:
        """The peer has sent something."""
        self.received_at = self._bus.clock
        self._silent_steps = 0
        if self._held:
            held, self._held = self._held, {}
            for channel in held:
                channel.report_life()

    def is_confirmed(self, channel: Channel) -> bool:
        """See `bus.BusChannel`."""
        if self._bus.now() - self.received_at <= self._bus.settings.fresh_seconds or self.is_ended:
            return True
        self._held[channel] = None
        self.unconfirmed.setdefault(channel, channel.handed)
        if self._asked_end is None:
            self._ping()
        elif self.is_silent:
            asyncio.get_running_loop().call_soon(self._report_silence)
        return False

    def ping_if_due(self) -> None:
        """Ping the peer, if it was sent something since the last time: called with each tick."""
        if self._asked_end is None and (self.unconfirmed or self._has_asked):
            self._ping()

    def _ping(self) -> None:
        self._asked, self.unconfirmed = self.unconfirmed, {}
        self._asked_end = self.pipe.written_bytes
        self._has_asked = False
        self._silent_steps = 0
        self.write(Kind.CLOSE, PING_ID)
        self._step_later()

    def _step_later(self) -> None:
        seconds = self._bus.settings.answer_seconds / PING_STEPS
        self._ping_timer = asyncio.get_running_loop().call_later(seconds, self._step)

    def _step(self) -> None:
        """A part of a ping's time has passed, in which this process has read what had come."""
        self._silent_steps += 1
        self._step_later()
        if self.is_silent:
            self._report_silence()

    def _on_pong(self) -> None:
        if self._asked_end is not None:
            self._confirmed_end, self._asked_end = self._asked_end, None
            self._asked = {}
        if self._ping_timer is not None:
            self._ping_timer.cancel()

    def _report_silence(self) -> None:
        if not self.is_silent or self.is_ended:
            return
        told = self.unconfirmed | self._asked
        self._asked, self.unconfirmed = {}, {}
        for id, pending in self._pending.items():
            if pending.end > self._confirmed_end:
                self._fail(id, NoResponse(f"{self.node!r} answers no ping"))
        for channel, confirmed in told.items():
            channel.report_silence(confirmed)

    # -- frames in ---------------------------------------------------------------------------------------------------

    def receive(self, frame: bytes | memoryview) -> None:
        """Handle a frame of at least a header; kinds that are not for sessions are ignored."""
        if self.is_ended:
            return
        kind, flags, id, number = HEADER.unpack_from(frame)
        self.received_at = self._bus.clock  # as `note_received`, which costs a call for each frame
        self._silent_steps = 0
        if self._held:
            self.note_received()
        if kind == Kind.DATA:
            channel = self._channels.get(id)
            if channel is not None:
                channel.receive(number, flags, bytes(frame[HEADER_BYTES:]))
            elif id not in self._breaks:
                self.write(Kind.BREAK, id, 0, b"the channel does not exist")
            return
        handle = _HANDLERS.get(kind)
        if handle is not None:
            handle(self, id, number, flags, frame[HEADER_BYTES:])

    def _on_credit(self, id: int, number: int, flags: int, payload: bytes | memoryview) -> None:
        channel = self._channels.get(id)
        if channel is not None:
            channel.grant(number)

    def _on_sync(self, id: int, number: int, flags: int, payload: bytes | memoryview) -> None:
        if number != self._syncs_received + 1:
            self.write(Kind.RESYNC)
        self._syncs_received = number
        if len(payload) % SYNC_ENTRY.size:
            return
        for each, sent, granted in SYNC_ENTRY.iter_unpack(payload):
            channel = self._channels.get(each)
            if channel is not None:
                channel.check(sent, granted)
            elif each not in self._breaks:
                self.write(Kind.BREAK, each, 0, b"the channel does not exist")

    def _on_resync(self, id: int, number: int, flags: int, payload: bytes | memoryview) -> None:
        for channel in self._channels.values():
            if not channel.has_news:
                self.report(channel)

    def _on_reset(self, id: int, number: int, flags: int, payload: bytes | memoryview) -> None:
        self._bus.restart(self)

    def _on_open(self, id: int, number: int, flags: int, payload: bytes | memoryview) -> None:
        is_theirs = id % 2 != self._parity
        if id <= self._last_opened or not is_theirs:
            # The transport has repeated or reordered it: a second channel must not come of it.
            channel = self._channels.get(id) if is_theirs else None
            if channel is not None:
                channel.break_both("its opening was repeated")
            return
        self._last_opened = id
        service = bytes(payload).decode("utf-8", "replace")
        accept = self._bus.acceptors.get(service)
        if accept is None:
            self.write(Kind.REJECT, id, 0, encode_reason(f"it does not serve {service!r}"))
            return
        if len(self._channels) >= self._bus.settings.channels_max:
            self.write(Kind.REJECT, id, 0, encode_reason(f"it has {len(self._channels)} channels already"))
            return
        channel = self._channels[id] = Channel(self, id, service, self._bus.settings)
        channel.credit = number
        self.write(Kind.ACCEPT, id, self._bus.settings.window_bytes)
        try:
            accept(channel)
        except Exception:  # a defect of one service must not reach the others
            logger.exception("service failed to accept a channel", peer=self.node, service=service)
            channel.break_both("the service failed")

    def _on_accept(self, id: int, number: int, flags: int, payload: bytes | memoryview) -> None:
        channel = self._channels.get(id)
        if channel is not None and channel.state == "opening" and channel.opened is not None:
            channel.state = "open"
            channel.credit = number
            if not channel.opened.done():
                channel.opened.set_result(None)

    def _on_reject(self, id: int, number: int, flags: int, payload: bytes | memoryview) -> None:
        channel = self._channels.get(id)
        if channel is not None and channel.state == "opening" and channel.opened is not None:
            if not channel.opened.done():
                channel.opened.set_exception(NodeAway(f"{self.node!r} refused the channel: {decode_reason(payload)}"))
            channel.broken("refused")

    def _on_close(self, id: int, number: int, flags: int, payload: bytes | memoryview) -> None:
        channel = self._channels.get(id)
        if channel is None:
            self.write(Kind.CLOSED, id)
        else:
            channel.peer_closed(number, decode_reason(payload))

    def _on_break(self, id: int, number: int, flags: int, payload: bytes | memoryview) -> None:
        self.write(Kind.CLOSED, id)
        self._breaks.pop(id, None)
        channel = self._channels.get(id)
        if channel is not None:
            channel.broken(decode_reason(payload))

    def _on_closed(self, id: int, number: int, flags: int, payload: bytes | memoryview) -> None:
        if id == PING_ID:
            self._on_pong()
            return
        self._breaks.pop(id, None)
        channel = self.closing.get(id)
        if channel is not None:
            channel.confirmed()

    # -- one-shot messages -------------------------------------------------------------------------------------------

    def send_one_shot(self, kind: int, id: int, message: bytes) -> None:
        """Send a message without flow control, in chunks if it is long."""
        size = self.pipe.chunk_bytes
        if len(message) <= size:
            self.write(kind, id, 0, message)
            return
        view = memoryview(message)
        for number, at in enumerate(range(0, len(message), size)):
            self.write(kind, id, number, view[at : at + size], MORE if at + size < len(message) else 0)

    def _collect(self, kind: int, id: int, number: int, flags: int, payload: bytes | memoryview) -> bytes | None:
        """The whole message, once its last chunk is here. What has a gap or is too long is dropped."""
        if not number and not flags:
            return bytes(payload)
        key = (kind, id)
        partial = self._partials.get(key)
        if (partial is None) != (number == 0) or (partial is not None and len(partial[0]) != number):
            self._drop_partial(key)
            return None
        parts, _ = partial or self._partials.setdefault(key, ([], self._bus.clock))
        parts.append(bytes(payload))
        self._partial_bytes += len(payload)
        if self._partial_bytes > PARTIAL_BYTES_MAX or len(parts) > 2 * ONE_SHOT_BYTES_MAX // 1024:
            self._drop_partial(key)
            return None
        if flags & MORE:
            return None
        whole = b"".join(parts)
        self._drop_partial(key)
        return whole

    def _drop_partial(self, key: tuple[int, int]) -> None:
        parts, _ = self._partials.pop(key, ([], 0.0))
        self._partial_bytes -= sum(map(len, parts))

    def _on_publish(self, id: int, number: int, flags: int, payload: bytes | memoryview) -> None:
        message = self._collect(Kind.PUBLISH, id, number, flags, payload)
        found = None if message is None else split_one_shot(message)
        if found is not None:
            self._bus.published(self.node, found[0], found[2])

    # -- requests of this node ---------------------------------------------------------------------------------------

    async def request(self, service: str, payload: bytes, within: float) -> bytes:
        """See `Bus.request`."""
        if self.pipe.buffered_bytes() > PIPE_BYTES_MAX or len(self._pending) >= self._bus.settings.channels_max:
            raise NodeAway(f"too much waits to be sent to {self.node!r}")
        if self.is_silent:
            raise NodeAway(f"{self.node!r} answers no ping")
        id = self._bus.next_id()
        self.send_one_shot(Kind.REQUEST, id, one_shot_head(service, within) + payload)
        loop = asyncio.get_running_loop()
        pending = self._pending[id] = _Pending(loop.create_future(), self.pipe.written_bytes)
        self._has_asked = True
        timer = loop.call_later(within, self._expire, id, within)
        try:
            return await pending.future
        except asyncio.CancelledError:
            self.write(Kind.CANCEL, id)
            raise
        finally:
            timer.cancel()
            del self._pending[id]

    def _expire(self, id: int, within: float) -> None:
        self._fail(id, NoResponse(f"{self.node!r} did not answer within {within:g} s"))
        self.write(Kind.CANCEL, id)

    def _on_response(self, id: int, number: int, flags: int, payload: bytes | memoryview) -> None:
        pending = self._pending.get(id)
        if pending is None or pending.future.done():
            return
        if number != len(pending.parts):
            pending.future.set_exception(NoResponse(f"the answer of {self.node!r} was not received completely"))
            return
        pending.size += len(payload)
        if pending.size > ONE_SHOT_BYTES_MAX:
            pending.future.set_exception(NoResponse(f"the answer of {self.node!r} is too long"))
        elif flags & MORE:
            pending.parts.append(bytes(payload))
        elif pending.parts:
            pending.future.set_result(b"".join([*pending.parts, payload]))
        else:
            pending.future.set_result(bytes(payload))

    def _on_refused(self, id: int, number: int, flags: int, payload: bytes | memoryview) -> None:
        self._fail(id, NodeAway(f"{self.node!r} refused the request: {decode_reason(payload)}"))

    def _on_failed(self, id: int, number: int, flags: int, payload: bytes | memoryview) -> None:
        self._fail(id, NoResponse(f"{self.node!r} failed: {decode_reason(payload)}"))

    def _fail(self, id: int, fault: BusFault) -> None:
        pending = self._pending.get(id)
        if pending is not None and not pending.future.done():
            pending.future.set_exception(fault)

    # -- requests of the peer ----------------------------------------------------------------------------------------

    def _on_request(self, id: int, number: int, flags: int, payload: bytes | memoryview) -> None:
        if number == 0:
            if id <= self._last_request:
                return  # the transport has repeated or reordered it; it may have been handled
            self._last_request = id
        message = self._collect(Kind.REQUEST, id, number, flags, payload)
        found = None if message is None else split_one_shot(message)
        if found is None:
            return
        service, within, content = found
        responder = self._bus.responders.get(service)
        if responder is None:
            self.write(Kind.REFUSED, id, 0, encode_reason(f"it does not answer {service!r}"))
            return
        if len(self._serving) >= self._bus.settings.channels_max:
            self.write(Kind.REFUSED, id, 0, encode_reason(f"it has {len(self._serving)} unanswered requests"))
            return
        try:
            answer = responder(self.node, content)
        except Exception as error:  # noqa: BLE001 - a defect of one service must not reach the others; it is logged
            self._failed(id, service, error)
            return
        if isinstance(answer, bytes):
            self._answer(id, service, answer)
        else:
            task = self._bus.background.spawn(f"answer {service}", self._answer_later(id, service, answer))
            self._serving[id] = task, self._bus.now() + within

    async def _answer_later(self, id: int, service: str, answer: Awaitable[bytes]) -> None:
        try:
            self._answer(id, service, await answer)
        except Exception as error:  # noqa: BLE001 - a defect of one service must not reach the others; it is logged
            self._failed(id, service, error)
        finally:
            self._serving.pop(id, None)

    def _answer(self, id: int, service: str, answer: bytes) -> None:
        if len(answer) > ONE_SHOT_BYTES_MAX:
            self._failed(id, service, ValueError(f"its answer has {len(answer)} bytes"))
        else:
            self.send_one_shot(Kind.RESPONSE, id, answer)

    def _failed(self, id: int, service: str, error: Exception) -> None:
        logger.error("service failed to answer a request", peer=self.node, service=service, exc_info=error)
        self.write(Kind.FAILED, id, 0, encode_reason(f"{service!r} raised {type(error).__name__}"))

    def _on_cancel(self, id: int, number: int, flags: int, payload: bytes | memoryview) -> None:
        if id in self._serving:
            self._serving[id][0].cancel()

    # -- channels of this node ---------------------------------------------------------------------------------------

    async def connect(self, service: str, within: float) -> Channel:
        """See `Bus.connect`."""
        if len(self._channels) >= self._bus.settings.channels_max:
            raise NodeAway(f"there are {len(self._channels)} channels to {self.node!r} already")
        id = 2 * self._bus.next_id() + self._parity
        channel = self._channels[id] = Channel(self, id, service, self._bus.settings)
        channel.state = "opening"
        channel.opened = asyncio.get_running_loop().create_future()
        self.write(Kind.OPEN, id, self._bus.settings.window_bytes, service.encode())
        self.unconfirmed[channel] = 0
        end = self.pipe.written_bytes
        try:
            async with asyncio.timeout(within):
                await channel.opened
        except TimeoutError:
            channel.abort("nobody waits for it")
            raise NoResponse(f"{self.node!r} did not open the channel within {within:g} s") from None
        except ChannelClosed as closed:
            fault = NodeAway if self.is_ended and self.left_bytes() < end else NoResponse
            raise fault(f"{self.node!r} did not open the channel: {closed}") from None
        except asyncio.CancelledError:
            channel.abort("nobody waits for it")
            raise
        return channel

    # -- the end -----------------------------------------------------------------------------------------------------

    def end(self, reason: str) -> None:
        """The peer is gone: break all channels and end all requests, some in each turn of the event loop."""
        if self.is_ended:
            return
        self._final_left = self.pipe.left_bytes()
        self.is_ended = True
        for task, _ in self._serving.values():
            task.cancel()
        if self._ping_timer is not None:
            self._ping_timer.cancel()
        self._line.clear()
        self._news.clear()
        self._asked, self.unconfirmed, self._held = {}, {}, {}
        self._breaks.clear()
        self._partials.clear()
        pending = deque(self._pending.values())
        for each in pending:  # their callers wait in tasks of their own
            if not each.future.done():
                fault = NoResponse if each.end <= self._final_left else NodeAway
                each.future.set_exception(fault(f"{self.node!r} is away: {reason}"))
        self._break_some(deque(self._channels.values()), reason)

    def _break_some(self, channels: deque[Channel], reason: str) -> None:
        for _ in range(min(ENDINGS_PER_TURN, len(channels))):
            channels.popleft().broken(reason)
        if channels:
            asyncio.get_running_loop().call_soon(self._break_some, channels, reason)


_HANDLERS: Final[dict[int, Callable[[PeerSession, int, int, int, bytes | memoryview], None]]] = {
    Kind.SYNC: PeerSession._on_sync,
    Kind.RESYNC: PeerSession._on_resync,
    Kind.RESET: PeerSession._on_reset,
    Kind.PUBLISH: PeerSession._on_publish,
    Kind.REQUEST: PeerSession._on_request,
    Kind.RESPONSE: PeerSession._on_response,
    Kind.REFUSED: PeerSession._on_refused,
    Kind.FAILED: PeerSession._on_failed,
    Kind.CANCEL: PeerSession._on_cancel,
    Kind.OPEN: PeerSession._on_open,
    Kind.ACCEPT: PeerSession._on_accept,
    Kind.REJECT: PeerSession._on_reject,
    Kind.CREDIT: PeerSession._on_credit,
    Kind.CLOSE: PeerSession._on_close,
    Kind.BREAK: PeerSession._on_break,
    Kind.CLOSED: PeerSession._on_closed,
}


class BaseBus:
    """What both implementations have of `bus.Bus`. All of it runs in one event loop."""

    def __init__(self, node: NodeId, attributes: Mapping[str, str], settings: BusSettings, log_name: str) -> None:
        self._node = NodeId(check_name("node id", node))
        self.epoch = 0
        """See `bus.Bus`; implementations set it."""
        self.settings = settings
        self.background = BackgroundTasks(log_name)
        self.boot = secrets.token_hex(8)
        self.acceptors: dict[str, Acceptor] = {}
        self.responders: dict[str, Responder] = {}
        self.sessions: dict[NodeId, PeerSession] = {}
        self._attributes = _check_attributes(attributes)
        self._subscribers: dict[str, list[Subscriber]] = {}
        self._peers_watchers: list[Callable[[], None]] = []
        self._state_watchers: list[Callable[[BusState], None]] = []
        self._state = BusState(is_connected=False, since=time.time(), reason="starting")
        self._last_id = 0
        self.is_closed = False
        self._loop = asyncio.get_running_loop()
        self.clock = self._loop.time()
        """The time of the last tick: precise enough for leases, and cheaper than a system call for each frame."""
        self._ticks = 0
        self._tick_due = 0.0
        self._ticker: asyncio.TimerHandle | None = None

    # -- for implementations -----------------------------------------------------------------------------------------

    def now(self) -> float:
        """The time of the event loop."""
        return self._loop.time()

    def next_id(self) -> int:
        """An id for a message or channel. Ids grow over all sessions: none is used again in a later one."""
        self._last_id += 1
        return self._last_id

    def start_ticking(self) -> None:
        """Begin to send heartbeats and to check leases."""
        self._tick_due = self.now()
        self._tick()

    def beat(self, now: float) -> None:
        """Send heartbeats to all peers."""
        for session in list(self.sessions.values()):
            session.beat(now, must_write=True)

    def hello(self, *, epoch: int, wants_reply: bool = False) -> Hello:
        """This node as it presents itself."""
        return Hello(self._node, epoch, self.boot, self._attributes, wants_reply)

    def announce_now(self) -> None:
        """Tell all peers the new attributes."""
        raise NotImplementedError

    def broadcast(self, kind: int, id: int, message: bytes) -> None:
        """Send a one-shot message to all peers."""
        for session in self.sessions.values():
            if session.pipe.buffered_bytes() <= PIPE_BYTES_MAX:
                session.send_one_shot(kind, id, message)

    def set_state(self, *, is_connected: bool, reason: str = "") -> None:
        """Report whether the bus is usable."""
        before = self._state
        if before.is_connected == is_connected and before.reason == reason:
            return
        since = before.since if before.is_connected == is_connected else time.time()
        self._state = BusState(is_connected, since, reason)
        for watcher in list(self._state_watchers):
            _call(watcher, self._state)

    def has_room(self) -> bool:
        """Whether one more peer is accepted."""
        return len(self.sessions) < PEERS_MAX

    def join(self, hello: Hello, pipe: FramePipe) -> PeerSession:
        """A peer is here, in a new epoch: begin a session."""
        node = NodeId(hello.node)
        before = self.sessions.get(node)
        peer = PeerNode(node, hello.epoch, time.time(), dict(hello.attributes))
        session = PeerSession(self, peer, pipe)
        self.sessions[node] = session
        logger.info("node joined", node=node, epoch=hello.epoch)
        if before is not None:
            before.end("it began anew")
        self._report_peers()
        return session

    def restart(self, session: PeerSession) -> None:
        """A peer has lost this session, and begins a new one in the same epoch."""
        peer = session.peer
        if self.sessions.get(peer.node) is session:
            self.join(Hello(peer.node, peer.epoch, "", dict(peer.attributes)), session.pipe)

    def refresh(self, session: PeerSession, hello: Hello) -> None:
        """A peer has presented itself again, perhaps with other attributes."""
        session.note_received()
        if session.peer.attributes != hello.attributes:
            peer = session.peer
            session.peer = PeerNode(peer.node, peer.epoch, peer.joined, dict(hello.attributes))
            self._report_peers()

    def leave(self, session: PeerSession, reason: str) -> None:
        """A peer is gone."""
        if session.is_ended:
            return
        if self.sessions.get(session.node) is session:
            del self.sessions[session.node]
        logger.info("node is away", node=session.node, reason=reason)
        session.end(reason)
        self._report_peers()

    def published(self, node: NodeId, topic: str, payload: bytes) -> None:
        """A message for the subscribers of this node."""
        for receive in list(self._subscribers.get(topic, ())):
            _call(receive, node, payload)

    def lost_lease(self, session: PeerSession, seconds: float) -> None:
        """A peer was silent for too long."""
        self.leave(session, f"it was silent for {seconds:.1f} s")

    def _report_peers(self) -> None:
        for watcher in list(self._peers_watchers):
            _call(watcher)

    def _tick(self) -> None:
        now = self.clock = self.now()
        interval = self.settings.beat_seconds / TICKS_PER_BEAT
        late = now - self._tick_due
        if late > self.settings.silence_seconds / 4:
            # This process stood still: what peers sent meanwhile has not been read yet.
            for session in self.sessions.values():
                session.received_at += late
        for session in list(self.sessions.values()):
            if now - session.received_at > self.settings.silence_seconds - interval:
                self.lost_lease(session, now - session.received_at)
            else:
                session.ping_if_due()
        if self._ticks % TICKS_PER_BEAT == 0:
            self.beat(now)
        self._ticks += 1
        self._tick_due = now + interval
        self._ticker = self._loop.call_at(self._tick_due, self._tick)

    # -- bus.Bus -----------------------------------------------------------------------------------------------------

    @property
    def node(self) -> NodeId:
        """See `bus.Bus`."""
        return self._node

    @property
    def state(self) -> BusState:
        """See `bus.Bus`."""
        return self._state

    def on_state_changed(self, changed: Callable[[BusState], None]) -> Unsubscribe:
        """See `bus.Bus`."""
        return _register(self._state_watchers, changed)

    def peers(self) -> Mapping[NodeId, PeerNode]:
        """See `bus.Bus`."""
        return {node: session.peer for node, session in self.sessions.items()}

    def silence_of(self, node: NodeId) -> float | None:
        """See `bus.Bus`."""
        session = self.sessions.get(node)
        return None if session is None else max(0.0, self.now() - session.received_at)

    def on_peers_changed(self, changed: Callable[[], None]) -> Unsubscribe:
        """See `bus.Bus`."""
        return _register(self._peers_watchers, changed)

    def announce(self, attributes: Mapping[str, str]) -> None:
        """See `bus.Bus`."""
        self._attributes = _check_attributes(attributes)
        self.announce_now()

    def publish(self, topic: str, payload: bytes) -> None:
        """See `bus.Bus`."""
        if len(payload) > ONE_SHOT_BYTES_MAX:
            raise ValueError(f"a published message has at most {ONE_SHOT_BYTES_MAX} bytes, not {len(payload)}")
        message = one_shot_head(check_name("topic", topic)) + payload
        self.broadcast(Kind.PUBLISH, self.next_id(), message)

    def subscribe(self, topic: str, receive: Subscriber) -> Unsubscribe:
        """See `bus.Bus`."""
        return _register(self._subscribers.setdefault(check_name("topic", topic), []), receive)

    async def request(self, node: NodeId, service: str, payload: bytes, *, within: float) -> bytes:
        """See `bus.Bus`."""
        if len(payload) > ONE_SHOT_BYTES_MAX:
            raise ValueError(f"a request has at most {ONE_SHOT_BYTES_MAX} bytes, not {len(payload)}")
        return await self._session(node).request(check_name("service", service), payload, within)

    def respond(self, service: str, responder: Responder) -> Unsubscribe:
        """See `bus.Bus`."""
        return _register_one(self.responders, check_name("service", service), responder)

    async def connect(self, node: NodeId, service: str, *, within: float) -> BusChannel:
        """See `bus.Bus`."""
        return await self._session(node).connect(check_name("service", service), within)

    def serve(self, service: str, accept: Acceptor) -> Unsubscribe:
        """See `bus.Bus`."""
        return _register_one(self.acceptors, check_name("service", service), accept)

    async def aclose(self) -> None:
        """See `bus.Bus`. Implementations say goodbye first."""
        self.is_closed = True
        if self._ticker is not None:
            self._ticker.cancel()
        for session in list(self.sessions.values()):
            self.leave(session, "this node leaves")
        self.set_state(is_connected=False, reason="closed")
        await self.background.aclose()

    def _session(self, node: NodeId) -> PeerSession:
        session = self.sessions.get(node)
        if session is not None:
            return session
        if not self._state.is_connected:
            raise NodeAway(f"{node!r} cannot be reached: the bus is not connected ({self._state.reason})")
        raise NodeAway(f"{node!r} is away")


def jittered(seconds: float) -> float:
    """Between half of it and one and a half, so that nodes do not retry together."""
    return seconds * (0.5 + random.random())  # noqa: S311 - not a secret


def _check_attributes(attributes: Mapping[str, str]) -> dict[str, str]:
    found = dict(attributes)
    if len(msgspec.json.encode(found)) > ATTRIBUTES_BYTES_MAX:
        raise ValueError(f"the attributes of a node take at most {ATTRIBUTES_BYTES_MAX} bytes as JSON")
    return found


def _call(function: Callable[..., None], *arguments: object) -> None:
    try:
        function(*arguments)
    except Exception:  # a defect of one subscriber must not reach the others
        logger.exception("callback of the bus failed")


def _register(registered: list[Any], one: Any) -> Unsubscribe:
    # Wrapped, because the same function may be registered twice.
    entry = _Entry(one)
    registered.append(entry)

    def unregister() -> None:
        if entry in registered:
            registered.remove(entry)

    return unregister


class _Entry:
    __slots__ = ("_one",)

    def __init__(self, one: Callable[..., None]) -> None:
        self._one = one

    def __call__(self, *arguments: object) -> None:
        self._one(*arguments)


def _register_one(registered: dict[str, Any], name: str, one: Any) -> Unsubscribe:
    if name in registered:
        raise ValueError(f"{name!r} is registered already")
    registered[name] = one

    def unregister() -> None:
        if registered.get(name) is one:
            del registered[name]

    return unregister
