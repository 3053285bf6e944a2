"""Directories of other nodes and the links to their servers, without a bus between processes."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from isthmus.app import cluster_servers as module
from isthmus.app.cluster_servers import (
    KEYS_AT_ONCE_MAX,
    DirectoryChange,
    OwnServers,
    OwnSession,
    PeerDirectory,
    RemoteServers,
)
from isthmus.app.hub import RunningHub
from isthmus.cluster.bus import Bus, BusChannel, ChannelReceiver, NodeId
from isthmus.core.background import BackgroundTasks
from isthmus.core.settings import Limits
from isthmus.upstream.dialin.link import DialInLink, NodeServer
from tests.unit.upstream.dialin.scene import until

A, B = NodeId("a"), NodeId("b")
LAMP = NodeServer("kitchen", "", "lamp", "kitchen_lamp", is_named=True, came=1.0)


class End:
    """One end of a channel that the test uses as the bus does."""

    def __init__(self, peer: NodeId = A) -> None:
        self.peer = peer
        self.is_open = True
        self.receiver: ChannelReceiver | None = None
        self.sent: list[bytes] = []
        self.ended_with: str | None = None

    def start(self, receiver: ChannelReceiver) -> None:
        self.receiver = receiver

    def send(self, message: bytes) -> int:
        self.sent.append(message)
        return sum(map(len, self.sent))

    def buffered_bytes(self) -> int:
        return 0

    def abort(self, reason: str = "") -> None:
        self.is_open, self.ended_with = False, reason

    close = abort


class QuietBus:
    """A bus without peers, whose `connect` takes until the test lets it end."""

    def __init__(self) -> None:
        self.node = B
        self.asked = asyncio.Event()
        self.opened: asyncio.Future[End] = asyncio.get_running_loop().create_future()

    def peers(self) -> dict[NodeId, Any]:
        return {}

    def serve(self, *_: object) -> None: ...

    respond = on_peers_changed = serve

    async def connect(self, *_: object, within: float) -> End:
        self.asked.set()
        return await self.opened


# -- the directory -----------------------------------------------------------------------------------------------------


async def test_a_directory_that_is_stopped_while_its_channel_opens_keeps_neither_channel_nor_task() -> None:
    bus, background, end = QuietBus(), BackgroundTasks("test"), End()
    directory = PeerDirectory(cast("Bus", bus), background, A, 1, lambda _node, _change: None)
    await bus.asked.wait()
    bus.opened.set_result(end)  # accepted, but `connect` has not returned yet
    directory.stop()
    await until(lambda: not len(background))
    assert not end.is_open


# -- the links ---------------------------------------------------------------------------------------------------------


class FakeLink:
    """A link; only its end matters."""

    def __init__(self) -> None:
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.is_leaving = False

    def leaves(self) -> None:
        self.is_leaving = True


class Links(RemoteServers):
    """Opens links that go nowhere, when the test lets it."""

    def __init__(self) -> None:
        self.background = BackgroundTasks("test")
        self.opened: list[FakeLink] = []
        self.may_open = asyncio.Event()
        self.may_open.set()
        running = SimpleNamespace(background=self.background, dialins=SimpleNamespace(note_came=lambda _came: None))
        own = SimpleNamespace(entries={}, placed=None)
        super().__init__(cast("Bus", QuietBus()), cast("RunningHub", running), cast("OwnServers", own))

    async def _open(self, node: NodeId, entry: NodeServer) -> DialInLink:
        await self.may_open.wait()
        self.opened.append(FakeLink())
        return cast("DialInLink", self.opened[-1])

    def own(self) -> None:
        """The other node says that it owns the server."""
        self._changed(A, DirectoryChange(own=(LAMP,)))

    def lose(self) -> None:
        """It owns the server no longer, or its directory has ended."""
        self._changed(A, DirectoryChange(lost=(LAMP.key,)))

    async def settled(self) -> None:
        await asyncio.sleep(0)
        if self.may_open.is_set():
            await until(lambda: not len(self.background))
        await asyncio.sleep(0)


async def test_a_server_whose_directory_ended_is_used_again_although_its_channel_stayed_open() -> None:
    links = Links()
    links.own()
    await links.settled()
    links.lose()
    await links.settled()
    (old,) = links.opened
    assert old.is_leaving
    assert not old.lost.done()
    links.own()
    await links.settled()
    assert len(links.opened) == 2
    assert not links.opened[1].is_leaving
    links.own()
    await links.settled()
    assert len(links.opened) == 2, "one link is enough"
    old.lost.set_result("its node closed the channel")
    await links.settled()
    assert len(links.opened) == 2


async def test_nothing_is_kept_of_servers_that_no_node_owns_any_longer() -> None:
    links = Links()
    for _ in range(3):
        links.own()
        await links.settled()
        links.lose()
        await links.settled()
        assert not links._links
    assert all(link.is_leaving for link in links.opened)


async def test_a_link_that_opens_after_its_node_lost_the_server_is_not_used() -> None:
    links = Links()
    links.may_open.clear()
    links.own()
    await asyncio.sleep(0)
    links.lose()
    await asyncio.sleep(0)
    links.may_open.set()
    await links.settled()
    (link,) = links.opened
    assert link.is_leaving
    assert not links._links


async def test_a_node_that_goes_with_many_servers_costs_the_others_no_long_turn_of_the_loop() -> None:
    links = Links()
    owned = tuple(
        msgspec.structs.replace(LAMP, server_id=f"lamp{number}") for number in range(2 * KEYS_AT_ONCE_MAX + 1)
    )
    links._changed(A, DirectoryChange(own=owned))
    await until(lambda: len(links.opened) == len(owned))
    links._changed(A, DirectoryChange(lost=tuple(entry.key for entry in owned)))
    counts = [0]
    while counts[-1] < len(owned):
        await asyncio.sleep(0)
        counts.append(sum(link.is_leaving for link in links.opened))
    assert max(now - before for before, now in pairwise(counts)) <= KEYS_AT_ONCE_MAX


# -- the owner ---------------------------------------------------------------------------------------------------------


class Served:
    """A session whose calls end when the test says so."""

    def __init__(self, *_: object) -> None:
        self.is_leaving = False
        self.idle = asyncio.Event()

    def leave(self) -> None:
        self.is_leaving = True

    async def finish(self) -> None:
        await self.idle.wait()

    def has_asked(self) -> bool:
        return False

    def end(self, _why: str) -> None: ...


async def test_a_node_that_opens_a_second_channel_to_a_server_leaves_the_first_after_its_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ServedSession", Served)
    hub = SimpleNamespace(limits=Limits())
    lamp = SimpleNamespace(server="kitchen_lamp", server_id="lamp", welcome=b"")
    dialins = SimpleNamespace(local_link=lambda *_: (lamp, SimpleNamespace(server_info=None)))
    background = BackgroundTasks("test")
    running = cast("RunningHub", SimpleNamespace(background=background, dialins=dialins, hub=hub))
    own = OwnServers(cast("Bus", QuietBus()), running)
    own.entries[LAMP.key] = LAMP

    def use(node: NodeId) -> tuple[End, OwnSession]:
        end = End(node)
        session = OwnSession(own, cast("BusChannel", end), background, Limits().request_bytes)
        session.read(msgspec.json.encode(LAMP))
        return end, session

    (first, earlier), (other, _) = use(A), use(NodeId("c"))
    use(A)
    served = cast("Served", earlier._served)
    assert served.is_leaving
    assert first.is_open, "its calls are still answered"
    served.idle.set()
    await until(lambda: not first.is_open)
    assert own.sessions_of(LAMP.key) == 2
    assert other.is_open
    await background.aclose()
