"""This hub as a node of a cluster: opens the bus and gives it to the parts that speak to other nodes.

`app.serve` opens it before the hub and closes it before the hub's servers. The core does not know that there are nodes.
"""

from __future__ import annotations

import asyncio
import ssl
import zlib
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import structlog

from isthmus.app.cluster_servers import OwnServers, RemoteServers
from isthmus.app.config_diff import digests_of
from isthmus.app.forwarding import LEASE, Forwarder
from isthmus.app.hub import RunningHub
from isthmus.app.links import ME
from isthmus.app.placement import PlacedServers
from isthmus.cluster.bus import Bus, BusFault, BusState, NodeAway, NodeId, NoResponse
from isthmus.cluster.settings import ClusterSettings
from isthmus.config.findings import ConfigError, Place
from isthmus.config.settings import Configuration
from isthmus.config.tables import CLUSTER
from isthmus.core.pauses import in_passes
from isthmus.core.ports import SharedJournal
from isthmus.core.tasks.engine import TaskEngine
from isthmus.frontends.http.auth import Authenticator
from isthmus.frontends.http.health import RenderMetrics
from isthmus.frontends.rest.http import BusReport, ClusterReport, NodeReport
from isthmus.model.faults import Fault, NodeLost, TaskElsewhere
from isthmus.model.names import ServerName
from isthmus.telemetry.metrics import merge_texts

log = structlog.get_logger(__name__)

METRICS: Final = "metrics"
"""The service that renders the metrics of a worker."""

METRICS_SECONDS = 3.0

TASKS: Final = "tasks"
"""The service that cancels tasks."""

CONFIGURATION: Final = "configuration"
"""The attribute of a node with the digests of its configuration, as JSON."""

FORGOTTEN: Final = "forgotten"
"""The topic of dial-in servers that an operator has had forgotten."""

APPROVALS: Final = "approvals"
"""The topic of approvals that have changed."""

CANCEL_SECONDS = 5.0
"""How long another node may take to store that a task is cancelled."""


