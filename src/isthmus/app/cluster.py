"""This hub as a node of a cluster: opens the bus and gives it to the parts that speak to other nodes.

`app.serve` opens it before the hub and closes it before the hub's servers. The core does not know that there are nodes.
"""

from __future__ import annotations

import asyncio
import ssl
import time
import zlib
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import structlog

from isthmus.app.cluster_servers import OwnServers, RemoteServers
from isthmus.app.forwarding import LEASE, Forwarder
from isthmus.app.hub import RunningHub
from isthmus.app.links import ME
from isthmus.app.placement import PlacedServers
from isthmus.app.reload_diff import digests_of
from isthmus.app.shared_server_tasks import SharedServerTasks
from isthmus.app.shared_state import shared_secret
from isthmus.cluster.bus import Bus, BusFault, BusState, NodeAway, NodeId, NoResponse
from isthmus.cluster.settings import ClusterSettings
from isthmus.config.findings import ConfigError, Place
from isthmus.config.settings import Configuration
from isthmus.config.tables import CLUSTER
from isthmus.core.admin_ports import BusReport, ClusterReport, NodeReport
from isthmus.core.background import BackgroundTasks
from isthmus.core.event_loop import in_passes
from isthmus.core.journal import Document, SharedJournal
from isthmus.core.tasks.engine import TaskEngine
from isthmus.frontends.http.auth import Authenticator, FailedAuthLimit
from isthmus.frontends.http.health import RenderMetrics
from isthmus.frontends.relay.http import RelayHttp
from isthmus.model.fault_table import Fault, NodeLost, TaskElsewhere
from isthmus.model.features import Topic
from isthmus.model.names import ServerName
from isthmus.model.relay import RelayDevice
from isthmus.telemetry.call_metrics import merge_texts
from isthmus.upstream.dialin.link import PlacedLink

log = structlog.get_logger(__name__)

METRICS: Final = "metrics"
"""The service that renders the metrics of a worker."""

METRICS_SECONDS = 3.0

TASKS: Final = "tasks"
"""The service that cancels tasks."""

CONFIGURATION: Final = "configuration"
"""The attribute of a node with the digests of its configuration, as JSON."""

CONFIG_VERSION: Final = "configVersion"
"""The attribute of a node with the version of its configuration in the database."""

CONFIG_PROBLEM: Final = "configProblem"
"""The attribute of a node that does not use all of the newest configuration: why."""

PROBLEM_LENGTH_MAX = 500

HUB: Final = "hub"
"""The attribute of a node with the id of its hub."""

FORGOTTEN: Final = "forgotten"
"""The topic of dial-in servers that an operator has had forgotten."""

RESTARTED: Final = "restarted"
"""The topic of servers that an operator has restarted."""

LISTS: Final = "lists"
"""The topic of lists of configured servers that have changed. A server may announce that to one node only."""

ASKING: Final = "asking"
"""The topic of configured servers whose questions do not name their call: programs may not share a link to these."""

SESSION_ENDED: Final = "session-ended"
"""The topic of sessions that have ended: the node that runs a program has their processes."""

WRONG_KEY: Final = "wrong-key"
"""The topic of addresses that have sent a wrong key."""

SWITCH: Final = "switch"
"""The service that enables and disables servers."""

SWITCH_SECONDS = 5.0

APPROVALS: Final = "approvals"
"""The topic of approvals that have changed."""

APPROVALS_SECONDS = 2.0
"""How often approvals are read again, because messages about them may be lost."""

APPROVALS_SECONDS_MAX = 30.0
APPROVALS_PAUSE = 20
"""The pause is at least so many times what the last reading took: there may be ten thousand approvals."""

LIMITS: Final = "limits"
"""The topic of the running calls of tenants, which nodes count together."""

LOADS: Final = "member-loads"
"""The topic of the running calls of members of fleets that a node owns or runs."""

COUNTS_SECONDS = 1.0
"""How often counts are published."""

COUNTS_STALE_SECONDS = 4 * COUNTS_SECONDS
"""Counts of a node that are older do not count: their messages may be lost."""

