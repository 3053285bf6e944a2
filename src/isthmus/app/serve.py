"""`isthmus serve`: the hub behind its HTTP listener, with routes, callers, gRPC, signals and an orderly shutdown."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import socket
import sqlite3
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

import structlog

from isthmus.app.a2a import GrpcService, Pushes, check_grpc, open_a2a, open_grpc
from isthmus.app.access import LiveAccess
from isthmus.app.approval_webhooks import ApprovalWebhooks
from isthmus.app.audit import AuditLog, close_audit, open_audit
from isthmus.app.audit_reader import LiveAudit
from isthmus.app.caller_identity import Identities
from isthmus.app.code import check_code
from isthmus.app.definition_pins import DefinitionPins
from isthmus.app.extensions import opened_by_extension, verifiers_of
from isthmus.app.hub import RunningHub
from isthmus.app.links import ME
from isthmus.app.metrics_endpoint import close_telemetry, open_metrics, open_telemetry
from isthmus.app.open_sessions import OpenSessions
from isthmus.app.process_setup import raise_limit, return_memory, spare_the_collector
from isthmus.app.relay import Relay
from isthmus.app.reload import Reloader, Source
from isthmus.app.routes import CountedRequests, Frontend, Routes, StreamingFrontend
from isthmus.app.shared_state import close_shared_state
from isthmus.app.state_folder import RunningHubInfo, announced, claim, configuration_name, is_derived, new_operator_key
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
from isthmus.core.ports import ClosableJournal, HealthReportingJournal, SharedJournal
from isthmus.core.tasks.record import TaskOwner, TaskRecord
from isthmus.core.tasks.retention import Retention
from isthmus.frontends.a2a.http import A2aHttp
from isthmus.frontends.console.http import ConsoleHttp
from isthmus.frontends.http.auth import Authenticator
from isthmus.frontends.http.browser_sessions import Sessions
from isthmus.frontends.http.health import METRICS_PATH, Health
from isthmus.frontends.http.health import PATHS as HEALTH_PATHS
from isthmus.frontends.http.listener import LAME_DUCK_SECONDS, HttpListener, HttpListenerSettings, ListenError, bind_all
from isthmus.frontends.http.nodes import ALONE, Nodes
from isthmus.frontends.http.origins import OriginGuard
from isthmus.frontends.mcp.http import McpHttp
from isthmus.frontends.mcp.hub_tasks import REALM
from isthmus.frontends.mcp.methods import VERSIONS
from isthmus.frontends.mcp.sse import PATHS as SSE_PATHS
from isthmus.frontends.mcp.sse import McpSse
from isthmus.frontends.relay.http import RelayHttp
from isthmus.frontends.rest.http import RestHttp, RestParts
from isthmus.frontends.wellknown.http import ServerCards, WellKnown
from isthmus.identity.verifier import Verifier
from isthmus.model.callers import Caller
from isthmus.storage.journal_base import StateInUse, StateUnusable
from isthmus.storage.memory import MemoryJournal
from isthmus.storage.server_lists import ServerListFiles
from isthmus.storage.settings import LeaseSettings
from isthmus.storage.sqlite import SqliteJournal
from isthmus.telemetry import logs
from isthmus.telemetry.loop_lag import LoopMonitor
from isthmus.transport.egress import Egress

if TYPE_CHECKING:  # a hub that is alone imports nothing of it
    from isthmus.app.cluster import Cluster

log = structlog.get_logger(__name__)

GUESSED = "keys.guessed"
"""The audit event for failed attempts above the limit; at most once a minute."""

MAKE_A_KEY = "isthmus token create NAME --allow '*'"


class SessionFrontend(Protocol):
    """A frontend that keeps sessions of callers."""

    def retain(self, callers: Container[Caller]) -> None:
        """End the sessions of all other callers."""


class HeldCalls:
    """The calls that wait for approval, as a `SessionFrontend`. Devices of the relay wait, too, and have no keys."""

    def __init__(self, approvals: CallApprovals, relay: RelayHttp | None) -> None:
        self._approvals = approvals
        self._relay = relay

    def retain(self, callers: Container[Caller]) -> None:
        self._approvals.retain(
            lambda caller: caller in callers or (self._relay is not None and self._relay.is_current(caller))
        )


class Access:
    """The known callers, the authenticator of all frontends, and the frontends with sessions."""

    def __init__(
        self, configuration: Configuration, *, is_insecure: bool = False, operator_key: str | None = None
    ) -> None:
        """Raises: ConfigError if the keys in the state folder cannot be read."""
        self.identities = Identities(configuration, is_insecure=is_insecure)
        self.identities.operator_key = self.operator_key = operator_key or new_operator_key()
        self.local_key = "" if operator_key else self.operator_key
        """The operator's key, if no other worker accepts it."""
        self._configuration = configuration
        self._is_insecure = is_insecure
        self._auth: Authenticator | None = None
        self._running: RunningHub | None = None
        self._frontends: Sequence[SessionFrontend] = ()
        self._known: frozenset[Caller] = frozenset()

    def open(self, verifiers: Sequence[Verifier] = ()) -> Authenticator:
        """Decide who is accepted, and log it. With extra verifiers the hub is never open.

        Raises:
            ConfigError: the hub would be open to a network unasked, or without the keys of an earlier version.
            ValueError: a host or an origin is invalid.
        """
        self.identities.verifiers += verifiers
        self.identities.knows_more = self.identities.knows_more or bool(verifiers)
        self.identities.decide()
        is_open = not self.identities.wants_proof
        if warning := claim(self._configuration, is_open=is_open, is_insecure=self._is_insecure):
            log.warning(warning)
        self._warn_if_open()
        self._auth = Authenticator(_guard(self._configuration.hub), self.identities.identify)
        self._auth.failed_auth_limit.per_minute = self._configuration.hub.limits.wrong_keys_per_minute
        return self._auth

    def follow(self, running: RunningHub, frontends: Sequence[SessionFrontend]) -> None:
        """Watch the callers from now on, and end sessions of removed callers in these frontends."""
        self._running, self._frontends = running, frontends
        self._known = self.identities.callers()
        running.callers = self.identities
        running.know_tenants(self._known)
        if self._auth is not None:
            self._auth.failed_auth_limit.on_refused = lambda address, count: running.note(
                GUESSED, address=address, refused=count
            )
        running.background.spawn("keys", self.identities.run(self.let_go))

    def change(self, configuration: Configuration) -> None:
        """Apply the callers and log settings of a new configuration.

        Raises:
            ConfigError: the hub would be open to a network, or no longer want keys.
            ValueError: a host or an origin is invalid, or the log cannot be written.
        """
        take = self.identities.prepare(configuration)
        guard = _guard(configuration.hub)
        before, now = self._configuration.hub, configuration.hub
        if (before.log_level, before.log_format, before.log_file) != (now.log_level, now.log_format, now.log_file):
            try:
                logs.configure(now.log_level, now.log_format, now.log_file)
            except OSError as error:
                raise ValueError(f"log.file cannot be written: {now.log_file}: {error.strerror}") from error
        take()
        self._configuration = configuration
        if self._auth is not None:
            self._auth.change(guard, self.identities.identify)
            self._auth.failed_auth_limit.per_minute = configuration.hub.limits.wrong_keys_per_minute
        self.let_go()

    def let_go(self) -> None:
        """End the sessions of callers that are no longer known."""
        for frontend in self._frontends:
            frontend.retain(self.identities)
        if self._running is not None:
            self._running.targets.change(self._running.configuration.targets, self.identities)
            before, self._known = self._known, self.identities.callers()
            gone, come = before - self._known, self._known - before
            log_callers(gone, come)
            self._running.know_tenants(self._known)

    def _warn_if_open(self) -> None:
        """Warn if the hub is open."""
        hub, issuers, file = self._configuration.hub, self._configuration.issuers, self._configuration.file
        # Elsewhere the command would make a key of another hub.
        is_named = file is not None and file.parent != Path.cwd()
        run = f"{MAKE_A_KEY} --config {shlex.quote(str(file))}" if is_named else MAKE_A_KEY
        if self.identities.wants_proof:
            callers = {caller.name for caller in self.identities.callers()}
            log.info("requests need a key or a token", keys_of=len(callers), issuers=len(issuers))
            if self._is_insecure:
                log.warning("--insecure has no effect: callers are configured, so every request needs a key")
        elif hub.is_loopback and not hub.is_published:
            message = "open: every program on this machine may call everything; create a key to require one"
            log.warning(message, run=run)
        else:
            message = "INSECURE: everybody who can reach this address may call everything; create a key to require one"
            log.warning(message, host=hub.public_url if hub.is_published else hub.host, run=run)


