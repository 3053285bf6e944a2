"""What every kind of link shares: asking a server the hub's own questions, greeting it, and reading its tools.

A kind (stdio, streamable, …) adds how one request travels: `_dispatch`. The supervisor owns links; lanes send calls
on them.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Set
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
from isthmus.upstream.settings import Era
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
from isthmus.wire.mcp.capabilities import ServerCapabilities
from isthmus.wire.mcp.hub_meta import NO_HUBS, read_hubs
from isthmus.wire.mcp.input_requests import (
    COMPLETED,
    ELICITATION_ID,
    QUESTIONS,
    URL_ELICITATION_REQUIRED,
    read_url_elicitations,
)
from isthmus.wire.mcp.messages import (
    CANCELLED,
    LOGGED,
    TOPIC_OF,
    UPDATED,
    Implementation,
    Members,
    read_log,
    read_progress,
    read_string,
    token_of,
)
from isthmus.wire.mcp.tasks import ID, STATUS_NOTIFICATION, state_of

ELICITATIONS_MAX = 1_000
"""Questions of one link of which it is remembered whom they sent elsewhere; the oldest are forgotten."""

ELICITATION_ID_LENGTH_MAX = 1024


class UrlElicitations:
    """Those of one link."""

    def __init__(self) -> None:
        self._sent: dict[bytes, tuple[ref[InFlight], Callable[[msgspec.Raw], None] | None]] = {}

    def sent(self, id: msgspec.Raw, inflight: InFlight) -> None:
        """This call's caller was sent elsewhere by a question of this id."""
        if len(memoryview(id)) > ELICITATION_ID_LENGTH_MAX:
            return
        exchange = inflight.exchange
        later = exchange.done_later() if isinstance(exchange, ElicitationExchange) else None
        self._sent[bytes(id)] = (ref(inflight), later)
        if len(self._sent) > ELICITATIONS_MAX:
            del self._sent[next(iter(self._sent))]

    def done(self, id: msgspec.Raw) -> None:
        """The user is done there: tell the caller once, by its call or, when that is over, beside its calls."""
        call, later = self._sent.pop(bytes(id), (None, None))
        inflight = None if call is None else call()
        if inflight is not None and inflight.outcome is None:
            inflight.elicitation_complete(id)
        elif later is not None:
            later(id)


PROBE_SECONDS = 3.0
"""How long a server may think about `server/discover` before it is greeted the earlier way as well: some old
servers ignore what comes before `initialize`, and a new one that is merely slow still answers the probe first."""

ASK_SECONDS = 30.0
"""How long the hub waits for the answer to a question of its own; a listing may take a server a while."""

NOT_MODERN = (400, 404, 405, 406, 415)
"""HTTP answers to the probe that an earlier server gives to what it does not know."""

REFUSED_VERSION = -32022

OWN_IDS = 1_000_000_000
"""From here on a link counts that is one caller's alone, so that its own ids are none that the caller would use. Ids of
callers between this and its double are replaced."""

ID_BYTES_MAX = 256
SAFE_INTEGER_MAX = 2**53 - 1
"""Bounds for ids of callers: not every server gives back exactly what is longer or larger."""

EARLY_MAX = 10
EARLY_SECONDS = 2.0
"""How long a question that came before its call waits for it."""

OTHERS: dict[str, frozenset[Ability]] = {"legacy": frozenset({"task_handles"}), "modern": frozenset({"tasks"})}
"""What a server of one era cannot mean if it says so."""


def _unheard(*_: object) -> None:
    """What a link tells before its owner listens. One for all: there may be ten thousand links."""


def _no_other_credentials() -> bool:
    """There is nothing else to show."""
    return False


class ConnectFailed(Exception):
    """A link could not be made; the message says why in words for the operator.

    `login` is where the server says how to prove who one is, if that is what it wants. `wants_login` says that nothing
    is shown to it before somebody has logged in, and `status` what it answered, if it did.
    """

    login: str | None = None
    wants_login = False
    status: int | None = None