COUNTED_MAX = 1000
"""Counts in one message: the highest ones."""

CONNECTIONS: Final = "connections"
"""The topic of how many sockets agents have at a node."""

CONNECTIONS_SECONDS = 2.0
"""How often all of them are published again: a node may join, and a message may be lost."""

CONNECTIONS_STALE_SECONDS = 4 * CONNECTIONS_SECONDS
"""Numbers that were not published for so long do not count."""

UNCOUNTED_SHARE = 16
"""A node does not publish an agent with fewer sockets than this part of `max_agent_connections`."""

BUDGETS: Final = "budgets"
"""The topic of counters of budgets that have changed."""

BUDGETS_AT_ONCE = 100
"""Counters in one message."""

DEVICES: Final = "devices"
"""The service that lists the relay devices of a node."""

DEVICES_SECONDS = 2.0
_DEVICES = msgspec.json.Decoder(tuple[RelayDevice, ...])

PING: Final = "ping"
"""The service that answers at once."""

PING_SECONDS = 1.0
"""How long a node may take to answer, before its lag is unknown."""

CANCEL_SECONDS = 5.0
"""How long another node may take to store that a task is cancelled."""


class Cluster:
    """The bus and everything that uses it. While the bus is away, the hub serves its own servers."""

    def __init__(self, bus: Bus, settings: ClusterSettings, secret: bytes) -> None:
        self.bus = bus
        self.secret = secret
        """See `shared_secret`."""
        self._settings = settings
        self._forwarder: Forwarder | None = None
        self._own: OwnServers | None = None
        self._remote: RemoteServers | None = None
        self._announced: dict[str, str] = {"version": ME.version}
        self._asking: set[ServerName] = set()
        """Servers that asked something here without naming the call."""
        self._differences: dict[str, tuple[str, ...]] = {}
        """By node: the tables of its configuration that differ from this one's."""
        self.placed = PlacedServers(bus, settings.lease_seconds)
        bus.on_state_changed(self._log_state)
        bus.respond(PING, lambda _node, payload: payload)
        self._log_state(bus.state)

    @classmethod
    async def open(cls, configuration: Configuration, port: int) -> Cluster:
        """Join the cluster under this node's name; NATS need not be there yet.

        Raises:
            ConfigError: a file that is needed for NATS cannot be used.
        """
        settings = configuration.cluster
        secret = await asyncio.to_thread(shared_secret, configuration)
        try:
            return cls(await _open_bus(settings, NodeId(settings.node_id(port))), settings, secret)
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
        self.placed.open_link, self.placed.can_move = self._remote.open_placed, self._remote.can_move
        self.placed.join(running)
        share_loads(self.bus, running, own)
        running.hub.levels.is_shared = True
        running.dialins.on_stood = self._own.server_changed
        running.dialins.asking = running.asking
        self._announced[HUB] = running.hub.id
        running.dialins.on_arriving, running.dialins.on_arrived = self._own.note_arriving, self._own.note_arrived
        running.on_configured = self._announce_configuration
        running.on_configuration_problem = self._announce_problem
        self._announce_problem(running.configuration_problem)
        self._announce_configuration(running.configuration)
        self.bus.on_peers_changed(self._compare_configurations)
        self.bus.on_peers_changed(lambda: self._note_hubs(running))
        self._note_hubs(running)
        running.dialins.on_forgotten = lambda server: self.bus.publish(FORGOTTEN, server.encode())
        self.bus.subscribe(FORGOTTEN, lambda _, server: _forget(running, server))
        running.on_restarted = lambda server: self.bus.publish(RESTARTED, server.encode())
        self.bus.subscribe(RESTARTED, lambda _, server: _restart(running, server))
        running.supervisor.on_lists_changed = partial(self._publish_lists, running)
        self.bus.subscribe(LISTS, lambda _, payload: _lists_changed(running, payload))
        running.supervisor.on_asked = self._note_asking
        self.bus.subscribe(ASKING, lambda _, payload: _note_callers_elsewhere(running, payload))
        self.bus.on_peers_changed(self._publish_asking)
        running.hub.on_session_ended = partial(self._publish_session_end, running)
        self.bus.subscribe(SESSION_ENDED, lambda _, session: running.hub.session_ended_here(session.decode()))
        running.on_switched = self._switch_others
        self.bus.respond(SWITCH, partial(_switch, running))
        if isinstance(running.journal, SharedJournal):
            running.journal.on_joined = self._announce_lease
            if running.journal.number is not None:
                self._announce_lease(running.journal.number)
            running.tasks.peers = RemoteTasks(self.bus, self.forwarder, running.tasks)
            SharedApprovals(self.bus, running)
            SharedBudgets(self.bus, running)

    def _note_hubs(self, running: RunningHub) -> None:
        """Behind a load balancer, a server that is another node is this hub itself."""
        ids = {peer.attributes.get(HUB, "") for peer in self.bus.peers().values()}
        running.hub.other_ids = ids - {""}

    def _publish_lists(self, running: RunningHub, server: ServerName, topics: Sequence[str]) -> None:
        reconnector = running.supervisor.reconnectors.get(server)
        if reconnector is not None and isinstance(reconnector.active_link, PlacedLink):
            return  # the node that runs the program tells all
        self.bus.publish(LISTS, msgspec.json.encode([server, topics]))

    def _note_asking(self, server: ServerName) -> None:
        self._asking.add(server)
        self._publish_asking()

    def _publish_asking(self) -> None:
        """Also when a node joins. A name that has been removed since changes nothing there."""
        if self._asking:
            self.bus.publish(ASKING, msgspec.json.encode(sorted(self._asking)))

    def _publish_session_end(self, running: RunningHub, session: str) -> None:
        if any(server.owners for server in running.configuration.servers):
            self.bus.publish(SESSION_ENDED, session.encode())

    async def _switch_others(self, server: ServerName, is_on: bool) -> None:  # noqa: FBT001 - a callback
        """Enable or disable a server at all other nodes. One that is not reached has another configuration then."""
        payload = msgspec.json.encode([server, is_on])

        async def switch(node: NodeId) -> None:
            try:
                await self.bus.request(node, SWITCH, payload, within=SWITCH_SECONDS)
            except BusFault as fault:
                log.warning("a server was not switched at another node", server=server, node=node, reason=str(fault))

        await asyncio.gather(*map(switch, self.bus.peers()))

    def share_devices(self, relay: RelayHttp, running: RunningHub) -> None:
        """Show the relay devices of all nodes at each of them, and count the sockets of agents together."""
        SharedConnections(self.bus, relay, running)
        if self._remote is not None:
            relay.patience.ask_nodes = self._remote.ask

        async def respond(_node: NodeId, _request: bytes) -> bytes:
            return msgspec.json.encode(relay.devices())

        async def devices_of(node: NodeId) -> tuple[RelayDevice, ...]:
            try:
                return _DEVICES.decode(await self.bus.request(node, DEVICES, b"", within=DEVICES_SECONDS))
            except BusFault:  # those of a node that does not answer are missing
                return ()

        async def elsewhere() -> list[RelayDevice]:
            found = await asyncio.gather(*map(devices_of, self.bus.peers()))
            return [device for each in found for device in each]

        self.bus.respond(DEVICES, respond)
        relay.devices_elsewhere = elsewhere

    def _announce_lease(self, number: int) -> None:
        """Other nodes find by it who holds a task."""
        self._announced[LEASE] = str(number)
        self.bus.announce(self._announced)

    def _announce_configuration(self, configuration: Configuration) -> None:
        self._announced[CONFIGURATION] = msgspec.json.encode(digests_of(configuration)).decode()
        if configuration.version is not None:
            self._announced[CONFIG_VERSION] = str(configuration.version)
        self.bus.announce(self._announced)
        self._compare_configurations()

    def _announce_problem(self, problem: str) -> None:
        self._announced[CONFIG_PROBLEM] = problem[:PROBLEM_LENGTH_MAX]
        self.bus.announce(self._announced)

    def _compare_configurations(self) -> None:
        """Find the nodes whose configuration differs from this one's, and log what has changed about that."""
        found: dict[str, tuple[str, ...]] = {}
        own = _digests_in(self._announced)
        for node, peer in sorted(self.bus.peers().items()):
            theirs = _digests_in(peer.attributes)
            # A node that starts, or one of an earlier version, has not said it.
            differing = sorted(each for each in own | theirs if own.get(each) != theirs.get(each)) if theirs else []
            if not is_supported_skew(ME.version, peer.attributes.get("version", "")):
                differing.append("version")
            found |= {node: tuple(differing)} if differing else {}
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
        limit = auth.failed_auth_limit
        limit.on_failed = lambda address: self.bus.publish(WRONG_KEY, address.encode())
        self.bus.subscribe(WRONG_KEY, lambda _, address: _note_wrong_key(limit, address))
        running.name_node(self._forwarder.prefix)
        share_tenants(self.bus, running)
        SharedServerTasks(self.bus, running)
        return self._forwarder

    @property
    def forwarder(self) -> Forwarder:
        """What `open_forwarder` has opened."""
        assert self._forwarder is not None, "it is opened before the frontends"
        return self._forwarder

    def all_metrics(self, render: RenderMetrics) -> RenderMetrics:
        """Add the figures of the other workers of this machine. Other nodes have addresses of their own."""
        return render if self._settings.bus is None else WorkerMetrics(self.bus, render).render

    async def settle(self) -> None:
        """Starting: return when this node has the servers of the others, so that its first callers find them."""
        if self._remote is not None:
            await self._remote.settle()

    async def hand_over(self) -> None:
        """Shutting down soon: give the servers that this node owns, and the programs that it runs, to other nodes."""
        moving = () if self._remote is None or not self.bus.peers() else (self._remote.move_own(),)
        await asyncio.gather(self.placed.hand_over(), *moving)

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

    async def report(self) -> ClusterReport:
        """See `core.admin_ports.ClusterReports`."""
        asked = list(self.bus.peers())
        silences = {node: self.bus.silence_of(node) for node in asked}  # before each answers a request
        lags = dict(zip(asked, await asyncio.gather(*map(self._lag_of, asked)), strict=True))
        bus, state = self.bus, self.bus.state
        own = () if self._own is None else self._own.names()
        others = {} if self._remote is None else self._remote.owned()
        found = _config_in(self._announced)
        nodes = [NodeReport(bus.node, True, state.since, ME.version, own, (), *found, str(bus.epoch))]
        for node, peer in sorted(bus.peers().items()):
            servers = tuple(sorted(others.get(node, ())))
            version = peer.attributes.get("version", "")
            differs = self._differences.get(node, ())
            found, epoch = _config_in(peer.attributes), str(peer.epoch)
            silence, lag = silences.get(node), lags.get(node)
            nodes.append(NodeReport(node, False, peer.joined, version, servers, differs, *found, epoch, silence, lag))
        shown = BusReport("connected" if state.is_connected else "away", state.since, state.reason)
        return ClusterReport(bus.node, shown, tuple(nodes))

    async def _lag_of(self, node: NodeId) -> float | None:
        began = time.monotonic()
        try:
            await self.bus.request(node, PING, b"", within=PING_SECONDS)
        except BusFault:  # it has gone, stands still, or is of a version that does not know the service
            return None
        return time.monotonic() - began

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


