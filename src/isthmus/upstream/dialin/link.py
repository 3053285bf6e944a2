"""A link to a server that dialled in: one channel, one MCP session, shared by all callers.

The registry (`upstream.dialin.registry`) initializes and lists it before it is assigned: only then its owner is known.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Callable, Set
from contextlib import suppress
from functools import cached_property
from typing import Protocol, cast, runtime_checkable
from weakref import WeakValueDictionary

import msgspec

from isthmus.core.calls.running_call import InFlight
from isthmus.core.ports import Subscriber
from isthmus.core.settings import Limits
from isthmus.model.calls import Call, ClientCapabilities
from isthmus.model.fault_table import BadArguments, Fault, Lost, NotConnected, ServerError
from isthmus.model.features import TOPICS, Topic
from isthmus.model.names import ServerName
from isthmus.model.relay import Claim
from isthmus.transport.websocket import MessageReceiver
from isthmus.upstream.base_link import (
    PROBE_SECONDS,
    BaseLink,
    ChannelRequest,
    ChannelWriter,
    ConnectFailed,
    FollowerLink,
)
from isthmus.upstream.hub_errors import read_error, read_node_error
from isthmus.upstream.listing import Listing
from isthmus.upstream.response_waiters import CallWaiter, NodeCallWaiter, PendingRequest, Waiter
from isthmus.upstream.server_settings import Era
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import ErrorReply, Payload, Request
from isthmus.wire.mcp import legacy, modern
from isthmus.wire.mcp.forwarded_methods import QUESTIONS, ModernDialect
from isthmus.wire.mcp.messages import (
    CALLER_KEY,
    CONVERSATION_KEY,
    UPDATED,
    ConversationMark,
    Implementation,
    Members,
    NamedCaller,
    read_string,
)

_KEY = secrets.token_bytes(32)
"""The key of the hashes in marks: agents can neither reverse nor compare them."""

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
        # A caller's folders are on its own machine, not on the server's.
        return super()._envelope(frozenset(each for each in client_caps if each.partition(".")[0] != "roots"))


class NamedCallerDialect(ModernDialect):
    """The modern dialect, with the caller of each call by name: for a node of the same cluster."""

    def call_params(self, call: Call, name: str, token: int) -> bytes:
        """See `Dialect`."""
        caller = NamedCaller(call.caller.name, call.caller.tenant, call.session, call.shares_link, call.sharer)
        meta = {**call.meta, CALLER_KEY: msgspec.Raw(msgspec.json.encode(caller))}
        return super().call_params(msgspec.structs.replace(call, meta=meta), name, token)


class NodeServer(msgspec.Struct, frozen=True):
    """A server that has dialled in at another node of the cluster, as that node announces it."""

    agent: str
    tenant: str
    server_id: str
    name: str
    """Its name there; it is the same here, unless another server has it."""
    is_named: bool
    """See `AgentServer.is_named`."""
    came: float
    """When its socket was opened: the newest socket of a server is the one to use. In seconds since the epoch, but
    later than all sockets that its node knew of, as in a Lamport clock."""
    is_placed: bool = False
    """Whether it is a configured program that this node runs for all others; it has no agent then."""
    is_leaving: bool = False
    """Whether another node should run it instead, soon."""
    problem: str = ""
    """Of a program: why it does not start there. Nothing can be sent to it then. With `is_leaving`, others try."""
    first: float = 0.0
    """When it connected for the first time: all nodes list the servers of an agent in this order."""

    @property
    def is_owned(self) -> bool:
        """Whether that node has it; if not, the node gave away a program that does not start there."""
        return not (self.problem and self.is_leaving)

    @property
    def claim(self) -> Claim:
        """What its token has proven to the other node."""
        return Claim(self.agent, self.tenant, "server")

    @property
    def key(self) -> tuple[str, str]:
        """The key of its agent, and its id there."""
        return self.claim.key, self.server_id


def mark_of(agent: str, call: Call) -> ConversationMark:
    """The marks of a call's caller and conversation."""
    tenant, name = call.caller.tenant, call.caller.name
    session = _hashed(agent, tenant, name, call.session) if call.session else ""
    return ConversationMark(_hashed(agent, tenant, name), session, call.shares_link)


