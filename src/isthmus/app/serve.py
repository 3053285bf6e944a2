"""`isthmus serve`: the hub behind its HTTP listener, with routes, callers, gRPC, signals and an orderly shutdown."""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
from collections.abc import Callable, Container, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import structlog

from isthmus.app.a2a import GrpcService, PushService, check_grpc, open_a2a, open_grpc
from isthmus.app.access import LiveAccess
from isthmus.app.approval_webhooks import ApprovalWebhooks
from isthmus.app.audit import AuditLog, close_audit, open_audit
from isthmus.app.audit_reader import LiveAudit
from isthmus.app.caller_identity import Identities, LiveCallers
from isthmus.app.code import check_code
from isthmus.app.definition_pins import DefinitionPins
from isthmus.app.extensions import open_extension_journal, verifiers_of
from isthmus.app.hub import RunningHub
from isthmus.app.links import ME
from isthmus.app.metrics_endpoint import close_telemetry, open_metrics, open_telemetry
from isthmus.app.process_setup import Signals, raise_limit, return_memory, spare_the_collector
from isthmus.app.relay import Relay
from isthmus.app.reload import ConfigurationSource, Reloader
from isthmus.app.routes import CountedRequests, Frontend, OpenSessions, Routes, StreamingFrontend
from isthmus.app.shared_state import close_shared_state
from isthmus.app.state_folder import RunningHubInfo, announced, configuration_name, is_derived
from isthmus.app.state_import import report_shared_state
from isthmus.app.task_takeovers import HELD, Takeovers
from isthmus.app.tasks import TaskBrowser
from isthmus.app.tokens import TokenService
from isthmus.app.workers import Worker
from isthmus.config.findings import ConfigError, Place
from isthmus.config.settings import Configuration, HubSettings, local_origin
from isthmus.config.tables import CLUSTER, STORAGE
from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.approvals import CallApprovals
from isthmus.core.journal import ClosableJournal, HealthReportingJournal, SharedJournal
from isthmus.core.tasks.record import TaskOwner, TaskRecord
from isthmus.core.tasks.storage_limits import Retention
from isthmus.frontends.a2a.http import A2aHttp
from isthmus.frontends.console.http import ConsoleHttp
from isthmus.frontends.http.auth import Authenticator
from isthmus.frontends.http.browser_sessions import Sessions
from isthmus.frontends.http.health import METRICS_PATH, Health
from isthmus.frontends.http.health import PATHS as HEALTH_PATHS
from isthmus.frontends.http.listener import LAME_DUCK_SECONDS, HttpListener, HttpListenerSettings, ListenError, bind_all
from isthmus.frontends.http.nodes import ALONE, Nodes
from isthmus.frontends.mcp.http import McpHttp
from isthmus.frontends.mcp.hub_tasks import REALM
from isthmus.frontends.mcp.sse import PATHS as SSE_PATHS
from isthmus.frontends.mcp.sse import McpSse
from isthmus.frontends.relay.http import RelayHttp
from isthmus.frontends.rest.http import RestHttp, RestParts
from isthmus.frontends.wellknown.http import ServerCards, WellKnown
from isthmus.model.callers import Caller
from isthmus.storage.journal_base import StateInUse, StateUnusable
from isthmus.storage.memory import MemoryJournal
from isthmus.storage.server_lists import ServerListFiles
from isthmus.storage.settings import LeaseSettings
from isthmus.storage.sqlite import SqliteJournal
from isthmus.telemetry.loop_lag import LoopMonitor
from isthmus.transport.egress import Egress
from isthmus.wire.mcp import modern

if TYPE_CHECKING:  # a hub that is alone imports nothing of it
    from isthmus.app.cluster import Cluster

log = structlog.get_logger(__name__)


