"""The base of every link to a server: the handshake, the hub's own requests, listings and notifications.

A kind of link (stdio, Streamable HTTP, …) adds how one request travels: `_dispatch`. Reconnectors own links; server
queues send calls on them.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence, Set
from functools import cached_property, partial
from weakref import ref

import msgspec

from isthmus.core.calls.inflight import InFlight, OpenQuestion
from isthmus.core.ports import ElicitationExchange, HubExchange
from isthmus.core.settings import Limits
from isthmus.core.watch.server_tasks import LinkSession
from isthmus.model.calls import (
    GIVEN_UP,
    NO_CAPABILITIES,
    UNSURE,
    Answered,
    Call,
    ClientCapabilities,
    LogLevel,
    LogMessage,
    Progress,
    Question,
    Reply,
)
from isthmus.model.faults import BadReply, Fault, NotConnected, ServerError
from isthmus.model.features import TASK_ABILITIES, TOPICS, Ability, Topic
from isthmus.model.names import ServerName
from isthmus.model.tasks import ServerTaskState
from isthmus.upstream.dialect import LegacyDialect, McpDialect, ModernDialect
from isthmus.upstream.listing import Listing, read_topic
from isthmus.upstream.redaction import redact_error
from isthmus.upstream.server_settings import Era
from isthmus.upstream.subscriptions import LegacySubscriptions, ModernSubscriptions
from isthmus.upstream.waiters import (
    CANCEL,
    UNKNOWN_SESSION,
    CallWaiter,
    HubRequest,
    IgnoredResponse,
    Waiter,
    is_hidden_task,
    lone_call,
)
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import ErrorReply, Payload, Request, render
from isthmus.wire.mcp import legacy, modern
from isthmus.wire.mcp.calls import (
    COMPLETED,
    ELICITATION_ID,
    QUESTIONS,
    URL_ELICITATION_REQUIRED,
    read_url_elicitations,
)
from isthmus.wire.mcp.messages import (
    CANCELLED,
    LOGGED,
    NO_HUBS,
    TOPIC_OF,
    UPDATED,
    Implementation,
    Members,
    ServerCapabilities,
    read_hubs,
    read_log,
    read_progress,
    read_string,
    token_of,
)
from isthmus.wire.mcp.tasks import ID, STATUS_NOTIFICATION, state_of

ELICITATIONS_MAX = 1_000
"""Elicitations remembered per link; the oldest are forgotten first."""

ELICITATION_ID_LENGTH_MAX = 1024


class UrlElicitations:
    """URL elicitations of one link, so that the caller can be notified when the user has finished there.

    Before 2026-07-28 a server reports that by a notification with the id of the elicitation. Calls are held weakly:
    they may end before the user is done.
    """

    def __init__(self) -> None:
        self._sent: dict[bytes, tuple[ref[InFlight], Callable[[msgspec.Raw], None] | None]] = {}

    def sent(self, id: msgspec.Raw, inflight: InFlight) -> None:
        """Remember that an elicitation with this id sent the user of this call to a URL."""
        if len(memoryview(id)) > ELICITATION_ID_LENGTH_MAX:
            return
        exchange = inflight.exchange
        later = exchange.done_later() if isinstance(exchange, ElicitationExchange) else None
        self._sent[bytes(id)] = (ref(inflight), later)
        if len(self._sent) > ELICITATIONS_MAX:
            del self._sent[next(iter(self._sent))]

    def done(self, id: msgspec.Raw) -> None:
        """The user has finished: notify the caller once, through its call or, if that is over, beside its calls."""
        call, later = self._sent.pop(bytes(id), (None, None))
        inflight = None if call is None else call()
        if inflight is not None and inflight.outcome is None:
            inflight.elicitation_complete(id)
        elif later is not None:
            later(id)


PROBE_SECONDS = 3.0
"""How long a server may take to answer `server/discover` before `initialize` is sent as well. Some old servers ignore
requests before `initialize`; a slow modern server still answers the probe first."""

ASK_SECONDS = 30.0
"""How long the hub waits for the response to its own request; a listing may take a server a while."""

NOT_MODERN = (400, 404, 405, 406, 415)
"""HTTP statuses with which a legacy server answers the unknown probe."""

REFUSED_VERSION = -32022

OWN_IDS = 1_000_000_000
"""First own id on a link that belongs to one caller, so that own ids and the caller's do not collide. Caller ids
between this and its double are replaced."""

ID_BYTES_MAX = 256
SAFE_INTEGER_MAX = 2**53 - 1
"""Bounds for caller ids: not every server returns longer or larger ones unchanged."""

EARLY_MAX = 10
EARLY_SECONDS = 2.0
"""How long a question that arrived before its call waits for it."""

OTHERS: dict[str, frozenset[Ability]] = {"legacy": frozenset({"task_handles"}), "modern": frozenset({"tasks"})}
"""Abilities that a server of this era cannot have, whatever it declares."""


def _unheard(*_: object) -> None:
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


class BaseLink(ABC):
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
        "_early",
        "_last_id",
        "_listen_ack",
        "_me",
        "_questions",
        "_url_elicitations",
        "can_wait",
        "capabilities",
        "client_caps",
        "dialect",
        "has_asked",
        "has_unanswered_question",
        "hubs",
        "is_persistent",
        "is_probing",
        "limits",
        "login_hint",
        "lost",
        "on_asked",
        "on_changed",
        "on_doubt",
        "on_gap",
        "on_log",
        "on_lost",
        "on_progress",
        "on_refused",
        "on_renewed",
        "on_shut_out",
        "on_task",
        "on_updated",
        "place",
        "redact",
        "server",
        "strays",
    )

    is_duplex = False
    """Whether all messages share one stream, so that a question may not say which call it belongs to."""

    can_ask = True
    """Whether the server may ask callers something, and so may list and do more for callers that can be asked."""

    lists_by_client = True
    """Whether lists are read separately for such callers; if not, every caller gets the same lists."""

    takes_methods = False
    """Whether the server accepts any MCP method, not only tool calls."""

    is_dedicated = False
    """Whether only one caller uses the link: its requests keep their ids, and its initialize result is stored."""

    initialize_result: msgspec.Raw | None = None
    """The server's `initialize` result; stored only if `is_dedicated`."""

    recheck: Callable[[], Awaitable[None]] | None = None
    """Reads the tools again, before calls are sent in a new session."""

    may_send: Callable[[InFlight], bool] | None = None
    """Whether a call may be sent on this link, where its tool may differ from what the caller saw."""

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
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.on_changed: Callable[[Topic], None] = _unheard
        self.on_updated: Callable[[str], None] = _unheard
        self.on_log: Callable[[LogMessage], None] = _unheard
        self.on_task: Callable[[ServerName, LinkSession, ServerTaskState], None] = _unheard
        """Called with the status of a task when the server reports it by itself."""
        self.on_progress: Callable[[LinkSession, int, Callable[[], Progress]], None] = _unheard
        """Called with progress of a request that was already answered, perhaps with a task."""
        self.place = LinkSession(is_process=self.carrier == "stdio")
        """The scope in which the server's task ids are valid."""
        self.on_renewed: Callable[[], None] = _unheard
        self.on_gap: Callable[[], None] = _unheard
        self.on_question: Callable[[], None] = _unheard
        """Called for a question that does not name its call: programs should not share such a link."""
        self.has_asked = False
        """Whether there was such a question, even before anybody listened."""
        self.can_wait = True
        """Whether a question that arrives between calls may belong to the next call."""
        self.has_unanswered_question = False
        """Whether such a question got no answer. A server that asks only once needs a new handshake."""
        self.abandoned_session: str | None = None
        """The session, or `UNKNOWN_SESSION`, of abandoned calls about which the server may still ask; None if there are
        none."""
        self.on_doubt: Callable[[], None] = _unheard
        self.on_unauthorized: Callable[[], None] = _unheard
        """Called when the server rejected the credentials of a call."""
        self.on_credentials_refused: Callable[[], bool] = bool
        """Called when the server rejected the credentials; returns whether others may be tried (by default none)."""
        self.redact: Callable[[str], str] = str
        """Removes the link's credentials from a text; a server may repeat them."""
        self.login_hint: Callable[[], str] = str
        """Tells how a person logs in at the server; empty if that is impossible."""
        self.on_lost: Callable[[str], None] = _unheard
        self.is_probing = False
        self.is_persistent = True
        """Whether later calls of the same caller use the same link, so that they can ask about earlier ones."""
        self._me = me
        self.client_caps: ClientCapabilities = NO_CAPABILITIES
        """The client capabilities of the callers on this link; sent in `initialize` to a legacy server."""
        self.limits = limits
        self._listen_ack: asyncio.Future[Fault | None] | None = None
        """Ends when the server has acknowledged or refused the last subscription."""
        self._early: dict[bytes, tuple[Request, Callable[[bytes], None], asyncio.TimerHandle]] = {}
        """Questions that arrived before a call they could belong to, and how they are answered."""
        self._questions: dict[bytes, OpenQuestion] = {}
        """The server's open questions, by its own ids."""
        self._url_elicitations = UrlElicitations()
        self._last_id = 0

    @cached_property
    def _legacy_subscriptions(self) -> LegacySubscriptions:
        """Created on first use: most of thousands of links never subscribe."""

        def send(method: str, uri: str) -> HubRequest:
            return self.start_request(method, self.dialect.params({"uri": msgspec.json.encode(uri)}))

        return LegacySubscriptions(self.server, send, self._forget)

    @cached_property
    def _modern_subscriptions(self) -> ModernSubscriptions:
        """Created on first use, like `_legacy_subscriptions`."""
        return ModernSubscriptions(self.server, self._listen_to)

    @property
    def last_output(self) -> str | None:
        """Output of the server that may explain why the link was lost."""
        return None

    # -- what a kind adds ------------------------------------------------------------------------------------------

    @abstractmethod
    def _dispatch(self, id: int, method: str, params: bytes, waiter: Waiter) -> None:
        """Send a request; `waiter` gets the response."""

    @abstractmethod
    def _forget(self, waiter: Waiter) -> None:
        """Drop the request of this waiter."""

    def _waiters(self) -> Iterable[Waiter]:
        """Everything that waits for a response."""
        return ()

    @abstractmethod
    def _notify(self, method: str, params: Payload | None) -> None:
        """Send a notification."""

    @abstractmethod
    def listen(self) -> None:
        """Subscribe to changes, if the server announces them and its era needs a request for that."""

    @abstractmethod
    def send(self, inflight: InFlight) -> None:
        """See `core.ports.Link`."""

    @abstractmethod
    def may_have_run(self, inflight: InFlight) -> bool:
        """See `core.ports.Link`."""

    @abstractmethod
    def withdraw(self, inflight: InFlight, reason: str) -> None:
        """See `core.ports.Link`."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close the link in good order; pending requests end as lost."""

    # -- asking ----------------------------------------------------------------------------------------------------

    def next_id(self) -> int:
        """The next id of the link. Callers' ids are replaced by it; but see `caller_request_id`."""
        self._last_id += 1
        return self._last_id

    def dedicate_to_caller(self) -> None:
        """From now on only one caller uses this link."""
        self.is_dedicated = True
        self._last_id = OWN_IDS

    def caller_request_id(self, call: Call, used: Iterable[bytes | None]) -> bytes | None:
        """The caller's own id for a call; None if the link's own id is used.

        The link's own id is used on shared links, and while another request with the same id is pending.
        """
        if call.request_id is None or not self.is_dedicated or len(memoryview(call.request_id)) > ID_BYTES_MAX:
            return None
        try:
            id = msgspec.json.decode(call.request_id, type=int | str)
        except msgspec.MsgspecError:
            return None
        if isinstance(id, int) and (OWN_IDS <= id < 2 * OWN_IDS or abs(id) > SAFE_INTEGER_MAX):
            return None
        written = msgspec.json.encode(id)
        return None if written in used else written

    async def ask(self, method: str, params: bytes, within: float = ASK_SECONDS) -> msgspec.Raw:
        """Send a request and wait for the result.

        Raises:
            Fault: the server refused, the link broke, or no response came in time.
        """
        return await self.answered(self.start_request(method, params), within)

    def start_request(self, method: str, params: bytes) -> HubRequest:
        """Send a request without waiting; `answered` must be awaited later."""
        own_request = HubRequest(self.server, method)
        self._dispatch(self.next_id(), method, params, own_request)
        return own_request

    async def answered(self, own_request: HubRequest, within: float = ASK_SECONDS) -> msgspec.Raw:
        """Wait for the result of a request. Raises as `ask` does."""
        try:
            # Not `wait_for`: in Python 3.11 it swallows a cancellation that comes together with the answer.
            async with asyncio.timeout(within):
                return await own_request.answer
        except TimeoutError:
            raise BadReply(self.server, f"no answer to {own_request.method} within {within:g} s") from None
        finally:
            self._forget(own_request)
            del (
                own_request
            )  # the fault refers to this frame; without this, the link would only be freed by the cycle collector

    async def ping(self, within: float) -> None:
        """Check that the server still responds; an error response counts. Raises `Fault` if it does not."""
        try:
            await self.ask(self.dialect.probe, self.dialect.params(), within)
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

    async def refresh_hubs(self) -> None:
        """Ask a modern hub which hubs are behind it now. Raises `Fault`."""
        if self.dialect.era == "modern":
            discovery = modern.read_discover_result(await self.ask(modern.DISCOVER, self.dialect.params()))
            self.hubs = self.hubs if discovery is None else read_hubs(discovery.meta)

    async def _discover(self, patience: float | None) -> modern.DiscoverResult | None:
        self.is_probing = True
        within = self.start_seconds if patience is None else patience
        answer: msgspec.Raw | None = None
        try:
            params = ModernDialect(self._me).params()
            try:
                answer = await self.ask(modern.DISCOVER, params, within)
            except ServerError as refused:
                # A server that refuses the version and yet lists it as supported is asked a second time.
                if refused.code != REFUSED_VERSION or not modern.is_version_supported(refused.data):
                    raise
                answer = await self.ask(modern.DISCOVER, params, within)
        except NotConnected as refused:
            if refused.status not in NOT_MODERN:
                raise
        except (ServerError, BadReply):
            pass  # an error, silence, or a response that no modern server gives: try `initialize`
        self.is_probing = False
        discovery = None if answer is None else modern.read_discover_result(answer)
        if self.is_dedicated and answer is not None and discovery is not None:
            self.initialize_result = msgspec.Raw(modern.as_initialize_result(answer))
        return discovery

    async def _initialize(self) -> None:
        try:
            answer = await self.ask(
                "initialize", legacy.initialize_params(self._me, self.client_caps), self.start_seconds
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
        if self.is_dedicated:
            self.initialize_result = answer.copy()
        self._on_initialized(answer, welcome)
        self._notify("notifications/initialized", None)

    def _on_initialized(self, answer: Payload, welcome: legacy.InitializeResult) -> None:  # noqa: B027 - most links ignore it
        """The server has answered `initialize`; a kind of link may store more of the answer."""

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
        listing = known or Listing()
        if "tools" not in self.abilities():
            listing = msgspec.structs.replace(listing, tools=(), notes={"tools": ("it says that it has no tools",)})
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

    # -- what belongs to no request --------------------------------------------------------------------------------

    def on_notification(self, method: str, params: Members) -> None:
        """Handle a notification that belongs to no request, or does not say to which."""
        if (topic := TOPIC_OF.get(method)) is not None:
            self.on_changed(topic)
        elif method == UPDATED:
            if (uri := read_string(params.get("uri"))) is not None:
                self.on_updated(uri)
        elif method == CANCELLED:  # of the server's own request; the specification forbids a reply
            id = bytes(params.get("requestId", b""))
            self._drop_early(id)
            if (asked := self._questions.pop(id, None)) is not None:
                asked.retract()
        elif method == STATUS_NOTIFICATION:
            # Only legacy servers send task status unasked; modern ones are polled.
            if self.dialect.era == "legacy" and (state := state_of(params)) is not None:
                self.on_task(self.server, self.place, state)
        elif method == COMPLETED and (elicitation := params.get(ELICITATION_ID)) is not None:
            self._url_elicitations.done(elicitation)
        elif method == LOGGED and (line := read_log(params)) is not None:
            self._on_log_line(line)

    def _on_late_progress(self, params: Members) -> None:
        """Progress of a request that has already ended."""
        self.on_progress(self.place, token_of(params), partial(read_progress, params, self.server))

    def link_session_of(self, inflight: InFlight) -> LinkSession | None:
        """See `core.ports.TaskLink`."""
        return self.place

    def report_output(self, on_lines: Callable[[Sequence[bytes]], None]) -> None:  # noqa: B027 - most have none
        """Report what a process writes to standard error, from its start on. Other servers have none."""

    def _on_log_line(self, line: LogMessage) -> None:
        """No caller can be identified: the line goes to the operator."""
        self.on_log(line)

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

    def _listen_to(self, uris: Collection[str]) -> None:
        """Replace a modern server's subscription by one for its lists and these resources."""
        self._modern_subscriptions.acknowledged(None)

    @property
    def listen_ack(self) -> asyncio.Future[Fault | None] | None:
        """Ends when the server acknowledges the last subscription, or refuses it; None if there was none."""
        return self._listen_ack

    def _expect_listening(self) -> None:
        """A subscription was sent: wait for its acknowledgement."""
        if self._listen_ack is None or self._listen_ack.done():
            self._listen_ack = asyncio.get_running_loop().create_future()

    def _listen_done(self, refusal: Fault | None = None) -> None:
        if self._listen_ack is not None and not self._listen_ack.done():
            self._listen_ack.set_result(refusal)

    def _listen_params(self, uris: Collection[str]) -> bytes:
        """Parameters of a modern `subscriptions/listen`: every list that the server has, and these resources."""
        topics = frozenset(topic for topic in TOPICS if topic in self.abilities())
        return self.dialect.params(
            {"notifications": modern.write_listen_filter(modern.ListenFilter(topics, tuple(uris)))}
        )

    # -- what the server asks --------------------------------------------------------------------------------------

    def _ask_only_caller(self, request: Request, say: Callable[[bytes], None]) -> None:
        """Pass a request that names no call to the only caller it can be meant for."""
        is_question = request.method in QUESTIONS and self.client_caps
        if is_question and not any(isinstance(waiter, CallWaiter) for waiter in self._waiters()):
            self._on_question_between_calls(request, say)
        else:
            self._ask_caller(request, lone_call(self._waiters(), self.abandoned_session), say)

    def _on_question_between_calls(self, request: Request, say: Callable[[bytes], None]) -> None:
        """Handle a question that arrives while there is no call.

        Some servers ask for the roots right after the handshake, before the call that the link was made for is sent.
        Such a question waits a moment for the call. A question about an earlier call must not reach the next caller.
        """
        self._drop_early(bytes(request.id))
        if self.can_wait and len(self._early) < EARLY_MAX:
            timer = asyncio.get_running_loop().call_later(EARLY_SECONDS, self._deliver_early, request, say)
            self._early[bytes(request.id)] = (request, say, timer)
            return
        if not self.can_wait:
            self.abandoned_session = UNKNOWN_SESSION
        self.has_unanswered_question = True
        self._ask_caller(request, None, say)

    def _deliver_early_soon(self) -> None:
        """A call was sent: deliver early questions to it, once its sender has registered it."""
        for request, say, _ in self._early.values():
            asyncio.get_running_loop().call_soon(self._deliver_early, request, say)

    def _deliver_early(self, request: Request, say: Callable[[bytes], None]) -> None:
        """Deliver an early question to the call that came, if there is one."""
        if self._drop_early(bytes(request.id)) and not self.lost.done():
            waiter = lone_call(self._waiters(), self.abandoned_session)
            self.has_unanswered_question |= waiter is None
            self._ask_caller(request, waiter, say)

    def _drop_early(self, id: bytes) -> bool:
        """Stop waiting for a call for this question; False if it is unknown."""
        early = self._early.pop(id, None)
        if early is not None:
            early[-1].cancel()
        return early is not None

    def _ask_caller(self, request: Request, waiter: Waiter | None, say: Callable[[bytes], None]) -> None:
        """Pass a server's request to its caller, if the caller is known and the method is a question."""
        if request.method not in QUESTIONS or (waiter is None and not self.client_caps):
            say(reply_to(request))
            return
        if waiter is None:
            say(_render_reply(request, UNSURE))
            return
        whose = self.server if "_meta" in request.params else None
        question = Question(request.method, msgspec.Raw(render(request.params)), whose)
        # An answer may take hours: keep only the id, not the whole message.
        bare = Request(request.id.copy(), request.method, {})
        asked = waiter.ask(question, partial(self._reply, bare, say))
        if asked is not None:
            self._questions[bytes(request.id)] = asked
            if (id := request.params.get(ELICITATION_ID)) is not None and asked.asked_of is not None:
                self._url_elicitations.sent(id, asked.asked_of)

    def _reply(self, request: Request, say: Callable[[bytes], None], reply: Reply) -> None:
        was_open = self._questions.pop(bytes(request.id), None) is not None
        if reply is GIVEN_UP:
            return
        message = _render_reply(request, reply)
        if was_open:
            self._send_reply(message, say)
        else:  # an immediate refusal, which the server can cause as often as it likes
            say(message)

    def _send_reply(self, message: bytes, say: Callable[[bytes], None]) -> None:
        """Send a reply that the server waits for; transports that drop messages under load must not drop this one."""
        say(message)

    def on_error_reply(self, waiter: Waiter, reply: ErrorReply) -> None:
        """Pass the server's error on. If it sends the user to a URL first, remember the call for that."""
        if reply.code == URL_ELICITATION_REQUIRED and isinstance(waiter, CallWaiter):
            for id in read_url_elicitations(reply.data):
                self._url_elicitations.sent(id, waiter.inflight)
        waiter.error(redact_error(reply, self.redact))

    def redactor_for(self, _: InFlight) -> Callable[[str], str]:
        """See `upstream.redaction.Redacting`."""
        return self.redact

    def _note_question(self) -> None:
        """The server asked without naming a call."""
        self.has_asked = True
        self.on_question()

    def _cancel_hidden_task(self, inflight: InFlight) -> None:
        """A call was abandoned: cancel the hidden task that runs for it."""
        if is_hidden_task(inflight):
            params = self.dialect.params({ID: msgspec.json.encode(inflight.name)})
            self._dispatch(self.next_id(), CANCEL, params, IgnoredResponse())

    def _note_abandoned(self, inflight: InFlight) -> None:
        """A call that may have reached the server was abandoned: the server may still ask about it."""
        session = inflight.call.session
        if not isinstance(inflight.exchange, HubExchange):
            self.abandoned_session = session if self.abandoned_session in (None, session) else UNKNOWN_SESSION

    def _lose(self, reason: str) -> None:
        if not self.lost.done():
            self.place.is_lost = True
            self.lost.set_result(reason)
            self._listen_done()
            # Break the reference cycles with this link, so that it is freed at once.
            self.__dict__.pop("_legacy_subscriptions", None)
            if (modern_subscriptions := self.__dict__.pop("_modern_subscriptions", None)) is not None:
                modern_subscriptions.stop()
            self.on_lost(reason)
            questions, self._questions = self._questions, {}
            for asked in questions.values():
                asked.retract()


def reply_to(request: Request) -> bytes:
    """Answer a server's request that is for no caller: the hub itself only answers pings."""
    if request.method == "ping":
        return jsonrpc.result(request.id, b"{}")
    text = f"{request.method} is not supported by this client"
    return jsonrpc.error(request.id, jsonrpc.METHOD_NOT_FOUND, text)


def _render_reply(request: Request, reply: Reply) -> bytes:
    if isinstance(reply, Answered):
        return jsonrpc.result(request.id, reply.result)
    return jsonrpc.error(request.id, reply.code, reply.message)
