"""The MCP sessions on one connection to a remote hub: one per server, on a plain socket or on channels of a shared one.

The remote hub sees each local server as an ordinary MCP server; a `DuplexSession` of the local hub answers it.
`app.dial` opens the socket and decides whether it is shared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from isthmus.app.hub import RunningHub
from isthmus.app.links import ME
from isthmus.app.served_session import ServedServer, ServedSession, UnansweredBytes
from isthmus.frontends.mcp.duplex import CallOrigin
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import Surface
from isthmus.model.names import ServerName
from isthmus.model.relay import MUX_SUBPROTOCOL
from isthmus.transport.flow_control import WriteBatch
from isthmus.wire.mcp.messages import CONVERSATION_KEY, Implementation, Members, read_mark
from isthmus.wire.relay import mux

HUB = "hub"
"""The caller of the local hub: the remote hub, for its own callers."""

FRONTEND = "dial"
"""The frontend's name in the audit log."""


@dataclass(frozen=True, slots=True)
class LocalOffer:
    """A local server that is offered to the hub."""

    name: ServerName
    """Its local name."""
    server_id: str
    """Its id at the agent."""
    beside: tuple[ServerName, ...] = ()
    """The other servers that share it at a relay that accepts only one; tools are then named `server.tool`."""


class Socket(Protocol):
    """The part of `transport.websocket.DialledSocket` that is used here."""

    def frame(self, message: bytes) -> bytes:
        """Encode a text message as a frame."""

    def write(self, data: bytes) -> int:
        """Send frames."""

    def buffered_bytes(self) -> int:
        """The number of unsent bytes."""

    def kill(self) -> None:
        """Close it at once."""


class BatchedSocket:
    """One socket, written once per loop iteration. It receives the socket's events; `ended` resolves to the reason."""

    def __init__(self, lag_bytes: int, unsent_bytes_max: int) -> None:
        """Above `lag_bytes` unread bytes events are dropped; above `unsent_bytes_max` the connection is closed."""
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._lag_bytes = lag_bytes
        self._unsent_bytes_max = unsent_bytes_max
        self._socket: Socket | None = None
        self._on_message: Callable[[bytes], None] | None = None
        self._early: list[bytes] = []
        """Messages that arrived before the subprotocol was known."""
        self._unsent: list[bytes] = []
        self._batch = WriteBatch()

    def begin(self, socket: Socket, on_message: Callable[[bytes], None]) -> None:
        """The socket is open: pass messages to `on_message`, including those already received."""
        self._socket, self._on_message = socket, on_message
        early, self._early = self._early, []
        for message in early:
            on_message(message)
        self.flush()

    def send(self, message: bytes) -> None:
        """Send a message; ignored after the end."""
        if self.ended.done():
            return
        if not self._unsent:
            self._batch.add(self)
        self._unsent.append(message)

    def is_backed_up(self) -> bool:
        """Whether the hub reads too slowly."""
        return self._socket is not None and self._socket.buffered_bytes() > self._lag_bytes

    def read(self, text: bytes | memoryview) -> None:
        """Receive a message from the hub."""
        if self._on_message is None:
            self._early.append(bytes(text))
        else:
            self._on_message(bytes(text))

    def flush(self) -> None:
        """Write all queued messages."""
        if self._socket is None or self.ended.done():
            return
        unsent, self._unsent = self._unsent, []
        if unsent:
            self._socket.write(b"".join([self._socket.frame(message) for message in unsent]))
            if self._socket.buffered_bytes() > self._unsent_bytes_max:
                self.fail("it does not read its messages")

    def fail(self, reason: str) -> None:
        """Close it from this side."""
        if self._socket is not None:
            self._socket.kill()
        self.connection_ended(reason)

    def connection_ended(self, reason: str) -> None:
        """The socket was closed."""
        if not self.ended.done():
            self.ended.set_result(reason)


