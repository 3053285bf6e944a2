"""What is said on one connection to a hub: a conversation for each server, plain or on channels of one socket.

To the hub each local server is an MCP server like any other; what answers is a `DuplexSession` with the little hub that
keeps it. `app.dial_line` opens the socket and decides which of the two it carries.
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
from isthmus.frontends.mcp.responses import JsonRpcReply, refuse
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import Surface
from isthmus.model.faults import REFUSED, SENT_AND_LOST
from isthmus.model.names import ServerName
from isthmus.model.relay import MUX_SUBPROTOCOL
from isthmus.transport.write_batching import WriteBatch
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import ErrorReply, Request, Response
from isthmus.wire.mcp.calls import CALLS
from isthmus.wire.mcp.hub_meta import CONVERSATION_KEY, read_mark
from isthmus.wire.mcp.messages import Implementation, Members
from isthmus.wire.relay import mux

HUB = "hub"
"""Who calls here: the hub that was dialled, in the name of whoever calls it."""

FACE = "dial"
"""What the audit log calls this way in."""

SMALL_BYTES = 16 * 1024
"""Requests this short are not counted: there are at most as many as a server may have calls running and queued."""

ASKED_BYTES_MAX = 16 * 1024 * 1024
"""What one server may have been asked and not have answered: one that stands still must not fill the memory."""

ALL_ASKED_BYTES_MAX = 64 * 1024 * 1024
"""The same, of all servers together."""


@dataclass(frozen=True, slots=True)
class LocalOffer:
    """One local server, as it is given to the hub."""

    name: ServerName
    """What it is called here."""
    server_id: str
    """What it is called under its agent."""
    beside: tuple[ServerName, ...] = ()
    """Other servers that are part of it, where a relay has room for one alone: tools are called `server.tool` then."""


class Socket(Protocol):
    """What is needed of a socket; `transport.websocket.DialledSocket` fits."""

    def frame(self, message: bytes) -> bytes:
        """One text message, ready to be written."""

    def write(self, data: bytes) -> int:
        """Send frames."""

    def buffered_bytes(self) -> int:
        """How much the hub has not taken yet."""

    def kill(self) -> None:
        """End it at once."""


class Wire:
    """One socket, written once a turn of the loop. It is the socket's `Hearer`; `over` ends with the reason."""

    def __init__(self, lag_bytes: int, most_bytes: int) -> None:
        """A hub with over `lag_bytes` unread is told no events, one with over `most_bytes` is given up."""
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._lag_bytes = lag_bytes
        self._most_bytes = most_bytes
        self._socket: Socket | None = None
        self._take: Callable[[bytes], None] | None = None
        self._early: list[bytes] = []
        """What the hub said before anybody knew what it had agreed to."""
        self._unsent: list[bytes] = []
        self._cork = WriteBatch()

    def begin(self, socket: Socket, take: Callable[[bytes], None]) -> None:
        """The socket is open: `take` hears what comes on it, and what has come already."""
        self._socket, self._take = socket, take
        early, self._early = self._early, []
        for message in early:
            take(message)
        self.flush()

    def send(self, message: bytes) -> None:
        """Send one message; after the end it goes nowhere."""
        if self.over.done():
            return
        if not self._unsent:
            self._cork.add(self)
        self._unsent.append(message)

    def is_crowded(self) -> bool:
        """Whether the hub reads slowly."""
        return self._socket is not None and self._socket.buffered_bytes() > self._lag_bytes

    def read(self, text: bytes) -> None:
        """Take one message of the hub's."""
        if self._take is None:
            self._early.append(text)
        else:
            self._take(text)

    def flush(self) -> None:
        """Write what is there to be sent."""
        if self._socket is None or self.over.done():
            return
        unsent, self._unsent = self._unsent, []
        if unsent:
            self._socket.write(b"".join([self._socket.frame(message) for message in unsent]))
            if self._socket.buffered_bytes() > self._most_bytes:
                self.fail("it does not read what it is sent")

    def fail(self, reason: str) -> None:
        """End it from here."""
        if self._socket is not None:
            self._socket.kill()
        self.ended(reason)

    def ended(self, reason: str) -> None:
        """The socket carries nothing more."""
        if not self.over.done():
            self.over.set_result(reason)


_NOT_RUN = b'{"executed":"no","reason":"overloaded"}'
_GONE = b'{"executed":"no","reason":"not_connected"}'
_RUN = b'{"executed":"yes","reason":"bad_reply"}'


class OfferShare:
    """How much all servers together have been asked and have not answered, for as long as that matters."""

    def __init__(self) -> None:
        self._talks: set[Talk] = set()

    def join(self, talk: Talk) -> None:
        """Count this conversation in."""
        self._talks.add(talk)

    def leave(self, talk: Talk) -> None:
        """It is over."""
        self._talks.discard(talk)

    def asked_bytes(self) -> int:
        """How long the arguments are of all calls that have not ended."""
        return sum(talk.asked_bytes() for talk in self._talks)


