"""The base of every link to a server: the handshake, calls and the hub's own requests, listings and notifications.

Each kind of link (stdio, Streamable HTTP, …) is one class below `BaseLink`; two of them have a variant one level
further down (`CallerNamedRpcLink`, `PlacedLink`). What a link does with its server's messages is here. Its parts are
the table of pending requests (`response_waiters.RequestTable`), the server's questions (`questions.ServerQuestions`),
its subscriptions, and for links over one channel the writer of messages (`ChannelWriter`). A kind without such a
channel overrides how a request is sent (`_dispatch`) and how other messages are (`_say`). Reconnectors own links;
server queues send calls on them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence, Set
from functools import cached_property, partial
from typing import Protocol

import msgspec
import structlog

from isthmus.core.calls.running_call import InFlight
from isthmus.core.event_loop import read_then
from isthmus.core.ports import Subscriber
from isthmus.core.settings import Limits
from isthmus.core.watch.server_tasks import LinkSession
from isthmus.model.calls import (
    NO_CAPABILITIES,
    ClientCapabilities,
    LogLevel,
    LogMessage,
    Progress,
)
from isthmus.model.fault_table import BadReply, Fault, NotConnected, ServerError
from isthmus.model.features import TASK_ABILITIES, TOPICS, Ability, Topic
from isthmus.model.names import ServerName
from isthmus.model.tasks import ServerTaskState
from isthmus.transport.flow_control import WriteBatch
from isthmus.upstream.credential_redaction import redact_error
from isthmus.upstream.hub_errors import read_hub_error
from isthmus.upstream.listing import Listing, read_topic
from isthmus.upstream.questions import ServerQuestions
from isthmus.upstream.response_waiters import (
    CANCEL,
    LATER_BYTES,
    CallWaiter,
    HubRequest,
    IgnoredResponse,
    PendingRequest,
    RequestTable,
    TaskResultWaiter,
    Waiter,
    log_alone,
    lost,
    waiter_for,
)
from isthmus.upstream.server_settings import Era
from isthmus.upstream.subscriptions import LegacySubscriptions, ModernSubscriptions
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import ErrorReply, Malformed, Notification, Payload, Request, Response
from isthmus.wire.mcp import legacy, modern
from isthmus.wire.mcp.forwarded_methods import (
    COMPLETED,
    ELICITATION_ID,
    METHODS,
    QUESTIONS,
    LegacyDialect,
    McpDialect,
    ModernDialect,
)
from isthmus.wire.mcp.messages import (
    CANCELLED,
    LOGGED,
    NO_HUBS,
    PROGRESS,
    TOPIC_OF,
    UPDATED,
    Implementation,
    Members,
    ServerCapabilities,
    cancelled_params,
    read_hubs,
    read_log,
    read_progress,
    read_string,
    token_of,
)
from isthmus.wire.mcp.tasks import ID, STATUS_NOTIFICATION, state_of

# -- links over one channel --------------------------------------------------------------------------------------------
#
# Stdio, WebSocket, and servers that dial in. Requests go out together, at the end of a turn of the event loop. While
# the server has too much unread, requests are held here: a held request can still be withdrawn for certain, a written
# one cannot.

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
        """A living server may still read what was written; a dead one received only what had left."""
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
        # A list: few are held, and a deque without entries takes 760 bytes on each of many thousand links.
        self._held: list[ChannelRequest] = []

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
                request = self._held.pop(0)
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
        """Whether the server reads its messages. Replies to a server that only sends would fill our memory."""
        return self.channel is not None and self.channel.buffered_bytes() <= HOLD_ABOVE_BYTES


# -- all links ---------------------------------------------------------------------------------------------------------

log = structlog.get_logger(__name__)

PROBE_SECONDS = 3.0
"""How long a server may take to answer `server/discover` before `initialize` is sent as well. Some old servers ignore
requests before `initialize`; a slow modern server still answers the probe first."""

ASK_SECONDS = 30.0
"""How long the hub waits for the response to its own request; a listing may take a server a while."""

NOT_MODERN = (400, 404, 405, 406, 415)
"""HTTP statuses with which a legacy server answers the unknown probe."""

REFUSED_VERSION = -32022

INSTRUCTIONS_LENGTH_MAX = 16_384
"""A server's instructions are truncated to this: every client would read them."""

GARBAGE_MAX = 10_000
"""Lines in a row that are not messages: more than any banner. Such a server is given up."""

RELISTEN_SECONDS = 5.0
"""Pause before the hub subscribes again at a server that ended its subscription."""