class HeldCalls:
    """Cancels calls that wait for approval when their caller is removed. Devices of the relay call without a key."""

    def __init__(self, approvals: CallApprovals, relay: RelayHttp | None) -> None:
        self._approvals = approvals
        self._open_relay = relay

    def retain(self, callers: Container[Caller]) -> None:
        self._approvals.retain(
            lambda caller: caller in callers or (self._open_relay is not None and self._open_relay.is_current(caller))
        )


async def open_journal(configuration: Configuration) -> ClosableJournal:
    """Open the journal for tasks. If another hub of this configuration runs, tasks are kept in memory, with a warning.

    Raises:
        ConfigError: the database or the folder that was configured cannot be used.
    """
    if configuration.storage.is_foreign:
        return await open_extension_journal(configuration)
    if configuration.storage.url is None:
        settings = configuration.hub
        try:
            return SqliteJournal(Path(settings.state))
        except (StateInUse, OSError, sqlite3.Error) as error:
            if not is_derived(configuration):
                raise ConfigError(Place(None, "hub.state").finding(f"cannot be used: {error}")) from error
            log.warning("tasks will not survive a restart", reason=str(error))
            return MemoryJournal()
    place = Place(configuration.file, STORAGE).at("url")
    if find_spec("asyncpg") is None:
        advice = "get it with: pip install 'isthmus[postgres]'"
        raise ConfigError(place.finding("needs a library that is not installed", advice=advice))
    from isthmus.storage.postgres import PostgresJournal  # noqa: PLC0415 - only who wants it has the library
    from isthmus.storage.postgres_cluster import SharedPostgresJournal  # noqa: PLC0415

    try:
        if configuration.cluster.is_enabled:
            cluster = configuration.cluster
            lease = LeaseSettings(cluster.node_id(configuration.hub.port), cluster.lease_seconds)
            return await SharedPostgresJournal.open_shared(configuration.storage, lease, HELD)
        return await PostgresJournal.open(configuration.storage)
    except (StateInUse, StateUnusable) as error:
        raise ConfigError(place.finding(f"cannot be used: {error}")) from error


OTHER_DESCRIPTORS = 8192
"""Descriptors besides the relay's: connections of callers, processes of servers, the journal."""

HAND_OVER_SECONDS = 20.0
"""How long other nodes may take to start the programs that this node ran for them."""

CANCEL_NOTICE_SECONDS = 0.1
"""Time for callers and servers to learn that their calls were cancelled at the end of a drain."""


async def serve(
    configuration: Configuration,
    environment: Mapping[str, str],
    source: ConfigurationSource | None = None,
    *,
    on_bound: Callable[[], None] = lambda: None,
    on_open: Callable[[str], None],
    is_insecure: bool = False,
    worker: Worker | None = None,
) -> None:
    """Run until SIGTERM or SIGINT; call `on_bound` once the address is ours, and `on_open` with it.

    The address comes first: a hub that cannot have it leaves no trace and starts no server.

    With a `source`, its files are watched and changes applied; SIGHUP reads them at once. A hub that `is_insecure` may
    be open to a network. A `worker` shares the address with others, and its parent lets commands find them.

    Raises:
        ConfigError: the hub would be open to a network unasked, its keys cannot be read, or a library that
            it needs for gRPC or for code mode is not installed.
        ListenError: the address cannot be listened on.
    """
    check_grpc(configuration)
    check_code(configuration)
    check_cluster(configuration)
    sockets = await bind_addresses(configuration, shares_port=worker is not None)
    try:
        on_bound()
        await _serve(configuration, environment, source, sockets, on_open, is_insecure=is_insecure, worker=worker)
    finally:
        close_shared_state(configuration)
        for sock in sockets:
            sock.close()


def check_cluster(configuration: Configuration, find: Callable[[str], object] = find_spec) -> None:
    """Raises: ConfigError if the hub is a node of a cluster and cannot speak to NATS."""
    if configuration.cluster.nats and find("nats") is None:
        advice = "get it with: pip install 'isthmus[cluster]'"
        place = Place(configuration.file, CLUSTER).at("nats")
        raise ConfigError(place.finding("needs a library that is not installed", advice=advice))
    check_placement(configuration)


