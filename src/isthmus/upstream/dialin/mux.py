"""The hub's end of a WebSocket that several servers share (`isthmus.mux.v1`).

`DialInRegistry.accept_mux` makes a `MuxHost` for an open socket; the host reads all frames and passes each channel to
`DialInRegistry.accept_channel`. An error on a channel ends that channel; an invalid frame ends the socket.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import msgspec

from isthmus.model.faults import Executed, Fault, Lost, NotConnected
from isthmus.model.names import ServerName
from isthmus.model.relay import Claim
from isthmus.transport.websocket import Hearer
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import ErrorReply
from isthmus.wire.relay import mux

NORMAL, REFUSED, TOO_MANY = 1000, 1008, 1013
"""Close codes of WebSocket: done, against the rules, and no room now."""


HUBS_OWN = frozenset({"executed", "reason"})
HUBS_WORDS = HUBS_OWN | {"server", "retryAfter"}
"""Members of an error's data that are a hub's word: the first two are in each of them."""

NEVER = 2**62
"""The offset of what was never written, behind everything that was."""


class MuxSocket(Protocol):
    """What a host needs of its socket; `transport.websocket.AcceptedSocket` fits."""

    @property
    def client(self) -> str | None:
        """The address that it was dialled from."""

    def frame(self, message: bytes) -> bytes:
        """One text message, ready to be written."""

    def write(self, data: bytes) -> int:
        """Send frames; return the offset of their end in all that was ever written."""

    def has_left(self, offset: int) -> bool:
        """Whether the byte before `offset` may have reached the peer."""

    def buffered_bytes(self) -> int:
        """How much the peer has not taken yet."""

    async def is_alive(self, within: float) -> bool:
        """Whether the peer gives a sign of life when it is asked for one."""

    def close(self, code: int, reason: str) -> None:
        """Say goodbye; nothing is heard afterwards."""


class ChannelAcceptor(Protocol):
    """Who takes channels; `upstream.dialin.registry.DialInRegistry` fits."""

    def accept_channel(self, channel: MuxChannel, claim: Claim, server_id: str | None, *, is_muxed: bool) -> Hearer:
        """Use an open channel as one server's, from now on its owner. It may close the channel at once."""


@runtime_checkable
class LeaveListener(Protocol):
    """Who hears what is said on a channel, and wants to know when its client is about to close it."""

    def leaves(self) -> None:
        """It still answers what it was asked, and is to be asked nothing more."""


class MuxChannel:
    """One server's part of the socket: fits what `upstream.dialin` wants of a socket."""

    __slots__ = ("_host", "is_open", "number")

    def __init__(self, host: MuxHost, number: int) -> None:
        self._host = host
        self.number = number
        self.is_open = True

    @property
    def client(self) -> str | None:
        """The address that its socket was dialled from."""
        return self._host.socket.client

    def named(self, server: str, grace: float) -> None:
        """Tell who dialled in what its server is called here, and how long calls wait for one that is away."""
        if self.is_open:
            self._host.say(mux.write_opened(mux.ChannelOpened(self.number, server, grace=grace)))

    def frame(self, message: bytes) -> bytes:
        """One message, ready to be written."""
        return self._host.socket.frame(mux.write_message(self.number, message))

    def write(self, data: bytes) -> int:
        """Send frames; after the channel's end they go nowhere, and have not left."""
        return self._host.socket.write(data) if self.is_open else NEVER

    def has_left(self, offset: int) -> bool:
        """Whether the byte before `offset` may have reached the client."""
        return self._host.socket.has_left(offset)

    def buffered_bytes(self) -> int:
        """How much its socket has not been rid of yet: who shares it waits together."""
        return self._host.socket.buffered_bytes()

    async def is_alive(self, within: float) -> bool:
        """Whether the client that dialled in gives a sign of life when it is asked for one."""
        return self.is_open and await self._host.socket.is_alive(within)

    def close(self, code: int, reason: str) -> None:
        """End the channel; nothing is heard on it afterwards, and nobody is told but the client."""
        self._host.drop(self, code, reason)

    def kill(self) -> None:
        """End it at once; what was written may still leave, since others' words are between."""
        self.close(NORMAL, "")

    async def aclose(self, code: int = NORMAL, reason: str = "") -> None:
        """End it in good order."""
        self.close(code, reason)