OTHERS: dict[str, frozenset[Ability]] = {"legacy": frozenset({"task_handles"}), "modern": frozenset({"tasks"})}
"""Abilities that a server of this era cannot have, whatever it declares."""


def _ignore(*_: object) -> None:
    """The default callback. One function for all links: there may be ten thousand of them."""


class ConnectFailed(Exception):
    """A link could not be made; the message tells the operator why.

    `login` is the URL where the server describes its login. `wants_login` means that a person has to log in first.
    `status` is the HTTP status of the response, if there was one.
    """

    login: str | None = None
    wants_login = False
    status: int | None = None


class WrongCarrier(ConnectFailed):
    """The peer does not speak this transport; it may speak another one."""


class BaseLink:
    """A link that is being made, in use, or lost.

    `lost` ends with the reason when the link is lost; `on_lost` is called first, before the calls on the link end.
    `on_doubt` is called when the server may be gone, `on_changed` when a list changed, `on_updated` when a resource
    changed, `on_log` for log lines that belong to no call, `on_renewed` after a new session, in which the server has
    forgotten everything, and `on_gap` when notifications may have been missed. If an attempt fails while `is_probing`,
    the probe may be the cause.
    """

    # There may be ten thousand links, so slots are used; what a kind adds is in its own dictionary.
    __slots__ = (
        "__dict__",
        "_garbage",
        "_me",
        "_writer",
        "capabilities",
        "dialect",
        "hubs",
        "instructions",
        "is_persistent",
        "is_probing",
        "limits",
        "listen_ack",
        "login_hint",
        "lost",
        "on_changed",
        "on_credentials_refused",
        "on_doubt",
        "on_gap",
        "on_gone",
        "on_log",
        "on_lost",
        "on_progress",
        "on_renewed",
        "on_task",
        "on_unauthorized",
        "on_updated",
        "place",
        "questions",
        "redact",
        "requests",
        "server",
    )

    is_duplex = False
    """Whether all messages share one stream, so that a question may not say which call it belongs to."""

    modern_waiter: type[CallWaiter] = CallWaiter
    """Gets the response of a modern server to a call."""

    can_ask = True
    """Whether the server may ask callers questions, and may therefore offer more to callers that can answer."""

    lists_by_client = True
    """Whether lists are read separately for these callers; if not, all callers get the same lists."""

    takes_methods = False
    """Whether the server accepts any MCP method, not only tool calls."""

    initialize_result: msgspec.Raw | None = None
    """The server's `initialize` result, or its equivalent for a modern server; see `keeps_initialize_result`."""

    keeps_initialize_result = False
    """Whether that is stored; also on a link that is dedicated to one caller."""

    closing_cancels = False
    """Whether the server cancels a request whose connection is closed; others get a notification."""

    recheck: Callable[[], Awaitable[None]] | None = None
    """Reads the tools again, before calls are sent in a new session."""

    may_send: Callable[[InFlight], bool] | None = None
    """Whether a call may be sent on this link, where its tool may differ from what the caller saw."""

    fence: Callable[[], str | None] | None = None
    """For a program that one node may run: why this node must not send calls any more; None while it may."""

    knows_era = True
    """Whether this link tells the server's era; a link to another node does not."""

    knows_callers = False
    """Whether it leads to a node of the cluster, which knows callers by name."""

    carrier = ""
    """The transport, in one word for people."""

    @property
    def can_log_in(self) -> bool:
        """Whether a person can log in at the server with the command line."""
        return bool(self.login_hint())

    start_seconds = ASK_SECONDS
    """How long the first response may take: a process may have to be installed and started first."""

    def __init__(self, server: ServerName, me: Implementation, limits: Limits) -> None:
        self.server = server
        self.dialect: McpDialect = LegacyDialect()
        self.capabilities = ServerCapabilities()
        self.hubs: Mapping[str, int] = NO_HUBS
        """Ids of the hubs behind this server and their distance; empty if the server is not a hub."""
        self.instructions = ""
        """How the server says it should be used."""
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.on_changed: Callable[[Topic], None] = _ignore
        self.on_updated: Callable[[str], None] = _ignore
        self.on_log: Callable[[LogMessage], None] = _ignore
        self.on_task: Callable[[ServerName, LinkSession, ServerTaskState], None] = _ignore
        """Called with the status of a task when the server reports it by itself."""
        self.on_progress: Callable[[LinkSession, int, Callable[[], Progress]], None] = _ignore
        """Called with progress of a request that was already answered, perhaps with a task."""
        self.place = LinkSession(is_process=self.carrier == "stdio")
        """The scope in which the server's task ids are valid."""
        self.on_renewed: Callable[[], None] = _ignore
        self.on_gap: Callable[[], None] = _ignore
        self.on_doubt: Callable[[], None] = _ignore
        self.on_unauthorized: Callable[[], None] = _ignore
        """Called when the server rejected the credentials of a call."""
        self.on_credentials_refused: Callable[[], bool] = bool
        """Called when the server rejected the credentials; returns whether others may be tried (by default none)."""
        self.redact: Callable[[str], str] = str
        """Removes the link's credentials from a text; a server may repeat them."""
        self.login_hint: Callable[[], str] = str
        """Returns how a person logs in at the server; empty if that is impossible."""
        self.on_lost: Callable[[str], None] = _ignore
        self.on_gone: Callable[[], None] = _ignore
        """Called last when the link is lost; the registry of servers that dial in removes the link then."""
        self.is_probing = False
        self.is_persistent = True
        """Whether later calls of the same caller use the same link, so that they can ask about earlier ones."""
        self._me = me
        self.limits = limits
        self.requests = RequestTable()
        self.questions = ServerQuestions(server, self.requests, self.lost)
        self._writer: ChannelWriter | None = None
        """Writes to the channel, on a link that has one."""
        self.listen_ack: asyncio.Future[Fault | None] | None = None
        """Ends when the server has acknowledged or refused the last subscription."""
        self._garbage = 0
        """Lines in a row that are not messages."""

    @cached_property
    def _legacy_subscriptions(self) -> LegacySubscriptions:
        """Created on first use: most of thousands of links never subscribe."""

        def send(method: str, uri: str) -> HubRequest:
            return self.start_request(method, self.dialect.params({"uri": msgspec.json.encode(uri)}))

        return LegacySubscriptions(self.server, send, self.requests.forget)

    @cached_property
    def _modern_subscriptions(self) -> ModernSubscriptions:
        """Created on first use, like `_legacy_subscriptions`."""
        return ModernSubscriptions(self.server, self._listen_to)

    @cached_property
    def _listen_requests(self) -> ListenRequests:
        """Created on first use, like `_legacy_subscriptions`."""
        return ListenRequests(self)

    @property
    def last_output(self) -> str | None:
        """Output of the server that may explain why the link was lost."""
        return None

    # -- sending: a kind of link without a channel overrides these -------------------------------------------------

    def send(self, inflight: InFlight) -> None:
        """See `core.ports.Link`."""
        if self.fence is not None and (why := self.fence()) is not None:
            inflight.fail(NotConnected(self.server, why))
            return
        id = self.requests.next_id()
        waiter = waiter_for(inflight) if self.dialect.era == "legacy" else self.modern_waiter(inflight)
        call, name = waiter.request()
        self._dispatch(id, METHODS.get(call.kind, name), self.dialect.call_params(call, name, id), waiter)
        if (request := self.requests.pending.get(id)) is not None:
            inflight.carriage = request
        if self.questions.early:
            self.questions.deliver_early()

    def _dispatch(self, id: int, method: str, params: bytes, waiter: Waiter) -> None:
        """Send a request; `waiter` gets the response."""
        writer = self._writer
        if writer is None or writer.channel is None or self.lost.done():
            reason = self.lost.result() if self.lost.done() else "it is not running"
            waiter.fail(lost(self.server, reason, may_have_left=False))
            return
        frame = writer.frame(jsonrpc.request(id, method, params))
        self.requests.pending[id] = request = ChannelRequest(id, waiter, frame, writer.channel)
        writer.hold(request)

    def _say(self, message: bytes, *, about: PendingRequest | None = None, is_awaited: bool = False) -> None:
        """Send a message that has no response. It may concern a request, or be a reply that the server waits for."""
        if self._writer is not None and not self.lost.done():
            self._writer.write(message)

    def _notify(self, method: str, params: Payload | None, about: PendingRequest | None = None) -> None:
        """Send a notification, which may concern a request."""
        self._say(jsonrpc.notification(method, params), about=about)

    def _can_reply(self) -> bool:
        """Whether the server reads its messages. Replies to a server that only sends would fill our memory."""
        return self._writer is not None and self._writer.can_reply()

    def may_have_run(self, inflight: InFlight) -> bool:
        """See `core.ports.Link`."""
        return not isinstance(inflight.carriage, PendingRequest) or inflight.carriage.may_have_left

    def withdraw(self, inflight: InFlight, reason: str) -> None:
        """Drop a request that has not left, or ask the server to cancel it."""
        request = inflight.carriage
        if not isinstance(request, PendingRequest) or self.requests.pending.pop(request.id, None) is None:
            return
        if request.may_have_left and not self.closing_cancels:
            self._note_abandoned(inflight)
            id = request.wire_id or str(request.id).encode()
            self._notify(CANCELLED, cancelled_params(id, reason), request)
            if isinstance(request.waiter, TaskResultWaiter):  # its caller does not know of the task
                params = self.dialect.params({ID: msgspec.json.encode(request.waiter.task_id)})
                self._dispatch(self.requests.next_id(), CANCEL, params, IgnoredResponse())
        request.abandon()

    def _is_cancel_wanted(self, request: PendingRequest) -> bool:
        """Whether the cancellation of this request may be sent again: not about another one with its id."""
        return not self.lost.done() and not self.requests.has_id_of(request)

    def _note_abandoned(self, inflight: InFlight) -> None:
        self.questions.note_abandoned(inflight)

    # -- the hub's own requests ------------------------------------------------------------------------------------

    async def request(self, method: str, params: bytes, within: float = ASK_SECONDS) -> msgspec.Raw:
        """Send a request and wait for the result.

        Raises:
            Fault: the server refused, the link broke, or no response came in time.
        """
        return await self.answered(self.start_request(method, params), within)

    def start_request(self, method: str, params: bytes) -> HubRequest:
        """Send a request without waiting; `answered` must be awaited later."""
        own_request = HubRequest(self.server, method)
        self._dispatch(self.requests.next_id(), method, params, own_request)
        return own_request

    async def answered(self, own_request: HubRequest, within: float = ASK_SECONDS) -> msgspec.Raw:
        """Wait for the result of a request. Raises the same faults as `request`."""
        try:
            # Not `wait_for`: in Python 3.11 it swallows a cancellation that comes together with the answer.
            async with asyncio.timeout(within):
                return await own_request.answer
        except TimeoutError:
            raise BadReply(self.server, f"no answer to {own_request.method} within {within:g} s") from None
        finally:
            self.requests.forget(own_request)
            # The fault refers to this frame; without this, only the cycle collector would free the link.
            del own_request

    async def ping(self, within: float) -> None:
        """Check that the server still responds; an error response counts. Raises `Fault` if it does not."""
        try:
            await self.request(self.dialect.probe, self.dialect.params(), within)
        except ServerError:
            return

    # -- greeting --------------------------------------------------------------------------------------------------

    async def handshake(self, era: Era) -> None:
        """Detect the server's era, or use the known one, and initialize the link.

        Raises:
            ConnectFailed: it responded, but not as an MCP server would.
            Fault: it did not respond.
        """
        if era != "legacy":
            discovery = await self._discover(patience=None if era == "modern" else PROBE_SECONDS)
            if discovery is not None:
                self._discovered(discovery)
                return
            if era == "modern":
                raise ConnectFailed("it does not speak MCP 2026-07-28, as its configuration says it should")
        await self._initialize()

    def _discovered(self, discovery: modern.DiscoverResult) -> None:
        self.dialect = ModernDialect(self._me)
        self.capabilities = discovery.capabilities
        self.hubs = read_hubs(discovery.meta)
        self._read_instructions(discovery.instructions)

    def _read_instructions(self, written: msgspec.Raw) -> None:
        self.instructions = (read_string(written) or "")[:INSTRUCTIONS_LENGTH_MAX]

    async def refresh_hubs(self) -> None:
        """Ask a modern hub which hubs are behind it now. Raises `Fault`."""
        if self.dialect.era == "modern":
            discovery = modern.read_discover_result(await self.request(modern.DISCOVER, self.dialect.params()))
            self.hubs = self.hubs if discovery is None else read_hubs(discovery.meta)

    async def _discover(self, patience: float | None) -> modern.DiscoverResult | None:
        self.is_probing = True
        within = self.start_seconds if patience is None else patience
        answer: msgspec.Raw | None = None
        try:
            params = ModernDialect(self._me).params()
            try:
                answer = await self.request(modern.DISCOVER, params, within)
            except ServerError as refused:
                # A server that refuses the version and yet lists it as supported is asked a second time.
                if refused.code != REFUSED_VERSION or not modern.is_version_supported(refused.data):
                    raise
                answer = await self.request(modern.DISCOVER, params, within)
        except NotConnected as refused:
            if refused.status not in NOT_MODERN:
                raise
        except (ServerError, BadReply):
            pass  # an error, silence, or a response that no modern server gives: try `initialize`
        self.is_probing = False
        discovery = None if answer is None else modern.read_discover_result(answer)
        keeps_result = self.keeps_initialize_result or self.requests.is_dedicated
        if keeps_result and answer is not None and discovery is not None:
            self.initialize_result = msgspec.Raw(modern.as_initialize_result(answer))
        return discovery

    async def _initialize(self) -> None:
        try:
            answer = await self.request(
                "initialize", legacy.initialize_params(self._me, self.questions.client_caps), self.start_seconds
            )
        except ServerError as refused:
            if refused.code == REFUSED_VERSION and (discovery := await self._discover(None)) is not None:
                # Its response to the probe came too late; by then it had settled on the modern era.
                self._discovered(discovery)
                return
            raise ConnectFailed(f"it refused to initialize: {refused.message} ({refused.code})") from refused
        welcome = legacy.read_initialize_result(answer)
        if isinstance(welcome, str):
            raise ConnectFailed(welcome)
        self.dialect = LegacyDialect(welcome.protocolVersion)
        self.capabilities = welcome.capabilities
        self.hubs = read_hubs(welcome.meta)
        self._read_instructions(welcome.instructions)
        if self.keeps_initialize_result or self.requests.is_dedicated:
            self.initialize_result = answer.copy()
        self._notify("notifications/initialized", None)

    # -- listing ---------------------------------------------------------------------------------------------------

    def abilities(self) -> frozenset[Ability]:
        """What the server can do, as far as its era allows."""
        abilities = self.capabilities.abilities() - OTHERS[self.dialect.era]
        return abilities if self.is_persistent else abilities - TASK_ABILITIES

    async def list_features(
        self,
        topics: Set[Topic] = frozenset(TOPICS),
        known: Listing | None = None,
        client_caps: ClientCapabilities = NO_CAPABILITIES,
    ) -> Listing:
        """Read the lists of these `topics` for callers with `client_caps`; other lists are kept from `known`.

        Raises:
            Fault: the server gave no usable list of tools. Other lists that it cannot give are noted.
        """
        return await self._read_lists(topics, known, client_caps)

    async def _read_lists(self, topics: Set[Topic], known: Listing | None, client_caps: ClientCapabilities) -> Listing:
        listing = known or Listing()
        if "tools" not in self.abilities():
            notes = () if {"prompts", "resources"} & self.abilities() else ("it says that it has nothing to list",)
            listing = msgspec.structs.replace(listing, tools=(), notes={**listing.notes, "tools": notes})
        for topic in TOPICS:
            if topic not in topics or topic not in self.abilities():
                continue
            try:
                listing = await read_topic(self, topic, listing, client_caps)
            except (ServerError, BadReply) as failed:
                if topic == "tools":
                    raise
                note = f"it gave no list of {topic}: {getattr(failed, 'why', failed.message)}"
                listing = msgspec.structs.replace(listing, notes={**listing.notes, topic: (note,)})
        return listing

    # -- receiving -------------------------------------------------------------------------------------------------

    def read(self, text: bytes | memoryview) -> None:
        """Handle one message of the server on a stream that all requests share. Responses are matched by id."""
        if len(text) > LATER_BYTES and (request := self._match_request(jsonrpc.answer_start(text))) is not None:
            whole = partial(jsonrpc.decode_long, text, max_depth=self.limits.depth, max_values=None)
            then = partial(self._receive_long_answer, request)
            read_then(whole, jsonrpc.decode_passes, then, jsonrpc.unreadable, self.server)
            return
        text = bytes(text)
        message = jsonrpc.decode(text, max_depth=self.limits.depth, max_values=None)
        match message:
            case Response(id=id):
                if (request := self._match_request(id)) is not None:
                    request.waiter.result(message.result)
            case ErrorReply(id=id):
                if (request := self._match_request(id)) is not None:
                    self.on_error_reply(request.waiter, message)
            case Notification():
                self.on_notification(message.method, message.params)
            case Request():
                if self._can_reply():
                    self._on_request(message)
            case Malformed() if (request := self._match_request(jsonrpc.answered_in(text))) is not None:
                request.waiter.fail(BadReply(self.server, message.message))
            case _:
                self._count_garbage(text)
                return
        self._garbage = 0

    def _match_request(self, id: Payload | None) -> PendingRequest | None:
        """Take the request that a response on the shared stream is for."""
        return self.requests.pop(id)

    def _receive_long_answer(self, request: PendingRequest, message: jsonrpc.Message) -> None:
        self._garbage = 0
        match message:
            case Response():
                request.waiter.result(message.result)
            case ErrorReply():
                self.on_error_reply(request.waiter, message)
            case _:
                detail = message.message if isinstance(message, Malformed) else "not a JSON-RPC answer"
                request.waiter.fail(BadReply(self.server, detail))

    def _count_garbage(self, text: bytes) -> None:
        # Many servers print a banner to the wrong stream: the first line is logged, the rest is noise.
        self._garbage += 1
        if self._garbage > GARBAGE_MAX:
            self._fail(f"it wrote over {GARBAGE_MAX} lines in a row that are not messages")
        elif self.garbage is None:
            self.garbage = text[:120].decode(errors="replace").strip()
            log.warning("server wrote something that is not a message", server=self.server, text=self.garbage)

    garbage: str | None = None
    """The beginning of the first line that was no message."""

    def _on_request(self, request: Request) -> None:
        """Pass a server's request that names no call to the only possible caller."""
        if request.method in QUESTIONS and self.questions.client_caps:
            self.questions.note_question()
        self.questions.ask_only_caller(request, self._say)

    def on_error_reply(self, waiter: Waiter, reply: ErrorReply) -> None:
        """Pass the server's error on. A hub reports in it what became of the call."""
        self.questions.note_error(waiter, reply)
        reply = redact_error(reply, self.redact)
        is_of_hub = self.hubs and isinstance(waiter, CallWaiter)
        if is_of_hub and (fault := read_hub_error(self.server, reply)) is not None:
            waiter.fail(fault)
        else:
            waiter.error(reply)

    def on_notification(self, method: str, params: Members) -> None:
        """Handle a notification. Progress names its request; other notifications name none."""
        if method == PROGRESS:
            request = self.requests.pending.get(token_of(params))
            if request is not None:
                request.waiter.progress(params)
            else:  # it has already ended
                self.on_progress(self.place, token_of(params), partial(read_progress, params, self.server))
        elif (topic := TOPIC_OF.get(method)) is not None:
            self.on_changed(topic)
        elif method == UPDATED:
            if (uri := read_string(params.get("uri"))) is not None:
                self.on_updated(uri)
        elif method == CANCELLED:
            self.questions.cancel(bytes(params.get("requestId", b"")))
        elif method == STATUS_NOTIFICATION:
            # Only legacy servers send task status unasked; modern ones are polled.
            if self.dialect.era == "legacy" and (state := state_of(params)) is not None:
                self.on_task(self.server, self.place, state)
        elif method == COMPLETED and (elicitation := params.get(ELICITATION_ID)) is not None:
            self.questions.url_elicitations.completed(elicitation)
        elif method == LOGGED and (line := read_log(params)) is not None:
            # A line that names no call goes to the only caller with calls here, else to the operator.
            if not log_alone(line, self.requests.waiters()):
                self.on_log(line)
        elif method == modern.ACKNOWLEDGED and self.is_duplex:
            self._listen_requests.acknowledged(params)

    def link_session_of(self, inflight: InFlight) -> LinkSession | None:
        """See `core.ports.TaskLink`."""
        return self.place

    def report_output(self, on_lines: Callable[[Sequence[bytes]], None]) -> None:
        """Report what a process writes to standard error, from its start on. Other servers have none."""

    def set_level(self, level: LogLevel) -> HubRequest | None:
        """Set the log level of a legacy server, ahead of everything sent later.

        None if the server has no such method. A modern server gets the level with every call.
        """
        if self.dialect.era != "legacy" or "logging" not in self.abilities():
            return None
        return self.start_request("logging/setLevel", self.dialect.params({"level": msgspec.json.encode(level)}))

    async def subscribe(self, uri: str) -> None:
        """See `core.ports.SubscriptionLink`."""
        if self.lost.done():
            raise NotConnected(self.server, self.lost.result())
        if self.dialect.era == "legacy":
            await self._legacy_subscriptions.want(uri)
        elif "subscribe" in self.abilities():
            await self._modern_subscriptions.want(uri)
        else:
            raise ServerError(self.server, jsonrpc.METHOD_NOT_FOUND, "It sends no updates of resources")

    def unsubscribe(self, uri: str) -> None:
        """See `core.ports.SubscriptionLink`."""
        if not self.lost.done():
            (self._legacy_subscriptions if self.dialect.era == "legacy" else self._modern_subscriptions).drop(uri)

    def share_of(self, follower: Subscriber) -> FollowerLink | None:
        """The subscriptions of one caller on this link, if it leads to a node that knows callers by name."""
        return None

    # -- the stream of changes -------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Subscribe to changes, if the server announces them and its era needs a request for that."""
        if self.dialect.era == "modern" and self.capabilities.announces_changes and not self.lost.done():
            self._modern_subscriptions.resubscribe()

    def _listen_to(self, uris: Collection[str]) -> None:
        """Replace a modern server's subscription by one for its lists and these resources."""
        self._listen_requests.send(uris)

    def _expect_listening(self) -> None:
        """A subscription was sent: wait for its acknowledgement."""
        if self.listen_ack is None or self.listen_ack.done():
            self.listen_ack = asyncio.get_running_loop().create_future()

    def _listen_done(self, refusal: Fault | None = None) -> None:
        if self.listen_ack is not None and not self.listen_ack.done():
            self.listen_ack.set_result(refusal)

    def _listen_params(self, uris: Collection[str]) -> bytes:
        """Parameters of a modern `subscriptions/listen`: every list that the server has, and these resources."""
        topics = frozenset(topic for topic in TOPICS if topic in self.abilities())
        return self.dialect.params(
            {"notifications": modern.write_listen_filter(modern.ListenFilter(topics, tuple(uris)))}
        )

    def redactor_for(self, _: InFlight) -> Callable[[str], str]:
        """See `upstream.credential_redaction.Redacting`."""
        return self.redact

    def _lose(self, reason: str) -> None:
        if not self.lost.done():
            self.place.is_lost = True
            self.lost.set_result(reason)
            self._listen_done()
            # Break the reference cycles with this link, so that it is freed at once.
            self.__dict__.pop("_legacy_subscriptions", None)
            if (modern_subscriptions := self.__dict__.pop("_modern_subscriptions", None)) is not None:
                modern_subscriptions.stop()
            self.__dict__.pop("_listen_requests", None)
            self.on_lost(reason)
            self.questions.retract_all()
            on_gone, self.on_gone = self.on_gone, _ignore  # it may refer to this link
            on_gone()

    def _on_broken(self, reason: str, *, is_dead: bool = True) -> None:
        """The link is lost: every pending request ends as lost. The server is gone only if `is_dead`."""
        if not self.lost.done():
            self._lose(reason)
            self.requests.break_off(self.server, reason, is_dead=is_dead)

    def _fail(self, reason: str) -> None:
        """Close the channel; everything that is pending on it fails."""
        self._on_broken(reason)
        if self._writer is not None and self._writer.channel is not None:
            self._writer.channel.kill()

    def flush(self) -> None:
        """The server reads again: write held requests."""
        if self._writer is not None:
            self._writer.flush()

    def connection_ended(self, reason: str) -> None:
        """The channel has ended."""
        self._on_broken(reason)

    async def aclose(self) -> None:
        """Close the link in good order; pending requests end as lost."""
        if self._writer is not None and self._writer.channel is not None:
            self._on_broken("closed by the hub", is_dead=False)
            await self._writer.channel.aclose()


