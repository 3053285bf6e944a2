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
from isthmus.frontends.mcp.duplex import DuplexSession
from isthmus.frontends.mcp.exchange import JsonRpcReply, refuse
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import Surface
from isthmus.model.faults import REFUSED, SENT_AND_LOST
from isthmus.model.names import ServerName
from isthmus.model.relay import MUX_SUBPROTOCOL
from isthmus.transport.flow_control import WriteBatch
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import ErrorReply, Request, Response
from isthmus.wire.mcp.calls import CALLS
from isthmus.wire.mcp.messages import CONVERSATION_KEY, Implementation, Members, read_mark
from isthmus.wire.relay import mux

HUB = "hub"
"""The caller of the local hub: the remote hub, for its own callers."""

FRONTEND = "dial"
"""The frontend's name in the audit log."""

SMALL_BYTES = 16 * 1024
"""Shorter requests are not counted; the limits on running and queued calls bound their number."""

ASKED_BYTES_MAX = 16 * 1024 * 1024
"""The maximum size of a server's unanswered requests, so that a hanging server cannot exhaust memory."""

ALL_ASKED_BYTES_MAX = 64 * 1024 * 1024
"""The same for all servers together."""


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


class Wire:
    """One socket, written once per loop iteration. It receives the socket's events; `over` resolves to the reason."""

    def __init__(self, lag_bytes: int, most_bytes: int) -> None:
        """Above `lag_bytes` unread bytes events are dropped; above `most_bytes` the connection is closed."""
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._lag_bytes = lag_bytes
        self._most_bytes = most_bytes
        self._socket: Socket | None = None
        self._take: Callable[[bytes], None] | None = None
        self._early: list[bytes] = []
        """Messages that arrived before the subprotocol was known."""
        self._unsent: list[bytes] = []
        self._cork = WriteBatch()

    def begin(self, socket: Socket, take: Callable[[bytes], None]) -> None:
        """The socket is open: pass messages to `take`, including those already received."""
        self._socket, self._take = socket, take
        early, self._early = self._early, []
        for message in early:
            take(message)
        self.flush()

    def send(self, message: bytes) -> None:
        """Send a message; ignored after the end."""
        if self.over.done():
            return
        if not self._unsent:
            self._cork.add(self)
        self._unsent.append(message)

    def is_crowded(self) -> bool:
        """Whether the hub reads too slowly."""
        return self._socket is not None and self._socket.buffered_bytes() > self._lag_bytes

    def read(self, text: bytes | memoryview) -> None:
        """Receive a message from the hub."""
        if self._take is None:
            self._early.append(bytes(text))
        else:
            self._take(bytes(text))

    def flush(self) -> None:
        """Write all queued messages."""
        if self._socket is None or self.over.done():
            return
        unsent, self._unsent = self._unsent, []
        if unsent:
            self._socket.write(b"".join([self._socket.frame(message) for message in unsent]))
            if self._socket.buffered_bytes() > self._most_bytes:
                self.fail("it does not read what it is sent")

    def fail(self, reason: str) -> None:
        """Close it from this side."""
        if self._socket is not None:
            self._socket.kill()
        self.ended(reason)

    def ended(self, reason: str) -> None:
        """The socket was closed."""
        if not self.over.done():
            self.over.set_result(reason)


_NOT_RUN = b'{"executed":"no","reason":"overloaded"}'
_GONE = b'{"executed":"no","reason":"not_connected"}'
_RUN = b'{"executed":"yes","reason":"bad_reply"}'


class OfferShare:
    """The total size of unanswered requests of all servers."""

    def __init__(self) -> None:
        self._talks: set[Talk] = set()

    def join(self, talk: Talk) -> None:
        """Include this session in the total."""
        self._talks.add(talk)

    def leave(self, talk: Talk) -> None:
        """Remove a session from the total."""
        self._talks.discard(talk)

    def asked_bytes(self) -> int:
        """The total size of the arguments of unfinished calls."""
        return sum(talk.asked_bytes() for talk in self._talks)