def check_placement(configuration: Configuration) -> None:
    """Raises: ConfigError if a server's placement needs a database or a bus that this cluster does not have."""
    cluster, storage = configuration.cluster, configuration.storage
    if not cluster.is_enabled:
        return
    has_database = storage.url is not None and not storage.is_foreign
    for server in configuration.servers:
        problem = None
        if server.owners and not has_database:
            problem = "needs [storage] url: a PostgreSQL database that all nodes share says which node runs it"
        elif server.owners and not cluster.is_on:
            problem = "needs [cluster] nats: calls at other nodes are carried to the node that runs it"
        if problem is not None:
            place = Place(configuration.file, "servers").at(server.name, "placement" if server.pool is None else "pool")
            raise ConfigError(place.finding(problem))


async def bind_addresses(configuration: Configuration, *, shares_port: bool = False) -> list[socket.socket]:
    """Bind the hub's HTTP address, and check that the gRPC address is free.

    Raises:
        ListenError: an address cannot be listened on.
    """
    hub, grpc_port = configuration.hub, configuration.a2a.grpc_port
    sockets = await bind_all(hub.host, hub.port, shares_port=shares_port)
    if grpc_port:
        try:
            probes = await bind_all(hub.host, grpc_port, shares_port=shares_port)
        except ListenError:
            for sock in sockets:
                sock.close()
            raise
        for probe in probes:  # only a check: gRPC binds its port itself
            probe.close()
    return sockets


async def reserve_address(configuration: Configuration) -> list[socket.socket]:
    """Bind the address for workers, which share it.

    Raises:
        ListenError: another program listens on it. Workers would not notice, because they share the port.
    """
    for address in await bind_addresses(configuration):
        address.close()
    hub = configuration.hub
    return await bind_all(hub.host, hub.port, shares_port=True, listens=False)


def _limit_memory(running: RunningHub) -> None:
    """Once everything long-lived exists: collect garbage rarely, and return the memory of long messages."""
    spare_the_collector()
    running.background.spawn("freed memory", return_memory())


