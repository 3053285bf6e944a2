"""How links over one channel write their requests: stdio, WebSocket, and servers that dial in.

Requests go out together, at the end of a turn of the event loop. While the server has too much unread, requests are
held here: a held request can still be withdrawn for certain, a written one cannot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from isthmus.transport.flow_control import WriteBatch
from isthmus.upstream.waiters import PendingRequest, Waiter

HOLD_ABOVE_BYTES = 64 * 1024
"""With more than this unread by the server, further requests are held here, where they can still be withdrawn."""


class Channel(Protocol):
    """Carries bytes to the server and counts them."""

    def write(self, data: bytes) -> int:
        """Send `data`; return the offset of its end in everything ever written."""

    def has_left(self, offset: int) -> bool:
        """Whether the byte before `offset` may have reached the server."""

    def buffered_bytes(self) -> int:
        """Bytes that the server has not read yet."""

    def kill(self) -> None:
        """End the channel at once."""

    async def aclose(self) -> None:
        """End the channel in good order, within seconds."""


class ChannelRequest(PendingRequest):
    """A request on a channel. `frame` holds its bytes until they are written; they end at the offset `end` then."""

    __slots__ = ("_channel", "end", "frame")

    def __init__(self, id: int, waiter: Waiter, frame: bytes, channel: Channel) -> None:
        super().__init__(id, waiter)
        self.frame: bytes | None = frame
        self.end = 0
        self._channel = channel

    @property
    def may_have_left(self) -> bool:
        """False while the request can still be withdrawn for certain. A written request will be read one day."""
        return self.frame is None

    def abandon(self) -> None:
        """Write nothing, if nothing is written yet."""
        if self.frame is not None:
            self.frame = b""

    def break_off(self, *, is_dead: bool) -> bool:
        """A living server may still read what was written; a dead one got only what had left."""
        self.abandon()
        return self.frame is None and (not is_dead or self._channel.has_left(self.end))


class ChannelWriter:
    """Writes the messages of one link; `channel` is None until it is open."""

    __slots__ = ("_batch", "_held", "channel", "frame")

    def __init__(self, frame: Callable[[bytes], bytes], channel: Channel | None = None) -> None:
        """`frame` turns a message into the bytes that are written."""
        self.channel = channel
        self.frame = frame
        self._batch = WriteBatch()
        self._held: deque[ChannelRequest] = deque()

    def hold(self, request: ChannelRequest) -> None:
        """Hold a request until the end of this turn of the loop, or until the server reads again."""
        if not self._held:
            self._batch.add(self)
        self._held.append(request)

    def flush(self) -> None:
        """Write held requests: at the end of a turn of the loop, or when the server reads again."""
        channel = self.channel
        while self._held and channel is not None and channel.buffered_bytes() <= HOLD_ABOVE_BYTES:
            batch: list[ChannelRequest] = []
            frames: list[bytes] = []
            total_bytes = 0
            while self._held and total_bytes <= HOLD_ABOVE_BYTES:
                request = self._held.popleft()
                if request.frame:  # it was not abandoned
                    batch.append(request)
                    frames.append(request.frame)
                    total_bytes += len(request.frame)
            if not batch:
                return
            end = channel.write(b"".join(frames)) - total_bytes
            for request, frame in zip(batch, frames, strict=True):
                end += len(frame)
                request.end = end
                request.frame = None

    def write(self, message: bytes) -> None:
        """Write a message that has no response, ahead of held requests."""
        if self.channel is not None:
            self.channel.write(self.frame(message))

    def can_reply(self) -> bool:
        """Whether the server reads what it is sent. A server that asks without reading would fill our memory."""
        return self.channel is not None and self.channel.buffered_bytes() <= HOLD_ABOVE_BYTES