def _hashed(*parts: str) -> str:
    return hashlib.blake2b(msgspec.json.encode(parts), digest_size=MARK_BYTES, key=_KEY).hexdigest()


class DialInChannel(Protocol):
    """An open channel; its owner closes it."""

    @property
    def client(self) -> str | None:
        """The address of the peer."""

    def frame(self, message: bytes) -> bytes:
        """One message, ready to be written."""

    def write(self, data: bytes) -> int:
        """Send frames; returns the offset of their end in the stream of written bytes."""

    def has_left(self, offset: int) -> bool:
        """Whether the byte before `offset` may have reached the server."""

    def buffered_bytes(self) -> int:
        """Bytes that were written and not sent yet."""

    async def is_alive(self, within: float) -> bool:
        """Whether the peer answers a ping."""

    def kill(self) -> None:
        """Close it without a handshake."""

    def close(self, code: int, reason: str) -> None:
        """Start closing; nothing is received afterwards."""

    async def aclose(self, code: int = 1000, reason: str = "") -> None:
        """Close it, and wait a moment for the peer."""


class NodeChannel(DialInChannel, Protocol):
    """A channel to a server of another node. That node may be cut off, and nobody says so."""

    def is_confirmed(self) -> bool:
        """Whether that node sent something a moment ago. If not, `flush` or `silent` of its receiver follows."""


class NodeMessageReceiver(MessageReceiver, Protocol):
    """The owner of such a channel."""

    def silent(self, confirmed: int) -> None:
        """That node answers no ping, and has confirmed nothing after the offset `confirmed`."""


class NodeWriter(ChannelWriter):
    """Writes to another node. Requests are held until that node is known to live; until then they can be withdrawn."""

    __slots__ = ("_is_confirmed", "_is_due")

    def __init__(self, frame: Callable[[bytes], bytes], channel: NodeChannel) -> None:
        super().__init__(frame, channel)
        self._is_confirmed = channel.is_confirmed
        self._is_due = False
        """It will be flushed at the end of this turn of the loop: also behind requests that wait until the node sends
        something."""

    def hold(self, request: ChannelRequest) -> None:
        """See `ChannelWriter`."""
        self._held.append(request)
        if not self._is_due:
            self._is_due = True
            self._batch.add(self)

    def flush(self) -> None:
        """See `ChannelWriter`."""
        self._is_due = False
        self._held = [request for request in self._held if request.frame]  # others were abandoned
        if self._held and self._is_confirmed():
            super().flush()


@runtime_checkable
class NamedChannel(Protocol):
    """A channel whose peer wants to know the name of its server in the hub."""

    def named(self, server: str, grace: float) -> None:
        """Send the name, and how long calls wait in the hub while the server is away."""


EVERYTHING: ClientCapabilities = frozenset({"elicitation", "roots", "sampling"})
"""The client capabilities in `initialize`: all callers share the link, and some may have them."""

STRAY_SECONDS = 60.0
"""How long a question may still be about a cancelled call. It is bounded because all callers share the link: no caller
could be asked anything after the first cancelled call otherwise."""

STRAY_SECONDS_AFTER_PING = 5.0
"""The same, once the server has answered a ping that was sent after the cancellation."""

STRAYS_MAX = 64
"""Cancelled calls whose late response is watched for; some servers respond all the same."""

NUDGE_SECONDS = 0.3
"""How long a call waits before its server is pinged. A pipe notices only when it writes that its program has died, and
then closes its socket, so the ping ends the call early."""

NUDGE_GROWTH = 1.125
"""The growth of the pause with each unread ping. If a tool blocks its program for ten minutes, fewer than 50 pings
(3 KB) wait in its pipe. A full pipe would block its client, which could then answer no WebSocket ping either."""

LISTEN_ACK_SECONDS = 0.25
"""How long the first list waits for the server to confirm its subscription."""

WELCOME_BYTES_MAX = 16 * 1024

