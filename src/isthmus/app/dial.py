"""`isthmus dial`: offers local servers to a remote hub over outgoing connections.

It dials out and opens no port, so it works behind NAT. A small local hub runs the servers: it restarts them when they
die and speaks their protocol era. A `Dialler` has one `HubConnection` for all servers, or one for each if the hub
cannot share it. Local servers are unaffected by a lost connection; only the hub's pending calls are cancelled.
`app.dial_sessions` has the MCP sessions on a connection. The command line calls this.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeAlias
from urllib.parse import quote, unquote, urlsplit

import msgspec
import structlog

from isthmus.app.audit import AuditLog, close_audit, open_audit
from isthmus.app.dial_sessions import BatchedSocket, Channels, LocalOffer, serve_offer
from isthmus.app.hub import RunningHub
from isthmus.app.served_session import ServedSession, UnansweredBytes
from isthmus.config.settings import Configuration
from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.model.relay import MUX_SUBPROTOCOL
from isthmus.storage.memory import MemoryJournal
from isthmus.transport.egress import SOCKET_SCHEMES, DialFailed, Egress, EgressRefused, HttpOrigin, parse_url
from isthmus.transport.websocket import DialledSocket, HandshakeFailed, WebSocketAddress
from isthmus.upstream.reconnector import Backoff
from isthmus.upstream.server_settings import TIMEOUT_SECONDS_MAX

log = structlog.get_logger(__name__)

# -- the address of the hub -------------------------------------------------------------------------------------------

PATH = "/mcp_endpoint/mcp/"
"""The dial-in path of an Isthmus hub and of the original relay, which needs the last slash."""

DEVICE_PATH = "/mcp_endpoint/call"

OWN_TOKEN = "isr1."  # noqa: S105 - what our tokens begin with, and no token
"""These tokens are sent in a header, because proxies may log the address."""

_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


class BadAddress(ValueError):
    """The address is unusable; the message says why and does not quote the query."""


class BadToken(BadAddress):
    """Only the token is missing or invalid."""


@dataclass(frozen=True, slots=True)
class HubAddress:
    """A hub's address. Its `str` contains no secret."""

    origin: HttpOrigin
    path: str
    query: tuple[str, ...] = field(default=(), repr=False)
    """The other query parameters, as written."""
    token: str = field(default="", repr=False)
    server_id: str | None = None
    """The server id in the address."""

    def __str__(self) -> str:
        return f"{self.origin}{self.path}"

    def endpoint(self, server_id: str | None, subprotocols: tuple[str, ...], limit_bytes: int) -> WebSocketAddress:
        """The address to connect to, for one server or several."""
        query = list(self.query)
        headers = {}
        if self.token.startswith(OWN_TOKEN):
            headers["Authorization"] = f"Bearer {self.token}"
        elif self.token:
            query.append(f"token={quote(self.token, safe='')}")
        if server_id is not None:
            query.append(f"server_id={quote(server_id, safe='')}")
        target = f"{self.path}?{'&'.join(query)}" if query else self.path
        return WebSocketAddress(self.origin, target, subprotocols, limit_bytes, headers)


def read_address(url: str, token: str | None = None) -> HubAddress:
    """Parse an address; `token` overrides one in the address.

    Raises:
        BadAddress: this is not a hub's address; `BadToken` if only the token is wrong.
    """
    scheme, separator, rest = url.strip().partition("://")
    if not separator or scheme.lower() not in _SCHEMES:
        raise BadAddress("the hub's address must begin with ws://, wss://, http:// or https://")
    try:
        origin, target = parse_url(f"{_SCHEMES[scheme.lower()]}://{rest}", SOCKET_SCHEMES)
    except ValueError as error:
        raise BadAddress(f"the hub's address cannot be used: {error}") from None
    parts = urlsplit(target)
    found: dict[str, str] = {}
    others: list[str] = []
    for item in parts.query.split("&") if parts.query else ():
        name, _, value = item.partition("=")
        if name in ("token", "server_id"):
            found[name] = unquote(value)  # a plain `+` means itself: base64 contains it, and tokens have no spaces
        else:
            others.append(item)
    path = parts.path
    if DEVICE_PATH in path:
        raise BadAddress(f"{path} is where devices call; servers dial in at {PATH}")
    is_other_path = path.rstrip("/") and not path.endswith(PATH.rstrip("/"))
    if scheme.lower() not in SOCKET_SCHEMES or not is_other_path:
        path = path.rstrip("/").removesuffix(PATH.rstrip("/")) + PATH
    token = (token or found.get("token", "")).strip()
    if not token:
        raise BadToken("there is no token: paste the address as the hub printed it, with ?token=…")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise BadToken("the token must be one line of plain text without blanks")
    return HubAddress(origin, path, tuple(others), token, found.get("server_id"))


