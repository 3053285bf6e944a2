"""Keeps one server connected: connects, lists, watches, retries when the link is lost, and publishes its status.

Each server has its own reconnector, so that its trouble affects only its own tools. The reconnector decides when there
is a link; the server queue decides what is sent on it. Owned by the supervisor.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeAlias

import msgspec
import structlog

from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.hub import Hub
from isthmus.core.calls.running_call import InFlight
from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.catalog.definition_review import Review
from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.core.catalog.view import ServerState
from isthmus.core.ports import Link, ListLoad, SubscriptionLink
from isthmus.model.callers import Caller
from isthmus.model.calls import ClientCapabilities, LogMessage
from isthmus.model.credentials import Subject
from isthmus.model.fault_table import BadReply, Fault, NotConnected, ServerError
from isthmus.model.features import TOPICS, Tool, Topic
from isthmus.model.names import FeatureName
from isthmus.upstream.base_link import BaseLink, ConnectFailed, WrongCarrier
from isthmus.upstream.link_pool import LinkPool
from isthmus.upstream.listing import ListCache, Listing, RelistSchedule, offered, sharing
from isthmus.upstream.lists_by_capability import ListsByCapability
from isthmus.upstream.server_settings import Carrier, Era, HttpSettings, ServerSettings, TargetHttpSettings
from isthmus.upstream.subscription_sync import LogLevelSync, SubscriptionSync
from isthmus.wire.jsonrpc import METHOD_NOT_FOUND
from isthmus.wire.mcp.lists import TOOLS

PAUSE_SECONDS_MIN = 0.5
PAUSE_SECONDS_MAX = 30.0
"""Bounds of the pause before a server is tried again."""


class Backoff:
    """Full jitter: a random pause below a bound that doubles, so that many hubs do not retry at once."""

    def __init__(self, max_seconds: float = PAUSE_SECONDS_MAX) -> None:
        self._bound = PAUSE_SECONDS_MIN
        self._max_seconds = max_seconds

    def next(self, chance: float) -> float:
        """The next pause; `chance` is a random number in [0, 1)."""
        seconds = self._bound * chance
        self._bound = min(self._bound * 2, self._max_seconds)
        return seconds

    def reset(self) -> None:
        """The server was healthy: the next pause is short again."""
        self._bound = PAUSE_SECONDS_MIN


class ToolGuard:
    """Checks calls on a link of the pool: its tools may differ from those of the shared link, which callers see."""

    def __init__(self, link: BaseLink, review: Review, shown: Callable[[], Listing]) -> None:
        self._link = link
        self._review = review
        self._shown = shown
        self._tools: dict[str, Tool] = {}

    async def read_tools(self) -> None:
        """Read the link's tools, if changed tools are withheld. Raises `Fault`."""
        if self._review.withholds(self._link.server):
            read = await self._link.list_features({"tools"}, client_caps=self._link.questions.client_caps)
            tools = sharing(read, self._shown()).tools
            await self._review.prepare(tools)
            self._tools = {tool.name: tool for tool in tools}

    def may_send(self, inflight: InFlight) -> bool:
        """Whether a call may be sent; tools that are not listed on the link are left to the server."""
        tool = self._tools.get(inflight.name) if inflight.call.kind == "tool" else None
        return tool is None or self._review.passes_on_own_link(tool, self._link.questions.client_caps)


def is_visible_now(hub: Hub, inflight: InFlight) -> bool:
    """Whether the caller still sees the tool: for calls that waited on the shared link."""
    call = inflight.call
    if call.kind != "tool" or not hub.review.withholds(inflight.target.feature.server):
        return True
    return hub.snapshot.find_tool(call.caller.grants, call.surface, call.client_caps, call.name) is not None


log = structlog.get_logger(__name__)

Connect: TypeAlias = Callable[[ServerSettings, Carrier, Subject | None], Awaitable[BaseLink]]
"""Makes a link without the handshake, over this transport, for everybody or for one caller. Raises `ConnectFailed`."""

PING_SECONDS = 30.0
"""How often a link without calls is pinged."""

REFRESH_SECONDS = 60.0
"""A list is read again after this long, unless its server says how long it is valid: many servers change their tools
without a notification."""

REFRESH_SECONDS_MAX = 3600.0
"""The longest validity of a list that is accepted from a server."""

PONG_SECONDS = 10.0
HEALTHY_SECONDS = 10.0
"""A link that lived this long, or answered a call, was healthy: the retry pauses start again."""

LINE_LENGTH_MAX = 500
"""How much of a server's log line the operator sees."""

LISTEN_ACK_SECONDS = 0.25
"""How long the first listing waits for the acknowledgement of the subscription."""

FORBIDDEN = (401, 403)

LOGIN_SECONDS = 300.0
"""How often a server that wants a login is tried again."""

