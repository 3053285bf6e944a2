"""JSON-RPC messages over a channel of the bus, both ways: what a WebSocket is to a server that dials in.

Each message has its length in front, so that the messages of one turn of the event loop travel together, and a long one
travels in pieces: the bus refuses more than a few megabytes at once, and this waits. `app.cluster_servers` uses it on
both ends; on the calling node it is a `NodeChannel`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Awaitable, Callable

from isthmus.cluster.bus import BusChannel, ChannelClosed, ChannelEnd, ChannelFull
from isthmus.core.background import BackgroundTasks
from isthmus.upstream.dialin.link import NodeMessageReceiver

LENGTH = struct.Struct("<I")

_CLOSE_REASON = re.compile(r"(.*) \[(\d+) bytes received\]", re.DOTALL)
"""The reason with which one end closes a channel: how much it has received; it ignores everything after."""

PIECE_BYTES = 128 * 1024
"""The longest message of the bus; longer writes are cut. It is less than the window of a channel."""

NORMAL = 1000


class MessageDecoder:
    """Cuts messages with their lengths in front out of whatever pieces arrive. It never waits."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._parts: list[bytes] = []
        self._held = 0
        self._wanted = LENGTH.size

    def feed(self, piece: bytes) -> list[memoryview]:
        """The messages that are complete now.

        Raises:
            ValueError: a message is longer than the limit; nothing may be fed afterwards.
        """
        self._parts.append(piece)
        self._held += len(piece)
        if self._held < self._wanted:
            return []
        data = memoryview(piece if len(self._parts) == 1 else b"".join(self._parts))
        found: list[memoryview] = []
        at, self._wanted = 0, LENGTH.size
        while len(data) - at >= LENGTH.size:
            (length,) = LENGTH.unpack_from(data, at)
            if length > self._limit_bytes:
                raise ValueError(f"a message of {length} bytes, where {self._limit_bytes} are allowed")
            if len(data) - at < LENGTH.size + length:
                self._wanted = LENGTH.size + length
                break
            at += LENGTH.size + length
            found.append(data[at - length : at])
        self._held = len(data) - at
        self._parts = [bytes(data[at:])] if self._held else []
        return found


def frame(message: bytes) -> bytes:
    """One message, ready to be written."""
    return LENGTH.pack(len(message)) + message


