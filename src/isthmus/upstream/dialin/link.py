"""A link to a server that dialled in: one channel, one MCP session, shared by all callers.

The registry (`upstream.dialin.registry`) initializes and lists it before it is assigned: only then its owner is known.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Callable, Set
from contextlib import suppress
from typing import Protocol, runtime_checkable

import msgspec

from isthmus.core.calls.inflight import InFlight
from isthmus.core.settings import Limits
from isthmus.model.calls import NO_CAPABILITIES, Call, ClientCapabilities
from isthmus.model.faults import BadArguments, Fault, ServerError
from isthmus.model.features import TOPICS, Topic
from isthmus.model.names import ServerName
from isthmus.model.relay import Claim
from isthmus.upstream.dialect import ModernDialect
from isthmus.upstream.dialin.mux import read_error
from isthmus.upstream.duplex import DuplexLink, SentRequest
from isthmus.upstream.link import PROBE_SECONDS, ConnectFailed
from isthmus.upstream.listing import Listing
from isthmus.upstream.settings import Era
from isthmus.upstream.waiters import CallWaiter, Waiter
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import ErrorReply, Payload, Request
from isthmus.wire.mcp import legacy, modern
from isthmus.wire.mcp.messages import CONVERSATION_KEY, ConversationMark, Implementation

_KEY = secrets.token_bytes(32)
"""Whoever reads a mark learns nothing from it, and two agents cannot compare theirs."""

MARK_BYTES = 16


class CallerMarkDialect(ModernDialect):
    """The modern dialect, with a mark on each call."""

    def __init__(self, me: Implementation, agent: str) -> None:
        super().__init__(me)
        self._agent = agent

    def call_params(self, call: Call, name: str, token: int) -> bytes:
        """See `Dialect`."""
        meta = {**call.meta, CONVERSATION_KEY: msgspec.Raw(msgspec.json.encode(mark_of(self._agent, call)))}
        return super().call_params(msgspec.structs.replace(call, meta=meta), name, token)

    def _envelope(self, client_caps: ClientCapabilities) -> bytes:
        # A caller's folders are on its own machine, where the server is not.
        return super()._envelope(frozenset(each for each in client_caps if each.partition(".")[0] != "roots"))


def mark_of(agent: str, call: Call) -> ConversationMark:
    """The marks of a call's caller and conversation."""
    tenant, name = call.caller.tenant, call.caller.name
    session = _hashed(agent, tenant, name, call.session) if call.session else ""
    return ConversationMark(_hashed(agent, tenant, name), session, call.shares_link)


def _hashed(*parts: str) -> str:
    return hashlib.blake2b(msgspec.json.encode(parts), digest_size=MARK_BYTES, key=_KEY).hexdigest()


class DialInChannel(Protocol):
    """An open channel, whose owner closes it."""

    @property
    def client(self) -> str | None:
        """The address that it was dialled from."""

    def frame(self, message: bytes) -> bytes:
        """One message, ready to be written."""

    def write(self, data: bytes) -> int:
        """Send frames; return the offset of their end in all that was ever written."""

    def has_left(self, offset: int) -> bool:
        """Whether the byte before `offset` may have reached the server."""

    def buffered_bytes(self) -> int:
        """How much the server has not taken yet."""

    async def is_alive(self, within: float) -> bool:
        """Whether the peer gives a sign of life when it is asked for one."""

    def kill(self) -> None:
        """End it at once."""

    def close(self, code: int, reason: str) -> None:
        """Say goodbye; nothing is heard afterwards, and nobody need wait."""

    async def aclose(self, code: int = 1000, reason: str = "") -> None:
        """Say goodbye and wait a moment for the peer's."""


@runtime_checkable
class NamedChannel(Protocol):
    """A channel whose peer wants to know what its server is called in the hub."""

    def named(self, server: str, grace: float) -> None:
        """Tell it, and for how long calls wait in the hub while the server is away."""


EVERYTHING: ClientCapabilities = frozenset({"elicitation", "roots", "sampling"})
"""What is said to be answered when the server is greeted: there is one link, and somebody may be able to."""

STRAY_SECONDS = 60.0
"""How long a server may still ask about a call that was given up. Where there is one link for all, nobody could be
asked anything after the first such call, were it for ever."""

