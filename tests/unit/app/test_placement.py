"""Which node runs a program, as one node decides it: when it leaves, loses its lease, or a write is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from isthmus.app import placement as module
from isthmus.app.hub import RunningHub
from isthmus.app.placement import PlacedServers
from isthmus.app.task_takeovers import FREE, OWNED, PLACED
from isthmus.cluster.bus import Bus, BusState, NodeId, Subscriber
from isthmus.core.audit import Fact
from isthmus.core.background import BackgroundTasks
from isthmus.core.journal import HERE, Document, OnWritten
from isthmus.model.names import ServerName
from isthmus.storage.memory import MemoryJournal
from isthmus.upstream.base_link import BaseLink
from isthmus.upstream.server_settings import ServerSettings, StdioSettings
from tests.unit.upstream.dialin.scene import until

A, B = NodeId("a"), NodeId("b")
QUICK = ServerName("quick")


class PairBus:
    """Node a, which sees node b."""

    def __init__(self) -> None:
        self.node = A
        self.state = BusState(is_connected=True, since=0.0)
        self.others: dict[NodeId, Any] = {B: None}

    def peers(self) -> dict[NodeId, Any]:
        return self.others

    def publish(self, topic: str, payload: bytes) -> None: ...

    def subscribe(self, topic: str, receive: Subscriber) -> None: ...


class LeaseJournal(MemoryJournal):
    """A shared journal whose lease and results the test decides."""

    def __init__(self) -> None:
        super().__init__()
        self.inherited = asyncio.Event()
        self.on_lost: Callable[[], None] = lambda: None
        self.on_joined: Callable[[int], None] = lambda _: None
        self.number: int | None = 1
        self.is_held = True
        self.nodes = 1
        self.refusals = 0
        """How many of the next writes are refused."""

    async def inherit(self) -> list[Document]:
        return []

    async def read(self, kind: str, owner: str, id: str) -> Document | None:
        found = await super().read(kind, owner, id)
        return found and msgspec.structs.replace(found, holder=HERE if found.state == OWNED else "")

    def write(self, documents: Sequence[Document], done: OnWritten, facts: Sequence[Fact] = ()) -> None:
        if self.refusals:
            self.refusals -= 1
            asyncio.get_running_loop().call_soon(done, "refused")
            return
        super().write(documents, done, facts)

    async def state(self) -> str | None:
        found = await self.read(PLACED, "", f"{QUICK}/0")
        return None if found is None else found.state


class ProgramLink:
    """A link to a program of this node."""

    def __init__(self) -> None:
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.fence: Callable[[], str | None] = lambda: None

    async def aclose(self) -> None: ...


class ProgramNode:
    """Node a with one placed program."""

    def __init__(self, background: BackgroundTasks) -> None:
        self.settings = ServerSettings(QUICK, StdioSettings("true"), placement="one")
        self.servers: tuple[ServerSettings, ...] = (self.settings,)
        self.looks = 0
        self.journal = LeaseJournal()
        self.reconnector = SimpleNamespace(active_link=None, server_status=SimpleNamespace(state="ready", reason=""))
        supervisor = SimpleNamespace(reconnectors={QUICK: self.reconnector}, move=lambda _settings: None)
        running = SimpleNamespace(journal=self.journal, background=background, supervisor=supervisor)
        running.hub, running.asking = SimpleNamespace(server_queues={}), frozenset
        node = self

        class Running(SimpleNamespace):
            @property
            def configuration(self) -> SimpleNamespace:
                node.looks += 1
                return SimpleNamespace(servers=node.servers)

        self.bus = PairBus()
        self.placed = PlacedServers(cast("Bus", self.bus), 10.0)
        self.placed.join(cast("RunningHub", Running(**vars(running))))

    async def connect(self) -> BaseLink:
        """Run the program here, as its reconnector does."""

        async def start() -> BaseLink:
            return cast("BaseLink", ProgramLink())

        link = await self.placed.connect(self.settings, start)
        self.reconnector.active_link = link
        await self.looked()
        return link

    async def looked(self) -> None:
        """Return once the node has looked at all its programs again."""
        seen = self.looks
        await until(lambda: self.looks > seen + 2)


@pytest.fixture
async def background(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[BackgroundTasks]:
    for name in ("LOOK_SECONDS", "SETTLE_SECONDS", "RANK_SECONDS"):
        monkeypatch.setattr(module, name, 0.001)
    tasks = BackgroundTasks("test")
    yield tasks
    await tasks.aclose()


async def reaches(state: Callable[[], Awaitable[str | None]], wanted: str) -> None:
    async with asyncio.timeout(10.0):
        while await state() != wanted:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)


async def test_a_leaving_node_without_programs_takes_none(background: BackgroundTasks) -> None:
    node = ProgramNode(background)
    await node.placed.hand_over()
    waiting = asyncio.ensure_future(node.connect())
    await asyncio.sleep(0)
    await node.looked()
    await node.looked()
    assert await node.journal.state() is None
    waiting.cancel()


async def test_a_leaving_node_waits_until_another_one_runs_its_program(background: BackgroundTasks) -> None:
    node = ProgramNode(background)
    await node.connect()
    assert await node.journal.state() == OWNED
    leaving = asyncio.ensure_future(node.placed.hand_over())
    await reaches(node.journal.state, FREE)
    await node.looked()
    assert not leaving.done()
    node.reconnector.active_link = None
    await leaving


async def test_a_leaving_node_waits_no_longer_when_no_other_node_can_run_its_program(
    background: BackgroundTasks,
) -> None:
    node = ProgramNode(background)
    await node.connect()
    leaving = asyncio.ensure_future(node.placed.hand_over())
    await reaches(node.journal.state, FREE)
    await node.looked()
    assert not leaving.done()
    node.bus.others = {}
    await asyncio.wait_for(leaving, 10.0)


async def test_a_lease_that_ends_during_the_handover_ends_the_handover(background: BackgroundTasks) -> None:
    node = ProgramNode(background)
    await node.connect()
    leaving = asyncio.ensure_future(node.placed.hand_over())
    await reaches(node.journal.state, FREE)
    await node.looked()
    node.journal.is_held = False
    # At once: the handover must see a program that was stopped before it looked.
    await node.placed._check(node.placed._placed[QUICK])
    await asyncio.wait_for(leaving, 10.0)


async def test_a_leaving_node_frees_its_program_although_a_write_was_refused(background: BackgroundTasks) -> None:
    node = ProgramNode(background)
    await node.connect()
    node.journal.refusals = 2
    leaving = asyncio.ensure_future(node.placed.hand_over())
    await reaches(node.journal.state, FREE)
    node.reconnector.active_link = None
    await leaving


async def test_a_program_that_is_placed_no_longer_is_freed_although_a_write_was_refused(
    background: BackgroundTasks,
) -> None:
    node = ProgramNode(background)
    await node.connect()
    node.journal.refusals = 2
    node.servers = ()
    await reaches(node.journal.state, FREE)