# -- one connection ---------------------------------------------------------------------------------------------------

PAUSE_SECONDS_MAX = 60.0
"""The longest pause between attempts, unless another client replaced this connection."""

REPLACED_SECONDS = 60.0
REPLACED_SECONDS_MAX = 600.0
"""The pause after being replaced; it doubles each time. Otherwise two clients with the same id would replace each
other for ever and lose calls each time."""

SETTLED_SECONDS = 2 * REPLACED_SECONDS_MAX
"""A connection that lasted this long has no waiting rival."""

HEALTHY_SECONDS = 10.0
"""A connection that lasted this long, or answered a call, was healthy: its loss resets the pauses."""

SOON_SECONDS = 1.0
"""The pause after a hub announced a restart; it is randomized so that clients do not all return at once."""

TRIAL_SECONDS = 3.0
"""The pause before a retry if one of our own connections may have replaced this one: long enough to tell it from
another client's."""

CONNECT_SECONDS = 10.0

RESTARTING, REFUSED, TRY_LATER = 1012, 1008, 1013
REPLACED = "新连接替换"
"""The hub's reason when another connection replaces this one."""

RIVAL = "another connection uses this server id: change one of them (--server-id, or the name in the file)"

NOT_ALLOWED, NOT_FOUND = (401, 403), 404

State: TypeAlias = Literal["starting", "connecting", "connected", "pausing"]


class HubRefused(Exception):
    """The hub refused the connection permanently; `is_missing` if there is no relay at this address."""

    def __init__(self, reason: str, *, is_missing: bool = False) -> None:
        super().__init__(reason)
        self.is_missing = is_missing


class OneConnectionOnly(Exception):
    """The relay keeps only the newest connection of an agent, so all servers must share it."""


class HubConnectionLost(msgspec.Struct, frozen=True):
    """Why a connection ended or failed, with the hub's close code and reason."""

    reason: str
    code: int | None = None
    close_reason: str = ""
    seconds: float = 0.0
    """How long the connection lasted."""


class HubRefusal(msgspec.Struct, frozen=True):
    """A server that the hub does not accept at the moment: why, and when it is offered again."""

    reason: str
    again_at: float
    """In seconds since the epoch."""


class ConnectionStatus(msgspec.Struct, frozen=True):
    """The state of a connection; times are in seconds since the epoch."""

    state: State
    since: float
    reason: str | None = None
    """Why it was last lost, or could not be opened."""
    again_at: float | None = None
    is_muxed: bool = False
    is_refused: bool = False
    """The hub was reachable and refused it."""


def permanent_refusal(lost: HubConnectionLost) -> str | None:
    """Why a retry is useless, such as that the token is wrong; None if it is not."""
    is_about_token = "token" in lost.close_reason.lower() or "agentId" in lost.close_reason
    return lost.close_reason if lost.code == REFUSED and is_about_token else None


def is_refusal(lost: HubConnectionLost) -> bool:
    """Whether the hub refused the connection or had no room, rather than closed it for its traffic."""
    is_early = lost.seconds < HEALTHY_SECONDS
    return lost.close_reason == REPLACED or (is_early and lost.code in (REFUSED, TRY_LATER))


def reason_for_people(lost: HubConnectionLost) -> str:
    """Why it was lost, for people; texts of the original relay are translated."""
    return RIVAL if lost.close_reason == REPLACED else lost.reason