class FollowerLink:
    """One caller's share of a link to a node that knows callers by name: its subscriptions to resources.

    The caller may have a process of its own there, whose updates concern nobody else. `on_updated` and `on_gap` are as
    in `BaseLink`.
    """

    def __init__(self, link: BaseLink, listens: dict[bytes, FollowerLink], params: Callable[[bytes], bytes]) -> None:
        """`listens` finds it by the id of its requests; `params` adds the caller to a filter."""
        self.server = link.server
        self.requests = link.requests
        self.lost = link.lost
        self.on_updated: Callable[[str], None] = _ignore
        self.on_gap: Callable[[], None] = _ignore
        self._link = link
        self._listens = listens
        self._ids: set[int] = set()
        """The ids of its open requests."""
        self._params = params
        self._modern_subscriptions = ModernSubscriptions(link.server, self._listen_to)
        self._listen_requests = ListenRequests(self)
        self.acknowledged = self._listen_requests.acknowledged

    async def subscribe(self, uri: str) -> None:
        """See `core.ports.SubscriptionLink`."""
        if self.lost.done():
            raise NotConnected(self.server, self.lost.result())
        if "subscribe" not in self._link.abilities():
            raise ServerError(self.server, jsonrpc.METHOD_NOT_FOUND, "It sends no updates of resources")
        await self._modern_subscriptions.want(uri)

    def unsubscribe(self, uri: str) -> None:
        """See `core.ports.SubscriptionLink`."""
        if not self.lost.done():
            self._modern_subscriptions.drop(uri)

    def listen(self) -> None:
        """Subscribe again, after the other node has ended it."""
        if self._modern_subscriptions.wanted and not self.lost.done():
            self._modern_subscriptions.resubscribe()

    def _listen_to(self, uris: Collection[str]) -> None:
        if uris:
            self._listen_requests.send(uris)
        else:
            self._listen_requests.close()
        for id in [id for id in self._ids if id not in self.requests.pending]:
            self._ids.discard(id)
            self._listens.pop(str(id).encode(), None)

    def _dispatch(self, id: int, method: str, params: bytes, waiter: Waiter) -> None:
        self._ids.add(id)
        self._listens[str(id).encode()] = self
        self._link._dispatch(id, method, params, waiter)

    def _notify(self, method: str, params: Payload | None) -> None:
        self._link._notify(method, params)

    def _listen_params(self, uris: Collection[str]) -> bytes:
        return self._params(modern.write_listen_filter(modern.ListenFilter(frozenset(), tuple(uris))))

    def _expect_listening(self) -> None:
        """No request of the hub waits for this."""

    def _listen_done(self, refusal: Fault | None = None) -> None:
        """No request of the hub waits for this."""

    def stop(self) -> None:
        """The link is lost."""
        self._modern_subscriptions.stop()