MESSAGE_BYTES_MAX = 1024 * 1024 - 1024
"""Most clients accept messages of one megabyte; the rest is for the envelope."""

NORMAL = 1000
REFUSED = 1008
FAILED = 1011


class DialInLink(BaseLink):
    """One server's channel."""

    carrier = "dial-in"
    is_duplex = True
    takes_methods = True
    keeps_initialize_result = True
    start_seconds = 60.0
    """A pipe connects before it starts its program, which may have to be installed first. Closing it meanwhile would
    end that program, and double the pipe's pause between attempts."""
    can_ask = False
    """True for a modern server: each call carries the capabilities of its caller."""

    _nudge: asyncio.TimerHandle | None = None
    _nudged_id = 0
    """The id of the last request at the last check for waiting calls."""
    _nudged_at = 0.0
    _unread: tuple[int, ...] = ()
    """The ids of pings that the server has not answered."""

    is_leaving = False
    """Its client has announced that it will close."""

    _strayed: frozenset[bytes] = frozenset()
    """The ids of cancelled calls without a response so far."""
    _strayed_at = 0.0
    _has_doubts = False
    """A question may be about a cancelled call that is not in `_strayed`."""
    _reported_id: bytes | None = None
    """The id of the ping after the last cancellation; None once it is answered."""

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
        announced: NodeServer | None = None,
    ) -> None:
        """`number` increases with every link. A server of another node was `announced` by that node."""
        super().__init__(server, me, limits)
        self.channel = channel
        # A pipe writes each frame as one line, so a line break inside would make two messages.
        if announced is None:
            self._writer = ChannelWriter(lambda message: channel.frame(jsonrpc.compact(message)), channel)
        else:
            self._writer = NodeWriter(
                lambda message: channel.frame(jsonrpc.compact(message)), cast("NodeChannel", channel)
            )
            self.modern_waiter = NodeCallWaiter
        self.claim = claim
        self.number = number
        self.came = 0.0
        """When it connected, in seconds since the epoch."""
        self.is_muxed = is_muxed
        self.announced = announced
        self.questions.client_caps = EVERYTHING
        self.listing = Listing()
        """Its first list."""
        self.trim: Callable[[Listing], Listing] | None = None
        """Leaves out tools over the agent's limit; None until the link is assigned to a server."""
        self.early: frozenset[Topic] = frozenset()
        """Changes that the server announced between its first list and its assignment."""
        self.on_changed = self._changed_early
        self.server_info: Implementation | None = None
        """The server's `serverInfo`."""
        self.welcome = b""
        """The result of `initialize`, or its equivalent for a modern server; empty if it is missing or too long."""
        self.on_leaving: Callable[[], None] | None = None
        """Called when requests may no longer be sent on it."""

    @property
    def client(self) -> str | None:
        """The address of the client."""
        return self.channel.client

    def rename(self, server: ServerName) -> None:
        """The registry has assigned the server's name."""
        self.server = self.questions.server = server

    # -- handshake -------------------------------------------------------------------------------------------------

    async def handshake(self, era: Era) -> None:
        """Initialize a legacy session, or a modern one if the server refuses that.

        Some programs behind pipes exit on unknown methods, so `server/discover` is sent first only to our own client.
        Raises as `BaseLink.handshake` does.
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
        self.can_ask = is_modern = self.dialect.era == "modern"
        if is_modern and self.announced is not None:
            self.dialect = NamedCallerDialect(self._me)
        elif is_modern and self.is_muxed:
            self.dialect = CallerMarkDialect(self._me, self.claim.key)
        answer, self.initialize_result = self.initialize_result, None
        members = {} if answer is None else jsonrpc.object_members(answer) or {}
        self.server_info = legacy.read_server_info(members.get("serverInfo"))
        if self.welcome:  # the other node has sent the server's own
            return
        if is_modern and self.server_info is not None:  # devices know only the legacy form
            self.welcome = legacy.initialize_result(legacy.LATEST, self.server_info, self.abilities())
        elif not is_modern and answer is not None and len(memoryview(answer)) <= WELCOME_BYTES_MAX:
            self.welcome = bytes(answer)

    async def _read_lists(self, topics: Set[Topic], known: Listing | None, client_caps: ClientCapabilities) -> Listing:
        """See `BaseLink`; tools over the agent's limit are left out."""
        listing = await super()._read_lists(topics, known, client_caps)
        return listing if self.trim is None else self.trim(listing)

    async def wait_for_listen_ack(self) -> None:
        """Subscribe to a modern server's changes before its first list, so that no change is missed.

        If the confirmation is late, the server is listed anyway, and again once it has confirmed.
        """
        self.listen()
        listen_ack = self.listen_ack
        if listen_ack is None:
            return
        await asyncio.wait({listen_ack}, timeout=LISTEN_ACK_SECONDS)
        if not listen_ack.done():
            listen_ack.add_done_callback(self._on_late_listen_ack)

    def _on_late_listen_ack(self, listen_ack: asyncio.Future[Fault | None]) -> None:
        if listen_ack.result() is None and not self.lost.done():
            for topic in TOPICS:
                self.on_changed(topic)

    def _changed_early(self, topic: Topic) -> None:
        self.early |= {topic}

    def read(self, text: bytes | memoryview) -> None:
        """Receive one message. Without open requests, messages longer than a notification are dropped.

        Parsing five megabytes blocks the event loop for ten milliseconds.
        """
        if len(text) > self.limits.notification_bytes and not self.requests.pending:
            self._count_garbage(bytes(text))
        else:
            super().read(text)

    def on_error_reply(self, waiter: Waiter, reply: ErrorReply) -> None:
        """See `BaseLink.on_error_reply`. Our own client reports what became of a failed call."""
        fault: Fault | ErrorReply = reply
        if self.announced is not None:
            fault = read_node_error(self.server, reply)
            if isinstance(fault, NotConnected) and isinstance(waiter, CallWaiter) and _can_wait(waiter.inflight):
                # Later: the message that the server has left that node may have come together with this one.
                asyncio.get_running_loop().call_soon(self._wait_or_fail, waiter, fault)
                return
        elif self.is_muxed:
            fault = read_error(self.server, reply)
        if isinstance(fault, ErrorReply):
            super().on_error_reply(waiter, fault)
        else:
            waiter.fail(fault)

    def _wait_or_fail(self, waiter: CallWaiter, fault: NotConnected) -> None:
        """The other node has refused a call, and would again: let it wait only for another link than this one."""
        inflight = waiter.inflight
        if inflight.is_done:
            return
        server_queue = inflight.server_queue
        if inflight.link is not self or server_queue is None or server_queue.uses(self):
            waiter.fail(fault)
        else:
            _submit_again(inflight)

    # -- requests --------------------------------------------------------------------------------------------------

    def _dispatch(self, id: int, method: str, params: bytes, waiter: Waiter) -> None:
        """Send a request, unless it is longer than a pipe accepts: that would end the connection and all its calls."""
        if len(params) > MESSAGE_BYTES_MAX and not self.is_muxed:
            name = waiter.inflight.call.name if isinstance(waiter, CallWaiter) else method
            detail = f"{len(params)} bytes, where a server that dials in is sent {MESSAGE_BYTES_MAX} at most"
            waiter.fail(BadArguments(name, detail))
        else:
            super()._dispatch(id, method, params, waiter)

    # -- questions -------------------------------------------------------------------------------------------------

    def send(self, inflight: InFlight) -> None:
        """See `core.ports.Link`. Questions between calls may be about an earlier call from now on."""
        super().send(inflight)
        self.questions.can_wait = False
        if self._nudge is None and not self.is_muxed:
            self._nudge_later()

    def _nudge_later(self) -> None:
        self._nudged_id = self.requests.last_id
        self._nudge = asyncio.get_running_loop().call_later(NUDGE_SECONDS, self._nudge_if_waiting)

    def _nudge_if_waiting(self) -> None:
        """Send a ping if a call has waited since the last check; the more are unread, the rarer they become."""
        calls = (id for id, sent in self.requests.pending.items() if isinstance(sent.waiter, CallWaiter))
        oldest = next(calls, None)
        if oldest is None or self.lost.done():
            self._nudge = None
            return
        now = asyncio.get_running_loop().time()
        pause = NUDGE_SECONDS * NUDGE_GROWTH ** len(self._unread)
        is_due = not self._unread or now - self._nudged_at >= pause
        if oldest <= self._nudged_id and is_due and self._can_reply():
            id = self.requests.next_id()
            self._unread += (id,)
            self._nudged_at = now
            self._say(jsonrpc.request(id, self.dialect.probe, self.dialect.params()))
        self._nudge_later()

    def _note_abandoned(self, inflight: InFlight) -> None:
        self.questions.note_abandoned(inflight)
        if len(self._strayed) < STRAYS_MAX:
            self._strayed |= {str(getattr(inflight.carriage, "id", "")).encode()}
        else:
            self._has_doubts = True
        self._doubt()

    def _doubt(self) -> None:
        """From now on a question may be about a cancelled call, until the server answers a ping."""
        loop = asyncio.get_running_loop()
        self._strayed_at = loop.time()
        self._reported_id = str(self.requests.next_id()).encode()
        loop.call_soon(self._sound, self._reported_id)  # after the cancel notification

    def _sound(self, id: bytes) -> None:
        if id == self._reported_id and not self.lost.done() and self._can_reply():
            self._say(jsonrpc.request(int(id), self.dialect.probe, self.dialect.params()))

    def _match_request(self, id: Payload | None) -> PendingRequest | None:
        request = self.requests.pop(id)
        if id is not None and self._unread:
            with suppress(ValueError):
                answered = int(bytes(id))  # the server has read all earlier messages, too
                self._unread = tuple(nudge for nudge in self._unread if nudge > answered)
        if request is None and id is not None and self.questions.abandoned_session is not None:
            late = bytes(id)
            if late == self._reported_id:
                self._reported_id = None
            elif late in self._strayed:  # an answered call asks no further questions
                self._strayed -= {late}
                if not self._strayed and not self._has_doubts:
                    self.questions.abandoned_session = None
        return request

    def _on_request(self, request: Request) -> None:
        questions = self.questions
        if questions.abandoned_session is not None:
            patience = STRAY_SECONDS_AFTER_PING if self._reported_id is None else STRAY_SECONDS
            if asyncio.get_running_loop().time() - self._strayed_at > patience:
                questions.abandoned_session, self._strayed, self._has_doubts = None, frozenset(), False
        if request.method in QUESTIONS:
            questions.note_question()
        was_between_calls = questions.ask_only_caller(request, self._say)
        if was_between_calls and questions.abandoned_session is not None:
            self._has_doubts = True
            self._doubt()

    # -- the channel -----------------------------------------------------------------------------------------------

    def silent(self, confirmed: int) -> None:
        """See `NodeMessageReceiver`: end the calls that were not sent, and those that may not have arrived.

        The link stays: the node may only stand still for a moment, and answers the calls that it has. Calls of a
        server with `grace` go on waiting.
        """
        why = f"{self.client} does not respond"
        for request in tuple(self.requests.pending.values()):
            waiter = request.waiter
            if not isinstance(waiter, CallWaiter) or not isinstance(request, ChannelRequest):
                continue
            if request.may_have_left and request.end > confirmed:
                self.withdraw(waiter.inflight, why)
                waiter.fail(Lost(self.server, why, executed="unknown", is_behind=True))
            elif not request.may_have_left and not _can_wait(waiter.inflight):
                self.withdraw(waiter.inflight, why)
                waiter.fail(NotConnected(self.server, why))

    def _on_broken(self, reason: str, *, is_dead: bool = True) -> None:
        """See `BaseLink`. Calls that another node provably did not get wait for another link, or fail."""
        held: list[InFlight] = []
        if self.announced is not None and not self.lost.done():
            for request in tuple(self.requests.pending.values()):
                waiter = request.waiter
                if not isinstance(waiter, CallWaiter) or not _can_wait(waiter.inflight):
                    continue
                if not request.break_off(is_dead=is_dead):
                    del self.requests.pending[request.id]
                    held.append(waiter.inflight)
        super()._on_broken(reason, is_dead=is_dead)
        for inflight in held:
            _submit_again(inflight)

    def leaves(self) -> None:
        """Its client will close: open requests are still answered, and no new ones may be sent."""
        self.is_leaving = True
        if not self.lost.done() and self.on_leaving is not None:
            self.on_leaving()

    def end(self, code: int, words: str, reason: str) -> None:
        """Close it: the peer gets `words`, and the callers of open calls get `reason`."""
        self._on_broken(reason, is_dead=False)
        self.channel.close(code, words)

    async def aclose(self) -> None:
        """Close the link; the channel ends by itself."""
        self.end(NORMAL, "", "closed by the hub")

    def _fail(self, reason: str) -> None:
        self._on_broken(reason)
        self.channel.close(REFUSED, self.lost.result())