async def _serve(
    configuration: Configuration,
    environment: Mapping[str, str],
    source: ConfigurationSource | None,
    sockets: list[socket.socket],
    on_open: Callable[[str], None],
    *,
    is_insecure: bool,
    worker: Worker | None,
) -> None:
    settings = configuration.hub
    access = LiveCallers(
        configuration, is_insecure=is_insecure, operator_key=None if worker is None else worker.operator_key
    )
    tokens = TokenService(configuration, access.identities)
    auth = access.open(verifiers_of(configuration))
    signals = Signals()
    pins = DefinitionPins(configuration)
    lists = ServerListFiles(Path(settings.state))
    journal = await open_journal(configuration)
    audit_log = await open_audit(configuration, journal)
    audit = None if audit_log is None else audit_log.audit
    telemetry, cluster = open_telemetry(configuration, environment), await _open_cluster(configuration, sockets)
    running = _placed_in_cluster(
        cluster,
        RunningHub(configuration, environment, journal, pins=pins, lists=lists, audit=audit, telemetry=telemetry),
    )
    pushes, webhooks = PushService(running, access.identities), ApprovalWebhooks(running)
    monitor, announcement = LoopMonitor(), ExitStack()
    grpc: GrpcService | None = None
    try:
        if audit_log is not None:
            audit_log.attach(running, auth, access.identities, pins)
        await _recover(running, access.identities, audit_log)
        nodes: Nodes = ALONE if cluster is None else cluster.open_forwarder(running, auth, access.local_key)
        mcp = McpHttp(running.mcp_methods(), auth, nodes)
        sse = McpSse(running.mcp_methods(), auth, running.background, running.surface, _prefix(settings), nodes)
        ports = [settings.port]
        address = lambda: settings.public_url or f"http://localhost:{ports[-1]}"  # noqa: E731
        agent = open_a2a(running, access.identities, pushes.pushing, auth, address, nodes)
        retention = _retention(running, journal)
        pushes.start()
        relay = await _open_relay(running, auth, cluster)
        # After remembered dial-in servers are known: queued tasks may wait for them.
        _resume(running, audit_log)
        rest = _rest_frontend(
            running, access.identities, auth, relay, monitor, OpenSessions(mcp, sse, agent, auth), cluster
        )
        relay_http = None if relay is None else relay.frontend
        tokens.on_proved = running.logins.add_subject_token
        frontends = _health_probes(running, auth, journal, cluster) | dict.fromkeys(SSE_PATHS, sse)
        oauth = tokens.open(auth, running.background, Egress(), journal)
        well_known = _well_known(running, access.identities, auth)
        routes = Routes(running.surface, mcp, rest, frontends, agent, well_known, relay_http, oauth)
        routes.console = _console_frontend(running, access.identities, auth, cluster)
        http_listener = _http_listener(running, auth, routes, (mcp, sse, agent, rest), relay_http, cluster)
        frontends[METRICS_PATH] = open_metrics(
            running, auth, telemetry, monitor, {"mcp": mcp.sessions, "sse": sse}, http_listener, relay_http, cluster
        )
        grpc = await open_grpc(running, agent, auth, frontends, shares_port=worker is not None)
        ports.append(port := await http_listener.open(sockets))
        tokens.listen_at(port)
        access.follow(running, (mcp, sse, agent, rest, HeldCalls(running.approvals, relay_http)))
        _limit_memory(running)
        monitor.start()
        on_open(announcement.enter_context(_announced(configuration, environment, access.local_key, port)))
        if source is not None:
            change = partial(_apply_configuration, running, access, tokens, agent, retention, relay)
            signals.reload_by(Reloader(running, source, change, audit_log.reloaded if audit_log is not None else None))
        await _until_signal(running, http_listener, grpc, relay, cluster, signals, announcement.close)
    finally:
        announcement.close()
        monitor.close()
        await _close(running, signals, pushes, grpc, webhooks, cluster)
        await pins.aclose()
        await lists.aclose()
        await close_audit(audit_log, journal)
        await close_telemetry(telemetry)
        # Last: without a handler a signal would kill the hub and leave its servers and journal behind.
        signals.close()


@contextmanager
def _announced(
    configuration: Configuration, environment: Mapping[str, str], operator_key: str, port: int
) -> Iterator[str]:
    """Let commands find the hub during this block; yields its address. The parent of workers does it for them."""
    settings = configuration.hub
    origin = local_origin(settings.host, port)
    if not operator_key:
        yield origin
        return
    name = configuration_name(configuration.file, environment)
    info = RunningHubInfo(os.getpid(), origin, operator_key, name)
    with announced(Path(settings.state), info) as failed:
        if failed is not None:
            why = failed.strerror or str(failed)
            log.warning("commands cannot find this hub: use --hub", url=origin, state=settings.state, reason=why)
        yield origin


async def _recover(running: RunningHub, identities: Identities, audit_log: AuditLog | None) -> None:
    """End the tasks that the previous hub left unfinished."""

    def find_caller(owner: TaskOwner) -> Caller | None:
        found = identities.find(owner.tenant, owner.name)
        return None if found is None else found.on("mcp" if owner.realm == REALM else "a2a")

    running.tasks.offline_queue.find_caller = find_caller
    report_shared_state(running.configuration)
    running.approvals.has_operator = True
    await running.approvals.load()
    await running.budgets.load()
    _report_lost_tasks(audit_log, await running.tasks.recover())