class Talk:
    """One server's session on one connection. Closing it cancels the hub's pending calls."""

    def __init__(
        self, running: RunningHub, share: OfferShare, offer: LocalOffer, deliver: Callable[[bytes], None], wire: Wire
    ) -> None:
        self.limit_bytes = running.hub.limits.reply_bytes - mux.HEAD_BYTES_MAX
        """The maximum size of a message to the hub; on a shared socket the hub announces it."""
        self._depth = running.hub.limits.depth
        self._share = share
        self._deliver = deliver
        self._is_over = self._is_leaving = False
        self._caller = _caller(offer)
        mcp_methods = running.mcp_methods(Implementation(offer.server_id, ME.version), has_hub_tasks=False)
        mcp_methods.frontend = FRONTEND
        self._conversation = DuplexSession(
            mcp_methods,
            self._caller,
            Surface("canonical") if offer.beside else Surface("own", offer.name),
            running.background,
            self._say,
            wire.is_crowded,
            session=f"hub of {offer.name}",
            resolve_caller=self._whose,
        )
        share.join(self)

    def _whose(self, meta: Members) -> tuple[Caller, str, bool]:
        """The remote caller, its session and whether it shares links, from the hub's metadata.

        Server state for a session survives this connection, because the hub may reconnect.
        """
        mark = read_mark(meta.get(CONVERSATION_KEY))
        if mark is None:
            return self._caller, "", False  # so any two calls may come from different programs
        return msgspec.structs.replace(self._caller, name=f"{HUB} {mark.caller}"), mark.session, mark.shares

    def take(self, message: bytes) -> None:
        """Receive a message from the hub."""
        if self._is_over:
            return
        if self._is_leaving:
            refused = self._too_late(message)
        else:
            refused = self._too_much(message) if len(message) > SMALL_BYTES else None
        if refused is not None:
            self._say(refused.body)
        else:
            self._conversation.receive(message, self._conversation.send_refusal)

    def asked_bytes(self) -> int:
        """The total size of the arguments of unfinished calls."""
        return self._conversation.arguments_bytes()

    def leave(self) -> None:
        """Refuse new calls; accepted ones are still answered."""
        self._is_leaving = True

    def _too_late(self, message: bytes) -> JsonRpcReply | None:
        """Refuse a call that was sent before the hub learned of the shutdown."""
        request = jsonrpc.decode(message, max_depth=self._depth)
        if not isinstance(request, Request) or request.method not in CALLS:
            return None
        return refuse(request.id, REFUSED, "The client that connects the server to the hub is shutting down", _GONE)

    def _too_much(self, message: bytes) -> JsonRpcReply | None:
        """Refuse a large request if its server, or all together, have too many unanswered bytes."""
        if len(message) + self.asked_bytes() <= ASKED_BYTES_MAX and (
            len(message) + self._share.asked_bytes() <= ALL_ASKED_BYTES_MAX
        ):
            return None
        request = jsonrpc.decode(message, max_depth=self._depth)
        if not isinstance(request, Request):
            return None
        return refuse(request.id, REFUSED, "The server has too many unanswered requests", _NOT_RUN)

    def _say(self, message: bytes) -> None:
        if self._is_over:
            return
        if len(message) <= self.limit_bytes:
            self._deliver(message)
        elif (instead := self._too_long(message)) is not None:
            self._deliver(instead)

    def _too_long(self, message: bytes) -> bytes | None:
        """Replace a response that is too large for the hub by an error; other large messages are dropped."""
        answer = jsonrpc.decode(message, max_depth=self._depth, max_values=None)
        if not isinstance(answer, Response | ErrorReply):
            return None
        text = f"The response has {len(message)} bytes, and the hub accepts at most {self.limit_bytes}"
        return jsonrpc.error(answer.id, SENT_AND_LOST, text, _RUN)

    def end(self, why: str) -> None:
        """The connection is gone: cancel all running calls."""
        if not self._is_over:
            self._is_over = True
            self._share.leave(self)
            self._conversation.stop_notifying()
            self._conversation.cancel_all(why)


def _caller(offer: LocalOffer) -> Caller:
    """The remote hub as a caller that sees only the offered servers."""
    return Caller(HUB, HUB, Grants(tuple(f"{name}.*" for name in (offer.name, *offer.beside))))


class Channels:
    """The servers of one connection, each on its own channel."""

    def __init__(self, wire: Wire, talk_on: Callable[[LocalOffer, Callable[[bytes], None]], Talk], ear: Ear) -> None:
        """`talk_on` starts a server's session; `ear` is notified of channel events."""
        self._wire = wire
        self._talk_on = talk_on
        self._ear = ear
        self._open: dict[int, tuple[LocalOffer, Talk]] = {}
        self._last = 0

    def open(self, offer: LocalOffer) -> None:
        """Offer a server to the hub unless it has it."""
        if any(known is offer for known, _ in self._open.values()):
            return
        self._last += 1  # channel numbers are never reused: messages for a closed one may still arrive
        number = self._last
        talk = self._talk_on(offer, lambda message: self._wire.send(mux.write_message(number, message)))
        self._open[number] = (offer, talk)
        self._wire.send(mux.write_open(mux.OpenChannel(number, offer.server_id, offer.name)))

    def take(self, text: bytes) -> None:
        """Receive a frame from the hub."""
        frame = mux.read(text)
        match frame:
            case mux.ChannelMessage(channel=number, message=message):
                if (found := self._open.get(number)) is not None:
                    found[1].take(message)
            case mux.ChannelOpened():
                self._opened(frame)
            case mux.ChannelClosed(channel=number):
                if (found := self._open.pop(number, None)) is not None:
                    found[1].end("the hub closed its channel")
                    self._ear.closed(found[0], frame.code, frame.reason)
            case mux.BadFrame(reason=reason):
                self._wire.fail(f"it violates {MUX_SUBPROTOCOL}: {reason}")
            case mux.OpenChannel() | mux.ChannelLeaving() | mux.IgnoredControl():
                pass

    def _opened(self, word: mux.ChannelOpened) -> None:
        found = self._open.get(word.channel)
        if found is None:
            return
        offer, talk = found
        if word.limit is not None:
            talk.limit_bytes = word.limit
        if word.grace is not None:
            self._ear.waits(offer, word.grace)
        if word.server is not None:
            self._ear.named(offer, word.server)

    def leave(self) -> None:
        """Ask the hub to stop sending requests; received ones are still answered."""
        for number, (_, talk) in self._open.items():
            talk.leave()
            self._wire.send(mux.write_leaving(mux.ChannelLeaving(number)))

    def end(self, why: str) -> None:
        """End every session: the connection is gone."""
        channels, self._open = self._open, {}
        for _, talk in channels.values():
            talk.end(why)


class Ear(Protocol):
    """Receives channel events."""

    def named(self, offer: LocalOffer, server: str) -> None:
        """The name of a server in the hub."""

    def waits(self, offer: LocalOffer, seconds: float) -> None:
        """How long calls wait in the hub while their server is away."""

    def closed(self, offer: LocalOffer, code: int, reason: str) -> None:
        """The hub closed a channel."""