def is_supported_skew(one: str, other: str) -> bool:
    """Whether nodes of these versions may work together: at most one minor version apart. An unknown one may."""
    try:
        (major, minor), (other_major, other_minor) = (tuple(map(int, each.split(".")[:2])) for each in (one, other))
    except ValueError:
        return True
    return major == other_major and abs(minor - other_minor) <= 1


def _config_in(attributes: Mapping[str, str]) -> tuple[int | None, str]:
    """The version of a node's configuration, and why it does not use all of the newest one."""
    number = attributes.get(CONFIG_VERSION, "")
    return int(number) if number.isdecimal() else None, attributes.get(CONFIG_PROBLEM, "")


def _note_wrong_key(limit: FailedAuthLimit, address: bytes) -> None:
    limit.count(address.decode())


def _restart(running: RunningHub, server: bytes) -> None:
    running.supervisor.restart(ServerName(server.decode()))


def _lists_changed(running: RunningHub, payload: bytes) -> None:
    server, topics = msgspec.json.decode(payload, type=tuple[str, tuple[Topic, ...]])
    reconnector = running.supervisor.reconnectors.get(ServerName(server))
    if reconnector is not None:
        reconnector.lists_changed(topics)


def _note_callers_elsewhere(running: RunningHub, payload: bytes) -> None:
    for server in msgspec.json.decode(payload, type=list[str]):
        if (reconnector := running.supervisor.reconnectors.get(ServerName(server))) is not None:
            reconnector.note_callers_elsewhere()