def serve_offer(
    running: RunningHub,
    share: UnansweredBytes,
    offer: LocalOffer,
    deliver: Callable[[bytes], None],
    wire: BatchedSocket,
) -> ServedSession:
    """Start the session of one server on a connection."""
    caller = _caller(offer)

    def origin_of(meta: Members) -> CallOrigin:
        """The remote caller from the hub's metadata.

        Server state for a session survives this connection, because the hub may reconnect.
        """
        mark = read_mark(meta.get(CONVERSATION_KEY))
        if mark is None:
            return CallOrigin(caller)  # so any two calls may come from different programs
        return CallOrigin(msgspec.structs.replace(caller, name=f"{HUB} {mark.caller}"), mark.session, mark.shares)

    served = ServedServer(
        Implementation(offer.server_id, ME.version),
        caller,
        Surface("canonical") if offer.beside else Surface("own", offer.name),
        origin_of,
        session=f"hub of {offer.name}",
        frontend=FRONTEND,
        gone="The client that connects the server to the hub is shutting down",
    )
    return ServedSession(running, share, served, deliver, wire.is_backed_up)


def _caller(offer: LocalOffer) -> Caller:
    """The remote hub as a caller that sees only the offered servers."""
    return Caller(HUB, HUB, Grants(tuple(f"{name}.*" for name in (offer.name, *offer.beside))))


class Channels:
    """The servers of one connection, each on its own channel."""

    def __init__(
        self,
        wire: BatchedSocket,
        open_session: Callable[[LocalOffer, Callable[[bytes], None]], ServedSession],
        listener: SessionListener,
    ) -> None:
        """`open_session` starts a server's session; `listener` is notified of channel events."""
        self._wire = wire
        self._open_session = open_session
        self._listener = listener
        self._open: dict[int, tuple[LocalOffer, ServedSession]] = {}
        self._last = 0

    def open(self, offer: LocalOffer) -> None:
        """Offer a server to the hub unless it has it."""
        if any(known is offer for known, _ in self._open.values()):
            return
        self._last += 1  # channel numbers are never reused: messages for a closed one may still arrive
        number = self._last
        session = self._open_session(offer, lambda message: self._wire.send(mux.write_message(number, message)))
        self._open[number] = (offer, session)
        self._wire.send(mux.write_open(mux.OpenChannel(number, offer.server_id, offer.name)))

    def receive(self, text: bytes) -> None:
        """Receive a frame from the hub."""
        frame = mux.read(text)
        match frame:
            case mux.ChannelMessage(channel=number, message=message):
                if (found := self._open.get(number)) is not None:
                    found[1].receive(message)
            case mux.ChannelOpened():
                self._opened(frame)
            case mux.ChannelClosed(channel=number):
                if (found := self._open.pop(number, None)) is not None:
                    found[1].end("the hub closed its channel")
                    self._listener.channel_closed(found[0], frame.code, frame.reason)
            case mux.BadFrame(reason=reason):
                self._wire.fail(f"it violates {MUX_SUBPROTOCOL}: {reason}")
            case mux.OpenChannel() | mux.ChannelLeaving() | mux.IgnoredControl():
                pass

    def _opened(self, word: mux.ChannelOpened) -> None:
        found = self._open.get(word.channel)
        if found is None:
            return
        offer, session = found
        if word.limit is not None:
            session.limit_bytes = word.limit
        if word.grace is not None:
            self._listener.grace_announced(offer, word.grace)
        if word.server is not None:
            self._listener.server_named(offer, word.server)

    def leave(self) -> None:
        """Ask the hub to stop sending requests; received ones are still answered."""
        for number, (_, session) in self._open.items():
            session.leave()
            self._wire.send(mux.write_leaving(mux.ChannelLeaving(number)))

    def stop_reporting(self) -> None:
        """The hub shuts down: answer its open calls, and report no more channel events."""
        self._listener = _IGNORED

    def end(self, why: str) -> None:
        """End every session: the connection is gone."""
        channels, self._open = self._open, {}
        for _, session in channels.values():
            session.end(why)


class SessionListener(Protocol):
    """Receives channel events."""

    def server_named(self, offer: LocalOffer, server: str) -> None:
        """The name of a server in the hub."""

    def grace_announced(self, offer: LocalOffer, seconds: float) -> None:
        """How long calls wait in the hub while their server is away."""

    def channel_closed(self, offer: LocalOffer, code: int, reason: str) -> None:
        """The hub closed a channel."""


class _IgnoringListener:
    """Ignores channel events."""

    def server_named(self, offer: LocalOffer, server: str) -> None:
        """The name of a server in the hub."""

    def grace_announced(self, offer: LocalOffer, seconds: float) -> None:
        """How long calls wait in the hub while their server is away."""

    def channel_closed(self, offer: LocalOffer, code: int, reason: str) -> None:
        """The hub closed a channel."""


_IGNORED = _IgnoringListener()