def log_callers(gone: Iterable[Caller], come: Iterable[Caller]) -> None:
    """Log which keys are no longer valid, which are now valid, and which now permit something else."""
    before = {(caller.tenant, caller.name, caller.key): caller for caller in gone}
    now = {(caller.tenant, caller.name, caller.key): caller for caller in come}
    for identity in sorted({*before, *now}):
        tenant, name, key = identity
        if not key:  # the callers of an open hub
            log.info("requests without a key are accepted" if identity in now else "requests without a key are refused")
            continue
        message = "a key is now valid" if identity in now else "a key is no longer valid"
        if identity in before and identity in now:
            message = "the permissions of a caller have changed"
        log.info(message, caller=name, tenant=tenant, key=key)


def _guard(settings: HubSettings) -> OriginGuard:
    return OriginGuard(
        bind_host=settings.host,
        public_url=settings.public_url,
        allowed_hosts=settings.hosts,
        allowed_origins=settings.origins,
    )


async def open_journal(configuration: Configuration) -> ClosableJournal:
    """Open the journal for tasks; in memory, with a warning, if another hub of this configuration runs.

    Raises:
        ConfigError: the database or the folder that was configured cannot be used.
    """
    if configuration.storage.is_foreign:
        return await opened_by_extension(configuration)
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