async def _switch(running: RunningHub, node: NodeId, payload: bytes) -> bytes:
    server, is_on = msgspec.json.decode(payload, type=tuple[str, bool])
    await running.switch_here(ServerName(server), is_on=is_on, node=node)
    return b""


def _forget(running: RunningHub, server: bytes) -> None:
    running.dialins.forget_here(ServerName(server.decode()))


class RemoteTasks:
    """Cancels tasks that other nodes hold, and those that this one holds for others; see `core.journal.PeerTasks`."""

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


class SharedCounts:
    """Tells other nodes once a second how many calls something has here, and adds theirs up.

    Nothing of it is on the path of a call, so what happens within a second is not seen elsewhere in time.
    """

    def __init__(
        self,
        bus: Bus,
        background: BackgroundTasks,
        topic: str,
        count: Callable[[], Mapping[str, int]],
        apply: Callable[[Mapping[str, int]], None],
    ) -> None:
        """`count` returns the counts of this node, and `apply` is called with those of the others together."""
        self._bus = bus
        self._topic = topic
        self._count = count
        self._apply = apply
        self._clock = asyncio.get_running_loop().time
        self._seen: dict[NodeId, tuple[float, dict[str, int]]] = {}
        """By node: when it published its counts, and these."""
        bus.subscribe(topic, self._receive)
        background.spawn(f"shared {topic}", self._publish_for_ever())

    async def _publish_for_ever(self) -> None:
        had_any = False
        while True:
            await asyncio.sleep(COUNTS_SECONDS)
            self._drop_stale()
            counts = self._count()
            if self._bus.peers() and (counts or had_any):
                most = dict(sorted(counts.items(), key=lambda each: -each[1])[:COUNTED_MAX])
                self._bus.publish(self._topic, msgspec.json.encode(most))
            had_any = bool(counts)

    def _receive(self, node: NodeId, payload: bytes) -> None:
        self._seen[node] = self._clock(), msgspec.json.decode(payload, type=dict[str, int])
        self._sum()

    def _drop_stale(self) -> None:
        oldest = self._clock() - COUNTS_STALE_SECONDS
        if stale := [node for node, (at, _) in self._seen.items() if at < oldest]:
            for node in stale:
                del self._seen[node]
            self._sum()

    def _sum(self) -> None:
        total: Counter[str] = Counter()
        for _, counts in self._seen.values():
            total.update(counts)
        self._apply(dict(total))