def _resume(running: RunningHub, audit_log: AuditLog | None) -> None:
    """Continue the unsent tasks of the previous hub, and from now on those of nodes that are gone."""
    running.tasks.resume()
    if isinstance(running.journal, SharedJournal):
        takeovers = Takeovers(running.journal, running.tasks, partial(_report_lost_tasks, audit_log))
        running.background.spawn("takeovers", takeovers.run())


def _report_lost_tasks(audit_log: AuditLog | None, lost: Sequence[TaskRecord]) -> None:
    if audit_log is not None:
        audit_log.tasks_lost(lost)
    if lost:
        log.warning("tasks were running when the previous hub ended; they have failed", tasks=len(lost))


async def _open_relay(running: RunningHub, auth: Authenticator, cluster: Cluster | None) -> Relay | None:
    """Open the relay, if enabled, with a file descriptor for each connection; in a cluster, share its devices."""
    settings = running.configuration.relay
    relay = Relay(running, auth) if settings.frontend.enabled else None
    if relay is not None:
        await relay.start()
    if cluster is not None:
        cluster.join(running)
        if relay is not None:
            cluster.share_devices(relay.frontend, running)
        await cluster.settle()
    if relay is None:
        return None
    wanted = settings.dialin.max_connections + OTHER_DESCRIPTORS
    if (limit := raise_limit(wanted)) < wanted:
        log.debug("the system allows fewer connections than the relay", descriptors=limit, wanted=wanted)
    return relay


def _rest_frontend(
    running: RunningHub,
    identities: Identities,
    auth: Authenticator,
    relay: Relay | None,
    monitor: LoopMonitor,
    sessions: OpenSessions,
    cluster: Cluster | None,
) -> RestHttp:
    """The REST frontend, with all operations for operators."""
    parts = RestParts(
        TaskBrowser(running, running.now),
        sessions,
        LiveAccess(running, identities),
        LiveAudit(running),
        running.approvals,
        running.budgets,
        cluster,
    )
    nodes: Nodes = ALONE if cluster is None else cluster.forwarder
    return RestHttp(running.hub, auth, relay, monitor.figures, admin=running, parts=parts, nodes=nodes)


def _prefix(settings: HubSettings) -> str:
    """The path under which a proxy serves the hub."""
    return "" if settings.public_url is None else urlsplit(settings.public_url).path.rstrip("/")


def _retention(running: RunningHub, journal: ClosableJournal) -> Retention:
    """Start deleting old tasks and scripts."""
    retention = Retention(journal, running.now, lambda: running.configuration.a2a.keep, running.tasks.forget_before)
    running.background.spawn("retention", retention.run())
    running.background.spawn("retention of scripts", running.scripts.prune())
    return retention


async def _open_cluster(configuration: Configuration, sockets: Sequence[socket.socket]) -> Cluster | None:
    """This node's part of the cluster, if there is one."""
    if not configuration.cluster.is_on:
        return None
    from isthmus.app.cluster import Cluster  # noqa: PLC0415 - a hub that is alone imports nothing of it

    port = int(sockets[0].getsockname()[1]) if sockets else configuration.hub.port
    return await Cluster.open(configuration, port)


def _placed_in_cluster(cluster: Cluster | None, running: RunningHub) -> RunningHub:
    """Let the cluster place programs and sign what moves between nodes; called before any server has been started."""
    if cluster is not None:
        running.set_placing(cluster.placed)
        running.set_signing_key(cluster.secret)
    return running


def _health_probes(
    running: RunningHub, auth: Authenticator, journal: ClosableJournal, cluster: Cluster | None
) -> dict[str, Frontend]:
    """The health probes, by path."""

    def is_storage_failing() -> bool:
        return isinstance(journal, HealthReportingJournal) and journal.is_failing

    cut_off = None if cluster is None else cluster.cut_off

    def differences() -> Mapping[str, Sequence[str]]:
        others = {} if cluster is None else cluster.differences()
        problem = running.configuration_problem
        return {**others, "this node": [problem]} if problem else others

    health = Health(running.hub, auth, is_storage_failing, running.required_servers, cut_off, differences)
    return dict.fromkeys(HEALTH_PATHS, health)


