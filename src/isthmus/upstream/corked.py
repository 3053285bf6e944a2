"""What stdio and WebSocket links share: requests are written at the end of a turn of the loop, onto one channel.

A request is held here until then, or for as long as the server has too much unread: what is held can still be
withdrawn for certain, what is in the channel cannot. `upstream.stdio` and `upstream.websocket` add the channel.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

from isthmus.core.settings import Limits
from isthmus.model.names import ServerName
from isthmus.transport.write_batching import WriteBatch
from isthmus.upstream.duplex import DuplexLink, SentRequest
from isthmus.upstream.waiters import Waiter, lost
from isthmus.wire import jsonrpc
from isthmus.wire.mcp.messages import Implementation

HOLD_ABOVE_BYTES = 64 * 1024
"""With more than this unread by the server, further requests wait here, where they can still be withdrawn for
certain; what is in the pipe cannot."""


class Channel(Protocol):
    """What carries bytes to the server and keeps account of them."""

    def write(self, data: bytes) -> int:
        """Send `data`; return the offset of its end in all that was ever written."""

    def has_left(self, offset: int) -> bool:
        """Whether the byte before `offset` may have reached the server."""

    def buffered_bytes(self) -> int:
        """How much the server has not taken yet."""

    def kill(self) -> None:
        """End it at once."""

    async def aclose(self) -> None:
        """End it in good order, within seconds."""


class HeldRequest(SentRequest):
    """One request: who waits, and where its last byte is. `frame` is what is held back, until it is written."""

    __slots__ = ("end", "frame")

    def __init__(self, id: int, waiter: Waiter, frame: bytes) -> None:
        self.id = id
        self.waiter = waiter
        self.frame: bytes | None = frame
        self.end = 0


class CorkedLink(DuplexLink[HeldRequest]):
    """Many requests share a channel; they are written together."""

    def __init__(self, server: ServerName, me: Implementation, limits: Limits) -> None:
        super().__init__(server, me, limits)
        self._held: dict[int, HeldRequest] = {}
        self._cork = WriteBatch()
        self._channel: Channel | None = None

    @abstractmethod
    def _frame(self, message: bytes) -> bytes:
        """One message as it is written to the channel."""

    # -- sending ---------------------------------------------------------------------------------------------------

    def _dispatch(self, id: int, method: str, params: bytes, waiter: Waiter) -> None:
        """Hold the request until the end of this turn of the loop, or until the server reads again."""
        if self._channel is None or self.lost.done():
            waiter.fail(lost(self.server, self._reason(), may_have_left=False))
            return
        self._pending[id] = sent = HeldRequest(id, waiter, self._frame(jsonrpc.request(id, method, params)))
        if not self._held:
            self._cork.add(self)
        self._held[id] = sent

    def flush(self) -> None:
        """Write what is held, at the end of a turn of the loop or when the server reads again, until it stops."""
        channel = self._channel
        while self._held and channel is not None and channel.buffered_bytes() <= HOLD_ABOVE_BYTES:
            self._write(self._batch(), channel)

    def _batch(self) -> list[HeldRequest]:
        """The longest held requests, as many as may be written at once."""
        batch: list[HeldRequest] = []
        total_bytes = 0
        while self._held and total_bytes <= HOLD_ABOVE_BYTES:
            sent = self._held.pop(next(iter(self._held)))
            batch.append(sent)
            total_bytes += len(sent.frame or b"")
        return batch

    def _write(self, batch: list[HeldRequest], channel: Channel) -> None:
        frames = [sent.frame or b"" for sent in batch]
        end = channel.write(b"".join(frames)) - sum(map(len, frames))
        for sent, frame in zip(batch, frames, strict=True):
            end += len(frame)
            sent.end = end
            sent.frame = None

    def _say(self, message: bytes) -> None:
        if self._channel is not None and not self.lost.done():
            self._channel.write(self._frame(message))

    def _can_reply(self) -> bool:
        return self._channel is not None and self._channel.buffered_bytes() <= HOLD_ABOVE_BYTES

    # -- giving up -------------------------------------------------------------------------------------------------

    def _has_gone(self, sent: HeldRequest) -> bool:
        """Only what is held here can be kept from the server: what was written will be read one day."""
        return sent.frame is None

    def _take_back(self, sent: HeldRequest) -> None:
        self._held.pop(sent.id, None)

    def _may_have_left(self, sent: HeldRequest, *, is_dead: bool) -> bool:
        """A living server may yet read what was written; from a dead one, what is still here is safe."""
        if sent.frame is not None or self._channel is None:
            return False
        return not is_dead or self._channel.has_left(sent.end)

    # -- ending ----------------------------------------------------------------------------------------------------

    def _cut(self) -> None:
        if self._channel is not None:
            self._channel.kill()

    def _on_broken(self, reason: str, *, is_dead: bool = True) -> None:
        self._held = {}
        super()._on_broken(reason, is_dead=is_dead)

    async def aclose(self) -> None:
        """Give the channel up in good order; whatever is still on it ends as lost."""
        if self._channel is not None:
            self._on_broken("closed by the hub", is_dead=False)
            await self._channel.aclose()
