"""The hub behind its HTTP door: routes, callers, signals, and an ordered end."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import structlog

from isthmus.app.access import Access
from isthmus.app.audit import AuditLog, close_audit, open_audit
from isthmus.app.collector import spare_the_collector
from isthmus.app.definitions import DefinitionPins
from isthmus.app.descriptors import raise_limit
from isthmus.app.extensions import verifiers_of
from isthmus.app.grpc import Service, check_grpc, open_grpc
from isthmus.app.hub import RunningHub
from isthmus.app.identity import Identities
from isthmus.app.in_flight import CountedRequests
from isthmus.app.journals import open_journal
from isthmus.app.links import ME
from isthmus.app.oauth import Tokens
from isthmus.app.pushes import Pushes
from isthmus.app.relay import Relay
from isthmus.app.reload import Reloader, Source
from isthmus.config.settings import Configuration, HubSettings
from isthmus.core.access.bytes_in_flight import BytesInFlight
from isthmus.core.crew import Crew
from isthmus.core.ports.journal import Probed
from isthmus.core.tasks.record import Owner
from isthmus.core.tasks.retention import Retention
from isthmus.faces.a2a.cards import AgentCards
from isthmus.faces.a2a.desk import Desk
from isthmus.faces.a2a.http import A2aHttp
from isthmus.faces.a2a.pushing import Pushing
from isthmus.faces.http.bodies import joined, say
from isthmus.faces.http.brake import COMING_FROM
from isthmus.faces.http.door import Door, DoorSettings
from isthmus.faces.http.gate import Fields, Gate
from isthmus.faces.http.health import PATHS as HEALTH_PATHS
from isthmus.faces.http.health import Health
from isthmus.faces.http.turn import PEER, Arrival, Message, Receive, Send
from isthmus.faces.mcp.dialogue import VERSIONS
from isthmus.faces.mcp.http import McpHttp
from isthmus.faces.mcp.kept_states import REALM
from isthmus.faces.mcp.sse import PATHS as SSE_PATHS
from isthmus.faces.mcp.sse import McpSse
from isthmus.faces.mcp.visit import NOT_FOUND
from isthmus.faces.oauth.http import OauthHttp
from isthmus.faces.relay.http import RelayHttp
from isthmus.faces.rest.http import RestHttp, is_rest
from isthmus.faces.wellknown.cards import Cards
from isthmus.faces.wellknown.http import WellKnown
from isthmus.model.callers import Caller
from isthmus.model.calls import Surface
from isthmus.model.names import ServerName
from isthmus.storage.lists import ListFiles
from isthmus.telemetry import logs
from isthmus.telemetry.loop_lag import LoopMonitor
from isthmus.transport.egress import Egress

log = structlog.get_logger(__name__)


STDIN = 0

OTHER_DESCRIPTORS = 8192
"""What the hub may need beside the relay's: callers' connections, servers' processes and the journal."""

LAST_WORDS_SECONDS = 0.1
"""How long callers have to read, and servers to hear, that their calls were withdrawn at the end of a drain."""