def _http_listener(
    running: RunningHub,
    auth: Authenticator,
    routes: Routes,
    streaming: Sequence[StreamingFrontend],
    relay: RelayHttp | None,
    cluster: Cluster | None,
) -> HttpListener:
    """The HTTP listener; streams of frontends must end before it can close."""
    configuration = running.configuration
    limits = configuration.hub.limits
    count = partial(CountedRequests, auth=auth, in_flight=running.hub.bytes_in_flight, longest=limits.request_bytes)
    counted = count(routes if cluster is None else cluster.forwarder)
    settings = HttpListenerSettings(
        host=configuration.hub.host,
        port=configuration.hub.port,
        max_body_bytes=limits.request_bytes,
        stall_bytes=limits.lag_bytes,
        stall_seconds=limits.lag_seconds,
        drain_seconds=limits.drain_seconds,
        max_connections=limits.connections,
        max_connections_per_address=limits.connections_per_address,
    )
    http_listener = HttpListener(counted, settings)
    if cluster is None:
        http_listener.offer(routes.take)
    else:
        cluster.forwarder.serve(routes.take, routes, count(routes))
        http_listener.offer(cluster.forwarder.take)
        streaming = (*streaming, cluster.forwarder)
    http_listener.count_responses(counted.hold_response)
    http_listener.allow_pages(auth.cors_lines)
    routes.preflight = auth.preflight
    if relay is not None:
        http_listener.offer_sockets(relay.upgrade)
        streaming = (*streaming, relay)
    for frontend in streaming:
        http_listener.on_drain(frontend.end_streams)
    return http_listener


def _well_known(running: RunningHub, identities: Identities, auth: Authenticator) -> WellKnown | None:
    """The published documents, if the hub has a public address."""
    address = running.configuration.hub.public_url
    if address is None:
        return None
    cards = ServerCards(ME, address, modern.SUPPORTED)
    needs_key = lambda: identities.wants_proof  # noqa: E731
    return WellKnown(running.hub, auth, cards, needs_key, lambda: running.configuration.a2a.name)


def _console_frontend(
    running: RunningHub, identities: Identities, auth: Authenticator, cluster: Cluster | None
) -> ConsoleHttp | None:
    """The console, unless it is switched off."""
    settings = running.configuration.hub
    if not settings.console:
        return None
    if cluster is None:
        auth.sessions = Sessions(settings.state)
    else:
        # The bus identifies the cluster: its nodes accept each other's sign-ins.
        auth.sessions = Sessions(" ".join(running.configuration.cluster.shown), prefix=cluster.forwarder.prefix)
        cluster.forwarder.cookie = auth.sessions.cookie
    needs_key = lambda: identities.wants_proof  # noqa: E731
    is_https = (settings.public_url or "").startswith("https:")
    return ConsoleHttp(auth, auth.sessions, needs_key, is_https=is_https)


def _apply_configuration(
    running: RunningHub,
    access: LiveCallers,
    tokens: TokenService,
    agent: A2aHttp,
    retention: Retention,
    relay: Relay | None,
    configuration: Configuration,
) -> None:
    """Apply callers, A2A and task settings of a new configuration; raises like `LiveCallers.change`."""
    # Everything that may refuse it comes first: a refused configuration changes nothing.
    check_placement(configuration)
    apply_relay = None if relay is None else relay.prepare(configuration)
    access.change(configuration)
    tokens.change(configuration)
    if apply_relay is not None:
        apply_relay()
    access.end_removed_sessions()
    agent.change(configuration.a2a)
    retention.look_again()