class ReconnectPauses:
    """Computes the pause before the next attempt from how earlier ones ended."""

    def __init__(self) -> None:
        self._backoff = Backoff(PAUSE_SECONDS_MAX)
        self._replaced = 0

    def after(self, lost: HubConnectionLost, chance: float) -> float:
        """The next pause; `chance` is uniform in [0, 1)."""
        if lost.code == RESTARTING:
            return SOON_SECONDS * chance
        if lost.close_reason == REPLACED:
            self._replaced = 1 if lost.seconds > SETTLED_SECONDS else self._replaced + 1
            return min(REPLACED_SECONDS * 2.0 ** min(self._replaced - 1, 10), REPLACED_SECONDS_MAX)
        if lost.code == REFUSED and lost.seconds < HEALTHY_SECONDS:  # a later close had another cause
            return PAUSE_SECONDS_MAX  # frequent retries would not help
        return self._backoff.next(chance)

    def reset(self) -> None:
        """The connection was healthy. A rival may still be waiting, so its pause is not reset."""
        self._backoff.reset()


class HubConnection:
    """One connection, until `run` is cancelled."""

    def __init__(
        self, dialler: Dialler, offers: Sequence[LocalOffer], *, may_share: bool, on_single: Callable[[], None]
    ) -> None:
        """`on_single` is called if the hub needs a socket per server; this one then belongs to the first."""
        self._dialler = dialler
        self.offers = tuple(offers)
        self._may_share = may_share
        self._on_single = on_single
        self._pauses = ReconnectPauses()
        self._channels: Channels | None = None
        self._session: ServedSession | None = None
        """The session of a socket that belongs to one server."""
        self._reopening: dict[LocalOffer, tuple[asyncio.TimerHandle, HubRefusal]] = {}
        self._pauses_of: dict[LocalOffer, ReconnectPauses] = {offer: ReconnectPauses() for offer in offers}
        self._named_at: dict[LocalOffer, float] = {}
        self._was_connected = False
        self.connected_at = 0.0
        """When it last connected, on the loop's clock."""
        self.is_trial = False
        """It was replaced right after another of ours opened; a retry shows whether that was the cause."""
        self.socket: DialledSocket | None = None
        self._restarts: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Why the hub has closed a channel, if it shuts down: others stay open until their calls are answered."""
        self.shown = ConnectionStatus("starting", time.time())

    async def run(self) -> None:
        """Keep the connection up.

        Raises:
            HubRefused: a retry is useless.
            OnlyOne: a retry is useless while others of ours are connected.
        """
        while True:
            lost = await self._connect_and_serve()
            rival = self._dialler.rival_for(self) if lost.close_reason == REPLACED else None
            if rival is not None and rival.is_trial:
                raise OneConnectionOnly
            if (verdict := permanent_refusal(lost)) is not None:
                raise HubRefused(verdict)
            self.is_trial = rival is not None
            pause = TRIAL_SECONDS if self.is_trial else self._pauses.after(lost, random.random())  # noqa: S311 - spread
            reason = reason_for_people(lost)
            self._set_status("pausing", reason=reason, again_at=time.time() + pause, is_refused=is_refusal(lost))
            log.warning("hub not connected", hub=str(self._dialler.address), reason=reason, again_in=round(pause, 1))
            await asyncio.sleep(pause)

    # -- one connection ----------------------------------------------------------------------------------------------

    async def _connect_and_serve(self) -> HubConnectionLost:
        """Connect and serve until the connection is lost; return why it ended or failed."""
        self._set_status("connecting", reason=self.shown.reason)
        limits = self._dialler.running.hub.limits
        wire = BatchedSocket(limits.lag_bytes, limits.lag_bytes + 4 * limits.reply_bytes)
        subprotocols = (MUX_SUBPROTOCOL,) if self._may_share else ()
        endpoint = self._dialler.address.endpoint(self.offers[0].server_id, subprotocols, limits.reply_bytes)
        try:
            self.socket = await DialledSocket.connect(
                self._dialler.egress, endpoint, wire, is_configured=True, within=CONNECT_SECONDS
            )
        except (DialFailed, EgressRefused) as failed:
            return HubConnectionLost(str(getattr(failed, "reason", failed)))
        except HandshakeFailed as failed:
            if failed.status in NOT_ALLOWED:
                raise HubRefused(f"{failed}: the token is not good there") from failed
            if failed.status == NOT_FOUND and not self._was_connected:  # otherwise it may restart behind its proxy
                raise HubRefused(f"{failed}: there is no relay at this address", is_missing=True) from failed
            return HubConnectionLost(str(failed))
        self.connected_at = asyncio.get_running_loop().time()
        self._was_connected = True
        answered = self._answered()
        lost = await self._serve_on(self.socket, wire)
        if self._answered() > answered or lost.seconds > HEALTHY_SECONDS:
            self._pauses.reset()
        return lost

    async def _serve_on(self, socket: DialledSocket, wire: BatchedSocket) -> HubConnectionLost:
        is_muxed = socket.chosen == MUX_SUBPROTOCOL
        self._set_status("connected", is_muxed=is_muxed)
        log.info("connected", hub=str(self._dialler.address), shared=is_muxed)
        self._restarts = asyncio.get_running_loop().create_future()
        end = self._open_channels(socket, wire) if is_muxed else self._begin_single(socket, wire)
        try:
            await asyncio.wait({wire.ended, self._restarts}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            socket.kill()
            end("the hub is no longer connected")
            raise
        seconds = asyncio.get_running_loop().time() - self.connected_at
        if not wire.ended.done():
            if self._channels is not None:
                self._channels.stop_reporting()
                self._forget_channels()
            self._dialler.running.background.spawn("calls of a hub that restarts", self._finish(socket, wire, end))
            reason = self._restarts.result()
            return HubConnectionLost(reason, RESTARTING, reason, seconds)
        end("the hub is no longer connected")
        code, close_reason = socket.goodbye or (None, "")
        return HubConnectionLost(wire.ended.result(), code, close_reason, seconds)

    async def _finish(self, socket: DialledSocket, wire: BatchedSocket, end: Callable[[str], None]) -> None:
        """Answer the calls on a socket whose hub shuts down; the next socket has the servers already."""
        try:
            await wire.ended
        except asyncio.CancelledError:
            socket.kill()
            raise
        finally:
            end("the hub is no longer connected")

    def _begin_single(self, socket: DialledSocket, wire: BatchedSocket) -> Callable[[str], None]:
        """The hub needs one socket per server: this one now belongs to the first server."""
        self._may_share = False
        self._dialler.running.share_links()
        others, self.offers = self.offers[1:], self.offers[:1]
        session = self._session = self._open_session(self.offers[0], wire.send, wire)
        wire.begin(socket, session.receive)
        if others:
            self._on_single()
        return session.end

    def leave(self) -> None:
        """Shutting down: accept no new calls, and ask a hub that supports it to hold back its callers'."""
        if self._channels is not None:
            self._channels.leave()
        elif self._session is not None:
            self._session.leave()

    def _open_session(self, offer: LocalOffer, deliver: Callable[[bytes], None], wire: BatchedSocket) -> ServedSession:
        return serve_offer(self._dialler.running, self._dialler.share, offer, deliver, wire)

    def _answered(self) -> int:
        counts = self._dialler.running.counters.servers
        return sum(counts[offer.name].calls for offer in self.offers if offer.name in counts)

    # -- channels ----------------------------------------------------------------------------------------------------

    def _open_channels(self, socket: DialledSocket, wire: BatchedSocket) -> Callable[[str], None]:
        channels = self._channels = Channels(wire, lambda offer, say: self._open_session(offer, say, wire), self)
        wire.begin(socket, channels.receive)
        self.offer_ready()
        return partial(self._close_channels, channels)

    def _close_channels(self, channels: Channels, why: str) -> None:
        if channels is self._channels:
            self._forget_channels()
        channels.end(why)

    def _forget_channels(self) -> None:
        self._channels = None
        for timer, _ in self._reopening.values():
            timer.cancel()
        self._reopening.clear()
        self._named_at.clear()

    def offer_ready(self) -> None:
        """Offer every ready server that the hub neither has nor has just refused."""
        if self._channels is not None:
            for offer in self.offers:
                if self._dialler.is_ready(offer) and offer not in self._reopening:
                    self._channels.open(offer)

    def server_named(self, offer: LocalOffer, server: str) -> None:
        """The name of a server in the hub."""
        self._pauses_of[offer].reset()
        self._named_at.setdefault(offer, asyncio.get_running_loop().time())
        self._dialler.server_named(offer, server)

    def grace_announced(self, offer: LocalOffer, seconds: float) -> None:
        """How long calls wait in the hub while their server is away."""
        self._dialler.grace_announced(offer, seconds)

    def channel_closed(self, offer: LocalOffer, code: int, reason: str) -> None:
        """The hub closed the server's channel: offer the server again after a while."""
        loop = asyncio.get_running_loop()
        seconds = loop.time() - self._named_at.pop(offer, loop.time())
        if code == RESTARTING:
            if not self._restarts.done():
                self._restarts.set_result(reason)
            return
        lost = HubConnectionLost(reason or f"it closed the channel with code {code}", code, reason, seconds)
        pause = self._pauses_of[offer].after(lost, random.random())  # noqa: S311 - spread, not secrecy
        refusal = HubRefusal(reason_for_people(lost), time.time() + pause)
        log.warning(
            "server refused by the hub", server=offer.server_id, reason=refusal.reason, again_in=round(pause, 1)
        )
        self._reopening[offer] = loop.call_later(pause, self._reopen, offer), refusal
        self._dialler.server_named(offer, None)

    def refusal(self, offer: LocalOffer) -> HubRefusal | None:
        """Why the hub does not have a ready server; None if it has it, or the reason is unknown."""
        if offer in self._reopening:
            return self._reopening[offer][1]
        shown = self.shown
        if not shown.is_refused or offer not in self.offers:
            return None
        assert shown.reason is not None
        assert shown.again_at is not None
        return HubRefusal(shown.reason, shown.again_at)

    def _reopen(self, offer: LocalOffer) -> None:
        del self._reopening[offer]
        self.offer_ready()
        self._dialler.on_change()

    def _set_status(
        self,
        state: State,
        *,
        reason: str | None = None,
        again_at: float | None = None,
        is_muxed: bool = False,
        is_refused: bool = False,
    ) -> None:
        self.shown = ConnectionStatus(state, time.time(), reason, again_at, is_muxed, is_refused)
        self._dialler.on_change()