def share_tenants(bus: Bus, running: RunningHub) -> None:
    """Count the running calls of tenants together."""
    tenants = running.hub.tenants

    def apply(counts: Mapping[str, int]) -> None:
        tenants.elsewhere = counts

    SharedCounts(bus, running.background, LIMITS, tenants.counts, apply)


def share_loads(bus: Bus, running: RunningHub, own: OwnServers) -> None:
    """Let fleets know how busy members are that other nodes own or run: their queues have the calls of all nodes."""
    hub = running.hub

    def count() -> dict[str, int]:
        if hub.fleets is None:
            return {}
        members = hub.fleets.members() & {ServerName(entry.name) for entry in own.entries.values()}
        found = {member: hub.server_queues[member] for member in members if member in hub.server_queues}
        return {member: queue.running + queue.queued for member, queue in found.items() if queue.running}

    def apply(counts: Mapping[str, int]) -> None:
        if hub.fleets is not None:
            hub.fleets.calls_elsewhere = counts

    SharedCounts(bus, running.background, LOADS, count, apply)


class SharedConnections:
    """Tells other nodes how many sockets each agent has here, and counts theirs (`max_agent_connections`).

    Agents with few sockets here are left out: nearly all have one or two, and there may be very many. Changes are
    published at once, and all numbers every two seconds: a message may be lost, and a node that joins listens later
    than the others see it.
    """

    def __init__(self, bus: Bus, relay: RelayHttp, running: RunningHub) -> None:
        self._bus = bus
        self._relay = relay
        self._running = running
        self._published: dict[str, int] = {}
        self._due: dict[str, None] = {}
        self._clock = asyncio.get_running_loop().time
        self._seen: dict[NodeId, dict[str, tuple[int, float]]] = {}
        """By node and agent: the number of sockets, and when it was received."""
        self._epochs = self._lives()
        relay.on_counted = running.dialins.on_counted = self._count
        bus.subscribe(CONNECTIONS, self._receive)
        bus.on_peers_changed(self._peers_changed)
        running.background.spawn("shared connections", self._publish_for_ever())

    async def _publish_for_ever(self) -> None:
        while True:
            await asyncio.sleep(CONNECTIONS_SECONDS)
            self._drop_stale()
            if self._bus.peers():
                self._send(self._published)

    def _count(self, agent: str) -> None:
        """An agent has one socket more or less: publish that with the others of this turn of the event loop."""
        if not self._due:
            asyncio.get_running_loop().call_soon(self._publish)
        self._due[agent] = None

    def _publish(self) -> None:
        due, self._due = self._due, {}
        least = self._running.configuration.relay.dialin.max_agent_connections // UNCOUNTED_SHARE
        changed: dict[str, int] = {}
        for agent in due:
            count = self._running.dialins.connections_of(agent) + self._relay.devices_of(agent)
            count = count if count >= max(least, 1) else 0
            if count != self._published.get(agent, 0):
                changed[agent] = self._published[agent] = count
                if not count:
                    del self._published[agent]
        if changed:
            self._send(changed)

    def _send(self, counts: dict[str, int]) -> None:
        agents = list(counts)
        for at in range(0, len(agents), COUNTED_MAX):
            some = {agent: counts[agent] for agent in agents[at : at + COUNTED_MAX]}
            self._bus.publish(CONNECTIONS, msgspec.json.encode(some))

    def _receive(self, node: NodeId, payload: bytes) -> None:
        seen, now = self._seen.setdefault(node, {}), self._clock()
        for agent, count in msgspec.json.decode(payload, type=dict[str, int]).items():
            if count:
                seen[agent] = count, now
            else:
                seen.pop(agent, None)
        self._sum()

    def _drop_stale(self) -> None:
        oldest = self._clock() - CONNECTIONS_STALE_SECONDS
        stale = [(node, agent) for node, seen in self._seen.items() for agent, (_, at) in seen.items() if at < oldest]
        for node, agent in stale:
            del self._seen[node][agent]
        if stale:
            self._sum()

    def _lives(self) -> dict[NodeId, int]:
        return {node: peer.epoch for node, peer in self._bus.peers().items()}

    def _peers_changed(self) -> None:
        """A new life of a node knows nothing of this one; the sockets of one that has ended are closed."""
        before, self._epochs = self._epochs, self._lives()
        if self._epochs.items() - before.items():
            self._send(self._published)
        for node, _ in before.items() - self._epochs.items():
            self._seen.pop(node, None)
        self._sum()

    def _sum(self) -> None:
        total: Counter[str] = Counter()
        for seen in self._seen.values():
            for agent, (count, _) in seen.items():
                total[agent] += count
        self._relay.connections_elsewhere = total