class Face(Protocol):
    """A way in that is served as an ASGI application."""

    async def serve(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request."""


class StreamingFace(Protocol):
    """A way in with answers that go on."""

    def end_streams(self) -> None:
        """End them in good order."""


class Routes:
    """Which path leads to which face. Decided on the path alone, exactly; nothing is normalised."""

    def __init__(
        self,
        surface: Surface,
        mcp: McpHttp,
        rest: RestHttp,
        faces: Mapping[str, Face],
        agent: A2aHttp | None = None,
        well_known: WellKnown | None = None,
        relay: RelayHttp | None = None,
        oauth: OauthHttp | None = None,
    ) -> None:
        """`surface` is that of `/mcp`; `faces` are those with paths of their own, by these."""
        self._everything = surface
        self._mcp = mcp
        self._rest = rest
        self._faces = faces
        self._agent = agent
        self._well_known = well_known
        self._relay = relay
        self._oauth = oauth
        self.preflight: Callable[[Fields], bytes | None] = lambda _: None
        """How a browser is answered that asks what a page may send; see `Gate.preflight`."""

    def take(self, arrival: Arrival) -> bool:
        """Let the face that the path leads to answer a whole request at once, if it can."""
        path: str = arrival.scope["path"]
        surface = self._surface(path)
        if surface is not None:
            return self._mcp.take(surface, arrival)
        return is_rest(path) and self._rest.take(arrival)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request."""
        COMING_FROM.set(scope["client"])
        path: str = scope["path"]
        if scope["method"] == "OPTIONS" and (lines := self.preflight(joined(scope["headers"]))) is not None:
            scope["extensions"][PEER].answer(204, lines, b"")
            return
        if self._well_known is not None and self._well_known.is_at(path, scope["method"]):
            await self._well_known.serve(scope, receive, send)
            return
        surface = self._surface(path)
        if surface is not None:
            await self._mcp.serve(surface, scope, receive, send)
        elif is_rest(path):
            await self._rest.serve(scope, receive, send)
        elif (face := self._faces.get(path)) is not None:
            await face.serve(scope, receive, send)
        elif self._oauth is not None and self._oauth.is_at(path):
            await self._oauth.serve(scope, receive, send)
        elif self._agent is not None and self._agent.is_at(path):
            await self._agent.serve(scope, receive, send)
        elif self._relay is not None and self._relay.is_at(path):
            await self._relay.serve(scope, receive, send)
        else:
            say(scope["extensions"][PEER], 404, NOT_FOUND)

    def _surface(self, path: str) -> Surface | None:
        if path == "/mcp":
            return self._everything
        # Whether there is such a server, and whether this caller may know, is for the face to say.
        return Surface("own", ServerName(path[5:])) if path.startswith("/mcp/") else None


async def serve(
    configuration: Configuration,
    environment: Mapping[str, str],
    source: Source | None = None,
    *,
    on_open: Callable[[str, int], None],
    is_insecure: bool = False,
) -> None:
    """Run until SIGTERM or SIGINT; `on_open` is told where the hub listens.

    With a `source`, its files are watched, and what changes in them is done; SIGHUP has them read at once. A hub that
    `is_insecure` may be open to a network.

    Raises:
        ConfigError: the hub would be open to a network unasked, its keys cannot be read, or it is to speak gRPC and
            cannot.
        DoorError: the address cannot be listened on.
    """
    check_grpc(configuration)
    settings = configuration.hub
    access = Access(configuration, is_insecure=is_insecure)
    tokens = Tokens(configuration, access.identities)
    gate = access.open(verifiers_of(configuration))
    signals = Signals()
    pins = DefinitionPins(configuration)
    lists = ListFiles(Path(settings.state))
    journal = await open_journal(configuration)
    books = await open_audit(configuration, journal)
    audit = None if books is None else books.audit
    running = RunningHub(configuration, environment, journal, pins=pins, lists=lists, audit=audit)
    pushes = Pushes(running, access.identities)
    monitor = LoopMonitor()
    grpc: Service | None = None
    try:
        if books is not None:
            books.attach(running, gate, access.identities, pins)
        await _recover(running, access.identities, books)
        mcp = McpHttp(running.dialogue(), gate)
        sse = McpSse(running.dialogue(), gate, running.crew, running.surface, _path_of(settings.public_url))
        ports: list[int] = []
        agent = _agent(running, access.identities, pushes.pushing, gate, lambda: _address(settings, ports))
        retention = Retention(running.tasks, journal, time.time, lambda: running.configuration.a2a.keep)
        running.crew.spawn("retention", retention.run())
        pushes.start()
        relay = await _relay(running, gate)
        # Not before servers that may dial in again are known: these tasks wait for them.
        running.tasks.resume()
        rest = RestHttp(running.hub, gate, relay, monitor.figures)
        shown = None if relay is None else relay.face
        well_known = _well_known(running, access.identities, gate)
        tokens.on_proved = running.logins.proved
        oauth = tokens.open(gate, running.crew, Egress())
        routes = Routes(running.surface, mcp, rest, _by_path(running, sse, gate), agent, well_known, shown, oauth)
        routes.preflight = gate.preflight
        door = _door(configuration, gate, routes, (mcp, sse, agent), shown)
        door.allow_pages(gate.cors_lines)
        grpc = await open_grpc(running, agent, gate)
        port = await door.open()
        ports.append(port)
        tokens.listen_at(port)
        access.follow(running, (mcp, sse, agent))
        spare_the_collector()
        monitor.start()
        on_open(settings.host, port)
        if source is not None:
            change = partial(_change, running, access, tokens, agent, retention, relay)
            signals.reload_by(Reloader(running, source, change, books.reloaded if books is not None else None))
        await _until_told(running, door, grpc, relay, signals)
    finally:
        monitor.close()
        await _close(running, signals, pushes, grpc)
        await pins.aclose()
        await lists.aclose()
        await close_audit(books, journal)
        # Not before: a signal that nobody takes would end the hub at once, and leave its servers or its journal behind.
        signals.close()


async def _recover(running: RunningHub, identities: Identities, books: AuditLog | None) -> None:
    """End the tasks that the last hub left unfinished."""
    running.tasks.waits.find_caller = partial(_caller_of, identities)
    lost = await running.tasks.recover()
    if books is not None:
        books.tasks_lost(lost)
    if lost:
        log.warning("tasks were on their way when the hub ended last time; they have failed", tasks=len(lost))


def _caller_of(identities: Identities, owner: Owner) -> Caller | None:
    """Who an owner of tasks is by now; None if nobody is known by this name any more."""
    found = identities.find(owner.tenant, owner.name)
    return None if found is None else found.on("mcp" if owner.realm == REALM else "a2a")


async def _relay(running: RunningHub, gate: Gate) -> Relay | None:
    """The relay, if there is to be one; whatever dials in needs a descriptor."""
    settings = running.configuration.relay
    if not settings.face.enabled:
        return None
    relay = Relay(running, gate)
    await relay.start()
    wanted = settings.dialin.max_connections + OTHER_DESCRIPTORS
    if (limit := raise_limit(wanted)) < wanted:
        log.debug("the system allows fewer connections than the relay", descriptors=limit, wanted=wanted)
    return relay


def _door(
    configuration: Configuration,
    gate: Gate,
    routes: Routes,
    streaming: Sequence[StreamingFace],
    relay: RelayHttp | None,
) -> Door:
    """The door to these faces, of which some have streams that must end before it can close."""
    limits = configuration.hub.limits
    in_flight = BytesInFlight(limits.caller_bytes, limits.tenant_bytes)
    door = Door(CountedRequests(routes, gate, in_flight, limits.request_bytes), _door_settings(configuration))
    door.offer(routes.take)
    if relay is not None:
        door.offer_sockets(relay.upgrade)
        streaming = (*streaming, relay)
    for face in streaming:
        door.on_drain(face.end_streams)
    return door


def _agent(
    running: RunningHub, identities: Identities, pushing: Pushing, gate: Gate, address: Callable[[], str]
) -> A2aHttp:
    settings = running.configuration.a2a
    desk = Desk(running.hub, running.tasks, running.journal, settings, time.time, pushing, running.targets)
    needs_key = lambda: identities.wants_proof  # noqa: E731
    gives_tokens = lambda: identities.wants_proof and bool(identities.callers())  # noqa: E731
    token_urls = lambda: [each.token_url for each in running.configuration.issuers if each.token_url]  # noqa: E731
    cards = AgentCards(running.hub, settings, ME.version, address, needs_key, time.time, gives_tokens, token_urls)
    return A2aHttp(desk, gate, cards)


def _address(settings: HubSettings, ports: Sequence[int]) -> str:
    """Where the hub is spoken to: what is published, else this machine."""
    return settings.public_url or f"http://localhost:{ports[0] if ports else settings.port}"


def _well_known(running: RunningHub, identities: Identities, gate: Gate) -> WellKnown | None:
    """What is published of the hub, if it has an address to publish."""
    address = running.configuration.hub.public_url
    if address is None:
        return None
    cards = Cards(ME, address, VERSIONS)
    needs_key = lambda: identities.wants_proof  # noqa: E731
    return WellKnown(running.hub, gate, cards, needs_key, lambda: running.configuration.a2a.name)


def _by_path(running: RunningHub, sse: McpSse, gate: Gate) -> dict[str, Face]:
    """The faces that are known by whole paths."""
    journal = running.journal
    health = Health(running.hub, gate, lambda: isinstance(journal, Probed) and journal.is_failing)
    return {**dict.fromkeys(HEALTH_PATHS, health), **dict.fromkeys(SSE_PATHS, sse)}


def _path_of(public_url: str | None) -> str:
    """Under which path a proxy shows the hub."""
    return "" if public_url is None else urlsplit(public_url).path.rstrip("/")


def _change(
    running: RunningHub,
    access: Access,
    tokens: Tokens,
    agent: A2aHttp,
    retention: Retention,
    relay: Relay | None,
    configuration: Configuration,
) -> None:
    """Take what a new configuration says of who may call, of the agent and its tasks; raises as `Access.change`."""
    # Whatever may refuse it comes first: of a configuration that is refused nothing is taken.
    take_tokens = None if relay is None else relay.prepare(configuration)
    access.change(configuration)
    tokens.change(configuration)
    access.let_go()
    agent.change(configuration.a2a)
    retention.look_again()
    if take_tokens is not None:
        take_tokens()


def _door_settings(configuration: Configuration) -> DoorSettings:
    limits = configuration.hub.limits
    return DoorSettings(
        host=configuration.hub.host,
        port=configuration.hub.port,
        max_body_bytes=limits.request_bytes,
        stall_bytes=limits.lag_bytes,
        stall_seconds=limits.lag_seconds,
        drain_seconds=limits.drain_seconds,
        max_connections=limits.connections,
        max_connections_per_address=limits.connections_per_address,
    )


async def _until_told(
    running: RunningHub, door: Door, grpc: Service | None, relay: Relay | None, signals: Signals
) -> None:
    """Wait for a signal, then drain; a second signal ends the wait."""
    try:
        await signals.wait_for(1)
        log.info("shutting down: no new calls, waiting for those in flight", calls=running.calls())
        running.refuse_new_calls()
        signals.reload_by(None)
        drain = running.crew.spawn("drain", _drain(running, door, grpc, relay))
        again = running.crew.spawn("second signal", signals.wait_for(2))
        await asyncio.wait({drain, again}, return_when=asyncio.FIRST_COMPLETED)
        again.cancel()
        running.tasks.leave_unsent()
        if running.calls():
            running.cancel_all("the hub is shutting down")
            await asyncio.sleep(LAST_WORDS_SECONDS)
    finally:
        await door.close()


async def _drain(running: RunningHub, door: Door, grpc: Service | None, relay: Relay | None) -> None:
    """Let requests come to their end, and tasks too, often answered long ago."""
    seconds = running.hub.limits.drain_seconds
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            beside = None if grpc is None else running.crew.spawn("drain of gRPC", grpc.drain(seconds))
            # Before, for who waits for such a task; and after, for what was asked meanwhile.
            running.tasks.give_up_waiting("the hub is shutting down")
            running.tasks.leave_waiting()
            running.hub.wait_no_more("the hub is shutting down")
            await door.drain(seconds)
            running.tasks.give_up_waiting("the hub is shutting down")
            await running.tasks.until_idle()
            if relay is not None:
                await relay.until_idle()
            if beside is not None:
                await beside


async def _close(running: RunningHub, signals: Signals, pushes: Pushes, grpc: Service | None) -> None:
    """End all that works on tasks."""
    if grpc is not None:
        await grpc.close()
    pushes.close()
    await _end(running, signals)
    await pushes.aclose()


async def _end(running: RunningHub, signals: Signals) -> None:
    """Let every server leave in good order; with a second signal, whenever it came, they are made to."""
    crew = Crew("end")
    closing = crew.spawn("closing", running.aclose())
    again = crew.spawn("second signal", signals.wait_for(2))
    await asyncio.wait({closing, again}, return_when=asyncio.FIRST_COMPLETED)
    await crew.aclose()


class Signals:
    """SIGTERM and SIGINT as something to wait for, and SIGHUP as a wish to have the configuration read again.

    A terminal that goes away sends SIGHUP too: to a hub that was started on one, that is the end.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._count = 0
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._reloader: Reloader | None = None
        self._had_terminal = os.isatty(STDIN)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._arrive)
        self._loop.add_signal_handler(signal.SIGHUP, self._hang_up)

    async def wait_for(self, count: int) -> None:
        """Wait until so many have come in all."""
        if self._count < count:
            waiter = self._loop.create_future()
            self._waiters.append((count, waiter))
            await waiter

    def reload_by(self, reloader: Reloader | None) -> None:
        """Have the configuration kept up to date by this one, or by nobody any more."""
        if self._reloader is not None:
            self._reloader.stop()
        self._reloader = reloader
        if reloader is not None:
            reloader.start()

    def _hang_up(self) -> None:
        if self._had_terminal and not os.isatty(STDIN):
            self._arrive()
            return
        logs.reopen()
        if self._reloader is not None:
            self._reloader.ask()

    def _arrive(self) -> None:
        self._count += 1
        for count, waiter in self._waiters:
            if count <= self._count and not waiter.done():
                waiter.set_result(None)

    def close(self) -> None:
        """Give the signals back, but for SIGTERM: it has done what it can, and who repeats it must not spoil the end.

        It is not ignored, which every process that is started afterwards would inherit, but taken by a function. Nor
        is there a moment in which it would kill: meanwhile it is held back.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                self._loop.remove_signal_handler(number)
            signal.signal(signal.SIGTERM, _nothing)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _nothing(_number: int, _frame: object) -> None:
    """The hub has ended already."""
