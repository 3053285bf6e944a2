"""The hub's end of a WebSocket that several servers share (`isthmus.mux.v1`).

`DialInRegistry.accept_mux` makes a `MuxHost` for an open socket; the host reads all frames and passes each channel to
`DialInRegistry.accept_channel`. An error on a channel ends that channel; an invalid frame ends the socket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from isthmus.model.relay import Claim
from isthmus.transport.websocket import MessageReceiver
from isthmus.upstream.dialin.link import NORMAL, REFUSED, DialInChannel, DialInLink
from isthmus.wire.relay import mux

TOO_MANY = 1013
"""Close code of WebSocket: try again later."""

NEVER = 2**62
"""The offset of data that was never written: larger than every real offset."""


class ChannelAcceptor(Protocol):
    """Accepts channels; `upstream.dialin.registry.DialInRegistry` fits."""

    def accept_channel(
        self, channel: MuxChannel, claim: Claim, server_id: str | None, *, is_muxed: bool
    ) -> MessageReceiver:
        """Take over an open channel as the connection of one server. It may close the channel at once."""


class MuxChannel:
    """One server's part of the socket; it is a `DialInChannel`."""

    __slots__ = ("_host", "is_open", "number")

    def __init__(self, host: MuxHost, number: int) -> None:
        self._host = host
        self.number = number
        self.is_open = True

    @property
    def client(self) -> str | None:
        """The address of the peer."""
        return self._host.socket.client

    def named(self, server: str, grace: float) -> None:
        """Send the client the server's name in the hub, and how long calls wait while the server is away."""
        if self.is_open:
            self._host.say(mux.write_opened(mux.ChannelOpened(self.number, server, grace=grace)))

    def frame(self, message: bytes) -> bytes:
        """One message, ready to be written."""
        return self._host.socket.frame(mux.write_message(self.number, message))

    def write(self, data: bytes) -> int:
        """Send frames; on a closed channel they are dropped and count as not sent."""
        return self._host.socket.write(data) if self.is_open else NEVER

    def has_left(self, offset: int) -> bool:
        """Whether the byte before `offset` may have reached the client."""
        return self._host.socket.has_left(offset)

    def buffered_bytes(self) -> int:
        """Bytes that the shared socket has not sent yet."""
        return self._host.socket.buffered_bytes()

    async def is_alive(self, within: float) -> bool:
        """Whether the client answers a ping."""
        return self.is_open and await self._host.socket.is_alive(within)

    def close(self, code: int, reason: str) -> None:
        """Close the channel; nothing is received afterwards. Only the client is notified."""
        self._host.drop(self, code, reason)

    def kill(self) -> None:
        """Close it at once; written frames may still be sent, because they are among those of other channels."""
        self.close(NORMAL, "")

    async def aclose(self, code: int = NORMAL, reason: str = "") -> None:
        """Close it normally."""
        self.close(code, reason)


class MuxHost:
    """All channels of one socket. It is the socket's `MessageReceiver`."""

    def __init__(
        self,
        socket: DialInChannel,
        claim: Claim,
        dialins: ChannelAcceptor,
        on_ended: Callable[[MuxHost], None] = lambda _host: None,
        limit_bytes: int | None = None,
    ) -> None:
        """`on_ended` is called once when the socket has ended, whichever side ended it.

        The client learns that a frame may have `limit_bytes`: otherwise one server's long response would end the
        connection of all.
        """
        self.socket = socket
        self.claim = claim
        self._dialins = dialins
        self._on_ended = on_ended
        self._limit = None if limit_bytes is None else limit_bytes - mux.HEAD_BYTES_MAX
        self._channels: dict[int, MuxChannel] = {}
        self._receivers: dict[int, MessageReceiver] = {}
        self._is_done = False

    @property
    def channels(self) -> int:
        """The number of open channels."""
        return len(self._channels)

    def links(self) -> list[DialInLink]:
        """The links to the servers of this socket."""
        receivers: Iterable[object] = self._receivers.values()
        return [each for each in receivers if isinstance(each, DialInLink)]

    # -- callbacks of the socket -----------------------------------------------------------------------------------

    def read(self, text: bytes | memoryview) -> None:
        """Receive one frame."""
        frame = mux.read(bytes(text))
        match frame:
            case mux.ChannelMessage(channel=number, message=message):
                # A message for a channel that was just closed is dropped.
                if (receiver := self._receivers.get(number)) is not None:
                    receiver.read(message)
            case mux.OpenChannel():
                self._open(frame)
            case mux.ChannelLeaving(channel=number):
                leaving: object = self._receivers.get(number)
                if isinstance(leaving, DialInLink):
                    leaving.leaves()
            case mux.ChannelClosed(channel=number, code=code, reason=reason):
                detail = f": {reason!r}" if reason else ""
                self._closed(number, f"it closed its channel with code {code}{detail}")
            case mux.BadFrame(reason=reason):
                self.close(REFUSED, reason)
            case mux.ChannelOpened() | mux.IgnoredControl():
                pass

    def flush(self) -> None:
        """The client reads again: each channel writes its buffer, a different one first each time."""
        numbers = list(self._receivers)
        for number in numbers:
            if (receiver := self._receivers.get(number)) is not None:
                receiver.flush()
        if numbers and numbers[0] in self._receivers:
            self._receivers[numbers[0]] = self._receivers.pop(numbers[0])

    def connection_ended(self, reason: str) -> None:
        """The socket has ended, and all channels with it."""
        if self._is_done:
            return
        self._is_done = True
        for number in list(self._channels):
            self._closed(number, reason)
        self._on_ended(self)

    # -- writing and closing ---------------------------------------------------------------------------------------

    def close(self, code: int, reason: str) -> None:
        """Close the socket, and every channel with it."""
        if not self._is_done:
            self.socket.close(code, reason)
            self.connection_ended(f"its connection was closed: {reason}")

    def say(self, frame: bytes) -> None:
        """Write a frame of the mux."""
        if not self._is_done:
            self.socket.write(self.socket.frame(frame))

    def drop(self, channel: MuxChannel, code: int, reason: str) -> None:
        """Remove a channel that its owner closes, and notify the client."""
        if not channel.is_open:
            return
        channel.is_open = False
        del self._channels[channel.number]
        self._receivers.pop(channel.number, None)
        self.say(mux.write_closed(mux.ChannelClosed(channel.number, code, reason)))

    # -- channels --------------------------------------------------------------------------------------------------

    def _open(self, wanted: mux.OpenChannel) -> None:
        number = wanted.channel
        if number in self._channels:
            self.close(REFUSED, f"channel {number} is open already")
            return
        channel = MuxChannel(self, number)
        if len(self._channels) >= mux.CHANNELS_MAX:
            reason = f"a connection may have {mux.CHANNELS_MAX} channels at most"
            self.say(mux.write_closed(mux.ChannelClosed(number, TOO_MANY, reason)))
            return
        self._channels[number] = channel
        self.say(mux.write_opened(mux.ChannelOpened(number, limit=self._limit)))
        receiver = self._dialins.accept_channel(channel, self.claim, wanted.server_id, is_muxed=True)
        if channel.is_open:
            self._receivers[number] = receiver

    def _closed(self, number: int, reason: str) -> None:
        channel, receiver = self._channels.pop(number, None), self._receivers.pop(number, None)
        if channel is not None:
            channel.is_open = False
        if receiver is not None:
            receiver.connection_ended(reason)