class MuxHost:
    """Everything on one socket. It is the socket's `Hearer`."""

    def __init__(
        self,
        socket: MuxSocket,
        claim: Claim,
        dialins: ChannelAcceptor,
        on_ended: Callable[[MuxHost], None] = lambda _host: None,
        limit_bytes: int | None = None,
    ) -> None:
        """`on_ended` hears once when the socket carries nothing more, whoever ended it.

        The client is told that a frame on the socket may have `limit_bytes`: else one server's long answer would end
        the connection of all.
        """
        self.socket = socket
        self.claim = claim
        self._dialins = dialins
        self._on_ended = on_ended
        self._limit = None if limit_bytes is None else limit_bytes - mux.HEAD_BYTES_MAX
        self._channels: dict[int, MuxChannel] = {}
        self._hearers: dict[int, Hearer] = {}
        self._is_over = False

    @property
    def channels(self) -> int:
        """Channels that are open."""
        return len(self._channels)

    # -- what the socket tells it ----------------------------------------------------------------------------------

    def read(self, text: bytes) -> None:
        """Take one frame."""
        frame = mux.read(text)
        match frame:
            case mux.ChannelMessage(channel=number, message=message):
                # What comes on a channel that was just closed was on its way already.
                if (hearer := self._hearers.get(number)) is not None:
                    hearer.read(message)
            case mux.OpenChannel():
                self._open(frame)
            case mux.ChannelLeaving(channel=number):
                self._leaves(number)
            case mux.ChannelClosed(channel=number):
                self._closed(number, _in_words(frame))
            case mux.BadFrame(reason=reason):
                self.close(REFUSED, reason)
            case mux.ChannelOpened() | mux.IgnoredControl():
                pass

    def flush(self) -> None:
        """The client reads again: each channel writes what it holds, another one first each time."""
        numbers = list(self._hearers)
        for number in numbers:
            if (hearer := self._hearers.get(number)) is not None:
                hearer.flush()
        if numbers and numbers[0] in self._hearers:
            self._hearers[numbers[0]] = self._hearers.pop(numbers[0])

    def ended(self, reason: str) -> None:
        """The socket carries nothing more, and so does no channel."""
        if self._is_over:
            return
        self._is_over = True
        for number in list(self._channels):
            self._closed(number, reason)
        self._on_ended(self)

    # -- what its owner asks of it ---------------------------------------------------------------------------------

    def close(self, code: int, reason: str) -> None:
        """Close the socket, and every channel with it."""
        if not self._is_over:
            self.socket.close(code, reason)
            self.ended(f"its connection was closed: {reason}")

    def say(self, frame: bytes) -> None:
        """Write a frame of the mux."""
        if not self._is_over:
            self.socket.write(self.socket.frame(frame))

    def drop(self, channel: MuxChannel, code: int, reason: str) -> None:
        """Forget a channel that its owner gives up, and tell the client."""
        if not channel.is_open:
            return
        channel.is_open = False
        del self._channels[channel.number]
        self._hearers.pop(channel.number, None)
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
        hearer = self._dialins.accept_channel(channel, self.claim, wanted.server_id, is_muxed=True)
        if channel.is_open:
            self._hearers[number] = hearer

    def _leaves(self, number: int) -> None:
        hearer: object = self._hearers.get(number)
        if isinstance(hearer, LeaveListener):
            hearer.leaves()

    def _closed(self, number: int, reason: str) -> None:
        channel, hearer = self._channels.pop(number, None), self._hearers.pop(number, None)
        if channel is not None:
            channel.is_open = False
        if hearer is not None:
            hearer.ended(reason)


def _in_words(closed: mux.ChannelClosed) -> str:
    if closed.reason:
        return f"it closed its channel with code {closed.code}: {closed.reason!r}"
    return f"it closed its channel with code {closed.code}"


# -- what our own client says of its servers -----------------------------------------------------------------------


class _HubError(msgspec.Struct):
    executed: Executed
    reason: str


def read_error(server: ServerName, reply: ErrorReply) -> Fault | ErrorReply:
    """What an error on a channel means.

    Who shares a socket is a hub itself, and knows best whether its server ran: where that did not answer, this is a
    fault as this hub would have found it. The server's own error comes out as the server gave it.
    """
    members = None if reply.data is None else jsonrpc.object_members(reply.data)
    if members is None or not members.keys() >= HUBS_OWN:
        return reply
    try:
        told = msgspec.json.decode(jsonrpc.render(members), type=_HubError)
    except msgspec.MsgspecError:
        return reply
    if told.executed == "yes":
        own = {name: value for name, value in members.items() if name not in HUBS_WORDS}
        return msgspec.structs.replace(reply, data=msgspec.Raw(jsonrpc.render(own)) if own else None)
    detail = reply.message.partition(": ")[2] or reply.message
    if told.executed == "no":
        return NotConnected(server, detail)
    return Lost(server, detail, executed="unknown", is_behind=True)