# -- all servers and connections --------------------------------------------------------------------------------------

GRACE_SECONDS = 10.0
"""How long calls wait for a restarting server, unless the remote hub lets them wait longer."""

FINISH_SECONDS = 2.0
"""How long running calls may take to finish at shutdown."""

POLL_SECONDS = 0.02

RIVAL_SECONDS = 2.0
"""If a connection is replaced this soon after another of our own opened, ours may have replaced it."""

MERGED_ID = "isthmus"
"""The name of all servers together at a relay that accepts only one."""

CALLER_CAPABILITIES = frozenset({"elicitation", "elicitation.form", "elicitation.url", "sampling"})
"""The client capabilities declared to local servers. No roots: a caller's folders are on its own machine."""


@dataclass(frozen=True, slots=True)
class DialPlan:
    """The servers to offer, and the hub to offer them to."""

    address: HubAddress
    configuration: Configuration
    """Its servers, limits and audit log are used, and nothing else."""
    offers: tuple[LocalOffer, ...]
    is_compatible: bool = False
    """Use a separate plain socket for each server even if the hub can share one."""


class LocalServerStatus(msgspec.Struct, frozen=True):
    """The state of a local server."""

    server_id: str
    server_status: ServerStatus
    hub_name: str | None
    """Its name in the remote hub, once known."""
    running: int
    answered: int
    refusal: HubRefusal | None = None
    """Why the remote hub does not have it, although it is running."""


