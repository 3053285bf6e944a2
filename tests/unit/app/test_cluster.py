"""Messages between nodes, over buses that lose some."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from types import SimpleNamespace
from typing import cast

import pytest

from isthmus.app import cluster as module
from isthmus.app.cluster import SharedApprovals, SharedConnections
from isthmus.app.hub import RunningHub
from isthmus.cluster.bus import Bus, BusState, NodeId, PeerNode, Subscriber
from isthmus.core.access.approval_rules import ApprovalRule
from isthmus.core.background import BackgroundTasks
from isthmus.core.journal import Document
from isthmus.frontends.relay.http import RelayHttp
from isthmus.model.fault_table import ApprovalDenied
from isthmus.storage.memory import MemoryJournal
from tests.unit.core.calls.test_approvals import OPERATOR, PAY, Held, fault_of
from tests.unit.core.doubles import DONE, call
from tests.unit.upstream.dialin.scene import until

# -- approvals ---------------------------------------------------------------------------------------------------------


class DeafBus:
    """A node that is cut off from the others: it loses whatever it sends."""

    def __init__(self) -> None:
        self.state = BusState(is_connected=False, since=0.0)
        self.change: Callable[[BusState], None] = lambda _state: None

    def publish(self, topic: str, payload: bytes) -> None: ...

    def subscribe(self, topic: str, receive: Subscriber) -> None: ...

    def on_state_changed(self, changed: Callable[[BusState], None]) -> None:
        self.change = changed


class CountingJournal(MemoryJournal):
    """Counts how often all are read, and fails as often as it should."""

    def __init__(self) -> None:
        super().__init__()
        self.readings = self.failures = 0

    async def all_in(
        self, kind: str, states: Collection[str], *, limit: int, after: Document | None = None
    ) -> list[Document]:
        self.readings += 1
        if self.failures:
            self.failures -= 1
            raise OSError("the database is away")
        return await super().all_in(kind, states, limit=limit, after=after)


@pytest.fixture
async def background(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[BackgroundTasks]:
    monkeypatch.setattr(module, "APPROVALS_SECONDS", 0.001)
    monkeypatch.setattr(module, "CONNECTIONS_SECONDS", 0.001)
    monkeypatch.setattr(module, "CONNECTIONS_STALE_SECONDS", 0.1)
    tasks = BackgroundTasks("test")
    yield tasks
    await tasks.aclose()


def shared(background: BackgroundTasks, stage: Held) -> DeafBus:
    bus = DeafBus()
    running = SimpleNamespace(approvals=stage.approvals, background=background)
    SharedApprovals(cast("Bus", bus), cast("RunningHub", running))
    return bus


async def test_a_decision_of_a_node_that_is_cut_off_counts_at_the_others(background: BackgroundTasks) -> None:
    journal = CountingJournal()
    a, b = Held(journal=journal), Held(journal=journal)
    shared(background, a)
    shared(background, b)
    id, listener = await a.ask()
    await until(lambda: b.approvals.get(OPERATOR, id) is not None)
    journal.failures = 3
    await b.decide(id, "allow_hour")
    await until(lambda: len(a.link.sent) == 1)
    a.link.sent[0].finish(DONE)
    assert listener.ends == [DONE]
    await b.decide(id, "deny")
    await until(lambda: [each.state for each in a.approvals.list(OPERATOR).approvals] == ["denied"])
    _, refused = a.start(call(arguments=PAY))
    fault_of(refused, ApprovalDenied)


async def test_a_node_without_rules_and_approvals_reads_only_when_it_has_joined(background: BackgroundTasks) -> None:
    journal = CountingJournal()
    stage, other = Held(journal=journal), Held(journal=journal)
    stage.approvals.change(())
    bus = shared(background, stage)
    shared(background, Held(journal=(clock := CountingJournal())))
    await until(lambda: clock.readings > 3)
    assert journal.readings == 0
    bus.change(BusState(is_connected=True, since=0.0))
    await until(lambda: journal.readings > 0)
    before = journal.readings
    id, _ = await other.ask()
    stage.approvals.change((ApprovalRule("all", ("*",)),))
    await until(lambda: stage.approvals.get(OPERATOR, id) is not None)
    assert journal.readings > before


# -- sockets of agents -------------------------------------------------------------------------------------------------


class Wire:
    """Carries what nodes publish, unless the test cuts it."""

    def __init__(self) -> None:
        self.buses: list[NodeBus] = []
        self.is_cut = False


class NodeBus:
    """One life of a node."""

    def __init__(self, wire: Wire, node: str, epoch: int) -> None:
        self.node, self.epoch = NodeId(node), epoch
        self.receive: Subscriber | None = None
        self.peers_changed: Callable[[], None] = lambda: None
        self._wire = wire
        others = [bus for bus in wire.buses if bus.node != node]
        wire.buses[:] = [*others, self]
        for bus in others:
            bus.peers_changed()

    def peers(self) -> Mapping[NodeId, PeerNode]:
        others = (bus for bus in self._wire.buses if bus.node != self.node)
        return {bus.node: PeerNode(bus.node, bus.epoch, 0.0, {}) for bus in others}

    def on_peers_changed(self, changed: Callable[[], None]) -> None:
        self.peers_changed = changed

    def subscribe(self, topic: str, receive: Subscriber) -> None:
        self.receive = receive

    def publish(self, topic: str, payload: bytes) -> None:
        if self._wire.is_cut or self not in self._wire.buses:
            return
        for bus in self._wire.buses:
            if bus is not self and bus.receive is not None:
                bus.receive(self.node, payload)


class Agents:
    """How many sockets agents have at a node, and what it knows of the other nodes."""

    def __init__(self, background: BackgroundTasks, bus: NodeBus, **counts: int) -> None:
        self.counts: dict[str, int] = {}
        dialins = SimpleNamespace(connections_of=lambda agent: self.counts.get(agent, 0), on_counted=None)
        dialin = SimpleNamespace(max_agent_connections=64)
        configuration = SimpleNamespace(relay=SimpleNamespace(dialin=dialin))
        running = SimpleNamespace(dialins=dialins, configuration=configuration, background=background)
        self.relay = SimpleNamespace(devices_of=lambda _agent: 0, on_counted=None, connections_elsewhere={})
        SharedConnections(cast("Bus", bus), cast("RelayHttp", self.relay), cast("RunningHub", running))
        self.count(**counts)

    def count(self, **counts: int) -> None:
        self.counts |= counts
        for agent in counts:
            self.relay.on_counted(agent)

    @property
    def elsewhere(self) -> Mapping[str, int]:
        return cast("Mapping[str, int]", self.relay.connections_elsewhere)


async def test_a_node_that_joins_later_counts_the_sockets_that_agents_have_elsewhere(
    background: BackgroundTasks,
) -> None:
    wire = Wire()
    Agents(background, NodeBus(wire, "a", 1), robot=60, other=1)
    await asyncio.sleep(0)  # it publishes its numbers
    joining = NodeBus(wire, "b", 1)  # the others publish now, and it does not listen yet
    b = Agents(background, joining)
    await until(lambda: b.elsewhere == {"robot": 60})


async def test_sockets_of_an_earlier_life_of_a_node_do_not_count(background: BackgroundTasks) -> None:
    wire = Wire()
    b = Agents(background, NodeBus(wire, "b", 1))
    Agents(background, NodeBus(wire, "a", 1), robot=60)
    await until(lambda: b.elsewhere == {"robot": 60})
    NodeBus(wire, "a", 2)
    assert b.elsewhere == {}


async def test_a_change_of_sockets_is_published_at_once_and_a_lost_one_is_repaired(background: BackgroundTasks) -> None:
    wire = Wire()
    a, b = Agents(background, NodeBus(wire, "a", 1)), Agents(background, NodeBus(wire, "b", 1))
    a.count(robot=60, other=30)
    await asyncio.sleep(0)
    assert b.elsewhere == {"robot": 60, "other": 30}
    wire.is_cut = True
    a.count(robot=0, other=31)
    await asyncio.sleep(0)
    wire.is_cut = False
    await until(lambda: b.elsewhere == {"other": 31})