class Talk:
    """One server's conversation on one connection. Its end withdraws what the hub still waits for."""

    def __init__(
        self, running: RunningHub, share: OfferShare, offer: LocalOffer, deliver: Callable[[bytes], None], wire: Wire
    ) -> None:
        self.limit_bytes = running.hub.limits.reply_bytes - mux.HEAD_BYTES_MAX
        """How long a message to the hub may be; it says so itself where a socket is shared."""
        self._depth = running.hub.limits.depth
        self._share = share
        self._deliver = deliver
        self._is_over = self._is_leaving = False
        self._caller = _caller(offer)
        mcp_methods = running.mcp_methods(Implementation(offer.server_id, ME.version), has_hub_tasks=False)
        mcp_methods.face = FACE
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
        """Who calls the hub, in which conversation, and whether that shares links, as the hub marks its calls.

        What a server keeps for a conversation outlasts this one: the hub may only have lost its connection.
        """
        mark = read_mark(meta.get(CONVERSATION_KEY))
        if mark is None:
            return self._caller, "", False  # which says that any two may be two programs'
        return msgspec.structs.replace(self._caller, name=f"{HUB} {mark.caller}"), mark.session, mark.shares

    def take(self, message: bytes) -> None:
        """Take one message of the hub's."""
        if self._is_over:
            return
        if self._is_leaving:
            refused = self._too_late(message)
        else:
            refused = self._too_much(message) if len(message) > SMALL_BYTES else None
        answer = refused or self._conversation.receive(message)
        if answer is not None:
            self._say(answer.body)

    def asked_bytes(self) -> int:
        """How long the arguments are of calls that have not ended."""
        return self._conversation.arguments_bytes()

    def leave(self) -> None:
        """Take no further calls; those that were taken are answered."""
        self._is_leaving = True

    def _too_late(self, message: bytes) -> JsonRpcReply | None:
        """Why a call is not taken that was on its way when the hub was told that we are ending."""
        request = jsonrpc.decode(message, max_depth=self._depth)
        if not isinstance(request, Request) or request.method not in CALLS:
            return None
        return refuse(request.id, REFUSED, "The client that brings the server to the hub is ending", _GONE)

    def _too_much(self, message: bytes) -> JsonRpcReply | None:
        """Why a long request is not taken: its server has enough, or all of them together have."""
        if len(message) + self.asked_bytes() <= ASKED_BYTES_MAX and (
            len(message) + self._share.asked_bytes() <= ALL_ASKED_BYTES_MAX
        ):
            return None
        request = jsonrpc.decode(message, max_depth=self._depth)
        if not isinstance(request, Request):
            return None
        return refuse(request.id, REFUSED, "The server has too much to read already", _NOT_RUN)

    def _say(self, message: bytes) -> None:
        if self._is_over:
            return
        if len(message) <= self.limit_bytes:
            self._deliver(message)
        elif (instead := self._too_long(message)) is not None:
            self._deliver(instead)

    def _too_long(self, message: bytes) -> bytes | None:
        """What the hub is told instead of an answer that would end the connection; nothing else is that important."""
        answer = jsonrpc.decode(message, max_depth=self._depth, max_values=None)
        if not isinstance(answer, Response | ErrorReply):
            return None
        text = f"The answer has {len(message)} bytes, and the hub takes {self.limit_bytes} at most"
        return jsonrpc.error(answer.id, SENT_AND_LOST, text, _RUN)

    def end(self, why: str) -> None:
        """Nobody can be answered any more: withdraw what the server works on."""
        if not self._is_over:
            self._is_over = True
            self._share.leave(self)
            self._conversation.stop_notifying()
            self._conversation.cancel_all(why)


def _caller(offer: LocalOffer) -> Caller:
    """The hub, which sees what is offered to it and nothing else that is here."""
    return Caller(HUB, HUB, Grants(tuple(f"{name}.*" for name in (offer.name, *offer.beside))))


class Channels:
    """The servers of one connection, each on a channel of its own."""

    def __init__(self, wire: Wire, talk_on: Callable[[LocalOffer, Callable[[bytes], None]], Talk], ear: Ear) -> None:
        """`talk_on` begins the conversation of a server; `ear` hears what becomes of channels."""
        self._wire = wire
        self._talk_on = talk_on
        self._ear = ear
        self._open: dict[int, tuple[LocalOffer, Talk]] = {}
        self._last = 0

    def open(self, offer: LocalOffer) -> None:
        """Give the hub a server, unless it has it."""
        if any(known is offer for known, _ in self._open.values()):
            return
        self._last += 1  # never the number of a channel that was closed: something may still be on its way there
        number = self._last
        talk = self._talk_on(offer, lambda message: self._wire.send(mux.write_message(number, message)))
        self._open[number] = (offer, talk)
        self._wire.send(mux.write_open(mux.OpenChannel(number, offer.server_id, offer.name)))

    def take(self, text: bytes) -> None:
        """Take one frame of the hub's."""
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
                self._wire.fail(f"it does not speak {MUX_SUBPROTOCOL} as it should: {reason}")
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
        """Have the hub send nothing more, while what it sent is still answered."""
        for number, (_, talk) in self._open.items():
            talk.leave()
            self._wire.send(mux.write_leaving(mux.ChannelLeaving(number)))

    def end(self, why: str) -> None:
        """End every conversation: the connection is gone."""
        channels, self._open = self._open, {}
        for _, talk in channels.values():
            talk.end(why)


class Ear(Protocol):
    """Who hears what becomes of channels."""

    def named(self, offer: LocalOffer, server: str) -> None:
        """What a server is called in the hub."""

    def waits(self, offer: LocalOffer, seconds: float) -> None:
        """For how long calls wait in the hub while their server is away."""

    def closed(self, offer: LocalOffer, code: int, reason: str) -> None:
        """The hub does not want a channel any more."""