class MessageChannel:
    """One end. Its owner sets `receiver` before it calls `start`."""

    def __init__(
        self,
        channel: BusChannel,
        background: BackgroundTasks,
        limit_bytes: int,
        ping: Callable[[float], Awaitable[bool]] | None = None,
    ) -> None:
        """Messages may have `limit_bytes`. `ping` asks the other end whether its server is alive."""
        self.receiver: NodeMessageReceiver | None = None
        self._channel = channel
        self._background = background
        self._decoder = MessageDecoder(limit_bytes)
        self._ping = ping
        self._written = 0
        """All bytes so far: the bus counts the same ones, in the same order."""
        self._unsent: list[memoryview] = []
        self._unsent_bytes = 0
        self._is_pumping = self._is_done = False
        self._last_words: str | None = None
        """The reason to close it with, once everything is sent."""
        self._received_bytes = 0
        """Bytes that were received and passed to the receiver."""
        self._peer_received_bytes: int | None = None
        """The same of the other end, once that has closed the channel: it ignored everything after these."""

    def start(self) -> None:
        """Receive what has come and will come."""
        self._channel.start(self)

    # -- for `DialInLink` ----------------------------------------------------------------------------------------------

    @property
    def client(self) -> str:
        """The node at the other end."""
        return f"node {self._channel.peer}"

    def frame(self, message: bytes) -> bytes:
        """One message, ready to be written."""
        return frame(message)

    def write(self, data: bytes) -> int:
        """Send frames; on a closed channel they are dropped and count as not sent."""
        self._written += len(data)
        if self._is_done or not self._channel.is_open:
            return self._written
        if not self._unsent and len(data) <= PIECE_BYTES and self._channel.buffered_bytes() <= PIECE_BYTES:
            self._send(data)
        else:
            whole = memoryview(data)
            self._unsent.extend(whole[at : at + PIECE_BYTES] for at in range(0, len(whole), PIECE_BYTES))
            self._unsent_bytes += len(data)
            if not self._is_pumping:
                self._is_pumping = True
                self._background.spawn(f"writing to {self._channel.peer}", self._pump())
        return self._written

    def has_left(self, offset: int) -> bool:
        """Whether the byte before `offset` may have reached the other node's receiver."""
        is_ignored = self._peer_received_bytes is not None and offset > self._peer_received_bytes
        return not is_ignored and self._channel.has_left(offset)

    def buffered_bytes(self) -> int:
        """Bytes that wait here because the other node does not read them."""
        return self._unsent_bytes

    def is_confirmed(self) -> bool:
        """Whether the other node sent something a moment ago; if not, the receiver learns what a ping found."""
        return self._is_done or self._channel.is_confirmed()

    async def is_alive(self, within: float) -> bool:
        """Whether the server at the other end answers a ping."""
        return self._channel.is_open and self._ping is not None and await self._ping(within)

    def kill(self) -> None:
        """Break it at once."""
        self._give_up()
        self._channel.abort()

    def close(self, code: int, reason: str) -> None:
        """Close it, after what was written; nothing is received afterwards, and the other end learns that."""
        reason = f"{reason} [{self._received_bytes} bytes received]"
        self.receiver = None
        if not self._is_pumping:
            self._give_up()
            self._channel.close(reason)
        elif not self._is_done:
            self._is_done = True
            self._last_words = reason

    async def aclose(self, code: int = NORMAL, reason: str = "") -> None:
        """Close it; the bus delivers what was written."""
        self.close(code, reason)

    # -- writing -------------------------------------------------------------------------------------------------------

    def _send(self, data: bytes) -> bool:
        try:
            self._channel.send(data)
        except ChannelClosed:
            return False
        except ChannelFull:  # it is asked only when there is room
            self._channel.abort("it does not read its messages")
            self.closed(ChannelEnd("broken", "it does not read its messages"))
            return False
        return True

    async def _pump(self) -> None:
        """Send what waits, as fast as the other node reads."""
        try:
            while self._unsent:
                await self._channel.drain()
                piece = self._unsent.pop(0)
                self._unsent_bytes -= len(piece)
                if not self._send(bytes(piece)):
                    return
        except ChannelClosed:
            return
        finally:
            self._is_pumping = False
        if self._last_words is not None:
            self._channel.close(self._last_words)
        elif self.receiver is not None:
            self.receiver.flush()

    def _give_up(self) -> None:
        self._is_done = True
        self.receiver = None
        self._unsent.clear()
        self._unsent_bytes = 0

    # -- for the bus ---------------------------------------------------------------------------------------------------

    def message(self, message: bytes) -> None:
        """A whole message."""
        if self.receiver is not None:
            self._received_bytes += len(message)
        try:
            found = self._decoder.feed(message)
        except ValueError as error:
            self._channel.abort(str(error))
            self.closed(ChannelEnd("broken", str(error)))
            return
        for each in found:
            if self.receiver is not None:
                self.receiver.read(each)

    def writable(self) -> None:
        """The other node reads again; `drain` reports that, too."""
        if self.receiver is not None and not self._is_pumping:
            self.receiver.flush()

    def silent(self, confirmed: int) -> None:
        """The peer answers no ping, and has confirmed nothing after the offset `confirmed`; it may answer later."""
        if self.receiver is not None:
            self.receiver.silent(confirmed)

    def closed(self, end: ChannelEnd) -> None:
        """The channel has ended. It is called once, except after `abort`."""
        receiver = self.receiver
        reason = end.reason
        if end.how == "peer" and (closing := _CLOSE_REASON.fullmatch(reason)) is not None:
            reason, self._peer_received_bytes = closing[1], int(closing[2])
        self._give_up()
        if receiver is not None:
            receiver.connection_ended(reason or "its node closed the channel")