class Cluster:
    """The bus and everything that uses it. While the bus is away, the hub serves its own servers."""

    def __init__(self, bus: Bus, settings: ClusterSettings) -> None:
        self.bus = bus
        self._settings = settings
        self._forwarder: Forwarder | None = None
        self._own: OwnServers | None = None
        self._remote: RemoteServers | None = None
        self._announced: dict[str, str] = {"version": ME.version}
        self._differences: dict[str, tuple[str, ...]] = {}
        """By node: the tables of its configuration that differ from this one's."""
        self.placed = PlacedServers(bus, settings.lease_seconds)
        bus.on_state_changed(self._log_state)
        self._log_state(bus.state)

    @classmethod
    async def open(cls, configuration: Configuration, port: int) -> Cluster:
        """Join the cluster under this node's name; NATS need not be there yet.

        Raises:
            ConfigError: a file that is needed for NATS cannot be used.
        """
        settings = configuration.cluster
        try:
            return cls(await _open_bus(settings, NodeId(settings.node_id(port))), settings)
        except (OSError, ValueError) as error:
            place = Place(configuration.file, CLUSTER)
            raise ConfigError(place.finding(f"cannot be used: {error}")) from error

    def join(self, running: RunningHub) -> None:
        """Offer this hub's servers to the other nodes, and use theirs."""
        self._own = OwnServers(self.bus, running)
        self._own.placed = self.placed
        self._remote = RemoteServers(self.bus, running, self._own)
        own = self._own
        self.placed.announce = lambda key, entry: own.announce(key.key, entry)
        self.placed.sessions = lambda key: own.sessions_of(key.key)
        self.placed.open_link = self._remote.open_placed
        self.placed.join(running)
        running.dialins.on_stood = self._own.note
        running.on_configured = self._announce_configuration
        self._announce_configuration(running.configuration)
        self.bus.on_peers_changed(self._compare_configurations)
        running.dialins.on_forgotten = lambda server: self.bus.publish(FORGOTTEN, server.encode())
        self.bus.subscribe(FORGOTTEN, lambda _, server: _forget(running, server))
        if isinstance(running.journal, SharedJournal):
            running.journal.on_joined = self._announce_lease
            if running.journal.number is not None:
                self._announce_lease(running.journal.number)
            running.tasks.peers = RemoteTasks(self.bus, self.forwarder, running.tasks)
            SharedApprovals(self.bus, running)

    def _announce_lease(self, number: int) -> None:
        """Other nodes find by it who holds a task."""
        self._announced[LEASE] = str(number)
        self.bus.announce(self._announced)

    def _announce_configuration(self, configuration: Configuration) -> None:
        self._announced[CONFIGURATION] = msgspec.json.encode(digests_of(configuration)).decode()
        self.bus.announce(self._announced)
        self._compare_configurations()

    def _compare_configurations(self) -> None:
        """Find the nodes whose configuration differs from this one's, and log what has changed about that."""
        found: dict[str, tuple[str, ...]] = {}
        own = _digests_in(self._announced)
        for node, peer in sorted(self.bus.peers().items()):
            theirs = _digests_in(peer.attributes)
            if theirs:  # a node that starts, or one of an earlier version, has not said it
                tables = tuple(sorted(each for each in own | theirs if own.get(each) != theirs.get(each)))
                found |= {node: tables} if tables else {}
        for name, tables in found.items():
            if self._differences.get(name) != tables:
                log.warning("another node has another configuration", node=name, tables=tables)
        for name in (self._differences.keys() - found.keys()) & self.bus.peers().keys():
            log.info("another node has the same configuration again", node=name)
        self._differences = found

    def differences(self) -> Mapping[str, Sequence[str]]:
        """By node: the tables of its configuration that differ from this one's."""
        return self._differences

    def open_forwarder(self, running: RunningHub, auth: Authenticator, local_key: str) -> Forwarder:
        """Forward requests that belong to other nodes; ids of this node name it from now on."""
        lag_bytes = running.configuration.hub.limits.lag_bytes
        self._forwarder = Forwarder(self.bus, auth, running.background, lag_bytes, local_key)
        running.name_node(self._forwarder.prefix)
        return self._forwarder

    @property
    def forwarder(self) -> Forwarder:
        """What `open_forwarder` has opened."""
        assert self._forwarder is not None, "it is opened before the frontends"
        return self._forwarder

    def all_metrics(self, render: RenderMetrics) -> RenderMetrics:
        """Add the figures of the other workers of this machine. Other nodes have addresses of their own."""
        return render if self._settings.bus is None else WorkerMetrics(self.bus, render).render

    async def hand_over(self) -> None:
        """Shutting down soon: give the programs that this node runs for others to another node."""
        await self.placed.hand_over()

    def leave(self) -> None:
        """Shutting down: other nodes send no new calls; the running ones are still answered."""
        if self._own is not None:
            self._own.leave()

    async def wait_idle(self) -> None:
        """Return once the calls and requests of other nodes are answered."""
        if self._forwarder is not None:
            await self._forwarder.wait_idle()
        if self._own is not None:
            await self._own.wait_idle()

    def report(self) -> ClusterReport:
        """See `frontends.rest.http.ClusterReports`."""
        bus, state = self.bus, self.bus.state
        own = () if self._own is None else tuple(sorted(entry.name for entry in self._own.entries.values()))
        others = {} if self._remote is None else self._remote.owned()
        nodes = [NodeReport(bus.node, is_self=True, since=state.since, version=ME.version, servers=own)]
        for node, peer in sorted(bus.peers().items()):
            servers = tuple(sorted(others.get(node, ())))
            version = peer.attributes.get("version", "")
            differs = self._differences.get(node, ())
            nodes.append(NodeReport(node, False, peer.joined, version, servers, differs))
        shown = BusReport("connected" if state.is_connected else "away", state.since, state.reason)
        return ClusterReport(bus.node, shown, tuple(nodes))

    def cut_off(self) -> str | None:
        """Why this node does not reach the others; None if it does."""
        state = self.bus.state
        return None if state.is_connected else f"the bus is not connected: {state.reason or 'no reason is known'}"

    def _log_state(self, state: BusState) -> None:
        if state.is_connected:
            log.info("joined the cluster", node=self.bus.node, bus=self._settings.shown)
        else:
            log.warning("not in the cluster", node=self.bus.node, bus=self._settings.shown, reason=state.reason)

    async def aclose(self) -> None:
        """Leave the cluster."""
        if self._forwarder is not None:
            self._forwarder.close()
        if self._remote is not None:
            self._remote.close()
        await self.bus.aclose()