LOGIN_RETRY_SECONDS = 2.0
"""How soon a call causes another try: the login may have happened in another process."""

UNAUTHORIZED = 401

STARTING_FROM_CACHE = "it is starting; its last list is shown, and calls wait for it"

PING_PAUSE_SECONDS = 1.0
"""A busy server that does not respond is pinged at most this often."""


class Reconnector:
    """Keeps one server: connect, initialize, list, watch, and again when it is lost.

    While `is_hidden` nothing is published: a successor before it takes over, and a predecessor afterwards. `tried` ends
    with the first attempt.
    """

    # Slots, as of links: a dictionary of so many members takes 1.6 KB for each server.
    __slots__ = (
        "__weakref__",
        "_background",
        "_backoff",
        "_carrier",
        "_connect",
        "_era",
        "_holds_calls",
        "_hub",
        "_is_unauthorized",
        "_link",
        "_listing",
        "_lists",
        "_lists_awaited",
        "_lists_by_capability",
        "_log_level_sync",
        "_logged_cuts",
        "_ping_is_due",
        "_pool",
        "_relist_at",
        "_relist_problem",
        "_retry",
        "_schedule",
        "_subscription_sync",
        "_wake_up",
        "grace",
        "is_hidden",
        "is_leaving",
        "on_asked",
        "on_lists_changed",
        "server_queue",
        "server_status",
        "settings",
        "tried",
    )

    _is_dial_in = False

    absent: ServerState = "retrying"
    """The state of a server whose link was lost."""

    def __init__(
        self,
        hub: Hub,
        background: BackgroundTasks,
        server_queue: ServerQueue,
        settings: ServerSettings,
        connect: Connect,
        lists: ListCache | None = None,
    ) -> None:
        """Without `lists`, nothing is known of a server before it responds, and nothing is stored."""
        self.server_queue = server_queue
        self.settings = settings
        self.is_hidden = False
        self.is_leaving = False
        self.server_status = ServerStatus(settings.name, reason="it has not answered yet", rules=settings.rules)
        self.tried: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._hub = hub
        self._background = background
        self._connect = connect
        self._lists = lists
        self.grace = 0.0
        """How long calls wait for a new link after the last one."""
        self.on_lists_changed: Callable[[Sequence[Topic]], None] = lambda _: None
        """Called with the lists that have changed."""
        self.on_asked: Callable[[], None] = lambda: None
        """Called once, after a question of the server that did not name its call."""
        self._lists_awaited: frozenset[Topic] = frozenset()
        """Lists that changed according to another node and have not been read since; callers' lists wait for them."""
        self._holds_calls = False
        """Whether calls wait for the first attempt."""
        self._backoff = Backoff()
        self._era: Era = settings.reach.era
        self._carrier: Carrier | None = None
        self._link: BaseLink | None = None
        self._subscription_sync = SubscriptionSync(hub, background, settings.name)
        self._log_level_sync = LogLevelSync(hub.levels, background, settings.name)
        self._lists_by_capability = ListsByCapability(
            settings.name,
            background,
            self._link_for_listing,
            is_at_hand=self._can_list_now,
            on_known=lambda: self._publish_status(
                variants=self._lists_by_capability.offers(self._listing, self.server_status.abilities)
            ),
            on_changed=lambda topics: self.on_lists_changed(tuple(topics)),
        )
        self._pool = self._make_pool()
        server_queue.pool = self._pool
        self._listing = Listing()
        self._relist_problem: str | None = None
        """Why the lists could not be read again; the last ones stay."""
        self._logged_cuts: frozenset[str] = frozenset()
        self._schedule = RelistSchedule()
        self._ping_is_due = False
        self._relist_at = 0.0
        """When the lists are read again."""
        self._wake_up: asyncio.Future[None] | None = None
        self._is_unauthorized = False
        """The server rejects everybody without a login."""
        self._retry: asyncio.Future[None] | None = None
        """Ends the pause before the next attempt."""

    async def run(self) -> None:
        """Run until cancelled, or until the link is lost while leaving."""
        unwatch = self._hub.levels.watch(self._log_level_sync.changed)
        try:
            await self._load_cached()
            while not self.is_leaving:
                self._is_unauthorized = False
                await self._attempt()
                if self._is_unauthorized:
                    await self._await_login()
                else:
                    await self._pause(self._backoff.next(random.random()))  # noqa: S311 - spread, not secrecy
        finally:
            unwatch()
            self._lists_by_capability.close()
            if self._pool is not None:
                await self._pool.aclose()

    async def _load_cached(self) -> None:
        """Publish the cached lists until the server responds, and let calls wait meanwhile."""
        known = None if self._lists is None or self.is_hidden else await self._lists.recall(self.settings)
        if known is None:
            return
        await self._hub.review.prepare_lists(self.settings.name, offered(known.listing, known.abilities))
        if self.is_hidden or self.is_leaving:
            return
        self._listing = known.listing
        self._holds_calls = True
        self.server_queue.grace = self.server_queue.hard_seconds  # the first attempt ends long before that
        self._publish_status(
            reason=STARTING_FROM_CACHE, is_recalled=True, abilities=known.abilities, **self._listing_fields()
        )

    def _cache_lists(self, link: BaseLink) -> None:
        if self._lists is not None:
            self._lists.store(self.settings, self._listing, link.abilities())

    def _stop_holding(self) -> None:
        """The first attempt has ended: waiting calls are sent or fail."""
        if self._holds_calls:
            self._holds_calls = False
            if self.grace:
                self.server_queue.grace = self.grace
            else:
                self.server_queue.end_grace()

    def _make_pool(self) -> LinkPool | None:
        """The pool for links that are not shared; None if the server can have only one link."""
        pool = LinkPool(
            self.settings, self._background, self._connect_initialized, self._on_server_log, self._subscription_sync
        )
        pool.on_changed = self._relist_soon_for
        pool.on_renewed = self._log_level_sync.renew
        pool.on_asked = lambda: self.on_asked()  # noqa: PLW0108 - `on_asked` is set after this
        return pool

    def publish(self, *, is_awaited: bool = False) -> None:
        """Publish the server, in place of a predecessor if there is one; see `Hub.open_server_queue`."""
        self.is_hidden = False
        self._hub.open_server_queue(self.server_queue, self.server_status, is_awaited=is_awaited, learner=self)
        self._hub.subscriptions.attach(self.settings.name, self._subscription_link(), self._pool)
        self._resubscribe()

    def inherit(self, before: Reconnector) -> None:
        """Take over the predecessor's log, and prepare the lists for its callers."""
        self.server_queue.log = before.server_queue.log
        self._lists_by_capability.inherit(before._lists_by_capability)

    @property
    def initialize_result(self) -> msgspec.Raw | None:
        """The server's `initialize` result, if its link stores it."""
        return None if self._link is None else self._link.initialize_result

    @property
    def active_link(self) -> BaseLink | None:
        """The shared link, if there is one now."""
        return self._link

    async def ready(self, within: float) -> None:
        """Wait for the first attempt, and a moment for the lists by capability."""
        await asyncio.wait({self.tried}, timeout=within)
        await self._lists_by_capability.wait_listed(self._hub.limits.listing_seconds)

    def adjust(self, settings: ServerSettings) -> None:
        """Apply settings that need no new link."""
        self.settings = settings
        self.server_queue.adjust(settings.max_calls, settings.max_queued, settings.timeout)
        if self._pool is not None:
            self._pool.adjust(settings)
        self._publish_status(rules=settings.rules)

    def crashed(self, error: BaseException) -> None:
        """A defect in the reconnector: report it instead of looking slow."""
        self._stop_holding()
        self.server_queue.detach("a defect in the hub stopped it; see the log", is_failure=True)
        self._publish_status(
            state="stopped", reason=f"a defect in the hub: {error}", is_settled=True, is_recalled=False
        )

    def leave(self) -> None:
        """Fail waiting calls because the hub stops; the link is closed when `run` is cancelled."""
        self.is_leaving = True
        self.server_queue.detach("the hub is shutting down", is_failure=False)
        self.server_queue.grace = 0.0

    # -- servers that want a login ---------------------------------------------------------------------------------

    async def _await_login(self) -> None:
        """Pause until the credentials change, or a call wants the server."""
        loop = asyncio.get_running_loop()
        began = loop.time()

        def retry() -> None:
            # A call came, and a person may have logged in elsewhere.
            if loop.time() - began >= LOGIN_RETRY_SECONDS:
                self.renew()

        self.server_queue.on_wanted = retry
        try:
            await self._pause(LOGIN_SECONDS)
        finally:
            self.server_queue.on_wanted = None

    async def _pause(self, seconds: float) -> None:
        self._retry = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait({self._retry}, timeout=seconds)
        finally:
            self._retry = None

    def retry(self) -> None:
        """Connect now, if the next attempt is only due later."""
        if self._retry is not None and not self._retry.done():
            self._retry.set_result(None)

    def renew(self, subject: Subject | None = None) -> None:
        """The credentials changed or were removed: check what the server says to that.

        With a `subject`, only the credentials of that caller changed.
        """
        if subject is not None:
            if self._pool is not None:
                self._pool.renew(subject)
        elif self._link is not None:
            self._ping_soon()
        else:
            self.retry()

    def _is_login_wanted(self, failed: Exception, link: BaseLink | None) -> bool:
        """Whether only a new login can help; an expired token is refreshed by itself."""
        if isinstance(self.settings.reach, TargetHttpSettings):
            return False
        if isinstance(failed, ConnectFailed) and failed.wants_login:
            return True
        status = failed.status if isinstance(failed, NotConnected | ConnectFailed) else None
        return status == UNAUTHORIZED and link is not None and not link.on_credentials_refused()

    # -- one life of a link ----------------------------------------------------------------------------------------

    async def _attempt(self) -> None:
        """Connect and watch until the link is lost, over the transport that the server speaks."""
        refusals: list[str] = []
        for carrier in self._carriers():
            try:
                await self._attempt_over(carrier)
            except WrongCarrier as wrong:
                refusals.append(str(wrong))
            else:
                return
        self._carrier = None
        self._publish_failure("; ".join(refusals), None)

    def _carriers(self) -> Sequence[Carrier]:
        """Transports to try: the one that worked, the configured one, or both in turn."""
        reach = self.settings.reach
        if not isinstance(reach, HttpSettings):
            return ("auto",)
        if self._carrier is not None:
            return (self._carrier,)
        if isinstance(reach, TargetHttpSettings):
            return list(dict.fromkeys(carrier for carrier, _ in reach.ways))
        return ("http", "sse") if reach.carrier == "auto" else (reach.carrier,)

    async def _attempt_over(self, carrier: Carrier) -> None:
        """Raises `WrongCarrier` if the server speaks another transport."""
        try:
            link = await self._connect(self.settings, carrier, None)
        except WrongCarrier:
            raise
        except ConnectFailed as failed:
            self._is_unauthorized = self._is_login_wanted(failed, None)
            self._publish_failure(str(failed), None, failed.login)
            return
        link.report_output(self._on_output)
        link.questions.client_caps = self.settings.client_caps
        link.is_persistent = self.settings.isolation != "call"
        # Set before the calls on the link end, so that a lost link counts as one failure.
        link.on_lost = lambda reason: self._publish_failure(link.redact(reason), link.last_output)
        try:
            await self._run_link(link, carrier)
        except WrongCarrier:
            raise
        except (Fault, ConnectFailed) as failed:
            # If the probe killed the server, the next attempt skips it.
            self._era = "legacy" if link.is_probing and link.lost.done() else "auto"
            why = link.lost.result() if link.lost.done() else str(getattr(failed, "why", failed))
            if isinstance(self.settings.reach, TargetHttpSettings) and self._carrier is None and _is_answer(failed):
                raise WrongCarrier(why) from failed
            login = failed.login if isinstance(failed, NotConnected | ConnectFailed) else None
            self._is_unauthorized = self._is_login_wanted(failed, link)
            if self._is_unauthorized and (words := link.login_hint()):
                why = f"{words} ({why})"
            self._publish_failure(link.redact(why), link.last_output, login)
        finally:
            self._link = None
            link.on_lost = lambda _reason: None
            await link.aclose()

    async def _run_link(self, link: BaseLink, carrier: Carrier) -> None:
        await link.handshake(self._known_era())
        if link.knows_era:
            self._era = link.dialect.era
        self._carrier = carrier
        self._check_loop(link)
        await self._listen_first(link)
        self._listing = await self._reviewed(link, await link.list_features())
        self._use_link(link)
        began = asyncio.get_running_loop().time()
        try:
            await self._watch(link)
        finally:
            if self.server_queue.answered or asyncio.get_running_loop().time() - began > HEALTHY_SECONDS:
                self._backoff.reset()

    async def _reviewed(self, link: BaseLink, listing: Listing) -> Listing:
        """Review a listing, which may take a while. Raises `NotConnected` if the link is lost meanwhile."""
        await self._hub.review.prepare_lists(self.settings.name, offered(listing, frozenset()))
        if link.lost.done():
            raise NotConnected(link.server, link.lost.result())
        if listing.is_unlisted and self._hub.review.withholds(self.settings.name):
            # Where changed tools are withheld, a server must not evade that by no longer listing them.
            words = f"it has no {TOOLS.method}: declare its tools in the configuration, so that they can be approved"
            raise ServerError(link.server, METHOD_NOT_FOUND, words)
        return listing

    async def _recheck_tools(self, link: BaseLink) -> None:
        """Review the tools of a server that lost its session, before any call in the new one."""
        if self._hub.review.withholds(self.settings.name):
            self._listing = await self._reviewed(link, await link.list_features({"tools"}, self._listing))
            self._publish_status(**self._listing_fields())

    def _use_link(self, link: BaseLink) -> None:
        """Publish a listed link as ready and let calls be sent on it."""
        if not link.can_ask:  # such lists came from an earlier state of the server
            self._lists_by_capability.forget()
        self._link = link
        self._relist_problem = None
        gone: set[FeatureName] = set()
        if self.server_status.tools and self.server_status.tools != self._listing.tools:
            gone = {tool.name for tool in self.server_status.tools} - {tool.name for tool in self._listing.tools}
        self._publish_status(
            state="ready",
            reason=None,
            detail=None,
            abilities=link.abilities(),
            era=link.dialect.version,
            carrier=link.carrier,
            is_settled=True,
            is_recalled=False,
            **self._listing_fields(),
        )
        self.server_queue.refuse_tools(gone)  # calls may have waited for cached tools that no longer exist
        self._stop_holding()
        self._cache_lists(link)
        link.on_updated = self._subscription_sync.updated
        link.on_log = self._on_server_log
        link.on_doubt = link.on_unauthorized = self._ping_soon
        # Only now: waiting calls may be for tools that are withheld.
        self.server_queue.attach(link if self._pool is None else self._route_calls(link, self._pool))
        if not self.is_hidden:
            self._hub.subscriptions.attach(link.server, self._subscription_link(), self._pool)
        if link.can_ask and link.lists_by_client:
            self._lists_by_capability.start()
        self._log_ready(link)
        self._log_cuts()
        self._log_level_sync.attend(link)
        self._resubscribe()
        self._plan_refresh()

    def _log_cuts(self) -> None:
        """Log each list whose end is missing, once until that changes."""
        cuts = self._listing.cuts()
        for note in sorted(cuts - self._logged_cuts):
            log.warning("list of a server was cut", server=self.settings.name, reason=note)
        self._logged_cuts = cuts

    def _with_advice(self, reason: str) -> str:
        """The reason, with the limit that the operator can raise."""
        is_too_long = reason.endswith(f"of over {self._hub.limits.reply_bytes} bytes")
        return f"{reason}; to allow that, raise limits.reply_bytes" if is_too_long else reason

    def _log_ready(self, link: BaseLink) -> None:
        self.server_queue.log.add(time.time(), "hub", f"ready: {len(self._listing.tools)} tools")
        log.info("server ready", server=link.server, tools=len(self._listing.tools), protocol=link.dialect.version)

    def _check_loop(self, link: BaseLink) -> None:
        """Refuse a hub that leads back to this one.

        It would list our tools for ever, under longer and longer names. Its lists are removed at once: otherwise two
        hubs that detect the loop together would wait for each other.
        """
        # Programs of other nodes, and servers that dialled in there, are reached through these nodes.
        others = () if self.settings.owners or self._is_dial_in else self._hub.other_ids
        if (why := find_loop(link.hubs, self._hub.id, others)) is not None:
            self._listing = Listing()
            self._cache_lists(link)
            self._publish_status(**self._listing_fields() | {"abilities": frozenset(), "variants": {}, "hubs": {}})
            raise ConnectFailed(why)

    async def _listen_first(self, link: BaseLink) -> None:
        """Subscribe to changes before listing, so that no change in between is missed.

        A server that does not acknowledge in a moment is listed all the same, and again once it does.
        """
        self._schedule.clear()
        self._lists_awaited = frozenset()
        link.recheck, link.may_send = partial(self._recheck_tools, link), partial(is_visible_now, self._hub)
        link.on_changed = self._relist_soon
        link.on_renewed = self._renewed
        link.on_gap = self._on_gap
        link.listen()
        listen_ack = link.listen_ack
        if listen_ack is None or not link.capabilities.announces_changes:
            return
        await asyncio.wait({listen_ack}, timeout=LISTEN_ACK_SECONDS)
        if listen_ack.done():
            return

        def acknowledged_late(listen_ack: asyncio.Future[Fault | None]) -> None:
            if listen_ack.result() is None and not link.lost.done():
                self._schedule.doubt(TOPICS)
                self._lists_by_capability.doubt(TOPICS)
                self._wake()

        listen_ack.add_done_callback(acknowledged_late)

    def _subscription_link(self) -> SubscriptionLink | None:
        """The link for everybody's subscriptions."""
        if self._link is None or self._pool is None or not self._pool.shares_subscriptions:
            return self._link
        return AllLinks(self._link, self._pool)

    def _route_calls(self, link: BaseLink, pool: LinkPool) -> Link:
        """Decide where calls of clients without capabilities go: the shared link or the pool. Returns that."""
        is_shared = self.settings.isolation == "shared" and not self.settings.credentials.is_divided
        calls_link: Link = link if is_shared else pool
        pool.differs_by_client = (
            link.dialect.era == "legacy" and link.can_ask and not (link.questions.client_caps and is_shared)
        )
        pool.is_duplex = link.is_duplex
        pool.takes_methods = link.takes_methods
        pool.shares_subscriptions = not link.lists_by_client
        pool.node_link = link if link.knows_callers else None
        self.server_queue.uses_pool = pool.differs_by_client or calls_link is pool
        return calls_link

    def share_link(self) -> None:
        """Send every call on the shared link, whatever the client's capabilities."""
        if self._link is not None and self._pool is not None:
            self._link.can_ask = False
            self._route_calls(self._link, self._pool)

    def _known_era(self) -> Era:
        """The configured era, or the one found by the last attempt."""
        configured = self.settings.reach.era
        return self._era if configured == "auto" else configured

    # -- links for single callers ----------------------------------------------------------------------------------

    async def _connect_initialized(self, client_caps: ClientCapabilities, subject: Subject | None = None) -> BaseLink:
        """A further link to the same server, for clients with these capabilities.

        With a `subject` it uses that caller's own credentials.
        """
        link = await self._connect(self.settings, self._carrier or "auto", subject)
        link.questions.client_caps = client_caps
        link.report_output(self._on_output)
        link.is_persistent = self.settings.isolation != "call"
        try:
            await link.handshake(self._known_era())
            guard = ToolGuard(link, self._hub.review, lambda: self._listing)
            link.recheck, link.may_send = guard.read_tools, guard.may_send
            await guard.read_tools()
            await self._log_level_sync.prepare(link)
        except (Fault, ConnectFailed) as failed:
            await link.aclose()
            # The server may have repeated the credentials.
            raise ConnectFailed(link.redact(str(getattr(failed, "why", failed)))) from failed
        except BaseException:
            await link.aclose()
            raise
        return link

    # -- lists by client capabilities -------------------------------------------------------------------------------

    def load_lists(self, caller: Caller, client_caps: ClientCapabilities) -> ListLoad | None:
        """Make sure that this caller's lists are loaded; None if there is nothing to wait for."""
        if self._link is not None and not (self._link.can_ask and self._link.lists_by_client):
            return None
        if client_caps == self.settings.client_caps and self._known_era() != "modern":
            return None
        return self._lists_by_capability.load_lists(caller, client_caps)

    @asynccontextmanager
    async def _link_for_listing(self, caller: Caller, client_caps: ClientCapabilities) -> AsyncIterator[BaseLink]:
        """A modern server gets the capabilities with every request.

        A legacy one in the handshake, on a link of its own.
        """
        link = self._link
        if link is None:
            raise NotConnected(self.settings.name, "it cannot be asked now")
        if link.dialect.era == "modern" or self._pool is None:
            yield link
            return
        async with self._pool.borrowed(caller, client_caps) as borrowed:
            yield borrowed

    # -- watching --------------------------------------------------------------------------------------------------

    async def _watch(self, link: BaseLink) -> None:
        """Relist after changes, ping a doubtful or idle link, and refresh old lists, until the link is lost."""
        loop = asyncio.get_running_loop()
        while not link.lost.done():
            news: asyncio.Future[Any] = loop.create_future()
            self._wake_up = news
            if self._ping_is_due:
                await self._ping(link)
            elif due := self._schedule.take(loop.time()):
                await self._relist(link, due)
            else:
                pause = self._schedule.wait(loop.time())
                timeout_max = max(0.0, min(PING_SECONDS, self._relist_at - loop.time()))
                is_delayed = pause is not None and pause < timeout_max
                timeout = pause if is_delayed else timeout_max
                await asyncio.wait({link.lost, news}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                if news.done() or is_delayed:
                    continue
                if loop.time() < self._relist_at:
                    self._ping_is_due |= not self.server_queue.running
                    continue
                self._schedule.doubt(TOPICS)
                self._lists_by_capability.refresh()
                if self._pool is not None:
                    self._pool.recheck_all()

    def _can_list_now(self, client_caps: ClientCapabilities) -> bool:
        """Whether lists for these capabilities can be read without a new link."""
        if self._link is None:
            return False
        return self._link.dialect.era == "modern" or (self._pool is not None and self._pool.has_link_for(client_caps))

    def _plan_refresh(self) -> None:
        """Plan the next listing: when the first list expires, or after the usual time."""
        abilities = frozenset() if self._link is None else self._link.abilities()
        known, usual = self._listing.ttl_seconds, self._refresh_seconds()
        validities = [known.get(topic, usual) for topic in TOPICS if topic in abilities]
        seconds = min(min(validities, default=usual), REFRESH_SECONDS_MAX)
        self._relist_at = asyncio.get_running_loop().time() + seconds

    def _refresh_seconds(self) -> float:
        """How long a list is used whose server does not say how long it is valid."""
        return REFRESH_SECONDS

    def lists_changed(self, topics: Sequence[Topic]) -> None:
        """Another node found that these lists of the server have changed: lists wait until they are read here.

        A caller that was notified there may request the list here.
        """
        if self._link is None or not self.server_status.is_settled:
            return  # all lists are read when the server connects
        self._lists_awaited |= frozenset(topics)
        self._hub.unsettle(self.settings.name)
        self._lists_by_capability.changed_elsewhere(topics)
        self._schedule.announce_elsewhere(topics, asyncio.get_running_loop().time())
        self._wake()  # even if the lists were stale before: they may be due sooner now

    def note_callers_elsewhere(self) -> None:
        """Another node found that the server's questions do not name their call."""
        if self._pool is not None:
            self._pool.divide_by_program()

    def _relist_soon(self, topic: Topic) -> None:
        """The server announced a change: list once, however often it repeats that."""
        self._lists_by_capability.changed((topic,))
        if self._schedule.announce((topic,)):
            self._wake()

    def _relist_soon_for(self, client_caps: ClientCapabilities, topic: Topic) -> None:
        """A change was announced on a link that is not shared."""
        if client_caps:
            self._lists_by_capability.changed((topic,), client_caps)
        else:
            self._relist_soon(topic)

    def _renewed(self) -> None:
        """The server lost its session: repeat subscriptions and log level."""
        self._schedule.announce(TOPICS)
        self._lists_by_capability.changed(TOPICS)
        if self._link is not None:
            self._log_level_sync.renew(self._link)
            self._subscription_sync.forget(self._link)
        self._resubscribe()
        self._wake()

    def _ping_soon(self) -> None:
        """A request failed to reach the server: ping it, instead of letting every call find out."""
        self._ping_is_due = True
        self._wake()

    def _wake(self) -> None:
        if self._wake_up is not None and not self._wake_up.done():
            self._wake_up.set_result(None)

    async def _ping(self, link: BaseLink) -> None:
        self._ping_is_due = False
        try:
            await link.ping(PONG_SECONDS)
        except Fault as silent:
            # A busy server may be too slow to respond, or only finishes its work.
            if not self.server_queue.running:
                why = str(getattr(silent, "why", silent))
                failed = ConnectFailed(f"it no longer answers ({why})" if isinstance(silent, BadReply) else why)
                if isinstance(silent, NotConnected):
                    failed.status, failed.login = silent.status, silent.login
                raise failed from silent
            await asyncio.wait({link.lost}, timeout=PING_PAUSE_SECONDS)

    async def _relist(self, link: BaseLink, due: Mapping[Topic, bool]) -> None:
        """List again what is `due`; the values say whether the change was announced."""
        before, own = self._listing, self._schedule.own
        delayed = {topic for topic, is_announced in due.items() if is_announced}
        # A change that another node reports during this reading needs another reading; one that the server announces
        # does not, or callers would wait forever for a list that keeps changing.
        awaited, self._lists_awaited = self._lists_awaited & due.keys(), self._lists_awaited - due.keys()
        try:
            if link.hubs:
                await link.refresh_hubs()
                self._check_loop(link)
            self._listing = await self._reviewed(link, await link.list_features({*due}, self._listing))
            if own and self._listing != before:
                self.on_lists_changed(tuple(own))
        except Fault as failed:
            # A failed listing is no reason to drop running calls.
            delayed = {*due}
            problem = self._with_advice(link.redact(str(getattr(failed, "why", failed))))
            if problem != self._relist_problem:
                text = "server gave no list; the hub keeps the last one"
                log.warning(text, server=link.server, reason=problem)
                self._relist_problem = problem
                self._publish_status(**self._listing_fields())
            if not isinstance(failed, BadReply | ServerError):
                self._schedule.announce(due)
                self._lists_awaited |= awaited
                self._ping_is_due = True
        else:
            self._relist_problem = None
            self._publish_status(state="ready", reason=None, **self._listing_fields())
            self._cache_lists(link)
            self._log_cuts()
            if self._listing != before:
                self._lists_by_capability.doubt({*due} - delayed)  # unannounced changes may exist for all capabilities
        if self._lists_awaited:
            self._hub.unsettle(self.settings.name)
        else:
            self._hub.settled(self.settings.name)
        self._plan_refresh()
        self._schedule.rest(delayed, asyncio.get_running_loop().time())

    # -- subscriptions and logs ----------------------------------------------------------------------------------

    def _resubscribe(self) -> None:
        if self._link is not None and not self.is_hidden:
            self._subscription_sync.resume(self._link)
            if self._pool is not None and self._pool.node_link is not None:
                self._pool.resume_shares()

    def _on_gap(self) -> None:
        """Notifications may have been missed: relist, and notify subscribers."""
        self._schedule.announce(TOPICS)
        self._lists_by_capability.changed(TOPICS)
        self._subscription_sync.gap()
        self._wake()

    def _on_server_log(self, line: LogMessage) -> None:
        """A log line that belongs to no call, or to several: store it for the operator."""
        text = self.settings.redact(bytes(line.members["data"]).decode("utf-8", "replace"))
        text = text if self._link is None else self._link.redact(text)
        self.server_queue.log.add(time.time(), "log", text[:LINE_LENGTH_MAX], level=line.level)

    def _on_output(self, lines: Sequence[bytes]) -> None:
        """The process wrote to standard error."""
        now, log = time.time(), self.server_queue.log
        for line in lines:
            log.add(now, "stderr", line, self.settings.redact_line)

    # -- publishing ------------------------------------------------------------------------------------------------

    def _publish_failure(self, reason: str, last_output: str | None, login: str | None = None) -> None:
        """The link failed or was lost: publish the reason to calls, listings and the log."""
        reason = self.settings.reason(self._with_advice(reason))
        detail = None if last_output is None else self.settings.redact(last_output)
        if reason != self.server_status.reason:
            self.server_queue.log.add(time.time(), "hub", f"not connected: {reason}")
            log.warning("server not connected", server=self.settings.name, reason=reason, detail=detail)
        self._stop_holding()
        self.server_queue.detach(reason, is_failure=True, login=login)
        self._lists_by_capability.close()
        if not self.is_hidden:
            self._hub.subscriptions.attach(self.settings.name, None)
        state: ServerState = "login" if self._is_unauthorized else self.absent
        self._publish_status(state=state, reason=reason, detail=detail, is_settled=True, is_recalled=False)

    def _listing_fields(self) -> dict[str, object]:
        """The status fields that follow from the last listing."""
        listing = self._listing
        abilities = self.server_status.abilities if self._link is None else self._link.abilities()
        hubs = {} if self._link is None else self._link.hubs
        instructions = "" if self._link is None else self._link.instructions
        problem = self._relist_problem
        stale = () if problem is None else (f"its lists could not be read again; the last ones are shown: {problem}",)
        return {
            "tools": listing.tools,
            "prompts": listing.prompts,
            "resources": listing.resources,
            "templates": listing.templates,
            "is_unlisted": listing.is_unlisted,
            "notes": (*listing.all_notes(), *stale, *depth_notes(hubs)),
            "variants": self._lists_by_capability.offers(listing, abilities),
            "hubs": hubs,
            "instructions": instructions,
            "missing": listing.missing,
        }

    def _publish_status(self, **changes: object) -> None:
        self.server_status = msgspec.structs.replace(self.server_status, **changes)
        if not self.is_hidden:
            is_awaited = bool(self._lists_awaited) and self.server_status.state == "ready"
            self._hub.publish(self.server_status, is_awaited=is_awaited)
        if self.server_status.is_settled and not self.tried.done():
            self.tried.set_result(None)


class AllLinks:
    """The subscriptions of everybody: on the shared link and all links of the pool."""

    def __init__(self, link: BaseLink, pool: LinkPool) -> None:
        self._link = link
        self._pool = pool

    async def subscribe(self, uri: str) -> None:
        """Subscribe to updates of this resource; raises `Fault` if the server refuses or cannot be reached."""
        await self._link.subscribe(uri)
        await self._pool.subscribe_all(uri)

    def unsubscribe(self, uri: str) -> None:
        """Unsubscribe; the response is ignored."""
        self._link.unsubscribe(uri)
        self._pool.unsubscribe_all(uri)


def _is_answer(failed: Exception) -> bool:
    """Whether the peer responded, though with an error; a demand for other credentials does not count."""
    if isinstance(failed, NotConnected):
        return failed.status not in (None, *FORBIDDEN)
    return isinstance(failed, BadReply | ServerError | ConnectFailed)


# -- chains of hubs ----------------------------------------------------------------------------------------------------
#
# Whether a server leads back to this hub, and how many hubs are in a row. In its handshake a hub lists the ids of the
# hubs behind it, with their distances. Reconnectors and the dial-in registry check them; `app.links` uses the same
# limit for child hubs.

HOPS_MAX = 8
"""Hubs in a row, this one included. A longer chain is probably a mistake; the operator gets a note."""


def find_loop(hubs: Mapping[str, int], own: str, others: Iterable[str] = ()) -> str | None:
    """Why a server with these hubs behind it cannot be used by the hub with the id `own`; None if it can.

    `others` are the ids of hubs that serve the same servers at the same address.
    """
    for id in (own, *others):
        if id in hubs:
            return "it leads back to this hub" if hubs[id] else "it is this hub itself"
    return None


def depth_notes(hubs: Mapping[str, int]) -> tuple[str, ...]:
    """A note if the chain is too long.

    The server is used all the same: any server behind a hub could have made the chain up.
    """
    is_long = max(hubs.values(), default=0) + 2 > HOPS_MAX
    return (f"there are more than {HOPS_MAX} hubs in a row, according to it or a server behind it",) if is_long else ()