class SharedApprovals:
    """Tells the other nodes which approvals have changed in the shared journal, and reads what they have changed.

    A message that is lost costs a delay, as it does while a node is cut off from the others: each node reads all
    approvals again every two seconds, and when it joins. The versions in the journal decide.
    """

    def __init__(self, bus: Bus, running: RunningHub) -> None:
        self._bus = bus
        self._approvals = running.approvals
        self._background = running.background
        self._is_due = asyncio.Event()
        self._read: asyncio.Future[None] | None = None
        """Done when all were read that are stored now."""
        running.approvals.on_changed = self._publish
        running.approvals.look_again = self._look_again
        bus.subscribe(APPROVALS, self._receive)
        bus.on_state_changed(self._state_changed)
        self._state_changed(bus.state)
        self._background.spawn("approvals", self._reread_for_ever())

    async def _reread_for_ever(self) -> None:
        clock, pause, is_readable = asyncio.get_running_loop().time, APPROVALS_SECONDS, True
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._is_due.wait()
            may_have_some = self._approvals.rules or len(self._approvals) or not is_readable
            if not may_have_some and not self._is_due.is_set():
                continue
            self._is_due.clear()
            read, self._read = self._read, None
            began = clock()
            try:
                await self._approvals.reread()
            except OSError as error:
                if is_readable:
                    log.warning("approvals of other nodes cannot be read", reason=str(error))
                pause, is_readable = APPROVALS_SECONDS, False
            else:
                took = clock() - began
                pause, is_readable = min(max(APPROVALS_SECONDS, APPROVALS_PAUSE * took), APPROVALS_SECONDS_MAX), True
            if read is not None:
                read.set_result(None)

    async def _look_again(self) -> None:
        """An operator decides about an approval of which this node has not heard yet."""
        self._read = self._read or asyncio.get_running_loop().create_future()
        self._is_due.set()
        await asyncio.wait({self._read}, timeout=APPROVALS_SECONDS)

    def _publish(self, owner: str, id: str) -> None:
        self._bus.publish(APPROVALS, msgspec.json.encode([owner, id]))

    def _receive(self, _node: NodeId, payload: bytes) -> None:
        owner, id = msgspec.json.decode(payload, type=tuple[str, str])
        with suppress(RuntimeError):  # the hub is closing
            self._background.spawn("approvals of other nodes", _logged(self._approvals.refresh(owner, id)))

    def _state_changed(self, state: BusState) -> None:
        if state.is_connected:
            self._is_due.set()