class PlacedLink(DialInLink):
    """A link to a configured program that another node runs. A `Reconnector` owns it, as it owns all other links."""

    carrier = "node"
    knows_era = False
    knows_callers = True

    @cached_property
    def _shares(self) -> WeakValueDictionary[Subscriber, FollowerLink]:
        """Each is there as long as its subscription is."""
        return WeakValueDictionary()

    @cached_property
    def _listens(self) -> dict[bytes, FollowerLink]:
        """The subscriptions of single callers, by the ids of their requests."""
        return {}

    async def handshake(self, era: Era) -> None:
        """See `BaseLink`; nodes speak the modern era, whatever the program speaks."""
        await super().handshake("auto")

    def share_of(self, follower: Subscriber) -> FollowerLink | None:
        """See `BaseLink`."""
        if self.lost.done() or self.dialect.era != "modern":
            return None
        if (share := self._shares.get(follower)) is None:
            caller = NamedCaller(follower.caller.name, follower.caller.tenant, follower.session)
            named = {CALLER_KEY: msgspec.json.encode(caller)}

            def params(listen_filter: bytes) -> bytes:
                return self.dialect.params({"notifications": listen_filter}, follower.client_caps, named)

            share = self._shares[follower] = FollowerLink(self, self._listens, params)
        return share

    def on_notification(self, method: str, params: Members) -> None:
        """See `BaseLink`. What belongs to the subscription of one caller names that."""
        if method in (modern.ACKNOWLEDGED, UPDATED) and self._listens:
            share = self._listens.get(modern.read_subscription(params) or b"")
            if share is not None and method == modern.ACKNOWLEDGED:
                share.acknowledged(params)
                return
            if share is not None:
                if (uri := read_string(params.get("uri"))) is not None:
                    share.on_updated(uri)
                return
        super().on_notification(method, params)

    def _lose(self, reason: str) -> None:
        super()._lose(reason)
        for share in list(self._shares.values()):
            share.stop()
        self._shares.clear()
        self._listens.clear()


def _can_wait(inflight: InFlight) -> bool:
    """Whether a call that was not sent may wait for another link: a later round belongs to the link of the first."""
    return not inflight.rounds and inflight.server_queue is not None and inflight.server_queue.grace > 0


def _submit_again(inflight: InFlight) -> None:
    """Let a call that provably was not sent to the server wait for another link."""
    server_queue = inflight.server_queue
    if server_queue is not None and not inflight.is_done:
        server_queue.return_slot(inflight)
        if (fault := server_queue.submit(inflight)) is not None:
            inflight.fail(fault)


def renamed(listing: Listing, server: ServerName) -> Listing:
    """The same listing under another server name."""
    replace = msgspec.structs.replace
    return replace(
        listing,
        tools=tuple(replace(each, server=server) for each in listing.tools),
        prompts=tuple(replace(each, server=server) for each in listing.prompts),
        resources=tuple(replace(each, server=server) for each in listing.resources),
        templates=tuple(replace(each, server=server) for each in listing.templates),
    )