class WorkerMetrics:
    """The metrics of all workers of this machine, whichever of them is asked: they share one address."""

    def __init__(self, bus: Bus, render: RenderMetrics) -> None:
        self._bus = bus
        self._render = render
        bus.respond(METRICS, self._respond)

    async def render(self, *, is_open_metrics: bool) -> tuple[bytes, bytes]:
        """See `RenderMetrics`. A worker that does not answer in time is missing."""
        peers = list(self._bus.peers())
        (kind, own), *others = await asyncio.gather(
            self._render(is_open_metrics=is_open_metrics), *(self._request(peer, is_open_metrics) for peer in peers)
        )
        texts = {worker_of(self._bus.node): own}
        texts |= {worker_of(peer): text for peer, (_, text) in zip(peers, others, strict=True) if text}
        merged = await in_passes(merge_texts(dict(sorted(texts.items())), "worker"), sum(map(len, texts.values())))
        return kind, merged

    async def _request(self, peer: NodeId, is_open_metrics: bool) -> tuple[bytes, bytes]:  # noqa: FBT001 - of `render`
        try:
            packed = await self._bus.request(peer, METRICS, b"1" if is_open_metrics else b"", within=METRICS_SECONDS)
        except BusFault:
            return b"", b""
        return b"", zlib.decompress(packed)

    async def _respond(self, _node: NodeId, request: bytes) -> bytes:
        _, text = await self._render(is_open_metrics=bool(request))
        return zlib.compress(text, 1)


def worker_of(node: NodeId) -> str:
    """The number of a worker; see `app.workers.Worker.adapt`."""
    return node.rpartition("-")[2]


def _digests_in(attributes: Mapping[str, str]) -> dict[str, str]:
    """The digests of a node's configuration; empty if it has not announced any."""
    with suppress(msgspec.MsgspecError):
        return msgspec.json.decode(attributes.get(CONFIGURATION, "{}"), type=dict[str, str])
    return {}


def _forget(running: RunningHub, server: bytes) -> None:
    running.dialins.forget_here(ServerName(server.decode()))


class RemoteTasks:
    """Cancels tasks that other nodes hold, and those that this one holds for the others; see `core.ports.PeerTasks`."""

    def __init__(self, bus: Bus, forwarder: Forwarder, engine: TaskEngine) -> None:
        self._bus = bus
        self._forwarder = forwarder
        self._engine = engine
        bus.respond(TASKS, self._respond)

    async def cancel(self, node: str, owner: str, id: str, why: str) -> Fault | None:
        """See `PeerTasks`."""
        there = self._forwarder.node_of(node)
        if there is None:
            return TaskElsewhere(id)
        try:
            await self._bus.request(there, TASKS, msgspec.json.encode([owner, id, why]), within=CANCEL_SECONDS)
        except NodeAway:
            return TaskElsewhere(id)
        except NoResponse as fault:
            return NodeLost(str(fault), executed="unknown")
        return None

    async def _respond(self, _node: NodeId, request: bytes) -> bytes:
        owner, id, why = msgspec.json.decode(request, type=tuple[str, str, str])
        await self._engine.cancel_held(owner, id, why)
        return b""


class SharedApprovals:
    """Tells the other nodes which approvals have changed in the shared journal, and reads what they have changed.

    A message that is lost costs a delay: the versions in the journal decide, and a node that joins reads all.
    """

    def __init__(self, bus: Bus, running: RunningHub) -> None:
        self._bus = bus
        self._approvals = running.approvals
        self._background = running.background
        running.approvals.on_changed = self._publish
        bus.subscribe(APPROVALS, self._receive)
        bus.on_state_changed(self._state_changed)
        self._state_changed(bus.state)

    def _publish(self, owner: str, id: str) -> None:
        self._bus.publish(APPROVALS, msgspec.json.encode([owner, id]))

    def _receive(self, _node: NodeId, payload: bytes) -> None:
        owner, id = msgspec.json.decode(payload, type=tuple[str, str])
        self._spawn(self._approvals.refresh(owner, id))

    def _state_changed(self, state: BusState) -> None:
        if state.is_connected:
            self._spawn(self._approvals.load(is_foreign=True))

    def _spawn(self, reading: Coroutine[None, None, None]) -> None:
        with suppress(RuntimeError):  # the hub is closing
            self._background.spawn("approvals of other nodes", _logged(reading))


async def _logged(reading: Coroutine[None, None, None]) -> None:
    try:
        await reading
    except OSError as error:
        log.warning("approvals of other nodes cannot be read", reason=str(error))


async def _open_bus(settings: ClusterSettings, node: NodeId) -> Bus:
    if settings.bus is not None:
        from isthmus.cluster.unix import UnixBus  # noqa: PLC0415 - only workers need it

        return await UnixBus.start(Path(settings.bus), node)
    from isthmus.cluster.nats import NatsBus, NatsSettings  # noqa: PLC0415 - only who wants it has the library

    tls = None if settings.tls_ca is None else ssl.create_default_context(cafile=settings.tls_ca)
    credentials = None if settings.credentials is None else Path(settings.credentials)
    return await NatsBus.start(NatsSettings(settings.nats, credentials=credentials, tls=tls), node)