STDIN = 0

OTHER_DESCRIPTORS = 8192
"""Descriptors besides the relay's: connections of callers, processes of servers, the journal."""

HAND_OVER_SECONDS = 20.0
"""How long other nodes may take to start the programs that this node ran for them."""

LAST_WORDS_SECONDS = 0.1
"""Time for callers and servers to learn that their calls were cancelled at the end of a drain."""


async def serve(
    configuration: Configuration,
    environment: Mapping[str, str],
    source: Source | None = None,
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
        for each in sockets:
            each.close()


def check_cluster(configuration: Configuration, find: Callable[[str], object] = find_spec) -> None:
    """Raises: ConfigError if the hub is a node of a cluster and cannot speak to NATS."""
    if configuration.cluster.nats and find("nats") is None:
        advice = "get it with: pip install 'isthmus[cluster]'"
        place = Place(configuration.file, CLUSTER).at("nats")
        raise ConfigError(place.finding("needs a library that is not installed", advice=advice))
    check_placement(configuration)


def check_placement(configuration: Configuration) -> None:
    """Raises: ConfigError if a server is placed in a cluster that cannot do it. A hub that is alone runs it itself."""
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
    """Bind the hub's address, and check that the one of gRPC is free.

    Raises:
        ListenError: an address cannot be listened on.
    """
    hub, grpc_port = configuration.hub, configuration.a2a.grpc_port
    sockets = await bind_all(hub.host, hub.port, shares_port=shares_port)
    if grpc_port:
        try:
            probes = await bind_all(hub.host, grpc_port, shares_port=shares_port)
        except ListenError:
            for each in sockets:
                each.close()
            raise
        for each in probes:  # only a check: gRPC binds its port itself
            each.close()
    return sockets


async def reserve_address(configuration: Configuration) -> list[socket.socket]:
    """Keep the address for workers, which share it.

    Raises:
        ListenError: another program has it; with a shared port, workers would not notice.
    """
    for each in await bind_addresses(configuration):
        each.close()
    hub = configuration.hub
    return await bind_all(hub.host, hub.port, shares_port=True, listens=False)


def _tune_memory(running: RunningHub) -> None:
    """Everything long-lived exists: collect rarely, and return memory that long messages leave behind."""
    spare_the_collector()
    running.background.spawn("freed memory", return_memory())


async def _serve(
    configuration: Configuration,
    environment: Mapping[str, str],
    source: Source | None,
    sockets: list[socket.socket],
    on_open: Callable[[str], None],
    *,
    is_insecure: bool,
    worker: Worker | None,
) -> None:
    settings = configuration.hub
    access = Access(
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
    telemetry, cluster = open_telemetry(configuration, environment), await _cluster(configuration, sockets)
    running = _placed_by(
        cluster,
        RunningHub(configuration, environment, journal, pins=pins, lists=lists, audit=audit, telemetry=telemetry),
    )
    pushes, webhooks = Pushes(running, access.identities), ApprovalWebhooks(running)
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
        relay = await _relay(running, auth, cluster)
        # After remembered dial-in servers are known: queued tasks may wait for them.
        _resume(running, audit_log)
        rest = _rest(running, access.identities, auth, relay, monitor, OpenSessions(mcp, sse, agent, auth), cluster)
        shown = None if relay is None else relay.frontend
        tokens.on_proved = running.logins.proved
        frontends = _probes(running, auth, journal, cluster) | dict.fromkeys(SSE_PATHS, sse)
        oauth = tokens.open(auth, running.background, Egress(), journal)
        well_known = _well_known(running, access.identities, auth)
        routes = Routes(running.surface, mcp, rest, frontends, agent, well_known, shown, oauth)
        routes.console = _console(running, access.identities, auth, cluster)
        http_listener = _http_listener(running, auth, routes, (mcp, sse, agent, rest), shown, cluster)
        frontends[METRICS_PATH] = open_metrics(
            running, auth, telemetry, monitor, {"mcp": mcp.sessions, "sse": sse}, http_listener, shown, cluster
        )
        grpc = await open_grpc(running, agent, auth, frontends, shares_port=worker is not None)
        ports.append(port := await http_listener.open(sockets))
        tokens.listen_at(port)
        access.follow(running, (mcp, sse, agent, rest, HeldCalls(running.approvals, shown)))
        _tune_memory(running)
        monitor.start()
        on_open(announcement.enter_context(_announced(configuration, environment, access.local_key, port)))
        if source is not None:
            change = partial(_change, running, access, tokens, agent, retention, relay)
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
    """End the tasks that the last hub left unfinished."""

    def find_caller(owner: TaskOwner) -> Caller | None:
        found = identities.find(owner.tenant, owner.name)
        return None if found is None else found.on("mcp" if owner.realm == REALM else "a2a")

    running.tasks.offline_queue.find_caller = find_caller
    report_shared_state(running.configuration)
    running.approvals.has_operator = True
    await running.approvals.load()
    await running.budgets.load()
    _note_lost(audit_log, await running.tasks.recover())


def _resume(running: RunningHub, audit_log: AuditLog | None) -> None:
    """Continue the unsent tasks of the last hub, and from now on the tasks of nodes that are gone."""
    running.tasks.resume()
    if isinstance(running.journal, SharedJournal):
        takeovers = Takeovers(running.journal, running.tasks, partial(_note_lost, audit_log))
        running.background.spawn("takeovers", takeovers.run())


def _note_lost(audit_log: AuditLog | None, lost: Sequence[TaskRecord]) -> None:
    if audit_log is not None:
        audit_log.tasks_lost(lost)
    if lost:
        log.warning("tasks were running when the last hub ended; they have failed", tasks=len(lost))


async def _relay(running: RunningHub, auth: Authenticator, cluster: Cluster | None) -> Relay | None:
    """The relay, if enabled. Every connection needs a file descriptor. Servers of other nodes are joined to it."""
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


def _rest(
    running: RunningHub,
    identities: Identities,
    auth: Authenticator,
    relay: Relay | None,
    monitor: LoopMonitor,
    sessions: OpenSessions,
    cluster: Cluster | None,
) -> RestHttp:
    """The REST frontend, with everything that operators may see and do."""
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
    """Deletes old tasks from now on."""
    retention = Retention(journal, running.now, lambda: running.configuration.a2a.keep, running.tasks.forget_before)
    running.background.spawn("retention", retention.run())
    running.background.spawn("retention of scripts", running.scripts.prune())
    return retention


async def _cluster(configuration: Configuration, sockets: Sequence[socket.socket]) -> Cluster | None:
    """This node's part of the cluster, if there is one."""
    if not configuration.cluster.is_on:
        return None
    from isthmus.app.cluster import Cluster  # noqa: PLC0415 - a hub that is alone imports nothing of it

    port = int(sockets[0].getsockname()[1]) if sockets else configuration.hub.port
    return await Cluster.open(configuration, port)


def _placed_by(cluster: Cluster | None, running: RunningHub) -> RunningHub:
    """The hub, before any of its servers has been started."""
    if cluster is not None:
        running.place_by(cluster.placed)
        running.sign_with(cluster.secret)
    return running


def _probes(
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
    cards = ServerCards(ME, address, VERSIONS)
    needs_key = lambda: identities.wants_proof  # noqa: E731
    return WellKnown(running.hub, auth, cards, needs_key, lambda: running.configuration.a2a.name)


def _console(
    running: RunningHub, identities: Identities, auth: Authenticator, cluster: Cluster | None
) -> ConsoleHttp | None:
    """The console, unless it is switched off."""
    settings = running.configuration.hub
    if not settings.console:
        return None
    if cluster is None:
        auth.sessions = Sessions(settings.state)
    else:
        # All nodes of a cluster, and only they, have the same bus.
        auth.sessions = Sessions(" ".join(running.configuration.cluster.shown), prefix=cluster.forwarder.prefix)
        cluster.forwarder.cookie = auth.sessions.cookie
    needs_key = lambda: identities.wants_proof  # noqa: E731
    is_https = (settings.public_url or "").startswith("https:")
    return ConsoleHttp(auth, auth.sessions, needs_key, is_https=is_https)


def _change(
    running: RunningHub,
    access: Access,
    tokens: TokenService,
    agent: A2aHttp,
    retention: Retention,
    relay: Relay | None,
    configuration: Configuration,
) -> None:
    """Apply callers, A2A and task settings of a new configuration; raises like `Access.change`."""
    # Everything that may refuse it comes first: a refused configuration changes nothing.
    check_placement(configuration)
    take_tokens = None if relay is None else relay.prepare(configuration)
    access.change(configuration)
    tokens.change(configuration)
    if take_tokens is not None:
        take_tokens()
    access.let_go()
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
        drain = running.background.spawn("drain", _drain(running, http_listener, grpc, relay, cluster))
        again = running.background.spawn("second signal", signals.wait_for(2))
        await asyncio.wait({drain, again}, return_when=asyncio.FIRST_COMPLETED)
        again.cancel()
        running.refuse_new_calls()  # if the drain has not: what is durable is left to the next hub, not cancelled
        running.tasks.release_unsent()
        if running.calls():
            running.cancel_all("the hub is shutting down")
            await asyncio.sleep(LAST_WORDS_SECONDS)
    finally:
        await http_listener.close()


async def _hand_over(running: RunningHub, cluster: Cluster, signals: Signals) -> None:
    """Let other nodes take over what this one runs for them, while it still answers; a second signal ends the wait."""
    handing = running.background.spawn("hand over", cluster.hand_over())
    again = running.background.spawn("second signal", signals.wait_for(2))
    seconds = min(HAND_OVER_SECONDS, running.hub.limits.drain_seconds)
    await asyncio.wait({handing, again}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    handing.cancel()
    again.cancel()


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
            beside = None if grpc is None else running.background.spawn("drain of gRPC", grpc.drain(seconds))
            if cluster is not None and cluster.bus.peers():
                # A load balancer learns of it by its connections, on which requests may be on their way.
                running.background.spawn("drain of HTTP", http_listener.drain(seconds))
                await asyncio.sleep(LAME_DUCK_SECONDS)
            running.refuse_new_calls()  # first: durable scripts are left to the next hub as they are
            # Before the listener closes, for callers that wait for a task; and after, for late requests.
            running.tasks.cancel_unanswered("the hub is shutting down")
            running.tasks.release_offline()
            running.hub.stop_waiting("the hub is shutting down")
            running.approvals.stop_waiting()
            await http_listener.drain(seconds)
            running.tasks.cancel_unanswered("the hub is shutting down")
            await running.tasks.wait_idle()
            await running.scripts.wait_left()
            if relay is not None:
                await relay.wait_idle()
            if cluster is not None:
                await cluster.wait_idle()
            if beside is not None:
                await beside


async def _close(
    running: RunningHub,
    signals: Signals,
    pushes: Pushes,
    grpc: GrpcService | None,
    webhooks: ApprovalWebhooks,
    cluster: Cluster | None,
) -> None:
    """Stop everything that works on tasks."""
    if cluster is not None:
        await cluster.aclose()  # before the servers end: other nodes learn at once that they are away
    if grpc is not None:
        await grpc.close()
    pushes.close()
    # Every server ends in good order; after a second signal, at once.
    background = BackgroundTasks("end")
    closing = background.spawn("closing", running.aclose())
    again = background.spawn("second signal", signals.wait_for(2))
    await asyncio.wait({closing, again}, return_when=asyncio.FIRST_COMPLETED)
    await background.aclose()
    await pushes.aclose()
    await webhooks.aclose()


class Signals:
    """Makes SIGTERM and SIGINT awaitable; SIGHUP reloads the configuration.

    A closing terminal sends SIGHUP, too: a hub that was started on one ends then.
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
        """Wait for this many signals in total."""
        if self._count < count:
            waiter = self._loop.create_future()
            self._waiters.append((count, waiter))
            await waiter

    def reload_by(self, reloader: Reloader | None) -> None:
        """Set or remove the reloader."""
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
            self._reloader.reload_now()

    def _arrive(self) -> None:
        self._count += 1
        for count, waiter in self._waiters:
            if count <= self._count and not waiter.done():
                waiter.set_result(None)

    def close(self) -> None:
        """Restore the signals except SIGTERM, so that a repeated one does not disturb the shutdown.

        A function handles it instead of SIG_IGN, which child processes would inherit. It is blocked in between, so
        there is no moment in which it would kill.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                self._loop.remove_signal_handler(number)
            signal.signal(signal.SIGTERM, lambda _number, _frame: None)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
