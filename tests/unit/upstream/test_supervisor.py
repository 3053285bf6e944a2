"""Keepers: what they do with a link that lives, changes, falls silent or dies. The links are small doubles."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Set

import msgspec
import pytest

from isthmus.core.calls.hub import Hub
from isthmus.core.calls.inflight import InFlight
from isthmus.core.catalog.snapshot import Standing
from isthmus.core.crew import Crew
from isthmus.core.settings import Limits
from isthmus.model.faults import BadReply, Lost
from isthmus.model.features import TOPICS, Tool, Topic
from isthmus.model.names import FeatureName, ServerName
from isthmus.telemetry.counters import Counters
from isthmus.upstream import keeper as module
from isthmus.upstream.dialect import ModernDialect
from isthmus.upstream.link import BaseLink, ConnectFailed
from isthmus.upstream.listing import Listing
from isthmus.upstream.settings import Carrier, Era, ServerSettings, StdioSettings
from isthmus.upstream.supervisor import Supervisor
from isthmus.upstream.waiters import Waiter
from isthmus.wire.jsonrpc import Payload
from isthmus.wire.mcp.messages import Implementation

NAME = ServerName("files")
ME = Implementation("test", "1")


class Scripted(BaseLink):
    """A link to a server that does what the test says."""

    def __init__(self) -> None:
        super().__init__(NAME, ME, Limits())
        self.names = ["read"]
        self.listings = 0
        self.pings = 0
        self.greeted_as: list[Era] = []
        self.is_silent = False
        self.dies_of_probe = False
        self.is_closed = False

    async def greet(self, era: Era) -> None:
        self.greeted_as.append(era)
        if self.dies_of_probe and era != "legacy":
            self.is_probing = True
            self.die("exited with code 1")
            raise Lost(NAME, "exited with code 1", executed="unknown")
        if era != "legacy":
            self.dialect = ModernDialect(ME)

    async def list_features(self, topics: Set[Topic] = frozenset(TOPICS), known: Listing | None = None) -> Listing:
        self.listings += 1
        definition = {"inputSchema": msgspec.Raw(b'{"type":"object"}')}
        return Listing(tools=tuple(Tool.of(NAME, FeatureName(name), definition) for name in self.names))

    async def ping(self, within: float) -> None:
        self.pings += 1
        if self.is_silent:
            raise BadReply(NAME, "no answer to ping")

    def die(self, reason: str) -> None:
        self._lose(reason)

    def listen(self) -> None: ...
    def send(self, inflight: InFlight) -> None: ...
    def withdraw(self, inflight: InFlight, reason: str) -> None: ...
    def _dispatch(self, id: int, method: str, params: bytes, waiter: Waiter) -> None: ...
    def _forget(self, waiter: Waiter) -> None: ...
    def _notify(self, method: str, params: Payload | None) -> None: ...

    def may_have_run(self, inflight: InFlight) -> bool:
        return True

    async def aclose(self) -> None:
        self.is_closed = True


class Stage:
    """A hub with one kept server, and the links that were made for it."""

    def __init__(self) -> None:
        self.hub = Hub(Limits(), Counters())
        self.crew = Crew()
        self.links: list[Scripted] = []
        self.prepare: Callable[[Scripted], None] = lambda _link: None
        self.refusal: str | None = None
        self.supervisor = Supervisor(self.hub, self.crew, self._connect)

    async def _connect(self, settings: ServerSettings, carrier: Carrier) -> BaseLink:
        if self.refusal is not None:
            raise ConnectFailed(self.refusal)
        link = Scripted()
        self.prepare(link)
        self.links.append(link)
        return link

    def keep(self) -> None:
        self.supervisor.add(ServerSettings(NAME, StdioSettings("server", env={}), secrets=frozenset({"hunter22"})))

    @property
    def standing(self) -> Standing:
        return self.hub.snapshot.standings[NAME]

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not holds():  # noqa: ASYNC110 - pings and listings tell nobody
                await asyncio.sleep(0.001)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    made = Stage()
    yield made
    await made.supervisor.aclose()
    await made.crew.aclose()
    assert all(link.is_closed for link in made.links)


async def test_a_server_is_ready_once_it_was_greeted_and_listed(stage: Stage) -> None:
    stage.keep()
    assert stage.standing.state == "starting"
    await stage.until(lambda: stage.standing.state == "ready")
    assert [tool.name for tool in stage.standing.tools] == ["read"]
    assert stage.standing.era == "2026-07-28"


async def test_an_announced_change_is_listed_once_however_often_it_is_announced(stage: Stage) -> None:
    stage.keep()
    await stage.until(lambda: stage.standing.state == "ready")
    link = stage.links[0]
    link.names.append("write")
    for _ in range(1000):
        link.on_changed("tools")
    await stage.until(lambda: len(stage.standing.tools) == 2)
    assert link.listings == 2


async def test_a_change_that_nobody_announces_is_found_by_looking(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PING_SECONDS", 0.005)
    monkeypatch.setattr(module, "REFRESH_SECONDS", 0.01)
    stage.keep()
    await stage.until(lambda: stage.standing.state == "ready")
    stage.links[0].names.append("write")
    await stage.until(lambda: len(stage.standing.tools) == 2)


async def test_an_idle_server_that_does_not_answer_a_ping_is_tried_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PING_SECONDS", 0.005)
    stage.keep()
    await stage.until(lambda: stage.standing.state == "ready" and stage.links[0].pings > 0)
    stage.links[0].is_silent = True
    await stage.until(lambda: len(stage.links) > 1 and stage.standing.state == "ready")
    assert stage.links[0].is_closed


async def test_a_lost_server_keeps_its_tools_and_says_why(stage: Stage) -> None:
    stage.keep()
    await stage.until(lambda: stage.standing.state == "ready")
    stage.refusal = "no such command hunter22"
    stage.links[0].die("killed by signal 9")
    assert (stage.standing.state, stage.standing.reason) == ("retrying", "killed by signal 9")
    assert [tool.name for tool in stage.standing.tools] == ["read"]
    await stage.until(lambda: stage.standing.reason == "no such command ***")
    stage.refusal = None
    await stage.until(lambda: stage.standing.state == "ready")


async def test_a_server_that_died_of_the_probe_is_greeted_the_earlier_way_next(stage: Stage) -> None:
    def fragile(link: Scripted) -> None:
        link.dies_of_probe = True

    stage.prepare = fragile
    stage.keep()
    await stage.until(lambda: stage.standing.state == "ready")
    assert [link.greeted_as for link in stage.links] == [["auto"], ["legacy"]]


async def test_a_defect_in_a_keeper_is_shown_and_costs_only_its_server(stage: Stage) -> None:
    def broken(link: Scripted) -> None:
        raise ZeroDivisionError("a defect")

    stage.prepare = broken
    stage.keep()
    await stage.until(lambda: stage.standing.state == "stopped")
    assert "a defect" in (stage.standing.reason or "")