class SharedBudgets:
    """Sends counters of budgets to the other nodes when they are in the shared journal.

    So each node shows what all have counted. A message that is lost costs only that: the journal decides which calls
    have room.
    """

    def __init__(self, bus: Bus, running: RunningHub) -> None:
        self._bus = bus
        self._budgets = running.budgets
        running.budgets.on_written = self._publish
        bus.subscribe(BUDGETS, self._receive)

    def _publish(self, documents: Sequence[Document]) -> None:
        for at in range(0, len(documents), BUDGETS_AT_ONCE):
            self._bus.publish(BUDGETS, msgspec.msgpack.encode(documents[at : at + BUDGETS_AT_ONCE]))

    def _receive(self, _node: NodeId, payload: bytes) -> None:
        self._budgets.receive(msgspec.msgpack.decode(payload, type=list[Document]))


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

    credentials = None if settings.credentials is None else Path(settings.credentials)
    return await NatsBus.start(NatsSettings(settings.nats, credentials=credentials, tls=_tls_of(settings)), node)


def _tls_of(settings: ClusterSettings) -> ssl.SSLContext | None:
    """Raises: OSError or ValueError if a file cannot be used."""
    if settings.tls_ca is None and settings.tls_cert is None:
        return None
    context = ssl.create_default_context(cafile=settings.tls_ca)
    if settings.tls_cert is not None:
        try:
            # Without a password, OpenSSL would ask the terminal for one.
            context.load_cert_chain(settings.tls_cert, settings.tls_key, password="")
        except OSError as error:  # it does not name the file
            files = settings.tls_cert if settings.tls_key is None else f"{settings.tls_cert}, {settings.tls_key}"
            raise ValueError(f"the certificate and its key ({files}): {error}") from error
    return context