TOLD_SECONDS = 5.0
"""How long, once it has shown by an answer that it has read of its being given up."""

STRAYS_MAX = 64
"""Calls that were given up and whose answer, which some servers give all the same, is looked out for."""

NUDGE_SECONDS = 0.3
"""How long a call goes unanswered until its server is nudged. A pipe whose program has died finds that out when it is
to write to it, and only then closes its socket; whoever waits must not wait for long."""

NUDGE_GROWTH = 1.125
"""By how much longer the pause is for each nudge that was not read. A tool that keeps its program from reading for ten
minutes leaves fewer than 50 of them in its pipe, not 3 KB: a full one would stop whoever writes to it, who would then
answer no WebSocket ping either, and be taken for gone."""

HEARING_SECONDS = 0.25
"""How long a server may take to say that it tells of changes before it is listed."""

WELCOME_BYTES_MAX = 16 * 1024

MESSAGE_BYTES_MAX = 1024 * 1024 - 1024
"""What most take: a message of a megabyte, less what is around its parameters."""

NORMAL = 1000
REFUSED = 1008
FAILED = 1011


class Trimming(Protocol):
    """Whose a link is."""

    def trim(self, listing: Listing) -> Listing:
        """The listing without what is too much."""


class DialInLink(DuplexLink):
    """One server's channel. `on_gone` hears once that it carries nothing more."""

    carrier = "dial-in"
    start_seconds = 60.0
    """A pipe dials before it starts the program behind it, which may have to be installed first. To be closed meanwhile
    would end that program, and have the pipe wait twice as long from then on."""
    can_ask = False
    """Set for a modern server, which is told with each call what its caller can be asked."""

    _nudge: asyncio.TimerHandle | None = None
    _nudged_id = 0
    """The last request when it was last looked whether a call waits."""
    _nudged_at = 0.0
    _unread: tuple[int, ...] = ()
    """Nudges of which it has not shown that it has read them."""

    is_leaving = False
    """Its client has said that it is about to end."""

    _strayed: frozenset[bytes] = frozenset()
    """Ids of calls that were given up, of which nothing was heard since."""
    _strayed_at = 0.0
    _has_doubts = False
    """It asked, or may ask, about something that is none of those."""
    _told_id: bytes | None = None
    """The request by whose answer it shows that it has read of their being given up; None once it has."""

    def __init__(
        self,
        server: ServerName,
        me: Implementation,
        limits: Limits,
        channel: DialInChannel,
        claim: Claim,
        number: int = 0,
        *,
        is_muxed: bool,
    ) -> None:
        """`number` is larger than that of every link that came before."""
        super().__init__(server, me, limits)
        self._offered: DialInChannel = channel
        self._channel = channel
        self.claim = claim
        self.number = number
        self.came = 0.0
        """When it came, in seconds since the epoch."""
        self.is_muxed = is_muxed
        self.client_caps = EVERYTHING
        self.listing = Listing()
        """What it listed when it came."""
        self.seat: Trimming | None = None
        """Whose it is; None until that is known."""
        self.early: frozenset[Topic] = frozenset()
        """What it has announced since it was listed, until somebody keeps it."""
        self.on_changed = self._changed_early
        self.who: Implementation | None = None
        """Who it says it is."""
        self.welcome = b""
        """Its answer to `initialize`, or what that would have been; empty if it does not say, or says too much."""
        self.on_gone: Callable[[DialInLink], None] | None = None
        self.on_leaving: Callable[[], None] | None = None
        """Hears that nothing more is to be sent on it."""

    @property
    def client(self) -> str | None:
        """The address that it dialled from."""
        return self._offered.client

    @property
    def channel(self) -> DialInChannel:
        """What carries it."""
        return self._offered

    # -- greeting --------------------------------------------------------------------------------------------------

    async def handshake(self, era: Era) -> None:
        """Open the link in an earlier way, and in the modern one if the server refuses that.

        Pipes end with the program behind them, and some of those end on what they do not know: only our own client,
        which is a hub itself, is asked for its era first. Raises as `BaseLink.handshake` does.
        """
        try:
            await super().handshake(era)
        except ConnectFailed as failed:
            if not isinstance(failed.__cause__, ServerError) or self.lost.done():
                raise
            discovery = await self._discover(PROBE_SECONDS)
            if discovery is None:
                raise
            self._discovered(discovery)
        self.can_ask = self.dialect.era == "modern"

    async def list_features(
        self,
        topics: Set[Topic] = frozenset(TOPICS),
        known: Listing | None = None,
        client_caps: ClientCapabilities = NO_CAPABILITIES,
    ) -> Listing:
        """See `BaseLink.list_features`; what its agent may not have is left out."""
        listing = await super().list_features(topics, known, client_caps)
        return listing if self.seat is None else self.seat.trim(listing)

    async def hear(self) -> None:
        """Have a modern server tell of changes before it is listed: of one between the two nobody would be told.

        One that does not say in a moment that it tells is listed all the same, and again once it does.
        """
        self.listen()
        listen_ack = self.listen_ack
        if listen_ack is None:
            return
        await asyncio.wait({listen_ack}, timeout=HEARING_SECONDS)
        if not listen_ack.done():
            listen_ack.add_done_callback(self._on_late_listen_ack)

    def _on_late_listen_ack(self, listen_ack: asyncio.Future[Fault | None]) -> None:
        if listen_ack.result() is None and not self.lost.done():
            for topic in TOPICS:
                self.on_changed(topic)

    def _changed_early(self, topic: Topic) -> None:
        self.early |= {topic}

    def _on_initialized(self, answer: Payload, welcome: legacy.InitializeResult) -> None:
        self.who = legacy.read_server_info(welcome.serverInfo)
        self.welcome = bytes(answer) if len(memoryview(answer)) <= WELCOME_BYTES_MAX else b""

    def _discovered(self, discovery: modern.DiscoverResult) -> None:
        super()._discovered(discovery)
        if self.is_muxed:
            self.dialect = CallerMarkDialect(self._me, self.claim.key)
        self.who = legacy.read_server_info((jsonrpc.object_members(discovery.meta) or {}).get(modern.SERVER_KEY))
        if self.who is not None:  # as it would have greeted a device, which knows no other way
            self.welcome = legacy.initialize_result(legacy.LATEST, self.who, self.abilities(), None)

    def read(self, text: bytes) -> None:
        """Take one message of the server; one that only an answer may be as long as, only if one is waited for.

        To read five megabytes takes ten milliseconds, during which nobody else is heard.
        """
        if len(text) > self.limits.notification_bytes and not self._pending:
            self._log_garbage(text)
        else:
            super().read(text)

    def on_error_reply(self, waiter: Waiter, reply: ErrorReply) -> None:
        """See `BaseLink.on_error_reply`. A hub, like our own client, reports what became of a failed call."""
        told = read_error(self.server, reply) if self.is_muxed or self.hubs else reply
        if isinstance(told, ErrorReply):
            super().on_error_reply(waiter, told)
        else:
            waiter.fail(told)

    # -- requests --------------------------------------------------------------------------------------------------

    def _dispatch(self, id: int, method: str, params: bytes, waiter: Waiter) -> None:
        """As on any such link; what a pipe could not take would end its connection, and every call on it."""
        if len(params) > MESSAGE_BYTES_MAX and not self.is_muxed:
            name = waiter.inflight.call.name if isinstance(waiter, CallWaiter) else method
            detail = f"{len(params)} bytes, where a server that dials in is sent {MESSAGE_BYTES_MAX} at most"
            waiter.fail(BadArguments(name, detail))
        else:
            super()._dispatch(id, method, params, waiter)

    # -- questions -------------------------------------------------------------------------------------------------

    def send(self, inflight: InFlight) -> None:
        """See `core.ports.Link`. What is asked between calls from now on may be about one that is over."""
        super().send(inflight)
        self.can_wait = False
        if self._nudge is None and not self.is_muxed:
            self._nudge_later()

    def _nudge_later(self) -> None:
        self._nudged_id = self._last_id
        self._nudge = asyncio.get_running_loop().call_later(NUDGE_SECONDS, self._nudge_if_waiting)

    def _nudge_if_waiting(self) -> None:
        """Say something if a call has been on its way since the last look; unread, it is said less and less often."""
        calls = (id for id, sent in self._pending.items() if isinstance(sent.waiter, CallWaiter))
        oldest = next(calls, None)
        if oldest is None or self.lost.done():
            self._nudge = None
            return
        if oldest <= self._nudged_id and self._is_nudge_due() and self._can_reply():
            id = self.next_id()
            self._unread += (id,)
            self._nudged_at = asyncio.get_running_loop().time()
            self._say(jsonrpc.request(id, self.dialect.probe, self.dialect.params()))
        self._nudge_later()

    def _is_nudge_due(self) -> bool:
        pause = NUDGE_SECONDS * NUDGE_GROWTH ** len(self._unread)
        return not self._unread or asyncio.get_running_loop().time() - self._nudged_at >= pause

    def _has_read(self, id: Payload) -> None:
        """What it answers it has read, and with that whatever was written before."""
        with suppress(ValueError):
            answered = int(bytes(id))
            self._unread = tuple(nudge for nudge in self._unread if nudge > answered)

    def _note_abandoned(self, inflight: InFlight) -> None:
        super()._note_abandoned(inflight)
        if len(self._strayed) < STRAYS_MAX:
            self._strayed |= {str(inflight.carriage).encode()}
        else:
            self._has_doubts = True
        self._doubt()

    def _doubt(self) -> None:
        """From now on the server may ask about what is over, until it shows that it does not."""
        loop = asyncio.get_running_loop()
        self._strayed_at = loop.time()
        self._told_id = str(self.next_id()).encode()
        loop.call_soon(self._sound, self._told_id)  # which has to come after what says that the call is given up

    def _sound(self, id: bytes) -> None:
        if id == self._told_id and not self.lost.done() and self._can_reply():
            self._say(jsonrpc.request(int(id), self.dialect.probe, self.dialect.params()))

    def _answered(self, id: Payload | None) -> SentRequest | None:
        sent = super()._answered(id)
        if id is not None and self._unread:
            self._has_read(id)
        if sent is None and id is not None and self.abandoned_session is not None:
            self._answered_late(bytes(id))
        return sent

    def _answered_late(self, id: bytes) -> None:
        """What has been answered asks nothing more."""
        if id == self._told_id:
            self._told_id = None
        elif id in self._strayed:
            self._strayed -= {id}
            if not self._strayed and not self._has_doubts:
                self.abandoned_session = None

    def _on_request(self, request: Request) -> None:
        if self.abandoned_session is not None:
            patience = TOLD_SECONDS if self._told_id is None else STRAY_SECONDS
            if asyncio.get_running_loop().time() - self._strayed_at > patience:
                self.abandoned_session, self._strayed, self._has_doubts = None, frozenset(), False
        super()._on_request(request)

    def _on_question_between_calls(self, request: Request, say: Callable[[bytes], None]) -> None:
        super()._on_question_between_calls(request, say)
        if self.abandoned_session is not None:
            self._has_doubts = True
            self._doubt()

    # -- the channel -----------------------------------------------------------------------------------------------

    def leaves(self) -> None:
        """Its client is about to end: what was sent is still answered, and nothing more is to be sent."""
        self.is_leaving = True
        if not self.lost.done() and self.on_leaving is not None:
            self.on_leaving()

    def ended(self, reason: str) -> None:
        """The channel carries nothing more."""
        self._on_broken(reason)

    def end(self, code: int, words: str, reason: str) -> None:
        """Close it: `words` are told to the peer, `reason` to whoever has calls on it."""
        self._on_broken(reason, is_dead=False)
        self._offered.close(code, words)

    async def aclose(self) -> None:
        """Give it up; the channel sees to its end by itself."""
        self.end(NORMAL, "", "closed by the hub")

    def _frame(self, message: bytes) -> bytes:
        # A pipe writes each frame as one line, so that a line break inside would make two messages of it.
        return self._offered.frame(jsonrpc.compact(message))

    def _cut(self) -> None:
        self._offered.close(REFUSED, self._lost_reason())

    def _lose(self, reason: str) -> None:
        if not self.lost.done():
            super()._lose(reason)
            if self.on_gone is not None:
                self.on_gone(self)


def renamed(listing: Listing, server: ServerName) -> Listing:
    """The same listing of a server that is called otherwise."""
    replace = msgspec.structs.replace
    return replace(
        listing,
        tools=tuple(replace(each, server=server) for each in listing.tools),
        prompts=tuple(replace(each, server=server) for each in listing.prompts),
        resources=tuple(replace(each, server=server) for each in listing.resources),
        templates=tuple(replace(each, server=server) for each in listing.templates),
    )
