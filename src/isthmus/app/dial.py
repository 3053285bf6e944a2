"""`isthmus dial`: offers local servers to a remote hub over outgoing connections.

It dials out and opens no port, so it works behind NAT. A small local hub runs the servers: it restarts them when they
die and speaks their protocol era. The command line calls this.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import structlog

from isthmus.app.audit import AuditLog, close_audit, open_audit
from isthmus.app.dial_line import HubAddress, HubRefusal, HubRefused, Line, LineShown, OnlyOne
from isthmus.app.dial_talk import LocalOffer, OfferShare
from isthmus.app.hub import RunningHub
from isthmus.config.settings import Configuration
from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.core.settings import Limits
from isthmus.storage.memory import MemoryJournal
from isthmus.transport.egress import Egress
from isthmus.upstream.settings import TIMEOUT_SECONDS_MAX, ServerSettings

log = structlog.get_logger(__name__)

GRACE_SECONDS = 10.0
"""How long calls wait for a restarting server, unless the remote hub lets them wait longer."""

FINISH_SECONDS = 2.0
"""How long running calls may take to finish at shutdown."""

POLL_SECONDS = 0.02

RIVAL_SECONDS = 2.0
"""If a connection is replaced this soon after another of our own opened, ours may have replaced it."""

TOGETHER = "isthmus"
"""The name of all servers together at a relay that accepts only one."""

PROFILE = frozenset({"elicitation", "elicitation.form", "elicitation.url", "sampling"})
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


class ServerShown(msgspec.Struct, frozen=True):
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
    lines: tuple[LineShown, ...]
    servers: tuple[ServerShown, ...]


class Dialler:
    """Runs the local servers and the connections to the remote hub."""

    def __init__(
        self,
        plan: DialPlan,
        environment: Mapping[str, str],
        journal: MemoryJournal | None = None,
        books: AuditLog | None = None,
    ) -> None:
        """Start the local servers in the background and return at once. Needs a running loop.

        `books` is the audit log; it is closed at the end.
        """
        self._books = books
        self._journal = journal or MemoryJournal()
        configuration, audit = for_dialling(plan.configuration), None if books is None else books.audit
        self.running = RunningHub(configuration, environment, self._journal, client_caps=PROFILE, audit=audit)
        if books is not None:
            books.follow(self.running, None)
        self.address = plan.address
        self.share = OfferShare()
        self.egress = Egress()
        self.on_change: Callable[[], None] = lambda: None
        """Called when the state has changed."""
        self._plan = plan
        self._lines: list[Line] = []
        self._keeping: list[asyncio.Task[None]] = []
        self._ready: dict[LocalOffer, asyncio.Event] = {offer: asyncio.Event() for offer in plan.offers}
        self._names: dict[LocalOffer, str] = {}
        self._loop = asyncio.get_running_loop()
        self._first: asyncio.Future[LocalOffer] = self._loop.create_future()
        """The server that was ready first."""
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self.running.hub.watch(self._look)
        for offer in plan.offers:
            self.running.hub.server_queues[offer.name].grace = GRACE_SECONDS

    # -- what connections ask of it ------------------------------------------------------------------------------------

    def is_ready(self, offer: LocalOffer) -> bool:
        """Whether the server was ever ready: then its lists are known, and calls wait while it is down."""
        return self._ready[offer].is_set()

    def rival_of(self, line: Line) -> Line | None:
        """See `dial_line.LineHandler`."""
        since = max(line.connected_at, self._loop.time() - RIVAL_SECONDS)
        newest = max(self._lines, key=lambda other: other.connected_at)
        return newest if newest is not line and newest.connected_at > since else None

    def named(self, offer: LocalOffer, server: str | None) -> None:
        """The remote hub named a server, or removed it."""
        if server is None:
            self._names.pop(offer, None)
        elif self._names.get(offer) != server:
            self._names[offer] = server
            log.info("server offered", server=offer.server_id, hub_name=server)
        self.changed()

    def waits(self, offer: LocalOffer, seconds: float) -> None:
        """Let calls wait for a restarting server at least as long as the remote hub does."""
        server_queue = self.running.hub.server_queues[offer.name]
        if server_queue.grace != (grace := max(GRACE_SECONDS, seconds)):
            server_queue.grace = grace

    def changed(self) -> None:
        """The state has changed."""
        self.on_change()

    def shown(self) -> DialStatus:
        """The current state."""
        lines = tuple(line.shown for line in self._lines)
        return DialStatus(str(self.address), lines, tuple(map(self._server_shown, self._plan.offers)))

    def _server_shown(self, offer: LocalOffer) -> ServerShown:
        hub, counts = self.running.hub, self.running.counters.servers.get(offer.name)
        server_queue = hub.server_queues[offer.name]
        answered = 0 if counts is None else counts.calls
        server_status = hub.snapshot.server_statuses[offer.name]
        refusal = next((told for line in self._lines if (told := line.refusal(offer)) is not None), None)
        running = server_queue.running + server_queue.queued
        return ServerShown(offer.server_id, server_status, self._names.get(offer), running, answered, refusal)

    def _look(self) -> None:
        """A server started, stopped or changed; newly ready servers can be offered."""
        server_statuses = self.running.hub.snapshot.server_statuses
        for offer, event in self._ready.items():
            if server_statuses[offer.name].state == "ready":
                event.set()
                if not self._first.done():
                    self._first.set_result(offer)
        for line in self._lines:
            line.offer_ready()
        self.changed()

    # -- running -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until a signal.

        Raises:
            HubRefused: the remote hub refused the connection.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self.stop)
        try:
            self._begin()
            await self._ended
        finally:
            await self._end()
            log.info("ended", hub=str(self.address))
            # Last: an unhandled signal would leave the local servers behind.
            for number in (signal.SIGTERM, signal.SIGINT):
                self._loop.remove_signal_handler(number)

    def _begin(self) -> None:
        if not self._first.done():
            servers = [offer.server_id for offer in self._plan.offers]
            log.info("waiting for a local server to become ready before connecting to the hub", servers=servers)
        if self._plan.is_compatible:
            self.running.share_links()
            self._one_each(self._plan.offers)
        else:
            self._spawn("connection to the hub", self._share_one())

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self._keeping.append(self.running.background.spawn(name, work, on_crash=self._finish))

    def _one_each(self, offers: Iterable[LocalOffer]) -> None:
        for offer in offers:
            self._spawn(f"connection of {offer.name}", self._alone(offer))

    async def _alone(self, offer: LocalOffer) -> None:
        """Open a separate socket for one server once it is ready."""
        await self._ready[offer].wait()
        await self._keep([offer], may_share=False)

    async def _share_one(self) -> None:
        """Connect once the first server is ready; a hub that cannot share a socket gets that one."""
        first = await self._first
        others = [offer for offer in self._plan.offers if offer is not first]
        await self._keep([first, *others], may_share=True)

    async def _keep(self, offers: Sequence[LocalOffer], *, may_share: bool) -> None:
        line = Line(self, offers, may_share=may_share, on_single=lambda: self._split(offers[1:]))
        self._lines.append(line)
        try:
            await line.run()
        except HubRefused as refused:
            self._finish(refused)
        except OnlyOne:
            self._come_together()

    def _come_together(self) -> None:
        """Offer all servers as one, because the relay accepts only one."""
        log.info("the relay accepts one connection per agent: all servers share it", hub=str(self.address))
        keeping, self._keeping = self._keeping, []
        self._lines.clear()
        for task in keeping:
            if task is not asyncio.current_task():
                task.cancel()
        first, *others = self._plan.offers
        offer = LocalOffer(first.name, TOGETHER, tuple(other.name for other in others))
        self._spawn("connection to the relay", self._keep([offer], may_share=False))

    def _split(self, others: Sequence[LocalOffer]) -> None:
        log.info("the hub takes one server a connection", hub=str(self.address), servers=len(others) + 1)
        self._one_each(others)

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
            await self._calls_ended(FINISH_SECONDS)
            self.running.cancel_all("shutting down: the local servers leave the hub")
            await asyncio.sleep(0)  # responses are written at the end of a loop iteration
            sockets = [line.socket for line in self._lines if line.socket is not None]
            await asyncio.gather(*(socket.aclose() for socket in sockets))
        finally:
            await self.running.aclose()
            await close_audit(self._books, self._journal)

    async def _calls_ended(self, within: float) -> None:
        until = self._loop.time() + within
        while self.running.calls() and self._loop.time() < until:  # noqa: ASYNC110 - nobody tells of the last one
            await asyncio.sleep(POLL_SECONDS)


async def open_dialler(plan: DialPlan, environment: Mapping[str, str]) -> Dialler:
    """Create a dialler with the configured audit log.

    Raises:
        ConfigError: the audit log is required and cannot be opened.
    """
    journal = MemoryJournal()
    books = await open_audit(plan.configuration, journal, "dial")
    return Dialler(plan, environment, journal, books)


def for_dialling(configuration: Configuration) -> Configuration:
    """The configuration of the local hub. The remote hub decides how long calls may take."""
    servers = tuple(_patient(server, configuration.hub.limits) for server in configuration.servers)
    return Configuration(None, configuration.hub, servers, audit=configuration.audit)


def _patient(server: ServerSettings, limits: Limits) -> ServerSettings:
    is_unsaid = server.timeout == limits.call_seconds
    return replace(server, timeout=TIMEOUT_SECONDS_MAX) if is_unsaid else server