class ListenRequests:
    """The subscription of a link over one channel to a modern server: its request, and the one that replaces it."""

    def __init__(self, link: BaseLink | FollowerLink) -> None:
        self._link = link
        self._active: int | None = None
        """The request on which the server announces changes."""
        self._next: int | None = None
        """The request that replaces it as soon as the server acknowledges it."""
        self._missed_changes = False
        """The server ended a subscription; changes since then were missed."""

    def send(self, uris: Collection[str]) -> None:
        """Replace the subscription by one for the server's lists and these resources."""
        if self._active is None:
            self._active = self._next  # it may be acknowledged before the new one
        else:
            self._stop(self._next)
        link = self._link
        self._next = id = link.requests.next_id()
        link._expect_listening()
        link._dispatch(id, modern.LISTEN, link._listen_params(uris), _ListenWaiter(self, id))

    def close(self) -> None:
        """End the subscription: nothing is wanted any more."""
        for id in (self._active, self._next):
            self._stop(id, "nothing is followed any more")
        self._active = self._next = None

    def _stop(self, id: int | None, why: str = "another takes its place") -> None:
        if id is not None and self._link.requests.pending.pop(id, None) is not None:
            self._link._notify(CANCELLED, cancelled_params(str(id).encode(), why))

    def acknowledged(self, params: Members) -> None:
        """The new subscription is active: drop the one before it. Acknowledgements of older ones are ignored."""
        named = modern.read_subscription(params)
        if self._next is None or named not in (None, str(self._next).encode()):
            return
        before, self._active, self._next = self._active, self._next, None
        self._stop(before)
        link = self._link
        link._listen_done()
        link._modern_subscriptions.acknowledged(modern.read_granted(params))
        if self._missed_changes:
            self._missed_changes = link._modern_subscriptions.has_pending
            link.on_gap()

    def subscription_ended(self, subscription: int) -> None:
        """The server ended a subscription: ask for another one in a while, unless one is on its way."""
        link = self._link
        if subscription == self._next:
            self._next = None
            link._modern_subscriptions.interrupted()
        elif subscription == self._active:
            self._active = None
            link._modern_subscriptions.closed()
        else:
            return  # an earlier subscription that was replaced
        if not link.lost.done():
            self._missed_changes = True
            if self._next is None:
                asyncio.get_running_loop().call_later(RELISTEN_SECONDS, link.listen)

    def refused(self, subscription: int, reply: ErrorReply) -> None:
        """The server refused a subscription; an earlier one stays active."""
        link = self._link
        if subscription == self._next:
            self._next = None
            refusal = ServerError(link.server, reply.code, reply.message, reply.data)
            link._listen_done(refusal)
            link._modern_subscriptions.refused(refusal)
        else:
            self.subscription_ended(subscription)


class _ListenWaiter(IgnoredResponse):
    """Waits for the end of a subscription. If the link is lost, `on_lost` reports that."""

    def __init__(self, requests: ListenRequests, id: int) -> None:
        self._requests = requests
        self._id = id

    def result(self, payload: Payload) -> None:
        """The server ended the subscription in good order."""
        self._requests.subscription_ended(self._id)

    def error(self, reply: ErrorReply) -> None:
        """The server refused the subscription."""
        self._requests.refused(self._id, reply)