async def _until_signal(
    running: RunningHub,
    http_listener: HttpListener,
    grpc: GrpcService | None,
    relay: Relay | None,
    cluster: Cluster | None,
    signals: Signals,
    on_signal: Callable[[], None],
) -> None:
    """Wait for a signal, call `on_signal`, then drain; a second signal ends the wait."""
    try:
        await signals.wait_for(1)
        on_signal()
        waits = ": waiting for the calls in flight" if running.calls() else ""
        log.info(f"shutting down{waits}", calls=running.calls())
        signals.reload_by(None)
        if cluster is not None:
            if relay is not None:
                relay.frontend.end_streams()  # devices and servers connect to other nodes now
            await _hand_over(running, cluster, signals)
        await _until_second_signal(running.background, signals, _drain(running, http_listener, grpc, relay, cluster))
        running.refuse_new_calls()  # if the drain has not: durable scripts continue in the next hub
        running.tasks.release_unsent()
        if running.calls():
            running.cancel_all("the hub is shutting down")
            await asyncio.sleep(CANCEL_NOTICE_SECONDS)
    finally:
        await http_listener.close()


async def _hand_over(running: RunningHub, cluster: Cluster, signals: Signals) -> None:
    """Let other nodes take over what this one runs for them, while it still answers; a second signal ends the wait."""
    seconds = min(HAND_OVER_SECONDS, running.hub.limits.drain_seconds)
    handing_over = await _until_second_signal(running.background, signals, cluster.hand_over(), within=seconds)
    handing_over.cancel()


async def _until_second_signal(
    background: BackgroundTasks, signals: Signals, work: Coroutine[Any, Any, None], *, within: float | None = None
) -> asyncio.Task[None]:
    """Wait for this work, a second signal, or the end of the time. Returns its task, which may still run."""
    working = background.spawn("shutdown", work)
    second_signal = background.spawn("second signal", signals.wait_for(2))
    await asyncio.wait({working, second_signal}, timeout=within, return_when=asyncio.FIRST_COMPLETED)
    second_signal.cancel()
    return working


async def _drain(
    running: RunningHub,
    http_listener: HttpListener,
    grpc: GrpcService | None,
    relay: Relay | None,
    cluster: Cluster | None,
) -> None:
    """Let requests and tasks finish."""
    seconds = running.hub.limits.drain_seconds
    if cluster is not None:
        cluster.leave()
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            draining_grpc = None if grpc is None else running.background.spawn("drain of gRPC", grpc.drain(seconds))
            if cluster is not None and cluster.bus.peers():
                # A load balancer sees its connections close; requests may be on their way on them.
                running.background.spawn("drain of HTTP", http_listener.drain(seconds))
                await asyncio.sleep(LAME_DUCK_SECONDS)
            running.refuse_new_calls()  # first, so that the next hub finds durable scripts as they are
            # Twice: now for callers that wait for a task, and after the listener has closed for late requests.
            running.tasks.cancel_unanswered("the hub is shutting down")
            running.tasks.release_offline()
            running.hub.stop_waiting("the hub is shutting down")
            running.approvals.stop_waiting()
            await http_listener.drain(seconds)
            running.tasks.cancel_unanswered("the hub is shutting down")
            await running.tasks.wait_idle()
            await running.scripts.wait_handed_over()
            if relay is not None:
                await relay.frontend.wait_idle()
            if cluster is not None:
                await cluster.wait_idle()
            if draining_grpc is not None:
                await draining_grpc


async def _close(
    running: RunningHub,
    signals: Signals,
    pushes: PushService,
    grpc: GrpcService | None,
    webhooks: ApprovalWebhooks,
    cluster: Cluster | None,
) -> None:
    """Close the servers and everything that works on tasks."""
    if cluster is not None:
        await cluster.aclose()  # before the servers end: other nodes learn at once that they are away
    if grpc is not None:
        await grpc.close()
    pushes.close()
    # Servers are closed in good order; after a second signal, they are killed.
    background = BackgroundTasks("end")
    await _until_second_signal(background, signals, running.aclose())
    await background.aclose()
    await pushes.aclose()
    await webhooks.aclose()