class DialStatus(msgspec.Struct, frozen=True):
    """A snapshot of all servers and connections."""

    hub: str
    lines: tuple[ConnectionStatus, ...]
    servers: tuple[LocalServerStatus, ...]


class Dialler:
    """Runs the local servers and the connections to the remote hub."""

    def __init__(
        self,
        plan: DialPlan,
        environment: Mapping[str, str],
        journal: MemoryJournal | None = None,
        audit_log: AuditLog | None = None,
    ) -> None:
        """Start the local servers in the background and return at once. Needs a running loop.

        `audit_log` is closed at the end.
        """
        self._audit_log = audit_log
        self._journal = journal or MemoryJournal()
        # The remote hub decides how long calls may take.
        usual = plan.configuration.hub.limits.call_seconds
        servers = tuple(
            replace(server, timeout=TIMEOUT_SECONDS_MAX) if server.timeout == usual else server
            for server in plan.configuration.servers
        )
        hub = replace(plan.configuration.hub, cassette=None)  # the remote hub records
        configuration = Configuration(None, hub, servers, audit=plan.configuration.audit)
        audit = None if audit_log is None else audit_log.audit
        self.running = RunningHub(
            configuration, environment, self._journal, client_caps=CALLER_CAPABILITIES, audit=audit
        )
        if audit_log is not None:
            audit_log.follow(self.running, None)
        self.address = plan.address
        self.share = UnansweredBytes()
        self.egress = Egress()
        self.on_change: Callable[[], None] = lambda: None
        """Called when the state has changed."""
        self._plan = plan
        self._lines: list[HubConnection] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._ready: dict[LocalOffer, asyncio.Event] = {offer: asyncio.Event() for offer in plan.offers}
        self._names: dict[LocalOffer, str] = {}
        self._loop = asyncio.get_running_loop()
        self._first: asyncio.Future[LocalOffer] = self._loop.create_future()
        """The server that was ready first."""
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self.running.hub.watch(self._check_servers)
        for offer in plan.offers:
            self.running.hub.server_queues[offer.name].grace = GRACE_SECONDS

    # -- for connections -----------------------------------------------------------------------------------------------

    def is_ready(self, offer: LocalOffer) -> bool:
        """Whether the server was ever ready: then its lists are known, and calls wait while it is down."""
        return self._ready[offer].is_set()

    def rival_for(self, line: HubConnection) -> HubConnection | None:
        """Another of our connections that opened a moment ago, after this one."""
        since = max(line.connected_at, self._loop.time() - RIVAL_SECONDS)
        newest = max(self._lines, key=lambda other: other.connected_at)
        return newest if newest is not line and newest.connected_at > since else None

    def server_named(self, offer: LocalOffer, server: str | None) -> None:
        """The remote hub named a server, or removed it."""
        if server is None:
            self._names.pop(offer, None)
        elif self._names.get(offer) != server:
            self._names[offer] = server
            log.info("server offered", server=offer.server_id, hub_name=server)
        self.on_change()

    def grace_announced(self, offer: LocalOffer, seconds: float) -> None:
        """Let calls wait for a restarting server at least as long as the remote hub does."""
        server_queue = self.running.hub.server_queues[offer.name]
        if server_queue.grace != (grace := max(GRACE_SECONDS, seconds)):
            server_queue.grace = grace

    def status(self) -> DialStatus:
        """The current state."""
        lines = tuple(line.shown for line in self._lines)
        hub, servers = self.running.hub, []
        for offer in self._plan.offers:
            counts = self.running.counters.servers.get(offer.name)
            server_queue = hub.server_queues[offer.name]
            refusals = (line.refusal(offer) for line in self._lines)
            shown = LocalServerStatus(
                offer.server_id,
                hub.snapshot.server_statuses[offer.name],
                self._names.get(offer),
                running=server_queue.running + server_queue.queued,
                answered=0 if counts is None else counts.calls,
                refusal=next((refusal for refusal in refusals if refusal is not None), None),
            )
            servers.append(shown)
        return DialStatus(str(self.address), lines, tuple(servers))

    def _check_servers(self) -> None:
        """A server started, stopped or changed; newly ready servers can be offered."""
        server_statuses = self.running.hub.snapshot.server_statuses
        for offer, event in self._ready.items():
            if server_statuses[offer.name].state == "ready":
                event.set()
                if not self._first.done():
                    self._first.set_result(offer)
        for line in self._lines:
            line.offer_ready()
        self.on_change()

    # -- running -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until a signal.

        Raises:
            HubRefused: the remote hub refused the connection.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self.stop)
        try:
            if not self._first.done():
                servers = [offer.server_id for offer in self._plan.offers]
                log.info("waiting for a local server to become ready before connecting to the hub", servers=servers)
            if self._plan.is_compatible:
                self.running.share_links()
                self._connect_each(self._plan.offers)
            else:
                self._spawn("connection to the hub", self._connect_shared())
            await self._ended
        finally:
            await self._end()
            log.info("ended", hub=str(self.address))
            # Last: an unhandled signal would leave the local servers behind.
            for number in (signal.SIGTERM, signal.SIGINT):
                self._loop.remove_signal_handler(number)

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(self.running.background.spawn(name, work, on_crash=self._finish))

    def _connect_each(self, offers: Iterable[LocalOffer]) -> None:
        async def open_when_ready(offer: LocalOffer) -> None:
            await self._ready[offer].wait()
            await self._run_connection([offer], may_share=False)

        for offer in offers:
            self._spawn(f"connection of {offer.name}", open_when_ready(offer))

    async def _connect_shared(self) -> None:
        """Connect once the first server is ready; a hub that cannot share a socket gets that one."""
        first = await self._first
        others = [offer for offer in self._plan.offers if offer is not first]
        await self._run_connection([first, *others], may_share=True)

    async def _run_connection(self, offers: Sequence[LocalOffer], *, may_share: bool) -> None:
        def open_others() -> None:
            log.info("this hub accepts one server per connection", hub=str(self.address), servers=len(offers))
            self._connect_each(offers[1:])

        line = HubConnection(self, offers, may_share=may_share, on_single=open_others)
        self._lines.append(line)
        try:
            await line.run()
        except HubRefused as refused:
            self._finish(refused)
        except OneConnectionOnly:
            self._merge_into_one()

    def _merge_into_one(self) -> None:
        """Offer all servers as one, because the relay accepts only one."""
        log.info("the relay accepts one connection per agent: all servers share it", hub=str(self.address))
        keeping, self._tasks = self._tasks, []
        self._lines.clear()
        for task in keeping:
            if task is not asyncio.current_task():
                task.cancel()
        first, *others = self._plan.offers
        offer = LocalOffer(first.name, MERGED_ID, tuple(other.name for other in others))
        self._spawn("connection to the relay", self._run_connection([offer], may_share=False))

    # -- ending --------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Begin an orderly shutdown; `run` returns when it is done."""
        self._finish()

    def _finish(self, error: BaseException | None = None) -> None:
        if self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)

    async def _end(self) -> None:
        """Let calls finish, close the connections, then stop the local servers."""
        try:
            for line in self._lines:
                line.leave()
            self.running.refuse_new_calls()
            until = self._loop.time() + FINISH_SECONDS
            while self.running.calls() and self._loop.time() < until:  # noqa: ASYNC110 - the hub does not report the end of its last call
                await asyncio.sleep(POLL_SECONDS)
            self.running.cancel_all("shutting down: the local servers leave the hub")
            await asyncio.sleep(0)  # responses are written at the end of a loop iteration
            sockets = [line.socket for line in self._lines if line.socket is not None]
            await asyncio.gather(*(socket.aclose() for socket in sockets))
        finally:
            await self.running.aclose()
            await close_audit(self._audit_log, self._journal)


async def open_dialler(plan: DialPlan, environment: Mapping[str, str]) -> Dialler:
    """Create a dialler with the configured audit log.

    Raises:
        ConfigError: the audit log is required and cannot be opened.
    """
    journal = MemoryJournal()
    audit_log = await open_audit(plan.configuration, journal, "dial")
    return Dialler(plan, environment, journal, audit_log)
