"""Stored definitions of a hub, and its reports when the file cannot be written or becomes large."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from isthmus.app.definition_pins import LOGGED_ONE_BY_ONE, DefinitionPins
from isthmus.config.settings import Configuration, HubSettings
from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.hub import Hub
from isthmus.core.catalog.pins import Pinning
from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.core.settings import Limits
from isthmus.model.features import Tool
from isthmus.model.names import FeatureName, ServerName
from isthmus.storage.definition_store import DefinitionStore, SeenDefinition
from isthmus.telemetry.call_metrics import CallMetrics

pytestmark = pytest.mark.asyncio

SERVER = ServerName("s")


def configuration(folder: Path, pin: Pinning = "strict") -> Configuration:
    return Configuration(None, HubSettings(state=str(folder), pin=pin))


def server_status(description: str, count: int = 1) -> ServerStatus:
    raw = msgspec.Raw(msgspec.json.encode(description))
    tools = (Tool.of(SERVER, FeatureName(f"t{number}"), {"description": raw}) for number in range(count))
    return ServerStatus(SERVER, "ready", tools=tuple(tools), is_settled=True)


class Kept:
    """Pins of a hub, and their audit events."""

    def __init__(self, folder: Path, pin: Pinning = "strict") -> None:
        self.recorded: list[tuple[str, Mapping[str, object]]] = []
        self.background = BackgroundTasks()
        self.hub = Hub(Limits(), CallMetrics())
        self.pins = DefinitionPins(configuration(folder, pin))
        self.pins.record = lambda kind, facts: self.recorded.append((kind, facts))
        self.pins.attach(self.hub, self.background)

    async def close(self) -> None:
        await self.background.aclose()
        await self.pins.aclose()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_so():  # noqa: ASYNC110 - a thread makes it so
            await asyncio.sleep(0.01)


async def test_unwritten_definitions_are_written_when_the_file_works_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []
    keep = DefinitionStore.store

    def full(self: DefinitionStore, sightings: Sequence[tuple[SeenDefinition, bool]]) -> None:
        tries.append(len(sightings))
        if len(tries) < 3:
            raise sqlite3.OperationalError("database or disk is full")
        keep(self, sightings)

    monkeypatch.setattr(DefinitionStore, "store", full)
    kept = Kept(tmp_path)
    try:
        kept.hub.publish(server_status("a"))
        await until(lambda: len(tries) == 1)
        kept.hub.publish(server_status("b"))
        await until(lambda: len(tries) == 3)
    finally:
        await kept.close()
    after = DefinitionStore(tmp_path)
    assert [each.seen.tool for each in after.waiting()] == ["t0"]
    assert len(after.known()) == 1
    after.close()


async def test_definitions_seen_at_the_very_end_are_written_too(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.pins._worker.shutdown()
    kept.hub.publish(server_status("a"))
    await asyncio.sleep(0)
    await kept.close()
    after = DefinitionStore(tmp_path)
    assert len(after.known()) == 1
    after.close()


async def test_very_many_changes_are_reported_by_their_count(tmp_path: Path) -> None:
    kept = Kept(tmp_path, "warn")
    try:
        kept.hub.publish(server_status("a", 1000))
        kept.hub.publish(server_status("b", 1000))
        await until(lambda: bool(kept.recorded))
        assert len(kept.recorded) == LOGGED_ONE_BY_ONE + 1
        assert kept.recorded[-1] == ("definition.changed", {"server": SERVER, "tools": 1000 - LOGGED_ONE_BY_ONE})
    finally:
        await kept.close()


async def test_a_file_that_is_wanted_late_is_gone_by_and_written_to(tmp_path: Path) -> None:
    file = DefinitionStore(tmp_path)
    file.store([(SeenDefinition(SERVER, "", "t0", b"else", b"{}", 1.0), True)])
    assert file.approve(SeenDefinition(SERVER, "", "t0", b"else", b"{}", 1.0), 1.0)
    file.set_last_read_approval(1)
    kept = Kept(tmp_path, "off")
    try:
        kept.hub.publish(server_status("a", 2))
        kept.pins.change(configuration(tmp_path))
        kept.hub.review.last_published(SERVER)
        kept.hub.publish(server_status("a", 2))
        assert kept.hub.snapshot.server_statuses[SERVER].withheld == (FeatureName("t0"),)
        await until(lambda: len(file.known()) == 2)
        assert [kind for kind, _ in kept.recorded] == ["definition.withheld"], "nothing is heard of for a second time"
    finally:
        await kept.close()
        file.close()


async def test_two_hubs_learn_of_one_approval(tmp_path: Path) -> None:
    hubs = [Kept(tmp_path), Kept(tmp_path)]
    try:
        for kept in hubs:
            kept.hub.publish(server_status("a"))
            kept.hub.publish(server_status("b"))
        await until(lambda: all(kept.recorded for kept in hubs))
        operator = DefinitionStore(tmp_path)
        await until(lambda: bool(operator.waiting()))
        assert operator.approve(operator.waiting()[0].seen, 1.0)
        await until(lambda: all(kept.recorded[-1][0] == "definition.approved" for kept in hubs))
        for kept in hubs:
            kept.hub.publish(server_status("b"))
            assert len(kept.hub.snapshot.server_statuses[SERVER].tools) == 1
        assert operator.last_read_approval() == 1, "so that the next one does not tell of it again"
        operator.close()
    finally:
        for kept in hubs:
            await kept.close()