class WrongCarrier(ConnectFailed):
    """Whoever is there does not speak this transport; another one may be what it speaks."""


class BaseLink(ABC):
    """A link being made, in use, or lost.

    `lost` ends with the reason when the link can carry nothing more; `on_lost` hears it first, before the calls
    on the link do. `on_doubt` is called when something suggests that the server is gone. `on_changed` is called
    when the server says that a list of its changed, `on_updated` when a resource was, `on_log` when it logs what
    belongs to no call, `on_renewed` when it had to be greeted anew and forgot everything, `on_gap` when it could not be
    heard for a while. `is_probing` tells a
    failed attempt's reader that the probe may have been what failed.
    """

    # There may be ten thousand links; what a kind adds is in its own dictionary, as ever.
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
    """Whether everything comes on one stream, so that a question need not say which call it is about."""

    can_ask = True
    """Whether such a server may ask something of callers, and so may list and do other things for those it can ask."""

    lists_by_client = True
    """Whether it is found out what such a server lists to those; else everybody is listed the same."""

    takes_methods = False
    """Whether its server can be asked for any method of MCP, and not for tools alone."""

    is_dedicated = False
    """Whether only one caller uses the server: then its requests keep their ids, and its greeting is kept for it."""

    initialize_result: msgspec.Raw | None = None
    """What the server said when it was greeted, as the result of `initialize`; kept only where `is_dedicated`."""

    recheck: Callable[[], Awaitable[None]] | None = None
    """Looks anew at what the server lists, before calls go on to a server that had to be greeted anew."""

    may_send: Callable[[InFlight], bool] | None = None
    """Whether a call may go on this link, on which its tool may look otherwise than its caller was shown."""

    carrier = ""
    """What carries messages, in one word for people."""

    @property
    def can_log_in(self) -> bool:
        """Whether a person could log in at its server by the command line."""
        return bool(self.login_hint())

    start_seconds = ASK_SECONDS
    """How long the first answer may take: a process may have to be installed and started first."""

    def __init__(self, server: ServerName, me: Implementation, limits: Limits) -> None:
        self.server = server
        self.dialect: McpDialect = LegacyDialect()
        self.capabilities = ServerCapabilities()
        self.hubs: Mapping[str, int] = NO_HUBS
        """The hubs that are there, by their ids, and how many others are between; none if the server is no hub."""
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.on_changed: Callable[[Topic], None] = _unheard
        self.on_updated: Callable[[str], None] = _unheard
        self.on_log: Callable[[LogMessage], None] = _unheard
        self.on_task: Callable[[ServerName, LinkSession, ServerTaskState], None] = _unheard
        """Hears how a task stands, when the server says so by itself."""
        self.on_progress: Callable[[LinkSession, int, Callable[[], Progress]], None] = _unheard
        """Hears of progress of a request that has been answered, perhaps with a task."""
        self.place = LinkSession(is_process=self.carrier == "stdio")
        """Where ids of tasks mean what they do now."""
        self.on_renewed: Callable[[], None] = _unheard
        self.on_gap: Callable[[], None] = _unheard
        self.on_question: Callable[[], None] = _unheard
        """Hears of a question that does not say which call it is about: programs had better not share such a link."""
        self.has_asked = False
        """Whether there was such a question, though nobody may have heard of it then."""
        self.can_wait = True
        """Whether a question that comes while there is no call may be the next call's."""
        self.has_unanswered_question = False
        """Whether such a question was answered by nobody: a server that asks only once had better be greeted anew."""
        self.abandoned_session: str | None = None
        """The conversation, or `UNKNOWN_SESSION`, of calls that were given up and that the server may ask about all the same;
        None if there are no such calls."""
        self.on_doubt: Callable[[], None] = _unheard
        self.on_unauthorized: Callable[[], None] = _unheard
        """Hears of a call that was turned away because of what the server was shown."""
        self.on_credentials_refused: Callable[[], bool] = _no_other_credentials
        """Asked when the server did not take what it was shown: whether there may be something else to show."""
        self.redact: Callable[[str], str] = str
        """Takes out of a text what the server is shown, which it may repeat to anybody."""
        self.login_hint: Callable[[], str] = str
        """Says how a person logs in at its server; nothing where none could."""
        self.on_lost: Callable[[str], None] = _unheard
        self.is_probing = False
        self.is_persistent = True
        """Whether a later call of the same caller comes the same way, so that it can ask about an earlier one."""
        self._me = me
        self.client_caps: ClientCapabilities = NO_CAPABILITIES
        """What those whose calls it carries can be asked; said when an earlier server is greeted."""
        self.limits = limits
        self._listen_ack: asyncio.Future[Fault | None] | None = None
        """Ends when a server has taken up what it was last asked to tell."""
        self._early: dict[bytes, tuple[Request, Callable[[bytes], None], asyncio.TimerHandle]] = {}
        """What the server asked before there was a call that it could be about, and how it is answered."""
        self._questions: dict[bytes, OpenQuestion] = {}
        """What the server asked and was not answered, by its own ids."""
        self._url_elicitations = UrlElicitations()
        self._last_id = 0

    @cached_property
    def _legacy_subscriptions(self) -> LegacySubscriptions:
        """Made when something is followed: of thousands of links most never are."""
        return LegacySubscriptions(self.server, self._send_subscription, self._forget)

    @cached_property
    def _modern_subscriptions(self) -> ModernSubscriptions:
        """Made when it is needed, as `_legacy_subscriptions`."""
        return ModernSubscriptions(self.server, self._listen_to)

    @property
    def last_output(self) -> str | None:
        """What the operator may want to read beside the reason for which the link was lost."""
        return None

    # -- what a kind adds ------------------------------------------------------------------------------------------

    @abstractmethod
    def _dispatch(self, id: int, method: str, params: bytes, waiter: Waiter) -> None:
        """Send a request; its waiter hears the end."""

    @abstractmethod
    def _forget(self, waiter: Waiter) -> None:
        """Nobody waits any more."""

    def _waiters(self) -> Iterable[Waiter]:
        """Whoever waits for an answer of the server."""
        return ()

    @abstractmethod
    def _notify(self, method: str, params: Payload | None) -> None:
        """Send a notification."""

    @abstractmethod
    def listen(self) -> None:
        """Start hearing of changes, where the server announces them and the era needs a request for it."""

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
        """Give the link up in good order; whatever is still on it ends as lost."""

    # -- asking ----------------------------------------------------------------------------------------------------

    def next_id(self) -> int:
        """Ids towards a server are the link's own, whatever the callers' are; but see `caller_request_id`."""
        self._last_id += 1
        return self._last_id

    def dedicate_to_caller(self) -> None:
        """From now on only one caller's calls are sent here."""
        self.is_dedicated = True
        self._last_id = OWN_IDS

    def caller_request_id(self, call: Call, used: Iterable[bytes | None]) -> bytes | None:
        """The id under which the caller wants a call sent; None if it is to be one of the link's own.

        It is the link's own on a link that others use too, and while another request of the same id is on its way.
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
        """Ask and wait for the result.

        Raises:
            Fault: the server refused, the link broke, or no answer came in time.
        """
        return await self.answered(self.start_request(method, params), within)

    def start_request(self, method: str, params: bytes) -> HubRequest:
        """Ask without waiting: `answered` does, and must be called."""
        own_request = HubRequest(self.server, method)
        self._dispatch(self.next_id(), method, params, own_request)
        return own_request

    async def answered(self, own_request: HubRequest, within: float = ASK_SECONDS) -> msgspec.Raw:
        """Wait for the result of what was asked. Raises as `ask` does."""
        try:
            # Not `wait_for`: in Python 3.11 it swallows a cancellation that comes together with the answer.
            async with asyncio.timeout(within):
                return await own_request.answer
        except TimeoutError:
            raise BadReply(self.server, f"no answer to {own_request.method} within {within:g} s") from None
        finally:
            self._forget(own_request)
            del own_request  # a fault has this frame; it must not have the fault, or the link is only freed as a cycle

    async def ping(self, within: float) -> None:
        """See whether the server still answers. Raises `Fault` if not; an error is an answer too."""
        try:
            await self.ask(self.dialect.probe, self.dialect.params(), within)
        except ServerError:
            return

    # -- greeting --------------------------------------------------------------------------------------------------

    async def handshake(self, era: Era) -> None:
        """Find out the server's era, or use the one that is known, and open the link in it.

        Raises:
            ConnectFailed: it answered, but not as a server of any era would.
            Fault: it did not answer.
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
        """Ask a modern hub which others are behind it now. Raises `Fault`."""
        if self.dialect.era == "modern":
            discovery = modern.read_discover_result(await self.ask(modern.DISCOVER, self.dialect.params()))
            self.hubs = self.hubs if discovery is None else read_hubs(discovery.meta)

    async def _discover(self, patience: float | None) -> modern.DiscoverResult | None:
        self.is_probing = True
        within = self.start_seconds if patience is None else patience
        answer: msgspec.Raw | None = None
        try:
            answer = await self._probe(within)
        except NotConnected as refused:
            if refused.status not in NOT_MODERN:
                raise
        except (ServerError, BadReply):
            pass  # an error, silence, or an answer no modern server gives: ask the earlier way
        self.is_probing = False
        discovery = None if answer is None else modern.read_discover_result(answer)
        if self.is_dedicated and answer is not None and discovery is not None:
            self.initialize_result = msgspec.Raw(modern.as_initialize_result(answer))
        return discovery

    async def _probe(self, within: float) -> msgspec.Raw:
        """Ask a server to say what it is, a second time if it refuses the version and names it as one of its own."""
        params = ModernDialect(self._me).params()
        try:
            return await self.ask(modern.DISCOVER, params, within)
        except ServerError as refused:
            if refused.code != REFUSED_VERSION or not modern.is_version_supported(refused.data):
                raise
        return await self.ask(modern.DISCOVER, params, within)

    async def _initialize(self) -> None:
        try:
            answer = await self.ask(
                "initialize", legacy.initialize_params(self._me, self.client_caps), self.start_seconds
            )
        except ServerError as refused:
            if refused.code == REFUSED_VERSION and (discovery := await self._discover(None)) is not None:
                # Its answer to the probe came too late; by then it had settled on the modern era.
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

    def _on_initialized(self, answer: Payload, welcome: legacy.InitializeResult) -> None:  # noqa: B027 - most keep nothing of it
        """The server said what it is; a kind may want to keep more of that."""

    # -- listing ---------------------------------------------------------------------------------------------------

    def abilities(self) -> frozenset[Ability]:
        """What the server says it can do, in its own era's way."""
        told = self.capabilities.abilities() - OTHERS[self.dialect.era]
        return told if self.is_persistent else told - TASK_ABILITIES

    async def list_features(
        self,
        topics: Set[Topic] = frozenset(TOPICS),
        known: Listing | None = None,
        client_caps: ClientCapabilities = NO_CAPABILITIES,
    ) -> Listing:
        """What the server offers to those who can be asked this; of what is not among `topics`, what is known.

        Raises:
            Fault: the server gave no usable list of tools. Other lists that it cannot give are noted.
        """
        listing = known or Listing()
        if "tools" not in self.abilities():
            listing = msgspec.structs.replace(listing, tools=(), notes={"tools": ("it says that it has no tools",)})
        for topic in TOPICS:
            if topic in topics and topic in self.abilities():
                listing = await self._read_topic(topic, listing, client_caps)
        return listing

    async def _read_topic(self, topic: Topic, known: Listing, client_caps: ClientCapabilities) -> Listing:
        try:
            return await read_topic(self, topic, known, client_caps)
        except (ServerError, BadReply) as failed:
            if topic == "tools":
                raise
            note = f"it gave no list of {topic}: {getattr(failed, 'why', failed.message)}"
            return msgspec.structs.replace(known, notes={**known.notes, topic: (note,)})

    # -- what belongs to no request --------------------------------------------------------------------------------

    def on_notification(self, method: str, params: Members) -> None:
        """The server tells something that is about no request, or does not say about which."""
        if (topic := TOPIC_OF.get(method)) is not None:
            self.on_changed(topic)
        elif method == UPDATED:
            if (uri := read_string(params.get("uri"))) is not None:
                self.on_updated(uri)
        elif method == CANCELLED:
            self._on_cancelled(params)
        elif method == STATUS_NOTIFICATION:
            self._on_task_status(params)
        elif method == COMPLETED and (id := params.get(ELICITATION_ID)) is not None:
            self._url_elicitations.done(id)
        elif method == LOGGED and (line := read_log(params)) is not None:
            self._on_log_line(line)

    def _on_task_status(self, params: Members) -> None:
        """A modern server tells only who asks it to, which the hub does not: it asks how tasks stand."""
        if self.dialect.era == "legacy" and (state := state_of(params)) is not None:
            self.on_task(self.server, self.place, state)

    def _on_late_progress(self, params: Members) -> None:
        """Progress of what nobody waits for any more."""
        self.on_progress(self.place, token_of(params), partial(read_progress, params, self.server))

    def link_session_of(self, inflight: InFlight) -> LinkSession | None:
        """See `core.ports.TaskLink`."""
        return self.place

    def _on_log_line(self, line: LogMessage) -> None:
        """Nobody can say whose it is: it is the operator's."""
        self.on_log(line)

    def set_level(self, level: LogLevel) -> HubRequest | None:
        """Ask a server of the earlier era to log from this level on, before anything that is sent after this.

        None if it cannot be asked; a modern one is told with every call.
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
            raise ServerError(self.server, jsonrpc.METHOD_NOT_FOUND, "It does not tell of updates of resources")

    def unsubscribe(self, uri: str) -> None:
        """See `core.ports.SubscriptionLink`."""
        if not self.lost.done():
            (self._legacy_subscriptions if self.dialect.era == "legacy" else self._modern_subscriptions).drop(uri)

    def _send_subscription(self, method: str, uri: str) -> HubRequest:
        """Ask an earlier server to tell of one resource, or to stop that."""
        own_request = HubRequest(self.server)
        self._dispatch(self.next_id(), method, self.dialect.params({"uri": msgspec.json.encode(uri)}), own_request)
        return own_request

    def _listen_to(self, uris: Collection[str]) -> None:
        """Have a modern server tell of its lists and of these resources, in place of what it was asked before."""
        self._modern_subscriptions.acknowledged(None)

    @property
    def listen_ack(self) -> asyncio.Future[Fault | None] | None:
        """Ends when the server tells what it was last asked to, or refuses; None if it was asked for nothing."""
        return self._listen_ack

    def _expect_listening(self) -> None:
        """A server was asked to tell: it says when it does."""
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
        """Put a server's request that names no call to the caller it can be meant for."""
        is_question = request.method in QUESTIONS and self.client_caps
        if is_question and not any(isinstance(waiter, CallWaiter) for waiter in self._waiters()):
            self._on_question_between_calls(request, say)
        else:
            self._ask_caller(request, lone_call(self._waiters(), self.abandoned_session), say)

    def _on_question_between_calls(self, request: Request, say: Callable[[bytes], None]) -> None:
        """Some ask for the roots as soon as they are greeted, before the call that the link was made for is sent.

        Such a question waits for it, a moment. One about what is over must not reach whoever calls next.
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
        """A call is sent: what waits is put to it, though not before whoever starts it has it in hand."""
        for request, say, _ in self._early.values():
            asyncio.get_running_loop().call_soon(self._deliver_early, request, say)

    def _deliver_early(self, request: Request, say: Callable[[bytes], None]) -> None:
        """Put a question that waited to the call that came, if one did and is not over."""
        if self._drop_early(bytes(request.id)) and not self.lost.done():
            waiter = lone_call(self._waiters(), self.abandoned_session)
            self.has_unanswered_question |= waiter is None
            self._ask_caller(request, waiter, say)

    def _drop_early(self, id: bytes) -> bool:
        """Let a question wait no more; False if there is none."""
        early = self._early.pop(id, None)
        if early is not None:
            early[-1].cancel()
        return early is not None

    def _ask_caller(self, request: Request, waiter: Waiter | None, say: Callable[[bytes], None]) -> None:
        """Put a server's own request to the caller of whom it is asked, if that is known and it is a question."""
        if request.method not in QUESTIONS or (waiter is None and not self.client_caps):
            say(reply_to(request))
            return
        if waiter is None:
            say(_render_reply(request, UNSURE))
            return
        whose = self.server if "_meta" in request.params else None
        question = Question(request.method, msgspec.Raw(render(request.params)), whose)
        # An answer may take hours: only the id is kept for it, without the message that it is a part of.
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
        else:  # a refusal at once, of which there may be as many as the server likes to have
            say(message)

    def _send_reply(self, message: bytes, say: Callable[[bytes], None]) -> None:
        """Send an answer that the server waits for; a carrier that drops some of what it says sees to it."""
        say(message)

    def on_error_reply(self, waiter: Waiter, reply: ErrorReply) -> None:
        """Tell who waits of the server's error; of one that sends the user elsewhere first, remember whose it was."""
        if reply.code == URL_ELICITATION_REQUIRED and isinstance(waiter, CallWaiter):
            for id in read_url_elicitations(reply.data):
                self._url_elicitations.sent(id, waiter.inflight)
        waiter.error(redact_error(reply, self.redact))

    def redactor_for(self, _: InFlight) -> Callable[[str], str]:
        """See `upstream.redaction.Redacting`."""
        return self.redact

    def _on_cancelled(self, params: Members) -> None:
        """The server does not want an answer any more; by the specification it gets none."""
        id = bytes(params.get("requestId", b""))
        self._drop_early(id)
        asked = self._questions.pop(id, None)
        if asked is not None:
            asked.retract()

    def _note_question(self) -> None:
        """The server asks without saying which call it is about."""
        self.has_asked = True
        self.on_question()

    def _cancel_hidden_task(self, inflight: InFlight) -> None:
        """A call was given up: end the task that it is run as, of which its caller knows nothing."""
        if is_hidden_task(inflight):
            params = self.dialect.params({ID: msgspec.json.encode(inflight.name)})
            self._dispatch(self.next_id(), CANCEL, params, IgnoredResponse())

    def _note_abandoned(self, inflight: InFlight) -> None:
        """A call that may have reached the server was given up: it may ask about it all the same."""
        session = inflight.call.session
        if not isinstance(inflight.exchange, HubExchange):
            self.abandoned_session = session if self.abandoned_session in (None, session) else UNKNOWN_SESSION

    def _lose(self, reason: str) -> None:
        if not self.lost.done():
            self.place.is_lost = True
            self.lost.set_result(reason)
            self._listen_done()
            self._drop_subscriptions()
            self.on_lost(reason)
            questions, self._questions = self._questions, {}
            for asked in questions.values():
                asked.retract()

    def _drop_subscriptions(self) -> None:
        """Let go of what has this link as well, so that it can be freed at once; what is asked for later is new."""
        self.__dict__.pop("_legacy_subscriptions", None)
        if (jointly := self.__dict__.pop("_modern_subscriptions", None)) is not None:
            jointly.stop()


def reply_to(request: Request) -> bytes:
    """Answer a server's own request that is for nobody: only a ping may be asked of the hub itself."""
    if request.method == "ping":
        return jsonrpc.result(request.id, b"{}")
    text = f"{request.method} is not supported by this client"
    return jsonrpc.error(request.id, jsonrpc.METHOD_NOT_FOUND, text)


def _render_reply(request: Request, reply: Reply) -> bytes:
    if isinstance(reply, Answered):
        return jsonrpc.result(request.id, reply.result)
    return jsonrpc.error(request.id, reply.code, reply.message)
